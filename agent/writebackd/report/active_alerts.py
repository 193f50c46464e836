# SPDX-License-Identifier: GPL-2.0-or-later
"""Active alerts and failing routes, as the answers show them.  Pure."""

from __future__ import annotations

from typing import Any, Dict, List

from writebackd.alerts.alert_types import Alert, AlertName
from writebackd.alerts.foreign import intrusions_of
from writebackd.notify.alert_text import RUNBOOK, alert_json
from writebackd.report.snapshot import Snapshot

Json = Dict[str, Any]


def alerts_json(snapshot: Snapshot) -> List[Json]:
    """Every alert that stands; `since` in seconds since 1970."""
    return [_alert(alert, snapshot) for alert in snapshot.alerts]


def _alert(alert: Alert, snapshot: Snapshot) -> Json:
    row = alert_json(alert, snapshot.runbook or RUNBOOK)
    if alert.name is AlertName.FOREIGN_WRITER:
        row["writers"] = [
            {
                "lever": each.write.lever,
                "value": each.write.value,
                "pid": each.write.pid,
                "comm": each.write.comm,
                "cgroup": each.write.cgroup,
                "cmdline": each.write.cmdline,
            }
            for each in intrusions_of(alert, snapshot.memory, snapshot.sample)
        ]
    return row


def route_warnings(snapshot: Snapshot) -> List[str]:
    """Of `status`: the routes that do not work."""
    lines = []
    for route in snapshot.routes:
        if route.error is not None:
            lines.append(f"alerts do not reach {route.name} {route.target}: {route.error}")
        if route.lost:
            lines.append(f"{route.lost} alerts were never delivered to {route.name} {route.target}")
    return lines
