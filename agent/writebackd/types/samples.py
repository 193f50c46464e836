# SPDX-License-Identifier: GPL-2.0-or-later
"""Samples: what one tick read from the kernel."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Mapping, Optional, Tuple

from writebackd.types.histogram import Histogram
from writebackd.types.levers import Action, ForeignWrite, VmLimits
from writebackd.types.storage import Backing, Device


class IoClass(Enum):
    """The purpose of a block request; order and numbers as in bpf/writeback.h."""

    SYNC_WRITE = 0
    BACKGROUND_WRITE = 1
    READ = 2
    JOURNAL = 3
    FLUSH = 4

    # Enum's own hash is a Python function, slow for a dict key.
    __hash__ = object.__hash__


@dataclass(frozen=True)
class ClassSample:
    """Completions of one class on one device during one tick."""

    count: int = 0
    bytes: int = 0
    latency: Histogram = Histogram()
    queue: Optional[Histogram] = None  # wait in the block queue, if the policy measures it

    def __add__(self, other: "ClassSample") -> "ClassSample":
        queue = None
        if self.queue is not None or other.queue is not None:
            queue = (self.queue or Histogram()) + (other.queue or Histogram())
        return ClassSample(
            self.count + other.count,
            self.bytes + other.bytes,
            self.latency + other.latency,
            queue,
        )


@dataclass(frozen=True)
class SyncSample:
    """fsync, fdatasync, msync and O_(D)SYNC writes of one device in one tick.

    `inflight` and `oldest_s` are of calls that have not returned yet: judging by completions
    alone, a blocked fsync would look like an idle device.

    A commit is a sync and what its caller slept in balance_dirty_pages() since the sync before: its
    own thread, and threads of its process that never sync themselves.
    """

    fsyncs: int = 0  # whole-file syncs: fsync, O_SYNC
    fdatasyncs: int = 0  # data syncs: fdatasync, msync, O_DSYNC
    latency: Histogram = Histogram()
    inflight: int = 0
    oldest_s: float = 0.0
    syncfs_latency: Histogram = Histogram()  # its count is the histogram's total
    commits: Optional[Histogram] = None  # None: the sleep is not visible on this kernel
    throttled_s: float = 0.0  # the sleep in `commits`, together
    throttled_now_s: float = 0.0  # the longest sleep that no sync has followed yet

    @property
    def count(self) -> int:
        return self.fsyncs + self.fdatasyncs

    @property
    def commit_latency(self) -> Histogram:
        """Commits, or the syncs alone where the sleep is not visible."""
        return self.latency if self.commits is None else self.commits

    @property
    def oldest_commit_s(self) -> float:
        """The longest wait of a commit that has not ended."""
        return max(self.oldest_s, self.throttled_now_s)

    def __add__(self, other: "SyncSample") -> "SyncSample":
        return SyncSample(
            fsyncs=self.fsyncs + other.fsyncs,
            fdatasyncs=self.fdatasyncs + other.fdatasyncs,
            latency=self.latency + other.latency,
            inflight=self.inflight + other.inflight,
            oldest_s=max(self.oldest_s, other.oldest_s),
            syncfs_latency=self.syncfs_latency + other.syncfs_latency,
            commits=(
                None if self.commits is None and other.commits is None
                else self.commit_latency + other.commit_latency
            ),
            throttled_s=self.throttled_s + other.throttled_s,
            throttled_now_s=max(self.throttled_now_s, other.throttled_now_s),
        )


@dataclass(frozen=True)
class DeviceSample:
    """One device in one tick; divide by Sample.dt_s for rates."""

    device: Device
    excluded: Optional[str] = None  # why policy or command line exclude it
    write_bytes: int = 0
    read_bytes: int = 0
    writes: int = 0
    inflight: int = 0
    busy_share: float = 0.0  # share of the tick with at least one request in flight
    classes: Optional[Mapping[IoClass, ClassSample]] = None  # None: the probe cannot tell
    sync: Optional[SyncSample] = None  # None: the probe cannot tell
    others: int = 0  # completed discards and flushes, if diskstats counts them
    strict_bytes: Optional[int] = None  # the limit of its BDI, whoever set it; None: the global one


@dataclass(frozen=True)
class TaskSample:
    """A process that dirtied pages or slept in balance_dirty_pages."""

    pid: int
    comm: str
    cgroup_id: int
    device: Optional[str]
    dirtied_bytes: int = 0  # the kernel's own count, up to 256 KiB behind a thread
    throttled_s: float = 0.0
    cgroup: Optional[str] = None  # path below the v2 root; only for the busiest few
    synced: bool = False  # it began a file sync in this tick


SERVICES = "/system.slice/"  # where systemd puts services by default


@dataclass(frozen=True)
class CgroupControl:
    """Control files of a cgroup; read only for those that flood or flooded recently."""

    # Lines of io.max, (devno, limits): ("8:0", "rbps=max wbps=1048576 riops=max wiops=max").
    # None: its io controller is off, and nothing would enable it.
    io_max: Optional[Tuple[Tuple[str, str], ...]]
    off: bool = False  # its io controller is off; systemd enables it with the first limit
    written: Tuple[Tuple[str, int], ...] = ()  # bytes in this tick by devno (io.stat)
    delegated: bool = False  # it or a parent has Delegate=
    outside: bool = False  # the host has systemd, but this is in none of its slices
    # Units that its own, if in SERVICES, is ordered before or after, or depends on; None: unknown.
    related: Optional[Tuple[str, ...]] = None


@dataclass(frozen=True)
class CgroupMemory:
    """Memory of a cgroup with a memory limit, as the kernel's dirty limits see it."""

    path: str  # the cgroup with the limit: this one or a parent
    ceiling_bytes: int  # the smallest memory.max or memory.high of it and its parents
    avail_bytes: int  # its page cache plus what it may still allocate (mdtc_calc_avail)
    dirty_bytes: int  # dirty or under writeback


