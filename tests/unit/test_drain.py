# SPDX-License-Identifier: GPL-2.0-or-later
"""How full the write cache is, and what drains: estimate/drain.py and estimate/estimate.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Dict, List, Optional, Tuple

import pytest

from plant import DISK, HOST, latencies
from writebackd.estimate.drain import (
    BUSY_SHARE,
    DEEP,
    DEEP_LASTS_S,
    ENOUGH,
    FALLS_TO,
    FAST_LASTS,
    FAST_LASTS_S,
    FILLING_TICKS,
    FLOOD_RATE,
    FOLLOWED_S,
    FULL_FALLS_S,
    FULL_LEAST_S,
    FULL_OVER_S,
    HELD_BACK_SHARE,
    HELD_BY_MEDIA,
    HELD_SHARE,
    LOWER,
    MEDIA_WAIT,
    NEAR_R,
    NOTHING,
    QUEUE_FOLLOWS_BYTES,
    QUIET_LASTS_S,
    SHARE_MOST_S,
    SHARE_OVER_S,
    SLOW_AT_R,
    SLOW_LEAST_S,
    SLOW_MULTIPLE,
    SLOW_REQUEST,
    SLOW_REQUEST_UNKNOWN_R,
    SLOW_SOME,
    SLOW_SURE,
    SLOW_UNKNOWN_R,
    SLOW_UNKNOWN_S,
    SMALL_CACHE_S,
    SWEEP_LASTS_S,
    SWEEPS_TO,
    SWEPT_TO,
    TAU_DOWN,
    TAU_MOST_S,
    TAU_UP,
    THROTTLED_SHARE,
    UNSETTLED_S,
    Writes,
    count_slow,
    is_full,
    limits_rate,
    measure_writes,
    update_drain,
)
from writebackd.estimate.estimate import (
    SHARE_HALF_S,
    SHARE_LEAST,
    WAVE_GAP_S,
    WAVE_LONGER,
    WAVE_S,
    estimate,
    objective_s,
)
from writebackd.model import (
    Cap,
    ClassSample,
    DeviceMemory,
    DeviceSample,
    Estimate,
    Histogram,
    IoClass,
    Memory,
    Sample,
    SyncSample,
    TaskSample,
    VmLimits,
    VmState,
)
from writebackd.policy import load_policy

MB = 1 << 20
R, TAU = 250.0 * MB, 10e-3
LIMIT = int(R * TAU)
POLICY = load_policy("default")
# Values that no bucket of the histogram, at most 12.5 % wide, can blur.
ABOVE, BELOW = 1.3, 0.7

KNOWN = DeviceMemory(drain_rate=R, tau_s=TAU, drain_limit_bytes=LIMIT)
BUSY = DeviceSample(DISK, busy_share=1.0)


def writes(
    rate: float = R, slow: Optional[float] = 1.0, flooded: bool = True, held: bool = True
) -> Writes:
    return Writes(rate, rate, slow, flooded, held, flooded)


def waiting(p99_s: float) -> DeviceSample:
    return replace(BUSY, sync=SyncSample(fsyncs=100, latency=latencies(p99_s, 100)))


# ---- is_full ---------------------------------------------------------------


def test_a_cache_is_full_when_writes_wait_and_the_device_is_busy_with_a_flood() -> None:
    assert is_full(writes(), BUSY, KNOWN, LIMIT)
    assert not is_full(writes(flooded=False), BUSY, KNOWN, LIMIT)
    assert not is_full(writes(), replace(BUSY, busy_share=0.9 * BUSY_SHARE), KNOWN, LIMIT)
    assert is_full(writes(), replace(BUSY, busy_share=1.1 * BUSY_SHARE), KNOWN, LIMIT)


def test_without_a_probe_a_busy_flood_is_all_that_can_be_known() -> None:
    assert is_full(writes(slow=None), BUSY, DeviceMemory(), LIMIT)
    assert is_full(writes(slow=None), BUSY, KNOWN, LIMIT)


@pytest.mark.parametrize("off", [-0.9, 0.0, 0.9])
def test_near_the_drain_rate_few_slow_writes_tell_a_full_cache(off: float) -> None:
    rate = R * (1 + off * NEAR_R)
    assert is_full(writes(rate, 1.01 * SLOW_AT_R), BUSY, KNOWN, LIMIT)
    assert not is_full(writes(rate, 0.99 * SLOW_AT_R), BUSY, KNOWN, LIMIT)


@pytest.mark.parametrize("rate", [R * (1 + 1.1 * NEAR_R), R * (1 - 1.1 * NEAR_R), R / 4])
def test_at_another_rate_it_takes_many(rate: float) -> None:
    # The limit allows no more than that rate, so a lower one is the limit's doing.
    limit = int(min(rate, R) * TAU)
    assert not is_full(writes(rate, 0.99 * SLOW_SURE), BUSY, KNOWN, limit)
    assert is_full(writes(rate, 1.01 * SLOW_SURE), BUSY, KNOWN, limit)


def test_media_that_became_slower_are_seen_by_few_slow_writes_too() -> None:
    # The limit would allow far more than comes: it is the media, then.
    slower = writes(R / 4, 1.01 * SLOW_AT_R)
    assert is_full(slower, BUSY, KNOWN, LIMIT)
    assert not is_full(slower, BUSY, replace(KNOWN, tau_s=None), LIMIT)
    assert not is_full(writes(2 * R, 1.01 * SLOW_AT_R), BUSY, KNOWN, 100 * LIMIT)


def test_before_the_drain_rate_is_known_syncs_have_to_wait_for_the_queue_as_well() -> None:
    queue_s = 32 * MB / R
    several = writes(R, 1.01 * SLOW_UNKNOWN_R)
    new = DeviceMemory()
    assert is_full(several, waiting(ABOVE * MEDIA_WAIT * queue_s), new, 32 * MB)
    assert not is_full(several, waiting(BELOW * MEDIA_WAIT * queue_s), new, 32 * MB)
    few = writes(R, 0.99 * SLOW_UNKNOWN_R)
    assert not is_full(few, waiting(ABOVE * MEDIA_WAIT * queue_s), new, 32 * MB)


def test_what_syncs_wait_for_says_nothing_where_the_queue_does_not_follow_the_limit() -> None:
    quick = waiting(1e-4)
    assert is_full(writes(), quick, DeviceMemory(), QUEUE_FOLLOWS_BYTES + MB)
    assert not is_full(writes(), quick, DeviceMemory(), QUEUE_FOLLOWS_BYTES)
    assert is_full(writes(), BUSY, DeviceMemory(), LIMIT)
    assert is_full(writes(), replace(BUSY, sync=SyncSample()), DeviceMemory(), LIMIT)


def test_a_limit_that_allows_far_more_than_came_did_not_hold_the_rate() -> None:
    assert limits_rate(int(0.99 * HELD_BY_MEDIA * LIMIT), R, KNOWN)
    assert not limits_rate(int(1.01 * HELD_BY_MEDIA * LIMIT), R, KNOWN)
    assert limits_rate(100 * LIMIT, R, replace(KNOWN, tau_s=None))


# ---- count_slow ------------------------------------------------------------


def completions(
    small: Histogram = Histogram(), background: Histogram = Histogram(),  # noqa: B008
    request: int = 0, kind: IoClass = IoClass.SYNC_WRITE,
) -> DeviceSample:  # fmt: skip
    return replace(
        BUSY,
        classes={
            kind: ClassSample(small.total, small.total * 4096, small),
            IoClass.BACKGROUND_WRITE: ClassSample(
                background.total, background.total * request, background
            ),
        },
    )


def share(sample: DeviceSample, memory: DeviceMemory, rate: float = R) -> float:
    counted = count_slow(sample, memory, rate)
    assert counted is not None and counted[1] > 0
    return counted[0] / counted[1]


def test_without_a_class_probe_nothing_is_counted() -> None:
    assert count_slow(BUSY, KNOWN, R) is None


@pytest.mark.parametrize("kind", [IoClass.SYNC_WRITE, IoClass.JOURNAL])
def test_a_small_write_is_slow_from_a_multiple_of_its_unloaded_latency(kind: IoClass) -> None:
    memory = DeviceMemory(write_baseline_s=SLOW_LEAST_S)
    threshold = SLOW_MULTIPLE * SLOW_LEAST_S
    quick, slow = latencies(BELOW * threshold, 30), latencies(ABOVE * threshold, 10)
    assert share(completions(quick + slow, kind=kind), memory) == pytest.approx(0.25)


def test_no_small_write_is_slow_that_is_fast_by_any_standard() -> None:
    memory = DeviceMemory(write_baseline_s=SLOW_LEAST_S / SLOW_MULTIPLE / 10)
    assert share(completions(latencies(BELOW * SLOW_LEAST_S, 9)), memory) == 0.0
    assert share(completions(latencies(ABOVE * SLOW_LEAST_S, 9)), memory) == 1.0


@pytest.mark.parametrize(
    "drain_rate,wait_s", [(R, SLOW_REQUEST / R), (None, SLOW_REQUEST_UNKNOWN_R / (2 * R))]
)
def test_room_for_a_large_request_is_waited_for_so_much_longer(
    drain_rate: Optional[float], wait_s: float
) -> None:
    # At twice R, as into a cache with room: what counts is R, where that is known.
    memory = DeviceMemory(write_baseline_s=1e-5, drain_rate=drain_rate)
    for request in (2 * MB, 8 * MB):
        few = latencies(1e-3, 2)
        quick = completions(latencies(BELOW * wait_s * request, 9), few, request)
        assert share(quick, memory, 2 * R) == 0.0
        slow = completions(latencies(ABOVE * wait_s * request, 9), few, request)
        assert share(slow, memory, 2 * R) == 1.0
    # A small request makes no quicker write a slow one.
    assert share(completions(latencies(BELOW * SLOW_LEAST_S, 9), few, 4096), memory) == 0.0


def test_without_a_rate_the_size_of_requests_says_nothing() -> None:
    memory = DeviceMemory(write_baseline_s=1e-5, drain_rate=R)
    slow = completions(latencies(ABOVE * SLOW_LEAST_S, 9), latencies(1e-3, 2), 64 * MB)
    assert share(slow, memory, 0.0) == 1.0


@pytest.mark.parametrize("baseline_s", [None, 1e-5])
def test_where_there_are_no_small_writes_the_flushers_own_tell(
    baseline_s: Optional[float],
) -> None:
    own = latencies(BELOW * SLOW_UNKNOWN_S, 10) + latencies(ABOVE * SLOW_UNKNOWN_S, 30)
    memory = DeviceMemory(write_baseline_s=baseline_s)
    assert share(completions(background=own, request=MB), memory) == pytest.approx(0.75)


def test_without_an_unloaded_latency_small_writes_are_judged_like_the_flushers() -> None:
    small = latencies(BELOW * SLOW_UNKNOWN_S, 10) + latencies(ABOVE * SLOW_UNKNOWN_S, 10)
    own = latencies(BELOW * SLOW_UNKNOWN_S, 20)
    sample = completions(small, own, MB)
    assert share(sample, DeviceMemory()) == pytest.approx(0.25)


# ---- measure_writes --------------------------------------------------------

THRESHOLD = 40 * MB


def vm(dirty: int = 0, writeback: int = 0, limit: int = LIMIT) -> VmState:
    return VmState(VmLimits(limit, 0, 1, 0), dirty, writeback, limit, THRESHOLD)


def measured(
    sample: DeviceSample = BUSY, memory: DeviceMemory = KNOWN, state: VmState = vm(),  # noqa: B008
    rate: float = R, slept: float = 0.0, dt_s: float = 1.0,
    most: float = 0.0,
) -> Tuple[Writes, DeviceMemory]:  # fmt: skip
    seen, recent = measure_writes(
        sample, memory, state, int(rate * dt_s), slept * dt_s, most * dt_s, dt_s
    )
    return seen, replace(memory, recent_writes=recent)


@pytest.mark.parametrize("kind", ["dirty", "writeback"])
def test_background_writes_are_a_flood_while_pages_wait(kind: str) -> None:
    assert measured(state=vm(**{kind: THRESHOLD // 4}))[0].flooded
    assert not measured(state=vm(**{kind: THRESHOLD // 4 - 1}))[0].flooded


@pytest.mark.parametrize("dt_s", [0.5, 2.0])
def test_background_writes_are_a_flood_while_writers_sleep_for_the_limit(dt_s: float) -> None:
    assert measured(slept=1.01 * THROTTLED_SHARE, dt_s=dt_s)[0].flooded
    assert not measured(slept=0.99 * THROTTLED_SHARE, dt_s=dt_s)[0].flooded


def test_writers_are_held_back_from_a_larger_share_on() -> None:
    assert measured(slept=1.01 * HELD_BACK_SHARE, dt_s=2.0)[0].held_back
    assert not measured(slept=0.99 * HELD_BACK_SHARE, dt_s=2.0)[0].held_back


def test_a_tick_tells_of_the_disk_where_it_is_busy_or_one_writer_sleeps_for_long() -> None:
    # Many that sleep a little: short-lived ones on a busy disk, and a burst of several.
    idle, wait = replace(BUSY, busy_share=0.99 * BUSY_SHARE), vm(dirty=THRESHOLD)
    assert measured(replace(BUSY, busy_share=BUSY_SHARE), slept=1.0, most=0.05)[0].telling
    assert not measured(idle, slept=3.0, most=0.99 * HELD_SHARE, dt_s=2.0)[0].telling
    # Under a limit so small that the disk idles, the one that floods sleeps.
    assert measured(idle, slept=0.9, most=1.01 * HELD_SHARE, dt_s=2.0)[0].telling
    assert not measured(idle, state=wait)[0].telling
    assert not measured(rate=0.99 * FLOOD_RATE, slept=1.0, most=1.0)[0].telling


def test_little_background_writing_is_no_flood_whoever_waits() -> None:
    state = vm(dirty=THRESHOLD)
    assert not measured(state=state, rate=0.99 * FLOOD_RATE, dt_s=2.0)[0].flooded
    assert measured(state=state, rate=1.01 * FLOOD_RATE, dt_s=2.0)[0].flooded


def test_what_is_synced_is_no_flood() -> None:
    sample = completions(latencies(1e-3, 3000), latencies(1e-3, 1), 4096)
    seen, _ = measured(sample, state=vm(dirty=THRESHOLD))
    assert not seen.flooded and seen.background_rate == pytest.approx(R / 3001)
    assert seen.rate == R


def test_the_share_of_slow_writes_is_taken_over_a_second() -> None:
    slow, quick = latencies(1.0, 2 * ENOUGH), latencies(1e-5, 2 * ENOUGH)
    memory, dt_s, shares = KNOWN, SHARE_OVER_S / 4, []
    for tick in range(12):
        seen, memory = measured(completions(slow if tick < 4 else quick), memory, dt_s=dt_s)
        shares.append(seen.slow_share)
    assert shares[3] == 1.0 and shares[-1] == 0.0
    assert shares[5] == pytest.approx(0.5)


def test_a_few_completions_say_nothing_about_a_share() -> None:
    memory, seen = KNOWN, writes()
    for count in range(1, ENOUGH + 1):
        dt_s = SHARE_OVER_S / (2 * ENOUGH)
        seen, memory = measured(completions(latencies(1.0, 1)), memory, dt_s=dt_s)
        assert (seen.slow_share is not None) == (count >= ENOUGH)


@pytest.mark.parametrize("wait_s, full", [(1e-4, False), (0.1, True)])
def test_few_commits_a_second_tell_as_well(wait_s: float, full: bool) -> None:
    """Six a second are demand; that nothing could be known of them was taken for a full cache."""
    memory = replace(KNOWN, write_baseline_s=1e-4)
    for tick in range(12):
        own = latencies(2 * wait_s, 2) if tick < 2 else Histogram()
        sample = completions(latencies(wait_s, 3), own, MB)
        seen, memory = measured(sample, memory, vm(dirty=THRESHOLD), dt_s=0.5)
        if tick >= 3:
            assert seen.slow_share == float(full)
            assert is_full(replace(seen, flooded=True), sample, memory, LIMIT) is full
    assert sum(dt_s for dt_s, *_ in memory.recent_writes) <= SHARE_MOST_S


@pytest.mark.parametrize("wait_s, full", [(0.5 * SLOW_UNKNOWN_S, False), (0.1, True)])
def test_where_next_to_nobody_commits_the_flushers_own_writes_tell(
    wait_s: float, full: bool
) -> None:
    memory = replace(KNOWN, write_baseline_s=1e-4)
    for _ in range(8):
        sample = completions(latencies(1e-4, 1), latencies(wait_s, 2 * ENOUGH), MB)
        seen, memory = measured(sample, memory, vm(dirty=THRESHOLD))
        assert seen.slow_share is not None and (seen.slow_share > 0.9) is full
    assert sum(dt_s for dt_s, *_ in memory.recent_writes) == SHARE_MOST_S


# ---- R from a full cache ---------------------------------------------------

FULL = replace(KNOWN, was_full=True)


def feed(
    memory: DeviceMemory, rates: List[float], limit: int = LIMIT, slow: float = 1.0,
    dt_s: float = 1.0, held: bool = True,
) -> DeviceMemory:  # fmt: skip
    for rate in rates:
        memory, _ = update_drain(writes(rate, slow, held=held), BUSY, memory, limit, dt_s)
    return memory


def test_the_first_tick_with_a_full_cache_is_left_out() -> None:
    new = DeviceMemory(fast=(1.0, 1.0))
    memory, why = update_drain(writes(4 * R), BUSY, new, LIMIT, 1.0)
    assert memory.was_full and memory.drain_rate is None
    assert not sum(dt for dt, *_ in memory.full_window)
    assert memory.fast == NOTHING and "not counted" in why
    assert feed(memory, [4 * R]).drain_rate == 4 * R


def test_before_there_is_any_drain_rate_it_is_watched_for_a_while() -> None:
    new = replace(DeviceMemory(), was_full=True)
    dt_s = FULL_LEAST_S / 2
    assert feed(new, [R], dt_s=0.9 * dt_s).drain_rate is None
    assert feed(new, [R, R], dt_s=0.9 * dt_s).drain_rate is None
    assert feed(new, [R, R, R], dt_s=0.9 * dt_s).drain_rate == R
    # Known, it follows at once.
    assert feed(FULL, [1.2 * R], dt_s=0.1).drain_rate == 1.2 * R


def test_the_first_drain_rate_is_not_of_a_tick_in_which_the_rate_still_fell() -> None:
    # The cache still took writes at link speed in part of the second of these ticks.
    falling = [2.3 * R, 1.3 * R, 1.02 * R, R]
    new = replace(DeviceMemory(), fast=(1.0, 1.0))
    for ticks in (1, 2):
        assert feed(new, falling[:ticks], dt_s=0.5).drain_rate is None
    assert feed(new, falling[:3], dt_s=0.5).drain_rate == 1.02 * R
    assert feed(new, falling, dt_s=0.5).drain_rate == pytest.approx(1.01 * R)
    # Of a long tick that is a small part.
    assert feed(new, [1.3 * R, R], dt_s=1.01 * FULL_FALLS_S).drain_rate == R
    # A fall by so much may as well be a sweep of the destage: that has to last.
    for ticks in (1, 2, 3):
        known = feed(new, [0.99 * R / SWEEPS_TO] + [R] * ticks, dt_s=0.5).drain_rate
        assert known == (R if ticks * 0.5 >= FULL_FALLS_S else None)
        known = feed(new, [1.01 * R / SWEEPS_TO] + [R] * ticks, dt_s=0.5).drain_rate
        assert known == (R if ticks * 0.5 >= SWEEP_LASTS_S else None)
    # One destage burst is no fall.
    burst = 1.01 * FALLS_TO * R
    assert feed(new, [R, burst], dt_s=0.5).drain_rate == burst
    # Known, it follows at once, and the window stays.
    assert feed(FULL, [1.3 * R, R], dt_s=0.5).drain_rate == pytest.approx(1.15 * R)


def test_the_drain_rate_is_the_median_of_the_last_seconds() -> None:
    dt_s = FULL_OVER_S / 5
    memory = feed(FULL, [1.02 * R, 1.1 * R, 0.1 * R, R, 1.05 * R], dt_s=1.01 * dt_s)
    assert memory.drain_rate == 1.02 * R
    late = [R] * 20 + [2 * R] * 3
    assert feed(FULL, late[:-1], dt_s=1.01 * dt_s).drain_rate == R
    assert feed(FULL, late, dt_s=1.01 * dt_s).drain_rate == 2 * R


def test_rates_under_another_limit_are_not_mixed_in() -> None:
    memory = feed(FULL, [R] * 4)
    assert feed(memory, [2 * R], limit=int(LIMIT * (1 + 0.9 * NEAR_R))).drain_rate == R
    other = feed(memory, [2 * R], limit=int(LIMIT * (1 + 1.2 * NEAR_R)))
    assert other.drain_rate == 2 * R and len(other.full_window) == 1


def test_a_full_cache_moves_the_drain_rate_both_ways() -> None:
    assert feed(FULL, [0.5 * R] * 2).drain_rate == 0.5 * R
    assert feed(FULL, [2.0 * R]).drain_rate == 2.0 * R


def test_a_sweep_of_the_destage_does_not_lower_the_drain_rate() -> None:
    # A quarter for a second, when the limit has just moved; what agrees for longer counts.
    for sweep in ([0.25] * 2, [0.6, 0.25, 0.5], [0.25, 0.25, 0.6]):
        memory = feed(FULL, [share * R for share in sweep], dt_s=0.5)
        assert memory.drain_rate == R, sweep
        # From then on it is among the seconds of the median.
        assert (feed(memory, [R] * 3, dt_s=0.5).drain_rate or 0.0) >= 0.8 * R
    assert feed(FULL, [0.6 * R, 0.5 * R, 0.5 * R, 0.5 * R], dt_s=0.5).drain_rate == 0.5 * R
    # So does a little less, at once.
    assert feed(FULL, [1.01 * SWEEPS_TO * R], dt_s=0.5).drain_rate == 1.01 * SWEEPS_TO * R
    # And all that there is once it has gone on for so long.
    uneven = [0.25 * R, 0.5 * R] * int(UNSETTLED_S)
    assert (feed(FULL, uneven, dt_s=0.5).drain_rate or R) <= 0.5 * R


def test_a_fall_to_next_to_nothing_has_to_last_for_longer() -> None:
    # Part stripes of a RAID 6: 11 of 262 MB/s for three seconds and more.
    deep = 0.99 * DEEP * R
    ticks = int(DEEP_LASTS_S / 0.5)
    assert feed(FULL, [deep] * ticks, dt_s=0.5).drain_rate == R
    assert feed(FULL, [deep] * (ticks + 1), dt_s=0.5).drain_rate == deep
    # In all: other limits are tried meanwhile, and single ticks are better ones.
    memory = FULL
    for limit in [LIMIT, LIMIT // 2] * 2:
        assert memory.drain_rate == R
        memory = feed(memory, [deep] * 3, dt_s=0.5, limit=limit)
    assert memory.drain_rate == deep
    uneven = ([deep] * 7 + [0.8 * R]) * 3
    assert (feed(FULL, uneven, dt_s=0.5).drain_rate or R) < 0.3 * R
    assert feed(FULL, [1.01 * DEEP * R] * 3, dt_s=0.5).drain_rate == 1.01 * DEEP * R


def test_the_first_drain_rate_is_not_of_a_sweep_of_the_destage() -> None:
    new = replace(DeviceMemory(), fast=(1.0, 1.0))
    swept = [1.9 * R, R, 0.25 * R, 0.7 * R, 0.98 * R]
    for ticks in range(2, 1 + len(swept)):
        known = feed(new, swept[:ticks], dt_s=0.5).drain_rate
        assert known is None or known >= 0.98 * R, ticks
    assert feed(new, [*swept, R], dt_s=0.5).drain_rate == pytest.approx(0.99 * R)
    # It may begin in the tick that fills the cache.
    filled = feed(quiet(DeviceMemory()), [1.5 * R], slow=0.0, dt_s=0.5)
    for ticks in range(1, 5):
        known = feed(filled, [0.4 * R, 0.45 * R, R, R][:ticks], dt_s=0.5).drain_rate
        assert known == (R if ticks == 4 else None), ticks
    # Another limit is tried meanwhile; and it may rise again at once.
    begun = feed(filled, [0.4 * R, 0.45 * R], dt_s=0.5)
    assert feed(begun, [0.42 * R] * 2, limit=LIMIT // 2, dt_s=0.5).drain_rate is None
    assert feed(begun, [0.42 * R] * 3, limit=LIMIT // 2, dt_s=0.5).drain_rate == 0.42 * R
    assert feed(filled, [0.4 * R, 1.5 * R], dt_s=0.5).drain_rate is None
    for times, known in ((0.99, False), (1.01, True)):
        rate = times * SWEPT_TO * 1.5 * R
        assert feed(filled, [rate] * 2, dt_s=0.5).drain_rate == (rate if known else None)
    # Where no two ticks agree there is one in the end.
    uneven = [R, 0.5 * R] * int(UNSETTLED_S + 1)
    assert feed(new, uneven, dt_s=0.5).drain_rate


def test_a_rate_that_leapt_in_the_tick_that_seemed_to_fill_the_cache_has_to_last() -> None:
    # 378 MB/s, then 459, 457 and 445 while syncs wait for the longer queue; then 258, 263, 266.
    fill = 1.75 * R
    leapt = DeviceMemory(fast=(1.0, 1.0), filling=((0.5, 0.99 * FALLS_TO * fill),))
    rates = [fill, 0.99 * fill, 0.97 * fill, 0.98 * R, R, R]
    for ticks in range(1, 6):
        assert feed(leapt, rates[:ticks], dt_s=0.5).drain_rate is None
    assert feed(leapt, rates, dt_s=0.5).drain_rate == R
    # Media that take more than they did may just have been given more.
    assert feed(leapt, [fill] * 3, dt_s=0.5).drain_rate is None
    assert feed(leapt, [fill] * 4, dt_s=0.5).drain_rate == fill
    # But once: a cache that is full in short spells would never tell it.
    spell = feed(feed(leapt, rates[:2], dt_s=0.5), [0.8 * fill], slow=0.0, dt_s=0.5)
    assert not spell.was_full and feed(spell, [fill] * 2, dt_s=0.5).drain_rate == fill
    steady = replace(leapt, filling=((0.5, 1.01 * FALLS_TO * fill),))
    assert feed(steady, [fill] * 2, dt_s=0.5).drain_rate == fill


TIGHT = int(0.5 * LIMIT)


def test_a_rate_that_a_tighter_limit_held_does_not_lower_the_drain_rate() -> None:
    memory = feed(FULL, [0.5 * R] * 9, limit=TIGHT)
    assert memory.drain_rate == R and memory.drain_limit_bytes == LIMIT


def test_it_does_where_the_media_or_the_writers_are_what_is_slow() -> None:
    # The limit would let through far more.
    half = [0.5 * R / HELD_BY_MEDIA / 1.1] * 2
    assert feed(FULL, half, limit=TIGHT).drain_rate == half[0]
    # Nobody slept for it.
    assert feed(FULL, [0.5 * R] * 2, limit=TIGHT, held=False).drain_rate == 0.5 * R
    # It is hardly tighter than the one that R was learned under.
    same = int(1.01 * LOWER * LIMIT)
    assert feed(FULL, [0.8 * R], limit=same).drain_rate == 0.8 * R
    assert feed(FULL, [0.8 * R], limit=int(0.99 * LOWER * LIMIT)).drain_rate == R


def test_where_nobody_can_be_seen_to_sleep_a_tighter_limit_is_blamed_for_a_lower_rate() -> None:
    # procfs alone: no class probe, so neither slow writes nor who is held back are known.
    memory, why = FULL, ""
    for _ in range(9):
        memory, why = update_drain(
            writes(0.5 * R, slow=None, held=False), BUSY, memory, TIGHT, 1.0
        )
    assert memory.drain_rate == R and memory.drain_limit_bytes == LIMIT and "tighter" in why
    # Under the limit that it was learned under it is the device.
    memory = FULL
    for _ in range(2):
        memory, _ = update_drain(writes(0.5 * R, slow=None, held=False), BUSY, memory, LIMIT, 1.0)
    assert memory.drain_rate == 0.5 * R
    # And a higher one counts under any.
    memory, _ = update_drain(writes(1.5 * R, slow=None, held=False), BUSY, FULL, TIGHT, 1.0)
    assert memory.drain_rate == 1.5 * R


def test_a_little_less_is_the_same_rate_under_any_limit() -> None:
    assert LOWER * R <= (feed(FULL, [1.01 * LOWER * R], limit=TIGHT).drain_rate or 0) <= R
    assert feed(FULL, [0.99 * LOWER * R], limit=TIGHT).drain_rate == R


@pytest.mark.parametrize(
    "falling",
    [
        pytest.param([0.97, 0.94, 0.91, 0.88, 0.85, 0.82, 0.8], id="over-some-seconds"),
        pytest.param([1.0, 0.8], id="after-one-tick"),
    ],
)
def test_a_rate_that_follows_a_tighter_limit_late_does_not_either(falling: List[float]) -> None:
    # The kernel's writeback loop takes some rounds to follow.
    memory = feed(FULL, [R * part for part in falling + falling[-1:] * 9], limit=TIGHT)
    assert (memory.drain_rate or 0) >= LOWER * R


def test_a_higher_rate_brings_its_limit_along() -> None:
    dt_s = 0.45 * FOLLOWED_S
    assert feed(FULL, [1.1 * R] * 3, limit=TIGHT, dt_s=dt_s).drain_limit_bytes == TIGHT
    # A tighter one only when it lasted, since the writeback loop follows late.
    assert feed(FULL, [1.1 * R] * 2, limit=TIGHT, dt_s=dt_s).drain_limit_bytes == LIMIT
    assert feed(FULL, [0.99 * R] * 9, limit=TIGHT).drain_limit_bytes == LIMIT
    assert feed(FULL, [0.9 * R], limit=2 * LIMIT).drain_limit_bytes == 2 * LIMIT


# ---- the cache's size and fill ---------------------------------------------


def quiet(memory: DeviceMemory, dt_s: float = 1.0) -> DeviceMemory:
    return update_drain(writes(0.0, None, flooded=False), BUSY, memory, LIMIT, dt_s)[0]


def test_what_went_in_until_it_was_full_less_what_drained_is_the_cache() -> None:
    memory = feed(quiet(DeviceMemory()), [3 * R, 2 * R], slow=0.0, dt_s=0.5)
    assert memory.cache_bytes is None
    dt_s = 0.9 * FULL_LEAST_S
    memory = feed(memory, [R] * 2, dt_s=dt_s)  # the first is left out
    assert memory.drain_rate is None and memory.cache_bytes is None
    memory = feed(memory, [R], dt_s=dt_s)
    assert memory.drain_rate == R
    assert memory.cache_bytes == memory.fill_bytes == pytest.approx(0.5 * (2 * R + R))


def test_what_drained_before_is_not_taken_off() -> None:
    memory = feed(quiet(DeviceMemory()), [R / 2] * 8 + [3 * R], slow=0.0)
    memory = feed(memory, [R] * 3)
    assert memory.cache_bytes == pytest.approx(2 * R)


def test_a_cache_that_took_nothing_has_no_size() -> None:
    memory = feed(quiet(DeviceMemory()), [R / 2] * 4, slow=0.0)
    assert feed(memory, [R] * 3).cache_bytes is None


def test_the_size_is_seen_again_only_after_the_cache_had_time_to_empty() -> None:
    found = replace(FULL, cache_bytes=7.0 * MB, last_flood_s=0.0, filling=None)
    soon = quiet(replace(found, quiet_s=0.9 * QUIET_LASTS_S))
    assert feed(feed(soon, [3 * R], slow=0.0), [R] * 3).cache_bytes == 7.0 * MB
    later = quiet(replace(found, quiet_s=QUIET_LASTS_S))
    assert feed(feed(later, [3 * R], slow=0.0), [R] * 3).cache_bytes == pytest.approx(2 * R)


def test_a_cache_that_is_not_empty_yet_does_not_show_its_size() -> None:
    """8 GB take half a minute: what goes in after ten seconds is not all there is room for."""
    found = replace(FULL, cache_bytes=32 * R, fill_bytes=20 * R, last_flood_s=0.0, filling=None)
    soon = quiet(replace(found, quiet_s=QUIET_LASTS_S))
    assert soon.fill_bytes == 19 * R
    assert feed(feed(soon, [3 * R], slow=0.0), [R] * 3).cache_bytes == 32 * R
    empty = quiet(replace(soon, quiet_s=QUIET_LASTS_S, fill_bytes=0.5 * R))
    assert feed(feed(empty, [3 * R], slow=0.0), [R] * 3).cache_bytes == pytest.approx(2 * R)


def test_one_that_fills_slowly_is_no_smaller_for_it() -> None:
    """Its last part comes in at little more than R, for longer than ticks are kept."""
    found = replace(KNOWN, cache_bytes=2 * R, last_flood_s=0.0, filling=())
    memory = feed(found, [2.5 * R] + [1.01 * R] * (FILLING_TICKS + 1), slow=0.0, dt_s=0.5)
    assert memory.filling is not None and memory.fill_bytes == pytest.approx(1.055 * R)
    assert feed(memory, [R] * 3).cache_bytes == pytest.approx(1.055 * R, rel=0.01)
    # But no larger either, than what was once seen.
    over = replace(memory, fill_bytes=2.1 * R)
    assert feed(over, [R] * 3).cache_bytes == pytest.approx(2 * R)


def test_the_size_is_counted_once_in_a_flood() -> None:
    memory = feed(feed(quiet(DeviceMemory()), [3 * R], slow=0.0), [R] * 3)
    memory = feed(memory, [9 * R] * 2, slow=0.0)
    assert feed(memory, [R] * 3).cache_bytes == pytest.approx(2 * R)


def test_of_a_long_filling_the_last_ticks_are_kept() -> None:
    memory = feed(quiet(DeviceMemory()), [9 * R] * 10 + [R] * FILLING_TICKS, slow=0.0, dt_s=0.01)
    assert memory.filling is not None and len(memory.filling) == FILLING_TICKS
    assert {rate for _, rate in memory.filling} == {R}


def test_the_fill_follows_what_goes_in_and_what_drains() -> None:
    half = replace(KNOWN, fill_bytes=R)
    assert feed(half, [1.5 * R], slow=0.0, dt_s=0.5).fill_bytes == pytest.approx(1.25 * R)
    assert quiet(half, 0.5).fill_bytes == pytest.approx(0.5 * R)
    assert quiet(half, 5.0).fill_bytes == 0.0
    assert feed(replace(half, drain_rate=None), [R], slow=0.0).fill_bytes == R


def test_a_cache_seen_full_is_as_full_as_it_gets() -> None:
    memory = replace(FULL, cache_bytes=500.0 * MB, fill_bytes=1.0 * MB)
    assert feed(memory, [R]).fill_bytes == 500.0 * MB


# ---- R from a rate that lasts ----------------------------------------------


def test_a_rate_that_no_cache_can_take_so_long_raises_the_drain_rate() -> None:
    ticks = int(FAST_LASTS_S)
    # The first tick finds the cache empty, and the second one begins to count.
    memory = replace(KNOWN, fill_bytes=1.0, full_window=((1.0, R, LIMIT),))
    early = feed(memory, [2 * R] * (ticks - 1), slow=0.0, limit=9 * LIMIT)
    assert early.drain_rate == R
    raised = feed(early, [2 * R], slow=0.0, limit=9 * LIMIT)
    assert raised.drain_rate == pytest.approx(2 * R) and raised.fill_bytes == 0.0
    assert raised.drain_limit_bytes == 9 * LIMIT and raised.fast == NOTHING
    assert raised.full_window == ()


def test_where_no_drain_rate_is_known_it_is_the_mean_of_that_time() -> None:
    ticks = int(FAST_LASTS_S)
    rates = [R, 3 * R] * (ticks // 2)
    assert feed(DeviceMemory(), rates, slow=0.0).drain_rate == pytest.approx(2 * R)
    halves = feed(DeviceMemory(), rates * 2, slow=0.0, dt_s=0.5)
    assert halves.drain_rate == pytest.approx(2 * R)


def test_what_first_filled_a_cache_is_not_in_the_first_drain_rate() -> None:
    rates = [4 * R] * 2 + [R] * (int(FAST_LASTS_S) - 2)
    new = quiet(DeviceMemory())
    assert feed(new, rates, slow=SLOW_SOME).drain_rate == R
    # Where no write waits it may be a smaller limit's.
    assert feed(new, rates, slow=0.0).drain_rate == pytest.approx(1.5 * R)


def test_of_what_a_smaller_limit_let_in_half_counts_while_no_drain_rate_is_known() -> None:
    half = int(FAST_LASTS_S) // 2
    memory = feed(DeviceMemory(), [R] * half, slow=0.0)
    larger = 2 * LIMIT
    early = feed(memory, [3 * R] * (half + 2), slow=0.0, limit=larger)
    assert early.drain_rate is None
    late = feed(early, [3 * R], slow=0.0, limit=larger)
    assert late.drain_rate == pytest.approx((half / 2 + 3 * (half + 3)) / FAST_LASTS_S * R)
    # A smaller one is no reason, nor is one that is hardly larger.
    for other in (LIMIT // 2, int((1 + 0.9 * NEAR_R) * LIMIT)):
        assert feed(memory, [3 * R] * half, slow=0.0, limit=other).drain_rate is not None


def test_a_known_cache_has_to_have_overflowed() -> None:
    cache = 2 * FULL_OVER_S * R
    memory = replace(KNOWN, cache_bytes=cache, fill_bytes=1.0)
    short = int(0.9 * FAST_LASTS * cache / R)
    assert feed(memory, [2 * R] * short, slow=0.0).drain_rate == R
    long = int(1.2 * FAST_LASTS * cache / R) + 1
    assert feed(memory, [2 * R] * long, slow=0.0).drain_rate == pytest.approx(2 * R)


def test_a_small_cache_is_watched_for_some_seconds_as_well() -> None:
    memory = replace(KNOWN, cache_bytes=1.0 * MB, fill_bytes=1.0)
    ticks = int(FULL_OVER_S)
    assert feed(memory, [2 * R] * (ticks - 1), slow=0.0).drain_rate == R
    assert feed(memory, [2 * R] * ticks, slow=0.0).drain_rate == pytest.approx(2 * R)


def test_a_rate_at_cache_speed_never_lowers_the_drain_rate() -> None:
    ticks = 5 * int(FAST_LASTS_S)
    assert feed(replace(KNOWN, fill_bytes=1e18), [R / 2] * ticks, slow=0.0).drain_rate == R


def test_time_with_an_empty_cache_does_not_count() -> None:
    # At the drain rate for long, and then one tick above it.
    before = replace(KNOWN, fast=(9 * R, 9.0))
    memory = feed(before, [R] * (3 * int(FAST_LASTS_S) - 1), slow=0.0)
    assert memory.fast == NOTHING
    assert feed(memory, [2 * R], slow=0.0).drain_rate == R


def test_a_pause_or_a_full_cache_ends_the_count() -> None:
    memory = feed(replace(KNOWN, fill_bytes=1.0), [2 * R] * 3, slow=0.0)
    assert memory.fast[1] == 3.0
    assert quiet(memory).fast == NOTHING
    assert feed(memory, [R]).fast == NOTHING
    assert feed(replace(memory, was_full=True), [R]).fast == NOTHING


def test_a_pause_ends_what_is_known_to_be_full() -> None:
    assert not quiet(FULL).was_full


# ---- tau -------------------------------------------------------------------

FREE = replace(KNOWN, drain_rate=4 * R)  # far more than any rate here: those are the limit's


def test_the_first_rate_that_the_limit_held_gives_tau() -> None:
    memory = feed(DeviceMemory(), [R], limit=int(R * 12e-3), slow=0.0)
    assert memory.tau_s == pytest.approx(12e-3)


def test_tau_is_not_learned_where_nobody_is_held_back() -> None:
    assert feed(FREE, [R], limit=int(R * 5e-3), slow=0.0, held=False).tau_s == TAU
    assert feed(DeviceMemory(), [0.0], slow=0.0).tau_s is None


def test_a_full_cache_shows_that_tau_is_shorter_never_that_it_is_longer() -> None:
    # The limit lets in what the media take, whoever sets that rate.
    full = replace(FREE, was_full=True, cache_bytes=1.1 * SMALL_CACHE_S * R)
    shorter = int(R * 5e-3)
    last = pytest.approx(TAU - TAU_DOWN * FOLLOWED_S * 5e-3)
    assert feed(full, [R], limit=shorter, dt_s=FOLLOWED_S).tau_s == last
    assert feed(full, [R] * 9, limit=int(R * 3 * TAU)).tau_s == TAU
    assert feed(full, [1.0] * 9, limit=LIMIT).tau_s == TAU
    # The flusher follows a new limit late.
    before = feed(full, [R] * 9)
    assert feed(before, [R], limit=shorter, dt_s=0.9 * FOLLOWED_S).tau_s == TAU
    # Without a cache all ticks look full.
    none = replace(full, cache_bytes=0.9 * SMALL_CACHE_S * R)
    assert feed(none, [R] * 9, limit=shorter).tau_s == TAU
    assert feed(replace(none, cache_bytes=None), [R], limit=shorter, dt_s=2.0).tau_s == TAU
    # The first value is one that the limit held.
    assert feed(replace(full, tau_s=None), [R] * 9).tau_s is None


@pytest.mark.parametrize("dt_s", [0.5, 1.0])
def test_tau_goes_down_fast_and_up_slowly(dt_s: float) -> None:
    shorter, longer = int(R * TAU / 2), int(R * TAU * 2)
    assert feed(FREE, [R], limit=shorter, slow=0.0, dt_s=dt_s).tau_s == pytest.approx(
        TAU - TAU_DOWN * dt_s * TAU / 2
    )
    assert feed(FREE, [R], limit=longer, slow=0.0, dt_s=dt_s).tau_s == pytest.approx(
        TAU + TAU_UP * dt_s * TAU
    )


def test_one_long_tick_does_not_take_tau_past_what_was_seen() -> None:
    assert feed(FREE, [R], limit=int(R * 5e-3), slow=0.0, dt_s=60.0).tau_s == pytest.approx(5e-3)
    assert feed(FREE, [R], limit=int(R * 20e-3), slow=0.0, dt_s=60.0).tau_s == pytest.approx(20e-3)


def test_before_the_drain_rate_is_known_tau_does_not_grow_but_may_shrink() -> None:
    # It may be the media that hold the rate, and then limit / rate is any length.
    new = DeviceMemory(tau_s=TAU)
    assert feed(new, [R], limit=2 * LIMIT, slow=0.0).tau_s == TAU
    assert (feed(new, [R], limit=LIMIT // 2, slow=0.0).tau_s or 0) < TAU


def test_near_the_drain_rate_tau_does_not_grow_but_may_shrink() -> None:
    near = 1.01 * LOWER * R
    assert feed(KNOWN, [near], limit=2 * LIMIT, slow=0.0).tau_s == TAU
    assert (feed(KNOWN, [near], limit=LIMIT // 2, slow=0.0).tau_s or 0) < TAU
    assert (feed(KNOWN, [0.99 * LOWER * R], limit=2 * LIMIT, slow=0.0).tau_s or 0) > TAU


def test_tau_is_never_longer_than_any_that_was_seen() -> None:
    huge = int(R * 50 * TAU_MOST_S)
    assert feed(DeviceMemory(), [R], limit=huge, slow=0.0).tau_s is None  # nor the first one
    # But where limits are that large at least, it is what there is to go by.
    floor = feed(DeviceMemory(), [R], limit=QUEUE_FOLLOWS_BYTES, slow=0.0).tau_s
    assert floor == pytest.approx(TAU_MOST_S)
    most = feed(DeviceMemory(), [R], limit=int(0.99 * R * TAU_MOST_S), slow=0.0).tau_s
    assert most == pytest.approx(0.99 * TAU_MOST_S)
    long = 1.01 / TAU_UP
    assert feed(FREE, [R], limit=huge, slow=0.0, dt_s=long).tau_s == pytest.approx(TAU_MOST_S)


# ---- several devices -------------------------------------------------------

OTHER = replace(DISK, name="sdb", devno="8:16", bdi="8:16", leaves=("sdb",), leaf_devnos=("8:16",))
GLOBAL = 64 * MB


def tick(
    memory: Memory, rates: Dict[str, float], time_s: float = 1000.0, dt_s: float = 1.0,
    limit: int = GLOBAL,
) -> Tuple[Dict[str, Estimate], Memory]:  # fmt: skip
    """A tick of disks that write at `rates`, each one with a writer that sleeps for the limit."""
    disks = {DISK.name: DISK, OTHER.name: OTHER}
    quick = latencies(1e-4, 2 * ENOUGH)
    sample = Sample(
        time_s=time_s, wall_s=time_s, dt_s=dt_s, host=HOST,
        vm=VmState(VmLimits(limit, 0, 1, 0), 0, 0, limit, THRESHOLD),
        devices=tuple(
            DeviceSample(
                disks[name], write_bytes=int(rate * dt_s), busy_share=1.0, sync=SyncSample(),
                classes={IoClass.BACKGROUND_WRITE: ClassSample(quick.total, int(rate), quick)},
            )
            for name, rate in rates.items()
        ),
        tasks=tuple(
            TaskSample(1, "dd", 1, name, throttled_s=dt_s) for name, rate in rates.items() if rate
        ),
    )  # fmt: skip
    return estimate(POLICY, memory, sample)


def ticks(
    memory: Memory, count: int, rates: Dict[str, float]
) -> Tuple[Dict[str, Estimate], Memory]:
    estimates: Dict[str, Estimate] = {}
    for number in range(count):
        estimates, memory = tick(memory, rates, 1000.0 + number)
    return estimates, memory


def test_a_device_alone_has_the_whole_limit() -> None:
    estimates, memory = ticks(Memory(), 3, {"sda": GLOBAL / TAU, "sdb": 0.0})
    assert estimates["sda"].limit_share == 1.0
    assert memory.devices["sda"].tau_s == pytest.approx(TAU)


def test_devices_share_the_limit_by_their_speed() -> None:
    estimates, memory = ticks(Memory(), 3, {"sda": R, "sdb": R / 3})
    assert estimates["sda"].limit_share == pytest.approx(0.75)
    assert estimates["sdb"].limit_share == pytest.approx(0.25)
    # Each sees its part as the limit that holds it.
    _, memory = ticks(Memory(), 1, {"sda": 16 * R, "sdb": 16 * R / 3})
    assert memory.devices["sda"].tau_s == pytest.approx(0.75 * GLOBAL / (16 * R))


def test_a_device_that_only_began_or_does_not_write_is_not_given_too_small_a_share() -> None:
    estimates, _ = ticks(Memory(), 3, {"sda": R, "sdb": R / 100})
    assert estimates["sdb"].limit_share == SHARE_LEAST
    estimates, _ = ticks(Memory(), 3, {"sda": R, "sdb": 0.0})
    assert estimates["sdb"].limit_share == 1.0  # of no matter: it is not flooded


def test_shares_follow_in_the_time_that_the_kernel_needs() -> None:
    _, memory = ticks(Memory(), 60, {"sda": R, "sdb": 0.0})
    assert memory.devices["sda"].smooth_rate == pytest.approx(R, rel=0.01)
    assert memory.devices["sdb"].smooth_rate == 0.0
    _, memory = tick(memory, {"sda": R, "sdb": R}, dt_s=SHARE_HALF_S)
    assert memory.devices["sdb"].smooth_rate == pytest.approx(R / 2)
    halves = [tick(memory, {"sda": R, "sdb": R}, dt_s=dt)[1] for dt in (1.0, 2.0)]
    assert halves[0].devices["sdb"].smooth_rate < halves[1].devices["sdb"].smooth_rate


def test_a_capped_device_has_its_cap_to_itself() -> None:
    rates = {"sda": 16 * R, "sdb": 16 * R}
    cap = int(16 * R * 5e-3)
    caps = {"sda": Cap(cap, in_force=True)}
    estimates, memory = tick(Memory(caps=caps), rates)
    assert estimates["sda"].limit_share == 1.0
    assert memory.devices["sda"].tau_s == pytest.approx(5e-3)
    estimates, memory = tick(Memory(caps={"sda": Cap(cap)}), rates)
    assert estimates["sda"].limit_share == pytest.approx(0.5)


def test_volumes_on_one_disk_share_as_one() -> None:
    volume = replace(DISK, name="dm-0", devno="253:0", bdi="253:0")
    host = Memory(devices={
        "sda": DeviceMemory(identity=("8:0", None)), "dm-0": DeviceMemory(identity=("253:0", None))
    })
    vm_ = VmState(VmLimits(GLOBAL, 0, 1, 0), THRESHOLD, 0, GLOBAL, THRESHOLD)
    sample = Sample(
        time_s=1.0, wall_s=1.0, dt_s=1.0, host=HOST, vm=vm_,
        devices=(
            DeviceSample(DISK, write_bytes=int(R), busy_share=1.0),
            DeviceSample(volume, write_bytes=int(R), busy_share=1.0),
            DeviceSample(OTHER, write_bytes=int(R), busy_share=1.0),
        ),
    )  # fmt: skip
    estimates, _ = estimate(POLICY, host, sample)
    assert [estimates[name].limit_share for name in ("sda", "dm-0", "sdb")] == [0.5, 0.5, 0.5]


def test_a_slow_device_is_judged_by_a_multiple_of_its_own_unloaded_latency() -> None:
    assert objective_s(20e-3, 10.0, None) == 20e-3
    assert objective_s(20e-3, 10.0, 1e-3) == 20e-3
    assert objective_s(20e-3, 10.0, 4e-3) == pytest.approx(40e-3)


# ---- floods that come in waves ---------------------------------------------


def waves(lengths: List[float], gap_s: float = 5.0, dt_s: float = 1.0) -> List[bool]:
    """Whether each tick of the last flood of `lengths` was taken for one of several waves."""
    memory, now = Memory(), 1000.0
    seen: List[bool] = []
    for length in lengths:
        seen = []
        for _ in range(round(length / dt_s)):
            now += dt_s
            estimates, memory = tick(memory, {"sda": R}, now, dt_s)
            seen.append(estimates["sda"].in_waves)
        for _ in range(round(gap_s / dt_s)):
            now += dt_s
            _, memory = tick(memory, {"sda": 0.0}, now, dt_s)
    return seen


def test_the_first_flood_is_no_wave() -> None:
    assert waves([9.0]) == [False] * 9


def test_after_a_short_flood_the_next_is_a_wave_for_as_long() -> None:
    seen = waves([10.0, 40.0])
    assert seen[:10] == [True] * 10
    assert seen.index(False) == pytest.approx(WAVE_LONGER * 10.0 + 1.0, abs=2.0)
    assert not any(seen[int(WAVE_LONGER * 10.0) + 3:])


def test_after_a_long_flood_the_next_is_no_wave() -> None:
    assert any(waves([WAVE_S - 2, 9.0]))
    assert not any(waves([WAVE_S + 3, 9.0]))


def test_a_pause_between_two_files_is_none() -> None:
    short, dt_s = 0.5 * WAVE_GAP_S, WAVE_GAP_S / 4
    assert not any(waves([10.0, 10.0], gap_s=short, dt_s=dt_s))
    assert any(waves([10.0, 10.0], gap_s=2 * WAVE_GAP_S, dt_s=dt_s))
