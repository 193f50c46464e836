# SPDX-License-Identifier: GPL-2.0-or-later
"""The policy in force while the daemon runs: reloaded in a thread, switched by its windows."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Callable, List, Optional, Tuple

from .schema import Policy
from .timetable import InForce, Timetable, read_timetable

log = logging.getLogger(__name__)

# To match a host of 90 processes takes 3 ms.
_HANGS_S = 10.0
# What stays as it was at the start, also after a reload.
_AT_START: Tuple[Tuple[str, Callable[[Policy], object]], ...] = (
    ("[probe]", lambda policy: policy.probe),
    ("[metrics]", lambda policy: policy.metrics),
    ("[limits] lease", lambda policy: policy.limits.lease_s),
    ("[history] samples", lambda policy: policy.history.samples_bytes),
)


class ActivePolicy:
    """The policy as last read, and its open window.

    It is read again in a thread: its files may be on the disk that hangs.
    """

    def __init__(self, load: Callable[[], Policy], root: Path) -> None:
        """`load` reads the files, again at each reload; `root` has the time zone.

        Raises PolicyError. What `load` raises later is logged, and the old policy goes on.
        """
        self.load = load
        self._root = root
        self.timetable = self._read()
        self.first = self.policy  # what is fixed at the start goes by it
        self.in_force: Optional[InForce] = None  # as of the last `advance`
        self._loaded: List[Timetable] = []  # by the thread
        self._due = False
        self._asked = False  # by somebody, not by the clock
        self._thread: Optional[threading.Thread] = None
        self._begun_s = 0.0

    @property
    def policy(self) -> Policy:
        """The policy with its windows."""
        return self.timetable.policy

    @property
    def now(self) -> Policy:
        """The policy in force, without windows; before the first `advance` as read."""
        return self.in_force.policy if self.in_force is not None else self.policy

    @property
    def problem(self) -> Optional[str]:
        """Why a reload has no effect yet; None if it has, or soon will."""
        hangs = self._is_reading() and time.monotonic() - self._begun_s > _HANGS_S
        return "cannot reload the policy: reading it hangs" if hangs else None

    def reload(self) -> None:
        """A requested reload: `take` answers even if nothing has changed."""
        self._asked = True
        self.rematch()

    def rematch(self) -> None:
        """As `reload`, but by the clock: an unchanged policy is not reported."""
        self._due = True
        self._start()

    def take(self) -> Optional[Policy]:
        """The reloaded policy, once; None if it is unchanged and nobody asked."""
        if self._due:  # asked for while it was being read
            self._start()
        if not self._loaded:
            return None
        before, self.timetable = self.policy, self._loaded.pop()
        self._loaded.clear()  # what was read before it is stale
        asked, self._asked = self._asked, False
        if self.policy == before and not asked:
            return None
        for what, value in _AT_START:
            if value(self.policy) != value(self.first):
                log.warning("a change of %s takes effect at the next start", what)
        return self.policy

    def advance(self, wall_s: float) -> Tuple[Optional[InForce], InForce]:
        """Switch to the policy at `wall_s`; returns the last one, None at first, and the new."""
        before, now = self.in_force, self.timetable.at(wall_s)
        self.in_force = now
        return before, now

    def join(self, timeout_s: float) -> None:
        """Wait until the reload has finished, or the time is over."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _start(self) -> None:
        """One at a time: if the disk hangs each signal would leave one more thread."""

        def load() -> None:
            try:
                self._loaded.append(self._read())
            except Exception as error:  # whatever is wrong with it, the old one goes on
                log.error("cannot reload the policy; keeping the current one: %s", error)

        if self._is_reading():
            return
        self._due, self._begun_s = False, time.monotonic()
        thread = threading.Thread(target=load, name="reload", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # TasksMax= of the unit
            log.error("cannot reload the policy; keeping the current one: %s", error)
            return
        self._thread = thread

    def _is_reading(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _read(self) -> Timetable:
        return read_timetable(self.load(), self._root)
