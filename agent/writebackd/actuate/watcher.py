# SPDX-License-Identifier: GPL-2.0-or-later
"""The watcher: a separate process that restores the originals when the lease expires.

Whatever happened to the daemon, killed, stopped, stuck or starved, shows here as one thing: it does
not renew.  All that the way home takes is imported and locked in memory before the first look at
the lease, for the disk that the program lies on may be the one that hangs.  The global limits go
first; what may block goes home in children with a time limit (lever_writer.py).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Callable, Optional, Sequence, Tuple

from writebackd.actuate import lease
from writebackd.actuate.lease import LeaseLine, WatchLine
from writebackd.actuate.ledger_restore import restore_from_ledger
from writebackd.actuate.lever_writer import Levers
from writebackd.actuate.lock import LOOK_S, hold, is_locked, open_private
from writebackd.kernel import memory_lock
from writebackd.kernel.files import KernelFiles
from writebackd.paths import LEASE, LEDGER, WATCH

BEAT_S = 1.0
# How often the one that waits for its turn asks.
_TURN_S = 0.2
# What could not be put back is tried again so often.
_AGAIN_S = 5.0
# Told to end, it tries so long; a last try takes ledger_restore.WAIT_S on top, and its unit has
# TimeoutStopSec=30.
_LEAVE_S = 12.0
# A daemon that does not renew for so long hangs: a tick is 10 s at most.
_QUIET_S = 11.0
# Woken so much later than asked, all of the machine may have stood still (a virtual machine that
# was paused, a frozen container), and the daemon with it: it gets a moment to speak first.
_LATE_S = 1.0
_GRACE_S = 1.5
# Another hand on the settings has this long to finish; one that was stopped is passed over.
_HAND_S = 2.0
NAME = "writebackd-watc"  # TASK_COMM_LEN takes 15


class Watcher:
    """One look at a time: `look` says how long to sleep until the next, or None to end."""

    def __init__(self, files: KernelFiles, runtime_dir: Path, stay: bool = False) -> None:
        """`stay`: go on when there is nothing to watch. Raises OSError."""
        self._files = files
        # One for all tries: a write home that hangs in a queue has one child, not one each time.
        self._hand = Levers(files)
        self._dir = runtime_dir
        self._stay = stay
        self._lease_fd = open_private(runtime_dir / LEASE)
        self._watch_fd = open_private(runtime_dir / WATCH)
        before = lease.read_watch(self._watch_fd)
        self._revoked = before.revoked if before else 0
        # One that was killed on the way home is gone on for, also while the daemon hangs.
        self._state = before.state if before else "watching"
        self._last: Optional[LeaseLine] = None
        self._again_s = 0.0
        self._told: Tuple[str, ...] = ()  # why the last restore failed
        self._wake_s: Optional[float] = None  # when the last sleep was to end
        self._grace_until_s = 0.0
        self._graced_s = 0.0  # the end of lease that got its moment of grace

    def look(self, now_s: float) -> Optional[float]:
        """`now_s` on CLOCK_MONOTONIC; seconds to sleep, None when there is nothing to watch."""
        line = self._line(now_s)
        late = self._wake_s is not None and now_s > self._wake_s + _LATE_S
        if late and line.until_s != self._graced_s:  # once, or a busy host never restores
            self._graced_s = line.until_s
            self._grace_until_s = now_s + _GRACE_S
        rest = BEAT_S
        if line.released:
            self._state = "watching"
            if not self._stay:
                return None
        elif line.epoch > self._revoked:
            self._state = "watching"
            left = max(line.remaining_s(now_s), self._grace_until_s - now_s)
            if left <= 0:
                self._run_out(line)
            elif not self._stay and self._is_over():
                return None  # somebody took all home before it ran out
            rest = min(rest, max(left, 0.0))
        elif now_s >= self._again_s:
            # The daemon was given up; it begins a new lease, or it dies.
            if not is_locked(self._dir):
                self._restore()
            elif self._state in ("restoring", "failed"):
                self._restore(close=False)
            if not self._stay and self._is_over():
                return None
        self._beat()
        self._wake_s = time.monotonic() + rest
        return rest

    def leave(self) -> None:
        """Told to end: nobody else may be left to restore what a daemon has set that is dead or
        hangs, and the lease of that one may last longer than systemd waits for it.
        """
        now = time.monotonic()
        until_s, first = now + _LEAVE_S, self._line(now)
        while self._has_ledger() and now < until_s:
            line, alive = self._line(now), is_locked(self._dir)
            if line.released:
                return
            if not alive:
                self._restore()
            elif line.epoch > self._revoked:
                if line.until_s != first.until_s:
                    return  # renewed: it goes on, and starts a watcher of its own
                if line.length_s - line.remaining_s(now) >= min(_QUIET_S, line.length_s):
                    self._run_out(line, "watcher is stopping")
            elif self._state != "restored":
                self._restore(close=False)
            if alive and line.epoch <= self._revoked and self._state == "restored":
                return
            if self._has_ledger():
                time.sleep(BEAT_S)
            now = time.monotonic()

    def _line(self, now_s: float) -> LeaseLine:
        """The daemon's word; where that is damaged its last one, or one lease from now on."""
        line = lease.read_lease(self._lease_fd)
        if line is None and self._last is None:
            if self._stay and not self._has_ledger():
                return LeaseLine(self._revoked, 0.0, 0.0, 0)
            line = LeaseLine(self._revoked + 1, now_s + lease.DEFAULT_S, lease.DEFAULT_S, 0)
        self._last = line or self._last
        assert self._last is not None
        return self._last

    def _run_out(self, line: LeaseLine, why: str = "lease expired") -> None:
        with lease.restoring(self._lease_fd, _HAND_S):
            now = lease.read_lease(self._lease_fd) or line
            if now.epoch != line.epoch or now.until_s != line.until_s:
                return  # spoken for after all
            self._call_in(line)
            alive = is_locked(self._dir)
            who = f"process {line.pid}" if line.pid else "the daemon"
            what = "hangs" if alive else "is gone"
            self._do_restore(not alive, f"{who} {what}, {why}: restoring original limits")

    def _restore(self, close: bool = True) -> None:
        with lease.restoring(self._lease_fd, _HAND_S):
            line = lease.read_lease(self._lease_fd)
            if line is not None and (line.epoch > self._revoked or line.released):
                if is_locked(self._dir):
                    return  # a daemon has begun anew meanwhile
                self._call_in(line)
            self._do_restore(close)

    def _call_in(self, line: LeaseLine) -> None:
        """Written at once: from here on the daemon writes nothing."""
        self._revoked = line.epoch
        self._state = "restoring"
        self._beat()

    def _do_restore(self, close: bool, why: Optional[str] = None) -> None:
        self._state = "restoring"
        self._beat()
        had = self._has_ledger()
        result = restore_from_ledger(
            self._files, self._dir / LEDGER, close=close, hand=self._hand
        )
        self._state = "failed" if result.status == "failed" else "restored"
        self._again_s = time.monotonic() + (_AGAIN_S if result.status == "failed" else 0.0)
        self._beat()
        # Last: a word may wait. And once: what fails is tried again every few seconds.
        lines = result.lines if had and result.lines != self._told else ()
        self._told = result.lines if result.status == "failed" else ()
        for text in (*filter(None, (why,)), *lines):
            say(text)

    def _has_ledger(self) -> bool:
        return (self._dir / LEDGER).exists()

    def _is_over(self) -> bool:
        return not self._has_ledger() and not is_locked(self._dir)

    def _beat(self) -> None:
        with contextlib.suppress(OSError):
            line = WatchLine(self._revoked, time.monotonic(), self._state, os.getpid())
            lease.write_watch(self._watch_fd, line)


