# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon's side of lease and watcher: holds the lease, takes it again after a loss; starts the
watcher, checks its heartbeat, replaces one that hangs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import stat
import subprocess
import threading
import time
from pathlib import Path
from typing import Callable, Optional

from writebackd.actuate.lease import Lease, read_watch
from writebackd.actuate.ledger import LedgerError
from writebackd.actuate.ledger_restore import WAIT_S
from writebackd.actuate.lock import AlreadyRunning, is_held, open_private
from writebackd.actuate.watcher import BEAT_S, NAME, command
from writebackd.paths import WATCH

log = logging.getLogger(__name__)

# Seconds without a heartbeat after which the watcher hangs; longer while it restores, which takes
# up to ledger_restore.WAIT_S and some time to begin.
_SILENT_S = 5 * BEAT_S
_SILENT_RESTORING_S = 20.0
_AGAIN_S = 1.0
# Seconds to wait in a service for systemd to restart its watcher unit (RestartSec= plus the start).
# A watcher started by the daemon would end with the daemon's cgroup, and restore limits that the
# next daemon would adopt.
SERVICE_S = 3.0


class WatcherSupervisor:
    """Never blocks: starting a program may wait for the disk that holds it, so a thread does it."""

    def __init__(self, runtime_dir: Path, patience_s: float = 0.0) -> None:
        """`patience_s`: how long to wait for a watcher that systemd starts. Raises OSError."""
        self.pid: Optional[int] = None  # of the watcher, as of the last `tend`
        self._dir, self._patience_s = runtime_dir, patience_s
        self._fd = open_private(runtime_dir / WATCH)
        self._starter: Optional[threading.Thread] = None
        self._logged: Optional[str] = None
        self._again_s = float("-inf")
        self._missed_s: Optional[float] = None  # since when there is none
        self._seen = 0.0  # its last beat, and when it came
        self._seen_at_s = 0.0

    def tend(self) -> None:
        """Start a watcher if there is none; call it once per tick. Never raises."""
        now = time.monotonic()
        if not is_held(self._fd):
            self.pid = None
            self._missed_s = now if self._missed_s is None else self._missed_s
            if now >= self._missed_s + self._patience_s:
                self._start(now)
            return
        self._logged = self._missed_s = None
        line = read_watch(self._fd)
        if line is None:
            return  # just started, or damaged: the watcher writes its line once a second
        # Judge only by what this process has seen: after a pause of the whole machine both
        # processes are late.
        if line.beat_s != self._seen:
            self._seen, self._seen_at_s = line.beat_s, now
            self.pid = line.pid
        limit = _SILENT_RESTORING_S if line.state == "restoring" else _SILENT_S
        if self.pid is not None and now - self._seen_at_s > limit:
            log.warning("watcher (pid %d) hangs, starting another", self.pid)
            if _is_watcher(line.pid):
                with contextlib.suppress(OSError):
                    os.kill(line.pid, signal.SIGKILL)
            self.pid = None

    def wait(self, seconds: float) -> bool:
        """Wait until there is a watcher; False if there is none after `seconds`."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.tend()
            if self.pid is not None:
                return True
            time.sleep(0.02)
        return False

    def _start(self, now_s: float) -> None:
        if (self._starter is not None and self._starter.is_alive()) or now_s < self._again_s:
            return
        self._again_s = now_s + _AGAIN_S
        starter = threading.Thread(target=self._main, name="watch", daemon=True)
        try:
            starter.start()
        except RuntimeError as error:  # TasksMax= of the unit
            self._tell(f"cannot start a watcher: {error}")
            return
        self._starter = starter

    def _main(self) -> None:
        try:
            # In its own session, so that Ctrl-C and a closed terminal only reach the daemon.
            child = subprocess.Popen(
                command(self._dir),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL if _is_waited_for(os.fstat(2)) else 2,
                # The daemon's environment, so that the processes can be recognized as related.
                env={**os.environ, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"},
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            self._tell(f"cannot start a watcher: {error}")
            return
        child.wait()

    def _tell(self, problem: str) -> None:
        """Log a problem once, although the start is tried every second."""
        if problem != self._logged:
            log.error("%s", problem)
        self._logged = problem


def _is_waited_for(seen: os.stat_result) -> bool:
    """Whether somebody may read to the end, which the watcher keeps away; the journal does not."""
    journal = os.environ.get("JOURNAL_STREAM") == f"{seen.st_dev}:{seen.st_ino}"
    return not journal and (stat.S_ISFIFO(seen.st_mode) or stat.S_ISSOCK(seen.st_mode))


def _is_watcher(pid: int) -> bool:
    """Whether the pid still belongs to a watcher, and was not reused."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == NAME
    except OSError:
        return False


class LeaseHolder(Lease):
    """A lease that counts and logs its losses; not in lease.py, as the watcher has no logging."""

    def __init__(self, runtime_dir: Path, length_s: float) -> None:
        """Calls `take_first`."""
        super().__init__(runtime_dir, length_s)
        self.losses = 0
        self._runtime_dir = runtime_dir
        self._not_taken_up: Optional[str] = None  # why a lost lease was not taken again
        self.take_first()

    def take_first(self) -> None:
        """Raises AlreadyRunning if another process is restoring and does not finish."""
        if not self.take(WAIT_S):
            raise AlreadyRunning(
                f"limits of an earlier writebackd are still being restored ({self._runtime_dir}):"
                " try again in a minute"
            )

    def take_again(self, begin_anew: Callable[[], None]) -> str:
        """Take the lease again after a loss, when the settings are or are being restored.

        `begin_anew` may raise LedgerError, OSError or ValueError; then the lease is not held.
        Returns the progress, for the status.
        """
        if not self.take():
            # The watcher is restoring: write nothing until it has finished.
            return "lease expired, original limits are being restored"
        if self._not_taken_up is None:
            self.losses += 1
            log.warning("lease expired and limits were restored; applying them again")
        try:
            begin_anew()
        except (LedgerError, OSError, ValueError) as error:
            self._epoch = 0  # so that it counts as lost, and expires
            problem = f"limits not applied again yet: {error}"
            if problem != self._not_taken_up:
                log.error("%s", problem)
            self._not_taken_up = problem
            return problem
        self._not_taken_up = None
        return "lease expired and limits were restored; applied again"
