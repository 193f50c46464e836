# SPDX-License-Identifier: GPL-2.0-or-later
"""Lease and watcher without a second process: who may write, who restores, at every point."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Callable, Iterator, List, Optional

import pytest

from fake_levers import FakeJob, FakeLevers
from fake_vm import DEFAULT, Crash, FakeVm
from limit_cases import MIB, ORIGINALS
from writebackd.actuate import lease, ledger_restore, lever_plan, watcher
from writebackd.actuate.actuator import Actuator
from writebackd.actuate.lease import Lease, LeaseLine, LeaseLost, WatchLine
from writebackd.actuate.lock import open_private, take_lock
from writebackd.actuate.watcher import BEAT_S, Watcher, take_watch
from writebackd.cli.restore import is_watched, restart_follows
from writebackd.kernel.child_process import Work
from writebackd.paths import LEASE, LEDGER, WATCH
from writebackd.types.levers import LeverKind, Setting

LENGTH_S = 10.0
FIRST, SECOND = (15 * MIB, 7 * MIB), (96 * MIB, 32 * MIB)


class Host:
    """A directory, a kernel, a daemon's half and a watcher, all in this process."""

    def __init__(
        self, directory: Path, files: Optional[FakeVm] = None, length_s: float = LENGTH_S
    ) -> None:
        self.directory = directory
        self.files = files or FakeVm()
        self.lock: Optional[int] = take_lock(directory)
        self.lease = Lease(directory, length_s)
        assert self.lease.take()
        self.actuator = Actuator(
            self.files, directory / LEDGER, "restore", self.lease.permit
        )
        self.actuator.start()
        self.watcher = Watcher(self.files, directory)

    def die(self) -> None:
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None

    def run_out(self) -> Optional[float]:
        """The watcher's look after the lease has run out."""
        self.watcher._wake_s = None  # it looked all the time
        return self.watcher.look(time.monotonic() + LENGTH_S + 0.1)

    def write(self) -> None:
        """As a daemon, until its lease is lost."""
        for pair in (FIRST, SECOND, FIRST, SECOND):
            self.actuator.apply(*pair)
            if self.lease.lost:
                break

    def at_write(self, number: int, event: Callable[[], object]) -> None:
        """`event` comes right before write `number`."""
        left = [number]

        def count(lever: str) -> None:
            left[0] -= 1
            if left[0] == -1:
                event()

        self.files.before_write = count

    @property
    def ledger(self) -> Path:
        return self.directory / LEDGER


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    made.die()


@pytest.fixture(autouse=True)
def said(monkeypatch: pytest.MonkeyPatch) -> List[str]:
    lines: List[str] = []
    monkeypatch.setattr(watcher, "say", lines.append)
    return lines


# ---- the lines -------------------------------------------------------------


def test_a_line_reads_as_it_was_written_and_damaged_it_is_none(tmp_path: Path) -> None:
    fd = open_private(tmp_path / LEASE)
    line = LeaseLine(3, 1234.5, 10.0, 42)
    lease.write_lease(fd, line)
    assert lease.read_lease(fd) == line
    assert lease.read_watch(fd) is None
    good = (tmp_path / LEASE).read_bytes()
    text = good.rstrip()
    for at in range(len(text)):
        (tmp_path / LEASE).write_bytes(good[:at])
        assert lease.read_lease(fd) is None
        (tmp_path / LEASE).write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        assert lease.read_lease(fd) is None


def test_a_line_of_an_earlier_boot_lasts_no_longer_than_a_lease() -> None:
    assert LeaseLine(1, 1e6, 10.0, 1).remaining_s(5.0) == 10.0


def test_writing_a_line_leaves_no_rest_of_a_longer_one(tmp_path: Path) -> None:
    fd = open_private(tmp_path / WATCH)
    lease.write_watch(fd, WatchLine(10**12, 1e9, "restoring", 10**6))
    lease.write_watch(fd, WatchLine(1, 1.0, "failed", 1))
    assert lease.read_watch(fd) == WatchLine(1, 1.0, "failed", 1)


# ---- the daemon's half -----------------------------------------------------


def test_a_lease_is_held_until_it_is_called_in(host: Host) -> None:
    assert host.lease.renew()
    host.lease.permit()
    host.run_out()
    assert host.lease.lost and not host.lease.renew()
    with pytest.raises(LeaseLost):
        host.lease.permit()
    assert host.lease.take()
    host.lease.permit()


