# SPDX-License-Identifier: GPL-2.0-or-later
"""Measures what the agent achieved in a span of the history.  Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from writebackd import formats
from writebackd.formats import latency
from writebackd.report.device_figures import Figures
from writebackd.types.histogram import BUCKET_EDGES_S, Histogram

# Below this a comparison says more of chance than of limits; who starves for a minute has few
# commits, and has waited for that minute all the same.
LEAST_S, LEAST_FSYNCS = 60.0, 100
# The waits of one part of a day differ by so much from another's for no reason
# (docs/research/2026-11-costs.md: one run scatters by about 1.5).
CHANCE = 1.5
# Of a row's span: four commits of 2.5 s fill a row of flood, and 1600 fast ones the few seconds
# before it, so a row that is half and half would speak for the wrong side.
WHOLE = 0.9
# A job that pauses for longer between two files is another one.
GAP_S = 60.0


@dataclass(frozen=True)
class Period:
    """The rows of one device under one condition, added up."""

    span_s: float = 0.0
    latency: Histogram = field(default_factory=Histogram)  # of commits
    fsync_latency: Histogram = field(default_factory=Histogram)
    written_bytes: float = 0.0
    limit_bytes: Optional[float] = None  # median over time
    found_bytes: Optional[float] = None  # of the limit as found then, median over time
    oldest_s: float = 0.0
    met: int = 0  # commits surely within the objective of their time, of `judged`
    judged: int = 0
    objectives_s: Tuple[float, ...] = ()  # those that they were judged by, ascending
    # Floods, apart by GAP_S or more, and of them those in which p99 missed the objective.
    floods: int = 0
    missed_floods: int = 0
    target_bytes: Optional[float] = None  # the limit that the device asked for, median over time
    unfinished: Tuple[float, ...] = ()  # seconds that commits waited which were not seen to return

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
        """The longest commit, including those that did not return."""
        return max(self.oldest_s, self.latency.quantile(1.0) or 0.0)

    @property
    def waited_s(self) -> float:
        """The total wait of all commits; threads that wait in parallel are added up."""
        return self.latency.total_s() + sum(self.unfinished)

    @property
    def wait_s(self) -> Optional[float]:
        """Half of the total wait was in commits that took this long or longer.

        Each counts for as long as it lasted: in a minute with one commit of 59 s and 1000 of a
        millisecond the median commit takes a millisecond, and the program waits for a minute.
        """
        weighed = [(waited_s, waited_s) for waited_s in self.unfinished]
        for index, count in self.latency.buckets:
            middle_s = (BUCKET_EDGES_S[index] + BUCKET_EDGES_S[index + 1]) / 2
            weighed.append((middle_s, count * middle_s))
        return weighted_median(weighed)

    @property
    def counts(self) -> bool:
        """Whether the period is long enough for a comparison."""
        enough = self.latency.total >= LEAST_FSYNCS or self.waited_s >= LEAST_S
        return self.span_s >= LEAST_S and enough


@dataclass(frozen=True)
class Effectiveness:
    """One device's floods beside commits, with and without writebackd."""

    device: str
    held: Period  # flood and commits, a limit of writebackd in force
    loose: Period  # flood and commits, the limits as found (observe, held off, yielded)
    calm: Period  # commits without a flood
    flooded_s: float  # with commits or without
    brief_s: float  # of it: with commits, in rows that are flooded or ours in part, of neither side
    # In a trial, limits in turn, which are neither side's; and in rows that a trial touches, which
    # are in nothing here.
    tried_s: float
    left_out_s: float
    drain_rate: Optional[float]  # median over time


def outside(rows: Sequence[Figures], spans: Sequence[Tuple[float, float]]) -> List[Figures]:
    """The rows that overlap none of the spans."""
    return [
        row for row in rows
        if not any(row.wall_s < end_s and row.end_s > begin_s for begin_s, end_s in spans)
    ]  # fmt: skip


