# SPDX-License-Identifier: GPL-2.0-or-later
"""Turns the active alerts of each tick into events: begin, change, end.  Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Dict, List, Optional, Sequence, Tuple

from writebackd.alerts.alert_types import Alert

Key = Tuple[str, Optional[str], str]


class EventKind(Enum):
    BEGIN = "begin"
    CHANGE = "change"
    END = "end"


@dataclass(frozen=True)
class AlertEvent:
    """Something to notify people about once.

    `alert` is the current state, at an end the last one; `before` is the one reported last, if it
    changed. `id` is the same from begin to end.
    """

    what: EventKind
    id: str
    alert: Alert
    wall_s: float
    before: Optional[Alert] = None

    @property
    def changed(self) -> str:
        """The changes in words; empty without any."""
        if self.before is None:
            return ""
        said = []
        for name in ("severity", "cause"):
            old, new = getattr(self.before, name).value, getattr(self.alert, name).value
            if old != new:
                said.append(f"{name} {old} -> {new}")
        if self.alert.culprits and not self.before.culprits:
            said.append("culprit found")
        return ", ".join(said)


@dataclass(frozen=True)
class _Standing:
    id: str
    alert: Alert  # as of the last tick
    reported: Alert
    named: bool  # a culprit was reported


class Tracker:
    """Remembers the active alerts and what was reported of them.

    Numbers change in every tick, and so does the heaviest of several culprits: neither is
    reported. Severity and cause are, and the first culprit. An alert whose cause changed is
    the same problem: one change, not an end and a begin.
    """

    def __init__(self) -> None:
        self._standing: Dict[Key, _Standing] = {}

    def knows(self, alert: Alert) -> bool:
        return any(key[:2] == alert.key[:2] for key in self._standing)

    def tell(
        self, active: Sequence[Alert], wall_s: float, hidden: Sequence[Alert] = ()
    ) -> Tuple[AlertEvent, ...]:
        """The events since the last call; of two alerts with one key the first counts.

        `hidden` are active, but explained by another alert: those that had begun do not end, and
        others do not begin.
        """
        now: Dict[Key, Alert] = {}
        for alert in active:
            now.setdefault(alert.key, alert)
        gone = {key: known for key, known in self._standing.items() if key not in now}
        events: List[AlertEvent] = []
        standing: Dict[Key, _Standing] = {}
        for key, alert in now.items():
            known = self._standing.get(key)
            if known is None:
                # The same trouble under another cause?
                earlier = next((other for other in gone if other[:2] == key[:2]), None)
                known = gone.pop(earlier) if earlier is not None else None
            if known is None:
                begun = "/".join((*(word or "-" for word in key), f"{wall_s:.3f}"))
                events.append(AlertEvent(EventKind.BEGIN, begun, alert, wall_s))
                standing[key] = _Standing(begun, alert, alert, bool(alert.culprits))
                continue
            named = known.named or bool(alert.culprits)
            news = (
                alert.severity is not known.reported.severity
                or alert.cause is not known.reported.cause
                or named is not known.named
            )
            if news:
                events.append(AlertEvent(EventKind.CHANGE, known.id, alert, wall_s, known.reported))
            standing[key] = _Standing(known.id, alert, alert if news else known.reported, named)
        behind = {alert.key[:2] for alert in hidden}
        for key in [key for key in gone if key[:2] in behind]:
            standing[key] = gone.pop(key)
        ended = [AlertEvent(EventKind.END, left.id, left.alert, wall_s) for left in gone.values()]
        self._standing = standing
        # Ends first: who reads on from the last line sees what stands.
        return (*ended, *events)

    def standing(self, wall_s: float) -> Tuple[AlertEvent, ...]:
        """The active alerts as begin events, for a route that starts only now."""
        return tuple(
            AlertEvent(EventKind.BEGIN, each.id, each.alert, wall_s)
            for each in self._standing.values()
        )
