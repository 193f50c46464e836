# SPDX-License-Identifier: GPL-2.0-or-later
"""When a window is open, ``Mon..Fri 22:00-06:00``: parsed and formatted exactly.  Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple

from .units import UnitError, shorten

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_LONG = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_NUMBERS: Dict[str, int] = {
    name: number for number, day in enumerate(_LONG) for name in (day, day[:3])
}
_WHEN = re.compile(r"(?:([A-Za-z.,]+)[ \t]+)?([0-9]{1,2}):([0-9]{2})-([0-9]{1,2}):([0-9]{2})")
_EXAMPLE = "Mon..Fri 22:00-06:00"
DAY = 24 * 60  # minutes
WEEK = 7 * DAY


@dataclass(frozen=True)
class When:
    """Opens on `days` (0 is Monday) at `begin`, minutes of the day; `end` may be a day later."""

    days: Tuple[int, ...]  # ascending, each once
    begin: int  # 0 to 1439
    end: int  # 1 to 1440, never `begin`

    @property
    def spans(self) -> Tuple[Tuple[int, int], ...]:
        """When it is open, as ``[begin, end)`` in minutes of the week, ascending and disjoint."""
        length = self.end - self.begin if self.end > self.begin else self.end + DAY - self.begin
        spans: List[Tuple[int, int]] = []
        for day in self.days:
            begin = day * DAY + self.begin
            spans.append((begin, min(begin + length, WEEK)))
            if begin + length > WEEK:
                spans.append((0, begin + length - WEEK))
        joined: List[Tuple[int, int]] = []
        for begin, end in sorted(spans):
            if joined and joined[-1][1] == begin:
                begin = joined.pop()[0]
            joined.append((begin, end))
        return tuple(joined)

    def end_of(self, minute: int) -> Optional[int]:
        """When it closes, if it is open at this minute of the week; above WEEK: next week."""
        spans = self.spans
        end = next((end for begin, end in spans if begin <= minute < end), None)
        if end == WEEK and spans[0][0] == 0:
            return WEEK + spans[0][1]
        return end


def parse_when(text: str) -> Optional[When]:
    """Days and hours; None for no text. Raises UnitError."""
    if not text:
        return None
    match = _WHEN.fullmatch(text)
    if match is None:
        raise UnitError(f"'{shorten(text)}' is not DAYS HH:MM-HH:MM: write it like '{_EXAMPLE}'")
    days, *clock = match.groups()
    begin, end = _minute(*clock[:2]), _minute(*clock[2:])
    if begin == DAY:
        raise UnitError("24:00 is an end: write 00:00, on the day after")
    if begin == end:
        raise UnitError("it ends when it begins: write 00:00-24:00 for whole days")
    when = When(_days(days) if days else tuple(range(7)), begin, end or DAY)
    if when.spans == ((0, WEEK),):
        raise UnitError("it is always open: write the values into [limits] and [objective]")
    return when


def _minute(hours: str, minutes: str) -> int:
    value = 60 * int(hours) + int(minutes)
    if int(minutes) > 59 or value > DAY:
        raise UnitError(f"'{hours}:{minutes}' is no time of day: use 00:00 to 24:00")
    return value


def _days(text: str) -> Tuple[int, ...]:
    days: List[int] = []
    for part in text.split(","):
        first, dots, last = part.partition("..")
        for name in (first, last if dots else first):
            if name.lower() not in _NUMBERS:
                raise UnitError(
                    f"'{shorten(part)}' is not a day: write Mon, Sat,Sun or Mon..Fri"
                )
        number = _NUMBERS[first.lower()]
        days.append(number)
        while dots and number != _NUMBERS[last.lower()]:
            number = (number + 1) % 7  # Fri..Mon goes over the weekend
            days.append(number)
    twice = next((day for day in days if days.count(day) > 1), None)
    if twice is not None:
        raise UnitError(f"{DAYS[twice]} is named twice: once is enough")
    return tuple(sorted(days))


def format_when(when: Optional[When]) -> str:
    """As parse_when() reads it; three days or more in a row as Mon..Wed."""
    if when is None:
        return ""
    hours = "-".join(f"{minute // 60:02}:{minute % 60:02}" for minute in (when.begin, when.end))
    if len(when.days) == len(DAYS):
        return hours
    runs: List[List[int]] = []
    for day in when.days:
        if runs and runs[-1][-1] == day - 1:
            runs[-1].append(day)
        else:
            runs.append([day])
    names = [
        f"{DAYS[run[0]]}..{DAYS[run[-1]]}" if len(run) > 2 else ",".join(DAYS[day] for day in run)
        for run in runs
    ]
    return f"{','.join(names)} {hours}"


def format_minute(minute: int) -> str:
    """A minute of the week, ``Mon 06:00``."""
    return f"{DAYS[minute // DAY % 7]} {minute // 60 % 24:02}:{minute % 60:02}"


def common_minute(one: When, other: When) -> Optional[int]:
    """The first minute of the week in which both are open."""
    pairs = [(a, b) for a in one.spans for b in other.spans]
    return min((max(a[0], b[0]) for a, b in pairs if max(a[0], b[0]) < min(a[1], b[1])),
               default=None)  # fmt: skip
