# SPDX-License-Identifier: GPL-2.0-or-later
"""Calibrates a disk tick by tick: idle, a flood that fills its cache, a ladder of limits.  Pure.

The daemon's own core raises the limit until a full cache shows a rate.  That limit is kept until
the rate is steady, which is R: under a smaller limit the cache drains, and changes of R are no
longer visible.  A ladder of fixed limits then starts above the knee, goes down until smaller ones
are worse, and up while larger ones are better.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import List, Optional, Sequence, Tuple

from writebackd import formats
from writebackd.alerts.alert_types import AlertName
from writebackd.alerts.detect import detect
from writebackd.alerts.detector_memory import AlertMemory
from writebackd.alerts.messages import battery
from writebackd.control.decide import decide, memory_most
from writebackd.control.device_decision import kernel_floor_bytes
from writebackd.estimate.cache_size import SEEN_S, with_drain_rate
from writebackd.estimate.estimator import estimate
from writebackd.policy.schema import Policy
from writebackd.report.recommendation import stepped
from writebackd.trial.ladder import (
    Budget,
    Order,
    Own,
    Phase,
    Result,
    Rung,
    beyond_these,
    next_limit,
)
from writebackd.tuning import FLOOD_RATE, GRAIN_BYTES, SHOWN_S
from writebackd.types.core_memory import Memory
from writebackd.types.device_memory import DeviceMemory
from writebackd.types.estimate import Estimate
from writebackd.types.samples import DeviceSample, Sample
from writebackd.types.storage import Device

TICK_S = 0.5
# Seconds without own load, to see other programs' load; and of fsyncs alone, with a pause after
# each: the media may take milliseconds for its block, and would be busy with them for long when
# the flood begins.
WATCH_S, IDLE_S, IDLE_WAIT_S = 3.0, 1.0, 1e-3
# Syncs in the watch that are not commits: journald makes one in minutes.  Later, a second.
FEW, FEW_RATE = 1, 1.0
# Seconds in which fsyncs get up to speed, and in which the kernel follows a limit by nine tenths.
SETTLE_IDLE_S, SETTLE_S = 0.5, 3.0
# Seconds, at most, in which a cache that a small limit has drained is filled again.
REFILL_S = 10.0
# Seconds of each limit that are judged.  A controller destages the blocks of the fsyncs every 9 s.
LEAST_JUDGED_S, MOST_JUDGED_S = 3.0, 9.0
RUNGS = 5  # that the time is parted by
ENOUGH_S = 100.0  # of R, for all of it
# Seconds of a full cache whose median rate is R, and what their halves may differ by.  A controller
# destages the blocks of fsyncs every 9 s, and the flood gets a small part meanwhile.
STEADY_S, STEADY = 9.0, 0.1
# Seconds between two fsyncs while the cache fills, and times an unloaded one at least: more would
# take the media's time from the flood, and fewer would not show whether it is full.
FILL_WAIT_S, FILL_WAITS = 0.02, 20.0
# Of the media's time, that fsyncs take where they are spaced, since they would take all of it.
# What each takes is known to a factor of three after the seconds of a fill.
PRICED = 0.2
# Kernel threads that dirty a filesystem's own blocks for any writer.
_KERNEL = ("kworker/", "jbd2/", "xfsaild/", "btrfs-")
# Alerts that our own flood may raise.
_FLOODED = (AlertName.COLLAPSE, AlertName.EXHAUSTED)


@dataclass
class Calibration:
    """`step` once a tick.  If it ends early, `problem` says why, and no result may be kept."""

    policy: Policy
    device: str
    budget: Budget
    phase: Phase = Phase.WATCH
    problem: Optional[str] = None
    _memory: Memory = field(default_factory=Memory)
    _alerts: AlertMemory = field(default_factory=AlertMemory)
    _began_s: Optional[float] = None
    _phase_s: float = 0.0  # when it, or the limit that is tried, began; as Sample.time_s
    _now_s: float = 0.0
    _own: Own = field(default_factory=Own)
    _strange: Tuple[float, float, float] = (0.0, 0.0, 0.0)  # seconds, fsyncs, bytes of others
    idle: Rung = field(default_factory=lambda: Rung(0))
    _fill: Tuple[Tuple[float, float], ...] = ()  # (rate, seconds) of the flood until it was full
    _held_bytes: int = 0  # the limit under which it was full
    _full: Tuple[float, ...] = ()  # its rates under the held limit, while full
    _tau_s: float = 0.03  # at most: limit / tau is let in, and the kernel follows slowly
    _r: float = 0.0  # R, once it has settled; fsyncs at full speed take from it
    wait_s: float = 0.0  # between two fsyncs in the ladder
    _is_full: bool = False  # the cache, as fsyncs and the rate tell
    _refills: bool = False
    _rung: Rung = field(default_factory=lambda: Rung(0))
    rungs: List[Rung] = field(default_factory=list)
    _end: str = ""  # why the ladder is not whole

    def __post_init__(self) -> None:
        levers = replace(self.policy.levers, per_device=False, pace="off", destage_share=0.0)
        self.policy = replace(self.policy, levers=levers, windows=())

    # ---- a tick ----------------------------------------------------------

    def step(self, sample: Sample, own: Own) -> Order:
        """Process the tick that ends now; returns what to do until the next one."""
        if self._began_s is None:
            self._began_s = self._phase_s = sample.time_s - sample.dt_s
        self._now_s = sample.time_s
        seen = next((each for each in sample.devices if each.device.name == self.device), None)
        if seen is None or seen.sync is None:
            return self._stopped(
                f"{self.device} is gone, or fsync cannot be seen: `writebackctl doctor` says why"
            )
        self._memory = self._under_ours(self._memory)
        estimates, memory = estimate(self.policy, self._memory, sample)
        decision, self._memory = decide(self.policy, memory, sample, estimates)
        alerts, self._alerts = detect(
            self.policy, self._alerts, sample, estimates, decision, self._memory
        )
        state = estimates[self.device]
        for alert in alerts:
            if self.phase in (Phase.WATCH, Phase.IDLE) or alert.name not in _FLOODED:
                return self._stopped(f"{alert.name.value}: {alert.summary}")
        wrong = self._wrong_array(sample) or self._stranger(sample, seen, state, own)
        if wrong:
            return self._stopped(wrong)
        syncs, busy_s = own.syncs - self._own.syncs, own.sync_s - self._own.sync_s
        self._own = own
        self._take(seen, state, syncs, busy_s, sample)
        self._go_on(sample)
        if self.phase in (Phase.FILL, Phase.LADDER):
            wait_s = self.wait_s
            if self.phase is Phase.FILL:
                wait_s = max(FILL_WAIT_S, FILL_WAITS / max(self.idle.sync_rate, 1.0))
            rest = int(self.policy.limits.rest_bytes)
            limit = self._in_force or decision.limit_bytes or rest
            return Order(True, wait_s, limit, int(limit * self.policy.limits.background))
        return Order(sync_wait_s=IDLE_WAIT_S if self.phase is Phase.IDLE else None)

    def _under_ours(self, memory: Memory) -> Memory:
        """Make the estimators treat our limit as the one the law asked for."""
        limit = self._in_force
        if not limit:
            return memory
        known = memory.devices[self.device]
        law = replace(known.law, limit_bytes=float(limit))
        devices = {**memory.devices, self.device: replace(known, law=law)}
        return replace(memory, devices=devices, pin_bytes=limit)

    @property
    def _in_force(self) -> int:
        """Our limit, or the one that filled the cache, to fill it again; 0: the law's."""
        refills = self._refills or self.phase is Phase.FILL
        limit = self._rung.limit_bytes
        return max(self._held_bytes, limit) if refills else limit

    def _stopped(self, why: str) -> Order:
        self.phase, self.problem = Phase.DONE, why
        return Order()

    def _wrong_array(self, sample: Sample) -> str:
        """Why array or cache are not in their normal state; empty if nothing is known."""
        for each in sample.backings:
            if each.device == self.device:
                works = ", ".join(work.kind for work in each.works)
                said = battery(each) or (works and f"array at work: {works} ({each.source})")
                if said:
                    return f"{self.device}: {said}"
        return ""

    def _stranger(
        self, sample: Sample, seen: DeviceSample, state: Estimate, own: Own
    ) -> Optional[str]:
        """Another program that uses the disk: its load spoils the result, and ours slows it.

        Includes other volumes on the disk; over the watch, later over about the last ten seconds.
        """
        here = [each for each in sample.devices if _share_disks(each.device, seen.device)]
        counted = sum(each.sync.count for each in here if each.sync is not None)
        syncs = float(counted - (own.syncs - self._own.syncs))
        names = {each.device.name for each in here}
        others = [
            task for task in sample.tasks
            if task.device in names and task.pid not in own.pids
            and not task.comm.startswith(_KERNEL)
        ]  # fmt: skip
        written = float(sum(task.dirtied_bytes for task in others))
        if self.phase is Phase.WATCH:
            written = max(written, state.rate * sample.dt_s)
        fade = 1.0 if self.phase is Phase.WATCH else 1.0 - sample.dt_s / 10.0
        span_s, all_syncs, all_bytes = (each * fade for each in self._strange)
        span_s += sample.dt_s
        all_syncs, all_bytes = all_syncs + syncs, all_bytes + written
        self._strange = (span_s, all_syncs, all_bytes)
        if span_s < WATCH_S - TICK_S / 2:
            return None
        few = FEW if self.phase is Phase.WATCH else FEW_RATE * span_s
        # Ours that ended while the probe was read: rate x time of that.  The next tick has too few
        # of them, so that only the last tick's count.
        if all_syncs > few + own.unsure:
            rate = formats.count(all_syncs / span_s)
            return f"another process syncs on {self.device}, {rate} times a second"
        if all_bytes / span_s >= FLOOD_RATE:
            who = ", ".join(sorted({f"{each.comm} (pid {each.pid})" for each in others}))
            rate = formats.size(all_bytes / span_s)
            return f"{who or 'another process'} writes {rate}/s to {self.device}"
        return None

    def _take(
        self, seen: DeviceSample, state: Estimate, syncs: int, busy_s: float, sample: Sample
    ) -> None:
        """Record this tick's figures if they count."""
        dt_s, past_s = sample.dt_s, self._now_s - self._phase_s
        # Fsyncs are also slow behind a larger limit's queue, and on a busy host: natively a cache
        # that was full to 0.4 looked like that, half a second after it began to be filled.
        self._is_full = state.full and state.rate <= (1.0 + STEADY) * self._r
        if self.phase is Phase.IDLE and past_s - dt_s >= SETTLE_IDLE_S - dt_s / 2:
            self.idle = self.idle.with_tick(seen, state, syncs, busy_s)
        elif self.phase is Phase.FILL:
            if self._held_bytes:
                self._full = (*self._full, state.rate) if state.full else ()
                return
            self._fill = (*self._fill, (state.rate, dt_s))
            if state.drain_rate is not None:
                self._held_bytes = sample.vm.limits.dirty_bytes
            elif state.held_back and not state.full:
                self._tau_s = min(self._tau_s, sample.vm.limits.dirty_bytes / max(state.rate, 1.0))
        settled = past_s - dt_s >= SETTLE_S - dt_s / 2 and not self._refills
        if self.phase is Phase.LADDER and settled:
            if self._own.written_bytes >= self.budget.write_bytes:
                return  # the flood ended within it
            self._rung = self._rung.with_tick(seen, state, syncs, dt_s)

    # ---- from one phase to the next --------------------------------------

    def _go_on(self, sample: Sample) -> None:
        past_s = self._now_s - self._phase_s + TICK_S / 2
        if self.phase is Phase.WATCH and past_s >= WATCH_S:
            self._enter(Phase.IDLE)
        elif self.phase is Phase.IDLE and past_s >= IDLE_S:
            self._enter(Phase.FILL)
        elif self.phase is Phase.FILL:
            if self._is_steady():
                self._enter(Phase.LADDER)
                self._r = _usual(self._full)
                price_s = self._memory.devices[self.device].drain.price_s
                if self.idle.sync_rate * price_s > 1.0:
                    self.wait_s = price_s / PRICED - 1.0 / self.idle.sync_rate
                floor, ceiling = self._bounds(sample)
                self._rung = Rung(min(max(stepped(self._tau_s * self._r), floor), ceiling))
            elif self._left_s() <= 0.0:
                self._enter(Phase.DONE)
        elif self.phase is Phase.LADDER and self._refills:
            is_full = self._is_full and past_s >= SETTLE_S
            spare_s = self._left_s() - SETTLE_S - LEAST_JUDGED_S
            if is_full or min(REFILL_S - past_s, spare_s) <= 0.0:
                self._refills = False
                self._enter(Phase.LADDER)
        elif self.phase is Phase.LADDER and self._is_judged():
            if self._rung.seconds:  # or the budget ended before
                self.rungs.append(self._rung)
            limit = self._next_limit(sample)
            drained = not self._is_full or self._rung.flood_rate < (1.0 - STEADY) * self._r
            refills = limit is not None and limit > self._rung.limit_bytes and drained
            least_s = SETTLE_S + LEAST_JUDGED_S + (SETTLE_S if refills else 0.0)
            if limit is None or self._left_s() < least_s:
                self._enter(Phase.DONE)
                self._end = self._bound(sample) if limit is not None else ""
            else:
                self._enter(Phase.LADDER)
                self._refills, self._rung = refills, Rung(limit)

    def _enter(self, phase: Phase) -> None:
        self.phase, self._phase_s = phase, self._now_s

    @property
    def _idle_rate(self) -> float:
        return 1.0 / (1.0 / max(self.idle.sync_rate, 1e-3) + self.wait_s)

    def _next_limit(self, sample: Sample) -> Optional[int]:
        if not self.rungs:
            return self._rung.limit_bytes
        return next_limit(self.rungs, self._idle_rate, self._r, *self._bounds(sample))

    def _bound(self, sample: Sample) -> str:
        """What remains unknown when the budget is spent; empty if nothing important."""
        if not self.rungs:
            return f"no limit was tried: {_more(self._r)}"
        beyond = beyond_these(self.rungs, self._idle_rate, self._r, *self._bounds(sample))
        if beyond is None:
            return ""
        tried = [each.limit_bytes for each in self.rungs]
        word, bound = ("most", min(tried)) if beyond < min(tried) else ("least", max(tried))
        return f"the best limit is at {word} {formats.size(bound)}: {_more(self._r)}"

    def _bounds(self, sample: Sample) -> Tuple[int, int]:
        """Floor and ceiling of the policy, as far as kernel and memory allow."""
        limits = self.policy.limits
        floor = max(GRAIN_BYTES, limits.floor_bytes, kernel_floor_bytes(sample.host))
        most = memory_most(self.policy, sample.vm)
        ceiling = limits.ceiling_bytes if most is None else min(limits.ceiling_bytes, most)
        return floor, max(floor, ceiling)

    def _is_steady(self) -> bool:
        """Whether the rate of a full cache has been constant for long enough."""
        half = round(STEADY_S / 2 / TICK_S)
        self._full = self._full[-2 * half :]
        before, after = _usual(self._full[:half]), _usual(self._full[half:])
        return len(self._full) == 2 * half and abs(after - before) <= STEADY * before

    def _left_s(self) -> float:
        """Seconds until the time or the bytes of the budget are spent, at the flood's rate."""
        assert self._began_s is not None
        left_bytes = self.budget.write_bytes - self._own.written_bytes
        rate = _usual(self._full) if self._full else max((r for r, _ in self._fill), default=1.0)
        return min(
            self.budget.time_s - (self._now_s - self._began_s), left_bytes / max(rate, 1.0)
        )

    def _is_judged(self) -> bool:
        """Whether this limit has had its part of the remaining time."""
        if self._rung.seconds < LEAST_JUDGED_S - TICK_S / 2:
            return self._left_s() <= 0.0
        parts = max(1, RUNGS - len(self.rungs))
        whole_s = self._rung.seconds + SETTLE_S
        share_s = (self._left_s() + whole_s) / parts
        return whole_s >= min(share_s, SETTLE_S + MOST_JUDGED_S) - TICK_S / 2

    # ---- the end ---------------------------------------------------------

    def result(self) -> Result:
        r = self._r or None
        cache = None if r is None else self._cache(r)
        rungs = tuple(sorted(self.rungs, key=lambda each: each.limit_bytes))
        best = max(rungs, key=lambda each: each.score(self._idle_rate, r or 1.0), default=None)
        loose = [e.limit_bytes / e.flood_rate for e in rungs if e.flood_bytes]
        return Result(
            device=self.device,
            seconds=self._now_s - (self._began_s or 0.0),
            written_bytes=self._own.written_bytes,
            idle=self.idle,
            ladder_idle_rate=self._idle_rate,
            drain_rate=r,
            drain_rate_most=self._last_rate() if r is None and self._fill else None,
            cache_bytes=cache,
            cache_most_bytes=SEEN_S * r if r is not None and cache is None else None,
            tau_s=min(loose, default=None),
            rungs=rungs,
            limit_bytes=None if best is None or self._end else best.limit_bytes,
            problems=tuple(self._problems(r)),
        )

    def _cache(self, r: float) -> Optional[float]:
        """Bytes written above R until the cache was full; None if no cache was seen."""
        ticks = tuple(chain.from_iterable(self._fill))
        return with_drain_rate(DeviceMemory(first_ticks=ticks), r).cache_bytes

    def _last_rate(self) -> float:
        """The flood's rate over its last seconds."""
        rates = (*(rate for rate, _ in self._fill), *self._full)[-round(SHOWN_S / TICK_S) :]
        return statistics.fmean(rates)

    def _problems(self, r: Optional[float]) -> List[str]:
        if self.problem:
            return [self.problem]
        if r is None and self._fill:
            seconds = self._now_s - (self._began_s or 0.0) - WATCH_S - IDLE_S
            took, moves = formats.size(self._own.written_bytes), self._held_bytes
            state = "its rate had not settled" if moves else "the write cache was not full"
            return [
                f"after {took} in {formats.duration(seconds)} {state}:"
                f" the drain rate is at most {formats.size(self._last_rate())}/s:"
                f" {_more(self._last_rate())}"
            ]
        return [self._end] if self._end else []


def _usual(rates: Sequence[float]) -> float:
    return statistics.median(rates) if rates else 0.0


def _share_disks(one: Device, other: Device) -> bool:
    disks = set(other.leaf_devnos or (other.devno,))
    return one.name == other.name or not disks.isdisjoint(one.leaf_devnos or (one.devno,))


def _more(rate: float) -> str:
    return f"try `--budget {formats.size(stepped(ENOUGH_S * rate))}`, or a longer --time"