def measure(
    figures: Sequence[Figures], trials: Sequence[Tuple[float, float]] = (), device: str = ""
) -> Effectiveness:
    """Measure one device's rows, oldest first. `trials`: begin and end of each trial.

    `device` is its name where there may be no rows.
    """
    rows = outside(figures, trials)
    # A row in which none returned is the worst of all, not one without commits.
    synced = [row for row in rows if row.fsyncs or row.pending_s]
    flooded = [row for row in synced if row.flooded_s >= WHOLE * row.span_s]
    lost = _unfinished(rows)
    drains = [(row.drain_rate, row.span_s) for row in rows if row.drain_rate]
    return Effectiveness(
        device=device or figures[-1].device,
        held=_stretch([row for row in flooded if row.ours_s >= WHOLE * row.span_s], lost),
        loose=_stretch([row for row in flooded if row.ours_s <= (1 - WHOLE) * row.span_s], lost),
        calm=_stretch([row for row in synced if not row.flooded_s], lost),
        flooded_s=sum(row.flooded_s for row in rows),
        brief_s=sum(row.flooded_s for row in synced if _is_mixed(row)),
        tried_s=sum(
            max(0.0, min(row.end_s, end_s) - max(row.wall_s, begin_s))
            for row in figures for begin_s, end_s in trials
        ),
        left_out_s=sum(row.span_s for row in figures) - sum(row.span_s for row in rows),
        drain_rate=weighted_median(drains),
    )


def _is_mixed(row: Figures) -> bool:
    ours = row.ours_s / row.span_s
    return row.flooded_s < WHOLE * row.span_s or 1 - WHOLE < ours < WHOLE


def _unfinished(rows: Sequence[Figures]) -> Dict[float, float]:
    """For each row, how long a commit had waited in it that never returned in the history.

    One that returns, or waits on, is in that row or in the next with what it took in the end.
    """
    pending = {}
    for row, after in zip(rows, (*rows[1:], None)):
        if row.pending_s <= _longest(row):
            continue
        follows = after is not None and after.wall_s - row.end_s < row.span_s
        if after is None or not follows or max(after.pending_s, _longest(after)) < row.pending_s:
            pending[row.wall_s] = row.pending_s
    return pending


def _longest(row: Figures) -> float:
    return row.commit_latency.quantile(1.0) or 0.0


def _stretch(rows: Sequence[Figures], lost: Mapping[float, float]) -> Period:
    if not rows:
        return Period()
    judged = [row for row in rows if row.objective_s is not None and row.fsyncs]
    floods = spells(rows)
    span_s = sum(row.span_s for row in rows)
    return Period(
        span_s=span_s,
        latency=sum((row.commit_latency for row in rows), Histogram()),
        fsync_latency=sum((row.latency for row in rows), Histogram()),
        written_bytes=sum(row.write_rate * row.span_s for row in rows),
        limit_bytes=weighted_median([(row.limit_bytes, row.span_s) for row in rows]),
        found_bytes=weighted_median([(row.found_bytes, row.span_s) for row in rows]),
        oldest_s=max(row.pending_s for row in rows),
        # A bucket that the objective lies in may be on either side of it.
        met=sum(
            count for row in judged for index, count in row.commit_latency.buckets
            if BUCKET_EDGES_S[index + 1] <= (row.objective_s or 0.0)
        ),
        judged=sum(row.fsyncs for row in judged),
        objectives_s=tuple(sorted({row.objective_s or 0.0 for row in judged})),
        floods=len(floods),
        missed_floods=sum(any(map(_misses, flood)) for flood in floods),
        target_bytes=weighted_median(
            [(row.target_bytes, row.span_s) for row in rows if row.target_bytes is not None]
        ),
        unfinished=tuple(lost[row.wall_s] for row in rows if row.wall_s in lost),
    )  # fmt: skip


