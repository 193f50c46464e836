# SPDX-License-Identifier: GPL-2.0-or-later
"""Drawn hosts: what is drawn, what bounds a score, and that judging seeds stay for judging."""

from __future__ import annotations

import dataclasses

import pytest

from tests.sim import bench, drawn, price
from tests.sim.laws import LAWS, Priced
from tests.sim.plant import GB, MB, Disk, Flood, SyncLoad
from tests.sim.scenarios import Scenario
from writebackd.policy import load_policy

POLICY = load_policy("default")
MANY = [drawn.host(seed) for seed in range(1, 401)]


def test_hosts_are_within_the_ranges_and_cover_them() -> None:
    disks = [host.disks[0] for host in MANY]
    assert all(8 * MB <= disk.drain <= 2000 * MB and disk.cache <= 4 * GB for disk in disks)
    assert all(20e-6 <= disk.scattered_s <= 5e-3 for disk in disks)
    assert min(disk.drain for disk in disks) < 10 * MB
    assert max(disk.drain for disk in disks) > 1600 * MB
    assert {disk.cache > 0.0 for disk in disks} == {True, False}
    assert {disk.volatile for disk in disks} == {True, False}
    assert {host.syncs[0].threads for host in MANY} == {1, 2, 4, 8}
    assert {drawn.in_waves(host) for host in MANY} == {True, False}
    assert all(host.judged >= drawn.FLOOD_S + 15 for host in MANY)
    assert all(host.end - host.judged >= 40 for host in MANY)


def test_a_seed_is_a_host() -> None:
    assert drawn.host(7) == drawn.host(7) != drawn.host(9)


def test_work_and_judging_share_no_seed() -> None:
    assert not set(drawn.seeds("work", 50)) & set(drawn.seeds("judge", 50))
    assert [drawn.half_of(drawn.seeds(half, 5)) for half in drawn.HALVES] == [*drawn.HALVES]
    with pytest.raises(ValueError, match="not both"):
        drawn.half_of((2, 4, 5))


@pytest.mark.parametrize("seed", drawn.seeds("work", 30))
def test_no_contender_has_more_than_physics_allows(seed: int) -> None:
    found = drawn.compare(seed, POLICY, {"present": LAWS["present"]})
    for name, run in found.runs.items():
        assert drawn.score(run) <= 1.02 * found.allowed, name


def test_the_table_has_every_contender() -> None:
    text = drawn.table(drawn.seeds("work", 2), POLICY, {"present": LAWS["present"]}, verbose=True)
    lines = text.splitlines()
    assert lines[0].startswith("work: 2 hosts")
    for name in ("default", "1M", "256M", "best fixed", "present"):
        assert any(line.startswith(name) for line in lines)


def test_the_law_on_trial_is_small() -> None:
    """45 constants and 20 remembered fields at most, and what it says of itself is on one page."""
    constants = [name for name in vars(price) if name.isupper() and name != "BUCKET_EDGES_S"]
    assert len(constants) <= 45 and len(dataclasses.fields(price.Priced)) <= 20
    assert len((price.__doc__ or "").splitlines()) <= 50


def test_the_price_of_a_sync_is_what_it_costs_the_media() -> None:
    """Of an array that pays 2 ms for each block, and holds the flood to four fifths for them."""
    scenario = Scenario("x", disks=(Disk(scattered_s=2e-3, lag_s=3.5),),
                        floods=(Flood(start_s=6.0, writers=4),),
                        syncs=(SyncLoad(threads=4, think_s=0.01),), judged=30.0, end=90.0)
    law = Priced()
    found = bench.judge(bench.run(scenario, policy=POLICY, law=law),
                        bench.run(scenario, flooded=False), bench.run(scenario))
    learned, = law.devices.values()
    assert learned.price == pytest.approx(2e-3, rel=0.35)
    assert found.g == pytest.approx(0.8, abs=0.08)


def test_where_syncs_cost_nothing_there_is_room_at_nearly_all_of_the_rate() -> None:
    scenario = Scenario("x", judged=30.0, end=90.0)
    runs = bench.compare(scenario, POLICY, laws={"price": Priced})
    assert (runs["price"].g or 0.0) > 0.9
    best = max(runs[name].score or 0.0 for name in ("1M", "2M", "4M"))
    assert (runs["price"].score or 0.0) > best
