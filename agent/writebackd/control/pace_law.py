# SPDX-License-Identifier: GPL-2.0-or-later
"""The law of a pace: what a flood that io.max holds may write (control/pacing/pace.py)."""

from __future__ import annotations

from typing import Tuple

from writebackd.control.law import Bounds
from writebackd.tuning import CREEP
from writebackd.types.decision import Rule
from writebackd.types.device_memory import Drain
from writebackd.types.estimate import Estimate


def follow_pace(
    d: Drain, e: Estimate, bounds: Bounds, pace: float, r: float
) -> Tuple[float, Rule]:
    """A tick of a flood held at `pace` by io.max: what to multiply that with, and the branch."""
    share = min(1.0 - bounds.spend, bounds.keep) * (1.0 + CREEP * d.room_s**2)
    by, rule = share * r / pace, Rule.ROOM if d.room_s > 0 else Rule.STEADY
    if by > 1.0 and not e.held_back:
        return 1.0, Rule.LOOSE
    return by, rule
