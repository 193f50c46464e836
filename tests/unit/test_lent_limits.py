# SPDX-License-Identifier: GPL-2.0-or-later
"""A tool saves a limit of ours and sets it again later; a person types the same value."""

from __future__ import annotations

from pathlib import Path
from typing import List, Optional

import pytest

from actuator_cases import started
from fake_host import FakeHost, Rig
from fake_vm import DEFAULT, FakeVm
from writebackd.actuate.actuator import Actuator
from writebackd.actuate.ledger_restore import restore_from_ledger
from writebackd.kernel.map_readers import Reading
from writebackd.kernel.vm import read_limits
from writebackd.paths import LEDGER
from writebackd.types.levers import ForeignWrite, VmLimits

MB = 1 << 20
PAGE = 4096
SESSION = "/user.slice/user-1000.slice/session-3.scope"
OTHER_BOOT = "11111111-2222-3333-4444-555555555555"


def yielded(files: FakeVm, tmp: Path, limit: int = 4 * MB, background: int = 2 * MB) -> Actuator:
    """To a tool that has set 40 %, and has saved what it found."""
    actuator = started(files, tmp / LEDGER)
    actuator.apply(limit, background)
    files.sysctl("dirty_ratio", 40)
    files.sysctl("dirty_background_ratio", 15)
    assert actuator.foreign(read_limits(files))
    actuator.yield_()
    return actuator


OURS = {"dirty_bytes": 4 * MB, "dirty_background_bytes": 2 * MB}


def set_ours(files: FakeVm, *levers: str) -> None:
    for lever in levers or OURS:
        files.sysctl(lever, OURS[lever])


@pytest.mark.parametrize("levers, left", [
    (list(OURS), VmLimits(0, 20, 0, 10)), (["dirty_bytes"], VmLimits(0, 20, 0, 15)),
    (["dirty_background_bytes"], VmLimits(0, 40, 0, 10)),
])  # fmt: skip
@pytest.mark.parametrize("how", ["enforce", "yielded", "restart", "killed"])
def test_a_limit_of_ours_that_comes_back_is_no_original(
    tmp_path: Path, levers: List[str], left: VmLimits, how: str
) -> None:
    files = FakeVm()
    actuator = yielded(files, tmp_path)
    set_ours(files, *levers)
    told = actuator.foreign(read_limits(files))
    assert told and all(write.ours for write in told)
    if how == "enforce":
        actuator.take_over()
    elif how == "yielded":
        actuator.settle(told)
        assert read_limits(files) == left
        assert actuator.foreign(read_limits(files)) == ()
        return
    else:
        actuator = started(files, tmp_path / LEDGER)
    assert actuator.originals == left
    actuator.apply(8 * MB, 4 * MB)
    if how == "killed":
        assert restore_from_ledger(files, tmp_path / LEDGER).status == "restored"
    else:
        actuator.restore()
    assert read_limits(files) == left


@pytest.mark.parametrize("value", [2000 * PAGE, 2001 * PAGE])
def test_rounded_to_pages_it_is_known(tmp_path: Path, value: int) -> None:
    files = FakeVm()
    actuator = yielded(files, tmp_path, 2000 * PAGE + 1234, 1000 * PAGE + 99)
    files.sysctl("dirty_bytes", value)
    files.sysctl("dirty_background_bytes", 1001 * PAGE)
    actuator.take_over()
    assert actuator.originals == DEFAULT
    actuator.restore()
    assert read_limits(files) == DEFAULT


@pytest.mark.parametrize("value", [1999 * PAGE, 2002 * PAGE, 2000 * PAGE + 1235])
def test_any_other_value_is_theirs(tmp_path: Path, value: int) -> None:
    files = FakeVm()
    actuator = yielded(files, tmp_path, 2000 * PAGE + 1234, 1000 * PAGE + 99)
    files.sysctl("dirty_bytes", value)
    assert actuator.foreign(read_limits(files)) == ()
    actuator.take_over()
    assert actuator.originals.dirty_bytes == value


