# SPDX-License-Identifier: GPL-2.0-or-later
"""A trial in sentences, as a self-contained HTML page, and as lines for a terminal.  Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple

from writebackd import formats
from writebackd.formats import latency
from writebackd.report.device_plot import LEFT, RIGHT, WIDTH, Mark, bins, device_plot
from writebackd.report.plot import LOG, Axis, Frame, escape
from writebackd.report.report_page import STYLE, facts, head, period, table, when
from writebackd.trial.analysis import P50, P99, SYNC_RATE, WRITE_RATE, Block, Difference, Result
from writebackd.trial.plan import LEAST_PAIRS, Plan
from writebackd.trial.trial_run import TrialTick

# Of the time that counts: without a flood both arms are alike.
MOSTLY = 0.5
NAMES = {
    P99: "commit p99", P50: "commit p50", SYNC_RATE: "commits per second", WRITE_RATE: "throughput"
}  # fmt: skip
# Fewer in a block, and its p99 is its slowest.
ENOUGH_FSYNCS = 100


@dataclass(frozen=True)
class TrialSummary:
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


_COLUMNS = (
    "block", "limits", "counted", "limit", "commits", "per second", "p50", "p99", "longest",
    "written", "flooded",
)  # fmt: skip
_ROW, _TOP = 40.0, 26.0  # of the plot of differences, in its own units
_NAME, _SAID = 130.0, 190.0  # columns for names on its left and figures on its right
_STYLE = STYLE + """
:root{--agent:#bfe3d3;--original:#f6c79a;--settle:#9aa4ad}
@media screen and (prefers-color-scheme:dark){:root{--agent:#1d5a43;--original:#7a4413}}
.mark.agent,.legend .agent{fill:var(--agent);background:var(--agent)}
.mark.original,.legend .original{fill:var(--original);background:var(--original)}
.mark.settle,.shade.settle{fill:var(--settle)}.shade.settle{fill-opacity:.16}
.even{stroke:var(--soft);fill:none}
.pair{fill:var(--one);fill-opacity:.45}
.interval{stroke:var(--ink);stroke-width:2.5;fill:none}
.mean{fill:var(--ink)}
svg .figure{fill:var(--ink)}
"""


def render(report: TrialSummary, ticks: Sequence[TrialTick], made_s: float) -> str:
    """The page; the same input gives the same one, in the same time zone."""
    title = f"writebackd on {report.host}: trial of {report.plan.device}"
    notes = "".join(f"<p>{escape(line)}</p>" for line in remarks(report))
    rows = [(str(block.number), _cells(block)) for block in report.result.blocks]
    return f"""{head(title, _STYLE)}<body>
<header><h1>{escape(title)}</h1>
<p class="when">{_time_span(report.result.blocks, made_s)}</p>
<p class="answer">{escape(verdict(report))}</p>
{notes}{facts(_facts(report))}</header>
<main><section><h2>Difference</h2>
<div class="wide"><figure>{_forest(report.result.differences)}</figure></div>
<p class="legend">Right of 1 the agent is better. Dots are pairs of blocks, the diamond is their
mean, the line its 95 % interval.</p></section>
<section><h2>Time line</h2>{_course(report, ticks)}</section>
<section><h2>Blocks</h2>{table(_COLUMNS, rows)}</section></main>
<footer><p>Blocks of {report.plan.block_s:g} s come in pairs, in random order within each (seed
{report.seed}). The first {report.plan.settle_s:g} s of a block are not counted: the limit moves,
and dirty data of the block before drain. Intervals are Student's t on the logarithms of the pairs'
ratios. The trial is about commit p99: fsync and, where the kernel shows it, the sleep in write()
before it. The other measures are for information. Percentiles are exact to 12.5 %.</p>
<p>writebackd {escape(report.version)}, page made {when(made_s)} (local time of that host)</p>
</footer>
</body></html>
"""


def _facts(report: TrialSummary) -> List[Tuple[str, str]]:
    return [
        ("policy", report.policy),
        ("limit as found", formats.size(report.found_bytes)),
        ("limit of the original blocks", formats.size(report.limit_bytes)),
        ("pairs compared", str(report.result.pairs)),
        ("pairs left out", str(len(report.result.left_out))),
        ("blocks", f"{len(report.result.blocks)} of {len(report.plan.arms)}"),
        ("stops at a commit of", formats.duration(report.stop_s)),
        ("ended", report.ended),
    ]


def _axis(differences: Sequence[Difference]) -> Axis:
    """A logarithmic axis of ratios that includes 1."""
    values = [1 / 1.25, 1.25]
    for each in differences:
        values += each.ratios
        values += [value for value in (each.low, each.high) if value is not None]
    # The interval of few pairs may be as wide as anything.
    low, high = max(min(values), 1e-3), min(max(values), 1e5)
    return Axis("", low * (low / high) ** 0.05, high, LOG)


def _forest(differences: Sequence[Difference]) -> str:
    left, right = LEFT + _NAME - 40, WIDTH - RIGHT - _SAID
    bottom = _TOP + _ROW * len(differences)
    frame = Frame(_axis(differences), Axis("", 0.0, 1.0, at=()), left, _TOP - 8, right, bottom)
    axis, even = frame.at_x, frame.at_x(1.0)
    frame.mark(1.0, "even", "")
    parts = [
        frame.grid(), *frame.parts, frame.below(),
        f'<text text-anchor="end" x="{even - 8:.1f}" y="12">worse</text>',
        f'<text x="{even + 8:.1f}" y="12">better with the agent</text>',
    ]  # fmt: skip
    for row, each in enumerate(differences):
        y = _TOP + _ROW * (row + 0.5)
        parts.append(
            f'<text class="title" text-anchor="end" x="{LEFT + _NAME - 52:.0f}" y="{y + 4:.1f}">'
            f"{escape(NAMES[each.name])}</text>"
        )
        parts += [
            f'<circle class="pair" cx="{axis(ratio):.1f}" cy="{y - 9:.1f}" r="3.2">'
            f"<title>{escape(times(ratio))}</title></circle>"
            for ratio in each.ratios
        ]
        if each.low is not None and each.high is not None:
            parts.append(
                f'<path class="interval" d="M{axis(each.low):.1f} {y + 4:.1f}'
                f'H{axis(each.high):.1f}M{axis(each.low):.1f} {y:.1f}v8'
                f'M{axis(each.high):.1f} {y:.1f}v8"/>'
            )
        if each.ratio is not None:
            x = axis(each.ratio)
            parts.append(
                f'<path class="mean" d="M{x - 5:.1f} {y + 4:.1f}l5 -5 5 5-5 5z"/>'
            )
        parts.append(
            f'<text class="figure" x="{WIDTH - RIGHT - _SAID + 16:.0f}" y="{y + 4:.1f}">'
            f"{escape(said(each))}</text>"
        )
    return (
        f'<svg viewBox="0 0 {WIDTH:.0f} {bottom + 24:.0f}" role="img"'
        f' aria-label="differences with intervals">{"".join(parts)}</svg>'
    )


def _course(report: TrialSummary, ticks: Sequence[TrialTick]) -> str:
    if not ticks:
        return '<p class="absent">No tick was seen.</p>'
    begin_s, end_s = ticks[0].figures.wall_s, ticks[-1].figures.end_s
    arms = [
        Mark(block.begin_s, block.end_s, block.arm, f"{block.arm} block {block.number}")
        for block in report.result.blocks
    ]
    ends = [Mark(end_s, end_s, "stop", report.why)] if report.ended != "done" else []
    plot = device_plot(
        report.plan.device, bins([tick.figures for tick in ticks], begin_s, end_s), arms,
        _not_counted(ticks), ends, begin_s, end_s, bands=("limits in force", "not counted"),
    )  # fmt: skip
    return (
        f'<div class="wide"><figure>{plot}</figure></div><p class="legend">'
        '<span><i class="agent"></i>the agent\'s limits</span>'
        '<span><i class="original"></i>the limits as found, cut where the text says so</span></p>'
    )


def _not_counted(ticks: Sequence[TrialTick]) -> List[Mark]:
    marks: List[Mark] = []
    for tick in ticks:
        if tick.counts:
            continue
        begin_s, end_s = tick.figures.wall_s, tick.figures.end_s
        # A tick's length is measured, and never quite what lies between two.
        if marks and begin_s - marks[-1].end_s < tick.figures.span_s / 2:
            begin_s = marks.pop().begin_s
        marks.append(Mark(begin_s, end_s, "settle", "not counted"))
    return marks


def _cells(block: Block) -> Tuple[str, ...]:
    arm = "as found" if block.original else "agent's"
    figures = block.figures
    if figures is None:
        return (arm, "none", *(formats.UNKNOWN,) * 8)
    counted = formats.duration(figures.span_s) + ("" if block.whole else ", too little")
    return (
        arm,
        counted,
        formats.size(figures.limit_bytes),
        str(figures.fsyncs),
        formats.count(figures.fsyncs / figures.span_s),
        *(
            f"{formats.milliseconds(value)} ms"
            for value in (block.p50_s, block.p99_s, figures.longest_s)
        ),
        f"{formats.size(figures.write_rate)}/s",
        formats.percent(figures.flooded_s / figures.span_s),
    )


def block_line(block: Block, blocks: int) -> str:
    """A finished block as a line for a terminal."""
    _, counted, limit, _, rate, p50, p99, _, written, _ = _cells(block)
    return (
        f"{block.number:4}/{blocks}  {block.arm:<8}  {limit:>5}  p50 {p50:>8}  p99 {p99:>8}"
        f"  {rate:>6} commits/s  {written:>7}" + ("" if block.whole else f"  ({counted})")
    )


def difference_lines(differences: Sequence[Difference]) -> List[str]:
    """The differences with their intervals, for a terminal."""
    names = max(map(len, NAMES.values()))
    lines = [f"{NAMES[each.name]:<{names}}  {said(each)}" for each in differences]
    lines.append(f"{'':<{names}}  (above 1: better with the agent)")
    if any(len(each.ratios) < LEAST_PAIRS for each in differences):
        lines.append(f"(intervals take {LEAST_PAIRS} pairs)")
    return lines


def _time_span(blocks: Sequence[Block], made_s: float) -> str:
    return period(blocks[0].begin_s, blocks[-1].end_s) if blocks else when(made_s)
