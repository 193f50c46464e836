# SPDX-License-Identifier: GPL-2.0-or-later
"""Estimates a device's drain rate, whether it is flooded, cache fill and the cost of a sync.

A write cache completes writes at link speed until it is full, so the highest rate seen is not the
rate of the media.  Sync latency shows whether the cache is full: 0.1 ms while it has room, media
time once it has none.  So R is the flusher's rate with a full cache, also under the original limit,
and at least the rate between two moments at which the cache was full.  A low rate lowers R only if
the limit admits more than that rate, or, under a pace, if the rate is below the pace.

The difference between R and the rate of a full cache is the cost of syncs: each block that they
leave in the cache takes media time of its own.  The price of a sync is the seconds of R lost per
sync.  Under a pace only syncs fill the cache, so their cost is charged when the cache is full: they
get all that the flood leaves of R, until the flood gets more and the cache no longer fills.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import List, Optional, Sequence, Tuple

from writebackd.estimate.cache_size import counted, with_drain_rate, with_first_flood
from writebackd.estimate.limit_shares import is_in_force
from writebackd.tuning import (
    BUSY_SHARE,
    DEEP,
    FELL,
    FLOOD_RATE,
    FOLLOW_S,
    HELD_BACK_SHARE,
    LETS_IN_S,
    LINK_MOST_S,
    LINK_SHARE,
    MARK,
    MARK_PACED,
    MOST_S,
    PRICE_S,
    QUEUED_BYTES,
    SHOWN_S,
    SLOW_MULTIPLE,
    TRUST_S,
    UNLOADED_S,
)
from writebackd.types.copying import replace
from writebackd.types.device_memory import DeviceMemory, Drain
from writebackd.types.histogram import Histogram
from writebackd.types.samples import DeviceSample, IoClass, SyncSample, VmState


@dataclass(frozen=True)
class Writes:
    """The device's writes of one tick, in bytes per second."""

    rate: float
    background_rate: float
    flooded: bool
    held_back: bool  # writers slept for the limit: it sets their speed
    queued: bool  # flooded, and the flusher's requests wait at the device: it sets their speed
    telling: bool  # flooded, and device or limit set its speed: the rate measures them


def small_writes(sample: DeviceSample) -> List[Histogram]:
    """Latencies of sync and journal writes; nothing without a class probe."""
    if sample.classes is None:
        return []
    sync, journal = sample.classes.get(IoClass.SYNC_WRITE), sample.classes.get(IoClass.JOURNAL)
    if sync is not None and journal is not None:
        return [sync.latency, journal.latency]
    return [kind.latency for kind in (sync, journal) if kind is not None]


def written_by(group: Sequence[DeviceSample]) -> int:
    """Bytes written in this tick by devices on the same disks; a disk includes its volumes."""
    leaves = sum([s.write_bytes for s in group if s.device.devno in s.device.leaf_devnos])
    volumes = sum([s.write_bytes for s in group if s.device.devno not in s.device.leaf_devnos])
    return max(leaves, volumes)


