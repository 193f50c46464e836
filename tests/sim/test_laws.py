# SPDX-License-Identifier: GPL-2.0-or-later
"""The other laws do what their ideas say, in the frame that is the agent's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.sim import bench, contest
from tests.sim.laws import LAWS
from tests.sim.plant import MB, Disk
from tests.sim.scenarios import BY_NAME, Scenario
from writebackd.model import Memory, State
from writebackd.policy import load_policy

POLICY = load_policy("default")
OTHERS = [name for name in LAWS if name != "present"]


@pytest.mark.parametrize("name", OTHERS)
def test_each_law_is_an_honest_one(name: str) -> None:
    """Far better than the 15 MB that admins found, on the disk where these were found."""
    runs = bench.compare(BY_NAME["flood"], POLICY, laws={name: LAWS[name]})
    assert (runs[name].score or 0.0) > 2 * (runs["15M"].score or 0.0)
    assert runs[name].longest_blocked_s < 1.0


@pytest.mark.parametrize("name", OTHERS)
def test_each_law_follows_the_disk(name: str) -> None:
    """A disk of four times the speed gets a larger limit, by the noisiest law a third larger."""
    settled = [
        bench.steadiness(bench.run(
            Scenario("x", disks=(Disk(drain=drain * MB, cache=1024.0 * MB),)),
            policy=POLICY, law=LAWS[name]()).limits, 6.0).settled_bytes
        for drain in (150.0, 600.0)
    ]
    assert settled[1] > 1.3 * settled[0]


@pytest.mark.parametrize("scenario", ["no-sync", "fsync-storm"])
@pytest.mark.parametrize("name", OTHERS)
def test_idle_and_resting_hosts_are_treated_as_by_the_agent(name: str, scenario: str) -> None:
    limits = [bench.run(BY_NAME[scenario], policy=POLICY, law=LAWS[law]()).limits[-1][1]
              for law in (name, "present")]
    assert limits[0] == pytest.approx(limits[1], rel=0.1)


def test_a_law_has_no_say_in_what_is_not_managed() -> None:
    """As in the lab, where the host's own disks are excluded and nothing is estimated of them."""
    plant = BY_NAME["flood"].plant()
    plant.advance(2.0)
    sample = plant.sample()
    seen, = sample.devices
    sample = replace(sample, devices=(replace(seen, excluded="not asked for"),))
    decision, _ = LAWS["ecn"]()(POLICY, Memory(), sample, {})
    assert [each.state for each in decision.devices] == [State.EXCLUDED]
    assert decision.limit_bytes is None


def test_the_table_names_every_law_and_scenario() -> None:
    chosen = [BY_NAME["flood"], BY_NAME["slow-raid"]]
    lines = contest.tables(chosen, POLICY).splitlines()
    assert [line.split()[0] for line in lines[3:5]] == ["flood", "slow-raid"]
    assert lines[2].split() == ["scenario", "static", "15M", *LAWS]
    flood = dict(zip(lines[2].split()[1:], map(float, lines[3].split()[1:])))
    assert flood["present"] > flood["static"] > flood["15M"]
