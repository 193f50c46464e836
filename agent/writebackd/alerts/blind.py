# SPDX-License-Identifier: GPL-2.0-or-later
"""BLIND: fsync cannot be measured."""

from __future__ import annotations

from typing import Iterable

from writebackd.alerts.alert_types import Alert, AlertName, Cause, Severity
from writebackd.alerts.detector_memory import AlertMemory
from writebackd.alerts.views import TickView
from writebackd.types.copying import replace
from writebackd.types.estimate import Estimate

BLIND_S = 30.0


def blind(tick: TickView, memory: AlertMemory, estimates: Iterable[Estimate]) -> AlertMemory:
    """`memory` with how long no sync could be seen; tells of it when that is long."""
    known = [each.demand_known for each in estimates]
    if not memory.sighted or not known or any(known):
        tick.well.add((AlertName.BLIND.value, None))
        return memory if not memory.blind_s else replace(memory, blind_s=0.0)
    blind_s = memory.blind_s + tick.sample.dt_s
    if blind_s >= BLIND_S:
        tick.tell(Alert(
            AlertName.BLIND, None, Severity.WARNING, Cause.NO_DATA,
            tick.sample.wall_s - blind_s,
            "fsync is not visible: a collapse goes unnoticed, limits are cautious",
            "keeps cautious limits: `writebackctl doctor` says why",
        ))  # fmt: skip
    return replace(memory, blind_s=blind_s)
