# SPDX-License-Identifier: GPL-2.0-or-later
"""The write cache, by behaviour and as RAID tools have it.

CACHE_DEGRADED: small writes are no longer as fast as it makes them; quotes what a tool says.
BATTERY_TEST: a tool announces one.  CACHE_MISMATCH: it reports what measurements contradict.
"""

from __future__ import annotations

from typing import Dict, List, Sequence, Tuple

from writebackd import formats
from writebackd.alerts import messages
from writebackd.alerts.alert_types import Alert, AlertName, Cause, Severity
from writebackd.alerts.baseline import LATENCY_FOLLOWS_S, MOST_FALLS_S
from writebackd.alerts.cause import (
    CACHED_S,
    ENOUGH_WRITES,
    FLOODED_SHARE,
    QUEUED,
    SMALL,
    SOON_SHARE,
    fast_share,
    has_cached,
    is_write_through,
)
from writebackd.alerts.detector_memory import (
    ENOUGH_S,
    Baseline,
    BesideFlood,
    DeviceHealth,
    Incident,
    Recovery,
    size_class,
)
from writebackd.alerts.incident import UNWANTED_S, alert_of, extended, is_lasting
from writebackd.alerts.views import DeviceView, TickView
from writebackd.types.copying import replace
from writebackd.types.storage import Backing, CacheMode

# Seconds until the alert: the first tick, and three whole ones of about a second, which are needed
# to rule out a limiter (EVEN_LEAST).
DEGRADED_S = 3.5
FAST_AGAIN = 0.5  # share of fast small writes above which the cache is back
# Bytes.  With a larger backlog every write is slow, with or without a cache.  A limited flood has a
# backlog of a tenth of a second of R (MOST_S), R being up to 2 GB/s.
HIDING_BYTES = 256 << 20
# Factor on the longest time without a fast write during a flood while the cache was working.
SLOW_TIMES = 2.0
# Seconds.  Without a small write for this long the alert ends; it is raised again if the cache is
# still off.
UNSEEN_S = 300.0


def degraded(view: DeviceView, health: DeviceHealth) -> DeviceHealth:
    """Add this tick to the incident, if there is one, and raise the alert once it is certain."""
    count, size_bytes, _ = view.small_writes
    size = size_class(count, size_bytes)
    if not count or size > SMALL:
        return _unseen(view, health)
    usual = health.usual(health.writes, size)
    if usual is None or _behind_much(view):
        return _over(health)
    if _is_fast(view, health, usual):
        return _over(health)
    incident = extended(health.degraded, view, True, DEGRADED_S)
    if incident.lasted_s >= DEGRADED_S:
        if not is_write_through(incident, health):
            return _over(health)
        if is_lasting(incident) and not _is_usual(incident, health.beside):
            view.tick.tell(cache_alert(view, health, incident, usual))
    return replace(health, degraded=incident)


def beside_flood(view: DeviceView, health: DeviceHealth) -> DeviceHealth:
    """Record how long small writes are fast or slow during a flood and shortly after it."""
    count, size_bytes, latencies = view.small_writes
    size = size_class(count, size_bytes)
    usual = health.usual(health.writes, size)
    if not count or size > SMALL or usual is None:
        return health
    fast_s, fast_at_s, slow_s, longest_s = health.beside
    if not has_cached(latencies, usual):
        return replace(health, beside=BesideFlood(
            max(0.0, fast_s - view.dt_s), fast_at_s, slow_s + view.dt_s, longest_s
        ))  # fmt: skip
    if view.estimate.flooded:
        # Only consecutive ticks: the first and last of a flood have fast writes on any disk.
        now_s = view.tick.sample.time_s
        if now_s - fast_at_s < 1.5 * view.dt_s:
            fast_s = min(fast_s + view.dt_s, LATENCY_FOLLOWS_S)
        fast_at_s = now_s
    longest_s *= 1.0 - view.dt_s / MOST_FALLS_S
    if (AlertName.CACHE_DEGRADED.value, view.name) not in view.tick.stands:
        longest_s = max(longest_s, slow_s)
    return replace(health, beside=BesideFlood(fast_s, fast_at_s, 0.0, longest_s))


