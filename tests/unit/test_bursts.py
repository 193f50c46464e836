# SPDX-License-Identifier: GPL-2.0-or-later
"""What is no flood tells nothing of the disk: samples in, limits and reasons out.

Copies of 40 MB every 3 s neither keep a fast disk busy nor does the limit hold them for long. Taken
for what the disk drains they brought 1.7 GB/s down to 23 MB/s, and the limit to 1.5 MB.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import List, Optional, Tuple

import pytest

from plant import AS_FOUND, DISK, HOST, RATIOS, latencies
from writebackd import formats
from writebackd.control import reasons
from writebackd.control.decide import decide
from writebackd.control.explain import what_next
from writebackd.estimate.estimator import estimate
from writebackd.policy import load_policy
from writebackd.tuning import MOST_S, SPEND
from writebackd.types.copying import replace
from writebackd.types.core_memory import Memory
from writebackd.types.decision import Decision, DeviceState, Rule
from writebackd.types.device_memory import Drain, LawMemory
from writebackd.types.estimate import Estimate
from writebackd.types.samples import (
    ClassSample,
    DeviceSample,
    IoClass,
    Sample,
    SyncSample,
    TaskSample,
    VmState,
)

MB = 1 << 20
POLICY = load_policy("default")
HOLD_S = POLICY.objective.demand_hold_s
RATE, TAU_S = 1000.0 * MB, 10e-3
BURST, EVERY_S = 40 * MB, 3.0
SYNCS = 2000
UNLOADED_S = 0.2e-3
RELEASED_S = 5.0


@dataclass
class Host:
    """A disk without a cache that takes RATE, whose limit lets in limit / TAU_S; four writers.

    A sync waits for all that is dirty once that comes at RATE.

    `blind`: only /proc is there, without syncs, classes and tasks.
    """

    blind: bool = False
    tau_s: float = TAU_S
    limit: int = AS_FOUND
    late_s: float = 0.0  # by which every second tick comes late, and the next soon
    now_s: float = 1000.0
    dt_s: float = 1.0
    memory: Memory = field(default_factory=Memory)
    told: List[Tuple[Estimate, Decision]] = field(default_factory=list)

    def tick(self, wanted: float = 0.0, syncs: int = 0, evenly: bool = False) -> None:
        """Writers bring `wanted` bytes as fast as they may, or `evenly` over the tick.

        What comes at once and does not fit into the limit makes them sleep.
        """
        self.now_s += self.dt_s
        self.late_s = -self.late_s
        now_s = self.now_s + max(0.0, self.late_s)
        rate = min(RATE, self.limit / self.tau_s)
        written = int(min(wanted, rate * self.dt_s))
        count = int(syncs * self.dt_s)
        queued = min(wanted, self.limit) if written >= RATE * self.dt_s else 0.0
        wait_s = UNLOADED_S + queued / RATE
        asleep_s = 0.9 * written / rate if wanted > self.limit and not evenly else 0.0
        classes = {
            IoClass.BACKGROUND_WRITE: ClassSample(
                written // MB, written, latencies(1e-3, written // MB)),
            IoClass.SYNC_WRITE: ClassSample(count, count * 4096, latencies(wait_s / 2, count)),
        }  # fmt: skip
        sample = Sample(
            time_s=now_s, wall_s=now_s, dt_s=self.dt_s, host=HOST,
            # The flusher leaves what is below the background limit.
            vm=VmState(RATIOS, int(min(wanted, self.limit / 3)), 0, self.limit, self.limit // 2),
            devices=(DeviceSample(
                DISK, write_bytes=written + count * 4096, writes=written // MB + count,
                busy_share=min(1.0, written / RATE / self.dt_s + count * 50e-6), classes=classes,
                sync=SyncSample(fsyncs=count, latency=latencies(wait_s, count)),
            ),),
            tasks=tuple([TaskSample(pid, "dd", 1, DISK.name, written // 4, asleep_s)
                         for pid in range(4)]) if written else (),
        )  # fmt: skip
        if self.blind:
            (seen,) = sample.devices
            sample = replace(
                sample, devices=(replace(seen, classes=None, sync=None),), tasks=()
            )
        estimates, memory = estimate(POLICY, self.memory, sample)
        decision, self.memory = decide(POLICY, memory, sample, estimates)
        self.limit = AS_FOUND if decision.limit_bytes is None else decision.limit_bytes
        self.dt_s = 0.5 if decision.hurry else 1.0
        self.told.append((estimates[DISK.name], decision))

    def run(self, seconds: float, wanted: float = 0.0, syncs: int = 0, **more: bool) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.tick(wanted * self.dt_s, syncs, **more)

    def bursts(self, seconds: float, syncs: int = 0) -> None:
        end_s, next_s = self.now_s + seconds, self.now_s + EVERY_S
        while self.now_s < end_s:
            due = self.now_s >= next_s
            next_s += EVERY_S if due else 0.0
            self.tick(BURST if due else 0.0, syncs)

    def switches(self, ticks: int) -> int:
        """How often the limits went from as found to ours or back, in so many last ticks."""
        ours = [decision.limit_bytes is None for _, decision in self.told[-ticks:]]
        return sum(now is not before for before, now in zip(ours, ours[1:]))

    @property
    def drains(self) -> float:
        return self.told[-1][0].drain_rate or 0.0

    @property
    def limited(self) -> bool:
        return self.told[-1][1].limit_bytes is not None

    @property
    def reason(self) -> str:
        return self.told[-1][1].devices[0].reason


def loaded() -> Host:
    """After 50 s of fsync and flood, with the disk's rate known and a limit at its knee."""
    host = Host()
    host.run(5, syncs=SYNCS)
    host.run(50, 2 * RATE, SYNCS)
    assert host.drains == pytest.approx(RATE, rel=0.1)
    assert host.limit == pytest.approx(0.016 * RATE, rel=0.1)
    return host