def measure_writes(
    sample: DeviceSample,
    vm: VmState,
    group_bytes: int,
    throttled_s: float,
    most_held_s: float,
    dt_s: float,
) -> Writes:
    """What the device wrote in this tick, and whether that is a flood.

    `group_bytes` is what all devices on the same leaf disks wrote together: an array with two
    logical volumes drains for both.  A flood is background writing above FLOOD_RATE with more to
    come: pages wait (dirty and under writeback, at least a quarter of the background limit), the
    flusher has QUEUED_BYTES in flight at each disk, or writers slept `throttled_s` for the limit
    in total; `most_held_s` is the longest sleep of one.  Below a small limit often no pages wait
    when sampled once a second, so the sleep is the better sign.
    """
    rate = group_bytes / dt_s
    background, deep = rate, False
    classes = sample.classes
    if classes:
        read, flushed = classes.get(IoClass.READ), classes.get(IoClass.BACKGROUND_WRITE)
        if flushed is not None and flushed.count:
            # Little's law: what was in flight in the mean, by how long each request was.
            in_flight = flushed.latency.total_s() / dt_s * flushed.bytes / flushed.count
            deep = in_flight >= QUEUED_BYTES * len(sample.device.leaf_devnos)
        total = sum([kind.bytes for kind in classes.values()]) - (read.bytes if read else 0)
        # As a share, because below a raid10 every byte is written twice.  No
        # request seen although bytes were written (multipath, drbd): unknown.
        if total:
            background = rate * (flushed.bytes if flushed else 0) / total
    waiting = vm.dirty_bytes + vm.writeback_bytes
    throttled = throttled_s >= HELD_BACK_SHARE * dt_s
    flooded = background >= FLOOD_RATE and (
        throttled or deep or waiting >= vm.background_threshold_bytes / 4
    )
    return Writes(
        rate=rate,
        background_rate=background,
        flooded=flooded,
        queued=flooded and deep and sample.busy_share >= FELL,
        telling=flooded
        and (sample.busy_share >= BUSY_SHARE or most_held_s >= BUSY_SHARE * dt_s),
        # Above that the kernel makes writers sleep (domain_poll_intv() in mm/page-writeback.c),
        # whether that is seen or not.
        held_back=throttled
        or waiting >= (vm.threshold_bytes + vm.background_threshold_bytes) / 2,
    )


def slow_share(sync: SyncSample, unloaded_s: float, queued_s: float) -> Optional[float]:
    """Share of the syncs' time spent in slow ones; None if no sync ended or waits for long.

    `queued_s` is the time to drain the limit at the flood's rate: while the cache has room, a sync
    waits for a part of that on the link.
    """
    least = max(SLOW_MULTIPLE * unloaded_s, UNLOADED_S, min(LINK_SHARE * queued_s, LINK_MOST_S))
    total = sync.latency.total_s()
    if not total:
        return 1.0 if sync.inflight and sync.oldest_s > least else None
    return sync.latency.total_s(least) / total


class Tells(Enum):
    """What the rate of a tick says about R; see the module."""

    NOTHING = "the flood writes less than both the limit and the device allow"
    MEDIA = "all that the media take, less what syncs cost: R rises or falls"
    AT_LEAST = "the limit may hold the flood: R is that much or more"
    ROOM = "what the cache takes"


def what_it_tells(
    writes: Writes, d: Drain, limit_bytes: float, pace: Optional[float]
) -> Tells:
    """Which case the tick is; `limit_bytes` is the part of our limit in force."""
    if not d.full_s:
        return Tells.ROOM
    if not writes.held_back:
        return Tells.NOTHING
    if pace is not None or lets_in(d, limit_bytes):
        return Tells.MEDIA
    return Tells.AT_LEAST


