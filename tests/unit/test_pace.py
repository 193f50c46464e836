# SPDX-License-Identifier: GPL-2.0-or-later
"""Pacing against a small plant, and each of its guards."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest

import samples
from paced_plant import CACHE, DATABASE, FLOOD, Group, PacedPlant
from plant import DISK, HOST, RATIOS, latencies
from samples import flooded
from writebackd.control.law import Bounds
from writebackd.control.pace_law import follow_pace
from writebackd.control.pacing.domain import QUIET_S, WIDE_S, divide
from writebackd.control.pacing.exclusions import NEVER, objection, slices_of, unit_of
from writebackd.control.pacing.pace import MOST_SYNCERS, pace, remember_syncers
from writebackd.estimate.drain import Writes, update_drain
from writebackd.policy import load_policy
from writebackd.policy.keys import Protect
from writebackd.policy.schema import Policy
from writebackd.tuning import CREEP, EVERY_S, RISE, SPEND
from writebackd.types.core_memory import Memory, PaceMemory
from writebackd.types.decision import Decision, DeviceDecision, DeviceState, Mode, Rule
from writebackd.types.device_memory import DeviceMemory, Drain, LawMemory
from writebackd.types.levers import ForeignWrite, LeverKind, Setting
from writebackd.types.samples import (
    CgroupControl,
    CgroupSample,
    DeviceSample,
    IoClass,
    Sample,
    SyncSample,
    VmState,
)
from writebackd.types.storage import Device

NOW = 1000.0
WIDE = 400 << 20
USERS_OWN = "/user.slice/user-0.slice/user@0.service/app.slice/copy.scope"


def policy(**levers: Any) -> Policy:
    loaded = load_policy("default", root=Path("/nonexistent"))
    return replace(loaded, levers=replace(loaded.levers, **{"pace": "on", **levers}))


def plant(**changes: Any) -> PacedPlant:
    """A slow array whose limit is down and whose flood is on: pacing is what is left."""
    made = PacedPlant(changes.pop("policy", policy()), **changes)
    made.calm()
    return made


def state(decision: Decision) -> DeviceState:
    return decision.devices[0].state


def said(decision: Decision) -> str:
    return " ".join(decision.devices[0].steps)


# ---- the guards, one by one ------------------------------------------------


def group(path: str = FLOOD, **control: Any) -> CgroupSample:
    files = {"io_max": (), **control}
    return CgroupSample(7, path, "sda", 1 << 20, control=CgroupControl(**files))


def test_a_disk_that_was_pulled_out_while_open_is_no_objection() -> None:
    limits = "rbps=max wbps=1048576 riops=max wiops=max"
    assert not why(group(io_max=(("(unknown)", limits),)))
    assert "limits of its own" in why(group(io_max=(("8:0", limits),)))


def why(cgroup: CgroupSample, **changes: Any) -> str:
    given = {"ours": (), "syncers": {}, "protect": Protect(()), "now_s": NOW, **changes}
    return objection(cgroup, **given) or ""


def test_a_plain_service_may_be_paced() -> None:
    assert why(group()) == ""


@pytest.mark.parametrize(("path", "reason"), [
    ("/", "root"),
    ("/user.slice/user-1000.slice", "all processes of a user"),
    ("/user.slice/user-1000.slice/user@1000.service", "own systemd"),
    ("/user.slice/user-1000.slice/user@1000.service/app.slice/app-x.scope", "own systemd"),
    ("/kubepods.slice/kubepods-burstable.slice/cri-1.scope", "Kubernetes"),
    ("/kubepods/besteffort/pod1/2", "Kubernetes"),
    ("/system.slice/systemd-journald.service", "never"),
    ("/system.slice/ssh.service", "never"),
    ("/system.slice/sshd.service", "never"),
    ("/system.slice/system-sshd.slice/sshd@1.service", "never"),
    ("/system.slice/writebackd.service", "never"),
    ("/system.slice/docker-0123.scope", "never"),
])  # fmt: skip
def test_never_paced(path: str, reason: str) -> None:
    assert reason in why(group(path))


@pytest.mark.parametrize("path", [
    f"/docker/{'1f' * 32}",
    "/docker/web",
    f"/system.slice/{'1f' * 32}",
    f"/system.slice/nerdctl-{'1f' * 32}.scope",
    f"/default/{'1f' * 32}",
    "/lxc/101",
    "/lxc/101/ns",
    "/lxc/101/ns/system.slice/nginx.service",
    "/lxc.payload.c1",
    "/lxc.payload.c1/system.slice/nginx.service",
    "/system.slice/lxc@c1.service/lxc.payload.c1/init.scope",
    "/libpod_parent/libpod-12",
    "/machine.slice/machine-c1.scope/payload",
    "/machine.slice/c1.service",
    # Whatever made it.
    "/anything/system.slice/nginx.service",
    "/a/b/c/nginx.service",
    "/system.slice/runner.service/payload/system.slice/nginx.service",
])  # fmt: skip
def test_a_container_is_never_paced_whatever_it_calls_its_units(path: str) -> None:
    assert "container" in why(group(path))


@pytest.mark.parametrize(
    "path",
    ["/system.slice/system-backup.slice/backup@1.service", "/backup.service",
     "/system.slice/backup.service/worker", "/backup.slice/run-r12.scope",
     "/system.slice/docker-registry.service",
     # The copy of an admin, and cron's jobs, in a session of pam_systemd's or not.
     "/user.slice/user-1000.slice/session-3.scope", "/user.slice/user-0.slice/session-c2.scope",
     "/system.slice/cron.service", "/system.slice/crond.service",
     "/machine.slice/machine-qemu\\x2d1\\x2dvm.scope/libvirt/emulator", "/openrc.backup"],
)  # fmt: skip
def test_what_is_no_container_may_be_paced(path: str) -> None:
    assert why(group(path)) == ""


def test_where_systemd_runs_what_is_in_none_of_its_slices_is_somebody_else_s() -> None:
    assert "another program" in why(group("/garden/web", outside=True))
    host = plant(groups=[Group("/garden/web", outside=True)])
    assert not any(d.settings for d in host.run(60))


def test_the_daemon_itself_is_not_paced_wherever_it_runs() -> None:
    assert "this daemon" in why(replace(group("/system.slice/mine.service"), own=True))


def test_protected_units_are_not_paced() -> None:
    assert "[protect]" in why(group(), protect=Protect(("x", "back*.service")))
    assert "[protect]" in why(group(), protect=Protect(("backup",)))
    assert why(group(), protect=Protect(("front*.service",))) == ""
    # Also by what is below a unit.
    assert "[protect]" in why(group(f"{FLOOD}/worker"), protect=Protect(("backup.service",)))


@pytest.mark.parametrize(
    "path",
    ["/system.slice/system-backup.slice/backup@1.service",
     "/system.slice/system-backup.slice/system-backup-night.slice/x.service/worker",
     "/system.slice/system-backup.slice"],
)  # fmt: skip
def test_a_protected_slice_protects_all_units_below_it(path: str) -> None:
    for glob in ("system-backup.slice", "*-backup.slice"):
        assert f"'{glob}' in [protect]" in why(group(path), protect=Protect((glob,)))
    assert why(group(path), protect=Protect(("system-web.slice", "backup.slice"))) == ""


def test_slices_are_the_host_s_and_have_to_be_meant() -> None:
    # A container may call its slices what it likes.
    inner = "/machine.slice/web.service/system-backup.slice/x.service"
    assert slices_of(inner) == ("machine.slice",)
    assert "container" in why(group(inner), protect=Protect(("system-backup.slice",)))
    # Everything whose name begins with s, but not all that is in system.slice.
    assert why(group(), protect=Protect(("s*",))) == ""
    assert "[protect]" in why(group("/system.slice/sync.service"), protect=Protect(("s*",)))


def test_what_systemd_has_handed_over_is_not_paced() -> None:
    assert "Delegate" in why(group(delegated=True))


def test_limits_of_somebody_else_are_respected() -> None:
    line = "rbps=max wbps=1048576 riops=max wiops=max"
    assert "of its own" in why(group(io_max=(("8:0", line),)))
    assert why(group(io_max=(("8:0", line),)), ours=("8:0",)) == ""
    # Ours on one disk, somebody else's on another, and his reads on ours.
    assert "of its own" in why(group(io_max=(("8:0", line), ("8:16", line))), ours=("8:0",))
    reads = "rbps=1048576 wbps=1048576 riops=max wiops=max"
    assert "of its own" in why(group(io_max=(("8:0", reads),)), ours=("8:0",))


def test_without_an_io_controller_there_is_nothing_to_set() -> None:
    assert "io controller is off" in why(group(io_max=None))
    assert why(group(io_max=(), off=True)) == ""  # systemd turns it on


def test_what_is_not_known_is_not_paced() -> None:
    assert why(replace(group(), path=None))
    assert why(replace(group(), control=None))


def test_who_synced_in_the_last_minutes_is_not_paced() -> None:
    assert "syncs itself" in why(group(), syncers={7: (None, NOW - 299)})
    assert why(group(), syncers={7: (None, NOW - 301)}) == ""
    assert why(group(), syncers={8: (DATABASE, NOW)}) == ""
    # A limit holds everything below it.
    assert "syncs itself" in why(group(), syncers={8: (f"{FLOOD}/worker", NOW)})
    assert why(group(), syncers={8: (f"{FLOOD}-2", NOW)}) == ""


def test_of_very_many_that_sync_the_last_are_remembered() -> None:
    """Any user may make cgroups by the hundred in each tick, with names of 4 KB."""
    ticks, each = 3 * MOST_SYNCERS // 512, 512
    memory, path = Memory(), "/user.slice/user-1000.slice/user@1000.service/x"
    for tick in range(ticks):
        synced = [replace(group(f"{path}{tick}/{n}"), cgroup_id=1000 + tick * each + n, syncs=1)
                  for n in range(each)]
        if tick % 4 == 0:
            synced.append(replace(group(DATABASE), cgroup_id=7, syncs=1))
        seen = replace(samples.idle().sample, time_s=NOW + tick, cgroups=tuple(synced))
        memory = remember_syncers(memory, seen)
        assert memory.syncers[7][0] == DATABASE
        assert len(memory.syncers) <= MOST_SYNCERS
    assert len(memory.syncers) == MOST_SYNCERS
    assert 1000 + ticks * each - 1 in memory.syncers and 1000 not in memory.syncers


def test_unit_of_a_path() -> None:
    assert unit_of("/system.slice/system-getty.slice/getty@tty1.service") == "getty@tty1.service"
    assert unit_of("/system.slice/a.service/b.service/c") == "a.service"
    assert unit_of("/writebackd-lab/flood") == "flood"
    assert unit_of("/system.slice/_io.service") == "io.service"  # as systemd escapes it
    assert "ssh*.service" in NEVER


# ---- when it begins ----------------------------------------------------------


def test_a_flood_that_no_limit_keeps_off_is_held_below_the_drain_rate() -> None:
    host = plant()
    decisions = host.run(60)
    paced = [d for d in decisions if d.settings]
    assert paced, said(decisions[-1])
    (setting,) = paced[-1].settings
    assert setting == Setting(LeverKind.PACE, FLOOD, DISK.devno, setting.value)
    asked = [each.settings[0].value for each in paced[-40:]]
    assert 0.7 * host.drain_rate < sum(asked) / 40 < 1.1 * host.drain_rate
    assert max(asked) < 1.5 * host.drain_rate
    assert state(paced[-1]) is DeviceState.PACE
    assert "backup.service held at" in paced[-1].devices[0].reason
    assert host.memory.devices[DISK.name].drain_rate == pytest.approx(host.drain_rate, rel=0.1)
    assert host.fill < 0.9 * CACHE


def test_off_by_default() -> None:
    loaded = load_policy("default", root=Path("/nonexistent"))
    assert loaded.levers.pace == "off"
    assert not any(d.settings for d in plant(policy=loaded).run(60))


def test_it_begins_as_soon_as_the_drain_rate_is_known() -> None:
    host = plant()
    decisions = host.run(60)
    assert next(tick for tick, decision in enumerate(decisions) if decision.settings) < 12


def test_without_syncs_nobody_is_paced() -> None:
    host = plant(syncing=False)
    assert not any(d.settings for d in host.run(60))


def test_a_flood_that_does_not_hurt_is_not_paced() -> None:
    host = plant(groups=[Group(demand=30e6)])
    assert not any(d.settings for d in host.run(60))


@pytest.mark.parametrize(
    "changes",
    [{"delegated": True}, {"controller": False}, {"path": "/"}, {"syncs": 1},
     {"foreign": (("8:16", "rbps=max wbps=max riops=max wiops=100"),)}],
    ids=str,
)  # fmt: skip
def test_a_flood_that_may_not_be_paced_is_not_and_the_reason_is_told(changes: Any) -> None:
    host = plant(groups=[Group(**changes)])
    decisions = host.run(60)
    assert not any(d.settings for d in decisions)
    assert "not paced: /" in said(decisions[-1])


def test_a_syncer_is_remembered_for_minutes() -> None:
    host = plant(groups=[Group(syncs=1)])
    host.run(1)
    host.groups[0].syncs = 0
    assert not any(d.settings for d in host.run(250))
    assert any(d.settings for d in host.run(100))


def test_a_paced_cgroup_that_syncs_is_let_go_at_once() -> None:
    host = plant()
    host.run(60)
    assert host.paced
    host.groups[0].syncs = 1
    assert not host.tick().settings


def test_a_flood_of_others_that_cannot_be_paced_needs_the_limit() -> None:
    others = Group(USERS_OWN, 1e9, cgroup_id=8)
    host = plant(groups=[Group(), others])
    assert not any(d.settings for d in host.run(60))
    host = plant()
    host.run(60)
    host.groups.append(others)
    host.run(10)
    assert not host.paced
    assert "cannot be paced" in said(host.tick())


def test_hands_off_after_a_yield_and_under_a_pin() -> None:
    for change in ({"yielded": "tuned set dirty_bytes"}, {"pin_bytes": 1 << 20}):
        host = plant()
        host.run(60)
        assert host.paced
        host.memory = replace(host.memory, **change)
        assert not host.tick().settings


def test_a_pace_that_somebody_else_changed_is_his() -> None:
    host = plant()
    host.run(60)
    host.foreign = (ForeignWrite(f"pace {FLOOD} {DISK.devno}", "1000"),)
    decision = host.tick()
    assert not decision.settings
    assert "another process" in said(decision)
    host.foreign = ()
    assert not any(d.settings for d in host.run(60))
    # The limit is still ours.
    assert decision.limit_bytes is not None


# ---- the limit that goes with it --------------------------------------------


def test_the_limit_is_what_the_paced_write_in_a_second() -> None:
    host = plant()
    host.run(60)
    for decision in host.run(60):
        total = sum(setting.value for setting in decision.settings)
        # The ramp keeps a goal that moved by less than a tenth.
        assert decision.limit_bytes == pytest.approx(WIDE_S * total, rel=0.1)


def test_drain_time_and_ceiling_bound_the_limit_as_well() -> None:
    host = plant()
    host.policy = replace(host.policy, limits=replace(host.policy.limits, drain_time_s=0.25))
    host.run(60)
    assert (host.tick().limit_bytes or 0) <= 1.1 * 0.25 * host.rate
    limits = replace(host.policy.limits, ceiling_bytes=4 << 20)
    host.policy = replace(host.policy, limits=limits)
    host.run(20)
    assert host.tick().limit_bytes == 4 << 20


def test_the_limit_stays_tight_until_the_kernel_shows_the_pace() -> None:
    host = plant(groups=[Group(refuses=True)])
    decisions = host.run(60)
    asked = [d for d in decisions if d.settings]
    assert 0 < len(asked) <= 10
    assert all((d.limit_bytes or 0) <= 2 << 20 for d in asked[1:])
    assert "could not be set" in said(decisions[-1])


TICKS_S = pytest.mark.parametrize("dt_s", [0.1, 0.5, 1.0])


@TICKS_S
def test_a_child_has_its_time_to_set_the_pace_however_short_the_ticks(dt_s: float) -> None:
    """systemd needs seconds, and the cache is full meanwhile: that is the flood as it was."""
    host = plant(dt_s=dt_s, child_s=5.5)
    while not (decision := host.tick()).settings:
        assert host.time_s < 1100.0
    (first,), asked_s = decision.settings, host.time_s
    while not host.paced:
        assert host.tick().settings == (first,)
    assert host.time_s - asked_s >= 5.0
    assert all(decision.settings for decision in host.run_s(10.0))


def test_who_joins_before_the_pace_is_in_force_has_his_part() -> None:
    host = plant(child_s=5.5)
    while not host.tick().settings:
        pass
    host.groups.append(Group("/system.slice/rsync.service", cgroup_id=9))
    assert {len(decision.settings) for decision in host.run(4)} == {2}


@TICKS_S
def test_a_pace_that_is_never_set_is_given_up_in_seconds(dt_s: float) -> None:
    host = plant(dt_s=dt_s, groups=[Group(refuses=True)])
    asked = sum(dt_s for decision in host.run_s(60.0) if decision.settings)
    assert 7.0 <= asked <= 9.0


@TICKS_S
def test_strays_have_to_last_before_it_lets_go(dt_s: float) -> None:
    host = plant(dt_s=dt_s)
    host.run_s(60.0)
    host.groups.append(Group(USERS_OWN, 1e9, cgroup_id=8))
    kept = 0.0
    while host.tick().settings:
        kept += dt_s
    assert 2.9 <= kept + dt_s <= 4.1


def test_observing_asks_for_it_and_counts_no_failure() -> None:
    host = plant()
    while not host.tick().settings:
        pass
    host.memory = replace(host.memory, mode=Mode.OBSERVE)
    host.groups[0].refuses, host.groups[0].pace = True, 0
    assert all(d.settings for d in host.run(20))


def test_a_cgroup_without_io_controller_is_held_by_what_it_dirties() -> None:
    host = plant(groups=[Group("/user.slice/user-0.slice/session-4.scope", off=True)])
    host.run(60)
    assert list(host.paced) == ["/user.slice/user-0.slice/session-4.scope"]
    assert host.fill < CACHE


# ---- the rate ------------------------------------------------------------------


def rates(host: PacedPlant, seconds: float) -> List[float]:
    found = []
    for _ in range(round(seconds / host.dt_s)):
        host.tick()
        found.append(host.rate)
    return found


def mean(values: List[float]) -> float:
    return sum(values) / len(values)


def test_it_begins_at_the_least_that_the_paced_keep() -> None:
    host = plant(policy=policy(pace_share=0.7))
    while not (decision := host.tick()).settings:
        assert host.time_s < 1100.0
    (setting,) = decision.settings
    known = host.memory.devices[DISK.name].drain_rate or 0.0
    assert setting.value == pytest.approx(0.7 * known, rel=0.01)


@pytest.mark.parametrize("dt_s", [0.5, 1.0])
def test_it_follows_a_drain_rate_that_falls_and_the_cache_has_room_again(dt_s: float) -> None:
    host = plant(drain_rate=60e6, dt_s=dt_s)
    host.run_s(80.0)
    assert host.rate > 48e6
    host.drain_rate = 40e6
    while host.fill < CACHE:
        host.tick()
    host.run_s(30.0)
    assert 0.75 * 40e6 < mean(rates(host, 150.0)) < 1.05 * 40e6
    assert host.memory.devices[DISK.name].drain_rate == pytest.approx(40e6, rel=0.15)


def test_it_follows_a_drain_rate_that_rises() -> None:
    host = plant(drain_rate=40e6)
    host.run(60)
    host.drain_rate = 60e6
    assert mean(rates(host, 400.0)[-60:]) > 50e6


def test_the_paced_keep_their_share_whatever_the_cache_says() -> None:
    # Syncs alone fill this cache: no pace could keep it from being full.
    host = plant(policy=policy(pace_share=0.85), sync_cost=60e3)
    found = [rate for rate in rates(host, 200.0) if rate]
    assert min(found) >= 0.84 * (host.memory.devices[DISK.name].drain_rate or 0.0)


def test_where_syncs_cost_more_they_get_more_and_no_more_than_they_may() -> None:
    costs = []
    for sync_cost in (500.0, 3e3, 12e3):
        host = plant(policy=policy(pace_share=0.6), sync_cost=sync_cost)
        host.run(60)
        costs.append(1.0 - mean(rates(host, 100.0)) / host.drain_rate)
    assert costs[0] < costs[1] < costs[2] < 0.3


@TICKS_S
def test_a_step_has_its_time_to_show_what_it_does(dt_s: float) -> None:
    host = plant(dt_s=dt_s)
    found = rates(host, 120.0)
    moved = [n for n, (a, b) in enumerate(zip(found, found[1:])) if 0 < b != a > 0]
    assert len(moved) >= 3
    assert min(b - a for a, b in zip(moved, moved[1:])) * dt_s >= EVERY_S - 1e-6


def test_a_cut_is_made_however_small() -> None:
    """Between the share and a step above it the cache would stay full."""
    host = plant(policy=policy(pace_share=0.85), sync_cost=60e3)
    host.run(60)
    disk = host.memory.devices[DISK.name]
    above = 0.88 * (disk.drain_rate or 0.0)
    known = host.memory.paces[DISK.devno]
    known = replace(known, rate=above, rates={FLOOD: int(above)}, step_s=host.time_s - EVERY_S)
    # Nor do they cost more than they may.
    disk = replace(disk, drain=replace(disk.drain, lost_s=0.0, syncs=1e5))
    host.memory = replace(host.memory, paces={DISK.devno: known}, devices={DISK.name: disk})
    host.run(1)
    least = max(0.85, 1.0 - SPEND[host.policy.objective.prefer])
    assert host.rate == pytest.approx(least / 0.88 * above, rel=1e-3)


class Unthrottled(PacedPlant):
    """Nothing but the rate tells that the flood is held."""

    def _sample(self) -> Sample:
        sample = super()._sample()
        if not self.paced:
            return sample
        return replace(sample, tasks=(), vm=replace(sample.vm, dirty_bytes=self.limit * 2 // 5))


def test_a_flood_that_writes_at_its_pace_is_held_by_it() -> None:
    host = Unthrottled(policy())
    host.calm()
    host.run(60)
    assert mean(rates(host, 60.0)) > 0.9 * host.drain_rate


def test_it_is_raised_only_while_the_flood_uses_it() -> None:
    host = plant()
    host.run(60)
    host.groups[0].demand = 20e6
    found = rates(host, 100.0)
    assert max(found) <= found[0] * 1.1


def test_a_sync_that_the_tick_itself_holds_up_is_not_late() -> None:
    # As on a single CPU: whenever the agent looks, one is 25 ms old.
    host = plant(oldest_s=0.025)
    host.run(60)
    assert mean(rates(host, 60.0)) > 0.93 * host.drain_rate


def test_two_floods_share_and_who_uses_less_leaves_it_to_the_other() -> None:
    slow = Group("/system.slice/rsync.service", demand=12e6, cgroup_id=9)
    host = plant(groups=[Group(), slow])
    host.run(80)
    assert set(host.paced) == {FLOOD, slow.path}
    host.run(80)
    assert host.paced[FLOOD] > 2 * host.paced[slow.path]
    assert host.paced[slow.path] >= 10e6
    # Of several swings, or it is chance how many of them are seen.
    full = 0
    for _ in range(240):
        host.tick()
        full += host.fill >= CACHE
    assert full <= 24


def test_the_parts_are_the_rate_together() -> None:
    memory = PaceMemory(rates={"/a": 50, "/b": 50}, used={"/a": 10e6, "/b": 40e6})
    memory = replace(memory, rates={"/a": int(50e6), "/b": int(50e6)})
    after = divide(memory, 90e6, ["/a", "/b", "/c"])
    assert sum(after.rates.values()) == pytest.approx(90e6, rel=1e-6)
    assert after.rates["/a"] < after.rates["/b"] <= after.rates["/c"]


def many(count: int) -> List[Group]:
    return [Group(f"/system.slice/job@{n}.service", 1e9, cgroup_id=100 + n) for n in range(count)]


def test_a_flood_of_many_equal_writers_is_held() -> None:
    host = plant(groups=many(20))
    host.run(60)
    # Those that are left write what they like, but that is no flood any more.
    assert len(host.paced) >= 18
    assert host.rate <= 1.1 * host.drain_rate and max(host.paced.values()) < 5e6
    decision = host.tick()
    assert "more held at" in decision.devices[0].reason and len(decision.devices[0].reason) < 250
    assert host.fill < CACHE


def test_a_flood_of_more_than_can_be_held_is_not_and_that_is_told() -> None:
    for count, told in (
        (58, "53 cgroups flood: the smallest pace of 1.0M/s for each"),
        (64, "less than 1.0M/s each"),
    ):
        host = plant(groups=many(count), drain_rate=61e6)
        decisions = host.run(60)
        assert not any(decision.settings for decision in decisions)
        assert told in said(decisions[-1])


def test_when_too_many_join_it_is_let_go() -> None:
    host = plant()
    host.run(60)
    assert host.paced
    host.groups += many(64)
    host.run(5)
    assert not host.paced and "the smallest pace" in said(host.tick())


def test_small_writers_beside_a_flood_are_left_alone() -> None:
    small = [replace(each, demand=2e6) for each in many(2)]
    host = plant(groups=[Group(), *small])
    host.run(60)
    assert set(host.paced) == {FLOOD}


# ---- does it help? ----------------------------------------------------------------


def tries(host: PacedPlant, ticks: int) -> int:
    """How often it begins."""
    count, last = 0, bool(host.paced)
    for _ in range(ticks):
        settings = bool(host.tick().settings)
        count, last = count + (settings and not last), settings
    return count


def test_it_lets_go_where_commits_wait_for_the_paced_and_tries_again_in_ten_minutes() -> None:
    host = plant(entangled_s=0.05)
    assert tries(host, 100) == 1 and not host.paced
    assert "syncs wait 48 ms for pages of backup.service" in said(host.tick())
    assert tries(host, 400) == 0
    assert tries(host, 200) == 1


class Stalled(PacedPlant):
    """Requests of a class, the flusher's writes, take as long as `write_s`."""

    kind, write_s = IoClass.BACKGROUND_WRITE, 0.0

    def _sample(self) -> Sample:
        sample = super()._sample()
        (seen,) = sample.devices
        flushed = replace(
            (seen.classes or {})[IoClass.BACKGROUND_WRITE], latency=latencies(self.write_s, 9)
        )
        classes = {**(seen.classes or {}), self.kind: flushed}
        return replace(sample, devices=(replace(seen, classes=classes),))


