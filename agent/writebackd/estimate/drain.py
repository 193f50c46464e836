# SPDX-License-Identifier: GPL-2.0-or-later
"""The sustained drain rate, and how full the write cache is.

A write cache completes writes at link speed until it is full, so the highest
rate seen is the wrong answer (it locks on to the cache's ingest), and a rate
seen under our own tight limit says what the limit allows, not what the device
can do.  Which of the two a tick shows is told by the latency of small writes:
they take 0.1 ms while the cache has room, and wait for the media once it has
none.  Hence

* full: the rate is the drain rate R; it may move the estimate both ways;
* not full, and writers held back: the rate is what the limit lets through, so
  limit / rate is tau, the time that one round of the writeback loop takes;
* not full for longer than a cache can take it: a rate that lasts is a rate the
  media keep up with, so it may raise R, never lower it;
* the change from not full to full after a pause tells the cache's capacity:
  what went in less what the media took meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple, TypeVar

from writebackd.estimate.flushes import flushes_wait
from writebackd.model import (
    ClassSample,
    DeviceMemory,
    DeviceSample,
    Histogram,
    IoClass,
    VmState,
    made,
    replace,
)

# Below this a device is not flooded, whoever waits: journals, logs and page
# cleaning of a quiet host were seen at up to 1 MB/s.
FLOOD_RATE = 1 << 20
# Share of a tick that writers sleep for the limit, all together, from which on
# it holds somebody back.  One throttled writer sleeps most of the time.
THROTTLED_SHARE = 0.05
# From here on the limit is what sets the writers' speed.  One dd under a limit
# at the knee of a 250 MB/s array slept 20 to 80 % of the time; a writer slower
# than the device does not sleep at all.
HELD_BACK_SHARE = 0.1
# The writer that slept most of a tick slept for so much of it: the limit held the flood all the
# while.  Several that bring a burst at once sleep as long together and are done soon.
HELD_SHARE = 0.5
# A device whose cache is full is busy nearly all the time; 77 to 98 % were seen
# at the knee, where the queue runs empty between two rounds of the flusher.
BUSY_SHARE = 0.6
# What full and not full look like: shares of small writes that waited for the
# media, measured on a 512 MB cache with 250 MB/s behind it.  Not full: 1 to 7 %
# (requests of the flood ahead in the queue), full: 6 to 30 %.  They overlap, but
# a full cache drains at R exactly (248 to 252 MB/s were seen), so a rate near R
# tells the two apart.
SLOW_AT_R, SLOW_SURE = 0.06, 0.15
NEAR_R = 0.1
# While R is not known: a sync's p99 in times of limit / rate.  With room in the cache it
# was 0.14 to 0.37, the link's time for what is ahead; without, 0.42 to 0.75.
MEDIA_WAIT = 0.4
# Larger limits are not reached within a tick or two, so that says nothing.
QUEUE_FOLLOWS_BYTES = 64 << 20
SLOW_UNKNOWN_R = 0.05
# So many tell that a rate which has fallen is the media's, and not that of a smaller limit.
SLOW_SOME = 0.04
# Seconds of completions that a share is taken of: a tick may have few.  So many at most where
# they are ENOUGH only then: five commits a second are demand.
SHARE_OVER_S, SHARE_MOST_S = 1.0, 3.0
# Seconds at a full cache whose median is R: they ride out a destage burst (about
# 10 % a second on the modelled array) and follow a rebuild within as much.
FULL_OVER_S = 4.0
# Before there is any R: one tick may still have been part of the filling; and where the rate fell
# to less than this part of the tick before (586, 335, 255 MB/s were seen) half a second was.
FULL_LEAST_S, FULL_FALLS_S, FALLS_TO = 0.4, 0.9, 0.85
# While the destage sweeps over a database's scattered blocks the media take a quarter for a second:
# 263 MB/s, then 60 to 170, then 263 again.  So the first R is not of a tick that differs by so much
# from the one before, and a known one falls by so much only once ticks agree for long enough.  In
# the first seconds under a limit only: after them the median rides it out.
SWEEPS_TO, SWEEP_LASTS_S, UNSETTLED_S = 0.7, 1.4, 3.0
# It may as well begin in the tick that fills the cache: 478 and 626 MB/s, then 106 and 118.  Media
# that are so much slower than the link have to show it for as long.
SWEPT_TO = 0.5
# On a RAID 6, whose part stripes are read first, they took 11 of 262 MB/s for four seconds: so much
# less has to last for so many of so many seconds, whatever limits are tried meanwhile.
DEEP, DEEP_LASTS_S, DEEP_OVER_S = 0.25, 4.9, 6.0
# Before a rate counts as that of the limit in force.
FOLLOWED_S = 1.5
# Where flushes hold the rate as much as the media do: how long it takes to believe half of R.
FORGOTTEN_S = 60.0
# A rate lower than this is another rate (full ticks agree within 2 to 5 %).
LOWER = 0.93
# A limit that lets through so many times what came was not what held it; tau
# varies by a factor of 1.5 with the kernel's own bandwidth estimate.
HELD_BY_MEDIA = 1.6
# Seconds that a rate at cache speed has to last before it is believed where the
# cache is not known: a 512 MB cache fed at 1 GB/s and drained at 250 MB/s is
# full after 0.7 s, an 8 GB cache after 11 s.
FAST_LASTS_S = 12.0
# The same in times of what the known cache can take.
FAST_LASTS = 1.1
# A write is slow from this multiple of its unloaded latency on ...
SLOW_MULTIPLE = 4.0
SLOW_LEAST_S = 0.5e-3
# ... and from half of the time that the media need for one request of the
# flusher: room comes in pieces of that size, while the link passes one in less.
# While R is not known the device's rate stands in, which is above R: from all of it.
SLOW_REQUEST, SLOW_REQUEST_UNKNOWN_R = 0.5, 1.0
# Without an unloaded latency, and for the flusher's large writes: a cache takes
# 1 MB in 5 ms even at 200 MB/s.
SLOW_UNKNOWN_S = 5e-3
# Fewer completions than this say nothing about a share.
ENOUGH = 10
# After a flood the controller goes on destaging: a 512 MB cache at 60 MB/s for 9 s.
QUIET_LASTS_S = 10.0
# A cache that takes less than so many seconds of R is none: 46 to 110 MB were seen of an
# SSD that each flush empties, 0.2 to 0.4 s of what it drained then, and 330 to 500 MB of
# a RAID's 512, 1.3 to 2 s.
SMALL_CACHE_S = 0.35
# Ticks of a filling cache that are kept.  One that is fed a little more than R fills for longer:
# there `fill_bytes` tells that a cache known to be larger is not a small one.
FILLING_TICKS = 60
NOTHING = (0.0, 0.0)
_NONE = ClassSample()
# Weights of a second in tau.  Every rate under a limit shows that tau is not
# longer, but only one that the limit held that it is not shorter.  About 4 s is what
# the kernel's own bandwidth estimate takes to follow.
TAU_DOWN, TAU_UP = 0.5, 0.1
# 7.5 to 24 ms were seen; where it looks longer something else holds the rate.
TAU_MOST_S = 30e-3

_Entry = TypeVar("_Entry", bound=Tuple[Any, ...])



@dataclass(frozen=True)
class Writes:
    """The device's writes of one tick, in bytes per second."""

    rate: float
    background_rate: float
    slow_share: Optional[float]
    flooded: bool
    held_back: bool  # writers slept for the limit: it sets their speed
    telling: bool  # flooded, and the device or the limit held it: its rate tells of them


