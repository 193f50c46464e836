# SPDX-License-Identifier: GPL-2.0-or-later
"""The first line of status: one of a few codes, the device, since when, and a sentence. Pure."""

from __future__ import annotations

from typing import List, Optional, Tuple

from writebackd import formats
from writebackd.alerts.alert_types import AlertName, Severity
from writebackd.control.reasons import Judgement, judged
from writebackd.kernel.vm import LEVERS
from writebackd.report.answer_parts import Json, finite
from writebackd.report.snapshot import Snapshot, Standing, VerdictCode
from writebackd.types.decision import DeviceState, Mode


def verdict_json(snapshot: Snapshot) -> Json:
    code, device, text = _verdict(snapshot)
    since_s = standing(snapshot).since_s
    for_s = snapshot.sample.wall_s - since_s
    if code in _LASTING and for_s >= 1.0:
        text += f", for {formats.duration(for_s)}"
    return {
        "code": code.value,
        "device": device,
        "since_s": finite(since_s),
        "text": f"{code.value.replace('_', ' ')}: {text}",
    }


# Of these it matters for how long.
_LASTING = (
    VerdictCode.MISSES_OBJECTIVE, VerdictCode.FAILED, VerdictCode.BLIND, VerdictCode.ALERT,
)  # fmt: skip


def standing(snapshot: Snapshot) -> Standing:
    """The code, and since when: what the tick before has said counts where it is the same."""
    code, _, _ = _verdict(snapshot)
    last = snapshot.standing
    if last is not None and last.code is code:
        return last
    return Standing(code, snapshot.sample.wall_s)


def _verdict(snapshot: Snapshot) -> Tuple[VerdictCode, Optional[str], str]:
    """The worst first: what hurts, then what keeps the daemon from helping, then all else."""
    memory = snapshot.memory
    if snapshot.problem is not None:
        return VerdictCode.BLIND, None, snapshot.problem
    for action in snapshot.sample.actions:
        if not action.ok and action.lever in LEVERS:
            return VerdictCode.FAILED, None, f"cannot set {action.lever}: {action.error}"
    judgements = _judgements(snapshot)
    worst = max(judgements, key=lambda each: each[1].over) if judgements else None
    if worst is not None and not worst[1].met:
        missing = sum(not each.met for _, each in judgements) - 1
        more = f" (and {missing} more)" if missing else ""
        text = f"{worst[0]} {worst[1].text}{more}, {_limit(snapshot)}"
        return VerdictCode.MISSES_OBJECTIVE, worst[0], text
    if snapshot.off is not None:
        return VerdictCode.OFF, None, f"{snapshot.off} exists, original limits"
    if memory.yielded is not None:
        return VerdictCode.YIELDED, None, memory.yielded
    alerts = [each for each in snapshot.alerts if each.name is not AlertName.BLIND]
    if alerts:
        alert = min(alerts, key=lambda each: each.severity is not Severity.CRITICAL)
        on = "" if alert.device is None else f" on {alert.device}"
        more = f" (and {len(alerts) - 1} more)" if alerts[1:] else ""
        return VerdictCode.ALERT, alert.device, f"{alert.name.value}{on}{more}"
    managed = [each for each in snapshot.decision.devices if each.state is not DeviceState.EXCLUDED]
    estimates = snapshot.estimates
    if managed and not any(estimates[each.name].demand_known for each in managed):
        return (
            VerdictCode.BLIND, None,
            f"probe {snapshot.probe.backend} does not see fsync; `writebackctl doctor` says why",
        )
    well = "no sync demand" if worst is None else f"{worst[0]} {worst[1].text}"
    device = None if worst is None else worst[0]
    if memory.trial is not None:
        trial = memory.trial
        text = f"block {trial.block} of {trial.blocks}"
        if worst is not None:  # under the original limits nothing is judged
            text += f"; {well}"
        return VerdictCode.TRIAL, trial.device, text
    if memory.pin_bytes is not None and snapshot.mode is Mode.ENFORCE:
        return VerdictCode.PINNED, device, f"limit {formats.size(memory.pin_bytes)}; {well}"
    if snapshot.mode is Mode.OBSERVE:
        return VerdictCode.OBSERVING, device, f"no limit is written; {well}"
    return VerdictCode.OK, device, f"{well}, {_limit(snapshot)}"


def _judgements(snapshot: Snapshot) -> List[Tuple[str, Judgement]]:
    found = []
    for device in snapshot.decision.devices:
        if device.basis is None:
            continue  # no demand: with a thousand disks, most of them
        judgement = judged(snapshot.estimates[device.name], device.basis)
        if judgement is not None:
            found.append((device.name, judgement))
    return found


def _limit(snapshot: Snapshot) -> str:
    """The limit in force, and why it is not the daemon's where it is not."""
    text = f"limit {formats.size(snapshot.sample.vm.threshold_bytes)}"
    memory = snapshot.memory
    if snapshot.off is not None:
        return f"{text} (off)"
    if snapshot.mode is Mode.OBSERVE:
        return f"{text} (observing)"
    if memory.yielded is not None:
        return f"{text} (yielded)"
    if memory.pin_bytes is not None:
        return f"{text} (pinned)"
    if memory.trial is not None:
        return f"{text} (trial)"
    return text
