# SPDX-License-Identifier: GPL-2.0-or-later
"""What an alert says, for somebody who was woken by it."""

from __future__ import annotations

from typing import Optional, Sequence

from writebackd import human
from writebackd.alert.state import Baseline, Spell, Watch
from writebackd.alert.values import Alert, Cause, Culprit
from writebackd.model import Decision, Memory, Mode, replace

WHY = {
    Cause.FLOOD: "buffered writes flood the device",
    Cause.WRITE_THROUGH: "no write is faster than the disks themselves: the write cache is off",
    Cause.DEVICE: "the device itself is slow or fails",
    Cause.CAP: "operations come at a fixed pace: a limit of the volume",
    Cause.NEIGHBOUR: "nothing here writes so much: somebody else's load, or a rebuild, behind"
    " the same disks",
    Cause.THROTTLED_WRITER: "those who sync are held up in write() for pages of others",
    Cause.FOREIGN_CHANGE: "buffered writes flood the device, under a limit that is not ours",
    Cause.NO_DATA: "nothing can be measured",
    Cause.UNKNOWN: "the cause is not known",
}


def who(culprits: Sequence[Culprit]) -> str:
    """The culprits in words; empty without any."""
    return ", ".join(each.who for each in culprits)


def collapsed(
    name: str, spell: Spell, watch: Watch, usual: Optional[Baseline], cause: Cause,
    culprits: Sequence[Culprit],
) -> str:
    """One line: how bad against the device's own baseline, why, who."""
    text = (
        f"{name}: {human.count(spell.sync_rate)} syncs/s instead of"
        f" {human.count(watch.sync_rate)}"
    )
    mean_s = spell.syncs.mean()
    if mean_s is not None:
        text += f", mean {human.milliseconds(mean_s)} ms"
        text += f" (usual {human.milliseconds(usual.latency_s)})" if usual is not None else ""
    text += f", slowest {human.milliseconds(spell.slowest_s)} ms"
    return f"{text}; {WHY[cause]}" + (f": {who(culprits)}" if culprits else "")


def degraded(name: str, spell: Spell, usual: Baseline) -> str:
    return (
        f"{name}: a small write takes {human.milliseconds(spell.writes.quantile(0.5))} ms"
        f" instead of {human.milliseconds(usual.latency_s)}; {WHY[Cause.WRITE_THROUGH]}"
    )


def stalled(name: str, seconds: float, inflight: int, waiting: int, oldest_s: float) -> str:
    text = f"{name}: nothing has completed for {human.duration(seconds)}"
    if inflight:
        text += f", {inflight} requests wait"
    else:
        text += ", and no request has reached the disk (a frozen filesystem?)"
    if waiting:
        text += f", {waiting} syncs, the oldest for {human.duration(oldest_s)}"
    return text


def gone(alert: Alert) -> Alert:
    """The same alert when its disk is no more."""
    if alert.done == _GONE:
        return alert
    return replace(alert, summary=f"{alert.device}: the disk is gone; {alert.summary}", done=_GONE)


def exhausted(
    name: str, spell: Spell, objective_s: float, cause: Cause, floor_bytes: Optional[int]
) -> str:
    """`floor_bytes`: where it is in force in this tick."""
    p99_s = spell.syncs.quantile(0.99)
    slow = f"slowest {human.milliseconds(spell.slowest_s)} ms"
    if p99_s is not None:
        slow = f"p99 {human.milliseconds(p99_s)} ms"
    floor = f", {human.size(floor_bytes)}" if floor_bytes is not None else ""
    return (
        f"{name}: fsync {slow} (objective {human.milliseconds(objective_s)} ms), and the limit is"
        f" at its floor{floor}; {WHY[cause]}"
    )


_ADVICE = {
    Cause.WRITE_THROUGH: "look at the controller's battery and cache mode",
    Cause.DEVICE: "look at the kernel's log, the controller and the disk",
    Cause.CAP: "buy a larger volume, or write less",
    Cause.NEIGHBOUR: "look at rebuilds and at the other hosts on these disks",
    Cause.UNKNOWN: "look at the kernel's log",
}


_GONE = "nothing, there is nothing left to protect: look at the kernel's log, the cable, the path"


def done(name: str, cause: Cause, decision: Decision, memory: Memory, in_force: bool) -> str:
    """What the agent did about it, and what is left to do."""
    if cause not in (Cause.FLOOD, Cause.FOREIGN_CHANGE, Cause.THROTTLED_WRITER):
        why = "cause not known" if cause is Cause.UNKNOWN else "dirty pages are not why"
        return f"{why}: {_ADVICE.get(cause, 'see the runbook')}"
    if memory.mode is Mode.OBSERVE:
        goal = decision.goal_bytes
        would = f" would hold the limit at {human.size(goal)}" if goal is not None else " acts"
        return f"nothing, it only observes: `writebackctl enforce`{would}"
    if memory.yielded is not None:
        return "nothing, somebody else set the limit: `writebackctl enforce` takes it back"
    if memory.pin_bytes is not None:
        return f"holds the pinned {human.size(memory.pin_bytes)}: `writebackctl release` frees it"
    if not in_force:
        return "nothing, its limits are refused or held off: `writebackctl status` says by what"
    mine = next((each for each in decision.devices if each.name == name), None)
    state = f" ({mine.state.value}: {mine.reason})" if mine is not None else ""
    if decision.limit_bytes is None:
        return f"no limit of its own yet{state}"
    return f"holds the limit at {human.size(decision.limit_bytes)}{state}"
