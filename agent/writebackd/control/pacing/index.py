# SPDX-License-Identifier: GPL-2.0-or-later
"""Indexes a tick's sample for pacing, once for all disks.

Searching all devices and cgroups for each disk would be quadratic: with 1024 disks it took 550 ms.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional, Sequence

from writebackd.control.pacing.exclusions import objection
from writebackd.policy.schema import Policy
from writebackd.types.core_memory import Memory
from writebackd.types.samples import CgroupSample, Sample


class TickIndex:
    """Devices by name, cgroups by path, and the bytes cgroups wrote by disk."""

    def __init__(self, policy: Policy, memory: Memory, sample: Sample) -> None:
        self._policy, self._memory, self.sample = policy, memory, sample
        self.devices = {seen.device.name: seen for seen in sample.devices}
        self._cgroups: Dict[str, CgroupSample] = {}  # those whose control files were read
        # Lines of io.max, by path and devno; None where the io controller is off.
        self.limits: Dict[str, Optional[Mapping[str, str]]] = {}
        # Bytes in this tick, by devno and path; by device name where the io controller is off.
        self._written: Dict[str, Dict[str, int]] = {}
        for cgroup in sample.cgroups:
            control, path = cgroup.control, cgroup.path or ""
            if control is None:
                continue
            self._cgroups[path] = cgroup
            self.limits[path] = None if control.io_max is None else dict(control.io_max)
            for devno, size in control.written:
                self._written.setdefault(devno, {})[path] = size
            if control.off and cgroup.device is not None:
                self._written.setdefault(cgroup.device, {})[path] = cgroup.dirtied_bytes
        self.foreign = {write.lever for write in sample.foreign}
        self._paced_on: Dict[str, List[str]] = {}
        for devno, paced in memory.paces.items():
            for path in paced.rates:
                self._paced_on.setdefault(path, []).append(devno)
        self._objections: Dict[str, Optional[str]] = {}

    def written(self, devno: str, names: Sequence[str]) -> Mapping[str, int]:
        """Bytes in this tick on a disk that the named devices share, by path."""
        by_path: Dict[str, int] = {}
        for key in (devno, *names):
            for path, size in self._written.get(key, {}).items():
                by_path[path] = by_path.get(path, 0) + size
        return by_path

    def objection(self, path: str) -> Optional[str]:
        """Why one of the cgroups must not be paced; None if it may be."""
        if path not in self._objections:
            self._objections[path] = objection(
                self._cgroups[path], self._paced_on.get(path, ()), self._memory.syncers,
                self._policy.protect, self.sample.time_s, self._policy.levers.pace == "auto",
            )
        return self._objections[path]
