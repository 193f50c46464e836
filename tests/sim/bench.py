# SPDX-License-Identifier: GPL-2.0-or-later
"""Contenders in the same simulated scenario, scored as tests/lab/score.py scores real runs."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Callable, Dict, List, Mapping, Optional, Tuple

from tests.lab.score import score
from tests.sim.plant import MB, Law, Loop, Plant
from tests.sim.scenarios import Scenario
from writebackd.control.decide import decide
from writebackd.policy.schema import Policy
from writebackd.types.core_memory import Memory
from writebackd.types.decision import Mode
from writebackd.types.histogram import Histogram
from writebackd.types.samples import Sample

STATIC_MB = (1, 2, 4, 8, 15, 16, 32, 64)
TICK_S = 1.0
AGENT: Mapping[str, Callable[[], Law]] = {"agent": lambda: decide}
# Of the end of a run, what counts as settled.
SETTLED_S = 25.0
# A limit within this of the settled one has arrived.
ARRIVED = 0.1


@dataclass(frozen=True)
class Waits:
    """What commits took in one tick."""

    commits: Histogram
    oldest_s: float  # of those that have not ended


@dataclass(frozen=True)
class Felt:
    """What users felt of a run: commits, with the sleep in write()."""

    mean_s: Optional[float]
    worst_second_s: float  # the worst tick's 99th percentile
    longest_s: float


@dataclass
class Run:
    """What one contender did."""

    sync_rate: List[float] = field(default_factory=list)  # commits/s per load, when judged
    waits: List[Waits] = field(default_factory=list)  # of each judged tick
    device_rate: float = 0.0  # bytes per second onto the disks, in the judged window
    disk_rates: List[float] = field(default_factory=list)  # the same of each
    most_dirty: List[float] = field(default_factory=list)  # bytes, of each disk in that window
    limits: List[Tuple[float, int]] = field(default_factory=list)  # (time, limit)
    longest_blocked_s: float = 0.0
    reasons: List[str] = field(default_factory=list)
    f: Optional[float] = None
    g: Optional[float] = None
    score: Optional[float] = None


def run(
    scenario: Scenario,
    limit: Optional[int] = None,
    policy: Optional[Policy] = None,
    seed: int = 1,
    flooded: bool = True,
    tick_s: float = TICK_S,
    law: Law = decide,
    background: Optional[int] = None,
) -> Run:
    """One contender: `law` with `policy`, else fixed limits, else the kernel's default.

    Without `background` that is half of `limit`.
    """
    plant = scenario.plant(seed, flooded)
    loop = None
    if policy is not None:
        loop = Loop(policy, plant, Memory(mode=Mode(policy.mode)), law=law)
    else:
        plant.set_limits(limit, background)
    result = Run()
    before: Optional[Tuple[List[int], List[float]]] = None
    result.most_dirty = [0.0] * len(plant.disks)
    while plant.now_s < scenario.end - 1e-6:
        if before is None and plant.now_s >= scenario.judged - 1e-6:
            before = _totals(plant)
        if loop is None:
            plant.advance(tick_s)
            sample = plant.sample()
        else:
            sample, _, decision = loop.tick(tick_s)
            result.reasons.append("; ".join(
                f"{d.state.value}: {d.reason}" for d in decision.devices))
        result.limits.append((plant.now_s, plant.limit))
        if before is not None:
            result.waits.append(_waits(sample))
            result.most_dirty = [max(most, state.dirty)
                                 for most, state in zip(result.most_dirty, plant.disks)]
    assert before is not None, f"{scenario.name} is judged after its end"
    syncs, written = _totals(plant)
    lasted = scenario.end - scenario.judged
    # None at all: less than one, as in the lab.
    result.sync_rate = [max(1, now - then) / lasted
                        for now, then in zip(syncs, before[0])]
    result.disk_rates = [(now - then) / lasted for now, then in zip(written, before[1])]
    result.device_rate = sum(result.disk_rates)
    result.longest_blocked_s = plant.longest_blocked_s
    return result


def _totals(plant: Plant) -> Tuple[List[int], List[float]]:
    return [load.done for load in plant.loads], [state.written for state in plant.disks]


def _waits(sample: Sample) -> Waits:
    syncs = [device.sync for device in sample.devices if device.sync is not None]
    return Waits(sum((sync.commit_latency for sync in syncs), Histogram()),
                 max((sync.oldest_commit_s for sync in syncs), default=0.0))


def felt(result: Run) -> Felt:
    """Mean, worst second and longest commit of the judged window."""
    worst_s = [max(waits.commits.quantile(0.99) or 0.0, waits.oldest_s) for waits in result.waits]
    longest_s = [max(waits.commits.quantile(1.0) or 0.0, waits.oldest_s) for waits in result.waits]
    every = sum((waits.commits for waits in result.waits), Histogram())
    return Felt(every.mean(), max(worst_s, default=0.0), max(longest_s, default=0.0))


def judge(result: Run, idle: Run, default: Run) -> Run:
    """Fill in f, g and score."""
    shares = [rate / free for rate, free in zip(result.sync_rate, idle.sync_rate) if free]
    result.f = statistics.geometric_mean(shares) if shares else None
    if default.device_rate > 1.0 * MB:
        result.g = result.device_rate / default.device_rate
    result.score = score(result.f, result.g)
    return result


def compare(
    scenario: Scenario, policy: Policy, seed: int = 1, tick_s: float = TICK_S,
    laws: Mapping[str, Callable[[], Law]] = AGENT,
) -> Dict[str, Run]:
    """All contenders by name; the laws, with a tick of `tick_s`, are the last."""
    idle = run(scenario, seed=seed, flooded=False)
    default = run(scenario, seed=seed)
    found = {"default": judge(default, idle, default)}
    for megabytes in STATIC_MB:
        found[f"{megabytes}M"] = judge(
            run(scenario, limit=megabytes * MB, seed=seed), idle, default)
    for name, make in laws.items():
        found[name] = judge(
            run(scenario, policy=policy, seed=seed, tick_s=tick_s, law=make()), idle, default)
    return found


def of_best(runs: Mapping[str, Run], name: str = "agent") -> Optional[float]:
    """A contender's share of the score of the best fixed limit in hindsight; None without one."""
    best = max(runs[f"{megabytes}M"].score or 0.0 for megabytes in STATIC_MB)
    mine = runs[name].score
    return mine / best if mine is not None and best else None