def spells(rows: Sequence[Figures]) -> List[List[Figures]]:
    """Groups of rows of one device, oldest first, no more than GAP_S apart."""
    groups: List[List[Figures]] = []
    for row in rows:
        if not groups or row.wall_s - groups[-1][-1].end_s > GAP_S:
            groups.append([])
        groups[-1].append(row)
    return groups


def _misses(row: Figures) -> bool:
    if row.objective_s is None:
        return False
    return max(row.pending_s, row.commit_latency.quantile(0.99) or 0.0) > row.objective_s


def weighted_median(
    weighed: Sequence[Tuple[float, float]], share: float = 0.5
) -> Optional[float]:
    """The median of (value, weight) pairs, or the quantile `share`; None without pairs."""
    wanted, passed = share * sum(weight for _, weight in weighed), 0.0
    for value, weight in sorted(weighed):
        passed += weight
        if passed >= wanted:
            return value
    return max(weighed)[0] if weighed else None


def headline(effects: Sequence[Effectiveness]) -> str:
    """The main result of the table in one line, for the device with the most at stake."""
    judged = [each for each in effects if each.held.span_s or each.loose.span_s]
    if not judged:
        brief_s = max((each.brief_s for each in effects), default=0.0)
        if brief_s:
            return (
                f"Floods with commits lasted {formats.duration(brief_s)} in all, each too short"
                " to compare."
            )
        return "No flood with commits: nothing to compare."
    most = max(judged, key=lambda each: (bool(each.held.span_s), each.held.waited_s))
    held, loose = most.held, most.loose
    hides = any(each.latency.total and _hides(each) for each in (held, loose))
    where = f"during floods on {most.device}"
    without = f"Without writebackd: commits {_half(loose, hides)} {where}"
    if held.span_s and loose.counts:
        return f"{without}; with: {_half(held, hides)}"
    if held.span_s:
        little = f"only {formats.duration(loose.span_s)}" if loose.span_s else "not"
        return f"With writebackd: commits {_half(held, hides)} {where}; without: {little} measured"
    return f"{without}; with: not measured"


def _half(stretch: Period, hides: bool) -> str:
    if not stretch.latency.total:
        return f"never returned (longest wait {latency(stretch.longest_s)})"
    text = f"p99 {latency(stretch.p99_s)}"
    if hides:
        text += f", time-weighted median wait {latency(stretch.wait_s)}"
    return f"{text} ({_rate(stretch)})"


def _rate(stretch: Period) -> str:
    return f"{formats.count(stretch.sync_rate)}/s"


def _hides(stretch: Period) -> bool:
    """Whether p99 hides most of the waiting: one commit of 11 s among a thousand."""
    return stretch.wait_s is not None and stretch.wait_s > 10 * (stretch.p99_s or 0.0)


def sentences(each: Effectiveness) -> List[str]:
    """What the table of one device does not show, one point each."""
    held, lines = each.held, []
    if each.left_out_s:
        lines.append(
            f"Not counted: {formats.duration(each.left_out_s)} of figures, in which a trial set"
            f" the limits for {formats.duration(each.tried_s)}."
        )
    if each.loose.span_s:
        lines += _unheld(each)
    if not held.span_s and not each.loose.span_s:
        if not each.flooded_s:
            return [*lines, "Never flooded."]
        text = f"Flooded for {formats.duration(each.flooded_s)}"
        if each.brief_s:
            text += f", with commits for {formats.duration(each.brief_s)}: too short to compare"
        else:
            text += ", without commits"
        return [*lines, f"{text}."]
    if held.span_s:
        rate = held.written_bytes / held.span_s
        share = ""
        if each.drain_rate is not None:
            drain_rate = formats.size(each.drain_rate)
            share = f", {formats.percent(rate / each.drain_rate)} of the drain rate {drain_rate}/s"
        lines += [
            f"Floods with commits lasted {formats.duration(held.span_s + each.loose.span_s)}."
            f" writebackd set the limit for {formats.duration(held.span_s)} of it, at"
            f" {formats.size(held.limit_bytes)} instead of {formats.size(held.found_bytes)}"
            f" (medians).{_met(held)}",
            f"Writers got {formats.size(rate)}/s{share}.",
        ]
        lines.append(_without(each))
    return lines


