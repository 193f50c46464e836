# SPDX-License-Identifier: GPL-2.0-or-later
"""Baselines of a device: sync rate and latencies, learned only while nothing is wrong."""

from __future__ import annotations

import math
from typing import Dict, Iterator, List, Mapping, Tuple

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

# Seconds.  Time constant of the usual latency: a database's load changes little within a minute.
LATENCY_FOLLOWS_S = 60.0
# Factor, seconds.  A latency above SLOWER times the usual one may be the beginning of trouble, so
# it becomes the usual one only within an hour.
SLOWER, SLOWER_FOLLOWS_S = 2.0, 1200.0
# Factor, seconds.  A disk that slows down gradually is never twice as slow as a minute before.  So
# the usual latency also follows smaller rises slowly, and a rise by half in five minutes is
# noticed.  Below RISING it is the normal variation of a load.
RISING, RISING_FOLLOWS_S = 1.25, 600.0
# Seconds.  Time constants of the usual sync rate, up and down.  They are short, but only apply
# while syncs are as fast as usual: then a lower rate means that the load ended, and a backup that
# follows is no collapse.  If syncs are slow, the latency may be the reason for the lower rate.
RATE_RISES_S, RATE_FALLS_S = 20.0, 7.0
# Seconds.  The same for slow syncs when none is pending most of the time: the load is lower, but by
# how much is unknown.
RATE_UNWANTED_S = 300.0
# Seconds.  Time constant with which the highest write rate of syncs is forgotten: an unusual hour
# is forgotten within a day.
MOST_FALLS_S = 86400.0
# Number of operations.  A tick with fewer is not used for a latency.
ENOUGH = 3
# Ticks with syncs of a program before it is one that commits there; so many programs are known.
COMMITS_TICKS, MANY_COMMIT = 15, 16
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
    """Only the bytes of small writes, since adding up latencies takes ten times as long."""
    classes = seen.classes or {}
    return classes.get(IoClass.SYNC_WRITE, _NONE).bytes + classes.get(IoClass.JOURNAL, _NONE).bytes


def learn(
    health: DeviceHealth, seen: DeviceSample, estimate: Estimate, seconds: float
) -> DeviceHealth:
    """Learn the usual latencies from a tick without trouble, weighted as `seconds`."""
    count, size_bytes, latencies = small_writes(seen)
    syncs, size, writes = health.syncs, health.size, health.writes
    if estimate.fsyncs:
        size = size_class(estimate.fsyncs, size_bytes)
        if estimate.fsyncs >= ENOUGH:
            mean_s = estimate.commit_total_s / estimate.fsyncs
            syncs = _with(syncs, size, mean_s, seconds)
    if count >= ENOUGH:
        writes = _with(writes, size_class(count, size_bytes), latencies.quantile(0.5), seconds)
    return replace(health, syncs=syncs, size=size, writes=writes)


def seeded(health: DeviceHealth, earlier: Learned, age_s: float) -> DeviceHealth:
    """Fill `health` from what an earlier run of the daemon learned (estimate/learned.py).

    `age_s`: how long this run has seen the disk idle; the usual rate has decayed since.
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
    """The devices of `memory` with the baselines that outlive a restart.

    One at a time, since a copy of 1024 takes 2 MB.
    """
    for name, mine in memory.devices.items():
        health = healths.get(name)
        if health is not None and health.identity == (mine.identity[0], str(mine.identity[1])):
            # No policy can ask for a lower min-sync-rate.
            rate = _rounded(health.sync_rate) if health.sync_rate >= LEAST_RATE else None
            most = _rounded(health.most_sync_bytes)
            mine = replace(mine, usual_sync_rate=rate, most_sync_bytes=most)
        yield mine


def _rounded(value: float) -> float:
    """Round to four digits, so that people can read the file and 1024 disks fit into it."""
    return float(f"{value:.4g}")


def is_slow(health: DeviceHealth, estimate: Estimate, multiple: float) -> bool:
    """Whether the tick's syncs took more than `multiple` times their usual latency; cheap."""
    if not estimate.fsyncs:
        return False
    usual = health.usual(health.syncs, health.size)
    mean_s = estimate.commit_total_s / estimate.fsyncs
    return usual is not None and mean_s > multiple * usual.latency_s


def is_calm(health: DeviceHealth, estimate: Estimate) -> bool:
    """Whether syncs take about as long as usual, or none is pending."""
    if not estimate.fsyncs:
        return not estimate.fsyncs_inflight
    return not is_slow(health, estimate, SLOWER)


def committers(health: DeviceHealth) -> List[str]:
    """The programs that commit on this device; empty if unknown."""
    return [comm for comm, ticks in health.committers.items() if ticks >= COMMITS_TICKS]


def commits(health: DeviceHealth, comm: str) -> DeviceHealth:
    """Add this program to those that sync on the device, after a tick without trouble."""
    ticks = health.committers.get(comm, 0) + 1
    if ticks > COMMITS_TICKS or (ticks == 1 and len(health.committers) >= MANY_COMMIT):
        return health
    return replace(health, committers={**health.committers, comm: ticks})


def followed(
    health: DeviceHealth, rate: float, sync_bytes: float, dt_s: float, flooded_s: float = 0.0
) -> DeviceHealth:
    """Update the usual rates with this tick's syncs and bytes per second."""
    follows_s = RATE_RISES_S if rate > health.sync_rate else RATE_FALLS_S
    usual = health.sync_rate + min(1.0, dt_s / follows_s) * (rate - health.sync_rate)
    most = max(sync_bytes, health.most_sync_bytes * (1.0 - dt_s / MOST_FALLS_S))
    return replace(health, sync_rate=usual, most_sync_bytes=most, flooded_s=flooded_s)


def unwanted(health: DeviceHealth, rate: float, dt_s: float) -> DeviceHealth:
    """Lower the usual rate slowly after a tick with slow syncs but none pending."""
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
        # A plain mean until enough was learned.
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
