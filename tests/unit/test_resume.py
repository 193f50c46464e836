# SPDX-License-Identifier: GPL-2.0-or-later
"""After a restart paces and caps stay, and the law goes on from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lever_cases import PAIR, UNIT, bdi_settings, holding, pace, started, world
from limit_cases import MIB
from paced_plant import CACHE, Group, PacedPlant
from plant import DISK
from writebackd.actuate.executor import ADOPTED_HOLD_S, taken_over
from writebackd.control.device_limits import plan_device_limits
from writebackd.control.resume import resumed
from writebackd.policy import load_policy
from writebackd.types.core_memory import Cap, Memory
from writebackd.types.decision import DeviceDecision, DeviceState, Mode
from writebackd.types.levers import LeverKind, Setting
from writebackd.types.samples import DeviceSample, Sample

PACE, CAP = pace(20_000_000), bdi_settings(8 * MIB, 4 * MIB)


def restarted(host: PacedPlant, pace: bool = True) -> PacedPlant:
    """The daemon's next run on the same host, which has learned nothing."""
    settings = [
        Setting(LeverKind.PACE, path, DISK.devno, rate) for path, rate in host.paced.items()
    ]
    memory = Memory(
        limit_bytes=host.limit, goal_bytes=host.limit,
        hold_until_s=host.time_s + ADOPTED_HOLD_S,
    )  # fmt: skip
    host.memory = resumed(memory, settings if pace else (), [DISK], host.time_s)
    return host


def running(**changes: Any) -> PacedPlant:
    loaded = load_policy("default", root=Path("/nonexistent"))
    host = PacedPlant(replace(loaded, levers=replace(loaded.levers, pace="on")), **changes)
    host.calm()
    host.run(60)
    assert host.paced
    return host


@pytest.mark.parametrize("dt_s", [0.5, 1.0])
def test_a_paced_flood_stays_paced_at_its_rate_under_the_wide_limit(dt_s: float) -> None:
    host = running()
    host.dt_s = dt_s
    rate, limit = host.rate, host.limit
    restarted(host)
    first = host.tick()
    assert [setting.value for setting in first.settings] == [rate]
    decisions, full = [], []
    for _ in range(int(60.0 / dt_s)):
        decisions.append(host.tick())
        full.append(host.fill >= CACHE)
    assert all(decision.settings for decision in decisions)
    assert min(sum(s.value for s in d.settings) for d in decisions) > 0.8 * rate
    assert min(d.limit_bytes or 0 for d in (first, *decisions)) > 0.8 * limit
    assert sum(full) <= len(full) / 8  # a pace that creeps up fills it now and then


def test_two_paced_floods_keep_their_parts() -> None:
    host = running(groups=[Group(), Group("/system.slice/rsync.service", 12e6, cgroup_id=9)])
    parts = host.paced
    restarted(host)
    assert len(parts) == 2 and host.tick() and host.paced == parts


def test_without_sync_demand_it_is_let_go_when_the_time_is_over() -> None:
    host = running()
    host.syncing = False
    restarted(host)
    assert all(d.settings for d in host.run(int(ADOPTED_HOLD_S)))
    assert not host.tick().settings


def test_who_syncs_is_let_go_at_once_after_a_restart_as_well() -> None:
    host = restarted(running())
    host.groups[0].syncs = 1
    assert not host.tick().settings


def test_a_policy_without_pacing_lets_go() -> None:
    host = restarted(running())
    host.policy = replace(host.policy, levers=replace(host.policy.levers, pace="off"))
    assert not host.tick().settings


def test_a_full_cache_before_the_drain_rate_is_known_is_no_reason_to_stop() -> None:
    host = running()
    host.drain_rate /= 2
    while host.fill < CACHE:
        host.tick()
    restarted(host)
    assert all(d.settings for d in host.run(10))
    assert host.rate > 0.3 * host.drain_rate


def test_what_stands_in_the_kernel_becomes_the_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    files, fresh = world(monkeypatch, tmp_path, systemd=True), Memory()
    holding(files, PACE, *CAP, pair=PAIR)
    following = started(files)
    memory = taken_over(fresh, following, [DISK], 100.0)
    assert memory.limit_bytes == PAIR[0] and memory.hold_until_s == 100.0 + ADOPTED_HOLD_S
    assert memory.paces["8:0"].rates == {UNIT: 20_000_000}
    assert memory.paces["8:0"].rate == 20e6
    assert memory.caps[DISK.name].in_force
    assert memory.caps[DISK.name].bytes == pytest.approx(8 * MIB, rel=1e-3)
    # What the law then asks for is what stands: nothing is written.
    cap = memory.caps[DISK.name].bytes
    settings = (PACE, CAP[0], replace(CAP[1], value=cap), replace(CAP[2], value=cap // 2))
    count = len(files.writes), len(files.commands)
    assert following.apply_settings(settings) == () == following.apply_settings(settings)
    assert (len(files.writes), len(files.commands)) == count
    # Watching only, everything goes home; and where nothing was left there is nothing to keep.
    watching = replace(fresh, mode=Mode.OBSERVE)
    assert taken_over(watching, started(files), [DISK], 1.0) == watching
    assert following.finish() and taken_over(fresh, started(files), [DISK], 1.0) == fresh


def test_a_cap_stays_until_it_is_known_who_syncs_and_who_floods() -> None:
    loaded = load_policy("default", root=Path("/nonexistent"))
    policy = replace(loaded, levers=replace(loaded.levers, per_device=True))
    want = DeviceDecision(DISK.name, DeviceState.IDLE, None, "")
    host = PacedPlant(policy)
    sample: Sample = replace(host._sample(), devices=(DeviceSample(DISK),), cgroups=())
    memory = resumed(
        Memory(hold_until_s=sample.time_s + 1), CAP, [DISK], sample.time_s
    )
    held = plan_device_limits(policy, memory, sample, [want])
    assert held.memory.caps == {DISK.name: Cap(8 * MIB, in_force=True)}
    assert set(held.settings) == set(CAP) and held.shared == []
    later = replace(sample, time_s=sample.time_s + 2)
    assert plan_device_limits(policy, memory, later, [want]).settings == ()


def test_a_pace_that_does_not_help_is_found_out_after_a_restart() -> None:
    """Syncs wait although the disk answers at once, so they wait for pages of the paced."""
    host = running()
    host.entangled_s = 0.2  # every sync waits for what is paced
    restarted(host)
    held = [bool(decision.settings) for decision in host.run(120)]
    assert held[0] and not any(held[3:])
