# SPDX-License-Identifier: GPL-2.0-or-later
"""Axes and lines of all pages: true to scale, with gaps, and small."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from html_tree import Tree, corners, paths
from tests.lab.drawing import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Plot
from writebackd.report.plot import LOG, SIZES, Axis, linear_ticks, log_ticks


@given(st.floats(-1e9, 1e9), st.floats(1e-3, 1e9))
def test_linear_ticks(low: float, width: float) -> None:
    high = low + width
    if not high > low or width < abs(low) * 1e-6:
        return
    ticks = linear_ticks(low, high)
    assert 2 <= len(ticks) <= 7
    assert all(low - width * 1e-6 <= tick <= high + width * 1e-6 for tick in ticks)


@given(st.floats(1e-6, 1e9), st.floats(10, 1e9), st.sampled_from([LOG, SIZES]))
def test_log_ticks(low: float, ratio: float, base: int) -> None:
    ticks = log_ticks(low, low * ratio, base)
    assert 1 <= len(ticks) <= 8
    assert ticks == sorted(ticks)


def test_plot_draws_to_scale_and_leaves_gaps() -> None:
    plot = Plot("t", Axis("x", 0, 10), Axis("y", 1, 100, LOG))
    plot.line([(0, 1), (5, 10), (6, None), (10, 100)], "a", "h")
    bottom, middle = HEIGHT - BOTTOM, (TOP + HEIGHT - BOTTOM) / 2
    centre = (LEFT + WIDTH - RIGHT) / 2
    (line,) = paths(Tree(plot.svg()).root, "a")
    assert corners(line) == [(LEFT, bottom), (centre, middle), (WIDTH - RIGHT, TOP),
                             (WIDTH - RIGHT, TOP)]
    assert line.count("M") == 2


def test_a_long_line_keeps_its_extremes_and_stays_small() -> None:
    plot = Plot("t", Axis("x", 0, 20000), Axis("y", 0, 100))
    odd = {12345: 100.0, 15432: 0.0}
    plot.line([(at, odd.get(at, 50.0 + at % 7)) for at in range(20000)], "a", "h")
    (line,) = paths(Tree(plot.svg()).root, "a")
    ups = [y for _, y in corners(line)]
    assert (min(ups), max(ups)) == pytest.approx((TOP, HEIGHT - BOTTOM), abs=0.06)
    assert len(line) < 12000
