# SPDX-License-Identifier: GPL-2.0-or-later
"""Writes of levers that hang in a child, or land when nobody waits for them any more."""

from __future__ import annotations

import errno
from typing import List

import pytest

from fake_levers import FakeJob, FakeLevers
from fake_vm import DEFAULT
from lever_cases import (
    FIXTURES,
    FLUSH,
    NR,
    PAIR,
    SECTORS,
    UNIT,
    by_lever,
    holding,
    pace,
    settle,
    started,
)
from limit_cases import saved
from writebackd.actuate import lever_plan
from writebackd.actuate.actuator import Actuator
from writebackd.actuate.lease import LeaseLost
from writebackd.actuate.ledger import load
from writebackd.actuate.ledger_restore import restore_from_ledger
from writebackd.actuate.lever_plan import MOST_AT_ONCE
from writebackd.kernel.child_process import ChildError, Job, Run, Work
from writebackd.types.levers import Action, LeverKind, Setting

files, plain, systemd = FIXTURES


def test_a_bug_in_a_job_is_logged_though_nobody_asks(caplog: pytest.LogCaptureFixture) -> None:
    def work(_: Run) -> None:
        raise KeyError("a bug")

    job = Job(work, 60.0, "units")
    job.wait(10.0)
    assert isinstance(job.failure(), KeyError)
    assert "units: 'a bug'" in caplog.text


def test_nothing_waits_for_a_stalled_disk(plain: FakeLevers) -> None:
    found = plain.state()
    actuator = started(plain)
    plain.stalled = True
    assert settle(actuator, NR, SECTORS) == ()
    assert len(plain.jobs) == 1  # the second would only wait behind the first
    assert saved(plain.ledger).levers[0].written == ("64", "8")
    # What holds the queue also holds whoever reads it.
    read, seen = plain.read, []

    def look(name: str) -> str:
        seen.append(name)
        return read(name)

    plain.read = look  # type: ignore[method-assign]
    assert actuator.levers.foreign() == ()
    plain.jobs[0].overdue = True
    (late,) = settle(actuator, NR, SECTORS)
    assert late.error == "not done within 5 s" and len(plain.jobs) == 1
    assert actuator.restore() == () and len(plain.jobs) == 1
    assert not [name for name in seen if "/queue/" in name]
    plain.release()
    assert plain.queues["sda"]["nr_requests"] == 8
    settle(actuator)
    assert plain.state() == found and load(plain.ledger) is None


