# SPDX-License-Identifier: GPL-2.0-or-later
"""Other laws than the agent's, in its frame: same estimates, same ramp, same demand and idle rules.

Each is as good as its idea allows and was tuned a little on the scenarios; docs/control.md has
what they scored.  A rule has state of its own, so every run needs a new one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Dict, List, Mapping, Tuple

from tests.sim import price
from tests.sim.plant import Law
from writebackd.control.decide import decide
from writebackd.control.law import RECENT_FLOOD_S, kernel_floor_bytes
from writebackd.control.ramp import near, next_background, next_limit
from writebackd.control.steps import Bounds, feed_forward, wait
from writebackd.estimate.estimate import objective_s
from writebackd.model import Decision, DeviceDecision, Estimate, Memory, Sample, State, replace
from writebackd.policy.schema import Policy

# A rule is asked only while the limit in force is about the one it wants: before, what is seen
# is the ramp's doing, or another device's.
IN_FORCE = (0.8, 1.25)
# The kernel's own bandwidth estimate takes 3 to 4 s to follow a limit; 6 did better than 4.
SETTLE_S = 6.0


@dataclass(frozen=True)
class Tick:
    """What a rule sees of one flooded device; bytes and seconds."""

    estimate: Estimate
    bounds: Bounds
    learned: bool  # the drain rate comes from ticks with a full cache
    now_s: float
    dt_s: float


class Rule:
    """A law for one device: `limit` is its part of the limit, in bytes."""

    def __init__(self, start: float) -> None:
        self.limit = start
        self.changed_s = float("-inf")

    def step(self, tick: Tick) -> None:
        """One tick of a flood, under the limit asked for."""
        raise NotImplementedError

    def change(self, limit: float, tick: Tick) -> None:
        limit = min(max(limit, tick.bounds.floor), tick.bounds.ceiling)
        if limit != self.limit:
            self.limit, self.changed_s = limit, tick.now_s


class Knee(Rule):
    """R x tau and nothing else: what the present law would be without making room."""

    def step(self, tick: Tick) -> None:
        forward = feed_forward(tick.bounds, tick.estimate)
        if forward is not None:
            self.change(forward, tick)
        elif tick.estimate.held_back and not tick.estimate.full:
            self.change(self.limit * 1.25, tick)  # else R would never be seen


class FeedForward(Rule):
    """R x allowed delay x trim: down while syncs are slow, up when throughput suffers.

    The law of this project before the present one.
    """

    SHRINK, GROW, GROW_MOST = 0.75, 1.25, 2.0
    SLOW_TICKS, STARVED_TICKS = 2, 3
    REMEMBERED_S, MARGIN = 300.0, 1.1

    def __init__(self, start: float) -> None:
        super().__init__(start)
        self.trim, self.starved_trim, self.starved_s = 1.0, 0.0, float("-inf")
        self.slow = self.starved = 0
        self.throughput = 0.0
        self.trimmed_s = float("-inf")

    def step(self, tick: Tick) -> None:
        seen, rate = tick.estimate, tick.estimate.drain_rate
        if rate is None:
            return
        self.throughput += min(1.0, tick.dt_s / 3.0) * (seen.rate - self.throughput)
        keep = tick.bounds.keep * rate
        late = wait(seen) > tick.bounds.objective_s or seen.full
        self.slow = self.slow + 1 if late else 0
        hungry = seen.held_back and self.throughput < keep
        self.starved = self.starved + 1 if hungry else 0
        if tick.now_s - self.trimmed_s >= SETTLE_S:
            self._trim(tick, rate)
        self.change(rate * tick.bounds.tau_s * self.trim, tick)

    def _trim(self, tick: Tick, rate: float) -> None:
        least = 1 / 16
        if tick.now_s - self.starved_s < self.REMEMBERED_S:
            least = max(least, self.starved_trim * self.MARGIN)
        before = self.trim
        if self.starved >= self.STARVED_TICKS:
            # Below the knee throughput is proportional to the limit.
            self.starved_trim, self.starved_s = self.trim, tick.now_s
            missing = rate / max(self.throughput, 1.0)
            self.trim *= min(max(missing, self.GROW), self.GROW_MOST)
        elif self.slow >= self.SLOW_TICKS:
            if self.trim * self.SHRINK >= least and self.limit > tick.bounds.floor:
                self.trim *= self.SHRINK
        elif tick.estimate.held_back and not tick.learned:
            self.trim *= self.GROW
        self.trim = min(max(self.trim, 1 / 16), 16.0)
        if self.trim != before:
            self.trimmed_s = tick.now_s


class Ecn(Rule):
    """Slow writes are the congestion mark: cut by their share, else grow gently.

    Knows no R, like a DCTCP sender; the cache's fill is what it regulates.
    """

    MARK = 0.06  # share of slow writes
    LEAST_CUT, GROW_A_SECOND = 0.3, 0.03
    CUT_EVERY_S = 2.0

    def __init__(self, start: float) -> None:
        super().__init__(start)
        self.cut_s = float("-inf")

    def step(self, tick: Tick) -> None:
        share = tick.estimate.slow_share or 0.0
        if share > self.MARK:
            if tick.now_s - self.cut_s >= self.CUT_EVERY_S:
                self.cut_s = tick.now_s
                self.change(self.limit * (1 - max(self.LEAST_CUT, share / 2)), tick)
        elif tick.estimate.held_back:
            self.change(self.limit * (1 + self.GROW_A_SECOND * tick.dt_s), tick)


class Gradient(Rule):
    """Hill climbing on what was measured: syncs x min(1, rate / best rate)^4 over a window."""

    WAIT_S, WINDOW_S = 2.0, 2.0
    STEP, STEP_LEAST, STEP_MOST = 0.2, 0.1, 0.7  # of the limit, in logarithms
    BEST_LASTS_S = 60.0

    def __init__(self, start: float) -> None:
        super().__init__(start)
        self.syncs = self.bytes = self.seconds = 0.0
        self.rates: List[Tuple[float, float]] = []
        self.direction, self.stride = -1.0, self.STEP
        self.last = (0.0, 0.0)  # syncs and rate under the limit before

    def step(self, tick: Tick) -> None:
        if tick.now_s - self.changed_s <= self.WAIT_S:
            return
        self.syncs += (tick.estimate.sync_rate or 0.0) * tick.dt_s
        self.bytes += tick.estimate.rate * tick.dt_s
        self.seconds += tick.dt_s
        if self.seconds < self.WINDOW_S:
            return
        now = self.syncs / self.seconds, self.bytes / self.seconds
        self.syncs = self.bytes = self.seconds = 0.0
        self.rates = [(t, r) for t, r in self.rates if tick.now_s - t < self.BEST_LASTS_S]
        self.rates.append((tick.now_s, now[1]))
        best = max(rate for _, rate in self.rates)
        if self._worth(now, best) < self._worth(self.last, best):
            self.direction, self.stride = -self.direction, max(self.STEP_LEAST, self.stride / 2)
        else:
            self.stride = min(self.STEP_MOST, self.stride * 1.2)
        self.last = now
        self.change(self.limit * 2.718 ** (self.direction * self.stride), tick)

    @staticmethod
    def _worth(found: Tuple[float, float], best: float) -> float:
        return found[0] * float(min(1.0, found[1] / (0.95 * max(best, 1.0)))) ** 4


class Framed:
    """`decide` with another rule for flooded devices with demand; caps and pacing are left out."""

    def __init__(self, rule: Callable[[float], Rule]) -> None:
        self.rule = rule
        self.rules: Dict[str, Rule] = {}

    def __call__(
        self, policy: Policy, memory: Memory, sample: Sample, estimates: Mapping[str, Estimate]
    ) -> Tuple[Decision, Memory]:
        needs, loose, said = [], [], []
        for each in sample.devices:
            device = each.device
            name = device.name
            if each.excluded is not None:
                said.append(DeviceDecision(name, State.EXCLUDED, None, each.excluded, name))
                continue
            seen = estimates[name]
            bounds = policy.for_device(name, device.devno)
            floor = max(bounds.floor_bytes, kernel_floor_bytes(sample.host))
            if seen.demand:
                share = seen.limit_share
                allowed = Bounds(
                    int(floor * share), int(bounds.ceiling_bytes * share),
                    bounds.rest_bytes, bounds.allowed_delay_s,
                    objective_s(bounds.fsync_p99_s, bounds.baseline_multiple, seen.baseline_s),
                    policy.objective.keep_throughput,
                )
                target = self._flooded(name, seen, allowed, memory, sample)
                target = min(max(target, floor), bounds.ceiling_bytes)
                needs.append(target)
            else:
                target = int(max(floor, (seen.drain_rate or 0.0) * bounds.drain_time_s))
                last_s = memory.devices[name].last_flood_s
                if seen.drain_rate is not None and sample.time_s - last_s <= RECENT_FLOOD_S:
                    loose.append(target)
            said.append(DeviceDecision(
                name, State.GUARD if seen.demand else State.IDLE, target, "", name))
        hurry = any(seen.demand and seen.flooded for seen in estimates.values())
        goal = min(needs) if needs else max(loose, default=None)
        if goal is None:
            memory = replace(memory, limit_bytes=None, goal_bytes=None, background_bytes=None,
                             hurry=hurry)
            return Decision(None, None, None, "", tuple(said), (), hurry), memory
        return self._ramp(policy, memory, sample, goal, hurry, tuple(said))

    def _flooded(
        self, name: str, seen: Estimate, bounds: Bounds, memory: Memory, sample: Sample
    ) -> int:
        rule = self.rules.setdefault(name, self.rule(bounds.start))
        in_force = sample.vm.threshold_bytes * seen.limit_share
        if seen.flooded and IN_FORCE[0] <= in_force / rule.limit <= IN_FORCE[1]:
            learned = bool(memory.devices[name].full_window)
            rule.step(Tick(seen, bounds, learned, sample.time_s, sample.dt_s))
        return int(rule.limit / seen.limit_share)

    @staticmethod
    def _ramp(
        policy: Policy, memory: Memory, sample: Sample, goal: int,
        hurry: bool, said: Tuple[DeviceDecision, ...],
    ) -> Tuple[Decision, Memory]:
        if near(goal, memory.goal_bytes):
            goal = memory.goal_bytes or goal
        limit = goal
        if memory.limit_bytes != goal:
            limit = next_limit(
                goal, sample.vm, sample.time_s, memory.last_raise_s, policy.limits.step_up,
                policy.limits.cooldown_s, 0.0)
        background = next_background(
            limit, goal, policy.limits.background, memory.background_bytes)
        raised = limit > sample.vm.threshold_bytes
        memory = replace(
            memory, limit_bytes=limit, goal_bytes=goal, background_bytes=background, hurry=hurry,
            last_raise_s=sample.time_s if raised else memory.last_raise_s)
        return Decision(limit, background, goal, "", said, (), hurry), memory


class Priced(Framed):
    """The law on trial (tests/sim/price.py), which sees every tick and keeps its own state."""

    def __init__(self) -> None:
        super().__init__(Rule)
        self.devices: Dict[str, price.Priced] = {}

    def _flooded(
        self, name: str, seen: Estimate, bounds: Bounds, memory: Memory, sample: Sample
    ) -> int:
        mine = self.devices.get(name, price.Priced(bounds.start, bounds.start))
        device = next(each for each in sample.devices if each.device.name == name)
        near = sample.vm.threshold_bytes * seen.limit_share / price.target(mine, bounds)
        mine = price.step(mine, seen, device, bounds, IN_FORCE[0] <= near <= IN_FORCE[1],
                          sample.time_s, sample.dt_s)
        self.devices[name] = mine
        return int(price.target(mine, bounds) / seen.limit_share)


# Makers, in the order of the table.
LAWS: Mapping[str, Callable[[], Law]] = {
    "feed-forward": lambda: Framed(FeedForward),
    "knee": lambda: Framed(Knee),
    "ecn": lambda: Framed(Ecn),
    "gradient": lambda: Framed(Gradient),
    "present": lambda: decide,
    "price": Priced,
}
