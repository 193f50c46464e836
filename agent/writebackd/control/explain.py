# SPDX-License-Identifier: GPL-2.0-or-later
"""The reasoning behind a decision, in words: only `why` asks.

Four sentences for each of 1 024 devices would be a tenth of every tick.
"""

from __future__ import annotations

from typing import Optional, Tuple

from writebackd import human
from writebackd.model import Basis, DeviceDecision, Estimate, State


def explain(decision: DeviceDecision, estimate: Optional[Estimate]) -> Tuple[str, ...]:
    """The chain from what was seen to the decision made of it, one sentence each."""
    if estimate is None or decision.state is State.EXCLUDED:
        return decision.steps
    relation = () if decision.basis is None else (_relation(decision.basis, estimate),)
    return (*_describe(estimate), *relation, *decision.steps)


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
