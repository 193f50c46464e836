# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs work that may hang in a thread or a child process, with a time limit.

A write to queue/* freezes the queue until the requests in flight are done: while a
disk stalls it sleeps and cannot be killed.  systemctl waits for systemd.  Starting a
program may wait for the disk that it lies on, so a thread does it.  Kernel files whose
read may wait for a lock are read in a thread each.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from math import inf
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from writebackd.kernel.files import KernelFiles

# vfork() holds up the whole process with its lock on Python, not only the thread that
# starts a program, until the kernel has read that from its disk; fork() does not.
subprocess._USE_VFORK = False  # type: ignore[attr-defined]

log = logging.getLogger(__name__)

Run = Callable[[Sequence[str]], "Ended"]
Work = Callable[[Run], None]  # raises when it failed: OSError or ChildError, or a bug's

# One write(2); the exit code is its errno.  posix is built in, and with -I -S
# hardly a file is read: 15 ms.
_WRITE = """
import posix, sys
try:
    fd = posix.open(sys.argv[1], posix.O_WRONLY | posix.O_TRUNC)
    posix.write(fd, sys.argv[2].encode())
except OSError as error:
    sys.exit(error.errno)
"""


class ChildError(Exception):
    """A child failed, or exceeded its time limit; the text says which."""


class Ended(NamedTuple):
    """The result of a child: exit code (minus the signal), standard output and error."""

    code: int
    output: str
    errors: str


class Job:
    """Work in a thread of its own, whose children get `limit_s` seconds.

    `failure()` tells what came of it.  A child that is in the kernel cannot be
    killed: the job is `busy` until it has gone, however late that is.
    """

    def __init__(self, work: Work, limit_s: float, name: str = "lever") -> None:
        self._limit_s = limit_s
        self._deadline = time.monotonic() + limit_s
        self._work = work
        self._error: Optional[Exception] = None
        self._late: Optional["subprocess.Popen[str]"] = None
        # Not waited for at exit: what hangs would keep the process.
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # TasksMax= of the unit
            self._error = ChildError(str(error))

    @property
    def busy(self) -> bool:
        """Whether it may still write."""
        return self._thread.is_alive()

    @property
    def decided(self) -> bool:
        """Whether it is done, or has exceeded its time limit."""
        return not self.busy or time.monotonic() > self._deadline

    def failure(self) -> Optional[Exception]:
        """What the work raised, or a ChildError, once `decided`; None if it succeeded."""
        return ChildError(f"not done within {self._limit_s:g} s") if self.busy else self._error

    def wait(self, timeout_s: float) -> None:
        """Wait until it is done, `timeout_s` seconds at most."""
        if self.busy:  # or it may never have begun
            self._thread.join(max(0.0, timeout_s))

    def _main(self) -> None:
        try:
            self._work(self._run)
        except Exception as error:
            self._error = error
            if not isinstance(error, (OSError, ChildError)):  # a bug: not everybody asks `failure`
                log.exception("%s: %s", self._thread.name, error)
        if self._late is not None:
            self._late.wait()

    def _run(self, argv: Sequence[str]) -> Ended:
        try:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"},
                start_new_session=True,  # Ctrl-C is for the daemon, which has to finish this
            )
        except OSError as error:  # not to be taken for the kernel's word on the write
            raise ChildError(f"cannot start a child process: {error}") from None
        try:
            output, errors = child.communicate(timeout=self._deadline - time.monotonic())
        except subprocess.TimeoutExpired:
            child.kill()
            self._late = child
            raise ChildError(f"not done within {self._limit_s:g} s") from None
        return Ended(child.returncode, output, errors)


def write_in_child(path: str, value: str) -> Work:
    """Work that writes `value` to the file at `path` in one write(2)."""

    def work(run: Run) -> None:
        ended = run((sys.executable, "-I", "-S", "-c", _WRITE, path, value))
        if ended.errors or ended.code < 0:
            raise ChildError(ended.errors.strip() or f"ended by signal {-ended.code}")
        if ended.code:
            raise OSError(ended.code, os.strerror(ended.code))

    return work


# From the signal on; what is in the kernel then is left to systemd.
_DIES_S = 2.0
_MOST_ERRORS = 4096  # bytes of standard error: a line of it tells why there is no output


def output_of(
    argv: Sequence[str], home: str, environment: Mapping[str, str], limit_s: float, most: int
) -> Tuple[int, bytes, bytes]:
    """Exit code, output and the beginning of standard error.

    A little more output than `most` means that there was too much.

    The program and its children are killed when it is done, or over its time. Raises OSError,
    TimeoutError.
    """
    child = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        cwd=home, env=environment, start_new_session=True,
    )  # fmt: skip
    try:
        output, errors = _read(child, time.monotonic() + limit_s, limit_s, most)
    finally:
        _end(child)
    return child.returncode or 0, output, errors


def _read(
    child: "subprocess.Popen[bytes]", deadline: float, limit_s: float, most: int
) -> Tuple[bytes, bytes]:
    assert child.stdout is not None and child.stderr is not None
    chunks: List[bytes] = []
    size, errors = 0, b""
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        selector.register(child.stderr, selectors.EVENT_READ)
        while True:
            left = deadline - time.monotonic()
            ready = [key.fileobj for key, _ in selector.select(left)] if left > 0 else []
            if not ready:
                raise TimeoutError(f"not done within {limit_s:g} s")
            if child.stderr in ready:
                said = os.read(child.stderr.fileno(), 1 << 16)
                errors = (errors + said)[:_MOST_ERRORS]
                if not said:
                    selector.unregister(child.stderr)
            if child.stdout in ready:
                chunk = os.read(child.stdout.fileno(), 1 << 16)
                chunks.append(chunk)
                size += len(chunk)
                if not chunk or size > most:
                    return b"".join(chunks), errors


def _end(child: "subprocess.Popen[bytes]") -> None:
    """Kill the program and its children; one that closed its output may be about to end."""
    assert child.stdout is not None and child.stderr is not None
    child.stdout.close()
    child.stderr.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        if child.poll() is None:
            child.wait(0.1)
    # The group lives while anybody in it does, also when its leader is gone.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_DIES_S)


# A read takes 20 us, or as long as the lock's holder waits for a hung disk.
_READ_S = 0.05
# While one hangs the others are waited for this long, so that a whole shelf costs little.
_READ_MORE_S = 0.002
# Each keeps a thread, of which the unit has few (TasksMax=).
_MOST_HANGING = 8

_hanging: Dict[str, Job] = {}  # reads that have not come back, by directory


def read(files: KernelFiles, directory: str, name: str) -> str:
    """The content of `name` in `directory`, whose files share a lock.

    Raises OSError; EBUSY if the read takes too long.
    """
    for home in [home for home, job in _hanging.items() if not job.busy]:
        del _hanging[home]
    home, file = str(files.path(directory)), f"{directory}/{name}"
    if home not in _hanging and len(_hanging) < _MOST_HANGING:
        texts: List[str] = []
        job = Job(lambda _: texts.append(files.read(file)), inf, "read")
        job.wait(_READ_MORE_S if _hanging else _READ_S)
        if not job.busy:
            failure = job.failure()
            if isinstance(failure, ChildError):  # no thread
                raise OSError(errno.EAGAIN, str(failure), file)
            if failure is not None:
                raise failure
            return texts[0]
        _hanging[home] = job
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), file)
