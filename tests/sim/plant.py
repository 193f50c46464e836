# SPDX-License-Identifier: GPL-2.0-or-later
"""Host and disks as equations: what the dirty limits do to a flood and to commits.

Per step of 50 ms the flows are in equilibrium, except what fills and drains slowly: pages in
memory (D) and the disk's write cache (F).  Figures not marked otherwise were fitted to the
tables of tests/sim/shape.py (`python -m tests.sim shape` prints them beside the model): commits
to a factor of about 1.5, and to a quarter where both limits and the sleep in write() were measured.

Left out: expiry of dirty pages after 30 s, reads, the memcg quantum, and of the levers beside
the global pair all but pacing and, where a plant is told to have them, limits per device.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from writebackd.control.decide import decide
from writebackd.estimate.estimator import estimate
from writebackd.policy.schema import Policy
from writebackd.types.core_memory import Memory
from writebackd.types.decision import Decision, Mode
from writebackd.types.estimate import Estimate
from writebackd.types.histogram import Histogram
from writebackd.types.levers import Action, ForeignWrite, LeverKind, VmLimits
from writebackd.types.samples import (
    CgroupControl,
    CgroupSample,
    ClassSample,
    DeviceSample,
    HostInfo,
    IoClass,
    Sample,
    SyncSample,
    TaskSample,
    VmState,
)
from writebackd.types.storage import Device

MB = 1 << 20
GB = 1 << 30
FOREVER = float("inf")

# Of 24 GB, most of it dirtyable; the kernel's defaults of 20 % and 10 %.
HOST = HostInfo(page_size=4096, cpus_online=2, memory_bytes=24 * GB)
AS_FOUND = int(0.2 * 0.94 * HOST.memory_bytes)
RATIOS = VmLimits(0, 20, 0, 10)
STEP_S = 0.05
# Limits from 8 kB to 1 MB all did the same on 6.18: large folios and write chunks are the grain.
GRAIN = 1 * MB
# Pages that each further writer dirties between two looks at the limit (ratelimit_pages).
GRAIN_PER_WRITER = 128 << 10
# A writer's memory speed; dd through the page cache of a small server.
COPY_RATE = 1000.0 * MB
# What the flusher writes of a file before it looks at the background limit again
# (MIN_WRITEBACK_PAGES).
FLUSH_CHUNK = 4.0 * MB
# balance_dirty_pages: a sleep of two jiffies at HZ=250 lasts 4 to 8 ms, and none more than 200 ms.
PAUSE_S, MAX_PAUSE_S = 6e-3, 0.2
# A committer is caught by this part of the flood's sleeps while the flood stays below the limit;
# where each chunk of a fast one jumps over it, it sleeps so much of the time (0.7 to 0.8 measured),
# and half of that where jumps are so far apart ...
CAUGHT, OVER_LIMIT, APART_S = 0.355, 0.8, 40e-3
# ... half of it in long sleeps: the flood, woken by the same tick, is over the limit again first.
LONG_SLEEPS = 0.5
# The daemon looks so much sooner where a decision asks for it.
HURRY = 0.5
FLOOD_CGROUP = "/system.slice/flood.service"

# A sync that waits for room waits for this part of what is dirty, in the mean (p99 was 0.5 of it,
# 1.0 on a slow array) ...
AHEAD = 0.45
# ... but for no more than the queue of the block layer holds: with the default limits a sync took
# 1.1 to 2.6 s at 250 MB/s and 10 s at 60 MB/s.
AHEAD_MOST = 600.0 * MB
# The part of the time in which a full cache has some room, between two bursts of the flusher,
# falls with this power of limit/knee (f 0.3 to 0.07 for limits of 4 MB to 64 MB), and for good
# once seconds of writing are queued.
BREATH_POWER = -0.55
BREATH_ENDS_S = 6.0
# How long the kernel's own, lower estimate of the disk stays after the cache was full.
LEAP_LASTS_S = 8.0
# 260 MB/s fell to 50 to 70 for a second, each time that the flood came to the end of its file.
SWEEP_EVERY_S, SWEEP_SHARE = 8.7, 0.25
# Where each block has its price: what a sweep over the blocks leaves of the media to the flood (10
# of 250 MB/s).  No sweep lasts longer than the flood's turn; while blocks take half of the cache,
# that is shared.
SWEEP_BESIDE, BLOCKS_MOST, SHARED = 0.05, 0.5, 0.5
# What the flood costs a sync that finds room: f is about 0.65 below the knee.
BESIDE_FLOOD = 0.5
# With room in the cache what is under writeback goes at the speed of the link, and a sync waits for
# this part of it, in the mean.
QUEUE_AHEAD = 0.12
# Without a cache a sync waits for the requests under way, about 1 MB, and beyond some tens of MB of
# dirty pages for most of them.
AHEAD_UNCACHED = 1.0 * MB
UNCACHED_KNEE = 40.0 * MB
# Of what is dirty, ahead of a flush that takes long under any limit: 118 syncs/s at 15 MB where
# 4 MB had 185, natively.
FLUSHED_AHEAD = 0.2
SYNC_BYTES = 4096
# Of the drain rate: also without a flood no cache takes more than its media do.
SYNC_SHARE_MOST = 0.8
REQUEST_BYTES = 512 << 10

# Spread of latencies around their mean, as (share, multiple) in ascending order: unloaded p99 is
# 2 to 4 times p50, and a wait for room lies anywhere between nothing and all that is queued.
SPREADS = {
    "fast": ((0.1, 0.72), (0.2, 0.83), (0.2, 0.91), (0.2, 0.98), (0.2, 1.1), (0.07, 1.4),
             (0.02, 2.1), (0.01, 3.0)),
    "slow": ((0.1, 0.37), (0.2, 0.67), (0.2, 0.9), (0.2, 1.12), (0.2, 1.35), (0.07, 1.5),
             (0.02, 1.6), (0.01, 1.8)),
    "exact": ((1.0, 1.0),),
}


@dataclass(frozen=True)
class Disk:
    """One disk and what is going on behind it; the lab's 512 MB RAID by default."""

    drain: float = 250.0 * MB  # of the media, bytes per second
    cache: float = 512.0 * MB  # 0: none, or written through
    link: float = 1000.0 * MB  # into the cache
    tau_s: float = 7.5e-3  # below the knee the flood gets limit / tau
    baseline_s: float = 0.35e-3  # an fsync, unloaded
    breath: float = 0.65  # part of the time with room in a full cache, at the knee
    volatile: bool = False  # fsync empties the cache
    flush_s: float = 0.0  # what a flush takes beside a flood under any limit, for that
    neighbour: float = 0.0  # part of the drain rate that somebody else takes
    neighbour_wait_s: float = 0.0  # what his queue adds to a write that waits for room
    failing_s: float = 0.0  # what retries add to every sync, whatever is queued
    # Instead of limit / tau: (from this limit in bytes on, rate), ascending; with room in the
    # cache, and for LEAP_LASTS_S after it was full.
    leaps: Tuple[Tuple[float, float], ...] = ()
    leaps_full: Tuple[Tuple[float, float], ...] = ()
    # Destage sweeps over the blocks of the syncs: so long, every SWEEP_EVERY_S, at SWEEP_SHARE.
    sweep_s: float = 0.0
    # Media time of each block that a sync leaves in the cache, paid by sweeps that are as long as
    # there are many; at once where a flush empties the cache, or there is none.
    scattered_s: float = 0.0
    # The kernel takes so long to follow a limit by nine tenths.
    lag_s: float = 0.0
    # Parity: a stripe written in part takes so much longer.  So many the syncs fall into, and each
    # is written once for every round over what the cache holds.
    stripe_s: float = 0.0
    stripes: float = 2000.0
    stalled: bool = False  # takes nothing, completes nothing
    operations: float = 0.0  # per second that a limiter lets through, evenly; 0: no limiter
    trims: float = 0.0  # discards per second, beside all else
    seeks: bool = False  # syncs take as differently long as seeks do; else nearly alike
    driver: Optional[str] = None  # as policies name it: usb-storage


