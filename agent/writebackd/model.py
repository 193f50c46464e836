# SPDX-License-Identifier: GPL-2.0-or-later
"""The values that flow through one tick, and nothing else.

    Sample -> Estimate -> Decision -> Action

Everything here is frozen: a decision can be explained, stored and recomputed
only if nobody changes what it was based on.  Units are in the names: `_s`
seconds, `_bytes` bytes, `_rate` bytes or operations per second, `_share` a
fraction of one.  `None` means "not known", never zero.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from enum import Enum
from itertools import accumulate
from typing import TYPE_CHECKING, Mapping, Optional, Sequence, Tuple, TypeVar

if TYPE_CHECKING:  # a checker knows the names and types of the fields of these only
    from dataclasses import replace as replace

    _Kind = TypeVar("_Kind")

    def made(kind: _Kind) -> _Kind: ...
else:
    def replace(value, /, **changes):
        """dataclasses.replace() in a tenth of its time, for the classes below.

        They keep nothing but fields and check nothing when made; a wrong name
        is mypy's to find.  1 024 devices take 10 000 copies a tick, and __init__
        of a frozen class with thirty fields 4 us.
        """
        copied = _new(type(value))
        _set(copied, "__dict__", value.__dict__ | changes)
        return copied

    def made(kind):
        """What makes a `kind` in a third of its time: by keyword, with every field named."""

        def make(**fields):
            value = _new(kind)
            _set(value, "__dict__", fields)
            return value

        return make

    _new, _set = object.__new__, object.__setattr__


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
        """As it is kept, in half of the time."""
        histogram = object.__new__(cls)
        object.__setattr__(histogram, "indices", indices)
        object.__setattr__(histogram, "counts", counts)
        return histogram

    @property
    def buckets(self) -> Tuple[Tuple[int, int], ...]:
        """Pairs of index and count."""
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
        """`below`: how many values are up to the end of each bucket."""
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

    def total_s(self) -> float:
        """All values together in seconds, each in the middle of its bucket."""
        total_s = 0.0
        for index, count in zip(self.indices, self.counts):
            total_s += count * _MIDDLES_S[index]
        return total_s

    def told(self) -> "Tuple[int, float, Optional[float], Optional[float]]":
        """`total`, `total_s`, p50 and p99 in seconds: what every tick asks of every device."""
        below = tuple(accumulate(self.counts))
        total = below[-1] if below else 0
        return total, self.total_s(), self._at(0.5, below), self._at(0.99, below)

    def count_above(self, threshold_s: float) -> Tuple[int, int]:
        """How many values are in buckets that start at or above `threshold_s`; and in all."""
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
class Device:
    """A filesystem's BDI (or a bare disk) and the leaf disks listed below it."""

    name: str  # kernel name: sda, dm-0, md0, nvme0n1, loop3, btrfs-1
    devno: str  # "major:minor" of the BDI; "btrfs-1" where the kernel gives none
    bdi: str  # directory name under /sys/class/bdi
    leaves: Tuple[str, ...] = ()  # kernel names of the disks at the bottom
    leaf_devnos: Tuple[str, ...] = ()
    filesystems: Tuple[Tuple[str, str, str], ...] = ()  # (st_dev "maj:min", type, mount point)
    rotational: Optional[bool] = None
    write_cache: Optional[str] = None  # queue/write_cache of the leaves
    driver: Optional[str] = None
    diskseq: Optional[int] = None  # of the first leaf: changes when the disk is another one
    # The same after a restart and in another slot; None: nothing tells it apart.
    identity: Optional[str] = None


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
    flushes: int = 0  # of the leaf disks, and how long they took together
    flush_s: float = 0.0


class CacheMode(Enum):
    """What a write cache does with a write; the word is the one that status shows."""

    WRITE_BACK = "write-back"
    WRITE_THROUGH = "write-through"
    ALWAYS_WRITE_BACK = "always-write-back"  # also without a battery that would save it


class Protection(Enum):
    """What would keep a write cache over a power failure: a battery, or a capacitor."""

    OK = "ok"
    CHARGING = "charging"
    LEARNING = "learning"  # empties and fills itself to find out what it still holds
    FAILED = "failed"
    ABSENT = "absent"


