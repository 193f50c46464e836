# SPDX-License-Identifier: GPL-2.0-or-later
"""Several devices, a cache that says how full it is, and floods that nobody syncs beside."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, Optional, Tuple

import pytest

from drain_cases import KNOWN, LIMIT, MB, POLICY, QUICK, SLOW, THRESHOLD, R
from plant import DISK, HOST, latencies
from writebackd.estimate.cache_size import FILL_FRESH_S, FULL_SHARE
from writebackd.estimate.estimator import estimate, objective_s
from writebackd.tuning import CACHE_S, SHARE_HALF_S, SHARE_LEAST
from writebackd.types.core_memory import Cap, Memory
from writebackd.types.device_memory import DeviceMemory, LawMemory
from writebackd.types.estimate import Estimate
from writebackd.types.levers import VmLimits
from writebackd.types.samples import (
    ClassSample,
    DeviceSample,
    IoClass,
    Sample,
    SyncSample,
    TaskSample,
    VmState,
)
from writebackd.types.storage import Backing, CacheMode

OTHER = replace(DISK, name="sdb", devno="8:16", bdi="8:16", leaves=("sdb",), leaf_devnos=("8:16",))
GLOBAL = 64 * MB


def tick(
    memory: Memory, rates: Dict[str, float], time_s: float = 1000.0, dt_s: float = 1.0,
    sync: Optional[SyncSample] = SyncSample(), limit: int = GLOBAL,  # noqa: B008
    backings: Tuple[Backing, ...] = (), strict: Optional[int] = None,
) -> Tuple[Dict[str, Estimate], Memory]:  # fmt: skip
    """A tick of disks that write at `rates`, each one with a writer that sleeps for the limit."""
    disks = {DISK.name: DISK, OTHER.name: OTHER}
    sample = Sample(
        time_s=time_s, wall_s=time_s, dt_s=dt_s, host=HOST,
        vm=VmState(VmLimits(limit, 0, 1, 0), 0, 0, limit, THRESHOLD),
        devices=tuple(
            DeviceSample(
                disks[name], write_bytes=int(rate * dt_s), busy_share=1.0, sync=sync,
                strict_bytes=strict,
                classes={IoClass.BACKGROUND_WRITE: ClassSample(20, int(rate), latencies(1e-4, 20))},
            )
            for name, rate in rates.items()
        ),
        tasks=tuple(
            TaskSample(1, "dd", 1, name, throttled_s=dt_s) for name, rate in rates.items() if rate
        ),
        backings=backings,
    )  # fmt: skip
    return estimate(POLICY, memory, sample)


def ticks(
    memory: Memory, count: int, rates: Dict[str, float], begin_s: float = 1000.0,
    sync: Optional[SyncSample] = SyncSample(),  # noqa: B008
) -> Tuple[Dict[str, Estimate], Memory]:  # fmt: skip
    estimates: Dict[str, Estimate] = {}
    for number in range(count):
        estimates, memory = tick(memory, rates, begin_s + number, sync=sync)
    return estimates, memory


# ---- a cache that says how full it is ---------------------------------------

CACHE = Backing(
    "sda", "bcache", 0.0, capacity_bytes=100 * MB, mode=CacheMode.WRITE_BACK, dirty_bytes=40 * MB,
    disk="sda", read_s=999.0,
)  # fmt: skip


def filled(memory: Memory, *backings: Backing, rate: float = 0.0) -> Estimate:
    return tick(memory, {"sda": rate}, backings=backings)[0]["sda"]


def test_what_the_cache_says_takes_the_place_of_the_estimate() -> None:
    memory = Memory(devices={"sda": replace(
        KNOWN, identity=(DISK.devno, DISK.diskseq), cache_bytes=4 * R, fill_bytes=4 * R)})
    guess = filled(memory)
    assert guess.fill_share == pytest.approx(0.75, abs=0.01) and guess.fill_source is None
    told = filled(memory, CACHE)
    assert (told.fill_share, told.fill_source, told.cache_bytes) == (0.4, "bcache", 100 * MB)
    fuller = replace(CACHE, source="dm-cache", dirty_bytes=60 * MB)
    for both in ((CACHE, fuller), (fuller, CACHE)):
        assert filled(memory, *both).fill_source == "dm-cache"


@pytest.mark.parametrize("changes", [
    {"read_s": 1000.0 - FILL_FRESH_S - 0.1}, {"read_s": None}, {"dirty_bytes": None},
    {"capacity_bytes": None}, {"mode": CacheMode.WRITE_THROUGH}, {"device": "sdb"},
])  # fmt: skip
def test_what_is_old_or_half_known_does_not(changes: Dict[str, Any]) -> None:
    assert filled(Memory(), replace(CACHE, **changes)).fill_source is None


def test_the_estimate_goes_on_from_the_last_reading() -> None:
    memory = Memory(devices={
        "sda": replace(KNOWN, identity=(DISK.devno, DISK.diskseq), drain_rate=10.0 * MB)})
    _, memory = tick(memory, {"sda": 0.0}, backings=(CACHE,))
    estimates, _ = tick(memory, {"sda": 0.0}, 1001.0)
    assert estimates["sda"].fill_bytes == pytest.approx(30 * MB)


def test_a_full_one_counts_as_full_while_no_sync_is_slow() -> None:
    for share, full in ((FULL_SHARE, True), (FULL_SHARE - 0.01, False)):
        dirty = replace(CACHE, dirty_bytes=round(share * 100 * MB))
        assert filled(Memory(), dirty, rate=R).full is full
    # That there is room does not speak against slow syncs: most of a flood goes past dm-cache.
    memory = Memory()
    for number in range(4):
        estimates, memory = tick(
            memory, {"sda": R}, 1000.0 + number, sync=SLOW, backings=(CACHE,))
    assert estimates["sda"].full


# ---- several devices -------------------------------------------------------

def test_a_device_alone_has_the_whole_limit() -> None:
    estimates, _ = ticks(Memory(), 3, {"sda": R, "sdb": 0.0})
    assert estimates["sda"].limit_share == 1.0


def test_devices_share_the_limit_by_their_speed() -> None:
    estimates, _ = ticks(Memory(), 3, {"sda": R, "sdb": R / 3})
    assert estimates["sda"].limit_share == pytest.approx(0.75)
    assert estimates["sdb"].limit_share == pytest.approx(0.25)


@pytest.mark.parametrize("strict, known", [(None, True), (MB // 2, False)])
def test_a_small_limit_of_somebody_else_shows_nothing_of_the_disk(
    strict: Optional[int], known: bool
) -> None:
    memory = Memory()
    for number in range(8):
        _, memory = tick(memory, {"sda": 10.0 * MB}, 1000.0 + number, sync=SLOW, strict=strict)
    assert (memory.devices["sda"].drain_rate is not None) is known


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
    rates = {"sda": R, "sdb": R}
    estimates, _ = tick(Memory(caps={"sda": Cap(LIMIT, in_force=True)}), rates)
    assert estimates["sda"].limit_share == 1.0
    estimates, _ = tick(Memory(caps={"sda": Cap(LIMIT)}), rates)
    assert estimates["sda"].limit_share == pytest.approx(0.5)


@pytest.mark.parametrize("capped,learned", [(8 * MB, True), (24 * MB, False)])
def test_what_a_cap_lets_in_is_judged_by_the_cap(capped: int, learned: bool) -> None:
    """The global limit, 64 MB, would not be the one asked for."""
    cost = replace(KNOWN, identity=(DISK.devno, None), law=LawMemory(8.0 * MB))
    memory = Memory(
        caps={"sda": Cap(capped, in_force=True)}, devices={"sda": cost}
    )
    for number in range(8):
        _, memory = tick(memory, {"sda": 0.92 * R}, 1000.0 + number, sync=SLOW)
    assert (memory.devices["sda"].drain.price_s > 0.0) is learned


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


# ---- floods that nobody syncs beside ---------------------------------------


def test_a_lone_flood_that_lasts_shows_the_drain_rate() -> None:
    lasts = int(CACHE_S)
    estimates, memory = ticks(Memory(), lasts, {"sda": R})
    assert estimates["sda"].drain_rate is None
    estimates, memory = ticks(memory, 10, {"sda": R}, 1000.0 + lasts)
    assert estimates["sda"].drain_rate == pytest.approx(R, rel=0.05)
    assert not estimates["sda"].demand


def test_a_lone_flood_only_ever_raises_it() -> None:
    _, memory = ticks(Memory(), 40, {"sda": R})
    estimates, memory = ticks(memory, 60, {"sda": R / 4}, 1040.0)
    assert estimates["sda"].drain_rate == pytest.approx(R, rel=0.01)
    estimates, _ = ticks(memory, 40, {"sda": 2 * R}, 1100.0)
    assert estimates["sda"].drain_rate == pytest.approx(2 * R, rel=0.01)


def test_lone_floods_that_end_sooner_show_nothing() -> None:
    memory, now_s = Memory(), 1000.0
    for _ in range(10):
        _, memory = ticks(memory, int(CACHE_S) - 1, {"sda": R}, now_s)
        estimates, memory = ticks(memory, 3, {"sda": 0.0}, now_s + CACHE_S - 1)
        now_s += CACHE_S + 2
    assert estimates["sda"].drain_rate is None


def test_beside_syncs_a_rate_that_lasts_is_not_yet_the_drain_rate() -> None:
    """It may be a large cache that takes it."""
    estimates, _ = ticks(Memory(), 60, {"sda": R}, sync=QUICK)
    assert estimates["sda"].demand and estimates["sda"].drain_rate is None
