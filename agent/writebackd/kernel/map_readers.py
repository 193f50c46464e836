# SPDX-License-Identifier: GPL-2.0-or-later
"""Reads the probe's BPF maps as differences since the last tick.

The cost of a tick depends on what changed in it.
"""

from __future__ import annotations

import heapq
import mmap
import os
import sys
import time
from dataclasses import dataclass, field
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from writebackd import formats
from writebackd.kernel import bpf_layout, libbpf
from writebackd.kernel.bpf_layout import make_room
from writebackd.kernel.commit_waits import Sleep
from writebackd.kernel.lever_writers import command_line
from writebackd.types.copying import replace
from writebackd.types.histogram import Histogram
from writebackd.types.levers import ForeignWrite
from writebackd.types.samples import ClassSample, IoClass, SyncSample, TaskSample

# Clock of bpf_ktime_get_ns().
_CLOCK = time.CLOCK_MONOTONIC
# From this age on a sync in flight is checked for a thread that is still there.
STALE_NS = 10_000_000_000
# Scaled from samples by the kernel: within a second it may be wrong.
_USER_S = 1.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Processes kept of a tick: those that slept longest, then those that dirtied most.
MOST_TASKS = 64
# A thread that did nothing for so many reads is dropped: most are dead, at 0.3 us a read each.
IDLE_READS = 60


@dataclass(frozen=True)
class CgroupReading:
    """One cgroup's activity on one filesystem device in a tick; `pid` is one of its processes."""

    dirtied_bytes: int = 0
    throttled_s: float = 0.0
    syncs: int = 0
    pid: int = 0

    def __add__(self, other: "CgroupReading") -> "CgroupReading":
        return CgroupReading(
            self.dirtied_bytes + other.dirtied_bytes,
            self.throttled_s + other.throttled_s,
            self.syncs + other.syncs,
            other.pid or self.pid,
        )


# Whether a device number is that of a disk, or of a filesystem on one.
Known = Callable[[str], object]
# By cgroup id and filesystem device ("major:minor"; "0:0" where it is not known).
CgroupReadings = Dict[Tuple[int, str], CgroupReading]


def unknown(devno: str) -> bool:
    """For callers that know no devices."""
    return False


@dataclass(frozen=True)
class Reading:
    """One tick's differences, by leaf disk ("major:minor") and filesystem device."""

    classes: Mapping[str, Mapping[IoClass, ClassSample]] = field(default_factory=dict)
    syncs: Mapping[str, SyncSample] = field(default_factory=dict)
    tasks: Tuple[TaskSample, ...] = ()
    cgroups: Mapping[Tuple[int, str], CgroupReading] = field(default_factory=dict)
    writers: Tuple[ForeignWrite, ...] = ()  # every write to vm.dirty_*, ours included
    # Of a filesystem device that is not in `syncs`.
    no_syncs: SyncSample = field(default_factory=SyncSample)
    syncs_lost: int = 0  # for which no table had room


