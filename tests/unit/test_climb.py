# SPDX-License-Identifier: GPL-2.0-or-later
"""The search for a limit by trying: each rule of control/climb.py by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Callable, List, Optional

import pytest

from hold_cases import BOUNDS, KEEP, KNEE, LATE_S, NOW, R, Step, holding, late, run
from writebackd.control.climb import (
    AT_FLOOR,
    DEAR,
    EARNS,
    FREE_TRIES,
    FRUITLESS,
    GAVE_UP_S,
    LEAP,
    MUCH,
    PATIENCE_MOST_S,
    PATIENCE_S,
    STAYS,
    STEP,
    climb,
)
from writebackd.control.hold import FOLLOW_S, PROBE_MOST_S, may_starve
from writebackd.control.seek import seek_most
from writebackd.control.steps import JUDGE_S, MUCH_SHORT, REMEMBERED_S, SOON_JUDGED_S, Bounds
from writebackd.model import Climb, Estimate, Hold, State

MEAN_S = 10e-3
SYNCS = 300.0
SMALLER, LARGER = int(KNEE / STEP), int(KNEE * STEP)


def judged(
    now: Climb, mean_s: float = MEAN_S, rate: float = R, limit: int = KNEE, **more: object
) -> Hold:
    """What a limit has brought; long enough to judge it, and any patience is over."""
    usual = holding(
        rate, limit_bytes=limit, waited=(SYNCS * mean_s, SYNCS), climb=now,
        changed_s=NOW - 1.01 * PATIENCE_MOST_S,
    )  # fmt: skip
    return replace(usual, **more)  # type: ignore[arg-type]


def tick(
    hold: Hold, seen: Optional[Estimate] = None, bounds: Bounds = BOUNDS, is_late: bool = True,
    far: float = 0.0,
) -> Step:
    limit = hold.limit_bytes
    assert limit is not None
    return Step(*climb(bounds, seen or late(), hold, NOW, limit, is_late, far=far))


def smaller(mean_s: float = MEAN_S, rate: float = R, **more: object) -> Climb:
    """A smaller limit is being tried; under the one before it was like that."""
    return replace(Climb(KNEE, rate, mean_s, tries=1), **more)  # type: ignore[arg-type]


def larger(mean_s: float = MEAN_S, rate: float = R, **more: object) -> Climb:
    return replace(smaller(mean_s, rate, up=True), **more)  # type: ignore[arg-type]


def earned(now: Climb, mean_s: float, rate: float = R, seen: Optional[Estimate] = None) -> bool:
    limit = LARGER if now.up else SMALLER
    taken = tick(judged(now, mean_s, rate, limit), seen)
    kept = taken.hold.climb.from_bytes == limit  # the next step follows at once
    assert kept or (taken.limit == KNEE and taken.hold.climb.from_bytes == 0)
    return kept


# ---- a step ----------------------------------------------------------------


def test_the_first_step_is_a_smaller_limit_and_what_was_there_is_kept() -> None:
    taken = tick(judged(Climb(), full_s=5.0, late_s=5.0))
    assert taken.limit == taken.hold.limit_bytes == SMALLER
    now = taken.hold.climb
    assert (now.from_bytes, now.up, now.tries) == (KNEE, False, 1)
    assert now.rate == pytest.approx(R) and now.mean_s == pytest.approx(MEAN_S)
    assert taken.state is State.SQUEEZE and taken.hold.changed_s == NOW
    assert taken.hold.carried == taken.hold.waited == (0.0, 0.0)
    assert (taken.hold.full_s, taken.hold.late_s) == (0.0, 0.0)


@pytest.mark.parametrize("up", [True, False])
def test_the_first_step_goes_where_something_is_missing(up: bool) -> None:
    # Whatever direction was left over from an earlier search.
    for part, limit in ((0.99, LARGER), (1.01, SMALLER)):
        taken = tick(judged(Climb(up=up), rate=part * KEEP * R))
        assert taken.limit == limit and taken.hold.climb.up is (limit == LARGER)
        assert taken.hold.climb.begin_bytes == KNEE
    # A step that made a difference lets the tries begin anew, not the direction.
    anew = tick(judged(Climb(up=up, begin_bytes=3 * KNEE)))
    assert anew.limit == (LARGER if up else SMALLER)
    assert anew.hold.climb.begin_bytes == 3 * KNEE
    # Of a disk that nothing is known about, no throughput is missed.
    assert tick(judged(Climb(up=up), rate=1.0), late(drain_rate=None)).limit == SMALLER
    # The steps after it go on as they were.
    taken = tick(judged(Climb(up=up, tries=1, begin_bytes=3 * KNEE), rate=0.5 * KEEP * R))
    assert taken.limit == (LARGER if up else SMALLER)
    assert taken.hold.climb.begin_bytes == 3 * KNEE


def starving(part: float, lasted: float = JUDGE_S, now: Optional[Climb] = None) -> Hold:
    """The flood gets `part` of R, as it was seen for so many seconds."""
    return judged(now or Climb(), carried=(part * R * lasted, lasted))


def test_where_much_is_missing_the_first_step_takes_back_what_a_round_of_the_loop_costs() -> None:
    # limit / (limit + a) of R: so `a` is half of the limit here, and 0.85 need so much more.
    part = 2 / 3
    more = 0.5 / (1 / MUCH_SHORT - 1)
    assert STEP < more < LEAP
    assert tick(starving(part), far=1e9).limit == pytest.approx(more * KNEE, rel=1e-3)
    # A little less than enough wants an ordinary step, nearly nothing at most a leap.
    assert tick(starving(0.99 * MUCH_SHORT), far=1e9).limit == LARGER
    assert tick(starving(0.01), far=1e9).limit == int(LEAP * KNEE)
    # No further than where the limit may be what holds the flood.
    assert tick(starving(part), far=1.5 * KNEE).limit == int(1.5 * KNEE)
    assert tick(starving(part), far=KNEE).limit == LARGER


def test_what_is_much_too_little_is_judged_sooner() -> None:
    soon = 1.01 * SOON_JUDGED_S
    assert tick(starving(0.5, soon), far=1e9).limit > LARGER
    assert tick(starving(0.5, 0.99 * SOON_JUDGED_S), far=1e9).limit == KNEE
    # Not what is nearly enough, nor above what may hold the flood.
    assert tick(starving(1.01 * MUCH_SHORT, soon), far=1e9).limit == KNEE
    assert tick(starving(0.5, soon), far=KNEE).limit == KNEE
    # A larger limit on trial, but no smaller one: what that gains has to be seen.
    up, down = (starving(0.5, soon, each) for each in (larger(), smaller()))
    assert tick(up, far=1e9).hold.climb.from_bytes == 0
    assert tick(down, far=1e9).hold == down


def test_of_waves_and_of_a_disk_that_is_not_known_it_is_not_told_what_starves() -> None:
    assert may_starve(late()) == seek_most(R)
    assert may_starve(late(in_waves=True)) == 0.0
    assert tick(starving(0.5), late(drain_rate=None), far=1e9).limit == SMALLER


def test_a_step_up_is_called_a_probe() -> None:
    taken = tick(judged(Climb(up=True, tries=1)))
    assert taken.limit == taken.hold.limit_bytes == LARGER
    assert taken.state is State.PROBE and taken.hold.climb.up


@pytest.mark.parametrize(
    "now,state",
    [(Climb(), State.SQUEEZE), (Climb(up=True), State.SQUEEZE), (smaller(), State.SQUEEZE),
     (larger(), State.PROBE)],
)  # fmt: skip
def test_nothing_is_judged_before_its_time(now: Climb, state: State) -> None:
    hold = judged(now, 1e3 * MEAN_S, carried=(R * 0.9 * JUDGE_S, 0.9 * JUDGE_S))
    taken = tick(hold)
    assert taken.hold == hold and taken.limit == KNEE and taken.state is state


@pytest.mark.parametrize("now", [smaller(), larger()])
def test_a_step_has_to_earn_its_keep(now: Climb) -> None:
    assert earned(now, 0.99 * MEAN_S / EARNS)
    assert not earned(now, 1.01 * MEAN_S / EARNS)


def test_throughput_is_dear_below_what_is_to_be_kept_and_nothing_above() -> None:
    # Above it, R is all the same.
    assert earned(smaller(), 0.99 * MEAN_S / EARNS, rate=1.01 * KEEP * R)
    part = 0.9
    worth = part**DEAR
    assert earned(smaller(), 0.99 * worth * MEAN_S / EARNS, rate=part * KEEP * R)
    assert not earned(smaller(), 1.01 * worth * MEAN_S / EARNS, rate=part * KEEP * R)
    # A larger limit may earn by throughput alone, though syncs wait longer.
    before = larger(rate=part * KEEP * R)
    assert earned(before, 0.99 * MEAN_S / worth / EARNS)
    assert not earned(before, 1.01 * MEAN_S / worth / EARNS)


def test_both_limits_are_measured_by_the_same_drain_rate() -> None:
    # R was only as good as the limits that were tried: a larger one brings twice as much.
    assert earned(larger(), 3 * MEAN_S, rate=2 * R)
    assert not earned(larger(), 3 * MEAN_S, rate=R)
    # And what it was before counts when a smaller one is tried.
    assert not earned(smaller(rate=2 * R), MEAN_S / 3, rate=R)
    # R is above both: then the media could do more at either.
    assert not earned(smaller(rate=0.8 * R), 0.9 * MEAN_S / EARNS, rate=0.9 * 0.8 * R)
    # Where R is not known the better of the two stands in.
    blind = late(drain_rate=None)
    assert earned(smaller(), 0.99 * MEAN_S / EARNS, seen=blind)
    assert not earned(smaller(rate=2 * R), MEAN_S / 3, seen=blind)
    assert earned(smaller(rate=0.8 * R), 0.9 * MEAN_S / EARNS, rate=0.9 * 0.8 * R, seen=blind)


def test_a_sync_that_has_not_come_back_has_waited_as_well() -> None:
    assert earned(smaller(), MEAN_S / 2)
    stuck = late(oldest_fsync_s=SYNCS * MEAN_S)
    assert not earned(smaller(), MEAN_S / 2, seen=stuck)
    # Without any that did, it is all there is.
    hold = judged(smaller(), limit=SMALLER, waited=(0.0, 0.0))
    assert tick(hold, late(oldest_fsync_s=0.99 * MEAN_S / EARNS)).limit != KNEE
    assert tick(hold, late(oldest_fsync_s=1.01 * MEAN_S / EARNS)).limit == KNEE


def test_what_earned_is_kept_and_the_next_step_goes_the_same_way() -> None:
    fine = MEAN_S / (EARNS * 1.1)
    taken = tick(judged(smaller(failed=1, fruitless=1, tries=3), fine, limit=SMALLER))
    now = taken.hold.climb
    assert taken.limit == int(SMALLER / STEP) and now.from_bytes == SMALLER
    assert now.mean_s == pytest.approx(fine)
    assert (now.failed, now.fruitless, now.up, now.tries) == (0, 0, False, 4)
    taken = tick(judged(larger(failed=1, fruitless=1, tries=3), fine, limit=LARGER))
    now = taken.hold.climb
    # That a larger one helped says nothing about smaller ones.
    assert taken.limit == int(LARGER * STEP) and (now.failed, now.fruitless) == (0, 1)


@pytest.mark.parametrize("now,limit", [(smaller(), SMALLER), (larger(), LARGER)])
def test_what_did_not_is_taken_back_and_the_other_direction_is_next(
    now: Climb, limit: int
) -> None:
    taken = tick(judged(replace(now, tries=3), limit=limit), is_late=False)
    after = taken.hold.climb
    assert taken.limit == taken.hold.limit_bytes == KNEE and taken.state is State.GUARD
    assert (after.from_bytes, after.up, after.failed, after.tries) == (0, not now.up, 1, 3)
    assert after.fruitless == (not now.up)
    assert taken.hold.changed_s == NOW and taken.hold.carried == (0.0, 0.0)
    assert ("smaller" if now.up else "larger") in tick(
        judged(replace(after, failed=0), limit=KNEE)
    ).why


def test_the_way_back_stays_within_bounds_that_moved() -> None:
    bounds = replace(BOUNDS, ceiling=SMALLER)
    assert tick(judged(smaller(), limit=SMALLER), bounds=bounds).limit == SMALLER


# ---- how often -------------------------------------------------------------


@pytest.mark.parametrize("more", [1, 2, 3, 50])
def test_after_some_tries_each_waits_longer_than_the_one_before(more: int) -> None:
    wait_s = min(PATIENCE_MOST_S, PATIENCE_S * more)
    now = Climb(tries=FREE_TRIES + more)
    early = tick(judged(now, changed_s=NOW - 0.99 * wait_s))
    assert early.limit == KNEE and early.state is State.GUARD and early.hold.climb == now
    due = tick(judged(now, changed_s=NOW - 1.01 * wait_s))
    assert due.limit == SMALLER and due.hold.climb.tries == FREE_TRIES + more + 1


def test_the_first_tries_follow_at_once() -> None:
    assert tick(judged(Climb(tries=FREE_TRIES), changed_s=NOW)).limit == SMALLER


def test_a_step_that_made_much_of_a_difference_begins_anew() -> None:
    many = FREE_TRIES + 3
    little, much = MEAN_S / (0.99 * MUCH), MEAN_S / (1.01 * MUCH)
    taken = tick(judged(smaller(tries=many), much, limit=SMALLER, changed_s=NOW))
    assert taken.hold.climb.tries == 1 and taken.limit == int(SMALLER / STEP)
    taken = tick(judged(smaller(tries=many), little, limit=SMALLER, changed_s=NOW))
    assert taken.limit == SMALLER and taken.hold.climb.tries == many
    # Kept while it waits, and not judged a second time.
    assert taken.hold.climb.from_bytes == 0


# ---- what is said ----------------------------------------------------------


@pytest.mark.parametrize("begin,limit", [(0, KNEE), (KNEE // 3, KNEE), (3 * KNEE, 3 * KNEE)])
def test_where_smaller_limits_shortened_nothing_it_goes_back_to_where_it_began(
    begin: int, limit: int
) -> None:
    last = smaller(fruitless=FRUITLESS - 1, begin_bytes=begin)
    taken = tick(judged(last, limit=SMALLER))
    assert taken.state is State.EXHAUSTED and STAYS in taken.why
    assert taken.limit == taken.hold.limit_bytes == limit
    assert taken.hold.climb == Climb(gave_up_s=NOW) and taken.hold.changed_s == NOW
    # Not further than the bounds of today.
    bounds = replace(BOUNDS, ceiling=2 * KNEE)
    assert tick(judged(last, limit=SMALLER), bounds=bounds).limit == min(limit, 2 * KNEE)
    # Nothing is missed where syncs are as wanted, and one is not enough.
    fine = tick(judged(last, limit=SMALLER), is_late=False)
    assert fine.state is State.GUARD and fine.limit == KNEE
    assert fine.hold.climb.fruitless == FRUITLESS and fine.hold.climb.gave_up_s < NOW
    once = tick(judged(replace(last, fruitless=FRUITLESS - 2), limit=SMALLER))
    assert once.state is State.GUARD and once.limit == KNEE


def test_it_lets_go_for_minutes_and_then_tries_again() -> None:
    early = judged(Climb(gave_up_s=NOW - 0.99 * GAVE_UP_S))
    taken = tick(early)
    assert taken.limit == KNEE and taken.hold == early
    assert taken.state is State.EXHAUSTED and STAYS in taken.why
    assert tick(early, is_late=False).state is State.GUARD
    due = tick(judged(Climb(gave_up_s=NOW - 1.01 * GAVE_UP_S)))
    assert due.limit == SMALLER and due.state is State.SQUEEZE


def test_when_neither_direction_helps_that_is_said_while_it_waits() -> None:
    now = Climb(tries=FREE_TRIES + 1, failed=2)
    soon = judged(now, changed_s=NOW - 0.5 * PATIENCE_S)
    taken = tick(soon)
    assert taken.state is State.EXHAUSTED and STAYS in taken.why and taken.limit == KNEE
    assert tick(soon, is_late=False).state is State.GUARD
    assert tick(replace(soon, climb=replace(now, failed=1))).state is State.GUARD


def test_at_the_floor_it_says_so_and_turns_round() -> None:
    at_floor = replace(BOUNDS, floor=KNEE)
    taken = tick(judged(Climb(failed=1, fruitless=1, tries=1)), bounds=at_floor)
    assert taken.state is State.EXHAUSTED and "policy's floor" in taken.why and STAYS in taken.why
    now = taken.hold.climb
    assert taken.limit == KNEE and now.up and now.failed == 2
    # A limit that was not tried is no fruitless one.
    assert now.fruitless == 1 and now.from_bytes == 0
    # It counts as a try: what comes next waits where nothing is missing.
    assert now.tries == 2
    begun = tick(judged(Climb()), bounds=at_floor, is_late=False)
    assert begun.state is State.GUARD and begun.hold.climb.tries == 1
    # The next tick tries the other way, without another wait for its measure.
    assert tick(taken.hold, bounds=at_floor).limit == LARGER


def test_a_search_that_would_begin_below_the_floor_stays_there_and_says_so() -> None:
    at_floor = replace(BOUNDS, floor=KNEE)
    taken = tick(judged(Climb()), bounds=at_floor)
    assert taken.limit == KNEE and taken.state is State.EXHAUSTED and AT_FLOOR in taken.why
    # What throughput is missed there is looked for above.
    assert tick(judged(Climb(), rate=0.99 * KEEP * R), bounds=at_floor).limit == LARGER


def test_at_the_ceiling_it_turns_round_without_a_word() -> None:
    taken = tick(judged(Climb(up=True, tries=1)), bounds=replace(BOUNDS, ceiling=KNEE))
    assert taken.state is State.GUARD and "bound" in taken.why
    assert taken.limit == KNEE and not taken.hold.climb.up


def test_a_step_stays_within_the_bounds() -> None:
    between = replace(BOUNDS, floor=int(0.9 * KNEE), ceiling=int(1.1 * KNEE))
    assert tick(judged(Climb(tries=1)), bounds=between).limit == between.floor
    assert tick(judged(Climb(up=True, tries=1)), bounds=between).limit == between.ceiling


# ---- all of it -------------------------------------------------------------


def found(
    brings: Callable[[int], Estimate], start: int, ticks: int = 400
) -> "List[int]":
    """The limits of the last minutes, on a disk where draining is known to be useless."""
    hold = holding(
        limit_bytes=start, useless_s=NOW + ticks - REMEMBERED_S / 2, probe_again_s=PROBE_MOST_S
    )
    steps = run(hold, ticks, brings)
    return [taken.limit for _, taken in steps[ticks // 2 :]]


# Letting go counts a smaller limit as fruitless also where it cost throughput, and gives
# back all that the smaller limits before it had earned.
@pytest.mark.parametrize("away", [0.2, 1.0, 6.0])
def test_it_finds_the_limit_where_throughput_begins_to_suffer(away: float) -> None:
    best = KNEE / 2

    def brings(limit: int) -> Estimate:
        # The queue is the limit's, and below `best` it cannot keep the media busy.
        rate = R * min(1.0, limit / best)
        wait_s = LATE_S * limit / KNEE
        return late(
            full=True, rate=rate, fsync_p99_s=3 * wait_s, fsyncs=50, fsync_total_s=50 * wait_s
        )

    limits = found(brings, int(away * best))
    for limit in limits:
        assert KEEP * best / STEP**2 < limit < KEEP * best * STEP**2
    changes = sum(a != b for a, b in zip(limits, limits[1:]))
    assert changes <= 2 * len(limits) / PATIENCE_MOST_S + 2 * (1 + FOLLOW_S)


def test_where_no_throughput_is_missing_a_larger_limit_is_tried_seldom() -> None:
    up = Climb(up=True, tries=1)
    soon, due = NOW - 0.99 * PATIENCE_MOST_S, NOW - 1.01 * PATIENCE_MOST_S
    assert tick(judged(up, changed_s=soon)).limit == KNEE
    assert tick(judged(up, changed_s=due)).limit == LARGER
    assert tick(judged(up, rate=0.9 * KEEP * R, changed_s=soon)).limit == LARGER


def test_each_failure_makes_the_next_try_later() -> None:
    for failed in (2, 4):
        now = Climb(tries=1, failed=failed)
        pause_s = PATIENCE_S * (failed - 1)
        assert tick(judged(now, changed_s=NOW - 0.99 * pause_s)).limit == KNEE
        assert tick(judged(now, changed_s=NOW - 1.01 * pause_s)).limit == SMALLER
