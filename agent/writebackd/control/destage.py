# SPDX-License-Identifier: GPL-2.0-or-later
"""Decides how bcache destages: by time, and below what the disk takes; while drained, all of it.

By itself bcache writes 4 KB/s, and rests for 30 s after each pass, until more than 10 % of the
cache is dirty; then it follows what comes in too slowly to keep the cache from being full. Here
what is dirty is to be written out within DESTAGE_S, at a share of the drain rate at most: so the
rate is what comes in, and the rest of the disk is left to reads and to syncs that miss.
"""

from __future__ import annotations

from typing import Dict, Iterator, List, Mapping, Tuple

from writebackd.control.ramp import near
from writebackd.estimate.true_fill import FILL_FRESH_S
from writebackd.policy.schema import Policy
from writebackd.types.copying import replace
from writebackd.types.core_memory import Memory
from writebackd.types.estimate import Estimate
from writebackd.types.levers import LeverKind, Setting
from writebackd.types.samples import Sample
from writebackd.types.storage import Backing, CacheMode

SECTOR = 512
# Seconds in which what is dirty is written out: long enough for readings every 2 s, short enough
# that a cache holds what comes in meanwhile.
DESTAGE_S = 10.0
# Of the drain rate, that it is at least: or the last blocks would stay for minutes.
DESTAGE_LEAST = 0.02
# Seconds that it rests after each pass over what is dirty. Its own are 30, in which nothing is
# destaged: of 39 MB written at the start of a pause none was, at any rate (6.1).
DESTAGE_DELAY_S = 1
# Of the cache, in per cent, until which the rate stays as it is set. Above its own 10 it grows to
# what the disk takes; 40 is the most that it accepts, from which on it sends writes past the cache.
DESTAGE_PERCENT = 40


def plan_destage(
    policy: Policy, memory: Memory, sample: Sample, estimates: Mapping[str, Estimate]
) -> Tuple[Tuple[Setting, ...], Memory]:
    """Settings of each bcache that holds writes back, and the memory with their rates.

    Nothing while yielded or pinned, where no drain rate is known, and where nobody reads the cache.
    A drain needs no rate.
    """
    share, rates, drained = policy.levers.destage_share, dict[str, int](), set[str]()
    if memory.yielded is None and memory.pin_bytes is None:
        drained = {disk for disk, each in _caches(sample) if each.device in memory.draining}
        if share:
            rates = _rates(share, memory, sample, estimates)
    if not rates and not memory.destage and not drained:
        return (), memory
    settings: List[Setting] = []
    for disk in sorted(drained):
        rates.pop(disk, None)
        # At 0 per cent no rate holds it (writeback_delay()); nor does it rest after a pass.
        settings += [
            Setting(LeverKind.CACHE, disk, "writeback_delay", 0),
            Setting(LeverKind.CACHE, disk, "writeback_percent", 0),
        ]
    for disk, rate in sorted(rates.items()):
        settings += [
            Setting(LeverKind.CACHE, disk, "writeback_rate_minimum", rate),
            Setting(LeverKind.CACHE, disk, "writeback_delay", DESTAGE_DELAY_S),
            Setting(LeverKind.CACHE, disk, "writeback_percent", DESTAGE_PERCENT),
        ]
    return tuple(settings), replace(memory, destage=rates)


def destage_rate(share: float, drains: float, dirty_bytes: int) -> int:
    """Sectors per second for a cache with so much dirty, on a disk that drains so much."""
    wanted = max(dirty_bytes / DESTAGE_S, DESTAGE_LEAST * drains)
    return max(1, int(min(share * drains, wanted) / SECTOR))


def _caches(sample: Sample) -> Iterator[Tuple[str, Backing]]:
    """Each bcache that holds writes back and was read just now: its disk, and what was read."""
    managed = {each.device.name for each in sample.devices if each.excluded is None}
    for each in sample.backings:
        if each.source != "bcache" or each.disk is None or each.device not in managed:
            continue
        if each.mode is not CacheMode.WRITE_BACK or each.dirty_bytes is None:
            continue
        if each.read_s is not None and sample.time_s - each.read_s <= FILL_FRESH_S:
            yield each.disk, each


def _rates(
    share: float, memory: Memory, sample: Sample, estimates: Mapping[str, Estimate]
) -> Dict[str, int]:
    """Sectors per second by disk; one that is nearly the last stays."""
    found: Dict[str, int] = {}
    for disk, each in _caches(sample):
        drains = estimates[each.device].drain_rate
        if drains is None or each.dirty_bytes is None:
            continue
        rate, last = destage_rate(share, drains, each.dirty_bytes), memory.destage.get(disk)
        # Of two filesystems on it the slower counts.
        rate = min(rate, found.get(disk, rate))
        found[disk] = last if last is not None and near(rate, last) else rate
    return found
