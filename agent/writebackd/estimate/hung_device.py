# SPDX-License-Identifier: GPL-2.0-or-later
"""Detects dirty pages that do not drain because their device hangs.

The kernel counts them against the global limit like any other dirty page.  Under a limit that is
right for another disk, every buffered writer of the host would block or crawl until the hung device
recovers.
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
from writebackd.types.samples import DeviceSample, IoClass, Sample


def track_hung_devices(memory: Memory, sample: Sample) -> Stuck:
    """Update the number of stuck bytes with this tick.

    Dirty pages that do not fall for STUCK_S while a device hangs are stuck if there are more than
    the goal allows.  If there are not, or if the hung device's own writers may have added them to
    pages already known as stuck, two more conditions apply: writers to other devices were throttled
    all that time although these devices were not busy, and almost nothing was written back.
    """
    stuck, vm, goal = memory.stuck, sample.vm, memory.goal_bytes
    if goal is None:
        return stuck if memory.limit_bytes is not None else Stuck()
    if memory.pin_bytes is not None or memory.yielded is not None or memory.dry:
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
    # After a pause of the virtual machine, a long tick is no evidence.
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
    """The devices that have requests in flight and completed none in this tick."""
    return tuple([
        seen.device.name for seen in sample.devices
        if seen.inflight and not (seen.writes or seen.write_bytes or seen.read_bytes or seen.others)
        # A volume has the classes of its disks, which may also serve other volumes.
        and not (seen.classes and seen.device.devno in seen.device.leaf_devnos
                 and any(requests.count for requests in seen.classes.values()))
    ])


def _starved(sample: Sample, hang: Tuple[str, ...]) -> bool:
    """Whether writers to other devices were throttled although none of these devices is busy."""
    slept = {task.device for task in sample.tasks if task.throttled_s}
    others = [
        seen for seen in sample.devices
        if seen.device.name in slept and seen.device.name not in hang
    ]
    return bool(others) and not any(_busy(seen, sample.dt_s) for seen in others)


def _busy(seen: DeviceSample, dt_s: float) -> bool:
    """Whether writeback keeps the device busy for most of the tick; any IO without class probe."""
    classes = seen.classes or {}
    if not any(requests.latency.counts for requests in classes.values()):
        return seen.busy_share >= BUSY_SHARE
    background = classes.get(IoClass.BACKGROUND_WRITE)
    return background is not None and background.latency.total_s() >= BUSY_SHARE * dt_s


def _written_back(sample: Sample) -> int:
    """Bytes written back in this tick; without a class probe including syncs and direct IO.

    Writeback to a network filesystem is not visible and counts as what its writers dirtied.
    """
    written: Dict[Tuple[str, ...], int] = {}
    for seen in sample.devices:
        size = seen.write_bytes
        if seen.classes:
            background = seen.classes.get(IoClass.BACKGROUND_WRITE)
            size = background.bytes if background is not None else 0
        # All volumes of a disk have the disk's classes: count them once.
        leaves = seen.device.leaf_devnos or (seen.device.devno,)
        written[leaves] = max(size, written.get(leaves, 0))
    elsewhere = sum([task.dirtied_bytes for task in sample.tasks if task.device is None])
    return sum(written.values()) + elsewhere


def _calm(stuck: Stuck) -> Stuck:
    return stuck if stuck.left_bytes is None else replace(stuck, suspects=(), left_bytes=None)


def _drained(stuck: Stuck, sample: Sample, left: int) -> Stuck:
    """Subtract from `stuck` what its devices wrote in this tick.

    Nothing is stuck any more if the devices are gone or have had nothing in flight for STUCK_S; for
    a shorter time, a request may just be between two tries.
    """
    on = [seen for seen in sample.devices if seen.device.name in stuck.hang]
    if not on:
        return Stuck()
    idle_s = 0.0 if any(seen.inflight for seen in on) else stuck.idle_s + sample.dt_s
    if idle_s >= STUCK_S:
        return Stuck()
    return replace(stuck, bytes=min(stuck.bytes - written_by(on), left), idle_s=idle_s)
