# SPDX-License-Identifier: GPL-2.0-or-later
"""The size and fill of a write cache.

Estimated from the bytes written above the drain rate, for display only; the law does not use it.
Of the kernel's own caches (bcache, dm-cache, dm-writecache) a sample tells it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict

from writebackd.types.copying import replace
from writebackd.types.device_memory import DeviceMemory
from writebackd.types.samples import Sample
from writebackd.types.storage import CacheMode

# Seconds of R.  A smaller cache is not reported: so many bytes above R in one tick may be noise, or
# a backlog of the queue.
SEEN_S = 0.5
# Seconds of the first flood whose rates are kept until R is known; by then it is.
FIRST_FLOOD_S = 60.0


def with_first_flood(memory: DeviceMemory, rate: float, dt_s: float) -> DeviceMemory:
    """Record this tick's rate while R is unknown, for `with_drain_rate`."""
    first = memory.first_ticks
    if memory.drain_rate is not None or len(first) / 2 * dt_s >= FIRST_FLOOD_S:
        return memory
    return replace(memory, first_ticks=(*first, rate, dt_s))


def with_drain_rate(memory: DeviceMemory, r: float) -> DeviceMemory:
    """Set R, and take the most that the first flood wrote above R as the size of the cache."""
    fill = most = 0.0
    first = memory.first_ticks
    for rate, seconds in zip(first[::2], first[1::2]):
        fill = max(0.0, fill + (rate - r) * seconds)
        most = max(most, fill)
    memory = replace(memory, drain_rate=r, first_ticks=())
    if memory.cache_bytes is None and most >= SEEN_S * r:
        memory = replace(memory, cache_bytes=most, fill_bytes=most, was_empty=False)
    return memory


def counted(memory: DeviceMemory, rate: float, flooded: bool, dt_s: float) -> DeviceMemory:
    """Update the fill of the cache, and its size each time it goes from empty to full.

    A cache that is full again without having been empty is not measured: syncs probably waited for
    something else for a moment.  During a flood the fill is uncertain, since syncs take more media
    time than their bytes, so the size is not measured either if the average rate while the cache
    fills is below twice R, which takes long.
    """
    if memory.drain_rate is None:
        return memory
    fill = max(0.0, memory.fill_bytes + (rate - memory.drain_rate) * dt_s)
    cache, full_s = memory.cache_bytes, memory.drain.full_s
    fill_s = memory.fill_s + dt_s if fill > 0 else 0.0
    empty = memory.was_empty or (fill == 0 and not flooded)
    if 0 < full_s <= dt_s and fill > 0:
        if empty and fill >= memory.drain_rate * max(SEEN_S, fill_s):
            cache = fill if cache is None else (cache + fill) / 2
        empty = False
    if cache is not None:
        fill = cache if full_s > 0 else min(fill, cache)
    return replace(
        memory, fill_bytes=fill, fill_s=fill_s, cache_bytes=cache, was_empty=empty
    )


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
