# SPDX-License-Identifier: GPL-2.0-or-later
"""The best limit by trying, where no model tells it.

On a disk without a write cache, behind one that somebody else fills, or on one
whose flushes are what takes long, R x tau is not the knee: a smaller limit
shortens the wait and costs throughput, and how much of which has to be
measured.  A step has to earn its keep:

    worth = syncs per second of waiting x min(1, rate / (keep x R)) ^ 4

What brought nothing is taken back, then the other direction is tried; when
neither helps, the next try is a while off, and it is said that nothing does.
Where flushes are what takes long the first step is a far larger limit (`first`).
The fourth power is how dear throughput is: down to `keep` it is worth nothing
beside latency, and a tenth less than that a third of it.
"""

from __future__ import annotations

from typing import Tuple

from writebackd import human
from writebackd.control.steps import (
    JUDGE_S,
    LOOSE_S,
    MUCH_SHORT,
    SOON_JUDGED_S,
    Bounds,
    change,
    clamp,
    wait,
)
from writebackd.model import Climb, Estimate, Hold, State, replace

# Changes the wait by more than its noise (10 to 20 % in windows of 3 s) where it
# changes it at all.
STEP = 1.4
EARNS = 1.08
DEAR = 4
# Media that take the next round of the writeback loop only after the last one let in
# limit / (limit + R x tau) of R.  So one measurement tells the limit for MUCH_SHORT of it; no
# further than this multiple at once.
LEAP = 3.0
# Both are weighed, so that no limit earned enough is no proof that none shortens fsync.
TOO_DEAR = "shortened it too little for their cost in throughput"
STAYS = "keeping this one"
AT_FLOOR = "the limit is at the policy's floor, or the least that the kernel can count"
# When both directions failed each try waits so much longer than the one before, up to a
# minute; and so it does after so many tries, since noise makes some seem to earn.  One
# that makes this much of a difference shows that things have changed, and they begin anew.
FREE_TRIES = 6
PATIENCE_S, PATIENCE_MOST_S = 10.0, 60.0
MUCH = 1.5
# Where R is not to be believed: such a step, from one plateau of the rate to the next, and the gain
# in throughput that the first one has to bring.
WIDE, WIDE_GAIN = 2.0, 1.1
# No further than what takes so long at the rate: 64 MB on an SSD gave 18 syncs/s where 32 had 100.
WIDEST_S = 0.1
FIRST_JUDGED_S = 1.0
# The first one, and once more where a slower host spoiled it: no later step is free of its price,
# or what a smaller limit earned would be given back for ever.
FIRST_TRIES = 2
# So many smaller limits that shortened nothing: the queue is not ours.
FRUITLESS = 2
# Then the limit goes back to where the search began, for so long.
GAVE_UP_S = 300.0