@dataclass(frozen=True)
class Flood:
    """Buffered writers; with `on_s` in waves, the first at `start_s`."""

    device: int = 0
    start_s: float = 0.0
    end_s: float = FOREVER
    on_s: float = 0.0
    off_s: float = 0.0
    rate: float = COPY_RATE  # of all writers together, when nothing holds them
    writers: int = 1

    def on(self, now_s: float) -> bool:
        return _on(self.start_s, self.end_s, self.on_s, self.off_s, now_s)


@dataclass(frozen=True)
class SyncLoad:
    """Threads that write 4 KiB and fsync, each waiting for its own."""

    device: int = 0
    start_s: float = 0.0
    end_s: float = FOREVER
    on_s: float = 0.0
    off_s: float = 0.0
    threads: int = 1
    think_s: float = 0.0  # between two syncs of a thread
    bytes: int = 4096  # that each has to write

    def on(self, now_s: float) -> bool:
        return _on(self.start_s, self.end_s, self.on_s, self.off_s, now_s)


@dataclass(frozen=True)
class Event:
    """From `time_s` on a disk has other values, by the names of Disk's fields."""

    time_s: float
    changes: Mapping[str, object]
    device: int = 0


def _on(start_s: float, end_s: float, on_s: float, off_s: float, now_s: float) -> bool:
    if not start_s <= now_s < end_s:
        return False
    # A millisecond, so that 0.1 added ten times is a second.
    return not on_s or (now_s + 1e-3 - start_s) % (on_s + off_s) < on_s


def bucket(seconds: float) -> int:
    """The histogram bucket (see types/histogram.py) that a latency falls into."""
    units = int(seconds / 1024e-9)
    if units < 8:
        return units
    octave = units.bit_length() - 3
    return min(octave * 8 + (units >> (octave - 1)) - 8, 191)