# ---- what the disk drains ----------------------------------------------------


@pytest.mark.parametrize("syncs", [0, 50])
def test_bursts_teach_nothing_of_the_disk(syncs: int) -> None:
    host = loaded()
    before = host.drains
    host.bursts(120, syncs)
    assert host.drains == before


def test_bursts_take_nothing_from_the_limit_of_a_long_flood() -> None:
    host = loaded()
    before = host.limit
    host.bursts(130, 50)
    given = [decision.limit_bytes or 0 for _, decision in host.told[-130:]]
    assert 0.9 * before < min(given) and max(given) <= 0.033 * RATE
    host.run(50, 2 * RATE, SYNCS)
    assert host.limit == pytest.approx(0.016 * RATE, rel=0.1)
    assert host.drains == pytest.approx(RATE, rel=0.1)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("rate", [20, 38, 100])
def test_bursts_once_a_second_teach_nothing_of_the_disk(known: bool, rate: int) -> None:
    host = loaded() if known else Host()
    host.run(5, syncs=50)
    (before, _), limit = host.told[-1], host.limit
    host.run(90, rate * MB, 50)
    seen, _ = host.told[-1]
    assert seen.drain_rate == before.drain_rate
    assert host.limit >= limit
    # And the next flood gets what the disk takes, less what syncs may cost; and a little less while
    # the law, which cuts by more than that without a cache, comes back from a cut.
    host.run(20, 2 * RATE, 50)
    assert host.drains == pytest.approx(RATE, rel=0.1)
    keeps = 1.0 - SPEND[POLICY.objective.prefer]
    assert sum(seen.write_rate for seen, _ in host.told[-20:]) > 0.96 * keeps * 20 * RATE


@pytest.mark.parametrize("late_s", [-0.02, 0.0, 0.02])
def test_a_burst_of_two_ticks_is_none_that_lasts_whatever_the_timer_does(late_s: float) -> None:
    host = loaded()
    host.run(RELEASED_S + 1)
    host.late_s = late_s
    for _ in range(20):
        host.run(2, 0.9 * RATE)
        host.run(3)
    assert not any(seen.lasting for seen, _ in host.told[-100:])
    assert not host.switches(100)
    host.run(3, 0.9 * RATE)
    assert host.told[-1][0].lasting


def test_a_limit_far_too_small_is_left_although_the_disk_is_hardly_busy() -> None:
    host = loaded()
    mine = host.memory.devices[DISK.name]
    host.limit = MB
    slow = replace(mine, drain_rate=0.1 * RATE, law=LawMemory(limit_bytes=float(MB)), drain=Drain())
    host.memory = replace(
        host.memory, devices={DISK.name: slow}, limit_bytes=MB, goal_bytes=MB
    )
    host.run(60, 2 * RATE, 50)
    assert host.drains > 0.6 * RATE and host.limit > 0.5 * RATE * TAU_S
    assert sum(seen.write_rate for seen, _ in host.told[-20:]) > 0.95 * 20 * RATE


@pytest.mark.parametrize("known", [False, True])
def test_a_stream_that_nothing_holds_is_not_what_the_disk_drains(known: bool) -> None:
    host = loaded() if known else Host()
    host.run(5, syncs=50)
    before, limit = host.drains, host.limit
    host.run(60, 38 * MB, 50, evenly=True)
    assert (host.drains, host.limit) == (before, limit)


# ---- and who has to be protected -----------------------------------------------


def test_without_syncs_the_limits_are_as_found_within_seconds() -> None:
    host = loaded()
    ended_s = host.now_s
    host.bursts(RELEASED_S)
    assert not host.limited, host.reason
    # And stay so, whatever comes in bursts.
    host.bursts(60)
    assert not any(decision.limit_bytes for _, decision in host.told[-60:])
    assert host.now_s - ended_s > HOLD_S


