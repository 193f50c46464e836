# SPDX-License-Identifier: GPL-2.0-or-later
"""Small cgroups under the byte limit: whom it strangles, and when it is raised for them."""

from __future__ import annotations

from dataclasses import replace
from typing import List, Optional

import pytest

from plant import HOST, Plant
from writebackd.control.decide import decide, released
from writebackd.control.small_cgroups import RaisedLimit, raise_limit
from writebackd.estimate.estimator import estimate
from writebackd.estimate.limit_shares import needed, share_of, shared_limit
from writebackd.policy import load_policy
from writebackd.tuning import GRAIN_BYTES, WAVE_S
from writebackd.types.core_memory import Memory
from writebackd.types.decision import Decision, DeviceDecision, DeviceState
from writebackd.types.device_memory import DeviceMemory
from writebackd.types.levers import VmLimits
from writebackd.types.samples import CgroupMemory, CgroupSample, Sample, VmState

MB = 1 << 20
GB = 1 << 30
POLICY = load_policy("default")
SMALL = "/docker/small.scope"
PAGE = HOST.page_size
DEMAND = DeviceDecision("sda", DeviceState.GUARD, 2 * MB, "", demand=True)


def cgroup(
    avail: int = 64 * MB, path: str = SMALL, slept: float = 0.9, wrote: int = MB, number: int = 7
) -> CgroupSample:
    memory = CgroupMemory(path, avail, avail, 0)
    return CgroupSample(number, path, "sda", wrote, slept, memory=memory)


def other(wrote: int, device: Optional[str] = "sda") -> CgroupSample:
    return CgroupSample(99, "/system.slice/backup.service", device, wrote)


class Host(Plant):
    """The plant with cgroups; what the small ones may hold is their flood's limit."""

    cgroups: List[CgroupSample]
    dirtyable = 64 * GB

    def sample(self) -> Sample:
        now = plain_sample(self.dirtyable or GB)
        shares = [share_of(self.limit, c.memory, now) for c in self.cgroups if c.memory]
        others = any(c.memory is None and c.dirtied_bytes > MB for c in self.cgroups)
        real, own = self.limit, max(16 << 10, sum(shares))
        if shares and not others:
            self.limit = min(real, own)
        made = super().sample()
        self.limit = real
        vm = replace(made.vm, dirtyable_bytes=self.dirtyable, threshold_bytes=real)
        return replace(made, vm=vm, cgroups=tuple(self.cgroups))


def host(*cgroups: CgroupSample, ticks: int = 5) -> Host:
    """A device that is known, with syncs and a flood, and these cgroups on it."""
    made = Host(policy=POLICY, drain_rate=250 * MB)
    made.cgroups = []
    made.run(15)  # so that an unloaded sync is known
    made.flood = True
    made.run(30)
    made.cgroups = list(cgroups)
    made.run(ticks)
    return made


def decision(made: Host) -> Decision:
    return made.tick()[1]


def plain_sample(dirtyable: int = 64 * GB) -> Sample:
    vm = VmState(VmLimits(2 * MB, 0, MB, 0), 0, 0, 2 * MB, MB, dirtyable)
    return Sample(0.0, 0.0, 1.0, HOST, vm, ())


# ---- the kernel's arithmetic -------------------------------------------------


@pytest.mark.parametrize("limit, avail, dirtyable, share", [
    # kernel-facts: one quantum is 1/4096, of a 64 GB host 16 MB, and rounded up.
    (1, 64 * MB, 64 * GB, 16 << 10),
    (2 * MB, 64 * MB, 64 * GB, 16 << 10),
    (16 * MB, 64 * MB, 64 * GB, 16 << 10),
    (16 * MB + 1, 64 * MB, 64 * GB, 32 << 10),
    (256 * MB, GB, 256 * GB, MB),
    (64 * GB, 64 * MB, 64 * GB, 64 * MB),
    (900 * GB, 64 * MB, 64 * GB, 64 * MB),
])  # fmt: skip
def test_share_of_the_limit(limit: int, avail: int, dirtyable: int, share: int) -> None:
    small = CgroupMemory(SMALL, avail, avail, 0)
    assert share_of(limit, small, plain_sample(dirtyable)) == share
    least = needed(share, small, plain_sample(dirtyable))
    assert share_of(least, small, plain_sample(dirtyable)) >= share
    step = dirtyable // PAGE
    assert least <= step or share_of(least - step, small, plain_sample(dirtyable)) < share


