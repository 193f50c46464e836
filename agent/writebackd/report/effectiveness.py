# SPDX-License-Identifier: GPL-2.0-or-later
"""Measures what the agent achieved in a span of the history.  Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Optional, Sequence, Set, Tuple

from writebackd import formats
from writebackd.report.device_figures import Figures
from writebackd.types.histogram import BUCKET_EDGES_S, Histogram

# Below this a comparison says more of chance than of limits; who starves for a minute has few
# fsyncs, and has waited for that minute all the same.
LEAST_S, LEAST_FSYNCS = 60.0, 100
# The waits of one part of a day differ by so much from another's for no reason
# (docs/research/2026-11-costs.md: one run scatters by about 1.5).
CHANCE = 1.5
# Of a row's span: four fsyncs of 2.5 s fill a row of flood, and 1600 fast ones the few seconds
# before it, so a row that is half and half would speak for the wrong side.
WHOLE = 0.9


@dataclass(frozen=True)
class Period:
    """The rows of one device that have something in common, added up."""

    span_s: float = 0.0
    latency: Histogram = field(default_factory=Histogram)
    written_bytes: float = 0.0
    limit_bytes: Optional[float] = None  # median over time
    found_bytes: Optional[float] = None  # of the limit as found then, median over time
    oldest_s: float = 0.0
    met: int = 0  # fsyncs surely within the objective of their time, of `judged`
    judged: int = 0
    objectives_s: Tuple[float, ...] = ()  # those that they were judged by, ascending
    unfinished: Tuple[float, ...] = ()  # seconds that fsyncs waited which were not seen to return

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
    def longest_s(self) -> float:
        """Of all fsyncs, those that did not return included."""
        return max(self.oldest_s, self.latency.quantile(1.0) or 0.0)

    @property
    def waited_s(self) -> float:
        """All fsyncs together, those of threads that wait side by side added up."""
        return self.latency.total_s() + sum(self.unfinished)

    @property
    def wait_s(self) -> Optional[float]:
        """Half of the time waited was in fsyncs that took this long or longer.

        Each counts for as long as it lasted: in a minute with one fsync of 59 s and 1000 of a
        millisecond the median fsync takes a millisecond, and whoever looks in finds a program
        that waits for a minute.
        """
        edges = BUCKET_EDGES_S
        weighed = [
            ((edges[i] + edges[i + 1]) / 2, count * (edges[i] + edges[i + 1]) / 2)
            for i, count in self.latency.buckets
        ]
        weighed += [(waited_s, waited_s) for waited_s in self.unfinished]
        return _median(weighed, self.waited_s) if weighed else None

    @property
    def counts(self) -> bool:
        """Whether there is enough of it to compare with."""
        enough = self.latency.total >= LEAST_FSYNCS or self.waited_s >= LEAST_S
        return self.span_s >= LEAST_S and enough


@dataclass(frozen=True)
class Effectiveness:
    """One device's time: floods that met somebody who syncs, with and without writebackd."""

    device: str
    held: Period  # flood and fsyncs, a limit of writebackd in force
    loose: Period  # flood and fsyncs, the limits as found (observe, held off, yielded)
    calm: Period  # fsyncs without a flood
    flooded_s: float  # with fsyncs or without
    brief_s: float  # of it: with fsyncs, in rows that are flooded or ours in part, of neither side
    # In a trial, limits in turn, which are neither side's; and in rows that a trial touches, which
    # are in nothing here.
    tried_s: float
    left_out_s: float
    drain_rate: Optional[float]  # median over time


