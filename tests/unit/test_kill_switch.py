# SPDX-License-Identifier: GPL-2.0-or-later
"""The kill switch; children with a time limit."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, Optional

import pytest

from writebackd.actuate.kill_switch import KillSwitch
from writebackd.kernel import child_process, lever_files
from writebackd.kernel.child_process import ChildError, Job, Run, Work, write_in_child
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.lever_files import Lever
from writebackd.types.levers import LeverKind

CODES = [errno.EIO, errno.EACCES, errno.ELOOP]


@pytest.mark.parametrize("code", CODES, ids=[errno.errorcode[code] for code in CODES])
def test_what_cannot_be_looked_at_is_as_it_was_seen_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    failing = False
    look = os.lstat

    def lstat(path: Any, **more: Any) -> os.stat_result:
        if failing and str(path).startswith(str(tmp_path)):
            raise OSError(code, os.strerror(code), str(path))
        return look(path, **more)

    monkeypatch.setattr(os, "lstat", lstat)
    memory, disk = tmp_path / "run-off", tmp_path / "etc-off"
    switch = KillSwitch(memory, disk)
    try:
        failing = True
        assert switch.file() is None
        failing = False
        memory.symlink_to(tmp_path / "nowhere")
        assert switch.file() == memory
        failing = True
        assert switch.file() == memory
        failing = False
        memory.unlink()
        assert switch.file() is None
        # Never seen at all, it is taken to be there.
        failing = True
        other = KillSwitch(memory, disk)
        assert other.file() == memory
        other.close()
    finally:
        switch.close()


def test_a_directory_that_is_none_holds_no_file(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    switch = KillSwitch(tmp_path / "off", tmp_path / "plain/off")
    assert switch.file() is None
    switch.close()


def test_a_file_on_the_disk_is_seen_within_seconds(tmp_path: Path) -> None:
    switch = KillSwitch(tmp_path / "run-off", tmp_path / "etc-off")
    try:
        (tmp_path / "etc-off").touch()
        until = time.monotonic() + 3.0
        while switch.file() is None and time.monotonic() < until:
            time.sleep(0.05)
        assert switch.file() == tmp_path / "etc-off"
    finally:
        switch.close()


def done(work: Work, limit_s: float = 10.0) -> Job:
    job = Job(work, limit_s)
    job.wait(20.0)
    assert not job.busy and job.decided
    return job


def test_value_is_written_in_one_piece(tmp_path: Path) -> None:
    file = tmp_path / "nr requests; $(x)"
    file.write_text("something longer")
    assert done(write_in_child(str(file), "64")).failure() is None
    assert file.read_text() == "64"


def test_missing_file_is_an_error_and_not_made(tmp_path: Path) -> None:
    failure = done(write_in_child(str(tmp_path / "none"), "64")).failure()
    assert isinstance(failure, FileNotFoundError)
    assert os.listdir(tmp_path) == []


def test_errno_of_the_write_comes_back() -> None:
    failure = done(write_in_child("/dev/full", "64")).failure()
    assert isinstance(failure, OSError) and failure.strerror == "No space left on device"


def test_child_without_the_daemons_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_MESSAGES", "de_DE.UTF-8")
    seen = []

    def work(run: Run) -> None:
        seen.append(run(("/bin/sh", "-c", "env; echo problem >&2; exit 3")))

    assert done(work).failure() is None
    (ended,) = seen
    assert (ended.code, ended.errors) == (3, "problem\n")
    assert "LC_ALL=C\n" in ended.output and "LC_MESSAGES" not in ended.output


def test_what_takes_too_long_is_told_and_killed() -> None:
    def work(run: Run) -> None:
        run(("/bin/sleep", "60"))

    begun = time.monotonic()
    job = Job(work, 0.2)
    assert time.monotonic() - begun < 0.2 and job.busy and not job.decided
    job.wait(20.0)
    assert time.monotonic() - begun < 10
    failure = job.failure()
    assert isinstance(failure, ChildError) and "not done within 0.2 s" in str(failure)


def test_work_that_cannot_be_interrupted_is_decided_but_busy() -> None:
    """As a child in the kernel, which no signal reaches."""
    job = Job(lambda run: time.sleep(0.6), 0.1)
    job.wait(0.2)
    assert job.busy and job.decided and isinstance(job.failure(), ChildError)
    job.wait(20.0)
    assert job.failure() is None


def test_missing_program_is_an_error() -> None:
    def work(run: Run) -> None:
        run(("no-such-program",))

    failure = done(work).failure()
    assert isinstance(failure, ChildError) and "no-such-program" in str(failure)


def test_without_room_for_a_thread_or_a_child_it_has_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    def no_thread(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    # No word of the kernel's on the write, as an OSError would be.
    assert isinstance(done(write_in_child("/dev/full", "64")).failure(), ChildError)
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    job = Job(write_in_child("/dev/full", "64"), 10.0)
    assert job.decided and isinstance(job.failure(), ChildError)


def queue(disk: str) -> str:
    return f"/sys/block/{disk}/queue"


def queue_file(root: Path, disk: str, text: Optional[str]) -> Path:
    """One of a disk's; None: whoever opens it waits for a writer, as behind a disk that hangs."""
    file = root / f"{queue(disk)}/nr_requests".lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    if text is None:
        os.mkfifo(file)
    else:
        file.write_text(text)
    return file


def lever(disk: str) -> Lever:
    return Lever(LeverKind.QUEUE, disk, "nr_requests")


def test_a_queue_that_cannot_be_read_holds_nobody_up(tmp_path: Path) -> None:
    """As behind somebody who writes queue/max_sectors_kb of a disk that hangs."""
    queue_file(tmp_path, "sdb", "64\n")
    stuck = queue_file(tmp_path, "sda", None)
    files, seen = KernelFiles(tmp_path), []

    def read() -> None:
        for _ in range(3):
            with pytest.raises(OSError, match="busy"):
                lever_files.read(files, lever("sda"))
            other = lever_files.read(files, lever("sdb"))
            seen.append((other, threading.active_count()))

    tick = threading.Thread(target=read, daemon=True)
    tick.start()
    tick.join(10.0)
    assert not tick.is_alive() and [text for text, _ in seen] == ["64"] * 3
    assert len({threads for _, threads in seen}) == 1, "each try leaves a thread more"
    stuck.write_text("32\n")
    child_process._hanging[str(stuck.parent)].wait(10.0)
    queue_file(tmp_path, "sda", "16\n")
    assert lever_files.read(files, lever("sda")) == "16"


def test_a_shelf_of_queues_that_cannot_be_read_takes_few_threads(tmp_path: Path) -> None:
    """TasksMax= of the unit is 48."""
    files, disks = KernelFiles(tmp_path), [f"sd{letter}" for letter in "abcdefghijklmnopqrst"]
    for disk in disks:
        queue_file(tmp_path, disk, None)
    before = threading.active_count()
    for disk in disks * 2:
        with pytest.raises(OSError, match="busy"):
            child_process.read(files, queue(disk), "nr_requests")
    assert threading.active_count() - before <= 8
    for home, job in list(child_process._hanging.items()):
        (Path(home) / "nr_requests").write_text("32\n")
        job.wait(10.0)
    queue_file(tmp_path, disks[-1], "64\n")
    assert child_process.read(files, queue(disks[-1]), "nr_requests") == "64"
