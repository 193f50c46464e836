# SPDX-License-Identifier: GPL-2.0-or-later
"""What a device is believed to be doing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional


@dataclass(frozen=True)
class Estimate:
    """What one device is believed to be doing, as of this tick."""

    name: str
    write_rate: float
    background_rate: float  # the flusher's, of all devices on the same leaf disks
    drain_rate: Optional[float]  # sustained, once learned
    sync_rate: Optional[float]
    demand: bool
    demand_known: bool  # False: the probe cannot see fsync
    flooded: bool  # buffered writes are written back with more to come: estimate/drain.py
    held_back: bool  # writers slept for the limit: it sets their speed
    full: bool  # the write cache has no room: syncs wait for the media
    limit_share: float  # part of the global limit that is this device's
    rate: float  # bytes per second of all devices on the same leaf disks
    # Of the write cache, as it was seen to fill, and of that by what went in and what the media
    # took; both as `fill_source` says, where there is one.
    cache_bytes: Optional[float]
    fill_bytes: float
    fsync_p50_s: Optional[float]
    fsync_p99_s: Optional[float]
    fsyncs: int  # in this tick, with latency
    fsync_total_s: float  # their latencies together
    fsyncs_inflight: int
    oldest_fsync_s: float
    baseline_s: Optional[float]  # unloaded p50 of an fsync
    slow_share: Optional[float]  # of the syncs' time, that slow ones took: how full the cache is
    inflight: int
    lasting: bool = True  # a flood that keeps the device or the limit busy for longer than a burst
    fill_source: Optional[str] = None  # who reads the fill from the cache; None: estimated

    @property
    def fill_share(self) -> Optional[float]:
        """How full the write cache is; None: none known."""
        return min(1.0, self.fill_bytes / self.cache_bytes) if self.cache_bytes else None