@dataclass(frozen=True)
class ArrayWork:
    """What an array does to its disks beside the host's IO."""

    kind: str  # rebuild, check, patrol, initialisation, migration
    share: Optional[float] = None  # of it that is done
    rate: Optional[float] = None  # bytes per second, of each disk


@dataclass(frozen=True)
class Backing:
    """What a tool or the kernel says of that which stands behind one device."""

    device: str  # name of the Device
    source: str  # who says so: storcli, ssacli, md, bcache ...
    wall_s: float  # when it was asked
    capacity_bytes: Optional[int] = None  # of the write cache, as far as writes may use it
    mode: Optional[CacheMode] = None
    protection: Optional[Protection] = None
    dirty_bytes: Optional[int] = None  # in the write cache
    learn_s: Optional[float] = None  # wall clock: when the battery learns next
    works: Tuple[ArrayWork, ...] = ()


@dataclass(frozen=True)
class TaskSample:
    """A process that dirtied pages or slept in balance_dirty_pages."""

    pid: int
    comm: str
    cgroup_id: int
    device: Optional[str]
    dirtied_bytes: int = 0  # the kernel's own count, up to 256 KiB behind a thread
    throttled_s: float = 0.0
    throttled: int = 0
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
class VmLimits:
    """The four files of the global pair; in each pair the form not in use is 0."""

    dirty_bytes: int
    dirty_ratio: int
    dirty_background_bytes: int
    dirty_background_ratio: int


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
class ForeignWrite:
    """Somebody else changed a lever; the writer's fields are None when unknown.

    `lever` is a file of the global pair, or kind, target and name as in Setting.
    """

    lever: str
    value: str
    pid: Optional[int] = None
    comm: Optional[str] = None
    cgroup_id: Optional[int] = None
    cgroup: Optional[str] = None  # path below the v2 root; None: gone by now
    cmdline: Optional[str] = None  # its start; for root, as only root writes levers

    @property
    def who(self) -> str:
        """The writer in words, which everybody may read: without its command line."""
        if self.pid is None:
            return "an unknown process"
        return f"{self.comm} (pid {self.pid}, cgroup {self.cgroup or 'gone'})"

    @property
    def is_limit(self) -> bool:
        """Whether it was the global pair; any other lever is let go alone, at once."""
        return self.lever in VmLimits.__dataclass_fields__


@dataclass(frozen=True)
class Intrusion:
    """A lever that was let go because somebody else set it; until `enforce`."""

    write: ForeignWrite
    wall_s: float


@dataclass(frozen=True)
class HostInfo:
    """What does not change while the daemon runs, and the law leans on."""

    page_size: int
    cpus_online: int
    cpus_possible: int
    memory_bytes: int


@dataclass(frozen=True)
class ProbeInfo:
    """What the probe can see, and what it misses; `status` prints it."""

    backend: str
    request_hook: Optional[str] = None
    fsync_hook: Optional[str] = None
    misses: Tuple[str, ...] = ()  # by its hooks
    lost: Tuple[str, ...] = ()  # counted so far, for want of room or of an end
    map_bytes: int = 0
    bpf_ns_per_io: Optional[float] = None


@dataclass(frozen=True)
class Action:
    """One write to a kernel file and what came of it."""

    lever: str
    old: str
    new: str
    ok: bool
    error: Optional[str] = None


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
    backings: Tuple[Backing, ...] = ()  # as of the last look, once a minute


class State(Enum):
    """What the agent is doing about a device."""

    IDLE = "idle"
    GUARD = "guard"
    SQUEEZE = "squeeze"
    PROBE = "probe"
    PACE = "pace"
    EXHAUSTED = "exhausted"
    BLIND = "blind"
    YIELDED = "yielded"
    PINNED = "pinned"
    EXCLUDED = "excluded"


class Mode(Enum):
    ENFORCE = "enforce"
    OBSERVE = "observe"


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
    cache_bytes: Optional[float]  # of the write cache, as it was seen to fill
    fill_bytes: float  # of it, by what went in and what the media took
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


