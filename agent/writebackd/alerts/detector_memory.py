# SPDX-License-Identifier: GPL-2.0-or-later
"""The detector's memory between ticks, by device and by alert."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping, NamedTuple, Optional, Tuple

from writebackd.alerts.alert_types import Alert, Cause
from writebackd.types.histogram import Histogram
from writebackd.types.samples import TaskSample

# Bytes of an operation, as the upper ends of size classes; what is larger is one more class.
SIZES: Tuple[int, ...] = (16 << 10, 128 << 10, 1 << 20)
# Seconds of ticks with operations before a baseline is believed.
ENOUGH_S = 15.0


def size_class(count: int, total_bytes: int) -> int:
    """The size class of `count` operations that moved `total_bytes` together."""
    mean = total_bytes / count if count else 0.0
    return sum([mean > size for size in SIZES])


@dataclass(frozen=True)
class Baseline:
    """The usual latency of one kind of operation in one size class."""

    size: int  # the class
    latency_s: float  # mean of syncs, median of requests
    learned_s: float  # seconds of ticks that it was learned from


Baselines = Mapping[int, Baseline]  # by size class


Program = Tuple[str, int]  # comm, cgroup id


@dataclass(frozen=True)
class Dirtied:
    """The bytes dirtied by processes of one name and cgroup.

    They count as one program: a loop of short copies is not many writers, and a tick does not show
    which of its processes ran at the same time.
    """

    count: int  # bytes
    task: TaskSample  # the one that did most of it in the last tick
    several: bool = False  # processes
    seconds: float = 0.0  # of ticks in which they did


class HeavyTick(NamedTuple):
    """Which processes dirtied many pages in a tick."""

    time_s: float
    dt_s: float
    tasks: Tuple[TaskSample, ...]


@dataclass(frozen=True)
class Incident:
    """A period in which something looks wrong, and the sums of its last seconds.

    Sums from the first tick on would describe the present less and less: minutes of a trickle
    without a waiting program once hid the collapse that followed.
    """

    began_s: float  # as Sample.time_s
    began_wall_s: float
    lasted_s: float = 0.0  # since it began
    good_s: float = 0.0  # the last of them in a row that looked well again
    unwanted_s: float = 0.0  # and in which no program waited
    seconds: float = 0.0  # that the sums are of
    syncs: Histogram = field(default_factory=Histogram)  # latencies of those that returned
    sync_bytes: int = 0
    oldest_s: float = 0.0  # the longest that one had waited when it was looked at
    waited_s: float = 0.0  # seconds of ticks in which a program waited for a sync
    flooded_s: float = 0.0
    loaded_s: float = 0.0  # by writes that are not the flusher's
    flood_age_s: float = float("inf")  # of the flood, when this began
    backlog_s: float = 0.0  # what waited to be written, in seconds of the rate, most of it seen
    backlog_bytes: float = 0.0
    queued_s2: float = 0.0  # the same, not its most but by the seconds that it waited
    throttled_s: float = 0.0  # the part of the seconds that commits slept in write()
    inflight: int = 0  # most seen
    writes: Histogram = field(default_factory=Histogram)  # small sync and journal writes
    written_bytes: int = 0
    ticks: Tuple[Tuple[float, int, int], ...] = ()  # (dt, operations, bytes), the newest
    dirtied: Mapping[Program, Dirtied] = field(default_factory=dict)
    before: Mapping[Program, Dirtied] = field(default_factory=dict)  # until it began
    newer: Optional[Incident] = None  # the sums to go on with when these are of too many seconds

    @property
    def sync_rate(self) -> float:
        return self.syncs.total / self.seconds if self.seconds else 0.0

    @property
    def queued_s(self) -> float:
        """The mean backlog, in seconds of the device's rate."""
        return self.queued_s2 / self.seconds if self.seconds else 0.0

    @property
    def slowest_s(self) -> float:
        """The slowest of the syncs that returned or are pending."""
        return max(self.syncs.quantile(1.0) or 0.0, self.oldest_s)

    @property
    def judged_s(self) -> float:
        """Compared with thresholds: mean of the syncs that returned, or half the age of a pending
        one. Not shown as a latency."""
        return max(self.syncs.mean() or 0.0, self.oldest_s / 2)


