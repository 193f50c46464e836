# SPDX-License-Identifier: GPL-2.0-or-later
"""Estimates for every device from one tick's sample."""

from __future__ import annotations

from typing import Dict, List, Mapping, NamedTuple, Optional, Tuple

from writebackd.estimate.cache_size import TrueFill, true_fills, with_true_fill
from writebackd.estimate.drain import Writes, measure_writes, update_drain, written_by
from writebackd.estimate.hung_device import track_hung_devices
from writebackd.estimate.limit_shares import paces, shared_limit
from writebackd.estimate.sync_demand import demand_of, unwaited_syncs, update_baseline
from writebackd.policy.schema import Policy
from writebackd.tuning import BURST_S, BUSY_SHARE, CACHE_S, GAP_S, SHARE_HALF_S, SHARE_LEAST, USES
from writebackd.types.copying import replace
from writebackd.types.core_memory import Memory
from writebackd.types.device_memory import DeviceMemory
from writebackd.types.estimate import Estimate
from writebackd.types.samples import DeviceSample, Sample

_NO_SLEEP = (0.0, 0.0)
_NO_SYNCS = (0, 0.0, None, None)  # in place of Histogram.summary() if syncs are not visible
Groups = Mapping[str, Tuple[DeviceSample, ...]]


class _Row(NamedTuple):
    """A device in this tick, and what was remembered of it."""

    seen: DeviceSample
    memory: DeviceMemory
    written: int  # bytes in this tick, of all devices on its disks
    rate: float  # the same per second, smoothed


class _Tick(NamedTuple):
    """What all devices of a tick share."""

    policy: Policy
    memory: Memory
    sample: Sample
    groups: Groups
    total_rate: float  # bytes per second of all devices
    slept: Mapping[Optional[str], Tuple[float, float]]  # by device, as from _throttled()
    threshold: int  # the part of the global limit that the flood may use
    paces: Mapping[str, float]
    fills: Mapping[str, TrueFill]
    unwaited: Mapping[str, int]


def objective_s(policy_p99_s: float, multiple: float, baseline_s: "float | None") -> float:
    """The p99 to aim at: the policy's, or if larger a multiple of the unloaded latency."""
    return max(policy_p99_s, multiple * baseline_s) if baseline_s is not None else policy_p99_s


def estimate(
    policy: Policy, memory: Memory, sample: Sample
) -> Tuple[Dict[str, Estimate], Memory]:
    """Estimates by device name, and the memory updated with this tick.

    Devices that are gone are forgotten.  A device whose disk was replaced (another diskseq) starts
    anew.
    """
    estimates: Dict[str, Estimate] = {}
    remembered: Dict[str, DeviceMemory] = {}
    groups = _groups(sample)
    rows: List[_Row] = []
    weight = 1 - 0.5 ** (sample.dt_s / SHARE_HALF_S)
    for seen in sample.devices:
        name = seen.device.name
        identity = (seen.device.devno, seen.device.diskseq)
        known = memory.devices.get(name)
        if known is None or known.identity != identity:
            known = DeviceMemory(identity=identity)
        group = groups.get(name)
        written = seen.write_bytes if group is None else written_by(group)
        rate = known.smooth_rate + weight * (written / sample.dt_s - known.smooth_rate)
        rows.append(_Row(seen, known, written, rate))
    tick = _Tick(
        policy, memory, sample, groups, _total_rate(rows, groups), _throttled(sample),
        shared_limit(memory, sample), paces(memory),
        true_fills(sample) if sample.backings else {}, unwaited_syncs(sample),
    )
    for row in rows:
        name = row.seen.device.name
        estimates[name], remembered[name] = _estimate_device(tick, row)
    return estimates, replace(memory, devices=remembered, stuck=track_hung_devices(memory, sample))


def _total_rate(rows: List[_Row], groups: Groups) -> float:
    """Bytes per second of all devices; devices on the same disks count once."""
    if not groups:
        return sum([row.rate for row in rows])
    rates = {row.seen.device.name: row.rate for row in rows}
    shared = {frozenset([device.device.name for device in group]) for group in groups.values()}
    return sum([rate for name, rate in rates.items() if name not in groups]) + sum(
        [max([rates[name] for name in members]) for members in shared]
    )


def _throttled(sample: Sample) -> Dict[Optional[str], Tuple[float, float]]:
    """Seconds that writers slept for the limit, by device: the sum, and the longest of one task."""
    slept: Dict[Optional[str], Tuple[float, float]] = {}
    for task in sample.tasks:
        all_s, most_s = slept.get(task.device, _NO_SLEEP)
        slept[task.device] = all_s + task.throttled_s, max(most_s, task.throttled_s)
    return slept


def _groups(sample: Sample) -> Dict[str, Tuple[DeviceSample, ...]]:
    """For each device on a shared leaf disk: itself, then all others on any of its leaf disks."""
    groups: Dict[str, Tuple[DeviceSample, ...]] = {}
    leaves = [leaf for seen in sample.devices for leaf in seen.device.leaf_devnos]
    if len(set(leaves)) == len(leaves):
        return groups  # no disk is shared, as on most hosts
    by_leaf: Dict[str, List[DeviceSample]] = {}
    for seen in sample.devices:
        for leaf in seen.device.leaf_devnos:
            by_leaf.setdefault(leaf, []).append(seen)
    for seen in sample.devices:
        members = {seen.device.name: seen}
        for leaf in seen.device.leaf_devnos:
            members.update({member.device.name: member for member in by_leaf[leaf]})
        if len(members) > 1:
            groups[seen.device.name] = tuple(members.values())
    return groups


