# SPDX-License-Identifier: GPL-2.0-or-later
"""Turns the active alerts of each tick into events: begin, change, end; and into text and JSON.

The same words in every route and in the CLI.  Pure.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

from writebackd import formats
from writebackd.alerts.alert_types import Alert, Culprit

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
            AlertEvent(EventKind.BEGIN, known.id, known.alert, wall_s)
            for known in self._standing.values()
        )


if TYPE_CHECKING:
    from .alert_answer import ActiveAlert

# Where `make install` puts the manual; `runbook` of [alerts] replaces it.
RUNBOOK = "file:///usr/share/doc/writebackd/docs/howto/runbook.md"

# A command line may have two megabytes (ARG_MAX); a mail and a label shall not.
_LONGEST = 512


def line(text: str) -> str:
    """`text` as one line of limited length that is safe to display."""
    plain = formats.printable(text)
    return plain if len(plain) <= _LONGEST else plain[: _LONGEST - 3] + "..."


def runbook_of(alert: Alert, base: str = RUNBOOK) -> str:
    return f"{base}#{alert.name.value.lower()}"


def who(culprit: Culprit) -> str:
    """A culprit in one line: dd (pid 4242, backup.service) 310M/s: dd if=/dev/zero ..."""
    return line(f"{culprit.who}: {culprit.cmdline}" if culprit.cmdline else culprit.who)


def headline(event: AlertEvent) -> str:
    """What happened in one line, with one cause, in every route and in the history."""
    alert = event.alert
    if event.what is EventKind.END:
        lasted = formats.duration(max(0.0, event.wall_s - alert.since_s))
        where = "the host" if alert.device is None else alert.device
        return line(f"{alert.name.value} on {where} is over after {lasted} ({alert.cause.value})")
    text = formats.alert(alert.name.value, alert.device, alert.severity.value, alert.summary)
    return line(f"{text} ({event.changed})" if event.what is EventKind.CHANGE else text)


def alert_json(alert: Alert, base: str = RUNBOOK) -> ActiveAlert:
    """The keys of `status` and more; since in seconds since 1970, rates in bytes per second."""
    evidence = alert.evidence
    return {
        "name": alert.name.value,
        "device": alert.device,
        "severity": alert.severity.value,
        "cause": alert.cause.value,
        "since": alert.since_s,
        "summary": line(alert.summary),
        "done": line(alert.done),
        "culprits": [
            {
                name: line(value) if isinstance(value, str) else value
                for name, value in asdict(culprit).items()
            }
            for culprit in alert.culprits
        ],
        "evidence": None if evidence is None else {
            "begin": evidence.begin_s,
            "end": evidence.end_s,
            "facts": {name: value if math.isfinite(value) else None
                      for name, value in evidence.facts},
        },
        "runbook": runbook_of(alert, base),
    }  # fmt: skip


def alert_event_json(event: AlertEvent, host: str, base: str = RUNBOOK) -> Dict[str, Any]:
    return {
        "what": event.what.value,
        "id": line(event.id),
        "time": event.wall_s,
        "host": host,
        "changed": event.changed or None,
        "alert": alert_json(event.alert, base),
    }


def fact(name: str, value: Optional[float]) -> str:
    """A figure of the evidence for display; the end of its name is its unit."""
    if value is None or not math.isfinite(value):
        return f"{name} {formats.UNKNOWN}"
    for end, text in (("_bytes", formats.size(value)), ("_share", formats.percent(value)),
                      ("_s", formats.latency(value))):  # fmt: skip
        if name.endswith(end):
            return f"{name[: -len(end)]} {text}"
    if name.endswith("_rate"):
        return f"{name} {formats.size(value) if name == 'write_rate' else formats.count(value)}/s"
    return f"{name} {value:.4g}" if abs(value) < 1e4 else f"{name} {value:,.0f}"


def fact_lines(alert: Alert) -> Optional[str]:
    """The evidence in one line: sync_rate 12/s, fsync_p99 2.1s; None without any."""
    if alert.evidence is None or not alert.evidence.facts:
        return None
    return line(", ".join(fact(name, value) for name, value in alert.evidence.facts))
