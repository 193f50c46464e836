# SPDX-License-Identifier: GPL-2.0-or-later
"""Latencies counted in buckets, as the probe counts them."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Optional, Sequence, Tuple

# The latency histogram of bpf/writeback.h: exact below 8 units, then 8 buckets
# per octave, so a bucket is at most 12.5 % wide.  The unit is 2**10 ns because
# a shift is what the probe can afford.
HIST_BUCKETS = 192
HIST_SUB_BITS = 3
HIST_UNIT_S = 1024e-9


def bucket_lower_s(index: int) -> float:
    """Lower edge of histogram bucket `index`, in seconds."""
    if index < 1 << HIST_SUB_BITS:
        return index * HIST_UNIT_S
    octave, sub = divmod(index, 1 << HIST_SUB_BITS)
    return float(((1 << HIST_SUB_BITS) + sub) << (octave - 1)) * HIST_UNIT_S


# One more edge than buckets: the last bucket takes everything above its lower
# edge (about 64 s), and is drawn as if it had the width of its neighbours.
BUCKET_EDGES_S: Tuple[float, ...] = tuple(bucket_lower_s(i) for i in range(HIST_BUCKETS + 1))
_MIDDLES_S = tuple(
    (BUCKET_EDGES_S[i] + BUCKET_EDGES_S[i + 1]) / 2 for i in range(HIST_BUCKETS)
)


@dataclass(frozen=True, init=False)
class Histogram:
    """Latencies as sparse counts, in ascending bucket order.

    Kept as two rows: a tick reads and lets go of 5 000 with 1 024 disks, and as pairs each would
    be ten more objects all over the memory, where that takes most of the time.
    """

    __slots__ = ("counts", "indices")

    indices: Tuple[int, ...]  # of the buckets
    counts: Tuple[int, ...]  # in each of them

    def __init__(self, buckets: Sequence[Tuple[int, int]] = ()) -> None:
        """`buckets`: pairs of index and count."""
        indices, counts = zip(*buckets) if buckets else ((), ())
        object.__setattr__(self, "indices", indices)
        object.__setattr__(self, "counts", counts)

    @classmethod
    def of(cls, indices: Tuple[int, ...], counts: Tuple[int, ...]) -> "Histogram":
        """Like __init__ for buckets as they are stored, in half the time."""
        histogram = object.__new__(cls)
        object.__setattr__(histogram, "indices", indices)
        object.__setattr__(histogram, "counts", counts)
        return histogram

    @property
    def buckets(self) -> Tuple[Tuple[int, int], ...]:
        return tuple(zip(self.indices, self.counts))

    @property
    def total(self) -> int:
        return sum(self.counts)

    def quantile(self, q: float) -> Optional[float]:
        """Latency in seconds below which the share `q` lies; None when empty.

        Interpolates linearly inside the bucket, so the error is below the
        bucket's width (12.5 %).
        """
        return self._at(q, tuple(accumulate(self.counts)))

    def _at(self, q: float, below: Sequence[int]) -> Optional[float]:
        """`below`: the number of values up to the end of each bucket."""
        if not (below and below[-1]):
            return None
        rank = q * below[-1]
        place = bisect_left(below, rank)
        if place == len(below):
            return BUCKET_EDGES_S[self.indices[-1] + 1]
        index, count = self.indices[place], self.counts[place]
        low, high = BUCKET_EDGES_S[index], BUCKET_EDGES_S[index + 1]
        into = max(rank - below[place - 1] if place else rank, 0.0)
        return low + (high - low) * into / count

    def total_s(self, threshold_s: float = 0.0) -> float:
        """Total seconds of the values in buckets that start at or above `threshold_s`.

        Each value is taken as the middle of its bucket.
        """
        place = bisect_left(self.indices, bisect_left(BUCKET_EDGES_S, threshold_s))
        middles = map(_MIDDLES_S.__getitem__, self.indices[place:])
        return float(sum(map(mul, self.counts[place:], middles)))

    def summary(self) -> "Tuple[int, float, Optional[float], Optional[float]]":
        """`total`, `total_s`, p50 and p99 in seconds: needed in every tick for every device."""
        below = tuple(accumulate(self.counts))
        total = below[-1] if below else 0
        return total, self.total_s(), self._at(0.5, below), self._at(0.99, below)

    def count_above(self, threshold_s: float) -> Tuple[int, int]:
        """Number of values in buckets that start at or above `threshold_s`, and in total."""
        place = bisect_left(self.indices, bisect_left(BUCKET_EDGES_S, threshold_s))
        return sum(self.counts[place:]), sum(self.counts)

    def share_above(self, threshold_s: float) -> Optional[float]:
        """Share of the values in buckets that start at or above `threshold_s`."""
        above, total = self.count_above(threshold_s)
        return above / total if total else None

    def mean(self) -> Optional[float]:
        """Mean in seconds, each value taken as the middle of its bucket; None when empty."""
        total = self.total
        return self.total_s() / total if total else None

    def __add__(self, other: "Histogram") -> "Histogram":
        if not (self.counts and other.counts):
            return self if self.counts else other
        if self.indices[-1] < other.indices[0]:
            return Histogram.of(self.indices + other.indices, self.counts + other.counts)
        merged = dict(zip(self.indices, self.counts))
        for index, count in zip(other.indices, other.counts):
            merged[index] = merged.get(index, 0) + count
        return Histogram(sorted(merged.items()))
