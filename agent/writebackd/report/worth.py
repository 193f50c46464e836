# SPDX-License-Identifier: GPL-2.0-or-later
"""What the agent was worth in a span of the history, in words and figures. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import List, Optional, Sequence, Tuple

from writebackd import human
from writebackd.model import Histogram
from writebackd.report.figures import Figures

# Below this a comparison says more of chance than of limits.
LEAST_S, LEAST_FSYNCS = 60.0, 100
# p99 of one part of a day differs by so much from another's for no reason (docs/figures.md: one
# run scatters by about 1.5).
CHANCE = 1.5
# Of a row's span: four fsyncs of 2.5 s fill a row of flood, and 1600 fast ones the few seconds
# before it, so a row that is half and half would speak for the wrong side.
WHOLE = 0.9


@dataclass(frozen=True)
class Stretch:
    """The rows of one device that have something in common, added up."""

    span_s: float = 0.0
    latency: Histogram = field(default_factory=Histogram)
    written_bytes: float = 0.0
    limit_bytes: Optional[float] = None  # median over time
    oldest_s: float = 0.0
    met: int = 0  # fsyncs within the objective, of `judged`
    judged: int = 0

    @property
    def p50_s(self) -> Optional[float]:
        return self.latency.quantile(0.5)

    @property
    def p99_s(self) -> Optional[float]:
        return self.latency.quantile(0.99)

    @property
    def sync_rate(self) -> float:
        return self.latency.total / self.span_s

    @property
    def counts(self) -> bool:
        """Whether there is enough of it to compare with."""
        return self.span_s >= LEAST_S and self.latency.total >= LEAST_FSYNCS


@dataclass(frozen=True)
class Worth:
    """One device's time: floods that met somebody who syncs, with and without the agent."""

    device: str
    held: Stretch  # flood and fsyncs, a limit of the agent's in force
    loose: Stretch  # flood and fsyncs, the limits as found (observe, held off, yielded)
    calm: Stretch  # fsyncs without a flood
    flooded_s: float  # with fsyncs or without
    found_bytes: float
    drain_rate: Optional[float]
    objective_s: Optional[float]


