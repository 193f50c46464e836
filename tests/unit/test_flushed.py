# SPDX-License-Identifier: GPL-2.0-or-later
"""Disks whose flushes are what syncs wait for: how that is seen, and which limit comes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, List, Optional

import pytest

from hold_cases import BOUNDS, KNEE, LATE_S, NOW, R, Step, holding, late, seen, step
from samples import MIB
from tests.sim.plant import bucket
from writebackd.control.climb import (
    FIRST_JUDGED_S,
    PATIENCE_MOST_S,
    STAYS,
    WIDE,
    WIDE_GAIN,
    WIDEST_S,
)
from writebackd.control.hold import FELL_S, FOLLOW_S, LATE_LASTS_S, PAUSED, asked_for, rest
from writebackd.control.seek import seek_most
from writebackd.control.steps import JUDGE_S, LOOSE_S, MUCH_SHORT, REMEMBERED_S
from writebackd.estimate.drain import FORGOTTEN_S, Writes, update_drain
from writebackd.estimate.flushes import (
    FLUSH_HALF_S,
    FLUSH_LEAST_S,
    FLUSH_SHARE,
    FLUSH_STILL,
    count_flushes,
    flushes_wait,
)
from writebackd.kernel.diskstats import DiskStats
from writebackd.kernel.sampler import Sampler
from writebackd.model import (
    Climb,
    Device,
    DeviceMemory,
    DeviceSample,
    Estimate,
    Histogram,
    Hold,
    Phase,
    State,
    SyncSample,
)

DISK = Device("sda", "8:0", "8:0", ("sda",), ("8:0",))


# ---- what is seen ----------------------------------------------------------


def ticked(
    flush_s: float, sync_s: float, flushes: int = 100, memory: Optional[DeviceMemory] = None,
    dt_s: float = 1.0,
) -> DeviceMemory:
    """After a tick with so many flushes and half as many syncs."""
    syncs = SyncSample(flushes // 2, latency=Histogram(((bucket(sync_s), flushes // 2),)))
    sample = DeviceSample(DISK, sync=syncs, flushes=flushes, flush_s=flushes * flush_s)
    return counted(sample, memory or DeviceMemory(), dt_s)


def counted(sample: DeviceSample, memory: DeviceMemory, dt_s: float = 1.0) -> DeviceMemory:
    """`memory` after the tick of `sample`."""
    sync_s = sample.sync.latency.mean() if sample.sync is not None else None
    return replace(memory, flushed=count_flushes(sample, memory, sync_s, dt_s))


def test_flushes_that_take_long_are_what_syncs_wait_for() -> None:
    assert flushes_wait(ticked(1.01 * FLUSH_LEAST_S, 10e-3))
    # A cache with a battery answers at once, whatever a sync waits for.
    assert not flushes_wait(ticked(0.99 * FLUSH_LEAST_S, 10e-3))


def test_flushes_that_are_little_of_a_sync_are_not() -> None:
    # A bucket is an eighth of an octave wide.
    assert flushes_wait(ticked(10e-3, 0.85 * 10e-3 / FLUSH_SHARE))
    assert not flushes_wait(ticked(10e-3, 1.15 * 10e-3 / FLUSH_SHARE))


@pytest.mark.parametrize("sample", [
    DeviceSample(DISK, flushes=9, flush_s=1.0),  # no probe
    DeviceSample(DISK, sync=SyncSample(), flushes=9, flush_s=1.0),  # nobody's sync came back
])  # fmt: skip
def test_a_tick_that_tells_nothing_changes_nothing(sample: DeviceSample) -> None:
    known = ticked(3e-3, 10e-3)
    assert counted(sample, known) == known
    assert not flushes_wait(counted(sample, DeviceMemory()))


def test_a_disk_that_gets_no_flushes_any_more_is_not_waited_for() -> None:
    """After `write through` in queue/write_cache, or with the battery back."""
    none = DeviceSample(DISK, sync=SyncSample(1, latency=Histogram(((bucket(10e-3), 1),))))
    memory = ticked(3e-3, 10e-3)
    for _ in range(12):
        memory = counted(none, memory)
    assert not flushes_wait(memory)
    # Where there never were any they are not counted.
    assert counted(none, DeviceMemory()) == DeviceMemory()


def test_flushes_wait_until_they_are_much_quicker() -> None:
    """Each change of mind would cost what was measured."""
    for part, still in ((1.15, True), (0.85, False)):
        sync_s = 10e-3 / (part * FLUSH_STILL * FLUSH_SHARE)
        before = DeviceMemory(flushed=(10e-3, sync_s, True))
        assert flushes_wait(ticked(10e-3, sync_s, memory=before)) is still
        assert not flushes_wait(ticked(10e-3, sync_s))


def test_a_tick_counts_by_its_length() -> None:
    """In a pause of the flood there are 20 times as many flushes, all quick."""
    slow = ticked(4e-3, 10e-3)
    assert flushes_wait(ticked(0.2e-3, 0.6e-3, flushes=4000, memory=slow))
    # But the disk may have become another.
    memory = slow
    for _ in range(12):
        memory = ticked(0.2e-3, 0.6e-3, memory=memory)
    assert not flushes_wait(memory)
    later = ticked(0.0, 0.6e-3, memory=slow, dt_s=2 * FLUSH_HALF_S)
    assert later.flushed is not None and later.flushed[0] == pytest.approx(1e-3)


@pytest.mark.parametrize("leaves", [("8:0",), ("8:0", "8:16")])
def test_flushes_of_a_stack_are_those_of_its_disks(
    leaves: "tuple[str, ...]",
) -> None:
    """device-mapper and md count a flush as a write, if at all."""
    made = Sampler.__new__(Sampler)
    made._last = {number: stats(0) for number in ("253:0", *leaves)}
    disks = {"253:0": stats(0), **{number: stats(40) for number in leaves}}
    stack = replace(DISK, name="dm-0", devno="253:0", leaf_devnos=leaves)
    found = made._flushed(stack, disks, stats(0))
    assert (found.flushes, found.flush_ms) == (40 * len(leaves), 120 * len(leaves))
    # A disk's own are in the row that is read anyway.
    own = made._flushed(DISK, {}, stats(7))
    assert (own.flushes, own.flush_ms) == (7, 21)


def stats(flushes: int) -> DiskStats:
    return DiskStats(0, 0, 0, 0, 0, 0, 0, 0, 0, flushes, 3 * flushes)


def full_ticks(memory: DeviceMemory, seconds: int, held: bool = True) -> DeviceMemory:
    """Under one limit, at half of R, with many slow writes."""
    for _ in range(seconds):
        writes = Writes(R / 2, R / 2, slow_share=0.5, flooded=True, held_back=held, telling=True)
        memory, _ = update_drain(writes, DeviceSample(DISK, busy_share=1.0), memory, KNEE, 1.0)
    return memory


def test_where_flushes_wait_a_lower_rate_is_believed_slowly() -> None:
    known = DeviceMemory(drain_rate=R, drain_limit_bytes=KNEE, tau_s=10e-3, was_full=True)
    behind = replace(known, flushed=(4e-3, 10e-3, True))
    rate = full_ticks(behind, int(FORGOTTEN_S / 2)).drain_rate
    assert rate == pytest.approx(R * 0.5**0.5, rel=0.01)
    assert full_ticks(behind, int(1.2 * FORGOTTEN_S)).drain_rate == pytest.approx(R / 2)
    # Not where the limit holds nobody back, and not where flushes are quick.
    assert full_ticks(behind, 6, held=False).drain_rate == pytest.approx(R / 2)
    assert full_ticks(known, 6).drain_rate == pytest.approx(R / 2)
    # A higher one is.
    slow = replace(behind, drain_rate=R / 3)
    assert full_ticks(slow, 6).drain_rate == pytest.approx(R / 2)


# ---- which limit -----------------------------------------------------------


RATE = 0.7 * R
FIRST = int(seek_most(RATE))


def flushed(**more: object) -> Estimate:
    """Slow writes, a full cache by that, and a rate that was taken for R."""
    return late(**{"flushes_wait": True, "full": True, "rate": RATE, "slow_share": 0.4, **more})


def measured(now: Climb, rate: float = RATE, mean_s: float = 8e-3, **more: object) -> Hold:
    """A limit judged for long enough, any patience over."""
    usual = holding(
        rate, waited=(JUDGE_S * mean_s, JUDGE_S), climb=now,
        changed_s=NOW - 1.01 * PATIENCE_MOST_S, flushed_s=NOW - 1.0,
    )  # fmt: skip
    return replace(usual, **more)  # type: ignore[arg-type]


def tick(hold: Hold, estimate: Optional[Estimate] = None) -> Step:
    return step(estimate or flushed(), hold)


@pytest.mark.parametrize("phase", [Phase.SEEK, Phase.HOLD])
@pytest.mark.parametrize("more", [{}, {"drain_rate": None}, {"drain_rate": 3 * R}])
def test_the_search_begins_with_a_much_larger_limit(
    phase: Phase, more: Dict[str, object]
) -> None:
    """Neither a full cache nor R is believed, and nothing is drained."""
    taken = tick(measured(Climb(), phase=phase, full_s=9.0, late_s=9.0), flushed(**more))
    assert taken.limit == taken.hold.limit_bytes == FIRST and taken.state is State.PROBE
    assert taken.hold.phase is phase and taken.hold.climb.from_bytes == KNEE


def test_what_draining_or_filling_had_begun_ends() -> None:
    for phase in (Phase.DRAIN, Phase.FILL):
        hold = measured(Climb(), phase=phase, drain_bytes=KNEE // 2, flushed_s=None)
        taken = tick(hold)
        assert taken.hold.phase is Phase.HOLD and taken.limit == KNEE
        assert taken.hold.changed_s == NOW and taken.hold.carried == (0.0, 0.0)
        # Also where the flood has ended meanwhile: its next one does not begin with such a limit.
        limit, resting = rest(BOUNDS, flushed(flooded=False), hold)
        assert resting.phase is Phase.HOLD and limit == KNEE
        assert asked_for(BOUNDS, flushed(), resting) == KNEE


@pytest.mark.parametrize("waits", [True, False])
def test_what_was_measured_is_forgotten_when_flushes_begin_to_wait_or_cease(waits: bool) -> None:
    """It was counted in other units, and the search was another."""
    more: Dict[str, Any] = {
        "full_s": 9.0, "late_s": 9.0, "seek_rate": R, "phase": Phase.SEEK,
    }  # fmt: skip
    hold = measured(
        Climb(KNEE // 2, R, 1.0, tries=4), flushed_s=None if waits else NOW - 1.0, **more
    )
    taken = tick(hold, flushed(flushes_wait=waits, rate=R, full=False, fsync_p99_s=0.1e-3))
    after = taken.hold
    assert taken.limit == KNEE and after.climb == Climb() and after.phase is Phase.HOLD
    assert (after.full_s, after.late_s, after.seek_rate) == (0.0, 0.0, 0.0)
    assert after.carried[0] <= R and after.waited == (0.0, 0.0)
    # Of the limit as it is; or of R x tau.
    assert after.changed_s == (hold.changed_s if waits else NOW)
    larger = tick(replace(hold, limit_bytes=FIRST), flushed(flushes_wait=waits, full=False))
    assert larger.limit == (FIRST if waits else KNEE)
    # R has still to be found where it is not known.
    blind = flushed(flushes_wait=waits, full=False, drain_rate=None, held_back=False)
    assert tick(hold, blind).hold.phase is Phase.SEEK
    # And nothing is forgotten while nothing changes.
    same = tick(measured(Climb(tries=4, begin_bytes=KNEE)), flushed(held_back=False))
    assert same.hold.climb.tries == 4 and same.hold.carried[1] > JUDGE_S


def test_what_was_tried_long_ago_is_tried_again() -> None:
    old = Climb(up=True, failed=3, tries=9, begin_bytes=KNEE)
    for since_s, anew in ((0.99 * REMEMBERED_S, False), (1.01 * REMEMBERED_S, True)):
        taken = tick(measured(old, flushed_s=NOW - since_s, changed_s=NOW))
        assert (taken.hold.climb == Climb()) is anew
        assert (taken.hold.climb == old) is not anew
        assert taken.hold.flushed_s == NOW


def test_a_limit_on_trial_when_the_flood_ended_is_not_where_the_next_search_begins() -> None:
    tried = Climb(from_bytes=KNEE, begin_bytes=KNEE, up=True, rate=RATE, mean_s=1e-2, tries=1)
    hold = measured(tried, limit_bytes=FIRST, flushed_s=NOW - 1.01 * REMEMBERED_S, changed_s=NOW)
    taken = tick(hold)
    assert taken.limit == taken.hold.limit_bytes == KNEE


def test_what_lasted_in_one_flood_has_not_lasted_in_the_next() -> None:
    loose: Dict[str, Any] = {"loose_s": LOOSE_S, "late_s": LATE_LASTS_S}
    early = flushed(held_back=False)
    for since_s, limit in ((1.0, KNEE // 2), (30.0, KNEE)):
        assert tick(measured(Climb(), flushed_s=NOW - since_s, **loose), early).limit == limit


def test_at_the_floor_with_nobody_held_back_nothing_is_tried_and_nothing_fails() -> None:
    loose: Dict[str, Any] = {"loose_s": LOOSE_S, "late_s": LATE_LASTS_S, "flushed_s": NOW - 1.0}
    old = Climb(begin_bytes=KNEE, tries=2, failed=1)
    hold = measured(old, limit_bytes=BOUNDS.floor, changed_s=NOW - 100.0, **loose)
    taken = tick(hold, flushed(held_back=False))
    assert taken.state is State.EXHAUSTED and taken.limit == BOUNDS.floor
    assert (taken.hold.climb.tries, taken.hold.climb.failed) == (2, 1)


def test_the_first_limit_is_not_judged_for_long() -> None:
    carried = RATE * FIRST_JUDGED_S, FIRST_JUDGED_S
    short: Dict[str, Any] = {"carried": carried, "changed_s": NOW - 0.5}
    assert tick(measured(Climb(), **short)).limit == FIRST
    begun = Climb(begin_bytes=KNEE, up=True)
    assert tick(measured(begun, **short)).limit == KNEE
    # Of a disk whose flushes are quick a full cache is still one.
    quick = measured(Climb(), flushed_s=None, **short)
    assert tick(quick, flushed(flushes_wait=False)).limit != FIRST


def judged(rate: float, mean_s: float, now: Climb, limit: int) -> Step:
    return tick(measured(now, rate, mean_s, limit_bytes=limit), flushed(rate=rate))


def test_the_first_larger_limit_stays_where_it_brings_throughput() -> None:
    """Also where syncs wait twice as long; else R would be what a small limit of ours let in."""
    now = Climb(KNEE, RATE, 8e-3, up=True, tries=1, begin_bytes=KNEE)
    for part, kept in ((1.02, True), (0.98, False)):
        taken = judged(part * WIDE_GAIN * RATE, 20e-3, now, FIRST)
        assert (taken.hold.climb.from_bytes != 0) is kept
        assert kept or taken.limit == KNEE
    # Of later ones each has to earn what it costs.
    later = replace(now, begin_bytes=KNEE // 4)
    assert judged(1.02 * WIDE_GAIN * RATE, 20e-3, later, FIRST).limit == KNEE
    # Also from where smaller ones that earned have led.
    for tries, kept in ((2, True), (3, False), (5, False)):
        taken = judged(1.15 * RATE, 4 * 8e-3, replace(now, tries=tries), FIRST)
        assert (taken.hold.climb.from_bytes != 0) is kept
        assert kept or taken.limit == KNEE
    # And so has a smaller one.
    down = replace(now, up=False, rate=2 * RATE)
    assert judged(2 * WIDE_GAIN * RATE, 20e-3, down, KNEE // 2).limit == KNEE


def test_a_host_that_became_slower_during_a_try_is_no_answer() -> None:
    now = Climb(KNEE, RATE, 8e-3, up=True, tries=1, begin_bytes=KNEE)
    slower = judged(0.98 * RATE / WIDE_GAIN, 20e-3, now, FIRST)
    assert slower.limit == KNEE and slower.hold.climb == replace(now, from_bytes=0)
    again = tick(measured(slower.hold.climb, changed_s=NOW - 5.0), flushed(drain_rate=RATE))
    assert again.limit == FIRST and again.hold.climb.tries == 2
    # Once: where the disk swings that is no accident.
    twice = judged(0.98 * RATE / WIDE_GAIN, 20e-3, replace(now, tries=2), FIRST)
    assert twice.hold.climb.failed == 1
    same = judged(1.02 * RATE / WIDE_GAIN, 20e-3, now, FIRST)
    assert same.limit == KNEE and same.hold.climb.failed == 1 and not same.hold.climb.up


def test_what_the_first_larger_limit_brought_is_held_while_nothing_is_missing() -> None:
    found = Climb(up=True, tries=1, begin_bytes=KNEE)
    for since_s, part, tried in ((0.99, 1.0, False), (1.01, 1.0, True), (0.1, 0.85, True)):
        hold = measured(found, limit_bytes=FIRST, changed_s=NOW - since_s * PATIENCE_MOST_S)
        taken = tick(hold, flushed(drain_rate=RATE / part))
        assert (taken.limit != FIRST) is tried and (taken.limit > FIRST) is tried
    # Where it was no better the smaller ones follow at once.
    failed = replace(found, up=False, failed=1)
    assert tick(measured(failed, changed_s=NOW - 5.0)).limit == int(KNEE / WIDE)


def test_a_larger_limit_is_no_larger_than_what_takes_a_tenth_of_a_second() -> None:
    found, rate = Climb(up=True, tries=1, begin_bytes=KNEE), 2 * R
    most = int(WIDEST_S * rate)
    assert most > seek_most(rate)
    for limit, larger in ((KNEE * 4, WIDE * KNEE * 4), (0.9 * most, most), (most, most)):
        # At the rate or at R, whichever is more.
        for now_, known in ((rate, rate), (0.8 * rate, rate)):
            hold = measured(found, now_, limit_bytes=int(limit))
            taken = tick(hold, flushed(rate=now_, drain_rate=known))
            assert taken.limit == max(int(larger), int(seek_most(now_)))


def test_smaller_limits_are_half_as_large() -> None:
    now = Climb(up=False, failed=1, tries=1, begin_bytes=KNEE)
    assert tick(measured(now)).limit == int(KNEE / WIDE)


def test_nothing_larger_is_tried_where_the_limit_holds_nobody_back() -> None:
    taken = tick(measured(Climb()), flushed(held_back=False))
    assert taken.limit == KNEE and taken.state is State.GUARD
    # What is on trial is judged all the same.
    now = Climb(KNEE, RATE, 8e-3, up=True, tries=1, begin_bytes=KNEE // 4)
    hold = measured(now, limit_bytes=FIRST)
    assert tick(hold, flushed(held_back=False)).limit == KNEE


def test_where_nobody_is_held_back_and_syncs_are_late_a_smaller_limit_is_tried() -> None:
    loose: Dict[str, Any] = {"loose_s": LOOSE_S, "late_s": LATE_LASTS_S}
    failed = Climb(up=True, tries=3, failed=1, fruitless=1, begin_bytes=KNEE)
    for now in (Climb(), failed):
        # Whatever throughput R says to be missing.
        for rate in (RATE, 0.9 * PAUSED * R):
            taken = tick(measured(now, rate, **loose), flushed(held_back=False, rate=rate))
            assert taken.limit == int(KNEE / WIDE) and taken.state is State.SQUEEZE
            assert taken.hold.carried == (0.0, 0.0)
    # Not in a pause, nor where syncs are as wanted.
    for less in ({"loose_s": LOOSE_S - 1.5}, {"late_s": 0.0}):
        taken = tick(measured(Climb(), **{**loose, **less}), flushed(held_back=False))
        assert taken.limit == KNEE and taken.state is State.GUARD
    # Nor where they are held back again.
    assert tick(measured(Climb(), **loose)).hold.loose_s == 0.0
    # A long one of little throughput is measured.
    hold = measured(Climb(begin_bytes=KNEE), carried=(0.0, 0.0), waited=(0.0, 0.0), **loose)
    little = flushed(held_back=False, rate=0.1 * R, fsyncs=10, fsync_total_s=0.1)
    assert tick(hold, little).hold.carried == (0.1 * R, 1.0)


def test_where_smaller_ones_do_not_help_either_that_is_said() -> None:
    hold = measured(Climb(), changed_s=NOW - 30.0, late_s=LATE_LASTS_S, loose_s=LOOSE_S)
    said: List[State] = []
    for number in range(30):
        slow = flushed(held_back=False, fsyncs=50, fsync_total_s=50 * LATE_S)
        taken = step(slow, hold, NOW + number)
        hold, said = taken.hold, [*said, taken.state]
    assert said[-1] is State.EXHAUSTED and taken.limit == KNEE and STAYS in taken.why


def test_waits_count_by_time_and_not_in_pauses() -> None:
    """Half a second of pause has as many syncs as ten of flood."""
    hold = measured(Climb(begin_bytes=KNEE), carried=(0.0, 0.0), waited=(0.0, 0.0))
    many = {"fsyncs": 1000, "fsync_total_s": 1.0}
    assert tick(hold, flushed(**many)).hold.waited == pytest.approx((1e-3, 1.0))
    paused = flushed(**many, rate=0.9 * PAUSED * R, held_back=False)
    assert tick(hold, paused).hold.waited == (0.0, 0.0)
    # A disk that became slow is no pause: its writers are held back.
    slow = flushed(**many, rate=0.9 * PAUSED * R)
    assert tick(hold, slow).hold.waited == pytest.approx((1e-3, 1.0))
    # Where flushes are quick every sync counts, and every tick.
    hold = replace(hold, late_s=0.0, flushed_s=None)
    quick = step(seen(**many, rate=0.9 * PAUSED * R, held_back=False), hold)
    assert quick.hold.waited == (1.0, 1000)


def mean_s(waited: "tuple[float, float]", oldest_s: float) -> float:
    """What the search takes for the mean wait."""
    taken = tick(measured(Climb(), waited=waited), flushed(oldest_fsync_s=oldest_s))
    assert taken.limit == FIRST
    return taken.hold.climb.mean_s


def test_one_in_flight_counts_for_as_long_as_it_has_waited() -> None:
    usual = JUDGE_S * 8e-3, JUDGE_S
    # That of the moment is no longer than others were.
    assert mean_s(usual, 20e-3) == pytest.approx(8e-3, rel=0.02)
    assert mean_s(usual, 5.0) == pytest.approx((JUDGE_S * 8e-3 + 25.0) / (JUDGE_S + 5.0))
    assert mean_s((0.0, 0.0), 5.0) == pytest.approx(5.0)


def test_a_short_tick_with_syncs_is_no_shorter_wait() -> None:
    """Of three seconds, where the others had none."""
    assert mean_s((0.5 * 8e-3, 0.5), 0.0) == pytest.approx(8e-3)


def test_the_limit_to_begin_with_is_one_for_the_mean_rate() -> None:
    for rate in (0.2 * RATE, 0.0):
        assert tick(measured(Climb(), changed_s=NOW - 5.0), flushed(rate=rate)).limit == FIRST


def test_what_a_try_brought_is_r_at_least_and_no_reason_for_the_next_one() -> None:
    now = Climb(KNEE, RATE, 8e-3, up=True, tries=1, begin_bytes=KNEE)
    more = 1.5 * RATE
    hold = measured(now, more, limit_bytes=FIRST, changed_s=NOW - 5.0)
    taken = tick(hold, flushed(rate=more, drain_rate=RATE))
    assert taken.hold.proved_rate == pytest.approx(more) and taken.limit == FIRST
    less = tick(hold, flushed(rate=more, drain_rate=2 * RATE))
    assert less.hold.proved_rate is None


def test_a_rate_that_fell_is_measured_anew_before_a_larger_limit_is_tried() -> None:
    """Or the larger one would be compared with what came before the fall."""
    found = Climb(up=True, tries=1, begin_bytes=KNEE)
    for part, anew in ((1.02, False), (0.93, True)):
        hold = measured(found, R, limit_bytes=FIRST, fell_s=FELL_S - 1.0)
        taken = tick(hold, flushed(rate=part * MUCH_SHORT * R, drain_rate=2 * R))
        assert (taken.limit == FIRST) is anew
        assert not anew or taken.hold.carried == taken.hold.waited == (0.0, 0.0)
        # One tick is no fall, nor the time to try anything.
        once = tick(replace(hold, fell_s=0.0), flushed(rate=0.7 * R, drain_rate=2 * R))
        assert once.limit == FIRST and once.hold.fell_s == 1.0 and once.hold.carried[0]
        # Nor where half of a long window has just become the past.
        long = R * 2 * JUDGE_S, 2 * JUDGE_S
        half = replace(hold, fell_s=0.0, carried=long)
        halved = tick(half, flushed(rate=0.7 * R, drain_rate=2 * R))
        assert halved.limit == FIRST and halved.hold.fell_s == 1.0
        # What was seen of a new limit is all its own.
        new = replace(hold, fell_s=FELL_S, changed_s=NOW - FOLLOW_S - 2 * JUDGE_S)
        assert tick(new, flushed(rate=0.5 * R, drain_rate=2 * R)).limit > FIRST
    # What is on trial is judged by all of it.
    now = replace(found, from_bytes=KNEE, rate=R, mean_s=8e-3)
    slow = tick(measured(now, R, limit_bytes=FIRST), flushed(rate=0.5 * R, drain_rate=R))
    assert slow.hold.climb.from_bytes == 0


@pytest.mark.parametrize("rates", [
    (300.0, 200.0),  # a disk in bursts
    (250.0, 250.0, 250.0, 250.0, 0.0),  # a pull: two seconds and a pause
    (300.0, 300.0, 300.0, 300.0, 100.0, 100.0, 100.0, 100.0),  # a disk that collects garbage
])  # fmt: skip
def test_bursts_and_pauses_are_no_fall(rates: "tuple[float, ...]") -> None:
    """Or the rate would never be measured for long enough to try anything."""
    hold = measured(
        Climb(up=True, tries=1, begin_bytes=KNEE), R, limit_bytes=FIRST, changed_s=NOW - 30.0,
        carried=(0.0, 0.0), waited=(0.0, 0.0),
    )  # fmt: skip
    for number in range(80):
        rate = rates[number % len(rates)] * MIB
        now_s = NOW + 0.5 * number
        seen_ = flushed(rate=rate, held_back=rate > 0, fsyncs=50, fsync_total_s=0.4)
        hold = step(seen_, hold, now_s, dt_s=0.5).hold
        if hold.changed_s != NOW - 30.0:
            return
    raise AssertionError(f"nothing was tried: {hold}")


def test_r_that_moved_does_not_move_the_limit() -> None:
    """It is what the limits tried let in."""
    hold = measured(Climb(begin_bytes=KNEE), carried=(0.0, 0.0), for_rate=R)
    taken = tick(hold, flushed(drain_rate=3 * R))
    assert taken.limit == KNEE and taken.hold.for_rate == 3 * R


def test_no_burst_is_let_into_such_a_cache() -> None:
    empty: Dict[str, object] = {"flooded": False, "cache_bytes": 64.0 * MIB, "fill_bytes": 0.0}
    limit, hold = rest(BOUNDS, seen(**empty, flushes_wait=True), holding())
    assert limit == KNEE and hold.phase is Phase.HOLD
    assert rest(BOUNDS, seen(**empty), holding())[1].phase is Phase.FILL
