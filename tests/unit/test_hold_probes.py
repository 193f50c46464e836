# SPDX-License-Identifier: GPL-2.0-or-later
"""The limit of a flooded device: throughput, and what is found out by trying a larger one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hold_cases import (
    BOUNDS,
    DUE,
    KEEP,
    KNEE,
    LATE,
    NOW,
    POOR,
    TAU,
    R,
    holding,
    late,
    probing,
    run,
    seen,
    step,
)
from writebackd.control.hold import (
    FILL_FROM,
    GROW_LEAST,
    GROW_MOST,
    GROW_POWER,
    GROW_TO,
    MEND,
    MUCH,
    PROBE_GAIN,
    PROBE_MOST_S,
    PROBE_STEP,
    PROOF_STEP,
)
from writebackd.control.ramp import DEADBAND
from writebackd.control.room import ROOM_SHARE
from writebackd.control.seek import SEEK_GAIN
from writebackd.control.steps import (
    EARNED_S,
    JUDGE_S,
    MUCH_SHORT,
    PROBE_S,
    REMEMBERED_S,
    SOON_JUDGED_S,
)
from writebackd.estimate.drain import SMALL_CACHE_S
from writebackd.model import Phase, State

# ---- HOLD: throughput ------------------------------------------------------


def test_a_flood_that_gets_too_little_is_given_more() -> None:
    taken = step(seen(rate=0.8 * R), holding(0.8 * R))
    grown = KNEE * max(GROW_LEAST, 0.8**-GROW_POWER)
    assert taken.limit == taken.hold.limit_bytes == pytest.approx(grown, rel=1e-3)
    assert taken.state is State.PROBE and taken.hold.changed_s == NOW
    # What is remembered: where it suffered, and what the step has to beat.
    assert (taken.hold.starved_bytes, taken.hold.starved_s) == (KNEE, NOW)
    assert taken.hold.probe_bytes == KNEE and taken.hold.probe_rate == pytest.approx(0.8 * R)
    # Not while the cache is full: then the media take no more, whatever the limit.
    taken = step(seen(rate=0.8 * R, full=True), holding(0.8 * R), dt_s=0.5)
    assert taken.limit == KNEE and taken.hold.phase is Phase.HOLD and "does it last" in taken.why


def test_behind_an_empty_cache_all_that_is_missing_is_given_at_once() -> None:
    cache = 2.0 * R
    empty = seen(rate=0.6 * R, cache_bytes=cache, fill_bytes=FILL_FROM * cache)
    assert step(empty, holding(0.6 * R)).limit == pytest.approx(KNEE / 0.6, rel=1e-3)
    some = replace(empty, fill_bytes=1.01 * FILL_FROM * cache)
    assert step(some, holding(0.6 * R)).limit == pytest.approx(KNEE * 0.6**-GROW_POWER, rel=1e-3)


def test_where_there_is_no_room_to_make_none_can_be_lost_by_giving_all_that_is_missing() -> None:
    useless = holding(0.6 * R, useless_s=NOW - 0.9 * REMEMBERED_S)
    assert step(seen(rate=0.6 * R), useless).limit == pytest.approx(KNEE / 0.6, rel=1e-3)
    once = holding(0.6 * R, useless_s=NOW - 1.1 * REMEMBERED_S)
    some = KNEE * 0.6**-GROW_POWER
    assert step(seen(rate=0.6 * R), once).limit == pytest.approx(some, rel=1e-3)


def test_after_a_step_up_that_brought_nothing_the_next_one_is_larger() -> None:
    rate, larger = 0.8 * R, int(1.12 * KNEE)
    tried = holding(
        carried=(rate * SOON_JUDGED_S, SOON_JUDGED_S), limit_bytes=larger, probe_bytes=KNEE,
        probe_rate=1.01 * rate / PROBE_GAIN,
    )  # fmt: skip
    assert step(seen(rate=rate), tried).limit == int(PROOF_STEP * larger)
    some = replace(tried, probe_rate=0.99 * rate / PROBE_GAIN)
    grown = larger * max(GROW_LEAST, 0.8**-GROW_POWER)
    assert step(seen(rate=rate), some).limit == pytest.approx(grown, rel=1e-3)


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


def test_what_was_missing_and_comes_into_a_cache_with_room_is_not_the_drain_rate() -> None:
    # 130 MB/s of 262 under 1.6 MB after a drain, then 306 under 3 MB: the cache has room for that.
    rate, cache = 1.2 * R, 2 * R
    for before, fill, size, proved in (
        (0.5 * R, 0.9 * cache, cache, R),
        (1.1 * R, 0.9 * cache, cache, R),  # so it was with the step before
        (0.99 * R, 0.9 * cache, cache, rate),  # nothing was missing
        (0.5 * R, cache, cache, rate),
        (0.5 * R, 0.0, None, rate),
        (0.5 * R, 0.0, 0.9 * SMALL_CACHE_S * R, rate),
    ):
        taken = step(
            seen(rate=rate, fill_bytes=fill, cache_bytes=size), probing(rate, probe_rate=before)
        )
        assert taken.hold.proved_rate == taken.hold.for_rate == pytest.approx(proved)
        assert taken.limit == int(KNEE * PROBE_STEP) and taken.hold.earned == 1


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