def test_a_value_set_some_steps_before_is_known(tmp_path: Path) -> None:
    files = FakeVm()
    actuator = started(files, tmp_path / LEDGER)
    for limit in (64, 32, 16):
        actuator.apply(limit * MB, limit * MB // 2)
    files.sysctl("dirty_ratio", 40)
    actuator.yield_()
    files.sysctl("dirty_bytes", 64 * MB)  # read when the tool began to work
    actuator.take_over()
    assert actuator.originals == DEFAULT


def test_a_tool_is_known_after_another_yield(tmp_path: Path) -> None:
    files = FakeVm()
    actuator = yielded(files, tmp_path)
    actuator.take_over()  # 40 % is the original now
    actuator.apply(8 * MB, 4 * MB)
    set_ours(files)  # the first profile is left
    told = actuator.foreign(read_limits(files))
    assert [write.ours for write in told] == [True, True]
    actuator.yield_()
    actuator.settle(actuator.foreign(read_limits(files)))
    assert read_limits(files) == VmLimits(0, 40, 0, 15)


def test_where_somebody_wrote_while_no_daemon_lived_it_is_known(tmp_path: Path) -> None:
    files = FakeVm()
    started(files, tmp_path / LEDGER).apply(4 * MB, 2 * MB)  # and is killed
    files.sysctl("dirty_ratio", 40)
    files.sysctl("dirty_background_ratio", 15)
    if restore_from_ledger(files, tmp_path / LEDGER).status != "foreign":
        raise AssertionError("the check itself does not work")
    set_ours(files)
    assert started(files, tmp_path / LEDGER).originals == DEFAULT


def test_after_a_reboot_the_same_value_is_theirs(tmp_path: Path) -> None:
    files = FakeVm()
    yielded(files, tmp_path)
    files.boot_id = OTHER_BOOT
    set_ours(files)
    assert started(files, tmp_path / LEDGER).originals == VmLimits(4 * MB, 0, 2 * MB, 0)


def test_what_an_admin_types_stays_also_where_it_was_a_value_of_ours(tmp_path: Path) -> None:
    """16M, which the law had set some steps before by chance."""
    files = FakeVm()
    actuator = started(files, tmp_path / LEDGER)
    for limit in (16, 8, 4):
        actuator.apply(limit * MB, limit * MB // 2)
    files.sysctl("dirty_bytes", 16 * MB)
    told = actuator.foreign(read_limits(files))
    assert [write.ours for write in told] == [False]
    actuator.yield_()
    for _ in range(3):
        actuator.settle(actuator.foreign(read_limits(files)))
    assert files.limits.dirty_bytes == 16 * MB
    actuator = started(files, tmp_path / LEDGER)  # over a restart
    assert files.limits.dirty_bytes == actuator.originals.dirty_bytes == 16 * MB
    actuator.apply(4 * MB, 2 * MB)
    actuator.restore()
    assert files.limits.dirty_bytes == 16 * MB


# ---- with the daemon ---------------------------------------------------------


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    rig = Rig(tmp_path, monkeypatch, FakeHost(tmp_path / "root"))
    rig.tick(2)
    rig.pin(16 * MB)
    rig.tick(2)
    rig.pin(None)
    return rig


def written(rig: Rig, lever: str, value: int, comm: Optional[str], cgroup: str = "") -> None:
    rig.host.sysctl(lever, value)
    write = ForeignWrite(lever, str(value), 4242, comm, cgroup=cgroup)
    rig.probe.next = Reading(writers=(write,) if comm else ())
    rig.tick()
    rig.probe.next = Reading()
    rig.tick(2)


def test_a_limit_that_a_tool_brings_back_is_replaced_and_told(rig: Rig) -> None:
    written(rig, "dirty_ratio", 40, "tuned", "/system.slice/tuned.service")
    assert rig.host.limits == VmLimits(0, 40, 0, 10)
    written(rig, "dirty_bytes", 16 * MB, "tuned", "/system.slice/tuned.service")
    assert rig.host.limits == DEFAULT
    said = "dirty_bytes=16777216 (a limit of writebackd's own, the original is put back)"
    status = rig.status()
    assert said in status["yielded"] and said in status["alerts"][0]["summary"]
    assert "tuned (pid 4242" in status["yielded"]


def test_the_same_value_typed_in_a_session_stays(rig: Rig) -> None:
    written(rig, "dirty_ratio", 40, "tuned", "/system.slice/tuned.service")
    written(rig, "dirty_bytes", 16 * MB, "sysctl", SESSION)
    rig.tick(5)
    assert rig.host.limits == VmLimits(16 * MB, 0, 0, 10)
    assert "stays, as it was typed" in rig.status()["yielded"]
    rig.daemon.handle("mode", {"mode": "enforce"}, 0)
    rig.tick(2)
    rig.end()
    assert rig.host.limits.dirty_bytes == 16 * MB


def test_where_the_writer_is_not_seen_the_second_time_counts(rig: Rig) -> None:
    written(rig, "dirty_ratio", 40, None)
    written(rig, "dirty_bytes", 16 * MB, None)
    assert rig.host.limits == DEFAULT
    written(rig, "dirty_bytes", 16 * MB, None)
    rig.tick(5)
    assert rig.host.limits == VmLimits(16 * MB, 0, 0, 10)
    rig.daemon.handle("mode", {"mode": "enforce"}, 0)
    assert rig.daemon._actuator.originals.dirty_bytes == 16 * MB
