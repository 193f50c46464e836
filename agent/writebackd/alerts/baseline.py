# SPDX-License-Identifier: GPL-2.0-or-later
"""Baselines of a device: sync rate and latencies, learned only while nothing is wrong."""

from __future__ import annotations

import math
from typing import Dict, Iterator, Mapping, Tuple

from writebackd.alerts.detector_memory import (
    ENOUGH_S,
    Baseline,
    Baselines,
    DeviceHealth,
    size_class,
)
from writebackd.types.copying import replace
from writebackd.types.core_memory import Memory
from writebackd.types.device_memory import DeviceMemory, Learned
from writebackd.types.estimate import Estimate
from writebackd.types.histogram import Histogram
from writebackd.types.samples import ClassSample, DeviceSample, IoClass

# A latency follows in this time: a minute of a database's day is like the next one.
LATENCY_FOLLOWS_S = 60.0
# Slower than twice the usual may be trouble in its beginning: that becomes usual within the hour.
SLOWER, SLOWER_FOLLOWS_S = 2.0, 1200.0
# And what gets slower minute by minute never is twice as slow as the minute before: a rise follows
# slowly too, so that one by half in five minutes is seen. Less than that is what a load varies by.
RISING, RISING_FOLLOWS_S = 1.25, 600.0
# The rate of syncs follows sooner, but only while they are as fast as usual: then fewer are a load
# that ended, and the backup after it is no collapse.  Of slower ones, the latency may be why.
RATE_RISES_S, RATE_FALLS_S = 20.0, 7.0
# Of slow ones that nobody waits for most of the time: less is asked, but how much less?
RATE_UNWANTED_S = 300.0
# The most that syncs were seen to write: an hour that was unlike the others is forgotten in a day.
MOST_FALLS_S = 86400.0
# Operations in a tick below which it says nothing of a latency.
ENOUGH = 3
# Syncs per second, below which a usual rate is not kept.
LEAST_RATE = 0.1
_NONE = ClassSample()


def small_writes(seen: DeviceSample) -> Tuple[int, int, Histogram]:
    """Operations, bytes and latencies of the sync and journal writes of a tick."""
    classes = seen.classes or {}
    sync = classes.get(IoClass.SYNC_WRITE, _NONE)
    journal = classes.get(IoClass.JOURNAL, _NONE)
    return (
        sync.count + journal.count, sync.bytes + journal.bytes, sync.latency + journal.latency
    )


def small_bytes(seen: DeviceSample) -> int:
    """Of them the bytes alone: to add up latencies takes ten times as long."""
    classes = seen.classes or {}
    return classes.get(IoClass.SYNC_WRITE, _NONE).bytes + classes.get(IoClass.JOURNAL, _NONE).bytes


def learn(
    health: DeviceHealth, seen: DeviceSample, estimate: Estimate, seconds: float
) -> DeviceHealth:
    """`health` with this tick in it, which stands for `seconds`; nothing may be wrong in it."""
    count, size_bytes, latencies = small_writes(seen)
    syncs, size, writes = health.syncs, health.size, health.writes
    if estimate.fsyncs:
        size = size_class(estimate.fsyncs, size_bytes)
        if estimate.fsyncs >= ENOUGH:
            mean_s = estimate.fsync_total_s / estimate.fsyncs
            syncs = _with(syncs, size, mean_s, seconds)
    if count >= ENOUGH:
        writes = _with(writes, size_class(count, size_bytes), latencies.quantile(0.5), seconds)
    return replace(health, syncs=syncs, size=size, writes=writes)


