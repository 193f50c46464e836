# SPDX-License-Identifier: GPL-2.0-or-later
"""A limit that is asked for and does not hold: in observe mode, and under another device's."""

from __future__ import annotations

from dataclasses import replace
from typing import Mapping, Tuple

import pytest

from plant import AS_FOUND, DISK, Plant
from writebackd import formats
from writebackd.control import reasons
from writebackd.control.decide import decide
from writebackd.control.explain import explain, verdict, what_next
from writebackd.estimate.estimator import estimate
from writebackd.policy import load_policy
from writebackd.policy.keys import DEVICE_KEYS, Setting
from writebackd.types.core_memory import Cap, Memory
from writebackd.types.decision import Decision, DeviceDecision, DeviceState, Mode, Rule
from writebackd.types.device_memory import DeviceMemory
from writebackd.types.estimate import Estimate

MB = 1 << 20
POLICY = load_policy("default")


# ---- observe mode ----------------------------------------------------------


class Watched(Plant):
    """Nothing is set: the limits stay as found."""

    def tick(self) -> Tuple[Estimate, Decision]:
        told = super().tick()
        self.limit, self.background = AS_FOUND, AS_FOUND // 2
        return told


def observed(mode: Mode = Mode.OBSERVE) -> Tuple[Watched, Estimate, DeviceDecision]:
    host = Watched(POLICY, drain_rate=250.0 * MB, memory=Memory(mode=mode))
    host.run(20)
    host.flood = True
    seen, decision = host.run(120)[-1]
    return host, seen, decision.devices[0]


def test_while_observing_it_says_what_would_be_set_and_that_nothing_is() -> None:
    _, seen, device = observed()
    assert (device.rule, device.state) == (Rule.OBSERVING, DeviceState.GUARD)
    assert device.target_bytes is not None
    would = f"enforce would set {formats.size(device.target_bytes)}"
    assert device.reason == f"flood, drain rate {formats.size(seen.drain_rate)}/s: {would}"
    assert what_next(device, POLICY.objective, "in observe mode") == (
        "Nothing is set in observe mode."
    )
    assert device.reason in explain(device, seen)
    judged = reasons.judged(seen, device.basis)
    assert judged is not None and not judged.met
    assert judged.text in (verdict(device, seen) or "")


def test_observing_the_law_takes_nothing_for_the_effect_of_its_limit() -> None:
    host, _, device = observed()
    mine = host.memory.devices["sda"]
    # R a full cache shows under any limit that does not hold the flood.
    assert mine.drain_rate == pytest.approx(250 * MB, rel=0.05)
    assert mine.drain.price_s == 0.0
    assert int(mine.law.limit_bytes or 0) == device.target_bytes
    assert device.target_bytes == pytest.approx(4.0 * MB, rel=0.05)
    # Nor for that of its limit later on.
    host.memory = replace(host.memory, mode=Mode.ENFORCE)
    Plant.tick(host)
    assert host.memory.devices["sda"].drain.price_s == 0.0
    for _ in range(60):
        Plant.tick(host)
    assert host.memory.devices["sda"].drain_rate == pytest.approx(250 * MB, rel=0.2)


def test_where_the_limits_as_found_are_the_laws_own_they_are_judged() -> None:
    host = Plant(POLICY, drain_rate=250.0 * MB, memory=Memory(mode=Mode.OBSERVE))
    host.run(20)
    host.flood = True
    rules = [decision.devices[0].rule for _, decision in host.run(60)]
    assert Rule.OBSERVING not in rules[10:] and Rule.KNEE in rules


# ---- two devices under one limit -------------------------------------------

OTHER = replace(DISK, name="sdb", devno="8:16", bdi="8:16", leaves=("sdb",), leaf_devnos=("8:16",))
KNOWN, LOOSE = 250.0 * MB, 25.0 * MB  # what drains in 100 ms
PATIENT = Setting(DEVICE_KEYS["allowed-delay"], 0.1, "here", "sdb")
BOTH = replace(POLICY, devices=replace(POLICY.devices, settings=(PATIENT,)))


def known(devno: str) -> DeviceMemory:
    return DeviceMemory(
        identity=(devno, None), baseline_s=0.3e-3, drain_rate=KNOWN,
        last_demand=(1000.0, 0.0, 3, True),
    )  # fmt: skip


class Two:
    """Two arrays that are flooded beside syncs: half of the limit is each one's."""

    def __init__(self, caps: Mapping[str, Cap] = {}) -> None:
        self.hosts = [
            Plant(BOTH, KNOWN, flood=True, limit=8 * MB) for _ in range(2)
        ]
        self.memory = Memory(devices={"sda": known("8:0"), "sdb": known("8:16")}, caps=caps)

    def tick(self) -> Decision:
        first, second = [host.sample() for host in self.hosts]
        both = replace(
            first,
            devices=(*first.devices, replace(second.devices[0], device=OTHER)),
            tasks=(*first.tasks, *[replace(task, device="sdb") for task in second.tasks]),
        )
        estimates, memory = estimate(BOTH, self.memory, both)
        decision, self.memory = decide(BOTH, memory, both, estimates)
        for host in self.hosts:
            host.limit = decision.limit_bytes or AS_FOUND
            host.background = decision.background_bytes or AS_FOUND // 2
            host.time_s += 1.0
        return decision

    def run(self, seconds: int) -> Decision:
        for _ in range(seconds):
            decision = self.tick()
        return decision


def test_why_says_whose_limit_holds_where_another_device_needs_less() -> None:
    host = Two()
    decision = host.run(60)
    tight, loose = decision.devices
    assert decision.reason == reasons.tightest("sda")
    assert loose.rule is Rule.COMING and tight.rule is not Rule.COMING
    note = reasons.held_to("sda", tight.target_bytes or 0)
    assert loose.reason.endswith(f"; {note}") and loose.steps[-1] == note
    assert "needs less" not in tight.reason


def test_nothing_is_learned_of_a_limit_that_another_device_keeps_away() -> None:
    host = Two()
    host.run(300)
    after = host.memory.devices["sdb"]
    assert after.drain_rate == KNOWN
    assert (after.law.limit_bytes, after.law.sought_rate) == (LOOSE, 0.0)
    assert (after.drain.price_s, after.drain.slower_s) == (0.0, 0.0)
    # Once the other's flood and syncs are over it has its limit, and that is judged.
    host.hosts[0].flood = host.hosts[0].syncing = False
    rules = [host.tick().devices[1].rule for _ in range(30)]
    assert Rule.COMING not in rules[-10:]


def test_who_has_a_limit_of_its_own_is_held_by_nobody_else() -> None:
    decision = Two(caps={"sda": Cap(16 * MB, in_force=True)}).tick()
    capped, other = decision.devices
    assert capped.rule is Rule.COMING and "needs less" not in capped.reason
    assert decision.reason == reasons.tightest("sdb") and "needs less" not in other.reason
