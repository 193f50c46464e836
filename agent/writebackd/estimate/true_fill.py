# SPDX-License-Identifier: GPL-2.0-or-later
"""Takes the fill of a cache that the kernel runs from the kernel, instead of estimating it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict

from writebackd.types.copying import replace
from writebackd.types.device_memory import DeviceMemory
from writebackd.types.samples import Sample
from writebackd.types.storage import CacheMode

# Of a cache that the kernel runs and that says how full it is. bcache of 6.1 took no more at 0.993
# of what it gives to writes, and what was read is up to 2 s old.
FULL_SHARE = 0.95
# Seconds, after which such a reading says nothing any more: three of them were missed.
FILL_FRESH_S = 8.0


@dataclass(frozen=True)
class TrueFill:
    """What waits in a write cache, in bytes, and who says so."""

    dirty_bytes: int
    capacity_bytes: int
    source: str

    @property
    def share(self) -> float:
        return self.dirty_bytes / self.capacity_bytes

    @property
    def is_full(self) -> bool:
        return self.share >= FULL_SHARE


def true_fills(sample: Sample) -> Dict[str, TrueFill]:
    """By device what was read just now; of several caches behind one the fullest."""
    found: Dict[str, TrueFill] = {}
    for each in sample.backings:
        if each.read_s is None or sample.time_s - each.read_s > FILL_FRESH_S:
            continue
        if each.mode is not CacheMode.WRITE_BACK or each.dirty_bytes is None:
            continue
        if each.capacity_bytes:
            fill = TrueFill(each.dirty_bytes, each.capacity_bytes, each.source)
            known = found.get(each.device)
            if known is None or fill.share > known.share:
                found[each.device] = fill
    return found


def with_true_fill(memory: DeviceMemory, fill: TrueFill) -> DeviceMemory:
    """The memory with it: when nobody reads it any more the estimate goes on from there."""
    return replace(
        memory, fill_bytes=float(fill.dirty_bytes), cache_bytes=float(fill.capacity_bytes)
    )
