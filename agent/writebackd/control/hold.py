# SPDX-License-Identifier: GPL-2.0-or-later
"""The limit of a flooded device with sync demand: find the knee, hold it, keep room.

What was measured (docs/control.md): a sync is fast while the write cache has
room, at nearly any limit, and slow once it is full, at nearly any limit; and at
one and the same limit the cache may stay full or stay empty, since the flood
comes in at just the drain rate R either way.  So the aim is not the smallest
limit but one that lets in about R, and a cache that has room.  Three phases:

* SEEK (seek.py): R is not known.  Grow while a larger limit brings more throughput; the
  cache fills, and then R and tau are known.
* HOLD: limit = R x tau, corrected by the rate that comes of it.
* DRAIN (room.py): the cache is full.  A limit of about half for some seconds lets the
  media win; as long as they have something to write, that costs no throughput.

Where draining brings nothing (no cache, or even the smallest limit lets in more
than R), the limit is tightened step by step as long as that shortens the wait,
and let go when it does not.
"""

from __future__ import annotations

from typing import Tuple

from writebackd import human
from writebackd.control.climb import STEP, climb
from writebackd.control.ramp import DEADBAND
from writebackd.control.room import ROOM_SHARE, drain, draining
from writebackd.control.seek import SEEK_FOLLOW_S, SEEK_GAIN, seek, seek_most
from writebackd.control.steps import (
    EARNED_S,
    JUDGE_S,
    LOOSE_S,
    MUCH_SHORT,
    REMEMBERED_S,
    SOON_JUDGED_S,
    Bounds,
    change,
    clamp,
    feed_forward,
    resting,
    settle,
    told,
    wait,
)
from writebackd.estimate.drain import SMALL_CACHE_S, TAU_MOST_S
from writebackd.model import Climb, Estimate, Hold, Phase, State, replace

# An unloaded sync that takes longer goes to the media: a cache takes it in 0.1 to 0.5 ms.
NO_CACHE_S = 2e-3
# The kernel's writeback loop takes some rounds to follow a new limit; a tick
# before that shows the old one.
FOLLOW_S = 1.0
# A full cache, or late syncs, for so long: a destage burst or one journal
# commit makes half a second slow.
FULL_LASTS_S = 0.9
LATE_LASTS_S = 2.0
# Draining makes room for a second of R; at a rate near R that lasts for 20 s and more.
# A cache that is full again so much sooner is none, or is somebody else's.
FULL_AGAIN_S = 4.0
# That is forgotten when R has changed by this factor: the model may hold again.
OTHER_DISK = 1.5
# Room that lasts for less than this would be paid for with too many writes of the limit:
# so a little less flows in from then on, until that is too little.
SOON_S, SOON_CUT = 25.0, 0.96
# Unless so much of what was drained has come in again.
REFILL_SHARE = 0.3
# A burst: from this fill of the cache on it gets this multiple of the limit, until
# that fill.  Of short floods a cache takes much, where memory may not.
FILL_FROM, FILL_TO, FILL_LIMIT = 0.2, 0.8, 4.0
# Corrections: what is missing of R, within these bounds; less than the ramp's
# deadband would not be written.
GROW_LEAST, GROW_MOST = 1.12, 2.0
# The rate answers to the limit in leaps: 175 MB/s at 3.5 MB, 280 at 4 MB, 400 at 4.5 MB.
GROW_POWER = 0.5
# And so much more than R, where the limit was raised for what was missing.
MUCH, MEND = 1.2, 1.05
CUT_MOST = 0.8
# tau differs by a factor of up to three with the kernel's bandwidth estimate.
GROW_TO = 3.0
# A flood at less than this part of what it was has a pause.
PAUSED = 0.5
# A larger limit is tried after so long without a change, and kept when it brings so
# much more throughput; what brought nothing is not tried again for twice as long.
PROBE_MOST_S, PROBE_STEP, PROBE_GAIN = 60.0, 1.25, 1.06
# By how much it has to be larger before what it did not bring is the media's doing.
PROOF_STEP = 1.6
# The longest tau that was ever seen: where it looks longer something else holds the rate.
TAU_SEEN_S = 24e-3
# A rate that fell for so long is no burst's end: dd, the flusher and the destage come in bursts of
# about a second.
FELL_S = 1.5
# Why nothing is judged: what is seen is another limit's doing.
ELSEWHERE = "flooded, and the limit in force is not this device's yet"