def test_nothing_is_written_in_the_last_part_of_a_lease(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 0.89 * LENGTH_S)
    host.lease.permit()
    monkeypatch.setattr(time, "monotonic", lambda: now + 0.91 * LENGTH_S)
    with pytest.raises(LeaseLost, match="about to expire"):
        host.lease.permit()
    # Run out, but nobody restored: it goes on, and nothing jumps.
    monkeypatch.setattr(time, "monotonic", lambda: now + 2 * LENGTH_S)
    assert host.lease.renew()
    host.lease.permit()


def test_while_somebody_restores_no_lease_is_to_be_had(host: Host, tmp_path: Path) -> None:
    fd = open_private(tmp_path / LEASE)
    with lease.restoring(fd, 0.0) as mine:
        assert mine
        assert not host.lease.take()
    assert host.lease.take()


def test_a_damaged_file_counts_as_lost(host: Host, tmp_path: Path) -> None:
    os.truncate(tmp_path / LEASE, 7)
    assert host.lease.lost
    assert host.lease.take() and not host.lease.lost


def test_a_damaged_word_of_the_watcher_is_none(host: Host, tmp_path: Path) -> None:
    host.watcher.look(time.monotonic())
    (tmp_path / WATCH).write_bytes(b"\xff" * 128)
    assert not host.lease.lost
    host.watcher.look(time.monotonic())
    fd = open_private(tmp_path / WATCH)
    assert lease.read_watch(fd) is not None


# ---- the watcher -----------------------------------------------------------


def test_it_leaves_alone_what_is_renewed(host: Host) -> None:
    host.actuator.apply(*FIRST)
    for _ in range(3):
        assert host.watcher.look(time.monotonic()) == BEAT_S
        assert host.lease.renew()
    assert host.files.limits.dirty_bytes == FIRST[0]


@pytest.mark.parametrize("original", ORIGINALS.values(), ids=ORIGINALS)
def test_it_restores_when_the_daemon_hangs_and_keeps_the_ledger(
    tmp_path: Path, original: object, said: List[str]
) -> None:
    host = Host(tmp_path, FakeVm(original))  # type: ignore[arg-type]
    host.actuator.apply(*FIRST)
    assert host.run_out() is not None
    assert host.files.limits == original
    assert host.ledger.exists()
    assert f"process {os.getpid()} hangs" in said[0]
    host.die()
    # It finds the daemon dead: now the ledger can go, and so can it.
    assert host.watcher.look(time.monotonic() + LENGTH_S + 1) is None
    assert not host.ledger.exists()


def test_it_restores_when_the_daemon_is_gone_and_ends(host: Host, said: List[str]) -> None:
    host.actuator.apply(*FIRST)
    host.die()
    assert host.watcher.look(time.monotonic()) == BEAT_S  # a restart may come
    assert host.files.limits != host.files.found
    host.run_out()
    assert host.files.limits == host.files.found
    assert not host.ledger.exists()
    assert "is gone" in said[0]
    assert host.watcher.look(time.monotonic() + 20) is None


def test_an_orderly_stop_ends_it_though_the_limits_are_kept(host: Host) -> None:
    host.actuator.apply(*FIRST)
    host.lease.release()
    host.die()
    assert host.watcher.look(time.monotonic()) is None
    host.watcher.leave()
    assert host.files.limits.dirty_bytes == FIRST[0]


def test_woken_late_it_lets_the_daemon_speak_first_but_not_for_ever(host: Host) -> None:
    host.actuator.apply(*FIRST)
    now = time.monotonic()
    host.watcher.look(now)
    now += 3600  # all of the machine stood still
    rest = host.watcher.look(now)
    assert rest is not None and host.files.limits.dirty_bytes == FIRST[0]
    # Late again and again: a host that is merely busy.
    host.watcher.look(now + 5)
    host.watcher.look(now + 10)
    assert host.files.limits.dirty_bytes == 0


