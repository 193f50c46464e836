# SPDX-License-Identifier: GPL-2.0-or-later
"""Decides per-device dirty limits ("caps").

The right limit for one array is far too small for writers to another disk.  If the kernel
has limits per device (6.8), the device that needs a small limit gets a cap, and the global limit
returns to what the other devices need.  This is done only while others write, and in an order that
keeps protection all the time: the global limit comes down, the cap is set, and after the kernel has
accepted the cap the global limit rises again.

A device whose policy section has a ceiling below the general one gets its cap ("standing") in the
tick that first sees it.  Memory fills at GB/s, so before its drain rate could be measured a 12 MB/s
USB stick would have dirty pages that take minutes to drain.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Dict, List, Mapping, Sequence, Tuple

from writebackd.control.ramp import near
from writebackd.estimate.limit_shares import reserved, shared_limit
from writebackd.policy.schema import Policy
from writebackd.tuning import (
    AGAIN_S,
    BUSY_SHARE,
    FLOOD_RATE,
    IN_FORCE,
    MINIMA_SHARE,
    MOST_OWN,
    OWN_SHARE,
    WAVE_S,
)
from writebackd.types.copying import replace
from writebackd.types.core_memory import Cap, Memory
from writebackd.types.decision import DeviceDecision
from writebackd.types.levers import LeverKind, Setting
from writebackd.types.samples import Sample


@dataclass(frozen=True)
class DeviceLimits:
    """One tick's plan: `shared` are the wants that the global limit must meet.

    `reserve`: bytes to add to the global limit for pages dirty under standing caps.
    """

    shared: List[DeviceDecision]
    settings: Tuple[Setting, ...]
    memory: Memory
    reserve: int = 0


def plan_device_limits(
    policy: Policy,
    memory: Memory,
    sample: Sample,
    wants: Sequence[DeviceDecision],
) -> DeviceLimits:
    """Settings of caps; nothing while yielded or pinned."""
    if memory.yielded is not None or memory.pin_bytes is not None:
        return DeviceLimits(list(wants), (), replace(memory, caps={}))
    settings: List[Setting] = []
    caps: Dict[str, Cap] = {}
    refused = {
        bdi: since for bdi, since in memory.refused_caps.items()
        if sample.time_s - since <= AGAIN_S
    }
    if policy.levers.per_device:
        others = [task for task in sample.tasks if task.device is None]
        # Where the limit of all does not hold them, as it does not for a few megabytes, they need
        # no other one.  Under a cap it holds nobody.
        held = memory.caps or any(task.throttled_s >= BUSY_SHARE * sample.dt_s for task in others)
        if held and sum([task.dirtied_bytes for task in others]) >= FLOOD_RATE * sample.dt_s:
            memory = replace(memory, others_s=sample.time_s)
        refused.update((bdi, sample.time_s) for bdi in _refused(sample))
        caps = _caps(memory, sample, wants, refused, own_ceilings(policy, sample))
    bdis = {seen.device.name: seen.device.bdi for seen in sample.devices if caps}
    # min_bytes becomes a share of the global limit, which this tick may lower.
    lowest = min(
        (want.target_bytes for want in wants if want.target_bytes is not None),
        default=sample.vm.threshold_bytes,
    )
    lowest = min(lowest, sample.vm.threshold_bytes)
    for name, cap in caps.items():
        # Without a minimum, a device under strict_limit that wrote nothing lately gets almost none.
        least = min(cap.bytes // 2, lowest // (MINIMA_SHARE * len(caps)))
        if cap.standing:
            least = min(least, lowest // OWN_SHARE)
        settings += [
            Setting(LeverKind.BDI, bdis[name], "max_bytes", cap.bytes),
            Setting(LeverKind.BDI, bdis[name], "min_bytes", least),
            Setting(LeverKind.BDI, bdis[name], "strict_limit", 1),
        ]
    shared = [want for want in wants if want.name not in caps or not caps[want.name].in_force]
    memory = replace(memory, caps=caps, refused_caps=refused)
    return DeviceLimits(shared, tuple(settings), memory, reserved(memory, sample.time_s))


def own_ceilings(policy: Policy, sample: Sample) -> Dict[str, int]:
    """Ceilings that the policy sets for single devices, bytes, by name."""
    ceilings: Dict[str, int] = {}
    if not policy.devices.settings:
        return ceilings
    for seen in sample.devices:
        device = seen.device
        own = policy.of(device).own_ceiling_bytes
        if own is not None and seen.excluded is None and len(ceilings) < MOST_OWN:
            ceilings[device.name] = own
    return ceilings


def _caps(
    memory: Memory, sample: Sample, wants: Sequence[DeviceDecision], refused: Mapping[str, float],
    own: Mapping[str, int],
) -> Dict[str, Cap]:
    caps: Dict[str, Cap] = {}
    # The smallest target among devices without a cap.
    least = min(
        (
            want.target_bytes for want in wants
            if want.demand and want.target_bytes is not None and want.name not in memory.caps
        ),
        default=0,
    )
    shared = shared_limit(memory, sample)
    asked = [
        want for want in wants
        if want.name in memory.caps or want.name in own or _is_tightest(want, least, shared)
    ]
    if not asked:
        return caps
    # No cap is in force where nothing is written.
    taken = {action.lever for action in sample.actions if action.ok and not memory.dry}
    devices = {seen.device.name: seen.device for seen in sample.devices}
    flooded_lately = {
        name for name, each in memory.devices.items()
        if sample.time_s - each.last_flood_s <= 2 * WAVE_S
    }
    # NFS and FUSE have no disk that could be flooded; their writers wait for the global limit, too.
    others = sample.time_s - memory.others_s <= 2 * WAVE_S
    # Number of recently flooded devices on each leaf disk.
    floods_on = Counter(
        leaf for seen in sample.devices if seen.device.name in flooded_lately
        for leaf in seen.device.leaf_devnos
    )
    for want in asked:
        device, known = devices[want.name], memory.caps.get(want.name)
        if device.bdi in refused:
            continue
        if known is not None and sample.time_s < memory.hold_until_s:
            # Keep a cap of the previous run until demand and floods are known again.
            caps[want.name] = replace(known, standing=want.name in own)
            continue
        flooded = want.name in flooded_lately
        standing = want.name in own and not (flooded and want.demand)
        if known is not None and known.standing and not standing:
            # It needs a smaller limit than the standing one, and lowering its cap would block its
            # writers.  So the global limit comes down first, as for any other device.
            known = None
        in_force = known is not None and (
            known.in_force or f"bdi {device.bdi} strict_limit" in taken
        )
        if standing:
            size = own[want.name]
            if want.target_bytes is not None:
                size = min(size, want.target_bytes)
            # A new cap during a flood would block its writers until the rest has drained.
            if known is not None or not flooded or shared <= IN_FORCE * size:
                if known is not None and near(size, known.bytes):
                    size = known.bytes
                caps[want.name] = Cap(size, in_force, standing=True)
            continue
        if want.target_bytes is None or not want.demand:
            continue
        if known is None and not _is_tightest(want, least, shared):
            continue
        if len(flooded_lately) <= flooded and not others:
            continue  # no other device is flooded: the global limit is enough
        # Another flooded volume on the same disks would be unlimited under the raised global
        # limit, and delay the same syncs.
        if any(floods_on[leaf] > flooded for leaf in device.leaf_devnos):
            continue
        if known is None:
            caps[want.name] = Cap(want.target_bytes)
            continue
        size = known.bytes if near(want.target_bytes, known.bytes) else want.target_bytes
        caps[want.name] = Cap(size, in_force)
    return caps


def _is_tightest(want: DeviceDecision, least: int, shared: int) -> bool:
    """Whether no device needs less, and the global limit has come down to this need."""
    target = want.target_bytes
    return want.demand and target is not None and target <= least and shared <= IN_FORCE * target


def _refused(sample: Sample) -> List[str]:
    """BDIs whose caps were refused by the kernel or the self-test, or changed by others."""
    levers = [action.lever for action in sample.actions if not action.ok]
    levers += [write.lever for write in sample.foreign]
    words = (lever.split() for lever in levers)
    return [each[1] for each in words if each[0] == LeverKind.BDI.value]