def recovering(view: DeviceView, health: DeviceHealth) -> DeviceHealth:
    """Check whether a cache reported as off works again.

    A single tick of a quiet host has too few writes to judge by, so ticks are combined.
    """
    count, size_bytes, latencies = view.small_writes
    before = health.recovery
    if not count or size_class(count, size_bytes) > SMALL:
        now = replace(before, unseen_s=before.unseen_s + view.dt_s)
    elif _hidden(view):
        now = replace(before, unseen_s=0.0)
    else:
        now = Recovery(
            before.count + count, before.bytes + size_bytes, before.latencies + latencies,
            fast=before.fast,
        )  # fmt: skip
        if health.usual(health.writes, 0) is None:
            now = Recovery(fast=True)  # another disk: nothing was lost
        elif now.count >= ENOUGH_WRITES:
            share = fast_share(now.latencies, now.bytes, health)
            now = Recovery(fast=share is not None and share > FAST_AGAIN)
    if now.fast or now.unseen_s >= UNSEEN_S:
        view.well(AlertName.CACHE_DEGRADED)
    return replace(health, recovery=now)


def _behind_much(view: DeviceView) -> bool:
    return view.estimate.flooded and view.backlog_bytes > HIDING_BYTES


def _is_fast(view: DeviceView, health: DeviceHealth, usual: Baseline) -> bool:
    """Whether a cache completed some of the tick's small writes."""
    _, size_bytes, latencies = view.small_writes
    if view.estimate.flooded:
        return has_cached(latencies, usual)
    share = fast_share(latencies, size_bytes, health)
    # Twice the share allowed in an incident, since a single tick has few writes.
    return share is not None and share > 2 * SOON_SHARE


def _is_usual(incident: Incident, beside: BesideFlood) -> bool:
    """Whether a flood explains the incident.

    Either no fast writes have been seen during floods, or earlier floods had none for as long.
    """
    return incident.flooded_s >= FLOODED_SHARE * incident.seconds and (
        beside.fast_s < ENOUGH_S or beside.slow_s < SLOW_TIMES * beside.longest_s
    )


def _hidden(view: DeviceView) -> bool:
    """Whether a flood may be why small writes are slow in this tick."""
    if not view.estimate.flooded:
        return False
    middle = view.small_writes[2].quantile(0.5)
    queued_s = view.backlog_bytes / max(view.estimate.rate, 1.0)
    return _behind_much(view) or (middle is not None and middle <= QUEUED * queued_s)


def _unseen(view: DeviceView, health: DeviceHealth) -> DeviceHealth:
    """A tick without small writes: after UNWANTED_S of them the incident is dropped."""
    incident = health.degraded
    if incident is None:
        return health
    good_s = incident.good_s + view.dt_s  # in a row: a slow tick sets it to 0
    incident = replace(incident, good_s=good_s)
    return replace(health, degraded=incident if good_s < UNWANTED_S else None)


def _over(health: DeviceHealth) -> DeviceHealth:
    return replace(health, degraded=None) if health.degraded is not None else health


def cache_alert(
    view: DeviceView, health: DeviceHealth, incident: Incident, usual: Baseline
) -> Alert:
    return alert_of(
        incident, view, health, AlertName.CACHE_DEGRADED, Cause.WRITE_THROUGH,
        messages.degraded(view.name, incident, usual),
    )  # fmt: skip


NOTICE_S = 24 * 3600.0
# Longer than a tool's word takes to follow: it is asked every ten minutes.
MISMATCH_S = 15 * 60.0
_KERNEL = ("bcache", "dm-", "md")  # sources that are no tool
# A measured size is off when it is so many times larger or smaller, by so many seconds of R. The
# first flood has to show the square of it: of 88 drawn caches it showed 21 more than twice as large
# or small, and none more than four times by three seconds.
SIZE_TIMES, SIZE_S = 2.0, 3.0
_ANOTHER = (
    "another cache holds the writes, perhaps the disks' own, which loses them at a power failure"
)


