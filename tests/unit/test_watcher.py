# SPDX-License-Identifier: GPL-2.0-or-later
"""The races between daemon and watcher, and whom the daemon takes for a watcher that hangs."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Iterator, List, Optional, Sequence

import pytest

from limit_cases import MIB
from test_lease import Host
from writebackd.actuate import lease, lock, watcher
from writebackd.actuate.lease import LeaseLine, LeaseLost, WatchLine, write_lease, write_watch
from writebackd.actuate.lock import hold, is_locked, open_private, take_lock
from writebackd.actuate.watcher import BEAT_S, NAME
from writebackd.actuate.watcher_supervisor import WatcherSupervisor
from writebackd.paths import LEASE, LOCK, WATCH

FIRST = (15 * MIB, 7 * MIB)
Patch = pytest.MonkeyPatch


# ---- a daemon that looks after its watcher -----------------------------------------


class Looked:
    """A daemon's half, a clock, and a process that holds the watcher's lock."""

    def __init__(self, directory: Path, patch: Patch, comm: str) -> None:
        self.now = 1000.0
        name = f"open('/proc/self/comm', 'w').write({comm!r}); import time; print(1, flush=True)"
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", f"{name}; time.sleep(60)"], stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None and self.process.stdout.readline()
        self._fd = open_private(directory / WATCH)
        assert hold(self._fd)
        self.watch = WatcherSupervisor(directory)
        patch.setattr(time, "monotonic", lambda: self.now)

    def says(self, beat_s: float, state: str = "watching") -> None:
        write_watch(self._fd, WatchLine(0, beat_s, state, self.process.pid))

    def tend(self, later_s: float) -> Optional[int]:
        """A look after so many seconds; how the process has ended by then, None: it lives."""
        self.now += later_s
        self.watch.tend()
        if self.watch.pid is None:  # it was given up
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.1)
        return self.process.poll()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        os.close(self._fd)


Look = Callable[[str], Looked]


@pytest.fixture
def looked(tmp_path: Path, monkeypatch: Patch) -> Iterator[Look]:
    made: List[Looked] = []

    def make(comm: str) -> Looked:
        made.append(Looked(tmp_path, monkeypatch, comm))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_watcher_that_beats_lives(looked: Look) -> None:
    one = looked(NAME)
    for second in range(30):
        one.says(float(second))
        assert one.tend(BEAT_S) is None
    assert one.watch.pid == one.process.pid


@pytest.mark.parametrize("state, limit_s", [("watching", 5.0), ("restoring", 20.0)])
def test_one_without_a_beat_is_killed_one_that_restores_later(
    looked: Look, state: str, limit_s: float
) -> None:
    one = looked(NAME)
    one.says(1.0, state)
    assert one.tend(0.0) is None
    assert one.tend(limit_s - 0.1) is None
    assert one.tend(0.2) == -9 and one.watch.pid is None


def test_a_process_that_was_given_its_number_is_left_alone(looked: Look) -> None:
    one = looked("database")
    one.says(1.0)
    for _ in range(3):
        assert one.tend(30.0) is None


def test_after_a_pause_of_the_machine_both_are_late(looked: Look) -> None:
    one = looked(NAME)
    one.says(1.0)
    assert one.tend(0.0) is None
    one.says(3600.0)  # it came back first
    assert one.tend(3600.0) is None


@pytest.mark.parametrize("patience_s", [0.0, 3.0])
def test_one_that_somebody_else_starts_is_waited_for(
    tmp_path: Path, monkeypatch: Patch, patience_s: float
) -> None:
    now, begun = [1000.0], list[float]()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    watch = WatcherSupervisor(tmp_path, patience_s)
    monkeypatch.setattr(watch, "_start", begun.append)
    other = open_private(tmp_path / WATCH)

    def tend_for(seconds: float) -> bool:
        del begun[:]
        for _ in range(round(seconds / 0.5)):
            now[0] += 0.5
            watch.tend()
        return bool(begun)

    assert tend_for(2.5) == (patience_s == 0.0)
    assert hold(other)
    assert not tend_for(60.0)
    fcntl.flock(other, fcntl.LOCK_UN)
    assert tend_for(2.5) == (patience_s == 0.0)
    assert tend_for(1.5)
    os.close(other)


@pytest.mark.parametrize(
    ("kind", "journal", "kept"),
    [(stat.S_IFREG, "8:1", True), (stat.S_IFIFO, "8:1", False), (stat.S_IFSOCK, "8:1", False),
     (stat.S_IFSOCK, "8:7", True)],
)  # fmt: skip
def test_it_keeps_no_stderr_that_somebody_reads_to_its_end(
    tmp_path: Path, monkeypatch: Patch, kind: int, journal: str, kept: bool
) -> None:
    started = []

    class Child:
        def __init__(self, argv: Sequence[str], stderr: int, **options: Any) -> None:
            started.append(stderr)

        def wait(self) -> None: ...

    monkeypatch.setenv("JOURNAL_STREAM", journal)
    monkeypatch.setattr(os, "fstat", lambda fd: os.stat_result((kind, 7, 8, *[0] * 7)))
    monkeypatch.setattr(subprocess, "Popen", Child)
    WatcherSupervisor(tmp_path)._main()
    assert started == [2 if kept else subprocess.DEVNULL]


# ---- who is first --------------------------------------------------------------------


@pytest.fixture
def host(tmp_path: Path, monkeypatch: Patch) -> Iterator[Host]:
    monkeypatch.setattr(watcher, "say", lambda text: None)
    made = Host(tmp_path)
    made.actuator.apply(*FIRST)
    yield made
    made.die()


def before_the_hand(patch: Patch, event: Callable[[], Any]) -> None:
    """`event` comes after the watcher has looked, and before it may restore."""
    real = lease.restoring

    @contextlib.contextmanager
    def restoring(fd: int, wait_s: float) -> Iterator[bool]:
        patch.setattr(lease, "restoring", real)
        event()
        with real(fd, wait_s) as free:
            yield free

    patch.setattr(lease, "restoring", restoring)


def test_a_daemon_that_renews_in_the_last_moment_keeps_its_lease(
    host: Host, monkeypatch: Patch
) -> None:
    host.watcher.look(time.monotonic())
    before_the_hand(monkeypatch, lambda: host.lease.renew())
    host.run_out()
    assert host.files.limits.dirty_bytes == FIRST[0] and not host.lease.lost
    host.run_out()  # which it does not renew
    assert host.files.limits.dirty_ratio == 20 and host.lease.lost


def test_a_daemon_that_begins_while_another_s_is_brought_home_is_left_alone(
    host: Host, monkeypatch: Patch
) -> None:
    """As after a refusal: the watcher tries again, and a new daemon has taken all up."""
    host.watcher.look(time.monotonic())
    host.files.write_errors["dirty_ratio"] = (30, False)
    host.die()
    host.run_out()
    assert host.files.limits.dirty_bytes == FIRST[0], "the check itself does not work"
    host.files.write_errors.clear()

    def begin() -> None:
        host.lock = take_lock(host.directory)
        assert host.lease.take()
        host.actuator.start()

    before_the_hand(monkeypatch, begin)
    host.watcher._again_s = 0.0
    host.watcher.look(time.monotonic())
    assert host.files.limits.dirty_bytes == FIRST[0] and not host.lease.lost


def test_another_word_in_the_lease_than_ours_counts_as_lost(host: Host) -> None:
    """The watcher may have judged by it."""
    fd = open_private(host.directory / LEASE)
    now = lease.read_lease(fd)
    assert now is not None
    host.lease.permit()
    write_lease(fd, LeaseLine(now.epoch + 1, now.until_s, now.length_s, now.pid))
    os.close(fd)
    assert host.lease.lost and not host.lease.renew()
    with pytest.raises(LeaseLost):
        host.lease.permit()


# ---- locks -------------------------------------------------------------------------


def test_who_only_looks_is_no_daemon(tmp_path: Path) -> None:
    """Doctor, a watcher and a restore may look at the same moment."""
    assert is_locked(tmp_path) is False
    fd = open_private(tmp_path / LOCK)
    fcntl.flock(fd, fcntl.LOCK_SH)
    assert is_locked(tmp_path) is False
    os.close(fd)
    fd = take_lock(tmp_path)
    assert is_locked(tmp_path) is True
    os.close(fd)


def test_a_lock_is_waited_for_as_long_as_was_asked(tmp_path: Path, monkeypatch: Patch) -> None:
    fd, other = open_private(tmp_path / LOCK), open_private(tmp_path / LOCK)
    assert hold(other) and not hold(fd)
    monkeypatch.setattr(time, "sleep", lambda seconds: os.close(other))
    assert hold(fd, 5.0)
    os.close(fd)


@pytest.mark.parametrize("code", [errno.ENFILE, errno.EMFILE, errno.ENOMEM, errno.EIO])
def test_where_nobody_can_look_a_daemon_may_live(
    host: Host, monkeypatch: Patch, code: int
) -> None:
    """It may wake up within a write: the limits go home, the ledger stays."""

    def full(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    assert is_locked(host.directory / "nowhere") is False
    with monkeypatch.context() as patch:
        patch.setattr(lock, "open", full, raising=False)
        assert is_locked(host.directory) is True
        host.watcher.look(time.monotonic())
        host.run_out()
        assert host.files.limits.dirty_ratio == 20 and host.ledger.exists()
    host.die()
    host.run_out()
    assert not host.ledger.exists()


def test_a_lock_that_others_could_hold_is_taken_from_them(tmp_path: Path) -> None:
    """flock(2) needs a descriptor for reading only; an earlier release left it to all."""
    (tmp_path / LOCK).touch(0o644)
    os.close(take_lock(tmp_path))
    assert stat.S_IMODE((tmp_path / LOCK).stat().st_mode) == 0o600
