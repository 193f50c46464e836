# SPDX-License-Identifier: GPL-2.0-or-later
"""The limit of a flooded device whose drain rate is not known: control/seek.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

import pytest

from hold_cases import (
    BOUNDS,
    FULL,
    KNEE,
    NOW,
    R,
    holding,
    seeking,
    seen,
    step,
    unknown,
)
from samples import MIB
from writebackd.control.hold import NO_CACHE_S, rest
from writebackd.control.room import DRAIN_SHARE
from writebackd.control.seek import (
    SEEK_DELAY_MOST_S,
    SEEK_DELAY_S,
    SEEK_FULL_BYTES,
    SEEK_FULL_S,
    SEEK_GAIN,
    SEEK_LATER_S,
    SEEK_MUCH_BYTES,
    SEEK_S,
    SEEK_SLOW,
    SEEK_STEP,
)
from writebackd.control.steps import EARNED_S, FORWARD
from writebackd.estimate.drain import SMALL_CACHE_S, SWEEPS_TO, TAU_MOST_S
from writebackd.model import Hold, Phase, State


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


def test_in_waves_a_larger_limit_is_taken_back_only_where_writes_wait() -> None:
    # The first second of a wave is slow under any limit: 230 MB/s at 8 MB, 172 at 4.
    larger = seeking(R, seek_rate=R, limit_bytes=8 * MIB, waved_bytes=4 * MIB)
    for slow, limit in ((0.99 * SEEK_SLOW, 8 * MIB), (1.01 * SEEK_SLOW, 4 * MIB), (None, 4 * MIB)):
        for rate in (R, 0.8 * R):
            wave = unknown(rate=rate, in_waves=True, slow_share=slow)
            assert step(wave, replace(larger, carried=(rate, 1.0)), dt_s=0.5).limit == limit


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
    # By much it falls in a sweep of the destage as well, which lasts for a second.
    swept = 0.99 * SWEEPS_TO * 4 * R
    for lasted, proved in ((0.4, None), (0.9 * SEEK_LATER_S, swept)):
        taken = step(replace(waits, rate=swept), seeking(
            swept, lasted, seek_rate=4 * R, limit_bytes=8 * MIB), dt_s=0.5)
        assert taken.hold.proved_rate == (proved and pytest.approx(proved))
        assert taken.limit == 8 * MIB
    # A short flood may just have begun or ended in the tick.
    assert step(replace(waits, in_waves=True), larger, dt_s=0.5).hold.proved_rate is None
    # Where no write waits for the media it is not the media.
    quick = unknown(rate=less, slow_share=0.99 * SEEK_SLOW)
    taken = step(quick, larger, dt_s=0.5)
    assert taken.limit == 8 * MIB and "does that last" in taken.why
    lasts = seeking(less, SEEK_LATER_S, seek_rate=4 * R, limit_bytes=8 * MIB)
    taken = step(quick, lasts, dt_s=0.5)
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
    half = replace(much, limit_bytes=7 * SEEK_MUCH_BYTES // 16, carried=(R * 4, 1.0))
    assert step(unknown(rate=4 * R), half).limit == 7 * SEEK_MUCH_BYTES // 8


def test_where_the_cache_may_fill_under_it_a_limit_grows_less() -> None:
    full = seeking(limit_bytes=SEEK_FULL_BYTES)
    slow = 0.9 * SEEK_STEP * SEEK_FULL_BYTES / SEEK_FULL_S
    taken = step(unknown(rate=slow), replace(full, carried=(slow, 1.0)))
    assert taken.limit == SEEK_FULL_BYTES and "longer queue" in taken.why
    fast = 1.1 * SEEK_STEP * SEEK_FULL_BYTES / SEEK_FULL_S
    taken = step(unknown(rate=fast), replace(full, carried=(fast, 1.0)))
    assert taken.limit == SEEK_STEP * SEEK_FULL_BYTES


@pytest.mark.parametrize("limit,before,now,slow,grows", [
    (8, 280, 490, 0.0, True),  # an NVMe drive
    (8, 185, 265, 0.0, False),  # an array of 250 MB/s
    (8, 280, 490, SEEK_SLOW, False),
    (8, 280, 490, None, False),
    (16, 512, 1024, 0.0, True),
    (16, 717, 1024, 0.0, False),
])
def test_while_the_rate_grows_as_the_limit_does_no_bound_holds(
    limit: int, before: int, now: int, slow: Optional[float], grows: bool
) -> None:
    hold = seeking(now * MIB, SEEK_LATER_S, seek_rate=before * MIB, limit_bytes=limit * MIB)
    taken = step(unknown(rate=now * MIB, slow_share=slow), hold, dt_s=0.5)
    assert taken.limit == (2 * limit if grows else limit) * MIB


def test_a_limit_is_watched_before_the_next_is_tried() -> None:
    hold = seeking(lasted=0.4 * SEEK_S)
    taken = step(unknown(rate=4 * R), hold, dt_s=0.5 * SEEK_S)
    assert taken.limit == BOUNDS.start and taken.hold.seek_rate == 0.0
    assert step(unknown(rate=4 * R), hold, dt_s=0.7 * SEEK_S).limit > BOUNDS.start


def test_a_burst_does_not_make_the_limit_grow_for_a_second_time() -> None:
    # 346 and 390 MB/s at 8 MB, then 260 to 290; here of a faster disk, which may have 16.
    before, now = 5 * R, 6 * R
    burst = seeking(now, seek_rate=before, limit_bytes=8 * MIB)
    taken = step(unknown(rate=now), burst, dt_s=0.5)
    assert taken.limit == 8 * MIB and taken.state is State.PROBE and "last" in taken.why
    lasts = seeking(now, SEEK_LATER_S, seek_rate=before, limit_bytes=8 * MIB)
    assert step(unknown(rate=now), lasts, dt_s=0.5).limit == 16 * MIB
    over = seeking(1.05 * before, SEEK_LATER_S, seek_rate=before, limit_bytes=8 * MIB)
    assert step(unknown(rate=1.05 * before), over, dt_s=0.5).limit == 4 * MIB
    # A short flood leaves no time for that.
    assert step(unknown(rate=now, in_waves=True), burst, dt_s=0.5).limit == 16 * MIB


def test_in_waves_a_limit_may_be_larger_than_where_a_cache_is_to_fill_under_it() -> None:
    lasts = seeking(1.2 * R, SEEK_LATER_S, seek_rate=R, limit_bytes=SEEK_FULL_BYTES)
    assert step(unknown(rate=1.2 * R), lasts, dt_s=0.5).limit == SEEK_FULL_BYTES
    wave = unknown(rate=1.2 * R, in_waves=True)
    assert step(wave, lasts, dt_s=0.5).limit == 2 * SEEK_FULL_BYTES
    most = replace(lasts, limit_bytes=2 * SEEK_FULL_BYTES)
    assert step(wave, most, dt_s=0.5).limit == 2 * SEEK_FULL_BYTES


def test_a_wave_may_have_more_than_a_steady_flood() -> None:
    before = seeking(1.2 * R, SEEK_LATER_S, seek_rate=R, limit_bytes=SEEK_FULL_BYTES)
    assert step(unknown(rate=1.2 * R), before, dt_s=0.5).limit == SEEK_FULL_BYTES
    # A tick without a flood changes nothing.
    limit, hold = rest(BOUNDS, unknown(flooded=False, rate=0.0), before)
    assert limit == SEEK_FULL_BYTES
    wave = unknown(rate=0.7 * R, in_waves=True)
    for begun in (hold, replace(hold, limit_bytes=BOUNDS.start, sought=True)):
        taken = step(wave, begun, dt_s=0.5)
        assert taken.limit == SEEK_MUCH_BYTES and taken.state is State.PROBE
        assert taken.hold.waved_bytes == begun.limit_bytes and taken.hold.changed_s == NOW
    # Not once the cache was full under it, nor while writes wait, nor twice, nor a queue of 0.3 s,
    # nor what a fast disk has to show first.
    assert step(replace(wave, full=True, tau_s=10e-3), hold, dt_s=0.5).limit <= SEEK_FULL_BYTES
    for other, waves in (
        (hold, replace(wave, slow_share=1.1 * SEEK_SLOW)),
        (hold, replace(wave, slow_share=None)),
        (replace(hold, waved_bytes=SEEK_FULL_BYTES), wave),
        (seeking(50.0 * MIB, 3.0, limit_bytes=15 * MIB // 2), replace(wave, rate=50.0 * MIB)),
        (seeking(4 * R, seek_rate=4 * R, limit_bytes=SEEK_FULL_BYTES), wave),
    ):
        assert step(waves, other, dt_s=0.5).limit <= SEEK_FULL_BYTES


def test_a_flood_that_is_no_wave_goes_back_to_a_limit_under_which_a_cache_may_fill() -> None:
    wide = seeking(
        1.2 * R, seek_rate=R, limit_bytes=SEEK_MUCH_BYTES, waved_bytes=SEEK_FULL_BYTES
    )
    lasting = unknown(rate=1.2 * R)
    taken = step(lasting, wide)
    assert taken.limit == taken.hold.limit_bytes == SEEK_FULL_BYTES and "lasts" in taken.why
    assert taken.hold.changed_s == NOW and taken.hold.seek_rate == taken.hold.waved_bytes == 0
    assert step(replace(lasting, in_waves=True), wide).limit == SEEK_MUCH_BYTES
    # Not where another limit, or the policy's first one, has taken its place.
    less = replace(wide, limit_bytes=5 * MIB)
    assert step(lasting, less).limit >= 5 * MIB and not step(lasting, less).hold.waved_bytes
    begun = replace(BOUNDS, start=SEEK_MUCH_BYTES)
    assert step(lasting, replace(wide, waved_bytes=0), bounds=begun).limit == SEEK_MUCH_BYTES


def test_the_search_ends_at_the_ceiling() -> None:
    bounds = replace(BOUNDS, ceiling=int(1.5 * BOUNDS.start))
    assert step(unknown(rate=4 * R), seeking(), bounds=bounds).limit == bounds.ceiling


def test_a_cache_that_filled_during_the_search_is_measured_under_that_limit() -> None:
    far = seeking(limit_bytes=64 * MIB, seek_rate=1.15 * R)
    full = unknown(rate=R, full=True, tau_s=2 * BOUNDS.start / R)
    taken = step(full, far, dt_s=0.5)
    assert taken.limit == taken.hold.limit_bytes == 64 * MIB and not taken.hold.neared
    # Where the second full tick did not tell R: nearer to the knee, but once, since that may let
    # in less than R, and then R would stay unknown.
    taken = step(full, taken.hold, dt_s=0.5)
    assert taken.limit == taken.hold.limit_bytes == 2 * BOUNDS.start and taken.hold.neared
    again = replace(taken.hold, limit_bytes=64 * MIB, full_s=9.0)
    assert step(full, again, dt_s=0.5).limit == 64 * MIB
    # What was let in before is nothing to compare it with: less is not what the media take.
    waits = unknown(rate=0.8 * R, slow_share=1.01 * SEEK_SLOW)
    later = replace(taken.hold, carried=(1.6 * R, 2.0), changed_s=NOW - 3)
    assert step(waits, later, dt_s=0.5).hold.proved_rate is None
    # In the next flood it is the same again.
    assert not rest(BOUNDS, unknown(flooded=False), taken.hold)[1].neared


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
    # But where that is more than what a cache may fill up under.
    high = replace(BOUNDS, start=64 * MIB)
    wide = replace(far, limit_bytes=64 * MIB)
    assert step(replace(wave, rate=R / 2), wide, bounds=high).limit == SEEK_FULL_BYTES


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