def test_memory_that_moves_a_little_leaves_the_share() -> None:
    small = CgroupMemory(SMALL, 64 * MB, 64 * MB, 0)
    limit = needed(MB, small, plain_sample(64 * GB))
    for percent in (99, 100, 101):
        assert share_of(limit, small, plain_sample(64 * GB * percent // 100)) >= MB


# ---- the law -----------------------------------------------------------------


def test_a_small_cgroup_that_floods_gets_what_the_law_asks_for() -> None:
    made = host(cgroup(), ticks=20)
    found = decision(made)
    asked = found.devices[0].target_bytes
    assert asked is not None and asked < 16 * MB
    held = made.memory.lift
    assert held is not None and held.limit_bytes == found.limit_bytes
    assert found.limit_bytes is not None and found.background_bytes is not None
    given = share_of(found.limit_bytes, CgroupMemory(SMALL, 64 * MB, 64 * MB, 0), made.sample())
    assert given >= GRAIN_BYTES / 2
    # What anybody else dirties is written at once: the background limit stays.
    assert found.background_bytes < 2 * asked
    assert SMALL in found.reason and "64M of memory" in found.reason
    assert "instead, of which" in found.reason
    # The law reckons with what is in force for the flood.
    assert shared_limit(made.memory, made.sample()) == given
    drain_rate = estimate(POLICY, made.memory, made.sample())[0]["sda"].drain_rate
    assert drain_rate == pytest.approx(250 * MB, rel=0.1)


def test_several_share_it() -> None:
    sample = replace(plain_sample(), cgroups=(cgroup(avail=512 * MB),))
    more = (cgroup(avail=512 * MB), cgroup(avail=600 * MB, path="/docker/b", number=8))
    asked = []
    for cgroups in (more[:1], more, (more[0], replace(more[0], cgroup_id=9))):
        found = raise_limit(POLICY, Memory(), replace(sample, cgroups=cgroups), 4 * MB, []).memory
        assert found is not None and found.limit_bytes is not None
        asked.append(share_of(found.limit_bytes, CgroupMemory("", GB, 512 * MB, 0), sample))
    # Two cgroups below one limit of memory are one.
    assert asked == [4 * MB, 2 * MB, 4 * MB]


@pytest.mark.parametrize("seen", [
    cgroup(slept=0.05),  # it does not wait
    cgroup(avail=60 * GB),  # and this one has as much as anybody
    CgroupSample(7, SMALL, "sda", MB, 0.9),  # no limit of memory, or not known
])  # fmt: skip
def test_nobody_is_strangled(seen: CgroupSample) -> None:
    made = host(seen)
    assert made.memory.lift is None
    found = decision(made)
    assert found.goal_bytes == pytest.approx(found.devices[0].target_bytes, rel=0.1)


def test_where_free_memory_is_not_known_nothing_is_raised() -> None:
    made = host(cgroup(), ticks=0)
    made.dirtyable = 0
    made.run(5)
    assert made.memory.lift is None


def test_not_while_others_flood_what_is_protected() -> None:
    made = host(cgroup(), other(100 * MB), ticks=20)
    found = decision(made)
    assert found.limit_bytes is not None and found.limit_bytes < 16 * MB
    assert SMALL in found.reason and "other cgroups write" in found.reason
    # Nor in their first pauses.
    made.cgroups = [cgroup()]
    for _ in range(int(WAVE_S)):
        found = decision(made)
        assert found.limit_bytes is not None and found.limit_bytes < 16 * MB
    assert "other writers flooded until just now" in found.reason
    made.run(10)
    assert (decision(made).limit_bytes or 0) > 16 * MB
    # And down it goes again.
    made.cgroups = [cgroup(), other(100 * MB)]
    made.run(16)  # as fast as what they have brought in drains
    assert (decision(made).limit_bytes or GB) < 16 * MB


@pytest.mark.parametrize("beside", [other(30 * MB), other(GB, "sdb"), other(GB, None)])
def test_a_few_writes_of_others_and_other_disks_do_not_matter(beside: CgroupSample) -> None:
    assert (decision(host(cgroup(), beside, ticks=20)).limit_bytes or 0) > 16 * MB


def test_who_has_a_cap_is_protected_by_that() -> None:
    sample = replace(plain_sample(), cgroups=(cgroup(), other(GB)))
    memory = Memory(devices={"sda": DeviceMemory(drain_rate=250.0 * MB)})
    shared = raise_limit(POLICY, memory, sample, 2 * MB, [DEMAND])
    assert shared.memory is not None and shared.memory.limit_bytes is None
    capped = raise_limit(POLICY, memory, sample, 2 * MB, [])
    assert capped.memory is not None and (capped.memory.limit_bytes or 0) > 2 * MB


def test_it_stays_over_pauses_and_goes_when_the_cgroup_has_rested() -> None:
    made = host(cgroup(), ticks=20)
    quiet = replace(cgroup(slept=0.0, wrote=0))
    made.cgroups = [quiet]
    for _ in range(int(WAVE_S)):
        assert (decision(made).limit_bytes or 0) > 16 * MB
    made.run(3)
    assert made.memory.lift is None
    assert (decision(made).limit_bytes or GB) < 16 * MB


def test_no_further_than_what_drains_in_bounded_time() -> None:
    made = host(cgroup(avail=16 * MB), ticks=20)
    drained = 250 * MB * POLICY.limits.drain_time_s
    assert (decision(made).limit_bytes or 0) == pytest.approx(drained, rel=0.15)
    # Not known, it has to be found out, as without the agent.
    unknown = replace(made.memory.devices["sda"], drain_rate=None)
    found = raise_limit(
        POLICY, replace(made.memory, devices={"sda": unknown}), made.sample(), 2 * MB, [DEMAND]
    )
    assert found.memory is not None
    assert found.memory.limit_bytes == POLICY.limits.ceiling_bytes


def test_never_above_the_ceiling_of_the_policy() -> None:
    policy = replace(POLICY, limits=replace(POLICY.limits, ceiling_bytes=100 * MB))
    made = host(cgroup(), ticks=0)
    made.policy = policy
    made.run(20)
    found = decision(made)
    assert found.limit_bytes == 100 * MB and "100M instead" in found.reason


def test_hands_off() -> None:
    made = host(cgroup(), ticks=20)
    sample = made.sample()
    for memory in (
        replace(made.memory, pin_bytes=8 * MB), replace(made.memory, yielded="somebody")
    ):  # fmt: skip
        assert raise_limit(POLICY, memory, sample, 2 * MB, [DEMAND]) == RaisedLimit(None)
    assert raise_limit(POLICY, made.memory, sample, None, []) == RaisedLimit(None)
    found, after = decide(POLICY, replace(made.memory, pin_bytes=8 * MB), sample,
                          estimate(POLICY, made.memory, sample)[0])  # fmt: skip
    assert found.limit_bytes == 8 * MB and after.lift is None
    assert shared_limit(Memory(), sample) == sample.vm.threshold_bytes
    assert made.memory.lift is not None and released(made.memory).lift is None
