# SPDX-License-Identifier: GPL-2.0-or-later
"""BLIND: fsync cannot be measured, or the kernel's statistics cannot be read."""

from __future__ import annotations

from typing import Iterable, Optional, Sequence, Tuple

from writebackd.alerts.alert_types import Alert, AlertName, Cause, Severity
from writebackd.alerts.detector_memory import AlertMemory
from writebackd.alerts.views import TickView
from writebackd.types.copying import replace
from writebackd.types.estimate import Estimate

BLIND_S = 30.0
# Readable ticks in a row that end BLIND: occasional failures are reported once.
GOOD_TICKS = 30


def blind(tick: TickView, memory: AlertMemory, estimates: Iterable[Estimate]) -> AlertMemory:
    """Update how long no sync could be seen; raise BLIND when that is long."""
    known = [estimate.demand_known for estimate in estimates]
    if not memory.sighted or not known or any(known):
        tick.well.add((AlertName.BLIND.value, None))
        return memory if not memory.blind_s else replace(memory, blind_s=0.0)
    blind_s = memory.blind_s + tick.sample.dt_s
    if blind_s >= BLIND_S:
        tick.tell(Alert(
            AlertName.BLIND, None, Severity.WARNING, Cause.NO_DATA,
            tick.sample.wall_s - blind_s,
            "fsync is not visible: a collapse raises no alert, limits are cautious",
            "keeps cautious limits; `writebackctl doctor` says why",
        ))  # fmt: skip
    return replace(memory, blind_s=blind_s)


class BlindTicks:
    """Counts unreadable ticks; once BLIND was raised it stays until enough ticks were readable."""

    def __init__(self) -> None:
        self.ticks = 0  # in a row in which nothing could be looked for
        self._good_ticks = 0  # in a row since then
        self._since_wall_s: Optional[float] = None  # None: BLIND is not raised

    def still(self) -> None:
        """Count a tick in which alerts could not be checked."""
        self.ticks += 1
        self._good_ticks = 0

    def blind(
        self, standing: Sequence[Alert], since_wall_s: float, problem: str
    ) -> Tuple[Alert, ...]:
        """The earlier alerts and BLIND, dated from when BLIND was first raised."""
        if self._since_wall_s is None:
            self._since_wall_s = since_wall_s
        return _with_blind(standing, self._since_wall_s, problem)

    def good(self, alerts: Tuple[Alert, ...]) -> Tuple[Alert, ...]:
        """The alerts of a readable tick, and BLIND until enough were readable in a row."""
        self.ticks = 0
        self._good_ticks += 1
        if self._since_wall_s is None or self._good_ticks >= GOOD_TICKS:
            self._since_wall_s = None
            return alerts
        good = f"{self._good_ticks} of {GOOD_TICKS} good ticks since"
        said = f"kernel statistics were unreadable, {good}"
        *others, blind = _with_blind(alerts, self._since_wall_s, said)
        done = f"statistics are readable again: ends after {GOOD_TICKS} good ticks in a row"
        return (*others, replace(blind, done=done))


def _with_blind(standing: Sequence[Alert], since_wall_s: float, problem: str) -> Tuple[Alert, ...]:
    alert = Alert(
        AlertName.BLIND, None, Severity.CRITICAL, Cause.NO_DATA, since_wall_s, problem,
        "restored the original limits: nothing is protected until statistics can be read",
    )  # fmt: skip
    return (*(active for active in standing if active.name is not AlertName.BLIND), alert)
