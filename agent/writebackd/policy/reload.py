# SPDX-License-Identifier: GPL-2.0-or-later
"""The policy read again while the daemon runs."""

from __future__ import annotations

import logging
import threading
import time
from typing import Callable, List, NamedTuple, Optional

from .timetable import Timetable

log = logging.getLogger(__name__)

# To match a host of 90 processes takes 3 ms.
_HANGS_S = 10.0


class Loaded(NamedTuple):
    """A policy that was read again."""

    timetable: Timetable
    asked: bool  # by somebody, not by the clock


class Reloader:
    """Reads the policy in a thread: its files may be on the disk that hangs."""

    def __init__(self, read: Callable[[], Timetable]) -> None:
        """What `read` raises is logged, and the old policy goes on."""
        self._read = read
        self._loaded: List[Timetable] = []  # by the thread
        self._due = False
        self._asked = False
        self._thread: Optional[threading.Thread] = None
        self._begun_s = 0.0

    @property
    def problem(self) -> Optional[str]:
        """Why a reload has no effect yet; None when it has, or soon will."""
        hangs = self._is_reading() and time.monotonic() - self._begun_s > _HANGS_S
        return "the policy cannot be reloaded: reading it hangs" if hangs else None

    def reload(self) -> None:
        """Somebody wants it: `take` tells so of what is read from now on."""
        self._asked = True
        self.rematch()

    def rematch(self) -> None:
        """As `reload`, but the clock wants it."""
        self._due = True
        self._start()

    def take(self) -> Optional[Loaded]:
        """The newest that was read, once."""
        if self._due:  # asked for while it was being read
            self._start()
        if not self._loaded:
            return None
        timetable = self._loaded.pop()  # what was read before it is stale
        self._loaded.clear()
        asked, self._asked = self._asked, False
        return Loaded(timetable, asked)

    def join(self, timeout_s: float) -> None:
        """Until what is being read has been read, or the time is over."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _start(self) -> None:
        """One at a time: behind a disk that hangs each signal would leave a thread more."""

        def load() -> None:
            try:
                self._loaded.append(self._read())
            except Exception as error:  # whatever is wrong with it, the old one goes on
                log.error("the policy stays as it was: %s", error)

        if self._is_reading():
            return
        self._due, self._begun_s = False, time.monotonic()
        thread = threading.Thread(target=load, name="reload", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # TasksMax= of the unit
            log.error("the policy stays as it was: %s", error)
            return
        self._thread = thread

    def _is_reading(self) -> bool:
        return self._thread is not None and self._thread.is_alive()
