# SPDX-License-Identifier: GPL-2.0-or-later
"""Raises the global limit for cgroups whose share of it would be too small.

A cgroup with a memory limit has its own dirty limit.  The kernel turns the global limit into a
share of memory, in steps of 1/4096 (1 / page size), and the cgroup may dirty that share of *its*
memory (domain_dirty_limits).  With 2 MB on a host of 64 GB a cgroup of 64 MB gets 16 KB.

Its flood cannot exceed that share.  So the global limit is raised until the share is what the law
asks for.  Other cgroups could use the raised limit as well, so it is not raised while one of them
floods a device with sync demand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Mapping, Optional, Sequence, Tuple

from writebackd import formats
from writebackd.control import reasons
from writebackd.estimate.limit_shares import limited, needed, share_of
from writebackd.policy.schema import Policy
from writebackd.tuning import FLOOD_RATE, GRAIN_BYTES, HELD_BACK_SHARE, OTHERS_SHARE, WAVE_S
from writebackd.types.copying import replace
from writebackd.types.core_memory import Lift, Memory
from writebackd.types.decision import DeviceDecision
from writebackd.types.samples import CgroupMemory, Sample


@dataclass(frozen=True)
class RaisedLimit:
    """`memory` is None if no cgroup is too small; `reason` says why the limit is raised or not."""

    memory: Optional[Lift]
    reason: str = ""


def raise_limit(
    policy: Policy,
    memory: Memory,
    sample: Sample,
    goal: Optional[int],
    wants: Sequence[DeviceDecision],
) -> RaisedLimit:
    """The limit to set instead of `goal` (bytes; None: the original limits) for small cgroups.

    `wants` are the devices under the global limit, without those that have their own.
    """
    if goal is None or memory.pin_bytes is not None or memory.yielded is not None:
        return RaisedLimit(None)
    small = _strangled(memory, sample, goal)
    if not small:
        return RaisedLimit(None)
    before = memory.lift or Lift()
    kept = {
        path: max(before.seen_s.get(path, sample.time_s), last)
        for path, (_, last) in small.items()
    }
    cgroups = [cgroup for cgroup, _ in small.values()]
    least = min(cgroups, key=lambda cgroup: cgroup.avail_bytes)
    now = reasons.small_share(_named(least), share_of(goal, least, sample))
    others = _others(memory, sample, kept, wants)
    others_s = before.others_s if others is None else sample.time_s
    result = Lift(None, kept, others is not None, others_s)
    if sample.time_s - result.others_s <= WAVE_S:
        return RaisedLimit(result, f"{now}; {reasons.not_raised(others)}")
    # Together they may dirty what the law asks for.
    share = max(GRAIN_BYTES, goal // len(cgroups))
    limit = min(needed(share, least, sample), _most(policy, memory, sample, wants))
    if limit <= goal:
        return RaisedLimit(result, now)
    raised = reasons.raised(limit, share_of(limit, least, sample))
    return RaisedLimit(replace(result, limit_bytes=limit), f"{now}; {raised}")


def _most(policy: Policy, memory: Memory, sample: Sample, wants: Sequence[DeviceDecision]) -> int:
    """The largest raised limit, bytes: the one used without sync demand.

    A flood of other cgroups may fill it before the next tick, and must drain within drain-time.
    An unknown drain rate sets no bound: it could not be measured while the cgroup is strangled.
    """
    protected = {want.name for want in wants if want.demand}
    most = policy.limits.ceiling_bytes
    for seen in sample.devices:
        name = seen.device.name
        if name in protected:
            bounds = policy.of(seen.device)
            drain = memory.devices[name].drain_rate
            if drain is not None:
                most = min(most, int(drain * bounds.drain_time_s))
    return most


def _strangled(
    memory: Memory, sample: Sample, goal: int
) -> Dict[str, Tuple[CgroupMemory, float]]:
    """Cgroups with too small a share of `goal`, and when each last wrote, by path."""
    known: Mapping[str, float] = memory.lift.seen_s if memory.lift is not None else {}
    slept: Dict[str, float] = {}
    wrote: Dict[str, int] = {}
    for seen in sample.cgroups:
        if seen.memory is not None:
            path = seen.memory.path
            slept[path] = slept.get(path, 0.0) + seen.throttled_s
            wrote[path] = wrote.get(path, 0) + seen.dirtied_bytes
    small = {}
    for path, cgroup in limited(sample).items():
        last = sample.time_s if wrote[path] else known.get(path, float("-inf"))
        # Also while it pauses: a limit that came and went with the pauses would disturb everybody.
        held = path in known and sample.time_s - last <= WAVE_S
        begins = slept[path] >= HELD_BACK_SHARE * sample.dt_s
        if (held or begins) and share_of(goal, cgroup, sample) < GRAIN_BYTES:
            small[path] = (cgroup, last)
    return small


def _others(
    memory: Memory, sample: Sample, small: Mapping[str, float], wants: Sequence[DeviceDecision]
) -> Optional[str]:
    """Describes another cgroup's flood of a device with sync demand; None without one."""
    protected = {want.name for want in wants if want.demand}
    rates: Dict[str, float] = {}
    for seen in sample.cgroups:
        if seen.memory is not None and seen.memory.path in small:
            continue
        if seen.device is not None and seen.device in protected:
            rates[seen.device] = rates.get(seen.device, 0.0) + seen.dirtied_bytes / sample.dt_s
    for name, rate in rates.items():
        drain = memory.devices[name].drain_rate
        if rate > (FLOOD_RATE if drain is None else OTHERS_SHARE * drain):
            return reasons.others_flood(rate, name)
    return None


def _named(cgroup: CgroupMemory) -> str:
    return f"{cgroup.path} ({formats.size(cgroup.ceiling_bytes)} of memory)"
