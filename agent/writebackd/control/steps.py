# SPDX-License-Identifier: GPL-2.0-or-later
"""What the searches for a limit have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

from writebackd import human
from writebackd.model import Estimate, Hold, Phase, replace

# Seconds whose mean rate counts: dd, the flusher and the destage come in bursts of
# about a second.
JUDGE_S = 3.0
# So much of R missing is seen sooner.
MUCH_SHORT, SOON_JUDGED_S = 0.85, 1.0
# A limit that holds nobody back for so long is not one in a pause of the flood.
LOOSE_S = 2.0
# A little more than R, so that the cache fills slowly instead of running empty:
# empty it is worth nothing, and only when it is full R can be measured again.
FORWARD = 1.02
# How long what did not work is not tried again.
REMEMBERED_S = 300.0
# A larger limit is tried after so long without a change.
PROBE_S = 45.0
# After one that brought something the next follows soon: the disk may have become much faster.
EARNED_S = 8.0


@dataclass(frozen=True)
class Bounds:
    """What the law may do with one device; bytes, seconds, share of R to keep."""

    floor: int
    ceiling: int
    start: int  # before R is known
    tau_s: float  # until it is learned
    objective_s: float
    keep: float
    share: float = 1.0  # of the limit of all devices, which these are a part of


def told(limit: float, bounds: Bounds) -> str:
    """A limit in words: of all devices together, as the target is told."""
    return human.size(limit / bounds.share)


def clamp(value: float, bounds: Bounds) -> int:
    return int(min(max(value, bounds.floor), bounds.ceiling))


def feed_forward(bounds: Bounds, estimate: Estimate) -> Optional[int]:
    """R x tau and a little more within the bounds, bytes; None while R is not known."""
    if estimate.drain_rate is None:
        return None
    tau = estimate.tau_s if estimate.tau_s is not None else bounds.tau_s
    return clamp(FORWARD * estimate.drain_rate * tau, bounds)


def resting(bounds: Bounds, estimate: Estimate, hold: Hold) -> int:
    """The limit that is held, or to begin with, bytes."""
    if hold.limit_bytes is not None:
        return clamp(hold.limit_bytes, bounds)
    return feed_forward(bounds, estimate) or clamp(bounds.start, bounds)


def wait(estimate: Estimate) -> float:
    """How long a sync takes at worst, the one in flight included, seconds."""
    return max(estimate.fsync_p99_s or 0.0, estimate.oldest_fsync_s)


def settle(hold: Hold, now_s: float, **changes: Any) -> Hold:
    """From now on something else is measured; `changes` of other fields with it."""
    return replace(
        hold, changed_s=now_s, carried=(0.0, 0.0), waited=(0.0, 0.0), fell_s=0.0, **changes
    )


def change(
    hold: Hold, now_s: float, phase: Optional[Phase] = None, limit_bytes: Optional[int] = None
) -> Hold:
    """Another limit, another phase, or both."""
    return settle(
        hold,
        now_s,
        full_s=0.0,
        late_s=0.0,
        phase=phase or hold.phase,
        limit_bytes=hold.limit_bytes if limit_bytes is None else limit_bytes,
    )