def _met(held: Period) -> str:
    if not held.judged:
        return ""
    text = f" At least {_share(held.met / held.judged)} met the objective of"
    return f"{text} {'their time, ' * (len(held.objectives_s) > 1)}{_objectives(held)}."


def _objectives(stretch: Period) -> str:
    least_s, *more = map(latency, stretch.objectives_s)
    return f"{least_s} to {more[-1]}" if more else least_s


def _unheld(each: Effectiveness) -> List[str]:
    """What floods did without a limit of writebackd, and which limit it would have set."""
    loose, lines = each.loose, []
    if loose.judged:
        missed = loose.judged - loose.met
        lines.append(
            f"Under the original limit commit p99 missed the objective of {_objectives(loose)} in"
            f" {loose.missed_floods} of {loose.floods} floods: {number(missed)} of"
            f" {number(loose.judged)} commits ({formats.percent(missed / loose.judged)}) took"
            f" longer, the longest {latency(loose.longest_s)}."
        )
    target, limit = loose.target_bytes, loose.found_bytes
    if target is not None and limit is not None and target < limit:
        text = f"writebackd would have set {formats.size(target)} instead of {formats.size(limit)}"
        rate = each.drain_rate or loose.written_bytes / loose.span_s
        drains = (
            f": dirty pages drain in {formats.duration(limit / rate)} at"
            f" {formats.size(rate)}/s, under its limit in {latency(target / rate)}"
            if rate else ""  # a disk that hangs
        )  # fmt: skip
        lines.append(f"{text} (medians){drains}.")
    return lines


def _without(each: Effectiveness) -> str:
    """Compare with the time without our limit, or with the calculation if none was measured."""
    held, loose = each.held, each.loose
    if loose.span_s:
        text = f"Without writebackd's limit, for {formats.duration(loose.span_s)}: "
        if not (held.counts and loose.counts):
            return text + "too little to compare."
        return f"{text}{_compared(held, loose)}. The load may have differed."
    text = "Not measured without writebackd's limit."
    if not (held.found_bytes and each.drain_rate):
        return text
    return (
        f"{text} Estimated wait of an fsync behind a full queue:"
        f" {formats.duration(held.found_bytes / each.drain_rate)}"
        f" ({formats.size(held.found_bytes)} at {formats.size(each.drain_rate)}/s)."
    )


def _compared(held: Period, loose: Period) -> str:
    """Both were measured; says so also if writebackd did not help."""
    with_s, without_s = held.wait_s or 0.0, loose.wait_s or 0.0
    rates = f"{_rate(loose)} against {_rate(held)} with it"
    if without_s > CHANCE * with_s > 0:
        return f"commits waited {_times(without_s / with_s)} as long as with writebackd; {rates}"
    if with_s > CHANCE * without_s > 0:
        times = _times(with_s / without_s)
        return f"writebackd made it worse, commits waited {times} as long with it; {rates}"
    if held.sync_rate > CHANCE * loose.sync_rate:
        # Who waits asks less often, and so has less weight in a quantile.
        return f"commits waited as long as with writebackd, but fewer came; {rates}"
    return f"no difference beyond chance; {rates}"


def _share(share: float) -> str:
    """A percentage, rounded down: 100 % means all."""
    return formats.percent(math.floor(share * 1000) / 1000) if share < 0.0995 else (
        f"{math.floor(share * 1000) / 10:g} %"
    )


def _times(factor: float) -> str:
    # Two digits: more of them would be chance.
    return f"{factor:.1f} times" if factor < 9.95 else f"{float(f'{factor:.2g}'):.0f} times"


def number(count: int) -> str:
    """12 345 678 with thin spaces."""
    return f"{count:,}".replace(",", "\u202f")