def update_drain(
    writes: Writes, sample: DeviceSample, memory: DeviceMemory, limit_bytes: int, dt_s: float,
    pace: Optional[float] = None, no_room: bool = False,
) -> DeviceMemory:
    """Add this tick to the memory; without a flood beside syncs only time passes.

    `limit_bytes` is its part of the limit in force; `pace` is the rate that io.max allows the
    flood. `no_room`: the cache reports that it is full. A report that it has room proves nothing:
    dm-cache lets most of a flood bypass it.
    """
    d, r = memory.drain, memory.drain_rate
    memory = counted(memory, writes.rate, writes.flooded, dt_s)
    if not writes.flooded or sample.sync is None:
        if d.slow_share or d.full_s or d.room_s:
            ticks = () if d.room_s else d.full_ticks  # what queued before a pause has drained
            d = replace(
                d, slow_share=d.slow_share * 0.5**dt_s, full_s=0.0, room_s=0.0, full_ticks=ticks,
                came=None,
            )
        return replace(memory, drain=d)
    if r is None:
        r = pace  # of the run before, which knew R
    own = pace is not None or is_in_force(limit_bytes, memory)
    mark = MARK if pace is None else MARK_PACED
    d = _looked(writes, sample.sync, memory, own, r is None, no_room, mark, dt_s)
    memory = with_first_flood(memory, writes.rate, dt_s)
    # On the way to another limit of the law's as well, but not under one as found: there syncs may
    # look as behind a full cache while they wait on the link.
    if r is not None and (own or limit_bytes < MOST_S * max(r, d.rate)):
        d, r = _since_full(d, r, writes.background_rate, dt_s)
        memory = replace(memory, drain_rate=r)
    if not own:
        return _under_limit_as_found(memory, d, writes.background_rate, limit_bytes, dt_s)
    if r is None:
        return replace(memory, drain=d)
    tells = what_it_tells(writes, d, memory.law.limit_bytes or 0.0, pace)
    lost_s = d.lost_s * max(0.0, 1.0 - dt_s / PRICE_S)
    if writes.held_back and (pace is not None or tells is Tells.MEDIA):
        lost_s += max(1.0 - writes.background_rate / r, 0.0) * dt_s
    syncs = d.syncs * max(0.0, 1.0 - dt_s / PRICE_S) + sample.sync.count
    d = replace(d, lost_s=lost_s, syncs=syncs)
    if tells is Tells.ROOM:
        d = replace(d, slower_s=0.0) if d.room_s > 1.0 else d
    elif tells is not Tells.NOTHING:
        d, r = _while_full(d, r, tells, writes.background_rate, pace, dt_s)
    return replace(memory, drain=d, drain_rate=r)


def _looked(
    writes: Writes, sync: SyncSample, memory: DeviceMemory, own: bool, unknown: bool,
    no_room: bool, mark: float, dt_s: float,
) -> Drain:
    """Update smoothed rates, whether and for how long the cache is full, and its full rates."""
    d, rate, weight = memory.drain, writes.background_rate, min(1.0, dt_s / FOLLOW_S)
    queued_s = (memory.law.limit_bytes or 0.0) / max(rate, 1.0)
    share = slow_share(sync, memory.baseline_s or UNLOADED_S, queued_s)
    slow = d.slow_share
    if share is not None:
        slow += (share - slow) * min(1.0, dt_s)
    full = no_room or slow > mark
    # A tick without a sync shows nothing: only ticks that do count.
    seen_s = dt_s if share is not None or full != (d.full_s > 0) else 0.0
    full_s, room_s = (d.full_s + seen_s, 0.0) if full else (0.0, d.room_s + seen_s)
    # Few syncs return from a full cache under a limit as found: what queued before one did counts,
    # but not under a limit of ours.
    queued = writes.queued and unknown and not own
    ticks = d.full_ticks if queued or (full and not (own and d.room_s)) else ()
    # In its first second the cache still takes some; and a writer's own rate is not the disk's.
    if queued or (full and full_s > 1.0 and (writes.held_back or writes.queued)):
        ticks = _with_tick(ticks, rate, own and unknown, dt_s)
    return replace(
        d,
        rate=d.rate + (rate - d.rate) * weight,
        sync_rate=d.sync_rate + (sync.count / dt_s - d.sync_rate) * weight,
        slow_share=slow,
        full_s=full_s,
        room_s=room_s,
        full_ticks=ticks,
    )


def _with_tick(
    ticks: Tuple[float, ...], rate: float, sought: bool, dt_s: float
) -> Tuple[float, ...]:
    if not sought:
        return (*ticks, rate)[-_shown_ticks(dt_s):]
    above = [tick for tick in ticks if tick >= DEEP * rate]  # the others were of a sweep
    return (*above, rate)[-_shown_ticks(DEEP * dt_s):]


