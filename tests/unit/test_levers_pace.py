# SPDX-License-Identifier: GPL-2.0-or-later
"""Paces as systemd and cgroups take them, and children that hang."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Iterator, Sequence

import pytest

from fake_levers import CGROUPS, FakeLevers
from lever_cases import FIXTURES, UNIT, holding, pace, settle, started
from limit_cases import saved
from writebackd.actuate import lever_plan
from writebackd.actuate.ledger import load
from writebackd.actuate.ledger_restore import restore_from_ledger
from writebackd.kernel import cgroup_io_max
from writebackd.kernel.child_process import Ended
from writebackd.kernel.files import KernelFiles
from writebackd.types.levers import LeverKind, Setting

path, files, plain, systemd = FIXTURES


# -- pace ------------------------------------------------------------------------


def test_only_our_key_of_our_disk_is_touched(plain: FakeLevers, path: Path) -> None:
    others = {"8:0": {"rbps": "1000", "wiops": "7"}, "8:16": {"wbps": "5000"}}
    plain.cgroups[UNIT] = json.loads(json.dumps(others))
    actuator = holding(plain, path, pace(123))
    assert plain.writes == [(f"{CGROUPS}{UNIT}/io.max", "8:0 wbps=123")]
    assert plain.cgroups[UNIT]["8:0"] == {"rbps": "1000", "wbps": "123", "wiops": "7"}
    settle(actuator)
    others["8:0"]["wbps"] = "max"
    assert plain.cgroups[UNIT] == others


def test_an_io_max_that_hangs_is_waited_for_by_a_child_alone(
    plain: FakeLevers, path: Path
) -> None:
    """Since 6.10 the first rule of a disk freezes its queue."""
    actuator = started(plain, path)
    plain.stalled = True
    assert actuator.apply_settings((pace(5),)) == () and plain.writes == []
    assert actuator.levers.foreign() == ()
    plain.release()
    assert [action.ok for action in actuator.apply_settings((pace(5),))] == [True]
    assert plain.cgroups[UNIT]["8:0"]["wbps"] == "5"
    settle(actuator)
    assert plain.cgroups[UNIT]["8:0"]["wbps"] == "max" and load(path) is None


def test_a_pace_that_was_there_comes_back(files: FakeLevers, path: Path) -> None:
    if files.units is None:
        files.poke(f"{CGROUPS}{UNIT}/io.max", "8:0 wbps=777")
    else:
        files.set_property("dump.service", "IOWriteBandwidthMax", "/dev/block/8:0", "777")
    actuator = holding(files, path, pace(5))
    assert files.cgroups[UNIT]["8:0"]["wbps"] == "5"
    settle(actuator)
    assert files.cgroups[UNIT]["8:0"]["wbps"] == "777"


def test_systemd_is_asked_in_its_own_spelling_of_the_disk(
    systemd: FakeLevers, path: Path, tmp_path: Path
) -> None:
    devno = systemd.devno(str(tmp_path))
    systemd.inodes[f"/sys/dev/block/{devno}"] = 7
    systemd.set_property("dump.service", "IOReadBandwidthMax", str(tmp_path), "999")
    actuator = started(systemd, path)
    setting = Setting(LeverKind.PACE, UNIT, devno, 5)
    assert [action.ok for action in settle(actuator, setting)] == [True]
    assert systemd.commands[-1] == (
        "systemctl", "set-property", "--runtime", "--", "dump.service",
        f"IOWriteBandwidthMax={tmp_path} 5",
    )
    lines = systemd.cgroups[UNIT][devno]
    assert (lines["rbps"], lines["wbps"]) == ("999", "5")
    settle(actuator)
    assert systemd.commands[-1][-1] == f"IOWriteBandwidthMax={tmp_path} infinity"
    assert (lines := systemd.cgroups[UNIT][devno]) and lines["rbps"] == "999"
    assert lines["wbps"] == "max"


def test_the_spelling_is_found_without_the_disk_in_dev(tmp_path: Path) -> None:
    """As under PrivateDevices=: a second spelling would be a second entry for systemd."""
    for name, text in (("sys/class/block/sdzz/dev", "8:4000\n"), ("run/systemd/system/x", "")):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    asked = []

    def run(argv: Sequence[str]) -> Ended:
        asked.append(argv[-1])
        return Ended(0, "IOWriteBandwidthMax=/dev/sdzz 900000000\n", "")

    files = KernelFiles(tmp_path)
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cgroup.controllers").touch()
    work = cgroup_io_max.write(files, UNIT, "8:4000", "5")
    assert work is not None
    work(run)
    assert asked[-1] == "IOWriteBandwidthMax=/dev/sdzz 5"


def test_pace_of_a_unit_that_stopped_is_taken_back_from_the_unit(
    systemd: FakeLevers, path: Path
) -> None:
    """The property outlives the cgroup, and would hold the unit at its next start."""
    actuator = holding(systemd, path, pace(5))
    systemd.rmdir(UNIT)
    assert actuator.levers.foreign() == () and settle(actuator, pace(5)) == ()
    systemd.mkdir(UNIT)
    assert systemd.cgroups[UNIT]["8:0"]["wbps"] == "5"
    assert actuator.levers.foreign() == ()
    systemd.rmdir(UNIT)
    assert [action.ok for action in settle(actuator)] == [True]
    systemd.mkdir(UNIT)
    assert systemd.cgroups[UNIT]["8:0"]["wbps"] == "max" and load(path) is None


def test_pace_of_a_transient_unit_that_ended_is_gone_with_it(
    systemd: FakeLevers, path: Path
) -> None:
    actuator = holding(systemd, path, pace(5))
    systemd.rmdir(UNIT)
    assert systemd.units is not None
    del systemd.units["dump.service"]
    assert [action.ok for action in settle(actuator)] == [True]
    assert load(path) is None


def test_systemd_that_does_not_answer_is_told_and_tried_again_at_exit(
    systemd: FakeLevers, path: Path
) -> None:
    actuator = holding(systemd, path, pace(5))
    systemd.write_errors = {"systemctl dump.service": (1, False)}
    count = len(systemd.commands)
    told = [actuator.apply_settings((pace(rate),)) for rate in (6, 7, 8, 9)]
    assert [len(actions) for actions in told] == [0, 1, 0, 0]
    assert len(systemd.commands) == count + 2  # show and set-property, once
    (action,) = settle(actuator)
    assert "Connection timed out" in str(action.error) and load(path) is not None
    systemd.write_errors = {}
    assert [action.ok for action in actuator.finish()] == [True]
    assert load(path) is None


def test_a_pace_of_an_unplugged_disk_is_taken_back_from_the_unit(
    systemd: FakeLevers, path: Path
) -> None:
    """The property names the number: the next disk that gets it would be held as well."""
    actuator = holding(systemd, path, pace(5))
    systemd.unplug("8:0", "sda")
    assert actuator.levers.foreign() == ()
    # The law has not noticed yet and goes on asking: told once.
    home, told = settle(actuator, pace(6))
    assert home.ok and "no such disk" in str(told.error)
    assert systemd.units == {"dump.service": [("/dev/block/8:0", {"wbps": "max"})]}
    assert actuator.levers.entries == () and load(path) is None
    count = len(systemd.commands)
    assert settle(actuator) == () and actuator.levers.foreign() == ()
    assert len(systemd.commands) == count
    systemd.plug("8:0", "sda")
    systemd.mkdir(UNIT)  # started anew
    assert systemd.cgroups[UNIT]["8:0"]["wbps"] == "max"


def test_a_unit_s_own_limit_of_an_unplugged_disk_is_given_back(
    systemd: FakeLevers, path: Path, tmp_path: Path
) -> None:
    """It names the disk by a path that leads nowhere now: it is told by our value."""
    name = tmp_path / "by-id"
    name.touch()
    devno = systemd.devno(str(name))
    systemd.inodes[f"/sys/dev/block/{devno}"] = 7
    systemd.set_property("dump.service", "IOWriteBandwidthMax", "/dev/other", "999")
    systemd.set_property("dump.service", "IOWriteBandwidthMax", str(name), "777")
    actuator = holding(systemd, path, Setting(LeverKind.PACE, UNIT, devno, 5))
    name.unlink()
    del systemd.inodes[f"/sys/dev/block/{devno}"]
    del systemd.cgroups[UNIT][devno]
    assert [action.ok for action in settle(actuator)] == [True]
    assert systemd.units is not None
    assert dict(systemd.units["dump.service"]) == {
        "/dev/other": {"wbps": "999"}, str(name): {"wbps": "777"}
    }
    assert load(path) is None


def test_a_pace_is_taken_back_though_the_disk_was_replaced_between_two_ticks(
    systemd: FakeLevers, path: Path
) -> None:
    actuator = holding(systemd, path, pace(5))
    systemd.unplug("8:0", "sda")
    systemd.plug("8:0", "sda")
    assert actuator.levers.foreign() == ()  # nobody set it to max
    settle(actuator)
    assert systemd.units == {"dump.service": [("/dev/block/8:0", {"wbps": "max"})]}
    settle(actuator, pace(6))
    assert systemd.cgroups[UNIT]["8:0"]["wbps"] == "6"


@pytest.mark.parametrize("way", ["restart", "restore"])
def test_a_pace_of_a_disk_unplugged_while_nobody_looked_is_taken_back(
    systemd: FakeLevers, path: Path, way: str
) -> None:
    settle(started(systemd, path), pace(5))
    systemd.unplug("8:0", "sda")
    if way == "restore":
        assert restore_from_ledger(systemd, path).status == "restored"
    else:
        actuator = started(systemd, path)
        actuator.levers.foreign()
        # Nobody would ask for it again, so it does not stay for the law to come back.
        assert [each.ok for each in actuator.apply_settings((), keep_adopted=True)] == []
        assert [each.ok for each in actuator.apply_settings((), keep_adopted=True)] == [True]
    assert systemd.units == {"dump.service": [("/dev/block/8:0", {"wbps": "max"})]}
    assert load(path) is None


def test_a_pace_of_an_unplugged_disk_that_systemd_refuses_is_kept_and_tried_seldom(
    systemd: FakeLevers, path: Path
) -> None:
    actuator = holding(systemd, path, pace(5))
    systemd.unplug("8:0", "sda")
    systemd.write_errors = {"systemctl dump.service": (1, False)}
    actions = settle(actuator) + settle(actuator)
    assert [action.ok for action in actions] == [False] and load(path) is not None
    systemd.write_errors = {}
    assert [action.ok for action in actuator.finish()] == [True]
    assert load(path) is None


def test_a_pace_that_is_nobody_s_goes_with_the_disk(plain: FakeLevers, path: Path) -> None:
    actuator = holding(plain, path, pace(5))
    plain.unplug("8:0", "sda")
    assert actuator.levers.foreign() == () and settle(actuator) == ()
    assert actuator.levers.entries == () and load(path) is None


def test_without_io_max_there_is_no_limit_where_systemd_turns_it_on(files: FakeLevers) -> None:
    files.errors = {f"{CGROUPS}{UNIT}/io.max": errno.ENOENT}
    if files.units is not None:
        assert cgroup_io_max.read(files, UNIT, "8:0") == "max"
        files.rmdir(UNIT)
    with pytest.raises(FileNotFoundError):
        cgroup_io_max.read(files, UNIT, "8:0")


def test_a_disk_that_was_pulled_out_while_open_spoils_no_reading(
    files: FakeLevers, path: Path
) -> None:
    """Its limits are printed without its number as long as somebody has it open."""
    files.cgroups[UNIT]["(unknown)"] = {"wbps": "4096"}
    actuator = started(files, path)
    assert [action.ok for action in settle(actuator, pace(5))] == [True]
    assert cgroup_io_max.read(files, UNIT, "8:0") == "5"
    settle(actuator)
    assert cgroup_io_max.read(files, UNIT, "8:0") == "max"


def test_a_reading_that_fails_for_a_moment_is_waited_over(
    systemd: FakeLevers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """systemd applies a property after it has answered, and io.max may be cut short then."""
    readings: "Iterator[str | OSError]" = iter(
        [OSError(errno.EIO, "cut short"), "7", "5", "never asked"]
    )

    def read(*_: object) -> str:
        reading = next(readings)
        if isinstance(reading, OSError):
            raise reading
        return reading

    monkeypatch.setattr(cgroup_io_max, "_APPLY_S", 5.0)
    monkeypatch.setattr(cgroup_io_max, "read", read)
    work = cgroup_io_max.write(systemd, UNIT, "8:0", "5")
    assert work is not None
    work(systemd.run)
    assert next(readings) == "never asked"


def test_who_owns_a_cgroup(plain: FakeLevers) -> None:
    assert cgroup_io_max.owner(plain, UNIT) is None
    plain.boot_systemd()
    assert cgroup_io_max.owner(plain, UNIT) == "dump.service"
    assert cgroup_io_max.owner(plain, "/user.slice") == "user.slice"
    assert cgroup_io_max.owner(plain, "/system.slice/_cpu.service") == "cpu.service"
    # Delegated, or nobody's:
    for cgroup in (UNIT + "/payload", "/system.slice/a.service/b.service", "/lxc/x", "/"):
        assert cgroup_io_max.owner(plain, cgroup) is None


@pytest.mark.parametrize(
    "cgroup",
    ["/lxc/101/ns/system.slice/dump.service", "/lxc.payload.c1/dump.service",
     "/docker/dump.service", "/machine.slice/system.slice/dump.service",
     "/a.slice/system.slice/dump.service", "/a-b.slice/dump.service"],
)  # fmt: skip
def test_a_container_s_unit_is_not_the_host_s_of_that_name(
    systemd: FakeLevers, path: Path, cgroup: str
) -> None:
    assert cgroup_io_max.owner(systemd, cgroup) is None
    systemd.mkdir(cgroup)
    settle(started(systemd, path), Setting(LeverKind.PACE, cgroup, "8:0", 5))
    assert systemd.commands == [] and systemd.cgroups[UNIT] == {}


def test_slices_below_slices_are_systemd_s(systemd: FakeLevers) -> None:
    for cgroup, unit in {
        "/a.slice/a-b.slice/a-b-c.slice/x.service": "x.service",
        "/_cpu.slice/cpu-x.slice/x.scope": "x.scope",
        "/a.slice/a-b.slice": "a-b.slice",
        "/a.slice/b.slice": None,
        "/x.service": "x.service",
    }.items():
        assert cgroup_io_max.owner(systemd, cgroup) == unit


def test_a_unit_that_systemd_has_elsewhere_is_not_asked_for(
    systemd: FakeLevers, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    show, place = systemd._show, "/other.slice/dump.service"
    monkeypatch.setattr(systemd, "_show", lambda unit: f"ControlGroup={place}\n{show(unit)}")
    actuator = started(systemd, path)
    (told,) = settle(actuator, pace(5))
    assert "systemd has dump.service in /other.slice" in str(told.error)
    assert [argv[1] for argv in systemd.commands] == ["show"] and systemd.cgroups[UNIT] == {}
    actuator.finish()
    assert load(path) is None
    place = UNIT
    settle(actuator := started(systemd, path), pace(5))
    assert systemd.cgroups[UNIT]["8:0"]["wbps"] == "5"
    # Started anew in another slice, it has the property still.
    systemd.rmdir(UNIT)
    place = "/other.slice/dump.service"
    assert [action.ok for action in settle(actuator)] == [True]
    assert systemd.units == {"dump.service": [("/dev/block/8:0", {"wbps": "max"})]}


@pytest.mark.parametrize("way", ["let go", "exit", "killed", "restart"])
def test_a_property_that_does_not_show_yet_is_known_to_the_ledger(
    systemd: FakeLevers, path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """systemd said yes, so the unit has it, and io.max may show it at any time later."""
    apply = systemd._apply
    monkeypatch.setattr(systemd, "_apply", lambda cgroup: None)
    actuator = started(systemd, path)
    (told,) = settle(actuator, pace(5))
    assert told.error == "reads back as max"
    assert [(e.original, e.written) for e in saved(path).levers] == [("max", ("max", "5"))]
    monkeypatch.setattr(systemd, "_apply", apply)
    if way == "let go":
        assert [action.ok for action in settle(actuator)] == [True]
    elif way == "exit":
        apply(UNIT)
        assert [action.ok for action in actuator.finish()] == [True]
    elif way == "killed":
        assert restore_from_ledger(systemd, path).status == "restored"
    else:
        again = started(systemd, path)
        assert [action.ok for action in settle(again)] == [True]
    assert systemd.units == {"dump.service": [("/dev/block/8:0", {"wbps": "max"})]}
    assert load(path) is None


def test_what_is_ours_never_becomes_the_original(
    systemd: FakeLevers, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lever_plan, "RETRY_S", 0.0)
    apply = systemd._apply
    monkeypatch.setattr(systemd, "_apply", lambda cgroup: None)
    actuator = holding(systemd, path, pace(5))
    apply(UNIT)  # it took longer than it was waited for
    monkeypatch.setattr(systemd, "_apply", apply)
    assert actuator.levers.foreign() == ()
    settle(actuator, pace(6))
    assert [entry.original for entry in actuator.levers.entries] == ["max"]
    # And one that is lost: somebody's daemon-reload meanwhile.
    monkeypatch.setattr(systemd, "_apply", lambda cgroup: systemd.cgroups[cgroup].clear())
    settle(actuator, pace(7))
    assert actuator.levers.foreign() == () and len(actuator.levers.entries) == 1
    monkeypatch.setattr(systemd, "_apply", apply)
    settle(actuator)
    assert systemd.units == {"dump.service": [("/dev/block/8:0", {"wbps": "max"})]}