def test_without_a_readable_lease_it_waits_for_one_lease(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.actuator.apply(*FIRST)
    os.truncate(tmp_path / LEASE, 0)
    late = Watcher(host.files, tmp_path)
    now = time.monotonic()
    late.look(now)
    assert host.files.limits.dirty_bytes == FIRST[0]
    late._wake_s = None
    late.look(now + lease.DEFAULT_S + 0.1)
    assert host.files.limits.dirty_bytes == 0
    assert host.lease.lost  # the daemon, if it wakes, does not take them for its own


def test_told_to_end_it_restores_only_what_nobody_else_would(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.actuator.apply(*FIRST)
    renewed: List[bool] = []
    monkeypatch.setattr(time, "sleep", lambda seconds: renewed.append(host.lease.renew()))
    host.watcher.leave()
    assert host.files.limits.dirty_bytes == FIRST[0] and renewed == [True]  # the daemon lives
    host.die()
    host.watcher.leave()
    assert host.files.limits.dirty_bytes == 0


@pytest.mark.parametrize("silent_s", [0.0, 45.0])
def test_told_to_end_it_calls_in_the_long_lease_of_a_daemon_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: List[str], silent_s: float
) -> None:
    """One in D state, stopped: systemd gives up on it after 45 s, and ends the watcher."""
    host = Host(tmp_path, length_s=3600.0)
    host.actuator.apply(*FIRST)
    clock = [time.monotonic() + silent_s]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: clock.append(clock.pop() + seconds))
    host.watcher.look(clock[0])
    begun = clock[0]
    host.watcher.leave()
    assert host.files.limits == host.files.found and host.lease.lost
    # At once where it has been silent for long.
    assert clock[0] - begun < (1.0 if silent_s else 15.0)
    assert host.ledger.exists(), "it may wake up within a write"
    assert f"process {os.getpid()} hangs" in said[0]


def test_what_could_not_be_put_back_is_tried_again(host: Host) -> None:
    host.actuator.apply(*FIRST)
    host.files.write_errors["dirty_ratio"] = (30, False)  # EROFS
    host.run_out()
    assert host.files.limits.dirty_bytes == FIRST[0]
    assert host.files.limits.dirty_background_ratio == host.files.found.dirty_background_ratio
    host.files.write_errors.clear()
    host.watcher.look(time.monotonic() + 1)
    assert host.files.limits.dirty_bytes == FIRST[0]  # not at once
    host.watcher.look(time.monotonic() + LENGTH_S + 20)
    assert host.files.limits == host.files.found


def test_a_queue_that_hangs_has_one_child_however_often_it_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TasksMax= of its unit is 16, and a disk may hang for hours."""
    files = FakeLevers()
    monkeypatch.setattr(lever_plan, "Job", files.job)
    monkeypatch.setattr(ledger_restore, "WAIT_S", 0.01)
    before = files.state()
    host = Host(tmp_path, files)
    host.actuator.apply(*FIRST)
    host.actuator.apply_settings([Setting(LeverKind.QUEUE, "sda", "nr_requests", 8)])
    files.jobs.clear()
    files.stalled = True
    host.die()
    limits_s: List[float] = []

    def job(work: Work, limit_s: float) -> FakeJob:
        limits_s.append(limit_s)
        return files.job(work, limit_s)

    monkeypatch.setattr(lever_plan, "Job", job)
    host.run_out()
    for number in range(40):
        host.watcher.look(time.monotonic() + LENGTH_S + 10.0 * number)
    assert files.limits == DEFAULT and host.ledger.exists()
    assert len(files.jobs) == 1 and limits_s == [5.0]
    # Late, and given up: it may still write.
    files.jobs[0].overdue = True
    for number in range(40, 80):
        host.watcher.look(time.monotonic() + LENGTH_S + 10.0 * number)
    assert len(files.jobs) == 1
    files.release()
    for number in range(80, 83):
        host.watcher.look(time.monotonic() + LENGTH_S + 10.0 * number)
    assert files.state() == before and not host.ledger.exists()


def test_there_is_one_watcher_at_a_time(tmp_path: Path) -> None:
    assert not is_watched(tmp_path)
    assert take_watch(tmp_path)
    assert not take_watch(tmp_path)
    assert is_watched(tmp_path)


# ---- stopped and continued, at every point ---------------------------------


@pytest.mark.parametrize("point", range(8))
def test_a_daemon_stopped_before_a_write_does_not_leave_it_behind(
    tmp_path: Path, point: int
) -> None:
    """The watcher restores right before write number `point`: after the daemon's last check."""
    host = Host(tmp_path)
    host.at_write(point, host.run_out)
    host.write()
    assert host.lease.lost
    host.actuator.restore()  # as the daemon does at the end of such a tick
    assert host.files.limits == host.files.found
    # And it begins anew from the originals, as nobody's.
    host.files.before_write = lambda lever: None
    assert host.lease.take()
    host.actuator.start()
    assert host.actuator.originals == host.files.found
    assert host.actuator.foreign(host.files.limits) == ()
    assert all(action.ok for action in host.actuator.apply(*FIRST))
    host.actuator.restore()
    assert host.files.limits == host.files.found and not host.ledger.exists()


