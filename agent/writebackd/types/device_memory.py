# SPDX-License-Identifier: GPL-2.0-or-later
"""What estimators and law remember of one device between ticks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional, Tuple

from writebackd.types.decision import DeviceState
from writebackd.types.quantities import Positive, Time


@dataclass(frozen=True)
class Drain:
    """How a device takes its floods beside its syncs; see estimate/drain.py.

    Full: syncs wait for the media, since the write cache has no room or there is none.
    """

    rate: float = 0.0  # the flusher's, smoothed; bytes per second
    sync_rate: float = 0.0  # smoothed
    slow_share: float = 0.0  # of the syncs' time, that slow ones take, over a second
    full_s: float = 0.0  # for so long in a row full; 0 with room
    room_s: float = 0.0  # for so long in a row with room; 0 while full
    full_ticks: Tuple[float, ...] = ()  # rates of the last seconds of a full cache, by tick
    # Of the last half minute: seconds of R that were lost while full, and syncs.
    lost_s: float = 0.0
    syncs: float = 0.0
    slower_s: float = 0.0  # for so long in a row at the rate of a slower disk
    # Of the flood since its cache was last full: seconds, bytes.
    came: Optional[Tuple[float, float]] = None

    @property
    def full_rate(self) -> float:
        """Median over the last seconds of a full cache; 0 without any."""
        ordered = sorted(self.full_ticks)
        half = len(ordered) // 2
        if not ordered:
            return 0.0
        return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2

    @property
    def price_s(self) -> float:
        """Seconds of R that a sync costs."""
        return self.lost_s / max(self.syncs, 1.0)


@dataclass(frozen=True)
class LawMemory:
    """What the law remembers of one device; see control/law.py."""

    limit_bytes: Optional[float] = None  # None: not begun
    written_s: float = float("-inf")  # when it was changed
    sought_rate: float = 0.0  # under the limit before a step or a test of R; bytes per second
    # Under this limit: seconds, bytes written, seconds of commits in write(), and in all.
    tried: Tuple[float, ...] = (0.0,) * 4
    stretch: float = 1.0  # times the allowed delay, where the flood gets too little otherwise
    trusted_s: float = 50.0  # seconds of flood since R was tested; from 60 on it is


@dataclass(frozen=True)
class Fact:
    """One learned value, and when it was last learned (wall clock)."""

    value: Positive
    wall_s: Time


@dataclass(frozen=True)
class Learned:
    """What outlives a restart of one device's memory; see estimate/learned.py.

    This is the table of what is kept: every Fact has the name and the unit of
    the field of DeviceMemory that it is taken from and given back to.
    """

    drain_rate: Optional[Fact] = None
    baseline_s: Optional[Fact] = None
    write_baseline_s: Optional[Fact] = None
    cache_bytes: Optional[Fact] = None
    usual_sync_rate: Optional[Fact] = None
    most_sync_bytes: Optional[Fact] = None


@dataclass(frozen=True)
class DeviceMemory:
    """What estimators and law remember of one device between ticks."""

    identity: Tuple[str, Optional[int]] = ("", None)  # devno and diskseq
    # what was learned earlier
    known_as: Optional[str] = None  # Device.identity
    earlier: Learned = Learned()  # what it started with, from before the restart
    # estimators
    drain_rate: Optional[float] = None
    drain: Drain = field(default_factory=Drain)
    smooth_rate: float = 0.0  # bytes per second, over some seconds
    fill_bytes: float = 0.0  # what must be in the write cache
    fill_s: float = 0.0  # since that was nothing
    cache_bytes: Optional[float] = None  # its size, as it was seen to fill
    was_empty: bool = True  # since it was full
    # rate, dt, rate, dt and so on of the first flood's ticks, while R is not known
    first_ticks: Tuple[float, ...] = ()
    baseline_s: Optional[float] = None
    write_baseline_s: Optional[float] = None  # unloaded device latency of a small write
    quiet_s: float = 0.0  # time with hardly any writes but the syncs' own
    last_flood_s: float = float("-inf")
    flood_began_s: float = float("-inf")
    # dt, syncs, dt, syncs and so on of the last ticks: one value, as the ten pairs of each of 1 024
    # devices are found nowhere near each other, and that takes most of the time
    recent_syncs: Tuple[float, ...] = ()
    # when the last sync was, the longest gap between syncs lately, seconds, how many ticks with
    # syncs there were at regular intervals, and whether that is demand
    last_demand: Optional[Tuple[float, float, int, bool]] = None
    # the detector's, put here only to be kept (alerts/baseline.py): syncs and their bytes a second
    usual_sync_rate: Optional[float] = None
    most_sync_bytes: Optional[float] = None
    # law
    law: LawMemory = field(default_factory=LawMemory)
    # the last decision
    state: Optional["DeviceState"] = None
    target_bytes: Optional[int] = None
    decisions: int = 0

    @property
    def flooded_before(self) -> bool:
        return self.last_flood_s > float("-inf")