def rest(bounds: Bounds, estimate: Estimate, hold: Hold) -> Tuple[int, Hold]:
    """The limit with sync demand and without a flood in bytes, and the memory.

    With a write cache that is empty: one that lets a burst into it.
    """
    if hold.phase is Phase.DRAIN or (hold.phase is Phase.FILL and estimate.flushes_wait):
        # This drain was not brought to its end, and leaves its window to no other flood.
        hold = replace(
            hold, phase=Phase.HOLD, carried=(0.0, 0.0), waited=(0.0, 0.0), fell_s=0.0,
            drain_end_s=float("-inf"), again=False,
        )
    if hold.neared:
        hold = replace(hold, neared=False)
    limit = resting(bounds, estimate, hold)
    cache = estimate.cache_bytes
    if hold.phase is Phase.SEEK or hold.limit_bytes is None or cache is None or (
        estimate.flushes_wait
    ):
        return limit, hold
    if estimate.fill_bytes <= FILL_FROM * cache:
        hold = replace(hold, phase=Phase.FILL)
    return asked_for(bounds, estimate, hold), hold


def regulate(
    bounds: Bounds, estimate: Estimate, hold: Hold, now_s: float, dt_s: float, in_force: int
) -> Tuple[int, Hold, State, str]:
    """`(limit, memory, state, why)` for one tick of a flood; bytes and seconds.

    `in_force` is the limit that the kernel applied in this tick.
    """
    asked = asked_for(bounds, estimate, hold)
    if hold.limit_bytes is None:
        hold = replace(hold, limit_bytes=resting(bounds, estimate, hold), changed_s=now_s)
    if hold.phase is Phase.HOLD:
        refilled = hold.refilled_bytes
        refilled += max(0.0, estimate.rate - (estimate.drain_rate or 0.0)) * dt_s
        hold = replace(hold, refilled_bytes=refilled)
    if not 0.8 <= in_force / asked <= 1.25:
        # On its way, or held by another device: what is seen is not this limit's doing.
        if hold.phase is Phase.FILL and _filled(estimate):
            # Or it would go on asking for a burst as long as the other one decides.
            hold = replace(hold, phase=Phase.HOLD)
            asked = asked_for(bounds, estimate, hold)
        return asked, settle(hold, now_s, full_s=0.0, late_s=0.0), State.GUARD, ELSEWHERE
    if estimate.flushes_wait != (hold.flushed_s is not None):
        hold = _anew(estimate, hold, now_s)
    if hold.flushed_s is not None and now_s - hold.flushed_s > 1.5 * dt_s:
        hold = replace(hold, late_s=0.0, loose_s=0.0, fell_s=0.0)  # since then there was no flood
    measured = hold.carried[1] >= JUDGE_S
    hold = _observe(bounds, estimate, hold, now_s, dt_s)
    if estimate.flushes_wait:
        return _flushed(bounds, estimate, hold, now_s, dt_s, measured)
    if estimate.drain_rate is None:
        return seek(bounds, estimate, hold, now_s, dt_s)
    hold = _rescale(bounds, estimate, hold, now_s)
    if hold.phase is Phase.SEEK:
        limit = clamp(feed_forward(bounds, estimate) or 0, bounds)
        if _no_cache(estimate):
            if estimate.tau_s is None or estimate.tau_s >= TAU_MOST_S:
                # Nothing is ever fast there, so tau cannot be measured, and R x a guess may
                # be far below the knee: begin where R was seen.
                limit = resting(bounds, estimate, hold)
            if hold.seek_rate > SEEK_GAIN * (estimate.drain_rate or 0.0):
                # No cache took that: the media did, and may again under a larger limit.
                hold = replace(hold, proved_rate=hold.seek_rate, for_rate=hold.seek_rate)
            # For as long as that is believed; a cache may have been taken for none.
            hold = replace(hold, useless_s=now_s)
        hold = change(hold, now_s, phase=Phase.HOLD, limit_bytes=limit)
        if estimate.full and not _no_cache(estimate):
            return drain(bounds, estimate, hold, now_s, "the drain rate is known now")
        # Only a rate that lasted: the media may take more.
        hold = replace(hold, probe_again_s=EARNED_S)
        return limit, hold, State.GUARD, "the drain rate is known now: limit = rate x tau"
    if hold.phase is Phase.FILL:
        if not _filled(estimate):
            return asked, hold, State.GUARD, "the write cache has room: letting the burst in"
        limit = resting(bounds, estimate, hold)
        why = f"the write cache has taken what it may: back to {told(limit, bounds)}"
        return limit, change(hold, now_s, phase=Phase.HOLD), State.GUARD, why
    if hold.phase is Phase.DRAIN:
        return draining(bounds, estimate, hold, now_s, dt_s)
    return _hold(bounds, estimate, hold, now_s)


