# SPDX-License-Identifier: GPL-2.0-or-later
"""Reads the probe's BPF maps as differences since the last tick.

A tick costs what changed in it.
"""

from __future__ import annotations

import heapq
import mmap
import os
import sys
import time
from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from writebackd import formats
from writebackd.kernel import bpf_layout, libbpf
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
    """What a cgroup did to one filesystem device in a tick; `pid` is one of its processes."""

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


# By cgroup id and filesystem device ("major:minor"; "0:0" where it is not known).
CgroupReadings = Dict[Tuple[int, str], CgroupReading]


@dataclass(frozen=True)
class Reading:
    """One tick's differences, by leaf disk ("major:minor") and filesystem device."""

    classes: Mapping[str, Mapping[IoClass, ClassSample]] = field(default_factory=dict)
    syncs: Mapping[str, SyncSample] = field(default_factory=dict)
    tasks: Tuple[TaskSample, ...] = ()
    cgroups: Mapping[Tuple[int, str], CgroupReading] = field(default_factory=dict)
    writers: Tuple[ForeignWrite, ...] = ()  # every write to vm.dirty_*, ours included


def difference(current: bytes, last: bytes) -> Histogram:
    """What was added to a histogram of 32-bit counters, wrap-around included.

    A tick moves a few counters near each other: to compare part by part takes 3 to 4 us, to
    look at each number 10.
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


_CLASSES = tuple((each, each.value) for each in IoClass)  # whose `value` is a function
_NO_HISTOGRAM = bytes(bpf_layout.HIST.size)
_NO_COMPLETIONS = (0,) * (3 + 2 * bpf_layout.CLASSES)


class BlockReader:
    """Takes the difference of every slot to the last read; shards of a disk add up."""

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


class SyncReader:
    """Syncs that returned since the last read, and those still inside."""

    def __init__(
        self, done: libbpf.Map, inflight: libbpf.Map, misses_ends: bool = False
    ) -> None:
        """`misses_ends`: see hooks.Choice."""
        self._done_map = done
        self._done = done.batch_reader(64)
        self._misses_ends = misses_ends
        self._user_s: Dict[bytes, float] = {}  # of old syncs' threads, when first looked at
        self._inflight_map = inflight
        self._inflight = inflight.batch_reader(512)
        self.abandoned = 0  # syncs whose thread went without an end that was seen
        self._last: Dict[bytes, Tuple[Sequence[int], bytes, bytes]] = {}

    def read(self) -> Dict[str, SyncSample]:
        waiting: Dict[str, Tuple[int, float]] = {}
        now = time.clock_gettime_ns(_CLOCK)
        earlier, self._user_s = self._user_s, {}
        for key, value in self._inflight.read():
            start, dev, kind, _owner = bpf_layout.SYNC_START.unpack(value)
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
            name = bpf_layout.devno(int.from_bytes(key, sys.byteorder))
            counts = bpf_layout.SYNC_COUNTS.unpack_from(value)
            split = bpf_layout.SYNC_COUNTS.size + bpf_layout.HIST.size
            files, syncfs = value[bpf_layout.SYNC_COUNTS.size : split], value[split:]
            last = self._last.get(key, ((0, 0, 0), _NO_HISTOGRAM, _NO_HISTOGRAM))
            self._last[key] = (counts, files, syncfs)
            inflight, oldest = waiting.pop(name, (0, 0.0))
            result[name] = SyncSample(
                fsyncs=max(0, counts[0] - last[0][0]),
                fdatasyncs=max(0, counts[1] - last[0][1]),
                latency=difference(files, last[1]),
                inflight=inflight,
                oldest_s=oldest,
                syncfs_latency=difference(syncfs, last[2]),
            )
        for name, (inflight, oldest) in waiting.items():
            result[name] = SyncSample(inflight=inflight, oldest_s=oldest)
        # An unmount is a sync, and any user may have filesystems by the thousand. Those known
        # longest go: a disk's comes back without a loss, as its count begins anew.
        for key in _make_room(self._done_map, len(self._last), dict.fromkeys(self._last, 0)):
            del self._last[key]
        return result

    def _is_elsewhere(self, tid: int, sync: bytes, earlier: Mapping[bytes, float]) -> bool:
        """Whether the thread has left a sync whose end was missed.

        A sync sleeps uninterruptibly, and takes no time in user mode.  wchan would tell as
        well, but is for CAP_SYS_PTRACE.
        """
        found = thread_state(tid) if self._misses_ends else None
        if found is None:
            return False
        state, user_s = found
        first_s = self._user_s[sync] = earlier.get(sync, user_s)
        return state not in "RD" or user_s - first_s > _USER_S


def thread_state(tid: int) -> Optional[Tuple[str, float]]:
    """A thread's state as proc(5) has it and its seconds in user mode; None: not to be had."""
    try:
        # Not /proc/TID/stat, which has the time of the whole process.
        with open(f"/proc/{tid}/task/{tid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return fields[0].decode(), int(fields[11]) / _TICKS_PER_S
    except (OSError, IndexError, ValueError):
        return None


def _make_room(
    table: libbpf.Map, entries: int, spare: Mapping[bytes, int], idle: int = 0
) -> List[bytes]:
    """Keep half a table free, as far as the `spare` entries go; which keys that took away.

    `spare` says of each when it was active last; all from before `idle` go.
    """
    excess = entries - table.max_entries // 2
    idlers = sum(last < idle for last in spare.values())
    gone = heapq.nsmallest(max(excess, idlers), spare, key=spare.__getitem__)
    for key in gone:
        table.delete(key)
    return gone


class CgroupSyncReader:
    """Syncs that were begun since the last read, by cgroup."""

    def __init__(self, cgroup_syncs: libbpf.Map) -> None:
        self._map = cgroup_syncs
        self._reader = cgroup_syncs.batch_reader(256)
        self._last: Dict[bytes, Tuple[int, int]] = {}

    def read(self) -> CgroupReadings:
        found: CgroupReadings = {}
        seen: Dict[bytes, Tuple[int, int]] = {}
        for key, value in self._reader.read():
            count, last_ns, pid = bpf_layout.CGROUP_SYNCS.unpack(value)
            last = self._last.get(key, (0, 0))
            seen[key] = (count, last_ns)
            if last_ns == last[1]:
                continue
            # Removed and back again: the count began anew.
            grown = count - last[0] if count > last[0] else count
            cgroup, dev = bpf_layout.CGROUP_KEY.unpack(key)
            found[cgroup, bpf_layout.devno(dev)] = CgroupReading(syncs=grown, pid=pid)
        # Also those that are active: they come back without a loss, as their count begins anew.
        spare = {key: last_ns for key, (_, last_ns) in seen.items()}
        for key in _make_room(self._map, len(seen), spare):
            del seen[key]
        self._last = seen
        return found


class TaskReader:
    """Who dirtied how much and slept how long since the last read, by process."""

    def __init__(self, dirtiers: libbpf.Map) -> None:
        self._map = dirtiers
        self._reader = dirtiers.batch_reader(256)
        # By thread; at the end the read in which it did something last.
        self._last: Dict[bytes, Tuple[int, int, int, int]] = {}
        self._reads = 0
        self.cgroups: CgroupReadings = {}  # of the last read, of all processes

    def read(self) -> Tuple[TaskSample, ...]:
        by_process: Dict[Tuple[int, str], List[TaskSample]] = {}
        self.cgroups = {}
        self._reads += 1
        seen: Dict[bytes, Tuple[int, int, int, int]] = {}
        idle: Dict[bytes, int] = {}
        for tid, value in self._reader.read():
            born, first, size, slept, cgroup, _, pid, dev, comm = bpf_layout.DIRTIER.unpack(value)
            last = self._last.get(tid)
            if last is None or last[0] != born or slept < last[2] or size < last[1]:
                # New, or removed and back again: counted from where its entry begins.
                last = (born, first, 0, self._reads)
            if (size, slept) == last[1:3]:
                seen[tid], idle[tid] = last, last[3]
                continue
            seen[tid] = (born, size, slept, self._reads)
            task = TaskSample(
                pid=pid,
                comm=comm.split(b"\0")[0].decode(errors="replace"),
                cgroup_id=cgroup,
                device=bpf_layout.devno(dev) if dev else None,
                dirtied_bytes=max(0, size - last[1]),
                throttled_s=(slept - last[2]) / 1e9,
            )
            by_process.setdefault((pid, bpf_layout.devno(dev)), []).append(task)
            key = (cgroup, bpf_layout.devno(dev))
            self.cgroups[key] = self.cgroups.get(key, CgroupReading()) + CgroupReading(
                task.dirtied_bytes, task.throttled_s, pid=pid
            )
        # One that is active would come back without what it dirtied until then.
        for tid in _make_room(self._map, len(seen), idle, self._reads - IDLE_READS):
            del seen[tid]
        self._last = seen
        tasks = [_merge(threads) for threads in by_process.values()]
        tasks.sort(key=lambda task: (task.throttled_s, task.dirtied_bytes), reverse=True)
        return tuple(tasks[:MOST_TASKS])


def together(one: CgroupReadings, other: CgroupReadings) -> CgroupReadings:
    """What cgroups did, of two readers."""
    merged = dict(one)
    for key, reading in other.items():
        merged[key] = merged.get(key, CgroupReading()) + reading
    return merged


def _is_gone(tid: int) -> bool:
    """Whether no thread has this number; not asked of /proc, which hidepid= hides."""
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
    )


