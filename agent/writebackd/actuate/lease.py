# SPDX-License-Identifier: GPL-2.0-or-later
"""The lease: until when the limits stand without a renewal by the daemon.

Two files of one line each in the runtime directory, each with one writer, so that none can undo the
other's word: in `lease` the daemon says until when, in `watch` the watcher (watcher.py) says up to
which epoch it has called leases in. The daemon holds its lease while its epoch is the higher one.
The lines have a fixed length and are written over in place; a checksum tells a torn or damaged one.

The clock is CLOCK_MONOTONIC, which stands still while the machine is suspended, as both processes
do: with CLOCK_BOOTTIME every resume would find the lease run out, and whether the limits jump would
be a race between two processes that wake up.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
import zlib
from pathlib import Path
from typing import Iterator, List, NamedTuple, Optional

from writebackd.actuate.lock import hold, open_private
from writebackd.paths import LEASE, WATCH

DEFAULT_S = 10.0
# The daemon writes nothing in the last part of its lease: this long it may be off the
# processor between looking at the clock and the write, and not write behind the watcher.
GUARD_SHARE = 0.1

_LINE = 128  # bytes
_LEASE, _WATCH = "writebackd-lease 1", "writebackd-watch 1"  # with the version of the line


class LeaseLost(OSError):
    """The settings are not ours to change at the moment: the lease ran out, or was called in."""

    def __init__(self, text: str) -> None:
        super().__init__(errno.ECANCELED, text)


class LeaseLine(NamedTuple):
    """What the daemon says.  `until_s` and `length_s` on CLOCK_MONOTONIC; 0: let go."""

    epoch: int
    until_s: float
    length_s: float
    pid: int

    @property
    def released(self) -> bool:
        """An orderly stop: what is set, if anything, is meant to stay."""
        return self.until_s <= 0

    def remaining_s(self, now_s: float) -> float:
        """Seconds that are left, 0 at least; a line of an earlier boot lasts one lease."""
        return max(0.0, min(self.until_s - now_s, self.length_s))


class WatchLine(NamedTuple):
    """What the watcher says: `state` is watching, restoring, restored or failed."""

    revoked: int
    beat_s: float
    state: str
    pid: int


def read_lease(fd: int) -> Optional[LeaseLine]:
    """The daemon's line; None where there is none, or it is damaged."""
    try:
        epoch, until, length, pid = _read(fd, _LEASE)
        return LeaseLine(int(epoch), float(until), float(length), int(pid))
    except ValueError:
        return None


def read_watch(fd: int) -> Optional[WatchLine]:
    """The watcher's line; None where there is none, or it is damaged."""
    try:
        revoked, beat, state, pid = _read(fd, _WATCH)
        return WatchLine(int(revoked), float(beat), state, int(pid))
    except ValueError:
        return None


def write_lease(fd: int, line: LeaseLine) -> None:
    """Raises OSError."""
    _write(fd, f"{_LEASE} {line.epoch} {line.until_s:.6f} {line.length_s:.6f} {line.pid}")


def write_watch(fd: int, line: WatchLine) -> None:
    """Raises OSError."""
    _write(fd, f"{_WATCH} {line.revoked} {line.beat_s:.6f} {line.state} {line.pid}")


@contextlib.contextmanager
def restoring(lease_fd: int, wait_s: float) -> Iterator[bool]:
    """One hand at a time takes settings home, or takes them up; whether it is this one.

    The lock goes with the process that has it.  One that was stopped with the
    lock in its hand is waited for no longer than `wait_s` (seconds).
    """
    if not hold(lease_fd, wait_s):
        yield False
        return
    try:
        yield True
    finally:
        fcntl.flock(lease_fd, fcntl.LOCK_UN)


class Lease:
    """The daemon's hand on it.  `take` first; then `renew` in every good tick."""

    def __init__(self, runtime_dir: Path, length_s: float) -> None:
        """Raises OSError."""
        self.length_s = length_s
        self._fd = open_private(runtime_dir / LEASE)
        self._watch_fd = open_private(runtime_dir / WATCH)
        self._epoch = 0
        self._until_s = 0.0

    @property
    def remaining_s(self) -> float:
        """Seconds until it runs out, if nothing renews it."""
        return max(0.0, self._until_s - time.monotonic())

    @property
    def lost(self) -> bool:
        """Whether it was called in: the settings have gone home, or are on their way.

        Also where the file says something else than what was written: then the
        watcher may have judged by that.
        """
        line, watch = read_lease(self._fd), read_watch(self._watch_fd)
        if line is None or line.epoch != self._epoch:
            return True
        # A line that cannot be read is no word of the watcher's; it mends it within a second.
        return watch is not None and watch.revoked >= self._epoch

    def take(self, wait_s: float = 0.0) -> bool:
        """Begin a new lease; False while somebody restores. Raises OSError.

        What is in the ledger has to be read after it.
        """
        with restoring(self._fd, wait_s) as free:
            if free:
                before, watch = read_lease(self._fd), read_watch(self._watch_fd)
                last = max(before.epoch if before else 0, watch.revoked if watch else 0)
                self._epoch = max(self._epoch, last) + 1
                self._write(time.monotonic() + self.length_s)
        return free

    def renew(self) -> bool:
        """For another `length_s`; False when it was called in. Raises OSError."""
        if self.lost:
            return False
        self._write(time.monotonic() + self.length_s)
        return True

    def permit(self) -> None:
        """Raises LeaseLost where nothing may be written now; to be asked right before a write."""
        if self.lost:
            raise LeaseLost("lease revoked, original limits are being restored")
        if self.remaining_s < GUARD_SHARE * self.length_s:
            raise LeaseLost("lease about to expire")

    def release(self) -> None:
        """After an orderly stop: nothing is to be restored any more. Never raises."""
        with contextlib.suppress(OSError):
            self._write(0.0)

    def close(self) -> None:
        os.close(self._fd)
        os.close(self._watch_fd)

    def _write(self, until_s: float) -> None:
        write_lease(self._fd, LeaseLine(self._epoch, until_s, self.length_s, os.getpid()))
        self._until_s = until_s


def _read(fd: int, kind: str) -> List[str]:
    for _ in range(2):  # the second time where a write came in between
        try:
            text = os.pread(fd, _LINE, 0).decode("ascii")
        except (OSError, ValueError):
            return []
        body, _, checksum = text.rstrip().rpartition(" ")
        if body.startswith(kind + " ") and checksum == _checksum(body):
            return body[len(kind) :].split()
    return []


def _write(fd: int, text: str) -> None:
    line = f"{text} {_checksum(text)}"
    os.pwrite(fd, f"{line:<{_LINE - 1}}\n".encode(), 0)


def _checksum(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"
