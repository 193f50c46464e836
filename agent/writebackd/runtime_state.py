# SPDX-License-Identifier: GPL-2.0-or-later
"""What the daemon knows from one tick to the next; daemon.py alone writes the memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional, Tuple

from writebackd.alerts.detector_memory import AlertMemory
from writebackd.report.snapshot import Draining, Pinned, Snapshot
from writebackd.report.totals import Totals
from writebackd.types.core_memory import Memory
from writebackd.types.decision import Mode
from writebackd.types.levers import Action


@dataclass
class RuntimeState:
    """As of now; the loop's one thread alone uses it."""

    memory: Memory
    alerts: AlertMemory
    snapshot: Optional[Snapshot] = None  # what every answer is made of; None: nothing measured yet
    totals: Totals = field(default_factory=Totals)
    problem: Optional[str] = None  # why the last tick was not whole
    off: Optional[Path] = None  # the kill-switch file that is there
    pinned: Optional[Pinned] = None
    draining: Optional[Draining] = None
    mode_by_verb: bool = False  # which a policy that is read again does not overrule
    mode_after_trial: Mode = Mode.ENFORCE  # of the trial that is on, or was the last
    trial_just_ended: bool = False  # its limit still stands, and is never kept on exit

    def count_writes(self, actions: Tuple[Action, ...]) -> None:
        self.totals = self.totals.acted(actions)
