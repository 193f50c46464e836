# SPDX-License-Identifier: GPL-2.0-or-later
"""Puts everything that one tick reads into a Sample."""

from __future__ import annotations

import contextlib
import heapq
from operator import add
from typing import Callable, Collection, Dict, FrozenSet, Mapping, Optional, Set, Tuple

from writebackd.kernel import bdi
from writebackd.kernel.cgroup_index import CgroupIndex
from writebackd.kernel.cgroup_io_max import cgroup2_mount
from writebackd.kernel.diskstats import DiskStats, DiskStatsReader, delta
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.map_readers import CgroupReading, Reading
from writebackd.kernel.probe import Probe
from writebackd.kernel.topology import Topology
from writebackd.kernel.vm import host_info, read_state
from writebackd.types.copying import replace
from writebackd.types.levers import Action, ForeignWrite
from writebackd.types.samples import (
    CgroupControl,
    CgroupSample,
    ClassSample,
    DeviceSample,
    IoClass,
    Sample,
    SyncSample,
    TaskSample,
)
from writebackd.types.storage import Backing, Device

# Tasks whose cgroup is looked up; it costs a read of /proc each.
NAMED_TASKS = 5
# Cgroups that are looked up in a tick: so many that dirtied most, and as many that synced most.
# Those found before cost nothing.
MOST_RESOLVED = 32
# Ticks in which every device's own limit is read once, as somebody may set one: two files each.
TURNS = 8


