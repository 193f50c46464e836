# SPDX-License-Identifier: GPL-2.0-or-later
"""What pacing costs on a host with many disks and many cgroups."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict

import pytest

from plant import HOST, RATIOS
from samples import flooded
from writebackd.control.pacing.pace import pace
from writebackd.policy import load_policy
from writebackd.types.core_memory import Memory, PaceMemory
from writebackd.types.decision import DeviceDecision, DeviceState
from writebackd.types.device_memory import DeviceMemory
from writebackd.types.samples import CgroupControl, CgroupSample, DeviceSample, Sample, VmState
from writebackd.types.storage import Device

LINE = "rbps=max wbps=1048576 riops=max wiops=max"


def calls_of(disks: int, shared: bool, held: bool) -> int:
    """Function calls of one tick of pacing: of `disks` flooded disks, each with its flood.

    `shared`: they are volumes over the same two leaf disks.
    """
    policy = load_policy("default", root=Path("/nonexistent"))
    policy = replace(policy, levers=replace(policy.levers, pace="on"))
    names = [f"d{n}" for n in range(disks)]
    devnos = {name: f"8:{n}" for n, name in enumerate(names)}
    leaves = {name: ("9:0", "9:1") if shared else (devnos[name],) for name in names}
    paths = {name: f"/system.slice/{name}.service" for name in names[:32]}
    sample = Sample(
        time_s=1000.0, wall_s=1000.0, dt_s=1.0, host=HOST,
        vm=VmState(RATIOS, 1 << 30, 0, 1 << 30, 1 << 29),
        devices=tuple(
            DeviceSample(Device(name, devnos[name], devnos[name], (), leaves[name]))
            for name in names
        ),
        cgroups=tuple(
            CgroupSample(n, path, name, 1 << 26, control=CgroupControl(
                io_max=((devnos[name], LINE),), written=((devnos[name], 1 << 26),)))
            for n, (name, path) in enumerate(paths.items())
        ),
    )  # fmt: skip
    estimates = {name: flooded(name, 0.1, 0.2, 100.0, 0.5) for name in names}
    if shared and not held:
        estimates = {name: replace(each, flooded=False) for name, each in estimates.items()}
    wants = [DeviceDecision(name, DeviceState.GUARD, 1 << 20, "", demand=True) for name in names]
    paces: Dict[str, PaceMemory] = {}
    if held:
        paces = {
            devnos[name]: PaceMemory(rate=2e6, rates={path: 2000000}, wrote_s=1000.0)
            for name, path in paths.items()
        }
    memory = Memory(devices={name: DeviceMemory() for name in names}, paces=paces)
    calls = 0

    def count(frame: Any, event: str, arg: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        paced = pace(policy, memory, sample, estimates, wants, dict(memory.devices))
    finally:
        sys.setprofile(None)
    assert bool(paced.settings) is held
    return calls


@pytest.mark.parametrize(
    ("shared", "held"), [(False, False), (False, True), (True, False)],
    ids=["disks", "paced disks", "volumes of one array"],
)  # fmt: skip
def test_a_tick_costs_in_proportion_to_the_disks(shared: bool, held: bool) -> None:
    few, many = calls_of(64, shared, held), calls_of(512, shared, held)
    assert many < 1.3 * 8 * few
