# SPDX-License-Identifier: GPL-2.0-or-later
"""What bcache is told to write out, and when it is left alone: control/destage.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, List, Optional, Tuple

import pytest

import samples
from plant import DISK, HOST
from writebackd.control.decide import decide
from writebackd.control.destage import DESTAGE_DELAY_S, DESTAGE_PERCENT, plan_destage
from writebackd.estimate.cache_size import FILL_FRESH_S
from writebackd.policy import load_policy
from writebackd.tuning import DEADBAND
from writebackd.types.core_memory import Memory
from writebackd.types.device_memory import DeviceMemory
from writebackd.types.levers import LeverKind, Setting, VmLimits
from writebackd.types.samples import DeviceSample, Sample, VmState
from writebackd.types.storage import Backing, CacheMode

MB = 10**6
BASE = load_policy("default")
POLICY = replace(BASE, levers=replace(BASE.levers, destage_share=0.5))
CACHE = Backing(
    "sda", "bcache", 0.0, capacity_bytes=2000 * MB, mode=CacheMode.WRITE_BACK, dirty_bytes=int(1e9),
    disk="bcache0", read_s=999.0,
)  # fmt: skip
OTHER = replace(CACHE, device="sdb", disk="bcache1")


def sampled(*backings: Backing, excluded: Optional[str] = None) -> Sample:
    disks = (DISK, replace(DISK, name="sdb", devno="8:16", bdi="8:16", leaves=("sdb",)))
    return Sample(
        time_s=1000.0, wall_s=1000.0, dt_s=1.0, host=HOST,
        vm=VmState(VmLimits(0, 20, 0, 10), 0, 0, 1 << 30, 1 << 29),
        devices=tuple(DeviceSample(disk, excluded=excluded) for disk in disks),
        backings=backings,
    )  # fmt: skip


def planned(
    *backings: Backing, memory: Memory = Memory(),  # noqa: B008
    excluded: Optional[str] = None, policy: Any = POLICY, drains: Optional[float] = 20.48 * MB,
) -> Tuple[List[Tuple[str, str, int]], Memory]:  # fmt: skip
    estimates = {name: samples.estimate(name, drain_rate=drains) for name in ("sda", "sdb")}
    sample = sampled(*backings, excluded=excluded)
    settings, memory = plan_destage(policy, memory, sample, estimates)
    assert all(each.kind is LeverKind.CACHE for each in settings)
    return [(each.target, each.name, each.value) for each in settings], memory


def test_it_is_told_a_share_of_the_drain_rate_in_sectors() -> None:
    settings, memory = planned(CACHE)
    assert settings == [
        ("bcache0", "writeback_rate_minimum", 20_000),
        ("bcache0", "writeback_delay", DESTAGE_DELAY_S),
        ("bcache0", "writeback_percent", DESTAGE_PERCENT),
    ]
    assert memory.destage == {"bcache0": 20_000}
    assert {target for target, *_ in planned(CACHE, OTHER)[0]} == {"bcache0", "bcache1"}


@pytest.mark.parametrize("changes", [
    {"dirty_bytes": None}, {"source": "dm-writecache"}, {"mode": CacheMode.WRITE_THROUGH},
    {"mode": None}, {"disk": None}, {"read_s": None}, {"read_s": 1000.0 - FILL_FRESH_S - 0.1},
    {"device": "gone"},
])  # fmt: skip
def test_what_holds_nothing_back_or_is_not_read_is_left_alone(changes: Dict[str, Any]) -> None:
    settings, memory = planned(replace(CACHE, **changes), memory=Memory(destage={"bcache0": 7}))
    assert (settings, memory.destage) == ([], {})


def test_it_is_left_alone_without_a_drain_rate_a_wish_or_a_say() -> None:
    assert planned(CACHE, drains=None)[0] == []
    assert planned(CACHE, policy=BASE)[0] == []  # off by default
    assert planned(CACHE, excluded="by policy")[0] == []
    for memory in (Memory(yielded="somebody"), Memory(pin_bytes=1 << 20)):
        assert planned(CACHE, memory=memory)[0] == []


def test_the_rate_follows_the_drain_rate_and_not_its_noise() -> None:
    _, memory = planned(CACHE)
    small, large = 1 + 0.9 * DEADBAND, 1 + 1.1 * DEADBAND
    _, memory = planned(CACHE, memory=memory, drains=20.48 * MB * small)
    assert memory.destage == {"bcache0": 20_000}
    _, memory = planned(CACHE, memory=memory, drains=20.48 * MB * large)
    assert memory.destage == {"bcache0": int(20_000 * large)}
    _, memory = planned(CACHE, memory=memory, drains=1.0)
    assert memory.destage == {"bcache0": 1}  # the least that the kernel takes


def test_little_is_written_out_in_its_time_and_not_at_full_speed() -> None:
    """So in the long run the rate is what comes in."""
    for dirty, sectors in ((51_200_000, 10_000), (10**9, 20_000), (0, 800)):
        _, memory = planned(replace(CACHE, dirty_bytes=dirty))
        assert memory.destage == {"bcache0": sectors}


def test_of_two_devices_on_one_cache_the_slower_counts() -> None:
    slow = replace(CACHE, device="sdb")
    estimates = {
        "sda": samples.estimate("sda", drain_rate=20.48 * MB),
        "sdb": samples.estimate("sdb", drain_rate=10.24 * MB),
    }
    for both in ((CACHE, slow), (slow, CACHE)):
        _, memory = plan_destage(POLICY, Memory(), sampled(*both), estimates)
        assert memory.destage == {"bcache0": 10_000}


def test_the_decision_has_it() -> None:
    estimates = {name: samples.estimate(name, drain_rate=20.48 * MB) for name in ("sda", "sdb")}
    memory = Memory(devices={name: DeviceMemory() for name in ("sda", "sdb")})
    decision, memory = decide(POLICY, memory, sampled(CACHE), estimates)
    assert Setting(LeverKind.CACHE, "bcache0", "writeback_rate_minimum", 20_000) in (
        decision.settings
    )
    assert memory.destage == {"bcache0": 20_000}


DRAINED = [("bcache0", "writeback_delay", 0), ("bcache0", "writeback_percent", 0)]


def test_a_drain_writes_all_out_at_any_rate_and_the_others_go_on() -> None:
    memory = Memory(draining=("sda",), destage={"bcache0": 7})
    assert planned(CACHE, memory=memory, policy=BASE, drains=None)[0] == DRAINED
    settings, memory = planned(CACHE, OTHER, memory=memory)
    assert settings[:2] == DRAINED
    assert {target for target, *_ in settings[2:]} == {"bcache1"}
    assert set(memory.destage) == {"bcache1"}


def test_a_drain_leaves_alone_what_is_pinned_yielded_or_not_read() -> None:
    drain = Memory(draining=("sda",))
    for memory in (replace(drain, yielded="somebody"), replace(drain, pin_bytes=1 << 20)):
        assert planned(CACHE, memory=memory, policy=BASE)[0] == []
    assert planned(OTHER, memory=drain, policy=BASE)[0] == []
    for changes in ({"read_s": None}, {"mode": CacheMode.WRITE_THROUGH}, {"source": "dm-cache"}):
        assert planned(replace(CACHE, **changes), memory=drain, policy=BASE)[0] == []


def test_the_decision_has_it_while_devices_are_drained() -> None:
    estimates = {name: samples.estimate(name) for name in ("sda", "sdb")}
    memory = Memory(
        devices={name: DeviceMemory() for name in ("sda", "sdb")}, draining=("sda",)
    )
    decision, memory = decide(BASE, memory, sampled(CACHE), estimates)
    assert Setting(LeverKind.CACHE, "bcache0", "writeback_percent", 0) in decision.settings
    decision, _ = decide(BASE, replace(memory, draining=()), sampled(CACHE), estimates)
    assert decision.settings == ()