_writes = made(Writes)
Recent = Tuple[Tuple[float, float, int], ...]  # DeviceMemory.recent_writes
Full = Tuple[Tuple[float, float, int], ...]  # DeviceMemory.full_window


def small_writes(sample: DeviceSample) -> List[Histogram]:
    """Latencies of sync and journal writes; nothing without a class probe."""
    if sample.classes is None:
        return []
    sync, journal = sample.classes.get(IoClass.SYNC_WRITE), sample.classes.get(IoClass.JOURNAL)
    if sync is not None and journal is not None:
        return [sync.latency, journal.latency]
    return [each.latency for each in (sync, journal) if each is not None]


def last_seconds(window: "Tuple[_Entry, ...]", seconds: float) -> "Tuple[_Entry, ...]":
    """The fewest of the newest entries, whose first field is `dt`, that last for `seconds`."""
    lasted, start = 0.0, len(window)
    for entry in reversed(window):
        lasted += entry[0]
        start -= 1
        if lasted >= seconds:
            return window[start:] if start else window
    return window


def count_slow(
    sample: DeviceSample, memory: DeviceMemory, rate: float, few: bool = False
) -> Optional[Tuple[float, int]]:
    """`(slow, all)` of the tick's write completions; None without a class probe.

    `rate` is the device's, in bytes per second.  Small writes tell best: what
    they wait for is room.  Where there are none, or `few`, the flusher's own are taken
    as well, whose size needs a wider threshold.
    """
    if sample.classes is None:
        return None
    small = small_writes(sample)
    background = sample.classes.get(IoClass.BACKGROUND_WRITE, _NONE)
    if memory.write_baseline_s is not None and any(each.counts for each in small) and not few:
        threshold = max(SLOW_MULTIPLE * memory.write_baseline_s, SLOW_LEAST_S)
        if background.count and rate > 0:
            request = background.bytes / background.count
            room_s = (
                SLOW_REQUEST * request / memory.drain_rate
                if memory.drain_rate
                else SLOW_REQUEST_UNKNOWN_R * request / rate
            )
            threshold = max(threshold, room_s)
    else:
        threshold, small = SLOW_UNKNOWN_S, [*small, background.latency]
    slow = total = 0
    for latency in small:
        above, count = latency.count_above(threshold)
        slow, total = slow + above, total + count
    return slow, total