def _filled(estimate: Estimate) -> bool:
    """Whether the write cache has taken what a burst may fill."""
    return estimate.full or estimate.fill_bytes >= FILL_TO * (estimate.cache_bytes or 0.0)


def asked_for(bounds: Bounds, estimate: Estimate, hold: Hold) -> int:
    """The limit that the last tick asked for, bytes."""
    if hold.phase is Phase.DRAIN:
        return clamp(hold.drain_bytes, bounds)
    limit = resting(bounds, estimate, hold)
    return clamp(FILL_LIMIT * limit, bounds) if hold.phase is Phase.FILL else limit


def _observe(
    bounds: Bounds, estimate: Estimate, hold: Hold, now_s: float, dt_s: float
) -> Hold:
    carried, lasted = hold.carried
    waited = hold.waited
    quickly = hold.phase in (Phase.SEEK, Phase.DRAIN)
    # The tick that ends with it does not count, by whatever part of it a timer is late.
    follow_s = SEEK_FOLLOW_S + 0.1 * dt_s if quickly else FOLLOW_S
    # In a pause between waves it is not the limit that syncs feel.
    pause = estimate.flushes_wait and not estimate.held_back and hold.loose_s < LOOSE_S
    idle = pause and (
        estimate.rate < PAUSED * (estimate.drain_rate or hold.climb.rate)
    )
    # What a burst brings within its tick is no rate, nor is what neither limit nor device holds.
    idle = idle or not (estimate.lasting or estimate.flushes_wait or quickly)
    if now_s - hold.changed_s > follow_s and not idle:
        carried, lasted = carried + estimate.rate * dt_s, lasted + dt_s
        if not estimate.flushes_wait:
            waited = (waited[0] + estimate.fsync_total_s, waited[1] + estimate.fsyncs)
        elif estimate.fsyncs:
            # By time: half a second without a flood has 20 times as many.
            mean_s = estimate.fsync_total_s / estimate.fsyncs
            waited = (waited[0] + mean_s * dt_s, waited[1] + dt_s)
        if lasted > 2 * JUDGE_S:  # half of it is the past
            carried, lasted = carried / 2, lasted / 2
            waited = (waited[0] / 2, waited[1] / 2)
    late = wait(estimate) > bounds.objective_s
    return replace(
        hold,
        carried=(carried, lasted),
        waited=waited,
        full_s=hold.full_s + dt_s if estimate.full else 0.0,
        late_s=hold.late_s + dt_s if late else 0.0,
    )


