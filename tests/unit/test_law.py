# SPDX-License-Identifier: GPL-2.0-or-later
"""The law, statement by statement as control/law.py numbers them; the pace: test_pace_law.py."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Dict, List, Optional, Tuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from writebackd.control.law import Bounds, follow
from writebackd.types.decision import Rule
from writebackd.types.device_memory import Drain, LawMemory
from writebackd.types.estimate import Estimate

MB = 1 << 20
R = 256.0 * MB
BOUNDS = Bounds(
    floor=MB // 4, ceiling=1024 * MB, delay_s=16e-3,
    rest_bytes=4.0 * MB, spend=0.2, keep=0.95,
)  # fmt: skip
NOW, DT_S = 1000.0, 0.5
FULL, ROOM = Drain(rate=R, full_s=3.0), Drain(rate=R, room_s=3.0)


def flood(rate_mb: float = 256.0, drain_rate: Optional[float] = None, **more: object) -> Estimate:
    """One that the limit holds back, beside syncs."""
    usual = samples.estimate(
        "sda", flooded=True, demand=True, held_back=True, background_rate=rate_mb * MB,
        drain_rate=drain_rate,
    )  # fmt: skip
    return replace(usual, **more)  # type: ignore[arg-type]


def step(
    limit_mb: float, seen: Estimate, d: Drain = ROOM, bounds: Bounds = BOUNDS,
    in_force: bool = True, now_s: float = NOW, tried: Tuple[float, float] = (0.0, 0.0),
    **law: object,
) -> Tuple[float, Rule, LawMemory]:  # fmt: skip
    """One tick: the limit after it, MB, the rule, and what is remembered."""
    law["tried"] = (*tried, 0.0, 0.0)
    before = replace(LawMemory(limit_mb * MB), **law)  # type: ignore[arg-type]
    after, rule = follow(before, d, seen, bounds, in_force, now_s, DT_S)
    return (after.limit_bytes or 0.0) / MB, rule, after


# ---- 1. R is known ---------------------------------------------------------


@pytest.mark.parametrize("d", [FULL, ROOM, Drain(sync_rate=100.0, lost_s=9.0, syncs=100.0)])
@pytest.mark.parametrize("held_back", [True, False])
@pytest.mark.parametrize("limit", [1.0, 4.0, 400.0])
def test_the_limit_is_what_drains_in_16_ms_from_the_first_tick(
    d: Drain, held_back: bool, limit: float
) -> None:
    seen = flood(drain_rate=R, held_back=held_back, commit_p99_s=1.0)
    now, rule, after = step(limit, seen, d)
    assert now == pytest.approx(4.096) and rule is Rule.KNEE
    # It is set once.
    again, _ = follow(after, d, seen, BOUNDS, True, NOW + 9.0, DT_S)
    assert (after.written_s, again.written_s) == (NOW, NOW)


@pytest.mark.parametrize("bounds,limit", [
    ({"floor": 6 * MB}, 6.0), ({"ceiling": 2 * MB}, 2.0), ({"delay_s": 8e-3}, 2.048),
])  # fmt: skip
def test_the_bounds_and_the_delay_are_the_policys(bounds: Dict[str, float], limit: float) -> None:
    own = replace(BOUNDS, **bounds)  # type: ignore[arg-type]
    assert step(4.0, flood(drain_rate=R), bounds=own)[0] == pytest.approx(limit)


def test_at_the_floor_it_says_so_while_the_cache_is_full() -> None:
    low, seen = replace(BOUNDS, floor=6 * MB), flood(drain_rate=R)
    assert step(6.0, seen, FULL, low)[1] is Rule.FLOOR
    assert step(6.0, seen, ROOM, low)[1] is Rule.KNEE


def test_another_limit_in_force_is_told_and_changes_nothing_of_it() -> None:
    now, rule, _ = step(9.0, flood(drain_rate=R), in_force=False)
    assert now == pytest.approx(4.096) and rule is Rule.COMING


def test_while_the_cache_has_room_it_is_what_drains_of_what_the_device_takes() -> None:
    seen = flood(512.0, drain_rate=R)
    now, rule, _ = step(4.0, seen, replace(ROOM, rate=512.0 * MB))
    assert now == pytest.approx(8.192) and rule is Rule.FILLING
    now, rule, _ = step(4.0, seen, replace(ROOM, rate=128.0 * MB))
    assert now == pytest.approx(4.096) and rule is Rule.KNEE
    assert step(4.0, seen, replace(FULL, rate=512.0 * MB))[0] == pytest.approx(4.096)


# ---- 2. the flood gets too little ------------------------------------------


def stretched(rates: List[float], d: Drain = ROOM, **more: object) -> List[float]:
    """The limits, MB, under floods of these rates, MB/s, of 10 s each, where R is 256 MB/s."""
    law, limits = LawMemory(4.096 * MB, written_s=NOW, trusted_s=-NOW), []
    for rate in rates:
        for _ in range(20):
            seen = flood(rate, drain_rate=R, **more)
            law, rule = follow(law, d, seen, BOUNDS, True, NOW, DT_S)
        limits.append((law.limit_bytes or 0.0) / MB)
        larger = Rule.TEST if d.room_s >= 10.0 else Rule.SHORT
        assert rule is (larger if limits[-1] > 4.097 else Rule.KNEE)
    return limits


def test_below_0_8_r_it_goes_up_in_proportion_to_twice_the_delay_at_most() -> None:
    assert stretched([128.0, 128.0]) == pytest.approx([6.5536, 8.192])
    assert stretched([0.0, 0.0]) == pytest.approx([6.5536, 8.192])
    # From 0.8 R to 0.85 it stays, and above it goes back.
    up_and_back = stretched([160.0, 217.0, 218.0, 240.0])
    assert up_and_back == pytest.approx([5.243, 5.243, 4.194, 4.096], rel=1e-3)
    assert stretched([206.0]) == pytest.approx([4.096])
    # Twice where the cache had room for ten seconds: R may be more than is known.
    assert stretched([256.0], replace(ROOM, room_s=10.0)) == pytest.approx([8.192])
    assert stretched([256.0], replace(ROOM, room_s=9.5)) == pytest.approx([4.096])
    # Where nobody is held back the flood is all that there is.
    assert stretched([128.0], held_back=False) == pytest.approx([4.096])


def doubled(
    rates: List[float], limit: float = 4.096, r: float = R, in_force: bool = True,
) -> List[int]:
    """The seconds of a flood, which comes at these rates, MB/s, with twice the limit."""
    law, seconds = LawMemory(limit * MB, written_s=NOW), []
    for second, rate in enumerate(rates, 1):
        for _ in range(2):
            d = replace(FULL, rate=rate * MB)
            law, rule = follow(law, d, flood(rate, drain_rate=r, held_back=rate > 0), BOUNDS,
                               in_force or second < 11, NOW, DT_S)
        if law.limit_bytes == pytest.approx(2 * limit * MB):
            assert rule in (Rule.TEST, Rule.FLOOR, Rule.COMING)
            seconds.append(second)
    return seconds


def test_twice_the_limit_tests_r_after_ten_seconds_and_then_once_a_minute() -> None:
    assert doubled([256.0] * 85) == [*range(10, 15), *range(75, 80)]
    # An eighth more came of it, so R may be more still.
    assert doubled([206.0] * 10 + [256.0] * 30) == [*range(10, 15), *range(25, 30)]
    # A limit that does not come into force holds it up no longer; nor does it when a flood ends.
    assert doubled([256.0] * 30, in_force=False) == [*range(10, 15)]
    assert doubled([256.0] * 11 + [0.0] + [256.0] * 12) == [10, 11, *range(22, 25)]


def test_a_test_at_the_floor_does_not_hide_that_it_is_the_floor() -> None:
    law, rules = LawMemory(BOUNDS.floor, written_s=NOW, trusted_s=59.5), set()
    for _ in range(8):
        law, rule = follow(law, FULL, flood(9.0, drain_rate=9 * MB), BOUNDS, True, NOW, DT_S)
        rules.add(rule)
    assert law.limit_bytes == 2 * BOUNDS.floor and rules == {Rule.FLOOR}


def under_commits(shares: List[float], commits_s: float = 0.5, **law: object) -> List[float]:
    """The limits, MB, of seconds when commits spend so much of `commits_s` a tick in write()."""
    after, limits = replace(LawMemory(4.096 * MB, trusted_s=-NOW), **law), []  # type: ignore[arg-type]
    for share in shares:
        seen = flood(drain_rate=R, commit_write_share=share, commit_total_s=commits_s)
        for _ in range(2):
            after, _ = follow(after, FULL, seen, BOUNDS, True, NOW, DT_S)
        limits.append((after.limit_bytes or 0.0) / MB)
    return limits


def test_where_commits_sleep_in_write_most_of_the_time_it_is_twice_as_large() -> None:
    assert under_commits([0.85, 0.85, 0.85]) == pytest.approx([4.096, 4.096, 8.192])
    assert under_commits([0.75] * 20) == pytest.approx([4.096] * 20)
    # So it stays until they sleep for less than half of that.
    assert under_commits([0.45] * 20, stretch=2.0)[-1] == pytest.approx(8.192)
    assert under_commits([0.35] * 20, stretch=2.0)[-1] == pytest.approx(5.243, rel=1e-3)


def test_so_it_is_where_one_of_them_sleeps_nearly_always_while_others_wait_for_its_file() -> None:
    # As seen of four threads on one file: 0.97 s of each second asleep, 0.39 s in fsync().
    assert under_commits([0.71] * 3, 0.68) == pytest.approx([4.096, 4.096, 8.192])
    assert under_commits([0.2] * 20, 0.9, stretch=2.0)[-1] == pytest.approx(8.192)
    # Four with a file each: together they sleep longer than all of the time.
    assert under_commits([0.45] * 20, 2.0) == pytest.approx([4.096] * 20)


# ---- 3. R is not known -----------------------------------------------------


def searched(limit: float, rates: List[float], sought: float = 0.0) -> List[float]:
    """The limits, MB, under floods of these rates, MB/s, of 2 s each."""
    law, now_s, limits = LawMemory(limit * MB, written_s=NOW, sought_rate=sought * MB), NOW, []
    for rate in rates:
        for _ in range(4):
            now_s += DT_S
            law, rule = follow(law, ROOM, flood(rate), BOUNDS, True, now_s, DT_S)
        limits.append((law.limit_bytes or 0.0) / MB)
        assert rule in (Rule.SEEK, Rule.MEASURE)
    return limits


def test_without_a_drain_rate_it_doubles_every_2_s_up_to_twice_the_delay_at_the_rate() -> None:
    assert searched(4.0, [1000.0] * 5) == pytest.approx([8, 16, 32, 32, 32])
    # `rest` of a slower disk is worth more than that.
    assert searched(4.0, [100.0] * 3) == [4.0, 4.0, 4.0]
    # 24 ms at least, whatever the policy's delay.
    assert step(4.0, flood(500.0), bounds=replace(BOUNDS, delay_s=5e-3), tried=(1.0, 500.0 * MB)
                )[0] == 8.0


def test_beyond_that_it_goes_on_while_a_step_brings_an_eighth_more() -> None:
    # 32 ms of 100 MB/s are less than 4 MB.
    assert searched(4.0, [113.0, 127.0], 100.0) == pytest.approx([8.0, 12.7])  # 0.1 s
    assert searched(4.0, [111.0, 111.0], 100.0) == [4.0, 4.0]
    assert searched(4.0, [113.0, 126.0], 100.0) == [8.0, 8.0]


def test_only_while_it_holds_the_flood_back() -> None:
    tried = (1.0, 1000.0 * MB)
    assert step(4.0, flood(1000.0), tried=tried)[:2] == (8.0, Rule.SEEK)
    assert step(4.0, flood(1000.0, held_back=False), tried=tried)[:2] == (4.0, Rule.MEASURE)


def test_what_the_kernel_has_not_followed_yet_is_not_counted() -> None:
    """Of the 2 s after a step the second half alone tells its rate."""
    assert step(4.0, flood(9.0), written_s=NOW - 1.0)[2].tried[:2] == (0.0, 0.0)
    assert step(4.0, flood(9.0), written_s=NOW - 1.5)[2].tried[:2] == (0.5, 4.5 * MB)
    _, _, after = step(4.0, flood(9.0), written_s=NOW - 2.0, tried=(0.5, 4.5 * MB))
    assert (after.tried[0], after.sought_rate, after.written_s) == (0.0, 9.0 * MB, NOW)


def test_under_another_limit_nothing_is_tried() -> None:
    now, rule, after = step(4.0, flood(1000.0), in_force=False, tried=(1.0, 1000.0 * MB))
    assert (now, rule, after.tried[0], after.sought_rate) == (4.0, Rule.COMING, 0.0, 0.0)
    assert step(400.0, flood(250.0), FULL, in_force=False)[0] == 400.0


# ---- 4. a full cache ends that ---------------------------------------------


@pytest.mark.parametrize("limit,rate,after", [
    (64.0, 250.0, 8.0), (8.1, 250.0, 8.0), (8.0, 250.0, 8.0),
    # Not below `rest`.
    (64.0, 100.0, 4.0), (4.0, 10.0, 4.0),
])  # fmt: skip
def test_a_full_cache_takes_it_down_in_one_step(limit: float, rate: float, after: float) -> None:
    now, rule, law = step(limit, flood(rate), FULL, written_s=NOW - 0.5)
    assert now == pytest.approx(after) and rule is Rule.MEASURE
    assert law.written_s == (NOW - 0.5 if limit == after else NOW)


# ---- whatever comes --------------------------------------------------------

_RATES = st.floats(0.0, 1e12)


@given(
    limit=st.floats(1.0, 1e13), rate=_RATES, r=st.none() | st.floats(1.0, 1e12),
    full_s=st.floats(0.0, 1e6), sought=_RATES, held_back=st.booleans(),
    floor=st.integers(1 << 16, 1 << 34), above=st.integers(0, 1 << 40), tried=st.floats(0.0, 9.0),
)
def test_whatever_is_seen_the_limit_stays_within_bounds_and_rises_by_a_step(
    limit: float, rate: float, r: Optional[float], full_s: float, sought: float, held_back: bool,
    floor: int, above: int, tried: float,
) -> None:  # fmt: skip
    bounds = replace(BOUNDS, floor=floor, ceiling=floor + above)
    law = LawMemory(limit, sought_rate=sought, tried=(tried, tried * rate, 0.0, 0.0))
    seen = flood(rate / MB, r, held_back=held_back)
    after, _ = follow(law, replace(ROOM, full_s=full_s), seen, bounds, True, NOW, DT_S)
    now = after.limit_bytes
    assert now is not None and math.isfinite(now)
    if r is not None:
        assert bounds.floor <= now <= bounds.ceiling
    if r is None and now > max(limit, floor):
        assert held_back and now <= 2.0 * limit * (1 + 1e-9)
