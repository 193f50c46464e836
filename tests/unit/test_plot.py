# SPDX-License-Identifier: GPL-2.0-or-later
"""Axes and lines of all pages: true to scale, with gaps, and small."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from html_tree import Tree, corners, paths
from tests.lab.report.drawing import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Plot
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


def test_labels_do_not_cover_each_other() -> None:
    plot = Plot("t", Axis("x", 0, 1), Axis("y", 0, 1))
    for at in range(3):
        plot.point(0.5, 0.5 + at / 1000, "p", "h")
        plot.label(0.5, 0.5 + at / 1000, f"label {at}", "n")
    plot.label(0.5, 0.5, "a peer with a name too long to be put anywhere" * 2, "n", needed=False)
    boxes = []
    for label in Tree(plot.svg()).root.all("text", "n"):
        x, y, anchor = (label.attrs[key] for key in ("x", "y", "text-anchor"))
        left = float(x) - {"start": 0, "middle": 3, "end": 6}[anchor] * len(label.own)
        boxes.append((left, left + 6 * len(label.own), float(y) - 10, float(y)))
    assert len(boxes) == 3
    for at, one in enumerate(boxes):
        for other in boxes[at + 1:]:
            assert (one[1] <= other[0] or other[1] <= one[0] or one[3] <= other[2]
                    or other[3] <= one[2])


# Figures out of a run.
