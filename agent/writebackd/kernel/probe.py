# SPDX-License-Identifier: GPL-2.0-or-later
"""What one tick saw inside the kernel: the BPF probe, and procfs without it.

Counting goes on in BPF all the time; `read` takes the difference to the last
call.  The counters of a device start at its first sight, so nothing from
before the daemon's start is counted and nothing after it is lost.
"""

from __future__ import annotations

import logging
import mmap
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence, Set, Tuple, Union

from writebackd.kernel import hooks, layout, libbpf
from writebackd.kernel.files import KernelFiles
from writebackd.model import (
    HIST_BUCKETS,
    ClassSample,
    ForeignWrite,
    Histogram,
    IoClass,
    ProbeInfo,
    SyncSample,
    TaskSample,
)

log = logging.getLogger(__name__)

# A thread's dirtied bytes are looked up once in this many: a flood of 1 GB/s is
# then looked at 4000 times a second, and a thread is at most this far ahead.
DIRTY_GRAIN = 256 << 10
# Run statistics cost two clock reads per program run, so they are on for one
# tick in this many.
STATS_EVERY_TICKS = 60
# A few completions on an idle host run with cold caches, ten times as long.
STATS_LEAST_RUNS = 1000
# Clock of bpf_ktime_get_ns().
_CLOCK = time.CLOCK_MONOTONIC
# Linux' number of CLOCK_MONOTONIC_COARSE, whose resolution is one jiffy.
_CLOCK_COARSE = 6


@dataclass(frozen=True)
class Reading:
    """One tick's differences, by leaf disk ("major:minor") and filesystem device."""

    classes: Mapping[str, Mapping[IoClass, ClassSample]] = field(default_factory=dict)
    syncs: Mapping[str, SyncSample] = field(default_factory=dict)
    tasks: Tuple[TaskSample, ...] = ()
    writers: Tuple[ForeignWrite, ...] = ()  # every write to vm.dirty_*, ours included


class ProcfsProbe:
    """The fallback: block statistics come from /proc, everything else is unseen."""

    def __init__(self, why: str) -> None:
        self._info = ProbeInfo(
            backend="procfs",
            misses=(
                f"BPF: {why}",
                "fsync latency and rate",
                "request classes and latencies",
                "who dirties pages, who waits, who writes sysctls",
            ),
        )

    def info(self) -> ProbeInfo:
        return self._info

    def read(self) -> Optional[Reading]:
        """None: this probe sees no requests and no syncs."""
        return None

    def covers(self, fstypes: Sequence[str]) -> bool:
        return True

    def close(self) -> None:
        pass


def _difference(current: Sequence[int], last: Sequence[int]) -> Histogram:
    """What was added to a histogram of 32-bit counters, wrap-around included."""
    return Histogram(
        tuple(
            (i, (now - before) & 0xFFFFFFFF)
            for i, (now, before) in enumerate(zip(current, last))
            if now != before
        )
    )


_NO_HISTOGRAM = (0,) * HIST_BUCKETS
_NO_COMPLETIONS = (0,) * (3 + 2 * layout.CLASSES)


class _BlockReader:
    """Takes the difference of every slot to the last read; shards of a disk add up."""

    def __init__(
        self, slots: mmap.mmap, queues: Optional[mmap.mmap], sizes: layout.Sizes
    ) -> None:
        self._slots, self._queues, self._sizes = slots, queues, sizes
        self._heads: Dict[int, Tuple[int, ...]] = {}
        self._hists: Dict[Tuple[int, int], Sequence[int]] = {}
        self._waits: Dict[Tuple[int, int], Sequence[int]] = {}
        self.unstamped = 0  # in the last read, of all devices

    def read(self) -> Dict[str, Dict[IoClass, ClassSample]]:
        result: Dict[str, Dict[IoClass, ClassSample]] = {}
        self.unstamped = 0
        for block in range(self._sizes.slots * self._sizes.shards):
            head = layout.IO_SLOT_HEAD.unpack_from(self._slots, block * layout.IO_SLOT_SIZE)
            last = self._heads.get(block, _NO_COMPLETIONS)
            if head == last:
                continue
            self._heads[block] = head
            # Another disk under the same queue id inherits the counters: what
            # they hold now is its zero.
            reset = last is not _NO_COMPLETIONS and head[:2] != last[:2]
            if not reset:
                self.unstamped += head[2] - last[2]
            for io_class in IoClass:
                at = 3 + 2 * io_class.value
                count, size = head[at] - last[at], head[at + 1] - last[at + 1]
                if not count and not size:
                    continue
                latency, queue = self._read_histograms(block, io_class.value)
                if reset:
                    continue
                sample = ClassSample(count, size, latency, queue)
                classes = result.setdefault(layout.devno(head[1]), {})
                so_far = classes.get(io_class)
                classes[io_class] = so_far + sample if so_far else sample
        return result

    def _read_histograms(self, block: int, number: int) -> Tuple[Histogram, Optional[Histogram]]:
        key = (block, number)
        offset = number * layout.HIST.size
        at = block * layout.IO_SLOT_SIZE + layout.IO_SLOT_HEAD.size + offset
        current = layout.HIST.unpack_from(self._slots, at)
        latency = _difference(current, self._hists.get(key, _NO_HISTOGRAM))
        self._hists[key] = current
        if self._queues is None:
            return latency, None
        waits = layout.HIST.unpack_from(self._queues, block * layout.QUEUE_SLOT_SIZE + offset)
        queue = _difference(waits, self._waits.get(key, _NO_HISTOGRAM))
        self._waits[key] = waits
        return latency, queue