@pytest.mark.parametrize("point", range(8))
def test_one_that_is_killed_before_it_can_put_that_right(tmp_path: Path, point: int) -> None:
    host = Host(tmp_path)

    def stop() -> None:
        host.run_out()
        host.files.crash_before = 1  # this write, and no more

    host.at_write(point, stop)
    with contextlib.suppress(Crash):
        host.write()
    host.files.crash_before, host.files.before_write = None, lambda lever: None
    host.die()
    host.watcher.look(time.monotonic() + LENGTH_S + 1)
    assert host.files.limits == host.files.found
    assert not host.ledger.exists()


@pytest.mark.parametrize("point", range(8))
def test_a_daemon_killed_at_any_write(tmp_path: Path, point: int) -> None:
    host = Host(tmp_path)
    host.files.crash_before = point
    with pytest.raises(Crash):
        host.write()
    host.files.crash_before = None
    host.die()
    host.run_out()
    assert host.files.limits == host.files.found
    assert not host.ledger.exists()


@pytest.mark.parametrize("alive", [False, True], ids=["daemon dead", "daemon stopped"])
@pytest.mark.parametrize("point", range(3))
def test_a_watcher_killed_while_it_restores_is_made_good_by_the_next(
    tmp_path: Path, point: int, alive: bool
) -> None:
    host = Host(tmp_path)
    host.actuator.apply(*FIRST)
    host.files.crash_before = point
    if point < 2:
        with pytest.raises(Crash):
            host.run_out()
    else:
        host.run_out()
    host.files.crash_before = None
    assert host.lease.lost  # whatever is home, the daemon writes nothing on top of it
    host.watcher = Watcher(host.files, tmp_path)
    if not alive:
        host.die()
    host.watcher.look(time.monotonic() + LENGTH_S + 1)
    assert host.files.limits == host.files.found


def test_a_watcher_killed_after_a_refusal_is_made_good_by_the_next(host: Host) -> None:
    host.actuator.apply(*FIRST)
    host.files.write_errors["dirty_ratio"] = (30, False)  # EROFS
    host.run_out()
    host.files.write_errors.clear()
    host.watcher = Watcher(host.files, host.directory)
    host.watcher.look(time.monotonic() + LENGTH_S + 1)
    assert host.files.limits == host.files.found


