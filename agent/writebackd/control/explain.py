# SPDX-License-Identifier: GPL-2.0-or-later
"""Renders the reasoning behind a decision as text, for `why`.

Only on request: for 1024 devices in every tick it would take a tenth of the tick.
"""

from __future__ import annotations

from typing import Mapping, Optional, Tuple

from writebackd import formats
from writebackd.control import reasons
from writebackd.policy.keys import Objective
from writebackd.tuning import DEMAND_WINDOW_S, FLOOD_RATE
from writebackd.types.decision import Basis, DeviceDecision, DeviceState, Rule
from writebackd.types.estimate import Estimate

# What comes next where the law does not decide.
_NEXT: Mapping[DeviceState, str] = {
    DeviceState.IDLE: "{follows}. The device is guarded from the next tick after syncs reach"
    " min-sync-rate{rate}, or one commit takes longer than the objective.",
    DeviceState.PACE: "The flooding unit is held just below the drain rate until the flood ends.",
    DeviceState.EXHAUSTED: "The limit stays at its floor while the cache is full. If this lasts,"
    " `writebackctl pin` tries a smaller limit, at the cost of throughput. If that does not help,"
    " the queue does not come from dirty pages: check for direct IO, another host on the array, or"
    " a failing disk.",
    DeviceState.BLIND: "{follows}.",
    DeviceState.YIELDED: "Nothing is written while it yields; `writebackctl enforce` ends that.",
    DeviceState.PINNED: "The limit stays until the end of the pin or drain, `writebackctl release`"
    " or a reboot.",
    DeviceState.EXCLUDED: "Nothing: this device does not affect the limit.",
}


def verdict(decision: DeviceDecision, estimate: Optional[Estimate]) -> Optional[str]:
    """Whether commits on the device meet the objective; None without demand or latency."""
    judgement = reasons.judged(estimate, decision.basis) if estimate is not None else None
    if judgement is None:
        return None
    if judgement.met:
        return f"OK: {judgement.text}"
    floor = ", limit at its floor" if decision.state is DeviceState.EXHAUSTED else ""
    return f"MISSES OBJECTIVE: {judgement.text}{floor}"


def what_next(
    decision: DeviceDecision, objective: Optional[Objective] = None, unset: str = ""
) -> str:
    """What happens next, and on what it depends.

    `objective` is that of the policy in force; without it the text has no numbers of it. `unset`
    says in which state of the daemon nothing is set, whatever it decides.
    """
    words = _NEXT.get(decision.state)
    if unset and decision.state is not DeviceState.EXCLUDED:
        return f"Nothing is set {unset}."
    if words is None and decision.rule is not Rule.OTHER:
        text = reasons.next_step(decision.rule)
        return f"{text[0].upper()}{text[1:]}."
    rate = ""
    if objective is not None:
        rate = f" ({objective.min_sync_rate:g}/s over {formats.duration(DEMAND_WINDOW_S)})"
    follows = "The target follows the drain rate"
    if decision.target_bytes is None:
        follows = "The original limits stay until there is a lasting flood"
    return (words or "The next tick decides.").format(rate=rate, follows=follows)


def explain(decision: DeviceDecision, estimate: Optional[Estimate]) -> Tuple[str, ...]:
    """The steps from observation to decision, one sentence each."""
    if estimate is None or decision.state is DeviceState.EXCLUDED:
        return decision.steps
    means = tuple(f"means: {text}" for text in _meaning(estimate, decision.basis))
    seen = tuple(f"seen: {text}" for text in _describe(estimate))
    law = () if decision.basis is None else (f"law: {_relation(decision.basis, estimate)}",)
    return (*seen, *means, *law, *decision.steps)


def _meaning(estimate: Estimate, basis: Optional[Basis]) -> Tuple[str, ...]:
    """How the law interprets the observations."""
    lines = []
    if estimate.flooded:
        throttled = "the limit throttles its writers" if estimate.held_back else "not throttled"
        lines.append(f"flood, {throttled}")
    elif estimate.background_rate > FLOOD_RATE:
        lines.append("no flood: writeback keeps up")
    else:
        lines.append("no flood")
    cache = estimate.cache_bytes
    if estimate.flooded and estimate.full:
        lines.append("write cache full or absent: fsync waits for the media")
    elif estimate.flooded and estimate.demand:
        of = f" (about {formats.size(cache)})" if cache else ""
        lines.append(f"write cache{of} has room: few syncs wait")
    if estimate.demand_known and not estimate.demand:
        lines.append("no sync demand")
    else:
        judgement = reasons.judged(estimate, basis)
        if judgement is not None:
            lines.append(f"objective {'met' if judgement.met else 'missed'}: {judgement.text}")
    return tuple(lines)


def _describe(estimate: Estimate) -> Tuple[str, ...]:
    """The observations, without conclusions."""
    steps = [f"writes {formats.size(estimate.write_rate)}/s, "
             f"{formats.size(estimate.background_rate)}/s of it writeback"]
    if estimate.drain_rate is None:
        steps.append("drain rate unknown")
    else:
        steps.append(f"drain rate {formats.size(estimate.drain_rate)}/s")
    if estimate.demand_known:
        text = f"{formats.count(estimate.sync_rate or 0.0)} commits/s"
        if estimate.commit_p50_s is not None:
            text += f", p50 {formats.latency(estimate.commit_p50_s)}"
            text += f", p99 {formats.latency(estimate.commit_p99_s)}"
        if estimate.oldest_commit_s > (estimate.commit_p99_s or 0.0):
            text += f", oldest pending {formats.latency(estimate.oldest_commit_s)}"
        if estimate.baseline_s is not None:
            text += f", unloaded {formats.latency(estimate.baseline_s)}"
        steps.append(text)
    if estimate.commit_write_share is not None:
        steps.append(
            f"commits wait in write(): {formats.percent(estimate.commit_write_share)} of their"
            f" time; fsync p99 {formats.latency(estimate.fsync_p99_s)}"
        )
    elif estimate.commit_p50_s is not None:
        steps.append("sleep in write() not visible on this kernel: times are of fsync alone")
    if estimate.slow_share is not None:
        steps.append(f"{formats.percent(estimate.slow_share)} of sync time in slow syncs")
    return tuple(steps)


def _relation(basis: Basis, estimate: Estimate) -> str:
    text = f"objective p99 {formats.latency(basis.objective_s)}"
    if basis.delay_s is None:
        return text
    once = " once the drain rate is known" if estimate.drain_rate is None else ""
    return f"{text}; a flood's limit is what drains in {formats.latency(basis.delay_s)}{once}"
