# SPDX-License-Identifier: GPL-2.0-or-later
"""Ten thousand runs of the pure core against random hosts: what must hold in all of them.

A run is a minute or two of a simulated host (see plant.py).  Lists of values begin with the
plain case, so that a counterexample shrinks towards a RAID of 250 MB/s under one dd.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, List, Optional, Tuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.sim.plant import AS_FOUND, GB, HOST, MB, Disk, Event, Flood, Loop, Plant, SyncLoad
from writebackd.control.decide import decide
from writebackd.estimate.estimate import estimate
from writebackd.model import Decision, Memory, State
from writebackd.policy import load_policy

POLICY = load_policy("default")
# A step of 0.1 s: flows hardly change within one.
STEP_S = 0.1
FLOOD_S = 5.0  # when floods start
GRACE_S = 15.0  # from a flood's start or an event until the agent is judged
SETTLE_S = 80.0  # until a limit under constant conditions has to stand
KNOWN_GOOD = 15 * MB  # the limit that admins found by hand
# Two steps of a fine law, and what a tick's noise moves it by.
BAND = 1.6
CHANGES_PER_MINUTE = 6
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

    def plant(self) -> Plant:
        return Plant((self.disk,), (self.flood,), (self.sync,), self.events, self.dirty,
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
def floods(draw: Callable[[Any], Any], constant: bool = False) -> Flood:
    on_s, off_s = (0.0, 0.0) if constant else draw(WAVES)
    return Flood(start_s=FLOOD_S, on_s=on_s, off_s=off_s, rate=draw(RATES) * MB,
                 writers=draw(st.sampled_from([1, 4, 32])))


@st.composite
def sync_loads(draw: Callable[[Any], Any], constant: bool = False) -> SyncLoad:
    on_s, off_s = 0.0, 0.0
    if not constant:
        on_s, off_s = draw(st.sampled_from([(0.0, 0.0), (5.0, 15.0), (1.0, 1.0), (30.0, 20.0)]))
    return SyncLoad(threads=draw(st.sampled_from([1, 4, 16])), on_s=on_s, off_s=off_s,
                    think_s=draw(st.sampled_from([0.0, 0.01, 0.05])))


@st.composite
def events(draw: Callable[[Any], Any], disk: Disk) -> Tuple[Event, ...]:
    found = []
    for time_s in (15.0, 30.0, 45.0)[: draw(st.integers(0, 3))]:
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
    draw: Callable[[Any], Any], constant: bool = False, scripts: bool = False,
    dirty: bool = False,
) -> Case:
    disk = draw(disks())
    return Case(
        disk=disk,
        flood=draw(floods(constant)),
        sync=draw(sync_loads(constant)),
        events=draw(events(disk)) if scripts else (),
        dirty=min(3.0 * GB, disk.drain * draw(st.sampled_from([0.0, 2.0, 10.0])))
        if dirty else 0.0,
        tick_s=draw(st.sampled_from([1.0, 1.0, 1.0, 0.5, 0.25])),
        jitter=draw(st.sampled_from([0.0, 0.3])),
        missing=draw(st.sampled_from([0.0, 0.1])),
        seed=draw(st.integers(1, 1000)),
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
    """What the agent did from then on, for a failure's message."""
    return "\n".join(
        f"{p.time_s:6.1f} s  {p.limit / MB:9.2f} MB  {p.written / MB:9.0f} MB written  "
        + (f"{p.decision.devices[0].state.value}: {p.decision.devices[0].reason}"
           if p.decision else "no tick")
        for p in points if p.time_s >= since_s)


# ---- what must hold in every tick --------------------------------------------


def floor_bytes() -> int:
    """The lowest limit that may ever be set: the policy's, or twice wb_stat_error."""
    cpus = HOST.cpus_possible
    error = cpus * 8 * cpus.bit_length() * HOST.page_size
    return max(POLICY.limits.floor_bytes, 2 * error)


