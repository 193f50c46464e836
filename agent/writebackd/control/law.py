# SPDX-License-Identifier: GPL-2.0-or-later
"""The law for one device: which limit it wants, and why.

    target = drain rate x allowed delay x trim

Nearly everything below the limit T ends up queued ahead of an fsync, and it
leaves at the drain rate R: the wait is T/R.  So the wait that a policy allows
gives T at once (feed-forward), without searching.  Below some R x tau the
kernel's own writeback loop cannot keep the device busy and throughput falls as
T/tau; tau was measured at 7.5 to 21 ms on one kernel, depending on the host and
its load, and is not known beforehand.  So the trim looks for it: down while
syncs are slow, up again when throughput suffers, and not back to where it
suffered for some minutes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple

from writebackd import human
from writebackd.estimate.estimate import objective_s
from writebackd.model import DeviceMemory, Estimate, HostInfo, State, replace
from writebackd.policy.schema import DevicePolicy, Policy

# A wish has to last this many ticks before it is acted on: a destage burst or
# one journal commit makes a single tick slow.
PERSIST_TICKS = 2
# Throughput is smoothed already; a third tick rides out the pause between two
# files of a copy.
STARVED_TICKS = 3
# Multiplicative steps, down and up: a step of 0.75 changes the wait by more
# than the noise of a tick (10 to 20 %), and three steps up undo two down.
SHRINK = 0.75
GROW = 1.25
# Below the knee throughput is proportional to the limit, so what is missing of
# it says how far the knee is: that far, but not more than this at once.
GROW_MOST = 2.0
# The kernel's bandwidth estimate, which paces the writers, follows in 3 to 4 s
# (fs/fs-writeback.c): judge a step only after it has.
SETTLE_S = 4.0
# A step is judged only under the limit it asked for: while the limit is on its
# way down, or another device holds it, what is measured is not this step's doing.
IN_FORCE_LOW, IN_FORCE_HIGH = 0.8, 1.25
# Half of the completions waiting for room: the cache is full more often than
# not, and a sync has an even chance to wait with them.
FULL_SHARE = 0.5
# The trim's own bounds: 1/16 reaches the floor of any policy that makes sense,
# 16 reaches 16 times the wait that the policy allows.
TRIM_LEAST, TRIM_MOST = 1 / 16, 16.0
# How long a trim at which throughput suffered is not tried again, and how far
# above it the target stays meanwhile.
STARVED_REMEMBERED_S = 300.0
STARVED_MARGIN = 1.1
# Tightening that could not be done, or did not help, for so many ticks: say so.
EXHAUSTED_TICKS = 5


@dataclass(frozen=True)
class Want:
    """What one device asks for; target None: the limits as they were found."""

    name: str
    state: State
    target_bytes: Optional[int]
    demand: bool
    reason: str
    steps: Tuple[str, ...]


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
    host: HostInfo,
    now_s: float,
    in_force: int,
    estimate: Estimate,
    memory: DeviceMemory,
) -> Tuple[Want, DeviceMemory]:
    """The device's want, and its memory with the trim moved.

    `in_force` is the limit that the kernel applies now, in bytes.
    """
    floor = max(bounds.floor_bytes, kernel_floor_bytes(host))
    ceiling = max(bounds.ceiling_bytes, floor)
    seen = _describe(estimate)
    if not estimate.demand_known:
        return _blind(policy, bounds, floor, ceiling, estimate, seen), memory
    if not estimate.demand:
        return _idle(bounds, floor, ceiling, estimate, seen), replace(memory, trim=1.0)
    if estimate.drain_rate is None:
        target = _clamp(policy.limits.rest_bytes, floor, ceiling)
        reason = (
            "sync demand; the drain rate is not known yet, "
            f"so the limit rests at {human.size(target)}"
        )
        return Want(estimate.name, State.GUARD, target, True, reason, (*seen, reason)), memory

    objective = objective_s(bounds.fsync_p99_s, bounds.baseline_multiple, estimate.baseline_s)
    forward = estimate.drain_rate * bounds.allowed_delay_s
    present = _clamp(forward * memory.trim, floor, ceiling)
    judged = IN_FORCE_LOW <= in_force / present <= IN_FORCE_HIGH
    memory, state, verdict = _trim(
        policy, memory, estimate, objective, forward, floor, now_s, judged
    )
    target = _clamp(forward * memory.trim, floor, ceiling)
    steps = (
        *seen,
        f"the objective is a p99 of {_ms(objective)}"
        + (f", {bounds.baseline_multiple:g} x unloaded" if objective > bounds.fsync_p99_s else ""),
        f"{human.size(estimate.drain_rate)}/s drained x {_ms(bounds.allowed_delay_s)} allowed"
        f" = {human.size(forward)}",
        f"x trim {memory.trim:.2f} = {human.size(target)}"
        + (f", held at the floor {human.size(floor)}" if target == floor else "")
        + (f", held at the ceiling {human.size(ceiling)}" if target == ceiling else ""),
        verdict,
    )
    return Want(estimate.name, state, target, True, verdict, steps), memory


def _trim(
    policy: Policy,
    memory: DeviceMemory,
    estimate: Estimate,
    objective: float,
    forward: float,
    floor: int,
    now_s: float,
    judged: bool,
) -> Tuple[DeviceMemory, State, str]:
    """Move the trim by at most one step; say what was done and why."""
    if not estimate.flooded:
        memory = replace(memory, slow_ticks=0, starved_ticks=0, stuck_ticks=0)
        return memory, State.GUARD, "sync demand and no flood: resting at the feed-forward target"
    if not judged:
        memory = replace(memory, slow_ticks=0, starved_ticks=0, last_trim_s=now_s)
        return memory, State.GUARD, "flooded, and the limit in force is not this device's yet"

    wait = max(estimate.fsync_p99_s or 0.0, estimate.oldest_fsync_s)
    late = wait > objective
    full = (estimate.slow_share or 0.0) > FULL_SHARE
    keep = policy.objective.keep_throughput * (estimate.drain_rate or 0.0)
    # A flood that is slow by itself is none of our doing.
    starved = (
        estimate.held_back and estimate.throughput is not None and estimate.throughput < keep
    )
    memory = replace(
        memory,
        slow_ticks=memory.slow_ticks + 1 if late or full else 0,
        starved_ticks=memory.starved_ticks + 1 if starved else 0,
    )
    settled = now_s - memory.last_trim_s >= SETTLE_S
    why_slow = (
        f"fsync p99 {_ms(wait)} is above the objective {_ms(objective)}"
        if late
        else f"{100 * (estimate.slow_share or 0):.0f} % of writes wait for room in the cache"
    )

    # Throughput first: a limit below the knee costs it and buys little latency.
    if memory.starved_ticks >= STARVED_TICKS:
        verdict = (
            f"the flood gets {human.size(estimate.throughput or 0)}/s, "
            f"less than the {human.size(keep)}/s to keep"
        )
        if not settled:
            return memory, State.PROBE, verdict + ": waiting for the last step to settle"
        missing = (estimate.drain_rate or 0.0) / max(estimate.throughput or 0.0, 1.0)
        grow = min(max(missing, GROW), GROW_MOST)
        memory = replace(
            memory,
            starved_trim=memory.trim,
            starved_s=now_s,
            trim=min(TRIM_MOST, memory.trim * grow),
            last_trim_s=now_s,
            stuck_ticks=0,
        )
        return memory, State.PROBE, verdict + ": loosening"

    if memory.slow_ticks >= PERSIST_TICKS:
        least = TRIM_LEAST
        if now_s - memory.starved_s < STARVED_REMEMBERED_S:
            least = max(least, memory.starved_trim * STARVED_MARGIN)
        if memory.trim * SHRINK < least or forward * memory.trim <= floor:
            memory = replace(memory, stuck_ticks=memory.stuck_ticks + 1)
            if late and memory.stuck_ticks >= EXHAUSTED_TICKS:
                return memory, State.EXHAUSTED, why_slow + (
                    "; a smaller limit is not allowed (floor)"
                    if forward * memory.trim <= floor
                    else "; a smaller limit cost throughput when it was tried"
                )
            return memory, State.GUARD, why_slow + "; holding, the limit is at its lower bound"
        if not settled:
            return memory, State.SQUEEZE, why_slow + ": waiting for the last step to settle"
        memory = replace(memory, trim=memory.trim * SHRINK, last_trim_s=now_s, stuck_ticks=0)
        return memory, State.SQUEEZE, why_slow + ": tightening"

    memory = replace(memory, stuck_ticks=0)
    if late or full:
        return memory, State.GUARD, why_slow + ": does it last?"
    if estimate.held_back and not memory.drain_window:
        # The cache was never seen full since the drain rate was raised: the
        # rate is what this limit let through, and the device may take more.
        verdict = "writers are held back while no write waits for the media"
        if not settled:
            return memory, State.PROBE, verdict + ": waiting for the last step to settle"
        memory = replace(memory, trim=min(TRIM_MOST, memory.trim * GROW), last_trim_s=now_s)
        return memory, State.PROBE, verdict + ": trying a larger limit"
    return memory, State.GUARD, (
        f"flooded, fsync p99 {_ms(wait)} within the objective {_ms(objective)}: holding"
    )


def _idle(
    bounds: DevicePolicy, floor: int, ceiling: int, estimate: Estimate, seen: Tuple[str, ...]
) -> Want:
    if estimate.drain_rate is None:
        reason = "no sync demand and no flood seen yet: the limits stay as found"
        return Want(estimate.name, State.IDLE, None, False, reason, (*seen, reason))
    target = _clamp(estimate.drain_rate * bounds.drain_time_s, floor, ceiling)
    reason = (
        f"no sync demand: relaxed to {human.size(target)}, "
        f"what {human.size(estimate.drain_rate)}/s drains in {bounds.drain_time_s:g} s"
    )
    return Want(estimate.name, State.IDLE, target, False, reason, (*seen, reason))


def _blind(
    policy: Policy, bounds: DevicePolicy, floor: int, ceiling: int,
    estimate: Estimate, seen: Tuple[str, ...],
) -> Want:
    """Without fsync latency: assume that somebody syncs while a flood is on."""
    if not estimate.flooded:
        if estimate.drain_rate is None:
            reason = "fsync cannot be seen, and no flood was: the limits stay as found"
            return Want(estimate.name, State.BLIND, None, False, reason, (*seen, reason))
        target = _clamp(estimate.drain_rate * bounds.drain_time_s, floor, ceiling)
        reason = f"fsync cannot be seen; no flood: {human.size(target)} drains in bounded time"
        return Want(estimate.name, State.BLIND, target, False, reason, (*seen, reason))
    forward = (estimate.drain_rate or 0.0) * bounds.allowed_delay_s
    target = _clamp(max(forward, policy.limits.rest_bytes), floor, ceiling)
    reason = (
        f"fsync cannot be seen; a flood of {human.size(estimate.background_rate)}/s is on: "
        f"held at {human.size(target)}"
    )
    return Want(estimate.name, State.BLIND, target, True, reason, (*seen, reason))


def _describe(estimate: Estimate) -> Tuple[str, ...]:
    """What was seen, before any conclusion."""
    steps = [f"writes {human.size(estimate.write_rate)}/s, "
             f"{human.size(estimate.background_rate)}/s of it by the flusher"]
    if estimate.drain_rate is None:
        steps.append(f"drain rate unknown ({estimate.drain_sample})")
    else:
        steps.append(
            f"drain rate {human.size(estimate.drain_rate)}/s (this tick: {estimate.drain_sample})"
        )
    if estimate.demand_known:
        steps.append(
            f"{estimate.sync_rate or 0:.0f} syncs/s, p50 {_ms(estimate.fsync_p50_s)}, "
            f"p99 {_ms(estimate.fsync_p99_s)}, unloaded {_ms(estimate.baseline_s)}"
        )
    if estimate.slow_share is not None:
        steps.append(f"{100 * estimate.slow_share:.0f} % of write completions slow")
    return tuple(steps)


def _clamp(value: float, low: int, high: int) -> int:
    return int(min(max(value, low), high))


def _ms(seconds: Optional[float]) -> str:
    return "unknown" if seconds is None else f"{human.milliseconds(seconds)} ms"
