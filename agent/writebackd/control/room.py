# SPDX-License-Identifier: GPL-2.0-or-later
"""DRAIN: a limit of about half for some seconds makes room in a write cache that is full.

The media have what is in the cache to write meanwhile, so that costs no throughput.
"""

from __future__ import annotations

from typing import Optional, Tuple

from writebackd import human
from writebackd.control.steps import (
    MUCH_SHORT,
    PROBE_S,
    REMEMBERED_S,
    Bounds,
    change,
    clamp,
    feed_forward,
    told,
)
from writebackd.model import Estimate, Hold, Phase, State, replace

# The limit while draining, as a share: rates of 50 to 55 % of R were seen under half of
# the limit at the knee.  Above half, because the background limit then may stay where it
# is.  (0.7 leaves more throughput and more time with a full cache: simulated, it is worse.)
DRAIN_SHARE = 0.55
# Room to make, in seconds of R where the cache is not known, and as a share of it.
ROOM_S, ROOM_SHARE = 1.0, 0.5
# Not shorter than it takes to see whether it works, not longer than writers
# should suffer for it.
DRAIN_LEAST_S, DRAIN_MOST_S = 1.9, 5.0
# Draining works when the rate falls below this share of R; a limit that lets in more for so long,
# once it is followed, is still too large.  It is followed soon: 253 MB/s under 2 MB, 139 in the
# half second after it.
DRAIN_GRIPS, LETS_IN_S = 0.93, 0.4
# A rate that was low for no longer, in all, may come of a sweep of the destage, not of the limit:
# 263 MB/s, then 60 to 170 for a second, each time that it comes by the database's blocks.
SWEEP_S = 1.1
# Once a cache has room the share of slow writes falls to 2 to 8 %, some ticks later; without a
# cache it stayed at 25 to 80 %.
FUTILE_SHARE = 0.2
# How far above a limit that cost throughput one stays.
STARVED_MARGIN = 1.1


def drain(
    bounds: Bounds, estimate: Estimate, hold: Hold, now_s: float, seen: str
) -> Tuple[int, Hold, State, str]:
    """Begin: `(limit, memory, state, why)`, as hold.regulate; `seen` says why."""
    forward = feed_forward(bounds, estimate) or bounds.floor
    limit = clamp(DRAIN_SHARE * min(hold.limit_bytes or forward, forward), bounds)
    hold = change(hold, now_s, phase=Phase.DRAIN)
    hold = replace(
        hold, drain_bytes=limit, drained_bytes=0.0, shrunk=False, refilled_bytes=0.0,
        probe_bytes=0, earned=0, climb=replace(hold.climb, from_bytes=0),
    )
    return limit, hold, State.SQUEEZE, f"{seen}: making room in the write cache"


def room_wanted(estimate: Estimate) -> float:
    """How much room in the write cache draining is to make, bytes."""
    if estimate.cache_bytes is not None:
        return ROOM_SHARE * estimate.cache_bytes
    return ROOM_S * (estimate.drain_rate or 0.0)


def with_room(hold: Hold, forward: Optional[int], drain_rate: float, now_s: float) -> int:
    """The limit once draining has made room, bytes; `forward` is R x tau, None: not known."""
    limit = forward or hold.drain_bytes
    if now_s - hold.starved_s < REMEMBERED_S:
        limit = max(limit, int(STARVED_MARGIN * hold.starved_bytes))
    limit = min(hold.limit_bytes or limit, limit)
    if not hold.shrunk or hold.fell_s <= SWEEP_S:
        return limit
    # That one let in all of R while the cache was full, 1.2 MB 265 MB/s, and with room 138.  What
    # the smaller one let in with room tells more: 137 MB/s at 1.05 MB, so 2 MB.
    rate = max(drain_rate - hold.drained_bytes / hold.fell_s, DRAIN_SHARE * drain_rate)
    return max(limit, int(hold.drain_bytes * drain_rate / rate))


def draining(
    bounds: Bounds, estimate: Estimate, hold: Hold, now_s: float, dt_s: float
) -> Tuple[int, Hold, State, str]:
    """Go on, smaller still, or back: `(limit, memory, state, why)`, as hold.regulate."""
    drain_rate = estimate.drain_rate or 0.0
    drained = hold.drained_bytes + max(0.0, drain_rate - estimate.rate) * dt_s
    limit = hold.drain_bytes
    lasted = now_s - hold.changed_s
    low = estimate.rate < DRAIN_GRIPS * drain_rate
    fell_s = hold.fell_s + (dt_s if low else 0.0)
    swept = fell_s <= SWEEP_S + dt_s
    if swept and not low:
        drained = 0.0  # in a sweep of the destage: that was not this limit's doing
    carried, seconds = hold.carried if estimate.rate >= MUCH_SHORT * drain_rate else (0.0, 0.0)
    hold = replace(hold, drained_bytes=drained, fell_s=fell_s, carried=(carried, seconds))
    room = room_wanted(estimate)
    slow = estimate.slow_share
    futile = estimate.full if slow is None else slow >= FUTILE_SHARE
    lets_in = seconds >= LETS_IN_S and carried >= DRAIN_GRIPS * drain_rate * seconds
    made = drained >= (1 - DRAIN_GRIPS) * drain_rate * lasted  # of late the rate may have leapt
    if lets_in and not made:
        # The rate does not fall: even this limit lets in all that the media
        # take.  It costs nothing, then, and is the shorter queue.
        smaller = clamp(DRAIN_SHARE * limit, bounds)
        if smaller < limit:
            hold = change(hold, now_s, limit_bytes=limit)
            hold = replace(hold, drain_bytes=smaller, drained_bytes=0.0, shrunk=True)
            why = f"{told(limit, bounds)} costs no throughput: making room with"
            why += f" {told(smaller, bounds)}"
            return smaller, hold, State.SQUEEZE, why
        if lasted >= DRAIN_LEAST_S:
            hold = change(hold, now_s, phase=Phase.HOLD, limit_bytes=limit)
            hold = replace(hold, useless_s=now_s)
            return limit, hold, State.GUARD, "the smaller limit costs no throughput: keeping it"
    futile = futile and not lets_in and not swept
    done = (drained >= room and not swept) or lasted >= DRAIN_MOST_S
    if lasted < DRAIN_LEAST_S or not (done or futile):
        why = f"made {human.size(drained)} of {human.size(room)} of room in the write cache"
        return limit, hold, State.SQUEEZE, why
    # tau was measured meanwhile, if it was not known before.
    hold = replace(hold, shrunk=hold.shrunk and not futile)
    back = with_room(hold, feed_forward(bounds, estimate), drain_rate, now_s)
    limit = clamp(back, bounds)
    hold = replace(change(hold, now_s, Phase.HOLD, limit), drain_end_s=now_s)
    if not futile:
        hold = replace(hold, probe_again_s=PROBE_S)
        why = f"the write cache has room again: back to {told(limit, bounds)}"
        return limit, hold, State.GUARD, why
    # No cache, or not ours to empty: then the limit is found by what it brings.
    hold = replace(hold, useless_s=now_s)
    return limit, hold, State.GUARD, f"draining made no room: back to {told(limit, bounds)}"
