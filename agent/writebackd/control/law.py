# SPDX-License-Identifier: GPL-2.0-or-later
"""The law for one device: which limit it wants, and why.

Nearly everything below the limit T ends up queued ahead of an fsync, and it
leaves at the drain rate R: the wait is T/R.  Below R x tau the kernel's own
writeback loop cannot keep the device busy and throughput falls as T/tau.  Both
R and tau are measured (estimate/), so R x tau is known without searching; what
the limit does under a flood is hold.py's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple

from writebackd import human
from writebackd.control.hold import regulate, rest
from writebackd.control.steps import Bounds, feed_forward
from writebackd.estimate.drain import SMALL_CACHE_S, size_cache
from writebackd.estimate.estimate import BURST_S, objective_s
from writebackd.estimate.sync import held_s
from writebackd.model import Basis, DeviceMemory, Estimate, HostInfo, State, made, replace
from writebackd.policy.schema import DevicePolicy, Policy


@dataclass(frozen=True)
class Want:
    """What one device asks for; target None: the limits as they were found."""

    name: str
    state: State
    target_bytes: Optional[int]
    demand: bool
    reason: str
    steps: Tuple[str, ...]  # as in DeviceDecision
    basis: Optional[Basis] = None


_want, _basis, _bounds = made(Want), made(Basis), made(Bounds)

# A flood fills memory unseen before the flusher writes: a limit that goes up in every
# such pause lets gigabytes in each time.
BLIND_HOLD_S = 30.0
# Without demand the limit is one that drains in bounded time for so long after a flood: without a
# flood the limits are as found, and an unused device must not set the limit of the others.
RECENT_FLOOD_S = 5.0


def kernel_floor_bytes(host: HostInfo) -> int:
    """Below twice wb_stat_error the kernel's own counting error decides.

    wb_stat_error is n x 8 x (1 + ilog2 n) pages for n possible CPUs
    (WB_STAT_BATCH in include/linux/backing-dev-defs.h): 5 MiB at 16 CPUs.
    """
    cpus = host.cpus_possible
    return 2 * cpus * 8 * cpus.bit_length() * host.page_size


def decide_device(
    policy: Policy,
    bounds: DevicePolicy,
    least_bytes: int,
    now_s: float,
    dt_s: float,
    in_force: int,
    estimate: Estimate,
    memory: DeviceMemory,
) -> Tuple[Want, DeviceMemory]:
    """The device's want, and its memory with what the law learned.

    `least_bytes` is what kernel_floor_bytes says, `in_force` the limit that the kernel applies
    now, in bytes.
    """
    floor = max(bounds.floor_bytes, least_bytes)
    ceiling = max(bounds.ceiling_bytes, floor)
    if not estimate.demand_known:
        lately = now_s - memory.last_flood_s <= BLIND_HOLD_S
        return _blind(policy, bounds, floor, ceiling, estimate, lately), memory
    if not estimate.demand:
        return _idle(bounds, floor, ceiling, estimate, _flooded_lately(memory, now_s)), memory
    objective = objective_s(bounds.fsync_p99_s, bounds.baseline_multiple, estimate.baseline_s)
    # Of a limit that several devices share by their speed, each sees its part.
    share = estimate.limit_share
    allowed = _bounds(
        floor=int(floor * share),
        ceiling=int(ceiling * share),
        # More than any device may begin with is only its own.
        start=int(max(share * bounds.rest_bytes, min(bounds.rest_bytes, policy.limits.rest_bytes))),
        tau_s=bounds.allowed_delay_s,
        objective_s=objective,
        keep=policy.objective.keep_throughput,
        share=share,
    )
    hold = memory.hold
    if estimate.flooded:
        target, hold, state, verdict = regulate(
            allowed, estimate, hold, now_s, dt_s, int(in_force * share)
        )
        if hold.proved_rate is not None:
            if memory.drain_rate is None and not estimate.flushes_wait:
                sized = size_cache(memory, hold.proved_rate, memory.fill_bytes)
                # A full cache tells better; that there is none, it alone does.
                if (sized.cache_bytes or 0.0) >= SMALL_CACHE_S * hold.proved_rate:
                    memory = sized
            memory = replace(
                memory, drain_rate=hold.proved_rate, drain_limit_bytes=target, full_window=()
            )
            hold = replace(hold, proved_rate=None)
    else:
        target, hold = rest(allowed, estimate, hold)
        state = State.GUARD
        verdict = f"sync demand and no flood: resting at {human.size(target)}"
    last_s, gap_s, _ = memory.last_demand or (now_s, 0.0, True)
    over_s = now_s - last_s
    if over_s:
        left_s = held_s(policy.objective.demand_hold_s, estimate.lasting, gap_s) - over_s
        over = f"no sync demand for {human.duration(over_s)}"
        kept = f"kept for {human.duration(max(0.0, left_s))} more"
        verdict = (
            f"{verdict}; {over}, its limit is {kept}" if estimate.flooded
            else f"{over}, no flood: {human.size(target)} {kept}"
        )
    target = _clamp(target / share, floor, ceiling)
    basis = _basis(
        objective_s=objective,
        allowed_delay_s=allowed.tau_s,
        forward_bytes=feed_forward(allowed, estimate),
        floor_bytes=allowed.floor,
        ceiling_bytes=allowed.ceiling,
        keep=allowed.keep,
    )
    want = _want(
        name=estimate.name, state=state, target_bytes=target, demand=True, reason=verdict,
        steps=(verdict,), basis=basis,
    )  # fmt: skip
    return want, replace(memory, hold=hold)


def _flooded_lately(memory: DeviceMemory, now_s: float) -> bool:
    lasted_s = memory.last_flood_s - memory.flood_began_s
    return lasted_s >= BURST_S and now_s - memory.last_flood_s < RECENT_FLOOD_S


def _idle(
    bounds: DevicePolicy, floor: int, ceiling: int, estimate: Estimate, lately: bool
) -> Want:
    if not lately or estimate.drain_rate is None:
        but = "its drain rate is not known yet" if lately else "no flood"
        reason = f"no sync demand and {but}: limits as found"
        return Want(estimate.name, State.IDLE, None, False, reason, (reason,))
    target = _clamp(estimate.drain_rate * bounds.drain_time_s, floor, ceiling)
    reason = (
        f"no sync demand: relaxed to {human.size(target)}, "
        f"what {human.size(estimate.drain_rate)}/s drains in {bounds.drain_time_s:g} s"
    )
    return Want(estimate.name, State.IDLE, target, False, reason, (reason,))


def _blind(
    policy: Policy, bounds: DevicePolicy, floor: int, ceiling: int, estimate: Estimate,
    lately: bool,
) -> Want:
    """Without fsync latency: assume that somebody syncs while a flood is on, or was `lately`."""
    if not (estimate.flooded or lately):
        reason = "fsync cannot be seen, and no flood: limits as found"
        return Want(estimate.name, State.BLIND, None, False, reason, (reason,))
    wanted = float(bounds.rest_bytes)
    if estimate.drain_rate is not None:
        least = min(bounds.rest_bytes, policy.limits.rest_bytes)
        wanted = max(estimate.drain_rate * bounds.allowed_delay_s, least)
    target = _clamp(wanted, floor, ceiling)
    flood = f"no flood for less than {BLIND_HOLD_S:g} s"
    if estimate.flooded:
        flood = f"a flood of {human.size(estimate.background_rate)}/s is on"
    reason = f"fsync cannot be seen; {flood}: held at {human.size(target)}"
    return Want(estimate.name, State.BLIND, target, True, reason, (reason,))


def _clamp(value: float, low: int, high: int) -> int:
    return int(min(max(value, low), high))

