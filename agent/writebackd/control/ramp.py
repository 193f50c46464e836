# SPDX-License-Identifier: GPL-2.0-or-later
"""Moves the limit in force to its goal without blocking writers.

Lowering the limit below what is dirty blocks every buffered writer on every
device until the difference has drained.  So the background limit goes down
first (that drains without blocking) and the limit follows what is left.  It
follows closely: the kernel lets writers bring in pos_ratio times what drains,
which is 0.5 at 95 % of the limit and 0.1 at 99 %, so close to the limit what is
dirty falls nearly as fast as the devices drain, and still nobody is blocked.
"""

from __future__ import annotations

from typing import Iterable, Optional

from writebackd.tuning import (
    AT_ONCE_BYTES,
    AT_ONCE_MOST_BYTES,
    AT_ONCE_S,
    BACKGROUND_LEAST,
    BACKGROUND_MOST,
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

    `vm.threshold_bytes` is the limit in force, `drains` is what `slowest` says.  Down:
    at most to HEADROOM times what is dirty.  Up: to `at_once` bytes without a step, and from
    there by the factor `step_up`, at most once in `cooldown_s`.
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
    """What the slowest flooded device drains, in bytes/s; 0 if that is not known of one of them.

    No more than it wrote in this tick: R may be of another day.
    """
    return min(
        [min(each.drain_rate or 0.0, each.rate) for each in estimates if each.flooded],
        default=0.0,
    )


def next_background(limit: int, goal: int, share: float, last: Optional[int]) -> int:
    """The background limit, in bytes: `share` of the goal, or the last one while that does.

    The share of the goal, not of the limit on its way there: what is above the
    goal drains in the background while the limit still holds.
    """
    wanted = int(min(limit, goal) * share)
    if last is not None and BACKGROUND_LEAST * wanted <= last <= BACKGROUND_MOST * min(limit, goal):
        return last
    return wanted


def near(goal: int, last: Optional[int]) -> bool:
    """Whether `goal` is the last one, as far as the estimates behind it can tell."""
    return last is not None and abs(goal - last) <= DEADBAND * last