class _Tally:
    """Latencies of a tick by their mean; spread out when the tick is read."""

    def __init__(self) -> None:
        self.counts: Dict[Tuple[str, float], float] = {}

    def add(self, kind: str, mean_s: float, count: float) -> None:
        # Means within 1 % are one, or every step of a draining queue would be its own.
        key = kind, float(f"{mean_s:.2g}")
        self.counts[key] = self.counts.get(key, 0.0) + count

    def histogram(self, rng: random.Random) -> Histogram:
        counts: Dict[int, int] = {}
        for (kind, mean_s), count in self.counts.items():
            # Of few values the random phase picks which; of many each its share.
            position = rng.random()
            last = int(position)
            for share, multiple in SPREADS[kind]:
                position += share * count
                whole = int(position)
                if whole > last:
                    index = bucket(mean_s * multiple)
                    counts[index] = counts.get(index, 0) + whole - last
                    last = whole
        return Histogram(tuple(sorted(counts.items())))


class DiskState:
    """A disk's contents, and what was counted since the last sample."""

    def __init__(self, index: int, disk: Disk) -> None:
        name, devno = f"sd{chr(97 + index)}", f"8:{16 * index}"
        self.device = Device(name, devno, devno, (name,), (devno,), driver=disk.driver,
                             diskseq=index + 1)
        self.disk = disk
        self.dirty = 0.0
        self.fill = 0.0
        self.weight = 1.0  # smoothed write rate: the kernel's share of the limit
        self.sync_rate = 0.0
        self.noise = 1.0
        self.mood = 1.0  # of a neighbour, and of heads: from second to second
        self.pace = FOREVER
        self.cap: Optional[float] = None  # a strict limit of its own, bytes
        self.fast_s = self.slow_s = disk.baseline_s
        self.fast_time = 1.0
        self.most_syncs = FOREVER
        self.since_full_s = FOREVER
        self.let_in: Optional[float] = None  # on its way to the rate of a limit
        self.jump = 0.0  # how likely a chunk of the flood jumps from freerun over the limit
        self.caught = 0.0  # part of the time that a committer sleeps for it, in short sleeps
        self.shut_s = 0.0  # what is left of a long sleep
        self.scattered = 0.0  # blocks of syncs that wait for the media
        self.sweep = 0.0  # of these, what the sweep under way has before it
        self.sweep_s, self.next_sweep_s = 0.0, SWEEP_EVERY_S  # when it began, and the next one
        # totals
        self.written = 0.0
        self.destaged = 0.0  # scattered blocks that the media have
        self.media_bytes = 0.0  # of the flood, that the media have
        self.reset()

    def reset(self) -> None:
        self.out = self.busy_s = self.accepted = self.throttled_s = 0.0
        self.asleep_s = 0.0  # of committers
        self.syncs, self.commits, self.background = _Tally(), _Tally(), _Tally()
        self.sync_count = self.sync_bytes = 0

    @property
    def keeps(self) -> bool:
        """Whether blocks may wait in the cache."""
        return bool(self.disk.cache) and not self.disk.volatile

    def destage(self, blocks: float) -> None:
        self.scattered = max(0.0, self.scattered - blocks)
        self.sweep = max(0.0, self.sweep - blocks)
        self.destaged += blocks


def _let_in(state: DiskState, limit: float) -> float:
    """What the limit lets in, bytes per second."""
    disk = state.disk
    steps = disk.leaps_full if state.since_full_s < LEAP_LASTS_S else disk.leaps
    if not steps:
        return limit / disk.tau_s
    # Below the first step in proportion.
    rate = steps[0][1] * min(1.0, limit / steps[0][0])
    for start, step in steps:
        if limit >= start:
            rate = step
    return rate


class LoadState:
    """A sync load's progress."""

    def __init__(self, load: SyncLoad) -> None:
        self.load = load
        self.carry = 0.0
        self.waiting_s = 0.0  # since the last return
        self.asleep_s = 0.0  # in the write() that a sync will follow
        self.active = False
        self.done = 0