def _hold(
    bounds: Bounds, estimate: Estimate, hold: Hold, now_s: float
) -> Tuple[int, Hold, State, str]:
    limit = clamp(hold.limit_bytes or bounds.floor, bounds)
    drain_rate = estimate.drain_rate or 0.0
    full, late = hold.full_s >= FULL_LASTS_S, hold.late_s >= LATE_LASTS_S
    useless = now_s - hold.useless_s < REMEMBERED_S
    carried, lasted = hold.carried
    rate = carried / lasted if lasted >= JUDGE_S else None

    if full and estimate.in_waves:
        why = "the write cache is full, but the flood before was soon over: no need to drain"
        return limit, hold, State.GUARD, why
    if full and not useless:
        again = now_s - hold.drain_end_s < FULL_AGAIN_S + FULL_LASTS_S
        again = again and hold.refilled_bytes < REFILL_SHARE * hold.drained_bytes
        if again and hold.again:
            useless, hold = True, replace(hold, useless_s=now_s, again=False)
        else:
            hold = replace(hold, again=again)
            seen = f"{100 * (estimate.slow_share or 0):.0f} % of writes wait for the media"
            if rate is not None and rate > 1.02 * drain_rate:
                limit = clamp(limit * max(CUT_MOST, drain_rate / rate), bounds)
            elif now_s - hold.drain_end_s < SOON_S:
                limit = clamp(limit * SOON_CUT, bounds)
            hold = replace(hold, limit_bytes=limit)
            return drain(bounds, estimate, hold, now_s, seen)

    # A step that is being tried is judged, whatever syncs do meanwhile; a larger limit that
    # was tried before is no longer in force.
    if hold.climb.from_bytes or (useless and full) or (late and not full):
        tried = hold.probe_bytes if not hold.climb.from_bytes else 0
        if tried and late and hold.probe_rate >= bounds.keep * drain_rate:
            # A larger limit was tried for what it might bring, not for what was missing.
            limit = clamp(min(limit, tried), bounds)
            next_s = min(PROBE_MOST_S, 2 * hold.probe_again_s)
            hold = change(hold, now_s, limit_bytes=limit)
            hold = replace(hold, probe_bytes=0, probe_again_s=next_s, earned=0)
            waits = human.milliseconds(wait(estimate))
            return limit, hold, State.PROBE, f"fsync waits {waits} ms under the larger limit: back"
        if full or hold.climb.from_bytes or not below_the_knee(bounds.keep, estimate, limit):
            hold = replace(hold, probe_bytes=0)
            return climb(bounds, estimate, hold, now_s, limit, late, far=may_starve(estimate))
    if hold.probe_bytes and rate is not None:
        # A larger limit was tried: did it bring more?
        before, earned = hold.probe_bytes, rate >= PROBE_GAIN * hold.probe_rate
        larger = clamp(PROOF_STEP * before, bounds)
        if not earned and rate < bounds.keep * drain_rate and larger > limit:
            # 126 MB/s at 2.4 and at 2.7 MB, 146 at 3: too small a step proves nothing.
            hold = replace(
                change(hold, now_s, limit_bytes=larger), starved_bytes=before, starved_s=now_s
            )
            why = f"the flood still gets {human.size(rate)}/s only: a still larger limit"
            return larger, hold, State.PROBE, why
        next_s = EARNED_S if earned else min(PROBE_MOST_S, 2 * hold.probe_again_s)
        hold = replace(hold, probe_bytes=0, probe_again_s=next_s)
        if earned:
            # As far as can be seen the media take this; a full cache will tell if not.  Where R was
            # missing until now, and after that, what is more than R goes into a cache with room.
            was = hold.probe_rate / max(drain_rate, 1.0)
            missed = was < max(bounds.keep, MUCH_SHORT) or was >= PROBE_GAIN
            if not (missed and _has_room(estimate)):
                drain_rate = max(rate, drain_rate)
            hold = replace(
                hold, proved_rate=drain_rate, for_rate=drain_rate, earned=hold.earned + 1
            )
        if not earned:
            limit = clamp(before, bounds)
            hold = replace(change(hold, now_s, limit_bytes=limit), earned=0)
            if rate < bounds.keep * drain_rate:
                # Not the limit holds the flood, then: this is what the media take.
                hold = replace(hold, proved_rate=rate)
            why = f"the larger limit brought no more than {human.size(rate)}/s: back"
            return limit, hold, State.PROBE, why
    # Far above R x tau the limit is not what holds the flood, nor while the cache is full.
    ours = limit < GROW_TO * (feed_forward(bounds, estimate) or limit) and not estimate.full
    short = rate is not None and rate < bounds.keep * drain_rate
    soon = carried / lasted if lasted >= SOON_JUDGED_S else drain_rate
    if (short or soon < MUCH_SHORT * drain_rate) and estimate.held_back and ours:
        rate = carried / lasted
        missing = f"the flood gets {human.size(rate)}/s, less than {human.size(drain_rate)}/s"
        # An empty cache takes what is too much, and meanwhile the media have nothing to write; and
        # where draining brings nothing there is no room to lose.
        power = 1.0 if _empty(estimate) or useless else GROW_POWER
        grow = min(max((drain_rate / max(rate, 1.0)) ** power, GROW_LEAST), GROW_MOST)
        if hold.probe_bytes and rate < PROBE_GAIN * hold.probe_rate:
            # 182 MB/s at 3.1 and at 3.7 MB: the rate is on a plateau, and wants a step off it.
            grow = max(grow, PROOF_STEP)
        hold = replace(
            hold, starved_bytes=limit, starved_s=now_s, probe_bytes=limit, probe_rate=rate
        )
        limit = clamp(limit * grow, bounds)
        hold = change(hold, now_s, limit_bytes=limit)
        return limit, hold, State.PROBE, missing + ": loosening"

    mended = MEND * hold.starved_bytes if now_s - hold.starved_s < REMEMBERED_S else 0.0
    # A step that the ramp would not write is none.
    mends = 0 < mended < (1 - DEADBAND) * limit
    if mends and soon > MUCH * drain_rate and _half_full(estimate):
        # Between the limit that let in too little and this one there may be a better one; if
        # not, room lasts longer near the former.
        limit = clamp(mended, bounds)
        hold = replace(change(hold, now_s, limit_bytes=limit), starved_bytes=0, probe_bytes=0)
        why = f"the flood gets {human.size(soon)}/s, more than {human.size(drain_rate)}/s: back"
        return limit, hold, State.SQUEEZE, why
    if rate is not None and estimate.held_back and now_s - hold.changed_s >= hold.probe_again_s:
        hold = replace(hold, probe_bytes=limit, probe_rate=rate)
        limit = clamp(limit * min(GROW_MOST, PROBE_STEP ** (1 + hold.earned)), bounds)
        hold = change(hold, now_s, limit_bytes=limit)
        return limit, hold, State.PROBE, "nothing changed for long: trying a larger limit"
    if late and not full:
        why = f"fsync waits {human.milliseconds(wait(estimate))} ms with room in the write cache"
        return limit, hold, State.GUARD, f"{why}; a smaller limit would cost throughput: holding"
    if hold.late_s:
        why = f"fsync waits {human.milliseconds(wait(estimate))} ms: does it last?"
        return limit, hold, State.SQUEEZE, why
    if hold.full_s:
        why = "the write cache is full, and syncs meet the objective: does it last?"
        return limit, hold, State.SQUEEZE, why
    why = f"the write cache has room, the limit lets in about {human.size(estimate.rate)}/s"
    return limit, hold, State.GUARD, why + ": holding"


