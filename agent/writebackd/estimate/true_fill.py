# SPDX-License-Identifier: GPL-2.0-or-later
"""Reads the fill of the kernel's own caches (bcache, dm-cache, dm-writecache) from a sample.

For these the estimate of cache_size.py is not needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict

from writebackd.types.copying import replace
from writebackd.types.device_memory import DeviceMemory
from writebackd.types.samples import Sample
from writebackd.types.storage import CacheMode

# Share of the capacity.  Above it a cache of the kernel counts as full: bcache (6.1) accepted no
# more writes at 0.993, and the reading is up to 2 s old.
FULL_SHARE = 0.95
# Seconds.  An older reading is ignored: three readings in a row are missing.
FILL_FRESH_S = 8.0


@dataclass(frozen=True)
class TrueFill:
    """Dirty bytes in a write cache, its capacity, and the source of both."""

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
    """Fresh readings by device; of several caches behind one device the fullest."""
    fills: Dict[str, TrueFill] = {}
    for backing in sample.backings:
        if backing.read_s is None or sample.time_s - backing.read_s > FILL_FRESH_S:
            continue
        if backing.mode is not CacheMode.WRITE_BACK or backing.dirty_bytes is None:
            continue
        if backing.capacity_bytes:
            fill = TrueFill(backing.dirty_bytes, backing.capacity_bytes, backing.source)
            known = fills.get(backing.device)
            if known is None or fill.share > known.share:
                fills[backing.device] = fill
    return fills


def with_true_fill(memory: DeviceMemory, fill: TrueFill) -> DeviceMemory:
    """Store the reading, so that the estimate continues from it if readings stop."""
    return replace(
        memory, fill_bytes=float(fill.dirty_bytes), cache_bytes=float(fill.capacity_bytes)
    )
