# SPDX-License-Identifier: GPL-2.0-or-later
"""The law with io.max as its lever: R and the price of a sync under a pace, and the pace itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Tuple

import pytest

import samples
from plant import DISK, latencies
from writebackd.control.law import Bounds
from writebackd.control.pace_law import follow_pace
from writebackd.estimate.drain import Writes, update_drain
from writebackd.tuning import CREEP, RISE
from writebackd.types.decision import Rule
from writebackd.types.device_memory import DeviceMemory, Drain, LawMemory
from writebackd.types.samples import DeviceSample, SyncSample

R = 100e6
BOUNDS = Bounds(
    floor=1 << 20, ceiling=1 << 30, delay_s=16e-3,
    rest_bytes=4e6, spend=0.2, keep=0.95,
)  # fmt: skip
QUICK, SLOW = latencies(0.1e-3, 2000), latencies(20e-3, 50)
KNOWN = DeviceMemory(
    baseline_s=0.1e-3, drain_rate=R, drain=Drain(rate=0.8 * R), law=LawMemory(2e6)
)


def feed(
    memory: DeviceMemory, seconds: int, rate: float, pace: float, full: bool, held: bool = True
) -> DeviceMemory:
    """Ticks of a second with a flood of `rate` under `pace`."""
    sync = SyncSample(fsyncs=1, latency=SLOW if full else QUICK)
    sample = DeviceSample(DISK, busy_share=0.9, sync=sync)
    for _ in range(seconds):
        writes = Writes(rate, rate, True, held, False, True)
        memory = update_drain(writes, sample, memory, 0, 1.0, pace)
    return memory


# ---- R, and what a sync costs ------------------------------------------------


@pytest.mark.parametrize("full", [True, False])
def test_what_a_pace_leaves_of_the_media_is_the_syncs(full: bool) -> None:
    memory = feed(KNOWN, 60, 0.8 * R, 0.8 * R, full)
    spent = memory.drain.sync_rate * memory.drain.price_s
    assert spent == pytest.approx(0.2, rel=0.1)
    assert memory.drain_rate == R


def test_a_flood_that_does_not_use_its_pace_tells_nothing_of_the_price() -> None:
    for full in (True, False):
        assert feed(KNOWN, 60, 0.6 * R, 0.8 * R, full, held=False).drain.lost_s == 0.0


def test_what_a_sweep_takes_of_the_media_is_the_syncs_as_well() -> None:
    memory = feed(KNOWN, 30, 0.8 * R, 0.8 * R, full=False)
    swept = feed(memory, 3, 0.2 * R, 0.8 * R, full=False)
    assert swept.drain.lost_s > memory.drain.lost_s + 1.0


def test_a_disk_that_takes_its_pace_is_as_fast_as_it_was() -> None:
    for pace in (0.5 * R, 0.75 * R, 0.9 * R):
        assert feed(KNOWN, 60, pace, pace, full=True).drain_rate == R


@pytest.mark.parametrize("pace,rate", [(0.85, 0.5), (0.95, 0.5), (0.6, 0.3)])
def test_a_disk_that_stays_full_and_below_its_pace_has_become_slower(
    pace: float, rate: float
) -> None:
    known = replace(KNOWN, drain=replace(KNOWN.drain, lost_s=4.0, syncs=60e3))
    assert feed(known, 15, rate * R, pace * R, full=True).drain_rate == pytest.approx(rate * R)
    assert feed(known, 4, rate * R, pace * R, full=True).drain_rate == R
    # With room in the cache nobody knows why so little is written.
    assert feed(known, 60, rate * R, pace * R, full=False).drain_rate == R


def test_a_disk_that_is_full_above_the_drain_rate_is_faster() -> None:
    assert feed(KNOWN, 20, 1.3 * R, 1.3 * R, full=True).drain_rate == pytest.approx(
        1.3 * R, rel=0.05)


def test_a_pace_of_the_run_before_is_what_is_known_of_the_drain_rate() -> None:
    memory = feed(replace(KNOWN, drain_rate=None), 3, 0.8 * R, 0.8 * R, full=False)
    assert memory.drain_rate == 0.8 * R


# ---- the pace ----------------------------------------------------------------


def steered(
    pace: float, spent: float, full_s: float, bounds: Bounds = BOUNDS, **changes: Any
) -> Tuple[float, Rule]:
    """The next pace, in parts of R, and the branch."""
    rate = changes.pop("rate", pace)
    drain = Drain(rate=rate * R, sync_rate=1000.0, lost_s=spent, syncs=1000.0,
                  full_s=max(0.0, full_s), room_s=max(0.0, -full_s))  # fmt: skip
    estimate = samples.flooded("sda", 0.1, 0.2, 100.0, 0.5)
    known = {"full": full_s > 0, "held_back": True, "commit_p99_s": 0.01, **changes}
    estimate = replace(estimate, **known)
    by, rule = follow_pace(drain, estimate, bounds, pace * R, R)
    return by * pace, rule


def test_full_and_cheap_it_is_cut_to_what_the_flood_keeps() -> None:
    assert steered(0.95, 0.05, 2.0)[0] == pytest.approx(0.8)
    now, rule = steered(0.8, 0.05, 2.0)
    assert now == pytest.approx(0.8) and rule is Rule.STEADY
    assert steered(0.95, 0.05, 2.0, replace(BOUNDS, spend=0.1))[0] == pytest.approx(0.9)


def test_below_what_the_flood_keeps_it_goes_up() -> None:
    now, _ = steered(0.5, 0.1, 2.0)
    assert now == pytest.approx(0.8)


@pytest.mark.parametrize("full_s", [2.0, -2.0])
def test_where_syncs_cost_more_than_they_may_it_goes_up(full_s: float) -> None:
    now, rule = steered(0.75, 0.25, full_s)
    assert now == pytest.approx(0.9375) and rule is Rule.DEAR
    # Above R the cache fills, and fewer syncs get through.
    assert steered(0.8, 0.6, full_s)[0] == pytest.approx(RISE * 0.8)


def test_with_room_it_is_what_syncs_leave_and_slowly_more() -> None:
    assert steered(0.9, 0.18, -1.0)[0] == pytest.approx(0.82, rel=0.01)
    now, rule = steered(0.8, 0.0, -4.0)
    assert now == pytest.approx(0.8 * (1.0 + 16 * CREEP)) and rule is Rule.ROOM
    now, _ = steered(1.3, 0.0, -20.0)
    assert now == pytest.approx(BOUNDS.keep * (1.0 + 400 * CREEP))


def test_a_flood_that_does_not_use_it_gets_no_more() -> None:
    now, rule = steered(0.8, 0.0, -9.0, rate=0.5, held_back=False)
    assert now == pytest.approx(0.8) and rule is Rule.LOOSE