def _anew(estimate: Estimate, hold: Hold, now_s: float) -> Hold:
    """Flushes have begun to be what syncs wait for, or ceased: what was measured meant another."""
    known = estimate.drain_rate is not None or hold.phase is not Phase.SEEK
    # Once they do not wait R x tau is the limit again, as where R has just been found.
    phase = Phase.HOLD if known and estimate.flushes_wait else Phase.SEEK
    # The limit is the same, and need not settle; but not where it was one to drain or to fill.
    moved = hold.phase is Phase.DRAIN or hold.phase is Phase.FILL
    return settle(
        hold, now_s if moved else hold.changed_s, full_s=0.0, late_s=0.0, loose_s=0.0,
        phase=phase, seek_rate=0.0, probe_bytes=0, climb=Climb(),
        flushed_s=now_s if estimate.flushes_wait else None,
    )


def _flushed(
    bounds: Bounds, estimate: Estimate, hold: Hold, now_s: float, dt_s: float, measured: bool
) -> Tuple[int, Hold, State, str]:
    """Where flushes are what syncs wait for: writes wait for them as well, at any rate.

    So a cache is not full because they are slow, and R, seen under a limit of ours, is what that
    let in.  `measured`: there was a window to judge by before this tick.
    """
    if now_s - (hold.flushed_s or now_s) > REMEMBERED_S:
        # It is long since the flood before: what was tried then is of another day.
        before = hold.climb.from_bytes or hold.limit_bytes  # one on trial was never judged
        hold = settle(hold, now_s, limit_bytes=before, climb=Climb())
    hold = replace(hold, for_rate=estimate.drain_rate or 0.0, flushed_s=now_s)
    limit = resting(bounds, estimate, hold)
    late = hold.late_s >= LATE_LASTS_S
    carried, lasted = hold.carried
    hold = replace(hold, loose_s=0.0 if estimate.held_back else hold.loose_s + dt_s)
    # Where syncs are late all the same a smaller limit may help, once this is no pause.
    fine = not late or hold.loose_s < LOOSE_S
    if not estimate.held_back and not hold.climb.from_bytes and fine:
        return limit, hold, State.GUARD, "flooded, and the limit holds nobody back: holding"
    # From then on what is judged is the past as well, and that is not to be compared with what
    # another limit brings.
    # The tick that completes a window is judged whatever its rate, or a swing would hold it all up.
    past = measured and now_s - hold.changed_s > FOLLOW_S + 2 * JUDGE_S
    fell = past and not hold.climb.from_bytes and estimate.rate < MUCH_SHORT * carried / lasted
    hold = replace(hold, fell_s=hold.fell_s + dt_s if fell else 0.0)
    if hold.fell_s >= FELL_S:
        hold = replace(hold, carried=(0.0, 0.0), waited=(0.0, 0.0), fell_s=0.0)
    if fell:
        return limit, hold, State.GUARD, f"the flood gets {human.size(estimate.rate)}/s: holding"
    carried, lasted = hold.carried
    first = max(1, int(seek_most(carried / lasted if lasted else estimate.rate)))
    return climb(bounds, estimate, hold, now_s, limit, late, first)