def _since_full(d: Drain, r: float, rate: float, dt_s: float) -> Tuple[Drain, float]:
    """R is at least the rate between two moments at which the cache was full."""
    if d.came is None:
        return (replace(d, came=(0.0, 0.0)) if d.full_s else d), r
    seconds, came = d.came[0] + dt_s, d.came[1] + rate * dt_s
    if seconds >= SHOWN_S and 0.0 < d.full_s <= dt_s:
        return replace(d, came=(0.0, 0.0)), max(r, came / seconds)
    # A second of it shows R by its own rate.
    return replace(d, came=(0.0, 0.0) if d.full_s > 1.0 else (seconds, came)), r


def _while_full(
    d: Drain, r: float, tells: Tells, rate: float, pace: Optional[float], dt_s: float
) -> Tuple[Drain, float]:
    """Raise R to the median rate of a full cache, or lower it if the rate stays below R."""
    if not is_shown(d, dt_s):
        return d, r
    full_rate = d.full_rate
    if full_rate > r:
        return d, r + (full_rate - r) * min(1.0, dt_s / SHOWN_S)
    if tells is Tells.AT_LEAST:
        return d, r
    # Nor does what syncs are known to cost.
    left = r * max(0.5, 1.0 - d.sync_rate * d.price_s)
    if pace is None:
        r += (full_rate - r) * min(1.0, dt_s / TRUST_S)
    else:
        left = min(left, pace)
    slower_s = 0.0
    if rate < FELL * left:
        slower_s = d.slower_s + (dt_s if rate > DEEP * r else DEEP * dt_s)
    if slower_s < SHOWN_S:
        return replace(d, slower_s=slower_s), r
    return replace(d, slower_s=0.0, lost_s=0.0), min(d.rate, full_rate)


def _under_limit_as_found(
    memory: DeviceMemory, d: Drain, rate: float, limit_bytes: int, dt_s: float
) -> DeviceMemory:
    """`memory` with `d`, and R under the original limit or on the way down from it.

    Such a limit slows no flood: it is at least the largest limit of the search for R.
    """
    r, full_rate = memory.drain_rate, d.full_rate
    memory = replace(memory, drain=d)
    if not d.full_s or not is_shown(d, dt_s) or limit_bytes < MOST_S * (r or full_rate):
        return memory
    if r is not None:
        return replace(memory, drain_rate=full_rate)
    # Not while the cache filled in a part of these seconds: that was the link's rate.
    return shown(memory) if rate >= FELL * full_rate else memory


def is_shown(d: Drain, dt_s: float) -> bool:
    """Whether the cache has been full long enough to show R."""
    return len(d.full_ticks) >= _shown_ticks(dt_s)


def shows_first(d: Drain, dt_s: float) -> bool:
    """Whether the cache has been full long enough to show an R that is not known yet.

    A rate that fell to less than DEEP of itself may be a sweep's, and has to last.
    """
    if not is_shown(d, dt_s):
        return False
    fell = min(d.full_ticks) < DEEP * max(d.full_ticks)
    return not fell or is_shown(d, DEEP * dt_s)


def _shown_ticks(dt_s: float) -> int:
    return max(1, round(SHOWN_S / dt_s))


def unpriced(d: Drain) -> Drain:
    """Start to learn the cost of a sync anew, with the weight of half a window.

    Without that weight the first sweep would be charged to the few syncs before it.
    """
    return replace(d, lost_s=0.0, syncs=d.sync_rate * PRICE_S / 2)


def shown(memory: DeviceMemory) -> DeviceMemory:
    """Set R from a full cache; in its first seconds the cache may still have been filling."""
    d = memory.drain
    memory = replace(memory, drain=unpriced(d))
    return with_drain_rate(memory, min(d.rate, d.full_rate))


def lets_in(d: Drain, limit_bytes: float) -> bool:
    """Whether the limit admits more than a full cache took lately, so that the rate shows R."""
    return 0.0 < FELL * LETS_IN_S * d.full_rate <= limit_bytes
