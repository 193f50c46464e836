# SPDX-License-Identifier: GPL-2.0-or-later
"""What of a tick is worth a line in the history: what changed."""

from __future__ import annotations

from typing import List, Optional, Sequence, Tuple

from writebackd import human
from writebackd.alert.values import Alert
from writebackd.model import Action, DeviceDecision, Mode
from writebackd.report.history import Event
from writebackd.report.snapshot import Snapshot

RESOLVED = "resolved"  # the state of an event of kind alert that ended; else its severity


def events_of(last: Optional[Snapshot], now: Snapshot, actions: Tuple[Action, ...]) -> List[Event]:
    """Events between two snapshots; `last` is None for the first one."""
    wall_s = now.sample.wall_s
    events = []
    if last is None:
        events.append(
            Event(
                wall_s,
                "start",
                text=f"version {now.version}, policy {now.policy_name}, "
                f"{now.mode.value}, probe {now.probe.backend}",
            )
        )
    if now.sample.foreign:
        said = "; ".join(
            f"{write.who} set {write.lever}={write.value}" for write in now.sample.foreign
        )
        events.append(Event(wall_s, "foreign", text=said))
    known = {d.name: d.decision_id for d in last.decision.devices} if last else {}
    events += [
        _decision(now, decision)
        for decision in now.decision.devices
        if known.get(decision.name) != decision.decision_id
    ]
    events += alert_events(last.alerts if last else (), now.alerts, wall_s)
    for action in actions:
        verb = "would be set: " if now.mode is Mode.OBSERVE else ""
        text = f"{verb}{action.lever} {action.old} -> {action.new}"
        if not action.ok:
            text += f" failed: {action.error}"
        events.append(
            Event(
                wall_s,
                "action",
                limit_bytes=now.decision.limit_bytes,
                background_bytes=now.decision.background_bytes,
                text=text,
            )
        )
    return events


def alert_events(last: Sequence[Alert], now: Sequence[Alert], wall_s: float) -> List[Event]:
    """Alerts that began, got worse or better, and ended; their numbers move all the time."""
    before = {alert.key: alert for alert in last}
    after = {alert.key for alert in now}
    events = []
    for alert in now:
        known = before.get(alert.key)
        if known is None or known.severity is not alert.severity:
            text = f"{_title(alert)}: {alert.summary}; {alert.done}"
            events.append(Event(wall_s, "alert", alert.device, state=alert.severity.value,
                                text=text))
    for alert in last:
        if alert.key not in after:
            lasted = human.duration(max(0.0, wall_s - alert.since_s))
            text = f"{_title(alert)}: over after {lasted}"
            events.append(Event(wall_s, "alert", alert.device, state=RESOLVED, text=text))
    return events


def _title(alert: Alert) -> str:
    return f"{alert.name.value} ({alert.cause.value})"


def _decision(now: Snapshot, decision: DeviceDecision) -> Event:
    estimate = now.estimates[decision.name]
    return Event(
        now.sample.wall_s,
        "decision",
        device=decision.name,
        decision_id=decision.decision_id,
        state=decision.state.value,
        limit_bytes=now.decision.limit_bytes,
        background_bytes=now.decision.background_bytes,
        target_bytes=decision.target_bytes,
        drain_rate=estimate.drain_rate,
        write_rate=estimate.write_rate,
        fsync_p50_s=estimate.fsync_p50_s,
        fsync_p99_s=estimate.fsync_p99_s,
        text=decision.reason,
    )
