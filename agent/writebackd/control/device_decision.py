# SPDX-License-Identifier: GPL-2.0-or-later
"""Decides for one device: the limit of the law, or a fixed rule without demand or a probe."""

from __future__ import annotations

from typing import Any, Optional, Tuple

from writebackd.control import reasons
from writebackd.control.law import Bounds, follow
from writebackd.control.pace_law import follow_pace
from writebackd.estimate.drain import lets_in, shown, shows_first
from writebackd.estimate.estimator import objective_s
from writebackd.estimate.limit_shares import is_in_force
from writebackd.estimate.sync_demand import held_s
from writebackd.policy.schema import DevicePolicy, Policy
from writebackd.tuning import BURST_S, PAYS, PREFER, RELEASE_S, SPEND, WAVE_S
from writebackd.types.copying import replace
from writebackd.types.decision import Basis, DeviceDecision, DeviceState, Rule
from writebackd.types.device_memory import DeviceMemory
from writebackd.types.estimate import Estimate
from writebackd.types.samples import HostInfo


def kernel_floor_bytes(host: HostInfo) -> int:
    """Bytes all CPUs may dirty before the kernel checks the limit: 64 KiB each with 4 KiB pages.

    The kernel checks when a CPU has dirtied 1/32 of its part of the limit, but at least 16 pages
    (ratelimit_pages in mm/page-writeback.c), so a smaller limit is overshot by its own size.
    Per-device counters are exact below 2 x wb_stat_error.  The global ones may be off by up to 125
    pages per writing CPU for about a second: with 16 writers on 16 CPUs and this floor, 4 % of the
    checks delayed a writer needlessly (Linux 6.12, 25 MB/s disk).
    """
    return 16 * host.cpus_online * host.page_size


def decide_device(
    policy: Policy,
    own: DevicePolicy,
    least_bytes: int,
    now_s: float,
    dt_s: float,
    in_force: int,
    estimate: Estimate,
    memory: DeviceMemory,
    most_bytes: Optional[int] = None,
    after: str = "",
    pace: Optional[float] = None,
) -> Tuple[DeviceDecision, DeviceMemory]:
    """The limit the device needs, and its memory updated by the law.

    `least_bytes` is the result of kernel_floor_bytes, `in_force` the limit the kernel applies now,
    `most_bytes` the largest limit that memory allows (None: not known).  `after` is the verb of
    reasons.unset().  `pace` is the sum of the flood's io.max rates, None if it is not paced.
    """
    floor = max(own.floor_bytes, least_bytes)
    ceiling = own.ceiling_bytes if most_bytes is None else min(own.ceiling_bytes, most_bytes)
    ceiling = max(ceiling, floor)
    if not estimate.demand_known:
        # A flood first fills memory, which is invisible until the flusher writes.  If the limit
        # rose in each such pause, gigabytes would become dirty every time.
        lately = now_s - memory.last_flood_s <= WAVE_S
        return _blind(policy, own, floor, ceiling, estimate, lately, after), memory
    if not estimate.demand:
        return _idle(own, floor, ceiling, estimate, _flooded_lately(memory, now_s), after), memory
    # The law of each device sees the device's part of the shared limit.
    share = estimate.limit_share
    prefer = policy.objective.prefer
    bounds = Bounds(
        floor=int(floor * share),
        ceiling=int(ceiling * share),
        # Where a commit alone takes long the disk seeks, and loses as much for each one again.
        delay_s=PREFER[prefer]
        * max(own.allowed_delay_s, own.baseline_multiple * (estimate.baseline_s or 0.0) / 2),
        # Its part of the device's `rest`, but no less than the smaller of that and the general one.
        rest_bytes=max(share * own.rest_bytes, min(own.rest_bytes, policy.limits.rest_bytes)),
        spend=min(SPEND[prefer], 1.0 - policy.levers.pace_share),
        keep=policy.objective.keep_throughput,
    )
    law, pace_by = memory.law, 1.0
    if law.limit_bytes is None:
        law = replace(law, limit_bytes=_first(bounds, estimate))
    if not estimate.flooded:
        rule = Rule.REST
    elif pace is not None and estimate.drain_rate is not None:
        pace_by, rule = follow_pace(memory.drain, estimate, bounds, pace, estimate.drain_rate)
    else:
        own_limit, d = is_in_force(int(in_force * share), memory), memory.drain
        law, rule = follow(law, d, estimate, bounds, own_limit, now_s, dt_s)
        if after and rule is Rule.COMING:
            rule = Rule.OBSERVING
        if estimate.drain_rate is None:
            before = memory.law.limit_bytes or 0.0
            raised = (law.limit_bytes or 0.0) > PAYS * before
            if own_limit and lets_in(d, before) and shows_first(d, dt_s):
                memory = shown(memory)
            elif raised:  # what came may have been held by the smaller one
                memory = replace(memory, drain=replace(d, full_ticks=()))
    target = _clamp((law.limit_bytes or 0.0) / share, floor, ceiling)
    basis = Basis(
        objective_s=objective_s(own.fsync_p99_s, own.baseline_multiple, estimate.baseline_s),
        floor_bytes=bounds.floor,
        delay_s=bounds.delay_s if pace is None else None,
    )
    if pace is None:
        reason = reasons.law(rule, target, estimate, basis, after)
    else:
        spent = memory.drain.sync_rate * memory.drain.price_s
        reason = reasons.cost(estimate.drain_rate or pace, spent, bounds.spend)
    last_s, gap_s, _, _ = memory.last_demand or (now_s, 0.0, 0, True)
    over_s = now_s - last_s
    if over_s:
        left_s = held_s(policy.objective.demand_hold_s, estimate.lasting, gap_s) - over_s
        reason = reasons.kept(reason, estimate.flooded, target, over_s, left_s, after)
    state = reasons.STATES.get(rule, DeviceState.PACE)
    if after and state is DeviceState.PROBE:
        state = DeviceState.GUARD  # nothing is tried
    if rule is Rule.FLOOR and reasons.wait_s(estimate) > (basis.objective_s or 0.0):
        state = DeviceState.EXHAUSTED
    want = _decision(
        estimate, state, target, reason, basis=basis, rule=rule, demand=True, pace_by=pace_by
    )
    return want, replace(memory, law=law)


