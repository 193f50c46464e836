# SPDX-License-Identifier: GPL-2.0-or-later
"""The reasoning behind a decision, in words: only `why` asks.

Four sentences for each of 1 024 devices would be a tenth of every tick.
"""

from __future__ import annotations

from typing import Optional, Tuple

from writebackd import human
from writebackd.control.climb import AT_FLOOR
from writebackd.control.forecast import REGULATED
from writebackd.control.steps import REMEMBERED_S, wait
from writebackd.estimate.drain import FLOOD_RATE
from writebackd.model import Basis, DeviceDecision, Estimate, Hold, Phase, State

# Of a cache that is this full by count: the count is right to a few percent.
COUNTED_FULL = 0.95


def verdict(decision: DeviceDecision, estimate: Optional[Estimate]) -> Optional[str]:
    """Whether all is well with syncs on the device, and what is left to do; None: not known."""
    basis = decision.basis
    if estimate is None or basis is None or not estimate.demand_known:
        return None
    waits_s = wait(estimate)
    if not estimate.demand or not waits_s:
        return None
    waits = f"{_longest(estimate)}, the objective is {_ms(basis.objective_s)}"
    if waits_s <= basis.objective_s:
        return f"well: {waits}"
    if decision.state is State.EXHAUSTED:
        why = "no limit that was tried shortens it without a loss of throughput"
        target = decision.target_bytes
        if target is not None and int(target * estimate.limit_share) <= basis.floor_bytes:
            why = AT_FLOOR
        return f"not well: {waits}, and {why}; the end of `next` says where to look"
    return f"not well: {waits}; why, and what comes, is below"


def explain(
    decision: DeviceDecision,
    estimate: Optional[Estimate],
    hold: Optional[Hold] = None,
    now_s: float = 0.0,
) -> Tuple[str, ...]:
    """The chain from what was seen to the decision made of it, one sentence each.

    `hold` is the law's memory after the decision, `now_s` its time (Sample.time_s).
    """
    if estimate is None or decision.state is State.EXCLUDED:
        return decision.steps
    means = tuple(f"means: {text}" for text in _meaning(estimate, decision.basis))
    seen = tuple(f"seen: {text}" for text in _describe(estimate))
    law = () if decision.basis is None else (f"law: {_relation(decision.basis, estimate)}",)
    weighed: Tuple[str, ...] = ()
    if hold is not None and decision.state in REGULATED:
        weighed = tuple(f"considered: {text}" for text in _considered(estimate, hold, now_s))
    return (*seen, *means, *law, *weighed, *decision.steps)


def _considered(estimate: Estimate, hold: Hold, now_s: float) -> Tuple[str, ...]:
    """What else the law could have done, and why it did not."""
    found = []
    useless_s = now_s - hold.useless_s
    holds = estimate.flooded and hold.phase is Phase.HOLD
    if holds and useless_s < REMEMBERED_S:
        found.append(
            "making room in the write cache by a tighter limit: brought nothing"
            f" {human.duration(useless_s)} ago, not again for"
            f" {human.duration(REMEMBERED_S - useless_s)}"
        )
    elif holds and not estimate.full:
        found.append("making room in the write cache: it has room")
    if now_s - hold.starved_s < REMEMBERED_S and hold.starved_bytes:
        found.append(
            f"{human.size(hold.starved_bytes)} or less: cost throughput"
            f" {human.duration(now_s - hold.starved_s)} ago"
        )
    if estimate.flooded and hold.phase is Phase.SEEK and hold.sought:
        than = f" than {human.size(hold.seek_rate)}/s" if hold.seek_rate else ""
        found.append(f"a larger limit: brought no more{than}")
    if hold.climb.tries:
        found.append(
            f"other limits, by trying: {hold.climb.tries} tried, beginning at"
            f" {human.size(hold.climb.begin_bytes)}; smaller ones that brought nothing:"
            f" {hold.climb.fruitless}"
        )
    return tuple(found)


def _meaning(estimate: Estimate, basis: Optional[Basis]) -> Tuple[str, ...]:
    """What was seen, as the law understands it."""
    found = []
    if estimate.flooded:
        held = (
            "writers sleep for the limit, which sets their speed"
            if estimate.held_back
            else "the limit holds nobody back"
        )
        waves = ", one of several short ones" if estimate.in_waves else ""
        found.append(f"a flood{waves}; {held}")
    elif estimate.background_rate > FLOOD_RATE:
        found.append("no flood: the flusher writes, and nothing piles up before it")
    else:
        found.append("no flood")
    cache = estimate.cache_bytes
    if estimate.flooded and estimate.flushes_wait:
        found.append("flushes are much of what syncs wait for: the write cache is volatile")
    elif estimate.flooded and estimate.full:
        found.append("the write cache has no room (or there is none): writes wait for the media")
    elif estimate.flooded and cache:
        share, size = min(1.0, estimate.fill_bytes / cache), human.size(cache)
        room = f"the write cache has room: about {human.percent(share)} of {size} taken"
        if share >= COUNTED_FULL:
            room = f"the write cache has room: no write waits, though by count all {size} are taken"
        found.append(room)
    if estimate.demand_known and not estimate.demand:
        found.append("nobody who syncs has to be protected")
    elif basis is not None:
        waits_s = wait(estimate)
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
        steps.append(f"drain rate unknown ({estimate.drain_sample})")
    else:
        steps.append(
            f"drain rate {human.size(estimate.drain_rate)}/s (this tick: {estimate.drain_sample})"
        )
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
        steps.append(f"{100 * estimate.slow_share:.0f} % of write completions slow")
    return tuple(steps)


def _relation(basis: Basis, estimate: Estimate) -> str:
    text = f"the objective is a p99 of {_ms(basis.objective_s)}; "
    if basis.forward_bytes is None:
        return text + "the drain rate is not known yet"
    tau = estimate.tau_s
    return text + (
        f"{human.size(estimate.drain_rate or 0)}/s drained x "
        + (f"{_ms(tau)} measured" if tau is not None else f"{_ms(basis.allowed_delay_s)} allowed")
        + f" = {human.size(basis.forward_bytes)}"
    )


def _ms(seconds: Optional[float]) -> str:
    return "unknown" if seconds is None else f"{human.milliseconds(seconds)} ms"
