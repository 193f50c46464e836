# SPDX-License-Identifier: GPL-2.0-or-later
"""The first flood of a run, with some of what usually tells missing: R is found all the same."""

from __future__ import annotations

import pytest

from paced_plant import PacedPlant
from plant import Plant
from writebackd.policy import load_policy
from writebackd.types.copying import replace
from writebackd.types.samples import Sample

MB = 1 << 20
POLICY = load_policy("default")


class Unseen(PacedPlant):
    """A kernel without the hook in balance_dirty_pages: nobody is seen to sleep."""

    def _sample(self) -> Sample:
        return replace(super()._sample(), tasks=())


def test_a_daemon_that_starts_in_a_flood_finds_the_drain_rate() -> None:
    """No fsync was ever seen without the flood, so nothing tells what a fast one takes."""
    host = Plant(POLICY, drain_rate=250.0 * MB, flood=True)
    host.run(60)
    assert host.memory.devices["sda"].drain_rate == pytest.approx(250 * MB, rel=0.2)
    seen, _ = host.tick()
    assert (seen.fsync_p99_s or 0.0) < POLICY.objective.fsync_p99_s


def test_where_nobody_is_seen_to_sleep_the_drain_rate_is_found() -> None:
    host = Unseen(POLICY)
    host.calm()
    host.run(60)
    assert host.memory.devices["sda"].drain_rate == pytest.approx(60e6, rel=0.2)
