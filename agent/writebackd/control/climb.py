# SPDX-License-Identifier: GPL-2.0-or-later
"""The best limit by trying, where no model tells it.

On a disk without a write cache, behind one that somebody else fills, or on one
whose flushes are what takes long, R x tau is not the knee: a smaller limit
shortens the wait and costs throughput, and how much of which has to be
measured.  A step has to earn its keep:

    worth = syncs per second of waiting x min(1, rate / (keep x R)) ^ 4

What brought nothing is taken back, then the other direction is tried; when
neither helps, the next try is a while off, and it is said that nothing does.
The fourth power is how dear throughput is: down to `keep` it is worth nothing
beside latency, and a tenth less than that a third of it.
"""

from __future__ import annotations

from typing import Tuple

from writebackd import human
from writebackd.control.steps import JUDGE_S, Bounds, change, clamp, wait
from writebackd.model import Climb, Estimate, Hold, State, replace

# Changes the wait by more than its noise (10 to 20 % in windows of 3 s) where it
# changes it at all.
STEP = 1.4
EARNS = 1.08
DEAR = 4
# Before the next try after both directions failed: at first, and at most.
PATIENCE_S, PATIENCE_MOST_S = 15.0, 120.0


def climb(
    bounds: Bounds, estimate: Estimate, hold: Hold, now_s: float, limit: int, late: bool
) -> Tuple[int, Hold, State, str]:
    """`(limit, memory, state, why)`, as hold.regulate."""
    now = hold.climb
    waits = f"fsync waits {human.milliseconds(wait(estimate))} ms"
    if hold.carried[1] < JUDGE_S:
        state = State.PROBE if now.from_bytes and now.up else State.SQUEEZE
        return limit, hold, state, f"{waits}: measuring what this limit brings"
    worth = _worth(bounds, estimate, hold)
    if now.from_bytes:
        if worth < EARNS * now.worth:
            back = clamp(now.from_bytes, bounds)
            hold = replace(change(hold, now_s, limit_bytes=back), climb=_failed(now))
            which = "larger" if now.up else "smaller"
            return back, hold, State.GUARD, f"{waits}; the {which} limit was no better: back"
        now = Climb(up=now.up)
    elif now.failed >= 2 and now_s - hold.changed_s < now.patience_s:
        why = f"{waits}; neither a smaller nor a larger limit is any better"
        if late:
            return limit, hold, State.EXHAUSTED, why + ": the queue is not ours to shorten"
        return limit, hold, State.GUARD, why + ": holding"
    new = clamp(limit * STEP if now.up else limit / STEP, bounds)
    if new == limit:
        return limit, replace(hold, climb=_failed(now)), State.GUARD, f"{waits}; at a bound"
    hold = change(hold, now_s, limit_bytes=new)
    hold = replace(hold, climb=replace(now, from_bytes=limit, worth=worth))
    state, which = (State.PROBE, "larger") if now.up else (State.SQUEEZE, "smaller")
    return new, hold, state, f"{waits}: trying a {which} limit"


def _failed(now: Climb) -> Climb:
    failed = now.failed + 1
    patience = now.patience_s
    if failed >= 2:
        patience = min(PATIENCE_MOST_S, max(PATIENCE_S, 2 * patience))
    return Climb(up=not now.up, failed=failed, patience_s=patience)


def _worth(bounds: Bounds, estimate: Estimate, hold: Hold) -> float:
    (carried, lasted), (waited, syncs) = hold.carried, hold.waited
    # One in flight that never came back has waited as well.
    mean = (waited + estimate.oldest_fsync_s) / max(syncs, 1.0)
    kept = min(1.0, carried / lasted / (bounds.keep * (estimate.drain_rate or 1.0)))
    return float(kept**DEAR / max(mean, 1e-6))
