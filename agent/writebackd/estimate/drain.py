# SPDX-License-Identifier: GPL-2.0-or-later
"""The sustained drain rate: what the media take once the write cache is full.

A write cache completes writes at link speed until it is full, so the highest
rate seen is the wrong answer (it locks on to the cache's ingest), and a rate
seen under our own tight limit says what the limit allows, not what the device
can do.  Three kinds of sample follow:

* full: completions are slow, so the cache has no room and the rate is the
  drain rate; it may move the estimate both ways;
* fast: completions come at cache speed; whether the cache is filling or the
  writers are held back cannot be told, but a rate that lasts is a rate the
  media keep up with, so it may raise the estimate, never lower it;
* no flood: says nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Optional

from writebackd.model import ClassSample, DeviceMemory, DeviceSample, IoClass, VmState, replace

# Below this a device is not flooded, whoever waits: journals, logs and page
# cleaning of a quiet host were seen at up to 1 MB/s.
FLOOD_RATE = 1 << 20
# Share of a tick that writers sleep for the limit, all together, from which on
# it holds somebody back.  One throttled writer sleeps most of the time.
THROTTLED_SHARE = 0.05
# From here on the limit is what sets the writers' speed.  One dd under a limit
# at the knee of a 250 MB/s array slept 20 to 45 % of the time; a writer slower
# than the device does not sleep at all.
HELD_BACK_SHARE = 0.1
# A flooded device is busy nearly all the time; with a sampling jitter of a few
# per cent of a tick.
BUSY_SHARE = 0.9
# Share of slow completions from which on the cache counts as full.
FULL_SHARE = 0.2
# Ticks whose median is the drain rate: five ride out a destage burst (about
# 10 % a second on the modelled array) and follow a rebuild within five ticks.
WINDOW = 5
# Seconds that a rate at cache speed has to last before it is believed: a
# 512 MB cache fed at 1 GB/s and drained at 250 MB/s is full after 0.7 s, an
# 8 GB cache after 11 s.
FAST_LASTS_S = 12.0
# A write is slow from this multiple of its unloaded latency on.  Between cache
# speed (0.1 ms) and a wait for the media (above 1 ms) there is little.
SLOW_MULTIPLE = 4.0
SLOW_LEAST_S = 0.5e-3
# Without an unloaded latency, and for the flusher's large writes: a cache takes
# 1 MB in 5 ms even at 200 MB/s.
SLOW_UNKNOWN_S = 5e-3
# Fewer completions than this say nothing about a share.
ENOUGH = 10


@dataclass(frozen=True)
class Writes:
    """The device's writes of one tick, in bytes per second."""

    rate: float
    background_rate: float
    slow_share: Optional[float]
    flooded: bool
    held_back: bool  # writers slept for the limit: it sets their speed


def small_writes(sample: DeviceSample) -> Optional[ClassSample]:
    """Sync and journal writes taken together; None without a class probe."""
    if sample.classes is None:
        return None
    empty = ClassSample()
    sync = sample.classes.get(IoClass.SYNC_WRITE, empty)
    journal = sample.classes.get(IoClass.JOURNAL, empty)
    return ClassSample(
        sync.count + journal.count, sync.bytes + journal.bytes, sync.latency + journal.latency
    )


def slow_share(sample: DeviceSample, memory: DeviceMemory) -> Optional[float]:
    """Share of write completions that waited for the media: how full the cache is.

    Small writes tell it best: what they wait for is room.  Where there are
    none the flusher's own are taken, whose size needs a wider threshold.
    """
    small = small_writes(sample)
    if small is None or sample.classes is None:
        return None
    if small.latency.total >= ENOUGH and memory.write_baseline_s is not None:
        threshold = max(SLOW_MULTIPLE * memory.write_baseline_s, SLOW_LEAST_S)
        return small.latency.share_above(threshold)
    background = sample.classes.get(IoClass.BACKGROUND_WRITE, ClassSample())
    both = small.latency + background.latency
    return both.share_above(SLOW_UNKNOWN_S) if both.total >= ENOUGH else None


def measure_writes(
    sample: DeviceSample,
    memory: DeviceMemory,
    vm: VmState,
    group_bytes: int,
    throttled_s: float,
    dt_s: float,
) -> Writes:
    """What was written in this tick, and whether it was a flood.

    `group_bytes` is what all devices on the same leaf disks wrote together: an
    array with two logical volumes drains for both.  A flood is background
    writing above FLOOD_RATE with more to come: pages wait (dirty and under
    writeback, at least a quarter of the background limit), or writers slept
    `throttled_s` for the limit.  A small limit is often found empty by a look
    once a second, so the sleep tells it better.
    """
    rate = group_bytes / dt_s
    background = rate
    if sample.classes:
        sizes = {c: s.bytes for c, s in sample.classes.items() if c is not IoClass.READ}
        total = sum(sizes.values())
        # As a share, because below a raid10 every byte is written twice.  No
        # request seen although bytes were written (multipath, drbd): unknown.
        if total:
            background = rate * sizes.get(IoClass.BACKGROUND_WRITE, 0) / total
    waiting = vm.dirty_bytes + vm.writeback_bytes
    more = (
        waiting >= vm.background_threshold_bytes / 4 or throttled_s >= THROTTLED_SHARE * dt_s
    )
    return Writes(
        rate,
        background,
        slow_share(sample, memory),
        flooded=background >= FLOOD_RATE and more,
        held_back=throttled_s >= HELD_BACK_SHARE * dt_s,
    )


def update_drain(
    writes: Writes, sample: DeviceSample, memory: DeviceMemory, dt_s: float
) -> "tuple[DeviceMemory, str]":
    """The memory with this tick's sample in it, and what became of the sample."""
    if not writes.flooded:
        return replace(memory, fast_window=(), was_full=False), "no flood"
    if sample.busy_share < BUSY_SHARE:
        full = False
    elif writes.slow_share is None:
        # procfs alone: busy all the time is the best that can be known.
        full = True
    else:
        full = writes.slow_share >= FULL_SHARE
    was_full, memory = memory.was_full, replace(memory, was_full=full)
    if full and not was_full:
        # For part of the tick the cache still took writes at link speed.
        return replace(memory, fast_window=()), "write cache just became full: not counted yet"
    if full:
        window = (memory.drain_window + (writes.rate,))[-WINDOW:]
        memory = replace(
            memory, drain_window=window, drain_rate=median(window), fast_window=()
        )
        return memory, "write cache full: counted"
    fast = memory.fast_window + ((dt_s, writes.rate),)
    while sum(dt for dt, _ in fast[1:]) >= FAST_LASTS_S:
        fast = fast[1:]
    memory = replace(memory, fast_window=fast)
    lasted = sum(dt for dt, _ in fast)
    mean = sum(dt * rate for dt, rate in fast) / lasted
    if lasted < FAST_LASTS_S:
        return memory, "at cache speed: not yet for long enough"
    if memory.drain_rate is not None and mean <= memory.drain_rate:
        return memory, "at cache speed: may not lower the estimate"
    return replace(memory, drain_rate=mean, drain_window=()), "at cache speed for long: raised"
