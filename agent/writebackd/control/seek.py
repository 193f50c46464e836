# SPDX-License-Identifier: GPL-2.0-or-later
"""SEEK: the drain rate is not known.  Grow while a larger limit brings more; the cache fills.

A rate with room in the cache is the cache's, so R shows only once there is none.
"""

from __future__ import annotations

from typing import Tuple

from writebackd import human
from writebackd.control.steps import EARNED_S, Bounds, change, clamp, resting, told
from writebackd.estimate.drain import SWEEPS_TO
from writebackd.model import Estimate, Hold, State, replace

# Search: step up, and the gain in throughput that makes the next one worth it.
SEEK_STEP, SEEK_GAIN = 2.0, 1.1
SEEK_S, SEEK_MOST_S = 0.4, 2.0
# After the first step no burst of the kernel's may decide (346 and 390 MB/s at 8 MB, then 260 to
# 290): a wrong one fills the cache, and nothing costs syncs more than a full one under 16 MB.
SEEK_LATER_S = 1.4
# Share of writes that wait, from which on a lower rate under a larger limit is the media's.
SEEK_SLOW = 0.04
# No further than what the kernel's writeback loop may need: tau was 7.5 to 13 ms once it
# was settled, up to 24 ms before, and in the first seconds of a flood, while the kernel's own
# estimate of the disk is on its way up, 50 (77 MB/s at 4 MB).  Where that is much, less will do.
SEEK_DELAY_S, SEEK_DELAY_MOST_S, SEEK_MUCH_BYTES = 10e-3, 150e-3, 16 << 20
# While R is looked for less, or what takes so long: the cache fills up under the largest limit
# tried, and is full for two seconds before that is seen and mended, with syncs of 50 ms under
# 16 MB, 13 ms under 8.  A wave is over sooner, and a search by trying has no such moment.
SEEK_FULL_BYTES, SEEK_FULL_S = 8 << 20, 32e-3
# Neither bound holds while the rate still grows nearly as the limit does: then it is tau that syncs
# wait for, not a queue.  On an NVMe drive 280 MB/s at 4 MB, 490 at 8, and default limits had
# 2000; on an array of 250 MB/s 185 and 225 to 265, and there a larger limit fills the cache.
SEEK_GROWS = 1.6
# While R is looked for, half of it: a wrong step there costs less than slow ones, since
# only with R known can room be made.
SEEK_FOLLOW_S = 0.5


