# SPDX-License-Identifier: GPL-2.0-or-later
"""The law, statement by statement as control/law.py numbers them, and in a loop with a disk."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import List, Optional, Tuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from plant import DISK, latencies
from writebackd.control.device_decision import decide_device
from writebackd.control.law import Bounds, asked, between, follow, found, may_spend
from writebackd.estimate.drain import Writes, update_drain
from writebackd.policy import load_policy
from writebackd.policy.schema import Policy
from writebackd.tuning import (
    CREEP,
    CUT,
    EVERY_S,
    EXTRA,
    FASTER,
    FIRST_S,
    MOST_S,
    PAYS,
    RISE,
    SEEK,
    SEEK_MOST_S,
    TRY_AGAIN_S,
    TRY_S,
    WAVE,
    WAVE_LONGER,
    WAVE_S,
)
from writebackd.types.decision import Rule
from writebackd.types.device_memory import DeviceMemory, Drain, LawMemory
from writebackd.types.estimate import Estimate
from writebackd.types.samples import DeviceSample, SyncSample

MB = 1 << 20
R = 256.0 * MB
LIMIT = 2.0 * MB
SHARE, KEEP, OBJECTIVE_S = 0.2, 0.95, 20e-3
DRAIN_TIME_S = 3.0
BOUNDS = Bounds(MB // 16, 1024 * MB, OBJECTIVE_S, DRAIN_TIME_S, SHARE, KEEP)
NOW = 1000.0
SYNCS = 100.0  # a second


def flood(**more: object) -> Estimate:
    """One that the limit holds back, beside syncs within the objective."""
    usual = samples.estimate(
        "sda", flooded=True, demand=True, held_back=True, drain_rate=R,
        fsync_p99_s=OBJECTIVE_S / 10,
    )  # fmt: skip
    return replace(usual, **more)  # type: ignore[arg-type]


def drain(rate: float, spent: float, full: bool, lasted_s: float = 3.0) -> Drain:
    """What a limit of LIMIT brings: the flood's rate, and the share of R that the syncs cost."""
    return Drain(
        rate=rate, sync_rate=SYNCS, lost_s=spent, syncs=SYNCS, limit_bytes=LIMIT,
        full_s=lasted_s if full else -lasted_s,
    )  # fmt: skip


def step(
    d: Drain,
    law: LawMemory = LawMemory(LIMIT),  # noqa: B008
    seen: Optional[Estimate] = None,
    bounds: Bounds = BOUNDS,
    in_force: bool = True,
    now_s: float = NOW,
    dt_s: float = 0.5,
) -> Tuple[float, Rule, LawMemory]:
    """One tick: the limit after it in times of LIMIT, the rule, and what is remembered."""
    after, rule = follow(law, d, flood() if seen is None else seen, bounds, in_force, now_s, dt_s)
    assert after.limit_bytes is not None
    return after.limit_bytes / LIMIT, rule, after


# ---- 4. R is not known -----------------------------------------------------

UNKNOWN = flood(drain_rate=None)


def test_without_a_drain_rate_the_limit_grows_threefold_while_that_brings_an_eighth_more() -> None:
    assert SEEK == 3.0 and 1.12 <= PAYS <= 1.125
    times, rule, after = step(drain(R / 4, 0.0, full=False), seen=UNKNOWN)
    assert (times, rule) == (3.0, Rule.SEEK)
    assert after.sought_rate == R / 4
    again = replace(after, written_s=NOW - EVERY_S)
    enough, hardly = (drain(part * PAYS * R / 4, 0.0, full=False) for part in (1.01, 0.99))
    assert step(enough, again, UNKNOWN)[:2] == (9.0, Rule.SEEK)
    assert step(hardly, again, UNKNOWN)[:2] == (3.0, Rule.MEASURE)
    # Nor is it taken back: a full cache has to show R under it.
    assert step(drain(R / 8, 0.0, full=True), again, UNKNOWN)[:2] == (3.0, Rule.MEASURE)


def test_the_search_does_not_go_beyond_what_any_disk_needs() -> None:
    d = drain(R / 4, 0.0, full=False)
    most = SEEK_MOST_S * R / 4
    near = LawMemory(0.5 * most)
    assert step(d, near, UNKNOWN)[0] * LIMIT == pytest.approx(most)
    assert step(d, LawMemory(most), UNKNOWN)[:2] == (most / LIMIT, Rule.MEASURE)
    # What is slow since the limit is the smallest may need more.
    slow, low = drain(LIMIT, 0.0, full=False), replace(BOUNDS, floor=int(LIMIT))
    assert step(slow, seen=UNKNOWN, bounds=low)[:2] == (2.0, Rule.SEEK)
    small = replace(BOUNDS, ceiling=int(1.5 * LIMIT))
    assert step(d, seen=UNKNOWN, bounds=small)[0] == 1.5


