# SPDX-License-Identifier: GPL-2.0-or-later
"""What the answers to several verbs have in common. Pure."""

from __future__ import annotations

import math
from typing import Any, Dict, List, Mapping, Optional, Sequence

from writebackd.report.snapshot import Snapshot
from writebackd.types.decision import DeviceDecision
from writebackd.types.levers import HeldLever, VmLimits

Json = Dict[str, Any]


def finite(value: Optional[float]) -> Optional[float]:
    """`value` as JSON can carry it: None for an infinity or a NaN."""
    return value if value is not None and math.isfinite(value) else None


def decisions_of(snapshot: Snapshot) -> Mapping[str, DeviceDecision]:
    return {each.name: each for each in snapshot.decision.devices}


def pinned_json(snapshot: Snapshot) -> Optional[Json]:
    """Who pinned, by uid: names may come over the network, which the daemon never waits for."""
    if snapshot.memory.pin_bytes is None or snapshot.pinned is None:
        return None
    until_s = snapshot.pinned.until_s
    return {
        "uid": snapshot.pinned.uid,
        "since_s": finite(snapshot.pinned.wall_s),
        "left_s": None if until_s is None else max(0.0, until_s - snapshot.sample.time_s),
    }


def trial_json(snapshot: Snapshot) -> Optional[Json]:
    trial = snapshot.memory.trial
    if trial is None:
        return None
    return {
        "device": trial.device,
        "block": trial.block,
        "blocks": trial.blocks,
        "arm": "original" if trial.original else "agent",
        "limit_bytes": trial.limit_bytes,
        "block_left_s": finite(max(0.0, trial.ends_s - snapshot.sample.time_s)),
        "returns_to": trial.returns_to.value,
    }


def held_json(levers: Sequence[HeldLever]) -> List[Json]:
    return [
        {
            "kind": lever.kind.value,
            "target": lever.target,
            "name": lever.name,
            "value": lever.value,
            "original": lever.original,
        }
        for lever in levers
    ]


def limits_json(limits: VmLimits) -> Json:
    return {
        "dirty_bytes": limits.dirty_bytes,
        "dirty_ratio": limits.dirty_ratio,
        "dirty_background_bytes": limits.dirty_background_bytes,
        "dirty_background_ratio": limits.dirty_background_ratio,
    }
