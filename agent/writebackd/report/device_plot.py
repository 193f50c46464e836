# SPDX-License-Identifier: GPL-2.0-or-later
"""One device's figures as panels above one time axis: limit, commits, rates, cache. Pure."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from itertools import groupby
from typing import Callable, List, Optional, Sequence, Tuple

from writebackd import formats
from writebackd.report.device_figures import Figures, fold
from writebackd.report.plot import LINEAR, LOG, SIZES, Axis, Frame, Point, Words, axis, escape

WIDTH, LEFT, RIGHT = 960.0, 62.0, 22.0
PANEL, GAP = 104.0, 34.0
BAND = 15.0  # height of a row of states or alerts
# More would be thinner than two pixels.
BINS = 300
# Room for one label of the time axis.
_LABEL = 74.0
_STEPS_S = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200,
    86400, 2 * 86400, 7 * 86400, 14 * 86400,
)  # fmt: skip


@dataclass(frozen=True)
class Bin:
    """One step of the plot; it begins and ends with its rows, gaps included."""

    begin_s: float
    end_s: float
    figures: Figures


@dataclass(frozen=True)
class Line:
    name: str
    style: str  # a class of the style sheet
    value: Callable[[Figures], Optional[float]]


@dataclass(frozen=True)
class Panel:
    title: str
    lines: Tuple[Line, ...]
    words: Words
    base: int = LINEAR
    top: Optional[float] = None  # of the axis; None: as the data have it


@dataclass(frozen=True)
class Mark:
    """A labelled period of time; a moment begins and ends at the same time."""

    begin_s: float
    end_s: float
    style: str
    text: str


def _rate(value: float) -> str:
    return f"{formats.size(value)}/s"


def _latency(value: float) -> str:
    return f"{formats.milliseconds(value)} ms" if value < 0.995 else f"{value:g} s"


PANELS = (
    Panel(
        "dirty limit",
        (
            Line("as found", "found", lambda row: row.found_bytes),
            Line("this device's target", "target", lambda row: row.target_bytes),
            Line("in force", "one", lambda row: row.limit_bytes),
        ),
        formats.size,
        SIZES,
    ),
    Panel(
        "commit",
        (
            Line("objective for p99", "found", lambda row: row.objective_s),
            Line("p99", "two", lambda row: row.commit_latency.quantile(0.99)),
            Line("p50", "one", lambda row: row.commit_latency.quantile(0.5)),
        ),
        _latency,
        LOG,
    ),
    Panel(
        "bytes per second",
        (
            Line("drain rate, sustained", "three", lambda row: row.drain_rate),
            Line("written", "one", lambda row: row.write_rate),
        ),
        _rate,
    ),
    Panel(
        "write cache, full to",
        (Line("estimate", "one", lambda row: row.fill_share),),
        formats.percent,
        top=1.0,
    ),
)

_SOLID = "\u2501"
_KEYS = {"found": "\u254d", "target": "\u2509"}  # dashed and dotted, as the lines are
_YES = Axis("", 0.0, 1.0, at=())  # the y axis of what fills its height


def bins(rows: Sequence[Figures], begin_s: float, end_s: float) -> List[Bin]:
    """The rows of one device, combined so that each step is wide enough to see."""
    width_s = max((end_s - begin_s) / BINS, 1e-3)
    together = [
        list(group) for _, group in groupby(rows, lambda row: int((row.wall_s - begin_s) / width_s))
    ]
    return [Bin(group[0].wall_s, group[-1].end_s, fold(group)) for group in together]


def device_plot(
    name: str,
    drawn: Sequence[Bin],
    states: Sequence[Mark],
    alerts: Sequence[Mark],
    moments: Sequence[Mark],
    begin_s: float,
    end_s: float,
    bands: Tuple[str, str] = ("state of writebackd", "alerts"),
) -> str:
    """The panels that have data, the states, the alerts, and the time axis.

    `bands` is what the last two are called, where they show something else.
    """
    across = _time_axis(begin_s, max(end_s, begin_s + 1.0))
    panels = [
        panel
        for panel in PANELS
        if any(line.value(each.figures) is not None for line in panel.lines for each in drawn)
    ]
    top = 20.0
    bottom = top + len(panels) * (PANEL + GAP) + 2 * BAND + 20.0
    whole = Frame(across, _YES, LEFT, 12.0, WIDTH - RIGHT, bottom)
    # Behind all panels, to show them while an alert was active.
    for mark in alerts:
        whole.span(mark.begin_s, mark.end_s, f"shade {mark.style}")
    for panel in panels:
        whole.parts += _panel(panel, drawn, across, top)
        top += PANEL + GAP
    for title, marks in zip(bands, (states, alerts)):
        band = Frame(across, _YES, LEFT, top, WIDTH - RIGHT, top + BAND)
        band.span(across.low, across.high, "empty")
        for mark in marks:
            word = mark.text.split(" ", 1)[0].rstrip(":")
            band.span(mark.begin_s, mark.end_s, f"mark {mark.style}", mark.text, word)
        whole.parts += [_title(title, top - 5.0), *band.parts]
        top += BAND + 20.0
    for mark in moments:
        whole.mark(mark.begin_s, "moment", mark.text)
    parts = [*whole.parts, whole.below(), *_hovers(panels, drawn, across)]
    return (
        f'<svg viewBox="0 0 {WIDTH:.0f} {bottom + 22.0:.0f}" role="img"'
        f' aria-label="{escape(name)}: figures over time">{"".join(parts)}</svg>'
    )


def _title(text: str, y: float) -> str:
    return f'<text class="title" x="{LEFT:.0f}" y="{y:.1f}">{escape(text)}</text>'


def _panel(panel: Panel, drawn: Sequence[Bin], across: Axis, top: float) -> List[str]:
    lines = [(line, _points(line, drawn)) for line in panel.lines]
    lines = [(line, points) for line, points in lines if points]
    values = [value for _, points in lines for _, value in points if value is not None]
    frame = Frame(across, _values(panel, values), LEFT, top, WIDTH - RIGHT, top + PANEL)
    for line, points in lines:
        frame.line(points, line.style, f"{panel.title}: {line.name}", step=True)
    # One text for all of them: only the browser knows how long they are.
    keys = "".join(
        f'<tspan class="{line.style}" dx="14">{_KEYS.get(line.style, _SOLID)}</tspan>'
        f'<tspan dx="4">{escape(line.name)}</tspan>'
        for line, _ in lines
    )
    return [
        _title(panel.title, top - 9.0),
        f'<text class="keys" text-anchor="end" x="{WIDTH - RIGHT:.0f}" y="{top - 9:.1f}">{keys}'
        "</text>",
        frame.grid(),
        frame.beside(),
        *frame.parts,
    ]


def _points(line: Line, drawn: Sequence[Bin]) -> List[Point]:
    """Steps, with a gap where data are missing for longer than a step."""
    points: List[Point] = []
    end_s = last = 0.0
    for each in drawn:
        value = line.value(each.figures)
        apart = each.begin_s - end_s > 1.5 * (each.end_s - each.begin_s)
        if points and points[-1][1] is not None and (value is None or apart):
            points += [(end_s, last), (end_s, None)]
        if value is not None:
            points.append((each.begin_s, value))
            end_s, last = each.end_s, value
    if points and points[-1][1] is not None:
        points.append((end_s, last))
    return points


def _values(panel: Panel, values: Sequence[float]) -> Axis:
    if panel.top is not None:
        return Axis("", 0.0, panel.top, words=panel.words)
    # Rates are read in 1024-based units.
    unit = 1024.0 ** max(0, math.floor(math.log(max([1.0, *values]), 1024)))
    return axis("", values, panel.base, panel.words, unit=unit)


def _time_axis(begin_s: float, end_s: float) -> Axis:
    most = (WIDTH - LEFT - RIGHT) / _LABEL
    longest_s = _STEPS_S[-1] * math.ceil((end_s - begin_s) / most / _STEPS_S[-1])  # for years
    step_s = next((step for step in _STEPS_S if (end_s - begin_s) / step <= most), longest_s)
    shown = "%H:%M:%S" if step_s < 60 else "%H:%M" if step_s < 86400 else "%m-%d"
    # On the hour and at midnight as the clock on the wall has it.
    offset_s = time.localtime(begin_s).tm_gmtoff
    first_s = math.ceil((begin_s + offset_s) / step_s) * step_s - offset_s
    ticks = tuple(first_s + step_s * n for n in range(int((end_s - first_s) // step_s) + 1))

    def words(at_s: float) -> str:
        local = time.localtime(at_s)
        midnight = step_s < 86400 and not (local.tm_hour or local.tm_min or local.tm_sec)
        return time.strftime("%m-%d" if midnight else shown, local)

    return Axis("", begin_s, end_s, words=words, at=ticks)


def _hovers(panels: Sequence[Panel], drawn: Sequence[Bin], across: Axis) -> List[str]:
    """The figures as tooltips, without a script."""
    bottom = 12.0 + len(panels) * (PANEL + GAP) - GAP
    frame = Frame(across, _YES, LEFT, 12.0, WIDTH - RIGHT, bottom)
    for each in drawn:
        when = time.strftime("%m-%d %H:%M:%S", time.localtime(each.begin_s))
        lines = [f"{when}, {formats.duration(each.end_s - each.begin_s)}"] + [
            f"{panel.title}, {line.name}: {panel.words(value)}"
            for panel in panels
            for line in panel.lines
            for value in [line.value(each.figures)]
            if value is not None
        ]
        frame.span(each.begin_s, each.end_s, "hover", "\n".join(lines))
    return frame.parts
