# SPDX-License-Identifier: GPL-2.0-or-later
"""Pacing: a flood from another cgroup held just below what the disk drains.

A dirty limit bounds what is queued ahead of a sync; it does not keep a write cache
from filling, and a full cache makes every write wait for the media.  A flood whose
inflow stays below the drain rate leaves room in the cache for good, and then wide
dirty limits do no harm.  Measured at 60 MB/s: 16 % of the idle fsync rate with the
best fixed limit, 80 % with the flood held at 55 MB/s.

It begins once a full cache was seen under the limit alone, and its drain rate R is known: at the
least that the policy keeps for the paced.  From then on the law sets the rate as it sets a limit
(control/law.py); this module finds whom to hold, hands the rate out, and asks one question: are
syncs clearly faster than they were under the limit alone?  On ext4 a commit waits for the data of
a paced cgroup as well.  Where they are not, it lets go for ten minutes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, FrozenSet, List, Mapping, Tuple

from writebackd.control.device_decision import DeviceTarget
from writebackd.control.pacing.domain import Domain, PaceTick, limit_bytes
from writebackd.control.pacing.exclusions import SYNCED_LATELY_S
from writebackd.control.pacing.index import TickIndex
from writebackd.estimate.drain import unpriced
from writebackd.policy.schema import Policy
from writebackd.types.copying import replace
from writebackd.types.core_memory import Memory
from writebackd.types.decision import DeviceState
from writebackd.types.device_memory import DeviceMemory
from writebackd.types.estimate import Estimate
from writebackd.types.levers import LeverKind, Setting
from writebackd.types.pace_memory import PaceMemory
from writebackd.types.samples import Sample
from writebackd.types.storage import Device

# Cgroups that synced lately and are remembered. Any user may make 512 of them in each tick (half
# of the kernel's table), with paths of 4 KB: in five minutes 560 MB, where the unit has 192.
MOST_SYNCERS = 4096


@dataclass(frozen=True)
class PacePlan:
    """What pacing adds to a tick's decision."""

    wants: List[DeviceTarget]
    settings: Tuple[Setting, ...]
    memory: Memory


def pace(
    policy: Policy,
    memory: Memory,
    sample: Sample,
    estimates: Mapping[str, Estimate],
    wants: List[DeviceTarget],
    remembered: Dict[str, DeviceMemory],
) -> PacePlan:
    """The wants with those of paced devices replaced, the paces, and the memory.

    While a pace is in force the device wants a wide limit: what the paced cgroups write in
    WIDE_S (drain-time, where that is less), no more, or sync(2) and freezes would wait for
    gigabytes at that rate.  `remembered` are the devices' memories: where a pace comes into force
    they learn anew what a sync costs, since many more will be made.
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
                bounds = policy.for_device(name, device.devno, device.driver)
                limit = limit_bytes(bounds, sample.host, now)
                if limit is not None:
                    want = replace(want, target_bytes=limit)
            if began:
                mine = remembered[name]
                remembered[name] = replace(mine, drain=unpriced(mine.drain))
            changed[name] = want
    return PacePlan(list(changed.values()), tuple(settings), replace(memory, paces=paces))


def remember_syncers(memory: Memory, sample: Sample) -> Memory:
    """Who synced in the last minutes, also while nothing is paced."""
    syncers = {
        cgroup_id: (path, last_s)
        for cgroup_id, (path, last_s) in memory.syncers.items()
        if sample.time_s - last_s <= SYNCED_LATELY_S
    }
    for cgroup in sample.cgroups:
        if cgroup.syncs:
            known = syncers.pop(cgroup.cgroup_id, (None, 0.0))[0]
            syncers[cgroup.cgroup_id] = (cgroup.path or known, sample.time_s)  # as the last
    for oldest in list(syncers)[:-MOST_SYNCERS]:
        del syncers[oldest]
    return replace(memory, syncers=syncers)


def _domains(sample: Sample) -> List[Domain]:
    """Every disk whose number io.max takes, with the managed devices that it would hold.

    A single leaf disk holds all volumes on it.  Over several the volume itself is held,
    whose bytes are the ones that the rates here are in; btrfs has no such number.
    """
    by_devno: Dict[str, List[int]] = {}  # places in sample.devices, as below
    on_leaf: Dict[str, List[int]] = {}
    for place, seen in enumerate(sample.devices):
        leaves = _leaves(seen.device)
        for leaf in leaves:
            on_leaf.setdefault(leaf, []).append(place)
        devno = leaves[0] if len(leaves) == 1 else seen.device.devno
        if seen.excluded is None and devno[:1].isdigit():
            by_devno.setdefault(devno, []).append(place)
    found = []
    groups: Dict[FrozenSet[str], Tuple[str, ...]] = {}  # many volumes may share one
    for devno, places in by_devno.items():
        devices = tuple(sample.devices[place] for place in places)
        below = frozenset(leaf for seen in devices for leaf in _leaves(seen.device))
        if below not in groups:
            group = sorted({place for leaf in below for place in on_leaf[leaf]})
            groups[below] = tuple(sample.devices[place].device.name for place in group)
        found.append(Domain(devno, devices, groups[below]))
    return found


def _leaves(device: Device) -> Tuple[str, ...]:
    """Numbers of the disks that it ends on; its own where none are listed."""
    return device.leaf_devnos or (device.devno,)
