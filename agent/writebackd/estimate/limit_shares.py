# SPDX-License-Identifier: GPL-2.0-or-later
"""Shares of the global limit that small cgroups get (domain_dirty_limits()).

A limit in bytes becomes a share of what can be dirty on the host, in steps of one in
page-size (1/4096), rounded up; a cgroup gets that share of its own memory.
"""

from __future__ import annotations

from typing import Dict

from writebackd.tuning import CACHE_S, IN_FORCE
from writebackd.types.core_memory import Memory
from writebackd.types.device_memory import DeviceMemory
from writebackd.types.samples import CgroupMemory, Sample


def paces(memory: Memory) -> Dict[str, float]:
    """By device, what `io.max` lets in of its flood, bytes per second; of those held by one."""
    found: Dict[str, float] = {}
    for paced in memory.paces.values():
        if paced.rate is not None and paced.in_force_s is not None:
            for name in paced.names:
                found[name] = found.get(name, 0.0) + paced.rate
    return found


def share_of(limit_bytes: int, cgroup: CgroupMemory, sample: Sample) -> int:
    """A cgroup's own dirty limit under a global one, bytes."""
    page = sample.host.page_size
    pages = max(1, (sample.vm.dirtyable_bytes or 0) // page)
    parts = min(-(-limit_bytes // pages), page)
    return parts * cgroup.avail_bytes // page


def needed(share_bytes: int, cgroup: CgroupMemory, sample: Sample) -> int:
    """The least global limit under which a cgroup may hold `share_bytes`."""
    page = sample.host.page_size
    parts = min(page, -(-share_bytes * page // max(1, cgroup.avail_bytes)))
    return parts * ((sample.vm.dirtyable_bytes or 0) // page)


def limited(sample: Sample) -> Dict[str, CgroupMemory]:
    """The cgroups with a memory limit that wait or waited for a dirty one, by path."""
    if not sample.vm.dirtyable_bytes:
        return {}
    return {each.memory.path: each.memory for each in sample.cgroups if each.memory is not None}


def shared_limit(memory: Memory, sample: Sample) -> int:
    """The global limit as it holds for the flood, bytes.

    Where small cgroups alone flood, that is what they may hold of it; what is dirty under
    caps of others, or stuck, is not theirs either.
    """
    threshold, lift = sample.vm.threshold_bytes, memory.lift
    reserve = reserved(memory, sample.time_s)
    if reserve < threshold:
        threshold -= reserve
    # On its way up to that the limit is not this one's yet.
    if threshold - memory.stuck_room >= (memory.goal_bytes or 0) // 2:
        threshold -= memory.stuck_room
    if lift is None or lift.others:
        return threshold
    own = [
        share_of(threshold, cgroup, sample)
        for path, cgroup in limited(sample).items()
        if path in lift.seen_s
    ]
    return min(threshold, sum(own)) if own else threshold


def is_in_force(limit_bytes: int, memory: DeviceMemory) -> bool:
    """Whether the device's part of the limit in force is the law's own.

    It is another one on the way there, in waves, under a pin or a pace, in a trial, and where
    somebody else needs less.
    """
    own = memory.law.limit_bytes
    if not own:
        return False
    return 1 / IN_FORCE <= limit_bytes / own <= IN_FORCE


def reserved(memory: Memory, now_s: float) -> int:
    """What the flooded under standing caps may hold of the global limit, bytes.

    The kernel counts it like all that is dirty: without it a global limit that is right for
    another device would stop that one's writers until a stick has drained.
    """
    return sum(
        cap.bytes for name, cap in memory.caps.items()
        if cap.standing and cap.in_force and name in memory.devices
        and now_s - memory.devices[name].last_flood_s <= CACHE_S
    )