# ---- how steady it is --------------------------------------------------------


@dataclass(frozen=True)
class Steadiness:
    """Of the agent's limit over a run."""

    settled_bytes: float  # median of the last SETTLED_S
    arrived_s: float  # from the judged disturbance until within ARRIVED for good
    changes_per_minute: float  # once settled, writes of another value
    swing: float  # highest to lowest limit once settled
    echo: float  # highest autocorrelation at a lag of 2 ticks or more: near 1 is an oscillation


def steadiness(limits: List[Tuple[float, int]], since_s: float) -> Steadiness:
    """`since_s` is when the flood or the last event came."""
    end = limits[-1][0]
    tail = [limit for time, limit in limits if time > end - SETTLED_S]
    settled = float(statistics.median(tail))
    arrived = end
    for time, limit in reversed(limits):
        if abs(limit - settled) > ARRIVED * settled or time < since_s:
            break
        arrived = time
    changes = sum(1 for a, b in zip(tail, tail[1:]) if a != b)
    return Steadiness(
        settled, max(0.0, arrived - since_s), changes * 60.0 / SETTLED_S,
        max(tail) / min(tail), echo(tail))


def echo(values: List[int]) -> float:
    """Highest autocorrelation at lags from 2 ticks to half of the series; 0 for a constant."""
    mean = statistics.fmean(values)
    centred = [value - mean for value in values]
    power = sum(c * c for c in centred)
    if power <= (0.02 * mean) ** 2 * len(values):
        return 0.0
    highest = 0.0
    fallen = False
    for lag in range(1, len(values) // 2 + 1):
        found = sum(a * b for a, b in zip(centred, centred[lag:])) / power
        found *= len(values) / (len(values) - lag)
        # A single step correlates with itself nearby: only what comes back counts.
        fallen = fallen or found < 0.0
        if fallen:
            highest = max(highest, found)
    return highest
