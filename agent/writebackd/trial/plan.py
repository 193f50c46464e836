# SPDX-License-Identifier: GPL-2.0-or-later
"""The plan of a trial: order and length of its blocks."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Optional

from writebackd import formats

AGENT, ORIGINAL = "a", "o"
# Of a block, and 5 s at least: the limit ramps, and what the block before left in memory and in
# the write cache drains. With the default ceiling that is 1 s of the disk's work, and 2 s for
# a cache of 512 MB at 250 MB/s.
SETTLE_SHARE, SETTLE_LEAST_S = 1 / 3, 5.0
# Both parts of a block need a handful of ticks.
LEAST_BLOCK_S, MOST_BLOCK_S = 10.0, 3600.0
# As many letters as a request to the daemon has room for.
MOST_BLOCKS = 2000
# Below this the interval is so wide that it says nothing: t is 4.3 with 3 pairs, 3.2 with 4.
LEAST_PAIRS = 4
# The daemon ends a trial whose client has sent no request for so long.
LEASE_S = 5.0


@dataclass(frozen=True)
class Plan:
    """What a client asks of the daemon."""

    device: str
    arms: str  # a letter a block
    block_s: float
    settle_s: float  # of each block, left out of what is compared
    ceiling_s: float  # the limits as found are cut to what the disk drains in this time
    stop_s: Optional[float]  # a commit that takes longer ends it; None: see trial_run.py

    @property
    def duration_s(self) -> float:
        return len(self.arms) * self.block_s


def order(duration_s: float, block_s: float, seed: int) -> str:
    """The arms of all blocks: each pair has both, in random order.

    Pairs, because a host's load drifts; random order, because it may be periodic.
    Raises ValueError that names a valid value.
    """
    if not LEAST_BLOCK_S <= block_s <= MOST_BLOCK_S:
        least, most = formats.duration(LEAST_BLOCK_S), formats.duration(MOST_BLOCK_S)
        raise ValueError(f"a block takes {least} to {most}")
    pairs = math.floor(duration_s / (2 * block_s) + 1e-9)
    if pairs < 1:
        needed = formats.duration(2 * block_s)
        raise ValueError(f"a pair of blocks takes {needed}: choose a longer duration")
    if 2 * pairs > MOST_BLOCKS:
        raise ValueError(f"more than {MOST_BLOCKS} blocks: choose longer ones")
    # Not for secrets: for the same order from the same seed.
    chance = random.Random(seed)
    return "".join(chance.choice((AGENT + ORIGINAL, ORIGINAL + AGENT)) for _ in range(pairs))


def settle_s(block_s: float) -> float:
    """How much of the beginning of a block is ignored."""
    return max(SETTLE_LEAST_S, SETTLE_SHARE * block_s)
