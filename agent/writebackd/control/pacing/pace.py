# SPDX-License-Identifier: GPL-2.0-or-later
"""Pacing: limits the flooding cgroup with io.max to just below the drain rate of the disk.

A dirty limit bounds what is queued ahead of a sync.  It does not keep a write cache from filling
up, and with a full cache every write waits for the media.  If a flood stays below the drain rate
the cache keeps room, and a large dirty limit does no harm.  On a disk of 60 MB/s fsync reached 16 %
of its idle rate with the best fixed limit, and 80 % with the flood held at 55 MB/s.

Pacing begins with a full cache, at `pace-share` of R.  From then on the law sets the pace as it
sets a limit (control/pace_law.py).  domain.py divides the pace among the cgroups, and ends it where
commits wait for what is paced.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, NamedTuple, Tuple

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

# Number of cgroups remembered because they synced lately.  Any user can create 512 per tick (half
# of the kernel's table) with paths of 4 KB: 560 MB in five minutes, and the unit may use 192 MB.
MOST_SYNCERS = 4096


class PacePlan(NamedTuple):
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

    `remembered` are the devices' memories: when a pace comes into force they measure the cost of a
    sync anew, since the fsync rate changes.
    """
    memory = remember_syncers(memory, sample)
    if policy.levers.pace == "off" or memory.yielded is not None or memory.pin_bytes is not None:
        return PacePlan(wants, (), replace(memory, paces={}))
    changed = {want.name: want for want in wants}
    settings: List[Setting] = []
    paces: Dict[str, PaceMemory] = {}
    scene = TickIndex(policy, memory, sample)
    for domain in _domains(sample):
        known = memory.paces.get(domain.devno, PaceMemory())
        now, notes = PaceTick(policy, memory, scene, estimates, domain, changed).decide(known)
        paces[domain.devno] = now = replace(now, names=domain.group)
        settings += [
            Setting(LeverKind.PACE, path, domain.devno, rate)
            for path, rate in sorted(now.rates.items())
        ]
        held = {seen.device.name for seen in domain.devices}
        for name in domain.group if notes else ():
            want = changed[name]
            if want.state is DeviceState.EXCLUDED or not (want.demand or name in held):
                continue
            want = replace(want, steps=(*want.steps, *notes))
            if now.rate is not None and not memory.dry:
                want = replace(want, state=DeviceState.PACE, reason=notes[0])
                limit = limit_bytes(policy.of(scene.devices[name].device), sample.host, now)
                if limit is not None:
                    want = replace(want, target_bytes=limit)
                if now.in_force_s is not None and known.in_force_s is None:
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
    by_devno: Dict[str, Domain] = {}
    on_leaf: Dict[str, List[str]] = {}
    groups: Dict[Tuple[str, ...], Tuple[str, ...]] = {}  # computed once for all volumes of a disk
    for seen in sample.devices:
        for leaf in seen.device.leaf_devnos or (seen.device.devno,):
            on_leaf.setdefault(leaf, []).append(seen.device.name)
    for seen in sample.devices:
        leaves = seen.device.leaf_devnos or (seen.device.devno,)
        devno = leaves[0] if len(leaves) == 1 else seen.device.devno
        if seen.excluded is not None or not devno[:1].isdigit():
            continue
        if leaves not in groups:
            groups[leaves] = tuple(dict.fromkeys(n for leaf in leaves for n in on_leaf[leaf]))
        others = by_devno[devno].devices if devno in by_devno else ()
        by_devno[devno] = Domain(devno, (*others, seen), groups[leaves])
    return list(by_devno.values())