class _SyncReader:
    """Syncs that returned since the last read, and those still inside."""

    def __init__(self, done: libbpf.Map, inflight: libbpf.Map) -> None:
        self._done = done.batch_reader(64)
        self._inflight = inflight.batch_reader(512)
        self._last: Dict[str, Tuple[Sequence[int], Sequence[int], Sequence[int]]] = {}

    def read(self) -> Dict[str, SyncSample]:
        waiting: Dict[str, Tuple[int, float]] = {}
        now = time.clock_gettime_ns(_CLOCK)
        for _, value in self._inflight.read():
            start, dev, kind, _owner = layout.SYNC_START.unpack(value)
            if kind == 2:
                continue  # syncfs takes as long as everything dirty: no latency of its own
            name = layout.devno(dev)
            count, oldest = waiting.get(name, (0, 0.0))
            waiting[name] = (count + 1, max(oldest, (now - start) / 1e9))
        result: Dict[str, SyncSample] = {}
        for key, value in self._done.read():
            name = layout.devno(int.from_bytes(key, "little"))
            counts = layout.SYNC_COUNTS.unpack_from(value)
            files = layout.HIST.unpack_from(value, layout.SYNC_COUNTS.size)
            syncfs = layout.HIST.unpack_from(value, layout.SYNC_COUNTS.size + layout.HIST.size)
            last = self._last.get(name, ((0, 0, 0), _NO_HISTOGRAM, _NO_HISTOGRAM))
            self._last[name] = (counts, files, syncfs)
            inflight, oldest = waiting.pop(name, (0, 0.0))
            result[name] = SyncSample(
                fsyncs=counts[0] - last[0][0],
                fdatasyncs=counts[1] - last[0][1],
                latency=_difference(files, last[1]),
                inflight=inflight,
                oldest_s=oldest,
                syncfs_latency=_difference(syncfs, last[2]),
            )
        for name, (inflight, oldest) in waiting.items():
            result[name] = SyncSample(inflight=inflight, oldest_s=oldest)
        return result


class _TaskReader:
    """Who dirtied how much and slept how long since the last read, by process."""

    def __init__(self, dirtiers: libbpf.Map) -> None:
        self._reader = dirtiers.batch_reader(256)
        self._last: Dict[bytes, Tuple[int, int, int, int]] = {}

    def read(self, most: int = 10) -> Tuple[TaskSample, ...]:
        by_process: Dict[Tuple[int, str], List[TaskSample]] = {}
        seen: Dict[bytes, Tuple[int, int, int, int]] = {}
        for tid, value in self._reader.read():
            born, first, size, slept, cgroup, sleeps, pid, dev, comm = layout.DIRTIER.unpack(value)
            last = self._last.get(tid)
            if last is None or last[0] != born:
                last = (born, first, 0, 0)
            seen[tid] = (born, size, slept, sleeps)
            if (size, slept) == last[1:3]:
                continue
            by_process.setdefault((pid, layout.devno(dev)), []).append(
                TaskSample(
                    pid=pid,
                    comm=comm.split(b"\0")[0].decode(errors="replace"),
                    cgroup_id=cgroup,
                    device=layout.devno(dev) if dev else None,
                    dirtied_bytes=max(0, size - last[1]),
                    throttled_s=(slept - last[2]) / 1e9,
                    throttled=sleeps - last[3],
                )
            )
        self._last = seen
        tasks = [_merge(threads) for threads in by_process.values()]
        tasks.sort(key=lambda task: (task.dirtied_bytes, task.throttled_s), reverse=True)
        return tuple(tasks[:most])


