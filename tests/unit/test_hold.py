# SPDX-License-Identifier: GPL-2.0-or-later
"""The limit of a flooded device: each rule of control/hold.py by itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Callable, Dict, List, Tuple

import pytest

from samples import MIB, estimate
from writebackd.control import hold as rules
from writebackd.control.hold import (
    CORRECT_S,
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
    FRUITLESS_GAIN,
    FRUITLESS_MOST,
    FULL_AGAIN_S,
    FULL_LASTS_S,
    FUTILE_SHARE,
    GROW_LEAST,
    GROW_MOST,
    GROW_TO,
    JUDGE_S,
    LATE_LASTS_S,
    MUCH_FASTER,
    PATIENCE_MOST_S,
    PROBE_GAIN,
    PROBE_MOST_S,
    PROBE_S,
    PROBE_STEP,
    REFILL_SHARE,
    REMEMBERED_S,
    ROOM_S,
    ROOM_SHARE,
    SEEK_DELAY_S,
    SEEK_GAIN,
    SEEK_S,
    SEEK_STEP,
    STARVED_MARGIN,
    TIGHTEN,
    Bounds,
    asked_for,
    feed_forward,
    regulate,
    rest,
    wait,
)
from writebackd.model import Estimate, Hold, Phase, State

R, TAU = 250.0 * MIB, 10e-3
KNEE = int(FORWARD * R * TAU)
KEEP, OBJECTIVE_S = 0.9, 5e-3
BOUNDS = Bounds(
    floor=MIB // 16, ceiling=1024 * MIB, start=4 * MIB, tau_s=7.5e-3,
    objective_s=OBJECTIVE_S, keep=KEEP,
)  # fmt: skip
NOW = 10_000.0
FAST_S, LATE_S = 0.2 * OBJECTIVE_S, 4 * OBJECTIVE_S
# What the tick itself adds comes on top.
FULL = {"full_s": FULL_LASTS_S}
LATE = {"late_s": LATE_LASTS_S}


def seen(**more: object) -> Estimate:
    """A flood at R, held back by the limit, with room in the cache and fast syncs."""
    usual = estimate(
        "sda", flooded=True, demand=True, held_back=True, rate=R, drain_rate=R, tau_s=TAU,
        fsync_p99_s=FAST_S, slow_share=0.02,
    )  # fmt: skip
    return replace(usual, **more)  # type: ignore[arg-type]


def holding(at: float = R, **more: object) -> Hold:
    """Settled at the knee, long enough at the rate `at` to judge it; nothing is due."""
    usual = Hold(
        phase=Phase.HOLD, limit_bytes=KNEE, changed_s=NOW - CORRECT_S, for_rate=R,
        carried=(at * JUDGE_S, JUDGE_S), patience_s=CORRECT_S, probe_again_s=PROBE_S,
    )  # fmt: skip
    return replace(usual, **more)  # type: ignore[arg-type]


def draining(
    at: float = DRAIN_SHARE * R, lasted: float = 1.01 * DRAIN_LEAST_S, **more: object
) -> Hold:
    usual = holding(
        phase=Phase.DRAIN, changed_s=NOW - lasted, drain_bytes=int(DRAIN_SHARE * KNEE),
        carried=(at, 1.0),
    )  # fmt: skip
    return replace(usual, **more)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Step:
    limit: int
    hold: Hold
    state: State
    why: str


def step(
    seen_: Estimate, hold: Hold, now_s: float = NOW, dt_s: float = 1.0, in_force: float = 1.0,
    bounds: Bounds = BOUNDS,
) -> Step:
    """One tick; `in_force` in times of what was asked for."""
    applied = int(in_force * asked_for(bounds, seen_, hold))
    return Step(*regulate(bounds, seen_, hold, now_s, dt_s, applied))


def run(
    hold: Hold, ticks: int, host: Callable[[int], Estimate], now_s: float = NOW
) -> List[Tuple[float, Step]]:
    """The rules in a loop with `host`, which tells what a limit brings."""
    steps: List[Tuple[float, Step]] = []
    for tick in range(ticks):
        taken = step(host(asked_for(BOUNDS, seen(), hold)), hold, now_s + tick)
        hold = taken.hold
        steps.append((now_s + tick, taken))
    return steps


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


def test_the_first_moments_under_a_new_limit_do_not_count() -> None:
    new = holding(carried=(0.0, 0.0), changed_s=NOW - FOLLOW_S)
    assert step(seen(), new).hold.carried == (0.0, 0.0)
    assert step(seen(), new, NOW + 0.5, dt_s=0.5).hold.carried == (R / 2, 0.5)


def test_what_is_judged_is_mostly_the_last_seconds() -> None:
    hold = holding(carried=(10 * R * 100, 100.0), probe_again_s=1e9)
    for tick in range(int(10 * JUDGE_S)):
        hold = step(seen(), hold, NOW + tick).hold
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


def test_the_limit_does_not_grow_where_the_step_before_brought_nothing() -> None:
    taken = step(unknown(rate=4 * R), seeking(4 * R, seek_rate=4.01 * R / SEEK_GAIN))
    assert taken.limit == BOUNDS.start and "no more than" in taken.why


def test_the_limit_does_not_grow_where_nobody_waits_for_it() -> None:
    taken = step(unknown(rate=4 * R, held_back=False), seeking())
    assert taken.limit == BOUNDS.start and "holds nobody back" in taken.why


def test_the_limit_grows_no_further_than_the_writeback_loop_can_need() -> None:
    slow = 0.9 * BOUNDS.start / SEEK_DELAY_S
    taken = step(unknown(rate=slow), seeking(slow))
    assert taken.limit == BOUNDS.start and "longer queue" in taken.why
    fast = 1.1 * BOUNDS.start / SEEK_DELAY_S
    assert step(unknown(rate=fast), seeking(fast)).limit > BOUNDS.start


def test_a_limit_is_watched_before_the_next_is_tried() -> None:
    hold = seeking(lasted=0.4 * SEEK_S)
    taken = step(unknown(rate=4 * R), hold, dt_s=0.5 * SEEK_S)
    assert taken.limit == BOUNDS.start and taken.hold.seek_rate == 0.0
    assert step(unknown(rate=4 * R), hold, dt_s=0.7 * SEEK_S).limit > BOUNDS.start


def test_the_search_ends_at_the_ceiling() -> None:
    bounds = replace(BOUNDS, ceiling=int(1.5 * BOUNDS.start))
    assert step(unknown(rate=4 * R), seeking(), bounds=bounds).limit == bounds.ceiling


def test_a_cache_that_filled_during_the_search_is_measured_nearer_to_the_knee() -> None:
    far = seeking(limit_bytes=64 * MIB)
    taken = step(unknown(rate=R, full=True, tau_s=2 * BOUNDS.start / R), far)
    assert taken.limit == taken.hold.limit_bytes == 2 * BOUNDS.start
    assert taken.hold.changed_s == NOW
    # Without tau the policy's; never below where the search began.
    taken = step(unknown(rate=2 * BOUNDS.start / BOUNDS.tau_s, full=True), far)
    assert taken.limit == 2 * BOUNDS.start
    assert step(unknown(rate=R / 100, full=True), far).limit == BOUNDS.start


def test_a_full_cache_never_makes_the_search_grow() -> None:
    taken = step(unknown(rate=100 * R, full=True), seeking())
    assert taken.limit == BOUNDS.start and taken.hold.changed_s == NOW - 10


def test_once_the_drain_rate_is_known_the_limit_is_held_at_rate_times_tau() -> None:
    taken = step(seen(), seeking())
    assert taken.limit == taken.hold.limit_bytes == KNEE
    assert taken.hold.phase is Phase.HOLD and taken.hold.changed_s == NOW


def test_once_the_drain_rate_is_known_a_full_cache_is_drained() -> None:
    taken = step(seen(full=True), seeking())
    assert taken.hold.phase is Phase.DRAIN and taken.hold.limit_bytes == KNEE
    assert taken.limit == int(DRAIN_SHARE * KNEE)


# ---- HOLD: the cache is full -----------------------------------------------


def test_a_full_cache_is_drained_when_it_lasts() -> None:
    busy = seen(full=True)
    early = holding(full_s=0.4 * FULL_LASTS_S)
    assert step(busy, early, dt_s=0.5 * FULL_LASTS_S).hold.phase is Phase.HOLD
    hold = replace(early, drained_bytes=1.0, refilled_bytes=9.0, probe_bytes=KNEE // 2)
    taken = step(busy, hold, dt_s=0.7 * FULL_LASTS_S)
    assert taken.hold.phase is Phase.DRAIN and taken.state is State.SQUEEZE
    assert taken.limit == taken.hold.drain_bytes == int(DRAIN_SHARE * KNEE)
    assert taken.hold.limit_bytes == KNEE and taken.hold.changed_s == NOW
    assert taken.hold.drained_bytes == taken.hold.refilled_bytes == 0.0
    assert taken.hold.probe_bytes == 0 and taken.hold.full_s == 0.0


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
    assert step(late(in_waves=True), holding(**LATE)).limit == int(TIGHTEN * KNEE)


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
    assert taken.hold.probe_again_s == CORRECT_S


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
    # A moment above the drain rate is none below it.
    assert step(seen(rate=2 * R), draining(drained_bytes=7.0)).hold.drained_bytes == 7.0
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


@pytest.mark.parametrize("more", [{"full": True}, {"slow_share": FUTILE_SHARE}])
def test_draining_that_makes_no_room_is_useless(more: Dict[str, object]) -> None:
    taken = step(seen(rate=DRAIN_SHARE * R, **more), draining(probe_again_s=PROBE_S))
    assert taken.hold.phase is Phase.HOLD and taken.limit == KNEE
    assert taken.hold.useless_s == NOW and taken.hold.probe_again_s == CORRECT_S
    assert taken.state is State.GUARD


def test_a_smaller_limit_that_costs_no_throughput_is_kept() -> None:
    rate = 1.01 * DRAIN_GRIPS * R
    taken = step(seen(rate=rate), draining(rate, probe_again_s=1.0))
    assert taken.limit == taken.hold.limit_bytes == int(DRAIN_SHARE * KNEE)
    assert taken.hold.phase is Phase.HOLD and taken.hold.useless_s == NOW
    assert taken.hold.probe_again_s == PROBE_S
    rate = 0.99 * DRAIN_GRIPS * R
    assert step(seen(rate=rate), draining(rate)).hold.useless_s < NOW


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
    hold = holding(0.8 * R, fruitless=1)
    taken = step(seen(rate=0.8 * R), hold)
    assert taken.limit == taken.hold.limit_bytes == pytest.approx(KNEE / 0.8, rel=1e-3)
    assert taken.state is State.PROBE and taken.hold.changed_s == NOW
    # What is remembered: where it suffered, and what the step has to beat.
    assert (taken.hold.starved_bytes, taken.hold.starved_s) == (KNEE, NOW)
    assert taken.hold.probe_bytes == KNEE and taken.hold.probe_rate == pytest.approx(0.8 * R)
    assert taken.hold.fruitless == 0 and taken.hold.patience_s == 2 * CORRECT_S


def test_a_step_up_is_at_least_worth_writing_and_at_most_a_step() -> None:
    keen = replace(BOUNDS, keep=0.99)
    assert 0.97 > 1 / GROW_LEAST and 0.2 < 1 / GROW_MOST
    assert step(seen(rate=0.97 * R), holding(0.97 * R), bounds=keen).limit == int(
        KNEE * GROW_LEAST
    )
    assert step(seen(rate=0.2 * R), holding(0.2 * R)).limit == int(KNEE * GROW_MOST)
    assert step(seen(rate=0.0), holding(0.0)).limit == int(KNEE * GROW_MOST)


def test_nobody_is_given_more_who_has_enough_or_does_not_ask() -> None:
    enough = 1.01 * KEEP * R
    assert step(seen(rate=enough), holding(enough)).limit == KNEE
    assert step(seen(rate=POOR * R, held_back=False), holding(POOR * R)).limit == KNEE


def test_a_limit_is_not_judged_before_its_time() -> None:
    hold = holding(carried=(POOR * R, 0.4 * JUDGE_S))
    assert step(seen(rate=POOR * R), hold, dt_s=0.5 * JUDGE_S).limit == KNEE
    assert step(seen(rate=POOR * R), hold, dt_s=0.7 * JUDGE_S).limit > KNEE


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
    assert taken.hold.probe_again_s == EARNED_S and taken.hold.patience_s == CORRECT_S
    later = taken.hold.changed_s + EARNED_S
    assert step(seen(rate=rate), taken.hold, later - 0.5).limit == taken.limit
    assert step(seen(rate=rate), taken.hold, later).limit == int(taken.limit * PROBE_STEP)


def test_a_larger_limit_that_brought_nothing_is_taken_back() -> None:
    rate = 0.99 * PROBE_GAIN * R
    taken = step(seen(rate=rate), probing(rate))
    assert taken.limit == taken.hold.limit_bytes == KNEE and taken.hold.probe_bytes == 0
    assert taken.state is State.PROBE and taken.hold.changed_s == NOW
    assert taken.hold.probe_again_s == min(2 * PROBE_S, PROBE_MOST_S)
    assert taken.hold.patience_s == 2 * CORRECT_S


def test_a_larger_limit_is_not_judged_before_its_time() -> None:
    hold = probing(R, carried=(R * 0.4 * JUDGE_S, 0.4 * JUDGE_S))
    taken = step(seen(), hold, dt_s=0.5 * JUDGE_S)
    assert taken.limit == hold.limit_bytes and taken.hold.probe_bytes == KNEE


@pytest.mark.parametrize(
    "before,after",
    [(EARNED_S, PROBE_S), (PROBE_S, 2 * PROBE_S), (0.9 * PROBE_MOST_S, PROBE_MOST_S)],
)
def test_what_brought_nothing_is_tried_ever_more_seldom(before: float, after: float) -> None:
    taken = step(seen(), probing(R, probe_again_s=before))
    assert taken.hold.probe_again_s == min(after, PROBE_MOST_S)


def test_steps_that_are_taken_back_make_patient_up_to_a_bound() -> None:
    taken = step(seen(), probing(R, patience_s=0.9 * PATIENCE_MOST_S))
    assert taken.hold.patience_s == PATIENCE_MOST_S


def test_where_a_larger_limit_did_not_help_a_starved_flood_the_media_are_slower() -> None:
    poor = POOR * R
    hold = probing(poor, probe_rate=poor, starved_bytes=KNEE, starved_s=NOW - 10)
    taken = step(seen(rate=poor), hold)
    assert taken.limit == KNEE and taken.hold.proved_rate == pytest.approx(poor)
    assert taken.hold.starved_bytes == 0


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
    # The flood brings limit / tau up to 4 R, whatever R was believed to be.
    def host(limit: int) -> Estimate:
        return seen(rate=min(4 * R, limit / TAU))

    steps = run(holding(limit_bytes=int(R * TAU)), 600, host)
    assert min(4 * R, steps[-1][1].limit / TAU) >= 4 * R / PROBE_GAIN


# ---- tightening ------------------------------------------------------------


def late(**more: object) -> Estimate:
    return seen(fsync_p99_s=LATE_S, **more)


def test_late_syncs_with_room_in_the_cache_tighten_the_limit_when_they_last() -> None:
    early = holding(late_s=0.4 * LATE_LASTS_S)
    taken = step(late(), early, dt_s=0.5 * LATE_LASTS_S)
    assert taken.limit == KNEE
    taken = step(late(), early, dt_s=0.7 * LATE_LASTS_S)
    assert taken.limit == taken.hold.limit_bytes == int(TIGHTEN * KNEE)
    assert taken.state is State.SQUEEZE and taken.hold.changed_s == NOW
    assert (taken.hold.wait_s, taken.hold.before_bytes) == (LATE_S, KNEE)


def test_the_next_step_waits_for_what_the_last_one_brings() -> None:
    taken = step(late(), holding(changed_s=NOW - 0.9 * CORRECT_S, **LATE))
    assert taken.limit == KNEE and taken.state is State.SQUEEZE
    patient = holding(patience_s=3 * CORRECT_S, **LATE)
    assert step(late(), patient).limit == KNEE
    assert step(late(), patient, NOW + 2 * CORRECT_S).limit < KNEE


def test_where_draining_is_useless_a_full_cache_tightens_too() -> None:
    hold = holding(useless_s=NOW - 1, **FULL)
    taken = step(seen(full=True), hold)
    assert taken.limit == int(TIGHTEN * KNEE)
    early = step(seen(full=True), replace(hold, changed_s=NOW - 1))
    assert early.limit == KNEE and early.state is State.SQUEEZE


def test_it_does_not_tighten_below_the_floor_and_says_so() -> None:
    bounds = replace(BOUNDS, floor=int(0.9 * KNEE))
    taken = step(late(), holding(fruitless=1, **LATE), bounds=bounds)
    assert taken.limit == KNEE and taken.state is State.EXHAUSTED
    assert "the floor" in taken.why and taken.hold.fruitless == 0
    # Full without late syncs: nothing is missed.
    full = holding(useless_s=NOW - 1, **FULL)
    assert step(seen(full=True), full, bounds=bounds).state is State.GUARD


def test_it_does_not_tighten_to_where_throughput_suffered_until_that_is_long_ago() -> None:
    starved = int(1.02 * TIGHTEN * KNEE / STARVED_MARGIN)
    hold = holding(starved_bytes=starved, **LATE)
    lately = replace(hold, starved_s=NOW - 0.9 * REMEMBERED_S)
    taken = step(late(), lately)
    assert taken.limit == KNEE and "throughput suffered" in taken.why
    once = replace(hold, starved_s=NOW - 1.1 * REMEMBERED_S)
    assert step(late(), once).limit == int(TIGHTEN * KNEE)
    high = replace(BOUNDS, floor=int(0.9 * KNEE))
    assert step(late(), replace(lately, starved_bytes=1), bounds=high).limit == KNEE
    less = replace(lately, starved_bytes=int(0.98 * TIGHTEN * KNEE / STARVED_MARGIN))
    assert step(late(), less).limit == int(TIGHTEN * KNEE)


def tightened(wait_s: float, **more: object) -> Hold:
    usual = holding(
        limit_bytes=int(TIGHTEN * KNEE), wait_s=wait_s, before_bytes=KNEE, **LATE
    )
    return replace(usual, **more)  # type: ignore[arg-type]


def test_a_step_that_shortened_the_wait_is_followed_by_another() -> None:
    hold = tightened(1.01 * LATE_S / FRUITLESS_GAIN, fruitless=FRUITLESS_MOST - 1)
    taken = step(late(), hold)
    assert taken.hold.fruitless == 0 and taken.limit < int(TIGHTEN * KNEE)
    assert taken.hold.before_bytes == int(TIGHTEN * KNEE)


def test_a_step_that_did_not_is_counted_and_the_way_back_kept() -> None:
    taken = step(late(), tightened(0.99 * LATE_S / FRUITLESS_GAIN))
    assert taken.hold.fruitless == 1 and taken.limit < int(TIGHTEN * KNEE)
    assert taken.hold.before_bytes == KNEE and taken.hold.wait_s == LATE_S


def test_a_step_that_was_taken_back_meanwhile_is_not_judged() -> None:
    hold = tightened(LATE_S, limit_bytes=KNEE, fruitless=FRUITLESS_MOST - 1)
    taken = step(late(), hold)
    assert taken.limit == int(TIGHTEN * KNEE) and taken.hold.fruitless == FRUITLESS_MOST - 1


def test_the_last_fruitless_step_lets_go_and_says_so() -> None:
    taken = step(late(), tightened(LATE_S, fruitless=FRUITLESS_MOST - 1))
    assert taken.limit == taken.hold.limit_bytes == KNEE
    assert taken.state is State.EXHAUSTED and "letting go" in taken.why
    assert taken.hold.gave_up_s == taken.hold.changed_s == NOW
    assert (taken.hold.fruitless, taken.hold.before_bytes) == (0, 0)


def test_what_was_given_up_is_not_tried_again_for_a_while() -> None:
    taken = step(late(), holding(gave_up_s=NOW - 0.9 * REMEMBERED_S, **LATE))
    assert taken.limit == KNEE and taken.state is State.EXHAUSTED
    assert "not ours" in taken.why
    again = step(late(), holding(gave_up_s=NOW - 1.1 * REMEMBERED_S, **LATE))
    assert again.limit < KNEE


@pytest.mark.xfail(strict=True, reason="the ticks after a tightening reset the count")
def test_syncs_that_are_slow_at_any_limit_cost_a_few_tightenings_and_no_more() -> None:
    steps = run(holding(), int(0.9 * REMEMBERED_S), lambda limit: late(held_back=False))
    limits = [taken.limit for _, taken in steps]
    assert min(limits) == pytest.approx(KNEE * TIGHTEN ** FRUITLESS_MOST, rel=1e-3)
    assert limits[-1] == KNEE and steps[-1][1].state is State.EXHAUSTED
    changes = sum(a != b for a, b in zip(limits, limits[1:]))
    assert changes == FRUITLESS_MOST + 1  # so many down, and the way back


def test_a_calm_tick_ends_the_count_of_fruitless_steps() -> None:
    assert step(seen(), tightened(LATE_S, late_s=0.0, fruitless=1)).hold.fruitless == 0


def test_with_room_and_fast_syncs_nothing_moves() -> None:
    taken = step(seen(), holding())
    assert taken.limit == KNEE and taken.state is State.GUARD
    assert taken.hold.changed_s == NOW - CORRECT_S


# Each with a limit of KNEE in mind, or on its way from there to more.
ANY = [
    ("start", seen(drain_rate=None), Hold(), State.PROBE),
    ("seek", unknown(), seeking(), State.PROBE),
    ("seek-nobody-held-back", unknown(held_back=False), seeking(), State.GUARD),
    ("seek-no-gain", unknown(), seeking(seek_rate=1e12), State.GUARD),
    ("seek-longer-queue", unknown(rate=1e6), seeking(1e6), State.GUARD),
    ("seek-full", unknown(full=True), seeking(limit_bytes=KNEE), State.GUARD),
    ("drain-rate-known", seen(), seeking(), State.GUARD),
    ("hold", seen(), holding(), State.GUARD),
    ("wave", seen(full=True, in_waves=True), holding(**FULL), State.GUARD),
    ("grow", seen(rate=POOR * R), holding(POOR * R), State.PROBE),
    ("probe", seen(), holding(**DUE), State.PROBE),
    ("probe-back", seen(), probing(R), State.PROBE),
    ("tighten", late(), holding(**LATE), State.SQUEEZE),
    ("let-go", late(), tightened(LATE_S, fruitless=FRUITLESS_MOST - 1), State.EXHAUSTED),
    ("rescale", seen(drain_rate=2 * R), holding(), State.GUARD),
    ("fill", seen(cache_bytes=1e9), holding(phase=Phase.FILL), State.GUARD),
    ("filled", seen(cache_bytes=1e9, full=True), holding(phase=Phase.FILL), State.GUARD),
    ("drain", seen(full=True), holding(**FULL), State.SQUEEZE),
    ("draining", seen(rate=R / 2), draining(), State.SQUEEZE),
    ("drained", seen(rate=R / 2), draining(drained_bytes=10 * R), State.GUARD),
    ("drained-at-no-cost", seen(), draining(R), State.GUARD),
]


# The search that stands still gives its limit as it is; law.py clamps it to the device's bounds.
STILL = pytest.mark.xfail(strict=True, reason="a search that stands still does not clamp")
MOVED = [
    pytest.param(
        *row[1:3], id=row[0], marks=STILL if row[0].startswith("seek-") and not row[1].full else ()
    )
    for row in ANY
]


@pytest.mark.parametrize("seen_,hold", MOVED)
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


@pytest.mark.parametrize("moved", [0.5, 2.0])
def test_the_limit_keeps_to_the_drain_rate_when_that_moves(moved: float) -> None:
    hold = holding(
        starved_bytes=KNEE, starved_s=NOW, probe_bytes=KNEE, gave_up_s=NOW, useless_s=NOW,
        limit_bytes=3 * KNEE,
    )  # fmt: skip
    taken = step(seen(drain_rate=moved * R, rate=moved * R), hold)
    assert taken.limit == taken.hold.limit_bytes == pytest.approx(moved * 3 * KNEE)
    assert taken.hold.for_rate == moved * R and taken.hold.changed_s == NOW
    # What was learned about limits was learned at the other rate.
    assert (taken.hold.starved_bytes, taken.hold.probe_bytes) == (0, 0)
    assert taken.hold.gave_up_s < NOW and taken.hold.carried == (0.0, 0.0)


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


def test_draining_is_tried_again_on_a_disk_that_became_much_faster() -> None:
    hold = holding(useless_s=NOW - 1, patience_s=PATIENCE_MOST_S)
    rate = 1.01 * MUCH_FASTER * R
    taken = step(seen(drain_rate=rate, rate=rate), hold)
    assert taken.hold.useless_s == float("-inf") and taken.hold.patience_s == CORRECT_S
    rate = 0.99 * MUCH_FASTER * R
    taken = step(seen(drain_rate=rate, rate=rate), hold)
    assert taken.hold.useless_s == NOW - 1 and taken.hold.patience_s == PATIENCE_MOST_S


def test_a_limit_without_a_rate_takes_the_present_one_for_its_own() -> None:
    taken = step(seen(drain_rate=4 * R, rate=4 * R), holding(4 * R, for_rate=0.0))
    assert taken.limit == KNEE and taken.hold.for_rate == 4 * R


def test_every_constant_of_the_search_makes_a_step_that_the_ramp_writes() -> None:
    # A goal that moved by less than the deadband is the same goal: such a step would be lost.
    from writebackd.control.ramp import DEADBAND

    assert min(rules.GROW_LEAST, rules.PROBE_STEP, rules.SEEK_STEP) > 1 + DEADBAND
    assert max(rules.TIGHTEN, rules.DRAIN_SHARE) < 1 - DEADBAND
