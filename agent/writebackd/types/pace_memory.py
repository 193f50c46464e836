# SPDX-License-Identifier: GPL-2.0-or-later
"""What pacing remembers of one disk between ticks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping, Optional, Tuple


@dataclass(frozen=True)
class PaceMemory:
    """What is remembered of pacing on one disk; see control/pacing/pace.py."""

    rate: Optional[float] = None  # of all paced cgroups together; None: not paced
    rates: Mapping[str, int] = field(default_factory=dict)  # by path: the requested pace
    names: Tuple[str, ...] = ()  # the devices that share the disk
    began_s: Optional[float] = None  # of a pace adopted at a restart: the restart
    step_s: float = float("-inf")  # when the rate last changed
    in_force_s: Optional[float] = None  # since when io.max shows all paces
    unset_s: float = 0.0  # for how long it has not shown them
    used: Mapping[str, float] = field(default_factory=dict)  # by path: written, smoothed
    background_rate: float = 0.0  # bytes per second of the flusher, smoothed
    wrote_s: float = float("-inf")  # when one of them last wrote
    stray_s: float = 0.0  # for how long cgroups that cannot be paced have flooded
    barred_until_s: float = float("-inf")
    barred_why: str = ""
