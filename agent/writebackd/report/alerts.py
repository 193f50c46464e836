# SPDX-License-Identifier: GPL-2.0-or-later
"""The alerts that stand, as the `alerts` of status. Pure."""

from __future__ import annotations

from typing import Any, Dict, List

from writebackd.alert.foreign import intrusions_of
from writebackd.alert.values import Alert, AlertName, Culprit
from writebackd.report.snapshot import Snapshot

Json = Dict[str, Any]


def alerts_json(snapshot: Snapshot) -> List[Json]:
    """Every alert that stands; `since` in seconds since 1970."""
    return [_alert(alert, snapshot) for alert in snapshot.alerts]


def _alert(alert: Alert, snapshot: Snapshot) -> Json:
    row = alert_json(alert)
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


def alert_json(alert: Alert) -> Json:
    """One alert; what is not known is None."""
    evidence = alert.evidence
    return {
        "name": alert.name.value,
        "device": alert.device,
        "severity": alert.severity.value,
        "cause": alert.cause.value,
        "since": alert.since_s,
        "summary": alert.summary,
        "done": alert.done,
        "culprits": [_culprit(each) for each in alert.culprits],
        "evidence": None
        if evidence is None
        else {"begin": evidence.begin_s, "end": evidence.end_s, "facts": dict(evidence.facts)},
    }


def _culprit(culprit: Culprit) -> Json:
    return {
        "pid": culprit.pid,
        "comm": culprit.comm,
        "cmdline": culprit.cmdline,
        "cgroup": culprit.cgroup,
        "unit": culprit.unit,
        "container": culprit.container,
        "dirty_rate": culprit.rate,
    }