def test_exit_with_a_stalled_disk_leaves_it_to_the_ledger(
    plain: FakeLevers, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = plain.state()
    actuator = holding(plain, FLUSH, NR, pair=PAIR)
    plain.stalled = True
    monkeypatch.setattr("writebackd.actuate.actuator._EXIT_WAIT_S", 0.01)
    told = by_lever(actuator.finish())
    assert "not done yet" in str(told["queue sda nr_requests"].error)
    assert plain.limits == DEFAULT and plain.flush["dirty_writeback_centisecs"] == 500
    assert [e.name for e in saved(plain.ledger).levers] == ["nr_requests"]
    plain.stalled = False  # the child never came to write
    assert restore_from_ledger(plain, plain.ledger).status == "restored"
    assert plain.state() == found and load(plain.ledger) is None


# -- writes that may land yet ----------------------------------------------------


def lands(files: FakeLevers, setting: Setting) -> None:
    """What a dead process had begun comes to its end."""
    if setting.kind is LeverKind.QUEUE:
        files.poke(f"/sys/block/sda/queue/{setting.name}", str(setting.value))
    else:
        files.set_property("dump.service", "IOWriteBandwidthMax", "/dev/block/8:0", "20000000")


@pytest.mark.parametrize("setting", [NR, pace(20_000_000)], ids=["queue", "pace"])
def test_write_under_way_when_all_were_killed_stays_in_the_ledger(
    systemd: FakeLevers, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("writebackd.actuate.ledger_restore.WAIT_S", 0.01)
    found = systemd.state()
    actuator = started(systemd)
    systemd.stalled = True
    actuator.apply_settings((setting,))  # and killed: the child hangs
    # The way home hangs as well, and the value reads as it was found.
    assert restore_from_ledger(systemd, systemd.ledger).status == "failed"
    assert len(saved(systemd.ledger).levers[0].written) == 2
    assert len(started(systemd).levers.entries) == 1  # a restart knows of it, too
    lands(systemd, setting)
    systemd.stalled = False
    monkeypatch.setattr("writebackd.actuate.ledger_restore.WAIT_S", 10.0)
    assert restore_from_ledger(systemd, systemd.ledger).status == "restored"
    assert systemd.state() == found and load(systemd.ledger) is None


@pytest.mark.parametrize("setting", [NR, pace(20_000_000)], ids=["queue", "pace"])
def test_way_home_is_written_though_the_original_reads(
    systemd: FakeLevers, setting: Setting
) -> None:
    """Behind the write that is under way, which holds the same lock or sits in the same queue."""
    actuator = started(systemd)
    systemd.stalled = True
    actuator.apply_settings((setting,))
    systemd.stalled = False
    done = len(systemd.jobs)
    again = started(systemd)
    assert len(again.levers.entries) == 1
    again.apply_settings(())
    assert len(systemd.jobs) == done + 1
    again.apply_settings(())
    assert load(systemd.ledger) is None


def test_what_systemd_did_not_answer_is_not_settled(systemd: FakeLevers) -> None:
    actuator = started(systemd)
    systemd.write_errors["systemctl dump.service"] = (errno.ETIMEDOUT, False)
    settle(actuator, pace(20_000_000))
    assert len(actuator.levers.entries) == 1
    systemd.write_errors.clear()
    lands(systemd, pace(20_000_000))
    settle(actuator)
    assert systemd.cgroups[UNIT]["8:0"]["wbps"] == "max" and load(systemd.ledger) is None


def test_way_home_that_failed_settles_nothing(systemd: FakeLevers) -> None:
    actuator = started(systemd)
    systemd.stalled = True
    actuator.apply_settings((NR,))  # and killed
    systemd.stalled = False
    name = "/sys/block/sda/queue/nr_requests"
    systemd.write_errors[name] = (errno.ENOENT, False)  # the child did not get to the queue
    assert restore_from_ledger(systemd, systemd.ledger).status == "failed"
    assert saved(systemd.ledger).levers[0].written == ("64", "8")


@pytest.mark.parametrize("setting", [NR, pace(20_000_000)], ids=["queue", "pace"])
def test_own_child_that_hangs_is_remembered_when_all_is_taken_up_again(
    systemd: FakeLevers, setting: Setting
) -> None:
    """As after a lost lease: the ledger is read again, and the child of before still waits."""
    found = systemd.state()
    actuator = started(systemd)
    systemd.stalled = True
    actuator.apply_settings((setting,))
    actuator.start()
    systemd.release()
    settle(actuator)
    assert systemd.state() == found and load(systemd.ledger) is None


@pytest.mark.parametrize("late", [False, True], ids=["asked in the loop", "asked for a child"])
def test_what_a_lost_lease_held_up_is_written_as_soon_as_there_is_another(
    plain: FakeLevers, late: bool
) -> None:
    """It is not the kernel that refused it."""
    refusing, asked = True, 0

    def permit() -> None:
        nonlocal asked
        asked += 1
        if refusing and (not late or asked > 1):
            raise LeaseLost("the lease was called in")

    actuator = Actuator(plain, plain.ledger, "restore", permit)
    actuator.start()
    (told,) = settle(actuator, NR)[:1]
    assert not told.ok and plain.queues["sda"]["nr_requests"] == 64
    refusing = False
    assert settle(actuator, NR)[-1].ok and plain.queues["sda"]["nr_requests"] == 8


@pytest.mark.parametrize("setting", [NR, pace(20_000_000)], ids=["queue", "pace"])
@pytest.mark.parametrize("told", [False, True], ids=["late when it wakes", "refused before"])
def test_what_was_late_while_all_stood_still_is_written_again_at_once(
    systemd: FakeLevers, setting: Setting, told: bool
) -> None:
    """Stopped past its lease: the child had its time, this process had not."""
    actuator = started(systemd)
    systemd.stalled = True
    actuator.apply_settings((setting,))
    systemd.jobs[0].overdue = True
    if told:
        actuator.apply_settings((setting,))
    actuator.start()
    actuator.apply_settings((setting,))
    name = {NR: "/sys/block/sda/queue/nr_requests"}.get(setting, "systemctl dump.service")
    systemd.write_errors[name] = (errno.ETIMEDOUT, False)
    systemd.release()
    systemd.write_errors.clear()
    assert any(action.ok for action in settle(actuator, setting))
    assert len(actuator.levers.entries) == 1


def test_what_was_refused_before_the_lease_was_lost_is_tried_at_once(systemd: FakeLevers) -> None:
    actuator = started(systemd)
    systemd.write_errors["systemctl dump.service"] = (errno.ETIMEDOUT, False)
    settle(actuator, pace(20_000_000))
    systemd.write_errors.clear()
    actuator.start()
    assert any(action.ok for action in settle(actuator, pace(20_000_000)))


class FewTasks:
    """Jobs that take a moment, in a unit in which so many may be under way (TasksMax=)."""

    def __init__(self, files: FakeLevers, most: int) -> None:
        self._files, self._most = files, most
        self.jobs: List[FakeJob] = []

    def job(self, work: Work, limit_s: float) -> FakeJob:
        full = sum(job.busy for job in self.jobs) >= self._most
        self._files.stalled = True
        job = FakeJob(self._files, no_task if full else work)
        self._files.stalled = False
        if full:
            job.go()
        else:
            job.wait = lambda timeout_s: job.go()  # type: ignore[method-assign]
            self.jobs.append(job)
        return job

    def second(self) -> None:
        for job in self.jobs:
            job.go()


def no_task(run: Run) -> None:
    raise ChildError("can't start new thread")


def test_a_shelf_of_disks_gets_along_with_the_tasks_of_a_unit(
    plain: FakeLevers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 24 disks below one array all but some were refused, and at the end not restored."""
    few, disks = FewTasks(plain, MOST_AT_ONCE), [f"sd{x}" for x in "bcdefghijklmnopqrstuvwxy"]
    monkeypatch.setattr(lever_plan, "Job", few.job)
    for number, disk in enumerate(disks):
        plain.plug(f"66:{number}", disk)
    found = plain.state()
    wishes = [
        Setting(LeverKind.QUEUE, disk, name, value)
        for disk in disks for name, value in (("nr_requests", 8), ("max_sectors_kb", 128))
    ]
    actuator = started(plain)
    actions: List[Action] = []
    for _ in range(len(wishes)):
        actions += actuator.apply_settings(wishes)
        few.second()
    assert all(action.ok for action in actions) and len(actions) == len(wishes)
    assert {str(plain.queues[disk]) for disk in disks} == {
        str({"nr_requests": 8, "max_sectors_kb": 128})
    }
    assert all(action.ok for action in actuator.finish())
    assert plain.state() == found and load(plain.ledger) is None
