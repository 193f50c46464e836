# SPDX-License-Identifier: GPL-2.0-or-later
"""Which window of a policy is open at a sample's wall-clock time.

It is chosen outside the law, which gets a policy without windows: so a recording contains the
policy in force, and a replay makes the same decisions in any time zone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timezone, tzinfo
from pathlib import Path
from typing import Mapping, Optional

from writebackd.types.quantities import Time

from .schema import Policy, PolicyError, Window
from .window import DAY, DAYS

_DAY_S = 60 * DAY


@dataclass(frozen=True)
class Open:
    """The open window."""

    name: str
    until_s: Time
    until: str  # the same on the host's clock: 06:00, or Mon 06:00 where that is a day away


@dataclass(frozen=True)
class InForce:
    """The policy and window at one time."""

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