def test_once_it_is_found_the_limit_is_what_drains_in_a_moment() -> None:
    most = FIRST_S * R
    far, rule = found(LawMemory(10 * most), R, BOUNDS, NOW)
    assert far.limit_bytes == pytest.approx(most) and (far.written_s, rule) == (NOW, Rule.FOUND)
    near = LawMemory(most / 2)
    assert found(near, R, BOUNDS, NOW) == (near, Rule.MEASURE)
    slow, _ = found(LawMemory(10 * most), R / 1e6, BOUNDS, NOW)
    assert slow.limit_bytes == BOUNDS.floor


# ---- 5. full, or dearer than the share -------------------------------------


@pytest.mark.parametrize("spent,times,rule", [
    (0.15, 0.75, Rule.CUT), (0.19, 0.95, Rule.CUT), (0.25, 1.25, Rule.DEAR),
    (0.27, 1.35, Rule.DEAR),
    # No change is larger than these.
    (0.02, CUT, Rule.CUT), (0.9, RISE, Rule.DEAR),
])  # fmt: skip
def test_the_limit_follows_what_is_spent_of_the_share(
    spent: float, times: float, rule: Rule
) -> None:
    found = step(drain(R, spent, full=True))
    assert found[0] == pytest.approx(times) and found[1] is rule


def test_with_room_in_the_cache_it_does_where_more_than_the_share_is_spent() -> None:
    found = step(drain(R / 2, 1.3 * SHARE, full=False))
    assert found[0] == pytest.approx(1.3) and found[1] is Rule.DEAR


def test_the_share_is_the_policys() -> None:
    d = drain(R, 0.15, full=True)
    assert step(d, bounds=replace(BOUNDS, spend=0.3))[0] == pytest.approx(CUT)
    assert step(d, bounds=replace(BOUNDS, spend=0.12))[0] == pytest.approx(1.25)


@pytest.mark.parametrize("rate", [0.81 * R, 0.9 * R, 0.94 * R])
def test_it_is_not_cut_below_what_lets_in_the_rest_of_r(rate: float) -> None:
    times, rule, _ = step(drain(rate, 0.0, full=True))
    # It let in `rate`; what lets in 0.8 R is so much of it.
    assert times == pytest.approx((1.0 - SHARE) * R / rate)
    assert rule is Rule.STEADY
    # What lets it in is of the limit that the kernel follows, not of the one that was written.
    written = LawMemory(1.2 * LIMIT)
    assert step(drain(rate, 0.0, full=True), written)[0] == pytest.approx(times)


@pytest.mark.parametrize("rate,times", [(0.7 * R, 0.8 / 0.7), (0.2 * R, RISE)])
def test_it_goes_up_where_the_flood_has_less_than_that(rate: float, times: float) -> None:
    found = step(drain(rate, 0.0, full=True))
    assert found[0] == pytest.approx(times) and found[1] is Rule.SHORT


def test_at_the_floor_it_says_so() -> None:
    low = replace(BOUNDS, floor=int(0.9 * LIMIT))
    times, rule, after = step(drain(R, 0.02, full=True), bounds=low)
    assert rule is Rule.FLOOR and times == pytest.approx(0.9)
    again = replace(after, written_s=NOW - EVERY_S)
    times, rule, _ = step(drain(R, 0.02, full=True), again, bounds=low)
    assert rule is Rule.FLOOR and times == pytest.approx(0.9)


# ---- 6. room ---------------------------------------------------------------


@pytest.mark.parametrize("spent,gets", [(0.0, KEEP), (0.04, KEEP), (0.1, 0.9), (0.2, 0.8)])
def test_with_room_the_limit_lets_in_what_is_kept_and_less_what_is_spent(
    spent: float, gets: float
) -> None:
    times, rule, _ = step(drain(0.75 * R, spent, full=False, lasted_s=0.5))
    assert rule is Rule.ROOM
    assert times == pytest.approx(gets / 0.75, rel=0.001)


def test_with_room_the_floor_is_no_end() -> None:
    low = replace(BOUNDS, floor=int(LIMIT))
    assert step(drain(2 * R, 0.0, full=False), bounds=low)[:2] == (1.0, Rule.ROOM)


