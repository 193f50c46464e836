# SPDX-License-Identifier: GPL-2.0-or-later
"""BLIND after ticks in which the kernel's statistics could not be read."""

from __future__ import annotations

from typing import Optional, Sequence, Tuple

from writebackd.alerts.alert_types import Alert, AlertName, Cause, Severity
from writebackd.types.copying import replace

# Ticks in a row that must be good before BLIND is over: what fails now and then is told once.
GOOD_TICKS = 30


class BlindTicks:
    """Counts such ticks, and tells BLIND from when that is asked for until enough were good."""

    def __init__(self) -> None:
        self.ticks = 0  # in a row in which nothing could be looked for
        self._good_ticks = 0  # in a row since then
        self._since_wall_s: Optional[float] = None  # None: BLIND is not told

    def still(self) -> None:
        """A tick in which no alert could be looked for."""
        self.ticks += 1
        self._good_ticks = 0

    def told(
        self, standing: Sequence[Alert], since_wall_s: float, problem: str
    ) -> Tuple[Alert, ...]:
        """The alerts that stood, and BLIND: since then, or since it was told first."""
        if self._since_wall_s is None:
            self._since_wall_s = since_wall_s
        return with_blind(standing, self._since_wall_s, problem)

    def good(self, alerts: Tuple[Alert, ...]) -> Tuple[Alert, ...]:
        """Those of a good tick, and BLIND until enough of them were good in a row."""
        self.ticks = 0
        self._good_ticks += 1
        if self._since_wall_s is None or self._good_ticks >= GOOD_TICKS:
            self._since_wall_s = None
            return alerts
        good = f"{self._good_ticks} of {GOOD_TICKS} good ticks since"
        said = f"kernel statistics were unreadable, {good}"
        *others, blind = with_blind(alerts, self._since_wall_s, said)
        return (*others, replace(blind, done="works again, ends when that lasts"))


def with_blind(standing: Sequence[Alert], since_wall_s: float, problem: str) -> Tuple[Alert, ...]:
    """The alerts when many ticks in a row could not be read: those that stood, and BLIND."""
    alert = Alert(
        AlertName.BLIND, None, Severity.CRITICAL, Cause.NO_DATA, since_wall_s, problem,
        "restored the original limits: nothing is protected until statistics can be read",
    )  # fmt: skip
    return (*(each for each in standing if each.name is not AlertName.BLIND), alert)
