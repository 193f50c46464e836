# SPDX-License-Identifier: GPL-2.0-or-later
"""Events for the history: the differences between two ticks."""

from __future__ import annotations

import json
import re
from typing import List, Optional, Sequence, Tuple

from writebackd import formats
from writebackd.notify.alert_events import AlertEvent, EventKind, alert_event_json, headline
from writebackd.notify.journal_route import LIMITS
from writebackd.policy.reload import Open
from writebackd.report.history_schema import Event
from writebackd.report.snapshot import Snapshot
from writebackd.types.decision import DeviceDecision, Mode
from writebackd.types.levers import Action

WOULD_BE = "would be set: "  # begins the text of an action that observe did not do
RESOLVED = "resolved"  # the state of an event of kind alert that ended; else its severity
_BYTES = re.compile(r"(?<=bytes )(\S+) -> ([^\s;]+)")  # of a lever: before, and after an action


def events_of(last: Optional[Snapshot], now: Snapshot, actions: Tuple[Action, ...]) -> List[Event]:
    """Events between two snapshots; `last` is None for the first one."""
    wall_s = now.sample.wall_s
    events = []
    if last is None:
        started = f"version {now.version}, policy {now.policy.name}, {now.memory.mode.value}"
        events.append(Event(wall_s, "start", text=f"{started}, probe {now.probe.backend}"))
    changed = window_in_words(last.window if last else None, now.window)
    if changed:
        events.append(Event(wall_s, "window", text=changed))
    if now.sample.foreign:
        said = "; ".join(
            f"{write.who} set {write.lever}={write.value}" for write in now.sample.foreign
        )
        events.append(Event(wall_s, "foreign", text=said))
    known = last.decisions if last is not None else {}
    events += [
        _decision(now, each)
        for each in now.decision.devices
        if each.name not in known or known[each.name].decision_id != each.decision_id
    ]
    for action in actions if _is_news(last, now) else ():
        if not action.ok and action in now.sample.actions:
            continue  # it fails as it did in the tick before
        verb = WOULD_BE if _is_dry(now) else ""
        failed = "" if action.ok else f" failed: {action.error}"
        events.append(
            Event(
                wall_s,
                "action",
                decision_id=now.decision.decision_id if action.lever in LIMITS else None,
                limit_bytes=_limit(now),
                background_bytes=now.decision.background_bytes,
                text=f"{verb}{action.lever} {action.old} -> {action.new}{failed}",
            )
        )
    return events


def readable(text: str) -> str:
    """The text of an action, with bytes as sizes."""
    def sized(value: str) -> str:
        return formats.size(int(value)) if value.isdecimal() else value

    return _BYTES.sub(lambda match: f"{sized(match[1])} -> {sized(match[2])}", text)


def window_in_words(before: Optional[Open], now: Optional[Open]) -> str:
    """Which window of the policy opened or closed; empty if nothing changed."""
    if (before.name if before else None) == (now.name if now else None):
        return ""
    over = f"window {before.name} is over" if before else ""
    opened = f"window {now.name} is open until {now.until}" if now else ""
    return "; ".join(filter(None, (over, opened)))


def alert_events(happened: Sequence[AlertEvent], host: str, runbook: str) -> List[Event]:
    """Begin, change and end of alerts, for `history` and for `alerts`."""
    return [
        Event(
            each.wall_s,
            "alert",
            device=each.alert.device,
            decision_id=each.id,
            state=RESOLVED if each.what is EventKind.END else each.alert.severity.value,
            text=headline(each),
            alert=json.dumps(alert_event_json(each, host, runbook)),
        )
        for each in happened
    ]


def _is_news(last: Optional[Snapshot], now: Snapshot) -> bool:
    """Whether actions get lines of their own.

    Where nothing is written the ramp follows dirty pages that nothing lowers, a step in every tick
    of a flood: as many in 14 hours as the history keeps. There only a new goal is news.
    """
    if not _is_dry(now) or last is None or not _is_dry(last):
        return True
    return last.decision.goal_bytes != now.decision.goal_bytes


def _is_dry(snapshot: Snapshot) -> bool:
    """Whether nothing is written: because of the mode, or of a kill-switch file."""
    return snapshot.memory.mode is Mode.OBSERVE or snapshot.off is not None


def _limit(now: Snapshot, device: Optional[str] = None) -> Optional[int]:
    """The limit of this decision, the device's own where it has one; else the one in force."""
    in_force = now.limit_of(device)
    own = in_force != now.sample.vm.threshold_bytes
    return in_force if own or not now.sets_limits else now.decision.limit_bytes


def _decision(now: Snapshot, decision: DeviceDecision) -> Event:
    estimate = now.estimates[decision.name]
    return Event(
        now.sample.wall_s,
        "decision",
        device=decision.name,
        decision_id=decision.decision_id,
        state=decision.state.value,
        limit_bytes=_limit(now, decision.name),
        background_bytes=now.decision.background_bytes,
        target_bytes=decision.target_bytes,
        drain_rate=estimate.drain_rate,
        write_rate=estimate.write_rate,
        fsync_p50_s=estimate.fsync_p50_s,
        fsync_p99_s=estimate.fsync_p99_s,
        commit_p50_s=estimate.commit_p50_s,
        commit_p99_s=estimate.commit_p99_s,
        commit_write_share=estimate.commit_write_share,
        text=decision.reason,
    )