class Sampler:
    """Reads /proc, the topology and the probe; keeps the values that differences need."""

    def __init__(
        self,
        files: KernelFiles,
        topology: Topology,
        probe: Probe,
        excluded: Callable[[Device], Optional[str]],
    ) -> None:
        """`excluded` says why a device is left alone, or None."""
        self.probe = probe
        self.excluded = excluded
        self._cgroups = CgroupIndex(files, cgroup2_mount(files))
        self._files = files
        self._topology = topology
        self._host = host_info(files)
        self._disks = DiskStatsReader(files)
        self._last: Dict[str, DiskStats] = {}
        self._devices: Tuple[Device, ...] = ()  # of the last tick, and the numbers that they need
        self._numbers: FrozenSet[str] = frozenset()
        self._strict: Dict[str, Optional[int]] = {}  # of each device, up to TURNS ticks ago
        self._turn = 0
        self.writers: Tuple[ForeignWrite, ...] = ()  # who wrote vm.dirty_* in the last tick

    def read(
        self, time_s: float, wall_s: float, dt_s: float, actions: Tuple[Action, ...],
        watch_cgroups: bool = False, paced: Collection[str] = (),
        backings: Tuple[Backing, ...] = (),
    ) -> Sample:
        """One tick.  Raises OSError, ValueError or BpfError if it cannot be read.

        `watch_cgroups`: read the files of cgroups that flood, which pacing needs, and of those
        that are `paced`, whatever they do.
        """
        vm = read_state(self._files)
        with contextlib.suppress(OSError, ValueError):  # CPUs and memory may be plugged in
            self._host = host_info(self._files)
        devices = self._topology.devices
        if devices is not self._devices:
            self._devices = devices
            self._numbers = frozenset(
                number for device in devices for number in (device.devno, *device.leaf_devnos)
            )
            self._strict = {}
        disks = self._disks.read(self._numbers)
        reading = self.probe.read(self._topology.by_fs)
        self.writers = reading.writers if reading is not None else ()
        syncs = self._syncs_by_device(reading)
        # What was lost may have been theirs: no syncs, or not seen?
        nothing = reading.no_syncs if reading is not None and not reading.syncs_lost else None
        samples = []
        self._turn = (self._turn + 1) % TURNS
        asked = {device.name for device in devices[self._turn::TURNS]}
        asked.update(name for name, own in self._strict.items() if own is not None)
        for device in devices:
            grown = self._grown(device, disks)
            if grown is None:
                continue  # gone since the scan; the next one drops it
            if device.name in asked or device.name not in self._strict:
                own = bdi.strict_limit(self._files, device.bdi, vm.threshold_bytes)
                self._strict[device.name] = own
            samples.append(
                DeviceSample(
                    device=device,
                    excluded=self.excluded(device),
                    write_bytes=grown.write_bytes,
                    read_bytes=grown.read_bytes,
                    writes=grown.writes,
                    inflight=grown.inflight,
                    # Clocks of two files: a busy tick may come out a bit over one.
                    busy_share=min(1.0, grown.io_ms / 1e3 / dt_s),
                    classes=_classes(device, reading),
                    sync=syncs.get(device.name, nothing),
                    others=grown.discards + grown.flushes,
                    strict_bytes=self._strict[device.name],
                )
            )
        self._last = disks
        return Sample(
            time_s=time_s,
            wall_s=wall_s,
            dt_s=dt_s,
            host=self._host,
            vm=vm,
            devices=tuple(samples),
            tasks=self._named_tasks(reading),
            cgroups=self._by_cgroup(reading, time_s, dt_s, paced if watch_cgroups else None),
            actions=actions,
            backings=backings,
        )

    def locate(self, write: ForeignWrite) -> ForeignWrite:
        """The same write with its writer's cgroup, if that still exists."""
        if write.pid is None or write.cgroup_id is None:
            return write
        cgroup = self._cgroups.path(write.cgroup_id, write.pid)
        return replace(write, cgroup=cgroup or self._cgroups.find(write.cgroup_id))

    def _grown(self, device: Device, disks: Mapping[str, DiskStats]) -> Optional[DiskStats]:
        """Growth in the tick of the device's own row, or of its leaves together."""
        own = disks.get(device.devno)
        if own is not None:
            return delta(self._last.get(device.devno, own), own)
        total: Optional[DiskStats] = None
        for number in device.leaf_devnos:
            now = disks.get(number)
            if now is not None:
                grown = delta(self._last.get(number, now), now)
                total = grown if total is None else _add(total, grown)
        return total

    def _syncs_by_device(self, reading: Optional[Reading]) -> Dict[str, SyncSample]:
        result: Dict[str, SyncSample] = {}
        for st_dev, sync in (reading.syncs if reading is not None else {}).items():
            device = self._topology.by_fs(st_dev)
            if device is not None:
                known = result.get(device.name)
                result[device.name] = sync if known is None else known + sync
        return result

    def _by_cgroup(
        self, reading: Optional[Reading], now_s: float, dt_s: float,
        paced: Optional[Collection[str]],
    ) -> Tuple[CgroupSample, ...]:
        """Each cgroup's activity on each device; `paced`: None if no files are to be read."""
        sums: Dict[Tuple[int, Optional[str]], CgroupReading] = {}
        for (cgroup_id, number), seen in (reading.cgroups if reading else {}).items():
            device = self._topology.by_fs(number)
            key = (cgroup_id, device.name if device else None)
            sums[key] = sums.get(key, CgroupReading()) + seen
        resolved = _largest(sums)
        paths = {
            key[0]: self._cgroups.path(key[0], seen.pid if key[0] in resolved else 0)
            for key, seen in sums.items()
        }
        dirtied: Dict[Optional[str], Dict[str, float]] = {}
        slept: Dict[str, float] = {}
        for (cgroup_id, device_name), seen in sums.items():
            path = paths[cgroup_id]
            if path is not None:
                rates = dirtied.setdefault(device_name, {})
                rates[path] = rates.get(path, 0.0) + seen.dirtied_bytes / dt_s
                slept[path] = slept.get(path, 0.0) + seen.throttled_s
        memory = self._cgroups.memory(slept, now_s)
        control: Dict[str, CgroupControl] = {}
        if paced is not None:
            control = self._cgroups.control(dirtied, now_s, paced)
        # Those that rest for a moment as well: what they hold, and still write, counts.
        busy = set(paths.values())
        for path in {**control, **memory}:
            resting = self._cgroups.id(path)
            if path not in busy and resting is not None:
                paths[resting] = path
                sums.setdefault((resting, None), CgroupReading())
        return tuple(
            CgroupSample(
                cgroup_id=cgroup_id,
                path=paths[cgroup_id],
                device=device_name,
                dirtied_bytes=seen.dirtied_bytes,
                throttled_s=seen.throttled_s,
                syncs=seen.syncs,
                own=paths[cgroup_id] is not None and paths[cgroup_id] == self._cgroups.own,
                control=control.get(paths[cgroup_id] or ""),
                memory=memory.get(paths[cgroup_id] or ""),
            )
            for (cgroup_id, device_name), seen in sums.items()
        )

    def _named_tasks(self, reading: Optional[Reading]) -> Tuple[TaskSample, ...]:
        """The tasks with device names; the busiest with their cgroup path."""
        if reading is None:
            return ()
        busiest = sorted(reading.tasks, key=lambda task: -task.dirtied_bytes)[:NAMED_TASKS]
        tasks = []
        for task in reading.tasks:
            device = self._topology.by_fs(task.device) if task.device else None
            cgroup = self._cgroups.of_process(task.pid) if task in busiest else None
            tasks.append(replace(task, device=device.name if device else None, cgroup=cgroup))
        return tuple(tasks)


def _largest(sums: Mapping[Tuple[int, Optional[str]], CgroupReading]) -> Set[int]:
    """The cgroups worth examining: any user may have thousands of small ones."""
    if len(sums) <= MOST_RESOLVED:
        return {cgroup_id for cgroup_id, _ in sums}
    by_bytes = heapq.nlargest(MOST_RESOLVED, sums, key=lambda key: sums[key].dirtied_bytes)
    by_syncs = heapq.nlargest(MOST_RESOLVED, sums, key=lambda key: sums[key].syncs)
    return {cgroup_id for cgroup_id, _ in (*by_bytes, *by_syncs)}


def _add(a: DiskStats, b: DiskStats) -> DiskStats:
    """The sum of two leaves of one device, which is as busy as the busier one."""
    return DiskStats(*map(add, a, b))._replace(io_ms=max(a.io_ms, b.io_ms))


def _classes(
    device: Device, reading: Optional[Reading]
) -> Optional[Mapping[IoClass, ClassSample]]:
    """The requests of all leaves of the device."""
    if reading is None:
        return None
    if len(device.leaf_devnos) == 1:
        return reading.classes.get(device.leaf_devnos[0], {})
    total: Dict[IoClass, ClassSample] = {}
    for number in device.leaf_devnos:
        for io_class, sample in reading.classes.get(number, {}).items():
            total[io_class] = total[io_class] + sample if io_class in total else sample
    return total