class LeverKind(Enum):
    """The levers beside the global pair; see Setting for what a target is."""

    FLUSH = "flush"
    BDI = "bdi"
    QUEUE = "queue"
    PACE = "pace"


@dataclass(frozen=True)
class Setting:
    """A lever beside the global pair, and the value that it shall have.

    kind   target                        name                          value
    flush  "vm"                          dirty_writeback_centisecs     1/100 s
    bdi    name under /sys/class/bdi     max_bytes, min_bytes,         bytes; 0 or 1
                                         strict_limit
    queue  kernel name of a disk         nr_requests, max_sectors_kb   requests; KiB
    pace   cgroup path below the root    devno of a disk "8:0"         bytes per second
           ("/system.slice/x.service")                                 (io.max wbps)
    """

    kind: LeverKind
    target: str
    name: str
    value: int


@dataclass(frozen=True)
class HeldLever:
    """A lever beside the global pair that holds a value of ours; all in the units of Setting."""

    kind: LeverKind
    target: str
    name: str
    value: Optional[int]  # what was written last; None: no limit
    original: Optional[int]  # what it goes back to; None: no limit


class Rule(Enum):
    """The branch of the law that decided; control/reasons.py has each in words."""

    AS_FOUND = "as-found"  # nobody syncs, no flood
    RELAXED = "relaxed"  # nobody syncs: what the device drains in bounded time
    BLIND = "blind"  # fsync cannot be seen
    REST = "rest"  # somebody syncs, no flood
    WAVES = "waves"  # floods are short: memory takes what the pauses drain
    COMING = "coming"  # the limit in force is not the one asked for yet
    OBSERVING = "observing"  # nor will it be: nothing is set in observe mode
    LOOSE = "loose"  # the limit holds nobody back
    SEEK = "seek"  # R is not known, a larger limit may bring more
    MEASURE = "measure"  # R is not known, and the cache is full: its rate is R
    CUT = "cut"  # full, and syncs cost less than they may: smaller
    SHORT = "short"  # full, and the flood has less than it keeps: larger
    DEAR = "dear"  # syncs cost more than they may: larger
    STEADY = "steady"  # full, and the limit is right
    ROOM = "room"  # the cache has room: what lets in a little less than R
    FLOOR = "floor"  # smaller is not allowed
    OTHER = "other"  # not the law: hands off, pinned, excluded, a trial


@dataclass(frozen=True)
class Basis:
    """What the law reckoned with while somebody syncs on a device."""

    objective_s: float  # p99 of an fsync
    # within which the limit is searched
    floor_bytes: int = 0
    ceiling_bytes: int = 1 << 62
    spent: float = 0.0  # share of R that the syncs cost
    may_spend: float = 0.0  # the same, that they may cost


@dataclass(frozen=True)
class DeviceDecision:
    """What the law wants for one device and why, in plain words.

    The whole chain of reasoning is put together by control/explain.py when somebody asks.
    """

    name: str
    state: State
    target_bytes: Optional[int]  # None: the limits as found
    reason: str
    decision_id: str
    steps: Tuple[str, ...] = ()  # what was concluded, one sentence each
    basis: Optional[Basis] = None
    rule: Rule = Rule.OTHER


@dataclass(frozen=True)
class Decision:
    """What the global pair shall be; None means the originals."""

    limit_bytes: Optional[int]
    background_bytes: Optional[int]
    goal_bytes: Optional[int]  # where the ramp is heading
    reason: str
    devices: Tuple[DeviceDecision, ...] = ()
    # Levers beside the global pair; one that is not named goes back to its original.
    settings: Tuple[Setting, ...] = ()
    hurry: bool = False  # somebody waits behind a flood: look again sooner
    decision_id: Optional[str] = None  # of the device whose need is the goal; None: of none


