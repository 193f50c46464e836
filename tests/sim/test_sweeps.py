# SPDX-License-Identifier: GPL-2.0-or-later
"""Whenever a flood begins between two sweeps of the destage, the drain rate is found."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest

from tests.sim.plant import MB, SWEEP_EVERY_S, Disk, Flood, Loop, Plant, SyncLoad
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
    assert sum(0.85 <= rate <= 1.15 for rate in rates) >= 27, sorted(rates)


@pytest.mark.parametrize("rate, cache, block_s", [(162, 213, 1e-3), (85, 200, 0.7e-3)])
def test_nor_for_its_first_r(rate: int, cache: int, block_s: float) -> None:
    """Where one begins as soon as the cache is full, and leaves the flood a tenth for 8 s."""
    disk = Disk(drain=rate * MB, cache=cache * MB, scattered_s=block_s, lag_s=3.0)
    first = []
    for seed in range(8):
        plant = Plant((disk,), (Flood(start_s=6.0),), (SyncLoad(),), seed=seed)
        loop, known = Loop(POLICY, plant, Memory()), None
        while known is None and plant.now_s < 40.0:
            _, estimates, _ = loop.tick(0.5)
            known = next(iter(estimates.values())).drain_rate
        first.append((known or 0.0) / disk.drain)
    assert sum(each > 0.6 for each in first) >= 7, first  # 0.07 to 0.12 of it in all eight
