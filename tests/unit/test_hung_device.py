# SPDX-License-Identifier: GPL-2.0-or-later
"""What does not drain takes no room from those that do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Mapping, Sequence, Tuple

import pytest

import samples
from plant import latencies
from tests.sim.plant import MB, Disk, Event, Flood, Loop, Plant, SyncLoad
from writebackd.control.decide import decide, rebounded, released
from writebackd.estimate.hung_device import hung_devices, track_hung_devices
from writebackd.estimate.limit_shares import shared_limit
from writebackd.policy import load_policy
from writebackd.policy.schema import Policy
from writebackd.tuning import AGAIN_S, DIRTYABLE_SHARE, STUCK_BYTES, STUCK_TAKEN
from writebackd.types.core_memory import Memory, Stuck, Trial
from writebackd.types.decision import Decision, Mode
from writebackd.types.device_memory import DeviceMemory
from writebackd.types.histogram import Histogram
from writebackd.types.levers import VmLimits
from writebackd.types.samples import ClassSample, DeviceSample, IoClass, Sample, TaskSample, VmState

POLICY = load_policy("default")
RAID, OTHER = samples.RAID, samples.STICK
GOAL = 4 * MB
HUNG = DeviceSample(OTHER, inflight=8)
FRESH = Memory(goal_bytes=GOAL, last_raise_s=1000.0)


def look(
    memory: Memory, left: int, limit: int, other: DeviceSample = HUNG,
    dirtyable: "int | None" = None, dt_s: float = 1.0, written: int = 60 * MB,
    slept: "str | None" = RAID.name, slept_s: float = 0.3, busy: float = 0.2,
) -> Tuple[Sample, Memory]:
    """A tick later: so much is dirty under that limit, and the array wrote 60 MB.

    Who writes to `slept` slept for the limit, and the array was busy so much of the time.
    """
    now = memory.last_raise_s + dt_s  # the clock of these tests
    array = DeviceSample(RAID, write_bytes=written, writes=120, inflight=8, busy_share=busy)
    tasks = (TaskSample(7, "dd", 1, slept, throttled_s=slept_s),)
    vm = VmState(VmLimits(limit, 0, MB, 0), left // 2, left - left // 2, limit, MB, dirtyable)
    sample = Sample(time_s=now, wall_s=now, dt_s=dt_s, host=samples.HOST, vm=vm,
                    devices=(array, other), tasks=tasks)
    memory = replace(memory, last_raise_s=now)
    return sample, replace(memory, stuck=track_hung_devices(memory, sample))


def after(
    lefts: Sequence[int], limit: int = 0, other: DeviceSample = HUNG, memory: Memory = FRESH,
    dt_s: float = 1.0, written: int = 60 * MB, **more: Any,
) -> Stuck:
    """Where `limit` is 0 it follows what is dirty, as on its way down."""
    for left in lefts:
        in_force = limit or int(1.005 * left)
        _, memory = look(memory, left, in_force, other, dt_s=dt_s, written=written, **more)
    return memory.stuck


STILL = [129 * MB] * 4
ALIVE = replace(HUNG, writes=3)


def test_what_stands_still_above_the_goal_while_a_disk_hangs_is_stuck() -> None:
    stuck = after(STILL)
    assert stuck.bytes == 129 * MB and stuck.hang == (OTHER.name,)
    assert after(STILL[1:]).bytes == 0  # not before STUCK_S
    # Where the limit went below it in its last step as well.
    assert after(STILL, limit=GOAL).bytes == 129 * MB


def test_what_falls_is_not() -> None:
    falling = [129 * MB - each * (STUCK_BYTES + 1) for each in range(20)]
    assert after(falling).bytes == 0
    # By less than that in all the time it is.
    creeping = [129 * MB - each * STUCK_BYTES // 4 for each in range(4)]
    assert after(creeping).bytes == creeping[-1]
    # From the highest: what swings is written.
    assert after([40 * MB, 43 * MB, 40 * MB + 1] * 10, limit=GOAL).bytes == 0


def test_nor_what_holds_nobody_back() -> None:
    assert after(STILL, limit=int(129 * MB / STUCK_TAKEN) + MB).bytes == 0


def test_under_its_goal_a_flood_stands_still_all_the_time() -> None:
    """Beside a disk that hangs as well, or the limit would grow for ever."""
    assert after([GOAL] * 30, limit=GOAL).bytes == 0
    wide = replace(FRESH, goal_bytes=2500 * MB)  # nobody syncs
    assert after([2500 * MB] * 30, limit=2500 * MB, memory=wide).bytes == 0


@pytest.mark.parametrize("goal", [1, 1.3, 1.5, 2.2, 3.1, 4])
@pytest.mark.parametrize("overshot", [0, 0.3, 1.2, 3, 7.9])
def test_a_flood_that_fills_its_own_room_is_not_stuck_as_well(goal: float, overshot: float) -> None:
    """Or each would make room for the next."""
    stuck = replace(KNOWN, bytes=int(129.05 * MB))
    memory = replace(FRESH, goal_bytes=int(goal * MB), stuck=stuck, stuck_room=130 * MB)
    limit = 130 * MB + int(goal * MB)
    lefts = [limit + int(overshot * MB)] * 60
    assert after(lefts, limit, memory=memory).bytes == stuck.bytes


def test_what_a_second_disk_leaves_is_stuck_as_well() -> None:
    limit = 129 * MB + GOAL
    stuck = after([200 * MB] * 5, limit, memory=stuck_memory(KNOWN))
    assert stuck.bytes == 200 * MB
    assert stuck.since_s == KNOWN.since_s  # measured anew as soon as it would have been


CREEP, TRICKLE = 300 << 10, 500 << 10  # a second


def test_what_the_disks_own_writers_add_takes_no_room_either() -> None:
    """They creep on, until the room is full and hardly anybody writes any more."""
    limit = 129 * MB + GOAL
    assert after([limit] * 5, limit, memory=stuck_memory(KNOWN), written=CREEP).bytes == limit
    assert after([limit] * 60, limit, memory=stuck_memory(KNOWN), written=TRICKLE).bytes == 129 * MB


@pytest.mark.parametrize("goal", [2, 4, 64, 900])
@pytest.mark.parametrize("share", [0.91, 1.0, 1.03, 1.24])
def test_what_fills_a_limit_that_was_there_before_is_stuck_too(goal: float, share: float) -> None:
    """The disk hangs in mid-flood: no more than its own limit is dirty, and nobody else writes."""
    memory = replace(FRESH, goal_bytes=int(goal * MB))
    left = int(share * goal * MB)
    limit = max(memory.goal_bytes or 0, left)
    stuck = after([left] * 4, limit, memory=memory, written=100 << 10)
    assert (stuck.bytes, stuck.hang) == (left, (OTHER.name,))
    assert after([left] * 3, limit, memory=memory, written=100 << 10).bytes == 0


WIDE = replace(FRESH, goal_bytes=64 * MB)
HELD: Mapping[str, Any] = {"limit": 64 * MB, "memory": WIDE, "written": 0}


@pytest.mark.parametrize("other", [
    {"slept": OTHER.name},  # its own writers fill whatever room they get
    {"slept": None},  # of a server
    {"slept": "sdz"},
    {"slept_s": 0.0},  # dirties pages, and has room
    {"busy": 0.7},  # writes all the time, and no more: random writes to a slow disk
    {"written": 800 << 10},
    {"limit": 75 * MB},  # there is room
])
def test_but_only_if_others_wait_for_it(other: Mapping[str, Any]) -> None:
    """Or the limit would grow for as long as a disk hangs."""
    assert after([64 * MB] * 8, **HELD).bytes == 64 * MB
    assert after([64 * MB] * 30, **{**HELD, **other}).bytes == 0


def test_they_have_to_wait_all_the_time() -> None:
    memory = WIDE
    for tick in range(30):
        slept = None if tick % 3 == 2 else RAID.name
        _, memory = look(memory, 64 * MB, 64 * MB, written=0, slept=slept)
    assert memory.stuck.bytes == 0


@pytest.mark.parametrize("goal", [1, 4, 64, 2500])
@pytest.mark.parametrize("rate", [0.8, 4, 60])
def test_what_a_slow_disk_writes_beside_it_is_not(goal: int, rate: float) -> None:
    memory = replace(FRESH, goal_bytes=goal * MB)
    lefts = [goal * MB] * 30
    assert after(lefts, goal * MB, memory=memory, written=int(rate * MB)).bytes == 0


def array(took_s: float = 2e-3, **classes: int) -> DeviceSample:
    """It wrote so many bytes of each class in a tick, nine requests each; syncs keep it busy."""
    latency = latencies(took_s, 9)
    seen = {IoClass[name]: ClassSample(9, size, latency) for name, size in classes.items()}
    return DeviceSample(
        RAID, write_bytes=sum(classes.values()), writes=9, classes=seen, busy_share=0.9
    )


def untold(seen: DeviceSample) -> DeviceSample:
    """The same where the kernel keeps no start times, and queues that are busy for half a tick."""
    told = seen.classes or {}
    classes = {name: replace(each, latency=Histogram()) for name, each in told.items()}
    return replace(seen, classes=classes, busy_share=0.5)


def beside(sample: Sample, memory: Memory, *devices: DeviceSample) -> Memory:
    """The tick with these instead of the array."""
    sample = replace(sample, devices=(*devices, HUNG))
    memory = replace(memory, last_raise_s=sample.time_s)
    return replace(memory, stuck=track_hung_devices(memory, sample))


def behind(*devices: DeviceSample, tasks: Tuple[TaskSample, ...] = ()) -> int:
    """What is stuck after eight ticks in which the limit was full; these instead of the array."""
    limit, memory = 129 * MB + GOAL, stuck_memory(KNOWN)
    for _ in range(8):
        sample, _ = look(memory, limit, limit)
        memory = beside(replace(sample, tasks=(*sample.tasks, *tasks)), memory, *devices)
    return memory.stuck.bytes


@pytest.mark.parametrize("busy, more", [
    (array(SYNC_WRITE=8 * MB, JOURNAL=8 * MB, BACKGROUND_WRITE=CREEP), True),
    (array(SYNC_WRITE=8 * MB, JOURNAL=8 * MB), True),
    (array(SYNC_WRITE=8 * MB, JOURNAL=8 * MB, BACKGROUND_WRITE=60 * MB), False),
    # Works on pages for most of the tick, though it gets few of them done.
    (array(0.08, SYNC_WRITE=8 * MB, BACKGROUND_WRITE=CREEP), False),
    (array(0.08, SYNC_WRITE=8 * MB), True),
    (untold(array(SYNC_WRITE=8 * MB, BACKGROUND_WRITE=CREEP)), True),
    (replace(untold(array(SYNC_WRITE=8 * MB, BACKGROUND_WRITE=CREEP)), busy_share=0.7), False),
    # Seen by diskstats only: a volume whose requests are another's.
    (replace(array(SYNC_WRITE=8 * MB), classes={}, busy_share=0.2), False),
    (replace(array(SYNC_WRITE=8 * MB), classes=None, busy_share=0.2), False),
])
def test_what_syncs_write_is_no_writeback(busy: DeviceSample, more: bool) -> None:
    """A database makes the limit small, and its fsyncs go on all the time."""
    assert behind(busy) == 129 * MB + more * GOAL


def test_what_writers_bring_to_a_server_is_written_back_as_far_as_anybody_knows() -> None:
    """Or the limit would grow for as long as they flood it beside a disk that hangs."""
    for device, brought, more in ((None, 0, True), (None, MB, False), (RAID.name, MB, True)):
        copy = TaskSample(8, "cp", 1, device, dirtied_bytes=brought)
        found = behind(array(SYNC_WRITE=8 * MB), tasks=(copy,))
        assert found == 129 * MB + more * GOAL


def test_volumes_of_the_disk_that_hangs_are_no_others_though_they_show_it_later() -> None:
    second = replace(HUNG, device=replace(OTHER, name="dm-1", devno="254:1"))
    for inflight, more in ((0, True), (8, False)):  # another disk's, idle; or one that hangs, too
        memory = WIDE
        for tick in range(8):
            sample, _ = look(memory, 64 * MB, 64 * MB, slept="dm-1")
            late = replace(second, inflight=inflight if tick else 0)
            memory = beside(sample, memory, late)
        assert memory.stuck.bytes == (64 * MB if more else 0)


def test_what_volumes_of_one_disk_write_back_is_counted_once() -> None:
    seen = array(BACKGROUND_WRITE=CREEP)
    volumes = [replace(seen, device=replace(RAID, name=f"dm-{n}", devno=f"254:{n}"))
               for n in range(3)]
    assert behind(seen, *volumes) == 129 * MB + GOAL


def test_what_several_disks_write_back_is_counted_together() -> None:
    seen = array(BACKGROUND_WRITE=CREEP)
    second = replace(RAID, name="sdc", devno="8:32", leaves=("sdc",), leaf_devnos=("8:32",))
    assert behind(seen, replace(seen, device=second)) == 129 * MB


def test_disks_whose_leaves_are_not_listed_are_several_as_well() -> None:
    bare = [replace(array(BACKGROUND_WRITE=CREEP), device=replace(each, leaf_devnos=()))
            for each in (RAID, replace(RAID, name="sdc", devno="8:32"))]
    assert behind(*bare) == 129 * MB


def test_a_flood_that_is_above_its_limit_for_a_moment_is_not() -> None:
    over = int(1.3 * GOAL)
    assert after([GOAL, GOAL, GOAL, over] * 10, limit=GOAL).bytes == 0
    assert after([GOAL, over, over, over], limit=GOAL).bytes == 0
    assert after([over, over, over, over], limit=GOAL).bytes == over


def test_a_second_disk_that_hangs_leaves_the_first_its_own() -> None:
    """While that shows nothing under way for a tick."""
    third = replace(RAID, name="sdc", devno="8:32", leaves=("sdc",), leaf_devnos=("8:32",))
    limit, memory = 400 * MB, stuck_memory(KNOWN)
    for tick in range(5):
        first = replace(HUNG, inflight=0) if tick == 2 else HUNG
        both = (first, DeviceSample(third, inflight=4))
        sample = replace(look(memory, limit, limit)[0], devices=both)
        memory = replace(memory, last_raise_s=sample.time_s)
        memory = replace(memory, stuck=track_hung_devices(memory, sample))
    assert memory.stuck.bytes == limit and memory.stuck.hang == (OTHER.name, "sdc")
    # Both are back: what each writes comes off, but a volume's is its disk's.
    back = replace(HUNG, writes=1, write_bytes=50 * MB)
    also = DeviceSample(third, writes=1, write_bytes=60 * MB)
    volume = replace(also, device=replace(third, name="dm-0", devno="254:0"))
    stuck = replace(memory.stuck, hang=(OTHER.name, "sdc", "dm-0"))
    sample, _ = look(memory, limit, limit)
    sample = replace(sample, devices=(back, also, volume))
    assert track_hung_devices(replace(memory, stuck=stuck), sample).bytes == limit - 110 * MB


def test_a_volume_hangs_though_its_disk_serves_others() -> None:
    classes = {IoClass.SYNC_WRITE: ClassSample(9, 9 << 12, Histogram())}
    on = DeviceSample(replace(OTHER, name="dm-5", devno="254:5"), inflight=3, classes=classes)
    sample, _ = look(FRESH, GOAL, GOAL, on)
    assert hung_devices(sample) == ("dm-5",)
    assert hung_devices(replace(sample, devices=(replace(on, device=OTHER),))) == ()


def test_two_disks_that_fill_up_what_one_drains_are_not_stuck() -> None:
    for ticks in range(4, 12):
        assert after([800 * MB] * ticks, other=ALIVE).bytes == 0
        assert after([800 * MB] * ticks, other=DeviceSample(OTHER)).bytes == 0


@pytest.mark.parametrize("alive", [
    {"writes": 1}, {"write_bytes": 512}, {"read_bytes": 512}, {"others": 1},
    {"classes": {IoClass.FLUSH: ClassSample(1, 0, Histogram())}},
])
def test_who_completes_anything_does_not_hang(alive: Mapping[str, Any]) -> None:
    sample, _ = look(FRESH, GOAL, GOAL, replace(HUNG, **alive))
    assert hung_devices(sample) == ()
    assert hung_devices(look(FRESH, GOAL, GOAL)[0]) == (OTHER.name,)


def test_it_has_to_hang_all_the_time() -> None:
    """A slow stick completes nothing in this tick or that."""
    memory = FRESH
    for tick in range(30):
        _, memory = look(memory, 129 * MB, 130 * MB, ALIVE if tick % 3 == 2 else HUNG)
    assert memory.stuck.bytes == 0


def test_a_tick_in_which_the_guest_was_paused_is_no_window() -> None:
    assert after(STILL[:2], dt_s=600.0).bytes == 0


def test_another_policy_leaves_it_stuck() -> None:
    memory = rebounded(replace(stuck_memory(KNOWN), limit_bytes=133 * MB))
    assert after([133 * MB], 133 * MB, memory=memory) == KNOWN


def stuck_memory(stuck: Stuck) -> Memory:
    return replace(FRESH, stuck=stuck, stuck_room=stuck.bytes)


KNOWN = Stuck(129 * MB, (OTHER.name,), 1000.0)


def test_what_the_disk_writes_again_is_not_stuck_any_more() -> None:
    limit = 129 * MB + GOAL
    assert after([limit] * 90, limit, memory=stuck_memory(KNOWN)).bytes == KNOWN.bytes
    trickle = replace(HUNG, writes=1, write_bytes=MB)
    assert after([limit] * 90, limit, trickle, stuck_memory(KNOWN)).bytes == 39 * MB
    assert after([limit] * 129, limit, trickle, stuck_memory(KNOWN)) == Stuck()
    # Nor where it has nothing to write any more, or is gone.
    idle = DeviceSample(OTHER)
    assert after([limit] * 3, limit, idle, stuck_memory(KNOWN)) == Stuck()
    # But a request that is tried again is not under way for a moment.
    assert after([limit] * 2, limit, idle, stuck_memory(KNOWN)).bytes == KNOWN.bytes
    _, memory = look(stuck_memory(KNOWN), limit, limit, idle)
    _, memory = look(memory, limit, limit)
    assert after([limit] * 2, limit, idle, memory).bytes == KNOWN.bytes
    gone = stuck_memory(replace(KNOWN, hang=("sdz",)))
    assert after([limit], limit, memory=gone) == Stuck()


def test_it_is_never_more_than_what_is_dirty() -> None:
    assert after([100 * MB], 140 * MB, memory=stuck_memory(KNOWN)).bytes == 100 * MB


def test_after_a_while_it_is_measured_anew() -> None:
    limit = 129 * MB + GOAL
    assert after([limit] * int(AGAIN_S), limit, memory=stuck_memory(KNOWN)).bytes == 129 * MB
    assert after([limit] * int(AGAIN_S + 1), limit, memory=stuck_memory(KNOWN)).bytes == 0


@pytest.mark.parametrize("off", [
    {"goal_bytes": None}, {"pin_bytes": GOAL}, {"yielded": "tuned"}, {"mode": Mode.OBSERVE},
])
def test_where_the_limit_is_not_the_laws_nothing_is_stuck(off: Mapping[str, Any]) -> None:
    assert after(STILL, memory=replace(stuck_memory(KNOWN), **off)) == Stuck()


def decided(
    memory: Memory, limit: int, dirtyable: "int | None" = None, policy: Policy = POLICY
) -> Decision:
    sample, memory = look(memory, 129 * MB, limit, dirtyable=dirtyable)
    estimates = {
        RAID.name: samples.estimate(RAID.name, demand=True, drain_rate=250.0 * MB),
        OTHER.name: samples.estimate(OTHER.name),
    }
    devices = {name: DeviceMemory() for name in estimates}
    decision, _ = decide(policy, replace(memory, devices=devices), sample, estimates)
    return decision


def test_the_limit_has_room_beside_it() -> None:
    alone = decided(stuck_memory(Stuck()), GOAL)
    assert alone.goal_bytes is not None and alone.limit_bytes is not None
    decision = decided(stuck_memory(KNOWN), 130 * MB)
    assert decision.goal_bytes == alone.goal_bytes + 129 * MB
    # Up to it at once: nobody can dirty a page until then.
    assert decision.limit_bytes == decision.goal_bytes
    assert "129M stuck on sdb" in decision.reason
    # What waits to be written may be little of it: the flusher has to begin all the same.
    assert decision.background_bytes is not None
    assert decision.background_bytes <= alone.goal_bytes


def test_but_no_more_than_default_limits_allow() -> None:
    dirtyable = 500 * MB
    decision = decided(stuck_memory(KNOWN), GOAL, dirtyable)
    assert decision.goal_bytes == int(DIRTYABLE_SHARE * dirtyable)


def test_nor_than_the_ceiling_where_nobody_knows_how_much_that_is() -> None:
    policy = replace(POLICY, limits=replace(POLICY.limits, ceiling_bytes=50 * MB))
    assert decided(stuck_memory(KNOWN), GOAL, policy=policy).goal_bytes == 50 * MB


def test_what_the_admin_pinned_stays() -> None:
    pinned = replace(stuck_memory(KNOWN), pin_bytes=GOAL)
    assert decided(pinned, 133 * MB).limit_bytes == GOAL


def test_the_other_arm_of_a_trial_has_room_beside_it_too() -> None:
    trial = Trial(RAID.name, 1, 4, True, GOAL, MB, 2000.0, Mode.ENFORCE)
    for limit in (200 * MB, GOAL):
        decision = decided(replace(stuck_memory(KNOWN), trial=trial), limit)
        assert decision.limit_bytes == 129 * MB + GOAL


@pytest.mark.parametrize("other", [HUNG, ALIVE])
def test_while_a_disk_hangs_the_last_bit_does_not_go_at_once(other: DeviceSample) -> None:
    """It may be all its own."""
    memory = replace(stuck_memory(Stuck()), devices={RAID.name: DeviceMemory()})
    sample, memory = look(memory, 60 * MB, 64 * MB, other)
    estimates = {
        RAID.name: samples.estimate(RAID.name, demand=True, flooded=True, drain_rate=250.0 * MB,
                                    rate=250.0 * MB),
        OTHER.name: samples.estimate(OTHER.name),
    }
    devices = {name: DeviceMemory() for name in estimates}
    decision, _ = decide(POLICY, replace(memory, devices=devices), sample, estimates)
    assert (decision.limit_bytes == decision.goal_bytes) is (other is ALIVE)


def test_what_is_stuck_is_no_part_of_a_flood_limit() -> None:
    sample, memory = look(stuck_memory(KNOWN), 133 * MB, 129 * MB + GOAL)
    assert shared_limit(memory, sample) == GOAL
    # But until the limit has come there it is another one than what was asked for.
    sample, memory = look(stuck_memory(KNOWN), 129 * MB, 130 * MB)
    assert shared_limit(memory, sample) == 130 * MB


def test_a_limit_of_the_run_before_has_room_for_it_already() -> None:
    """With more in each tick it would run away."""
    memory = replace(stuck_memory(KNOWN), limit_bytes=133 * MB, hold_until_s=1e9)
    sample, memory = look(memory, 129 * MB, 133 * MB)
    estimates = {name: samples.estimate(name) for name in (RAID.name, OTHER.name)}
    devices = {name: DeviceMemory() for name in estimates}
    memory = replace(memory, devices=devices, last_raise_s=0.0)  # no cooldown any more
    decision, memory = decide(POLICY, memory, sample, estimates)
    assert decision.limit_bytes == 133 * MB and "just restarted" in decision.reason


def test_put_back_nothing_is_stuck() -> None:
    assert released(stuck_memory(KNOWN)).stuck == Stuck()
    assert released(stuck_memory(KNOWN)).stuck_room == 0


def test_a_request_now_and_then_moves_no_limit() -> None:
    limits = {
        decided(stuck_memory(replace(KNOWN, bytes=129 * MB - less)), 133 * MB).limit_bytes
        for less in range(0, MB, MB // 8)
    }
    assert len(limits) == 1


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
    assert "stuck on sdb" in decision.reason
    assert host.longest_blocked_s <= 1.0
    assert (host.loads[0].done - syncs) / 20.0 > 1000.0
    assert (host.disks[0].written - written) / 20.0 > 0.9 * 250 * MB
    while host.now_s < 85.0:
        _, _, decision = loop.tick()
    assert decision.goal_bytes is not None and decision.goal_bytes < 8 * MB
    assert decision.limit_bytes == decision.goal_bytes
    assert loop.memory.stuck.bytes == 0