def _merge(threads: Sequence[TaskSample]) -> TaskSample:
    first = threads[0]
    return TaskSample(
        pid=first.pid,
        comm=first.comm,
        cgroup_id=first.cgroup_id,
        device=first.device,
        dirtied_bytes=sum(task.dirtied_bytes for task in threads),
        throttled_s=sum(task.throttled_s for task in threads),
        throttled=sum(task.throttled for task in threads),
    )


class _SharedState:
    """The counters and the ring of sysctl writes in the object's .bss."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._seen = self._count()

    def _count(self) -> int:
        count: int = layout.STATE_HEAD.unpack_from(self._memory)[0]
        return count

    def writers(self) -> Tuple[ForeignWrite, ...]:
        """Writes to vm.dirty_* since the last call; the ring keeps the last 16."""
        count = self._count()
        oldest = max(self._seen, count - layout.SYSCTL_WRITES)
        self._seen = count
        found = []
        for number in range(oldest, count):
            at = layout.STATE_HEAD.size + (
                number % layout.SYSCTL_WRITES * layout.SYSCTL_WRITE.size
            )
            _, pid, comm, name, value = layout.SYSCTL_WRITE.unpack_from(self._memory, at)
            found.append(
                ForeignWrite(
                    lever=_text(name).rpartition("/")[2],
                    value=_text(value).strip(),
                    pid=pid,
                    comm=_text(comm),
                )
            )
        return tuple(found)

    def losses(self) -> Tuple[int, int, int]:
        """Completions without a slot, syncs lost, syncs whose end cannot be seen."""
        values = layout.STATE_TAIL.unpack_from(self._memory, layout.STATE_TAIL_OFFSET)
        return values[0], values[1], values[2]


def _text(raw: bytes) -> str:
    return raw.split(b"\0")[0].decode(errors="replace")


class BpfProbe:
    """The libbpf probe.  Raises BpfError or OSError when it cannot be had."""

    def __init__(
        self,
        path: Path,
        files: KernelFiles,
        queue_latency: bool = False,
        talkers: bool = True,
        cpus: Optional[int] = None,
        devices: Optional[int] = None,
    ) -> None:
        """`cpus` and `devices` override what the host has (to size for another)."""
        cgroup = cgroup2_mount(files)
        self.sizes = layout.plan_sizes(
            len(files.listdir("/sys/block")) if devices is None else devices,
            libbpf.possible_cpus() if cpus is None else cpus,
            queue_latency,
        )
        self._constants = layout.ProbeConfig(
            slots=self.sizes.slots,
            shard_mask=self.sizes.shards - 1,
            shard_shift=self.sizes.shard_shift,
            per_cpu=self.sizes.per_cpu,
            queue_latency=queue_latency,
            dirty_grain=DIRTY_GRAIN,
            jiffy_ns=round(time.clock_getres(_CLOCK_COARSE) * 1e9),
        )
        self.choice = hooks.choose(path, cgroup, talkers, self._set_constants)
        self._object = libbpf.Object(path)
        self._maps: List[mmap.mmap] = []
        self._ticks = 0
        self._stats_fd: Optional[int] = None
        self._stats_base: Optional[Tuple[int, int]] = None
        self._ns_per_io: Optional[float] = None
        self._issue_attached = False
        try:
            self._load(queue_latency)
            for hook in self.choice.hooks:
                hooks.attach(self._object, hook, cgroup)
        except BaseException:
            self.close()
            raise

    def _load(self, queue_latency: bool) -> None:
        obj, sizes = self._object, self.sizes
        obj.select(self.choice.programs)
        blocks = sizes.slots * sizes.shards
        obj.set_entries("io_slots", blocks)
        if queue_latency:
            obj.set_entries("queue_slots", blocks)
        self._set_constants(obj)
        for name, size in layout.VALUE_SIZES.items():
            found = obj.map(name).value_size
            if found != size:
                raise OSError(
                    f"map {name} has values of {found} bytes, expected {size}: "
                    "the BPF object is of another version; rebuild the package"
                )
        obj.load()
        self._blocks = _BlockReader(
            self._mapped("io_slots"), self._mapped("queue_slots") if queue_latency else None, sizes
        )
        self._syncs = _SyncReader(obj.map("syncs"), obj.map("syncs_inflight"))
        self._tasks = _TaskReader(obj.map("dirtiers"))
        self._state = _SharedState(self._mapped(".bss"))
        self._map_bytes = sum(bpf_map.memory_bytes() for bpf_map in obj.maps())

    def _set_constants(self, obj: libbpf.Object) -> None:
        obj.set_constants(".rodata.config", self._constants)

    def _mapped(self, name: str) -> mmap.mmap:
        memory = self._object.map(name).mapped()
        self._maps.append(memory)
        return memory

    def info(self) -> ProbeInfo:
        no_slot, lost, unmatched = self._state.losses()
        misses = list(self.choice.misses)
        if no_slot:
            misses.append(f"{no_slot} completions of devices that came after the start")
        if lost:
            misses.append(f"{lost} syncs: more than 8192 at once or 1024 filesystems")
        if unmatched:
            misses.append(f"{unmatched} syncs whose end no hook here can see")
        return ProbeInfo(
            backend="libbpf",
            request_hook="tp_btf: block_rq_complete"
            + (" block_rq_issue" if self._issue_attached else ""),
            fsync_hook=self.choice.fsync_summary or None,
            misses=tuple(misses),
            map_bytes=self._map_bytes,
            bpf_ns_per_io=self._ns_per_io,
        )

    def read(self) -> Optional[Reading]:
        """Everything since the last call.  Raises BpfError when a map fails."""
        self._sample_cost()
        reading = Reading(
            classes=self._blocks.read(),
            syncs=self._syncs.read(),
            tasks=self._tasks.read(),
            writers=self._state.writers(),
        )
        if self._blocks.unstamped and not self._issue_attached and self.choice.issue:
            # This queue keeps no start times (iostats off, or a driver that
            # never asks): stamp the requests ourselves from now on.
            hooks.attach(self._object, self.choice.issue, None)
            self._issue_attached = True
        return reading

    def covers(self, fstypes: Sequence[str]) -> bool:
        """False when a hook is missing that might be there by now.

        A filesystem's module is loaded at its first mount, after the hooks
        were chosen; the same goes for disks that found no free slot.
        """
        waiting: Set[str] = set(fstypes) & set(hooks.FSYNC)
        hooked = set(self.choice.sync) if not self.choice.syscalls else waiting
        return waiting <= hooked and not self._state.losses()[0]

    def _sample_cost(self) -> None:
        programs = ["rq_complete"]
        if self._issue_attached and self.choice.issue:
            programs += self.choice.issue.programs
        self._ticks += 1
        if self._stats_fd is not None and self._stats_base is not None:
            runs = self._object.run_stats("rq_complete")[1] - self._stats_base[1]
            spent = sum(self._object.run_stats(p)[0] for p in programs) - self._stats_base[0]
            if runs >= STATS_LEAST_RUNS:
                self._ns_per_io = spent / runs
            os.close(self._stats_fd)
            self._stats_fd = None
        elif self._ticks % STATS_EVERY_TICKS == 2:
            try:
                self._stats_fd = libbpf.enable_run_stats()
            except libbpf.BpfError as error:
                # Needs CAP_SYS_ADMIN and 5.8; the cost then stays unknown.
                log.debug("%s", error)
                return
            stats = [self._object.run_stats(p) for p in programs]
            self._stats_base = (sum(s[0] for s in stats), stats[0][1])

    def run_stats(self, program: str) -> Tuple[int, int, int]:
        """See libbpf.Object.run_stats; for benchmarks."""
        return self._object.run_stats(program)

    def close(self) -> None:
        if self._stats_fd is not None:
            os.close(self._stats_fd)
            self._stats_fd = None
        for memory in self._maps:
            memory.close()
        self._maps.clear()
        self._object.close()


def cgroup2_mount(files: KernelFiles) -> Optional[str]:
    """Where cgroup v2 is mounted, unified or beside v1; None where it is not."""
    for line in (files.try_read("/proc/self/mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        if after.startswith("cgroup2 "):
            return before.split(" ")[4]
    return None


def object_path() -> Path:
    """The compiled object that ships inside the package."""
    return Path(__file__).resolve().parent.parent / "_bpf" / "writeback.bpf.o"


Probe = Union[BpfProbe, ProcfsProbe]


def open_probe(
    backend: str, files: KernelFiles, queue_latency: bool, talkers: bool
) -> Probe:
    """The probe that `backend` names ("auto": the best that this kernel takes).

    Raises ValueError for a backend that this version does not have, and
    OSError or BpfError when one that was asked for by name cannot be had.
    """
    if backend == "procfs":
        return ProcfsProbe("not asked for")
    if backend not in ("auto", "libbpf"):
        raise ValueError(f"probe backend {backend!r} is not in this version: use libbpf or procfs")
    path = object_path()
    try:
        if not path.exists():
            raise OSError(f"{path} is missing: build the package on a host with clang")
        return BpfProbe(path, files, queue_latency, talkers)
    except (OSError, libbpf.BpfError) as error:
        if backend == "libbpf":
            raise
        log.warning("BPF probe: %s; going on with /proc alone", error)
        return ProcfsProbe(str(error))