def test_a_lease_is_called_in_on_record_before_anything_else(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watcher killed before the first write: the next one still knows."""
    host.actuator.apply(*FIRST)

    def killed(runtime_dir: Path) -> bool:
        raise Crash

    monkeypatch.setattr(watcher, "is_locked", killed)
    with pytest.raises(Crash):
        host.run_out()
    monkeypatch.undo()
    assert host.lease.lost
    host.watcher = Watcher(host.files, host.directory)
    host.watcher.look(time.monotonic() + LENGTH_S + 1)
    assert host.files.limits == host.files.found


def test_told_to_end_it_tries_as_long_as_it_may(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.actuator.apply(*FIRST)
    host.die()
    host.files.write_errors["dirty_ratio"] = (30, False)
    slept: List[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            host.files.write_errors.clear()

    monkeypatch.setattr(time, "sleep", sleep)
    host.watcher.leave()
    assert host.files.limits == host.files.found and len(slept) == 3
    host.files.write_errors["dirty_ratio"] = (30, False)
    # But it ends before systemd kills it.
    clock = iter(range(100))
    (host.directory / LEDGER).write_text("damaged")
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    host.watcher.leave()
    assert next(clock) < 60


def test_what_fails_again_and_again_is_told_once(host: Host, said: List[str]) -> None:
    host.actuator.apply(*FIRST)
    host.die()
    (host.directory / LEDGER).write_text("damaged")
    host.run_out()
    told = len(said)
    for seconds in range(20, 90, 10):
        host.watcher.look(time.monotonic() + seconds)
    assert told == 2 and len(said) == told


def test_a_word_comes_after_the_way_home_and_may_fail(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.actuator.apply(*FIRST)
    seen = []
    monkeypatch.setattr(watcher, "say", lambda text: seen.append(host.files.limits))
    host.run_out()
    assert seen and seen[0] == host.files.found
    monkeypatch.undo()

    def no_thread(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    watcher.say("nobody hears it")


def test_what_is_refused_after_the_loss_writes_nothing(host: Host) -> None:
    host.actuator.apply(*FIRST)
    host.run_out()
    writes = len(host.files.writes)
    actions = host.actuator.apply(*SECOND)
    assert actions and not any(action.ok for action in actions)
    setting = Setting(LeverKind.FLUSH, "vm", "dirty_writeback_centisecs", 100)
    host.actuator.apply_settings([setting])
    assert len(host.files.writes) == writes and host.files.limits == host.files.found


# ---- ExecStopPost= ---------------------------------------------------------


@pytest.mark.parametrize(("result", "code", "status", "follows"), [
    ("success", "exited", "0", False),
    ("success", "killed", "TERM", False),
    ("signal", "killed", "KILL", True),
    ("core-dump", "dumped", "ABRT", True),
    ("watchdog", "dumped", "ABRT", True),
    ("oom-kill", "killed", "KILL", True),
    ("exit-code", "exited", "1", True),
    ("exit-code", "exited", "2", False),  # RestartPreventExitStatus=2 4
    ("exit-code", "exited", "4", False),
    ("start-limit-hit", "exited", "1", False),
])  # fmt: skip
def test_a_restart_follows_as_the_unit_says(
    result: str, code: str, status: str, follows: bool
) -> None:
    environment = {"SERVICE_RESULT": result, "EXIT_CODE": code, "EXIT_STATUS": status}
    assert restart_follows(environment) is follows


def test_by_hand_no_restart_follows() -> None:
    assert not restart_follows({})


# ---- the process -----------------------------------------------------------

# A whole life on a tree of files instead of the kernel's; what was imported on the way.
_LIFE = """
import sys, os, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from writebackd.actuate import lease, lever_writer as levers, ledger_restore as restore, watcher
from writebackd.kernel.files import KernelFiles
root, run = Path(sys.argv[2]), Path(sys.argv[3])
watcher.take_watch(run)
one = watcher.Watcher(KernelFiles(root), run)
before = set(sys.modules)
one.look(time.monotonic())
one._wake_s = None
one.look(time.monotonic() + 60)
lost = [name for name in sys.modules if not name.startswith("writebackd")
        and getattr(sys.modules[name], "__file__", None)
        and not sys.modules[name].__file__.startswith((sys.prefix, sys.base_prefix + "/lib"))]
print(sorted(set(sys.modules) - before), lost)
"""


@pytest.mark.parametrize("journal", ["there", "gone", "hung"])
def test_on_the_way_home_nothing_is_imported_any_more(tmp_path: Path, journal: str) -> None:
    """With the stream of a journal, a socket, as its stderr."""
    reader, stderr = socket.socketpair()
    if journal == "gone":
        reader.close()
    if journal == "hung":
        stderr.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                stderr.send(bytes(4096))
        stderr.setblocking(True)
    run, root = tmp_path / "run", tmp_path / "root"
    run.mkdir()
    host = Host(run)
    host.actuator.apply(*FIRST)
    values = dict(vars(host.files.limits))
    (root / "proc/sys/vm").mkdir(parents=True)
    (root / "proc/sys/kernel/random").mkdir(parents=True)
    (root / "proc/sys/kernel/random/boot_id").write_text(host.files.boot_id)
    for name, value in values.items():
        (root / "proc/sys/vm" / name).write_text(str(value))
    host.die()
    agent = Path(watcher.__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _LIFE, str(agent), str(root), str(run)],
        stdout=subprocess.PIPE, stderr=stderr.fileno(), text=True, timeout=30,
    )  # fmt: skip
    stderr.close()
    assert (done.returncode, done.stdout.strip()) == (0, "[] []")
    if journal == "there":
        assert b"restoring" in reader.recv(1 << 16)
    reader.close()
    assert (root / "proc/sys/vm/dirty_ratio").read_text() == "20"
