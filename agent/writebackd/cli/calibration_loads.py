# SPDX-License-Identifier: GPL-2.0-or-later
"""The loads of a calibration: a process that floods, one that syncs, each with its own file.

The files have no name, and both processes die with their parent: nothing is left after kill -9.  If
the parent is stopped or hangs, its limits are restored, and the loads become idle.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import random
import signal
import time
from pathlib import Path
from typing import Callable, List, Optional, Tuple

# Of the file that is synced: more blocks than a few seconds write twice.
DATABASE_BYTES = 64 << 20
_PREPARE_S = 2.0  # that its making may take, on a slow disk
BLOCK_BYTES = 1 << 20  # that the flood writes at once
_COMMIT, _PIECE = 4096, 4 << 20
# Pages so far behind what may be dirty are clean, and leave memory to the host's own.
_BEHIND = 64 << 20
_IDLE_S = 0.005  # between two looks at the orders
# An order lasts half of the default lease, at whose end the limits are restored.
ORDER_S = 5.0
_END_S = 10.0  # for a process that is killed: one in the kernel ends when the disk lets it
_PR_SET_PDEATHSIG = 1
# Numbers of 64 bits, which both sides read and one writes.
_FLOOD, _WAIT_NS, _WRITTEN, _SYNCS, _SYNC_NS, _READY, _ERROR, _LIMIT, _UNTIL_NS = range(9)
_NO_SYNCS = -1


class Loads:
    """Both are idle until the first `order`.

    Create it before the first thread, since it forks.
    """

    def __init__(self, directory: Path, budget_bytes: int) -> None:
        """Raises OSError naming the directory."""
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self._shared = memoryview(self._memory).cast("q")
        self._shared[_WAIT_NS] = _NO_SYNCS
        self.pids: Tuple[int, ...] = ()
        self._files: List[int] = []
        try:
            for work in (self._flood, self._sync):
                file = _nameless(directory)
                self._files.append(file)
                self.pids += (self._started(work, file, budget_bytes),)
        except BaseException:
            self.close()
            raise

    def _started(self, work: Callable[[int, int], None], file: int, budget_bytes: int) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        try:
            # Ctrl-C is for the parent, which ends this one; its own end does so in any case.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() == parent:
                work(file, budget_bytes)
        except OSError as error:
            self._shared[_ERROR] = error.errno or errno.EIO
        finally:
            self._shared[_ERROR] = self._shared[_ERROR] or errno.EIO  # no work ends by itself
            os._exit(0)

    # ---- in the children ---------------------------------------------------

    def _flood(self, file: int, budget_bytes: int) -> None:
        shared, block, dropped = self._shared, os.urandom(BLOCK_BYTES), 0
        while True:
            written = shared[_WRITTEN]
            if not shared[_FLOOD] or written + BLOCK_BYTES > budget_bytes or self._is_stale():
                time.sleep(_IDLE_S)
                continue
            shared[_WRITTEN] = written + os.pwrite(file, block, written)
            clean = written - 2 * shared[_LIMIT] - _BEHIND
            if clean - dropped >= _BEHIND:
                os.posix_fadvise(file, dropped, clean - dropped, os.POSIX_FADV_DONTNEED)
                dropped = clean

    def _sync(self, file: int, _budget_bytes: int) -> None:
        shared, piece, size = self._shared, os.urandom(_PIECE), 0
        while self._is_stale():
            time.sleep(_IDLE_S)
        begun = time.monotonic()
        while size < DATABASE_BYTES and (not size or time.monotonic() - begun < _PREPARE_S):
            size += os.pwrite(file, piece, size)
            os.fsync(file)
        # Written at once, megabytes are one folio, all of which counts as dirty for any block.
        os.posix_fadvise(file, 0, size, os.POSIX_FADV_DONTNEED)
        shared[_READY] = 1
        chance, blocks = random.Random(1), size // _COMMIT
        while True:
            wait_ns = shared[_WAIT_NS]
            if wait_ns == _NO_SYNCS or self._is_stale():
                time.sleep(_IDLE_S)
                continue
            began_ns = time.monotonic_ns()
            os.pwrite(file, piece[:_COMMIT], chance.randrange(blocks) * _COMMIT)
            os.fsync(file)
            shared[_SYNCS] += 1
            shared[_SYNC_NS] += time.monotonic_ns() - began_ns
            if wait_ns:
                time.sleep(wait_ns / 1e9)

    def _is_stale(self) -> bool:
        """Whether the last order is older than ORDER_S."""
        return time.monotonic_ns() > self._shared[_UNTIL_NS]

    # ---- in the parent -----------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether the file to sync exists."""
        return bool(self._shared[_READY])

    @property
    def problem(self) -> str:
        """Why one of them ended; empty if none did."""
        if self._shared[_ERROR]:
            return os.strerror(self._shared[_ERROR])
        killed = next(filter(_has_ended, self.pids), None)
        return "" if killed is None else f"load (pid {killed}) was killed"

    @property
    def syncs(self) -> int:
        return self._shared[_SYNCS]

    @property
    def sync_s(self) -> float:
        """How long the syncs took, with the writes before them."""
        return self._shared[_SYNC_NS] / 1e9

    @property
    def written_bytes(self) -> int:
        return self._shared[_WRITTEN]

    def order(self, flood: bool, sync_wait_s: Optional[float], limit_bytes: int) -> None:
        """Run for ORDER_S; then both become idle."""
        self._shared[_LIMIT] = limit_bytes
        self._shared[_WAIT_NS] = _NO_SYNCS if sync_wait_s is None else int(sync_wait_s * 1e9)
        self._shared[_FLOOD] = int(flood)
        self._shared[_UNTIL_NS] = time.monotonic_ns() + int(ORDER_S * 1e9)

    def stop(self) -> None:
        """Stop writing. Does not wait."""
        self.order(False, None, 0)
        for pid in self.pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """Drop the files, and their dirty pages."""
        self.stop()
        for file in self._files:
            os.close(file)
        until, left = time.monotonic() + _END_S, list(self.pids)
        while left and time.monotonic() < until:
            left = [pid for pid in left if os.waitpid(pid, os.WNOHANG)[0] == 0]
            time.sleep(_IDLE_S)


def _has_ended(pid: int) -> bool:
    """Whether it has ended; does not reap it."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _nameless(directory: Path) -> int:
    try:
        return os.open(directory, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            raise
    path = directory / f".writebackd-calibrate-{os.urandom(8).hex()}"
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    os.unlink(path)
    return file
