# SPDX-License-Identifier: GPL-2.0-or-later
"""Estimates how large a write cache is, and how full: what went in above the drain rate.

It is shown; no limit follows from it.
"""

from __future__ import annotations

from writebackd.types.copying import replace
from writebackd.types.device_memory import DeviceMemory

# Seconds of R that a cache has to hold to be seen: what a tick brings above R may be noise, or what
# waited in the queue.
SEEN_S = 0.5
# Seconds of the first flood that are kept for it: R is known by then.
FIRST_FLOOD_S = 60.0


def with_first_flood(memory: DeviceMemory, rate: float, dt_s: float) -> DeviceMemory:
    """The memory with this tick of the first flood, while R is not known."""
    first = memory.first_ticks
    if memory.drain_rate is not None or len(first) / 2 * dt_s >= FIRST_FLOOD_S:
        return memory
    return replace(memory, first_ticks=(*first, rate, dt_s))


def with_drain_rate(memory: DeviceMemory, r: float) -> DeviceMemory:
    """The memory once R is known: the cache holds what came in above it until it was full."""
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
    """Count what must be in the cache: its size is what went in from empty to full.

    One that is full again without having been empty says little: for a moment the syncs waited for
    something else. Beside a flood nobody knows whether it is empty, as syncs cost more than bytes;
    so one that fills at less than twice R on average, which takes long, is not measured.
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
