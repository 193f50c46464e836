# SPDX-License-Identifier: GPL-2.0-or-later
"""The lease: how long the limits stay in force if the daemon does not renew it.

There are two files of one line each in the runtime directory, each with a single writer.  In
`lease` the daemon writes when its lease ends; in `watch` the watcher (watcher.py) writes up to
which epoch leases are revoked.  The daemon holds its lease while its epoch is higher.  The lines
have a fixed length and are overwritten in place; a checksum detects torn and damaged ones.

The clock is CLOCK_MONOTONIC, which stops during a suspend like both processes.  With CLOCK_BOOTTIME
the lease would have expired at every resume, and the two processes would race.
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
# Share of the lease.  The daemon writes nothing in this last part of it.  So it may lose the
# processor for that long between its check of the clock and a write, without writing after the
# watcher has restored.
GUARD_SHARE = 0.1

_LINE = 128  # bytes
_LEASE, _WATCH = "writebackd-lease 1", "writebackd-watch 1"  # with the version of the line


class LeaseLost(OSError):
    """No settings may be changed now: the lease expired or was revoked."""

    def __init__(self, text: str) -> None:
        super().__init__(errno.ECANCELED, text)


class LeaseLine(NamedTuple):
    """The daemon's line.  `until_s` is on CLOCK_MONOTONIC; 0: released."""

    epoch: int
    until_s: float
    length_s: float
    pid: int

    @property
    def released(self) -> bool:
        """Whether the daemon stopped cleanly: settings that remain are meant to stay."""
        return self.until_s <= 0

    def remaining_s(self, now_s: float) -> float:
        """Seconds left; at most one lease, in case the line is from an earlier boot."""
        return max(0.0, min(self.until_s - now_s, self.length_s))


class WatchLine(NamedTuple):
    """The watcher's line: `state` is watching, restoring, restored or failed."""

    revoked: int
    beat_s: float
    state: str
    pid: int


def read_lease(fd: int) -> Optional[LeaseLine]:
    """The daemon's line; None if it is missing or damaged."""
    try:
        epoch, until, length, pid = _read(fd, _LEASE)
        return LeaseLine(int(epoch), float(until), float(length), int(pid))
    except ValueError:
        return None


def read_watch(fd: int) -> Optional[WatchLine]:
    """The watcher's line; None if it is missing or damaged."""
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
    """Lock for restoring or adopting settings, one process at a time; yields whether it was taken.

    The kernel releases the lock when its holder dies.  A holder that is stopped (SIGSTOP) is waited
    for no longer than `wait_s` seconds.
    """
    if not hold(lease_fd, wait_s):
        yield False
        return
    try:
        yield True
    finally:
        fcntl.flock(lease_fd, fcntl.LOCK_UN)


class Lease:
    """The daemon's side of the lease.  `take` first; then `renew` in every readable tick."""

    def __init__(self, runtime_dir: Path, length_s: float) -> None:
        """Raises OSError."""
        self.length_s = length_s
        self._fd = open_private(runtime_dir / LEASE)
        self._watch_fd = open_private(runtime_dir / WATCH)
        self._epoch = 0
        self._until_s = 0.0

    @property
    def remaining_s(self) -> float:
        """Seconds until it expires unless renewed."""
        return max(0.0, self._until_s - time.monotonic())

    @property
    def lost(self) -> bool:
        """Whether it was revoked: the settings were restored, or are being restored.

        Also if the file does not have what was written, since the watcher may have acted on that.
        """
        line, watch = read_lease(self._fd), read_watch(self._watch_fd)
        if line is None or line.epoch != self._epoch:
            return True
        # An unreadable line is no revocation; the watcher rewrites it within a second.
        return watch is not None and watch.revoked >= self._epoch

    def take(self, wait_s: float = 0.0) -> bool:
        """Begin a new lease; False while another process restores. Raises OSError.

        Read the ledger only after this.
        """
        with restoring(self._fd, wait_s) as free:
            if free:
                before, watch = read_lease(self._fd), read_watch(self._watch_fd)
                last = max(before.epoch if before else 0, watch.revoked if watch else 0)
                self._epoch = max(self._epoch, last) + 1
                self._write(time.monotonic() + self.length_s)
        return free

    def renew(self) -> bool:
        """Extend the lease to `length_s` from now; False if it was revoked. Raises OSError."""
        if self.lost:
            return False
        self._write(time.monotonic() + self.length_s)
        return True

    def permit(self) -> None:
        """Raises LeaseLost if nothing may be written now; call it right before every write."""
        if self.lost:
            raise LeaseLost("lease revoked, original limits are being restored")
        if self.remaining_s < GUARD_SHARE * self.length_s:
            raise LeaseLost("lease about to expire")

    def release(self) -> None:
        """End the lease at a clean stop: the watcher has nothing to restore. Never raises."""
        with contextlib.suppress(OSError):
            self._write(0.0)

    def close(self) -> None:
        os.close(self._fd)
        os.close(self._watch_fd)

    def _write(self, until_s: float) -> None:
        write_lease(self._fd, LeaseLine(self._epoch, until_s, self.length_s, os.getpid()))
        self._until_s = until_s


def _read(fd: int, kind: str) -> List[str]:
    for _ in range(2):  # read again in case a write came in between
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
