# SPDX-License-Identifier: GPL-2.0-or-later
"""Random hosts for hypothesis, and a run of the agent or of a fixed limit on one.

Lists of values begin with the plain case, so that a counterexample shrinks towards a RAID of
250 MB/s under one dd.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Tuple

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from tests.sim.plant import GB, MB, Disk, Event, Flood, Loop, Plant, SyncLoad
from writebackd.policy import load_policy
from writebackd.types.decision import Decision

POLICY = load_policy("default")
# Flows hardly change within such a step.
STEP_S = 0.1
FLOOD_S = 5.0  # when floods start
# Queues that no dirty limit can shorten.
NEIGHBOUR: Dict[str, object] = {"neighbour": 0.8, "neighbour_wait_s": 0.04}
FAILING: Dict[str, object] = {"failing_s": 0.5}
BATTERY: Dict[str, object] = {"cache": 0.0, "baseline_s": 6e-3}


def runs(count: int) -> Callable[[Any], Any]:
    """`count` examples, not timed: a loaded machine is no failure.

    Without the phase `explain`, which traces every line and takes five times as long.
    """
    return settings(max_examples=count, deadline=None,
                    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
                    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


# ---- hosts -------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A host with what happens to it, and when the agent looks."""

    disk: Disk = field(default_factory=Disk)
    flood: Flood = field(default_factory=lambda: Flood(start_s=FLOOD_S))
    sync: SyncLoad = field(default_factory=SyncLoad)
    events: Tuple[Event, ...] = ()
    dirty: float = 0.0
    tick_s: float = 1.0
    jitter: float = 0.0  # of a tick's length
    missing: float = 0.0  # share of ticks that do not happen
    seed: int = 1
    other: Optional[Disk] = None  # a second disk, flooded and synced to in waves

    def plant(self) -> Plant:
        disks, floods_, syncs = [self.disk], [self.flood], [self.sync]
        if self.other is not None:
            disks.append(self.other)
            floods_.append(Flood(1, start_s=2 * FLOOD_S, on_s=15.0, off_s=10.0))
            syncs.append(SyncLoad(1, start_s=20.0, on_s=10.0, off_s=20.0))
        return Plant(disks, floods_, syncs, self.events, self.dirty,
                     seed=self.seed, step_s=STEP_S)


def _log(first: float, low: float, high: float, points: int = 20) -> st.SearchStrategy[float]:
    """A value on a logarithmic grid; the plain one is `first`."""
    grid = [float(f"{low * (high / low) ** (i / (points - 1)):.3g}") for i in range(points)]
    return st.sampled_from([first, *grid])


@st.composite
def disks(draw: Callable[[Any], Any]) -> Disk:
    drain = draw(_log(250.0, 5.0, 5000.0)) * MB
    cache = draw(st.one_of(_log(512.0, 16.0, 8192.0, 10), st.just(0.0))) * MB
    baseline_s = draw(_log(0.35e-3, 20e-6, 20e-3, 12))
    return Disk(
        drain=drain,
        cache=cache,
        link=drain * draw(st.sampled_from([4.0, 1.3, 2.0, 8.0])),
        tau_s=draw(st.sampled_from([7.5e-3, 2e-3, 4e-3, 12e-3, 20e-3, 30e-3])),
        # Nothing without a cache answers faster than flash takes a page.
        baseline_s=baseline_s if cache else max(baseline_s, 80e-6),
        breath=draw(st.sampled_from([0.65, 0.4, 0.15, 0.05])),
        volatile=bool(cache) and draw(st.booleans()),
    )


WAVES = st.sampled_from([(0.0, 0.0), (1.0, 1.0), (5.0, 5.0), (10.0, 10.0), (2.0, 7.0)])
RATES = st.sampled_from([1000.0, 300.0, 3000.0, 100.0, 30.0])


@st.composite
def floods(draw: Callable[[Any], Any], constant: bool) -> Flood:
    on_s, off_s = (0.0, 0.0) if constant else draw(WAVES)
    return Flood(start_s=FLOOD_S, on_s=on_s, off_s=off_s, rate=draw(RATES) * MB,
                 writers=draw(st.sampled_from([1, 4, 32])))


