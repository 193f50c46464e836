# SPDX-License-Identifier: GPL-2.0-or-later
"""Plots panels of one device over a common time axis as SVG.  Pure.

Not from a library: the colours come from the page's style sheet (light, dark and
paper share one drawing), and a plot must be only a few kB, as a page holds hundreds
of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape as html_escape
from typing import Callable, List, Optional, Sequence, Tuple

Point = Tuple[float, Optional[float]]
Words = Callable[[float], str]

LINEAR, LOG, SIZES = 0, 10, 2  # an axis' base; SIZES is for bytes, which come in powers of two
LETTER = 6.3  # how wide one is on average, generously: fonts differ
THIN = "\u202f"  # the gap in 12 345, which Python calls not printable


def escape(text: str) -> str:
    """Text for HTML and SVG; characters that no browser shows become visible."""
    shown = "".join(each if each.isprintable() or each == THIN else "\ufffd" for each in text)
    return html_escape(shown.encode("utf-8", "backslashreplace").decode(), quote=True)


def hover(text: str) -> str:
    """A tooltip for an element; nothing for an empty text."""
    lines = "&#10;".join(map(escape, text.split("\n")))
    return f"<title>{lines}</title>" if text else ""


def coordinate(value: float) -> str:
    """A tenth of a pixel is precise enough, and digits add up in a page of lines."""
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text


def linear_ticks(low: float, high: float, most: int = 6) -> List[float]:
    """Multiples of 1, 2 or 5 times a power of ten within the range."""
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
    """Powers of the base, at most seven; for ten also twos and fives if there are few."""
    wide = math.log(high / low, base)
    factors = (1, 2, 5) if base == 10 and wide < 2.5 else (1,)
    every = max(1, math.ceil(wide / 6))
    first, last = math.floor(math.log(low, base)) - 1, math.ceil(math.log(high, base))
    ticks = [
        factor * float(base) ** power
        for power in range(first, last + 1) if power % every == 0 for factor in factors
    ]
    return [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]


@dataclass(frozen=True)
class Axis:
    label: str
    low: float
    high: float
    base: int = LINEAR
    words: Words = "{:g}".format
    unit: float = 1.0  # linear ticks are round numbers of it
    at: Optional[Tuple[float, ...]] = None  # the ticks, instead of the default ones

    def share(self, value: float) -> float:
        """The position on the axis, 0 to 1; values outside are drawn at the edge."""
        if self.base:
            value = max(value, self.low)
            place = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            place = (value - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, place))

    def ticks(self) -> Sequence[float]:
        if self.at is not None:
            return self.at
        if self.base:
            return log_ticks(self.low, self.high, self.base)
        return [tick * self.unit for tick in linear_ticks(self.low / self.unit,
                                                          self.high / self.unit)]


def axis(
    label: str,
    values: Sequence[Optional[float]],
    base: int = LINEAR,
    words: Words = "{:g}".format,
    floor: Optional[float] = None,
    unit: float = 1.0,
) -> Axis:
    """An axis that contains all values, linear from zero, or logarithmic from floor or above."""
    there = [value for value in values if value is not None and (value > 0 or not base)]
    if not base:
        high = max(there, default=1.0)
        return Axis(label, 0.0, high * 1.06 if high > 0 else 1.0, base, words, unit)
    low, high = min(there, default=1.0), max(there, default=10.0)
    if floor is not None:
        low, high = max(low, floor), max(high, floor * 10)
    if high / low < 10:  # a flat line is not to fill the plot with its noise
        low, high = low / 2, high * 2
    return Axis(label, low / 1.15, high * 1.15, base, words)


class Frame:
    """A rectangle of a drawing between two axes; what is drawn first is below."""

    def __init__(
        self, x: Axis, y: Axis, left: float, top: float, right: float, bottom: float
    ) -> None:
        self.x, self.y = x, y
        self.left, self.top, self.right, self.bottom = left, top, right, bottom
        self.parts: List[str] = []

    def at_x(self, value: float) -> float:
        return self.left + self.x.share(value) * (self.right - self.left)

    def at_y(self, value: float) -> float:
        return self.bottom - self.y.share(value) * (self.bottom - self.top)

    def span(self, start: float, end: float, style: str, text: str = "", word: str = "") -> None:
        """A period on the x axis over the full height, with `word` in it if there is room.

        A short one is still there to be seen.
        """
        left, right = self.at_x(start), self.at_x(end)
        self.parts.append(
            f'<rect class="{style}" x="{coordinate(left)}" y="{coordinate(self.top)}"'
            f' width="{coordinate(max(1.5, right - left))}"'
            f' height="{coordinate(self.bottom - self.top)}">{hover(text)}</rect>'
        )
        if word and right - left > 1.2 * LETTER * len(word) + 6:
            self.parts.append(
                f'<text class="word {style.split()[-1]}" x="{coordinate(left + 4)}"'
                f' y="{coordinate(self.bottom - 4)}">{escape(word)}</text>'
            )

    def mark(self, value: float, style: str, text: str) -> None:
        self.parts.append(
            f'<path class="{style}" d="M{coordinate(self.at_x(value))} {coordinate(self.top)}'
            f'V{coordinate(self.bottom)}">{hover(text)}</path>'
        )

    def line(self, points: Sequence[Point], style: str, text: str, step: bool = False) -> None:
        """A line with a gap where a value is None. Every pixel column keeps its extremes."""
        drawn: List[str] = []
        for piece in _pieces(points):
            places = [
                (coordinate(x), coordinate(y))
                for x, y in _thin([(self.at_x(x), self.at_y(y)) for x, y in piece])
            ]
            if len(places) == 1:  # one sample between gaps: a dot, by the line's round cap
                places = [places[0], places[0]]
            drawn.append("M{} {}".format(*places[0]))
            drawn += [f"H{x}V{y}" if step else f"L{x} {y}" for x, y in places[1:]]
        if drawn:
            self.parts.append(f'<path class="l {style}" d="{"".join(drawn)}">{hover(text)}</path>')

    def grid(self) -> str:
        across = "".join(
            f"M{coordinate(self.left)} {coordinate(self.at_y(tick))}H{coordinate(self.right)}"
            for tick in self.y.ticks()
        )
        down = "".join(
            f"M{coordinate(self.at_x(tick))} {coordinate(self.top)}V{coordinate(self.bottom)}"
            for tick in self.x.ticks()
        )
        return f'<path class="grid" d="{down}{across}"/>'

    def beside(self) -> str:
        """The labels of the y axis."""
        labels = "".join(
            f'<text x="{coordinate(self.left - 5)}" y="{coordinate(self.at_y(tick) + 4)}">'
            f"{escape(self.y.words(tick))}</text>"
            for tick in self.y.ticks()
        )
        return f'<g class="beside">{labels}</g>'

    def below(self, more: str = "") -> str:
        """The labels of the x axis, with `more` among them."""
        labels = "".join(
            f'<text x="{coordinate(self.at_x(tick))}" y="{coordinate(self.bottom + 15)}">'
            f"{escape(self.x.words(tick))}</text>"
            for tick in self.x.ticks()
        )
        return f'<g class="below">{labels}{more}</g>'


def _pieces(points: Sequence[Point]) -> List[List[Tuple[float, float]]]:
    pieces: List[List[Tuple[float, float]]] = [[]]
    for x, y in points:
        if y is not None:
            pieces[-1].append((x, y))
        elif pieces[-1]:
            pieces.append([])
    return [piece for piece in pieces if piece]


def _thin(places: List[Tuple[float, float]]) -> List[Tuple[float, float]]:
    """Drop the middle of level stretches, and all but four points in two pixel columns."""
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
    return [
        place for at, place in enumerate(kept)
        if not 0 < at < len(kept) - 1 or not kept[at - 1][1] == place[1] == kept[at + 1][1]
    ]
