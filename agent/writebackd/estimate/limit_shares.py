# SPDX-License-Identifier: GPL-2.0-or-later
"""The part of the global limit that applies to a flood: next to other devices, in small cgroups.

The kernel turns a limit in bytes into a share of the host's dirtyable memory, in steps of
1 / page size (1/4096), rounded up.  A cgroup with a memory limit may dirty that share of its own
memory (domain_dirty_limits()).
"""

from __future__ import annotations

from typing import Dict

from writebackd.tuning import CACHE_S, IN_FORCE
from writebackd.types.core_memory import Memory
from writebackd.types.device_memory import DeviceMemory
from writebackd.types.samples import CgroupMemory, Sample


def paces(memory: Memory) -> Dict[str, float]:
    """For each device with a paced flood, the sum of its `io.max` rates, bytes per second."""
    rates: Dict[str, float] = {}
    for paced in memory.paces.values():
        if paced.rate is not None and paced.in_force_s is not None:
            for name in paced.names:
                rates[name] = rates.get(name, 0.0) + paced.rate
    return rates


def share_of(limit_bytes: int, cgroup: CgroupMemory, sample: Sample) -> int:
    """A cgroup's own dirty limit under a global one, bytes."""
    page = sample.host.page_size
    pages = max(1, (sample.vm.dirtyable_bytes or 0) // page)
    parts = min(-(-limit_bytes // pages), page)
    return parts * cgroup.avail_bytes // page


def needed(share_bytes: int, cgroup: CgroupMemory, sample: Sample) -> int:
    """The smallest global limit under which a cgroup may dirty `share_bytes`."""
    page = sample.host.page_size
    parts = min(page, -(-share_bytes * page // max(1, cgroup.avail_bytes)))
    return parts * ((sample.vm.dirtyable_bytes or 0) // page)


def limited(sample: Sample) -> Dict[str, CgroupMemory]:
    """The cgroups with a memory limit that are or were throttled by a dirty limit, by path."""
    if not sample.vm.dirtyable_bytes:
        return {}
    return {c.memory.path: c.memory for c in sample.cgroups if c.memory is not None}


def shared_limit(memory: Memory, sample: Sample) -> int:
    """The part of the global limit that the flood may use, bytes.

    Not included are pages dirty under the limits of other devices, and stuck pages.  If only small
    cgroups flood, it is at most the sum of their shares.
    """
    threshold, lift = sample.vm.threshold_bytes, memory.lift
    reserve = reserved(memory, sample.time_s)
    if reserve < threshold:
        threshold -= reserve
    # While the limit still rises to make room for stuck pages, it does not contain that room yet.
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

    It is not while the limit is on its way, in waves, under a pin or a pace, in a trial, and if
    another device needs less.
    """
    own = memory.law.limit_bytes
    if not own:
        return False
    return 1 / IN_FORCE <= limit_bytes / own <= IN_FORCE


def reserved(memory: Memory, now_s: float) -> int:
    """Bytes of the global limit reserved for flooded devices with a standing limit of their own.

    Their dirty pages count against the global limit as well.  Without the reserve, writers to other
    devices would block until, for example, a USB stick has drained.
    """
    return sum(
        cap.bytes for name, cap in memory.caps.items()
        if cap.standing and cap.in_force and name in memory.devices
        and now_s - memory.devices[name].last_flood_s <= CACHE_S
    )
