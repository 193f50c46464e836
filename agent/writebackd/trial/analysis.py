# SPDX-License-Identifier: GPL-2.0-or-later
"""Analyses a trial: differences between the arms with 95 % intervals.  Pure.

The two blocks of a pair give one ratio, and Student's t is applied to the logarithms of the ratios:
p99 and rates vary by factors, not by amounts, and a few pairs are too few for a bootstrap (with 8
its 95 % interval contains the true value in about 90 % of the cases) or a sign test.  Means of
logarithms are close enough to normal for t; tests/unit/test_trial_analysis.py tests it with
long-tailed data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from writebackd import formats
from writebackd.report.device_figures import Figures, fold
from writebackd.trial.plan import LEAST_PAIRS, ORIGINAL, Plan
from writebackd.trial.trial_run import TrialTick
from writebackd.tuning import FLOOD_RATE

# Of a block that was cut short, the part that has to be there.
WHOLE = 0.5
# Blocks of one load: buffered writers dirty no less than this part of what they do in the other,
# unless they sleep for the limit for half of the time, which is the limit's doing.
DIRTIED_LEFT, SLEPT_SHARE = 0.25, 0.5
# The flusher wakes up this often unless vm.dirty_writeback_centisecs was changed.
WRITEBACK_S = 5.0
# And the one in which commits are faster has no less than this part of the other's: programs that
# wait for each do more then, those that sync by the clock as many. Those that sleep in write() for
# the limit have few, which is the limit's doing.
SYNCS_LEFT = 0.5
# Of an interval whose ends are such a factor apart only the end next to 1 says something.
WIDEST = 100.0
# Student's t, 97.5 %, by degrees of freedom from 1.
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


@dataclass(frozen=True)
class Block:
    """One block; figures cover the part that counts, and are None if no part does."""

    number: int  # from 1
    original: bool
    begin_s: float  # wall clock, the part that does not count included
    end_s: float
    figures: Optional[Figures]
    whole: bool  # enough of it to be compared
    dirtied_bytes: int = 0  # of the part that counts, as of Tick
    slept_s: float = 0.0
    dirty_bytes: float = 0.0  # mean

    @property
    def arm(self) -> str:
        return "original" if self.original else "agent"

    @property
    def p99_s(self) -> Optional[float]:
        return _latency(self.figures, 0.99)

    @property
    def p50_s(self) -> Optional[float]:
        return _latency(self.figures, 0.5)

    @property
    def sync_rate(self) -> Optional[float]:
        figures = self.figures
        # None came: fewer than one, which a logarithm can take.
        return None if figures is None else (figures.fsyncs or 0.5) / figures.span_s

    @property
    def write_rate(self) -> Optional[float]:
        return None if self.figures is None else self.figures.write_rate


def _latency(figures: Optional[Figures], share: float) -> Optional[float]:
    if figures is None:
        return None
    # Where no commit came to its end, it took at least as long as the one that is under way.
    return figures.commit_latency.quantile(share) or figures.pending_s or None


@dataclass(frozen=True)
class Difference:
    """The difference in one measure; ratios above 1 mean the agent is better."""

    name: str
    ratios: Tuple[float, ...]  # a pair each
    ratio: Optional[float]  # their geometric mean
    low: Optional[float]  # of its 95 % interval; None: too few pairs, or they scatter too much
    high: Optional[float]

    @property
    def scattered(self) -> bool:
        """Whether there are enough pairs, but the interval is wide and includes 1."""
        return self.low is None and len(self.ratios) >= LEAST_PAIRS

    @property
    def wide(self) -> bool:
        """Whether only the end of the interval next to 1 is informative."""
        return self.low is not None and self.high is not None and self.high > WIDEST * self.low

    @property
    def better(self) -> bool:
        return self.low is not None and self.low > 1.0

    @property
    def worse(self) -> bool:
        return self.high is not None and self.high < 1.0


@dataclass(frozen=True)
class Result:
    blocks: Tuple[Block, ...]
    differences: Tuple[Difference, ...]  # in the order of MEASURES
    agent: Optional[Figures]  # all that counts, together
    original: Optional[Figures]

    @property
    def pairs(self) -> int:
        return len(pairs_of(self.blocks))

    @property
    def left_out(self) -> "List[Tuple[int, int, str]]":
        """Pairs of whole blocks not compared: their numbers, and how the loads differed."""
        left_out = []
        for agent, original in _whole_pairs(self.blocks):
            why = load_differs(agent, original)
            if why is not None:
                first = min(agent.number, original.number)
                left_out.append((first, first + 1, why))
        return left_out

    def of(self, name: str) -> Difference:
        return next(each for each in self.differences if each.name == name)


Measure = Callable[[Block], Optional[float]]
P99, P50, SYNC_RATE, WRITE_RATE = "commit_p99", "commit_p50", "sync_rate", "write_rate"
# Name, measure, and whether less of it is better. The first is the one that a trial is about.
MEASURES: Tuple[Tuple[str, Measure, bool], ...] = (
    (P99, lambda block: block.p99_s, True),
    (P50, lambda block: block.p50_s, True),
    (SYNC_RATE, lambda block: block.sync_rate, False),
    (WRITE_RATE, lambda block: block.write_rate, False),
)


def analyse(plan: Plan, ticks: Sequence[TrialTick]) -> Result:
    """Analyse `ticks` up to the end of the trial, or to where it was stopped."""
    by_block: Dict[int, List[TrialTick]] = {}
    for tick in ticks:
        by_block.setdefault(tick.block, []).append(tick)
    blocks = tuple(block_of(plan, number, seen) for number, seen in sorted(by_block.items()))
    agent, original = ([each for each in blocks if each.original is arm] for arm in (False, True))
    return Result(
        blocks,
        tuple(_difference(name, measure, less, blocks) for name, measure, less in MEASURES),
        _together(agent),
        _together(original),
    )


def block_of(plan: Plan, number: int, ticks: Sequence[TrialTick]) -> Block:
    """The block `number`, counted from 0; `ticks` are all of its ticks."""
    counting = [tick for tick in ticks if tick.counts]
    figures = fold([tick.figures for tick in counting]) if counting else None
    least_s = WHOLE * (plan.block_s - plan.settle_s)
    return Block(
        number=number + 1,
        original=plan.arms[number] == ORIGINAL,
        begin_s=ticks[0].figures.wall_s,
        end_s=ticks[-1].figures.end_s,
        figures=figures,
        whole=figures is not None and figures.span_s >= least_s,
        dirtied_bytes=sum([tick.dirtied_bytes for tick in counting]),
        slept_s=sum([tick.slept_s for tick in counting]),
        dirty_bytes=sum([tick.dirty_bytes for tick in counting]) / max(1, len(counting)),
    )


def _together(blocks: Sequence[Block]) -> Optional[Figures]:
    rows = [block.figures for block in blocks if block.figures is not None]
    return fold(rows) if rows else None


def pairs_of(blocks: Sequence[Block]) -> List[Tuple[Block, Block]]:
    """(agent, original) of each pair whose blocks are whole and had the same load."""
    return [each for each in _whole_pairs(blocks) if load_differs(*each) is None]


def load_differs(agent: Block, original: Block) -> Optional[str]:
    """How the load, and not the limit, made the difference; None if nothing indicates that."""
    one, other = agent.figures, original.figures
    if one is None or other is None:
        return None
    wrote = [
        (block.dirtied_bytes / figures.span_s, block.slept_s / figures.span_s)
        for block, figures in ((agent, one), (original, other))
    ]
    (less, slept), (more, _) = sorted(wrote)
    # What is written over again while it is dirty is dirtied once, under a limit that lets it be.
    # Then about as much stays dirty as the agent's limit has written out between two wake-ups.
    rewritten = wrote[1][0] == less and original.dirty_bytes >= WRITEBACK_S * more
    held = slept >= SLEPT_SHARE or rewritten
    if less < DIRTIED_LEFT * more and more >= FLOOD_RATE and not held:
        ours, theirs = (formats.size(rate) for rate, _ in wrote)
        return f"writers dirtied {ours}/s in the agent's block, {theirs}/s in the other"
    idle = [not each.fsyncs and not each.pending_s for each in (one, other)]
    if idle[0] != idle[1]:
        return f"no commit in the {'agent' if idle[0] else 'other'}'s block"
    (faster, (_, slept)), (slower, _) = sorted(
        zip((one, other), wrote), key=lambda each: _mean_s(each[0])
    )
    rates = [each.fsyncs / each.span_s for each in (faster, slower)]
    if rates[0] < SYNCS_LEFT * rates[1] and slept < SLEPT_SHARE:
        few, many = map(formats.count, rates)
        return f"{few} commits/s where they were faster, {many}/s where it was slower"
    return None


def _mean_s(figures: Figures) -> float:
    """Mean commit latency, including a commit that never completed."""
    count = figures.fsyncs + (figures.pending_s > 0)
    return (figures.commit_latency.total_s() + figures.pending_s) / max(1, count)


def _whole_pairs(blocks: Sequence[Block]) -> List[Tuple[Block, Block]]:
    by_number = {block.number: block for block in blocks if block.whole}
    pairs = []
    for number in sorted(by_number):
        if number % 2 and number + 1 in by_number:
            one, other = by_number[number], by_number[number + 1]
            pairs.append((other, one) if one.original else (one, other))
    return pairs


def _difference(
    name: str, measure: Measure, less: bool, blocks: Sequence[Block]
) -> Difference:
    logs = []
    for agent, original in pairs_of(blocks):
        ours, theirs = measure(agent), measure(original)
        if ours and theirs:
            logs.append(math.log(theirs / ours if less else ours / theirs))
    ratios = tuple(map(math.exp, logs))
    mean, half = interval(logs)
    if mean is None:
        return Difference(name, ratios, None, None, None)
    if half is None or (2 * half > math.log(WIDEST) and abs(mean) <= half):
        # Such an interval shows no difference, nor that there is none.
        return Difference(name, ratios, math.exp(mean), None, None)
    return Difference(name, ratios, *map(math.exp, (mean, mean - half, mean + half)))


def interval(values: Sequence[float]) -> Tuple[Optional[float], Optional[float]]:
    """Mean and half the width of its 95 % interval, by Student's t; None: too few."""
    count = len(values)
    if not count:
        return None, None
    mean = sum(values) / count
    if count < LEAST_PAIRS:
        return mean, None
    variance = sum((value - mean) ** 2 for value in values) / (count - 1)
    return mean, student(count - 1) * math.sqrt(variance / count)


def student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t; above the table its expansion, exact to 0.001."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    return 1.96 + 2.372 / freedom + 2.82 / freedom**2