def measure(found: Sequence[Figures], trials: Sequence[Tuple[float, float]] = ()) -> Effectiveness:
    """Of one device's rows, oldest first; at least one. `trials`: from when to when one was on."""
    rows = [
        row for row in found
        if not any(row.wall_s < end_s and row.end_s > begin_s for begin_s, end_s in trials)
    ]  # fmt: skip
    # A row in which none returned is the worst of all, not one without fsyncs.
    synced = [row for row in rows if row.fsyncs or row.oldest_s]
    flooded = [row for row in synced if row.flooded_s >= WHOLE * row.span_s]
    lost = _unfinished(rows)
    drains = [(row.drain_rate, row.span_s) for row in rows if row.drain_rate]
    return Effectiveness(
        device=found[-1].device,
        held=_stretch([row for row in flooded if row.ours_s >= WHOLE * row.span_s], lost),
        loose=_stretch([row for row in flooded if row.ours_s <= (1 - WHOLE) * row.span_s], lost),
        calm=_stretch([row for row in synced if not row.flooded_s], lost),
        flooded_s=sum(row.flooded_s for row in rows),
        brief_s=sum(row.flooded_s for row in synced if _is_mixed(row)),
        tried_s=sum(
            max(0.0, min(row.end_s, end_s) - max(row.wall_s, begin_s))
            for row in found for begin_s, end_s in trials
        ),
        left_out_s=sum(row.span_s for row in found) - sum(row.span_s for row in rows),
        drain_rate=_median(drains, sum(span_s for _, span_s in drains)) if drains else None,
    )


def _is_mixed(row: Figures) -> bool:
    ours = row.ours_s / row.span_s
    return row.flooded_s < WHOLE * row.span_s or 1 - WHOLE < ours < WHOLE


def _unfinished(rows: Sequence[Figures]) -> Dict[float, float]:
    """By the beginning of a row: how long an fsync had waited in it that nothing more is told of.

    One that returns, or waits on, is in that row or in the next with what it took in the end.
    """
    found = {}
    for row, after in zip(rows, (*rows[1:], None)):
        if row.oldest_s <= _longest(row):
            continue
        follows = after is not None and after.wall_s - row.end_s < row.span_s
        if after is None or not follows or max(after.oldest_s, _longest(after)) < row.oldest_s:
            found[row.wall_s] = row.oldest_s
    return found


def _longest(row: Figures) -> float:
    return row.latency.quantile(1.0) or 0.0


def _stretch(rows: Sequence[Figures], lost: Mapping[float, float]) -> Period:
    if not rows:
        return Period()
    counts: "dict[int, int]" = {}
    objectives: Set[float] = set()
    met = judged = 0
    for row in rows:
        for index, count in row.latency.buckets:
            counts[index] = counts.get(index, 0) + count
        if row.objective_s is not None and row.fsyncs:
            objectives.add(row.objective_s)
            judged += row.fsyncs
            # A bucket that the objective lies in may be on either side of it.
            met += sum(
                count for index, count in row.latency.buckets
                if BUCKET_EDGES_S[index + 1] <= row.objective_s
            )  # fmt: skip
    span_s = sum(row.span_s for row in rows)
    return Period(
        span_s=span_s,
        latency=Histogram(tuple(sorted(counts.items()))),
        written_bytes=sum(row.write_rate * row.span_s for row in rows),
        limit_bytes=_median([(row.limit_bytes, row.span_s) for row in rows], span_s),
        found_bytes=_median([(row.found_bytes, row.span_s) for row in rows], span_s),
        oldest_s=max(row.oldest_s for row in rows),
        met=met,
        judged=judged,
        objectives_s=tuple(sorted(objectives)),
        unfinished=tuple(lost[row.wall_s] for row in rows if row.wall_s in lost),
    )


def _median(weighed: Sequence[Tuple[float, float]], total: float) -> float:
    passed = 0.0
    for value, weight in sorted(weighed):
        passed += weight
        if passed >= total / 2:
            return value
    return max(weighed)[0]