def _first(bounds: Bounds, estimate: Estimate) -> float:
    """The first limit, bytes: what drains in the allowed delay, or `rest` while R is unknown."""
    if estimate.drain_rate is not None:
        first = estimate.drain_rate * bounds.delay_s
    else:
        first = bounds.rest_bytes
    return min(max(first, float(bounds.floor)), float(bounds.ceiling))


def _flooded_lately(memory: DeviceMemory, now_s: float) -> bool:
    """Whether to keep the limit after a flood: an unused device must not set it for the others."""
    lasted_s = memory.last_flood_s - memory.flood_began_s
    return lasted_s >= BURST_S and now_s - memory.last_flood_s < RELEASE_S


def _idle(
    own: DevicePolicy, floor: int, ceiling: int, estimate: Estimate, lately: bool, after: str
) -> DeviceDecision:
    if not lately or estimate.drain_rate is None:
        reason = reasons.without_demand(lately, after)
        return _decision(estimate, DeviceState.IDLE, None, reason, rule=Rule.AS_FOUND)
    target = _clamp(estimate.drain_rate * own.drain_time_s, floor, ceiling)
    reason = reasons.relaxed(target, estimate.drain_rate, own.drain_time_s, after)
    return _decision(estimate, DeviceState.IDLE, target, reason, rule=Rule.RELAXED)


def _blind(
    policy: Policy, own: DevicePolicy, floor: int, ceiling: int, estimate: Estimate, lately: bool,
    after: str,
) -> DeviceDecision:
    """If fsync is not visible, assume that somebody syncs during a flood and shortly after it."""
    if not (estimate.flooded or lately):
        reason = reasons.blind(None, None, WAVE_S, after)
        return _decision(estimate, DeviceState.BLIND, None, reason, rule=Rule.BLIND)
    wanted = float(own.rest_bytes)
    if estimate.drain_rate is not None:
        least = min(own.rest_bytes, policy.limits.rest_bytes)
        wanted = max(estimate.drain_rate * own.allowed_delay_s, least)
    target = _clamp(wanted, floor, ceiling)
    rate = estimate.background_rate if estimate.flooded else None
    reason = reasons.blind(target, rate, WAVE_S, after)
    return _decision(estimate, DeviceState.BLIND, target, reason, rule=Rule.BLIND, demand=True)


def _decision(
    estimate: Estimate, state: DeviceState, target: Optional[int], reason: str, **more: Any
) -> DeviceDecision:
    return DeviceDecision(estimate.name, state, target, reason, steps=(reason,), **more)


def _clamp(value: float, low: int, high: int) -> int:
    return int(min(max(value, low), high))
