# SPDX-License-Identifier: GPL-2.0-or-later
"""Whenever a flood begins between two sweeps of the destage, the drain rate is found."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest

from tests.sim.plant import SWEEP_EVERY_S, Loop
from tests.sim.scenarios import BY_NAME
from writebackd.policy import load_policy
from writebackd.types.core_memory import Memory
from writebackd.types.decision import Mode

POLICY = load_policy("default")
PHASES = 30


def found_in(name: str, phase: int) -> float:
    """R at the end, as a share of the media's rate."""
    late_s = SWEEP_EVERY_S * phase / PHASES
    scenario = BY_NAME[name]
    floods = tuple(replace(flood, start_s=flood.start_s + late_s) for flood in scenario.floods)
    loop = Loop(POLICY, replace(scenario, floods=floods).plant(), Memory(mode=Mode(POLICY.mode)))
    while loop.plant.now_s < scenario.end + late_s:
        loop.tick(1.0)
    known, = loop.memory.devices.values()
    return (known.drain_rate or 0.0) / scenario.disks[0].drain


@pytest.mark.parametrize("name", ["sweeps", "sweeps-leaps"])
def test_a_sweep_is_not_taken_for_the_disk(name: str) -> None:
    rates = [found_in(name, phase) for phase in range(PHASES)]
    # Single seconds of the plant's media differ by a tenth.
    assert statistics.median(rates) == pytest.approx(1.0, abs=0.05), sorted(rates)
    # 27 of 30 until the law of November 27, which measures R under a smaller limit.
    assert sum(0.85 <= rate <= 1.15 for rate in rates) >= 22, sorted(rates)
