# SPDX-License-Identifier: GPL-2.0-or-later
"""A law on trial: syncs have a price in throughput, and a fifth of the disk is what they may cost.

What a run is worth is syncs x (rate / R)^4 while rate is below `keep` of R (what the flood
gets alone).  If each sync takes a fixed part of the media's time, its price, that is
most where syncs take 1 / (1 + 4) of R, whatever the disk, the cache or the load.  So the law
measures the price and steers to what is spent, by hand as follows.

Each tick of a flood:
1. Mark.  The write cache is full where slow syncs (4 x unloaded, 0.5 ms at least) take a quarter of
   the time of all, over a second.
2. R is the highest mean of three seconds under a full cache.  It fades slowly, and falls at once
   after three seconds at 0.25 to 0.9 of it, but only under limits that let in R (`lets_in`).  Where
   nothing is full for five seconds and 1.4 R goes in, it is sought anew.
3. Price = seconds of R that were lost while the cache was full, for each sync, over half a minute.
   What syncs leave in the cache is paid for later, by sweeps: the long window counts both.  What
   is below four fifths of R for ten seconds is no sweep: the price is learned anew.
4. Full, or more spent (syncs/s x price) than a fifth: the limit follows spent / fifth, within 0.6
   to 2.  It stays above what lets in four fifths of R, and is not cut below that rate.
5. Else there is room: the limit that lets in 0.96 of R, less what is spent; and slowly more, the
   longer nothing is full, which finds faster disks.
6. R not known: the limit x 3 while that brings 12 % more, or lets in less than 30 ms of the rate.
7. After floods of less than 30 s memory may take what the pause between them drains, 0.7 of it.
The limit is written every two seconds.  Nothing is learned under a limit that is not in force.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Optional

from writebackd.control.steps import Bounds
from writebackd.model import BUCKET_EDGES_S, DeviceSample, Estimate

MARK = 0.25  # of the syncs' time
SLOW_MULTIPLE = 4.0  # of the unloaded latency
SLOW_LEAST_S = 0.5e-3
SPEND = 0.2  # of R, 1 / (1 + exponent)
FREE = 0.96  # of R, where there is room
LONG_S = 30.0  # the window of the price
FAST_S = 1.5  # the kernel follows a limit in about that
EVERY_S = 2.0  # between two writes
CUT = 0.6  # most at once
RISE = 2.0
SEEK = 3.0  # a step while R is sought
PAYS = 1.12  # what it has to bring
ENOUGH_S = 0.03  # of the rate, what is let in anyhow
SHOWN_S = 3.0  # of a full cache show R
FADE_S = 60.0
FELL = (0.25, 0.9)  # of R: less may be a sweep
FELL_S = 3.0
SHORT_S = 10.0  # below four fifths of R: no sweep is as long, so the price was another disk's
OVER = 1.4  # of R, where nothing is full
OVER_S = 5.0
CREEP = 0.01  # more of R a second
CREEP_S = 3.0  # from then on
MOST_S = 0.25  # of R, the largest limit
NEVER_FULL_S = 12.0
WAVE_S = 30.0  # no longer is a flood a wave
WAVE = 0.7  # of what the pause drains
WAVE_LONGER = 1.25  # than the one before, by what it may be


@dataclass(frozen=True)
class Priced:
    """What is remembered of a device; bytes, seconds, bytes per second."""

    limit: float
    felt: float  # the limit as the kernel follows it
    written_s: float = 0.0
    rate: float = 0.0  # of the flusher
    syncs: float = 0.0  # a second
    slow: float = 0.0  # share of the syncs' time
    since: float = 0.0  # full (+) or not (-)
    shown: float = 0.0  # rate of the last seconds of a full cache
    r: Optional[float] = None
    lets_in: float = 0.0  # the limit under which R was seen
    lost: float = 0.0  # seconds of R
    synced: float = 0.0
    fell: float = 0.0
    short: float = 0.0
    best: float = 0.0  # rate while R is sought
    flood: float = 0.0  # this one's length, the one's before, the pause before, and this one's
    lasted: float = 0.0
    pause: float = 0.0
    quiet: float = 0.0
    fastest: float = float("inf")  # median of an fsync, for where no quiet time has told it

    @property
    def price(self) -> float:
        """Seconds of R that a sync costs."""
        return max(0.0, self.lost) / max(self.synced, 1.0)


def slow_share(seen: DeviceSample, unloaded_s: float) -> Optional[float]:
    """Share of the syncs' time that slow ones took; None without any."""
    sync = seen.sync
    if sync is None:
        return None
    least = max(SLOW_MULTIPLE * unloaded_s, SLOW_LEAST_S)
    slow = total = 0.0
    for index, count in sync.latency.buckets:
        spent = (BUCKET_EDGES_S[index] + BUCKET_EDGES_S[index + 1]) / 2 * count
        total += spent
        if BUCKET_EDGES_S[index] >= least:
            slow += spent
    if not total:
        return 1.0 if sync.inflight and sync.oldest_s > least else None
    return slow / total


def target(m: Priced, bounds: Bounds) -> float:
    """The limit to ask for: the law's, or what a pause drains."""
    pause = max(m.pause, m.quiet)
    if (m.r is None or not 0 < m.lasted <= WAVE_S or pause > 2 * WAVE_S
            or m.flood > WAVE_LONGER * m.lasted + 1.0):
        return m.limit
    return max(m.limit, min(WAVE * pause * m.r, float(bounds.ceiling)))


