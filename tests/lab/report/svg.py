# SPDX-License-Identifier: GPL-2.0-or-later
"""Plots as inline SVG: axes, lines, steps, points and spans, and no more than that.

Own code and not a library: the colours have to come from the page's style sheet
(light, dark and paper share one drawing), a line can be switched on and off by its
class, and a plot has to stay a few kB where a report holds hundreds of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Callable, List, Optional, Sequence, Tuple

from .text import escape, number

Point = Tuple[float, Optional[float]]
Format = Callable[[Optional[float]], str]

WIDTH, HEIGHT = 460, 260
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 28, 36
LETTER = 6.3  # how wide one is on average, generously: fonts differ


def coordinate(value: float) -> str:
    """A tenth of a pixel is finer than anybody sees; every digit counts in a page of lines."""
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text


def linear_ticks(low: float, high: float, most: int = 6) -> List[float]:
    """Multiples of 1, 2 or 5 times a power of ten, inside of the range."""
    if not high > low:
        return [low]
    step = 10.0 ** math.floor(math.log10((high - low) / most))
    while (high - low) / step > most:
        # 1, 2, 5, 10: each the next that is easy to read.
        step *= 2.5 if f"{step:e}".startswith("2") else 2
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def log_ticks(low: float, high: float, base: int = 10) -> List[float]:
    """Powers of the base, at most seven; of ten also twos and fives where there are few."""
    wide = math.log(high / low, base)
    factors = (1, 2, 5) if base == 10 and wide < 2.5 else (1,)
    every = max(1, math.ceil(wide / 6))
    first, last = math.floor(math.log(low, base)) - 1, math.ceil(math.log(high, base))
    ticks = [factor * float(base) ** power for power in range(first, last + 1)
             if power % every == 0 for factor in factors]
    return [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]


LINEAR, LOG, SIZES = 0, 10, 2  # an axis' base; SIZES is for bytes, which come in powers of two


@dataclass(frozen=True)
class Axis:
    label: str
    low: float
    high: float
    base: int = LINEAR
    words: Format = number

    def share(self, value: float) -> float:
        """Where on the axis, 0 to 1; what lies outside is drawn at the edge."""
        if self.base:
            value = max(value, self.low)
            place = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            place = (value - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, place))

    def ticks(self) -> List[float]:
        if self.base:
            return log_ticks(self.low, self.high, self.base)
        return linear_ticks(self.low, self.high)


def axis(label: str, values: Sequence[Optional[float]], base: int = LINEAR,
         words: Format = number, floor: Optional[float] = None) -> Axis:
    """An axis that holds all values, from zero when linear; a log one begins at floor or above."""
    there = [value for value in values if value is not None and (value > 0 or not base)]
    if not base:
        high = max(there, default=1.0)
        return Axis(label, 0.0, high * 1.06 if high > 0 else 1.0, base, words)
    low, high = min(there, default=1.0), max(there, default=10.0)
    if floor is not None:
        low, high = max(low, floor), max(high, floor * 10)
    if high / low < 10:  # a flat line is not to fill the plot with its noise
        low, high = low / 2, high * 2
    return Axis(label, low / 1.15, high * 1.15, base, words)


class Plot:
    """One drawing; what is drawn first lies below."""

    def __init__(self, title: str, x: Axis, y: Axis, width: int = WIDTH,
                 height: int = HEIGHT) -> None:
        self.title = title
        self.x, self.y = x, y
        self.width, self.height = width, height
        self._parts: List[str] = []
        self._boxes: List[Tuple[float, float, float, float]] = []  # where text is already

    def at_x(self, value: float) -> float:
        return LEFT + self.x.share(value) * (self.width - LEFT - RIGHT)

    def at_y(self, value: float) -> float:
        return self.height - BOTTOM - self.y.share(value) * (self.height - TOP - BOTTOM)

    def span(self, start: float, end: float, style: str, hover: str) -> None:
        """A stretch of the x axis, over the full height."""
        left, right = self.at_x(start), self.at_x(end)
        self._parts.append(
            f'<rect class="{style}" x="{coordinate(left)}" y="{TOP}" '
            f'width="{coordinate(right - left)}" height="{self.height - TOP - BOTTOM}">'
            f"<title>{escape(hover)}</title></rect>")

    def strip(self, start: float, end: float, row: int, words: str, style: str) -> None:
        """A stretch of the x axis with its name, in one of the rows at the plot's foot."""
        left, right = self.at_x(start), self.at_x(end)
        top = self.height - BOTTOM - 13 * (row + 1)
        inside = (f'<text x="{coordinate(left + 3)}" y="{coordinate(top + 9.5)}">{escape(words)}'
                  "</text>" if right - left > LETTER * len(words) + 6 else "")
        self._parts.append(
            f'<g class="strip {style}"><rect x="{coordinate(left)}" y="{coordinate(top)}" '
            f'width="{coordinate(right - left)}" height="12"/>{inside}'
            f"<title>{escape(words)}</title></g>")

    def mark(self, value: float, label: str, hover: str) -> None:
        """A vertical line with a short label at its head."""
        place = coordinate(self.at_x(value))
        self._parts.append(
            f'<g class="event"><path d="M{place} {TOP}V{self.height - BOTTOM}"/>'
            f'<text x="{place}" y="{TOP - 3}">{escape(label)}</text>'
            f"<title>{escape(hover)}</title></g>")

    def rule(self, value: float, style: str, hover: str) -> None:
        """A horizontal line."""
        place = coordinate(self.at_y(value))
        self._parts.append(f'<path class="{style}" d="M{LEFT} {place}H{self.width - RIGHT}">'
                           f"<title>{escape(hover)}</title></path>")

    def line(self, points: Sequence[Point], style: str, hover: str, step: bool = False) -> None:
        """A gap where a value is None. Every pixel column keeps its lowest and highest value."""
        drawn: List[str] = []
        for piece in _pieces(points):
            places = _thin([(self.at_x(x), self.at_y(y)) for x, y in piece])
            if len(places) == 1:  # one sample between gaps: a dot, by the line's round cap
                places = [places[0], places[0]]
            # Steps from point to point, in tenths: half as long as where the points are.
            tenths = [(round(10 * x), round(10 * y)) for x, y in places]
            drawn.append(f"M{coordinate(places[0][0])} {coordinate(places[0][1])}")
            drawn.append("" if step else "l")
            for (left, above), (x, y) in zip(tenths, tenths[1:]):
                across, down = _short(x - left), _short(y - above)
                if step:
                    drawn.append(f"h{across}" + (f"v{down}" if y != above else ""))
                else:
                    drawn.append(("" if drawn[-1] == "l" or x < left else " ") + across
                                 + ("" if y < above else " ") + down)
        if drawn:
            self._parts.append(f'<path class="l {style}" d="{"".join(drawn)}">'
                               f"<title>{escape(hover)}</title></path>")

    def point(self, x: float, y: float, style: str, hover: str, radius: float = 4) -> None:
        self._parts.append(
            f'<circle class="p {style}" cx="{coordinate(self.at_x(x))}" '
            f'cy="{coordinate(self.at_y(y))}" r="{radius}"><title>{escape(hover)}</title></circle>')
        self._boxes.append((self.at_x(x) - radius, self.at_y(y) - radius,
                            self.at_x(x) + radius, self.at_y(y) + radius))

    def label(self, x: float, y: float, text: str, style: str, needed: bool = True) -> None:
        """Text beside a point, on the side where it covers least.

        One that is not needed is left out where it would cover something.
        """
        across, down, long = self.at_x(x), self.at_y(y), LETTER * len(text)
        places = [(across + 7, down + 4, "start"), (across - 7, down + 4, "end"),
                  (across, down - 8, "middle"), (across, down + 16, "middle"),
                  (across + 6, down - 7, "start"), (across + 6, down + 15, "start"),
                  (across - 6, down - 7, "end"), (across - 6, down + 15, "end"),
                  (across + 6, down - 19, "start"), (across - 6, down + 27, "end")]
        best, least = places[0], math.inf
        for place in places:
            covered = self._covered(_box(place, long))
            if covered < least:
                best, least = place, covered
        if least > 0 and not needed:
            return
        self._boxes.append(_box(best, long))
        self._parts.append(f'<text class="{style}" x="{coordinate(best[0])}" '
                           f'y="{coordinate(best[1])}" text-anchor="{best[2]}">'
                           f"{escape(text)}</text>")

    def _covered(self, box: Tuple[float, float, float, float]) -> float:
        left, top, right, bottom = box
        outside = (max(0.0, LEFT - left) + max(0.0, right - self.width)
                   + max(0.0, TOP - top) + max(0.0, bottom - (self.height - BOTTOM)))
        return 50 * outside + sum(
            max(0.0, min(right, other[2]) - max(left, other[0]))
            * max(0.0, min(bottom, other[3]) - max(top, other[1])) for other in self._boxes)

    def _axes(self) -> str:
        right, bottom = self.width - RIGHT, self.height - BOTTOM
        grid, below, beside = "", "", ""
        for tick in self.x.ticks():
            place = coordinate(self.at_x(tick))
            grid += f"M{place} {TOP}V{bottom}"
            below += f'<text x="{place}" y="{bottom + 14}">{escape(self.x.words(tick))}</text>'
        for tick in self.y.ticks():
            down = self.at_y(tick)
            grid += f"M{LEFT} {coordinate(down)}H{right}"
            beside += (f'<text x="{LEFT - 5}" y="{coordinate(down + 3.5)}">'
                       f"{escape(self.y.words(tick))}</text>")
        return (f'<path class="grid" d="{grid}"/>'
                f'<path class="axis" d="M{LEFT} {TOP}V{bottom}H{right}"/>'
                f'<g class="below">{below}<text x="{(LEFT + right) / 2:g}" y="{self.height - 6}">'
                f'{escape(self.x.label)}</text></g><g class="beside">{beside}</g>')

    def svg(self) -> str:
        """The drawing, with its title above and what y is in it."""
        label = f", {self.y.label}" if self.y.label else ""
        return (f'<svg viewBox="0 0 {self.width} {self.height}" role="img" '
                f'aria-label="{escape(self.title + label)}">{self._axes()}'
                f'{"".join(self._parts)}<text class="title" x="{LEFT - 50}" y="13">'
                f'{escape(self.title)}<tspan class="unit">{escape(label)}</tspan></text></svg>')


