# SPDX-License-Identifier: GPL-2.0-or-later
"""The reasoning behind a decision, in words: only `why` asks.

Four sentences for each of 1 024 devices would be a tenth of every tick.
"""

from __future__ import annotations

from typing import Mapping, Optional, Tuple

from writebackd import human
from writebackd.control import reasons
from writebackd.model import Basis, DeviceDecision, Estimate, Rule, State
from writebackd.policy.schema import Objective
from writebackd.tuning import DEMAND_WINDOW_S, FLOOD_RATE

# Under these the objective has its say.
STEERED = (Rule.CUT, Rule.SHORT, Rule.DEAR, Rule.STEADY, Rule.ROOM)
# What comes next where the law does not decide.
_NEXT: Mapping[State, str] = {
    State.IDLE: "{follows}. When something on this device syncs as often as the policy's"
    " min-sync-rate{rate}, or one fsync waits longer than the objective, the device is guarded from"
    " the next tick on.",
    State.PACE: "The flooding unit is held just below the drain rate until the flood ends.",
    State.EXHAUSTED: "The limit stays as small as is allowed while the cache is full. If this"
    " lasts: a smaller limit may still shorten fsync at the cost of throughput, which"
    " `writebackctl pin` tries. If none does, the queue is not made of dirty pages: look for direct"
    " IO, another host behind the array, or a sick disk.",
    State.BLIND: "{follows}.",
    State.YIELDED: "Nothing is written until `writebackctl enforce`.",
    State.PINNED: "The pinned limit stays until `writebackctl release` or a restart.",
    State.EXCLUDED: "Nothing: this device has no say in the limit.",
}


def verdict(decision: DeviceDecision, estimate: Optional[Estimate]) -> Optional[str]:
    """Whether all is well with syncs on the device, and what is left to do; None: not known."""
    basis = decision.basis
    if estimate is None or basis is None or not estimate.demand_known:
        return None
    waits_s = reasons.wait_s(estimate)
    if not estimate.demand or not waits_s:
        return None
    waits = f"{_longest(estimate)}, the objective is {_ms(basis.objective_s)}"
    if waits_s <= basis.objective_s:
        return f"well: {waits}"
    if decision.state is State.EXHAUSTED:
        why = reasons.verdict(Rule.FLOOR, decision.target_bytes or 0, estimate, basis)
        return f"not well: {waits}, and {why}; the end of `next` says where to look"
    return f"not well: {waits}; why, and what comes, is below"


def what_next(
    decision: DeviceDecision, estimate: Optional[Estimate], objective: Optional[Objective] = None
) -> str:
    """What happens next, and on what it depends.

    `objective` is the policy's in force; without it its numbers are left out.
    """
    words = _NEXT.get(decision.state)
    if words is None and decision.rule is not Rule.OTHER:
        text = reasons.next_step(decision.rule)
        late = (
            estimate is not None and decision.basis is not None and decision.rule in STEERED
            and reasons.wait_s(estimate) > decision.basis.objective_s
        )
        return " ".join(map(_sentence, (text, reasons.objective_note()) if late else (text,)))
    rate = ""
    if objective is not None:
        rate = f" ({objective.min_sync_rate:g}/s over {DEMAND_WINDOW_S:g} s)"
    follows = "The target follows the drain rate"
    if decision.target_bytes is None:
        follows = "The limits stay as found until a flood lasts"
    return (words or "The next tick decides.").format(rate=rate, follows=follows)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def explain(decision: DeviceDecision, estimate: Optional[Estimate]) -> Tuple[str, ...]:
    """The chain from what was seen to the decision made of it, one sentence each."""
    if estimate is None or decision.state is State.EXCLUDED:
        return decision.steps
    means = tuple(f"means: {text}" for text in _meaning(estimate, decision.basis))
    seen = tuple(f"seen: {text}" for text in _describe(estimate))
    law = () if decision.basis is None else (f"law: {_relation(decision.basis, estimate)}",)
    return (*seen, *means, *law, *decision.steps)


def _meaning(estimate: Estimate, basis: Optional[Basis]) -> Tuple[str, ...]:
    """What was seen, as the law understands it."""
    found = []
    if estimate.flooded:
        held = (
            "writers sleep for the limit, which sets their speed"
            if estimate.held_back
            else "the limit holds nobody back"
        )
        found.append(f"a flood; {held}")
    elif estimate.background_rate > FLOOD_RATE:
        found.append("no flood: the flusher writes, and nothing piles up before it")
    else:
        found.append("no flood")
    cache = estimate.cache_bytes
    if estimate.flooded and estimate.full:
        found.append("the write cache has no room (or there is none): syncs wait for the media")
    elif estimate.flooded and estimate.demand:
        of = f"; it takes about {human.size(cache)}" if cache else ""
        found.append(f"the write cache has room: few syncs wait{of}")
    if estimate.demand_known and not estimate.demand:
        found.append("nobody who syncs has to be protected")
    elif basis is not None:
        waits_s = reasons.wait_s(estimate)
        if waits_s:
            side = "above" if waits_s > basis.objective_s else "within"
            found.append(
                f"{_longest(estimate)}, {side} the objective of {_ms(basis.objective_s)}"
            )
    return tuple(found)


def _longest(estimate: Estimate) -> str:
    """What `wait` is of: p99 of those that returned is not the longest."""
    if estimate.oldest_fsync_s > (estimate.fsync_p99_s or 0.0):
        return f"the oldest fsync has waited for {_ms(estimate.oldest_fsync_s)}"
    return f"fsync p99 is {_ms(estimate.fsync_p99_s)}"


def _describe(estimate: Estimate) -> Tuple[str, ...]:
    """What was seen, before any conclusion."""
    steps = [f"writes {human.size(estimate.write_rate)}/s, "
             f"{human.size(estimate.background_rate)}/s of it by the flusher"]
    if estimate.drain_rate is None:
        steps.append("drain rate not known yet")
    else:
        steps.append(f"drain rate {human.size(estimate.drain_rate)}/s")
    if estimate.demand_known:
        text = f"{human.count(estimate.sync_rate or 0.0)} syncs/s"
        if estimate.fsync_p50_s is not None:
            text += f", p50 {_ms(estimate.fsync_p50_s)}, p99 {_ms(estimate.fsync_p99_s)}"
        if estimate.oldest_fsync_s > (estimate.fsync_p99_s or 0.0):
            text += f", the oldest pending for {_ms(estimate.oldest_fsync_s)}"
        if estimate.baseline_s is not None:
            text += f", unloaded {_ms(estimate.baseline_s)}"
        steps.append(text)
    if estimate.slow_share is not None:
        steps.append(f"{human.percent(estimate.slow_share)} of the syncs' time in slow ones")
    return tuple(steps)


def _relation(basis: Basis, estimate: Estimate) -> str:
    text = f"the objective is a p99 of {_ms(basis.objective_s)}; "
    if estimate.drain_rate is None:
        return text + "what syncs cost is measured once the drain rate is known"
    return text + (
        f"syncs cost {human.percent(basis.spent)} of {human.size(estimate.drain_rate)}/s, and may"
        f" cost {human.percent(basis.may_spend)}"
    )


def _ms(seconds: Optional[float]) -> str:
    return "unknown" if seconds is None else f"{human.milliseconds(seconds)} ms"
