# SPDX-License-Identifier: GPL-2.0-or-later
"""Writes alert events to the journal: a line for people, fields for programs.

Also has the message ids, and the fields of entries that are not alerts.
"""

from __future__ import annotations

import logging
import os
from functools import partial
from typing import Any, Dict, Optional, Sequence

from writebackd import journald
from writebackd.alerts.alert_types import Alert, Culprit, Severity
from writebackd.types.levers import Action, ForeignWrite, Intrusion

from .alert_events import AlertEvent, EventKind, headline, line, runbook_of, who
from .route import QueuedRoute

# systemd/writebackd.catalog explains each. They never change: `journalctl MESSAGE_ID=...` and
# people's filters rest on them.
ALERT_BEGIN = "e31a69081d114ab1a200a8a08c7eb49f"
ALERT_CHANGE = "47a84b331cf349c4839d631e6d3e045c"
ALERT_END = "8cc2633afc6e457fa400b7e848424166"
DECISION = "222133b5caff4a47a7c631a5a7c95502"
FOREIGN_WRITER = "0a211a0b8de8412096dd1f4f376df7d9"
REVERTED = "8202022c3ffd4a7db80330320a70286b"

LIMITS = ("dirty_bytes", "dirty_background_bytes")


def lever(action: Action, reason: str, decision_id: Optional[str] = None) -> Dict[str, Any]:
    """Fields for a lever that was set for a reason, or restored without one.

    `decision_id` is that of the device whose need became the limit, as `why` and the history have
    it; levers beside the limits have their own reasons.
    """
    fields = {
        "MESSAGE_ID": DECISION if reason else REVERTED,
        "LEVER": action.lever,
        "OLD": action.old,
        "NEW": action.new,
    }
    if action.lever in LIMITS:
        fields.update(OLD_BYTES=action.old, NEW_BYTES=action.new)
        if decision_id is not None:
            fields["DECISION_ID"] = decision_id
    if reason:
        fields["REASON"] = reason
    return {"journal": fields}


def foreign(write: ForeignWrite) -> Dict[str, Any]:
    """Fields for a lever that another process set."""
    fields = {
        "MESSAGE_ID": FOREIGN_WRITER,
        "LEVER": write.lever,
        "NEW": write.value,
        "WRITER": write.who,
    }
    if write.pid is not None:
        fields["WRITER_PID"] = str(write.pid)
    if write.cmdline is not None:
        fields["WRITER_CMDLINE"] = write.cmdline
    return {"journal": fields}


def foreign_limits(intrusions: Sequence[Intrusion]) -> Dict[str, Any]:
    """As `foreign`, for the first limit among them; empty without any."""
    return next((foreign(one.write) for one in intrusions if one.write.is_limit), {})


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
    native = os.path.exists(journald.SOCKET)
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