def headline(found: Sequence[Effectiveness]) -> str:
    """The contrast of the table in one line, of the device where most was at stake."""
    judged = [each for each in found if each.held.span_s or each.loose.span_s]
    if not judged:
        brief_s = max((each.brief_s for each in found), default=0.0)
        if brief_s:
            return (
                "Floods met programs that sync for moments only,"
                f" {formats.duration(brief_s)} together: too short for a comparison."
            )
        return (
            "No flood met a program that syncs: there was nothing to protect, and nothing can"
            " be said of what writebackd is worth here."
        )
    most = max(judged, key=lambda each: (bool(each.held.span_s), each.held.waited_s))
    held, loose, what = most.held, most.loose, f"fsyncs under flood on {most.device}"
    if held.span_s and loose.counts:
        text = f"{what}: {_rate(held)} with writebackd, {_rate(loose)} without"
        if not (held.latency.total and loose.latency.total):
            return f"{text}; longest wait {_against(held.longest_s, loose.longest_s)}"
        text += f"; p99 {_against(held.p99_s, loose.p99_s)}"
        if _hides(held) or _hides(loose):
            waits = _against(held.wait_s, loose.wait_s)
            text += f"; half of all waiting in fsyncs longer than {waits}"
        return text
    if held.span_s:
        little = f"only {formats.duration(loose.span_s)} " if loose.span_s else "not "
        return f"{what}: {_half(held)} with writebackd; {little}measured without"
    return f"{what}: {_half(loose)} without writebackd, which held no limit then"


def _half(stretch: Period) -> str:
    if not stretch.latency.total:
        return f"none returned, longest wait {latency(stretch.longest_s)},"
    text = f"{_rate(stretch)}, p99 {latency(stretch.p99_s)}"
    if _hides(stretch):
        text += f", half of all waiting in fsyncs longer than {latency(stretch.wait_s)}"
    return text


def _rate(stretch: Period) -> str:
    return f"{formats.count(stretch.sync_rate)}/s"


def _hides(stretch: Period) -> bool:
    """Whether p99 says nothing of most of the waiting: one fsync of 11 s among a thousand."""
    return stretch.wait_s is not None and stretch.wait_s > 10 * (stretch.p99_s or 0.0)


def _against(with_s: Optional[float], without_s: Optional[float]) -> str:
    """19 against 382 ms."""
    one, other = latency(with_s), latency(without_s)
    if one.endswith(" ms") and other.endswith(" ms"):
        one = one[: -len(" ms")]
    return f"{one} against {other}"


def sentences(each: Effectiveness) -> List[str]:
    """The same at length for one device, one thought each."""
    held, lines = each.held, []
    if each.left_out_s:
        lines.append(
            f"Left out here: {formats.duration(each.left_out_s)} of figures, in which a trial set"
            f" limits in turn for {formats.duration(each.tried_s)}."
        )
    if not held.span_s and not each.loose.span_s:
        if each.brief_s:
            lines.append(
                f"Flooded for {formats.duration(each.flooded_s)}, and for"
                f" {formats.duration(each.brief_s)} of it there were fsyncs, in spells too short to"
                " be told from what was before and after them."
            )
        elif each.flooded_s:
            lines.append(
                f"Flooded for {formats.duration(each.flooded_s)}, and nobody synced meanwhile."
            )
        else:
            lines.append("Never flooded.")
        return lines + _calm(each)
    if held.span_s:
        lines.append(
            f"Flood and fsyncs came together for"
            f" {formats.duration(held.span_s + each.loose.span_s)};"
            f" for {formats.duration(held.span_s)} of it writebackd held the limit, at"
            f" {formats.size(held.limit_bytes)} in place of {formats.size(held.found_bytes)}"
            " (medians)."
        )
        lines.append(
            f"Then {_fsyncs(held)}." + _met(each)
        )
        lines += _throughput(each)
    lines += _without(each)
    return lines + _calm(each)


def _met(each: Effectiveness) -> str:
    held = each.held
    if not held.judged:
        return ""
    met, (least_s, *more) = _share(held.met / held.judged), held.objectives_s
    if more:
        return f" At least {met} met the objective of their time, {latency(least_s)} to" + (
            f" {latency(more[-1])}."
        )
    return f" At least {met} met the objective of {latency(least_s)}."


