# SPDX-License-Identifier: GPL-2.0-or-later
"""The bench's own arithmetic, and that it tells good limits from bad ones."""

from __future__ import annotations

import statistics
from typing import List

import pytest

from tests.sim import bench
from tests.sim.plant import MB
from tests.sim.scenarios import BY_NAME, SCENARIOS, Scenario
from writebackd.policy import load_policy

POLICY = load_policy("default")


def series(values: List[int]) -> "list[tuple[float, int]]":
    return [(float(i), value) for i, value in enumerate(values)]


@pytest.mark.parametrize("values,expected", [
    ([4, 4] * 15, 0.0),
    ([2, 4] * 15, 1.0),
    ([2, 2, 2, 4, 4, 4] * 5, 1.0),
    ([2] * 15 + [4] * 15, 0.0),
])
def test_echo_tells_an_oscillation_from_a_step(values: List[int], expected: float) -> None:
    assert bench.echo(values) == pytest.approx(expected, abs=0.35)


def test_steadiness_of_a_limit_that_arrives_and_stays() -> None:
    found = bench.steadiness(series([64] * 10 + [16] * 10 + [4] * 40), since_s=5.0)
    assert found == bench.Steadiness(4.0, 15.0, 0.0, 1.0, 0.0)


def test_steadiness_of_one_that_never_does() -> None:
    found = bench.steadiness(series([2, 4] * 30), since_s=5.0)
    assert found.arrived_s > 50 and found.changes_per_minute > 50 and found.swing == 2


@pytest.mark.parametrize("name", [
    "flood", "mid-flood", "many-dirtiers", "battery-gone", "rebuild-done", "slow-raid", "fast-raid",
    "ssd", "no-cache", "demand-after-rest", "two-raids",
])
def test_where_nothing_comes_and_goes_the_limit_does_not_oscillate(name: str) -> None:
    # Single runs may: two drains within the 25 s that count are a period.
    echoes = [
        bench.steadiness(run.limits, 0.0).echo
        for seed in range(1, 6) for tick_s in (0.5, 1.0)
        for run in [bench.run(BY_NAME[name], policy=POLICY, seed=seed, tick_s=tick_s)]
    ]
    assert statistics.median(echoes) <= 0.1, echoes


def test_contenders_differ_as_they_did_on_the_rig() -> None:
    runs = bench.compare(BY_NAME["flood"], POLICY)
    scores = {name: run.score or 0.0 for name, run in runs.items()}
    assert scores["default"] < 0.01 * scores["15M"] < 0.01 * scores["2M"]
    assert scores["1M"] < 0.5 * scores["2M"]  # below the knee throughput halves
    assert runs["15M"].g == pytest.approx(1.0, abs=0.02)


def test_over_all_scenarios_it_is_nearly_the_best_fixed_limit_and_blocks_nobody() -> None:
    """Which one that is nobody knows before; the same limit for all has four fifths of it."""
    shares, blocked = [], []
    for scenario in SCENARIOS:
        runs = bench.compare(scenario, POLICY)
        share = bench.of_best(runs)
        shares += [share] if share is not None else []
        blocked.append((runs["agent"].longest_blocked_s, scenario.name))
    mean = statistics.geometric_mean(shares)
    print(f"{mean:.3f} of the best fixed limit, worst {min(shares):.2f}")
    assert len(shares) == len(SCENARIOS)
    # Measured: 0.83, and 0.33 without a cache; 0.93 to 0.95, at least 0.88, until the law of
    # November 27 and a plant in which committers sleep.
    assert mean >= 0.81
    assert max(blocked)[0] <= 1.0, max(blocked)


def test_a_scenario_repeats() -> None:
    first, second = (bench.run(BY_NAME["gc-swing-4s"], policy=POLICY) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[s.name for s in SCENARIOS])
def test_every_scenario_is_long_enough_to_be_judged(scenario: Scenario) -> None:
    assert scenario.end - scenario.judged >= bench.SETTLED_S
    for event in scenario.events:
        assert event.time_s < scenario.end
    result = bench.run(scenario, limit=4 * MB)
    assert len(result.sync_rate) == len(scenario.syncs)
    assert result.device_rate > 0 or not scenario.floods


def test_what_users_feel_is_the_mean_the_worst_second_and_the_longest_commit() -> None:
    scenario = Scenario("x", judged=10.0, end=50.0)
    wide, narrow = (bench.felt(bench.run(scenario, limit=4 * MB, background=int(share * 4 * MB)))
                    for share in (0.5, 0.9))
    assert wide.mean_s == pytest.approx(1.4e-3, rel=0.2)
    assert wide.worst_second_s < 0.03 and wide.longest_s < 0.05
    assert narrow.worst_second_s > 5 * wide.worst_second_s or narrow.longest_s > 0.3
    assert bench.felt(bench.Run()) == bench.Felt(None, 0.0, 0.0)
