# SPDX-License-Identifier: GPL-2.0-or-later
"""What is made of a trial's blocks: intervals that hold, and sentences that say no more."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Callable, List

import pytest

from trial_case import FOUND, made, plan
from writebackd.trial.analysis import (
    P99,
    SYNC_RATE,
    WRITE_RATE,
    Result,
    analyse,
    interval,
    pairs_of,
    student,
)
from writebackd.trial.course import Tick
from writebackd.trial.page import block_line, render, text_plot
from writebackd.trial.plan import AGENT, LEAST_PAIRS, ORIGINAL, Plan, order, settle_s
from writebackd.trial.words import Report, remarks, verdict

EIGHT = plan(8)


def report(result: Result, **more: object) -> Report:
    plain = Report(
        host="db7", version="0.1.0", policy="default", mode="enforce", seed=1, plan=EIGHT,
        found_bytes=FOUND, limit_bytes=FOUND, cut=None, stop_s=2.0, ended="done", why="",
        result=result,
    )  # fmt: skip
    return replace(plain, **more)  # type: ignore[arg-type]


# ---- the interval ------------------------------------------------------------


def test_the_table_of_t_goes_on_into_its_expansion() -> None:
    assert student(1) == 12.706 and student(7) == 2.365
    # R: qt(0.975, c(31, 60, 199))
    for freedom, expected in ((31, 2.0395), (60, 2.0003), (199, 1.9720)):
        assert student(freedom) == pytest.approx(expected, abs=1e-3)


def test_a_known_sample() -> None:
    # R: t.test(c(1, 2, 3, 4, 6))$conf.int: 0.8116 5.5884
    mean, half = interval([1.0, 2.0, 3.0, 4.0, 6.0])
    assert mean is not None and half is not None
    assert (mean - half, mean + half) == pytest.approx((0.8116, 5.5884), abs=1e-3)
    assert interval([1.0, 2.0, 3.0]) == (2.0, None)
    assert interval([]) == (None, None)


def long_tails(chance: random.Random) -> float:
    """Student's t with 4 degrees of freedom: a block in thirty that is far out."""
    return chance.gauss(0, 1) / math.sqrt(chance.gammavariate(2.0, 0.5))


@pytest.mark.parametrize("pairs", [LEAST_PAIRS, 8, 16])
@pytest.mark.parametrize("scatter", [lambda chance: chance.gauss(0, 1), long_tails],
                         ids=["normal", "long-tails"])  # fmt: skip
def test_the_interval_holds_the_truth_in_95_of_100(
    pairs: int, scatter: Callable[[random.Random], float]
) -> None:
    chance, truth, trials = random.Random(20), math.log(5.0), 4000
    held = 0
    for _ in range(trials):
        mean, half = interval([truth + 0.4 * scatter(chance) for _ in range(pairs)])
        assert mean is not None and half is not None
        held += abs(mean - truth) <= half
    # Three standard errors of the share are 0.010.
    assert 0.94 <= held / trials <= 0.975, held / trials


# ---- blocks and pairs --------------------------------------------------------


def test_the_difference_that_was_put_in_is_found() -> None:
    chance = random.Random(3)

    def p99_s(block: int, original: bool) -> float:
        # The load doubles slowly: within a pair that hardly shows.
        return (0.4 if original else 0.08) * 2 ** (block / 15) * math.exp(chance.gauss(0, 0.2))

    result = analyse(EIGHT, made(EIGHT, p99_s, lambda block, original: 2e8 + 4e6 * (block % 3)))
    p99, rate = result.of(P99), result.of(WRITE_RATE)
    assert p99.better and p99.low is not None and p99.low < 5.0 < (p99.high or 0)
    assert not rate.better and not rate.worse
    assert result.of(SYNC_RATE).ratio == pytest.approx(1.0)
    said = verdict(report(result))
    assert said.startswith("The agent made fsync p99 ") and "times shorter (95 % interval" in said
    assert "over 8 pairs; throughput was " in said
    assert remarks(report(result)) == []


def test_an_agent_that_is_worse_is_called_so() -> None:
    result = analyse(EIGHT, made(EIGHT, lambda block, original: 0.1 if original else 0.4))
    assert result.of(P99).worse
    assert "The agent made fsync p99 4.0 times longer" in verdict(report(result))


def test_no_difference_is_no_proof_of_one() -> None:
    chance = random.Random(5)
    result = analyse(EIGHT, made(EIGHT, lambda *_: 0.1 * math.exp(chance.gauss(0, 0.5))))
    assert not result.of(P99).better and not result.of(P99).worse
    assert "No difference in fsync p99 was shown over 8 pairs" in verdict(report(result))


def test_the_first_part_of_a_block_does_not_count() -> None:
    ticks = [
        replace(tick, figures=replace(tick.figures, write_rate=9e9)) if not tick.counts else tick
        for tick in made(EIGHT)
    ]
    result = analyse(EIGHT, ticks)
    assert result.of(WRITE_RATE).ratio == pytest.approx(1.0)
    assert all(block.figures and block.figures.span_s == 20.0 for block in result.blocks)


