# SPDX-License-Identifier: GPL-2.0-or-later
"""Panels of one device above one time axis, as SVG that needs no script. Pure."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from html import escape as html_escape
from typing import Callable, List, Optional, Sequence, Tuple

from writebackd import human
from writebackd.report.figures import Figures, fold

WIDTH, LEFT, RIGHT = 960.0, 62.0, 22.0
PANEL, GAP = 104.0, 34.0
BAND = 15.0  # height of a row of states or alerts
# More would be thinner than two pixels.
BINS = 300
THIN = "\u202f"  # the gap in 12 345, which Python calls not printable
# Room for one label of the time axis.
_LABEL = 74.0
_STEPS_S = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200,
    86400, 2 * 86400, 7 * 86400, 14 * 86400,
)  # fmt: skip


def escape(text: str) -> str:
    """Text for HTML and SVG: what no browser shows becomes visible."""
    shown = "".join(each if each.isprintable() or each == THIN else "\ufffd" for each in text)
    return html_escape(shown.encode("utf-8", "backslashreplace").decode(), quote=True)


@dataclass(frozen=True)
class Bin:
    """What is drawn as one step; its ends are those of the rows in it, gaps included."""

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
    label: Callable[[float], str]
    base: float = 0.0  # of a logarithmic axis: ticks a factor of so much apart; 0: linear
    unit: float = 1.0  # a value that is a tick
    top: Optional[float] = None  # of the axis; None: as the data have it


@dataclass(frozen=True)
class Mark:
    """A stretch of time with a word; for a moment both ends are the same."""

    begin_s: float
    end_s: float
    style: str
    text: str


def _bytes(value: float) -> str:
    return human.size(value)


def _rate(value: float) -> str:
    return f"{human.size(value)}/s"


def _latency(value: float) -> str:
    return f"{human.milliseconds(value)} ms" if value < 0.995 else f"{value:g} s"


def _share(value: float) -> str:
    return human.percent(value)


PANELS = (
    Panel(
        "dirty limit",
        (
            Line("as found", "found", lambda row: row.found_bytes),
            Line("this device's target", "target", lambda row: row.target_bytes),
            Line("in force", "one", lambda row: row.limit_bytes),
        ),
        _bytes,
        base=16.0,
        unit=float(1 << 20),
    ),
    Panel(
        "fsync",
        (
            Line("objective", "found", lambda row: row.objective_s),
            Line("p99", "two", lambda row: row.latency.quantile(0.99)),
            Line("p50", "one", lambda row: row.latency.quantile(0.5)),
        ),
        _latency,
        base=10.0,
    ),
    Panel(
        "bytes per second",
        (
            Line("drained, sustained", "three", lambda row: row.drain_rate),
            Line("written", "one", lambda row: row.write_rate),
        ),
        _rate,
    ),
    Panel(
        "write cache, full to",
        (Line("estimate", "one", lambda row: row.fill_share),),
        _share,
        top=1.0,
    ),
)

_SOLID = "\u2501"
_KEYS = {"found": "\u254d", "target": "\u2509"}  # dashed and dotted, as the lines are


def bins(rows: Sequence[Figures], begin_s: float, end_s: float) -> List[Bin]:
    """Rows of one device, folded so that each can be seen."""
    width_s = max((end_s - begin_s) / BINS, 1e-3)
    found: List[Bin] = []
    together: List[Figures] = []
    for row in rows:
        if together and int((row.wall_s - begin_s) / width_s) != int(
            (together[0].wall_s - begin_s) / width_s
        ):
            found.append(Bin(together[0].wall_s, together[-1].end_s, fold(together)))
            together = []
        together.append(row)
    if together:
        found.append(Bin(together[0].wall_s, together[-1].end_s, fold(together)))
    return found


def device_plot(
    name: str,
    drawn: Sequence[Bin],
    states: Sequence[Mark],
    alerts: Sequence[Mark],
    moments: Sequence[Mark],
    begin_s: float,
    end_s: float,
    bands: Tuple[str, str] = ("the agent's state", "alerts"),
) -> str:
    """The panels for which there are data, the states, the alerts, and the time below.

    `bands` is what the last two are called, where they show something else.
    """
    panels = [
        panel
        for panel in PANELS
        if any(line.value(each.figures) is not None for line in panel.lines for each in drawn)
    ]
    scale = _Time(begin_s, end_s)
    bottom = 20.0 + len(panels) * (PANEL + GAP)
    height = bottom + 2 * (BAND + 20.0) + 22.0
    parts = [_shades(alerts, scale, height - 30.0)]
    top = 20.0
    for panel in panels:
        parts.append(_panel(panel, drawn, scale, top))
        top += PANEL + GAP
    parts.append(_band(bands[0], states, scale, top))
    top += BAND + 20.0
    parts.append(_band(bands[1], alerts, scale, top))
    top += BAND
    parts.append(_moments(moments, scale, top))
    parts.append(_axis(scale, top))
    parts.append(_hover(panels, drawn, scale, top))
    return (
        f'<svg viewBox="0 0 {WIDTH:.0f} {height:.0f}" role="img"'
        f' aria-label="{escape(name)}: figures over time">{"".join(parts)}</svg>'
    )


class _Time:
    def __init__(self, begin_s: float, end_s: float) -> None:
        self.begin_s, self.end_s = begin_s, max(end_s, begin_s + 1.0)

    def __call__(self, at_s: float) -> float:
        share = (at_s - self.begin_s) / (self.end_s - self.begin_s)
        return LEFT + min(1.0, max(0.0, share)) * (WIDTH - LEFT - RIGHT)


class _Values:
    """From a value to its height in a panel."""

    def __init__(self, panel: Panel, values: Sequence[float], top: float) -> None:
        self._top, self._base = top, panel.base
        if panel.base:
            there = [value / panel.unit for value in values if value > 0] or [1.0]
            first = math.floor(math.log(min(there), panel.base) + 1e-9)
            last = max(first + 1, math.ceil(math.log(max(there), panel.base) - 1e-9))
            self._ticks = [panel.unit * panel.base**power for power in range(first, last + 1)]
        else:
            high = panel.top or _nice(max(values, default=1.0) or 1.0)
            self._ticks = [0.0, high / 2, high]
        self.low, self.high = self._ticks[0], self._ticks[-1]

    def __call__(self, value: float) -> float:
        if self._base:
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            share = value / self.high
        return self._top + PANEL * (1.0 - min(1.0, max(0.0, share)))

    def ticks(self) -> List[float]:
        """Those to draw: so many that their labels have room."""
        return self._ticks[:: max(1, math.ceil((len(self._ticks) - 1) / 5))]


def _nice(value: float) -> float:
    unit = 1024.0 ** max(0, math.floor(math.log(max(value, 1.0), 1024)))
    for step in (1, 2, 4, 10, 20, 40, 100, 200, 300, 400, 600, 800, 1024):
        if value <= step * unit:
            return step * unit
    return value


def _panel(panel: Panel, drawn: Sequence[Bin], scale: _Time, top: float) -> str:
    lines = [
        (line, [(each, line.value(each.figures)) for each in drawn]) for line in panel.lines
    ]
    lines = [(line, points) for line, points in lines if any(v is not None for _, v in points)]
    values = [value for _, points in lines for _, value in points if value is not None]
    height = _Values(panel, values, top)
    parts = [f'<text class="title" x="{LEFT:.0f}" y="{top - 9:.1f}">{escape(panel.title)}</text>']
    # One text for all of them: only the browser knows how long they are.
    keys = "".join(
        f'<tspan class="{line.style}" dx="14">{_KEYS.get(line.style, _SOLID)}</tspan>'
        f'<tspan dx="4">{escape(line.name)}</tspan>'
        for line, _ in lines
    )
    parts.append(
        f'<text class="keys" text-anchor="end" x="{WIDTH - RIGHT:.0f}" y="{top - 9:.1f}">{keys}'
        "</text>"
    )
    for tick in height.ticks():
        y = height(tick)
        parts.append(f'<path class="grid" d="M{LEFT:.0f} {y:.1f}H{WIDTH - RIGHT:.0f}"/>')
        parts.append(
            f'<text class="tick" text-anchor="end" x="{LEFT - 6:.0f}" y="{y + 4:.1f}">'
            f"{escape(panel.label(tick))}</text>"
        )
    for line, points in lines:
        parts.append(f'<path class="line {line.style}" d="{_steps(points, scale, height)}"/>')
    return "".join(parts)


def _steps(
    points: Sequence[Tuple[Bin, Optional[float]]], scale: _Time, height: _Values
) -> str:
    """A line of steps; broken where there is nothing to say for longer than a step."""
    text: List[str] = []
    end_s: Optional[float] = None
    for each, value in points:
        if value is None:
            end_s = None
            continue
        y = height(value)
        apart_s = 1.5 * (each.end_s - each.begin_s)
        if end_s is None or each.begin_s - end_s > apart_s:
            text.append(f"M{scale(each.begin_s):.1f} {y:.1f}")
        else:
            text.append(f"H{scale(each.begin_s):.1f}V{y:.1f}")
        text.append(f"H{scale(each.end_s):.1f}")
        end_s = each.end_s
    return "".join(text)


def _band(title: str, marks: Sequence[Mark], scale: _Time, top: float) -> str:
    parts = [f'<text class="title" x="{LEFT:.0f}" y="{top - 5:.1f}">{escape(title)}</text>']
    parts.append(
        f'<rect class="empty" x="{LEFT:.0f}" y="{top:.1f}" width="{WIDTH - LEFT - RIGHT:.0f}"'
        f' height="{BAND:.0f}"/>'
    )
    for mark in marks:
        x, end = scale(mark.begin_s), scale(mark.end_s)
        # A mark that was short is still there to be seen.
        parts.append(
            f'<rect class="mark {mark.style}" x="{x:.1f}" y="{top:.1f}"'
            f' width="{max(1.5, end - x):.1f}" height="{BAND:.0f}">'
            f"<title>{escape(mark.text)}</title></rect>"
        )
        word = mark.text.split(" ", 1)[0].rstrip(":")
        if end - x > 7.5 * len(word) + 6:
            parts.append(
                f'<text class="word {mark.style}" x="{x + 4:.1f}" y="{top + 11:.1f}">'
                f"{escape(word)}</text>"
            )
    return "".join(parts)


def _shades(alerts: Sequence[Mark], scale: _Time, bottom: float) -> str:
    """Behind all panels, so that one sees what went on while an alert stood."""
    return "".join(
        f'<rect class="shade {mark.style}" x="{scale(mark.begin_s):.1f}" y="12"'
        f' width="{max(1.5, scale(mark.end_s) - scale(mark.begin_s)):.1f}"'
        f' height="{bottom - 12:.1f}"/>'
        for mark in alerts
    )


def _moments(moments: Sequence[Mark], scale: _Time, bottom: float) -> str:
    return "".join(
        f'<path class="moment" d="M{scale(mark.begin_s):.1f} 12V{bottom:.1f}">'
        f"<title>{escape(mark.text)}</title></path>"
        for mark in moments
    )


def _axis(scale: _Time, top: float) -> str:
    span_s = scale.end_s - scale.begin_s
    most = (WIDTH - LEFT - RIGHT) / _LABEL
    longest_s = _STEPS_S[-1] * math.ceil(span_s / most / _STEPS_S[-1])  # for years, or a slip
    step_s = next((step for step in _STEPS_S if span_s / step <= most), longest_s)
    shown = "%H:%M:%S" if step_s < 60 else "%H:%M" if step_s < 86400 else "%m-%d"
    # On the hour and at midnight as the clock on the wall has it.
    offset_s = time.localtime(scale.begin_s).tm_gmtoff
    at_s = math.ceil((scale.begin_s + offset_s) / step_s) * step_s - offset_s
    parts = [f'<path class="axis" d="M{LEFT:.0f} {top:.1f}H{WIDTH - RIGHT:.0f}"/>']
    while at_s <= scale.end_s:
        x = scale(at_s)
        local = time.localtime(at_s)
        midnight = step_s < 86400 and not (local.tm_hour or local.tm_min or local.tm_sec)
        label = time.strftime("%m-%d" if midnight else shown, local)
        parts.append(f'<path class="axis" d="M{x:.1f} {top:.1f}v5"/>')
        parts.append(
            f'<text class="tick" text-anchor="middle" x="{x:.1f}" y="{top + 18:.1f}">{label}</text>'
        )
        at_s += step_s
    return "".join(parts)


def _hover(panels: Sequence[Panel], drawn: Sequence[Bin], scale: _Time, bottom: float) -> str:
    """What the figures are, for the pointer: no script is needed for that."""
    parts = []
    for each in drawn:
        said = [
            f"{panel.title}, {line.name}: {panel.label(value)}"
            for panel in panels
            for line in panel.lines
            for value in [line.value(each.figures)]
            if value is not None
        ]
        when = time.strftime("%m-%d %H:%M:%S", time.localtime(each.begin_s))
        said.insert(0, f"{when}, {human.duration(each.end_s - each.begin_s)}")
        text = "&#10;".join(map(escape, said))
        x = scale(each.begin_s)
        parts.append(
            f'<rect class="hover" x="{x:.1f}" y="12" width="{max(1.5, scale(each.end_s) - x):.1f}"'
            f' height="{len(panels) * (PANEL + GAP) - GAP:.0f}">'
            f"<title>{text}</title></rect>"
        )
    return "".join(parts)
