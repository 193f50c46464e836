# SPDX-License-Identifier: GPL-2.0-or-later
"""`pace = auto`: nobody who must not be paced ever is, and it begins only where the limit fails."""

from __future__ import annotations

import contextlib
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Dict, NamedTuple, Optional, Sequence, Set, Tuple

import pytest

from paced_plant import Group
from test_pace import plant, policy, said
from writebackd.control.pacing.domain import PaceTick
from writebackd.kernel import unit_relations
from writebackd.kernel.child_process import Ended, Work
from writebackd.kernel.unit_relations import UnitRelations
from writebackd.types.decision import Basis, DeviceDecision, DeviceState, Mode

NOBODY: Tuple[str, ...] = ()
LINE = "rbps=1048576 wbps=max riops=max wiops=max"
SESSION = "/user.slice/user-1000.slice/session-3.scope"
TIMER, TRANSIENT = "/system.slice/backup.service", "/system.slice/run-r1a2b.scope"
ORDERED = ("postgresql.service",)


class Case(NamedTuple):
    """A unit of a host, and whether `auto` may pace it."""

    group: Group
    fair: bool


def fair(path: str, related: Optional[Tuple[str, ...]] = NOBODY, **facts: object) -> Case:
    return Case(Group(path, related=related, **facts), True)  # type: ignore[arg-type]


def never(path: str, related: Optional[Tuple[str, ...]] = NOBODY, **facts: object) -> Case:
    return Case(Group(path, related=related, **facts), False)  # type: ignore[arg-type]


# Each of these floods a database's disk: hosts as they are set up, by what runs there.
LAYOUTS: Dict[str, Tuple[Case, ...]] = {
    "Debian with PostgreSQL": (
        fair(SESSION, None), fair(TIMER),
        never("/system.slice/system-postgresql.slice/postgresql@15-main.service", syncs=3),
        never("/system.slice/pgbackrest.service", ORDERED)),
    "RHEL with MariaDB": (
        fair("/system.slice/crond.service"), never("/system.slice/mariadb.service", syncs=9),
        never("/system.slice/sshd.service"), never("/system.slice/rsyslog.service")),
    "Docker": (
        never(f"/system.slice/docker-{'0f' * 32}.scope"),
        never("/system.slice/docker.service", delegated=True), fair(TRANSIENT)),
    "Kubernetes control plane": (
        never("/kubepods.slice/kubepods-burstable.slice/kubepods-pod1.slice/cri-1.scope"),
        never("/system.slice/containerd.service", delegated=True), fair(TIMER)),
    "Proxmox": (
        never("/qemu.slice/100.scope"), never("/lxc/101/ns/system.slice/x.service"),
        never("/system.slice/pve-cluster.service", syncs=1), fair(SESSION, None)),
    "libvirt": (
        never("/machine.slice/machine-qemu\\x2d1\\x2dvm.scope/libvirt/emulator"),
        never("/machine.slice/machine-c1.scope"), fair(TRANSIENT)),
    "Podman of users": (
        never("/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-1.scope"),
        never("/user.slice/user-1000.slice/user@1000.service/app.slice/x.service"),
        fair(SESSION, None)),
    "hosting with slices of its own": (
        never("/customer.slice/customer-7.slice/web.service"), never("/user.slice/user-7.slice"),
        never("/system.slice/limited.service", foreign=(("8:16", LINE),)), fair(TIMER)),
    "mail server": (
        never("/system.slice/postfix.service", syncs=2),
        never("/system.slice/opendkim.service", ("postgresql.service", "x.target")),
        never("/system.slice/dovecot.service", None), fair("/system.slice/rsync.service")),
    "without systemd": (
        never("/"), never("/openrc.backup", None), never("/garden/web", outside=True)),
}  # fmt: skip


def ever_paced(cases: Tuple[Case, ...], seconds: float, **changes: object) -> Set[str]:
    groups = [replace(case.group, cgroup_id=20 + n) for n, case in enumerate(cases)]
    host = plant(policy=policy(pace="auto"), groups=groups, **changes)
    return {s.target for decision in host.run_s(seconds) for s in decision.settings}


@pytest.mark.parametrize("name", LAYOUTS)
def test_on_a_real_layout_nobody_is_paced_who_must_not_be(name: str) -> None:
    cases = LAYOUTS[name]
    assert not ever_paced(cases, 20.0)
    for case in cases:  # each alone: all of the flood
        assert ever_paced((case,), 20.0) == ({case.group.path} if case.fair else set()), case


