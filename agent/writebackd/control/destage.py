# SPDX-License-Identifier: GPL-2.0-or-later
"""Decides how bcache destages: at a steady share of the drain rate instead of in bursts.

By itself bcache rests for 30 s, or writes 4 KB/s, until more than 10 % of the cache is dirty; then
it writes faster and faster. Each burst makes syncs that miss the cache wait. A steady rate below
what the disk takes empties the cache early, and leaves the rest of the disk to them.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, Tuple

from writebackd.control.ramp import near
from writebackd.policy.schema import Policy
from writebackd.tuning import DESTAGE_DELAY_S, DESTAGE_PERCENT, FILL_FRESH_S, SECTOR
from writebackd.types.copying import replace
from writebackd.types.core_memory import Memory
from writebackd.types.estimate import Estimate
from writebackd.types.levers import LeverKind, Setting
from writebackd.types.samples import Sample
from writebackd.types.storage import CacheMode


def plan_destage(
    policy: Policy, memory: Memory, sample: Sample, estimates: Mapping[str, Estimate]
) -> Tuple[Tuple[Setting, ...], Memory]:
    """Settings of each bcache that holds writes back, and the memory with their rates.

    Nothing while yielded or pinned, where no drain rate is known, and where nobody reads the cache.
    """
    share, rates = policy.levers.destage_share, dict[str, int]()
    if share and memory.yielded is None and memory.pin_bytes is None:
        rates = _rates(share, memory, sample, estimates)
    if not rates and not memory.destage:
        return (), memory
    settings: List[Setting] = []
    for disk, rate in sorted(rates.items()):
        settings += [
            Setting(LeverKind.CACHE, disk, "writeback_rate_minimum", rate),
            Setting(LeverKind.CACHE, disk, "writeback_delay", DESTAGE_DELAY_S),
            Setting(LeverKind.CACHE, disk, "writeback_percent", DESTAGE_PERCENT),
        ]
    return tuple(settings), replace(memory, destage=rates)


def _rates(
    share: float, memory: Memory, sample: Sample, estimates: Mapping[str, Estimate]
) -> Dict[str, int]:
    """Sectors per second by disk; one that is nearly the last stays."""
    managed = {each.device.name for each in sample.devices if each.excluded is None}
    found: Dict[str, int] = {}
    for each in sample.backings:
        if each.source != "bcache" or each.disk is None or each.device not in managed:
            continue
        if each.mode is not CacheMode.WRITE_BACK or each.read_s is None:
            continue
        drains = estimates[each.device].drain_rate
        if drains is None or sample.time_s - each.read_s > FILL_FRESH_S:
            continue
        rate, last = max(1, int(share * drains / SECTOR)), memory.destage.get(each.disk)
        # Of two devices on one cache the slower counts.
        rate = min(rate, found.get(each.disk, rate))
        found[each.disk] = last if last is not None and near(rate, last) else rate
    return found