def seek(
    bounds: Bounds, estimate: Estimate, hold: Hold, now_s: float, dt_s: float
) -> Tuple[int, Hold, State, str]:
    """`(limit, memory, state, why)`, as hold.regulate."""
    limit = resting(bounds, estimate, hold)
    if estimate.full:
        # The next tick tells R under this limit.  Where it does not, since the rate jumps, another
        # limit is nearer to the knee: 50 of 2500 syncs a second were left at 16 MB, 700 at 5.
        why = "the write cache is full: measuring the drain rate"
        tau = estimate.tau_s if estimate.tau_s is not None else bounds.tau_s
        start = min(bounds.start, bearable(estimate.rate))
        nearer = clamp(max(start, estimate.rate * tau), bounds)
        # Once: where the cache did not stay full under it, it let in less than R.
        stay = (hold.neared or hold.full_s < 1.5 * dt_s) and not estimate.in_waves
        if nearer >= limit or stay:
            return limit, hold, State.GUARD, why
        # What a larger limit let in is nothing to compare this one with.
        hold = replace(change(hold, now_s, limit_bytes=nearer), neared=True, seek_rate=0.0)
        return nearer, hold, State.GUARD, why
    if not estimate.held_back:
        return limit, hold, State.GUARD, "flooded, and the limit holds nobody back: holding"
    carried, lasted = hold.carried
    if lasted < SEEK_S:
        return limit, hold, State.PROBE, "the drain rate is not known: watching this limit"
    rate = carried / lasted
    slow = SEEK_SLOW if estimate.slow_share is None else estimate.slow_share
    wide = clamp(min(seek_most(rate), SEEK_MUCH_BYTES), bounds)
    if estimate.in_waves and not hold.waved_bytes and slow < SEEK_SLOW:
        if limit < wide and bearable(rate) < wide:
            # Once, whatever the last one brought: the first seconds of a wave tell nothing.
            hold = replace(change(hold, now_s, limit_bytes=wide), waved_bytes=limit, seek_rate=rate)
            why = f"a wave is over before a cache is full for long: trying {told(wide, bounds)}"
            return wide, hold, State.PROBE, why
    if hold.waved_bytes and not estimate.in_waves:
        back = min(limit, hold.waved_bytes)
        hold = replace(hold, waved_bytes=0)
        if back < limit:
            hold = replace(change(hold, now_s, limit_bytes=back), seek_rate=0.0)
            return back, hold, State.GUARD, "this flood lasts: back to a limit that syncs can bear"
    less = rate < hold.seek_rate / SEEK_GAIN
    seen_once = lasted < 1.5 * dt_s
    if estimate.rate < rate / SEEK_GAIN or (less and seen_once):
        if lasted < SEEK_MOST_S:
            # 667 MB/s, then 284, then the 250 of a cache that has filled up.
            return limit, hold, State.PROBE, "the rate is falling: watching this limit"
    if less and (estimate.slow_share or 0.0) >= SEEK_SLOW and not estimate.in_waves:
        if rate < SWEEPS_TO * hold.seek_rate and lasted < SEEK_LATER_S:
            return limit, hold, State.PROBE, "the rate has fallen by much: does that last?"
        # Less under a larger limit, and writes wait: the cache was filling, now the media
        # set the rate.  Without such waits it is the kernel's flusher, or the CPUs.
        why = f"the write cache is full: the media take {human.size(estimate.rate)}/s"
        return limit, replace(hold, proved_rate=estimate.rate), State.GUARD, why
    if rate < SEEK_GAIN * hold.seek_rate and estimate.in_waves and slow < SEEK_SLOW:
        # The first second of a wave is slow under any limit, as the kernel's estimate of the disk
        # fell in the pause: 230 MB/s at 8 MB, as in the wave before, and back at 4 MB 172.
        why = "a wave begins slowly under any limit, and no write waits for the media: holding"
        return limit, hold, State.GUARD, why
    if rate < SEEK_GAIN * hold.seek_rate:
        if lasted < SEEK_LATER_S and not estimate.in_waves:
            return limit, hold, State.PROBE, "a larger limit brought no more: does that last?"
        # A longer queue for nothing.  The kernel's own estimate of the disk may still
        # be on its way up, so look again later.
        why = f"a larger limit brought no more than {human.size(hold.seek_rate)}/s: back"
        limit = clamp(max(limit / SEEK_STEP, bounds.start), bounds)
        hold = replace(change(hold, now_s, limit_bytes=limit), seek_rate=0.0, sought=True)
        return limit, hold, State.GUARD, why
    if hold.sought and now_s - hold.changed_s < EARNED_S:
        return limit, hold, State.GUARD, "a larger limit brought no more: holding"
    if SEEK_STEP * limit > seek_to(estimate, hold, rate):
        why = "a larger limit could only be a longer queue: holding"
        return limit, hold, State.GUARD, why
    if lasted < SEEK_LATER_S and hold.seek_rate and not estimate.in_waves:
        return limit, hold, State.PROBE, "a larger limit brought more: does that last?"
    limit = clamp(limit * SEEK_STEP, bounds)
    hold = replace(change(hold, now_s, limit_bytes=limit), seek_rate=rate)
    why = f"{human.size(rate)}/s, and no write waits for the media: trying a larger limit"
    return limit, hold, State.PROBE, why


def seek_to(estimate: Estimate, hold: Hold, rate: float) -> float:
    """The largest limit that is tried while R is looked for, at a rate in bytes/s, in bytes."""
    most = seek_most(rate)
    if estimate.in_waves:
        return most
    slow = SEEK_SLOW if estimate.slow_share is None else estimate.slow_share
    if rate >= SEEK_GROWS * hold.seek_rate > 0 and slow < SEEK_SLOW:
        return SEEK_DELAY_MOST_S * rate
    return min(most, bearable(rate))


def bearable(rate: float) -> float:
    """Up to which limit a cache may fill up, bytes, at a rate in bytes/s."""
    return max(SEEK_FULL_BYTES, SEEK_FULL_S * rate)


def seek_most(rate: float) -> float:
    """The largest limit that any search tries at a rate in bytes/s, in bytes."""
    return max(SEEK_DELAY_S * rate, min(SEEK_DELAY_MOST_S * rate, SEEK_MUCH_BYTES))
