# SPDX-License-Identifier: GPL-2.0-or-later
"""BATTERY_TEST and CACHE_MISMATCH: what RAID tools announce, or report unlike what is measured.

The opposite, a cache that is off while a tool reports write-back, is CACHE_DEGRADED, which quotes
the tool.
"""

from __future__ import annotations

from typing import Dict, List, Sequence, Tuple

from writebackd import formats
from writebackd.alerts.alert_types import Alert, AlertName, Cause, Severity
from writebackd.alerts.cause import CACHED_S, ENOUGH_WRITES
from writebackd.alerts.detector_memory import DeviceHealth
from writebackd.alerts.views import DeviceView, TickView
from writebackd.types.copying import replace
from writebackd.types.storage import Backing, CacheMode

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