def _enough(window: Recent) -> "Tuple[Recent, float, int]":
    """The newest entries: of SHARE_OVER_S, or of as much longer as it takes to have ENOUGH.

    With them how many completions were slow, and all.
    """
    lasted, slow, total, start = 0.0, 0.0, 0, len(window)
    for dt_s, waited, count in reversed(window):
        if lasted >= SHARE_MOST_S or (lasted >= SHARE_OVER_S and total >= ENOUGH):
            break
        lasted, slow, total, start = lasted + dt_s, slow + waited, total + count, start - 1
    return window[start:], slow, total


def written_by(group: Sequence[DeviceSample]) -> int:
    """Bytes in this tick, of devices on the same disks: a disk's own has that of its volumes."""
    leaves = sum([s.write_bytes for s in group if s.device.devno in s.device.leaf_devnos])
    volumes = sum([s.write_bytes for s in group if s.device.devno not in s.device.leaf_devnos])
    return max(leaves, volumes)


def measure_writes(
    sample: DeviceSample,
    memory: DeviceMemory,
    vm: VmState,
    group_bytes: int,
    throttled_s: float,
    most_held_s: float,
    dt_s: float,
) -> "tuple[Writes, Recent]":
    """What was written in this tick, whether it was a flood, and the new `recent_writes`.

    `group_bytes` is what all devices on the same leaf disks wrote together: an
    array with two logical volumes drains for both.  A flood is background
    writing above FLOOD_RATE with more to come: pages wait (dirty and under
    writeback, at least a quarter of the background limit), or writers slept
    `throttled_s` for the limit, all together; `most_held_s` is the longest sleep of one.
    A small limit is often found empty by a look once a second, so the sleep tells it better.
    """
    rate = group_bytes / dt_s
    background = rate
    classes = sample.classes
    if classes:
        read, flushed = classes.get(IoClass.READ), classes.get(IoClass.BACKGROUND_WRITE)
        total = sum([each.bytes for each in classes.values()]) - (read.bytes if read else 0)
        # As a share, because below a raid10 every byte is written twice.  No
        # request seen although bytes were written (multipath, drbd): unknown.
        if total:
            background = rate * (flushed.bytes if flushed else 0) / total
    waiting = vm.dirty_bytes + vm.writeback_bytes
    throttled = throttled_s >= THROTTLED_SHARE * dt_s
    flooded = background >= FLOOD_RATE and (
        throttled or waiting >= vm.background_threshold_bytes / 4
    )
    share = None
    recent = memory.recent_writes
    counted = count_slow(sample, memory, rate)
    if counted is not None:
        recent, slow, total = _enough((*recent, (dt_s, *counted)))
        if total >= ENOUGH:
            share = slow / total
        else:
            few = count_slow(sample, memory, rate, few=True)
            if few is not None and few[1] >= ENOUGH:
                share = few[0] / few[1]
    writes = _writes(
        rate=rate,
        background_rate=background,
        slow_share=share,
        flooded=flooded,
        telling=flooded
        and (sample.busy_share >= BUSY_SHARE or most_held_s >= HELD_SHARE * dt_s),
        held_back=throttled_s >= HELD_BACK_SHARE * dt_s,
    )
    return writes, recent