@st.composite
def sync_loads(draw: Callable[[Any], Any], constant: bool) -> SyncLoad:
    on_s, off_s = 0.0, 0.0
    if not constant:
        on_s, off_s = draw(st.sampled_from([(0.0, 0.0), (5.0, 15.0), (1.0, 1.0), (30.0, 20.0)]))
    return SyncLoad(threads=draw(st.sampled_from([1, 4, 16])), on_s=on_s, off_s=off_s,
                    think_s=draw(st.sampled_from([0.0, 0.01, 0.05])))


@st.composite
def events(draw: Callable[[Any], Any], disk: Disk) -> Tuple[Event, ...]:
    found = []
    for time_s in (12.0, 22.0, 32.0)[: draw(st.integers(0, 3))]:
        changes: Dict[str, object] = draw(st.sampled_from([
            {"drain": disk.drain / 2},
            {"drain": disk.drain / 10},
            {"drain": disk.drain * 4, "link": disk.link * 4},
            {"tau_s": 20e-3},
            BATTERY,
            NEIGHBOUR,
            FAILING,
            vars(disk),  # all is well again
        ]))
        found.append(Event(time_s, changes))
    return tuple(found)


@st.composite
def cases(
    draw: Callable[[Any], Any], constant: bool = True, waves: bool = False, dirty: bool = False
) -> Case:
    """Constant conditions, or everything that may come; with waves of the flood only, or with
    some seconds' worth of dirty pages at the start."""
    disk = draw(disks())
    return Case(
        disk=disk,
        flood=draw(floods(constant and not waves)),
        sync=draw(sync_loads(constant)),
        events=() if constant else draw(events(disk)),
        dirty=min(3.0 * GB, disk.drain * draw(st.sampled_from([0.0, 2.0, 10.0])))
        if dirty else 0.0,
        tick_s=draw(st.sampled_from([1.0, 1.0, 1.0, 0.5, 0.25])),
        jitter=draw(st.sampled_from([0.0, 0.3])),
        missing=draw(st.sampled_from([0.0, 0.1])),
        seed=draw(st.integers(1, 1000)),
        other=None if constant else draw(st.one_of(st.none(), st.none(), disks())),
    )


# ---- runs --------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """One tick: what the agent did, and what the host had done by then."""

    time_s: float
    limit: int
    decision: Optional[Decision]
    syncs: int
    written: float


def drive(
    case: Case, seconds: float, static: Optional[int] = None,
    check: Callable[[Loop, Decision], None] = lambda loop, decision: None,
) -> List[Point]:
    """The agent's run, or that of a fixed limit; `check` is called after each tick."""
    plant = case.plant()
    loop = Loop(POLICY, plant)
    if static is not None:
        plant.set_limits(static, None)
    dice = random.Random(case.seed)
    points = []
    while plant.now_s < seconds:
        dt = case.tick_s * dice.uniform(1.0 - case.jitter, 1.0 + case.jitter)
        decision = None
        if static is not None or dice.random() < case.missing:
            plant.advance(dt)
        else:
            _, _, decision = loop.tick(dt)
            check(loop, decision)
        points.append(Point(plant.now_s, plant.limit, decision, plant.loads[0].done,
                            plant.disks[0].written))
    return points


def rates(points: List[Point], since_s: float) -> Tuple[float, float]:
    """(syncs per second, bytes per second onto the disk) from `since_s` to the end."""
    first = next(point for point in points if point.time_s >= since_s)
    last = points[-1]
    elapsed = last.time_s - first.time_s
    return (last.syncs - first.syncs) / elapsed, (last.written - first.written) / elapsed


def tail(points: List[Point], since_s: float) -> str:
    """What the agent did from then on, where it was something else, for a failure's message."""
    lines: List[str] = []
    last: object = None
    for point in points:
        device = point.decision.devices[0] if point.decision is not None else None
        if point.time_s < since_s or device is None or (point.limit, device.state) == last:
            continue
        last = point.limit, device.state
        lines.append(
            f"{point.time_s:6.1f} s  {point.limit / MB:9.2f} MB  {point.written / MB:9.0f} MB "
            f"written  {device.state.value}: {device.reason}")
    return "\n".join([*lines[:20], *(["..."] if len(lines) > 40 else []), *lines[20:][-20:]])