def take_watch(runtime_dir: Path) -> bool:
    """Become the one watcher of this directory, for as long as the process lives.

    False when there is one. Raises OSError.
    """
    fd = open_private(runtime_dir / WATCH)
    # The daemon holds it for a moment when it looks after us.
    if hold(fd, LOOK_S):
        return True
    os.close(fd)
    return False


def run(runtime_dir: Path, stay: bool, ready: Callable[[], None] = lambda: None) -> int:
    """Watch until there is nothing to watch, or a signal; the exit code."""
    # Taken as they come by sigtimedwait, not by a handler in the middle of a restore.
    stops = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    # MCL_FUTURE makes all of a stack resident, and 8 MB is the usual one.
    threading.stack_size(256 << 10)
    memory_lock.set_name(NAME)
    problem = memory_lock.lock_all()
    if problem:
        say(f"memory is not locked: {problem}")
    ready()
    while not take_watch(runtime_dir):
        if not stay or signal.sigtimedwait(stops, _TURN_S) is not None:
            return 0
    watcher = Watcher(KernelFiles(), runtime_dir, stay)
    while True:
        rest = watcher.look(time.monotonic())
        if rest is None:
            return 0
        if signal.sigtimedwait(stops, rest) is not None:
            watcher.leave()
            return 0


def command(runtime_dir: Path) -> Sequence[str]:
    """The command line of a watcher: this Python and the standard library, nothing of site's."""
    top = str(Path(__file__).resolve().parents[2])
    program = (
        f"import sys; sys.path.insert(0, {top!r}); "
        "from writebackd.actuate.watcher import run; from pathlib import Path; "
        "sys.exit(run(Path(sys.argv[1]), stay=False))"
    )
    return (sys.executable, "-I", "-S", "-c", program, str(runtime_dir))


def say(text: str) -> None:
    """One line on stderr, by a thread: a terminal or journal that is stuck must not stop us."""

    def write() -> None:
        with contextlib.suppress(OSError):
            os.write(2, f"writebackd-watch: {text}\n".encode())

    thread = threading.Thread(target=write, daemon=True)
    with contextlib.suppress(RuntimeError):  # TasksMax=: better no line than no watcher
        thread.start()
        thread.join(0.1)

