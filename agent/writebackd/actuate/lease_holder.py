# SPDX-License-Identifier: GPL-2.0-or-later
"""Holds the lease for the daemon's lifetime, and takes it again after a loss."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Callable, Optional

from writebackd.actuate.lease import Lease
from writebackd.actuate.ledger import LedgerError
from writebackd.actuate.ledger_restore import WAIT_S
from writebackd.actuate.lock import AlreadyRunning

log = logging.getLogger(__name__)


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
