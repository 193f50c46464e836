# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether flushes are what syncs wait for: a write cache without a battery.

Beside a flood each flush then writes what came since the one before, and other writes wait for
that.  So writes are slow at any rate, which is no sign of a full cache, and a rate under a limit
of ours is no sign of what the media take.
"""

from __future__ import annotations

from typing import Optional, Tuple

from writebackd.model import DeviceMemory, DeviceSample

# A flush that takes so long beside a flood empties a cache, one that keeps its contents answers in
# 0.1 to 0.3 ms; and this part of a sync, which needs one or two (0.16 to 0.4 were seen).
FLUSH_LEAST_S, FLUSH_SHARE = 1e-3, 0.05
# Until they are less than so much of that part: what was measured is worth nothing once they are
# not.  A flush of less than 1 ms is quick, whatever it was: a disk that swings is better off so.
FLUSH_STILL = 0.5
FLUSH_HALF_S = 3.0  # how long they count


def count_flushes(
    sample: DeviceSample, memory: DeviceMemory, sync_s: Optional[float], dt_s: float
) -> Optional[Tuple[float, float, bool]]:
    """DeviceMemory.flushed: what flushes and syncs take; of ticks of a flood, kept until the next.

    `sync_s` is the mean of the tick's syncs, None where none returned.

    Each tick counts by its length, not by its flushes: in a pause there are 20 times as many.  Once
    there were some a tick without is one of quick ones: with `write through` in queue/write_cache,
    or with the battery back, none is sent any more.
    """
    if sync_s is None or not (sample.flushes or memory.flushed):
        return memory.flushed
    means = sample.flush_s / max(sample.flushes, 1), sync_s
    if memory.flushed is not None:
        kept = 0.5 ** (dt_s / FLUSH_HALF_S)
        means = (
            kept * memory.flushed[0] + (1 - kept) * means[0],
            kept * memory.flushed[1] + (1 - kept) * means[1],
        )
    share = FLUSH_SHARE * (FLUSH_STILL if flushes_wait(memory) else 1.0)
    waits = means[0] >= max(FLUSH_LEAST_S, share * means[1])
    return (*means, waits)


def flushes_wait(memory: DeviceMemory) -> bool:
    """Whether flushes are much of what a sync waits for: a write cache that each one empties."""
    return memory.flushed is not None and memory.flushed[2]
