# SPDX-License-Identifier: GPL-2.0-or-later
"""The policy in force while the daemon runs: reloaded in a thread, switched by its windows.

A window is chosen by a sample's wall-clock time, outside the law, which gets a policy without
windows: so a recording contains the policy in force, and a replay makes the same decisions in any
time zone.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from dataclasses import dataclass
from datetime import datetime, timezone, tzinfo
from pathlib import Path
from typing import Callable, List, Mapping, Optional, Tuple

from writebackd.types.quantities import Time

from .schema import Policy, PolicyError, Window
from .window import DAY, DAYS

_DAY_S = 60 * DAY


@dataclass(frozen=True)
class Open:
    name: str
    until_s: Time
    until: str  # the same on the host's clock: 06:00, or Mon 06:00 where that is a day away


@dataclass(frozen=True)
class InForce:
    policy: Policy  # without windows; the same object while the same window is open
    window: Optional[Open]


class Timetable:
    """A policy with its variant for each of its windows."""

    def __init__(self, policy: Policy, zone: tzinfo = timezone.utc) -> None:
        self.policy = policy
        self._zone = zone
        self._else = policy.within(None)
        self._within: Mapping[str, Policy] = {
            window.name: policy.within(window) for window in policy.windows
        }

    def at(self, wall_s: float) -> InForce:
        """Depends on the clock alone, so that setting the clock has no lasting effect.

        Hours are what the clock shows: those that a change to summer time skips do not come, so
        what opens and closes in them stays shut; those that come twice are open twice.
        """
        if not self.policy.windows:
            return InForce(self.policy, None)
        now = math.floor(wall_s)
        for window in self.policy.windows:
            if self._left_s(window, now):
                until = self._until(window, now)
                said = Open(window.name, float(until), self._in_words(now, until))
                return InForce(self._within[window.name], said)
        return InForce(self._else, None)

    def _local(self, wall_s: int) -> datetime:
        return datetime.fromtimestamp(wall_s, self._zone)

    def _left_s(self, window: Window, wall_s: int) -> int:
        """Seconds on the clock until the window closes; 0 while it is not open."""
        local = self._local(wall_s)
        minute = local.weekday() * DAY + local.hour * 60 + local.minute
        end = window.when.end_of(minute)
        return 0 if end is None else (end - minute) * 60 - local.second

    def _until(self, window: Window, wall_s: int) -> int:
        """When the window closes, taking into account clock changes before that."""
        while True:
            left_s = self._left_s(window, wall_s)
            if not left_s:
                return wall_s
            offset, end = self._local(wall_s).utcoffset(), wall_s + left_s
            if self._local(end).utcoffset() == offset:
                return end
            # To the second from which on the clock is another: nowhere twice within a week.
            low, high = wall_s, end
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (
                    (middle, high) if self._local(middle).utcoffset() == offset else (low, middle)
                )
            wall_s = high

    def _in_words(self, now: int, until: int) -> str:
        local = self._local(until)
        clock = f"{local:%H:%M}"
        return clock if until - now < _DAY_S else f"{DAYS[local.weekday()]} {clock}"


def read_timetable(policy: Policy, root: Path = Path("/")) -> Timetable:
    """The timetable in the host's time zone; without windows no file is read.

    $TZ does not count: a daemon and a shell would come to different windows. Raises PolicyError.
    """
    return Timetable(policy, local_zone(root) if policy.windows else timezone.utc)


def local_zone(root: Path = Path("/")) -> tzinfo:
    """The host's time zone. Raises PolicyError."""
    # Imported only here: 0.1 MB that a daemon without windows can do without.
    from zoneinfo import ZoneInfo

    path = root / "etc" / "localtime"
    try:
        with open(path, "rb") as file:
            return ZoneInfo.from_file(file)
    except FileNotFoundError:
        return timezone.utc  # as the C library does
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise PolicyError(
            f"{path}: cannot read the time zone for windows: {said}: link it to a file below"
            " /usr/share/zoneinfo"
        ) from None


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
