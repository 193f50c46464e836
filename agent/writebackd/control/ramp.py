# SPDX-License-Identifier: GPL-2.0-or-later
"""Moves the limit in force to its goal without blocking writers.

A limit below the amount of dirty memory blocks every buffered writer on every device until the
difference has drained.  So the background limit goes down first, which starts writeback without
blocking, and the limit follows just above the dirty pages.  There writers slow down but do not
block: the kernel admits pos_ratio times the drain rate, 0.5 at 95 % of the limit and 0.1 at 99 %,
so dirty pages fall nearly as fast as the devices drain.
"""

from __future__ import annotations

from typing import Iterable, Optional

from writebackd.tuning import (
    AT_ONCE_BYTES,
    AT_ONCE_MOST_BYTES,
    AT_ONCE_S,
    DEADBAND,
    HEADROOM,
)
from writebackd.types.estimate import Estimate
from writebackd.types.samples import VmState


def next_limit(
    goal: int,
    vm: VmState,
    now_s: float,
    last_raise_s: float,
    step_up: float,
    cooldown_s: float,
    drains: float,
    at_once: int = 0,
) -> int:
    """The limit for this tick, in bytes.

    `vm.threshold_bytes` is the limit in force, `drains` the result of `slowest`.  Down: not below
    HEADROOM times the dirty bytes.  Up: to `at_once` bytes immediately, from there by the factor
    `step_up`, at most once in `cooldown_s`.
    """
    current = vm.threshold_bytes
    if goal < current:
        left = int(HEADROOM * (vm.dirty_bytes + vm.writeback_bytes))
        last = max(AT_ONCE_BYTES, min(AT_ONCE_S * drains, AT_ONCE_MOST_BYTES))
        return goal if left - goal <= last else min(current, left)
    current = max(current, min(goal, at_once))
    if now_s - last_raise_s < cooldown_s:
        return current
    return min(goal, int(current * step_up))


def slowest(estimates: Iterable[Estimate]) -> float:
    """Drain rate of the slowest flooded device, bytes/s; 0 if any of them has an unknown one.

    Bounded by what the device wrote in this tick, since R may be out of date.
    """
    return min(
        [min(e.drain_rate or 0.0, e.rate) for e in estimates if e.flooded],
        default=0.0,
    )


def next_background(limit: int, goal: int, share: float) -> int:
    """The background limit, bytes: `share` of the goal, or of the limit where that is less.

    It is a share of the goal even before the limit has come down to the goal, so that everything
    above the goal is written back in the background.
    """
    return int(min(limit, goal) * share)


def near(goal: int, last: Optional[int]) -> bool:
    """Whether `goal` differs from the last one by DEADBAND at most."""
    return last is not None and abs(goal - last) <= DEADBAND * last
