# SPDX-License-Identifier: GPL-2.0-or-later
"""The answer to why: the reason for the limit, and for what each device needs. Pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Optional, Tuple

from writebackd import formats
from writebackd.control.explain import explain, verdict, what_next
from writebackd.estimate.learned import earlier_drain_age_s
from writebackd.report.alert_answers import alerts_json
from writebackd.report.answer_parts import pinned_json, trial_json
from writebackd.report.device_answers import device_figures, find_devices
from writebackd.report.snapshot import Snapshot
from writebackd.report.verdict import verdict_json
from writebackd.types.decision import DeviceDecision, Mode
from writebackd.types.device_memory import DeviceMemory
from writebackd.types.samples import DeviceSample

if TYPE_CHECKING:
    from writebackd.report.answers import DeviceReason, WhyAnswer


def why_json(snapshot: Snapshot, device: Optional[str] = None) -> WhyAnswer:
    """The answer to `why`: the limit's reason, and each device's chain of reasoning.

    `device` is a name, major:minor, /dev path, mount point or leaf disk; None
    means all. Raises RequestError if no device has that name.
    """
    decision = snapshot.decision
    chosen, decisions = find_devices(snapshot, device), snapshot.decisions
    return {
        "verdict": verdict_json(snapshot),
        "mode": snapshot.mode.value,
        "policy": snapshot.policy_name,
        "window": asdict(snapshot.window) if snapshot.window is not None else None,
        "off": snapshot.off,
        "limit": {
            "limit_bytes": decision.limit_bytes,
            "background_bytes": decision.background_bytes,
            "goal_bytes": decision.goal_bytes,
            "threshold_bytes": snapshot.sample.vm.threshold_bytes,
            "reason": decision.reason,
            "pin": pinned_json(snapshot),
            "trial": trial_json(snapshot),
            "next": _next_of_limit(snapshot),
        },
        "devices": [
            _reasoning(snapshot, each, decisions[each.device.name]) for each in chosen
        ],
    }


def _from_earlier(snapshot: Snapshot, name: str) -> Tuple[str, ...]:
    """Inputs of the reasoning that this run has not measured itself."""
    memory = snapshot.memory.devices.get(name, DeviceMemory())
    age_s = earlier_drain_age_s(memory, snapshot.sample.wall_s)
    if age_s is None:
        return ()
    rate, age = formats.size(memory.drain_rate), formats.duration(age_s)
    return (f"drain rate {rate}/s, learned before the restart, {age} ago",)


def _reasoning(
    snapshot: Snapshot, sample: DeviceSample, decision: DeviceDecision
) -> DeviceReason:
    estimate = snapshot.estimates[decision.name]
    return {
        **device_figures(snapshot, sample, decision),
        "sections": snapshot.policy.sections(sample.device) if snapshot.policy else [],
        "verdict": verdict(decision, estimate),
        "steps": [
            *_from_earlier(snapshot, decision.name),
            *explain(decision, estimate),
            # The levers that another process has set, and which one.
            *(x["summary"] for x in alerts_json(snapshot) if x["device"] == decision.name),
        ],
        "rule": decision.rule.value,
        "next": what_next(decision, snapshot.objective, _unset(snapshot)),
    }


def _unset(snapshot: Snapshot) -> str:
    """In which state of the daemon nothing is set; empty in others."""
    if snapshot.mode is Mode.OBSERVE:
        return "in observe mode, until `writebackctl enforce`"
    return "" if snapshot.off is None else f"while {snapshot.off} exists"


def _next_of_limit(snapshot: Snapshot) -> str:
    decision, vm = snapshot.decision, snapshot.sample.vm
    if _unset(snapshot):
        return f"Nothing is set {_unset(snapshot)}."
    if snapshot.memory.yielded is not None:
        return "Nothing is written while it yields; `writebackctl enforce` ends that."
    trial = snapshot.memory.trial
    if trial is not None and trial.original:
        return "Trial: writebackd's limits return with a later block, or once fsync is too slow."
    if snapshot.memory.pin_bytes is not None:
        return "The limit stays until the end of the pin, `writebackctl release` or a reboot."
    if decision.goal_bytes is None or decision.limit_bytes is None:
        return "The original limits stay."
    # What reads the same is the same: the law leaves small differences alone.
    if formats.size(decision.goal_bytes) == formats.size(decision.limit_bytes):
        return "The limit stays until a device's target changes."
    if decision.goal_bytes < decision.limit_bytes:
        backlog = vm.dirty_bytes + vm.writeback_bytes
        rate = sum(each.background_rate for each in snapshot.estimates.values())
        takes = (
            f" (about {formats.duration(backlog / rate)} at {formats.size(rate)}/s)" if rate else ""
        )
        return (
            f"The limit falls to {formats.size(decision.goal_bytes)} as {formats.size(backlog)} of"
            f" dirty pages are written{takes}."
        )
    return f"The limit rises to {formats.size(decision.goal_bytes)} step by step."