def _box(place: Tuple[float, float, str], long: float) -> Tuple[float, float, float, float]:
    across, down, anchor = place
    left = across - {"start": 0.0, "middle": long / 2, "end": long}[anchor]
    return left, down - 10, left + long, down + 2


def _short(tenths: int) -> str:
    """A tenth of it, in as few characters as a path's data allows: -.5, 12, 3.4."""
    text = coordinate(tenths / 10)
    return text.replace("0.", ".", 1) if abs(tenths) < 10 and tenths % 10 else text


def _pieces(points: Sequence[Point]) -> List[List[Tuple[float, float]]]:
    pieces: List[List[Tuple[float, float]]] = [[]]
    for x, y in points:
        if y is not None:
            pieces[-1].append((x, y))
        elif pieces[-1]:
            pieces.append([])
    return [piece for piece in pieces if piece]


def _thin(places: List[Tuple[float, float]]) -> List[Tuple[float, float]]:
    """Without the middle of level stretches, and four points at most in two pixel columns."""
    columns: List[List[Tuple[float, float]]] = []
    for place in places:
        if columns and int(columns[-1][0][0] / 2) == int(place[0] / 2):
            columns[-1].append(place)
        else:
            columns.append([place])
    kept: List[Tuple[float, float]] = []
    for column in columns:
        keep = {0, len(column) - 1, min(range(len(column)), key=lambda at: column[at][1]),
                max(range(len(column)), key=lambda at: column[at][1])}
        kept += [column[at] for at in sorted(keep)]
    return [place for at, place in enumerate(kept)
            if not 0 < at < len(kept) - 1
            or not kept[at - 1][1] == place[1] == kept[at + 1][1]]
