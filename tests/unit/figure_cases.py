# SPDX-License-Identifier: GPL-2.0-or-later
"""Rows of figures of a flooded device, for what is made of them."""

from __future__ import annotations

from dataclasses import replace
from typing import List

from writebackd.report.device_figures import Figures
from writebackd.report.timeline import Span
from writebackd.types.histogram import Histogram

BEGIN_S = 1_700_000_000.0
FAST = Histogram(((72, 990), (80, 10)))  # 0.5 ms, 1 ms
SLOW = Histogram(((140, 500), (150, 500)))  # 250 ms, 600 ms
ABOUT = Span("host", "1.0", BEGIN_S, BEGIN_S + 3600.0, BEGIN_S + 3600.0)
EVIL = "<script>alert('x')</script>\"&\x1b[2J\udcff"


def row(at_s: float, **more: object) -> Figures:
    plain = Figures(
        BEGIN_S + at_s, 10.0, "sda", 4 << 20, 4.7e9, 2.4e8, flooded_s=10.0, ours_s=10.0,
        drain_rate=2.5e8, objective_s=0.02, latency=FAST,
    )  # fmt: skip
    return replace(plain, **more)  # type: ignore[arg-type]


def rows(count: int, **more: object) -> List[Figures]:
    return [row(10.0 * number, **more) for number in range(count)]


def days(begin_s: float) -> List[Figures]:
    """Five minutes of a flood on each of three days, which is enough to recommend a limit."""
    return [
        row(0.0, wall_s=begin_s + 86_400.0 * day, span_s=300.0, flooded_s=300.0, ours_s=300.0)
        for day in range(3)
    ]  # fmt: skip
