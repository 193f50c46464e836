# SPDX-License-Identifier: GPL-2.0-or-later
"""What is a flood, whether the cache is full, R, and the price of a sync: estimate/drain.py."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Dict, List, Optional, Sequence, Tuple

import pytest

import samples
from drain_cases import IDLE_S, KNOWN, LIMIT, MB, POLICY, QUICK, SLOW, THRESHOLD, R, syncs
from plant import DISK, HOST, latencies
from writebackd.control.device_decision import decide_device, kernel_floor_bytes
from writebackd.estimate import drain
from writebackd.estimate.drain import (
    Writes,
    is_shown,
    lets_in,
    measure_writes,
    slow_share,
    update_drain,
    written_by,
)
from writebackd.estimate.limit_shares import is_in_force
from writebackd.tuning import (
    BUSY_SHARE,
    DEEP,
    FELL,
    FLOOD_RATE,
    HELD_BACK_SHARE,
    LINK_MOST_S,
    LINK_SHARE,
    MARK,
    MOST_S,
    QUEUED_BYTES,
    SHOWN_S,
    SLOW_MULTIPLE,
    TRUST_S,
    UNLOADED_S,
)
from writebackd.types.device_memory import DeviceMemory, Drain, LawMemory
from writebackd.types.levers import VmLimits
from writebackd.types.samples import ClassSample, DeviceSample, IoClass, SyncSample, VmState

BUSY = DeviceSample(DISK, busy_share=1.0)
DT_S = 0.5
# Values that no bucket of the histogram, at most 12.5 % wide, can blur.
ABOVE, BELOW = 1.3, 0.7


# ---- what is a flood -------------------------------------------------------


def vm(dirty: int = 0, writeback: int = 0) -> VmState:
    return VmState(VmLimits(LIMIT, 0, 1, 0), dirty, writeback, LIMIT, THRESHOLD)


def measured(
    sample: DeviceSample = BUSY, state: VmState = vm(), rate: float = R,  # noqa: B008
    slept: float = 0.0, most: float = 0.0, dt_s: float = 1.0,
) -> Writes:  # fmt: skip
    return measure_writes(sample, state, int(rate * dt_s), slept * dt_s, most * dt_s, dt_s)


@pytest.mark.parametrize("kind", ["dirty", "writeback"])
def test_background_writes_are_a_flood_while_pages_wait(kind: str) -> None:
    assert measured(state=vm(**{kind: THRESHOLD // 4})).flooded
    assert not measured(state=vm(**{kind: THRESHOLD // 4 - 1})).flooded


@pytest.mark.parametrize("dt_s", [0.5, 2.0])
def test_background_writes_are_a_flood_while_writers_sleep_for_the_limit(dt_s: float) -> None:
    found = measured(slept=1.01 * HELD_BACK_SHARE, dt_s=dt_s)
    assert found.flooded and found.held_back
    found = measured(slept=0.99 * HELD_BACK_SHARE, dt_s=dt_s)
    assert not found.flooded and not found.held_back


def test_halfway_to_the_limit_writers_are_held_back_whether_that_is_seen_or_not() -> None:
    half = (LIMIT + THRESHOLD) // 2
    assert measured(state=vm(dirty=half)).held_back
    assert not measured(state=vm(dirty=half - 1)).held_back


def test_a_tick_tells_of_the_disk_where_it_is_busy_or_one_writer_sleeps_for_long() -> None:
    # Many that sleep a little: short-lived ones on a busy disk, and a burst of several.
    idle, wait = replace(BUSY, busy_share=0.99 * BUSY_SHARE), vm(dirty=THRESHOLD)
    assert measured(replace(BUSY, busy_share=BUSY_SHARE), slept=1.0, most=0.05).telling
    assert not measured(idle, slept=3.0, most=0.99 * BUSY_SHARE, dt_s=2.0).telling
    # Under a limit so small that the disk idles, the one that floods sleeps.
    assert measured(idle, slept=0.9, most=1.01 * BUSY_SHARE, dt_s=2.0).telling
    assert not measured(idle, state=wait).telling
    assert not measured(rate=0.99 * FLOOD_RATE, slept=1.0, most=1.0).telling


def test_little_background_writing_is_no_flood_whoever_waits() -> None:
    state = vm(dirty=THRESHOLD)
    assert not measured(state=state, rate=0.99 * FLOOD_RATE, dt_s=2.0).flooded
    assert measured(state=state, rate=1.01 * FLOOD_RATE, dt_s=2.0).flooded


def flushing(count: int, size: int, each_s: float, busy: float = 1.0) -> DeviceSample:
    """A second in which so many of the flusher's requests ended, of so many bytes each."""
    flushed = ClassSample(count, count * size, latencies(each_s, count))
    return replace(BUSY, busy_share=busy, classes={IoClass.BACKGROUND_WRITE: flushed})