def may_starve(estimate: Estimate) -> float:
    """Up to which limit it may be what keeps a steady flood far below R, bytes; 0: unknown."""
    # Of waves each pause is a part of the rate.
    return 0.0 if estimate.in_waves else seek_most(estimate.drain_rate or 0.0)


def _no_cache(estimate: Estimate) -> bool:
    """Whether there is nothing to make room in: none, or one that each flush empties."""
    if estimate.cache_bytes is not None:
        return estimate.cache_bytes < SMALL_CACHE_S * (estimate.drain_rate or 0.0)
    return (estimate.baseline_s or 0.0) >= NO_CACHE_S


def below_the_knee(keep: float, estimate: Estimate, limit: int) -> bool:
    """Whether a smaller limit would let in too little, by what tau says, and the cache has room.

    Too little is less than the share `keep` of R. There a sync waits for tau whatever the limit,
    so only throughput would be lost.
    """
    tau = estimate.tau_s
    if tau is None or tau > TAU_SEEN_S or not estimate.held_back or _no_cache(estimate):
        return False
    return limit / STEP < keep * (estimate.drain_rate or 0.0) * tau


def _empty(estimate: Estimate) -> bool:
    cache = estimate.cache_bytes
    return cache is not None and estimate.fill_bytes <= FILL_FROM * cache


def _half_full(estimate: Estimate) -> bool:
    cache = estimate.cache_bytes
    return cache is not None and estimate.fill_bytes >= ROOM_SHARE * cache


def _has_room(estimate: Estimate) -> bool:
    cache = estimate.cache_bytes
    return cache is not None and not _no_cache(estimate) and estimate.fill_bytes < cache


def _rescale(bounds: Bounds, estimate: Estimate, hold: Hold, now_s: float) -> Hold:
    """Keep limit / R when R itself has moved: a rebuild, another mix of writes."""
    rate = estimate.drain_rate or 0.0
    if hold.limit_bytes is None or hold.for_rate <= 0:
        return replace(hold, for_rate=rate)
    moved = rate / hold.for_rate
    # While a limit is searched for by trying, R is only as good as the limits tried.
    same = OTHER_DISK if now_s - hold.useless_s < REMEMBERED_S else SEEK_GAIN
    if 1 / same <= moved <= same:
        return hold
    # What was learned about limits was learned at the other rate.
    limit = clamp(hold.limit_bytes * moved, bounds)
    hold = replace(hold, useless_s=float("-inf"), again=False)
    if moved < 1:  # as the disk became slower it may become fast again
        hold = replace(hold, probe_again_s=EARNED_S)
    return replace(
        settle(hold, now_s), limit_bytes=limit, for_rate=rate, starved_bytes=0, probe_bytes=0,
        climb=Climb(),
    )