class SysctlWriteReader:
    """Writes to vm.dirty_* since the last read; the queue keeps the last 16."""

    def __init__(self, sysctl_writes: libbpf.Map) -> None:
        self._queue = sysctl_writes

    def read(self) -> Tuple[ForeignWrite, ...]:
        found: List[ForeignWrite] = []
        # More than the queue holds come in while it is read: they wait for the next tick.
        while len(found) < bpf_layout.SYSCTL_WRITES:
            write = self._queue.pop()
            if write is None:
                break
            cgroup, pid, comm, name, value, words = bpf_layout.SYSCTL_WRITE.unpack(write)
            found.append(
                ForeignWrite(
                    lever=_text(name).rpartition("/")[2],
                    value=_text(value).strip(),
                    pid=pid,
                    comm=formats.printable(_text(comm)),
                    cgroup_id=cgroup or None,
                    cmdline=command_line(words),
                )
            )
        return tuple(found)


class LossCounters:
    """The object's .bss."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory

    def read(self) -> Tuple[int, int, int, int]:
        """Completions without a slot, syncs lost, syncs whose end cannot be seen, looks at
        threads and cgroups whose table was full.
        """
        no_slot, lost, unmatched, no_room = bpf_layout.STATE.unpack_from(self._memory)
        return no_slot, lost, unmatched, no_room


def _text(raw: bytes) -> str:
    return raw.split(b"\0")[0].decode(errors="replace")

