# SPDX-License-Identifier: GPL-2.0-or-later
"""Finds the cause of slow syncs, and the processes responsible."""

from __future__ import annotations

import math
import re
from typing import Container, Optional, Sequence, Tuple

from writebackd.alerts.alert_types import Cause, Culprit
from writebackd.alerts.detector_memory import Baseline, DeviceHealth, Dirtied, Incident, size_class
from writebackd.types.core_memory import Memory
from writebackd.types.histogram import Histogram

# A flood is the cause if the device was flooded for FLOODED_SHARE of the incident, and either the
# largest backlog was BACKLOG_LEAST_BYTES and would take BACKLOG_SHARE of the syncs' latency to
# write, or the flood is younger than JUST_BEGUN_S.
FLOODED_SHARE = 0.5
BACKLOG_SHARE, BACKLOG_LEAST_BYTES = 0.25, 64 << 20
JUST_BEGUN_S = 30.0
# Bytes of a mean write, with which a device is filled by bytes and not by operations; and bytes per
# second that are much for any disk that seeks.
LARGE_BYTES, MUCH_RATE = 64 << 10, 8 << 20
# Seconds.  A flood that fsyncs dirties memory in one go, long before the trouble is an incident.
BEFORE_S = 60.0
# Share of the commits' time that was slept in write(); 13 to 25 % is usual under a good limit.
THROTTLED_SHARE = 0.5
# A limiter (of a cloud volume) is recognized by even service: p90 of the writes is at most
# EVEN_LATENCY times p10, and the rate varies by at most EVEN_RATE over EVEN_LEAST to EVEN_TICKS
# whole ticks.  Media need a seek and part of a rotation (p90 is 2 to 5 times p10), and do not keep
# a rate within a few percent.  With three ticks alone 2 of 20 failing disks looked like a limiter.
EVEN_LATENCY, EVEN_RATE = 2.0, 0.08
EVEN_LEAST, EVEN_TICKS = 3, 5
# If several programs wait for the limiter, the last waits several times as long (18 to 72 ms with
# four at 60 operations/s).  Then only the rate counts: it must vary by at most QUEUED_RATE, where
# seeks cause 8 % or more, or by TURNS operations, since a tick may contain up to two more or fewer.
QUEUED_RATE, TURNS = 0.04, 4
# Share of the time that such programs must spend waiting.  Programs that do something else for
# longer than they wait have an even rate on any disk.  Without this 9 of 60 lost caches were
# reported 4 s late, with 0.5 10 of 150.
QUEUED_SHARE = 0.8
CAP_LEAST_RATE = 20.0  # operations per second; no volume is sold with less
# Seconds.  No working medium takes longer for a request of a short queue: FAULT_S at p10 of the
# writes, FAULT_ONE_S at p99 or for the oldest pending sync.
FAULT_S = 0.1
FAULT_ONE_S = 2.0
# A write is as fast as usual below FAST_MULTIPLE times its usual latency, and always below
# FAST_LEAST_S.  If more than FAST_SHARE of the writes are answered by a cache, the cache is on.
FAST_MULTIPLE, FAST_LEAST_S = 3.0, 0.3e-3
FAST_SHARE = 0.02
# Fast media (a drive with short seeks) answer some writes within three times the latency of a slow
# cache.  These are no evidence of a cache while they are at most SOON_SHARE of the writes and take
# more than CACHE_MULTIPLE times the cache's latency.
SOON_SHARE, CACHE_MULTIPLE = 0.2, 1.5
# Seconds.  A write cache answers below CACHED_S; media need MEDIA_S to MEDIA_MOST_S: a rotation
# takes 4 to 8 ms, a seek as long.  MEDIA_MULTIPLE: times the usual latency, at least.
CACHED_S, MEDIA_S, MEDIA_MOST_S = 1e-3, 1.5e-3, 50e-3
MEDIA_MULTIPLE = 5.0
# Factor on the backlog's drain time: under a limited flood a write waits for the queue and for
# other waiting writes.
QUEUED = 2.0
ENOUGH_WRITES = 20
# The largest size class that a write cache accepts at once: 128 KB, which includes xfs's log.
SMALL = 1
# Culprits are the programs that dirtied at least CULPRIT_SHARE of what the first one did.
CULPRIT_SHARE, MOST_CULPRITS = 0.2, 3
_CONTAINER = re.compile(r"(?:^|[-/:])([0-9a-f]{64})(?:\.scope)?(?:/|$)")
_LXC = re.compile(r"^/(?:lxc\.payload\.|lxc/)([^/]+)")


