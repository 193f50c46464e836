# SPDX-License-Identifier: GPL-2.0-or-later
"""Pages that nothing drains: of a disk that hangs, of a server that does not answer.

The kernel counts them like all that is dirty, so under a limit that is right for another disk
every buffered writer of the host would sleep, or creep, until that one goes on.
"""

from __future__ import annotations

from typing import Mapping, Tuple

from writebackd.model import Estimate, Memory, Sample, Stuck, replace

# What is dirty stands still when it has not fallen by so much, from its highest, for so long, with
# so much of the limit taken that writers are held back.
STUCK_BYTES, STUCK_S, HELD_SHARE = 2 << 20, 3.0, 0.9
# That is stuck where more is dirty than the limit is to let in: on a limit's way down it falls as
# long as anything drains.  But other disks may fill up what one drains, so either a disk hangs, or
# there is so much above the limit in force that nobody can bring in more.
ABOVE, ABOVE_ALL = 1.25, 1.05
# Writers look at a limit only now and then: some MB more than a small one are dirty.
OVERSHOT_BYTES = 8 << 20
# And under any limit where less than that was written meanwhile: no disk is so slow.
NOTHING_BYTES = 256 << 10
# Of folios and write chunks: less is no change, and each write of the limit moves all writers.
GRAIN_BYTES = 1 << 20
# Where no block device hangs it is a file system's server that does not answer, and nothing shows
# when it does again.  So after this time it is tried whether they drain.
AGAIN_S = 60.0


def watch_stuck(memory: Memory, sample: Sample, estimates: Mapping[str, Estimate]) -> Stuck:
    """What was known to be stuck, with this tick in it."""
    stuck, vm = memory.stuck, sample.vm
    left = vm.dirty_bytes + vm.writeback_bytes
    if stuck.bytes:
        if _over(stuck, sample):
            return Stuck()
        if left < stuck.bytes - GRAIN_BYTES:
            stuck = replace(stuck, bytes=left)
    if left < HELD_SHARE * vm.threshold_bytes:
        return stuck if stuck.left_bytes is None else replace(stuck, left_bytes=None)
    if stuck.left_bytes is None or left < stuck.left_bytes - STUCK_BYTES:
        return replace(stuck, left_bytes=left, lasted_s=0.0, written=0.0)
    # A volume's writes are its disk's as well.
    written = sample.dt_s * sum([
        estimates[seen.device.name].background_rate for seen in sample.devices
        if seen.device.devno in seen.device.leaf_devnos
    ])
    stuck = replace(
        stuck, left_bytes=max(left, stuck.left_bytes), lasted_s=stuck.lasted_s + sample.dt_s,
        written=stuck.written + written,
    )
    if stuck.lasted_s < STUCK_S:
        return stuck
    hang = hanging(sample)
    above = left - stuck.bytes > ABOVE * (memory.goal_bytes or vm.threshold_bytes)
    if stuck.written * STUCK_S < NOTHING_BYTES * stuck.lasted_s or (
        above and (hang or left > ABOVE_ALL * vm.threshold_bytes + OVERSHOT_BYTES)
    ):
        return Stuck(left, hang, sample.time_s)
    return stuck


def hanging(sample: Sample) -> Tuple[str, ...]:
    """The devices that have requests under way and completed none in this tick."""
    return tuple([
        seen.device.name for seen in sample.devices
        if seen.inflight and not (seen.writes or seen.read_bytes or seen.others)
    ])


def _over(stuck: Stuck, sample: Sample) -> bool:
    """Whether what was stuck may drain again.

    Not with the first request that completes: one that retries completes one now and then.
    """
    if not stuck.hang:
        return sample.time_s - stuck.since_s > AGAIN_S
    return not any(
        seen.inflight and seen.write_bytes < STUCK_BYTES
        for seen in sample.devices if seen.device.name in stuck.hang
    )
