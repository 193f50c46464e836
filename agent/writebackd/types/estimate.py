# SPDX-License-Identifier: GPL-2.0-or-later
"""The estimated state of a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional


@dataclass(frozen=True)
class Estimate:
    """The estimated state of one device in this tick."""

    name: str
    write_rate: float
    background_rate: float  # the flusher's, of all devices on the same leaf disks
    drain_rate: Optional[float]  # sustained by the media; None: not yet measured
    sync_rate: Optional[float]
    demand: bool
    demand_known: bool  # False: fsync is not visible
    flooded: bool  # writeback of buffered writes, with more waiting: estimate/drain.py
    held_back: bool  # the limit throttles writers: it sets their speed
    full: bool  # the write cache has no room: syncs wait for the media
    limit_share: float  # part of the global limit that is this device's
    rate: float  # bytes per second of all devices on the same leaf disks
    # Size and fill of the write cache: estimated from bytes written above the drain rate, or as
    # `fill_source` reports.
    cache_bytes: Optional[float]
    fill_bytes: float
    fsync_p50_s: Optional[float]
    fsync_p99_s: Optional[float]
    fsyncs: int  # in this tick, with latency
    fsync_total_s: float  # their latencies together
    fsyncs_inflight: int
    oldest_fsync_s: float
    baseline_s: Optional[float]  # unloaded p50 of an fsync
    slow_share: Optional[float]  # share of sync time in slow syncs: high if the cache is full
    inflight: int
    lasting: bool = True  # flooded for longer than a burst, or above R
    # Commits: a sync and what its caller slept in write() before it.  Where that sleep is not
    # visible these are the times of the syncs alone, and the share is None.
    commit_total_s: float = 0.0  # their times together
    commit_p50_s: Optional[float] = None
    commit_p99_s: Optional[float] = None
    commit_write_share: Optional[float] = None  # share of the commits' time slept in write()
    oldest_commit_s: float = 0.0  # the longest wait of a commit that has not ended
    fill_source: Optional[str] = None  # the source of cache size and fill; None: estimated

    @property
    def fill_share(self) -> Optional[float]:
        """How full the write cache is, 0 to 1; None if its size is unknown."""
        return min(1.0, self.fill_bytes / self.cache_bytes) if self.cache_bytes else None
