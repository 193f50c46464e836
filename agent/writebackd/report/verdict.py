# SPDX-License-Identifier: GPL-2.0-or-later
"""The first line of status: a code, the device, since when, and a sentence. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from writebackd import formats
from writebackd.alerts.alert_types import AlertName, Severity
from writebackd.control.reasons import Judgement, judged, longest, wait_s
from writebackd.kernel.vm import LEVERS
from writebackd.report.answer_parts import finite
from writebackd.report.snapshot import Snapshot, Standing, VerdictCode
from writebackd.types.decision import DeviceState, Mode

if TYPE_CHECKING:
    from writebackd.report.answers import Verdict

# Of these it matters for how long; devices that miss the objective have a time each.
_LASTING = (VerdictCode.FAILED, VerdictCode.BLIND, VerdictCode.ALERT)
# Devices that the sentence names.
_NAMED = 3


class _Seen(NamedTuple):
    """The devices with sync demand."""

    judged: List[Tuple[str, Judgement]]  # the worst first
    missing: Dict[str, float]  # since when they miss their objective


def verdict_json(snapshot: Snapshot) -> Verdict:
    seen = _look(snapshot)
    code, device, text = _verdict(snapshot, seen)
    since_s = _standing(snapshot, code, seen).since_s
    lasts = _lasts(snapshot, since_s) if code in _LASTING else ""
    return {
        "code": code.value,
        "device": device,
        "since_s": finite(since_s),
        "text": f"{code.value.replace('_', ' ')}{lasts}: {text}",
    }


def standing(snapshot: Snapshot) -> Standing:
    """The code, and since when: kept from the tick before if the code is the same."""
    seen = _look(snapshot)
    return _standing(snapshot, _verdict(snapshot, seen)[0], seen)


def _standing(snapshot: Snapshot, code: VerdictCode, seen: _Seen) -> Standing:
    last, since_s = snapshot.standing, snapshot.sample.wall_s
    if last is not None and last.code is code:
        since_s = last.since_s
    return Standing(code, since_s, tuple(seen.missing.items()))


def _look(snapshot: Snapshot) -> _Seen:
    before: Mapping[str, float] = dict(snapshot.standing.missing if snapshot.standing else ())
    seen, missing = [], {}
    for device in snapshot.decision.devices:
        if device.basis is None:
            continue  # no demand: with a thousand disks, most of them
        name, estimate = device.name, snapshot.estimates[device.name]
        judgement = judged(estimate, device.basis)
        if judgement is not None:
            seen.append((name, judgement))
            if not judgement.met:
                missing[name] = before.get(name, snapshot.sample.wall_s)
        elif estimate.demand and name in before:
            missing[name] = before[name]  # no fsync in this tick says anything else
    return _Seen(sorted(seen, key=lambda each: -each[1].over), missing)


def _verdict(snapshot: Snapshot, seen: _Seen) -> Tuple[VerdictCode, Optional[str], str]:
    """Worst first: missed objectives, then what keeps the daemon from helping, then the rest."""
    memory = snapshot.memory
    if snapshot.problem is not None:
        return VerdictCode.BLIND, None, snapshot.problem
    for action in snapshot.sample.actions:
        if not action.ok and action.lever in LEVERS:
            return VerdictCode.FAILED, None, f"cannot set {action.lever}: {action.error}"
    late = [(name, judgement.text) for name, judgement in seen.judged if not judgement.met]
    if late:
        named = "; ".join(
            f"{name} {text}{_lasts(snapshot, seen.missing[name])}" for name, text in late[:_NAMED]
        )
        text = f"{named}{_more(late[_NAMED:])}, {_limit(snapshot, late[0][0])}"
        return VerdictCode.MISSES_OBJECTIVE, late[0][0], text
    if snapshot.off is not None:
        return VerdictCode.OFF, None, f"{snapshot.off} exists, original limits"
    if memory.yielded is not None:
        return VerdictCode.YIELDED, None, memory.yielded
    alerts = [each for each in snapshot.alerts if each.name is not AlertName.BLIND]
    if alerts:
        alert = min(alerts, key=lambda each: each.severity is not Severity.CRITICAL)
        on = "" if alert.device is None else f" on {alert.device}"
        return VerdictCode.ALERT, alert.device, f"{alert.name.value}{on}{_more(alerts[1:])}"
    managed = [each for each in snapshot.decision.devices if each.state is not DeviceState.EXCLUDED]
    if managed and not any(snapshot.estimates[each.name].demand_known for each in managed):
        return (
            VerdictCode.BLIND, None,
            f"probe {snapshot.probe.backend} does not see fsync; run `writebackctl doctor`",
        )
    device = seen.judged[0][0] if seen.judged else None
    well = f"{device} {seen.judged[0][1].text}" if seen.judged else _not_judged(snapshot)
    if memory.trial is not None:
        trial = memory.trial
        if trial.original:  # the law is off, and nothing is judged by its objective
            reduced = f" reduced to {formats.size(trial.limit_bytes)}" if trial.limit_bytes else ""
            well = f"original limits{reduced}, {_not_judged(snapshot)}; no objective applies"
        return VerdictCode.TRIAL, trial.device, f"block {trial.block} of {trial.blocks}; {well}"
    if memory.pin_bytes is not None and memory.mode is Mode.ENFORCE:
        return VerdictCode.PINNED, device, f"limit {formats.size(memory.pin_bytes)}; {well}"
    if memory.draining and memory.mode is Mode.ENFORCE:
        names = ", ".join(memory.draining[:_NAMED]) + _more(memory.draining[_NAMED:])
        return VerdictCode.PINNED, device, f"draining {names}; {well}"
    if memory.mode is Mode.OBSERVE:
        return VerdictCode.OBSERVING, device, f"no limit is written; {well}"
    return VerdictCode.OK, device, f"{well}, {_limit(snapshot, device)}"


def _lasts(snapshot: Snapshot, since_s: float) -> str:
    for_s = snapshot.sample.wall_s - since_s
    return f" for {formats.duration(for_s)}" if for_s >= 1.0 else ""


def _more(others: Sequence[object]) -> str:
    return f" (and {len(others)} more)" if others else ""


def _not_judged(snapshot: Snapshot) -> str:
    """For a tick in which no fsync is judged: whether there were any, or when the last one was."""
    demand = [
        snapshot.estimates[device.name]
        for device in snapshot.decision.devices
        if device.state is not DeviceState.EXCLUDED and snapshot.estimates[device.name].demand
    ]
    if not demand:
        return "no sync demand"
    worst = max(demand, key=wait_s)
    if wait_s(worst):
        return f"{worst.name} {longest(worst)}"
    # Demand outlives its last fsync.
    known = [snapshot.memory.devices.get(each.name) for each in demand]
    last_s = [each.last_demand[0] for each in known if each is not None and each.last_demand]
    if not last_s:
        return "no fsync in this tick"
    return f"last fsync {formats.duration(max(0.0, snapshot.sample.time_s - max(last_s)))} ago"


def _limit(snapshot: Snapshot, device: Optional[str]) -> str:
    """The limit that holds for the device, and why it is not the daemon's if it is not."""
    text, memory = f"limit {formats.size(snapshot.limit_of(device))}", snapshot.memory
    for why, holds in (
        ("off", snapshot.off is not None),
        ("observing", snapshot.memory.mode is Mode.OBSERVE),
        ("yielded", memory.yielded is not None),
        ("pinned", memory.pin_bytes is not None),
        ("draining", bool(memory.draining)),
        ("trial", memory.trial is not None),
    ):
        if holds:
            return f"{text} ({why})"
    return text
