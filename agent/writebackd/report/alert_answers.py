# SPDX-License-Identifier: GPL-2.0-or-later
"""The answer to alerts: active and past alerts, routes, and whom alerts blamed.  Pure."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Mapping, Optional, Tuple

from writebackd.alerts.alert_types import Alert, AlertName, Cause
from writebackd.alerts.foreign import by_device
from writebackd.notify.alert_events import RUNBOOK, alert_json
from writebackd.report.answer_parts import Json
from writebackd.report.control_server import RequestError
from writebackd.report.device_answers import find_devices
from writebackd.report.snapshot import Snapshot

if TYPE_CHECKING:
    from writebackd.notify.alert_answer import ActiveAlert

_KEPT = (
    "name", "device", "severity", "cause", "since", "summary", "done", "culprits", "evidence",
    "runbook",
)  # fmt: skip


def alert_answer(snapshot: Snapshot, device: Optional[str] = None) -> Json:
    """The daemon's part of the answer; past alerts come from the history, read by the client.

    `devices` are the names that `device` may mean, as `why` takes it: none where nobody knows
    it, all where it is None.
    """
    try:
        devices = [each.device.name for each in find_devices(snapshot, device)]
    except RequestError:
        devices = []  # of one that is gone there may still be a past
    return {
        "time_s": snapshot.sample.wall_s,
        "devices": devices,
        "active": alerts_json(snapshot),
        "routes": [asdict(route) for route in snapshot.routes],
        "state_dir": snapshot.state_dir,
    }


def alerts_json(snapshot: Snapshot) -> List[ActiveAlert]:
    """Every active alert; `since` in seconds since 1970."""
    return [_alert(alert, snapshot) for alert in snapshot.alerts]


def _alert(alert: Alert, snapshot: Snapshot) -> ActiveAlert:
    row = alert_json(alert, snapshot.runbook or RUNBOOK)
    if alert.name is AlertName.FOREIGN_WRITER:
        row["writers"] = [
            {
                "lever": each.write.lever, "value": each.write.value, "pid": each.write.pid,
                "comm": each.write.comm, "cgroup": each.write.cgroup,
                "cmdline": each.write.cmdline,
            }
            for each in by_device(snapshot.memory, snapshot.sample).get(alert.device, ())
        ]
    return row


def route_warnings(snapshot: Snapshot) -> List[str]:
    """For `status`: the alert routes that do not work."""
    lines = []
    for route in snapshot.routes:
        if route.error is not None:
            lines.append(f"alerts do not reach {route.name} {route.target}: {route.error}")
        if route.lost:
            lines.append(f"{route.lost} alerts were never delivered to {route.name} {route.target}")
    return lines


def past_json(records: Iterable[str], active: Iterable[Mapping[str, Any]] = ()) -> List[Json]:
    """Past alerts, oldest first, from the begin, change and end events in the history.

    `end` is None where nobody saw it, since the daemon stopped before; those of `active` are
    left out. A record that is damaged is left out as well.
    """
    standing = {(each["name"], each["device"]) for each in active}
    alerts: Dict[str, Json] = {}
    for text in records:
        try:
            record = json.loads(text)
            alert = {
                **_checked(record["alert"]),
                "began": float(record["time"]),
                "end": float(record["time"]) if record["what"] == "end" else None,
                "causes": [str(record["alert"]["cause"])],
            }
            known = alerts.get(record["id"])
            if known is not None:
                alert["began"] = known["began"]
                alert["causes"] = list(dict.fromkeys(known["causes"] + alert["causes"]))
                if known["severity"] == "critical":
                    alert["severity"] = "critical"  # the worst that it was
            alerts[record["id"]] = alert
        except (ValueError, KeyError, TypeError):
            continue
    newest = {(each["name"], each["device"]): id_ for id_, each in alerts.items()}
    return [
        each
        for id_, each in alerts.items()
        if each["end"] is not None
        or (each["name"], each["device"]) not in standing
        or newest[each["name"], each["device"]] != id_
    ]


def _checked(alert: Mapping[str, Any]) -> Json:
    """Raises KeyError or TypeError unless the record is as it was written."""
    for name in ("name", "severity", "cause", "summary", "done", "runbook"):
        if not isinstance(alert[name], str):
            raise TypeError(name)
    if not isinstance(alert["since"], (int, float)) or not isinstance(alert["culprits"], list):
        raise TypeError("since")
    return {name: alert[name] for name in _KEPT}


# More names make no sentence.
_MOST = 3


def blamed(
    past: Iterable[Mapping[str, Any]], device: str, begin_s: float, end_s: float
) -> List[Tuple[str, int]]:
    """Names and numbers of alerts that began in the span, most first; alerts as in past_json()."""
    counts: Counter[str] = Counter()
    for alert in past:
        within = begin_s <= alert["began"] <= end_s and alert["device"] == device
        if within and Cause.FLOOD.value in alert["causes"]:
            # Once an alert, however many processes of that name it lists.
            counts.update(dict.fromkeys(filter(None, map(_name, alert["culprits"])), 1))
    return counts.most_common()


def _name(culprit: Any) -> Optional[str]:
    """dd (backup.service); None if the record is damaged, or names nobody."""
    if not isinstance(culprit, dict):
        return None
    comm, unit = culprit.get("comm"), culprit.get("unit")
    if comm and unit:
        return f"{comm} ({unit})"
    name = comm or unit or culprit.get("container")
    return str(name) if name else None


def sentence(blamed: List[Tuple[str, int]]) -> str:
    """Which programs were blamed; empty if no alert names any."""
    if not blamed:
        return ""
    named = ", ".join(f"{name} in {count}" for name, count in blamed[:_MOST])
    more = f", {len(blamed) - _MOST} others less often" if len(blamed) > _MOST else ""
    return f"Alerts blamed on floods named {named}{more}."
