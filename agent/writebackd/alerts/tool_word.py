# SPDX-License-Identifier: GPL-2.0-or-later
"""BATTERY_TEST and CACHE_MISMATCH: what RAID tools announce, and what behaviour contradicts.

The other way round, a cache that is off while a tool says write-back, is CACHE_DEGRADED, which
quotes the tool.
"""

from __future__ import annotations

from typing import Dict, List, Tuple

from writebackd import formats
from writebackd.alerts.alert_types import Alert, AlertName, Cause, Severity
from writebackd.alerts.cause import CACHED_S, ENOUGH_WRITES
from writebackd.alerts.detector_memory import DeviceHealth
from writebackd.alerts.views import DeviceView, TickView
from writebackd.types.copying import replace
from writebackd.types.storage import CacheMode

NOTICE_S = 24 * 3600.0
# Longer than a tool's word takes to follow: it is asked every ten minutes.
MISMATCH_S = 15 * 60.0
_KERNEL = ("bcache", "dm-", "md")  # sources that are no tool


def battery_tests(tick: TickView) -> None:
    """Tells of each test within a day, on the first of its devices, and names them all.

    Those of two controllers at the same time are one alert: a tool's answer does not tell here
    which controller it is of.
    """
    here = {seen.device.name for seen in tick.sample.devices if seen.excluded is None}
    tests: Dict[Tuple[str, float], List[str]] = {}
    for each in sorted(tick.sample.backings, key=lambda backing: backing.device):
        if each.learn_s is not None and each.device in here:
            names = tests.setdefault((each.source, each.learn_s), [])
            if each.device not in names:
                names.append(each.device)
    for (source, learn_s), names in tests.items():
        left_s = learn_s - tick.sample.wall_s
        if 0 <= left_s <= NOTICE_S:
            whose = "its write cache" if len(names) == 1 else "their write cache"
            tick.tell(Alert(
                AlertName.BATTERY_TEST, names[0], Severity.WARNING, Cause.BATTERY,
                learn_s - NOTICE_S,
                f"{', '.join(names)}: the battery of {whose} tests itself in"
                f" {formats.duration(left_s)} ({source}): small writes may take milliseconds for"
                " hours",
                "move the test out of the busy time, with the vendor's tool",
            ))  # fmt: skip
    for key in tick.stands:
        if key[0] == AlertName.BATTERY_TEST.value and key not in tick.found:
            tick.well.add(key)


def mismatch(view: DeviceView, health: DeviceHealth) -> DeviceHealth:
    """`health` with how long small writes have been too fast for what the tools say."""
    modes = [each for each in view.tick.sample.backings if each.device == view.name and each.mode]
    off = all(each.mode is CacheMode.WRITE_THROUGH for each in modes)
    # The kernel knows the mode of its own caches, and what is below one may write back.
    said = [each for each in modes if not each.source.startswith(_KERNEL)]
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
            view.tick.tell(Alert(
                AlertName.CACHE_MISMATCH, view.name, Severity.WARNING, Cause.UNKNOWN,
                view.tick.sample.wall_s - seconds,
                f"{view.name}: {said[0].source} says write-through, but a small write takes"
                f" {formats.milliseconds(middle_s)} ms: another cache holds writes back, perhaps"
                " the disks' own, which a power failure empties",
                "check the disks' write caches with the vendor's tool",
            ))  # fmt: skip
    if not seconds:
        view.well(AlertName.CACHE_MISMATCH)
    return replace(health, mismatch_s=seconds) if seconds != health.mismatch_s else health