def cause_of(incident: Incident, health: DeviceHealth, memory: Memory) -> Cause:
    """The likeliest cause; UNKNOWN if none fits."""
    if incident.throttled_s >= THROTTLED_SHARE * incident.seconds:
        return Cause.THROTTLED_WRITER
    if _flood(incident):
        if memory.yielded is not None or memory.pin_bytes is not None:
            return Cause.FOREIGN_CHANGE
        return Cause.FLOOD
    if _is_capped(incident, health):
        return Cause.CAP
    if is_write_through(incident, health):
        return Cause.WRITE_THROUGH
    low, high = incident.writes.quantile(0.1), incident.writes.quantile(0.99)
    if low is not None and high is not None:
        if low >= FAULT_S + QUEUED * incident.backlog_s or high >= FAULT_ONE_S:
            return Cause.DEVICE
        # Direct IO leaves nothing waiting in memory.
        return Cause.FLOOD if _writes_much(incident) else Cause.NEIGHBOUR
    if incident.oldest_s >= FAULT_ONE_S:
        return Cause.DEVICE
    return Cause.UNKNOWN


def _flood(incident: Incident) -> bool:
    if incident.flooded_s < FLOODED_SHARE * incident.seconds:
        return False
    if incident.loaded_s >= FLOODED_SHARE * incident.seconds:
        return True  # no limit holds these, so their age does not matter
    behind = (
        incident.backlog_bytes >= BACKLOG_LEAST_BYTES
        and incident.backlog_s >= BACKLOG_SHARE * incident.judged_s
    )
    # A flood that was limited to a few MB for half a minute without trouble is not the cause.
    return behind or incident.flood_age_s <= JUST_BEGUN_S


def _writes_much(incident: Incident) -> bool:
    """Whether this host itself fills the device, not counting a flood that is held back."""
    if incident.flooded_s >= FLOODED_SHARE * incident.seconds:
        return False
    seconds, operations, size = (sum(column) for column in zip(*incident.ticks))
    return bool(size >= MUCH_RATE * seconds and size >= LARGE_BYTES * operations)


def is_even(incident: Incident) -> bool:
    """Whether a limiter sets the rate: constant operations or bytes per second, even latency."""
    ticks = incident.ticks[1:][-EVEN_TICKS:]  # the first began before the trouble
    low, high = incident.writes.quantile(0.1), incident.writes.quantile(0.9)
    if len(ticks) < EVEN_LEAST or low is None or high is None:
        return False
    operations = [count / dt for dt, count, _ in ticks]
    sizes = [size / dt for dt, _, size in ticks]
    if sum(operations) / len(operations) < CAP_LEAST_RATE:
        return False
    scatter = min(_scatter(operations), _scatter(sizes))
    if high <= EVEN_LATENCY * low:
        return scatter <= EVEN_RATE
    waiting = (incident.syncs.mean() or 0.0) * incident.sync_rate
    if waiting < QUEUED_SHARE * incident.inflight:
        return False
    even = max(QUEUED_RATE, TURNS * len(operations) / sum(operations))
    return high <= EVEN_LATENCY * low * max(1, incident.inflight) and scatter <= even


def _is_capped(incident: Incident, health: DeviceHealth) -> bool:
    """Whether a limiter is the cause.  It delays every write: even the fastest are slow."""
    usual, low = usual_write(incident, health), incident.writes.quantile(0.1)
    all_slow = usual is None or (low is not None and low > 2 * usual.latency_s)
    return all_slow and not incident.flooded_s and is_even(incident)


