# SPDX-License-Identifier: GPL-2.0-or-later
"""What does not drain takes no room from those that do."""

from __future__ import annotations

from dataclasses import replace
from typing import Sequence, Tuple

import pytest

import samples
from tests.sim.plant import MB, Disk, Event, Flood, Loop, Plant, SyncLoad
from writebackd.control.decide import DIRTYABLE_SHARE, decide
from writebackd.estimate.shares import shared_limit
from writebackd.estimate.stuck import (
    AGAIN_S,
    GRAIN_BYTES,
    HELD_SHARE,
    NOTHING_BYTES,
    STUCK_BYTES,
    STUCK_S,
    watch_stuck,
)
from writebackd.model import (
    Decision,
    DeviceMemory,
    DeviceSample,
    Memory,
    Mode,
    Sample,
    Stuck,
    Trial,
    VmLimits,
    VmState,
)
from writebackd.policy import load_policy

POLICY = load_policy("default")
RAID, OTHER = samples.RAID, samples.STICK
GOAL = 4 * MB
HUNG = DeviceSample(OTHER, inflight=8)
FRESH = Memory(goal_bytes=GOAL, last_raise_s=1000.0)


def look(
    memory: Memory, left: int, limit: int, rate: float = 0.0, other: DeviceSample = HUNG,
    dirtyable: "int | None" = None,
) -> Tuple[Sample, Memory]:
    """A second later: so much is dirty under that limit, and the array wrote at that rate."""
    now = memory.last_raise_s + 1.0
    array = DeviceSample(RAID, write_bytes=int(rate), writes=int(rate) >> 19)
    vm = VmState(VmLimits(limit, 0, MB, 0), left // 2, left - left // 2, limit, MB, dirtyable)
    sample = Sample(time_s=now, wall_s=now, dt_s=1.0, host=samples.HOST, vm=vm,
                    devices=(array, other))
    estimates = {
        RAID.name: samples.estimate(RAID.name, background_rate=rate),
        OTHER.name: samples.estimate(OTHER.name),
    }
    # The clock of these tests.
    memory = replace(memory, last_raise_s=now)
    return sample, replace(memory, stuck=watch_stuck(memory, sample, estimates))


def after(
    lefts: Sequence[int], limit: int = 0, rate: float = 0.0, other: DeviceSample = HUNG,
    memory: Memory = FRESH,
) -> Stuck:
    """Where `limit` is 0 it follows what is dirty, as on its way down."""
    for left in lefts:
        _, memory = look(memory, left, limit or int(1.005 * left), rate, other)
    return memory.stuck


STILL = [129 * MB] * 4
RATE = 60.0 * MB  # which a flood still gets beside what is stuck
ALIVE = replace(HUNG, writes=3)


def test_what_stands_still_above_the_goal_while_a_disk_hangs_is_stuck() -> None:
    stuck = after(STILL, rate=RATE)
    assert stuck.bytes == 129 * MB and stuck.hang == (OTHER.name,)
    assert after(STILL[1:], rate=RATE).bytes == 0  # not before STUCK_S


def test_what_falls_is_not() -> None:
    falling = [129 * MB - each * (STUCK_BYTES + 1) for each in range(20)]
    assert after(falling).bytes == 0
    # By less than that in all the time it is.
    creeping = [129 * MB - each * STUCK_BYTES // 4 for each in range(4)]
    assert after(creeping, rate=RATE).bytes == creeping[-1]


def test_nor_what_holds_nobody_back() -> None:
    assert after(STILL, limit=int(129 * MB / HELD_SHARE) + MB).bytes == 0


def test_under_its_goal_a_flood_stands_still_all_the_time() -> None:
    """Beside a disk that hangs as well, or the limit would grow for ever."""
    assert after([GOAL] * 30, limit=GOAL, rate=RATE).bytes == 0
    slow = NOTHING_BYTES / STUCK_S + 1
    assert after([GOAL] * 30, limit=GOAL, rate=slow, other=ALIVE).bytes == 0
    wide = Memory(goal_bytes=2500 * MB, last_raise_s=1000.0)  # nobody syncs
    assert after([2500 * MB] * 30, limit=2500 * MB, rate=RATE, memory=wide).bytes == 0


def test_where_nothing_is_written_all_that_is_dirty_is_stuck() -> None:
    assert after([GOAL] * 4, limit=GOAL).bytes == GOAL


def test_two_disks_that_fill_up_what_one_drains_are_not_stuck() -> None:
    assert after([800 * MB] * 30, rate=250.0 * MB, other=ALIVE).bytes == 0


def test_a_server_that_does_not_answer_shows_by_what_is_above_the_limit_in_force() -> None:
    stuck = after(STILL, limit=GOAL, rate=RATE, other=ALIVE)
    assert stuck.bytes == 129 * MB and stuck.hang == ()


def test_many_writers_overshoot_a_small_limit_without_being_stuck() -> None:
    swings = [2 * MB, 12 * MB, 5 * MB, 11 * MB] * 8
    assert after(swings, limit=MB, rate=RATE, other=ALIVE).bytes == 0
    assert after([8 * MB] * 30, limit=MB, rate=RATE, other=ALIVE).bytes == 0


def stuck_memory(stuck: Stuck) -> Memory:
    return Memory(goal_bytes=GOAL, last_raise_s=1000.0, stuck=stuck)


KNOWN = Stuck(129 * MB, (OTHER.name,), 1000.0)


def test_it_is_stuck_until_the_disk_writes_again() -> None:
    limit = 129 * MB + GOAL
    assert after([limit] * 90, limit, RATE, memory=stuck_memory(KNOWN)).bytes == 129 * MB
    # One request of a disk that retries is not that.
    tries = replace(HUNG, writes=1, write_bytes=512 << 10)
    assert after([limit], limit, RATE, tries, stuck_memory(KNOWN)).bytes == 129 * MB
    goes_on = replace(HUNG, writes=100, write_bytes=50 * MB)
    assert after([limit], limit, RATE, goes_on, stuck_memory(KNOWN)).bytes == 0
    # Nor is a disk stuck that has nothing to write any more, or is gone.
    assert after([limit], limit, RATE, DeviceSample(OTHER), stuck_memory(KNOWN)).bytes == 0
    gone = stuck_memory(replace(KNOWN, hang=("sdz",)))
    assert after([limit], limit, RATE, memory=gone).bytes == 0


def test_it_is_never_more_than_what_is_dirty() -> None:
    """But less than a grain is no change: each would move the limit."""
    less = 129 * MB - GRAIN_BYTES
    assert after([less], 140 * MB, RATE, memory=stuck_memory(KNOWN)).bytes == 129 * MB
    assert after([less - 1], 140 * MB, RATE, memory=stuck_memory(KNOWN)).bytes == less - 1


def test_where_no_disk_hangs_it_is_tried_whether_it_drains() -> None:
    server = stuck_memory(replace(KNOWN, hang=()))
    limit = 129 * MB + GOAL
    assert after([limit] * int(AGAIN_S), limit, RATE, ALIVE, server).bytes == 129 * MB
    assert after([limit] * int(AGAIN_S + 1), limit, RATE, ALIVE, server).bytes == 0


def decided(memory: Memory, limit: int, dirtyable: "int | None" = None) -> Decision:
    sample, memory = look(memory, 129 * MB, limit, RATE, dirtyable=dirtyable)
    estimates = {
        RAID.name: samples.estimate(RAID.name, demand=True, drain_rate=250.0 * MB),
        OTHER.name: samples.estimate(OTHER.name),
    }
    devices = {name: DeviceMemory() for name in estimates}
    decision, _ = decide(POLICY, replace(memory, devices=devices), sample, estimates)
    return decision


def test_the_limit_has_room_beside_it() -> None:
    alone = decided(stuck_memory(Stuck()), GOAL)
    assert alone.goal_bytes is not None and alone.limit_bytes is not None
    decision = decided(stuck_memory(KNOWN), GOAL)
    assert decision.goal_bytes == alone.goal_bytes + 129 * MB
    # Up to it at once: nobody can dirty a page until then.
    assert decision.limit_bytes is not None and decision.limit_bytes >= 129 * MB
    assert "129M for what is dirty on sdb and does not drain" in decision.reason
    # What waits to be written may be little of it: the flusher has to begin all the same.
    assert decision.background_bytes is not None
    assert decision.background_bytes <= alone.goal_bytes


def test_but_no_more_than_default_limits_allow() -> None:
    dirtyable = 500 * MB
    decision = decided(stuck_memory(KNOWN), GOAL, dirtyable)
    assert decision.goal_bytes == int(DIRTYABLE_SHARE * dirtyable)


def test_what_the_admin_pinned_stays() -> None:
    pinned = replace(stuck_memory(KNOWN), pin_bytes=GOAL)
    assert decided(pinned, 133 * MB).limit_bytes == GOAL


def test_the_other_arm_of_a_trial_has_room_beside_it_too() -> None:
    trial = Trial(RAID.name, 1, 4, True, GOAL, MB, 2000.0, Mode.ENFORCE)
    decision = decided(replace(stuck_memory(KNOWN), trial=trial), 200 * MB)
    assert decision.limit_bytes == 129 * MB + GOAL


@pytest.mark.parametrize("other", [HUNG, ALIVE])
def test_while_a_disk_hangs_the_last_bit_does_not_go_at_once(other: DeviceSample) -> None:
    """It may be all its own."""
    memory = replace(stuck_memory(Stuck()), devices={RAID.name: DeviceMemory()})
    sample, memory = look(memory, 60 * MB, 64 * MB, RATE, other)
    estimates = {
        RAID.name: samples.estimate(RAID.name, demand=True, flooded=True, drain_rate=250.0 * MB,
                                    rate=250.0 * MB),
        OTHER.name: samples.estimate(OTHER.name),
    }
    devices = {name: DeviceMemory() for name in estimates}
    decision, _ = decide(POLICY, replace(memory, devices=devices), sample, estimates)
    assert (decision.limit_bytes == decision.goal_bytes) is (other is ALIVE)


def test_what_is_stuck_is_no_part_of_a_flood_limit() -> None:
    sample, memory = look(stuck_memory(KNOWN), 133 * MB, 129 * MB + GOAL, RATE)
    assert shared_limit(memory, sample) == GOAL


@pytest.mark.parametrize("dirty_s", [0.08, 0.15, 0.8])
def test_a_disk_that_hangs_leaves_the_host_its_floods_and_syncs(dirty_s: float) -> None:
    """With 80 to 800 MB dirty on it; as the disk goes on again the limit is the array's own."""
    host = Plant(
        [Disk(), Disk(drain=100.0 * MB, cache=0.0, baseline_s=8e-3)],
        floods=[Flood(0, start_s=4.0), Flood(1, end_s=dirty_s)], syncs=[SyncLoad(0, start_s=6.0)],
        events=[Event(dirty_s, {"stalled": True}, 1), Event(60.0, {"stalled": False}, 1)],
    )
    loop = Loop(POLICY, host)
    while host.now_s < 35.0:
        loop.tick()
    syncs, written = host.loads[0].done, host.disks[0].written
    while host.now_s < 55.0:
        _, _, decision = loop.tick()
    assert "does not drain" in decision.reason
    assert host.longest_blocked_s <= 1.0
    assert (host.loads[0].done - syncs) / 20.0 > 1000.0
    assert (host.disks[0].written - written) / 20.0 > 0.9 * 250 * MB
    while host.now_s < 85.0:
        _, _, decision = loop.tick()
    assert decision.goal_bytes is not None and decision.goal_bytes < 8 * MB
    assert decision.limit_bytes == decision.goal_bytes
    assert loop.memory.stuck.bytes == 0