def test_too_few_pairs_are_no_interval() -> None:
    result = analyse(EIGHT, made(EIGHT, blocks=2 * LEAST_PAIRS - 1))
    assert result.pairs == LEAST_PAIRS - 1
    assert result.of(P99).low is None and not result.of(P99).better
    assert f"Only {LEAST_PAIRS - 1} whole pairs of blocks, {LEAST_PAIRS} are" in verdict(
        report(result)
    )
    one_more = analyse(EIGHT, made(EIGHT, blocks=2 * LEAST_PAIRS))
    assert one_more.of(P99).better


def test_a_block_that_was_cut_short_counts_from_its_half_on() -> None:
    whole = made(EIGHT, blocks=8)

    def cut(seconds: int) -> List[Tick]:
        return [tick for tick in whole if tick.block < 7] + [
            tick for tick in whole if tick.block == 7
        ][:seconds]

    assert analyse(EIGHT, cut(20)).pairs == 4  # 10 of the 20 s that count
    assert analyse(EIGHT, cut(19)).pairs == 3
    nothing = analyse(EIGHT, cut(10)).blocks[-1]
    assert nothing.figures is None and not nothing.whole
    assert "none" in block_line(nothing, 16)
    stopped = report(analyse(EIGHT, cut(19)), ended="stopped", why="an fsync on sda took 3s")
    assert "Ended before its time: an fsync on sda took 3s. That was in block 8 of 16" in (
        remarks(stopped)[0]
    )


def test_who_never_came_back_took_as_long_as_it_waited() -> None:
    ticks = [
        replace(tick, figures=replace(
            tick.figures, latency=type(tick.figures.latency)(), oldest_s=1.5))
        if EIGHT.arms[tick.block] == ORIGINAL else tick
        for tick in made(EIGHT)
    ]  # fmt: skip
    result = analyse(EIGHT, ticks)
    assert result.of(P99).ratio == pytest.approx(150, rel=0.15)  # 1.5 s to 10 ms
    assert (result.of(SYNC_RATE).ratio or 0) > 1000
    assert any("only 0 fsyncs" in line for line in remarks(report(result)))


def test_pairs_are_of_one_pair() -> None:
    result = analyse(EIGHT, made(EIGHT))
    for agent, original in pairs_of(result.blocks):
        assert original.original and not agent.original
        assert (agent.number - 1) // 2 == (original.number - 1) // 2


def test_what_makes_the_comparison_mild_is_said() -> None:
    result = analyse(EIGHT, made(EIGHT))
    cut = remarks(report(result, cut="what the disk drains in 1 s", limit_bytes=250 << 20))
    assert cut == [
        "The limit as found is 4.4G; the trial cut it to 250M, what the disk drains in 1 s. So its"
        " arm was milder than this host without the agent, and the difference may be larger than"
        " what is shown."
    ]
    dry = [replace(t, figures=replace(t.figures, flooded_s=0.2)) for t in made(EIGHT)]
    assert sum("a flood was on for 20 %" in line
               for line in remarks(report(analyse(EIGHT, dry)))) == 2  # fmt: skip


# ---- order -------------------------------------------------------------------


def test_each_pair_has_both_arms_and_the_seed_gives_them_again() -> None:
    arms = order(8 * 60.0, 30.0, 42)
    assert len(arms) == 16 and arms == order(8 * 60.0, 30.0, 42)
    assert all(set(arms[i : i + 2]) == {AGENT, ORIGINAL} for i in range(0, 16, 2))
    first = [order(60.0, 30.0, seed)[0] for seed in range(200)]
    assert 70 <= first.count(AGENT) <= 130  # as a coin
    assert settle_s(30.0) == 10.0 and settle_s(12.0) == 5.0


@pytest.mark.parametrize("duration_s, block_s", [(59.0, 30.0), (600.0, 9.0), (1e6, 10.0),
                                                 (1e5, 4e3)])  # fmt: skip
def test_an_order_that_makes_no_sense_is_refused(duration_s: float, block_s: float) -> None:
    with pytest.raises(ValueError):
        order(duration_s, block_s, 1)


# ---- page and terminal ---------------------------------------------------------


def test_the_plots_show_every_pair_and_fit() -> None:
    made_ = made(EIGHT, lambda block, original: 0.4 * (1 + block % 4) if original else 0.01)
    result = analyse(EIGHT, made_)
    for width in (60, 80, 120):
        lines = text_plot(result.differences, width)
        assert max(map(len, lines)) <= width
        assert all("|" in line or "o" in line for line in lines[:4])
    page = render(report(result), made_, 1.7e9)
    assert page.count('class="pair"') == 4 * 8
    assert page.count('class="mark original"') == page.count('class="mark agent"') == 8
    assert "Content-Security-Policy" in page and "<script" not in page
    hostile = replace(EIGHT, device="<script>")
    assert "<script" not in render(report(result, plan=hostile, why="<script>"), made_, 1.7e9)


def test_a_trial_that_saw_nothing_has_a_page_and_a_verdict_too() -> None:
    empty = report(analyse(EIGHT, []), ended="disturbed", why="no daemon")
    assert "Nothing to compare" in verdict(empty)
    assert remarks(empty)[0] == "Ended before its time: no daemon. What was seen until then counts."
    assert "No tick was seen" in render(empty, [], 1.7e9)
    assert len(text_plot(empty.result.differences, 80)) == 6


def test_a_plan_knows_its_length() -> None:
    assert Plan("sda", "ao", 30.0, 10.0, 1.0, None).duration_s == 60.0
