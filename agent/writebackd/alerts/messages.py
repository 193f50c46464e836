# SPDX-License-Identifier: GPL-2.0-or-later
"""The summary, cause and action of an alert as text; what the array itself says of the cause."""

from __future__ import annotations

from typing import List, Optional, Sequence

from writebackd import formats
from writebackd.alerts.alert_types import Alert, Cause, Culprit
from writebackd.alerts.detector_memory import Baseline, DeviceHealth, Incident
from writebackd.alerts.views import TickView
from writebackd.types.copying import replace
from writebackd.types.core_memory import Memory
from writebackd.types.decision import Mode
from writebackd.types.storage import Backing, CacheMode, Protection

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
        text += f", {inflight} {'request' if inflight == 1 else 'requests'} pending"
    else:
        text += ", and no request has reached the disk (a frozen filesystem?)"
    if waiting:
        text += f", {waiting} {'sync' if waiting == 1 else 'syncs'} pending, the oldest for"
        text += f" {formats.duration(oldest_s)}"
    return text


def gone(alert: Alert) -> Alert:
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


def done(tick: TickView, name: str, cause: Cause) -> str:
    """What the agent did about it, and what is left to do."""
    decision, memory = tick.decision, tick.core
    if cause is Cause.DEVICE and _works(tick, name):
        return "wait until the array is done, or lower its rebuild rate"
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
    if not tick.in_force:
        return "nothing, the limits are refused or switched off: see `writebackctl status`"
    mine = next((device for device in decision.devices if device.name == name), None)
    state = f" ({mine.state.value}: {mine.reason})" if mine is not None else ""
    cap = memory.caps.get(name)
    limit = cap.bytes if cap is not None and cap.in_force else decision.limit_bytes
    if limit is None:
        return f"no limit set yet{state}"
    return f"holds the limit at {formats.size(limit)}{state}"


_VERBS = {
    "rebuild": "rebuilds", "resync": "is resynced", "check": "is checked",
    "patrol": "is in a patrol read", "initialisation": "is initialised",
    "migration": "is reshaped",
}  # fmt: skip


def likeliest(tick: TickView, name: str, cause: Cause) -> Cause:
    """The cause, unless the array itself is at work: then that is it.

    From the host a rebuild looks like the load of a neighbour: only the array can tell.
    """
    if cause in (Cause.NEIGHBOUR, Cause.UNKNOWN) and _works(tick, name):
        return Cause.DEVICE
    return cause


def array_says(tick: TickView, name: str, cause: Cause) -> str:
    """What the array says of such a cause, as the end of a sentence; empty for other causes."""
    known: List[str] = []
    if cause is Cause.DEVICE:
        known = _works(tick, name)
    elif cause is Cause.WRITE_THROUGH:
        known = _caches(tick, name)
    return f": {', '.join(known)}" if known else ""


def battery(backing: Backing) -> str:
    """What is wrong with the battery or capacitor of the cache; empty if nothing is."""
    if backing.protection is None:
        words = [word for word in backing.unread if "battery" in word]
        return f"{', '.join(words)} is not understood ({backing.source})" if words else ""
    if backing.protection is Protection.OK:
        return ""
    return f"battery {backing.protection.value} ({backing.source})"


def _works(tick: TickView, name: str) -> List[str]:
    lines = []
    for backing in tick.backings_of(name):
        for work in backing.works:
            line = f"array {_VERBS.get(work.kind, 'is busy')}"
            if work.share is not None:
                line += f", {formats.percent(work.share)} done"
            if work.rate is not None:
                line += f" at {formats.size(work.rate)}/s"
            lines.append(f"{line} ({backing.source})")
    return list(dict.fromkeys(lines))


def _caches(tick: TickView, name: str) -> List[str]:
    lines = []
    for backing in tick.backings_of(name):
        lines.append(battery(backing))
        if backing.mode is CacheMode.WRITE_THROUGH:
            lines.append(f"cache write-through ({backing.source})")
        elif backing.mode is not None:
            lines.append(f"but {backing.source} says {backing.mode.value}")
    return list(dict.fromkeys(filter(None, lines)))
