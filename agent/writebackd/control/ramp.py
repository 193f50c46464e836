# SPDX-License-Identifier: GPL-2.0-or-later
"""From where the limit is to where it shall be, without blocking the host.

Lowering the limit far below what is dirty blocks every buffered writer on
every device until the difference has drained, and the flusher meanwhile runs
flat out, which is the worst case for fsync.  So the background limit goes down
first (that drains without blocking) and the limit follows what is left.
Raising blocks nobody.
"""

from __future__ import annotations

from typing import Optional

from writebackd.model import VmState

# Room above what is dirty or under writeback, so that lowering stays above it.
HEADROOM = 1.05
# A goal that moved by less is the same goal: the estimates it comes from are
# not more exact, and every write moves the kernel's own pacing.
DEADBAND = 0.1


def next_limit(
    goal: int,
    vm: VmState,
    now_s: float,
    last_raise_s: float,
    step_up: float,
    cooldown_s: float,
) -> int:
    """The limit for this tick, in bytes.

    `vm.threshold_bytes` is the limit in force.  Down: at most to HEADROOM times
    what is dirty.  Up: by the factor `step_up`, at most once in `cooldown_s`.
    """
    current = vm.threshold_bytes
    if goal < current:
        left = int(HEADROOM * (vm.dirty_bytes + vm.writeback_bytes))
        return min(current, max(goal, left))
    if now_s - last_raise_s < cooldown_s:
        return current
    return min(goal, int(current * step_up))


def near(goal: int, last: Optional[int]) -> bool:
    """Whether `goal` is the last one, as far as the estimates behind it can tell."""
    return last is not None and abs(goal - last) <= DEADBAND * last
