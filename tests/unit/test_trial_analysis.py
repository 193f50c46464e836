# SPDX-License-Identifier: GPL-2.0-or-later
"""What is made of a trial's blocks: intervals that hold, and sentences that say no more."""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import replace
from typing import Any, Callable, List, Tuple

import pytest

import schema
from trial_case import FOUND, made, plan
from writebackd.cli.trial import report_json
from writebackd.trial.analysis import P99, SYNC_RATE, WRITE_RATE, Result, analyse, interval, student
from writebackd.trial.plan import AGENT, LEAST_PAIRS, ORIGINAL, order, settle_s
from writebackd.trial.trial_page import (
    TrialSummary,
    block_line,
    difference_lines,
    remarks,
    render,
    verdict,
)
from writebackd.trial.trial_run import TrialTick
from writebackd.types.histogram import Histogram

EIGHT = plan(8)


def report(result: Result, **more: object) -> TrialSummary:
    plain = TrialSummary(
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
    assert said.startswith("The agent made commit p99 ") and "times shorter (95 % interval" in said
    assert "over 8 pairs; throughput was " in said
    assert remarks(report(result)) == []


def test_an_agent_that_is_worse_is_called_so() -> None:
    result = analyse(EIGHT, made(EIGHT, lambda block, original: 0.1 if original else 0.4))
    assert result.of(P99).worse
    assert "The agent made commit p99 4.0 times longer" in verdict(report(result))


def test_no_difference_is_no_proof_of_one() -> None:
    chance = random.Random(5)
    result = analyse(EIGHT, made(EIGHT, lambda *_: 0.1 * math.exp(chance.gauss(0, 0.5))))
    assert not result.of(P99).better and not result.of(P99).worse
    assert "No difference in commit p99 was shown over 8 pairs" in verdict(report(result))


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
    assert verdict(report(result)).startswith(
        f"Inconclusive: only {LEAST_PAIRS - 1} pairs of blocks can be compared, {LEAST_PAIRS} are"
    )
    one_more = analyse(EIGHT, made(EIGHT, blocks=2 * LEAST_PAIRS))
    assert one_more.of(P99).better


def test_a_block_that_was_cut_short_counts_from_its_half_on() -> None:
    whole = made(EIGHT, blocks=8)

    def cut(seconds: int) -> List[TrialTick]:
        return [tick for tick in whole if tick.block < 7] + [
            tick for tick in whole if tick.block == 7
        ][:seconds]

    assert analyse(EIGHT, cut(20)).pairs == 4  # 10 of the 20 s that count
    assert analyse(EIGHT, cut(19)).pairs == 3
    nothing = analyse(EIGHT, cut(10)).blocks[-1]
    assert nothing.figures is None and not nothing.whole
    assert "none" in block_line(nothing, 16)
    stopped = report(analyse(EIGHT, cut(19)), ended="stopped", why="a commit on sda took 3s")
    assert "Ended before its time: a commit on sda took 3s. That was in block 8 of 16" in (
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
    assert any("only 0 commits" in line for line in remarks(report(result)))


def test_a_pair_whose_load_differed_is_not_compared_and_named() -> None:
    def changed(block: int, **more: Any) -> Callable[[TrialTick], TrialTick]:
        return lambda t: t if t.block != block else replace(t, figures=replace(t.figures, **more))

    def wrote(block: int, size: int, slept_s: float) -> Callable[[TrialTick], TrialTick]:
        return lambda t: t if t.block != block else replace(
            t, dirtied_bytes=size, slept_s=slept_s
        )

    few, none = Histogram(((80, 50),)), Histogram()  # 1 ms
    whole = [replace(t, dirtied_bytes=100 << 20, slept_s=0.9) for t in made(EIGHT)]
    agents = [number for number, arm in enumerate(EIGHT.arms) if arm == AGENT]
    for change, why in (
        (wrote(agents[1], 20 << 20, 0.3),
         "writers dirtied 20M/s in the agent's block, 100M/s in the other"),
        (wrote(5 - agents[1], 20 << 20, 0.3),  # the other one of the pair, 2 and 3
         "writers dirtied 100M/s in the agent's block, 20M/s in the other"),
        (changed(agents[1], latency=none), "no commit in the agent's block"),
        (lambda t: changed(agents[1], latency=few)(wrote(agents[1], 100 << 20, 0.3)(t)),
         "50 commits/s where they were faster, 200/s where it was slower"),
    ):  # fmt: skip
        result = analyse(EIGHT, list(map(change, whole)))
        assert result.pairs == len(result.of(P99).ratios) == 7
        assert f"Blocks 3 and 4 are not compared, their load differed: {why}." in remarks(
            report(result)
        )
        answer = report_json(report(result))
        assert answer["left_out"] == [{"blocks": [3, 4], "why": why}]
        assert list(schema.problems(answer, schema.load("trial"))) == []
    # What a limit holds back is its doing, and a flood that memory takes shows in no disk's writes.
    held = list(map(wrote(agents[1], 20 << 20, 0.6), whole))
    over_again = [
        replace(t, dirty_bytes=600 << 20) for t in map(wrote(5 - agents[1], 0, 0.0), whole)
    ]
    absorbed = list(map(changed(agents[1], flooded_s=0.0, write_rate=0.0), whole))
    # Fewer because each waits longer are no other load, nor is one that never comes back.
    stuck = [
        replace(t, figures=replace(t.figures, latency=few if t.counts else none, oldest_s=15.0))
        if t.block not in agents else t for t in whole
    ]  # fmt: skip
    for ticks in (whole, held, over_again, absorbed, made(EIGHT, fsyncs=0), stuck):
        assert analyse(EIGHT, ticks).pairs == 8 and not analyse(EIGHT, ticks).left_out


@pytest.mark.parametrize("arm", [AGENT, ORIGINAL])
def test_few_fast_fsyncs_of_writers_that_sleep_for_the_limit_are_its_harm(arm: str) -> None:
    """The pairs in which the agent did harm were left out as another load."""
    few, many = Histogram(((93, 50),)), Histogram(((112, 200),))  # 4.7 and 25 ms
    ticks = [
        replace(t, dirtied_bytes=50 << 20, slept_s=0.9 if held else 0.0, figures=replace(
            t.figures, latency=few if held else many))
        for t in made(EIGHT) for held in (EIGHT.arms[t.block] == arm,)
    ]  # fmt: skip
    result = analyse(EIGHT, ticks)
    assert result.pairs == 8 and not result.left_out
    syncs = result.of(SYNC_RATE)
    assert (syncs.worse, syncs.better) == (arm == AGENT, arm == ORIGINAL)
    harm = "; commits per second were 0.25 (0.25 to 0.25) of that without it."
    assert verdict(report(result)).endswith(harm) == (arm == AGENT)


def test_a_flood_that_ends_within_a_pair_is_another_load() -> None:
    """What all of the host had dirty passed for pages that are written over again."""
    second = next(n for n, arm in enumerate(EIGHT.arms) if n % 2 and arm == ORIGINAL)
    ticks = [
        replace(t, dirtied_bytes=(2 if t.block == second else 300) << 20, dirty_bytes=60 << 20)
        for t in made(EIGHT)
    ]
    why = "writers dirtied 300M/s in the agent's block, 2.0M/s in the other"
    assert analyse(EIGHT, ticks).left_out == [(second, second + 1, why)]


def test_a_mean_is_of_the_fsyncs_that_were() -> None:
    """4 of 11 ms counted as of 9, less than 40 of 10 ms, and the pair was left out."""
    slower, faster = 102, 101  # buckets, next to each other
    ticks = []
    for tick in made(EIGHT):
        slow = EIGHT.arms[tick.block] == ORIGINAL
        first = tick.figures.wall_s == 1.7e9 + tick.block * 30 + 10
        found = Histogram(((slower if slow else faster, 4 if slow else 40),))
        latency = found if first else Histogram()
        ticks.append(replace(tick, figures=replace(tick.figures, latency=latency)))
    assert analyse(EIGHT, ticks).pairs == 8


def test_of_a_wide_interval_on_one_side_of_1_its_near_end_is_shown() -> None:
    """Pairs 5, 20, 40 and 300 times better were no conclusion."""
    four, factors = plan(4), (5.0, 20.0, 40.0, 300.0)

    def told(good: bool) -> Tuple[Result, str]:
        result = analyse(four, made(
            four, lambda block, original: 1e-3 * (factors[block // 2] if original is good else 1),
            lambda block, original: 1e8 * (factors[block // 2] if original is not good else 1),
        ))  # fmt: skip
        return result, verdict(report(result, plan=four))

    result, text = told(True)
    low = result.of(P99).low
    assert low is not None and low > 1.5 and result.of(P99).better
    assert text == (
        f"The agent made commit p99 at least {low:.1f} times shorter over 4 pairs; throughput was"
        f" at least {result.of(WRITE_RATE).low:.1f} times that without it."
    )
    lines = difference_lines(result.differences)
    assert any(f"  at least {low:.1f} times" in each for each in lines)
    result, text = told(False)
    high, rate = result.of(P99).high, result.of(WRITE_RATE).high
    assert high is not None and result.of(P99).worse
    assert text == (
        f"The agent made commit p99 at least {1 / high:.1f} times longer over 4 pairs; throughput"
        f" was at most {rate:.2f} times that without it."
    )


def test_pairs_that_scatter_widely_around_no_difference_are_no_conclusion() -> None:
    """It printed "95 % interval 0.14 to 35815"."""
    result = analyse(EIGHT, made(
        EIGHT, lambda block, original: 0.5 if original is (block % 4 < 2) else 0.001,
        lambda block, original: 2e8 if original is (block % 4 < 2) else 2e6,
    ))  # fmt: skip
    ratios = result.of(P99).ratios
    logs = [math.log(each) for each in ratios]
    half = 2.365 * statistics.stdev(logs) / math.sqrt(8)  # what was printed
    assert len(ratios) == 8 and math.exp(2 * half) > 100
    for each in (result.of(P99), result.of(WRITE_RATE)):
        assert each.scattered and (each.low, each.high) == (None, None)
        assert not each.better and not each.worse
    text = verdict(report(result))
    assert text.startswith(
        "Inconclusive over 8 pairs: commit p99 differs too much from pair to pair to show a"
        " difference. Measured commit p99: "
    )
    assert "interval" not in text and "throughput" not in text and f"{max(ratios):.0f}" not in text
    (line,) = [each for each in difference_lines(result.differences) if "commit p99" in each]
    assert line.endswith("  inconclusive")


def test_what_makes_the_comparison_mild_is_said() -> None:
    result = analyse(EIGHT, made(EIGHT))
    cut = remarks(report(result, cut="what the disk drains in 1 s", limit_bytes=250 << 20))
    assert cut == [
        "The limit as found is 4.4G; the trial reduced it to 250M, what the disk drains in 1 s."
        " Without the agent this host may do worse than the original blocks show."
    ]
    dry = [replace(t, figures=replace(t.figures, flooded_s=0.2)) for t in made(EIGHT)]
    assert sum("had a flood for 20 %" in line
               for line in remarks(report(analyse(EIGHT, dry)))) == 2  # fmt: skip


# ---- order -------------------------------------------------------------------


def test_each_pair_has_both_arms_and_the_seed_gives_them_again() -> None:
    arms = order(8 * 60.0, 30.0, 42)
    assert len(arms) == 16 and arms == order(8 * 60.0, 30.0, 42)
    assert all(set(arms[i : i + 2]) == {AGENT, ORIGINAL} for i in range(0, 16, 2))
    first = [order(60.0, 30.0, seed)[0] for seed in range(200)]
    assert 70 <= first.count(AGENT) <= 130  # as a coin
    assert settle_s(30.0) == 10.0 and settle_s(12.0) == 5.0
    assert replace(EIGHT, arms=arms).duration_s == 8 * 60.0


@pytest.mark.parametrize("duration_s, block_s", [(59.0, 30.0), (600.0, 9.0), (1e6, 10.0),
                                                 (1e5, 4e3)])  # fmt: skip
def test_an_order_that_makes_no_sense_is_refused(duration_s: float, block_s: float) -> None:
    with pytest.raises(ValueError):
        order(duration_s, block_s, 1)


# ---- page and terminal ---------------------------------------------------------


def test_the_plots_show_every_pair_and_fit() -> None:
    made_ = made(EIGHT, lambda block, original: 0.4 * (1 + block % 4) if original else 0.01)
    result = analyse(EIGHT, made_)
    assert max(map(len, difference_lines(result.differences))) <= 60
    page = render(report(result), made_, 1.7e9)
    assert page.count('class="pair"') == 4 * 8
    assert page.count('class="mark original"') == page.count('class="mark agent"') == 8
    assert "Content-Security-Policy" in page and "<script" not in page
    hostile = replace(EIGHT, device="<script>")
    assert "<script" not in render(report(result, plan=hostile, why="<script>"), made_, 1.7e9)


def test_a_trial_that_saw_nothing_has_a_page_and_a_verdict_too() -> None:
    empty = report(analyse(EIGHT, []), ended="disturbed", why="no daemon")
    assert "Nothing to compare" in verdict(empty)
    assert remarks(empty)[0] == (
        "Ended before its time: no daemon. What was measured until then counts."
    )
    assert "No tick was seen" in render(empty, [], 1.7e9)
    assert len(difference_lines(empty.result.differences)) == 6
