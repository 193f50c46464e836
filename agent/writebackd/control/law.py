# SPDX-License-Identifier: GPL-2.0-or-later
"""The law: which limit a flooded device gets beside its commits.

R is what the device writes of a flood for as long as it lasts.  A limit that drains in less than
about 8 ms takes throughput from the flood; a larger one only makes commits wait for what is queued
ahead of them.  On disks that were swept by hand 13 to 25 ms of R were the best fixed limit.  So:

1. R known: what drains in `allowed-delay`, 16 ms, from a flood's first second; in five unloaded
   commits where those take longer: the disk seeks.  With room in the cache, of what it takes.
2. The flood gets less than 0.8 R over ten seconds: up to twice that, in proportion; above 0.85 R
   back towards it.  Twice that where commits sleep in write() for three seconds for 0.8 of their
   time, or for half of it and together 0.8 of all time; and not back before it is half of that, of
   N threads an Nth of half.  Twice that also where R may be more: while the cache has had room for
   ten seconds, and for five to test R, ten seconds of flood after it was learned or such a test
   brought an eighth more, a minute after one in vain.
3. R unknown: from `rest` on, twice the limit every two seconds, as long as it is worth less than
   twice the delay at the rate that comes or a step raises that rate by an eighth.
4. A full cache ends that: down in one step to twice the delay at the rate of that tick, but not
   below `rest`.  Three seconds of a full cache then show R; twelve where the rate fell to less
   than a quarter meanwhile, which a destage sweep may have done.
5. R rises with the rate of a full cache.  It falls where less comes for three seconds although the
   limit is worth more than 24 ms of that: the limit is not what holds it (estimate/drain.py).
6. A flood held by io.max has a pace that leaves syncs their share of R (control/pace_law.py).

The background limit is half of the limit and never more, so that one chunk of a flood does not jump
over the band in which the kernel slows writers down (control/ramp.py).  A commit is slow where it
waits for the media: where slow syncs take more than a fifth of the time of all, under a pace nearly
half (estimate/drain.py).
Nothing is judged while the limit in force is not the law's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple

from writebackd.tuning import (
    CYCLE_S,
    EVERY_S,
    FELL,
    LEAST,
    LETS_IN_S,
    MOST_S,
    PAYS,
    SEEK,
    SHOWN_S,
    TRUST_S,
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
    delay_s: float  # the limit is what drains in that
    rest_bytes: float  # the limit to begin with while R is unknown
    spend: float  # share of R that syncs may cost under a pace
    keep: float  # share of R that a paced flood gets while there is room


def follow(
    law: LawMemory, d: Drain, e: Estimate, bounds: Bounds, in_force: bool, now_s: float, dt_s: float
) -> Tuple[LawMemory, Rule]:
    """A tick of a flood, and the branch that decided."""
    limit, r = law.limit_bytes or float(bounds.floor), e.drain_rate
    if r is not None:
        if in_force and e.held_back:
            law = _stretched(law, e, r, dt_s)
        testing = law.trusted_s >= TRUST_S
        if testing or (in_force and e.held_back):
            law = _tested(law, d, e.held_back, testing, dt_s)
            testing = law.trusted_s >= TRUST_S
        takes = r if d.full_s > 0 else max(r, d.rate)
        usual = _within(takes * bounds.delay_s, bounds)
        doubted = testing or (e.held_back and d.room_s >= CYCLE_S)
        times = max(law.stretch, SEEK if doubted else 1.0)
        knee = _within(times * usual, bounds)
        if knee != limit:
            law = replace(law, limit_bytes=knee, written_s=now_s)
        if not in_force:
            return law, Rule.COMING
        if times > 1.0 and knee > usual:
            if times == law.stretch:
                return law, Rule.SHORT
            if usual > bounds.floor or d.full_s <= 0:  # at the floor what is wrong stays wrong
                return law, Rule.TEST
        if usual > _within(r * bounds.delay_s, bounds):
            return law, Rule.FILLING
        return law, Rule.FLOOR if usual <= bounds.floor and d.full_s > 0 else Rule.KNEE
    if not in_force:
        return replace(law, tried=(0.0,) * 4), Rule.COMING
    most = _measured_under(max(e.background_rate, d.full_rate), bounds)
    if d.full_s > 0 and limit > most:
        return replace(law, limit_bytes=_within(most, bounds), written_s=now_s), Rule.MEASURE
    return _seek(law, e, bounds, now_s, dt_s)


def _stretched(law: LawMemory, e: Estimate, r: float, dt_s: float) -> LawMemory:
    """Whether the limit takes too much from the flood or from the commits, over whole sweeps."""
    law = _tried(law, e, dt_s)
    seconds, written, slept_s, commits_s = law.tried
    # Who sleeps in write() has its file's lock: that the others wait for it is not seen.
    threads = max(1.0, commits_s / seconds)
    most_s = max(LEAST / threads, 0.5) * commits_s
    asleep = slept_s > most_s
    if seconds < (SHOWN_S if asleep else CYCLE_S):
        return law
    share, stretch = written / seconds / r, law.stretch
    if asleep:
        stretch = SEEK
    elif share < LEAST:
        stretch = min(SEEK, stretch * LEAST / max(share, 0.5))
    elif share > (LEAST + FELL) / 2 and slept_s <= most_s / 2 / threads:
        stretch = max(1.0, stretch * LEAST)
    return replace(law, stretch=stretch, tried=(0.0,) * 4)


def _tested(law: LawMemory, d: Drain, held_back: bool, testing: bool, dt_s: float) -> LawMemory:
    """When R is tested next, or what came of it: a limit below R's keeps the cache from filling."""
    trusted_s = law.trusted_s + dt_s
    if trusted_s < TRUST_S:
        return replace(law, trusted_s=trusted_s)
    if not testing:
        law = replace(law, sought_rate=d.rate)
    if not held_back:
        trusted_s = TRUST_S - CYCLE_S
    elif trusted_s >= TRUST_S + EVERY_S + SHOWN_S:
        trusted_s = TRUST_S - CYCLE_S if d.rate > PAYS * law.sought_rate else 0.0
    return replace(law, trusted_s=trusted_s)