def difference(current: bytes, last: bytes) -> Histogram:
    """The growth of a histogram of 32-bit counters, wrap-around included.

    A tick changes a few adjacent counters: comparing part by part takes 3 to 4 us, number by
    number 10.
    """
    indices: List[int] = []
    counts: List[int] = []
    for at in range(0, len(current), bpf_layout.HIST_PART.size):
        end = at + bpf_layout.HIST_PART.size
        if current[at:end] == last[at:end]:
            continue
        numbers = zip(
            bpf_layout.HIST_PART.unpack_from(current, at),
            bpf_layout.HIST_PART.unpack_from(last, at),
        )
        for index, (now, before) in enumerate(numbers, at // 4):
            if now != before:
                indices.append(index)
                counts.append((now - before) & 0xFFFFFFFF)
    return Histogram.of(tuple(indices), tuple(counts))


_CLASSES = tuple((kind, kind.value) for kind in IoClass)  # whose `value` is a function
_NO_HISTOGRAM = bytes(bpf_layout.HIST.size)
_NO_COMPLETIONS = (0,) * (3 + 2 * bpf_layout.CLASSES)


class BlockReader:
    """Subtracts each slot's last values; the shards of a disk are added up."""

    def __init__(
        self, slots: mmap.mmap, queues: Optional[mmap.mmap], sizes: bpf_layout.Sizes
    ) -> None:
        self._slots, self._queues, self._sizes = slots, queues, sizes
        self._heads: Dict[int, Tuple[int, ...]] = {}
        self._latencies: Dict[int, bytes] = {}  # by their place in the map
        self._waits: Dict[int, bytes] = {}
        self.unstamped = 0  # in the last read, of all devices

    def read(self) -> Dict[str, Dict[IoClass, ClassSample]]:
        result: Dict[str, Dict[IoClass, ClassSample]] = {}
        self.unstamped = 0
        for block in range(self._sizes.slots * self._sizes.shards):
            head = bpf_layout.IO_SLOT_HEAD.unpack_from(self._slots, block * bpf_layout.IO_SLOT_SIZE)
            last = self._heads.get(block, _NO_COMPLETIONS)
            if head == last:
                continue
            self._heads[block] = head
            # Another disk under the same queue id goes on with the counters of
            # the one that went: the difference is the new one's, but for what
            # the old one completed after the last read.
            self.unstamped += head[2] - last[2]
            devno = bpf_layout.devno(head[1])
            for io_class, number in _CLASSES:
                at = 3 + 2 * number
                # Never backwards, whatever the memory holds: a rate has no sign.
                count = max(0, head[at] - last[at])
                size = max(0, head[at + 1] - last[at + 1])
                if not count and not size:
                    continue
                latency, queue = self._read_histograms(block, number)
                sample = ClassSample(count=count, bytes=size, latency=latency, queue=queue)
                classes = result.setdefault(devno, {})
                so_far = classes.get(io_class)
                classes[io_class] = so_far + sample if so_far else sample
        return result

    def _read_histograms(self, block: int, number: int) -> Tuple[Histogram, Optional[Histogram]]:
        offset = number * bpf_layout.HIST.size
        at = block * bpf_layout.IO_SLOT_SIZE + bpf_layout.IO_SLOT_HEAD.size + offset
        latency = self._added(self._slots, at, self._latencies)
        if self._queues is None:
            return latency, None
        at = block * bpf_layout.QUEUE_SLOT_SIZE + offset
        return latency, self._added(self._queues, at, self._waits)

    def _added(self, memory: mmap.mmap, at: int, seen: Dict[int, bytes]) -> Histogram:
        current = memory[at : at + bpf_layout.HIST.size]
        added = difference(current, seen.get(at, _NO_HISTOGRAM))
        seen[at] = current
        return added


# Where sync_stats has its histograms: of file syncs, of syncfs, of commits.
_HISTOGRAMS = tuple(
    bpf_layout.SYNC_COUNTS.size + n * bpf_layout.HIST.size for n in range(3)
)
_NO_SYNCS = ((0, 0, 0, 0), (_NO_HISTOGRAM,) * 3)


def _name(key: bytes) -> str:
    """A key of the sync table as "major:minor"."""
    return bpf_layout.devno(int.from_bytes(key, sys.byteorder))


class SyncReader:
    """Syncs that returned since the last read, and those still running."""

    def __init__(
        self, done: libbpf.Map, inflight: libbpf.Map, misses_ends: bool = False,
        sees_sleep: bool = True,
    ) -> None:
        """`misses_ends`: see hooks.Choice. `sees_sleep`: whether commits are counted."""
        self._sees_sleep = sees_sleep
        self._done_map = done
        self._done = done.batch_reader(64)
        self._misses_ends = misses_ends
        self._user_s: Dict[bytes, float] = {}  # of old syncs' threads, when first looked at
        self._inflight_map = inflight
        self._inflight = inflight.batch_reader(512)
        self.abandoned = 0  # syncs whose thread went without an end that was seen
        self._last: Dict[bytes, Tuple[Sequence[int], Sequence[bytes]]] = {}

    def read(self, known: Known = unknown) -> Dict[str, SyncSample]:
        """`known` says which devices keep their entry."""
        waiting: Dict[str, Tuple[int, float]] = {}
        now = time.clock_gettime_ns(_CLOCK)
        earlier, self._user_s = self._user_s, {}
        for key, value in self._inflight.read():
            start, _slept, dev, kind, _owner = bpf_layout.SYNC_START.unpack(value)
            tid = int.from_bytes(key, sys.byteorder, signed=True)
            if now - start > STALE_NS and (
                _is_gone(tid) or self._is_elsewhere(tid, key + value, earlier)
            ):
                # Left alone it would look like a stuck sync for ever.
                self._inflight_map.delete(key)
                self.abandoned += 1
                continue
            if kind == 2:
                continue  # syncfs takes as long as everything dirty: no latency of its own
            name = bpf_layout.devno(dev)
            count, oldest = waiting.get(name, (0, 0.0))
            waiting[name] = (count + 1, max(oldest, (now - start) / 1e9))
        result: Dict[str, SyncSample] = {}
        for key, value in self._done.read():
            name = _name(key)
            counts = bpf_layout.SYNC_COUNTS.unpack_from(value)
            histograms = tuple(value[at : at + bpf_layout.HIST.size] for at in _HISTOGRAMS)
            last = self._last.get(key, _NO_SYNCS)
            self._last[key] = (counts, histograms)
            inflight, oldest = waiting.pop(name, (0, 0.0))
            files, syncfs, commits = map(difference, histograms, last[1])
            result[name] = SyncSample(
                fsyncs=max(0, counts[0] - last[0][0]),
                fdatasyncs=max(0, counts[1] - last[0][1]),
                latency=files,
                inflight=inflight,
                oldest_s=oldest,
                syncfs_latency=syncfs,
                commits=commits if self._sees_sleep else None,
                throttled_s=max(0, counts[3] - last[0][3]) / 1e9,
            )
        for name, (inflight, oldest) in waiting.items():
            result[name] = self.nothing(inflight, oldest)
        # Those of disks stay: 512 disks are more than a host has, and to lose one hides its floods.
        # Of the others, in removed or hidden filesystems, those known longest go.
        for key in make_room(
            self._done_map, len(self._last),
            {key: at for at, key in enumerate(self._last) if not known(_name(key))},
        ):
            del self._last[key]
        return result

    def nothing(self, inflight: int = 0, oldest_s: float = 0.0) -> SyncSample:
        """The reading of a device on which no sync ended."""
        commits = Histogram() if self._sees_sleep else None
        return SyncSample(inflight=inflight, oldest_s=oldest_s, commits=commits)

    def _is_elsewhere(self, tid: int, sync: bytes, earlier: Mapping[bytes, float]) -> bool:
        """Whether the thread has left a sync whose end was missed.

        A sync sleeps uninterruptibly, and uses no user time.  wchan would show it too, but needs
        CAP_SYS_PTRACE.
        """
        thread = thread_state(tid) if self._misses_ends else None
        if thread is None:
            return False
        state, user_s = thread
        first_s = self._user_s[sync] = earlier.get(sync, user_s)
        return state not in "RD" or user_s - first_s > _USER_S


def thread_state(tid: int) -> Optional[Tuple[str, float]]:
    """A thread's state as in proc(5) and its seconds in user mode; None if unavailable."""
    try:
        # Not /proc/TID/stat, which has the time of the whole process.
        with open(f"/proc/{tid}/task/{tid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return fields[0].decode(), int(fields[11]) / _TICKS_PER_S
    except (OSError, IndexError, ValueError):
        return None


class CgroupSyncReader:
    """Syncs that began since the last read, by cgroup."""

    def __init__(self, cgroup_syncs: libbpf.Map) -> None:
        self._map = cgroup_syncs
        self._reader = cgroup_syncs.batch_reader(256)
        self._last: Dict[bytes, Tuple[int, int]] = {}

    def read(self) -> CgroupReadings:
        readings: CgroupReadings = {}
        seen: Dict[bytes, Tuple[int, int]] = {}
        ranks: Dict[bytes, Tuple[int, int]] = {}  # by the syncs of this tick
        for key, value in self._reader.read():
            count, last_ns, pid = bpf_layout.CGROUP_SYNCS.unpack(value)
            last = self._last.get(key, (0, 0))
            seen[key] = (count, last_ns)
            ranks[key] = (0, last_ns)
            if last_ns == last[1]:
                continue
            # Removed and back again: the count began anew.
            grown = count - last[0] if count > last[0] else count
            ranks[key] = (grown, last_ns)
            cgroup, dev = bpf_layout.CGROUP_KEY.unpack(key)
            readings[cgroup, bpf_layout.devno(dev)] = CgroupReading(syncs=grown, pid=pid)
        # Also those that are active: they come back without a loss, as their count begins anew.
        for key in make_room(self._map, len(seen), ranks):
            del seen[key]
        self._last = seen
        return readings


class TaskReader:
    """Bytes dirtied and time slept since the last read, by process."""

    def __init__(self, dirtiers: libbpf.Map) -> None:
        self._map = dirtiers
        self._reader = dirtiers.batch_reader(256)
        # By thread; at the end the read in which it did something last.
        self._last: Dict[bytes, Tuple[int, int, int, int]] = {}
        self._reads = 0
        self._read_ns = 0
        self.cgroups: CgroupReadings = {}  # of the last read, of all processes
        self.sleeps: Dict[bytes, Sleep] = {}  # that no sync has followed, by thread

    def read(self) -> Tuple[TaskSample, ...]:
        by_process: Dict[Tuple[int, str], List[TaskSample]] = {}
        self.cgroups, self.sleeps = {}, {}
        self._reads += 1
        since_ns, self._read_ns = self._read_ns, time.clock_gettime_ns(_CLOCK)
        seen: Dict[bytes, Tuple[int, int, int, int]] = {}
        grown: Dict[bytes, int] = {}
        for tid, value in self._reader.read():
            (
                born, first, size, slept, attached, synced, cgroup, _, pid, dev, synced_dev, comm,
            ) = bpf_layout.DIRTIER.unpack(value)
            if synced and slept > attached:
                number = bpf_layout.devno(synced_dev)
                self.sleeps[tid] = Sleep(number, slept, slept - attached, synced)
            last = self._last.get(tid)
            if last is None or last[0] != born or slept < last[2] or size < last[1]:
                # New, or removed and back again: counted from where its entry begins.
                last = (born, first, 0, self._reads)
            grown[tid] = max(0, size - last[1])
            if (size, slept) == last[1:3]:
                seen[tid] = last
                continue
            seen[tid] = (born, size, slept, self._reads)
            task = TaskSample(
                pid=pid,
                comm=comm.split(b"\0")[0].decode(errors="replace"),
                cgroup_id=cgroup,
                device=bpf_layout.devno(dev) if dev else None,
                dirtied_bytes=grown[tid],
                throttled_s=(slept - last[2]) / 1e9,
                synced=synced > since_ns,
            )
            by_process.setdefault((pid, bpf_layout.devno(dev)), []).append(task)
            key = (cgroup, bpf_layout.devno(dev))
            self.cgroups[key] = self.cgroups.get(key, CgroupReading()) + CgroupReading(
                task.dirtied_bytes, task.throttled_s, pid=pid
            )
        idle = {tid for tid, last in seen.items() if last[3] < self._reads - IDLE_READS}
        for tid in make_room(self._map, len(seen), self._ranks(seen, grown), idle):
            del seen[tid]
        self._last = seen
        tasks = [_merge(threads) for threads in by_process.values()]
        tasks.sort(key=lambda task: (task.throttled_s, task.dirtied_bytes), reverse=True)
        return tuple(tasks[:MOST_TASKS])

    def _ranks(
        self, seen: Mapping[bytes, Tuple[int, int, int, int]], grown: Mapping[bytes, int]
    ) -> Dict[bytes, Tuple[bool, int, int]]:
        """Ranks for removal: the smallest dirtiers first; an active one returns without its earlier
        bytes. A quarter of the table is for the commits that wait longest."""
        if len(seen) <= self._map.max_entries // 2:
            return {}
        longest = heapq.nlargest(
            self._map.max_entries // 4, self.sleeps, key=lambda tid: self.sleeps[tid].pending_ns
        )
        waiting = set(longest)
        return {tid: (tid in waiting, size, seen[tid][3]) for tid, size in grown.items()}


def together(one: CgroupReadings, other: CgroupReadings) -> CgroupReadings:
    """The activity of cgroups from two readers."""
    merged = dict(one)
    for key, reading in other.items():
        merged[key] = merged.get(key, CgroupReading()) + reading
    return merged


def _is_gone(tid: int) -> bool:
    """Whether no thread has this number; not read from /proc, which hidepid= hides."""
    try:
        os.kill(tid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # another user's, and alive
    return False


def _merge(threads: Sequence[TaskSample]) -> TaskSample:
    return replace(
        threads[0],
        dirtied_bytes=sum(task.dirtied_bytes for task in threads),
        throttled_s=sum(task.throttled_s for task in threads),
        synced=any(task.synced for task in threads),
    )


class SysctlWriteReader:
    """Writes to vm.dirty_* since the last read; the queue keeps the last 16."""

    def __init__(self, sysctl_writes: libbpf.Map) -> None:
        self._queue = sysctl_writes

    def read(self) -> Tuple[ForeignWrite, ...]:
        writes: List[ForeignWrite] = []
        # More than the queue holds come in while it is read: they wait for the next tick.
        while len(writes) < bpf_layout.SYSCTL_WRITES:
            write = self._queue.pop()
            if write is None:
                break
            cgroup, pid, comm, name, value, words = bpf_layout.SYSCTL_WRITE.unpack(write)
            writes.append(
                ForeignWrite(
                    lever=_text(name).rpartition("/")[2],
                    value=_text(value).strip(),
                    pid=pid,
                    comm=formats.printable(_text(comm)),
                    cgroup_id=cgroup or None,
                    cmdline=command_line(words),
                )
            )
        return tuple(writes)


def _text(raw: bytes) -> str:
    return raw.split(b"\0")[0].decode(errors="replace")

