# SPDX-License-Identifier: GPL-2.0-or-later
"""The reasoning behind a decision, in words: only `why` asks.

Four sentences for each of 1 024 devices would be a tenth of every tick.
"""

from __future__ import annotations

from typing import Mapping, Optional, Tuple

from writebackd import human
from writebackd.control.hold import (
    DRAIN_LEAST_S,
    DRAIN_MOST_S,
    FILL_TO,
    FULL_LASTS_S,
    LATE_LASTS_S,
    PROBE_GAIN,
    REMEMBERED_S,
)
from writebackd.control.steps import JUDGE_S, wait
from writebackd.model import Basis, DeviceDecision, Estimate, Hold, Phase, State

# States in which the law's own memory tells what comes.
_REGULATED = (State.GUARD, State.SQUEEZE, State.PROBE)

_NEXT: Mapping[State, str] = {
    State.IDLE: "As soon as something on this device syncs often, it is guarded.",
    State.GUARD: "The target follows the drain rate. When fsync misses the objective for"
    " several ticks it is tightened (squeeze); when the flood gets too little throughput"
    " it is loosened (probe).",
    State.SQUEEZE: "If fsync still misses the objective when this step has settled, the target"
    " shrinks another step, down to the floor or to where throughput suffers.",
    State.PROBE: "The target grows step by step until the flood has the throughput that the"
    " policy keeps for it.",
    State.PACE: "The flooding unit is held just below the drain rate until the flood ends.",
    State.EXHAUSTED: "The target stays until fsync meets the objective again. If this lasts, the"
    " queue is not made of dirty pages: look for direct IO, another host behind the array,"
    " or a sick disk.",
    State.BLIND: "The target follows what can be seen: floods and the drain rate.",
    State.YIELDED: "Nothing is written until `writebackctl enforce`.",
    State.PINNED: "The pinned limit stays until `writebackctl release` or a restart.",
    State.EXCLUDED: "Nothing: this device has no say in the limit.",
}


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
    if hold is not None and decision.state in _REGULATED and estimate.flooded:
        weighed = tuple(f"considered: {text}" for text in _considered(estimate, hold, now_s))
    return (*seen, *means, *law, *weighed, *decision.steps)


def what_next(
    decision: DeviceDecision,
    estimate: Optional[Estimate],
    hold: Optional[Hold] = None,
    now_s: float = 0.0,
) -> str:
    """What happens next, and on what it depends; arguments as those of `explain`."""
    if estimate is None or hold is None or decision.state not in _REGULATED:
        return _NEXT[decision.state]
    if not estimate.flooded:
        return (
            "The target stays until a flood begins, which the next tick sees."
            " Without syncs for some time the device becomes idle."
        )
    if hold.climb.from_bytes:
        return (
            "This limit is on trial: after some seconds it is kept if fsync got faster and the"
            " flood keeps its throughput, else it goes back to"
            f" {human.size(hold.climb.from_bytes)}."
        )
    if hold.phase is Phase.DRAIN:
        return (
            f"The limit goes back to about {human.size(hold.limit_bytes)} when the write cache has"
            f" room again, {DRAIN_LEAST_S:g} to {DRAIN_MOST_S:g} s after this began;"
            f" {max(0.0, now_s - hold.changed_s):.1f} s are over."
        )
    if hold.phase is Phase.FILL:
        return (
            f"The limit goes back to {human.size(hold.limit_bytes)} when the write cache is"
            f" {100 * FILL_TO:.0f} % full."
        )
    if hold.phase is Phase.SEEK:
        return (
            "The limit doubles while that brings more throughput. When the write cache is full the"
            " drain rate is seen, and the limit becomes drain rate x the kernel's writeback delay."
        )
    if decision.state is State.GUARD and hold.late_s >= LATE_LASTS_S and not estimate.full:
        return (
            "The target stays while fsync is above the objective and the write cache has room: a"
            " smaller limit would cost throughput. A larger one may be tried."
        )
    return _next_of_hold(hold, now_s)


def _next_of_hold(hold: Hold, now_s: float) -> str:
    if hold.probe_bytes:
        return (
            f"After {JUDGE_S:g} s of it this larger limit is kept if it brings"
            f" {100 * (PROBE_GAIN - 1):.0f} % more than {human.size(hold.probe_rate)}/s; else back"
            f" to {human.size(hold.probe_bytes)}. If the write cache is full before, room is made."
        )
    if hold.late_s:
        return (
            f"If fsync stays above the objective for {LATE_LASTS_S:g} s ({hold.late_s:.1f} s are"
            " over), another limit is tried: a smaller one first."
        )
    drains = now_s - hold.useless_s >= REMEMBERED_S
    if hold.full_s and drains:
        return (
            f"If the write cache stays full for {FULL_LASTS_S:g} s ({hold.full_s:.1f} s are over),"
            " a tighter limit makes room in it for some seconds."
        )
    again_s = max(0.0, hold.changed_s + hold.probe_again_s - now_s)
    full = "the write cache is full: tighter for some seconds; " if drains else ""
    return (
        f"The target stays, unless one of these is seen: {full}fsync above the objective for"
        f" {LATE_LASTS_S:g} s: a search for a better limit; the flood slower than the disk: looser."
        f" In {human.duration(again_s)} a larger one is tried."
    )


def _considered(estimate: Estimate, hold: Hold, now_s: float) -> Tuple[str, ...]:
    """What else the law could have done, and why it did not."""
    found = []
    useless_s = now_s - hold.useless_s
    if hold.phase is Phase.HOLD and useless_s < REMEMBERED_S:
        found.append(
            "making room in the write cache by a tighter limit: brought nothing"
            f" {human.duration(useless_s)} ago, not again for"
            f" {human.duration(REMEMBERED_S - useless_s)}"
        )
    elif hold.phase is Phase.HOLD and not estimate.full:
        found.append("making room in the write cache: it has room")
    if now_s - hold.starved_s < REMEMBERED_S and hold.starved_bytes:
        found.append(
            f"{human.size(hold.starved_bytes)} or less: cost throughput"
            f" {human.duration(now_s - hold.starved_s)} ago"
        )
    if hold.phase is Phase.SEEK and hold.sought:
        found.append(f"a larger limit: brought no more than {human.size(hold.seek_rate)}/s")
    if hold.climb.tries:
        found.append(
            f"other limits, by trying: {hold.climb.tries} tried since"
            f" {human.size(hold.climb.begin_bytes)}, {hold.climb.fruitless} smaller ones brought"
            " nothing"
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
    else:
        found.append("no flood")
    cache = estimate.cache_bytes
    if estimate.flooded and estimate.full:
        found.append("the write cache has no room (or there is none): writes wait for the media")
    elif estimate.flooded and cache:
        share = min(1.0, estimate.fill_bytes / cache)
        found.append(
            f"the write cache has room: about {human.percent(share)} of {human.size(cache)} taken"
        )
    if estimate.demand_known and not estimate.demand:
        found.append("nobody who syncs has to be protected")
    elif basis is not None:
        waits_s = wait(estimate)
        if waits_s:
            side = "above" if waits_s > basis.objective_s else "within"
            found.append(
                f"fsync waits up to {_ms(waits_s)}, {side} the objective of"
                f" {_ms(basis.objective_s)}"
            )
    return tuple(found)


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