def battery_tests(tick: TickView) -> None:
    """Raise an alert for each test within a day, on the first device, naming all devices.

    Tests of two controllers at the same time are one alert: the tool's answer does not say which
    controller it is about.
    """
    here = {seen.device.name for seen in tick.sample.devices if seen.excluded is None}
    tests: Dict[Tuple[str, float], List[str]] = {}
    for backing in sorted(tick.sample.backings, key=lambda backing: backing.device):
        if backing.learn_s is not None and backing.device in here:
            names = tests.setdefault((backing.source, backing.learn_s), [])
            if backing.device not in names:
                names.append(backing.device)
    for (source, learn_s), names in tests.items():
        left_s = learn_s - tick.sample.wall_s
        if 0 <= left_s <= NOTICE_S:
            whose = "its" if len(names) == 1 else "their"
            tick.tell(Alert(
                AlertName.BATTERY_TEST, names[0], Severity.WARNING, Cause.BATTERY,
                learn_s - NOTICE_S,
                f"{', '.join(names)}: self-test of {whose} write cache's battery in"
                f" {formats.duration(left_s)} ({source}): small writes may then take milliseconds"
                " for hours",
                "move the test to a quiet time, with the vendor's tool",
            ))  # fmt: skip
    for key in tick.stands:
        if key[0] == AlertName.BATTERY_TEST.value and key not in tick.raised:
            tick.well.add(key)


def mismatch(view: DeviceView, health: DeviceHealth) -> DeviceHealth:
    """Update for how long, or how often, the device has not behaved as the tools report."""
    here = view.tick.backings_of(view.name)
    health = _size(view, _mode(view, health, here), here)
    if not health.mismatch_s:
        view.well(AlertName.CACHE_MISMATCH)
    return health


def _mode(view: DeviceView, health: DeviceHealth, here: Sequence[Backing]) -> DeviceHealth:
    """Check for small writes that are too fast for a cache that is off."""
    modes = [backing for backing in here if backing.mode]
    off = all(backing.mode is CacheMode.WRITE_THROUGH for backing in modes)
    # The kernel knows the mode of its own caches, and what is below one may write back.
    said = [backing for backing in modes if not backing.source.startswith(_KERNEL)]
    count, _, latencies = view.small_writes
    seconds = 0.0
    if said and off and view.seen.device.rotational:
        if count < ENOUGH_WRITES:
            return health  # says nothing
        middle_s = latencies.quantile(0.5)
        assert middle_s is not None  # of that many
        if middle_s <= CACHED_S:
            seconds = health.mismatch_s + view.dt_s
        if seconds >= MISMATCH_S:
            _tell(
                view, seconds,
                f"{said[0].source} says write-through, but a small write takes"
                f" {formats.milliseconds(middle_s)} ms: {_ANOTHER}",
                "check the disks' write caches with the vendor's tool",
            )  # fmt: skip
    return replace(health, mismatch_s=seconds) if seconds != health.mismatch_s else health


def _size(view: DeviceView, health: DeviceHealth, here: Sequence[Backing]) -> DeviceHealth:
    """Count floods that measure another cache size than the tool reports."""
    seen, r = view.estimate.cache_bytes, view.estimate.drain_rate
    said = [b for b in here if b.capacity_bytes and not b.source.startswith(_KERNEL)]
    # A cache of the kernel's own says itself what it holds, and it is the one that fills.
    if not said or len(said) < len(here) or seen is None or r is None or any(
        b.mode is CacheMode.WRITE_THROUGH for b in said
    ):
        return replace(health, sizes_off=0) if health.sizes_off else health
    source, stated = said[0].source, float(said[0].capacity_bytes or 0)
    times = seen / stated if seen > stated else 0.0 if _is_shared(view, said[0]) else stated / seen
    off = times > SIZE_TIMES and abs(seen - stated) >= SIZE_S * r
    floods = health.sizes_off + (seen != health.size_seen) if off else 0
    if floods > 1 or (floods and times > SIZE_TIMES**2):
        why = _ANOTHER if seen > stated else "part of it is used for reads, reserved or disabled"
        _tell(
            view, 0.0,
            f"{source} reports a write cache of {formats.size(stated)}, but floods fill"
            f" {formats.size(seen)}: {why}",
            "compare the settings of the controller's cache, and the disks' own caches, with the"
            " vendor's tool",
        )  # fmt: skip
    return replace(health, sizes_off=floods, size_seen=seen)


def _is_shared(view: DeviceView, said: Backing) -> bool:
    return any(
        (backing.source, backing.capacity_bytes) == (said.source, said.capacity_bytes)
        for backing in view.tick.sample.backings if backing.device != view.name
    )  # fmt: skip


def _tell(view: DeviceView, seconds: float, what: str, do: str) -> None:
    view.tick.tell(Alert(
        AlertName.CACHE_MISMATCH, view.name, Severity.WARNING, Cause.UNKNOWN,
        view.tick.sample.wall_s - seconds, f"{view.name}: {what}", do,
    ))  # fmt: skip
