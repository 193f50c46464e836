# SPDX-License-Identifier: GPL-2.0-or-later
"""An alert as text and JSON, the same in every route and in the CLI.  Pure."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Dict, Optional

from writebackd import formats
from writebackd.alerts.alert_types import Alert, Culprit

from .alert_events import AlertEvent, EventKind

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
    """The address of the runbook's section on this alert."""
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
        "culprits": [_culprit_json(culprit) for culprit in alert.culprits],
        "evidence": None
        if evidence is None
        else {
            "begin": evidence.begin_s,
            "end": evidence.end_s,
            "facts": {name: value if math.isfinite(value) else None
                      for name, value in evidence.facts},
        },
        "runbook": runbook_of(alert, base),
    }  # fmt: skip


def _culprit_json(culprit: Culprit) -> Dict[str, Any]:
    return {
        name: line(value) if isinstance(value, str) else value
        for name, value in asdict(culprit).items()
    }


def alert_event_json(event: AlertEvent, host: str, base: str = RUNBOOK) -> Dict[str, Any]:
    """The event as JSON for hooks and the history."""
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
    for end, text in (("_bytes", formats.size(value)), ("_share", formats.percent(value))):
        if name.endswith(end):
            return f"{name[: -len(end)]} {text}"
    if name.endswith("_s"):
        text = f"{formats.milliseconds(value)} ms" if value < 10 else formats.duration(value)
        return f"{name[:-2]} {text}"
    return f"{name} {value:.4g}" if abs(value) < 1e4 else f"{name} {value:,.0f}"


def fact_lines(alert: Alert) -> Optional[str]:
    """The evidence in one line: sync_rate 12, fsync_p99 2100 ms; None without any."""
    if alert.evidence is None or not alert.evidence.facts:
        return None
    return line(", ".join(fact(name, value) for name, value in alert.evidence.facts))