def test_what_is_called_demand_is_there_now_or_has_a_time() -> None:
    host = loaded()
    host.run(2, syncs=SYNCS)
    assert host.reason.startswith("no flood; ")
    host.tick()
    host.tick()
    (told,) = host.told[-1][1].devices
    target = told.target_bytes or 0  # what moved by less than a tenth is not set
    assert host.limit == pytest.approx(target, rel=0.1)
    assert host.reason == reasons.kept("", False, target, 2.0, 3.0)
    host.run(RELEASED_S - 2)
    (told,) = host.told[-1][1].devices
    assert told.reason == reasons.without_demand(flooded_lately=False)
    assert told.target_bytes is None
    assert what_next(told).startswith("The original limits stay until there")
    host.run(3, 2 * RATE)
    (told,) = host.told[-1][1].devices
    assert told.target_bytes == host.told[-1][1].goal_bytes
    assert told.rule is Rule.RELAXED and formats.size(told.target_bytes) in told.reason
    assert what_next(told).startswith("The target follows the drain rate")


@pytest.mark.parametrize("every_s", [4, 6, 7, 9, 20])
def test_a_load_that_comes_back_after_a_gap_is_let_go_in_the_first_alone(every_s: int) -> None:
    host = Host()
    host.run(5, syncs=50)
    for second in range(240):
        host.tick(syncs=0 if second % every_s else 80)
    assert host.switches(240) == (0 if every_s <= RELEASED_S else 2)
    # It stays away: over after two gaps, and the next load has none of them.
    host.run(max(RELEASED_S, 2 * every_s))
    assert not host.limited
    host.run(HOLD_S)
    host.run(10, syncs=50)
    host.run(RELEASED_S)
    assert not host.limited


def test_a_gap_of_long_ago_is_forgotten_under_a_load_that_goes_on() -> None:
    host = Host()
    host.run(5, syncs=50)
    host.run(9)
    host.run(3 * HOLD_S, syncs=50)
    host.run(RELEASED_S)
    assert not host.limited


def test_a_load_is_held_for_no_longer_than_the_policy_says() -> None:
    host = Host()
    for _ in range(3):
        host.run(5, syncs=50)
        host.run(0.9 * HOLD_S)
    host.run(5, syncs=50)
    host.run(HOLD_S - 1)
    assert host.limited
    host.run(1)
    assert not host.limited


def test_a_stream_whose_busy_share_wavers_switches_nothing() -> None:
    host = loaded()
    host.run(RELEASED_S + 1)
    host.run(4, 0.7 * RATE)
    for second in range(120):
        host.tick((0.7, 0.5, 0.5, 0.4, 0.5, 0.5, 0.5)[second % 7] * RATE)
    assert host.limited and not host.switches(120)
    # One that never begins as a flood is none.
    host.run(10)
    host.run(60, 0.55 * RATE)
    assert host.told[-1][0].flooded and not host.limited


def test_blind_the_limit_stays_down_in_the_pauses_of_a_flood_that_it_holds() -> None:
    host = Host(blind=True, tau_s=20e-3)
    host.run(10, 2 * RATE)
    limits = []
    for _ in range(12):
        host.run(4, 2 * RATE)
        assert host.told[-1][0].rate < 0.6 * RATE
        limits.append(host.limit)
        host.run(2)
        limits.append(host.limit)
    assert set(limits) == {limits[0]} and limits[0] < 2 * RATE * TAU_S


def test_beside_a_flood_demand_outlives_its_syncs_and_says_for_how_long() -> None:
    """Its pages would be ahead of the next sync for as long as they take to drain."""
    host = loaded()
    host.run(20, 2 * RATE)
    assert host.limit <= MOST_S * RATE
    assert host.reason.endswith(reasons.kept("", True, 0, 20.0, 40.0))
    host.run(HOLD_S - 20 + 30, 2 * RATE)
    assert host.limit == pytest.approx(min(AS_FOUND, RATE * POLICY.limits.drain_time_s), rel=0.1)
    assert host.told[-1][1].devices[0].state is DeviceState.IDLE
    host.run(RELEASED_S)
    assert not host.limited


def test_the_limit_that_is_kept_for_demand_is_the_same_limit() -> None:
    host = loaded()
    host.run(40, 2 * RATE)
    assert "limit kept for" in host.reason
    assert host.limit < 2 * RATE * TAU_S


def test_demand_that_is_over_does_not_come_back_with_a_flood_or_a_single_sync() -> None:
    host = loaded()
    host.run(RELEASED_S)
    host.tick(syncs=1)
    host.run(20, 2 * RATE)
    assert not any(seen.demand for seen, _ in host.told[-21:])


def test_a_stream_that_nothing_holds_is_no_flood_to_stay_ready_for() -> None:
    host = loaded()
    host.run(RELEASED_S, 38 * MB, evenly=True)
    assert not host.limited, host.reason


@pytest.mark.parametrize("drain_mb,held", [(None, True), (30, True), (50, False)])
def test_what_a_cache_takes_is_a_flood_unless_the_disk_drains_it(
    drain_mb: Optional[int], held: bool
) -> None:
    host = Host()
    host.run(5, syncs=50)
    known = replace(host.memory.devices[DISK.name], drain_rate=drain_mb and drain_mb * MB)
    host.memory = replace(host.memory, devices={DISK.name: known})
    host.run(20, 38 * MB, evenly=True)
    assert host.limited is held, host.reason
