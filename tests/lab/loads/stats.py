# SPDX-License-Identifier: GPL-2.0-or-later
"""From single operations to the figures of a window."""

from __future__ import annotations

import math
from typing import List, Optional, Sequence, Tuple

from .base import Measured

# Of a distribution's curve: even steps, and finer ones where the rare long waits are.
SHARES = ([n / 50 for n in range(1, 50)] + [0.99, 0.995, 0.998, 0.999, 0.9995, 0.9998, 0.9999, 1])


def percentile(ordered: Sequence[float], share: float) -> Optional[float]:
    """Nearest rank of sorted values; None of none."""
    if not ordered:
        return None
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def distribution(ordered: Sequence[float]) -> List[Tuple[float, float]]:
    """(value, share of those that are not above it), of sorted values."""
    count = len(ordered)
    ranks = sorted({max(1, math.ceil(share * count)) for share in SHARES}) if count else []
    return [(ordered[rank - 1], rank / count) for rank in ranks]


Bins = Sequence[Tuple[float, float]]  # (value, how often), by value


def quantile_of_bins(bins: Bins, share: float) -> Optional[float]:
    """The value that so much of a histogram is not above."""
    wanted = share * sum(count for _, count in bins)
    for value, count in bins:
        wanted -= count
        if wanted <= 1e-9:
            return value
    return bins[-1][0] if bins else None


def distribution_of_bins(bins: Bins) -> List[Tuple[float, float]]:
    """(value, share of those that are not above it), thinned to the shares that matter."""
    total = sum(count for _, count in bins)
    found: List[Tuple[float, float]] = []
    wanted = iter(SHARES)
    share, done = next(wanted), 0.0
    for value, count in bins:
        done += count
        if done / total >= share - 1e-12:
            found.append((value, done / total))
            share = next((each for each in wanted if each > done / total), 2)
    return found


def per_second(since: float, now: float, ends: Sequence[float]) -> List[float]:
    """How many of the times lie in each whole second."""
    series = [0.0] * int(now - since)
    for end in ends:
        second = int(end - since)
        if 0 <= second < len(series):
            series[second] += 1
    return series


def of_operations(since: float, now: float, ends: Sequence[float], latencies: Sequence[float],
                  ages: Sequence[float] = ()) -> Measured:
    """What happened between two times of one clock.

    ages: of the operations in flight.  They count among the latencies: an age is
    what its operation has taken at the least, and under a flood it may be the only one.
    """
    elapsed = now - since
    in_flight = [age for age in ages if age > 0]
    observed = sorted([*latencies, *in_flight])
    return Measured(
        elapsed=elapsed, ops=len(ends), rate=len(ends) / elapsed,
        mean=sum(observed) / len(observed) if observed else None,
        p50=percentile(observed, 0.5), p95=percentile(observed, 0.95),
        p99=percentile(observed, 0.99), max=observed[-1] if observed else None,
        inflight_age=max(in_flight, default=0.0), cdf=distribution(observed),
        series=per_second(since, now, ends))
