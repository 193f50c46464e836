# SPDX-License-Identifier: GPL-2.0-or-later
"""The law of a pace: what a flood that io.max holds may write (control/pacing/pace.py)."""

from __future__ import annotations

from typing import Tuple

from writebackd.control.law import Bounds
from writebackd.tuning import CREEP, CUT, RISE
from writebackd.types.decision import Rule
from writebackd.types.device_memory import Drain
from writebackd.types.estimate import Estimate


def follow_pace(
    d: Drain, e: Estimate, bounds: Bounds, pace: float, r: float
) -> Tuple[float, Rule]:
    """A tick of a flood held at `pace` by io.max: what to multiply that with, and the branch."""
    by, rule = factor(d, r, bounds.spend, bounds.keep, r / pace)
    if rule is Rule.ROOM:  # slowly: what syncs cost is known once the cache is full
        by = min(by, 1.0 + CREEP * d.room_s**2)
    by = max(by, (1.0 - bounds.spend) * r / pace)
    if by > 1.0 and not e.held_back:
        by, rule = 1.0, Rule.LOOSE
    return by, rule


def factor(d: Drain, r: float, share: float, keep: float, lets_in_all: float) -> Tuple[float, Rule]:
    """What to multiply a pace by; `lets_in_all` times it lets in R, of which syncs get `share`."""
    spent = d.sync_rate * d.price_s
    if d.full_s > 0 or spent > share:
        by = min(max(spent / share, CUT), RISE)
        rule = Rule.DEAR if by > 1.0 else Rule.CUT
        least = (1.0 - share) * lets_in_all
        if by < min(1.0, least) and d.rate < keep * r:
            by, rule = min(RISE, least), Rule.SHORT if least > 1.0 else Rule.STEADY
        return by, rule
    more = 1.0 + CREEP * d.room_s**2
    return min(max(min(1.0 - spent, keep) * more * lets_in_all, CUT), RISE), Rule.ROOM