def _tried(law: LawMemory, e: Estimate, dt_s: float) -> LawMemory:
    slept_s = (e.commit_write_share or 0.0) * e.commit_total_s
    more = (dt_s, e.background_rate * dt_s, slept_s, e.commit_total_s)
    return replace(law, tried=tuple(map(sum, zip(law.tried, more))))


def _measured_under(rate: float, bounds: Bounds) -> float:
    """The limit, bytes, under which R is measured: one that lets in more than comes at `rate`."""
    return max(max(SEEK * bounds.delay_s, LETS_IN_S) * rate, bounds.rest_bytes)


def _within(limit: float, bounds: Bounds) -> float:
    return min(max(limit, float(bounds.floor)), float(bounds.ceiling))


def _seek(
    law: LawMemory, e: Estimate, bounds: Bounds, now_s: float, dt_s: float
) -> Tuple[LawMemory, Rule]:
    """R is not known: the limit up while that brings more, or until it surely lets in R."""
    limit = law.limit_bytes or float(bounds.floor)
    if now_s - law.written_s > EVERY_S / 2:  # the kernel follows the last step by then
        law = _tried(law, e, dt_s)
    seconds, written, *_ = law.tried
    if now_s - law.written_s < EVERY_S - 1e-6 or not seconds:
        return law, Rule.MEASURE
    rate = written / seconds
    pays = rate > PAYS * law.sought_rate > 0.0
    law = replace(law, written_s=now_s, tried=(0.0,) * 4, sought_rate=max(rate, law.sought_rate))
    if not e.held_back or not (pays or limit < _measured_under(rate, bounds)):
        return law, Rule.MEASURE
    raised = max(min(SEEK * limit, MOST_S * rate), limit)
    return replace(law, limit_bytes=_within(raised, bounds)), Rule.SEEK