def test_on_200_drawn_hosts_nobody_is_paced_who_must_not_be() -> None:
    chance = random.Random(43)
    known = [case for cases in LAYOUTS.values() for case in cases]
    paced = 0
    for _ in range(200):
        some = chance.sample(known, chance.choice((1, 1, 2, 3, 4)))
        drawn = {case.group.path: case for case in some}
        cases = tuple(
            Case(replace(case.group, demand=chance.choice((3e7, 1e9, 1e9))), case.fair)
            for case in drawn.values()
        )
        found = ever_paced(cases, 8.0, drain_rate=chance.uniform(2e7, 1.5e8))
        assert found <= {case.group.path for case in cases if case.fair}, cases
        paced += bool(found)
    assert paced >= 20


def test_it_waits_for_a_commit_above_the_objective_or_a_limit_at_its_floor() -> None:
    loose = policy(pace="auto")
    loose = replace(loose, objective=replace(loose.objective, fsync_p99_s=5.0))
    for asked, drain_rate, paced in (
        (loose, 250e6, False), (loose, 40e6, True),  # 16 ms of it is the floor
        (policy(pace="auto"), 250e6, True),
    ):
        host = plant(policy=asked, drain_rate=drain_rate, groups=[Group(related=NOBODY)])
        assert any(decision.settings for decision in host.run_s(20.0)) is paced


@pytest.mark.parametrize("other_s, missed", [(0.9, False), (1.1, True)])
def test_each_volume_of_a_disk_has_its_own_objective(other_s: float, missed: bool) -> None:
    tick, estimates = object.__new__(PaceTick), {}
    wants = []
    for name, objective_s, wait_s in (("sda1", 0.05, 0.01), ("sda2", 1.0, other_s)):
        wants.append(DeviceDecision(name, DeviceState.SQUEEZE, None, "", basis=Basis(objective_s)))
        estimates[name] = SimpleNamespace(commit_p99_s=wait_s, oldest_commit_s=0.0)
    vars(tick).update(wants=wants, _all_estimates=estimates)
    assert tick._missed() is missed


@pytest.mark.parametrize("dt_s", [0.5, 1.0])
def test_a_pace_is_asked_for_with_the_first_slow_commits(dt_s: float) -> None:
    host = plant(policy=policy(pace="auto"), dt_s=dt_s, groups=[Group(related=NOBODY)])
    first = host.time_s
    while not host.tick().settings:
        assert host.time_s - first < 5.0  # R unknown: three seconds of a full cache show it
    host.flooding = False
    host.run_s(80.0)
    host.flooding, first = True, host.time_s
    while not host.memory.devices["sda"].drain.full_s:
        first = host.time_s
        decision = host.tick()
    r = host.memory.devices["sda"].drain_rate or 0.0
    assert sum(s.value for s in decision.settings) == pytest.approx(0.75 * r, rel=0.01)


def test_why_names_who_is_paced_since_when_and_the_command_that_exempts_it() -> None:
    host = plant(policy=policy(pace="auto"), groups=[Group(related=NOBODY)])
    host.run_s(20.0)
    told = said(host.tick())
    assert "backup.service held at" in told and "paced for 1" in told
    command = "systemctl set-property backup.service IOReadIOPSMax='/dev/block/8:0 1G'"
    assert command in told
    host.groups[0].foreign = (("8:16", "rbps=max wbps=max riops=1000000000 wiops=max"),)
    assert not host.tick().settings and "IO limits of its own" in said(host.tick())


def test_a_long_wait_for_pages_of_the_paced_halves_the_limit_and_the_next_ends_the_pace() -> None:
    host = plant(policy=policy(pace="auto"), groups=[Group(related=NOBODY)])
    host.run_s(10.0)
    host.oldest_s = 0.29
    wide = host.tick()
    host.oldest_s = 0.4
    narrow = host.tick()
    (pace,), (same,) = wide.settings, narrow.settings
    assert wide.limit_bytes == pace.value // 4 and narrow.limit_bytes == same.value // 8
    host.oldest_s = 0.5
    assert host.tick().settings
    host.oldest_s = 0.7
    assert not host.tick().settings
    assert "a sync waited 700 ms for pages of backup.service" in said(host.tick())


# ---- what systemd says -------------------------------------------------------