@dataclass(frozen=True)
class Drain:
    """How a device takes its floods beside its syncs; see estimate/drain.py.

    Full: syncs wait for the media, since the write cache has no room or there is none.
    """

    rate: float = 0.0  # the flusher's, smoothed; bytes per second
    sync_rate: float = 0.0  # smoothed
    slow_share: float = 0.0  # of the syncs' time, that slow ones take, over a second
    full_s: float = 0.0  # for so long in a row full, or, negative, not
    # Rates and limits of the last seconds of a full cache under the limit asked for, by tick.
    full_ticks: Tuple[Tuple[float, float], ...] = ()
    limit_bytes: float = 0.0  # as the kernel follows it
    enough_bytes: float = float("inf")  # a limit under which R was seen
    # Of the last half minute: seconds of R that were lost while full, and syncs.
    lost_s: float = 0.0
    syncs: float = 0.0
    fell_s: float = 0.0  # in a row, with a slower disk's rate; negative: with a faster one's
    fastest_s: float = float("inf")  # lowest median of an fsync, where nothing tells the unloaded

    @property
    def full_rate(self) -> float:
        """Median over the last seconds of a full cache; 0 without any."""
        ordered = sorted([rate for rate, _ in self.full_ticks])
        half = len(ordered) // 2
        if not ordered:
            return 0.0
        return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2

    @property
    def price_s(self) -> float:
        """Seconds of R that a sync costs."""
        return self.lost_s / max(self.syncs, 1.0)


@dataclass(frozen=True)
class Law:
    """What the law remembers of one device; see control/law.py."""

    limit_bytes: Optional[float] = None  # None: not begun
    written_s: float = float("-inf")  # when it was changed
    sought_rate: float = 0.0  # the most under the limits tried while R is not known
    extra: float = 0.0  # of R, spent beyond for the objective; negative: it did not help
    # Lengths, seconds: of the flood that is on, of the one before, of the pause that is on, and of
    # pauses in the mean.
    flood_s: float = 0.0
    lasted_s: float = 0.0
    quiet_s: float = 0.0
    pause_s: float = 0.0


@dataclass(frozen=True)
class Fact:
    """One learned value, and when it was last learned (wall clock)."""

    value: float
    wall_s: float


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
    """What estimators and law remember of one device between ticks.

    29 fields at most: with more its instances share no keys in CPython (SHARED_KEYS_MAX_SIZE in
    dictobject.c), and each of a tick's copies takes 1.5 KB in the place of 300 bytes.
    """

    identity: Tuple[str, Optional[int]] = ("", None)  # devno and diskseq
    # what was learned earlier
    known_as: Optional[str] = None  # Device.identity
    earlier: Learned = Learned()  # what it started with, from before the restart
    # estimators
    drain_rate: Optional[float] = None
    drain: Drain = field(default_factory=Drain)
    smooth_rate: float = 0.0  # bytes per second, over some seconds
    fill_bytes: float = 0.0  # what must be in the write cache
    cache_bytes: Optional[float] = None  # its size, as it was seen to fill
    baseline_s: Optional[float] = None
    write_baseline_s: Optional[float] = None  # unloaded device latency of a small write
    quiet_s: float = 0.0  # time with hardly any writes but the syncs' own
    last_flood_s: float = float("-inf")
    flood_began_s: float = float("-inf")
    # dt, syncs, dt, syncs and so on of the last ticks: one value, as the ten pairs of each of 1 024
    # devices are found nowhere near each other, and that takes most of the time
    recent_syncs: Tuple[float, ...] = ()
    # when the last sync of demand was, the longest gap after which it came back lately, seconds,
    # and whether it is held since or over
    last_demand: Optional[Tuple[float, float, bool]] = None
    # the detector's, put here only to be kept (alert/baseline.py): syncs and their bytes a second
    usual_sync_rate: Optional[float] = None
    most_sync_bytes: Optional[float] = None
    # law
    law: Law = field(default_factory=Law)
    # the last decision
    state: Optional["State"] = None
    target_bytes: Optional[int] = None
    decisions: int = 0

    @property
    def flooded_before(self) -> bool:
        """Whether it ever was."""
        return self.last_flood_s > float("-inf")


@dataclass(frozen=True)
class Cap:
    """A limit of one device's own; see control/beside.py."""

    bytes: int
    in_force: bool = False  # the kernel has taken it
    standing: bool = False  # by the policy's own ceiling for the device, whoever syncs


