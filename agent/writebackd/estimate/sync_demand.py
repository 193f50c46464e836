# SPDX-License-Identifier: GPL-2.0-or-later
"""Estimates sync demand and the unloaded fsync latency."""

from __future__ import annotations

from typing import Dict, Optional, Tuple

from writebackd.estimate.drain import Writes, small_writes
from writebackd.tuning import (
    BUSY_SYNCS,
    CACHE_S,
    DEMAND_WINDOW_S,
    ENOUGH,
    FLOOD_RATE,
    HURRY,
    OWN_BYTES,
    REGULAR,
    REGULAR_GAP_S,
    RELEASE_S,
    WEIGHT,
)
from writebackd.types.copying import replace
from writebackd.types.device_memory import DeviceMemory
from writebackd.types.histogram import Histogram
from writebackd.types.samples import DeviceSample, Sample, SyncSample

Window = Tuple[float, ...]  # DeviceMemory.recent_syncs
LastDemand = Optional[Tuple[float, float, int, bool]]  # DeviceMemory.last_demand
# System services that sync occasionally, without a program waiting.  By unit: any process can
# take another's name.
UNWAITED = frozenset((
    "systemd-journald.service", "systemd-timesyncd.service", "chrony.service", "chronyd.service",
))


def demand_of(
    sync: Optional[SyncSample],
    memory: DeviceMemory,
    now_s: float,
    dt_s: float,
    min_rate: float,
    hold_s: float,
    objective_s: float,
    lasting: bool,
    unwaited: int = 0,
) -> "tuple[Window, LastDemand, Optional[float], bool]":
    """`(recent_syncs, last_demand, syncs per second or None, demand)`.

    Demand is a program that commits regularly: REGULAR ticks with syncs, none longer than
    REGULAR_GAP_S after the one before, or BUSY_SYNCS in fewer, and `min_rate` syncs per second over
    10 s; or one commit that waits for longer than the objective.  `unwaited` syncs are of services
    that nobody waits for.  Demand outlives its last sync by `held_s`.
    """
    if sync is None:
        return memory.recent_syncs, memory.last_demand, None, False
    ended = sync.count
    returned = max(0, ended - unwaited) if unwaited else ended
    window = memory.recent_syncs
    lasted_s, start = dt_s, len(window)
    while start and lasted_s < DEMAND_WINDOW_S:
        start -= 2
        lasted_s += window[start]
    window = (*window[start:], dt_s, returned)
    count = sum(window[1::2])
    last_s, gap_s, ticks, on = memory.last_demand or (float("-inf"), 0.0, 0, False)
    away_s = now_s - last_s
    if returned:
        gap_s = max(away_s, gap_s * 0.5 ** (away_s / hold_s)) if away_s <= hold_s else 0.0
        ticks = min(ticks + 1, REGULAR) if away_s <= REGULAR_GAP_S else 1
        # Divide by the whole window even while it fills: five syncs in the first tick are not five
        # per second.
        regular = ticks >= REGULAR or count >= BUSY_SYNCS
        on = on or (regular and count / DEMAND_WINDOW_S >= min_rate)
        last_s = now_s
    elif sync.oldest_commit_s > objective_s:
        last_s, on = now_s, True
    elif on and away_s >= held_s(hold_s, lasting, gap_s):
        window, ticks, on = (dt_s, returned), 0, False
    known = on or now_s - last_s <= hold_s
    return window, (last_s, gap_s, ticks, on) if known else None, ended / dt_s, on


def held_s(hold_s: float, lasting: bool, gap_s: float) -> float:
    """How long demand outlives its last sync, if commits came every `gap_s`.

    Twice that gap, at least RELEASE_S and at most the policy's `hold_s`; during a lasting flood
    always `hold_s`.
    """
    return hold_s if lasting else min(hold_s, max(RELEASE_S, 2 * gap_s))


def unwaited_syncs(sample: Sample) -> Dict[str, int]:
    """Syncs of this tick, by device, of services that write for themselves alone."""
    syncs: Dict[str, int] = {}
    for cgroup in sample.cgroups:
        if cgroup.syncs and cgroup.device is not None and cgroup.path is not None:
            if cgroup.path.rpartition("/")[2] in UNWAITED:
                syncs[cgroup.device] = syncs.get(cgroup.device, 0) + cgroup.syncs
    return syncs


def update_baseline(
    writes: Writes, sample: DeviceSample, memory: DeviceMemory, dt_s: float
) -> DeviceMemory:
    """Learn the unloaded latencies, in quiet ticks only."""
    if _others_rate(writes, sample, dt_s) >= FLOOD_RATE:
        return replace(memory, quiet_s=0.0) if memory.quiet_s else memory
    quiet_s = memory.quiet_s + dt_s
    memory = replace(memory, quiet_s=quiet_s)
    # On a host without a flood so far there is nothing to wait for.
    if memory.flooded_before and quiet_s < CACHE_S:
        return memory
    sync = sample.sync.latency if sample.sync is not None else Histogram()
    return replace(
        memory,
        baseline_s=_learn(memory.baseline_s, sync, dt_s),
        write_baseline_s=_learn(
            memory.write_baseline_s, sum(small_writes(sample), Histogram()), dt_s
        ),
    )


def _others_rate(writes: Writes, sample: DeviceSample, dt_s: float) -> float:
    """Bytes per second not written by syncs themselves: writeback and direct IO.

    Only writeback if syncs are not visible; all writes if the classes of writes are not.
    """
    background = writes.background_rate
    if background >= FLOOD_RATE or sample.sync is None or writes.rate <= 0:
        return background
    # Use the ratio of the two rates: both include the disk's other volumes, `write_bytes` does not.
    rest = sample.write_bytes * (1.0 - background / writes.rate)
    return background + max(0.0, rest - OWN_BYTES * sample.sync.count) / dt_s


def _learn(known: Optional[float], seen: Histogram, dt_s: float) -> Optional[float]:
    median = seen.quantile(0.5) if seen.total >= ENOUGH else None
    if median is None:
        return known
    if known is None:
        return median
    # A tick shortened by HURRY has the weight of a whole second.
    seconds = max(dt_s, min(1.0, dt_s / HURRY))
    kept: float = (1.0 - WEIGHT) ** seconds
    return known + (1.0 - kept) * (median - known)
