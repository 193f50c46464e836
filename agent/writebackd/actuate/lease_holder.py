# SPDX-License-Identifier: GPL-2.0-or-later
"""Holds the lease over the daemon's life: takes it, loses it, takes it again."""

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
    """A lease that counts its `losses`; the watcher, which needs none of this, has no logging."""

    def __init__(self, runtime_dir: Path, length_s: float) -> None:
        """Takes it, as `take_first`."""
        super().__init__(runtime_dir, length_s)
        self.losses = 0
        self._runtime_dir = runtime_dir
        self._not_taken_up: Optional[str] = None  # why a lost lease is not held again
        self.take_first()

    def take_first(self) -> None:
        """Raises AlreadyRunning where somebody restores, and does not come to an end."""
        if not self.take(WAIT_S):
            raise AlreadyRunning(
                f"limits of an earlier writebackd are still being restored ({self._runtime_dir}):"
                " try again in a minute"
            )

    def take_again(self, begin_anew: Callable[[], None]) -> str:
        """The lease was lost: what was set is home, or on its way. Begin anew from there.

        `begin_anew` may raise LedgerError, OSError or ValueError: the lease is not held then.
        The answer is how far that has come, for whoever asks.
        """
        if not self.take():
            # The watcher is at it: nothing is written before it has done.
            return "lease expired, original limits are being restored"
        if self._not_taken_up is None:
            self.losses += 1
            log.warning("lease expired and limits were restored; applying them again")
        try:
            begin_anew()
        except (LedgerError, OSError, ValueError) as error:
            self._epoch = 0  # it counts as lost, and runs out
            problem = f"limits not applied again yet: {error}"
            if problem != self._not_taken_up:
                log.error("%s", problem)
            self._not_taken_up = problem
            return problem
        self._not_taken_up = None
        return "lease expired and limits were restored; applied again"
