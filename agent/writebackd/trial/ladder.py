# SPDX-License-Identifier: GPL-2.0-or-later
"""Values of a calibration: limits tried one after another, their scores, the next.  Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import List, Optional, Tuple

from writebackd.report.recommendation import stepped
from writebackd.tuning import MOST_S
from writebackd.types.estimate import Estimate
from writebackd.types.histogram import Histogram
from writebackd.types.samples import DeviceSample

# Of the flood's rate, that may be lost for nothing; and how dear more is.
KEPT, DEAR = 0.95, 4
# Times as much is more.
RISES = 1.05
# Of the best score: below it a limit is worse for sure.
WORSE = 0.8
# Of the limit that lets in R; and one within that of another is no other.
MARGIN, NEAR = 0.97, 0.03


def score(f: float, g: float) -> float:
    """The score of a limit: `f` of the idle fsync rate and `g` of the flood's full rate."""
    return f * min(1.0, g / KEPT) ** DEAR


@dataclass(frozen=True)
class Rung:
    """What was measured under one limit, or idle; sums over the seconds that count."""

    limit_bytes: int
    seconds: float = 0.0
    syncs: int = 0
    flood_bytes: float = 0.0
    full_s: float = 0.0  # of them with a full cache
    latency: Histogram = Histogram()

    @property
    def is_full(self) -> bool:
        """Whether the disk limited the flood, and not the limit."""
        return self.full_s > self.seconds / 2

    @property
    def sync_rate(self) -> float:
        return self.syncs / self.seconds if self.seconds else 0.0

    @property
    def flood_rate(self) -> float:
        return self.flood_bytes / self.seconds if self.seconds else 0.0

    def with_tick(self, seen: DeviceSample, state: Estimate, syncs: int, dt_s: float) -> Rung:
        latency = seen.sync.latency if seen.sync is not None else Histogram()
        return replace(
            self, seconds=self.seconds + dt_s, syncs=self.syncs + syncs,
            flood_bytes=self.flood_bytes + state.background_rate * dt_s,
            full_s=self.full_s + (dt_s if state.full else 0.0), latency=self.latency + latency,
        )  # fmt: skip

    def score(self, idle_rate: float, drain_rate: float) -> float:
        # None at all is less than one.
        rate = max(self.syncs, 1) / max(self.seconds, 1e-3)
        return score(rate / idle_rate, self.flood_rate / drain_rate)


def next_limit(
    rungs: List[Rung], idle_rate: float, r: float, floor: int, ceiling: int
) -> Optional[int]:
    """The next limit to try, from floor to ceiling; None: no other would be better.

    Goes up until the flood gets all of R, down by halves until smaller is worse, then between the
    best and its neighbours, and finally just below the knee, which the steps may have missed.
    """
    beyond = beyond_these(rungs, idle_rate, r, floor, ceiling)
    if beyond is not None:
        return beyond
    scores = {each.limit_bytes: each.score(idle_rate, r) for each in rungs}
    best = max(scores, key=lambda limit: scores[limit])
    for limit in (_step(best, up=False), _step(best, up=True)):
        if limit not in scores and floor < limit <= ceiling:
            return limit
    loose = [
        each.limit_bytes / each.flood_rate for each in rungs if not each.is_full and each.flood_rate
    ]
    knee = int(MARGIN * r * min(loose, default=0.0)) >> 16 << 16
    near = any(abs(limit - knee) < NEAR * limit for limit in scores)
    return knee if min(scores) < knee < max(scores) and not near else None


def beyond_these(
    rungs: List[Rung], idle_rate: float, r: float, floor: int, ceiling: int
) -> Optional[int]:
    """A limit above or below all of these that may be better; None: the best is between them."""
    by_limit = sorted(rungs, key=lambda each: each.limit_bytes)
    low, high = by_limit[0], by_limit[-1]
    # Where twice the limit brought no more, fsyncs have the rest of R.
    brought = len(rungs) < 2 or high.flood_rate > RISES * by_limit[-2].flood_rate
    if brought and high.flood_rate < KEPT * r and high.limit_bytes < min(MOST_S * r, ceiling):
        return min(_step(_step(high.limit_bytes, up=True), up=True), ceiling)
    best = max(each.score(idle_rate, r) for each in rungs)
    worse = low.score(idle_rate, r) < WORSE * best and not low.is_full
    if low.limit_bytes > floor and not worse:
        return max(_step(_step(low.limit_bytes, up=False), up=False), floor)
    return None


def _step(limit: int, up: bool) -> int:
    """The next of 1, 1.5, 2, 3, 4, 6, 8 ... MB."""
    return stepped(limit * (1.45 if up else 1 / 1.45))


class Phase(Enum):
    WATCH = "watch"  # nothing of ours: does somebody else write or sync?
    IDLE = "idle"  # fsyncs alone
    FILL = "fill"  # and a flood, until R is known
    LADDER = "ladder"
    DONE = "done"


@dataclass(frozen=True)
class Budget:
    """How much time and data a calibration may use."""

    write_bytes: int
    time_s: float


@dataclass(frozen=True)
class Own:
    """What our own loads have done since they started."""

    syncs: int = 0  # as the probe began to be read
    unsure: int = 0  # that ended while it was: counted in this tick or in the next
    sync_s: float = 0.0  # that they took, and the writes before them
    written_bytes: int = 0  # by the flood, into memory
    pids: Tuple[int, ...] = ()


@dataclass(frozen=True)
class Order:
    """What to do until the next tick; limits None: the original limits."""

    flood: bool = False
    sync_wait_s: Optional[float] = None  # between two fsyncs; None: no fsyncs
    limit_bytes: Optional[int] = None
    background_bytes: Optional[int] = None


@dataclass(frozen=True)
class Result:
    """The measured values; None: unknown, and `problems` says why."""

    device: str
    seconds: float
    written_bytes: int
    idle: Rung
    # A second, of the fsyncs in the ladder without a flood: where as many as there may be would
    # take all of the media, they are spaced.
    ladder_idle_rate: float
    drain_rate: Optional[float]
    drain_rate_most: Optional[float]  # where the cache was never full: no more than that
    cache_bytes: Optional[float]
    cache_most_bytes: Optional[float]  # where none was seen: no more than that
    tau_s: Optional[float]  # below the knee the flood gets limit / tau
    rungs: Tuple[Rung, ...]  # by limit
    limit_bytes: Optional[int]  # the best
    problems: Tuple[str, ...] = ()

    def score(self, rung: Rung) -> Optional[float]:
        return None if not self.drain_rate else rung.score(self.ladder_idle_rate, self.drain_rate)
