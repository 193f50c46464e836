# SPDX-License-Identifier: GPL-2.0-or-later
"""The watcher: a separate process that restores the originals when the lease expires.

Whatever happens to the daemon (killed, stopped, hung or starved), the watcher sees the same: the
lease is not renewed.  Everything needed to restore is imported and locked in memory before the
first check, since the disk that holds the program may hang.  The global limits are restored first;
writes that may block are done in children with a time limit (lever_writer.py).
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
# Seconds between tries of a second watcher to become the active one.
_TURN_S = 0.2
# Seconds between tries to restore what could not be restored.
_AGAIN_S = 5.0
# Seconds.  After SIGTERM it tries to restore for this long; the last try may take
# ledger_restore.WAIT_S more, and the unit has TimeoutStopSec=30.
_LEAVE_S = 12.0
# Seconds.  A daemon that has not renewed for this long hangs: a tick is 10 s at most.
_QUIET_S = 11.0
# Seconds.  If the watcher wakes up this late, the whole machine may have been stopped (a paused
# virtual machine, a frozen container).  The daemon then gets _GRACE_S to renew.
_LATE_S = 1.0
_GRACE_S = 1.5
# Seconds to wait for another process that is restoring; a stopped one is then ignored.
_HAND_S = 2.0
NAME = "writebackd-watc"  # TASK_COMM_LEN takes 15


class Watcher:
    """Checks the lease: each `look` returns how long to sleep until the next, or None to end."""

    def __init__(self, files: KernelFiles, runtime_dir: Path, stay: bool = False) -> None:
        """`stay`: do not end when there is nothing to watch. Raises OSError."""
        self._files = files
        # Shared by all tries, so that a write that hangs has one child and not one per try.
        self._levers = Levers(files)
        self._dir = runtime_dir
        self._stay = stay
        self._lease_fd = open_private(runtime_dir / LEASE)
        self._watch_fd = open_private(runtime_dir / WATCH)
        before = lease.read_watch(self._watch_fd)
        self._revoked = before.revoked if before else 0
        # Continue the work of a watcher that was killed while restoring.
        self._state = before.state if before else "watching"
        self._last: Optional[LeaseLine] = None
        self._again_s = 0.0
        self._logged: Tuple[str, ...] = ()  # why the last restore failed
        self._wake_s: Optional[float] = None  # when the last sleep was to end
        self._grace_until_s = 0.0
        self._graced_s = 0.0  # the end of lease that got its moment of grace

    def look(self, now_s: float) -> Optional[float]:
        """Seconds to sleep, None if there is nothing to watch; `now_s` is on CLOCK_MONOTONIC."""
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
                return None  # all was restored before the lease expired
            rest = min(rest, max(left, 0.0))
        elif now_s >= self._again_s:
            # This lease was revoked: the daemon begins a new one, or dies.
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
        """After SIGTERM, restore for a daemon that is dead or hangs.

        No other process may do it, and its lease may last longer than systemd waits.
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
                    return  # renewed: the daemon is well and starts a watcher of its own
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
        """The daemon's line; if that is damaged the last valid one, or a lease from now on."""
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
                return  # renewed after all
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
                    return  # a daemon has started meanwhile
                self._call_in(line)
            self._do_restore(close)

    def _call_in(self, line: LeaseLine) -> None:
        """Revoke the lease, in the file at once: from then on the daemon writes nothing."""
        self._revoked = line.epoch
        self._state = "restoring"
        self._beat()

    def _do_restore(self, close: bool, why: Optional[str] = None) -> None:
        self._state = "restoring"
        self._beat()
        had = self._has_ledger()
        result = restore_from_ledger(
            self._files, self._dir / LEDGER, close=close, writer=self._levers
        )
        self._state = "failed" if result.status == "failed" else "restored"
        self._again_s = time.monotonic() + (_AGAIN_S if result.status == "failed" else 0.0)
        self._beat()
        # Log last, since that may block, and once, since a failure repeats every few seconds.
        lines = result.lines if had and result.lines != self._logged else ()
        self._logged = result.lines if result.status == "failed" else ()
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
    """Become the only watcher of this directory, for as long as the process lives.

    False if there is one already. Raises OSError.
    """
    fd = open_private(runtime_dir / WATCH)
    # The daemon holds the lock for a moment when it checks for a watcher.
    if hold(fd, LOOK_S):
        return True
    os.close(fd)
    return False


def run(runtime_dir: Path, stay: bool, ready: Callable[[], None] = lambda: None) -> int:
    """Watch until a signal, or until there is nothing to watch; returns the exit code."""
    # Signals are received by sigtimedwait, so none interrupts a restore.
    stops = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    # MCL_FUTURE makes a whole thread stack resident, by default 8 MB.
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
    """The command line of a watcher: this Python with the standard library only, no site."""
    top = str(Path(__file__).resolve().parents[2])
    program = (
        f"import sys; sys.path.insert(0, {top!r}); "
        "from writebackd.actuate.watcher import run; from pathlib import Path; "
        "sys.exit(run(Path(sys.argv[1]), stay=False))"
    )
    return (sys.executable, "-I", "-S", "-c", program, str(runtime_dir))


def say(text: str) -> None:
    """Write a line to stderr from a thread: a blocked terminal or journal must not stop us."""

    def write() -> None:
        with contextlib.suppress(OSError):
            os.write(2, f"writebackd-watch: {text}\n".encode())

    thread = threading.Thread(target=write, daemon=True)
    with contextlib.suppress(RuntimeError):  # TasksMax=: better no line than no watcher
        thread.start()
        thread.join(0.1)

