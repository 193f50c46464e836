# SPDX-License-Identifier: GPL-2.0-or-later
"""Dirty pages that do not drain because their device hangs.

The kernel counts them like all that is dirty, so under a limit that is right for another disk
every buffered writer of the host would sleep, or creep, until that one goes on.
"""

from __future__ import annotations

from typing import Dict, Tuple

from writebackd.estimate.drain import written_by
from writebackd.tuning import (
    AGAIN_S,
    BUSY_SHARE,
    IN_FORCE,
    STUCK_BYTES,
    STUCK_PART,
    STUCK_S,
    STUCK_TAKEN,
)
from writebackd.types.copying import replace
from writebackd.types.core_memory import Memory, Stuck
from writebackd.types.decision import Mode
from writebackd.types.samples import DeviceSample, IoClass, Sample


def track_hung_devices(memory: Memory, sample: Sample) -> Stuck:
    """What was known to be stuck, with this tick in it.

    Above the goal what does not fall is stuck.  At the goal, or what its own writers have brought
    on top of what is known, it is where others slept for the limit all the time, on devices that
    are not busy, and all together wrote back next to nothing.
    """
    stuck, vm, goal = memory.stuck, sample.vm, memory.goal_bytes
    if goal is None:
        return stuck if memory.limit_bytes is not None else Stuck()
    if memory.pin_bytes is not None or memory.yielded is not None or memory.mode is Mode.OBSERVE:
        return Stuck()
    left = vm.dirty_bytes + vm.writeback_bytes
    if stuck.bytes:
        stuck = _drained(stuck, sample, left)
        if stuck.bytes <= 0 or sample.time_s - stuck.since_s > AGAIN_S:
            return Stuck()
    known = max(stuck.bytes, memory.stuck_room)
    above = left - known > IN_FORCE * goal + (4 * STUCK_BYTES if stuck.bytes else 0)
    if left < STUCK_TAKEN * vm.threshold_bytes:
        return _calm(stuck)
    hang = now_hanging = hung_devices(sample)
    if stuck.left_bytes is not None:
        hang = tuple([name for name in stuck.suspects if name in hang])
    if not hang:
        return _calm(stuck)
    if stuck.left_bytes is None or left < stuck.left_bytes - STUCK_BYTES:
        return replace(
            stuck, suspects=hang, left_bytes=left, lasted_s=0.0, written=0, above=above,
            starved=True,
        )
    above = above and stuck.above
    starved = stuck.starved and _starved(sample, now_hanging)
    written = stuck.written + _written_back(sample)
    # A guest that was paused saw none of a long tick.
    lasted_s = stuck.lasted_s + min(sample.dt_s, STUCK_S / 3)
    if lasted_s < STUCK_S:
        return replace(
            stuck, suspects=hang, left_bytes=max(left, stuck.left_bytes), lasted_s=lasted_s,
            written=written, above=above, starved=starved,
        )
    if above or (starved and written < min(STUCK_BYTES, STUCK_PART * (left - stuck.bytes))):
        since_s = stuck.since_s if stuck.bytes else sample.time_s
        return Stuck(left, tuple(dict.fromkeys(stuck.hang + hang)), since_s)
    return _calm(stuck)


def hung_devices(sample: Sample) -> Tuple[str, ...]:
    """The devices that have requests under way and completed none in this tick."""
    return tuple([
        seen.device.name for seen in sample.devices
        if seen.inflight and not (seen.writes or seen.write_bytes or seen.read_bytes or seen.others)
        # A volume's are those of its disks, which may serve other volumes.
        and not (seen.classes and seen.device.devno in seen.device.leaf_devnos
                 and any(each.count for each in seen.classes.values()))
    ])


def _starved(sample: Sample, hang: Tuple[str, ...]) -> bool:
    """Whether writers to other devices slept for the limit, though none of these is busy."""
    slept = {task.device for task in sample.tasks if task.throttled_s}
    others = [
        seen for seen in sample.devices
        if seen.device.name in slept and seen.device.name not in hang
    ]
    return bool(others) and not any(_busy(seen, sample.dt_s) for seen in others)


def _busy(seen: DeviceSample, dt_s: float) -> bool:
    """Whether the device works on pages for most of the tick; on anything where nobody tells."""
    classes = seen.classes or {}
    if not any(each.latency.counts for each in classes.values()):
        return seen.busy_share >= BUSY_SHARE
    background = classes.get(IoClass.BACKGROUND_WRITE)
    return background is not None and background.latency.total_s() >= BUSY_SHARE * dt_s


def _written_back(sample: Sample) -> int:
    """Bytes of pages, in this tick; with those of syncs and direct IO where nobody tells.

    What goes to no disk, a server's, is not seen to drain: as much as its writers bring.
    """
    written: Dict[Tuple[str, ...], int] = {}
    for seen in sample.devices:
        size = seen.write_bytes
        if seen.classes:
            background = seen.classes.get(IoClass.BACKGROUND_WRITE)
            size = background.bytes if background is not None else 0
        # All volumes of a disk have its classes.
        leaves = seen.device.leaf_devnos or (seen.device.devno,)
        written[leaves] = max(size, written.get(leaves, 0))
    elsewhere = sum([task.dirtied_bytes for task in sample.tasks if task.device is None])
    return sum(written.values()) + elsewhere


def _calm(stuck: Stuck) -> Stuck:
    return stuck if stuck.left_bytes is None else replace(stuck, suspects=(), left_bytes=None)


def _drained(stuck: Stuck, sample: Sample, left: int) -> Stuck:
    """`stuck` without what its devices wrote in this tick.

    All of it is gone where none of them has had anything under way for a while, or all are gone;
    a request that is tried again is none under way for a moment.
    """
    on = [seen for seen in sample.devices if seen.device.name in stuck.hang]
    if not on:
        return Stuck()
    idle_s = 0.0 if any(seen.inflight for seen in on) else stuck.idle_s + sample.dt_s
    if idle_s >= STUCK_S:
        return Stuck()
    return replace(stuck, bytes=min(stuck.bytes - written_by(on), left), idle_s=idle_s)