@dataclass(frozen=True)
class CgroupSample:
    """Writes and syncs by the processes of one cgroup on one device in one tick."""

    cgroup_id: int
    path: Optional[str]  # below the v2 root, "/" for the root; None: unknown
    device: Optional[str]
    dirtied_bytes: int = 0
    throttled_s: float = 0.0
    syncs: int = 0  # begun, of any kind
    own: bool = False  # the daemon's own cgroup
    control: Optional[CgroupControl] = None  # None: not read
    memory: Optional[CgroupMemory] = None  # None: not read, or without a limit


@dataclass(frozen=True)
class VmState:
    """The global limits, and the kernel's counters and thresholds (/proc/vmstat)."""

    limits: VmLimits
    dirty_bytes: int  # now dirty
    writeback_bytes: int  # now under writeback
    threshold_bytes: int  # the limit in force
    background_threshold_bytes: int
    # Free memory plus page cache; None: unknown.  A ratio is a share of this less the kernel's
    # reserve of some percent, which no counter shows.
    dirtyable_bytes: Optional[int] = None


@dataclass(frozen=True)
class HostInfo:
    """Facts about the host that do not change while the daemon runs."""

    page_size: int
    cpus_online: int
    memory_bytes: int


@dataclass(frozen=True)
class ProbeInfo:
    """What the probe sees and misses; shown by `status`."""

    backend: str
    request_hook: Optional[str] = None
    fsync_hook: Optional[str] = None
    misses: Tuple[str, ...] = ()  # what no hook sees
    lost: Tuple[str, ...] = ()  # events lost so far: a full map, or an unseen end
    passed_over: Optional[str] = None  # why no better fsync hooks are used
    refused: Tuple[str, ...] = ()  # other refused hooks, with the kernel's error
    map_bytes: int = 0
    bpf_ns_per_io: Optional[float] = None


@dataclass(frozen=True)
class Sample:
    """Everything read in one tick, including the results of the last actions."""

    time_s: float  # CLOCK_BOOTTIME, so that a suspend shows as a long tick
    wall_s: float  # wall clock, for display only
    dt_s: float
    host: HostInfo
    vm: VmState
    devices: Tuple[DeviceSample, ...]
    tasks: Tuple[TaskSample, ...] = ()
    cgroups: Tuple[CgroupSample, ...] = ()
    actions: Tuple[Action, ...] = ()
    foreign: Tuple[ForeignWrite, ...] = ()
    errors: Tuple[str, ...] = ()  # what could not be read in this tick
    backings: Tuple[Backing, ...] = ()  # the last readings, see backing_watch.py
