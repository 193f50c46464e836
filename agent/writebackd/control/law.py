# SPDX-License-Identifier: GPL-2.0-or-later
"""The law: which limit a flooded device gets beside its syncs.

What a host gets is worth syncs x (rate / R)^e, R being what the flood gets alone.  Where each sync
takes a part of the media's time, its price, that is most when syncs cost 1 / (1 + e) of R, whatever
the disk, cache or load.  Its last part buys few, so the law spends a seventh where the policy
prefers neither (e = 4): it measures the price, and steers to that share.  By hand, each tick:

1. Is the cache full?  Where slow syncs take more than a fifth of the time of all.
2. R is the median rate of three seconds under a full cache.  It falls once the rate stays below it
   under a limit that let it in before, and rises when room lasts at far more than R.
3. A sync's price is what was lost of R while the cache was full, for each sync, over half a minute.
   syncs/s x price is what is spent.
4. R not known: three times the limit while that brings an eighth more, else wait until a full cache
   shows R.  Then at once to what drains in 30 ms, where the search went beyond that.
5. Full, or more spent than the share: the limit follows spent / share.  It is not cut below what
   lets in the rest of R, and goes up when the flood has less than that.
6. Else there is room: the limit that lets in 0.95 of R, less what is spent; and more and more, the
   longer nothing is full, which finds faster disks.
7. p99 above the objective: a tenth of R more may be spent, for 20 s to begin with.  If that did not
   meet it, it is not tried again for ten minutes.
8. Floods of less than 30 s: memory may take 0.7 of what drains in a pause, or in drain-time.
9. A flood held by io.max (control/pacing/pace.py) has a pace by 5 to 7, and at least `pace-share`.

Limit and pace change every two seconds at most, upwards only while they hold writers back.  Once R
is known, outside of waves, no limit goes beyond a tenth of a second of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple

from writebackd.tuning import (
    CREEP,
    CUT,
    EVERY_S,
    EXTRA,
    FIRST_S,
    MOST_S,
    PAUSE_LEAST,
    PAYS,
    RISE,
    SEEK,
    SEEK_MOST_S,
    TRY_AGAIN_S,
    TRY_S,
    WAVE,
    WAVE_LONGER,
    WAVE_S,
)
from writebackd.types.copying import replace
from writebackd.types.decision import Rule
from writebackd.types.device_memory import Drain, LawMemory
from writebackd.types.estimate import Estimate


@dataclass(frozen=True)
class Bounds:
    """What the law may do with one device."""

    floor: int  # bytes
    ceiling: int
    objective_s: float  # p99 of an fsync
    drain_time_s: float  # memory takes no more than what drains in that
    spend: float  # share of R that syncs may cost
    keep: float  # share of R that the flood gets while there is room
    pace_share: float = 0.0  # of R, the least that a flood held by io.max gets


def may_spend(law: LawMemory, bounds: Bounds, paced: bool = False) -> float:
    """Share of R that syncs may cost now."""
    share = bounds.spend + max(0.0, law.extra)
    return min(share, 1.0 - bounds.pace_share) if paced else share


def in_waves(law: LawMemory) -> bool:
    """Whether floods come and go, and the one that is on is no longer than the one before."""
    pause = max(law.pause_s, law.quiet_s)
    return (law.lasted_s <= WAVE_S and PAUSE_LEAST * law.lasted_s <= pause <= 2 * WAVE_S
            and law.flood_s <= WAVE_LONGER * law.lasted_s + 1.0)


def found(law: LawMemory, r: float, bounds: Bounds, now_s: float) -> Tuple[LawMemory, Rule]:
    """The search has found R; its limit was for bytes that the cache took, and may be too large."""
    first = max(FIRST_S * r, float(bounds.floor))
    if (law.limit_bytes or 0.0) <= first:
        return law, Rule.MEASURE
    return replace(law, limit_bytes=first, written_s=now_s), Rule.FOUND


def asked(law: LawMemory, r: "float | None", bounds: Bounds) -> int:
    """The limit to ask for, bytes: the law's, or what a pause drains."""
    limit = law.limit_bytes or 0.0
    if r is not None and in_waves(law):
        pause = min(max(law.pause_s, law.quiet_s), law.lasted_s, bounds.drain_time_s / WAVE)
        limit = max(limit, WAVE * pause * r)
    return int(min(max(limit, bounds.floor), bounds.ceiling))


def is_due(law: LawMemory, now_s: float) -> bool:
    """Whether the last change has shown its effect."""
    return now_s - law.written_s >= EVERY_S - 1e-6


def between(law: LawMemory, dt_s: float) -> LawMemory:
    """A tick without a flood."""
    lasted_s = law.flood_s or law.lasted_s
    quiet_s = law.quiet_s + dt_s if lasted_s else 0.0  # before the first flood there is no pause
    return replace(law, flood_s=0.0, lasted_s=lasted_s, quiet_s=quiet_s)