def test_a_disk_sets_the_speed_of_a_flusher_that_has_much_in_flight() -> None:
    in_flight_s = QUEUED_BYTES / R  # Little's law
    deep, flat = flushing(256, MB, ABOVE * in_flight_s), flushing(256, MB, BELOW * in_flight_s)
    assert measured(deep).queued and measured(deep).flooded
    assert not measured(flat).queued and not measured(flat).flooded
    # The same requests in two seconds are half as deep.
    assert not measured(deep, rate=R / 2, dt_s=2.0).queued
    reads = ClassSample(256, 256 * MB, latencies(ABOVE * in_flight_s, 256))
    assert not measured(replace(BUSY, classes={IoClass.READ: reads})).queued
    # Small requests, or few behind reads, are all that the flusher has.
    assert not measured(flushing(600, 8192, 0.25)).queued
    assert not measured(flushing(40, MB // 2, 0.6)).queued
    # Bursts of a writer that is slower than the disk.
    burst = replace(deep, busy_share=0.99 * FELL)
    assert measured(burst).flooded and not measured(burst).queued
    # Each of an array's disks has its own queue.
    array = replace(DISK, leaves=("sda", "sdb"), leaf_devnos=("8:0", "8:16"))
    assert not measured(replace(deep, device=array)).queued


def test_what_is_synced_is_no_flood_and_what_is_read_is_no_write() -> None:
    sample = replace(BUSY, classes={
        IoClass.SYNC_WRITE: ClassSample(3000, 3000 * 4096),
        IoClass.BACKGROUND_WRITE: ClassSample(1, 4096),
        IoClass.READ: ClassSample(9000, 9000 * MB),
    })  # fmt: skip
    seen = measured(sample, state=vm(dirty=THRESHOLD))
    assert not seen.flooded and seen.background_rate == pytest.approx(R / 3001)
    assert seen.rate == R


def test_a_disk_has_what_its_volumes_wrote_and_is_not_counted_twice() -> None:
    volume, other = (replace(DISK, name=f"dm-{n}", devno=f"253:{n}") for n in (0, 1))
    disk, first, second = (
        DeviceSample(each, write_bytes=written)
        for each, written in ((DISK, 10 * MB), (volume, 6 * MB), (other, 3 * MB))
    )
    assert written_by((disk, first, second)) == 10 * MB
    # Native multipath counts on no disk that is shown.
    assert written_by((replace(disk, write_bytes=0), first, second)) == 9 * MB


# ---- is the cache full -----------------------------------------------------

SLOW_FROM_S = SLOW_MULTIPLE * IDLE_S


def test_the_mark_is_of_the_syncs_time_and_not_of_their_number() -> None:
    # One in a hundred, which take two thirds of the time.
    few = syncs((0.1e-3, 990), (20e-3, 10))
    assert slow_share(few, IDLE_S, 0.0) == pytest.approx(200 / 299, rel=0.05)
    many = syncs((0.1e-3, 10), (20e-3, 990))
    assert slow_share(many, IDLE_S, 0.0) == pytest.approx(1.0, abs=0.001)


def test_a_sync_is_slow_from_a_multiple_of_its_unloaded_latency_on() -> None:
    assert SLOW_FROM_S > UNLOADED_S
    assert slow_share(syncs((BELOW * SLOW_FROM_S, 9)), IDLE_S, 0.0) == 0.0
    assert slow_share(syncs((ABOVE * SLOW_FROM_S, 9)), IDLE_S, 0.0) == 1.0
    # Nothing is that is quick by any standard.
    assert slow_share(syncs((BELOW * UNLOADED_S, 9)), 1e-6, 0.0) == 0.0
    assert slow_share(syncs((ABOVE * UNLOADED_S, 9)), 1e-6, 0.0) == 1.0


def test_what_a_sync_waits_for_on_the_link_is_no_full_cache() -> None:
    # With room in the cache it waits for its part of what the limit lets queue.
    queued_s = 10e-3
    link_s = LINK_SHARE * queued_s
    assert link_s > SLOW_FROM_S
    assert slow_share(syncs((BELOW * link_s, 9)), IDLE_S, queued_s) == 0.0
    assert slow_share(syncs((ABOVE * link_s, 9)), IDLE_S, queued_s) == 1.0
    # A large limit explains no more than that.
    assert slow_share(syncs((ABOVE * LINK_MOST_S, 9)), IDLE_S, 1.0) == 1.0
    # The limit here takes 8 ms at R, and 24 at a third.
    waits = syncs((1.15 * LINK_SHARE * LIMIT / R, 50))
    assert feed(KNOWN, seconds(3, R), waits, LIMIT).drain.full_s > 0
    assert feed(KNOWN, seconds(3, R / 3), waits, LIMIT).drain.room_s > 0


def test_where_none_returned_the_one_in_flight_tells() -> None:
    assert slow_share(syncs(inflight=1, oldest_s=1.1 * SLOW_FROM_S), IDLE_S, 0.0) == 1.0
    # It may return in the next instant.
    assert slow_share(syncs(inflight=1, oldest_s=0.9 * SLOW_FROM_S), IDLE_S, 0.0) is None
    assert slow_share(syncs(), IDLE_S, 0.0) is None


NEW = DeviceMemory(baseline_s=IDLE_S)
# 31 ms of R and 62 of half of it: it lets in either. 8 ms of R: it may hold the flood itself.
WIDE, NARROW = 8 * MB, 2 * MB


def feed(
    memory: DeviceMemory, rates: Sequence[float], sync: Optional[SyncSample], limit: float = WIDE,
    in_force: bool = True, flooded: bool = True, holds: Optional[float] = None,
    held_back: bool = True, queued: bool = False,
) -> DeviceMemory:  # fmt: skip
    """Ticks of half a second, one for each of `rates`, all with the same syncs.

    The law asks for `limit`; what is in force is that, three times that, or what `holds`.
    """
    memory = replace(memory, law=replace(memory.law, limit_bytes=limit))
    holds = int(holds or (limit if in_force else 3 * limit))
    for rate in rates:
        writes = Writes(rate, rate, flooded, held_back, queued, flooded)
        memory = update_drain(writes, replace(BUSY, sync=sync), memory, holds, DT_S)
    return memory


def seconds(count: float, rate: float) -> List[float]:
    return [rate] * round(count / DT_S)


def part_slow(share: float) -> SyncSample:
    """Syncs whose time is slow by `share`."""
    return syncs((20e-3, round(100 * share)), (0.1e-3, round(20_000 * (1 - share))))


def test_the_cache_is_full_where_slow_syncs_take_more_than_the_mark() -> None:
    assert feed(KNOWN, seconds(10, R), part_slow(MARK - 0.04)).drain.room_s == 10.0
    assert feed(KNOWN, seconds(10, R), part_slow(MARK + 0.04)).drain.full_s > 7.0


def test_the_share_is_one_of_about_a_second() -> None:
    memory = feed(KNOWN, seconds(5, R), QUICK)
    assert feed(memory, seconds(0.5, R), SLOW).drain.slow_share == pytest.approx(0.5)
    full = feed(memory, seconds(5, R), SLOW)
    assert full.drain.slow_share > 0.99
    assert feed(full, seconds(1, R), QUICK).drain.full_s > 0
    assert feed(full, seconds(2, R), QUICK).drain.room_s > 0


def test_a_tick_without_a_sync_tells_nothing_of_the_cache() -> None:
    full = feed(KNOWN, seconds(3, R), SLOW)
    room = feed(KNOWN, seconds(3, R), QUICK)
    for before, full_s, room_s in ((full, 3.0, 0.0), (room, 0.0, 3.0)):
        after = feed(before, seconds(3, R), syncs())
        assert after.drain.slow_share == before.drain.slow_share
        # Nor for how long it has been so: the seconds that count are those that were seen.
        assert after.drain.full_s == before.drain.full_s == full_s
        assert after.drain.room_s == before.drain.room_s == room_s


def test_where_no_unloaded_latency_is_known_that_of_a_write_cache_stands_for_it() -> None:
    new, below_s = replace(KNOWN, baseline_s=None), BELOW * SLOW_MULTIPLE * UNLOADED_S
    # A limit so small that nothing is waited for on the link.
    assert feed(new, seconds(3, R), syncs((below_s, 50)), LIMIT / 4).drain.room_s > 0
    assert feed(new, seconds(3, R), SLOW).drain.full_s > 0


def test_after_the_flood_nothing_is_full() -> None:
    full = feed(KNOWN, seconds(5, R), SLOW)
    after = feed(full, seconds(1, 0.0), SLOW, flooded=False)
    assert after.drain.full_s == 0.0
    assert after.drain.slow_share == pytest.approx(full.drain.slow_share / 2)


# ---- R ---------------------------------------------------------------------


def shown(rates: Sequence[float], limit_in_force: float = 1.0) -> DeviceMemory:
    """The rates under a full cache where R is not known, with the law that asks for it."""
    memory, own = NEW, POLICY.of(DISK)
    for number, rate in enumerate(rates):
        limit = memory.law.limit_bytes or WIDE
        target = int(limit * limit_in_force)
        memory = feed(memory, [rate], SLOW, limit=limit)
        seen = samples.estimate(
            "sda", flooded=True, demand=True, held_back=True, full=True,
            drain_rate=memory.drain_rate, background_rate=rate,
        )  # fmt: skip
        now_s = 1000.0 + DT_S * number
        _, memory = decide_device(
            POLICY, own, kernel_floor_bytes(HOST), now_s, DT_S, target, seen, memory
        )
    return memory


def test_three_seconds_of_a_full_cache_show_the_drain_rate() -> None:
    # Some of the first second went into the cache.
    first = [4 * R, 2 * R]
    later = [R * part for part in (1.2, 0.8, 1.1, 1.0, 0.7, 1.5)]
    assert len(later) * DT_S == SHOWN_S
    assert shown([*first, *later[:-1]]).drain_rate is None
    found = shown([*first, *later])
    # Their median; and no sync has cost any of it yet.
    assert found.drain_rate == pytest.approx(1.05 * R)
    assert found.drain.price_s == 0.0


def test_a_rate_that_falls_to_less_than_a_quarter_shows_r_after_twelve_seconds() -> None:
    full = seconds(1.0, R)  # shows nothing yet
    assert shown([*full, *seconds(1.5, R), *seconds(10.0, 0.2 * R)]).drain_rate is None
    slow = shown([*full, *seconds(1.5, R), *seconds(10.5, 0.2 * R)]).drain_rate
    assert slow == pytest.approx(0.2 * R, rel=0.01)
    # It came back, and what was seen of the sweep does not count.
    back = [*full, *seconds(1.5, R), *seconds(8.0, 0.2 * R), *seconds(7.0, R)]
    assert shown(back).drain_rate == pytest.approx(R, rel=0.05)
    # A third of it is no sweep.
    assert shown([*full, *seconds(0.5, R), *seconds(2.5, R / 3)]).drain_rate is not None


def test_the_first_seconds_that_cost_anything_are_not_yet_the_price() -> None:
    """A sweep of what many syncs left looks like the price of the few in it."""
    found = feed(shown(seconds(5, R)), seconds(1, R / 2), SLOW)
    assert 0.0 < found.drain.sync_rate * found.drain.price_s < 0.05


def test_a_full_cache_shows_r_whatever_limit_is_in_force() -> None:
    assert not is_shown(feed(NEW, seconds(SHOWN_S, R), SLOW, in_force=False).drain, DT_S)
    other = feed(NEW, seconds(SHOWN_S + 1.0, R), SLOW, in_force=False).drain
    assert is_shown(other, DT_S) and other.full_rate == R


@pytest.mark.parametrize("limit,shows", [(5.6, True), (5.5, False)])
def test_a_limit_that_may_hold_the_flood_shows_nothing(limit: float, shows: bool) -> None:
    """It has to be worth 0.9 of 24 ms at the rate that comes."""
    assert lets_in(feed(NEW, seconds(5, R), SLOW).drain, limit * MB) is shows


def test_of_a_rate_that_still_falls_the_lower_one_is_shown() -> None:
    """A cache that fills slowly took a part."""
    falling = [R * (2.0 - 0.06 * number) for number in range(8)]
    assert shown(falling[:-1]).drain_rate is None
    found = shown(falling).drain_rate or 0.0
    assert falling[-1] < found < sum(falling[2:]) / 6


def test_under_a_limit_that_is_not_the_laws_no_drain_rate_is_shown() -> None:
    assert shown(seconds(30, R), 0.7).drain_rate is None
    assert shown(seconds(30, R), 1.4).drain_rate is None
    assert shown(seconds(30, R), 1.1).drain_rate == pytest.approx(R, rel=1e-3)


# As large as a search for R goes: whoever set it, such a limit holds no flood.
LOOSE = math.ceil(MOST_S * R)


def test_a_full_cache_shows_r_under_a_limit_that_is_too_large_to_hold_the_flood() -> None:
    """As found, where nothing is set yet or ever; the law asks for its own in vain."""
    found = feed(NEW, seconds(SHOWN_S + 1.0, R), SLOW, holds=LOOSE)
    assert found.drain_rate == pytest.approx(R, rel=0.05)
    assert feed(NEW, seconds(SHOWN_S, R), SLOW, holds=LOOSE).drain_rate is None
    assert feed(NEW, seconds(30, R), SLOW, holds=0.99 * LOOSE).drain_rate is None
    assert feed(NEW, seconds(30, R), QUICK, holds=LOOSE).drain_rate is None
    # Before the law has begun as well.
    begun = feed(DeviceMemory(), seconds(30, R), SLOW, limit=0.0, holds=LOOSE)
    assert begun.drain_rate == pytest.approx(R, rel=0.05)
    assert found.drain.price_s == 0.0


def test_where_no_limit_holds_a_writer_its_rate_is_not_the_disks() -> None:
    slow = feed(NEW, seconds(30, R / 4), SLOW, holds=LOOSE, held_back=False)
    assert slow.drain_rate is None
    # Nor the last tick of a flood, in waves.
    waves = feed(KNOWN, seconds(10, R), SLOW)
    for _ in range(20):
        waves = feed(waves, seconds(1, R), SLOW, holds=LOOSE)
        waves = feed(waves, seconds(1, R / 9), SLOW, holds=LOOSE, held_back=False)
    assert waves.drain_rate == R


def test_the_last_tick_of_a_flood_is_not_the_disks_under_a_limit_of_ours_either() -> None:
    """Nobody is held back in it: the flood has ended within it."""
    waves = NEW
    for _ in range(4):
        waves = feed(waves, seconds(2, R), SLOW)
        waves = feed(waves, seconds(1, 0.1 * R), SLOW, held_back=False)
        waves = feed(waves, seconds(1, 0.0), SLOW, flooded=False)
    assert is_shown(waves.drain, DT_S) and waves.drain.full_rate == R


def test_where_the_flusher_queues_at_the_disk_r_shows_itself_without_a_limit() -> None:
    def flushed(memory: DeviceMemory, rates: Sequence[float], sync: SyncSample) -> DeviceMemory:
        return feed(memory, rates, sync, holds=LOOSE, held_back=False, queued=True)

    # Few syncs return from a full cache, and those of a moment may all be quick.
    filling = flushed(NEW, [3 * R] + seconds(SHOWN_S - 1.0, R), QUICK)
    assert flushed(filling, [R], QUICK).drain_rate is None
    assert flushed(filling, [R], SLOW).drain_rate == pytest.approx(R, rel=0.05)
    # What the link took while the cache filled is not the disk's rate.
    wide: Dict[str, Any] = {"holds": 3 * LOOSE, "held_back": False, "queued": True}
    link = feed(NEW, [3 * R] * 4 + [R], QUICK, **wide)
    assert feed(link, [R], SLOW, **wide).drain_rate is None
    assert feed(link, [R, R, R], SLOW, **wide).drain_rate == pytest.approx(R, rel=0.05)
    # In a row.
    broken = feed(filling, [R], QUICK, holds=LOOSE, held_back=False)
    assert flushed(broken, [R], SLOW).drain_rate is None
    # A pause drains the cache, and what a flood before it wrote is not the disk's rate now.
    paused = feed(filling, [0.0], QUICK, holds=LOOSE, held_back=False, flooded=False)
    assert flushed(paused, [R], SLOW).drain_rate is None
    # A known one follows a cache that is seen to be full.
    slower = flushed(KNOWN, seconds(SHOWN_S + 1.0, R / 2), SLOW)
    assert slower.drain_rate == pytest.approx(R / 2)
    assert flushed(KNOWN, seconds(30, R / 2), QUICK).drain_rate == R
    # Under the law's own limit the queue says nothing.
    assert feed(NEW, [R], SLOW, queued=True).drain.full_ticks == ()
    begun = feed(flushed(NEW, seconds(SHOWN_S, 3 * R), QUICK), [R], SLOW)
    assert not is_shown(begun.drain, DT_S)


def test_r_follows_the_disk_under_such_a_limit() -> None:
    known = feed(KNOWN, seconds(10, R), SLOW)
    assert feed(known, seconds(SHOWN_S / 3, R / 2), SLOW, holds=LOOSE).drain_rate == R
    slower = feed(known, seconds(SHOWN_S, R / 2), SLOW, holds=LOOSE)
    assert slower.drain_rate == pytest.approx(R / 2)
    faster = feed(slower, seconds(SHOWN_S, R), SLOW, holds=LOOSE)
    assert faster.drain_rate == pytest.approx(R)
    # What a cache takes while it has room is not the disk's rate.
    assert feed(known, seconds(30, 3 * R), QUICK, holds=LOOSE).drain_rate == R


def test_the_few_syncs_under_such_a_limit_have_no_price() -> None:
    """Of one or two a second a rate that varies by a tenth would be all the cost."""
    memory = feed(KNOWN, seconds(10, R), SLOW)
    for _ in range(30):
        memory = feed(memory, [0.9 * R, 1.1 * R], syncs((1.0, 1)), holds=LOOSE)
    assert memory.drain.lost_s == 0.0 and memory.drain.price_s == 0.0


@pytest.mark.parametrize("part", [0.9, 0.8, 0.6])
@pytest.mark.parametrize("sync", [QUICK, SLOW])
def test_a_limit_of_ours_does_not_lower_the_drain_rate(sync: SyncSample, part: float) -> None:
    held = feed(KNOWN, seconds(60, part * R), sync, limit=NARROW)
    assert held.drain_rate == R and held.drain.price_s == 0.0


def test_a_lower_rate_under_a_limit_that_lets_in_more_is_the_disks_after_three_seconds() -> None:
    memory = feed(KNOWN, seconds(10, R), SLOW)
    # Until then it goes down by next to nothing.
    before = feed(memory, seconds(SHOWN_S - DT_S, R / 2), SLOW).drain_rate
    assert 0.98 * R < (before or 0.0) < R
    fallen = feed(memory, seconds(SHOWN_S, R / 2), SLOW)
    assert fallen.drain_rate == pytest.approx(R / 2)
    # In a row.
    broken = seconds(2, R / 2) + seconds(1, R) + seconds(1.5, R / 2)
    assert (feed(memory, broken, SLOW).drain_rate or 0.0) > 0.9 * R
    rested = feed(feed(memory, seconds(1, R / 2), SLOW), seconds(3, R / 2), QUICK)
    assert (feed(rested, seconds(5.5, R / 2), SLOW).drain_rate or 0.0) > 0.9 * R
    # A larger limit than that tells it as well.
    larger = feed(memory, seconds(SHOWN_S, R / 2), SLOW, limit=3 * WIDE)
    assert larger.drain_rate == fallen.drain_rate
    # With room in the cache, whatever wrote so little: nobody knows.
    assert feed(KNOWN, seconds(60, R / 2), QUICK).drain_rate == R


def test_what_syncs_are_known_to_cost_is_no_slower_disk() -> None:
    dear = replace(KNOWN, drain=Drain(rate=R, lost_s=12.0, syncs=3000.0, sync_rate=100.0))
    # They take the rest.
    assert (feed(dear, seconds(6, 0.57 * R), SLOW).drain_rate or 0.0) > 0.9 * R


def test_to_a_little_less_it_comes_down_in_a_minute() -> None:
    """What a first look took for R was partly the cache's."""
    memory, less = feed(KNOWN, seconds(10, R), SLOW), (FELL + 0.01) * R
    after = feed(memory, seconds(TRUST_S, less), SLOW).drain_rate
    assert after is not None
    assert (after - less) / (R - less) == pytest.approx(math.exp(-1), abs=0.06)


def test_what_may_be_a_sweep_has_to_last_for_longer() -> None:
    memory, deep = feed(KNOWN, seconds(10, R), SLOW), (DEEP - 0.05) * R
    lasts_s = SHOWN_S / DEEP
    assert (feed(memory, seconds(lasts_s - DT_S, deep), SLOW).drain_rate or 0.0) > 0.85 * R
    fallen = feed(memory, seconds(lasts_s + DT_S, deep), SLOW)
    assert (fallen.drain_rate or R) < 0.5 * R
    # Sweeps of 3 s every 9 s, as of the syncs' scattered blocks, hardly lower it.
    swept = feed(memory, (seconds(3, deep) + seconds(6, R)) * 20, SLOW)
    assert (swept.drain_rate or 0.0) > 0.9 * R


def test_a_full_cache_that_takes_more_is_a_faster_disk() -> None:
    memory = feed(KNOWN, seconds(10, R), SLOW)
    assert feed(memory, seconds(12, 1.3 * R), SLOW).drain_rate == pytest.approx(1.3 * R, rel=0.05)
    # Under a large limit it may look full for a moment while it takes that.
    assert R < (feed(memory, seconds(3, 2 * R), SLOW).drain_rate or 0.0) < 1.5 * R
    assert feed(KNOWN, seconds(SHOWN_S + DT_S, 2 * R), SLOW).drain_rate == R


def test_what_comes_from_one_full_cache_to_the_next_has_drained() -> None:
    full = feed(KNOWN, seconds(1, R), SLOW)
    again = feed(feed(full, seconds(4, 1.5 * R), QUICK), seconds(1, 1.5 * R), SLOW)
    assert again.drain_rate == pytest.approx(1.5 * R, rel=0.02)
    # Also where writers paused in between: R is no less than the mean.
    paused = seconds(4, 2 * R) + seconds(3, 0.5 * R)
    mean = feed(feed(full, paused, QUICK), seconds(1, R), SLOW).drain_rate
    assert mean == pytest.approx(1.25 * R, rel=0.04)  # the first second still looked full
    # On the way to another limit of the law's too; not under one as found, of gigabytes.
    came = feed(full, seconds(4, 1.5 * R), QUICK)
    moved = feed(came, seconds(0.5, 1.5 * R), SLOW, in_force=False)
    assert moved.drain_rate == pytest.approx(1.5 * R, rel=0.02)
    assert feed(came, seconds(0.5, 1.5 * R), SLOW, holds=R).drain_rate == R
    # Less than that is the writers', or there is room again.
    less = feed(feed(full, seconds(10, R / 2), QUICK), seconds(1, R), SLOW)
    assert less.drain_rate == R
    soon = feed(feed(full, seconds(2, 2 * R), QUICK), seconds(1.5, R), SLOW)
    assert soon.drain_rate == R
    # What fills an empty cache has not drained, nor what came in another flood.
    filled = feed(feed(KNOWN, seconds(10, 2 * R), QUICK), seconds(1, R), SLOW)
    assert filled.drain_rate == R
    other = feed(full, seconds(2, 0.0), QUICK, flooded=False)
    other = feed(feed(other, seconds(4, 1.5 * R), QUICK), seconds(1, R), SLOW)
    assert other.drain_rate == R


def test_without_a_flood_or_without_syncs_nothing_is_learned_here() -> None:
    for part in (0.1, 3.0):
        calm = feed(KNOWN, seconds(30, part * R), SLOW, flooded=False)
        unseen = feed(KNOWN, seconds(30, part * R), None)
        for memory in (calm, unseen):
            assert memory.drain_rate == R and memory.drain.price_s == 0.0
            assert memory.drain.full_s == 0.0


def test_nothing_is_learned_while_another_limit_is_in_force() -> None:
    for part, sync in ((0.3, SLOW), (2.0, SLOW), (3.0, QUICK)):
        memory = feed(KNOWN, seconds(30, part * R), sync, in_force=False)
        assert memory.drain_rate == R and memory.drain.price_s == 0.0


def test_a_drain_rate_of_another_time_does_not_stand_for_ever() -> None:
    """Learned before a restart, of a disk that has become slower: full from the first second."""
    start = feed(KNOWN, seconds(10, R / 4), SLOW, limit=MB)
    assert start.drain_rate == R  # a limit of ours may hold it
    # What drains in 16 ms at R takes 64 at a quarter.
    later = feed(start, seconds(10, R / 4), SLOW, limit=16e-3 * R)
    assert later.drain_rate == pytest.approx(R / 4, rel=0.05)


def test_a_writer_that_is_held_by_nobody_says_nothing_of_the_disk() -> None:
    for part in (0.1, 3.0):
        memory = KNOWN
        for rate in seconds(30, part * R):
            writes = Writes(rate, rate, True, False, False, True)
            memory = update_drain(writes, replace(BUSY, sync=SLOW), memory, int(LIMIT), DT_S)
        assert memory.drain_rate == R and memory.drain.price_s == 0.0


@pytest.mark.parametrize("dt_s", [10.0, 600.0])
def test_a_long_tick_is_one_tick(dt_s: float) -> None:
    memory = feed(KNOWN, seconds(20, 0.95 * R), SLOW)
    writes = Writes(R / 2, R / 2, True, True, False, True)
    for _ in range(9):
        memory = update_drain(writes, replace(BUSY, sync=SLOW), memory, WIDE, dt_s)
    assert memory.drain.lost_s >= 0.0 and memory.drain.syncs >= 0.0
    assert memory.drain_rate is not None and R / 2 <= memory.drain_rate <= R
    assert len(memory.drain.full_ticks) <= SHOWN_S / DT_S
    assert memory.drain.rate == R / 2 and 0.0 <= memory.drain.slow_share <= 1.0


def test_the_limit_asked_for_is_in_force_within_a_fifth_or_so() -> None:
    own = replace(KNOWN, law=LawMemory(100.0))
    assert is_in_force(100, own)
    assert is_in_force(81, own) and is_in_force(124, own)
    # On the way there, in waves, pinned, in a trial, or where somebody else needs less.
    assert not is_in_force(79, own) and not is_in_force(126, own)
    assert not is_in_force(100, replace(own, target_bytes=100, law=LawMemory(1000.0)))
    assert not is_in_force(100, DeviceMemory())


# ---- what a sync costs -----------------------------------------------------


@pytest.mark.parametrize("count", [5, 50, 500])
def test_the_price_of_a_sync_is_what_was_lost_while_full(count: int) -> None:
    # So little less than R is no slower disk.
    memory = feed(KNOWN, seconds(10, 0.92 * R), syncs((20e-3, count)))
    rate = count / DT_S
    assert memory.drain.sync_rate == pytest.approx(rate, rel=0.01)
    assert memory.drain.price_s == pytest.approx(0.071 / rate, rel=0.02)


def test_syncs_that_cost_nothing_make_the_price_lower() -> None:
    dear = feed(KNOWN, seconds(10, 0.92 * R), SLOW)
    mixed = feed(dear, seconds(30, 0.9 * R), QUICK)
    # What is half a minute old weighs a third: of 0.002 s, and none of what is new.
    assert 0.15 < mixed.drain.price_s / dear.drain.price_s < 0.5
    # Nothing was paid for what came with more than R.
    assert feed(KNOWN, seconds(4, 1.2 * R), SLOW).drain.price_s == 0.0


def test_a_slower_disk_does_not_make_syncs_dear() -> None:
    memory = feed(KNOWN, seconds(10, R), SLOW)
    fallen = feed(memory, seconds(SHOWN_S, R / 2), SLOW)
    # Until that was known it looked as if they had cost half of R.
    assert feed(memory, seconds(SHOWN_S - DT_S, R / 2), SLOW).drain.price_s > 0.0
    assert fallen.drain.price_s == 0.0


# ---- the cache's size and fill ---------------------------------------------


def test_what_went_in_until_it_was_full_less_what_drained_is_the_cache() -> None:
    memory = feed(KNOWN, seconds(2, 3 * R), QUICK)
    assert memory.cache_bytes is None and memory.fill_bytes == pytest.approx(4 * R)
    memory = feed(memory, seconds(2, R), SLOW)
    assert memory.cache_bytes == memory.fill_bytes == pytest.approx(4 * R)


def test_what_drained_before_is_not_taken_off() -> None:
    memory = feed(KNOWN, seconds(20, R / 2) + seconds(4, 2.3 * R), QUICK)
    assert feed(memory, seconds(2, R), SLOW).cache_bytes == pytest.approx(5.2 * R)


def test_one_that_fills_slowly_is_not_measured() -> None:
    """What syncs cost meanwhile is not in the bytes."""
    memory = feed(KNOWN, seconds(10, 1.8 * R), QUICK)
    assert feed(memory, seconds(2, R), SLOW).cache_bytes is None


def test_while_it_stays_full_its_size_stays() -> None:
    memory = replace(KNOWN, cache_bytes=4 * R, fill_bytes=4 * R)
    assert feed(memory, seconds(20, 0.9 * R), SLOW).cache_bytes == pytest.approx(4 * R, rel=0.02)


def test_a_disk_without_a_cache_has_no_size_of_one() -> None:
    assert feed(KNOWN, seconds(20, 0.9 * R), SLOW).cache_bytes is None


def test_the_first_flood_shows_the_size_once_r_is_known() -> None:
    """Nobody knew R while the cache filled."""
    filled = feed(NEW, seconds(2, 3 * R), QUICK)
    filled = feed(filled, seconds(6, R), SLOW)
    assert filled.cache_bytes is None
    known = drain.shown(filled)
    assert known.cache_bytes == known.fill_bytes == pytest.approx(4 * R)
    assert known.first_ticks == ()
    # Less than half a second of R may be noise; what is known already is not replaced.
    noise = feed(NEW, seconds(1, 1.4 * R) + seconds(6, R), SLOW)
    assert drain.shown(noise).cache_bytes is None
    assert drain.shown(replace(filled, cache_bytes=7.0)).cache_bytes == 7.0


def test_full_again_without_having_been_empty_says_nothing_of_the_size() -> None:
    memory = replace(KNOWN, cache_bytes=4 * R, fill_bytes=4 * R, was_empty=False)
    memory = feed(memory, seconds(3, R / 2), QUICK)
    again = feed(feed(memory, seconds(2, R), QUICK), seconds(2, R), SLOW)
    assert again.cache_bytes == 4 * R
    filled = feed(feed(KNOWN, seconds(2, 3 * R), QUICK), seconds(2, R), SLOW)
    assert feed(feed(filled, seconds(3, R / 2), QUICK), seconds(2, R), SLOW).cache_bytes == (
        pytest.approx(4 * R)
    )
    # Beside a flood it only seems to be empty.
    seems = feed(feed(memory, seconds(9, R / 4), QUICK), seconds(2, 1.5 * R), QUICK)
    assert feed(seems, seconds(2, R), SLOW).cache_bytes == 4 * R
    emptied = feed(memory, seconds(9, 0.0), QUICK, flooded=False)
    emptied = feed(emptied, seconds(2, 2.5 * R), QUICK)
    assert feed(emptied, seconds(2, R), SLOW).cache_bytes == pytest.approx((4 + 3) * R / 2)


def test_the_fill_follows_what_goes_in_and_what_drains_also_without_a_flood() -> None:
    memory = replace(KNOWN, cache_bytes=4 * R, fill_bytes=4 * R)
    assert feed(memory, seconds(3, 0.0), QUICK, flooded=False).fill_bytes == pytest.approx(R)
    assert feed(memory, seconds(9, 0.0), QUICK, flooded=False).fill_bytes == 0.0
    # No more is in it than fits.
    assert feed(memory, seconds(3, 2 * R), QUICK).fill_bytes == 4 * R
    # One seen full is as full as it gets.
    empty = replace(memory, fill_bytes=1.0)
    assert feed(empty, seconds(3, R), SLOW).fill_bytes > 1.9 * R


def test_where_no_drain_rate_is_known_nothing_is_counted() -> None:
    memory = feed(NEW, seconds(5, 3 * R), QUICK)
    assert feed(memory, seconds(2, R), SLOW).cache_bytes is None and memory.fill_bytes == 0.0


@pytest.mark.parametrize("slow,full", [((20e-3, 12), False), ((20e-3, 92), True)])
def test_a_sync_that_waits_for_a_slice_of_a_paced_flood_is_no_full_cache(
    slow: Tuple[float, int], full: bool
) -> None:
    """As measured: with room in the cache 1 % of syncs take 20 ms or more, 0.35 of all the time."""
    sync, memory = syncs((0.4e-3, 1150), slow), replace(KNOWN, baseline_s=0.3e-3)
    for _ in range(20):
        writes = Writes(R / 2, R / 2, True, True, False, True)
        memory = update_drain(
            writes, replace(BUSY, sync=sync), memory, WIDE, DT_S, pace=0.5 * R
        )
    assert (memory.drain.full_s > 0) is full