def seeded(health: DeviceHealth, earlier: Learned, age_s: float) -> DeviceHealth:
    """`health` with what an earlier run of the daemon knew of this disk (estimate/learned.py).

    `age_s`: how long this run has seen the disk do nothing, which is no load that starves.
    """
    syncs, writes = earlier.baseline_s, earlier.write_baseline_s
    rate, most = earlier.usual_sync_rate, earlier.most_sync_bytes
    if rate is not None and not health.sync_rate:
        left = rate.value * math.exp(-age_s / RATE_FALLS_S)
        health = replace(health, sync_rate=left, most_sync_bytes=most.value if most else 0.0)
    if syncs is not None and not health.syncs:
        health = replace(health, syncs={0: Baseline(0, syncs.value, ENOUGH_S)})
    if writes is not None and not health.writes:
        health = replace(health, writes={0: Baseline(0, writes.value, ENOUGH_S)})
    return health


def to_keep(memory: Memory, healths: Mapping[str, DeviceHealth]) -> Iterator[DeviceMemory]:
    """The devices of `memory` with what is usual for them, as far as that is to outlive a restart.

    One at a time: a copy of 1 024 takes 2 MB.
    """
    for name, mine in memory.devices.items():
        health = healths.get(name)
        if health is not None and health.identity == (mine.identity[0], str(mine.identity[1])):
            # Below that no objective of a policy can speak of a rate.
            rate = _rounded(health.sync_rate) if health.sync_rate >= LEAST_RATE else None
            most = _rounded(health.most_sync_bytes)
            mine = replace(mine, usual_sync_rate=rate, most_sync_bytes=most)
        yield mine


def _rounded(value: float) -> float:
    """To a thousandth: the file is read by people, and 1 024 disks fit into it."""
    return float(f"{value:.4g}")


def is_slow(health: DeviceHealth, estimate: Estimate, multiple: float) -> bool:
    """Whether the tick's syncs took more than so many times what they usually take; cheap."""
    if not estimate.fsyncs:
        return False
    usual = health.usual(health.syncs, health.size)
    mean_s = estimate.fsync_total_s / estimate.fsyncs
    return usual is not None and mean_s > multiple * usual.latency_s


def is_calm(health: DeviceHealth, estimate: Estimate) -> bool:
    """Whether syncs are about as fast as usual, or nobody waits for one."""
    if not estimate.fsyncs:
        return not estimate.fsyncs_inflight
    return not is_slow(health, estimate, SLOWER)


def followed(
    health: DeviceHealth, rate: float, sync_bytes: float, dt_s: float, flooded_s: float = 0.0
) -> DeviceHealth:
    """`health` with this tick's syncs and bytes per second in what is usual."""
    follows_s = RATE_RISES_S if rate > health.sync_rate else RATE_FALLS_S
    usual = health.sync_rate + min(1.0, dt_s / follows_s) * (rate - health.sync_rate)
    most = max(sync_bytes, health.most_sync_bytes * (1.0 - dt_s / MOST_FALLS_S))
    return replace(health, sync_rate=usual, most_sync_bytes=most, flooded_s=flooded_s)


def unwanted(health: DeviceHealth, rate: float, dt_s: float) -> DeviceHealth:
    """`health` after a tick of slow syncs that nobody waited for: fewer become usual slowly."""
    fewer = min(0.0, rate - health.sync_rate)
    return replace(
        health, sync_rate=health.sync_rate + min(1.0, dt_s / RATE_UNWANTED_S) * fewer
    )


def _with(known: Baselines, size: int, latency_s: "float | None", seconds: float) -> Baselines:
    if latency_s is None:
        return known
    before = known.get(size)
    if before is None:
        new = Baseline(size, latency_s, seconds)
    else:
        # A mean of all until there is enough to follow.
        learned_s = before.learned_s + seconds
        follows_s = min(learned_s, LATENCY_FOLLOWS_S)
        if before.learned_s >= ENOUGH_S and latency_s > RISING * before.latency_s:
            slower = latency_s > SLOWER * before.latency_s
            follows_s = SLOWER_FOLLOWS_S if slower else RISING_FOLLOWS_S
        weight = min(1.0, seconds / follows_s)
        moved_s = before.latency_s + weight * (latency_s - before.latency_s)
        new = Baseline(size, moved_s, learned_s)
    merged: Dict[int, Baseline] = {**known, size: new}
    return merged
