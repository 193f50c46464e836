# SPDX-License-Identifier: GPL-2.0-or-later
"""Pacing: limits the flooding cgroup with io.max to just below the drain rate of the disk.

A dirty limit bounds what is queued ahead of a sync.  It does not keep a write cache from filling
up, and with a full cache every write waits for the media.  If a flood stays below the drain rate
the cache keeps room, and a large dirty limit does no harm.  On a disk of 60 MB/s fsync reached 16 %
of its idle rate with the best fixed limit, and 80 % with the flood held at 55 MB/s.

Pacing begins when the cache was full under the dirty limit alone and R is known, at `pace-share` of
R.  From then on the law sets the pace as it sets a limit (control/law.py).  This module finds the
cgroups, divides the pace among them, and checks that syncs are clearly faster than under the limit
alone.  They may not be: on ext4 a commit also waits for the data of a paced cgroup.  Then pacing
stops for ten minutes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, FrozenSet, List, Mapping, Tuple

from writebackd.control.pacing.domain import Domain, PaceTick, limit_bytes
from writebackd.control.pacing.exclusions import SYNCED_LATELY_S
from writebackd.control.pacing.index import TickIndex
from writebackd.estimate.drain import unpriced
from writebackd.policy.schema import Policy
from writebackd.types.copying import replace
from writebackd.types.core_memory import Memory, PaceMemory
from writebackd.types.decision import DeviceDecision, DeviceState
from writebackd.types.device_memory import DeviceMemory
from writebackd.types.estimate import Estimate
from writebackd.types.levers import LeverKind, Setting
from writebackd.types.samples import Sample
from writebackd.types.storage import Device

# Number of cgroups remembered because they synced lately.  Any user can create 512 per tick (half
# of the kernel's table) with paths of 4 KB: 560 MB in five minutes, and the unit may use 192 MB.
MOST_SYNCERS = 4096


@dataclass(frozen=True)
class PacePlan:
    """What pacing adds to a tick's decision."""

    wants: List[DeviceDecision]
    settings: Tuple[Setting, ...]
    memory: Memory


def pace(
    policy: Policy,
    memory: Memory,
    sample: Sample,
    estimates: Mapping[str, Estimate],
    wants: List[DeviceDecision],
    remembered: Dict[str, DeviceMemory],
) -> PacePlan:
    """The wants with those of paced devices replaced, the paces, and the memory.

    While a pace is in force the device needs a large limit: what the paced cgroups write in WIDE_S,
    or in drain-time if that is shorter.  No more, or sync(2) and freezes would wait for gigabytes
    at that rate.  `remembered` are the devices' memories: when a pace comes into force they measure
    the cost of a sync anew, since the fsync rate changes.
    """
    memory = remember_syncers(memory, sample)
    if not policy.levers.pace or memory.yielded is not None or memory.pin_bytes is not None:
        return PacePlan(wants, (), replace(memory, paces={}))
    changed = {want.name: want for want in wants}
    settings: List[Setting] = []
    paces: Dict[str, PaceMemory] = {}
    scene = TickIndex(policy, memory, sample)
    for domain in _domains(sample):
        known = memory.paces.get(domain.devno, PaceMemory())
        now, note = PaceTick(policy, memory, scene, estimates, domain, changed).decide(known)
        paces[domain.devno] = now = replace(now, names=domain.group)
        began = now.in_force_s is not None and known.in_force_s is None
        settings += [
            Setting(LeverKind.PACE, path, domain.devno, rate)
            for path, rate in sorted(now.rates.items())
        ]
        held = {seen.device.name for seen in domain.devices}
        for name in domain.group if note else ():
            want = changed[name]
            if want.state is DeviceState.EXCLUDED or not (want.demand or name in held):
                continue
            want = replace(want, steps=(*want.steps, note))
            if now.rate is not None:
                want = replace(want, state=DeviceState.PACE, reason=note)
                device = scene.devices[name].device
                bounds = policy.of(device)
                limit = limit_bytes(bounds, sample.host, now)
                if limit is not None:
                    want = replace(want, target_bytes=limit)
            if began:
                mine = remembered[name]
                remembered[name] = replace(mine, drain=unpriced(mine.drain))
            changed[name] = want
    return PacePlan(list(changed.values()), tuple(settings), replace(memory, paces=paces))


def remember_syncers(memory: Memory, sample: Sample) -> Memory:
    """Remember the cgroups that synced in the last minutes, also while nothing is paced."""
    syncers = {
        cgroup_id: (path, last_s)
        for cgroup_id, (path, last_s) in memory.syncers.items()
        if sample.time_s - last_s <= SYNCED_LATELY_S
    }
    for cgroup in sample.cgroups:
        if cgroup.syncs:
            known = syncers.pop(cgroup.cgroup_id, (None, 0.0))[0]
            syncers[cgroup.cgroup_id] = (cgroup.path or known, sample.time_s)  # moves to the end
    for oldest in list(syncers)[:-MOST_SYNCERS]:
        del syncers[oldest]
    return replace(memory, syncers=syncers)


def _domains(sample: Sample) -> List[Domain]:
    """Every disk whose devno io.max accepts, with the managed devices it would limit.

    A device on a single leaf disk is limited there, with all other volumes of that disk.  A device
    on several disks is limited by its own devno, whose bytes are those of its rate.  btrfs has no
    devno that io.max accepts.
    """
    by_devno: Dict[str, List[int]] = {}  # indexes into sample.devices, here and below
    on_leaf: Dict[str, List[int]] = {}
    for place, seen in enumerate(sample.devices):
        leaves = _leaves(seen.device)
        for leaf in leaves:
            on_leaf.setdefault(leaf, []).append(place)
        devno = leaves[0] if len(leaves) == 1 else seen.device.devno
        if seen.excluded is None and devno[:1].isdigit():
            by_devno.setdefault(devno, []).append(place)
    domains = []
    groups: Dict[FrozenSet[str], Tuple[str, ...]] = {}  # computed once for all volumes of a disk
    for devno, places in by_devno.items():
        devices = tuple(sample.devices[place] for place in places)
        below = frozenset(leaf for seen in devices for leaf in _leaves(seen.device))
        if below not in groups:
            group = sorted({place for leaf in below for place in on_leaf[leaf]})
            groups[below] = tuple(sample.devices[place].device.name for place in group)
        domains.append(Domain(devno, devices, groups[below]))
    return domains


def _leaves(device: Device) -> Tuple[str, ...]:
    """Devnos of its leaf disks; its own if none are listed."""
    return device.leaf_devnos or (device.devno,)