def _throughput(each: Effectiveness) -> List[str]:
    rate = each.held.written_bytes / each.held.span_s
    text = f"All that wrote to the device got {formats.size(rate)}/s meanwhile"
    if each.drain_rate is None:
        return [text + "."]
    return [
        f"{text}, {formats.percent(rate / each.drain_rate)} of the"
        f" {formats.size(each.drain_rate)}/s"
        " that it drains."
    ]


def _without(each: Effectiveness) -> List[str]:
    if each.loose.span_s:
        loose = each.loose
        text = (
            f"Without a limit of writebackd, for {formats.duration(loose.span_s)}:"
            f" {_fsyncs(loose)}"
        )
        if each.held.counts and loose.counts:
            return [f"{text}: {_compared(each)}. Other times, perhaps another load."]
        return [f"{text}. Too little of it to compare."] if each.held.span_s else [text + "."]
    wait_s = _wait_s(each)
    if wait_s is None:
        return ["What it would have been without writebackd was not measured."]
    return [
        "What it would have been without writebackd was not measured. By arithmetic an fsync that"
        f" waits for all that the limit as found lets queue up waits"
        f" {formats.duration(wait_s)}: {formats.size(each.held.found_bytes)} at"
        f" {formats.size(each.drain_rate)}/s."
    ]


def _compared(each: Effectiveness) -> str:
    """Without writebackd against with it, both measured; the truth also where it was no help."""
    held, loose = each.held, each.loose
    with_s, without_s = held.wait_s or 0.0, loose.wait_s or 0.0
    rates = f"{formats.count(loose.sync_rate)} fsyncs came a second, with it"
    rates += f" {formats.count(held.sync_rate)}"
    if without_s > CHANCE * with_s > 0:
        return f"{_times(without_s / with_s)} as long as with writebackd; {rates}"
    if with_s > CHANCE * without_s > 0:
        return f"with writebackd it was {_times(with_s / without_s)} as long: worse; {rates}"
    if held.sync_rate > CHANCE * loose.sync_rate:
        # Who waits asks less often, and so has less weight in a quantile.
        return f"no difference in each, but {rates}"
    return f"no difference that counts; {rates}"


def _calm(each: Effectiveness) -> List[str]:
    calm = each.calm
    if not calm.latency.total:
        return []
    return [f"With no flood: {_fsyncs(calm)}."]


def _fsyncs(stretch: Period) -> str:
    if not stretch.latency.total:
        return f"no fsync came back, the longest seen waited for {latency(stretch.oldest_s)}"
    return (
        f"{number(stretch.latency.total)} fsyncs, p50 {latency(stretch.p50_s)},"
        f" p99 {latency(stretch.p99_s)}, half of the waiting in those of"
        f" {latency(stretch.wait_s)} and more"
    )


def _wait_s(each: Effectiveness) -> Optional[float]:
    found_bytes = each.held.found_bytes
    return found_bytes / each.drain_rate if found_bytes and each.drain_rate else None


def latency(seconds: Optional[float]) -> str:
    """With two digits that count, which is what a histogram knows."""
    if seconds is None:
        return "unknown"
    return formats.duration(seconds) if seconds >= 0.995 else f"{formats.milliseconds(seconds)} ms"


def _share(share: float) -> str:
    """Rounded down: 100 % is all of them."""
    return formats.percent(math.floor(share * 1000) / 1000) if share < 0.0995 else (
        f"{math.floor(share * 1000) / 10:g} %"
    )


def _times(factor: float) -> str:
    # Two digits: more of them would be chance.
    return f"{factor:.1f} times" if factor < 9.95 else f"{float(f'{factor:.2g}'):.0f} times"


def number(count: int) -> str:
    """12 345 678 with thin gaps, as people read it."""
    return f"{count:,}".replace(",", "\u202f")
