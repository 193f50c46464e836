# SPDX-License-Identifier: GPL-2.0-or-later
"""Sync demand; the first flood, and how much it tells."""

from __future__ import annotations

from typing import Dict, List, Sequence

import pytest

import samples
from paced_plant import PacedPlant
from plant import Plant
from writebackd.estimate.sync_demand import demand_of, unwaited_syncs
from writebackd.policy import load_policy
from writebackd.types.copying import replace
from writebackd.types.device_memory import DeviceMemory
from writebackd.types.samples import CgroupSample, Sample, SyncSample

LEAST = load_policy("default").objective.min_sync_rate


def demanded(
    syncs: Dict[int, int], seconds: int, unwaited: int = 0, oldest_s: float = 0.0,
    lasting: bool = False, least: float = LEAST,
) -> List[int]:  # fmt: skip
    """The seconds with demand, where `syncs` returned in some; the last waits for `oldest_s`."""
    memory, found = DeviceMemory(), []
    for second in range(seconds):
        late_s = oldest_s if second == seconds - 1 else 0.0
        sync = SyncSample(fsyncs=syncs.get(second, 0), oldest_s=late_s)
        window, last, _, on = demand_of(
            sync, memory, 1000.0 + second, 1.0, least, 60.0, 20e-3, lasting, unwaited
        )
        memory = replace(memory, recent_syncs=window, last_demand=last)
        found += [second] if on else []
    return found


def every(gap: int, until: int, count: int = 1) -> Dict[int, int]:
    return dict.fromkeys(range(0, until, gap), count)


@pytest.mark.parametrize("gap,begins", [(1, 2), (5, 10), (10, 20), (12, 24)])
def test_who_commits_regularly_is_protected_from_the_third_commit_on(gap: int, begins: int) -> None:
    assert demanded(every(gap, 100), 100) == list(range(begins, 100))


def test_a_gap_of_more_than_12_s_is_not_regular() -> None:
    assert demanded(every(13, 300), 300) == []


def test_a_lone_sync_and_three_far_apart_are_no_demand() -> None:
    assert demanded({3: 1}, 60) == []
    assert demanded({3: 1, 4: 1}, 60) == []
    assert demanded({0: 9, 30: 9, 60: 9}, 120) == []


def test_50_syncs_within_10_s_are_demand_at_once() -> None:
    assert demanded({5: 50}, 10) == [5, 6, 7, 8, 9]
    assert demanded({5: 25, 14: 25}, 15) == [14]
    assert demanded({5: 25, 15: 25}, 16) == []
    assert demanded({5: 49}, 10) == []


def test_a_commit_that_waits_for_longer_than_the_objective_is_demand() -> None:
    assert demanded({}, 3, oldest_s=21e-3) == [2]
    assert demanded({}, 3, oldest_s=20e-3) == []


def test_the_policy_may_ask_for_more() -> None:
    assert demanded(every(1, 30), 30, least=1.0) == list(range(9, 30))
    assert demanded(every(2, 30), 30, least=1.0) == []


@pytest.mark.parametrize("gap,stays_s", [(1, 5), (2, 5), (4, 8), (10, 20)])
def test_it_outlives_its_last_commit_by_5_s_or_twice_the_gap(gap: int, stays_s: int) -> None:
    assert demanded(every(gap, 41), 120)[-1] == 40 + stays_s - 1
    # During a lasting flood by demand-hold.
    assert demanded(every(gap, 41), 120, lasting=True)[-1] == 99


@pytest.mark.parametrize("unit,waited", [
    ("systemd-journald.service", False), ("systemd-timesyncd.service", False),
    ("chrony.service", False), ("chronyd.service", False), ("postgresql.service", True),
])  # fmt: skip
def test_services_that_nobody_waits_for_do_not_count(unit: str, waited: bool) -> None:
    groups: Sequence[CgroupSample] = (
        CgroupSample(1, f"/system.slice/{unit}", "sda", syncs=7),
        CgroupSample(2, f"/user.slice/{unit}/payload", "sda", syncs=3),
    )
    sample = replace(samples.guard().sample, cgroups=tuple(groups))
    assert unwaited_syncs(sample) == ({} if waited else {"sda": 7})
    assert demanded(every(1, 20, 7), 20, unwaited=7) == []
    assert demanded(every(1, 20, 8), 20, unwaited=7) == list(range(2, 20))


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