def climb(
    bounds: Bounds, estimate: Estimate, hold: Hold, now_s: float, limit: int, late: bool,
    first: int = 0, far: float = 0.0,
) -> Tuple[int, Hold, State, str]:
    """`(limit, memory, state, why)`, as hold.regulate.

    `far`: up to here the limit may be what keeps the flood far below R, bytes.

    `first`: the limit to begin with where R is not to be believed, bytes.  There the memory has
    what syncs waited by time: seconds times seconds, seconds.
    """
    now = hold.climb
    waits = f"fsync waits {human.milliseconds(wait(estimate))} ms"
    if now_s - now.gave_up_s < GAVE_UP_S:
        why = f"{waits}; smaller limits {TOO_DEAR}: {STAYS}"
        return limit, hold, State.EXHAUSTED if late else State.GUARD, why
    # Of the first limit the next is far enough away.
    judge_s = JUDGE_S if now.begin_bytes or not first else FIRST_JUDGED_S
    starves = starved(estimate, hold, limit, far)
    if starves and (now.up or not now.from_bytes):
        # A smaller limit on trial is judged by what syncs gain as well, which shows later.
        judge_s = SOON_JUDGED_S
    if hold.carried[1] < judge_s or not (hold.waited[1] or estimate.oldest_fsync_s):
        larger_next = now.up if now.from_bytes else first and not now.begin_bytes
        state = State.PROBE if larger_next else State.SQUEEZE
        return limit, hold, state, f"{waits}: measuring what this limit brings"
    (carried, lasted), (waited, syncs) = hold.carried, hold.waited
    rate = carried / lasted
    # One in flight that never came back has waited as well; where waits count by time, so long.
    oldest_s = estimate.oldest_fsync_s
    if first:
        mean_s = max((waited + oldest_s * oldest_s) / (syncs + oldest_s), 1e-6)
    else:
        mean_s = max((waited + oldest_s) / max(syncs, 1.0), 1e-6)
    if now.from_bytes:
        # R is only as good as the limits that were tried.
        most = max(estimate.drain_rate or 0.0, rate, now.rate)
        before = _worth(bounds, most, now.rate, now.mean_s)
        worth = _worth(bounds, most, rate, mean_s)
        # Where R was seen under a limit of ours, throughput is what to look for.
        widened = first and now.tries <= FIRST_TRIES and now.from_bytes == now.begin_bytes
        widened = widened and rate >= WIDE_GAIN * now.rate
        if worth < EARNS * before and not (now.up and widened):
            back = clamp(now.from_bytes, bounds)
            # A larger limit lets in no less: the host or the disk has become slower meanwhile, and
            # the first try, on which much depends, is made once more.
            slower = first and now.up and now.tries == 1 and rate < now.rate / WIDE_GAIN
            now = replace(now, from_bytes=0) if slower else _failed(now)
            if late and now.fruitless >= FRUITLESS:
                back = clamp(max(back, now.begin_bytes), bounds)
                hold = replace(change(hold, now_s, limit_bytes=back), climb=Climb(gave_up_s=now_s))
                why = f"{waits}; {now.fruitless} smaller limits {TOO_DEAR}: {STAYS}"
                return back, hold, State.EXHAUSTED, why
            hold = replace(change(hold, now_s, limit_bytes=back), climb=now)
            which = "smaller" if now.up else "larger"
            return back, hold, State.GUARD, f"{waits}; the {which} limit was no better: back"
        if first and rate > (estimate.drain_rate or 0.0):
            # As far as can be seen the media take this.
            hold = replace(hold, proved_rate=rate)
        much = worth > MUCH * before
        now = replace(
            now, from_bytes=0, failed=0, fruitless=now.fruitless if now.up else 0,
            tries=0 if much and not first else now.tries,
            # What a smaller limit has earned is not given back.
            begin_bytes=now.begin_bytes if now.up else limit,
        )
    enough = rate >= bounds.keep * (estimate.drain_rate or 0.0)
    # What holds nobody back is not widened.
    loose = first and hold.loose_s >= LOOSE_S
    if loose:
        now, enough = replace(now, up=False), True
        if clamp(limit / WIDE, bounds) == limit:
            # Nothing was tried, so nothing has failed.
            why = f"{waits}; {AT_FLOOR}: {STAYS}"
            return limit, replace(hold, climb=now), State.EXHAUSTED, why
    # To begin with, and once more where a slower host spoiled it.
    widens = first and not loose and (
        not now.begin_bytes or (now.up and not now.failed and limit == now.begin_bytes)
    )
    pause = 0.0 if widens else pause_s(now, enough)
    if now_s - hold.changed_s < pause:
        hold = replace(hold, climb=now)
        # One failure says it as well, where a larger limit has nothing to bring.
        if late and (now.failed >= 2 or (now.failed and now.up)):
            neither = "neither a smaller nor a larger limit is worth its cost"
            if now.failed < 2:
                neither = "no smaller limit is worth its cost, and it is too soon for a larger one"
            return limit, hold, State.EXHAUSTED, f"{waits}; {neither}: {STAYS}"
        return limit, hold, State.GUARD, f"{waits}; the best limit of those tried: holding"
    now = replace(now, up=goes_up(now, enough), begin_bytes=now.begin_bytes or limit)
    if widens:
        now = replace(now, up=True)
    smaller, larger = limit / STEP, STEP * limit
    if starves:
        larger = leap(estimate, hold, limit, far)
    if first:
        most = WIDEST_S * max(rate, estimate.drain_rate or 0.0)
        smaller, larger = limit / WIDE, max(limit, first, min(WIDE * limit, most))
    new = clamp(larger if now.up else smaller, bounds)
    if new == limit:
        hold = replace(hold, climb=_failed(replace(now, tries=now.tries + 1)))
        if late and not now.up:
            return limit, hold, State.EXHAUSTED, f"{waits}; {AT_FLOOR}: {STAYS}"
        return limit, hold, State.GUARD, f"{waits}; the limit is at its bound"
    hold = change(hold, now_s, limit_bytes=new)
    now = replace(now, from_bytes=limit, rate=rate, mean_s=mean_s, tries=now.tries + 1)
    hold = replace(hold, climb=now)
    state, which = (State.PROBE, "larger") if now.up else (State.SQUEEZE, "smaller")
    return new, hold, state, f"{waits}: trying a {which} limit"


def starved(estimate: Estimate, hold: Hold, limit: int, far: float) -> bool:
    """Whether the flood is seen to be much short of R, under a limit below `far` bytes."""
    carried, lasted = hold.carried
    much = carried < MUCH_SHORT * (estimate.drain_rate or 0.0) * lasted
    return much and lasted >= SOON_JUDGED_S and limit < far


def leap(estimate: Estimate, hold: Hold, limit: int, far: float) -> float:
    """The next larger limit of a flood that is starved, bytes."""
    carried, lasted = hold.carried
    missing = (estimate.drain_rate or 0.0) * lasted / max(carried, 1.0) - 1
    wanted = limit * missing / (1 / MUCH_SHORT - 1)
    return max(STEP * limit, min(wanted, LEAP * limit, far))


def pause_s(now: Climb, enough: bool) -> float:
    """How long the last change has to be ago before the next try, seconds.

    `enough`: the flood has the throughput that the policy keeps for it.
    """
    if now.tries and now.up and enough:
        # Nothing is missing that a larger limit could bring; syncs pay for each try.
        return PATIENCE_MOST_S
    return min(PATIENCE_MOST_S, PATIENCE_S * max(now.failed - 1, now.tries - FREE_TRIES))


def goes_up(now: Climb, enough: bool) -> bool:
    """Whether the next step is to a larger limit.

    The first one goes where something is missing: throughput, or else latency.
    """
    return now.up if now.tries or now.begin_bytes else not enough


def _failed(now: Climb) -> Climb:
    fruitless = now.fruitless + (now.from_bytes > 0 and not now.up)
    return replace(
        now, from_bytes=0, up=not now.up, failed=now.failed + 1, fruitless=fruitless
    )


def _worth(bounds: Bounds, most: float, rate: float, mean_s: float) -> float:
    return float(min(1.0, rate / (bounds.keep * most)) ** DEAR / mean_s)