class Systemd:
    """`systemctl show`, as it prints: an empty line between units, odd names in quotes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, shown: Dict[str, Dict[str, str]]) -> None:
        self.shown, self.asked, self.code = shown, [], 0  # type: ignore[var-annotated]
        monkeypatch.setattr(unit_relations, "Job", self.job)

    def run(self, argv: Sequence[str]) -> Ended:
        units = argv[argv.index("--") + 1 :]
        self.asked.append(units)
        names, of = argv[3].split(","), self.shown
        blocks = [
            "\n".join(f"{name}={of.get(unit, {}).get(name, '')}" for name in names)
            for unit in units
        ]
        return Ended(self.code, "\n\n".join(blocks) + "\n", "refused")

    def job(self, work: Work, limit_s: float, name: str) -> Systemd:
        with contextlib.suppress(OSError):
            work(self.run)
        return self

    busy = False


def test_related_are_units_before_and_after_and_those_of_its_socket(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    systemd = Systemd(monkeypatch, {
        "x.service": {"After": 'a.service "b\\\\x2d1.mount"', "Before": "c.service",
                      "TriggeredBy": "x.socket", "ControlGroup": "/system.slice/x.service"},
        "x.socket": {"Before": "x.service d.service"},
        "y.service": {"After": "x.service", "ControlGroup": "/system.slice/y.service"},
    })  # fmt: skip
    relations = UnitRelations()
    for unit in ("x.service", "y.service", "nobodys.service"):
        assert relations.of(unit, 0.0) is None
    relations.ask(0.0)
    # All units in one question, and their sockets in another.
    assert systemd.asked == [("x.service", "y.service", "nobodys.service"), ("x.socket",)]
    assert relations.of("x.service", 59.0) == (
        "a.service", "b\\x2d1.mount", "c.service", "d.service", "x.socket")
    assert relations.of("y.service", 59.0) == ("x.service",)
    assert relations.of("nobodys.service", 59.0) is None  # a cgroup that is no unit
    relations.ask(59.0)
    assert len(systemd.asked) == 2


def test_what_systemd_said_two_minutes_ago_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    systemd = Systemd(monkeypatch, {"x.service": {"After": "a.service", "ControlGroup": "/x"}})
    relations = UnitRelations()
    known = []
    for now_s in (0.0, 1.0, 61.0, 119.0, 121.0, 181.0):
        known.append(relations.of("x.service", now_s) is not None)
        relations.ask(now_s)
        systemd.code = 1  # from its first answer on it refuses
    assert known == [False, True, True, True, False, False]
    assert len(systemd.asked) == 4  # once a minute


# ---- instances, restarts, observing ------------------------------------------


def test_the_umbrella_of_an_instance_that_syncs_stands_for_it() -> None:
    """Others are ordered after postgresql.service, which is not what syncs."""
    host = plant(policy=policy(pace="auto"), groups=[Group(related=ORDERED)])
    host.database = "/system.slice/system-postgresql.slice/postgresql@15-main.service"
    host.run_s(20.0)
    assert not host.paced and "postgresql.service, which syncs, is ordered" in said(host.tick())


def test_while_it_is_unknown_who_synced_only_sessions_are_paced() -> None:
    for path, paced in ((TIMER, False), (SESSION, True)):
        host = plant(policy=policy(pace="auto"), groups=[Group(path, related=NOBODY)])
        host.database, host.memory = None, replace(host.memory, syncers={})
        assert any(decision.settings for decision in host.run_s(20.0)) is paced
    assert "not paced" not in said(host.tick())


def test_a_pace_ends_before_it_is_forgotten_who_syncs() -> None:
    """Commits five minutes apart would hold it for ten, and who syncs is remembered for five."""
    asked = policy(pace="auto")
    asked = replace(asked, objective=replace(asked.objective, demand_hold_s=600.0))
    host = plant(policy=asked, groups=[Group(related=NOBODY)])
    host.run_s(20.0)
    known = host.memory.devices["sda"]
    rare = replace(known, last_demand=(host.time_s, 280.0, 3, True))
    host.memory = replace(host.memory, devices={"sda": rare})
    host.syncing = False
    held = [bool(decision.settings) for decision in host.run_s(320.0)]
    assert all(held[:290]) and not any(held[300:])


def test_a_daemon_that_has_just_started_keeps_the_paces_of_the_one_before() -> None:
    host = plant(policy=policy(pace="auto"), groups=[Group(related=NOBODY)])
    host.run_s(20.0)
    host.groups[0].related = None  # systemd has not been asked yet
    assert all(decision.settings for decision in host.run_s(5.0))


def test_in_observe_mode_nobody_is_said_to_be_held() -> None:
    host = plant(policy=policy(pace="auto"), groups=[Group(related=NOBODY)], child_s=1e9)
    host.memory = replace(host.memory, mode=Mode.OBSERVE)
    texts = [said(decision) for decision in host.run_s(40.0)]
    assert any("enforce would hold backup.service at" in text for text in texts)
    assert not any("held at" in text or "paced for" in text for text in texts)
    assert host.tick().devices[0].state is not DeviceState.PACE