def _scatter(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return (max(values) - min(values)) / mean if mean else float("inf")


def usual_write(incident: Incident, health: DeviceHealth) -> Optional[Baseline]:
    """The usual latency of sync and journal writes of this incident's mean size."""
    size = size_class(incident.writes.total, incident.sync_bytes)
    return health.usual(health.writes, size)


def fast_share(writes: Histogram, size_bytes: int, health: DeviceHealth) -> Optional[float]:
    """The share of small writes that are as fast as usual; None if unknown."""
    total = writes.total
    size = size_class(total, size_bytes)
    usual = health.usual(health.writes, size)
    if usual is None or total < ENOUGH_WRITES or size > SMALL:
        return None
    slow = writes.share_above(_soon_s(usual))
    return None if slow is None else 1.0 - slow


def _soon_s(usual: Baseline) -> float:
    return max(FAST_MULTIPLE * usual.latency_s, FAST_LEAST_S)


def has_cached(writes: Histogram, usual: Baseline) -> bool:
    """Whether a write cache completed some of these small writes."""
    cached_s = min(_soon_s(usual), max(CACHE_MULTIPLE * usual.latency_s, MEDIA_S / 2))
    above, total = writes.count_above(cached_s)
    return total - above > FAST_SHARE * total


def is_write_through(incident: Incident, health: DeviceHealth) -> bool:
    """Whether every small write now takes as long as the media need, despite a cache."""
    usual, fast = (
        usual_write(incident, health),
        fast_share(incident.writes, incident.sync_bytes, health),
    )
    if usual is None or fast is None or usual.latency_s > CACHED_S or fast > SOON_SHARE:
        return False
    if has_cached(incident.writes, usual):
        return False
    low, middle = incident.writes.quantile(0.1), incident.writes.quantile(0.5)
    assert low is not None and middle is not None  # fast_share() counted them
    at_least_s = max(MEDIA_S, MEDIA_MULTIPLE * usual.latency_s)
    most_s = MEDIA_MOST_S + QUEUED * incident.backlog_s
    return (
        low >= MEDIA_S / 2 and at_least_s <= middle <= most_s and not _is_capped(incident, health)
    )


def culprits_of(
    incident: Incident, cause: Cause, committers: Container[str]
) -> Tuple[Culprit, ...]:
    """The programs that dirtied most, the heaviest first, if dirty pages are the cause.

    They have no command lines.
    """
    if cause not in (Cause.FLOOD, Cause.FOREIGN_CHANGE, Cause.THROTTLED_WRITER):
        return ()
    # By program, what it dirtied before and since the incident began.
    both = [
        (program[0], incident.before.get(program), incident.dirtied.get(program))
        for program in {**incident.before, **incident.dirtied}
    ]
    sums = [(sum(part.count for part in pair if part), comm, pair) for comm, *pair in both]
    others = sum([count for count, comm, _ in sums if comm not in committers])
    # A commit of 4 KiB makes a folio of up to 2 MB dirty, and its sync writes the 4 KiB.
    most = incident.sync_bytes if others >= CULPRIT_SHARE * incident.written_bytes else math.inf
    heavy = sorted([
        (min(count, most) if comm in committers else count, pair) for count, comm, pair in sums
    ], key=lambda each: -each[0])[:MOST_CULPRITS]
    if sum([count for count, _ in heavy]) < CULPRIT_SHARE * incident.written_bytes:
        return ()  # direct IO, which dirties nothing
    seconds = max(incident.seconds, 1e-3)
    culprits = []
    for count, (before, since) in heavy:
        if not count or count < CULPRIT_SHARE * heavy[0][0]:
            continue
        if before is not None and (since is None or before.count > since.count):
            culprits.append(_culprit(before, before.seconds))
        elif since is not None:
            culprits.append(_culprit(since, seconds))
    return tuple(culprits)


def _culprit(dirtied: Dirtied, seconds: float) -> Culprit:
    task = dirtied.task
    return Culprit(
        pid=task.pid,
        comm=task.comm,
        cgroup=task.cgroup,
        unit=unit_in(task.cgroup),
        container=container_in(task.cgroup),
        dirty_rate=dirtied.count / seconds,
        several=dirtied.several,
    )


def unit_in(cgroup: Optional[str]) -> Optional[str]:
    """The host's unit that a cgroup path belongs to; None if there is none.

    Units below a non-slice (/docker/ID, /lxc.payload.web) belong to a container, and may have the
    same names as the host's.
    """
    for part in (cgroup or "").strip("/").split("/"):
        if part.endswith((".service", ".scope")):
            return part
        if not part.endswith(".slice"):
            return None
    return None


def container_in(cgroup: Optional[str]) -> Optional[str]:
    """The container that a cgroup path belongs to: its id (docker, podman, CRI: 64 hex), its name
    (LXC, LXD, Proxmox)."""
    match = _CONTAINER.search(cgroup or "") or _LXC.search(cgroup or "")
    return match.group(1) if match else None
