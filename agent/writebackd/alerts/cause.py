# SPDX-License-Identifier: GPL-2.0-or-later
"""Finds the cause of slow syncs, and the processes responsible."""

from __future__ import annotations

import re
from typing import Optional, Sequence, Tuple

from writebackd.alerts.alert_types import Cause, Culprit
from writebackd.alerts.detector_memory import Baseline, DeviceHealth, Dirtied, Incident, size_class
from writebackd.types.core_memory import Memory
from writebackd.types.histogram import Histogram

# A flood is to blame when its pages are what a sync waits behind, or when it has just begun.
FLOODED_SHARE = 0.5
BACKLOG_SHARE, BACKLOG_LEAST_BYTES = 0.25, 64 << 20
JUST_BEGUN_S = 30.0
# Those who sync slept for this part of the time in write(), for pages of others.
THROTTLED_SHARE = 0.3
# Of a limiter: it hands out turns evenly, while media need a seek and part of a turn (p90 of
# 2 to 5 x p10), and cannot keep a rate to a few per cent either, over so many whole ticks: with
# three alone 2 of 20 failing disks were taken for a limiter.
EVEN_LATENCY, EVEN_RATE = 2.0, 0.08
EVEN_LEAST, EVEN_TICKS = 3, 5
# Of several that queue for a turn the last waits as many times as long (18 to 72 ms with four at 60
# turns a second); then the rate has to tell alone, to which seeks give 8 % and more. A tick begins
# and ends between two turns, which is up to two operations more or fewer.
QUEUED_RATE, TURNS = 0.04, 4
# They queue for it nearly all the time. Where they think for longer than they wait, that keeps the
# rate even, on any disk: without this, 9 of 60 lost caches were told 4 s late, with 0.5 10 of 150.
QUEUED_SHARE = 0.8
CAP_LEAST_RATE = 20.0  # operations per second; nobody sells less
# No medium that works needs so long for one request of a short queue.
FAULT_S = 0.1
FAULT_ONE_S = 2.0
# Writes as fast as usual among slow ones: somebody else has the disks, or the cache, at times.
FAST_MULTIPLE, FAST_LEAST_S = 3.0, 0.3e-3
FAST_SHARE = 0.02
# Media with much of their own speed (a drive's short seeks) answer some in three times what a slow
# cache takes: these are no evidence of a cache while they are few, and above what it takes.
SOON_SHARE, CACHE_MULTIPLE = 0.2, 1.5
# A write cache answers faster than media can: a rotation takes 4 to 8 ms, a seek as much.
CACHED_S, MEDIA_S, MEDIA_MOST_S = 1e-3, 1.5e-3, 50e-3
MEDIA_MULTIPLE = 5.0
# Behind a flood that is held a write waits for what is queued, and for others that do.
QUEUED = 2.0
ENOUGH_WRITES = 20
# The largest size class that a write cache takes at once: 128 KB, with xfs's log among them.
SMALL = 1
# Culprits: those with this part of what the first one dirtied.
CULPRIT_SHARE, MOST_CULPRITS = 0.2, 3
_CONTAINER = re.compile(r"(?:^|[-/:])([0-9a-f]{64})(?:\.scope)?(?:/|$)")
_LXC = re.compile(r"^/(?:lxc\.payload\.|lxc/)([^/]+)")


def cause_of(incident: Incident, health: DeviceHealth, memory: Memory) -> Cause:
    """The likeliest cause; UNKNOWN where nothing fits."""
    if _flood(incident):
        if memory.yielded is not None or memory.pin_bytes is not None:
            return Cause.FOREIGN_CHANGE
        return Cause.FLOOD
    if incident.throttled_s >= THROTTLED_SHARE * incident.seconds:
        return Cause.THROTTLED_WRITER
    if _is_capped(incident, health):
        return Cause.CAP
    if is_write_through(incident, health):
        return Cause.WRITE_THROUGH
    low, high = incident.writes.quantile(0.1), incident.writes.quantile(0.99)
    if low is not None and high is not None:
        if low >= FAULT_S + QUEUED * incident.backlog_s or high >= FAULT_ONE_S:
            return Cause.DEVICE
        return Cause.NEIGHBOUR
    if incident.oldest_s >= FAULT_ONE_S:
        return Cause.DEVICE
    return Cause.UNKNOWN


def _flood(incident: Incident) -> bool:
    if incident.flooded_s < FLOODED_SHARE * incident.seconds:
        return False
    behind = (
        incident.backlog_bytes >= BACKLOG_LEAST_BYTES
        and incident.backlog_s >= BACKLOG_SHARE * incident.judged_s
    )
    # Held to a few MB and well for half a minute, it is something else that came.
    return behind or incident.flood_age_s <= JUST_BEGUN_S


def is_even(incident: Incident) -> bool:
    """Whether a limiter sets the pace: a plateau of operations or bytes, each served alike."""
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
    """Whether it is a limiter. One lets nobody past: even the fastest are slower than usual."""
    usual, low = usual_write(incident, health), incident.writes.quantile(0.1)
    all_slow = usual is None or (low is not None and low > 2 * usual.latency_s)
    return all_slow and not incident.flooded_s and is_even(incident)


def _scatter(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return (max(values) - min(values)) / mean if mean else float("inf")


def usual_write(incident: Incident, health: DeviceHealth) -> Optional[Baseline]:
    """What a sync or journal write of their mean size usually takes."""
    size = size_class(incident.writes.total, incident.sync_bytes)
    return health.usual(health.writes, size)


def fast_share(writes: Histogram, size_bytes: int, health: DeviceHealth) -> Optional[float]:
    """The share of small writes that are as fast as usual; None where that is not known."""
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
    """Whether a write cache took some of these small writes."""
    cached_s = min(_soon_s(usual), max(CACHE_MULTIPLE * usual.latency_s, MEDIA_S / 2))
    above, total = writes.count_above(cached_s)
    return total - above > FAST_SHARE * total


def is_write_through(incident: Incident, health: DeviceHealth) -> bool:
    """Whether every small write takes as long as media do, where a cache used to take them."""
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


def culprits_of(incident: Incident, cause: Cause) -> Tuple[Culprit, ...]:
    """Who dirtied most, the heaviest first, where that is why; without command lines."""
    if cause not in (Cause.FLOOD, Cause.FOREIGN_CHANGE, Cause.THROTTLED_WRITER):
        return ()
    heavy = sorted(incident.dirtied.values(), key=lambda each: -each.count)[:MOST_CULPRITS]
    seconds = max(incident.seconds, 1e-3)
    return tuple(
        _culprit(each, seconds)
        for each in heavy
        if each.count and each.count >= CULPRIT_SHARE * heavy[0].count
    )


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
    """The host's unit that a cgroup path belongs to; None where none does.

    Below what is no slice (/docker/ID, /lxc.payload.web) a container has units of its own, which
    may be called as the host's are.
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
    found = _CONTAINER.search(cgroup or "") or _LXC.search(cgroup or "")
    return found.group(1) if found else None