def test_a_change_into_room_is_bounded_both_ways() -> None:
    assert step(drain(0.1 * R, 0.0, full=False))[0] == RISE
    assert step(drain(3.0 * R, 0.0, full=False))[0] == pytest.approx(CUT)


@pytest.mark.parametrize("lasted_s", [10.0, 20.0])
def test_the_longer_there_is_room_the_more_is_let_in(lasted_s: float) -> None:
    times, _, _ = step(drain(R, 0.0, full=False, lasted_s=lasted_s))
    assert times == pytest.approx(KEEP * (1.0 + CREEP * lasted_s * lasted_s))


def test_so_a_faster_disk_is_found() -> None:
    """The media take all that comes: the rate follows the limit, whatever R was."""
    law, rate, now_s = LawMemory(LIMIT), KEEP * R, NOW
    for number in range(50):
        d = replace(
            drain(rate, 0.0, full=False, lasted_s=0.5 * number),
            limit_bytes=law.limit_bytes or 0.0,
        )
        now_s += 0.5
        _, _, law = step(d, law, now_s=now_s)
        rate = KEEP * R * (law.limit_bytes or 0.0) / LIMIT
        assert number > 20 or rate < 1.1 * R
    # Where estimate/drain.py calls it faster.
    assert rate > FASTER * R


def test_no_limit_is_larger_than_a_disk_was_seen_to_need() -> None:
    most = MOST_S * R
    law = LawMemory(0.9 * most)
    d = replace(drain(0.5 * R, 0.0, full=False), limit_bytes=0.9 * most)
    assert step(d, law)[0] * LIMIT == pytest.approx(most)
    dear = replace(drain(R, 0.9, full=True), limit_bytes=0.9 * most)
    assert step(dear, law)[0] * LIMIT == pytest.approx(most)


# ---- when it changes -------------------------------------------------------

UP = [
    (drain(R, 0.4, full=True), flood()),
    (drain(0.3 * R, 0.0, full=True), flood()),
    (drain(0.5 * R, 0.0, full=False), flood()),
    (drain(0.5 * R, 0.0, full=False), UNKNOWN),
]


@pytest.mark.parametrize("d,seen", UP)
def test_it_never_goes_up_while_it_holds_nobody_back(d: Drain, seen: Estimate) -> None:
    assert step(d, seen=seen)[0] > 1.1
    assert step(d, seen=replace(seen, held_back=False))[:2] == (1.0, Rule.LOOSE)


def test_it_goes_down_whoever_is_held_back() -> None:
    assert step(drain(R, 0.1, full=True), seen=flood(held_back=False))[:2] == (CUT, Rule.CUT)


@pytest.mark.parametrize("dt_s", [0.5, 1.0])
def test_between_two_changes_the_first_one_shows_its_effect(dt_s: float) -> None:
    law, now_s, changed = LawMemory(LIMIT), NOW, []
    for _ in range(round(20 / dt_s)):
        now_s += dt_s
        before = law.limit_bytes
        _, _, law = step(drain(R, 0.25, full=True), law, now_s=now_s, dt_s=dt_s)
        if law.limit_bytes != before:
            changed.append(now_s)
    assert len(changed) == 20 / EVERY_S
    assert {later - sooner for sooner, later in zip(changed, changed[1:])} == {EVERY_S}


@pytest.mark.parametrize("d,seen", [*UP, (drain(R, 0.02, full=True), flood())])
def test_what_another_limit_brings_is_not_judged(d: Drain, seen: Estimate) -> None:
    times, rule, after = step(d, seen=seen, in_force=False)
    assert (times, rule) == (1.0, Rule.COMING)
    assert after.written_s == LawMemory().written_s and after.sought_rate == 0.0
    # The flood goes on, whatever the limit.
    assert after.flood_s == 0.5


# ---- 7. the objective ------------------------------------------------------

LATE = flood(fsync_p99_s=1.5 * OBJECTIVE_S)


def played(law: LawMemory, seconds: float, seen: Estimate) -> List[LawMemory]:
    """Ticks of half a second."""
    laws = []
    for number in range(round(seconds / 0.5)):
        _, _, law = step(drain(R, 0.1, full=True), law, seen, now_s=NOW + 0.5 * number)
        laws.append(law)
    return laws


