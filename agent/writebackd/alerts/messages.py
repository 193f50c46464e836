# SPDX-License-Identifier: GPL-2.0-or-later
"""The summary, cause and action of an alert as text."""

from __future__ import annotations

from typing import Optional, Sequence

from writebackd import formats
from writebackd.alerts.alert_types import Alert, Cause, Culprit
from writebackd.alerts.detector_memory import Baseline, DeviceHealth, Incident
from writebackd.types.copying import replace
from writebackd.types.core_memory import Memory
from writebackd.types.decision import Decision, Mode

WHY = {
    Cause.FLOOD: "writes of this host flood the device",
    Cause.WRITE_THROUGH: "writes are no faster than the disks: the write cache is off",
    Cause.DEVICE: "the device is slow or failing",
    Cause.CAP: "operations complete at a fixed rate, the limit of the volume",
    Cause.NEIGHBOUR: "no local process writes that much: another host or a rebuild loads the same"
    " disks",
    Cause.THROTTLED_WRITER: "programs that commit are throttled in write()",
    Cause.FOREIGN_CHANGE: "buffered writes flood the device under a limit that is not the law's",
    Cause.BATTERY: "self-test of the write cache's battery",
    Cause.NO_DATA: "nothing can be measured",
    Cause.UNKNOWN: "cause unknown",
}


def collapsed(
    name: str, incident: Incident, health: DeviceHealth, usual: Optional[Baseline], cause: Cause,
    culprits: Sequence[Culprit], limit: str = "",
) -> str:
    """One line: how far below the device's baseline, the cause; `limit`: the limiting limit."""
    text = (
        f"{name}: {formats.count(incident.sync_rate)} fsync/s (usually"
        f" {formats.count(health.sync_rate)})"
    )
    who = ", ".join(culprit.who for culprit in culprits)
    if who and cause in (Cause.FLOOD, Cause.FOREIGN_CHANGE):
        text += f", caused by {who}" + (f" under {limit}" if limit else "")
    else:
        text += f", {WHY[cause]}{f' by {limit}' if limit else ''}" + (f": {who}" if who else "")
    mean_s = incident.syncs.mean()
    if mean_s is not None:
        text += f"; mean {formats.latency(mean_s)}"
        text += f" (usual {formats.latency(usual.latency_s)})" if usual is not None else ""
    return f"{text}{';' if mean_s is None else ','} slowest {formats.latency(incident.slowest_s)}"


def limit(limit_bytes: int, memory: Memory) -> str:
    """Which limit throttles the writers, and who set it."""
    whose = "set by writebackd"
    if memory.yielded is not None:
        whose = memory.yielded
    elif memory.dry:
        whose = "as found"
    elif memory.pin_bytes is not None:
        whose = "pinned"
    return f"the limit of {formats.size(limit_bytes)}, {whose}"


def degraded(name: str, incident: Incident, usual: Baseline) -> str:
    return (
        f"{name}: a small write takes {formats.latency(incident.writes.quantile(0.5))}"
        f" (usually {formats.latency(usual.latency_s)}), {WHY[Cause.WRITE_THROUGH]}"
    )


def stalled(name: str, seconds: float, inflight: int, waiting: int, oldest_s: float) -> str:
    text = f"{name}: no IO completed for {formats.duration(seconds)}"
    if inflight:
        text += f", {inflight} requests pending"
    else:
        text += ", and no request has reached the disk (a frozen filesystem?)"
    if waiting:
        text += f", {waiting} syncs pending, the oldest for {formats.duration(oldest_s)}"
    return text


def gone(alert: Alert) -> Alert:
    """The alert after its disk was removed."""
    if alert.done == _GONE:
        return alert
    return replace(alert, summary=f"{alert.device}: the disk is gone; {alert.summary}", done=_GONE)


def exhausted(
    name: str, incident: Incident, objective_s: float, cause: Cause, floor_bytes: Optional[int]
) -> str:
    """`floor_bytes`: the limit in force in this tick, which cannot be lowered further."""
    p99_s = incident.syncs.quantile(0.99)
    slow = f"slowest {formats.latency(incident.slowest_s)}" if p99_s is None else (
        f"p99 {formats.latency(p99_s)}")
    floor = f", {formats.size(floor_bytes)}" if floor_bytes is not None else ""
    return (
        f"{name}: commits {slow} (objective {formats.latency(objective_s)}), and the limit"
        f" is at its floor{floor}; {WHY[cause]}"
    )


_ADVICE = {
    Cause.WRITE_THROUGH: "check the controller's battery and cache mode",
    Cause.DEVICE: "check the kernel log, the controller and the disk",
    Cause.CAP: "write less, or use a larger volume",
    Cause.NEIGHBOUR: "check for rebuilds and for other hosts on these disks",
    Cause.UNKNOWN: "check the kernel log",
}


_GONE = "nothing, the disk is gone: check the kernel log, the cable and the path"


# Causes that a dirty limit holds.
LIMITED = (Cause.FLOOD, Cause.FOREIGN_CHANGE, Cause.THROTTLED_WRITER)


def done(name: str, cause: Cause, decision: Decision, memory: Memory, in_force: bool) -> str:
    """What the agent did about it, and what is left to do."""
    if cause not in LIMITED:
        why = "cause unknown" if cause is Cause.UNKNOWN else "not caused by dirty pages"
        return f"{why}: {_ADVICE.get(cause, 'see the runbook')}"
    if memory.mode is Mode.OBSERVE:
        goal = decision.goal_bytes
        would = f" would hold the limit at {formats.size(goal)}" if goal is not None else " acts"
        return f"nothing, observing: `writebackctl enforce`{would}"
    if memory.yielded is not None:
        return "nothing, another process set the limits: `writebackctl enforce` takes over"
    if memory.pin_bytes is not None:
        return f"limit pinned to {formats.size(memory.pin_bytes)}: `writebackctl release` ends it"
    if name in memory.draining:
        return "limit at its floor for a drain: `writebackctl release` ends it"
    if not in_force:
        return "nothing, the limits are refused or switched off: see `writebackctl status`"
    mine = next((device for device in decision.devices if device.name == name), None)
    state = f" ({mine.state.value}: {mine.reason})" if mine is not None else ""
    cap = memory.caps.get(name)
    limit = cap.bytes if cap is not None and cap.in_force else decision.limit_bytes
    if limit is None:
        return f"no limit set yet{state}"
    return f"holds the limit at {formats.size(limit)}{state}"
