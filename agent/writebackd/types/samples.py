# SPDX-License-Identifier: GPL-2.0-or-later
"""What one tick read of the host."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Mapping, Optional, Tuple

from writebackd.types.histogram import Histogram
from writebackd.types.levers import Action, ForeignWrite, VmLimits
from writebackd.types.storage import Backing, Device


class IoClass(Enum):
    """What a block request was for; order and number as in bpf/writeback.h."""

    SYNC_WRITE = 0
    BACKGROUND_WRITE = 1
    READ = 2
    JOURNAL = 3
    FLUSH = 4

    # Enum's own is a Python function, which every look-up in a dict would call.
    __hash__ = object.__hash__


@dataclass(frozen=True)
class ClassSample:
    """Completions of one class on one device during one tick."""

    count: int = 0
    bytes: int = 0
    latency: Histogram = Histogram()
    queue: Optional[Histogram] = None  # wait before the device, when asked for

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

    `inflight` and `oldest_s` tell of calls that have not returned yet: a stuck
    fsync completes nothing, so completions alone would look like quiet.
    """

    fsyncs: int = 0  # whole-file syncs: fsync, O_SYNC
    fdatasyncs: int = 0  # data syncs: fdatasync, msync, O_DSYNC
    latency: Histogram = Histogram()
    inflight: int = 0
    oldest_s: float = 0.0
    syncfs_latency: Histogram = Histogram()  # its count is the histogram's total

    @property
    def count(self) -> int:
        return self.fsyncs + self.fdatasyncs

    def __add__(self, other: "SyncSample") -> "SyncSample":
        return SyncSample(
            fsyncs=self.fsyncs + other.fsyncs,
            fdatasyncs=self.fdatasyncs + other.fdatasyncs,
            latency=self.latency + other.latency,
            inflight=self.inflight + other.inflight,
            oldest_s=max(self.oldest_s, other.oldest_s),
            syncfs_latency=self.syncfs_latency + other.syncfs_latency,
        )


@dataclass(frozen=True)
class DeviceSample:
    """All that one tick saw of one device; rates follow from Sample.dt_s."""

    device: Device
    excluded: Optional[str] = None  # why policy or command line leave it alone
    write_bytes: int = 0
    read_bytes: int = 0
    writes: int = 0
    inflight: int = 0
    busy_share: float = 0.0  # share of the tick with at least one request in flight
    classes: Optional[Mapping[IoClass, ClassSample]] = None  # None: the probe cannot tell
    sync: Optional[SyncSample] = None  # None: the probe cannot tell
    others: int = 0  # discards and flushes that completed, where diskstats counts them


@dataclass(frozen=True)
class TaskSample:
    """A process that dirtied pages or slept in balance_dirty_pages."""

    pid: int
    comm: str
    cgroup_id: int
    device: Optional[str]
    dirtied_bytes: int = 0  # the kernel's own count, up to 256 KiB behind a thread
    throttled_s: float = 0.0
    cgroup: Optional[str] = None  # path below the v2 root, of the busiest few


@dataclass(frozen=True)
class CgroupControl:
    """What the files of a cgroup say; read for those that flood, or flooded lately."""

    # Lines of io.max, (devno, limits): ("8:0", "rbps=max wbps=1048576 riops=max wiops=max").
    # None: the io controller is not enabled for it, and nothing would turn it on.
    io_max: Optional[Tuple[Tuple[str, str], ...]]
    off: bool = False  # it is not enabled; systemd turns it on with the first limit
    written: Tuple[Tuple[str, int], ...] = ()  # bytes in this tick by devno (io.stat)
    delegated: bool = False  # it, or one above it, was handed to somebody else (Delegate=)
    outside: bool = False  # systemd runs the host, and this is in none of its slices


@dataclass(frozen=True)
class CgroupMemory:
    """Memory of a cgroup with a limit of its own, as the kernel's dirty limits see it."""

    path: str  # whose limits these are: the cgroup itself, or one above it
    ceiling_bytes: int  # memory.max or memory.high, the least of it and those above
    avail_bytes: int  # its page cache, and what it may still take (mdtc_calc_avail)
    dirty_bytes: int  # dirty or under writeback


@dataclass(frozen=True)
class CgroupSample:
    """What the processes of one cgroup did to one device in one tick."""

    cgroup_id: int
    path: Optional[str]  # below the v2 root, "/" for the root; None where it is not known
    device: Optional[str]
    dirtied_bytes: int = 0
    throttled_s: float = 0.0
    syncs: int = 0  # begun, of any kind
    own: bool = False  # the daemon's own cgroup
    control: Optional[CgroupControl] = None  # None: not read
    memory: Optional[CgroupMemory] = None  # None: not read, or without a limit


@dataclass(frozen=True)
class VmState:
    """The global pair with what the kernel makes of it (/proc/vmstat)."""

    limits: VmLimits
    dirty_bytes: int  # now dirty
    writeback_bytes: int  # now under writeback
    threshold_bytes: int  # the limit in force
    background_threshold_bytes: int
    # Free memory and page cache, which the limit is a share of; None: not told.  The
    # kernel takes its reserve from it, some per cent.
    dirtyable_bytes: Optional[int] = None


@dataclass(frozen=True)
class HostInfo:
    """What does not change while the daemon runs, and the law leans on."""

    page_size: int
    cpus_online: int
    memory_bytes: int


@dataclass(frozen=True)
class ProbeInfo:
    """What the probe can see, and what it misses; `status` prints it."""

    backend: str
    request_hook: Optional[str] = None
    fsync_hook: Optional[str] = None
    misses: Tuple[str, ...] = ()  # by its hooks
    lost: Tuple[str, ...] = ()  # counted so far, for want of room or of an end
    passed_over: Optional[str] = None  # why no better hooks watch fsync
    refused: Tuple[str, ...] = ()  # other hooks, with the kernel's error
    map_bytes: int = 0
    bpf_ns_per_io: Optional[float] = None


@dataclass(frozen=True)
class Sample:
    """Everything that was read in one tick, the results of the last actions included."""

    time_s: float  # CLOCK_BOOTTIME, so that a suspend shows as a long tick
    wall_s: float  # only for people
    dt_s: float
    host: HostInfo
    vm: VmState
    devices: Tuple[DeviceSample, ...]
    tasks: Tuple[TaskSample, ...] = ()
    cgroups: Tuple[CgroupSample, ...] = ()
    actions: Tuple[Action, ...] = ()
    foreign: Tuple[ForeignWrite, ...] = ()
    errors: Tuple[str, ...] = ()  # what could not be read this tick
    backings: Tuple[Backing, ...] = ()  # as of the last looks, see backing_watch.py