def worth(rows: Sequence[Figures]) -> Worth:
    """Of one device's rows, oldest first; at least one."""
    synced = [row for row in rows if row.fsyncs]
    flooded = [row for row in synced if row.flooded_s >= WHOLE * row.span_s]
    drains = sorted(row.drain_rate for row in rows if row.drain_rate)
    objectives = [row.objective_s for row in rows if row.objective_s]
    return Worth(
        device=rows[-1].device,
        held=_stretch([row for row in flooded if row.ours_s >= WHOLE * row.span_s]),
        loose=_stretch([row for row in flooded if row.ours_s <= (1 - WHOLE) * row.span_s]),
        calm=_stretch([row for row in synced if not row.flooded_s]),
        flooded_s=sum(row.flooded_s for row in rows),
        found_bytes=rows[-1].found_bytes,
        drain_rate=drains[len(drains) // 2] if drains else None,
        objective_s=objectives[-1] if objectives else None,
    )


def _stretch(rows: Sequence[Figures]) -> Stretch:
    if not rows:
        return Stretch()
    counts: "dict[int, int]" = {}
    met = judged = 0
    for row in rows:
        for index, count in row.latency.buckets:
            counts[index] = counts.get(index, 0) + count
        if row.objective_s is not None:
            above, total = row.latency.count_above(row.objective_s)
            met, judged = met + total - above, judged + total
    span_s = sum(row.span_s for row in rows)
    return Stretch(
        span_s=span_s,
        latency=Histogram(tuple(sorted(counts.items()))),
        written_bytes=sum(row.write_rate * row.span_s for row in rows),
        limit_bytes=_median([(row.limit_bytes, row.span_s) for row in rows], span_s),
        oldest_s=max(row.oldest_s for row in rows),
        met=met,
        judged=judged,
    )


def _median(weighed: Sequence[Tuple[float, float]], total: float) -> float:
    passed = 0.0
    for value, weight in sorted(weighed):
        passed += weight
        if passed >= total / 2:
            return value
    return max(weighed)[0]


def headline(found: Sequence[Worth]) -> str:
    """The answer in one sentence or two, of all devices."""
    judged = [each for each in found if each.held.span_s]
    if not judged:
        if any(each.loose.span_s for each in found):
            return (
                "Floods met programs that sync, but the agent held no limit then: it was"
                " observing, held off, or had yielded."
            )
        return (
            "No flood met a program that syncs: there was nothing to protect, and nothing can"
            " be said of what the agent is worth here."
        )
    # Of the device where most was at stake.
    most = max(judged, key=lambda each: each.held.latency.total)
    held = most.held
    text = (
        f"While {most.device} was flooded, half of its {_number(held.latency.total)} fsyncs took"
        f" at most {_ms(held.p50_s)} and 99 % at most {_ms(held.p99_s)}"
    )
    if held.counts and most.loose.counts:
        return f"{text}. Without the agent 99 % took at most {_ms(most.loose.p99_s)}:" + (
            f" {_compared(most)}."
        )
    wait_s = _wait_s(most)
    if wait_s is not None and held.limit_bytes is not None and most.drain_rate:
        return (
            f"{text}. The limit as found lets {human.size(most.found_bytes)} queue up before this"
            f" disk, {human.duration(wait_s)} of its work; the agent's,"
            f" {human.size(held.limit_bytes)},"
            f" {human.milliseconds(held.limit_bytes / most.drain_rate)} ms."
        )
    return text + "."


def sentences(each: Worth) -> List[str]:
    """The same at length for one device, one thought each."""
    held, lines = each.held, []
    if not held.span_s and not each.loose.span_s:
        if each.flooded_s:
            lines.append(
                f"Flooded for {human.duration(each.flooded_s)}, and nobody synced meanwhile."
            )
        else:
            lines.append("Never flooded.")
        return lines + _calm(each)
    if held.span_s:
        lines.append(
            f"Flood and fsyncs came together for {human.duration(held.span_s + each.loose.span_s)};"
            f" for {human.duration(held.span_s)} of it the agent held the limit, at"
            f" {human.size(held.limit_bytes)} (median) in place of {human.size(each.found_bytes)}."
        )
        lines.append(
            f"Then {_number(held.latency.total)} fsyncs: p50 {_ms(held.p50_s)}, p99"
            f" {_ms(held.p99_s)}." + _met(each)
        )
        lines += _throughput(each)
    lines += _without(each)
    return lines + _calm(each)


def _met(each: Worth) -> str:
    held = each.held
    if not held.judged or each.objective_s is None:
        return ""
    return (
        f" {_share(held.met / held.judged)} met the objective of {_ms(each.objective_s)}."
    )


def _throughput(each: Worth) -> List[str]:
    rate = each.held.written_bytes / each.held.span_s
    text = f"All that wrote to the device got {human.size(rate)}/s meanwhile"
    if each.drain_rate is None:
        return [text + "."]
    return [
        f"{text}, {human.percent(rate / each.drain_rate)} of the {human.size(each.drain_rate)}/s"
        " that it drains."
    ]


def _without(each: Worth) -> List[str]:
    if each.loose.span_s:
        loose = each.loose
        text = (
            f"Without a limit of the agent's, for {human.duration(loose.span_s)}:"
            f" {_number(loose.latency.total)} fsyncs, p50 {_ms(loose.p50_s)},"
            f" p99 {_ms(loose.p99_s)}"
        )
        if each.held.counts and loose.counts:
            return [f"{text}: {_compared(each)}. Other times, perhaps another load."]
        return [f"{text}. Too little of it to compare."] if each.held.span_s else [text + "."]
    wait_s = _wait_s(each)
    if wait_s is None:
        return ["What it would have been without the agent was not measured."]
    return [
        "What it would have been without the agent was not measured. By arithmetic an fsync that"
        f" waits for all that the limit as found lets queue up waits"
        f" {human.duration(wait_s)}: {human.size(each.found_bytes)} at"
        f" {human.size(each.drain_rate)}/s."
    ]


def _compared(each: Worth) -> str:
    """Without the agent against with it, both measured; the truth also where it was no help."""
    held, loose = each.held, each.loose
    with_s, without_s = held.p99_s or 0.0, loose.p99_s or 0.0
    rates = f"{human.count(loose.sync_rate)} fsyncs came a second, with it"
    rates += f" {human.count(held.sync_rate)}"
    if without_s > CHANCE * with_s > 0:
        return f"{_times(without_s / with_s)} as long as with the agent; {rates}"
    if with_s > CHANCE * without_s > 0:
        return f"with the agent it was {_times(with_s / without_s)} as long: worse; {rates}"
    if held.sync_rate > CHANCE * loose.sync_rate:
        # Who waits asks less often, and so has less weight in a quantile.
        return f"no difference in each, but {rates}"
    return f"no difference that counts; {rates}"


def _calm(each: Worth) -> List[str]:
    calm = each.calm
    if not calm.latency.total:
        return []
    return [
        f"With no flood: {_number(calm.latency.total)} fsyncs, p50 {_ms(calm.p50_s)},"
        f" p99 {_ms(calm.p99_s)}."
    ]


def _wait_s(each: Worth) -> Optional[float]:
    return each.found_bytes / each.drain_rate if each.drain_rate else None


def _ms(seconds: Optional[float]) -> str:
    if seconds is None:
        return "unknown"
    return human.duration(seconds) if seconds >= 9.95 else f"{human.milliseconds(seconds)} ms"


def _share(share: float) -> str:
    """Rounded down: 100 % is all of them."""
    return human.percent(math.floor(share * 1000) / 1000) if share < 0.0995 else (
        f"{math.floor(share * 1000) / 10:g} %"
    )


def _times(factor: float) -> str:
    return f"{factor:.1f} times" if factor < 9.95 else f"{factor:.0f} times"


def _number(count: int) -> str:
    """12 345 678 with thin gaps, as people read it."""
    return f"{count:,}".replace(",", "\u202f")