@dataclass(frozen=True)
class Lift:
    """The global limit raised for small cgroups; see control/lift.py."""

    limit_bytes: Optional[int] = None  # the raised one; None: not raised
    seen_s: Mapping[str, float] = field(default_factory=dict)  # by path: when each last wrote
    others: bool = False  # others flood as well
    others_s: float = float("-inf")  # when they were last seen to


@dataclass(frozen=True)
class PaceMemory:
    """What is remembered of pacing on one disk; see control/pace.py."""

    rate: Optional[float] = None  # of all paced cgroups together; None: nobody is paced
    rates: Mapping[str, int] = field(default_factory=dict)  # by path: what was asked for
    names: Tuple[str, ...] = ()  # the devices that share the disk
    step_s: float = float("-inf")  # when the rate was last moved
    in_force_s: Optional[float] = None  # since when the kernel shows all of them
    unset_s: float = 0.0  # in a row, that it does not
    used: Mapping[str, float] = field(default_factory=dict)  # by path: written, smoothed
    background_rate: float = 0.0  # bytes per second of the flusher, smoothed
    wrote_s: float = float("-inf")  # when one of them last wrote
    stray_s: float = 0.0  # in a row, with a flood of others that cannot be paced
    # Latencies of fsync in a flood, under the limit alone and in force: how long and until when.
    alone: Histogram = Histogram()
    alone_for_s: float = 0.0
    alone_s: float = float("-inf")
    # And in the window under pace that runs now: since when.
    under: Histogram = Histogram()
    under_s: float = float("-inf")
    barred_until_s: float = float("-inf")
    barred_why: str = ""


@dataclass(frozen=True)
class Trial:
    """The block of a trial that is on; see trial/course.py."""

    device: str
    block: int  # from 1
    blocks: int
    original: bool  # whose limits: those as found, or the agent's
    # What the limits as found are cut to, so that the disk drains them soon; None: as found.
    limit_bytes: Optional[int]
    background_bytes: Optional[int]
    ends_s: float  # of the block; as Sample.time_s
    returns_to: Mode  # after the trial


@dataclass(frozen=True)
class Stuck:
    """What is dirty and does not drain; see estimate/stuck.py."""

    bytes: int = 0
    hang: Tuple[str, ...] = ()  # the devices that completed nothing
    since_s: float = float("-inf")
    idle_s: float = 0.0  # in a row, that they had nothing under way
    # While it is being found out: who may be it, the most that was dirty or under writeback, for
    # how long it has not fallen from that, what all others wrote back meanwhile, and whether it
    # was above the goal, or others slept for the limit, all the time.
    suspects: Tuple[str, ...] = ()
    left_bytes: Optional[int] = None
    lasted_s: float = 0.0
    written: int = 0
    above: bool = False
    starved: bool = False


@dataclass(frozen=True)
class Memory:
    """All state of the pure core; same policy, memory and sample: same decision."""

    devices: Mapping[str, DeviceMemory] = field(default_factory=dict)
    limit_bytes: Optional[int] = None  # what the last decision set
    goal_bytes: Optional[int] = None  # where it was heading, but for what is stuck
    background_bytes: Optional[int] = None
    caps: Mapping[str, Cap] = field(default_factory=dict)  # by device
    refused_caps: Mapping[str, float] = field(default_factory=dict)  # by BDI: when
    hurry: bool = False  # what the last decision said
    last_raise_s: float = float("-inf")
    hold_until_s: float = float("-inf")  # limits adopted from an earlier run stay so long
    pin_bytes: Optional[int] = None
    mode: Mode = Mode.ENFORCE
    paces: Mapping[str, PaceMemory] = field(default_factory=dict)  # by devno of the disk
    # Cgroup id -> its path, and when it last synced: nobody who syncs is ever paced.
    syncers: Mapping[int, Tuple[Optional[str], float]] = field(default_factory=dict)
    lift: Optional[Lift] = None
    stuck: Stuck = Stuck()
    stuck_room: int = 0  # bytes that the limit of the last decision has for it
    trial: Optional[Trial] = None
    yielded: Optional[str] = None  # whose value stands, in words
    intrusions: Tuple[Intrusion, ...] = ()  # since the last take-over, one a lever
