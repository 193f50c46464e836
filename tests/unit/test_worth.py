# SPDX-License-Identifier: GPL-2.0-or-later
"""The words of a report: what writebackd was worth, measured, and no more than that."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import replace
from typing import List

import pytest

from figure_cases import ABOUT, BEGIN_S, FAST, SLOW, row, rows
from writebackd.report.device_figures import Figures
from writebackd.report.effectiveness import headline, measure, sentences
from writebackd.report.history_schema import Event
from writebackd.report.report_page import render
from writebackd.types.histogram import BUCKET_EDGES_S, Histogram


def said(found: List[Figures]) -> str:
    each = measure(found)
    return " ".join([headline([each]), *sentences(each)])


def test_the_headline_is_the_contrast_of_the_table_or_the_half_that_is_known() -> None:
    slow = Histogram(((130, 1000),))
    held, loose = rows(60), [row(600.0 + 10 * n, ours_s=0.0, latency=slow) for n in range(6)]
    text = headline([measure(held + loose)])
    without = r"Without writebackd: commits p99 \d\d\d ms \(100/s\) during floods on sda; with: "
    assert re.fullmatch(without + r"p99 2\.4 ms \(100/s\)", text), text
    seconds = [replace(each, latency=SLOW) for each in loose]
    text = "Without writebackd: commits p99 2.0s (100/s) during floods on sda; with: p99 2.4 ms"
    assert headline([measure(held + seconds)]).startswith(text)
    half = "With writebackd: commits p99 2.4 ms (100/s) during floods on sda; without: "
    assert headline([measure(held)]) == half + "not measured"
    assert headline([measure(held + loose[:1])]) == half + "only 10s measured"
    assert re.fullmatch(without + "not measured", headline([measure(loose)]))
    # Of the device where most was waited for; and where none returned, how long one waited.
    other = measure([row(10.0 * n, device="sdb", latency=SLOW) for n in range(60)])
    assert "on sdb; " in headline([measure(held), other])
    stuck = [row(600.0 + 10 * n, ours_s=0.0, latency=Histogram(), oldest_s=9.0 + 10 * n)
             for n in range(12)]
    never = "Without writebackd: commits never returned (longest wait 1m59s) during floods on sda; "
    assert headline([measure(held + stuck)]) == never + "with: p99 2.4 ms (100/s)"
    assert headline([measure(stuck)]) == never + "with: not measured"


def test_with_and_without_are_compared_where_both_were_measured() -> None:
    text = said(rows(60) + [row(600.0 + 10 * n, ours_s=0.0, latency=SLOW) for n in range(6)])
    factor = re.search(r"(\d+) times as long as with writebackd", text)
    assert factor is not None and 300 < int(factor.group(1)) < 900
    assert "100/s against 100/s with it" in text


def test_it_says_so_when_the_agent_was_no_help() -> None:
    worse = said(rows(60, latency=SLOW) + [row(600.0 + 10 * n, ours_s=0.0) for n in range(6)])
    assert "writebackd made it worse, commits waited" in worse
    same = said(rows(60) + [row(600.0 + 10 * n, ours_s=0.0) for n in range(6)])
    assert "no difference beyond chance" in same


def test_rows_that_are_half_and_half_speak_for_neither() -> None:
    few, many = Histogram(((150, 5),)), Histogram(((72, 20_000),))  # 600 ms, 0.5 ms
    loose = [row(600.0 + 10 * n, ours_s=0.0, latency=few) for n in range(24)]
    edge = row(850.0, ours_s=0.0, flooded_s=6.0, latency=many)
    assert "times as long as with writebackd" in said([*rows(60), *loose, edge])
    back = row(860.0, ours_s=4.0, latency=many)
    assert "times as long as with writebackd" in said([*rows(60), *loose, back])


def test_fewer_of_the_same_length_are_no_even_score() -> None:
    fewer = Histogram(((72, 297), (80, 3)))
    text = said(rows(60) + [row(600.0 + 10 * n, ours_s=0.0, latency=fewer) for n in range(6)])
    assert "as long as with writebackd, but fewer came; 30/s against 100/s with it" in text


def test_a_wait_counts_for_the_time_it_lasted() -> None:
    """A thousand fsyncs that slip through hide the one of ten seconds from every percentile."""
    starving = Histogram(((72, 999), (170, 1)))  # 2.2 ms, 11 s
    loose = [row(600.0 + 10 * n, ours_s=0.0, latency=starving) for n in range(30)]
    each = measure(rows(60) + loose)
    assert each.loose.p99_s and each.loose.p99_s < 3e-3 < 10.0 < (each.loose.wait_s or 0.0) < 12.0
    text = said(rows(60) + loose)
    assert re.search(r"wait 11s \(\S+ during .*time-weighted median wait [\d.]+ ms", text)
    factor = re.search(r"(\d+) times as long as with writebackd", text)
    assert factor is not None and 4_000 < int(factor.group(1)) < 6_000


def test_ticks_in_which_no_fsync_returned_are_the_worst_and_not_left_out() -> None:
    stuck = [
        row(600.0 + 10 * n, ours_s=0.0, latency=Histogram(), oldest_s=9.0 + 10 * n)
        for n in range(12)
    ]
    each = measure(rows(60) + stuck)
    assert each.loose.span_s == 120.0 and each.loose.wait_s == each.loose.waited_s == 119.0
    text = said(rows(60) + stuck)
    assert "times as long as with writebackd; 0/s against 100/s with it" in text
    assert "unknown" not in text and "unknown" not in said([replace(r, ours_s=10.0) for r in stuck])


def test_a_wait_that_ends_later_counts_once() -> None:
    none, end = Histogram(), Histogram(((176, 1),))  # 18 s
    found = [
        row(0.0, latency=none, oldest_s=4.0), row(10.0, latency=none, oldest_s=14.0),
        row(20.0, latency=end, oldest_s=14.5), row(30.0), row(200.0, latency=none, oldest_s=7.0),
    ]  # fmt: skip
    held = measure(found).held
    assert held.unfinished == (7.0,)
    assert held.waited_s == pytest.approx(end.total_s() + FAST.total_s() + 7.0)


def test_a_little_of_it_is_not_compared() -> None:
    text = said(rows(60) + [row(600.0, ours_s=0.0, latency=SLOW)])
    assert "too little to compare" in text and "times as long" not in text


def test_without_a_measurement_it_is_arithmetic_and_called_so() -> None:
    text = said(rows(60))
    # 4.7e9 / 2.5e8 seconds.
    assert "Not measured without" in text and "Estimated" in text and "queue: 19s (" in text


def test_nothing_is_claimed_where_nothing_happened() -> None:
    for found in (
        rows(60, flooded_s=0.0), rows(60, latency=Histogram()), rows(60, ours_s=0.0),
    ):
        text = headline([measure(found)])
        assert "nothing to compare" in text or "with: not measured" in text
    assert "nothing to compare" in headline([])


def test_short_floods_are_not_said_to_have_met_nobody() -> None:
    text = said(rows(60, flooded_s=4.0))
    assert "without commits" not in text and "nothing to compare" not in text
    assert "lasted 4m0s in all, each too short" in text and "for 4m0s: too short" in text
    assert "Flooded for 10m0s, without commits." in said(rows(60, latency=Histogram()))


def test_a_trial_is_neither_the_agent_nor_the_limit_as_found() -> None:
    """Its blocks of limits that were cut stood as "limit as found"."""
    tried = [row(600.0 + 10 * n, ours_s=0.0, latency=SLOW, limit_bytes=2.5e8) for n in range(12)]
    found, trial = [*rows(60), *tried], (BEGIN_S + 600.0, BEGIN_S + 720.0)
    assert measure(found).loose.span_s == 120.0
    each = measure(found, [trial])
    assert each.loose.span_s == 0.0 and each.held == measure(rows(60)).held
    assert "Not counted: 2m0s of figures, in which a trial set the limits for 2m0s." in (
        sentences(each)
    )
    # Rows of five minutes that a trial touches are left out whole, and it is not said to be longer.
    coarse = [row(300.0 * n, span_s=300.0, flooded_s=300.0, ours_s=300.0) for n in range(4)]
    each = measure(coarse, [(BEGIN_S + 570.0, BEGIN_S + 630.0)])
    assert (each.left_out_s, each.tried_s) == (600.0, 60.0)
    assert "Not counted: 10m0s of figures, in which a trial set the limits for 1m0s." in (
        sentences(each)
    )
    assert measure(tried, [trial]).held.span_s == 0.0
    events = [
        Event(trial[0], "trial", text="trial of sda: 4 blocks of 30 s"),
        Event(trial[1], "trial", text="trial of sda ended: all blocks are done"),
    ]
    for end in (events[1], replace(events[1], kind="stop", text="SIGTERM")):
        page = render(ABOUT, found, [events[0], end])
        assert "Not counted: 2m0s of figures" in page and "flood, limit as found" not in page
    assert "flood, limit as found" in render(ABOUT, found, [])


def test_figures_as_found_and_objectives_are_those_of_their_time() -> None:
    """The last original stood for all time, and so did the last objective."""
    found = rows(40, found_bytes=4.0 * 2**30)
    found += [row(400.0 + 10 * n, found_bytes=2.0 * 2**30, objective_s=0.05) for n in range(5)]
    text = said(found)
    assert "instead of 4.0G (medians)" in text and "2.0G" not in text
    assert "met the objective of their time, 20 ms to 50 ms." in text
    assert "met the objective of 20 ms." in said(found[:40])
    # A bucket around the objective says nothing sure of it: 18.9 to 21.0 ms.
    index = bisect_right(BUCKET_EDGES_S, 0.02) - 1
    assert BUCKET_EDGES_S[index] < 0.02 < BUCKET_EDGES_S[index + 1]
    around = Histogram(((72, 900), (index, 100)))
    assert "At least 90 % met the objective of 20 ms." in said(rows(10, latency=around))


def test_all_is_only_said_of_all() -> None:
    almost = Histogram(((72, 99_999), (150, 1)))
    assert "99.9 % met the objective" in said(rows(60, latency=almost))
    assert "100 % met the objective" in said(rows(60))