def sane(loop: Loop, decision: Decision) -> None:
    """Bounds of a decision, after the plant took it."""
    bounds = POLICY.limits
    if decision.limit_bytes is None:
        assert decision.background_bytes is None
    else:
        assert decision.background_bytes is not None
        # On the way down from where it was found a limit may be above the ceiling.
        assert floor_bytes() <= decision.limit_bytes <= max(bounds.ceiling_bytes, AS_FOUND)
        assert 0 < decision.background_bytes < decision.limit_bytes
    if decision.goal_bytes is not None:
        assert floor_bytes() <= decision.goal_bytes <= bounds.ceiling_bytes
    assert decision.reason
    for device in decision.devices:
        assert device.reason and device.decision_id
        assert isinstance(device.state, State)
    for name, value in numbers(loop.memory):
        assert not math.isnan(value), f"{name} is not a number"


def numbers(memory: Memory) -> List[Tuple[str, float]]:
    """All numbers that the core remembers, with the names of their fields."""
    found = []
    for holder in (memory, *memory.devices.values()):
        for name, value in vars(holder).items():
            if isinstance(value, (int, float)):
                found.append((name, float(value)))
    return found


@runs(5000)
@given(cases(scripts=True, dirty=True))
def test_no_host_and_no_script_leads_out_of_bounds(case: Case) -> None:
    drive(case, 60.0, check=sane)


@runs(500)
@given(cases(scripts=True, dirty=True))
def test_same_policy_memory_and_sample_give_the_same_decision(case: Case) -> None:
    plant = case.plant()
    memory = Memory()
    while plant.now_s < 40.0:
        plant.advance(case.tick_s)
        sample = plant.sample()
        twice = []
        for _ in range(2):
            estimates, estimated = estimate(POLICY, memory, sample)
            twice.append((estimates, *decide(POLICY, estimated, sample, estimates)))
        assert twice[0] == twice[1]
        _, decision, memory = twice[0]
        plant.apply(decision)


# ---- what must hold of a run -------------------------------------------------


def demanding(case: Case) -> Case:
    """The same with commits that count as demand also when each takes a while."""
    return replace(case, sync=replace(case.sync, think_s=min(case.sync.think_s, 0.01)))


def overrun(case: Case) -> Case:
    """The same with a flood that the disk cannot keep up with."""
    return replace(case, flood=replace(case.flood, rate=max(case.flood.rate, 3 * case.disk.drain)))


@runs(1000)
@given(cases(constant=True))
def test_under_constant_conditions_the_limit_stands(case: Case) -> None:
    end = SETTLE_S + 60.0
    points = drive(demanding(case), end)
    settled = [point.limit for point in points if point.time_s >= SETTLE_S]
    changes = sum(1 for a, b in zip(settled, settled[1:]) if a != b)
    # A flood slower than the disk may be given any limit that does not hold it.
    held = case.flood.rate > 1.1 * case.disk.drain
    band = BAND if held else float("inf")
    assert changes <= CHANGES_PER_MINUTE and max(settled) <= band * min(settled), (
        f"{changes} changes between {min(settled) / MB:.2f} and {max(settled) / MB:.2f} MB\n"
        + tail(points, SETTLE_S))


@runs(2000)
@given(cases(constant=True, dirty=True))
def test_a_database_is_never_worse_off_than_with_15_mb(case: Case) -> None:
    """Unless 15 MB is below the knee: then by what its lost throughput counts in the score."""
    case = demanding(case)
    since = FLOOD_S + GRACE_S + 1.5 * case.dirty / case.disk.drain
    ours = drive(case, since + 40.0)
    theirs = drive(case, since + 40.0, static=KNOWN_GOOD)
    _compare(ours, theirs, since)


def _compare(ours: List[Point], theirs: List[Point], since: float) -> None:
    syncs, written = rates(ours, since)
    their_syncs, their_written = rates(theirs, since)
    worth = min(1.0, their_written / max(written, 1.0) / 0.95) ** 4
    assert syncs >= 0.9 * worth * their_syncs, (
        f"{syncs:.1f} syncs/s at {written / MB:.0f} MB/s, with 15 MB {their_syncs:.1f} at "
        f"{their_written / MB:.0f} MB/s\n" + tail(ours, since - GRACE_S))


@runs(1000)
@given(cases(constant=True),
       st.sampled_from(["slower", "faster", "knee", "battery", "neighbour", "failing"]))
