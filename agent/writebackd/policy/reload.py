# SPDX-License-Identifier: GPL-2.0-or-later
"""Reloads the policy while the daemon runs, in a thread."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Callable, List, NamedTuple, Optional, Tuple

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
        return "cannot reload the policy: reading it hangs" if hangs else None

    def reload(self) -> None:
        """Somebody wants it: `take` tells so of what is read from now on."""
        self._asked = True
        self.rematch()

    def rematch(self) -> None:
        """As `reload`, but the clock wants it: the same policy changes nothing and is not told."""
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


class ActivePolicy:
    """The policy as it was read last, and the window of it that is open."""

    def __init__(self, load: Callable[[], Policy], root: Path) -> None:
        """`load` reads the files, for `reloader` once more; `root` has the time zone.

        Raises PolicyError.
        """
        self.load = load
        self._root = root
        self.timetable = self._read()
        self.first = self.policy  # what is fixed at the start goes by it
        self.in_force: Optional[InForce] = None  # as of the last `advance`
        self.reloader = Reloader(self._read)

    @property
    def policy(self) -> Policy:
        """With its windows."""
        return self.timetable.policy

    @property
    def now(self) -> Policy:
        """In force, without windows; before the first `advance` as it was read."""
        return self.in_force.policy if self.in_force is not None else self.policy

    def take(self) -> Optional[Policy]:
        """The policy that was read again, once; None where it is the same and nobody asked."""
        loaded = self.reloader.take()
        if loaded is None:
            return None
        same = loaded.timetable.policy == self.policy
        self.timetable = loaded.timetable
        if same and not loaded.asked:
            return None
        for what, value in _AT_START:
            if value(self.policy) != value(self.first):
                log.warning("a change of %s takes effect at the next start", what)
        return self.policy

    def advance(self, wall_s: float) -> Tuple[Optional[InForce], InForce]:
        """To what is in force at `wall_s`: what was before, None at first, and what is now."""
        before, now = self.in_force, self.timetable.at(wall_s)
        self.in_force = now
        return before, now

    def _read(self) -> Timetable:
        return read_timetable(self.load(), self._root)