def _estimate_device(tick: _Tick, row: _Row) -> Tuple[Estimate, DeviceMemory]:
    sample, seen, name = tick.sample, row.seen, row.seen.device.name
    sync, now_s, dt_s = seen.sync, sample.time_s, sample.dt_s
    share, limit = _limit_share(tick, row)
    fill = tick.fills.get(name)
    writes, memory = _drained(tick, row, limit, fill)
    flooded, began = writes.flooded, memory.flood_began_s
    goes_on = now_s - memory.last_flood_s <= dt_s + GAP_S
    # If fsync is not visible, assume that any flood delays a sync.
    pressing = writes.telling or (
        flooded
        and (sync is None or (goes_on and seen.busy_share >= BUSY_SHARE / 2))
    )
    if pressing and not goes_on:
        began = now_s
    # What a cache with room takes faster than the disk drains fills it soon.
    lasting = (pressing and now_s - began >= BURST_S) or (
        flooded and writes.background_rate > (memory.drain_rate or 0.0)
    )
    bounds, objective = tick.policy.of(seen.device), tick.policy.objective
    recent_syncs, last_demand, sync_rate, demand = demand_of(
        sync, memory, now_s, dt_s, objective.min_sync_rate, objective.demand_hold_s,
        objective_s(bounds.fsync_p99_s, bounds.baseline_multiple, memory.baseline_s),
        lasting, tick.unwaited.get(name, 0),
    )  # fmt: skip
    fsyncs, total_s, p50_s, p99_s = _NO_SYNCS if sync is None else sync.latency.summary()
    commits_s, commit_p50_s, commit_p99_s, write_share = total_s, p50_s, p99_s, None
    if total_s and sync is not None and sync.commits is not None:
        write_share = 0.0
        if sync.throttled_s:  # else they are the same latencies
            _, commits_s, commit_p50_s, commit_p99_s = sync.commits.summary()
            write_share = min(1.0, sync.throttled_s / commits_s)
    drain_rate = memory.drain_rate
    if pressing and not demand and now_s - began >= CACHE_S:
        drain_rate = max(drain_rate or 0.0, row.rate)
    memory = replace(
        memory,
        drain_rate=drain_rate,
        smooth_rate=row.rate,
        flood_began_s=began,
        last_flood_s=now_s if pressing else memory.last_flood_s,
        recent_syncs=recent_syncs,
        last_demand=last_demand,
    )
    return Estimate(
        name=name,
        write_rate=seen.write_bytes / dt_s,
        background_rate=writes.background_rate,
        drain_rate=drain_rate,
        sync_rate=sync_rate,
        demand=demand,
        demand_known=sync is not None,
        flooded=flooded,
        held_back=writes.held_back,
        full=memory.drain.full_s > 0,
        limit_share=share if flooded else 1.0,
        rate=writes.rate,
        cache_bytes=memory.cache_bytes,
        fill_bytes=memory.fill_bytes,
        fsync_p50_s=p50_s,
        fsync_p99_s=p99_s,
        fsyncs=fsyncs,
        fsync_total_s=total_s,
        fsyncs_inflight=sync.inflight if sync is not None else 0,
        oldest_fsync_s=sync.oldest_s if sync is not None else 0.0,
        baseline_s=memory.baseline_s,
        slow_share=memory.drain.slow_share if flooded and sync is not None else None,
        inflight=seen.inflight,
        lasting=lasting,
        commit_total_s=commits_s,
        commit_p50_s=commit_p50_s,
        commit_p99_s=commit_p99_s,
        commit_write_share=write_share,
        oldest_commit_s=max(sync.oldest_s, sync.throttled_now_s) if sync is not None else 0.0,
        fill_source=fill.source if fill is not None else None,
    ), memory


def _limit_share(tick: _Tick, row: _Row) -> Tuple[float, int]:
    """The device's share of the limit in force, and that part of it in bytes."""
    name, total = row.seen.device.name, tick.total_rate
    cap = tick.memory.caps.get(name)
    if cap is not None and cap.in_force:
        return 1.0, cap.bytes
    share = max(row.rate / total if total > 0 else 1.0, SHARE_LEAST)
    limit, own = int(share * tick.threshold), row.seen.strict_bytes  # set by somebody else
    return share, limit if own is None else min(limit, own)


def _drained(
    tick: _Tick, row: _Row, limit: int, fill: Optional[TrueFill]
) -> Tuple[Writes, DeviceMemory]:
    """The writes of the tick, and the memory with what they tell of drain rate and baselines."""
    seen, memory, dt_s, name = row.seen, row.memory, tick.sample.dt_s, row.seen.device.name
    slept = [tick.slept.get(one.device.name, _NO_SLEEP) for one in tick.groups.get(name, (seen,))]
    # A throttled task whose device is unknown counts for every device: all share the limit.
    unknown_s, unknown_most_s = tick.slept.get(None, _NO_SLEEP)
    throttled_s = unknown_s + sum([all_s for all_s, _ in slept])
    most_s = max(unknown_most_s, max([most for _, most in slept]))
    writes = measure_writes(seen, tick.sample.vm, row.written, throttled_s, most_s, dt_s)
    pace = tick.paces.get(name)
    if pace is not None and memory.drain.rate >= USES * pace:
        writes = replace(writes, held_back=True)
    no_room = fill is not None and fill.is_full
    memory = update_drain(writes, seen, memory, limit, dt_s, pace, no_room)
    if fill is not None:
        memory = with_true_fill(memory, fill)
    return writes, update_baseline(writes, seen, memory, dt_s)
