# SPDX-License-Identifier: GPL-2.0-or-later
"""Decides how fast bcache writes its dirty data to the disk (destaging).

By default bcache destages 4 KB/s, with 30 s of rest after each pass, until more than 10 % of the
cache is dirty.  Then it follows the incoming rate too slowly to keep the cache from filling up.
Here the rate is chosen so that the dirty data is written within DESTAGE_S, up to a share of the
drain rate: that is the incoming rate, and the rest of the disk is left to reads and to syncs that
miss the cache.  During a drain everything is written at full speed.
"""

from __future__ import annotations

from typing import Dict, Iterator, List, Mapping, Tuple

from writebackd.control.ramp import near
from writebackd.estimate.cache_size import FILL_FRESH_S
from writebackd.policy.schema import Policy
from writebackd.types.copying import replace
from writebackd.types.core_memory import Memory
from writebackd.types.estimate import Estimate
from writebackd.types.levers import LeverKind, Setting
from writebackd.types.samples import Sample
from writebackd.types.storage import Backing, CacheMode

SECTOR = 512
# Seconds in which the dirty data is to be written: long enough for readings every 2 s, short enough
# that the cache can absorb new writes meanwhile.
DESTAGE_S = 10.0
# Share of the drain rate: the smallest rate.  Without it the last blocks would stay for minutes.
DESTAGE_LEAST = 0.02
# Seconds of rest after each pass.  bcache's default is 30, during which it destages nothing: 39 MB
# written at the start of a rest stayed in the cache at any rate (6.1).
DESTAGE_DELAY_S = 1
# Percent of the cache.  Above it bcache raises the rate up to what the disk takes; its default is
# 10.  40 is the largest value it accepts; from 40 on writes bypass the cache.
DESTAGE_PERCENT = 40


def plan_destage(
    policy: Policy, memory: Memory, sample: Sample, estimates: Mapping[str, Estimate]
) -> Tuple[Tuple[Setting, ...], Memory]:
    """Settings of each bcache in writeback mode, and the memory with their rates.

    None while yielded or pinned, nor for a cache without a known drain rate or a fresh reading.
    Draining needs no known drain rate.
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
        # At 0 percent bcache ignores the rate (writeback_delay()) and does not rest after a pass.
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
    """Sectors per second for `dirty_bytes`, at most `share` of `drains` bytes per second."""
    wanted = max(dirty_bytes / DESTAGE_S, DESTAGE_LEAST * drains)
    return max(1, int(min(share * drains, wanted) / SECTOR))


def _caches(sample: Sample) -> Iterator[Tuple[str, Backing]]:
    """The disk and reading of each bcache in writeback mode that has a fresh reading."""
    managed = {entry.device.name for entry in sample.devices if entry.excluded is None}
    for entry in sample.backings:
        if entry.source != "bcache" or entry.disk is None or entry.device not in managed:
            continue
        if entry.mode is not CacheMode.WRITE_BACK or entry.dirty_bytes is None:
            continue
        if entry.read_s is not None and sample.time_s - entry.read_s <= FILL_FRESH_S:
            yield entry.disk, entry


def _rates(
    share: float, memory: Memory, sample: Sample, estimates: Mapping[str, Estimate]
) -> Dict[str, int]:
    """Sectors per second by disk; a rate near the last one is not changed."""
    rates: Dict[str, int] = {}
    for disk, cache in _caches(sample):
        drains = estimates[cache.device].drain_rate
        if drains is None or cache.dirty_bytes is None:
            continue
        rate, last = destage_rate(share, drains, cache.dirty_bytes), memory.destage.get(disk)
        # With two filesystems on one bcache, the smaller rate applies.
        rate = min(rate, rates.get(disk, rate))
        rates[disk] = last if last is not None and near(rate, last) else rate
    return rates
