# SPDX-License-Identifier: GPL-2.0-or-later
"""Opens and reads the probe: BPF, or procfs without it.

BPF counts all the time; `read` returns the difference since the last call.
Counting starts when the probe is opened.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import mmap
import os
import struct
import time
from pathlib import Path
from typing import Collection, Dict, List, Optional, Sequence, Tuple, Type, Union

from writebackd.kernel import bcc_programs, bpf_layout, hooks, libbpf
from writebackd.kernel.bcc_object import BccObject
from writebackd.kernel.bpf_layout import read_losses
from writebackd.kernel.cgroup_io_max import cgroup2_mount
from writebackd.kernel.commit_waits import CommitterReader, CommitWaits
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.map_readers import (
    BlockReader,
    CgroupSyncReader,
    Known,
    Reading,
    SyncReader,
    SysctlWriteReader,
    TaskReader,
    together,
    unknown,
)
from writebackd.kernel.mounts import mounted_types
from writebackd.types.copying import replace
from writebackd.types.samples import ProbeInfo, SyncSample

log = logging.getLogger(__name__)

# A thread's dirtied bytes are looked up once in this many: a flood of 1 GB/s is
# then looked at 4000 times a second, and a thread is at most this far ahead.
DIRTY_GRAIN = 256 << 10
# Run statistics cost two clock reads per program run, so they are on for one tick in this many.
STATS_EVERY_TICKS = 60
# A few completions on an idle host run with cold caches, ten times as long.
STATS_LEAST_RUNS = 1000
BTF = "/sys/kernel/btf/vmlinux"
# Linux' number of CLOCK_MONOTONIC_COARSE, whose resolution is one jiffy.
_CLOCK_COARSE = 6


class ProcfsProbe:
    """The fallback: block statistics from /proc, nothing else."""

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

    def read(self, known: Known = unknown) -> Optional[Reading]:
        """None: this probe sees no requests and no syncs."""
        return None

    def covers(self, fstypes: Sequence[str]) -> bool:
        return True

    def close(self) -> None:
        pass


class BpfProbe:
    """The libbpf probe.  Raises BpfError or OSError if it is unavailable."""

    BACKEND = "libbpf"

    def __init__(
        self,
        image: bytes,
        files: KernelFiles,
        queue_latency: bool = False,
        talkers: bool = True,
        cpus: Optional[int] = None,
        devices: Optional[int] = None,
        fsync_hook: str = hooks.AUTO,
        mounted: Collection[str] = tuple(hooks.FSYNC),
    ) -> None:
        """`image` is the object's content; `cpus` and `devices` set sizes for another host.

        `fsync_hook`: the required one of hooks.TIERS. `mounted`: types of filesystems whose fsync
        must be visible, if necessary by hooks on system calls.
        """
        cgroup = cgroup2_mount(files)
        cpus = libbpf.possible_cpus() if cpus is None else cpus
        self.sizes = bpf_layout.plan_sizes(
            len(files.listdir("/sys/block")) if devices is None else devices, cpus, queue_latency
        )
        self._entries = bpf_layout.table_entries(cpus)
        self._constants = bpf_layout.ProbeConfig(
            slots=self.sizes.slots,
            shard_mask=self.sizes.shards - 1,
            shard_shift=self.sizes.shard_shift,
            per_cpu=self.sizes.per_cpu,
            queue_latency=queue_latency,
            dirty_grain=DIRTY_GRAIN,
            jiffy_ns=round(time.clock_getres(_CLOCK_COARSE) * 1e9),
            # For the trials, so that the verifier sees all, and a filesystem in memory counts.
            sees_sleep=1,
            without_disk=1,
        )
        self._image = image
        self.choice = hooks.choose(
            self._open_object, cgroup, talkers, self._set_constants, fsync_hook, mounted
        )
        self._constants.without_disk = 0
        self._constants.sees_sleep = self.choice.sees_sleep
        self._object = self._open_object()
        self._maps: List[mmap.mmap] = []
        self._ticks = 0
        self._stats_fd: Optional[int] = None
        self._stats_base = (0, 0)
        self._ns_per_io: Optional[float] = None
        self._issue_attached = False
        try:
            self._load(queue_latency)
            for hook in self.choice.hooks:
                hooks.attach(self._object, hook, cgroup)
        except BaseException:
            self.close()
            raise

    def _open_object(self) -> libbpf.Object:
        return libbpf.Object(self._image)

    def _load(self, queue_latency: bool) -> None:
        obj, sizes = self._object, self.sizes
        obj.select(self.choice.programs)
        blocks = sizes.slots * sizes.shards
        obj.set_entries("io_slots", blocks)
        if queue_latency:
            obj.set_entries("queue_slots", blocks)
        obj.set_entries("dirtiers", self._entries)
        obj.set_entries("cgroup_syncs", self._entries)
        obj.set_entries("committers", self._entries)
        self._set_constants(obj)
        for name, size in bpf_layout.VALUE_SIZES.items():
            actual = obj.map(name).value_size
            if actual != size:
                raise OSError(
                    f"map {name} has values of {actual} bytes, expected {size}: "
                    "the BPF object is of another version; rebuild the package"
                )
        obj.load()
        self._blocks = BlockReader(
            self._mapped("io_slots"), self._mapped("queue_slots") if queue_latency else None, sizes
        )
        self._syncs = SyncReader(
            obj.map("syncs"), obj.map("syncs_inflight"), self.choice.misses_ends,
            self.choice.sees_sleep,
        )
        self._committers = CommitterReader(obj.map("committers"))
        self._waits = CommitWaits()
        self._cgroups = CgroupSyncReader(obj.map("cgroup_syncs"))
        self._tasks = TaskReader(obj.map("dirtiers"))
        self._sysctl_writes = SysctlWriteReader(obj.map("sysctl_writes"))
        self._losses = self._mapped(".bss")
        self._lost = read_losses(self._losses)
        self._map_bytes = sum(bpf_map.memory_bytes() for bpf_map in obj.maps())

    def _set_constants(self, obj: libbpf.Object) -> None:
        obj.set_constants(".rodata.config", self._constants)

    def _mapped(self, name: str) -> mmap.mmap:
        memory = self._object.map(name).mapped()
        self._maps.append(memory)
        return memory

    def info(self) -> ProbeInfo:
        lost = read_losses(self._losses)
        losses = {
            "completions of devices that came after the start": lost.no_slot,
            "completions that came while another was counted":
                self.run_stats("rq_complete")[2],
            "syncs: more than 8192 at once or 1024 filesystems": lost.syncs,
            "syncs whose end was missed": self._syncs.abandoned,
            "syncs whose end no hook here can see": lost.unmatched,
            f"updates of who dirties or syncs: more than {self._entries} at once": lost.looks,
            f"sleeps before a sync: more than {self._entries} processes sync at once": lost.sleeps,
        }  # fmt: skip
        tracepoint = self._object.TRACEPOINT
        return ProbeInfo(
            backend=self.BACKEND,
            request_hook=f"{tracepoint}: block_rq_complete"
            + (" block_rq_issue" if self._issue_attached else ""),
            fsync_hook=self.choice.fsync_summary(tracepoint) or None,
            misses=tuple(self.choice.misses),
            lost=tuple(f"{count} {what}" for what, count in losses.items() if count),
            passed_over=self.choice.passed_over_summary() or None,
            refused=tuple(self.choice.other_refusals()),
            map_bytes=self._map_bytes,
            bpf_ns_per_io=self._ns_per_io,
        )

    def read(self, known: Known = unknown) -> Optional[Reading]:
        """All differences since the last call; devices that are `known` are always included.

        Raises BpfError when a map fails.
        """
        self._sample_cost()
        try:
            before, self._lost = self._lost, read_losses(self._losses)
            tasks = self._tasks.read()
            reading = Reading(
                classes=self._blocks.read(),
                syncs=self._read_syncs(known),
                tasks=tasks,
                cgroups=together(self._cgroups.read(), self._tasks.cgroups),
                writers=self._sysctl_writes.read(),
                no_syncs=self._syncs.nothing(),
                syncs_lost=self._lost.syncs - before.syncs,
            )
        except struct.error as error:
            raise libbpf.BpfError(f"a map's contents: {error}", errno.EIO) from None
        if self._blocks.unstamped and not self._issue_attached and self.choice.issue:
            self._stamp_requests(self.choice.issue)
        return reading

    def _read_syncs(self, known: Known) -> Dict[str, SyncSample]:
        syncs = self._syncs.read(known)
        if not self.choice.sees_sleep:
            return syncs
        sleeps = {b"process" + pid: sleep for pid, sleep in self._committers.read().items()}
        sleeps.update(self._tasks.sleeps)
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        for devno, waited_s in self._waits.longest(sleeps, now).items():
            sync = syncs.get(devno) or self._syncs.nothing()
            syncs[devno] = replace(sync, throttled_now_s=waited_s)
        return syncs

    def _stamp_requests(self, issue: hooks.Hook) -> None:
        """A queue keeps no start times: record them in the probe from now on."""
        try:
            hooks.attach(self._object, issue, None)
            self._issue_attached = True
        except libbpf.BpfError as error:
            log.warning("%s", error)
            self.choice.issue = None
            self.choice.misses.append(hooks.NO_START_TIMES)

    def go_on_from(self, earlier: BpfProbe) -> None:
        """Take over the stuck syncs whose beginning only `earlier` has seen.

        Meanwhile both are attached: a sync that ends, unless both miss that
        (`Choice.misses_ends`), is gone from `earlier`.
        """
        ours, theirs = (probe._object.map("syncs_inflight") for probe in (self, earlier))
        for thread, start in theirs.batch_reader(512).read():
            if ours.add(thread, start) and not theirs.has(thread):
                ours.delete(thread)

    def covers(self, fstypes: Sequence[str]) -> bool:
        """False if reopening the probe may add a missing hook or slot.

        A filesystem's module may be loaded at its first mount, after the hooks were chosen, and may
        need hooks on system calls.
        """
        if read_losses(self._losses).no_slot:
            return False
        return all(self._sees(fstype) for fstype in fstypes if fstype in hooks.FSYNC)

    def _sees(self, fstype: str) -> bool:
        if self.choice.syscalls and fstype not in self.choice.sync:
            entry = hooks.ENTRY_ONLY.get(fstype)
            return entry is None or entry in self.choice.syscalls
        return fstype in self.choice.sync

    def run_stats(self, program: str) -> Tuple[int, int, int]:
        return self._object.run_stats(program)

    def _sample_cost(self) -> None:
        self._ticks += 1
        if self._stats_fd is not None:
            spent, runs = self._cost()
            if runs - self._stats_base[1] >= STATS_LEAST_RUNS:
                self._ns_per_io = (spent - self._stats_base[0]) / (runs - self._stats_base[1])
            os.close(self._stats_fd)
            self._stats_fd = None
        elif self._ticks % STATS_EVERY_TICKS == 2:
            try:
                self._stats_fd = libbpf.enable_run_stats()
            except libbpf.BpfError as error:
                # Needs CAP_SYS_ADMIN and 5.8; the cost then stays unknown.
                log.debug("%s", error)
                return
            self._stats_base = self._cost()

    def _cost(self) -> Tuple[int, int]:
        """Nanoseconds spent in request hooks so far, and the number of requests."""
        programs = ["rq_complete"]
        if self._issue_attached and self.choice.issue:
            programs += self.choice.issue.programs
        stats = [self.run_stats(program) for program in programs]
        return sum(spent for spent, _, _ in stats), stats[0][1]

    def close(self) -> None:
        if self._stats_fd is not None:
            os.close(self._stats_fd)
            self._stats_fd = None
        for memory in self._maps:
            memory.close()
        self._maps.clear()
        self._object.close()


class BccProbe(BpfProbe):
    """The probe for a kernel without BTF, compiled by bcc from its headers."""

    BACKEND = "bcc"

    def _open_object(self) -> libbpf.Object:
        return BccObject(self._image, str(object_path()), compiled_programs(self._image))


@functools.lru_cache(maxsize=None)
def compiled_programs(image: bytes) -> Dict[str, bytes]:
    """Programs that bcc compiled from the source next to the object, for the object's maps.

    Raises OSError that says what to do if it is unavailable.
    """
    with libbpf.Object(image) as obj:
        maps = [table.name for table in obj.maps()]
    return bcc_programs.programs(object_path().with_name("writeback.bcc.c").read_text(), maps)


def object_path() -> Path:
    """The compiled object for this machine; the package has one for each supported one."""
    package = Path(__file__).resolve().parent.parent
    return package / "_bpf" / f"writeback.{os.uname().machine}.bpf.o"


@functools.lru_cache(maxsize=None)
def object_image() -> bytes:
    """The object's content, read once: later openings must not wait for a disk.

    Raises OSError that says what to do if it is missing.
    """
    path = object_path()
    try:
        return path.read_bytes()
    except FileNotFoundError:
        machines = sorted(file.name.split(".")[1] for file in path.parent.glob("writeback.*.bpf.o"))
        if machines:
            why = f"no BPF object for {os.uname().machine}, only for {', '.join(machines)}"
        else:
            why = f"{path} is missing: build the package on a host with clang"
        raise OSError(why) from None


Probe = Union[BpfProbe, ProcfsProbe]


def open_probe(
    backend: str,
    files: KernelFiles,
    queue_latency: bool,
    talkers: bool,
    fsync_hook: str = hooks.AUTO,
) -> Probe:
    """The probe that `backend` names ("auto": the best this kernel supports).

    Raises OSError or BpfError if a requested probe or hook is unavailable.
    """
    if backend == "procfs":
        if fsync_hook != hooks.AUTO:
            raise OSError(f"--fsync-hook {fsync_hook} needs BPF, and the probe is procfs")
        return ProcfsProbe("not asked for")
    probes: Dict[str, Type[BpfProbe]] = {"libbpf": BpfProbe, "bcc": BccProbe}
    probes["auto"] = _best_probe(files)
    try:
        return probes[backend](
            object_image(), files, queue_latency, talkers, fsync_hook=fsync_hook,
            mounted=mounted_types(files),
        )
    except (OSError, libbpf.BpfError) as error:
        if backend != "auto" or fsync_hook != hooks.AUTO:
            raise
        log.warning("BPF probe: %s; continuing with /proc alone", error)
        return ProcfsProbe(str(error))


def _best_probe(files: KernelFiles) -> Type[BpfProbe]:
    """libbpf needs BTF to relocate its object; without BTF bcc is tried."""
    return BpfProbe if files.path(BTF).exists() else BccProbe


def tried() -> ProbeInfo:
    """The probe a daemon would get here: opened in the same way, then closed; needs root.

    Raises OSError or BpfError when only /proc is left.
    """
    files = KernelFiles()
    probe = _best_probe(files)(object_image(), files, mounted=mounted_types(files))
    with contextlib.closing(probe):
        return probe.info()
