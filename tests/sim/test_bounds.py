# SPDX-License-Identifier: GPL-2.0-or-later
"""What must hold in every tick, whatever the host does."""

from __future__ import annotations

import math
from typing import List, Tuple

import pytest
from hypothesis import given

from tests.sim.cases import POLICY, Case, cases, drive, runs
from tests.sim.plant import AS_FOUND, HOST, Loop
from writebackd.control.decide import decide
from writebackd.estimate.estimator import estimate
from writebackd.types.core_memory import Memory
from writebackd.types.decision import Decision, DeviceState


def floor_bytes() -> int:
    """The lowest limit that may ever be set: the policy's, or 16 pages for each CPU."""
    return max(POLICY.limits.floor_bytes, 16 * HOST.cpus_online * HOST.page_size)


def sane(loop: Loop, decision: Decision) -> None:
    """Bounds of a decision, after the plant took it."""
    bounds = POLICY.limits
    if decision.limit_bytes is None:
        assert decision.background_bytes is None
    else:
        assert decision.background_bytes is not None
        # On the way down from where it was found a limit may be above the ceiling.
        assert floor_bytes() <= decision.limit_bytes <= max(bounds.ceiling_bytes, AS_FOUND)
        assert 0 < decision.background_bytes <= decision.limit_bytes / 2
    if decision.goal_bytes is not None:
        assert floor_bytes() <= decision.goal_bytes <= bounds.ceiling_bytes
    assert decision.reason
    for device in decision.devices:
        assert device.reason and device.decision_id
        assert isinstance(device.state, DeviceState)
    for name, value in numbers(loop.memory):
        assert not math.isnan(value), f"{name} is not a number"


def numbers(memory: Memory) -> List[Tuple[str, float]]:
    """All numbers that the core remembers, with the names of their fields."""
    found = []
    known = memory.devices.values()
    for holder in (memory, *known, *(m.drain for m in known), *(m.law for m in known)):
        for name, value in vars(holder).items():
            if isinstance(value, (int, float)):
                found.append((name, float(value)))
    return found


@runs(250)
@given(cases(constant=False, dirty=True))
def test_no_host_and_no_script_leads_out_of_bounds(case: Case) -> None:
    drive(case, 45.0, check=sane)


@pytest.mark.full("7500 hosts instead of 250")
@runs(7500)
@given(cases(constant=False, dirty=True))
def test_nor_one_of_thousands(case: Case) -> None:
    drive(case, 45.0, check=sane)


@runs(100)
@given(cases(constant=False, dirty=True))
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