@pytest.mark.parametrize("write_s,held", [(0.2, False), (0.5, True)])
@pytest.mark.parametrize("kind", [IoClass.BACKGROUND_WRITE, IoClass.FLUSH])
def test_a_sync_that_waits_as_long_as_flusher_or_flush_waits_for_the_disk(
    kind: IoClass, write_s: float, held: bool
) -> None:
    host = Stalled(policy=policy())
    host.kind = kind
    host.calm()
    host.run_s(30.0)
    assert host.paced
    host.write_s, host.oldest_s = write_s, 0.7
    host.run(2)
    assert bool(host.paced) is held


def test_nobody_is_paced_five_seconds_after_the_last_commit() -> None:
    host = plant()
    host.run_s(60.0)
    host.syncing = False
    decisions = host.run_s(10.0)
    held = [bool(decision.settings) for decision in decisions]
    assert held == [True] * 4 + [False] * 6
    assert "pace released: nobody commits" in said(decisions[4])


def test_between_rare_commits_the_pace_holds() -> None:
    host = plant()
    host.run_s(60.0)
    for _ in range(5):  # one every five seconds
        for syncing in (False, False, False, False, True):
            host.syncing = syncing
            assert host.tick().settings


def test_a_flood_that_comes_back_is_held_at_once() -> None:
    host = plant()
    host.run(60)
    host.flooding = False
    host.run(int(QUIET_S) + 5)
    assert not host.paced
    host.flooding = True
    assert any(decision.settings for decision in host.run(3))


def test_the_seconds_in_which_the_cache_fills_are_not_the_limit_alone(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a second flood the drain rate is known, and syncs are fast until the cache is full."""
    monkeypatch.setattr("paced_plant.CACHE", 2 << 30)
    host = plant(groups=[Group(demand=150e6)])
    host.run(120)
    assert host.paced
    host.flooding = False
    host.run(120)
    host.flooding = True
    host.run(120)
    assert host.paced


def test_it_ends_with_the_policy() -> None:
    host = plant()
    host.run(60)
    assert host.paced
    host.policy = policy(pace="off")
    assert not host.tick().settings
    assert not host.memory.paces


# ==== the limit under a pace ==========================================================


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
    for taken in (0.5 * R, 0.75 * R, 0.9 * R):
        assert feed(KNOWN, 60, taken, taken, full=True).drain_rate == R


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


# ==== many units ======================================================================


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
