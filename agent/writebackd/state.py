# SPDX-License-Identifier: GPL-2.0-or-later
"""What the daemon knows from one tick to the next."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from writebackd.alert.state import AlertMemory
from writebackd.model import Memory
from writebackd.report.snapshot import Pinned, Snapshot
from writebackd.report.totals import Totals


@dataclass
class State:
    """As it is now: ticks change it, and orders, all in one thread."""

    memory: Memory
    alerts: AlertMemory
    snapshot: Optional[Snapshot] = None  # what everybody is told; None: nothing measured yet
    totals: Totals = field(default_factory=Totals)
    problem: Optional[str] = None  # why the last tick was not whole
    off: Optional[Path] = None  # the file that holds us off
    pinned: Optional[Pinned] = None