def step(
    m: Priced, e: Estimate, seen: DeviceSample, bounds: Bounds, in_force: bool, now_s: float,
    dt_s: float,
) -> Priced:
    """One tick."""
    if not e.flooded:
        lasted = m.flood or m.lasted
        return replace(m, slow=m.slow * 0.5**dt_s, since=0.0, flood=0.0, lasted=lasted,
                       quiet=m.quiet + dt_s)
    rate, fast = e.background_rate, min(1.0, dt_s / FAST_S)
    fastest = min(m.fastest, e.fsync_p50_s or m.fastest)
    share = slow_share(seen, e.baseline_s if e.baseline_s is not None else fastest)
    slow = m.slow if share is None else m.slow + (share - m.slow) * min(1.0, dt_s)
    full = slow > MARK
    since = (m.since if full == (m.since > 0) else 0.0) + (dt_s if full else -dt_s)
    shown = m.shown
    if full and since > 1.0:
        shown += (rate - shown) * min(1.0, dt_s / min(since - 1.0, SHOWN_S))
    pause = m.pause
    if m.quiet:
        pause = (pause + m.quiet) / 2 if pause else m.quiet
    m = replace(
        m, rate=m.rate + (rate - m.rate) * fast, felt=m.felt + (m.limit - m.felt) * fast,
        syncs=m.syncs + (e.fsyncs / dt_s - m.syncs) * fast, slow=slow, since=since, shown=shown,
        flood=m.flood + dt_s, pause=pause, quiet=0.0, fastest=fastest)
    if not in_force:
        return m
    if m.r is not None:
        m = _learn(m, m.r, rate, e.fsyncs, dt_s)
    if now_s - m.written_s < EVERY_S - 1e-6:
        return m
    if m.r is None:
        return _seek(m, e.held_back, bounds, now_s)
    factor = _follow(m, m.r)
    if factor > 1.0 and not e.held_back:
        return m
    most = max(MOST_S * m.r, 2.0 * bounds.floor)
    return replace(m, limit=min(max(m.limit * factor, bounds.floor), most), written_s=now_s)


def _learn(m: Priced, r: float, rate: float, syncs: int, dt_s: float) -> Priced:
    """R and the price; R is None where it is to be sought anew."""
    fade = 1.0 - dt_s / LONG_S
    lost, synced = m.lost * fade, m.synced * fade + syncs
    fell, short, lets_in = m.fell, 0.0, m.lets_in
    if m.since > 0:
        lost += min(max(1.0 - rate / r, -0.2), 1.0) * dt_s
        short = m.short + dt_s if m.rate < (1.0 - SPEND) * r else 0.0
        if m.since > 1.0 + SHOWN_S:
            if m.shown > 0.97 * r:
                lets_in = min(lets_in, m.limit) if m.shown < r else m.limit
            if m.shown > r:
                r = m.shown
            elif m.limit > 0.9 * lets_in and m.shown > FELL[0] * r:
                r += (m.shown - r) * dt_s / FADE_S
                fell = fell + dt_s if FELL[0] < rate / r < FELL[1] else 0.0
        if fell >= FELL_S:
            r, lets_in, fell, lost = m.shown, m.limit, 0.0, 0.0
        if short > SHORT_S:
            lost = synced = short = 0.0
            if m.shown < FELL[0] * r:
                r, lets_in = m.shown, m.limit
    elif m.since < -1.0:
        lets_in = min(lets_in, r * m.felt / max(m.rate, 1.0))
        if m.since < -OVER_S and m.rate > OVER * r:
            return replace(m, r=None, best=m.rate, lost=0.0, synced=0.0, fell=0.0, short=0.0)
    return replace(m, r=r, lets_in=lets_in, lost=lost, synced=synced, fell=fell, short=short)


def _seek(m: Priced, held_back: bool, bounds: Bounds, now_s: float) -> Priced:
    if not held_back:
        return m
    full = m.since > 0
    if m.rate > PAYS * m.best or (not full and m.limit < ENOUGH_S * m.rate):
        limit = min(SEEK * m.limit, float(bounds.ceiling))
        return replace(m, best=max(m.best, m.rate), limit=limit, written_s=now_s)
    if m.since >= 1.0 + SHOWN_S:
        return replace(m, r=m.shown, lets_in=m.limit)
    if m.since < -NEVER_FULL_S:
        return replace(m, r=m.rate, lets_in=0.0)
    return m


def _follow(m: Priced, r: float) -> float:
    """What the limit is multiplied with."""
    spent = m.syncs * m.price
    lets_in_all = r * m.felt / max(m.rate, 1.0) / m.limit  # of the limit: what would let in R
    if m.since > 0 or spent > SPEND:
        factor = min(max(spent / SPEND, CUT), RISE)
        if factor < 1.0 and m.rate < FREE * r:
            factor = max(factor, min(1.0, (1.0 - SPEND) * lets_in_all))
            if m.rate < (1.0 - SPEND) * r:
                factor = 1.0
        return factor
    more = 1.0 + CREEP * max(0.0, -m.since - CREEP_S)
    free = min(max(1.0 - spent, 1.0 - SPEND), FREE)
    return min(max(free * more * lets_in_all, 0.5), RISE)
