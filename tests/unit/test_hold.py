# SPDX-License-Identifier: GPL-2.0-or-later
"""The limit of a flooded device: each rule of control/hold.py by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Dict, List

import pytest

from hold_cases import (
    BOUNDS,
    DUE,
    FULL,
    KEEP,
    KNEE,
    LATE,
    LATE_S,
    NOW,
    POOR,
    SETTLED_S,
    TAU,
    R,
    draining,
    holding,
    late,
    probing,
    run,
    seeking,
    seen,
    step,
    unknown,
)
from samples import MIB
from writebackd.control import hold as rules
from writebackd.control.climb import STEP
from writebackd.control.hold import (
    CUT_MOST,
    ELSEWHERE,
    FILL_FROM,
    FILL_LIMIT,
    FILL_TO,
    FOLLOW_S,
    FULL_AGAIN_S,
    FULL_LASTS_S,
    LATE_LASTS_S,
    NO_CACHE_S,
    OTHER_DISK,
    REFILL_SHARE,
    TAU_SEEN_S,
    asked_for,
    regulate,
    rest,
)
from writebackd.control.ramp import DEADBAND
from writebackd.control.room import (
    DRAIN_GRIPS,
    DRAIN_LEAST_S,
    DRAIN_MOST_S,
    DRAIN_SHARE,
    FUTILE_SHARE,
    ROOM_S,
    ROOM_SHARE,
    STARVED_MARGIN,
    SWEEP_S,
)
from writebackd.control.seek import SEEK_GAIN, SEEK_STEP
from writebackd.control.steps import (
    EARNED_S,
    FORWARD,
    JUDGE_S,
    PROBE_S,
    REMEMBERED_S,
    feed_forward,
    wait,
)
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


@pytest.mark.parametrize("fill, phase", [(0.7, Phase.FILL), (0.9, Phase.HOLD)])
def test_a_burst_ends_under_another_devices_limit_too(fill: float, phase: Phase) -> None:
    """Or it would ask for one for as long as the other device decides, and never make room."""
    some = seen(cache_bytes=512.0 * MIB, fill_bytes=fill * 512.0 * MIB)
    taken = step(some, holding(phase=Phase.FILL), in_force=0.3)
    assert taken.why == ELSEWHERE and taken.hold.phase is phase
    assert taken.limit == (FILL_LIMIT * KNEE if phase is Phase.FILL else KNEE)


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


def test_a_cache_full_again_at_once_though_nothing_came_in_is_none_the_second_time() -> None:
    # Once it may be a sweep of the destage, which a limit near R hides while there is room.
    hold = holding(
        drain_end_s=NOW - 0.9 * FULL_AGAIN_S, drained_bytes=R,
        refilled_bytes=0.9 * REFILL_SHARE * R, **FULL,
    )  # fmt: skip
    taken = step(seen(full=True), hold)
    assert taken.hold.phase is Phase.DRAIN and taken.hold.again and taken.hold.useless_s < NOW
    taken = step(seen(full=True), replace(hold, again=True))
    assert taken.hold.phase is Phase.HOLD and taken.hold.useless_s == NOW
    assert taken.limit == int(KNEE / STEP)  # by trying, then


def test_a_cache_full_again_because_it_was_refilled_is_drained_again() -> None:
    hold = holding(
        drain_end_s=NOW - 0.9 * FULL_AGAIN_S, drained_bytes=R, again=True,
        refilled_bytes=1.1 * REFILL_SHARE * R, **FULL,
    )  # fmt: skip
    taken = step(seen(full=True), hold)
    assert taken.hold.phase is Phase.DRAIN and not taken.hold.again


def test_a_cache_full_again_much_later_is_drained_again() -> None:
    later = NOW - 1.1 * (FULL_AGAIN_S + FULL_LASTS_S)
    hold = holding(drain_end_s=later, drained_bytes=R, again=True, **FULL)
    taken = step(seen(full=True), hold)
    assert taken.hold.phase is Phase.DRAIN and not taken.hold.again


def test_what_comes_in_above_the_drain_rate_refills_the_cache() -> None:
    hold = step(seen(rate=1.5 * R), holding(refilled_bytes=7.0), dt_s=0.5).hold
    assert hold.refilled_bytes == pytest.approx(0.25 * R + 7.0)
    hold = step(seen(rate=0.95 * R), holding(refilled_bytes=7.0)).hold
    assert hold.refilled_bytes == 7.0
    # Whatever limit lets it in.
    hold = step(seen(rate=1.5 * R), holding(refilled_bytes=7.0), dt_s=0.5, in_force=2.0).hold
    assert hold.refilled_bytes == pytest.approx(0.25 * R + 7.0)


def test_a_flood_that_ends_while_the_cache_is_drained_leaves_nothing_to_the_next() -> None:
    hold = draining(R, fell_s=3.0, drained_bytes=R, drain_end_s=NOW - 1.0, again=True)
    _, after = rest(BOUNDS, seen(flooded=False), hold)
    assert after.phase is Phase.HOLD and after.fell_s == 0.0
    # Nor is one that was cut short the second that was in vain.
    assert not after.again and NOW - after.drain_end_s > FULL_AGAIN_S + FULL_LASTS_S
    assert after.carried == after.waited == (0.0, 0.0)


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
    early = draining(lasted=0.5, carried=(0.0, 0.0), drained_bytes=7.0, fell_s=3.0)
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
    # But one tick of it is not enough to give that up.
    taken = step(seen(rate=rate), draining(rate, lasted=1.0), bounds=low)
    assert taken.hold.phase is Phase.DRAIN and taken.hold.useless_s < NOW
    rate = 0.99 * DRAIN_GRIPS * R
    assert step(seen(rate=rate), draining(rate)).hold.useless_s < NOW


@pytest.mark.parametrize("late_s", [-1e-3, 0.0, 1e-3])
def test_what_a_limit_lets_in_is_not_of_the_half_second_in_which_it_is_followed(
    late_s: float,
) -> None:
    hold = draining(R, lasted=0.0, carried=(0.0, 0.0))
    first = step(seen(rate=0.96 * R), hold, NOW + 0.5 + late_s, dt_s=0.5 + late_s)
    assert first.limit == int(DRAIN_SHARE * KNEE) and first.hold.carried[1] == 0.0
    second = step(seen(rate=0.96 * R), first.hold, NOW + 1.0 + late_s, dt_s=0.5)
    assert second.limit == int(DRAIN_SHARE * int(DRAIN_SHARE * KNEE))


def test_a_rate_that_leapt_while_draining_does_not_make_the_smaller_limit_the_one_to_keep() -> None:
    # 131 MB/s for 2 s, then 331 and 354 under the same 1.1 MB: room was made.
    rate, lasted = 1.01 * DRAIN_GRIPS * R, 1.5 * DRAIN_LEAST_S
    made = 1.01 * (1 - DRAIN_GRIPS) * R * lasted
    leapt = draining(rate, lasted=lasted, drained_bytes=made, fell_s=2.2)
    taken = step(seen(rate=R), leapt)
    assert taken.hold.limit_bytes == KNEE and taken.hold.phase is Phase.DRAIN
    assert taken.limit == int(DRAIN_SHARE * KNEE)


@pytest.mark.parametrize("shares", [
    [1.0, 0.25, 0.25, 1.0], [0.25, 1.0], [0.25, 0.25, 1.0],
])
def test_a_sweep_of_the_destage_does_not_pass_for_what_the_smaller_limit_did(
    shares: List[float],
) -> None:
    # 263 MB/s, 66 for a second, and 263 again: the limit lets in all that the media take.
    hold, limits = draining(R, lasted=0.0, carried=(0.0, 0.0)), []
    for tick, share in enumerate(shares, 1):
        slow = 0.5 if share < 1 else 0.1
        taken = step(seen(rate=share * R, slow_share=slow), hold, NOW + 0.5 * tick, dt_s=0.5)
        hold = taken.hold
        limits.append(taken.limit)
    assert hold.phase is Phase.DRAIN and hold.useless_s < NOW and hold.drained_bytes == 0.0
    assert limits[-2] == int(DRAIN_SHARE * KNEE) > limits[-1] == int(DRAIN_SHARE * limits[-2])


def test_what_was_drained_for_longer_than_a_sweep_lasts_stays_counted() -> None:
    low = draining(lasted=3.0, drained_bytes=R, fell_s=SWEEP_S + 0.6)
    assert step(seen(), low, dt_s=0.5).hold.drained_bytes == R
    short = replace(low, fell_s=SWEEP_S + 0.4)
    assert step(seen(), short, dt_s=0.5).hold.drained_bytes == 0.0


def test_a_sweep_is_neither_room_enough_nor_what_makes_draining_useless() -> None:
    slow = seen(rate=0.25 * R, slow_share=0.5)
    for dt_s in (0.5, 1.0):
        short = draining(R, lasted=3.0, drained_bytes=2 * R, fell_s=SWEEP_S - 0.1)
        assert step(slow, short, dt_s=dt_s).hold.phase is Phase.DRAIN
        lasting = replace(short, fell_s=SWEEP_S + 0.1)
        assert step(slow, lasting, dt_s=dt_s).hold.useless_s == NOW
        quick = replace(slow, slow_share=0.01)
        assert step(quick, short, dt_s=dt_s).hold.phase is Phase.DRAIN
        assert step(quick, lasting, dt_s=dt_s).hold.phase is Phase.HOLD


def test_after_draining_the_limit_is_no_larger_than_rate_times_tau() -> None:
    done = draining(drained_bytes=10 * R, limit_bytes=3 * KNEE)
    assert step(seen(rate=R / 2), done).limit == KNEE
    half = replace(done, limit_bytes=KNEE // 2, drain_bytes=int(DRAIN_SHARE * (KNEE // 2)))
    assert step(seen(rate=R / 2), half).limit == KNEE // 2


def test_after_draining_the_limit_is_what_the_smallest_let_in_with_room() -> None:
    # 1.2 MB let in all of R while the cache was full, so 1.05 was tried, and that let in half.
    floor = KNEE // 4
    bounds = replace(BOUNDS, floor=floor)
    begun = draining(R, drain_bytes=int(1.1 * floor))
    taken = step(seen(), begun, bounds=bounds)
    assert taken.hold.shrunk and taken.limit == floor
    held = int(1.1 * floor)
    done = draining(drain_bytes=floor, limit_bytes=held, shrunk=True)
    for share in (0.7, DRAIN_SHARE):
        made = replace(done, drained_bytes=3.5 * (1 - share) * R, fell_s=3.0)
        taken = step(seen(rate=share * R), made, dt_s=0.5, bounds=bounds)
        rate = R - 4 * (1 - share) * R / 3.5
        assert taken.hold.phase is Phase.HOLD and taken.state is State.GUARD
        wanted = min(R / rate, 1 / DRAIN_SHARE) * floor
        assert taken.limit == taken.hold.limit_bytes == pytest.approx(wanted, rel=1e-4)
    # A rate at next to nothing is not the limit's doing.
    least = replace(done, drained_bytes=4 * R, fell_s=3.0)
    assert step(seen(rate=0.1 * R), least, bounds=bounds).limit == int(floor / DRAIN_SHARE)
    # Nothing of it where no larger limit was tried in vain, where this one made no room, and for a
    # moment.
    assert step(seen(rate=0.6 * R), replace(least, shrunk=False), bounds=bounds).limit == held
    waits = seen(rate=0.6 * R, slow_share=0.5)
    futile = step(waits, least, bounds=bounds)
    assert futile.limit == held and futile.hold.useless_s == NOW
    moment = replace(least, drained_bytes=0.3 * R, fell_s=0.5, changed_s=NOW - 1.1 * DRAIN_MOST_S)
    assert step(seen(rate=0.8 * R), moment, dt_s=0.5, bounds=bounds).limit == held
    # The next drain begins anew.
    assert not step(seen(full=True), holding(shrunk=True, **FULL)).hold.shrunk


def test_after_draining_the_limit_is_not_back_where_throughput_suffered() -> None:
    done = draining(drained_bytes=10 * R, limit_bytes=3 * KNEE, starved_bytes=2 * KNEE)
    lately = replace(done, starved_s=NOW - 0.9 * REMEMBERED_S)
    assert step(seen(rate=R / 2), lately).limit == int(STARVED_MARGIN * 2 * KNEE)
    assert step(seen(rate=R / 2), replace(lately, starved_bytes=KNEE // 2)).limit == KNEE
    once = replace(done, starved_s=NOW - 1.1 * REMEMBERED_S)
    assert step(seen(rate=R / 2), once).limit == KNEE


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

    assert min(rules.GROW_LEAST, rules.PROBE_STEP, SEEK_STEP, STEP) > 1 + DEADBAND
    assert max(1 / STEP, DRAIN_SHARE) < 1 - DEADBAND
