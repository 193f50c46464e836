# SPDX-License-Identifier: GPL-2.0-or-later
"""An SSD whose flushes are what syncs wait for: the flood keeps much of its rate all the same."""

from __future__ import annotations

from typing import Tuple

import pytest

from tests.sim import bench
from tests.sim.plant import Event, Flood, SyncLoad
from tests.sim.scenarios import FLUSHED_LATER, SSD_FLUSHED, Scenario
from writebackd.policy import load_policy

LATER = Event(22.0, {"leaps": FLUSHED_LATER, "leaps_full": FLUSHED_LATER})
FLOOD = (Flood(start_s=6.0),)
COMMITS = (SyncLoad(think_s=12e-3),)
PODS = (SyncLoad(threads=2), *COMMITS)
PULLS = (Flood(start_s=6.0, on_s=4.0, off_s=1.0, writers=2),)


@pytest.mark.parametrize("seed", [1, 2, 3])
# A steady flood kept 0.7 with a score of 20 times that of default limits, until the law of November
# 27: what 3 to 4 MB let in is taken for R again.
@pytest.mark.parametrize("policy,floods,syncs,events,kept,times", [
    ("etcd", FLOOD, COMMITS, (), 0.36, 3.5),
    ("etcd", FLOOD, COMMITS, (LATER,), 0.36, 3.5),
    # Of a pull each pause is lost; default limits use it.  0.6 and 20 times while memory took what
    # drains in it.
    ("kubernetes-node", PULLS, PODS, (), 0.29, 5.0),
    ("db-ssd", FLOOD, (SyncLoad(),), (), 0.36, 9.5),
])
def test_commits_come_back_and_the_flood_keeps_what_a_small_limit_would_take(
    policy: str, floods: Tuple[Flood, ...], syncs: Tuple[SyncLoad, ...],
    events: Tuple[Event, ...], kept: float, times: float, seed: int,
) -> None:
    """A law that took what 4 MB let in for R had g of 0.42 to 0.5, and an eighth of the score."""
    host = Scenario("flushed", (SSD_FLUSHED,), floods, syncs, events, judged=20.0)
    idle = bench.run(host, seed=seed, flooded=False)
    default = bench.run(host, seed=seed)
    agent = bench.judge(bench.run(host, policy=load_policy(policy), seed=seed), idle, default)
    limit = bench.judge(default, idle, default)
    assert agent.g is not None and agent.g >= kept
    assert agent.score is not None and limit.score is not None
    assert agent.score >= times * limit.score