class Plant:
    """Host and disks.  `advance` lets time pass, `sample` is what a tick reads."""

    def __init__(
        self,
        disks: Sequence[Disk] = (Disk(),),
        floods: Sequence[Flood] = (),
        syncs: Sequence[SyncLoad] = (),
        events: Sequence[Event] = (),
        dirty: float = 0.0,
        seed: int = 1,
        step_s: float = STEP_S,
        found: int = AS_FOUND,
        booted_s: float = 1000.0,
        per_device: bool = False,
        groups: bool = False,
    ) -> None:
        """`dirty` bytes of the first disk are dirty at the start, its cache full.

        The host was booted `booted_s` before.  `per_device`: its kernel has limits for each BDI
        (6.2 and later), and takes them.  `groups`: the flood is in a cgroup that may be paced.
        """
        self.disks = [DiskState(i, disk) for i, disk in enumerate(disks)]
        if dirty:
            self.disks[0].dirty = dirty
            self.disks[0].fill = disks[0].cache
        self.floods = list(floods)
        self.loads = [LoadState(load) for load in syncs]
        self.events = sorted(events, key=lambda event: event.time_s)
        self.rng = random.Random(seed)
        self.luck = random.Random(seed + 1)  # of what other hosts and heads do
        self.chance = random.Random(seed + 2)  # of who sleeps and who waits
        self.booted_s = booted_s
        self.per_device, self.groups = per_device, groups
        self.actions: Tuple[Action, ...] = ()  # on BDIs, since the last sample
        self.step_s = step_s
        self.found = found
        self.limit = found
        self.background = found // 2
        self.set_by_bytes = False
        self.now_s = 0.0
        self.next_noise_s = 0.0
        self.since_s = 0.0  # the last sample
        self.blocked_s = 0.0
        self.longest_blocked_s = 0.0

    # ---- levers ----------------------------------------------------------

    def set_limits(self, limit: Optional[int], background: Optional[int]) -> None:
        """None: the limits as found."""
        self.set_by_bytes = limit is not None
        self.limit = self.found if limit is None else limit
        self.background = self.limit // 2 if background is None else background

    def apply(self, decision: Decision) -> None:
        self.set_limits(decision.limit_bytes, decision.background_bytes)
        paces = {s.name: float(s.value) for s in decision.settings
                 if s.kind is LeverKind.PACE and s.target == FLOOD_CGROUP}
        for state in self.disks:
            state.pace = paces.get(state.device.devno, FOREVER)
        if self.per_device:
            bdis = [s for s in decision.settings if s.kind is LeverKind.BDI]
            caps = {s.target: float(s.value) for s in bdis if s.name == "max_bytes"}
            for state in self.disks:
                state.cap = caps.get(state.device.bdi)
            self.actions = tuple(
                Action(f"bdi {s.target} {s.name}", "", str(s.value), ok=True) for s in bdis)

    # ---- time ------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        end = self.now_s + seconds
        while end - self.now_s > 1e-6:
            step = min(self.step_s, end - self.now_s)
            self._step(step)
            self.now_s += step

    def _step(self, h: float) -> None:
        now = self.now_s
        while self.events and self.events[0].time_s <= now + 1e-6:
            event = self.events.pop(0)
            state = self.disks[event.device]
            state.disk = replace(state.disk, **event.changes)  # type: ignore[arg-type]
            state.fill = min(state.fill, state.disk.cache)
        if now >= self.next_noise_s:
            # Destaging was seen to vary by about 10 % from second to second.
            self.next_noise_s = now + 1.0
            for state in self.disks:
                state.noise = self.rng.uniform(0.92, 1.08)
                state.mood = self.luck.uniform(0.75, 1.25)
        demands = [0.0] * len(self.disks)
        writers = 0
        for flood in self.floods:
            if flood.on(now):
                demands[flood.device] += flood.rate
                writers += flood.writers
        limit = float(self.limit)
        background = self.background if self.background < limit else limit / 2
        setpoint = (limit + (limit + background) / 2) / 2
        grain = GRAIN + max(0, writers - 8) * GRAIN_PER_WRITER
        grip = max(limit, grain)
        total = sum(state.dirty for state in self.disks)
        blocked = total > grip * 1.001
        if blocked and writers:
            self.blocked_s += h
            self.longest_blocked_s = max(self.longest_blocked_s, self.blocked_s)
        else:
            self.blocked_s = 0.0
        # Below that nobody is looked at: a disk that hangs is filled up to there.
        freerun = (limit + background) / 2
        free = freerun - total
        held, band = total > freerun * grip / limit, (limit - freerun) * grip / limit
        # A limit lets in what the flood writes up to freerun, but with a background limit near it
        # no more than the flusher writes before it is below that one; 1 with half of the limit.
        flushed = max(FLUSH_CHUNK * limit / grip, 3.0 * (limit - freerun))
        reach = min(freerun, flushed) / (0.75 * limit)
        # What hangs has its room, and the others share the rest.
        hung = sum(state.dirty for state in self.disks if state.disk.stalled)
        hung_part = hung * limit / grip
        using = [i for i, state in enumerate(self.disks)
                 if not state.disk.stalled and (demands[i] or state.dirty > 1.0)]
        weights = sum(self.disks[i].weight for i in using)
        for i, state in enumerate(self.disks):
            share = state.weight / weights if i in using else 0.0
            part = (share * max(grip - hung, 1.0),
                    share * max(setpoint - hung_part, 1.0) * grip / limit,
                    share * max(background - hung, 1.0))
            if state.disk.stalled:
                part = state.dirty + max(0.0, free), 0.0, 0.0
            mine = blocked, held, band
            if state.cap is not None:
                # strict_limit: the cap is the device's limit, whatever room the host has; its
                # setpoint as that of a global one with half of it in the background.
                own = max(state.cap, float(grain))
                part = own, 0.875 * own, 0.5 * own
                mine = blocked, state.dirty > 0.75 * own, 0.25 * own
            self._throttle(state, h, grain, *mine)
            self._write(state, h, demands[i], *part, blocked, 1.0 if state.cap else reach)
        for load in self.loads:
            self._sync(load, h)

    def _write(
        self, state: DiskState, h: float, demand: float,
        limit: float, setpoint: float, background: float, blocked: bool, reach: float,
    ) -> None:
        """A flood's step on one disk; `limit` to `background` are the disk's part."""
        disk = state.disk
        if disk.stalled:
            accepted = 0.0 if blocked else min(demand, max(0.0, limit - state.dirty) / h)
            state.dirty += accepted * h
            state.accepted += accepted * h
            state.throttled_s += h * (1.0 - accepted / demand) if demand else 0.0
            return
        drain = disk.drain * state.noise * (1.0 - disk.neighbour)
        if self.now_s % SWEEP_EVERY_S < disk.sweep_s:
            drain *= SWEEP_SHARE
        state.most_syncs = SYNC_SHARE_MOST * drain / SYNC_BYTES
        if disk.stripe_s:
            round_s = max(state.fill, 1.0 * MB) / drain
            parts = disk.stripes * -math.expm1(-state.sync_rate * round_s / disk.stripes)
            drain *= round_s / (round_s + parts * disk.stripe_s)
        if disk.scattered_s:
            drain *= 1.0 - self._sweep(state, h) / h
        elif disk.cache:
            drain = max(drain - state.sync_rate * SYNC_BYTES, 0.2 * drain)
        else:
            # The media seek for each sync and do nothing else meanwhile.
            drain *= max(0.3, 1.0 - 0.8 * state.sync_rate * disk.baseline_s)
        if blocked:
            demand_now, push = 0.0, state.dirty / h
        else:
            demand_now = demand
            push = max(0.0, state.dirty + demand * h - background) / h
            if demand:
                push = min(push, self._follow(state, limit * reach, h))
        push = min(push, disk.link, state.pace)
        full = 0.0
        if disk.neighbour:
            state.fill = disk.cache  # of his data, if not of ours
        capacity = disk.cache - state.scattered * SYNC_BYTES * state.keeps
        room = capacity - state.fill
        surplus, before = push - drain, state.fill
        if surplus <= 0.0:
            out = push
            state.fill = max(0.0, state.fill + surplus * h)
        elif room >= surplus * h:
            out = push
            state.fill += surplus * h
        elif room < 0.0:
            # Blocks that came since took the room of what the media have to take first.
            full = 1.0
            out = max(0.0, drain + room / h)
            state.fill += (out - drain) * h
        else:
            full = 1.0 - room / (surplus * h)
            out = push * (1.0 - full) + drain * full
            state.fill = capacity
        taken = out * h - (state.fill - before)
        state.media_bytes += taken
        if disk.scattered_s:
            # What the flood leaves of the media's time.
            idle_s = h * drain / (disk.drain * state.noise) * (1.0 - taken / (drain * h))
            state.destage(min(state.scattered, max(0.0, idle_s) / disk.scattered_s))
        if disk.neighbour:
            full = max(full, 0.9)
        state.since_full_s = 0.0 if full else state.since_full_s + h
        above = state.dirty - setpoint
        if above <= 0.0:
            accepted = out - above / h
        else:
            # The kernel's pos_ratio: 1 at the setpoint, 0 at the limit, with the third power.
            distance = min(1.0, above / max(limit - setpoint, 1.0))
            accepted = out - min(out * distance**3, above / h)
        accepted = min(demand_now, accepted)
        state.dirty = max(0.0, state.dirty + (accepted - out) * h)
        state.weight += min(1.0, h / 3.0) * (max(out, 1.0) - state.weight)
        state.written += out * h
        state.out += out * h
        state.accepted += accepted * h
        if demand:
            state.throttled_s += h * (1.0 - accepted / demand)
        # Pages below the background limit are not under writeback, but for those that expire.
        queued = state.dirty - (max(0.0, 4 * setpoint - 3 * limit) if background else 0.0)
        self._latency(state, h, out, drain, full, max(queued, 0.0))

    def _throttle(
        self, state: DiskState, h: float, chunk: float, blocked: bool, held: bool, band: float,
    ) -> None:
        """How committers sleep in balance_dirty_pages in this step, with this control band."""
        state.shut_s = max(0.0, state.shut_s - h)
        state.jump = state.caught = 0.0
        if blocked:
            state.shut_s = h
        elif held:
            state.jump = max(0.0, 1.0 - band / chunk)
            flow = sum(each.weight for each in self.disks)
            below = CAUGHT * PAUSE_S / (PAUSE_S + band / flow)
            jumped = APART_S * flow * state.jump
            over = OVER_LIMIT * jumped / (jumped + chunk)  # of the time in which it jumps
            long = LONG_SLEEPS * over * state.jump
            asleep = over * state.jump + (1.0 - state.jump) * below
            state.caught = (asleep - long) / (1.0 - long)
            begins = LONG_SLEEPS * over / (1.0 - long) / MAX_PAUSE_S  # per second
            if not state.shut_s and self.chance.random() < h * begins:
                state.shut_s = self.chance.expovariate(1.0 / (state.jump * MAX_PAUSE_S))

    def _sweep(self, state: DiskState, h: float) -> float:
        """Seconds of the step that the media spend on the blocks of a sweep."""
        each_s = state.disk.scattered_s
        if not state.keeps:
            state.most_syncs = SYNC_SHARE_MOST / each_s
            share, blocks = 1.0 - SWEEP_BESIDE, state.scattered
        else:
            most = BLOCKS_MOST * state.disk.cache / SYNC_BYTES
            if state.sweep and self.now_s - state.sweep_s > SWEEP_EVERY_S:
                state.sweep = 0.0
            if not state.sweep and self.now_s >= state.next_sweep_s:
                state.sweep, state.sweep_s = state.scattered, self.now_s
            share, blocks = 0.0, state.sweep
            if state.sweep:
                share = 1.0 - SWEEP_BESIDE
                state.next_sweep_s = self.now_s + SWEEP_EVERY_S
            elif state.scattered >= most:
                share, blocks = SHARED, state.scattered
            state.most_syncs = max(0.0, most - state.scattered) / h + share / each_s
        blocks = min(blocks, h * share / each_s)
        state.destage(blocks)
        return blocks * each_s

    @staticmethod
    def _follow(state: DiskState, limit: float, h: float) -> float:
        """What the kernel lets in under `limit` by now."""
        goal = _let_in(state, limit)
        if not state.disk.lag_s:
            return goal
        goal = min(goal, state.disk.link)
        if state.let_in is None:
            state.let_in = goal
        state.let_in += (goal - state.let_in) * -math.expm1(-math.log(10) * h / state.disk.lag_s)
        return state.let_in

    def _latency(
        self, state: DiskState, h: float, out: float, drain: float, full: float, queued: float,
    ) -> None:
        """What a sync costs in this step, and the flood's own requests."""
        disk = state.disk
        base = disk.baseline_s
        load = min(1.0, out / drain) * (1.0 - state.jump)
        # As pages that are dirty, and as a limit, where the background limit is half of it.
        dirty, as_limit = queued * 0.875 / 0.375, max(queued, 1.0) / 0.375
        wait = min(AHEAD * dirty, AHEAD_MOST) / drain
        if disk.cache:
            fast = base * (1.0 + BESIDE_FLOOD * load)
            if out < state.pace:  # io.max lets what it holds wait before the queue
                fast += (1.0 - full) * min(QUEUE_AHEAD * queued, AHEAD_MOST) / disk.link
            knee = drain * disk.tau_s
            breath = disk.breath * min(1.0, (as_limit / knee) ** BREATH_POWER)
            breath /= 1.0 + (as_limit / drain / BREATH_ENDS_S) ** 4
            if disk.volatile:
                # Each flush writes what came since the one before.
                fast = base / (1.0 - min(0.6, load))
                if disk.flush_s:
                    ahead_s = FLUSHED_AHEAD * dirty / drain
                    fast += (disk.flush_s + ahead_s) * min(1.0, 2.0 * load)
                wait += 0.5 * disk.cache / drain
            if disk.neighbour:
                breath = min(breath, 0.1)
        else:
            # The head is elsewhere, and the request under way goes first.
            fast = base * (1.0 + 2.0 * load)
            breath = 0.0
            most = 0.66 * dirty**3 / (dirty**2 + UNCACHED_KNEE**2)
            wait = (min(AHEAD_UNCACHED, dirty) + min(most, AHEAD_MOST)) / drain
        if disk.seeks:
            fast *= state.mood
        failing_s = disk.failing_s * state.mood
        state.fast_s = fast + failing_s
        state.slow_s = fast + wait + disk.neighbour_wait_s * state.mood + failing_s
        state.fast_time = 1.0 - full + full * breath
        requests = out * h / REQUEST_BYTES
        if requests:
            slow = full * (1.0 - 0.5 * breath)
            tally = state.background
            tally.add("fast", 1e-4 + 2 * REQUEST_BYTES / disk.link, requests * (1.0 - slow))
            if slow:
                behind = min(0.3 * dirty, AHEAD_MOST / 2) / drain
                tally.add("slow", 2e-3 + behind + disk.neighbour_wait_s, requests * slow)
        # A request at cache speed keeps the device busy only while it is on the link.
        state.busy_s += h * min(1.0, full + (1.0 - full) * 1.5 * out / disk.link)
        state.sync_rate = 0.0

    def _sync(self, progress: LoadState, h: float) -> None:
        load = progress.load
        progress.active = load.on(self.now_s)
        if not progress.active:
            progress.waiting_s = progress.carry = progress.asleep_s = 0.0
            return
        state = self.disks[load.device]
        if state.disk.stalled:
            progress.waiting_s += h
            state.busy_s += h
            return
        # Who thinks for long meets the flood's sleeps at random; else they are a part of the time.
        meets_s = PAUSE_S * load.think_s / (PAUSE_S + load.think_s)
        sleeps_s = [state.caught * (sync_s / (1.0 - state.caught) + meets_s)
                    for sync_s in (state.fast_s, state.slow_s)]
        fast = load.threads * state.fast_time / (state.fast_s + load.think_s + sleeps_s[0])
        slow = load.threads - load.threads * state.fast_time
        slow /= state.slow_s + load.think_s + sleeps_s[1]
        if state.shut_s:
            # What was begun goes on, and then each thread sleeps in its next write().
            shut_s = min(h, state.shut_s)
            progress.carry = min(progress.carry + (fast + slow) * shut_s, float(load.threads))
            asleep = int(progress.carry)
            progress.asleep_s += shut_s * (asleep > 0)
            state.asleep_s += shut_s * asleep
            h -= shut_s
            if not h:
                return
        if load.bytes != SYNC_BYTES:
            self._sync_large(progress, state, h)
            return
        stretch = max(1.0, (fast + slow) / max(1.0, state.most_syncs - state.sync_rate))
        rate = (fast + slow) / stretch
        cap = state.disk.operations
        capped = bool(cap) and rate > cap
        if capped:
            rate = cap
        progress.carry += rate * h
        count = int(progress.carry)
        progress.carry -= count
        progress.waiting_s += h
        state.sync_rate += rate
        state.busy_s += min(h, h * rate * 0.1e-3)
        if count:
            progress.waiting_s = 0.0
            progress.done += count
            state.sync_count += count
            state.sync_bytes += count * SYNC_BYTES
            if state.disk.scattered_s:
                state.scattered += count
            if capped:
                # A queue before the limiter, from which each has its turn.
                self._count(progress, "fast", load.threads / cap - load.think_s, count, 0.0)
                return
            slow_count = int(count * slow / (fast + slow) + self.chance.random())
            # Of seeks and parts of a turn none is like another.
            alike = "slow" if state.disk.seeks else "fast"
            self._count(progress, alike, state.fast_s * stretch, count - slow_count, sleeps_s[0])
            self._count(progress, "slow", state.slow_s * stretch, slow_count, sleeps_s[1])

    def _count(
        self, progress: LoadState, kind: str, sync_s: float, count: int, sleep_s: float,
    ) -> None:
        """Syncs, and the commits that they end; before each `sleep_s` of sleep in the mean."""
        state = self.disks[progress.load.device]
        state.syncs.add(kind, sync_s, count)
        state.asleep_s += sleep_s * count
        if progress.asleep_s and count:
            woken = min(count, progress.load.threads)
            state.commits.add("exact", progress.asleep_s + sync_s, woken)
            progress.asleep_s, count = 0.0, count - woken
        asleep = int(count * min(1.0, sleep_s / PAUSE_S) + self.chance.random())
        state.commits.add(kind, sync_s, count - asleep)
        state.commits.add("slow", sync_s + PAUSE_S, asleep)

    def _sync_large(self, progress: LoadState, state: DiskState, h: float) -> None:
        """Syncs whose own bytes are what takes the time: at the drain rate, one after the other."""
        load = progress.load
        each_s = state.fast_s + load.bytes / (state.disk.drain * state.noise)
        progress.carry += h / (each_s + load.think_s)
        progress.waiting_s += h
        count = int(progress.carry)
        progress.carry -= count
        state.busy_s += h * each_s / (each_s + load.think_s)
        # Written as it goes, also by a sync that takes many ticks.
        state.sync_bytes += int(load.bytes * h / (each_s + load.think_s))
        if count:
            progress.waiting_s = 0.0
            progress.done += count
            state.sync_count += count
            self._count(progress, "fast", each_s * load.threads, count, 0.0)

    # ---- what a tick reads -----------------------------------------------

    def sample(self) -> Sample:
        """All since the last sample; `advance` first."""
        dt = self.now_s - self.since_s
        self.since_s = self.now_s
        rng = self.rng
        devices: List[DeviceSample] = []
        tasks: List[TaskSample] = []
        cgroups = self._cgroups() if self.groups else ()
        for index, state in enumerate(self.disks):
            devices.append(self._device_sample(index, state, dt))
            if state.accepted or state.throttled_s:
                tasks.append(TaskSample(
                    4711 + index, "dd", 100 + index, state.device.name, int(state.accepted),
                    min(state.throttled_s, dt), FLOOD_CGROUP))
            state.reset()
        total = sum(state.dirty for state in self.disks)
        # A look once a second finds a small limit empty as often as full, a large one less so.
        moving = sum(state.dirty for state in self.disks if not state.disk.stalled)
        burst = min(moving, 8.0 * MB)
        total += burst * rng.uniform(-1.0, 0.1)
        dirty = int(total * rng.uniform(0.3, 0.7))
        limits = VmLimits(self.limit, 0, self.background, 0) if self.set_by_bytes else RATIOS
        return Sample(
            time_s=self.booted_s + self.now_s,
            wall_s=1.7e9 + self.now_s,
            dt_s=dt,
            host=HOST,
            vm=VmState(limits, dirty, int(total) - dirty, self.limit,
                       self.background if self.background < self.limit else self.limit // 2),
            devices=tuple(devices),
            tasks=tuple(tasks),
            cgroups=cgroups,
            actions=self.actions,
        )

    def _cgroups(self) -> Tuple[CgroupSample, ...]:
        """The flood's cgroup, with its files."""
        lines = tuple((state.device.devno, f"rbps=max wbps={state.pace:.0f} riops=max wiops=max")
                      for state in self.disks if state.pace < FOREVER)
        written = tuple((state.device.devno, int(state.out)) for state in self.disks)
        control = CgroupControl(io_max=lines, written=written)
        return tuple(CgroupSample(4711, FLOOD_CGROUP, state.device.name, int(state.accepted),
                                  control=control) for state in self.disks)

    def _device_sample(self, index: int, state: DiskState, dt: float) -> DeviceSample:
        syncs = state.syncs.histogram(self.rng)
        background = state.background.histogram(self.rng)
        count = syncs.total
        flushes = state.sync_count if state.disk.volatile else 0
        queued = 8 if state.out or (state.disk.stalled and state.dirty) else 0
        mine = [p for p in self.loads if p.load.device == index and p.active]
        in_call = {id(p): self._in_call(p, state) for p in mine}
        inflight = sum(in_call.values())
        classes = {
            IoClass.BACKGROUND_WRITE: ClassSample(background.total, int(state.out), background),
            IoClass.SYNC_WRITE: ClassSample(count, state.sync_bytes, syncs),
        }
        return DeviceSample(
            state.device,
            write_bytes=int(state.out) + state.sync_bytes,
            writes=background.total + count,
            inflight=inflight + queued + (1 if state.disk.trims else 0),
            others=int(state.disk.trims * dt) + flushes,
            busy_share=min(1.0, state.busy_s / dt),
            classes=classes,
            sync=SyncSample(
                fsyncs=count,
                latency=syncs,
                inflight=inflight,
                oldest_s=max(
                    (p.waiting_s if state.disk.stalled or p.load.bytes != SYNC_BYTES else
                     min(p.waiting_s, state.slow_s if state.fast_time < 1.0 else state.fast_s)
                     for p in mine if in_call[id(p)]),
                    default=0.0,
                ),
                commits=state.commits.histogram(self.chance),
                throttled_s=state.asleep_s,
                throttled_now_s=max((p.asleep_s for p in mine), default=0.0),
            ),
        )

    def _in_call(self, progress: LoadState, state: DiskState) -> int:
        """Threads that a look finds in the call, not in their think time."""
        load = progress.load
        if progress.asleep_s:
            return 0
        if state.disk.stalled or not load.think_s:
            return load.threads
        if load.threads == 1 and load.think_s > self.step_s:
            return int(progress.waiting_s > load.think_s)
        call_s = state.fast_s * state.fast_time + state.slow_s * (1.0 - state.fast_time)
        share = call_s / (call_s + load.think_s)
        return sum(self.luck.random() < share for _ in range(load.threads))


# What decides: the agent's `decide`, or another law with the same inputs.
Law = Callable[
    [Policy, Memory, Sample, Mapping[str, Estimate]], Tuple[Decision, Memory]
]


@dataclass
class Loop:
    """The pure core driving a plant."""

    policy: Policy
    plant: Plant
    memory: Memory = field(default_factory=Memory)
    hurry: bool = False
    law: Law = decide
    foreign: Tuple[ForeignWrite, ...] = ()  # for the next sample

    def tick(self, dt_s: float = 1.0) -> Tuple[Sample, Dict[str, Estimate], Decision]:
        """Let a tick of `dt_s` pass, half of it in a hurry; read, estimate, decide, apply."""
        self.plant.advance(dt_s * (HURRY if self.hurry else 1.0))
        sample = replace(self.plant.sample(), foreign=self.foreign)
        self.foreign = ()
        estimates, memory = estimate(self.policy, self.memory, sample)
        decision, self.memory = self.law(self.policy, memory, sample, estimates)
        self.hurry = decision.hurry
        if self.memory.mode is Mode.ENFORCE and self.memory.yielded is None:
            self.plant.apply(decision)
        return sample, estimates, decision
