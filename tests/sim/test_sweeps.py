# SPDX-License-Identifier: GPL-2.0-or-later
"""Whenever a flood begins between two sweeps of the destage, drain rate and room are found."""

from __future__ import annotations

from dataclasses import replace
from typing import Tuple

import pytest

from tests.sim.plant import SWEEP_EVERY_S, Loop
from tests.sim.scenarios import BY_NAME
from writebackd.model import Memory, Mode
from writebackd.policy import load_policy

POLICY = load_policy("default")
PHASES = 30


def played(name: str, phase: int) -> Tuple[float, bool]:
    """The first R as a share of the media's rate, and whether draining was ever called useless."""
    late_s = SWEEP_EVERY_S * phase / PHASES
    scenario = BY_NAME[name]
    floods = tuple(replace(flood, start_s=flood.start_s + late_s) for flood in scenario.floods)
    plant = replace(scenario, floods=floods).plant()
    loop = Loop(POLICY, plant, Memory(mode=Mode(POLICY.mode)))
    first, useless = 0.0, False
    while plant.now_s < scenario.end + late_s:
        _, estimates, _ = loop.tick(1.0)
        (found,) = estimates.values()
        first = first or found.drain_rate or 0.0
        useless = useless or loop.memory.devices[found.name].hold.useless_s > 0
    return first / scenario.disks[0].drain, useless


@pytest.mark.parametrize("name", ["sweeps", "sweeps-leaps"])
def test_a_sweep_is_not_taken_for_the_disk(name: str) -> None:
    found = [played(name, phase) for phase in range(PHASES)]
    rates = [rate for rate, _ in found]
    # Single seconds of the plant's media differ by a tenth.
    assert min(rates) >= 0.85 and max(rates) <= 1.15, sorted(rates)
    assert sum(useless for _, useless in found) <= PHASES // 10
