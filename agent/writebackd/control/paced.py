# SPDX-License-Identifier: GPL-2.0-or-later
"""One tick of pacing on one disk: whom to hold, for how long, and whether it helps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Dict, List, Mapping, Optional, Sequence, Set, Tuple

from writebackd import human
from writebackd.control.device import Want, kernel_floor_bytes
from writebackd.control.freezes import weigh
from writebackd.control.guards import unit_of
from writebackd.control.rate import HOLD, LEAST_RATE, divide, least, step
from writebackd.control.scene import Scene
from writebackd.estimate.estimate import objective_s
from writebackd.estimate.shares import shared_limit
from writebackd.model import (
    BUCKET_EDGES_S,
    DeviceSample,
    Estimate,
    Histogram,
    HostInfo,
    IoClass,
    LeverKind,
    Memory,
    Mode,
    PaceMemory,
    State,
    replace,
)
from writebackd.policy.schema import DevicePolicy, Policy
from writebackd.tuning import DEADBAND as LIMIT_DEADBAND
from writebackd.tuning import FLOOD_RATE

# Time in a row with slow syncs before pacing begins (two ticks while somebody waits): at
# first, and once a try is in doubt, then under the limit that the law wants, which is what
# it is compared with.  Seconds, here and below, since a tick is whatever --interval says.
START_S, SETTLED_S = 0.9, 4.0
# The flood are the largest writers that make up this share of the device's background
# writes: one, or 18 of 20 equal ones.
BULK = 0.9
# Floods that cannot be paced may be this share of the drain rate: more needs the limit.
STRAY_SHARE = 0.2
STRAY_LASTS_S = 3.0
STRAY_BARRED_S = 60.0
# The kernel's files have to show what was asked for within this time: the child that asks
# systemd may take 5 s (CHILD_LIMIT_S in actuate/levers.py), and a tick reads what it did.
UNSET_S = 8.0
# Without a write for so long a flood is over.
QUIET_S = 60.0
# Latency under pace is judged over windows of this length; the first begins when the
# cache had time to make room.
JUDGE_S, SETTLE_S = 10.0, 3.0
# What pacing has to bring: the objective, or mean or 99th percentile down to this share of
# what they are under the limit alone.  Where it helped it was a quarter and less.
BETTER = 0.6
# What the limit is worth while paced, in seconds of the pace: with 3 s syncs were no faster, but
# commits on ext4 waited up to 1.5 s for the paced cgroup's data, instead of 0.6 s.
WIDE_S = 1.0
# How long a try that did not help is remembered, and one that did.
BARRED_S, PROVED_S = 600.0, 600.0
# Smoothed rates forget half in this time: destage and flusher come in bursts of a second.
SMOOTH_HALF_S = 2.4

MOST_NAMED = 4
# A limit is this device's own up to this multiple of what was asked for.
IN_FORCE_HIGH = 1.25


@dataclass(frozen=True)
class Domain:
    """A disk that a flood can be held on, and the devices that share it."""

    devno: str
    devices: Tuple[DeviceSample, ...]  # those whose writes the pace would hold
    group: Tuple[str, ...]  # names of all that end on the same leaf disks


class PaceTick:
    """One tick of one domain: what it was given, and the decision from it."""

    def __init__(
        self,
        policy: Policy,
        memory: Memory,
        scene: Scene,
        estimates: Mapping[str, Estimate],
        domain: Domain,
        wants: Mapping[str, Want],
    ) -> None:
        self.policy, self.memory, self.scene, self.domain = policy, memory, scene, domain
        self.sample = scene.sample
        self.now_s = scene.sample.time_s
        self._all_estimates, self._all_wants = estimates, wants
        own = [estimates[seen.device.name] for seen in domain.devices]
        self.drain_rate = max((e.drain_rate or 0.0 for e in own), default=0.0)
        self.background_rate = max((e.background_rate for e in own), default=0.0)
        self.flooded = any(e.flooded for e in own)
        self.slow_share = max((e.slow_share or 0.0 for e in own), default=0.0)

    # What follows is of the whole group, which may be all volumes of an array: looked at
    # only for one that is flooded or paced.

    @cached_property
    def wants(self) -> List[Want]:
        wants = (self._all_wants[name] for name in self.domain.group)
        return [want for want in wants if want.state is not State.EXCLUDED]

    @cached_property
    def estimates(self) -> List[Estimate]:
        return [self._all_estimates[want.name] for want in self.wants]

    @cached_property
    def demand(self) -> bool:
        return any(want.demand for want in self.wants) and all(
            estimate.demand_known for estimate in self.estimates
        )

    def decide(self, memory: PaceMemory) -> Tuple[PaceMemory, str]:
        """The memory with this tick in it, and what there is to say."""
        memory = self._measure(memory)
        if memory.rate is not None:
            return self._hold(memory)
        return self._consider(memory)

    # ---- what was measured -------------------------------------------------

    def _measure(self, memory: PaceMemory) -> PaceMemory:
        used = {path: rate for path, rate in memory.used.items() if path in memory.rates}
        wrote_s = memory.wrote_s
        for path, size in self.scene.written.get(self.domain.devno, {}).items():
            rate = size / self.sample.dt_s
            used[path] = self._smooth(memory.used.get(path), rate)
            if path in memory.rates and rate >= FLOOD_RATE:
                wrote_s = self.now_s
        return replace(
            memory,
            used=used,
            wrote_s=wrote_s,
            sync_rate=self._smooth(memory.sync_rate, self._sync_bytes()),
            background_rate=self._smooth(memory.background_rate, self.background_rate),
        )

    def _smooth(self, known: Optional[float], rate: float) -> float:
        weight = 1 - 0.5 ** (self.sample.dt_s / SMOOTH_HALF_S)
        return rate if known is None else known + weight * (rate - known)

    def _sync_bytes(self) -> float:
        """What syncs and journals write, as the BDI counts: below a raid10 it is twice."""
        classes = self.domain.devices[0].classes or {}
        sizes = {io_class: classes[io_class].bytes for io_class in classes}
        background = sizes.get(IoClass.BACKGROUND_WRITE, 0)
        sync = sizes.get(IoClass.SYNC_WRITE, 0) + sizes.get(IoClass.JOURNAL, 0)
        if background:
            return self.background_rate * sync / background
        return sync / self.sample.dt_s

    def _latencies(self) -> Histogram:
        """fsyncs that returned, and one for each whole second that the oldest waits."""
        total = Histogram()
        for name in self.domain.group:
            sync = self.scene.devices[name].sync
            if sync is not None:
                total += sync.latency
                if int(sync.oldest_s) > int(max(0.0, sync.oldest_s - self.sample.dt_s)):
                    total += _one(sync.oldest_s)
        return total

    # ---- not paced yet -----------------------------------------------------

    def _consider(self, memory: PaceMemory) -> Tuple[PaceMemory, str]:
        proved = self.now_s - memory.proved_s <= PROVED_S
        doubted = self.now_s - memory.doubted_s <= BARRED_S
        anew = replace(
            memory, slow_s=0.0, before=memory.before if proved else Histogram()
        )
        if not (self.flooded and self.demand and self.drain_rate):
            return anew, ""
        if self.now_s < memory.barred_until_s:
            return anew, f"not paced: {memory.barred_why}"
        if not proved:
            if not self._slow() or (doubted and not self._limit_in_force()):
                return anew, ""
            memory = replace(
                memory,
                slow_s=memory.slow_s + self.sample.dt_s,
                before=memory.before + self._latencies() if doubted else Histogram(),
            )
        flooding, refused = self._flooding(memory)
        total = sum(memory.used[path] for path in flooding)
        if not flooding or memory.background_rate - total > STRAY_SHARE * self.drain_rate:
            return memory, "not paced: " + (
                _refusals(refused)
                or "the cgroup that floods is not known, unless it is many with less than "
                f"{_speed(LEAST_RATE)} each"
            )
        if not proved and memory.slow_s < (SETTLED_S if doubted else START_S):
            return memory, ""
        # While the cache is full syncs hardly write: the disk drains the rest for the flood.
        room = min(self.drain_rate, memory.room if proved and memory.room else self.drain_rate)
        rate = HOLD * room
        if len(flooding) * LEAST_RATE > rate:
            return memory, f"not paced: {_too_many(flooding, rate)}"
        memory = replace(
            memory,
            wrote_s=self.now_s,
            step_s=self.now_s,
            room=room,
            slow_s=0.0,
            unset_s=0.0,
            stray_s=0.0,
            bad_rate=float("inf"),
            under=Histogram(),
            under_s=self.now_s + SETTLE_S,
        )
        memory = divide(memory, rate, flooding)
        return memory, (
            f"{_names(memory)} held at {_speed(rate)}, {100 * HOLD:.0f} % of the "
            f"{_speed(room)} that drain, so that the write cache keeps room"
        )

    def _slow(self) -> bool:
        for estimate, want in zip(self.estimates, self.wants):
            # On a single CPU the tick itself keeps a sync from ending: 20 ms were seen.
            stuck = estimate.oldest_fsync_s >= self.sample.dt_s
            wait = max(estimate.fsync_p99_s or 0.0, estimate.oldest_fsync_s if stuck else 0.0)
            if want.demand and (
                wait > self._objective_s(estimate) or estimate.full
            ):
                return True
        return False

    def _objective_s(self, estimate: Estimate) -> float:
        bounds = self._bounds(estimate.name)
        return objective_s(bounds.fsync_p99_s, bounds.baseline_multiple, estimate.baseline_s)

    def _bounds(self, name: str) -> DevicePolicy:
        device = self.scene.devices[name].device
        return self.policy.for_device(name, device.devno, device.driver)

    def _limit_in_force(self) -> bool:
        """The first lever has done its part: the limit is down where the law wants it."""
        found = [
            self._limit(want.name) <= IN_FORCE_HIGH * want.target_bytes
            for want in self.wants if want.demand and want.target_bytes is not None
        ]
        return bool(found) and all(found)

    def _limit(self, name: str) -> int:
        """The limit that holds there: with a cap of the device's own the global one is wide."""
        cap = self.memory.caps.get(name)
        if cap is not None and cap.in_force:
            return cap.bytes
        return shared_limit(self.memory, self.sample)

    def _flooding(self, memory: PaceMemory) -> Tuple[List[str], List[Tuple[str, str]]]:
        """The cgroups that flood and may be paced, and those that may not with the reason."""
        may: List[str] = []
        refused: List[Tuple[str, str]] = []
        bulk = self._bulk(memory)
        for path, limits in self.scene.limits.items():
            # Where the files tell nothing, what was dirtied has to.
            if path not in memory.rates and path not in bulk and limits is not None:
                continue
            why = self.scene.objection(path)
            if why is None:
                may.append(path)
            else:
                refused.append((path, why))
        return may, refused

    def _bulk(self, memory: PaceMemory) -> Set[str]:
        bulk: Set[str] = set()
        missing = BULK * memory.background_rate
        for path in sorted(memory.used, key=lambda path: -memory.used[path]):
            if missing <= 0 or memory.used[path] < FLOOD_RATE:
                break
            bulk.add(path)
            missing -= memory.used[path]
        return bulk

    # ---- paced -------------------------------------------------------------

    def _hold(self, memory: PaceMemory) -> Tuple[PaceMemory, str]:
        if memory.room is None:
            # Taken over from the run before, which knew; what was learned then may be here.
            memory = replace(memory, room=max(self.drain_rate, (memory.rate or 0.0) / HOLD))
        if not self.demand and self.now_s >= self.memory.hold_until_s:
            return _let_go(memory), "no sync demand any more: not paced"
        if self.now_s - memory.wrote_s > QUIET_S:
            return _let_go(memory), "the flood is over: not paced"
        flooding, refused = self._flooding(memory)
        if not flooding:
            why = _refusals(refused) or "the cgroups are gone"
            return _let_go(memory), f"not paced any more: {why}"
        taken = self._taken(memory)
        if taken:
            return self._bar(memory, BARRED_S, f"somebody else set io.max of {taken}")
        room = memory.room or 0.0
        if len(flooding) * LEAST_RATE > room:
            return self._bar(memory, STRAY_BARRED_S, _too_many(flooding, room))
        memory, strays = self._strays(memory, flooding)
        if strays:
            return self._bar(memory, STRAY_BARRED_S, strays)
        memory, problem = self._in_force(self._weigh_freezes(memory))
        if problem:
            return self._bar(memory, BARRED_S, problem)
        memory, verdict = self._judge(memory)
        if verdict and (memory.rate or 0.0) <= least(memory, self.policy.levers.pace_share):
            first = memory.before.total == 0
            return self._bar(
                replace(memory, doubted_s=self.now_s), 0.0 if first else BARRED_S, verdict
            )
        if memory.limit_bytes is None:
            # What is seen is still the flood as it was, and no word on the rate.
            if set(flooding) != set(memory.rates):
                memory = divide(memory, memory.rate or 0.0, flooding)
            return replace(memory, slow_s=0.0), (
                f"{_names(memory)} shall be held at {_speed(memory.rate or 0)}: not in force"
            )
        memory, why = step(
            memory,
            self.now_s,
            self.sample.dt_s,
            self.policy.levers.pace_share,
            self.drain_rate,
            self.slow_share,
            flooding,
            late=self._slow(),
            helps=not verdict,
        )
        freezes = memory.freezes
        if freezes.share < 1:
            why += (
                f"; the last slow freeze or syncfs took {freezes.took_s:.1f} s, so the limit is "
                f"{100 * freezes.share:.0f} % of what it may be"
            )
        if freezes.useless:
            why += "; a smaller limit made freezes no shorter"
        return memory, f"{_names(memory)} held at {_speed(memory.rate or 0)}: {why}"

    def _weigh_freezes(self, memory: PaceMemory) -> PaceMemory:
        limits = self._limits_under_pace(memory)
        limit_s = min(limits.values()) / (memory.rate or 1.0) if limits else None
        syncs = [self.scene.devices[name].sync for name in limits]
        waits = [sync.syncfs_latency for sync in syncs if sync is not None]
        return replace(memory, freezes=weigh(memory.freezes, self.now_s, limit_s, waits))

    def _limits_under_pace(self, memory: PaceMemory) -> Dict[str, int]:
        """The limits in force of the devices that have the one under pace, within their bounds."""
        limits = {}
        for name in self.domain.group if memory.limit_bytes is not None else ():
            limit = within(self._bounds(name), self.sample.host, memory.limit_bytes or 0)
            if limit / IN_FORCE_HIGH <= self._limit(name) <= IN_FORCE_HIGH * limit:
                limits[name] = self._limit(name)
        return limits

    def _taken(self, memory: PaceMemory) -> Optional[str]:
        """A paced cgroup whose pace somebody else has changed: it is his now."""
        kind, devno = LeverKind.PACE.value, self.domain.devno
        foreign = self.scene.foreign
        return next((p for p in memory.rates if f"{kind} {p} {devno}" in foreign), None)

    def _strays(self, memory: PaceMemory, flooding: Sequence[str]) -> Tuple[PaceMemory, str]:
        held = sum(memory.used.get(path, 0.0) for path in flooding)
        stray = memory.background_rate - held
        if stray <= STRAY_SHARE * (self.drain_rate or memory.room or 0.0):
            return replace(memory, stray_s=0.0), ""
        memory = replace(memory, stray_s=memory.stray_s + self.sample.dt_s)
        if memory.stray_s < STRAY_LASTS_S:
            return memory, ""
        return memory, f"others that cannot be paced write {_speed(stray)}, which needs the limit"

    def _in_force(self, memory: PaceMemory) -> Tuple[PaceMemory, str]:
        """Widen the limit only when the kernel shows the paces; not for ever without them."""
        missing = [path for path in memory.rates if not self._limited(path)]
        if missing:
            memory = replace(
                memory, limit_bytes=None, unset_s=memory.unset_s + self.sample.dt_s
            )
            # Nothing is ever set while only observing.
            if memory.unset_s < UNSET_S or self.memory.mode is Mode.OBSERVE:
                return memory, ""
            return memory, f"io.max of {missing[0]} could not be set"
        drain_time = min(
            self._bounds(estimate.name).drain_time_s for estimate in self.estimates
        )
        # The arbitration keeps a goal that was up to its deadband larger.
        seconds = (1 - LIMIT_DEADBAND) * memory.freezes.share * min(drain_time, WIDE_S)
        limit = int(seconds * (memory.rate or 0.0))
        # What a rate comes to is seen from here on: systemd may have needed seconds for it.
        step_s = self.now_s if memory.limit_bytes is None else memory.step_s
        return replace(memory, unset_s=0.0, limit_bytes=limit, step_s=step_s), ""

    def _limited(self, path: str) -> bool:
        limits = (self.scene.limits.get(path) or {}).get(self.domain.devno, "")
        words = dict(word.partition("=")[::2] for word in limits.split())
        return words.get("wbps", "max") != "max"

    def _judge(self, memory: PaceMemory) -> Tuple[PaceMemory, str]:
        """Whether syncs got faster, over windows of JUDGE_S; empty while there is no verdict."""
        if memory.limit_bytes is None or not (self.flooded and self.demand):
            return replace(memory, under=Histogram(), under_s=self.now_s + SETTLE_S), ""
        if self.now_s < memory.under_s:
            return memory, ""
        under = memory.under + self._latencies()
        if self.now_s - memory.under_s < JUDGE_S:
            return replace(memory, under=under), ""
        memory = replace(memory, under=Histogram(), under_s=self.now_s)
        mean, p99 = under.mean(), under.quantile(0.99)
        wanted = {want.name for want in self.wants if want.demand}
        objective = min(self._objective_s(e) for e in self.estimates if e.name in wanted)
        if mean is None or p99 is None:
            return memory, ""  # nobody synced: no word on whether it helps
        if p99 <= objective:
            return replace(memory, proved_s=self.now_s), ""
        before, before_p99 = memory.before.mean(), memory.before.quantile(0.99)
        if before is None or before_p99 is None:
            return memory, (
                f"with the flood held, p99 of fsync was {human.milliseconds(p99)} ms, above the "
                f"objective {human.milliseconds(objective)} ms: how is it with the limit alone?"
            )
        if mean <= BETTER * before or p99 <= BETTER * before_p99:
            return replace(memory, proved_s=self.now_s), ""
        return memory, (
            f"it did not help: a sync took {human.milliseconds(mean)} ms on average, "
            f"{human.milliseconds(before)} ms with the limit alone"
        )

    def _bar(self, memory: PaceMemory, seconds: float, why: str) -> Tuple[PaceMemory, str]:
        memory = replace(
            _let_go(memory), barred_until_s=self.now_s + seconds, barred_why=why,
            proved_s=float("-inf"),
        )
        return memory, f"not paced: {why}"


