# SPDX-License-Identifier: GPL-2.0-or-later
"""How the limit in force moves to the one that is asked for: control/ramp.py."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from plant import Plant
from writebackd.control.decide import decide
from writebackd.control.ramp import near, next_background, next_limit, slowest
from writebackd.estimate.estimator import estimate
from writebackd.policy import load_policy
from writebackd.tuning import AT_ONCE_BYTES, AT_ONCE_MOST_BYTES, AT_ONCE_S, HEADROOM
from writebackd.types.levers import VmLimits
from writebackd.types.samples import VmState

MB = 1 << 20
POLICY = load_policy("default")

NEW, STEP, COOL = 1000.0, 2.0, 3.0
RAMP = [
    # goal, in force, dirty, since last raise -> next
    ("down to what is dirty and a little", 2 * MB, 1000 * MB, 500 * MB, 99,
     int(HEADROOM * 500 * MB)),
    ("down to the goal when little is dirty", 2 * MB, 1000 * MB, 1 * MB, 99, 2 * MB),
    ("never up on the way down", 2 * MB, 400 * MB, 500 * MB, 99, 400 * MB),
    ("up by one step", 1000 * MB, 100 * MB, 50 * MB, 99, 200 * MB),
    ("up to the goal when it is near", 150 * MB, 100 * MB, 50 * MB, 99, 150 * MB),
    ("not up again so soon", 1000 * MB, 100 * MB, 50 * MB, 1, 100 * MB),
]


@pytest.mark.parametrize("goal,now,dirty,since,expected", [r[1:] for r in RAMP],
                         ids=[r[0].replace(" ", "-") for r in RAMP])
def test_ramp(goal: int, now: int, dirty: int, since: float, expected: int) -> None:
    vm = VmState(VmLimits(now, 0, now // 2, 0), dirty, 0, now, now // 2)
    assert next_limit(goal, vm, NEW, NEW - since, STEP, COOL, 0.0) == expected


@pytest.mark.parametrize("goal,now,since,expected", [
    (1000 * MB, 100 * MB, 1, 400 * MB), (1000 * MB, 100 * MB, 99, 800 * MB),
    (300 * MB, 100 * MB, 1, 300 * MB), (1000 * MB, 600 * MB, 1, 600 * MB),
])
def test_up_to_what_is_stuck_it_goes_at_once(
    goal: int, now: int, since: float, expected: int
) -> None:
    vm = VmState(VmLimits(now, 0, now // 2, 0), 400 * MB, 0, now, now // 2)
    assert next_limit(goal, vm, NEW, NEW - since, STEP, COOL, 0.0, 400 * MB) == expected


def test_on_its_way_down_the_limit_stays_above_what_is_under_writeback_too() -> None:
    vm = VmState(VmLimits(0, 20, 0, 10), 200 * MB, 300 * MB, 1000 * MB, 500 * MB)
    limit = next_limit(2 * MB, vm, NEW, NEW - 99, STEP, COOL, 0.0)
    assert limit == int(HEADROOM * 500 * MB)


@pytest.mark.parametrize("left,drains,at_once", [
    (AT_ONCE_BYTES - MB, 0.0, True), (AT_ONCE_BYTES + MB, 0.0, False),
    (AT_ONCE_BYTES + MB, AT_ONCE_BYTES / AT_ONCE_S, False),
    (7 * MB, 8 * MB / AT_ONCE_S, True), (9 * MB, 8 * MB / AT_ONCE_S, False),
    (AT_ONCE_MOST_BYTES - MB, 1e12, True), (AT_ONCE_MOST_BYTES + MB, 1e12, False),
])
def test_the_last_bit_that_is_dirty_is_no_reason_for_a_step_of_its_own(
    left: int, drains: float, at_once: bool
) -> None:
    goal = 20 * MB
    dirty = int((goal + left) / HEADROOM)
    vm = VmState(VmLimits(1000 * MB, 0, 1, 0), dirty, 0, 1000 * MB, 500 * MB)
    limit = next_limit(goal, vm, NEW, NEW - 99, STEP, COOL, drains)
    assert (limit == goal) is at_once
    assert at_once or limit == int(HEADROOM * dirty)


def test_what_is_lowered_at_once_goes_by_the_slowest_flooded_device() -> None:
    fast = samples.estimate("sda", flooded=True, drain_rate=250.0 * MB, rate=300.0 * MB)
    slow = replace(fast, drain_rate=60.0 * MB)
    assert slowest([fast]) == 250 * MB and slowest([fast, slow]) == 60 * MB and slowest([]) == 0
    # Where it is not flooded it drains nothing of it; where nobody knows how fast it is, it counts.
    assert slowest([fast, replace(slow, flooded=False)]) == 250 * MB
    assert slowest([fast, replace(slow, drain_rate=None)]) == 0
    # R may be of another day.
    assert slowest([replace(fast, rate=11.0 * MB)]) == 11 * MB


@pytest.mark.parametrize("known", [True, False])
def test_the_last_step_down_goes_by_what_the_device_drains(known: bool) -> None:
    host = Plant(POLICY, 250.0 * MB)
    host.run(20)
    host.flood = True
    host.run(60)
    limits = VmLimits(64 * MB, 0, 32 * MB, 0)
    sample = host.sample()
    estimates, memory = estimate(POLICY, host.memory, sample)
    if not known:
        estimates = {"sda": replace(estimates["sda"], drain_rate=None)}
    memory = replace(memory, limit_bytes=64 * MB, goal_bytes=None)
    vm = VmState(limits, 12 * MB, 0, 64 * MB, 32 * MB)
    decision, _ = decide(POLICY, memory, replace(sample, vm=vm), estimates)
    assert decision.goal_bytes is not None and decision.goal_bytes < 12 * MB - AT_ONCE_BYTES
    assert (decision.limit_bytes == decision.goal_bytes) is known


@pytest.mark.parametrize("found", [0, 8 << 10, 600 << 10])
@pytest.mark.parametrize("since_s", [0.0, 99.0])
def test_from_below_the_floor_it_goes_to_the_floor_at_once(found: int, since_s: float) -> None:
    """From dirty_ratio = 0 no factor leads anywhere, and the kernel refuses dirty_bytes = 0."""
    host = Plant(POLICY, 250.0 * MB)
    host.run(20)
    host.flood = True
    host.run(60)
    sample = host.sample()
    estimates, memory = estimate(POLICY, host.memory, sample)
    memory = replace(
        memory, limit_bytes=None, goal_bytes=None, last_raise_s=sample.time_s - since_s
    )
    vm = replace(sample.vm, limits=VmLimits(found, 0, 0, 0), threshold_bytes=found,
                 background_threshold_bytes=found // 2)
    decision, _ = decide(POLICY, memory, replace(sample, vm=vm), estimates)
    assert decision.goal_bytes is not None and decision.goal_bytes >= POLICY.limits.floor_bytes
    assert decision.limit_bytes is not None
    assert decision.limit_bytes >= POLICY.limits.floor_bytes
    # With pages of 64 KiB the kernel takes no less than 128 KiB, whatever the policy's floor is.
    large = replace(sample, vm=vm, host=replace(sample.host, page_size=65536))
    low = replace(POLICY, limits=replace(POLICY.limits, floor_bytes=8192, rest_bytes=8192))
    decision, _ = decide(low, memory, large, estimates)
    assert decision.limit_bytes is not None and decision.limit_bytes >= 2 * 65536


@given(
    goal=st.integers(1 << 20, 1 << 40), now=st.integers(1 << 20, 1 << 40),
    dirty=st.integers(0, 1 << 40), since=st.floats(0, 1e6), drains=st.floats(0, 1e10),
)
def test_ramp_never_overshoots_nor_blocks(
    goal: int, now: int, dirty: int, since: float, drains: float
) -> None:
    vm = VmState(VmLimits(now, 0, now // 2, 0), dirty, 0, now, now // 2)
    limit = next_limit(goal, vm, NEW, NEW - since, STEP, COOL, drains)
    assert min(goal, now) <= limit <= max(goal, now)
    if limit < now:
        # Lowering blocks nobody for longer than the last bit takes to drain.
        assert limit >= min(dirty - max(AT_ONCE_BYTES, int(AT_ONCE_S * drains) + 1), now)
        assert limit >= min(dirty - AT_ONCE_MOST_BYTES, now)
    if limit > now:
        assert limit <= STEP * now and since >= COOL


@pytest.mark.parametrize(
    "new,last,expected", [(100, None, False), (105, 100, True), (115, 100, False), (85, 100, False)]
)
def test_a_goal_that_hardly_moved_is_the_same(
    new: int, last: "int | None", expected: bool
) -> None:
    assert near(new, last) is expected


def test_the_background_limit_is_a_share_of_the_goal_and_never_above_half_of_the_limit() -> None:
    assert next_background(400 * MB, 10 * MB, 0.5) == 5 * MB
    assert next_background(4 * MB, 10 * MB, 0.5) == 2 * MB
    assert next_background(10 * MB, 10 * MB, 0.3) == 3 * MB
