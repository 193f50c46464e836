# SPDX-License-Identifier: GPL-2.0-or-later
"""Summarises a trial in sentences and as JSON.  Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Optional

from writebackd import formats
from writebackd.formats import latency
from writebackd.trial.analysis import P50, P99, SYNC_RATE, WRITE_RATE, Difference, Result
from writebackd.trial.plan import LEAST_PAIRS, Plan

# Of the time that counts: without a flood both arms are alike.
MOSTLY = 0.5
NAMES = {
    P99: "commit p99", P50: "commit p50", SYNC_RATE: "commits per second", WRITE_RATE: "throughput"
}  # fmt: skip
# Fewer in a block, and its p99 is its slowest.
ENOUGH_FSYNCS = 100


@dataclass(frozen=True)
class TrialSummary:
    """A finished trial."""

    host: str
    version: str
    policy: str
    mode: str  # before and after it
    seed: int
    plan: Plan
    found_bytes: int
    limit_bytes: int  # of the original arm
    cut: Optional[str]
    stop_s: float
    ended: str
    why: str
    result: Result


def verdict(report: TrialSummary) -> str:
    """The result in one or two sentences."""
    result, pairs = report.result, report.result.pairs
    p99, rate, syncs = (result.of(name) for name in (P99, WRITE_RATE, SYNC_RATE))
    if result.agent is None or result.original is None:
        return "Nothing to compare: one arm has no block that counts." + _seen(result)
    # The number of pairs that have this measure, which may be one less.
    over = f"over {len(p99.ratios)} pairs"
    if p99.scattered:
        return (
            f"Inconclusive {over}: commit p99 differs too much from pair to pair to show a"
            " difference." + _seen(result)
        )
    if pairs < LEAST_PAIRS or p99.ratio is None or p99.low is None:
        few = f"only {pairs} pair{'s' * (pairs > 1)}" if pairs else "no pair"
        return (
            f"Inconclusive: {few} of blocks can be compared, {LEAST_PAIRS} are needed."
            + _seen(result)
        )
    if p99.better or p99.worse:
        text = f"The agent made commit p99 {_changed(p99)} {over}"
    else:
        text = f"No difference in commit p99 was shown {over}: without the agent it was"
        text += f" {times(p99.ratio)} as long (95 % interval {_span(p99)})"
    if rate.ratio is not None and rate.low is not None:
        text += f"; throughput was {_of_that(rate)}"
    if syncs.worse:
        text += f"; commits per second were {_of_that(syncs)}"
    return text + "."


def _changed(p99: Difference) -> str:
    """By how much commits are shorter, or longer, with the agent."""
    assert p99.ratio is not None and p99.low is not None and p99.high is not None
    word, ratio, low, high = "shorter", p99.ratio, p99.low, p99.high
    if p99.worse:
        word, ratio, low, high = "longer", 1 / ratio, 1 / high, 1 / low
    if p99.wide:
        return f"at least {times(low)} {word}"
    return f"{times(ratio)} {word} (95 % interval {_number(low)} to {_number(high)})"


def _of_that(rate: Difference) -> str:
    if rate.wide:
        return f"{said(rate)} that without it"
    assert rate.ratio is not None
    return f"{_number(rate.ratio)} ({_span(rate)}) of that without it"


def remarks(report: TrialSummary) -> List[str]:
    """What a reader must know to interpret the figures, one point each."""
    result, lines = report.result, []
    if report.ended == "enough":
        lines.append(f"Ended early: {report.why}.")
    elif report.ended != "done":
        done = f"Ended before its time: {report.why}."
        if result.blocks:
            last = result.blocks[-1]
            arm = "the limits as found" if last.original else "the agent's limits"
            done += f" That was in block {last.number} of {len(report.plan.arms)}, with {arm}."
        lines.append(f"{done} What was measured until then counts.")
    lines += [
        f"Blocks {one} and {other} are not compared, their load differed: {why}."
        for one, other, why in result.left_out
    ]
    if report.cut is not None:
        lines.append(
            f"The limit as found is {formats.size(report.found_bytes)}; the trial reduced it to"
            f" {formats.size(report.limit_bytes)}, {report.cut}. Without the agent this host may do"
            " worse than the original blocks show."
        )
    for arm, figures in (("agent", result.agent), ("original", result.original)):
        share = figures.flooded_s / figures.span_s if figures is not None else 1.0
        if share < MOSTLY:
            lines.append(
                f"The {arm} blocks had a flood for {formats.percent(share)} of the time; without"
                " one both limits do the same."
            )
    counted = [block.figures.fsyncs for block in result.blocks if block.whole and block.figures]
    if counted and min(counted) < ENOUGH_FSYNCS:
        lines.append(
            f"A block has only {min(counted)} commits, so its p99 is about its slowest. Programs"
            " that wait sync less often: see commits per second."
        )
    return lines


def times(ratio: float) -> str:
    return f"{_number(ratio)} times"


def _number(ratio: float) -> str:
    """A factor with two or three significant digits."""
    if ratio >= 9.95:
        return f"{ratio:.0f}"
    return f"{ratio:.2f}" if ratio < 1.995 else f"{ratio:.1f}"


def said(each: Difference) -> str:
    """A difference as a figure with its interval."""
    if each.ratio is None:
        return "no pair"
    if each.scattered:
        return "inconclusive"
    if each.wide and each.low is not None and each.high is not None:
        return f"at least {times(each.low)}" if each.better else f"at most {times(each.high)}"
    text = times(each.ratio)
    return f"{text} ({_span(each)})" if each.low is not None else f"{text} (too few pairs)"


def _span(each: Difference) -> str:
    assert each.low is not None and each.high is not None
    return f"{_number(each.low)} to {_number(each.high)}"


def _seen(result: Result) -> str:
    seen = [
        f"{arm} {latency(figures.commit_latency.quantile(0.99))} ({figures.fsyncs} commits in"
        f" {formats.duration(figures.span_s)})"
        for arm, figures in (("with the agent", result.agent), ("as found", result.original))
        if figures is not None
    ]
    return f" Measured commit p99: {', '.join(seen)}." if seen else ""
