# SPDX-License-Identifier: GPL-2.0-or-later
"""Events as periods of time: states, alerts and trials, only while a daemon was seen to run."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple

from writebackd.report.device_figures import Figures
from writebackd.report.device_plot import Mark
from writebackd.report.history_events import RESOLVED
from writebackd.report.history_schema import Event

STATES = {
    "idle": "no sync demand",
    "guard": "sync demand",
    "probe": "trying a larger limit",
    "pace": "holding the flooding unit below the drain rate",
    "exhausted": "at the floor and still slow",
    "blind": "fsync is not visible",
    "yielded": "another process set the limit",
    "pinned": "by the admin",
    "excluded": "left alone",
}


@dataclass(frozen=True)
class Span:
    """The time that a page covers."""

    host: str
    version: str
    begin_s: float
    end_s: float
    made_s: float
    running: bool = False  # whether the daemon that wrote it runs when the page is made


class Signs:
    """When the daemon is known to have run, from its events and rows of figures."""

    def __init__(self, events: Sequence[Event], rows: Sequence[Figures], span: Span) -> None:
        self._signs = sorted([event.wall_s for event in events] + [row.end_s for row in rows])
        later = next((event for event in events if event.wall_s > span.end_s), None)
        # A daemon that was killed writes no end, but the next one a start.
        lived = span.running if later is None else later.kind != "start"
        seen_s = self.before(math.inf if later is None else later.wall_s)
        self.end_s = span.end_s if lived else min(span.end_s, seen_s)  # of what had no end

    def end(self, event: Event) -> float:
        """The end of a state when a daemon stopped, or the next one started."""
        return self.before(event.wall_s) if event.kind == "start" else event.wall_s

    def before(self, at_s: float) -> float:
        """The last sign before a time, or that time itself without any."""
        place = bisect_left(self._signs, at_s)
        return self._signs[place - 1] if place else at_s


def trial_spans(events: Sequence[Event]) -> List[Tuple[float, float]]:
    return _spans(events, "trial", " ended: ", ())


def pin_spans(events: Sequence[Event]) -> List[Tuple[float, float]]:
    """When an admin held the limit; observe releases it."""
    return _spans(events, "pin", "released ", ("mode",))


def drain_spans(events: Sequence[Event]) -> List[Tuple[float, float]]:
    """When a drain held the limit at the floor; release and mode end it as well."""
    return _spans(events, "drain", "drain ended ", ("pin", "mode"))


def _spans(
    events: Sequence[Event], kind: str, ending: str, others: Tuple[str, ...]
) -> List[Tuple[float, float]]:
    """From an event of `kind` to one with `ending` in its text, one of `others`, or a restart."""
    spans: List[Tuple[float, float]] = []
    began_s: Optional[float] = None
    for event in events:
        if event.kind not in (kind, *others, "start", "stop"):
            continue
        if began_s is not None:
            spans.append((began_s, event.wall_s))
        begins = event.kind == kind and ending not in event.text
        began_s = event.wall_s if begins else None
    return spans if began_s is None else [*spans, (began_s, math.inf)]


def state_marks(events: Sequence[Event], signs: Signs, device: str, span: Span) -> List[Mark]:
    """What writebackd did about a device, from decision to decision, while it ran."""
    marks: List[Mark] = []
    open_: Optional[Event] = None

    def close(end_s: float) -> None:
        if open_ is not None and end_s > span.begin_s:
            state = open_.state or ""
            text = f"{state} {open_.decision_id or ''}: {open_.text}"
            style = state if state in STATES else "unknown"
            marks.append(Mark(max(open_.wall_s, span.begin_s), end_s, style, text))

    for event in events:
        if event.wall_s > span.end_s:
            break
        if event.kind == "decision" and event.device == device:
            close(event.wall_s)
            open_ = event
        elif event.kind in ("start", "stop"):
            close(signs.end(event))
            open_ = None
    close(signs.end_s)
    return marks


def alert_marks(events: Sequence[Event], signs: Signs, device: str, span: Span) -> List[Mark]:
    """Alerts of a device and of the host, until they ended or the daemon stopped."""
    marks: List[Mark] = []
    standing: Dict[Tuple[Optional[str], str], Event] = {}

    def close(event: Event, end_s: float) -> None:
        if end_s >= span.begin_s and event.wall_s <= span.end_s:
            style = "critical" if event.state == "critical" else "warning"
            marks.append(Mark(max(event.wall_s, span.begin_s), end_s, style, event.text))

    for event in events:
        if event.wall_s > span.end_s:
            break
        if event.kind in ("start", "stop"):
            for each in standing.values():
                close(each, signs.end(event))
            standing.clear()
        if event.kind != "alert" or event.device not in (None, device):
            continue
        key = (event.device, event.decision_id or event.text.split(":", 1)[0])
        before = standing.pop(key, None)
        if before is not None:
            close(before, event.wall_s)
        if event.state != RESOLVED:
            standing[key] = event
    for each in standing.values():
        close(each, signs.end_s)
    return marks


def moment_marks(events: Sequence[Event]) -> List[Mark]:
    return [
        Mark(event.wall_s, event.wall_s, event.kind, f"{event.kind}: {event.text}")
        for event in events if event.kind not in ("decision", "action", "alert")
    ]
