# SPDX-License-Identifier: GPL-2.0-or-later
"""The limit of a flooded device: each rule of control/hold.py by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Dict

import pytest

from hold_cases import (
    BOUNDS,
    FULL,
    KEEP,
    KNEE,
    LATE,
    LATE_S,
    NOW,
    SETTLED_S,
    TAU,
    R,
    draining,
    holding,
    late,
    run,
    seen,
    step,
)
from samples import MIB
from writebackd.control import hold as rules
from writebackd.control.climb import STEP
from writebackd.control.hold import (
    CUT_MOST,
    DRAIN_GRIPS,
    DRAIN_LEAST_S,
    DRAIN_MOST_S,
    DRAIN_SHARE,
    EARNED_S,
    FILL_FROM,
    FILL_LIMIT,
    FILL_TO,
    FOLLOW_S,
    FORWARD,
    FULL_AGAIN_S,
    FULL_LASTS_S,
    FUTILE_SHARE,
    GROW_LEAST,
    GROW_MOST,
    GROW_POWER,
    GROW_TO,
    LATE_LASTS_S,
    MEND,
    MUCH,
    MUCH_SHORT,
    NO_CACHE_S,
    OTHER_DISK,
    PROBE_GAIN,
    PROBE_MOST_S,
    PROBE_S,
    PROBE_STEP,
    PROOF_STEP,
    REFILL_SHARE,
    REMEMBERED_S,
    ROOM_S,
    ROOM_SHARE,
    SEEK_DELAY_MOST_S,
    SEEK_DELAY_S,
    SEEK_GAIN,
    SEEK_MUCH_BYTES,
    SEEK_S,
    SEEK_SLOW,
    SEEK_STEP,
    SMALL_CACHE_S,
    SOON_JUDGED_S,
    STARVED_MARGIN,
    TAU_SEEN_S,
    asked_for,
    feed_forward,
    regulate,
    rest,
)
from writebackd.control.ramp import DEADBAND
from writebackd.control.steps import JUDGE_S, wait
from writebackd.estimate.drain import TAU_MOST_S
from writebackd.model import Climb, Estimate, Hold, Phase, State

# ---- no flood --------------------------------------------------------------


def test_at_rest_the_limit_is_rate_times_tau_as_far_as_they_are_known() -> None:
    assert rest(BOUNDS, seen(drain_rate=None), Hold())[0] == BOUNDS.start
    assert rest(BOUNDS, seen(tau_s=None), Hold())[0] == int(FORWARD * R * BOUNDS.tau_s)
    assert rest(BOUNDS, seen(), Hold())[0] == KNEE


def test_at_rest_the_limit_that_was_held_stays() -> None:
    assert rest(BOUNDS, seen(), holding(limit_bytes=3 * KNEE))[0] == 3 * KNEE


@pytest.mark.parametrize("hold", [Hold(), holding()])
def test_the_resting_limit_stays_within_the_bounds(hold: Hold) -> None:
    assert rest(replace(BOUNDS, floor=2 * KNEE), seen(), hold)[0] == 2 * KNEE
    assert rest(replace(BOUNDS, ceiling=KNEE // 2), seen(), hold)[0] == KNEE // 2
    assert feed_forward(replace(BOUNDS, floor=2 * KNEE), seen()) == 2 * KNEE


def test_an_empty_cache_is_opened_for_a_burst() -> None:
    empty = seen(cache_bytes=512.0 * MIB, fill_bytes=FILL_FROM * 511.0 * MIB)
    limit, hold = rest(BOUNDS, empty, holding())
    assert hold.phase is Phase.FILL and hold.limit_bytes == KNEE
    assert limit == FILL_LIMIT * KNEE


def test_a_burst_is_let_in_within_the_ceiling() -> None:
    empty = seen(cache_bytes=512.0 * MIB)
    limit, _ = rest(replace(BOUNDS, ceiling=2 * KNEE), empty, holding())
    assert limit == 2 * KNEE


@pytest.mark.parametrize(
    "hold,more",
    [
        (holding(), {"cache_bytes": None}),
        (holding(), {"cache_bytes": 512.0 * MIB, "fill_bytes": FILL_FROM * 513.0 * MIB}),
        (holding(phase=Phase.SEEK), {"cache_bytes": 512.0 * MIB}),
        (holding(limit_bytes=None), {"cache_bytes": 512.0 * MIB}),
    ],
    ids=["cache-not-known", "cache-not-empty", "drain-rate-not-known", "no-limit-yet"],
)
def test_otherwise_there_is_no_burst_at_rest(hold: Hold, more: Dict[str, object]) -> None:
    limit, after = rest(BOUNDS, seen(**more), hold)
    assert after == hold and limit == KNEE


def test_a_flood_that_ends_while_draining_does_not_leave_the_small_limit() -> None:
    half = seen(cache_bytes=512.0 * MIB, fill_bytes=256.0 * MIB)
    limit, hold = rest(BOUNDS, half, draining())
    assert hold.phase is Phase.HOLD and limit == KNEE
    # Neither where the cache is not known, nor where there is no limit to go back to.
    limit, hold = rest(BOUNDS, seen(cache_bytes=None), draining())
    assert hold.phase is Phase.HOLD and limit == KNEE
    limit, hold = rest(BOUNDS, half, draining(limit_bytes=None))
    assert hold.phase is Phase.HOLD and limit == KNEE
    # An empty one takes the next burst.
    assert rest(BOUNDS, seen(cache_bytes=512.0 * MIB), draining())[1].phase is Phase.FILL


# ---- FILL ------------------------------------------------------------------


def test_a_burst_keeps_its_limit_while_the_cache_has_room() -> None:
    some = seen(cache_bytes=512.0 * MIB, fill_bytes=FILL_TO * 511.0 * MIB)
    taken = step(some, holding(phase=Phase.FILL))
    assert taken.hold.phase is Phase.FILL and taken.limit == FILL_LIMIT * KNEE


@pytest.mark.parametrize(
    "more",
    [{"fill_bytes": FILL_TO * 513.0 * MIB}, {"full": True, "fill_bytes": 0.0}],
    ids=["counted", "seen"],
)
def test_a_burst_ends_when_the_cache_has_taken_it(more: Dict[str, object]) -> None:
    taken = step(seen(cache_bytes=512.0 * MIB, **more), holding(phase=Phase.FILL))
    assert taken.hold.phase is Phase.HOLD and taken.limit == KNEE
    assert taken.hold.changed_s == NOW


# ---- what is seen, and when ------------------------------------------------


@pytest.mark.parametrize("in_force", [0.5, 2.0])
def test_what_another_limit_brings_is_not_judged(in_force: float) -> None:
    hold = holding(full_s=5.0, late_s=5.0, changed_s=NOW - 10_000)
    taken = step(seen(full=True, fsync_p99_s=LATE_S), hold, in_force=in_force)
    assert taken.limit == KNEE and taken.hold.phase is Phase.HOLD
    assert (taken.hold.full_s, taken.hold.late_s) == (0.0, 0.0)
    assert taken.hold.carried == (0.0, 0.0) and taken.hold.changed_s == NOW
    assert taken.state is State.GUARD


@pytest.mark.parametrize("in_force", [0.9, 1.1])
def test_what_nearly_this_limit_brings_is(in_force: float) -> None:
    taken = step(seen(full=True), holding(**FULL), in_force=in_force)
    assert taken.hold.phase is Phase.DRAIN


def test_a_limit_on_its_way_while_draining_does_not_end_the_drain() -> None:
    taken = step(seen(full=True), draining(), in_force=2.0)
    assert taken.hold.phase is Phase.DRAIN and taken.limit == int(DRAIN_SHARE * KNEE)


def test_a_drain_under_bounds_that_moved_comes_to_its_end() -> None:
    # Of a larger share of the limit, or by another policy: less than the floor cannot be had.
    bounds = replace(BOUNDS, floor=KNEE // 2)
    hold = draining(lasted=0.0, drain_bytes=bounds.floor // 4, carried=(0.0, 0.0))
    assert asked_for(bounds, seen(), hold) == bounds.floor
    for tick in range(1, int(DRAIN_MOST_S) + 2):
        _, hold, _, _ = regulate(bounds, seen(rate=R / 2), hold, NOW + tick, 1.0, bounds.floor)
    assert hold.phase is Phase.HOLD and hold.drain_end_s > NOW
    above = replace(BOUNDS, ceiling=KNEE // 4)
    assert asked_for(above, seen(), draining()) == above.ceiling


def test_the_first_moments_under_a_new_limit_do_not_count() -> None:
    new = holding(carried=(0.0, 0.0), waited=(0.0, 0.0), changed_s=NOW - FOLLOW_S)
    assert step(seen(), new).hold.carried == (0.0, 0.0)
    assert step(seen(), new, NOW + 0.5, dt_s=0.5).hold.carried == (R / 2, 0.5)
    some = seen(fsyncs=40, fsync_total_s=0.1)
    assert step(some, new).hold.waited == (0.0, 0)
    assert step(some, new, NOW + 0.5, dt_s=0.5).hold.waited == (0.1, 40)


def test_what_is_judged_is_mostly_the_last_seconds() -> None:
    hold = holding(carried=(10 * R * 100, 100.0), probe_again_s=1e9)
    hold = replace(hold, waited=(100.0, 100.0))
    for tick in range(int(10 * JUDGE_S)):
        hold = step(seen(fsyncs=40, fsync_total_s=0.1), hold, NOW + tick).hold
    assert hold.waited[0] / hold.waited[1] == pytest.approx(0.1 / 40, rel=0.1)
    carried, lasted = hold.carried
    assert carried / lasted == pytest.approx(R, rel=0.1)
    assert JUDGE_S <= lasted <= 2 * JUDGE_S


def test_a_cache_full_for_a_moment_starts_the_count_anew() -> None:
    hold = step(seen(full=True), holding(), dt_s=FULL_LASTS_S / 2).hold
    assert hold.full_s == FULL_LASTS_S / 2
    assert step(seen(), hold).hold.full_s == 0.0


def test_syncs_late_for_a_moment_start_the_count_anew() -> None:
    hold = step(seen(fsync_p99_s=LATE_S), holding(), dt_s=LATE_LASTS_S / 2).hold
    assert hold.late_s == LATE_LASTS_S / 2
    assert step(seen(), hold).hold.late_s == 0.0


def test_a_sync_in_flight_counts_before_it_completes() -> None:
    stuck = seen(fsync_p99_s=None, oldest_fsync_s=LATE_S)
    assert wait(stuck) == LATE_S
    assert step(stuck, holding()).hold.late_s == 1.0


# ---- SEEK ------------------------------------------------------------------


def unknown(**more: object) -> Estimate:
    return seen(**{"drain_rate": None, "tau_s": None, **more})


def seeking(rate: float = 4 * R, lasted: float = SEEK_S, **more: object) -> Hold:
    found = Hold(limit_bytes=BOUNDS.start, changed_s=NOW - 10, carried=(rate * lasted, lasted))
    return replace(found, **more)  # type: ignore[arg-type]


def test_the_first_tick_of_the_first_flood_starts_at_rest() -> None:
    taken = step(unknown(), Hold())
    assert taken.limit == taken.hold.limit_bytes == BOUNDS.start
    assert taken.hold.phase is Phase.SEEK and taken.hold.changed_s == NOW


def test_while_it_brings_throughput_the_limit_grows() -> None:
    rate = 4 * R
    taken = step(unknown(rate=rate), seeking(rate, seek_rate=0.99 * rate / SEEK_GAIN))
    assert taken.limit == taken.hold.limit_bytes == SEEK_STEP * BOUNDS.start
    assert taken.hold.seek_rate == pytest.approx(rate)
    assert taken.state is State.PROBE and taken.hold.changed_s == NOW


@pytest.mark.parametrize("part", [1.01 / SEEK_GAIN, 0.99 * SEEK_GAIN])
def test_a_larger_limit_without_gain_is_taken_back(part: float) -> None:
    larger = seeking(part * 4 * R, seek_rate=4 * R, limit_bytes=int(4 * BOUNDS.start))
    taken = step(unknown(rate=4 * R), larger)
    assert taken.limit == taken.hold.limit_bytes == 4 * BOUNDS.start / SEEK_STEP
    assert taken.hold.sought and taken.hold.seek_rate == 0.0 and taken.hold.changed_s == NOW
    assert taken.hold.proved_rate is None and taken.state is State.GUARD
    # Not below where the search began.
    assert step(unknown(), replace(larger, limit_bytes=BOUNDS.start)).limit == BOUNDS.start


def test_what_brought_nothing_is_tried_again_later() -> None:
    # The kernel's own estimate of the disk may still have been on its way up.
    early = seeking(sought=True, changed_s=NOW - 0.9 * EARNED_S)
    taken = step(unknown(rate=4 * R), early)
    assert taken.limit == BOUNDS.start and taken.state is State.GUARD
    due = replace(early, changed_s=NOW - 1.1 * EARNED_S)
    assert step(unknown(rate=4 * R), due).limit == SEEK_STEP * BOUNDS.start
    # Until then it is quick.
    assert step(unknown(rate=4 * R), replace(early, sought=False)).limit > BOUNDS.start


def test_less_under_a_larger_limit_is_what_the_media_take() -> None:
    less = 0.99 * 4 * R / SEEK_GAIN
    waits = unknown(rate=less, slow_share=1.01 * SEEK_SLOW)
    larger = seeking(less, seek_rate=4 * R, limit_bytes=8 * MIB)
    taken = step(waits, larger, dt_s=0.5)
    assert taken.hold.proved_rate == pytest.approx(less)
    assert taken.limit == taken.hold.limit_bytes == 8 * MIB and "is full" in taken.why
    # A short flood may just have begun or ended in the tick.
    assert step(replace(waits, in_waves=True), larger, dt_s=0.5).hold.proved_rate is None
    # Where no write waits for the media it is not the media.
    quick = unknown(rate=less, slow_share=0.99 * SEEK_SLOW)
    taken = step(quick, seeking(less, seek_rate=4 * R, limit_bytes=8 * MIB), dt_s=0.5)
    assert taken.hold.proved_rate is None and taken.limit == 8 * MIB // SEEK_STEP


def test_a_rate_that_is_falling_is_watched() -> None:
    # The cache fills up within a tick: the next one tells what the media take.
    hold = seeking(4 * R, seek_rate=R, limit_bytes=8 * MIB)
    taken = step(unknown(rate=R), hold, dt_s=SEEK_S)
    assert taken.limit == 8 * MIB and taken.hold.seek_rate == R and "falling" in taken.why
    # So is one tick with less than under the smaller limit.
    less = seeking(R, lasted=0.0, seek_rate=4 * R, limit_bytes=8 * MIB)
    waits = unknown(rate=R, slow_share=1.01 * SEEK_SLOW)
    taken = step(waits, less)
    assert taken.hold.proved_rate is None and "falling" in taken.why
    assert step(waits, taken.hold).hold.proved_rate == R
    # Not for ever.
    assert "falling" not in step(unknown(rate=R), replace(hold, carried=(8 * R, 2.0))).why


def test_the_limit_does_not_grow_where_nobody_waits_for_it() -> None:
    taken = step(unknown(rate=4 * R, held_back=False), seeking())
    assert taken.limit == BOUNDS.start and "holds nobody back" in taken.why


def test_the_limit_grows_no_further_than_the_writeback_loop_can_need() -> None:
    slow = 0.9 * SEEK_STEP * BOUNDS.start / SEEK_DELAY_MOST_S
    taken = step(unknown(rate=slow), seeking(slow))
    assert taken.limit == BOUNDS.start and "longer queue" in taken.why
    fast = 1.1 * SEEK_STEP * BOUNDS.start / SEEK_DELAY_MOST_S
    assert step(unknown(rate=fast), seeking(fast)).limit > BOUNDS.start


def test_a_large_limit_grows_only_as_far_as_the_writeback_loop_mostly_needs() -> None:
    much = seeking(limit_bytes=SEEK_MUCH_BYTES)
    slow = 0.9 * SEEK_STEP * SEEK_MUCH_BYTES / SEEK_DELAY_S
    assert step(unknown(rate=slow), replace(much, carried=(slow, 1.0))).limit == SEEK_MUCH_BYTES
    fast = 1.1 * SEEK_STEP * SEEK_MUCH_BYTES / SEEK_DELAY_S
    assert step(unknown(rate=fast), replace(much, carried=(fast, 1.0))).limit > SEEK_MUCH_BYTES
    half = replace(much, limit_bytes=int(0.9 * SEEK_MUCH_BYTES / SEEK_STEP), carried=(R * 2, 1.0))
    assert step(unknown(rate=2 * R), half).limit == int(0.9 * SEEK_MUCH_BYTES)


def test_a_limit_is_watched_before_the_next_is_tried() -> None:
    hold = seeking(lasted=0.4 * SEEK_S)
    taken = step(unknown(rate=4 * R), hold, dt_s=0.5 * SEEK_S)
    assert taken.limit == BOUNDS.start and taken.hold.seek_rate == 0.0
    assert step(unknown(rate=4 * R), hold, dt_s=0.7 * SEEK_S).limit > BOUNDS.start


def test_the_search_ends_at_the_ceiling() -> None:
    bounds = replace(BOUNDS, ceiling=int(1.5 * BOUNDS.start))
    assert step(unknown(rate=4 * R), seeking(), bounds=bounds).limit == bounds.ceiling


def test_a_cache_that_filled_during_the_search_is_measured_under_that_limit() -> None:
    # A smaller one may let in less than R, and then R would stay unknown.
    far = seeking(limit_bytes=64 * MIB)
    taken = step(unknown(rate=R, full=True, tau_s=2 * BOUNDS.start / R), far)
    assert taken.limit == taken.hold.limit_bytes == 64 * MIB


def test_a_cache_that_filled_in_a_short_flood_is_measured_nearer_to_the_knee() -> None:
    far = seeking(limit_bytes=64 * MIB)
    wave = unknown(rate=R, full=True, in_waves=True)
    taken = step(replace(wave, tau_s=2 * BOUNDS.start / R), far)
    assert taken.limit == taken.hold.limit_bytes == 2 * BOUNDS.start
    assert taken.hold.changed_s == NOW
    # Without tau the policy's; never below where the search began.
    taken = step(replace(wave, rate=2 * BOUNDS.start / BOUNDS.tau_s), far)
    assert taken.limit == 2 * BOUNDS.start
    assert step(replace(wave, rate=R / 100), far).limit == BOUNDS.start


def test_a_full_cache_never_makes_the_search_grow() -> None:
    taken = step(unknown(rate=100 * R, full=True), seeking())
    assert taken.limit == BOUNDS.start and taken.hold.changed_s == NOW - 10


def test_once_the_drain_rate_is_known_the_limit_is_held_at_rate_times_tau() -> None:
    taken = step(seen(), seeking())
    assert taken.limit == taken.hold.limit_bytes == KNEE
    assert taken.hold.phase is Phase.HOLD and taken.hold.changed_s == NOW
    # It was only a rate that lasted: the media may take more.
    assert taken.hold.probe_again_s == EARNED_S


def test_once_the_drain_rate_is_known_a_full_cache_is_drained() -> None:
    taken = step(seen(full=True), seeking())
    assert taken.hold.phase is Phase.DRAIN and taken.hold.limit_bytes == KNEE
    assert taken.limit == int(DRAIN_SHARE * KNEE)


def test_where_there_is_no_cache_the_limit_stays_where_the_rate_was_seen() -> None:
    # Nothing is ever fast there: tau cannot be measured, R x a guess may be far below the knee.
    far = seeking(limit_bytes=64 * MIB)
    for times, stays in ((1.01, True), (0.99, False)):
        taken = step(seen(tau_s=None, baseline_s=times * NO_CACHE_S), far)
        guess = int(FORWARD * R * BOUNDS.tau_s)
        assert taken.limit == taken.hold.limit_bytes == (64 * MIB if stays else guess)
        assert taken.hold.phase is Phase.HOLD
    assert step(seen(tau_s=None, baseline_s=None), far).limit == guess
    # What was measured is better than where it happened to be, if it was measured.
    assert step(seen(baseline_s=2 * NO_CACHE_S), far).limit == KNEE
    assert step(seen(baseline_s=2 * NO_CACHE_S, tau_s=TAU_MOST_S), far).limit == 64 * MIB
    # And within the bounds.
    small = replace(BOUNDS, ceiling=32 * MIB)
    without = seen(tau_s=None, baseline_s=2 * NO_CACHE_S)
    assert step(without, far, bounds=small).limit == 32 * MIB


def test_a_cache_that_takes_next_to_nothing_is_none() -> None:
    # What a larger limit let in the media took, then; and there is nothing to drain.
    found = seen(full=True, cache_bytes=0.99 * SMALL_CACHE_S * R)
    taken = step(found, seeking(seek_rate=2 * R))
    assert taken.hold.phase is Phase.HOLD
    assert taken.hold.proved_rate == taken.hold.for_rate == 2 * R
    assert step(found, seeking(seek_rate=R)).hold.proved_rate is None
    # As long as what was learned of draining is believed: the size may be wrong.
    assert taken.hold.useless_s == NOW
    assert step(found, holding(**FULL)).hold.phase is Phase.DRAIN
    assert step(found, holding(useless_s=NOW - 1.0, **FULL)).hold.phase is Phase.HOLD
    larger = replace(found, cache_bytes=1.01 * SMALL_CACHE_S * R)
    taken = step(larger, seeking(seek_rate=2 * R))
    assert taken.hold.phase is Phase.DRAIN and taken.hold.proved_rate is None
    assert taken.hold.useless_s < NOW
    # A cache that was seen to fill is one, however long a sync takes.
    slow = replace(larger, baseline_s=2 * NO_CACHE_S)
    assert step(slow, seeking(seek_rate=2 * R)).hold.phase is Phase.DRAIN


# ---- HOLD: the cache is full -----------------------------------------------


def test_a_full_cache_is_drained_when_it_lasts() -> None:
    busy = seen(full=True)
    early = holding(full_s=0.4 * FULL_LASTS_S)
    assert step(busy, early, dt_s=0.5 * FULL_LASTS_S).hold.phase is Phase.HOLD
    hold = replace(early, drained_bytes=1.0, refilled_bytes=9.0, probe_bytes=KNEE // 2, earned=2)
    taken = step(busy, hold, dt_s=0.7 * FULL_LASTS_S)
    assert taken.hold.phase is Phase.DRAIN and taken.state is State.SQUEEZE
    assert taken.limit == taken.hold.drain_bytes == int(DRAIN_SHARE * KNEE)
    assert taken.hold.limit_bytes == KNEE and taken.hold.changed_s == NOW
    assert taken.hold.drained_bytes == taken.hold.refilled_bytes == 0.0
    assert taken.hold.probe_bytes == taken.hold.earned == 0 and taken.hold.full_s == 0.0


def test_draining_starts_from_the_smaller_of_the_held_limit_and_rate_times_tau() -> None:
    busy = seen(full=True)
    assert step(busy, holding(limit_bytes=3 * KNEE, **FULL)).limit == int(DRAIN_SHARE * KNEE)
    assert step(busy, holding(limit_bytes=KNEE // 2, **FULL)).limit == int(
        DRAIN_SHARE * (KNEE // 2)
    )


def test_draining_stays_above_the_floor() -> None:
    taken = step(seen(full=True), holding(**FULL), bounds=replace(BOUNDS, floor=KNEE - 1))
    assert taken.limit == KNEE - 1


def test_a_limit_that_let_in_more_than_the_media_take_is_cut_before_draining() -> None:
    rate = R * 1.1
    taken = step(seen(full=True, rate=rate), holding(rate, **FULL))
    assert taken.hold.limit_bytes == pytest.approx(KNEE / 1.1, rel=1e-3)
    # Less than that is no reason to change it, nor is a rate that is not known yet.
    for hold in (holding(R), holding(0.9 * R), holding(2 * R, carried=(0.0, 0.0))):
        assert step(seen(full=True), replace(hold, full_s=FULL_LASTS_S)).hold.limit_bytes == KNEE
    rate = 2 * R / CUT_MOST
    taken = step(seen(full=True, rate=rate), holding(rate, **FULL))
    assert taken.hold.limit_bytes == pytest.approx(CUT_MOST * KNEE, rel=1e-3)


def test_short_floods_are_not_drained() -> None:
    taken = step(seen(full=True, in_waves=True), holding(**FULL))
    assert taken.hold.phase is Phase.HOLD and taken.limit == KNEE
    # Nothing else is left undone for that.
    slow = late(in_waves=True, tau_s=None)
    assert step(slow, holding(**LATE)).limit == int(KNEE / STEP)


def test_what_was_seen_to_be_useless_is_not_tried_again_for_a_while() -> None:
    lately = holding(useless_s=NOW - 0.9 * REMEMBERED_S, **FULL)
    assert step(seen(full=True), lately).hold.phase is Phase.HOLD
    once = holding(useless_s=NOW - 1.1 * REMEMBERED_S, **FULL)
    assert step(seen(full=True), once).hold.phase is Phase.DRAIN


def test_a_cache_full_again_at_once_though_nothing_came_in_is_none() -> None:
    hold = holding(
        drain_end_s=NOW - 0.9 * FULL_AGAIN_S, drained_bytes=R,
        refilled_bytes=0.9 * REFILL_SHARE * R, **FULL,
    )  # fmt: skip
    taken = step(seen(full=True), hold)
    assert taken.hold.phase is Phase.HOLD and taken.hold.useless_s == NOW
    assert taken.limit == int(KNEE / STEP)  # by trying, then


def test_a_cache_full_again_because_it_was_refilled_is_drained_again() -> None:
    hold = holding(
        drain_end_s=NOW - 0.9 * FULL_AGAIN_S, drained_bytes=R,
        refilled_bytes=1.1 * REFILL_SHARE * R, **FULL,
    )  # fmt: skip
    assert step(seen(full=True), hold).hold.phase is Phase.DRAIN


def test_a_cache_full_again_much_later_is_drained_again() -> None:
    later = NOW - 1.1 * (FULL_AGAIN_S + FULL_LASTS_S)
    hold = holding(drain_end_s=later, drained_bytes=R, **FULL)
    assert step(seen(full=True), hold).hold.phase is Phase.DRAIN


def test_what_comes_in_above_the_drain_rate_refills_the_cache() -> None:
    hold = step(seen(rate=1.5 * R), holding(refilled_bytes=7.0), dt_s=0.5).hold
    assert hold.refilled_bytes == pytest.approx(0.25 * R + 7.0)
    hold = step(seen(rate=0.95 * R), holding(refilled_bytes=7.0)).hold
    assert hold.refilled_bytes == 7.0


# ---- DRAIN -----------------------------------------------------------------


def test_draining_lasts_until_there_is_room() -> None:
    slow = DRAIN_SHARE * R
    short = 0.9 * ROOM_S * R - (R - slow)
    taken = step(seen(rate=slow), draining(drained_bytes=short))
    assert taken.hold.phase is Phase.DRAIN and taken.limit == int(DRAIN_SHARE * KNEE)
    assert taken.hold.drained_bytes == pytest.approx(0.9 * ROOM_S * R)
    enough = draining(drained_bytes=1.1 * ROOM_S * R - (R - slow), probe_again_s=1.0)
    taken = step(seen(rate=slow), enough)
    assert taken.hold.phase is Phase.HOLD and taken.limit == KNEE
    assert taken.hold.drain_end_s == taken.hold.changed_s == NOW
    assert taken.hold.useless_s < NOW and taken.hold.probe_again_s == PROBE_S
    # Without a probe nothing tells that it is useless.
    taken = step(seen(rate=slow, slow_share=None), enough)
    assert taken.hold.phase is Phase.HOLD and taken.hold.useless_s < NOW
    # A moment above the drain rate is none below it.
    early = draining(lasted=0.5 * DRAIN_LEAST_S, drained_bytes=7.0)
    assert step(seen(rate=2 * R), early).hold.drained_bytes == 7.0
    half = step(seen(rate=0.5 * R, slow_share=None), draining(0.5 * R), dt_s=0.5).hold
    assert half.drained_bytes == pytest.approx(0.25 * R)


def test_the_room_to_make_is_a_share_of_a_known_cache() -> None:
    cache = 8 * ROOM_S * R
    slow = seen(rate=DRAIN_SHARE * R, cache_bytes=cache)
    assert step(slow, draining(drained_bytes=ROOM_S * R)).hold.phase is Phase.DRAIN
    assert step(slow, draining(drained_bytes=ROOM_SHARE * cache)).hold.phase is Phase.HOLD


def test_draining_is_given_time_to_show_that_it_works() -> None:
    made = draining(lasted=0.9 * DRAIN_LEAST_S, drained_bytes=10 * R)
    assert step(seen(rate=R / 2), made).hold.phase is Phase.DRAIN
    # Neither is it called futile, nor free of cost.
    assert step(seen(rate=R / 2, full=True), made).hold.phase is Phase.DRAIN
    assert step(seen(), replace(made, carried=(R, 1.0))).hold.phase is Phase.DRAIN


def test_writers_do_not_suffer_for_it_longer_than_they_should() -> None:
    slow = seen(rate=0.8 * R)
    assert step(slow, draining(0.8 * R, 0.9 * DRAIN_MOST_S)).hold.phase is Phase.DRAIN
    taken = step(slow, draining(0.8 * R, 1.01 * DRAIN_MOST_S))
    assert taken.hold.phase is Phase.HOLD and taken.limit == KNEE


@pytest.mark.parametrize(
    "more", [{"full": True, "slow_share": None}, {"slow_share": FUTILE_SHARE}]
)
def test_draining_that_makes_no_room_is_useless(more: Dict[str, object]) -> None:
    taken = step(seen(rate=DRAIN_SHARE * R, **more), draining(probe_again_s=PROBE_S))
    assert taken.hold.phase is Phase.HOLD and taken.limit == KNEE
    assert taken.hold.useless_s == taken.hold.drain_end_s == NOW
    assert taken.state is State.GUARD


def test_a_smaller_limit_that_costs_no_throughput_is_kept() -> None:
    rate = 1.01 * DRAIN_GRIPS * R
    taken = step(seen(rate=rate), draining(rate, drained_bytes=9.0))
    # And since that made no room a still smaller one is tried ...
    assert taken.hold.limit_bytes == int(DRAIN_SHARE * KNEE)
    assert taken.hold.phase is Phase.DRAIN and taken.hold.useless_s < NOW
    assert taken.limit == taken.hold.drain_bytes == int(DRAIN_SHARE * int(DRAIN_SHARE * KNEE))
    assert taken.hold.drained_bytes == 0.0 and taken.hold.changed_s == NOW
    # ... down to the floor.
    low = replace(BOUNDS, floor=int(DRAIN_SHARE * KNEE))
    taken = step(seen(rate=rate), draining(rate), bounds=low)
    assert taken.limit == taken.hold.limit_bytes == int(DRAIN_SHARE * KNEE)
    assert taken.hold.phase is Phase.HOLD and taken.hold.useless_s == NOW
    rate = 0.99 * DRAIN_GRIPS * R
    assert step(seen(rate=rate), draining(rate)).hold.useless_s < NOW


def test_a_rate_that_leapt_while_draining_does_not_make_the_smaller_limit_the_one_to_keep() -> None:
    # 131 MB/s for 2 s, then 331 and 354 under the same 1.1 MB: room was made.
    rate, lasted = 1.01 * DRAIN_GRIPS * R, 1.5 * DRAIN_LEAST_S
    made = 1.01 * (1 - DRAIN_GRIPS) * R * lasted
    taken = step(seen(rate=R), draining(rate, lasted=lasted, drained_bytes=made))
    assert taken.hold.limit_bytes == KNEE and taken.hold.phase is Phase.DRAIN
    assert taken.limit == int(DRAIN_SHARE * KNEE)


def test_after_draining_the_limit_is_no_larger_than_rate_times_tau() -> None:
    done = draining(drained_bytes=10 * R, limit_bytes=3 * KNEE)
    assert step(seen(rate=R / 2), done).limit == KNEE
    assert step(seen(rate=R / 2), replace(done, limit_bytes=KNEE // 2)).limit == KNEE // 2


def test_after_draining_the_limit_is_not_back_where_throughput_suffered() -> None:
    done = draining(drained_bytes=10 * R, limit_bytes=3 * KNEE, starved_bytes=2 * KNEE)
    lately = replace(done, starved_s=NOW - 0.9 * REMEMBERED_S)
    assert step(seen(rate=R / 2), lately).limit == int(STARVED_MARGIN * 2 * KNEE)
    assert step(seen(rate=R / 2), replace(lately, starved_bytes=KNEE // 2)).limit == KNEE
    once = replace(done, starved_s=NOW - 1.1 * REMEMBERED_S)
    assert step(seen(rate=R / 2), once).limit == KNEE


# ---- HOLD: throughput ------------------------------------------------------

POOR = 0.95 * KEEP


def test_a_flood_that_gets_too_little_is_given_more() -> None:
    taken = step(seen(rate=0.8 * R), holding(0.8 * R))
    grown = KNEE * max(GROW_LEAST, 0.8**-GROW_POWER)
    assert taken.limit == taken.hold.limit_bytes == pytest.approx(grown, rel=1e-3)
    assert taken.state is State.PROBE and taken.hold.changed_s == NOW
    # What is remembered: where it suffered, and what the step has to beat.
    assert (taken.hold.starved_bytes, taken.hold.starved_s) == (KNEE, NOW)
    assert taken.hold.probe_bytes == KNEE and taken.hold.probe_rate == pytest.approx(0.8 * R)


def test_behind_an_empty_cache_all_that_is_missing_is_given_at_once() -> None:
    cache = 2.0 * R
    empty = seen(rate=0.6 * R, cache_bytes=cache, fill_bytes=FILL_FROM * cache)
    assert step(empty, holding(0.6 * R)).limit == pytest.approx(KNEE / 0.6, rel=1e-3)
    some = replace(empty, fill_bytes=1.01 * FILL_FROM * cache)
    assert step(some, holding(0.6 * R)).limit == pytest.approx(KNEE * 0.6**-GROW_POWER, rel=1e-3)


def test_a_step_up_is_at_least_worth_writing_and_at_most_a_step() -> None:
    keen = replace(BOUNDS, keep=0.99)
    assert 0.97 > 1 / GROW_LEAST and 0.1**GROW_POWER < 1 / GROW_MOST
    assert step(seen(rate=0.97 * R), holding(0.97 * R), bounds=keen).limit == int(
        KNEE * GROW_LEAST
    )
    assert step(seen(rate=0.1 * R), holding(0.1 * R)).limit == int(KNEE * GROW_MOST)
    assert step(seen(rate=0.0), holding(0.0)).limit == int(KNEE * GROW_MOST)


def test_nobody_is_given_more_who_has_enough_or_does_not_ask() -> None:
    enough = 1.01 * KEEP * R
    assert step(seen(rate=enough), holding(enough)).limit == KNEE
    assert step(seen(rate=POOR * R, held_back=False), holding(POOR * R)).limit == KNEE


def test_a_limit_is_not_judged_before_its_time() -> None:
    # A little less than R is told from noise after some seconds, much less sooner.
    little = 0.5 * (MUCH_SHORT + KEEP) * R
    hold = holding(carried=(little * 0.4 * JUDGE_S, 0.4 * JUDGE_S))
    assert step(seen(rate=little), hold, dt_s=0.5 * JUDGE_S).limit == KNEE
    assert step(seen(rate=little), hold, dt_s=0.7 * JUDGE_S).limit > KNEE
    much = 0.99 * MUCH_SHORT * R
    hold = holding(carried=(much * 0.4 * SOON_JUDGED_S, 0.4 * SOON_JUDGED_S))
    assert step(seen(rate=much), hold, dt_s=0.5 * SOON_JUDGED_S).limit == KNEE
    assert step(seen(rate=much), hold, dt_s=0.7 * SOON_JUDGED_S).limit > KNEE


def test_a_limit_that_lets_in_much_more_than_was_missing_goes_most_of_the_way_back() -> None:
    much, cache = 1.01 * MUCH * R, 2 * R
    raised = holding(much, limit_bytes=2 * KNEE, starved_bytes=KNEE, starved_s=NOW - 5.0)
    filling = seen(rate=much, cache_bytes=cache, fill_bytes=1.01 * ROOM_SHARE * cache)
    taken = step(filling, raised)
    assert taken.limit == taken.hold.limit_bytes == int(MEND * KNEE)
    assert taken.state is State.SQUEEZE and taken.hold.starved_bytes == 0
    # While the cache is rather empty, not much more comes in, or nothing was missing: not.
    room = replace(filling, fill_bytes=0.99 * ROOM_SHARE * cache)
    assert step(room, raised).limit == 2 * KNEE
    little = 0.99 * MUCH * R
    slower = holding(little, limit_bytes=2 * KNEE, starved_bytes=KNEE, starved_s=NOW - 5.0)
    assert step(replace(filling, rate=little), slower).limit == 2 * KNEE
    assert step(filling, replace(raised, starved_bytes=0)).limit == 2 * KNEE
    # Nor where that was long ago, or the ramp would not write the difference.
    once = replace(raised, starved_s=NOW - 1.1 * REMEMBERED_S)
    assert step(filling, once).limit == 2 * KNEE
    near = replace(raised, limit_bytes=int(MEND * KNEE / (1 - 0.9 * DEADBAND)))
    assert step(filling, near).limit == near.limit_bytes


def test_a_probe_that_makes_syncs_late_is_taken_back() -> None:
    tried = probing(R, carried=(0.0, 0.0), earned=3, probe_again_s=20.0, **LATE)
    taken = step(late(), tried)
    assert taken.limit == taken.hold.limit_bytes == KNEE and taken.hold.probe_bytes == 0
    assert taken.hold.probe_again_s == 40.0 and taken.hold.earned == 0
    assert step(late(), replace(tried, probe_again_s=50.0)).hold.probe_again_s == PROBE_MOST_S
    # What was missing outweighs it: then it is weighed, see climb.py.
    poor = probing(R, probe_rate=POOR * R, carried=(0.0, 0.0), **LATE)
    assert step(late(), poor).limit == poor.limit_bytes


def test_far_above_rate_times_tau_more_limit_is_not_what_is_missing() -> None:
    far = holding(POOR * R, limit_bytes=int(1.01 * GROW_TO * KNEE))
    assert step(seen(rate=POOR * R), far).limit == far.limit_bytes
    near = holding(POOR * R, limit_bytes=int(0.99 * GROW_TO * KNEE))
    assert step(seen(rate=POOR * R), near).limit > int(0.99 * GROW_TO * KNEE)


def test_the_limit_grows_no_further_than_the_ceiling() -> None:
    bounds = replace(BOUNDS, ceiling=int(1.01 * KNEE))
    assert step(seen(rate=POOR * R), holding(POOR * R), bounds=bounds).limit == bounds.ceiling


# ---- probes ----------------------------------------------------------------

DUE = {"changed_s": NOW - PROBE_S}


def test_a_larger_limit_is_tried_after_long_without_a_change() -> None:
    early = holding(changed_s=NOW - 0.9 * PROBE_S)
    assert step(seen(), early).limit == KNEE
    # What it shall beat has to be known.
    assert step(seen(), holding(carried=(0.0, 0.0), **DUE), dt_s=0.5).limit == KNEE
    taken = step(seen(), holding(**DUE))
    assert taken.limit == taken.hold.limit_bytes == int(KNEE * PROBE_STEP)
    assert taken.hold.probe_bytes == KNEE and taken.hold.probe_rate == pytest.approx(R)
    assert taken.state is State.PROBE and taken.hold.changed_s == NOW


def test_no_larger_limit_is_tried_where_nobody_waits_for_it() -> None:
    assert step(seen(held_back=False), holding(**DUE)).limit == KNEE


def probing(at: float, **more: object) -> Hold:
    usual = holding(
        at, limit_bytes=int(KNEE * PROBE_STEP), probe_bytes=KNEE, probe_rate=R,
        changed_s=NOW - FOLLOW_S - JUDGE_S,
    )  # fmt: skip
    return replace(usual, **more)  # type: ignore[arg-type]


def test_a_larger_limit_that_brought_more_is_kept_and_the_next_follows_soon() -> None:
    rate = 1.01 * PROBE_GAIN * R
    taken = step(seen(rate=rate), probing(rate))
    assert taken.limit == int(KNEE * PROBE_STEP) and taken.hold.probe_bytes == 0
    assert taken.hold.probe_again_s == EARNED_S and taken.hold.earned == 1
    # As far as can be seen the media take this; a full cache will tell if not.
    assert taken.hold.proved_rate == pytest.approx(rate)
    later = taken.hold.changed_s + EARNED_S
    assert step(seen(rate=rate), taken.hold, later - 0.5).limit == taken.limit
    assert step(seen(rate=rate), taken.hold, later).limit == int(taken.limit * PROBE_STEP**2)


def test_what_a_probe_earned_does_not_lower_the_drain_rate() -> None:
    rate = 0.98 * R
    taken = step(seen(rate=rate), probing(rate, probe_rate=0.9 * R))
    assert taken.hold.probe_bytes == 0 and taken.hold.proved_rate == R


@pytest.mark.parametrize("earned", [0, 1, 2, 50])
def test_steps_that_earn_become_larger_up_to_a_bound(earned: int) -> None:
    factor = min(GROW_MOST, PROBE_STEP ** (1 + earned))
    assert step(seen(), holding(earned=earned, **DUE)).limit == int(KNEE * factor)


def test_a_larger_limit_that_brought_nothing_is_taken_back() -> None:
    rate = 0.99 * PROBE_GAIN * R
    taken = step(seen(rate=rate), probing(rate, earned=3))
    assert taken.limit == taken.hold.limit_bytes == KNEE and taken.hold.probe_bytes == 0
    assert taken.state is State.PROBE and taken.hold.changed_s == NOW
    assert taken.hold.probe_again_s == min(2 * PROBE_S, PROBE_MOST_S)
    assert taken.hold.earned == 0 and taken.hold.proved_rate is None


def test_a_larger_limit_is_not_judged_before_its_time() -> None:
    hold = probing(R, carried=(R * 0.4 * JUDGE_S, 0.4 * JUDGE_S))
    taken = step(seen(), hold, dt_s=0.5 * JUDGE_S)
    assert taken.limit == hold.limit_bytes and taken.hold.probe_bytes == KNEE


@pytest.mark.parametrize(
    "before,after",
    [(EARNED_S, 2 * EARNED_S), (PROBE_S, 2 * PROBE_S), (0.9 * PROBE_MOST_S, PROBE_MOST_S)],
)
def test_what_brought_nothing_is_tried_ever_more_seldom(before: float, after: float) -> None:
    taken = step(seen(), probing(R, probe_again_s=before))
    assert taken.hold.probe_again_s == min(after, PROBE_MOST_S)


def test_where_a_larger_limit_did_not_help_a_starved_flood_the_media_are_slower() -> None:
    poor = POOR * R
    # A small step proves nothing: first a larger one.
    taken = step(seen(rate=poor), probing(poor, probe_rate=poor))
    assert taken.limit == taken.hold.limit_bytes == int(PROOF_STEP * KNEE)
    assert taken.hold.proved_rate is None and taken.hold.probe_bytes == KNEE
    large = probing(poor, probe_rate=poor, limit_bytes=int(1.01 * PROOF_STEP * KNEE))
    taken = step(seen(rate=poor), large)
    assert taken.limit == KNEE and taken.hold.proved_rate == pytest.approx(poor)


def test_a_larger_limit_without_gain_near_the_drain_rate_proves_nothing() -> None:
    taken = step(seen(), probing(R, starved_bytes=KNEE))
    assert taken.hold.proved_rate is None and taken.hold.starved_bytes == KNEE


def test_a_disk_that_takes_no_more_is_probed_a_few_times_an_hour() -> None:
    steps = run(holding(), 3600, lambda limit: seen())
    probes = [at for at, taken in steps if taken.limit > KNEE]
    tries = [at for at, was in zip(probes[1:], probes) if at > was + 1]
    assert 0.5 * 3600 / PROBE_MOST_S <= len(tries) <= 1.2 * 3600 / PROBE_MOST_S + 3
    assert steps[-1][1].limit == KNEE or len(probes) < 0.05 * len(steps)


def test_a_disk_that_takes_far_more_gets_it_in_earned_steps() -> None:
    # The flood brings limit / tau up to 4 R, and the estimate believes what was proved.
    hold, known, limits = holding(limit_bytes=int(R * TAU)), R, [int(R * TAU)]
    for tick in range(600):
        brings = min(4 * R, limits[-1] / TAU)
        taken = step(seen(rate=brings, drain_rate=known), hold, NOW + tick)
        known = taken.hold.proved_rate or known
        hold = replace(taken.hold, proved_rate=None)
        limits.append(taken.limit)
        # In steps: what was earned is not counted a second time.
        assert limits[-1] <= 1.01 * GROW_MOST * limits[-2]
        assert limits[-1] <= 1.01 * GROW_MOST * max(brings, R) * TAU
    assert min(4 * R, limits[-1] / TAU) >= 4 * R / PROBE_GAIN
    assert known == pytest.approx(4 * R, rel=PROBE_GAIN - 1)


def test_what_a_probe_earned_is_not_counted_twice() -> None:
    rate = 1.01 * SEEK_GAIN * R
    taken = step(seen(rate=rate), probing(rate))
    assert taken.hold.for_rate == taken.hold.proved_rate == pytest.approx(rate)
    # The estimate believes it from the next tick on: that is no other disk.
    proved = replace(taken.hold, proved_rate=None)
    after = step(seen(rate=rate, drain_rate=rate), proved, NOW + 1)
    assert after.limit == taken.limit


# ---- late or full, and draining is no help ---------------------------------


def test_late_syncs_with_room_in_the_cache_begin_a_search_when_they_last() -> None:
    early, slow = holding(late_s=0.4 * LATE_LASTS_S), late(tau_s=None)
    taken = step(slow, early, dt_s=0.5 * LATE_LASTS_S)
    assert taken.limit == KNEE and taken.hold.climb == Climb()
    taken = step(slow, early, dt_s=0.7 * LATE_LASTS_S)
    assert taken.limit == taken.hold.limit_bytes == int(KNEE / STEP)
    assert taken.hold.climb.from_bytes == KNEE and taken.hold.changed_s == NOW


@pytest.mark.parametrize(
    "knows,searches",
    [
        ({}, False),
        # A smaller limit would still let in enough.
        ({"tau_s": 0.99 * TAU / STEP / (KEEP / FORWARD)}, True),
        ({"tau_s": 1.01 * TAU / STEP / (KEEP / FORWARD)}, False),
        # Longer than any that was seen: not the limit's doing.
        ({"tau_s": 0.99 * TAU_SEEN_S}, False),
        ({"tau_s": 1.01 * TAU_SEEN_S}, True),
        ({"held_back": False}, True),
        ({"baseline_s": 2 * NO_CACHE_S}, True),
    ],
)
def test_below_the_knee_no_smaller_limit_is_tried(
    knows: Dict[str, object], searches: bool
) -> None:
    taken = step(late(**knows), holding(**LATE))
    assert (taken.limit < KNEE) is searches
    if not searches:
        assert taken.state is State.GUARD and "would cost throughput" in taken.why
        # What is missing is still given, and what was begun is judged.
        assert step(late(rate=POOR * R, **knows), holding(POOR * R, **LATE)).limit > KNEE
        begun = Climb(from_bytes=2 * KNEE, rate=R, mean_s=1e-9)
        assert step(late(**knows), holding(climb=begun, **LATE)).limit == 2 * KNEE


def test_where_draining_is_useless_a_full_cache_begins_a_search_too() -> None:
    hold = holding(useless_s=NOW - 1, **FULL)
    assert step(seen(full=True), hold).limit == int(KNEE / STEP)
    # Fast syncs and room again: nothing to search for.
    assert step(seen(), replace(hold, full_s=0.0)).limit == KNEE


def test_a_step_that_was_begun_for_a_full_cache_is_judged_even_if_it_is_full_no_more() -> None:
    tried = Climb(from_bytes=2 * KNEE, rate=R, mean_s=1e-9)
    hold = holding(useless_s=NOW - 1, climb=tried, waited=(1.0, 100.0))
    assert step(seen(), hold).limit == 2 * KNEE


def test_syncs_that_are_slow_at_any_limit_cost_a_bounded_search() -> None:
    slow = late(held_back=False, fsyncs=50, fsync_total_s=50 * LATE_S)
    steps = run(holding(), 1000, lambda limit: slow)
    limits = [taken.limit for _, taken in steps]
    assert min(limits) >= int(KNEE / STEP) and max(limits) <= KNEE * STEP
    # Later mostly at rest, and it is said why.
    later = steps[300:]
    assert sum(taken.limit == KNEE for _, taken in later) > 0.85 * len(later)
    assert sum(taken.state is State.EXHAUSTED for _, taken in later) > 0.5 * len(later)



def test_with_room_and_fast_syncs_nothing_moves() -> None:
    taken = step(seen(), holding())
    assert taken.limit == KNEE and taken.state is State.GUARD
    assert taken.hold.changed_s == NOW - SETTLED_S


# Each with a limit of KNEE in mind, or on its way from there to more.
ANY = [
    ("start", seen(drain_rate=None), Hold(), State.PROBE),
    ("seek", unknown(), seeking(), State.PROBE),
    ("seek-nobody-held-back", unknown(held_back=False), seeking(), State.GUARD),
    ("seek-no-gain", unknown(rate=4 * R), seeking(seek_rate=4 * R), State.GUARD),
    ("seek-falling", unknown(), seeking(2 * R, seek_rate=R), State.PROBE),
    ("seek-longer-queue", unknown(rate=1e6), seeking(1e6), State.GUARD),
    ("seek-full", unknown(full=True), seeking(limit_bytes=KNEE), State.GUARD),
    ("drain-rate-known", seen(), seeking(), State.GUARD),
    ("hold", seen(), holding(), State.GUARD),
    ("wave", seen(full=True, in_waves=True), holding(**FULL), State.GUARD),
    ("grow", seen(rate=POOR * R), holding(POOR * R), State.PROBE),
    ("probe", seen(), holding(**DUE), State.PROBE),
    ("probe-back", seen(), probing(R), State.PROBE),
    ("search", late(tau_s=None), holding(**LATE), State.SQUEEZE),
    ("late-below-the-knee", late(), holding(**LATE), State.GUARD),
    ("search-up", late(tau_s=None),
     holding(POOR * R, climb=Climb(up=True, tries=1), **LATE), State.PROBE),
    ("search-enough", late(tau_s=None),
     holding(climb=Climb(up=True, tries=1), **LATE), State.GUARD),
    ("search-up-first", late(tau_s=None), holding(POOR * R, **LATE), State.PROBE),
    ("search-back", late(), holding(climb=Climb(KNEE, R, 1e-9), **LATE), State.GUARD),
    ("rescale", seen(drain_rate=2 * R), holding(), State.GUARD),
    ("fill", seen(cache_bytes=1e9), holding(phase=Phase.FILL), State.GUARD),
    ("filled", seen(cache_bytes=1e9, full=True), holding(phase=Phase.FILL), State.GUARD),
    ("drain", seen(full=True), holding(**FULL), State.SQUEEZE),
    ("draining", seen(rate=R / 2), draining(), State.SQUEEZE),
    ("drained", seen(rate=R / 2), draining(drained_bytes=10 * R), State.GUARD),
    ("drained-at-no-cost", seen(), draining(R), State.SQUEEZE),
]


@pytest.mark.parametrize(
    "seen_,hold", [row[1:3] for row in ANY], ids=[row[0] for row in ANY]
)
def test_whatever_happens_the_limit_stays_within_bounds_that_moved(
    seen_: Estimate, hold: Hold
) -> None:
    # By another policy, or by another device's share of the limit.
    for floor, ceiling in ((KNEE // 16, KNEE // 8), (8 * KNEE, 16 * KNEE)):
        bounds = replace(BOUNDS, floor=floor, ceiling=ceiling)
        if hold.phase is Phase.DRAIN:
            hold = replace(hold, drain_bytes=floor)
        taken = step(seen_, hold, bounds=bounds)
        assert floor <= taken.limit <= ceiling
        assert floor <= asked_for(bounds, seen_, taken.hold) <= ceiling


@pytest.mark.parametrize("name,seen_,hold,state", ANY, ids=[row[0] for row in ANY])
def test_what_it_does_is_called_by_its_name(
    name: str, seen_: Estimate, hold: Hold, state: State
) -> None:
    assert step(seen_, hold).state is state


# ---- another drain rate ----------------------------------------------------


@pytest.mark.parametrize("moved", [0.5, 1.2, 2.0])
def test_the_limit_keeps_to_the_drain_rate_when_that_moves(moved: float) -> None:
    hold = holding(
        starved_bytes=KNEE, starved_s=NOW, probe_bytes=KNEE, limit_bytes=3 * KNEE,
        useless_s=NOW - (1 if max(moved, 1 / moved) > OTHER_DISK else 1.1 * REMEMBERED_S),
        climb=Climb(KNEE, R, 1.0, True, 3, 2, 5),
    )  # fmt: skip
    taken = step(seen(drain_rate=moved * R, rate=moved * R), hold)
    assert taken.limit == taken.hold.limit_bytes == pytest.approx(moved * 3 * KNEE)
    assert taken.hold.for_rate == moved * R and taken.hold.changed_s == NOW
    # What was learned about limits was learned at the other rate.
    assert (taken.hold.starved_bytes, taken.hold.probe_bytes) == (0, 0)
    assert taken.hold.useless_s == float("-inf") and taken.hold.climb == Climb()
    assert taken.hold.carried == (0.0, 0.0)
    # As the disk became slower it may become fast again, and soon.
    assert taken.hold.probe_again_s == (EARNED_S if moved < 1 else PROBE_S)


@pytest.mark.parametrize("moved", [1.01 / SEEK_GAIN, 0.99 * SEEK_GAIN])
def test_a_drain_rate_that_hardly_moved_is_the_same(moved: float) -> None:
    hold = holding(starved_bytes=KNEE)
    taken = step(seen(drain_rate=moved * R, rate=moved * R), hold)
    assert taken.limit == KNEE and taken.hold.for_rate == R
    assert taken.hold.starved_bytes == KNEE


def test_small_moves_of_the_drain_rate_add_up() -> None:
    hold, now = holding(), NOW
    for _ in range(8):
        now += 1
        hold = step(seen(drain_rate=R * 1.05 ** (now - NOW), rate=R), hold, now).hold
    assert hold.limit_bytes is not None and hold.limit_bytes > 1.2 * KNEE


@pytest.mark.parametrize("factor,other", [(0.99, False), (1.01, True)])
@pytest.mark.parametrize("up", [True, False])
def test_while_draining_is_useless_only_another_disk_is_another_drain_rate(
    up: bool, factor: float, other: bool
) -> None:
    # A limit found by trying: R is then only as good as the limits that were tried.
    moved = (factor * OTHER_DISK) if up else 1 / (factor * OTHER_DISK)
    rate = moved * R
    taken = step(seen(drain_rate=rate, rate=rate), holding(rate, useless_s=NOW - 1))
    assert taken.hold.limit_bytes == (pytest.approx(moved * KNEE) if other else KNEE)
    assert taken.hold.useless_s == (float("-inf") if other else NOW - 1)
    # No longer than it is remembered.
    once = holding(rate, useless_s=NOW - 1.1 * REMEMBERED_S)
    assert step(seen(drain_rate=rate, rate=rate), once).hold.for_rate == rate


def test_a_limit_without_a_rate_takes_the_present_one_for_its_own() -> None:
    taken = step(seen(drain_rate=4 * R, rate=4 * R), holding(4 * R, for_rate=0.0))
    assert taken.limit == KNEE and taken.hold.for_rate == 4 * R


def test_every_constant_of_the_search_makes_a_step_that_the_ramp_writes() -> None:
    # A goal that moved by less than the deadband is the same goal: such a step would be lost.
    from writebackd.control.ramp import DEADBAND

    assert min(rules.GROW_LEAST, rules.PROBE_STEP, rules.SEEK_STEP, STEP) > 1 + DEADBAND
    assert max(1 / STEP, rules.DRAIN_SHARE) < 1 - DEADBAND