def within(bounds: DevicePolicy, host: HostInfo, limit_bytes: int) -> int:
    """The limit under pace as it can be asked for, bytes."""
    floor = max(bounds.floor_bytes, kernel_floor_bytes(host))
    return max(floor, min(limit_bytes, bounds.ceiling_bytes))


def _let_go(memory: PaceMemory) -> PaceMemory:
    return replace(
        memory, rate=None, rates={}, limit_bytes=None, slow_s=0.0,
        before=memory.before if memory.proved_s > float("-inf") else Histogram(),
    )


def _names(memory: PaceMemory) -> str:
    return _some([unit_of(path) for path in sorted(memory.rates)], ", ")


def _refusals(refused: Sequence[Tuple[str, str]]) -> str:
    return _some([f"{path}: {why}" for path, why in refused], "; ")


def _some(texts: Sequence[str], between: str) -> str:
    """The first few: a reason with dozens of names helps nobody."""
    more = len(texts) - MOST_NAMED
    shown = [*texts[:MOST_NAMED], *([f"{more} more"] if more > 0 else [])]
    return between.join(shown)


def _too_many(paths: Sequence[str], rate: float) -> str:
    return (
        f"{len(paths)} cgroups flood, which at {_speed(LEAST_RATE)} each, the least pace, is more "
        f"than the {_speed(rate)} that they may write"
    )


def _speed(rate: float) -> str:
    return f"{human.size(rate)}/s"


def _one(seconds: float) -> Histogram:
    """A single latency."""
    index = max(i for i, edge in enumerate(BUCKET_EDGES_S[:-1]) if edge <= seconds)
    return Histogram(((index, 1),))
