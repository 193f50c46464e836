# SPDX-License-Identifier: GPL-2.0-or-later
"""A flood in a cgroup that may be paced: what the law gets with io.max as its lever."""

from __future__ import annotations

from dataclasses import replace
from typing import List, Tuple

import pytest

from tests.sim import bench
from tests.sim.plant import MB, Disk, Event, Loop
from tests.sim.scenarios import SLOW_RAID, Scenario
from writebackd.policy import load_policy
from writebackd.policy.schema import Policy
from writebackd.types.levers import LeverKind

# Each block of a sync takes the media as long as its bytes do, or four times that.
CHEAP, DEAR = (replace(SLOW_RAID, scattered_s=4096 * times / (60.0 * MB)) for times in (1, 4))
HOST = Scenario("paced", (CHEAP,), judged=24.0, end=84.0, groups=True)


def policy(pace: str = "on") -> Policy:
    loaded = load_policy("default")
    return replace(loaded, levers=replace(loaded.levers, pace=pace))


def measured(host: Scenario, seed: int, pace: str = "on") -> bench.Run:
    idle, default = bench.run(host, seed=seed, flooded=False), bench.run(host, seed=seed)
    return bench.judge(bench.run(host, policy=policy(pace), seed=seed), idle, default)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("disk,f,g", [(SLOW_RAID, 0.52, 0.85), (CHEAP, 0.5, 0.82),
                                      (DEAR, 0.35, 0.66)])
def test_a_paced_flood_leaves_syncs_what_no_limit_does(
    disk: Disk, f: float, g: float, seed: int
) -> None:
    host = replace(HOST, disks=(disk,))
    paced, alone = measured(host, seed), measured(host, seed, pace="off")
    assert paced.f is not None and paced.g is not None and alone.f is not None
    assert paced.f >= f and paced.g >= g
    assert paced.f >= 2 * alone.f


def paces(host: Scenario, seconds: float) -> List[Tuple[float, float]]:
    """(time, pace) while the flood is held, bytes per second."""
    loop, found = Loop(policy(), host.plant()), []
    while loop.plant.now_s < seconds:
        _, _, decision = loop.tick()
        rates = [each.value for each in decision.settings if each.kind is LeverKind.PACE]
        if rates:
            found.append((loop.plant.now_s, float(sum(rates))))
    return found


def test_the_pace_follows_the_disk_down_and_up() -> None:
    slower = Event(40.0, {"drain": 30.0 * MB})
    faster = Event(100.0, {"drain": 90.0 * MB})
    found = dict(paces(replace(HOST, events=(slower, faster)), 200.0))
    before = [rate / MB for time, rate in found.items() if 25.0 <= time < 40.0]
    # From 55 s on until the law of November 27: now it takes 30 s instead of 15.
    down = [rate / MB for time, rate in found.items() if 75.0 <= time < 100.0]
    up = [rate / MB for time, rate in found.items() if 160.0 <= time]
    assert before and 45.0 <= sum(before) / len(before) <= 60.0
    assert down and 22.0 <= sum(down) / len(down) <= 30.0
    assert up and 65.0 <= sum(up) / len(up) <= 92.0


def test_a_settled_pace_is_seldom_changed() -> None:
    found = [rate for time, rate in paces(HOST, 144.0) if time >= 24.0]
    changes = sum(a != b for a, b in zip(found, found[1:]))
    assert changes <= 44  # in two minutes; 41 were seen