def follow(
    law: LawMemory, d: Drain, e: Estimate, bounds: Bounds, in_force: bool, now_s: float, dt_s: float
) -> Tuple[LawMemory, Rule]:
    """A tick of a flood, and the branch that decided."""
    law = _goes_on(law, dt_s)
    if in_waves(law) and asked(law, e.drain_rate, bounds) > (law.limit_bytes or 0.0):
        return law, Rule.WAVES
    if not in_force:
        return law, Rule.COMING
    if e.drain_rate is None:
        now, rule = _seek(law, d, bounds)
    else:
        law = replace(law, extra=_extra(law.extra, e, bounds, dt_s))
        now, rule = _steer(law, d, e.drain_rate, bounds)
    limit = law.limit_bytes or float(bounds.floor)
    if now > limit and not e.held_back:
        now, rule = limit, Rule.LOOSE
    if now != limit and is_due(law, now_s):
        law = replace(law, limit_bytes=now, written_s=now_s,
                      sought_rate=max(law.sought_rate, d.rate))
    return law, rule


def follow_pace(
    law: LawMemory, d: Drain, e: Estimate, bounds: Bounds, pace: float, r: float, dt_s: float
) -> Tuple[LawMemory, float, Rule]:
    """A tick of a flood held at `pace` by io.max: what to multiply that with, and the branch."""
    law = replace(_goes_on(law, dt_s), extra=_extra(law.extra, e, bounds, dt_s))
    share = may_spend(law, bounds, paced=True)
    by, rule = factor(d, r, share, bounds.keep, r / pace)
    if rule is Rule.ROOM:  # slowly: what syncs cost is known once the cache is full
        by = min(by, 1.0 + CREEP * d.full_s**2)
    by = max(by, (1.0 - share) * r / pace)
    if by > 1.0 and not e.held_back:
        by, rule = 1.0, Rule.LOOSE
    return law, by, rule


def _goes_on(law: LawMemory, dt_s: float) -> LawMemory:
    pause_s = (law.pause_s + law.quiet_s) / (2 if law.pause_s and law.quiet_s else 1)
    return replace(law, flood_s=law.flood_s + dt_s, pause_s=pause_s, quiet_s=0.0)


def _extra(extra: float, e: Estimate, bounds: Bounds, dt_s: float) -> float:
    """What is spent for the objective; below zero it is not tried, and comes back to zero."""
    waits_s = max(e.fsync_p99_s or 0.0, e.oldest_fsync_s)
    if extra < 0.0:
        return min(0.0, extra + EXTRA * dt_s / TRY_AGAIN_S)
    if waits_s > bounds.objective_s:
        extra += EXTRA * dt_s / TRY_S
        return extra if extra <= EXTRA else -EXTRA
    return max(0.0, extra - EXTRA * dt_s / (3 * TRY_S))


def _seek(law: LawMemory, d: Drain, bounds: Bounds) -> Tuple[float, Rule]:
    """R is not known: the limit up while that brings more.  A full cache then shows R."""
    limit = law.limit_bytes or float(bounds.floor)
    most = min(max(SEEK_MOST_S * d.rate, 2.0 * bounds.floor), float(bounds.ceiling))
    if d.rate > PAYS * law.sought_rate and limit < most:
        return min(SEEK * limit, most), Rule.SEEK
    return limit, Rule.MEASURE


def _steer(law: LawMemory, d: Drain, r: float, bounds: Bounds) -> Tuple[float, Rule]:
    """R is known: the limit after what syncs cost, or after the room there is."""
    limit = law.limit_bytes or float(bounds.floor)
    lets_in_all = r * d.limit_bytes / max(d.rate, 1.0) / limit
    by, rule = factor(d, r, may_spend(law, bounds), bounds.keep, lets_in_all)
    most = min(max(MOST_S * r, 2.0 * bounds.floor), float(bounds.ceiling))
    now = min(max(limit * by, float(bounds.floor)), most)
    return now, Rule.FLOOR if rule is Rule.CUT and now <= bounds.floor else rule


def factor(d: Drain, r: float, share: float, keep: float, lets_in_all: float) -> Tuple[float, Rule]:
    """What limit or pace are multiplied with, where syncs may cost a `share` of R.

    `lets_in_all` times as large it would let in R.
    """
    spent = d.sync_rate * d.price_s
    if d.full_s > 0 or spent > share:
        by = min(max(spent / share, CUT), RISE)
        rule = Rule.DEAR if by > 1.0 else Rule.CUT
        least = (1.0 - share) * lets_in_all
        if by < min(1.0, least) and d.rate < keep * r:
            by, rule = min(RISE, least), Rule.SHORT if least > 1.0 else Rule.STEADY
        return by, rule
    more = 1.0 + CREEP * d.full_s**2
    return min(max(min(1.0 - spent, keep) * more * lets_in_all, CUT), RISE), Rule.ROOM