def test_above_the_objective_a_tenth_of_r_more_may_be_spent() -> None:
    shares = [may_spend(law, BOUNDS) for law in played(LawMemory(LIMIT), TRY_S - 0.5, LATE)]
    assert shares == sorted(shares) and len(set(shares)) == len(shares)
    assert shares[len(shares) // 2] == pytest.approx(SHARE + EXTRA / 2, abs=0.005)
    assert shares[-1] == pytest.approx(SHARE + EXTRA, abs=0.005)
    # So the limit goes down where it would have stayed.
    some = replace(LawMemory(LIMIT), extra=EXTRA)
    d = drain(R, SHARE, full=True)
    assert step(d)[0] == pytest.approx(1.0)
    assert step(d, some)[0] == pytest.approx(SHARE / (SHARE + EXTRA), rel=0.01)


def test_one_that_has_not_come_back_is_above_it_as_well() -> None:
    stuck = flood(fsync_p99_s=None, oldest_fsync_s=2 * OBJECTIVE_S)
    assert played(LawMemory(LIMIT), 5, stuck)[-1].extra > 0.0


def test_what_did_not_help_is_given_up_and_tried_again_after_ten_minutes() -> None:
    laws = played(LawMemory(LIMIT), TRY_S + 1.0, LATE)
    assert may_spend(laws[-1], BOUNDS) == SHARE
    later = played(laws[-1], TRY_AGAIN_S + TRY_S, LATE)
    begins = next(at for at, law in enumerate(later) if may_spend(law, BOUNDS) > SHARE)
    assert begins * 0.5 == pytest.approx(TRY_AGAIN_S, abs=2.0)


def test_after_a_pause_of_the_host_it_is_only_tried_again() -> None:
    given_up = replace(LawMemory(LIMIT), extra=-EXTRA)
    _, _, law = step(drain(R, 0.1, full=True), given_up, LATE, dt_s=3600.0)
    assert law.extra == 0.0


def test_where_it_helped_it_is_taken_back_slowly() -> None:
    spent = replace(LawMemory(LIMIT), extra=EXTRA / 2)
    well = played(spent, 60, flood(fsync_p99_s=0.99 * OBJECTIVE_S))
    assert well[19].extra == pytest.approx(EXTRA / 2 - EXTRA * 10 / (3 * TRY_S))
    assert well[-1].extra == 0.0


# ---- 8. floods that come and go --------------------------------------------


def waves(
    lengths: List[float], pause_s: float, bounds: Bounds = BOUNDS
) -> List[Tuple[float, Rule]]:
    """Of each tick of the last flood of `lengths`: seconds of R asked for, and the rule."""
    law, now_s = LawMemory(LIMIT), NOW
    seen: List[Tuple[float, Rule]] = []
    for length in lengths:
        for _ in range(round(pause_s)) if law.flood_s else ():
            law = between(law, 1.0)
            now_s += 1.0
        seen = []
        for _ in range(round(length)):
            now_s += 1.0
            d = drain(R, SHARE, full=True)
            _, rule, law = step(d, law, bounds=bounds, now_s=now_s, dt_s=1.0)
            seen.append((asked(law, R, bounds) / R, rule))
    return seen


HELD = LIMIT / R


def test_the_first_flood_is_no_wave() -> None:
    assert [asked_s for asked_s, _ in waves([20.0], 3.0)] == [pytest.approx(HELD)] * 20


def test_memory_takes_of_a_wave_what_most_of_the_pause_drains() -> None:
    for pause_s in (1.0, 3.0):
        asked_s, rule = waves([10.0, 10.0], pause_s)[0]
        assert asked_s == pytest.approx(WAVE * pause_s) and rule is Rule.WAVES
    # As far as a limit may go, and what drains in the policy's drain-time.
    ceiling_s = BOUNDS.ceiling / R
    long_s = 2 * ceiling_s / WAVE
    assert ceiling_s > DRAIN_TIME_S
    assert waves([10.0, 10.0], long_s)[0][0] == pytest.approx(DRAIN_TIME_S)
    patient = replace(BOUNDS, drain_time_s=2 * ceiling_s)
    assert waves([10.0, 10.0], long_s, patient)[0][0] == pytest.approx(ceiling_s)


def test_already_in_the_first_pause_the_next_flood_is_taken_for_a_wave() -> None:
    law = replace(LawMemory(LIMIT), flood_s=10.0)
    for second in range(1, 4):
        law = between(law, 1.0)
        assert asked(law, R, BOUNDS) / R == pytest.approx(WAVE * second)


def test_short_pauses_take_nothing_from_the_limit() -> None:
    law = LawMemory(R, lasted_s=10.0, pause_s=1.0)
    assert asked(law, R, BOUNDS) == R


def test_what_was_before_the_first_flood_is_no_pause() -> None:
    law = LawMemory(LIMIT)
    for _ in range(40):
        law = between(law, 1.0)
    for _ in range(20):
        _, _, law = step(drain(R, SHARE, full=True), law)
    law = between(between(law, 1.0), 1.0)
    _, rule, law = step(drain(R, SHARE, full=True), law)
    assert rule is Rule.WAVES and asked(law, R, BOUNDS) / R == pytest.approx(WAVE * 2.0)


def test_each_pause_counts_once() -> None:
    assert waves([10.0, 10.0, 10.0, 10.0], 2.0)[5][0] == pytest.approx(WAVE * 2.0)


def test_memory_takes_no_more_of_a_wave_than_there_was_in_the_one_before() -> None:
    patient = replace(BOUNDS, drain_time_s=60.0)
    assert waves([3.0, 3.0], 30.0, patient)[0][0] == pytest.approx(WAVE * 3.0)


def test_a_wave_that_lasts_longer_than_the_one_before_is_a_flood() -> None:
    seen = waves([10.0, 40.0], 3.0)
    ends = int(WAVE_LONGER * 10.0 + 1.0)
    for number, (asked_s, rule) in enumerate(seen, 1):
        wave = number <= ends
        assert (rule is Rule.WAVES) is wave and (asked_s > 10 * HELD) is wave, number


def test_long_floods_and_long_pauses_are_no_waves() -> None:
    assert waves([WAVE_S, 5.0], 3.0)[0][1] is Rule.WAVES
    assert waves([WAVE_S + 1.0, 5.0], 3.0)[0][1] is not Rule.WAVES
    assert waves([10.0, 5.0], 2 * WAVE_S)[0][1] is Rule.WAVES
    assert waves([10.0, 5.0], 2 * WAVE_S + 1.0)[0][1] is not Rule.WAVES


def test_a_pause_counts_with_those_before() -> None:
    law = replace(LawMemory(LIMIT), pause_s=4.0, lasted_s=10.0)
    law = between(between(law, 1.0), 1.0)
    assert asked(law, R, BOUNDS) / R == pytest.approx(WAVE * 4.0)
    _, _, law = step(drain(R, SHARE, full=True), law)
    assert asked(law, R, BOUNDS) / R == pytest.approx(WAVE * 3.0)
    # Where nobody knows R, nobody knows what a pause drains.
    assert asked(law, None, BOUNDS) == pytest.approx(LIMIT)


# ---- whatever comes --------------------------------------------------------

_RATES = st.floats(0.0, 1e12)


@given(
    limit=st.floats(1.0, 1e13), rate=_RATES, r=st.none() | st.floats(1.0, 1e12),
    spent=st.floats(0.0, 1e3), full_s=st.floats(-1e6, 1e6), followed=st.floats(0.0, 1e13),
    sought=_RATES, extra=st.floats(-EXTRA, EXTRA), p99=st.none() | st.floats(0.0, 1e3),
    held_back=st.booleans(), floor=st.integers(1 << 16, 1 << 34), above=st.integers(0, 1 << 40),
    lasted=st.floats(0.0, 100.0), pause=st.floats(0.0, 100.0), share=st.floats(0.01, 0.9),
)
def test_whatever_is_seen_the_limit_stays_within_bounds_and_moves_by_a_step(
    limit: float, rate: float, r: Optional[float], spent: float, full_s: float, followed: float,
    sought: float, extra: float, p99: Optional[float], held_back: bool, floor: int, above: int,
    lasted: float, pause: float, share: float,
) -> None:  # fmt: skip
    bounds = Bounds(floor, floor + above, OBJECTIVE_S, DRAIN_TIME_S, share, KEEP)
    law = LawMemory(limit, sought_rate=sought, extra=extra, lasted_s=lasted, pause_s=pause)
    d = replace(drain(rate, spent, full=True), full_s=full_s, limit_bytes=followed)
    seen = flood(drain_rate=r, fsync_p99_s=p99, held_back=held_back)
    after, _ = follow(law, d, seen, bounds, True, NOW, 0.5)
    now = after.limit_bytes
    assert now is not None and math.isfinite(now)
    assert bounds.floor <= asked(after, r, bounds) <= bounds.ceiling
    assert -EXTRA <= after.extra <= EXTRA
    if now == limit:
        assert after.written_s == law.written_s
        return
    # Bounds that moved, and what R needs at most, are taken to at once.
    assert bounds.floor <= now <= bounds.ceiling or (r is None and now <= bounds.ceiling)
    most = max(SEEK_MOST_S * rate if r is None else MOST_S * r, 2.0 * floor)
    assert now <= max(SEEK * limit, floor) * (1 + 1e-9)
    assert now >= min(CUT * limit, most, bounds.ceiling) * (1 - 1e-9)
    if now > max(limit, floor):
        assert held_back


# ---- a loop with a disk ----------------------------------------------------

UNLOADED_S = 0.1e-3


@dataclass
class Media:
    """A disk whose cache is full: each sync takes `cost_s` of what is there for the flood.

    A limit lets in limit / TURN_S at most, and a sync waits for what the limit queues ahead of it.
    """

    cost_s: float
    syncers: int = 1
    rate: float = R
    now_s: float = NOW
    memory: DeviceMemory = field(default_factory=lambda: DeviceMemory(baseline_s=UNLOADED_S))
    policy: Policy = field(default_factory=lambda: load_policy("default"))
    spent: List[float] = field(default_factory=list)  # of the media's time, by tick
    written: List[float] = field(default_factory=list)

    TURN_S = 1e-3
    TICK_S = 0.5

    def tick(self) -> None:
        self.now_s += self.TICK_S
        limit = self.memory.target_bytes or self.policy.limits.rest_bytes
        wait_s = UNLOADED_S + limit / self.rate
        syncs = min(self.syncers / (wait_s + self.cost_s), 0.9 / self.cost_s)
        room = self.rate * (1.0 - syncs * self.cost_s)
        rate = min(limit / self.TURN_S, room)
        self.spent.append(syncs * self.cost_s)
        self.written.append(rate)
        count = round(syncs * self.TICK_S)
        full = rate >= room
        seen_s = wait_s if full else UNLOADED_S
        sample = DeviceSample(
            DISK, busy_share=1.0, sync=SyncSample(count, latency=latencies(seen_s, count))
        )
        writes = Writes(rate, rate, True, True, False, True)
        memory = update_drain(
            writes, sample, self.memory, int(self.memory.law.limit_bytes or 0), self.TICK_S
        )
        estimate = samples.estimate(
            "sda", flooded=True, demand=True, held_back=True, drain_rate=memory.drain_rate,
            full=memory.drain.full_s > 0, fsync_p99_s=seen_s, rate=rate, background_rate=rate,
        )  # fmt: skip
        own = self.policy.for_device(DISK.name, DISK.devno)
        want, memory = decide_device(
            self.policy, own, 1 << 16, self.now_s, self.TICK_S, limit, estimate, memory
        )
        self.memory = replace(memory, target_bytes=want.target_bytes)

    def run(self, seconds: float) -> Tuple[float, float]:
        """What the syncs took of the media's time and the flood got of R, in its last minute."""
        for _ in range(round(seconds / self.TICK_S)):
            self.tick()
        last = round(60 / self.TICK_S)
        return sum(self.spent[-last:]) / last, sum(self.written[-last:]) / last / self.rate


def preferring(prefer: str) -> Policy:
    policy = load_policy("default")
    return replace(policy, objective=replace(policy.objective, prefer=prefer))


@pytest.mark.parametrize("prefer,share", [
    ("latency", 1 / 4), ("balanced", 1 / 7), ("throughput", 1 / 10),
])  # fmt: skip
@pytest.mark.parametrize("cost_s,syncers", [(0.5e-3, 3), (2e-3, 1)])
def test_syncs_come_to_cost_the_share_that_the_policy_allows(
    prefer: str, share: float, cost_s: float, syncers: int
) -> None:
    media = Media(cost_s, syncers, policy=preferring(prefer))
    spent, gets = media.run(300)
    assert media.memory.drain_rate == pytest.approx(R, rel=0.05)
    # An R that is a few per cent low makes syncs look so much cheaper.
    assert spent == pytest.approx(share, abs=0.03)
    assert gets == pytest.approx(1.0 - share, rel=0.1)


def test_a_tick_without_a_flood_makes_no_waves() -> None:
    law = between(LawMemory(LIMIT, flood_s=28.0), 0.5)
    law = replace(law, flood_s=1.0, pause_s=law.quiet_s, quiet_s=0.0)
    assert asked(law, R, BOUNDS) == LIMIT