def is_full(
    writes: Writes, sample: DeviceSample, memory: DeviceMemory, limit_bytes: int
) -> bool:
    """Whether the write cache has no room, as far as this tick can tell."""
    if not writes.flooded or sample.busy_share < BUSY_SHARE:
        return False
    if writes.slow_share is None:
        # procfs alone, or next to no writes: busy all the time is the best that can be known.
        return True
    if memory.drain_rate is None:
        return writes.slow_share >= SLOW_UNKNOWN_R and _waits_for_media(
            sample, writes.rate, limit_bytes
        )
    near = abs(writes.rate / memory.drain_rate - 1) <= NEAR_R
    slower = writes.rate < memory.drain_rate and not limits_rate(limit_bytes, writes.rate, memory)
    return writes.slow_share >= (SLOW_AT_R if near or slower else SLOW_SURE)


def _waits_for_media(sample: DeviceSample, rate: float, limit_bytes: int) -> bool:
    """Whether syncs wait as long as media of that rate take for what is ahead of them."""
    p99 = sample.sync.latency.quantile(0.99) if sample.sync is not None else None
    if p99 is None or limit_bytes > QUEUE_FOLLOWS_BYTES:
        return True
    return p99 >= MEDIA_WAIT * limit_bytes / rate


def limits_rate(limit_bytes: int, rate: float, memory: DeviceMemory) -> bool:
    """Whether the limit in force can be what holds the flood at `rate`, in bytes per second.

    Unknown counts as yes: then it is ours to undo before the device is blamed.
    """
    return memory.tau_s is None or limit_bytes / memory.tau_s < HELD_BY_MEDIA * rate


def update_drain(
    writes: Writes, sample: DeviceSample, memory: DeviceMemory, limit_bytes: int, dt_s: float
) -> "tuple[DeviceMemory, str]":
    """The memory with this tick's sample in it, and what became of the sample.

    `limit_bytes` is the limit in force.
    """
    known, fill = memory.drain_rate, memory.fill_bytes
    if known is not None:
        # An empty cache does not get emptier.
        fill = max(0.0, fill + (writes.rate - known) * dt_s)
    if not writes.flooded:
        # Only a cache that had time to empty shows its size when it fills again: 8 GB take longer.
        quiet = memory.quiet_s >= QUIET_LASTS_S and fill <= 0
        empty = not memory.flooded_before or quiet
        return replace(
            memory, fill_bytes=fill, fast=NOTHING, was_full=False, filling=() if empty else None
        ), "no flood"
    full = is_full(writes, sample, memory, limit_bytes)
    if full and memory.was_full:
        return _full_sample(writes, memory, limit_bytes, fill, dt_s)
    if full:
        # For part of the tick the cache still took writes at link speed.
        memory = replace(memory, fill_bytes=fill, was_full=True, fast=NOTHING)
        if known is None:  # what the next one may fall from, or this one has
            window: Full = ((0.0, writes.rate, limit_bytes),)
            before = memory.filling[-1][1] if memory.filling else 0.0
            # Once: where the cache is full in short spells R would never be known.
            leapt = not memory.full_window and 0 < before < FALLS_TO * writes.rate
            if writes.rate < SWEPT_TO * before or leapt:
                window = ((0.0, before, limit_bytes), *window)
            memory = replace(memory, full_window=window)
        return memory, "write cache just became full: not counted yet"
    filling, tau_s = memory.filling, memory.tau_s
    if filling is not None:
        filling = (*filling, (dt_s, writes.rate))[-FILLING_TICKS:]
    if writes.held_back and writes.telling and writes.rate > 0:
        tau_s = _learn_tau(limit_bytes / writes.rate, limit_bytes, writes, memory, dt_s)
    memory = replace(memory, fill_bytes=fill, was_full=False, filling=filling, tau_s=tau_s)
    return _fast_sample(writes, memory, limit_bytes, dt_s)


def _learn_tau(
    seen_s: float, limit_bytes: int, writes: Writes, memory: DeviceMemory, dt_s: float
) -> Optional[float]:
    known = memory.tau_s
    if known is None and seen_s > TAU_MOST_S and limit_bytes > QUEUE_FOLLOWS_BYTES:
        return None  # not the limit held that rate: gigabytes are not reached in this tick
    seen_s = min(seen_s, TAU_MOST_S)
    if known is None:
        return seen_s
    if seen_s < known:
        return known + min(1.0, TAU_DOWN * dt_s) * (seen_s - known)
    if memory.drain_rate is None or writes.rate >= LOWER * memory.drain_rate:
        return known  # it may be the media that hold the rate, not the limit
    return known + min(1.0, TAU_UP * dt_s) * (seen_s - known)


