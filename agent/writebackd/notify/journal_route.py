# SPDX-License-Identifier: GPL-2.0-or-later
"""Writes alert events to the journal: a line for people, fields for programs."""

from __future__ import annotations

import logging
import os
from functools import partial
from typing import Any, Dict

from writebackd import journald
from writebackd.alerts.alert_types import Alert, Culprit, Severity

from .alert_events import AlertEvent, EventKind
from .alert_text import headline, line, runbook_of, who
from .journal_fields import ALERT_BEGIN, ALERT_CHANGE, ALERT_END
from .route import QueuedRoute

log = logging.getLogger(__name__)

MESSAGE_IDS = {
    EventKind.BEGIN: ALERT_BEGIN, EventKind.CHANGE: ALERT_CHANGE, EventKind.END: ALERT_END,
}  # fmt: skip
# syslog(3): crit, warning, notice.
_PRIORITY = {Severity.CRITICAL: 2, Severity.WARNING: 4}
_OVER = 5
_LEVEL = {2: logging.CRITICAL, 4: logging.WARNING, 5: logging.INFO}


def journal_route(runbook: str) -> QueuedRoute:
    """A route to the journal, or to the log if there is no journald."""
    native = journald.is_there()
    target = journald.SOCKET if native else "the log"
    return QueuedRoute("journal", target, partial(_send, runbook, native))


def _send(runbook: str, native: bool, event: AlertEvent) -> None:
    """Send the event to the journal. Raises OSError."""
    entry = fields(event, runbook)
    if native:
        journald.send(entry)
    if not native or "JOURNAL_STREAM" not in os.environ:
        # Somebody may be looking at standard error, which is not the journal then.
        log.log(_LEVEL[entry["PRIORITY"]], "%s", entry["MESSAGE"])


def fields(event: AlertEvent, runbook: str) -> Dict[str, Any]:
    """All fields of the entry; only PRIORITY is a number."""
    alert = event.alert
    over = event.what is EventKind.END
    entry: Dict[str, Any] = {
        "MESSAGE": headline(event),
        "MESSAGE_ID": MESSAGE_IDS[event.what],
        "PRIORITY": _OVER if over else _PRIORITY[alert.severity],
        "SYSLOG_IDENTIFIER": "writebackd",
        "ALERT": alert.name.value,
        "ALERT_ID": line(event.id),
        "ALERT_STATE": event.what.value,
        "ALERT_CHANGED": event.changed,
        "ALERT_SINCE_USEC": str(int(alert.since_s * 1e6)),
        "DEVICE": line(alert.device or ""),
        "CAUSE": alert.cause.value,
        "SEVERITY": alert.severity.value,
        "SUMMARY": line(alert.summary),
        "DONE": line(alert.done),
        "RUNBOOK": runbook_of(alert, runbook),
    }
    entry.update(_facts(alert))
    if alert.culprits:
        entry.update(_culprit(alert.culprits[0]))
    return {name: value for name, value in entry.items() if value != ""}


def _facts(alert: Alert) -> Dict[str, str]:
    """FACT_SYNC_RATE=12.5 and so on, with the letters allowed in field names."""
    facts = alert.evidence.facts if alert.evidence is not None else ()
    return {
        f"FACT_{name.upper()}": f"{value:g}"
        for name, value in facts
        if name.isidentifier() and name.isascii()
    }


def _culprit(culprit: Culprit) -> Dict[str, str]:
    """Fields for the heaviest culprit.

    With OBJECT_SYSTEMD_UNIT, which root may set, `journalctl -u backup.service` shows alerts
    caused by backup.service.
    """
    entry = {
        "CULPRIT": who(culprit),
        "CULPRIT_PID": culprit.pid,
        "CULPRIT_COMM": culprit.comm,
        "CULPRIT_CMDLINE": culprit.cmdline,
        "CULPRIT_CGROUP": culprit.cgroup,
        "CULPRIT_CONTAINER": culprit.container,
        "OBJECT_SYSTEMD_UNIT": culprit.unit,
        "CULPRIT_BYTES_PER_SECOND": None if culprit.dirty_rate is None else int(culprit.dirty_rate),
    }
    return {name: line(str(value)) for name, value in entry.items() if value is not None}