def test_nor_after_the_disk_became_another(case: Case, change: str) -> None:
    case = demanding(case)
    disk = case.disk
    changes: Dict[str, Dict[str, object]] = {
        "slower": {"drain": disk.drain / 2},
        "faster": {"drain": disk.drain * 2, "link": disk.link * 2},
        "knee": {"tau_s": 2 * disk.tau_s},
        "battery": BATTERY,
        "neighbour": NEIGHBOUR,
        "failing": FAILING,
    }
    case = replace(case, events=(Event(40.0, changes[change]),))
    since = 40.0 + GRACE_S
    _compare(drive(case, since + 30.0), drive(case, since + 30.0, static=KNOWN_GOOD), since)


def unheld(case: Case) -> int:
    """A limit well above the knee of the case's disk."""
    return int(max(4 * MB, 4 * case.disk.drain * case.disk.tau_s))


@runs(700)
@given(cases(constant=True), st.sampled_from([4.0, 10.0, 40.0]))
def test_it_does_not_stay_at_the_floor_of_a_disk_that_became_fast(
    case: Case, factor: float
) -> None:
    """A minute after the media became faster the flood gets what a wide limit would give it."""
    case = overrun(demanding(case))
    before = replace(case.disk, drain=case.disk.drain / factor, link=case.disk.link / factor)
    changes: Dict[str, object] = {"drain": case.disk.drain, "link": case.disk.link}
    ours = replace(case, disk=before, events=(Event(60.0, changes),))
    points = drive(ours, 140.0)
    _, written = rates(points, 125.0)
    _, most = rates(drive(ours, 140.0, static=unheld(case)), 125.0)
    assert written >= 0.8 * most, (
        f"{written / MB:.0f} of {most / MB:.0f} MB/s\n" + tail(points, 50.0))


@runs(200)
@given(cases(constant=True))
def test_after_flood_and_demand_the_limit_is_wide_again(case: Case) -> None:
    """Demand is held for a minute, a flood remembered for another."""
    case = replace(case, flood=replace(case.flood, end_s=45.0),
                   sync=replace(demanding(case).sync, end_s=45.0))
    hold = POLICY.objective.demand_hold_s
    points = drive(case, 45.0 + hold + 60.0 + 40.0)
    last = points[-1].limit
    wide = min(AS_FOUND, POLICY.limits.ceiling_bytes,
               0.5 * case.disk.drain * POLICY.limits.drain_time_s)
    assert last >= min(wide, 0.5 * AS_FOUND), tail(points, 100.0)


# ---- a queue that is not ours ------------------------------------------------


def admits(decision: Decision) -> bool:
    """Whether it says that tightening does not help."""
    words = ("not ours", "does not help", "did not help", "fruitless", "neighbour", "lets go")
    return any(device.state is State.EXHAUSTED or any(word in device.reason for word in words)
               for device in decision.devices)


@runs(300)
@given(cases(constant=True), st.sampled_from(["neighbour", "failing"]))
def test_when_the_queue_is_not_ours_it_says_so_and_lets_go(case: Case, whose: str) -> None:
    case = overrun(demanding(case))
    # Slower than any objective that the default policy makes of such a baseline.
    wait_s = max(0.2, 30.0 * case.disk.baseline_s)
    changes: Dict[str, Dict[str, object]] = {
        "neighbour": {**NEIGHBOUR, "neighbour_wait_s": wait_s},
        "failing": {"failing_s": wait_s},
    }
    case = replace(case, events=(Event(60.0, changes[whose]),))
    points = drive(case, 160.0)
    assert any(p.decision is not None and admits(p.decision)
               for p in points if 60.0 < p.time_s <= 120.0), (
        "nothing said\n" + tail(points, 55.0))
    # Let go: the flood does not pay for a queue that is not its own.
    left = replace(case.disk, drain=case.disk.drain * (0.2 if whose == "neighbour" else 1.0))
    _, written = rates(points, 130.0)
    _, most = rates(drive(case, 160.0, static=unheld(replace(case, disk=left))), 130.0)
    assert written >= 0.8 * most, (
        f"{written / MB:.0f} of {most / MB:.0f} MB/s\n" + tail(points, 55.0))


# ---- scenarios that have no randomness ---------------------------------------


@pytest.mark.parametrize("case", [Case(), Case(disk=Disk(drain=60 * MB, breath=0.15))])
def test_a_whole_run_repeats(case: Case) -> None:
    assert drive(case, 60.0) == drive(case, 60.0)