class BesideFlood(NamedTuple):
    """How fast small writes are in floods: a full cache soon has room for some."""

    fast_s: float = 0.0  # seconds with fast ones, less those without, of the last minute
    fast_at_s: float = float("-inf")  # the last tick with a fast one, as Sample.time_s
    slow_s: float = 0.0  # in a row without a fast one, until now
    longest_s: float = 0.0  # the longest of those that ended


@dataclass(frozen=True)
class Recovery:
    """Latencies of small writes since a write cache was reported as off."""

    count: int = 0
    bytes: int = 0
    latencies: Histogram = field(default_factory=Histogram)
    unseen_s: float = 0.0  # in a row without a small write
    fast: bool = False  # whether the last that were enough to tell were fast again


@dataclass(frozen=True)
class DeviceHealth:
    """The usual behaviour of one device, and what is wrong with it now."""

    identity: Tuple[Optional[str], ...]
    sync_rate: float = 0.0  # usual, per second, while syncs are as fast as usual
    size: int = 0  # the size class of the last syncs
    flooded_s: float = 0.0  # in a row that the rate was followed beside a flood
    most_sync_bytes: float = 0.0  # per second, the most that syncs were seen to write
    committers: Mapping[str, int] = field(default_factory=dict)  # ticks by program, see baseline
    syncs: Baselines = field(default_factory=dict)
    writes: Baselines = field(default_factory=dict)
    collapse: Optional[Incident] = None
    degraded: Optional[Incident] = None
    beside: BesideFlood = field(default_factory=BesideFlood)
    exhausted: Optional[Incident] = None
    recovery: Recovery = field(default_factory=Recovery)
    throttled_now_s: float = 0.0  # of the last tick, as SyncSample has it
    stalled_s: float = 0.0  # in a row with demand and no completion
    worked_s: float = float("-inf")  # when it last completed something, some seconds late
    mismatch_s: float = 0.0  # in a row with writes too fast for what tools say
    sizes_off: int = 0  # in a row, measured sizes of the cache that are not what a tool says
    size_seen: Optional[float] = None  # the last of them

    def usual(self, kind: Baselines, size: int) -> Optional[Baseline]:
        """The baseline of that size, or of the nearest one with enough data."""
        known = kind.get(size)
        if known is not None and (known.learned_s >= ENOUGH_S or len(kind) == 1):
            return known if known.learned_s >= ENOUGH_S else None
        candidates = [(abs(size - s), b) for s, b in kind.items() if b.learned_s >= ENOUGH_S]
        if not candidates and sum([b.learned_s for b in kind.values()]) >= ENOUGH_S:
            # Operations at the end of a class fall into two by turns.
            candidates = [(-int(b.learned_s), b) for b in kind.values()]
        return min(candidates, key=lambda candidate: candidate[0])[1] if candidates else None


@dataclass(frozen=True)
class ActiveAlert:
    """An active alert, and how close it is to its end."""

    alert: Alert
    raised_s: float  # as Sample.time_s
    good_s: float = 0.0  # in a row
    other: Optional[Cause] = None  # what it looks like now
    other_s: float = 0.0  # for so long in a row


Key = Tuple[str, Optional[str]]  # name of the alert, device


@dataclass(frozen=True)
class AlertMemory:
    """The whole state of the detector."""

    sighted: bool = True  # the probe is expected to see syncs
    ticks: int = 0
    begun_s: Optional[float] = None  # the first tick, as Sample.time_s
    quiet_until_s: float = float("-inf")
    dt_s: float = 0.0  # of the tick before
    blind_s: float = 0.0  # in a row
    heavy: Tuple[HeavyTick, ...] = ()  # the last BEFORE_S, oldest first
    health: Mapping[str, DeviceHealth] = field(default_factory=dict)
    standing: Mapping[Key, ActiveAlert] = field(default_factory=dict)
