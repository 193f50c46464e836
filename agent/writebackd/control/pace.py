# SPDX-License-Identifier: GPL-2.0-or-later
"""Pacing: a flood from another cgroup held just below what the disk drains.

A dirty limit bounds what is queued ahead of a sync; it does not keep a write cache
from filling, and a full cache makes every write wait for the media.  A flood whose
inflow stays below the drain rate leaves room in the cache for good, and then wide
dirty limits do no harm.  Measured at 60 MB/s: 16 % of the idle fsync rate with the
best fixed limit, 80 % with the flood held at 55 MB/s.

It begins when syncs are slow in a flood, and does not wait until the limit has come down:
a backlog of gigabytes is drained at the pace as well.  How fast the flood may go cannot be
computed, since syncs that write the same blocks again cost the media nothing: the rate is
cut while the cache is full and raised while it never is.  A sync load that writes all it can
would take whatever is cut: so no further down than the share that the policy keeps for the
paced, unless syncs are not helped by that.

Whether the data of a paced cgroup holds up the commits of others (ext4 waits for it) is
measured as well.  A first try has to make syncs as good as the objective; if it does not,
the limit alone gets its turn, and the next try has to be better than that by far.  Else it
lets go.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, FrozenSet, List, Mapping, Tuple

from writebackd.control.device import Want
from writebackd.control.guards import SYNCED_LATELY_S
from writebackd.control.paced import Domain, PaceTick, within
from writebackd.control.scene import Scene
from writebackd.model import (
    Device,
    Estimate,
    LeverKind,
    Memory,
    PaceMemory,
    Sample,
    Setting,
    State,
    replace,
)
from writebackd.policy.schema import Policy


@dataclass(frozen=True)
class Paced:
    """What pacing adds to a tick's decision."""

    wants: List[Want]
    settings: Tuple[Setting, ...]
    memory: Memory


def pace(
    policy: Policy,
    memory: Memory,
    sample: Sample,
    estimates: Mapping[str, Estimate],
    wants: List[Want],
) -> Paced:
    """The wants with those of paced devices replaced, the paces, and the memory.

    While a pace is in force the device wants a wide limit: what the paced cgroups write in
    WIDE_S (drain-time, where that is less), no more, or sync(2) and freezes would wait for
    gigabytes at that rate; less, once a freeze was seen to.
    """
    memory = remember_syncers(memory, sample)
    if not policy.levers.pace or memory.yielded is not None or memory.pin_bytes is not None:
        return Paced(wants, (), replace(memory, paces={}))
    changed = {want.name: want for want in wants}
    settings: List[Setting] = []
    paces: Dict[str, PaceMemory] = {}
    scene = Scene(policy, memory, sample)
    for domain in _domains(sample):
        known = memory.paces.get(domain.devno, PaceMemory())
        now, note = PaceTick(policy, memory, scene, estimates, domain, changed).decide(known)
        paces[domain.devno] = now
        settings += [
            Setting(LeverKind.PACE, path, domain.devno, rate)
            for path, rate in sorted(now.rates.items())
        ]
        held = {seen.device.name for seen in domain.devices}
        for name in domain.group if note else ():
            want = changed[name]
            if want.state is State.EXCLUDED or not (want.demand or name in held):
                continue
            want = replace(want, steps=(*want.steps, note))
            if now.rate is not None:
                want = replace(want, state=State.PACE, reason=note)
                if now.limit_bytes is not None:
                    device = scene.devices[name].device
                    bounds = policy.for_device(name, device.devno, device.driver)
                    limit = within(bounds, sample.host, now.limit_bytes)
                    want = replace(want, target_bytes=limit)
            changed[name] = want
    return Paced(list(changed.values()), tuple(settings), replace(memory, paces=paces))


def remember_syncers(memory: Memory, sample: Sample) -> Memory:
    """Who synced in the last minutes, also while nothing is paced."""
    syncers = {
        cgroup_id: (path, last_s)
        for cgroup_id, (path, last_s) in memory.syncers.items()
        if sample.time_s - last_s <= SYNCED_LATELY_S
    }
    for cgroup in sample.cgroups:
        if cgroup.syncs:
            known = syncers.get(cgroup.cgroup_id, (None, 0.0))[0]
            syncers[cgroup.cgroup_id] = (cgroup.path or known, sample.time_s)
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
