# SPDX-License-Identifier: GPL-2.0-or-later
"""Estimates a device's drain rate, whether it is flooded, cache fill and the cost of a sync.

A write cache completes writes at link speed until it is full, so the highest rate seen is not what
the media take.  Whether it is full the syncs tell: they take 0.1 ms while the cache has room, and
wait for the media once it has none.  So R is the flusher's rate under a full cache, also where the
limit is the one as found.  No limit of ours lowers it: only a rate under a limit that lets in more
than that counts against it; under a pace, a rate below the pace.

What a full cache does not drain at R, syncs have cost: each block that they leave in the cache
takes media time of its own.  Seconds of R lost for each sync are the price of one.  Under a pace
the cache is filled by syncs alone, so what they cost while it has room is due when it is full: all
that the flood leaves of R is theirs, until more of it is given to the flood and nothing fills up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Optional, Sequence

from writebackd.estimate.cache_size import counted, with_drain_rate, with_first_flood
from writebackd.estimate.limit_shares import is_in_force
from writebackd.tuning import (
    BUSY_SHARE,
    DEEP,
    FADE_S,
    FASTER,
    FELL,
    FLOOD_RATE,
    FOLLOW_S,
    GAIN_S,
    HELD_BACK_SHARE,
    LETS_IN_S,
    LINK_MOST_S,
    LINK_SHARE,
    MARK,
    MOST_S,
    PAYS,
    PRICE_S,
    QUEUED_BYTES,
    SHOWN_S,
    SLOW_MULTIPLE,
    UNLOADED_S,
)
from writebackd.types.copying import replace
from writebackd.types.device_memory import DeviceMemory, Drain, median_rate
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
    telling: bool  # flooded, and the device or the limit held it: its rate tells of them


def small_writes(sample: DeviceSample) -> List[Histogram]:
    """Latencies of sync and journal writes; nothing without a class probe."""
    if sample.classes is None:
        return []
    sync, journal = sample.classes.get(IoClass.SYNC_WRITE), sample.classes.get(IoClass.JOURNAL)
    if sync is not None and journal is not None:
        return [sync.latency, journal.latency]
    return [each.latency for each in (sync, journal) if each is not None]


def written_by(group: Sequence[DeviceSample]) -> int:
    """Bytes in this tick, of devices on the same disks: a disk's own has that of its volumes."""
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
    """What was written in this tick, and whether it was a flood.

    `group_bytes` is what all devices on the same leaf disks wrote together: an array with two
    logical volumes drains for both.  A flood is background writing above FLOOD_RATE with more to
    come: pages wait (dirty and under writeback, at least a quarter of the background limit), the
    flusher has QUEUED_BYTES in flight at each disk, or writers slept `throttled_s` for the limit,
    all together; `most_held_s` is the longest sleep of one.  A small limit is often found empty by
    a look once a second, so the sleep tells it better.
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
        total = sum([each.bytes for each in classes.values()]) - (read.bytes if read else 0)
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
    """Share of the syncs' time that slow ones took; None where no sync ended or waits for long.

    `queued_s` is what the limit takes at the flood's rate: with room in the cache a sync waits for
    its part of that, on the link.
    """
    least = max(SLOW_MULTIPLE * unloaded_s, UNLOADED_S, min(LINK_SHARE * queued_s, LINK_MOST_S))
    total = sync.latency.total_s()
    if not total:
        return 1.0 if sync.inflight and sync.oldest_s > least else None
    return sync.latency.total_s(least) / total


def update_drain(
    writes: Writes, sample: DeviceSample, memory: DeviceMemory, limit_bytes: int, dt_s: float,
    pace: Optional[float] = None, no_room: bool = False,
) -> DeviceMemory:
    """The memory with this tick in it: of a flood beside syncs, else only what time does.

    `limit_bytes` is its part of the limit in force; `pace` is what io.max lets in of the flood:
    then no limit tells of it. `no_room`: the cache itself says that it is full. One that says that
    it has room proves nothing: dm-cache sends most of a flood past it.
    """
    d, r = memory.drain, memory.drain_rate
    sync = sample.sync
    memory = counted(memory, writes.rate, writes.flooded, dt_s)
    if not writes.flooded or sync is None:
        if d.slow_share or d.full_s or d.queue:
            d = replace(d, slow_share=d.slow_share * 0.5**dt_s, full_s=0.0, queue=())
        return replace(memory, drain=d)
    if r is None:
        r = pace  # of the run before, which knew R
    rate, weight = writes.background_rate, min(1.0, dt_s / FOLLOW_S)
    limit = memory.law.limit_bytes or 0.0
    share = slow_share(sync, memory.baseline_s or UNLOADED_S, limit / max(rate, 1.0))
    slow = d.slow_share
    if share is not None:
        slow += (share - slow) * min(1.0, dt_s)
    full = no_room or slow > MARK
    if full != (d.full_s > 0):
        full_s = dt_s if full else -dt_s
    elif share is None:
        full_s = d.full_s  # nobody saw whether it still is
    else:
        full_s = d.full_s + (dt_s if full else -dt_s)
    own = pace is not None or is_in_force(limit_bytes, memory)
    ticks = d.full_ticks if full else ()
    # In its first second the cache still takes some; and a writer's own rate is not the disk's.
    if full and full_s > 1.0 and (own or writes.held_back or writes.queued):
        ticks = (*ticks, rate)[-_shown_ticks(dt_s):]
    # Few syncs return from a full cache under a limit as found: what queued before one did counts.
    queue = (*d.queue, rate)[-_shown_ticks(dt_s):]
    if own or r is not None or not writes.queued:
        queue = ()
    # Not while the cache filled in a part of it: that was the link's rate.
    if full and len(queue) == _shown_ticks(dt_s) and rate >= FELL * median_rate(queue):
        ticks = queue
    memory = with_first_flood(memory, writes.rate, dt_s)
    d = replace(
        d,
        rate=d.rate + (rate - d.rate) * weight,
        sync_rate=d.sync_rate + (sync.count / dt_s - d.sync_rate) * weight,
        slow_share=slow,
        full_s=full_s,
        full_ticks=ticks,
        queue=queue,
    )
    if not own:
        return _held_by_media(memory, d, limit_bytes, dt_s)
    if r is None:
        return replace(memory, drain=d)
    fade = max(0.0, 1.0 - dt_s / PRICE_S)
    lost, syncs = d.lost_s * fade, d.syncs * fade + sync.count
    fell, full_rate = d.fell_s, d.full_rate
    # Whether neither limit nor pace holds the flood: what is missing, the media have not taken.
    by_media = pace is not None or lets_in(d, limit)
    if writes.held_back and (pace is not None or (full and by_media)):
        lost += max(1.0 - rate / r, 0.0) * dt_s
    if full and writes.held_back:
        if is_shown(d, dt_s):
            if full_rate > r:
                r += (full_rate - r) * min(1.0, dt_s / GAIN_S)
            elif by_media:
                # Nor does what syncs are known to cost.
                left = r * max(0.5, 1.0 - d.sync_rate * d.price_s)
                if pace is None:
                    r += (full_rate - r) * min(1.0, dt_s / FADE_S)
                else:
                    left = min(left, pace)
                counts = 1.0 if rate > DEEP * r else DEEP
                fell = max(fell, 0.0) + counts * dt_s if rate < FELL * left else 0.0
        if fell >= SHOWN_S:
            r, fell, lost = min(d.rate, full_rate), 0.0, 0.0
    elif full_s < -1.0:
        # One that has shown itself faster is followed, as far as it goes, until it is full.
        rises = fell <= -GAIN_S
        if d.rate > (PAYS if rises else FASTER) * r:
            fell -= dt_s
            if fell <= -GAIN_S:
                r, lost = d.rate, 0.0
        elif not rises:
            fell = 0.0
    if full:
        fell = max(fell, 0.0)
    d = replace(d, lost_s=lost, syncs=syncs, fell_s=fell)
    return replace(memory, drain=d, drain_rate=r)


def _held_by_media(
    memory: DeviceMemory, d: Drain, limit_bytes: int, dt_s: float
) -> DeviceMemory:
    """`memory` with `d`, and R under a limit as found, or on the way down from there.

    Such a limit holds no flood: it is at least as large as the largest of a search for R.
    """
    r, full_rate = memory.drain_rate, d.full_rate
    if not is_shown(d, dt_s) or limit_bytes < MOST_S * (r or full_rate):
        return replace(memory, drain=d)
    if r is None:
        return shown(replace(memory, drain=d))
    return replace(memory, drain=d, drain_rate=full_rate)


def is_shown(d: Drain, dt_s: float) -> bool:
    """Whether a full cache has lasted for long enough to show R."""
    return len(d.full_ticks) >= _shown_ticks(dt_s)


def _shown_ticks(dt_s: float) -> int:
    return max(1, round(SHOWN_S / dt_s))


def unpriced(d: Drain) -> Drain:
    """What a sync costs is learned from nothing, with the weight of half a window.

    Without that weight the first sweep would be taken for the price of the few syncs before it.
    """
    return replace(d, lost_s=0.0, syncs=d.sync_rate * PRICE_S / 2)


def shown(memory: DeviceMemory) -> DeviceMemory:
    """R as a full cache has shown it; its first seconds may have been filling."""
    d = memory.drain
    memory = replace(memory, drain=unpriced(d))
    return with_drain_rate(memory, min(d.rate, d.full_rate))


def lets_in(d: Drain, limit_bytes: float) -> bool:
    """Whether the limit lets in more than a full cache took of late: the rate shows R."""
    return 0.0 < FELL * LETS_IN_S * d.full_rate <= limit_bytes