def median(values: Sequence[float]) -> float:
    """The one in the middle, or the mean of the two; `statistics` has it and takes 2 MB."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _agreeing(window: Full) -> Full:
    """The newest ticks, of which none differs from the one before by more than FALLS_TO."""
    start = len(window) - 1
    while start and window[start - 1][0]:
        ratio = window[start][1] / max(window[start - 1][1], 1.0)
        if not FALLS_TO <= ratio <= 1 / FALLS_TO:
            break
        start -= 1
    return window[start:]


def _settled(window: Full) -> Full:
    """The full ticks that the first R is of; none while they may show a filling or a sweep."""
    lasted_s = sum([dt for dt, *_ in window])
    if lasted_s >= UNSETTLED_S:
        return tuple([tick for tick in window if tick[0]])
    ticks = _agreeing(window)
    agreed_s = sum([dt for dt, *_ in ticks])
    before = window[: -len(ticks)]
    # Two that do not count: already the tick that filled the cache had fallen by much, or leapt.
    from_ = before[:2] if len(before) == 2 and not before[1][0] else before[-1:]
    shares = [ticks[0][1] / max(rate, 1.0) for _, rate, _ in from_] or [1.0]
    if min(shares) < SWEEPS_TO:
        enough = agreed_s >= SWEEP_LASTS_S
    elif min(shares) < FALLS_TO:
        enough = lasted_s >= FULL_FALLS_S
    elif len(from_) == 2 and from_[0][1] < FALLS_TO * from_[1][1]:
        # A rate that leapt may be the cache's, which seems full since the queue is longer: 378,
        # 459, 457 and 445 MB/s, and then the 258 of the media.
        enough = agreed_s >= SWEEP_LASTS_S
    else:
        enough = agreed_s >= (FULL_LEAST_S if max(shares) <= 1 / FALLS_TO else FULL_FALLS_S)
    return ticks if enough else ()


def _lasting(window: Full, rate: float, known: float) -> Optional[float]:
    """R in place of `known`; None while full ticks, whose median is `rate`, may be of a sweep."""
    low_s = sum([dt for dt, each, _ in window if each < SWEEPS_TO * known])
    if low_s and sum([dt for dt, *_ in window]) < UNSETTLED_S:
        window = _agreeing(window)
        if sum([dt for dt, *_ in window]) < SWEEP_LASTS_S:
            return None
        rate = median([each for _, each, _ in window])
    return None if rate < DEEP * known and low_s < DEEP_LASTS_S else rate


def _full_sample(
    writes: Writes, memory: DeviceMemory, limit_bytes: int, fill: float, dt_s: float
) -> "tuple[DeviceMemory, str]":
    window, cache, known = memory.full_window, memory.cache_bytes, memory.drain_rate
    deep = known is not None and writes.rate < DEEP * known
    if window and abs(limit_bytes - window[-1][2]) > NEAR_R * limit_bytes:
        # Rates under different limits are different things; but what the first R may have
        # fallen from is not, and no limit holds a flood at next to nothing.
        if known is None:
            # Nor what the tick that filled the cache fell from, if that is kept.
            swept = [tick for tick in window if not tick[0]][:-1]
            window = (*swept, (0.0, window[-1][1], limit_bytes))
        else:
            window = tuple([tick for tick in window if deep and tick[1] < DEEP * known])
    over_s = DEEP_OVER_S if deep else FULL_OVER_S
    window = last_seconds((*window, (dt_s, writes.rate, limit_bytes)), over_s)
    changes: Dict[str, Any] = {
        "full_window": window, "fast": NOTHING, "fill_bytes": fill if cache is None else cache,
    }  # fmt: skip
    if known is None:
        window = _settled(window)
        if not window:
            return replace(memory, **changes), "write cache full: measuring"
        changes["full_window"] = window
    lasted_s = sum([dt for dt, *_ in window])
    buffered = cache is not None and cache >= SMALL_CACHE_S * writes.rate
    if memory.tau_s is not None and buffered and lasted_s >= FOLLOWED_S:
        # Whoever sets this rate, the limit lets it in: tau is not longer.  Without a cache all
        # ticks look full, and what sets the rate is no matter of tau.
        at_most = min(memory.tau_s, limit_bytes / max(writes.rate, 1.0))
        changes["tau_s"] = _learn_tau(at_most, limit_bytes, writes, memory, dt_s)
    rate = median([rate for dt, rate, _ in window if dt])
    tight = limit_bytes < LOWER * memory.drain_limit_bytes and limits_rate(
        limit_bytes, rate, memory
    )
    # Without a class probe it cannot be seen who is held back.
    held = writes.held_back or writes.slow_share is None
    if known is not None and rate < known and tight and held:
        # On a disk without a cache writes are slow at any rate, and a tight
        # limit takes throughput: ours to undo before the device is blamed.
        return replace(memory, **changes), "less than before, under a tighter limit: not counted"
    if known is not None and held and flushes_wait(memory):
        # The flood fell from 345 to 235 MB/s under one limit, and a larger one let in 340 again.
        rate = max(rate, known * 0.5 ** (dt_s / FORGOTTEN_S))
    elif known is not None:
        lasting = _lasting(window, rate, known)
        if lasting is None:
            return replace(memory, **changes), "less than before: not counted until it lasts"
        rate = lasting
    changes["drain_rate"] = rate
    # The flusher follows a new limit late: only what lasts was this limit's.
    if known is None or not tight or (rate >= known and lasted_s >= FOLLOWED_S):
        changes["drain_limit_bytes"] = limit_bytes
    return size_cache(replace(memory, **changes), rate, fill), "write cache full: counted"


def size_cache(memory: DeviceMemory, rate: float, fill: float) -> DeviceMemory:
    """The memory with the size of a cache that has just filled, where it was empty before.

    `rate` is R, in bytes/s, `fill` what is in the cache by count, in bytes.
    """
    if memory.filling is None:
        return memory
    cache, taken = memory.cache_bytes, 0.0
    for seconds, into in memory.filling:
        taken = max(0.0, taken + (into - rate) * seconds)
    if cache is not None:  # an R that is a little too low must not make it larger each time
        taken = max(taken, min(fill, cache))
    memory = replace(memory, filling=None)
    return replace(memory, cache_bytes=taken, fill_bytes=taken) if taken > 0 else memory


def _fast_sample(
    writes: Writes, memory: DeviceMemory, limit_bytes: int, dt_s: float
) -> "tuple[DeviceMemory, str]":
    """Raise R where the cache must have been full long ago, if R were right."""
    if not writes.telling:
        return memory, "neither the device nor the limit holds it: says nothing of the device"
    if memory.drain_rate is not None and memory.fill_bytes <= 0:
        return replace(memory, fast=NOTHING), "at cache speed: may not lower the estimate"
    carried, lasted = memory.fast
    if memory.drain_rate is None:
        if limit_bytes > (1 + NEAR_R) * memory.drain_limit_bytes:
            carried, lasted = carried / 2, lasted / 2  # a larger limit may let in more
            memory = replace(memory, drain_limit_bytes=limit_bytes)
        elif limit_bytes < memory.drain_limit_bytes / 2:  # it began under the limits as found
            memory = replace(memory, drain_limit_bytes=limit_bytes)
    carried, lasted = carried + writes.rate * dt_s, lasted + dt_s
    memory = replace(memory, fast=(carried, lasted))
    if memory.cache_bytes is None:
        believed = lasted >= FAST_LASTS_S
    else:
        believed = lasted >= FULL_OVER_S and memory.fill_bytes >= FAST_LASTS * memory.cache_bytes
    if not believed:
        return memory, "at cache speed: not yet for long enough"
    # The first seconds of a flood are slow on any disk: what came last counts as well.
    rate = max(carried / lasted, memory.smooth_rate, memory.drain_rate or 0.0)
    if memory.drain_rate is None and memory.filling and (writes.slow_share or 0.0) >= SLOW_SOME:
        # Where they filled a cache they were fast: 145 MB/s, then the 38 that the media take.
        last = median([each for _, each in last_seconds(memory.filling, FULL_OVER_S)])
        rate = last if last < LOWER * rate else rate
    memory = replace(
        memory, drain_rate=rate, drain_limit_bytes=limit_bytes, full_window=(),
        fast=NOTHING, fill_bytes=0.0,
    )
    return memory, "at cache speed for long: raised"
