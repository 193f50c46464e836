# SPDX-License-Identifier: GPL-2.0-or-later
"""The lab's plots: those of the product's pages, with points, labels and events."""

from __future__ import annotations

from writebackd.report.plot import Axis, Frame, coordinate, escape, hover

WIDTH, HEIGHT = 460, 260
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 28, 36
# Of a picture in a page that has no say in it: the picture follows the reader's own setting.
STYLE = """\
svg { font: 11px system-ui, sans-serif; fill: #333; }
.card { fill: #fff; } .grid { stroke: #e4e4e4; fill: none; } .axis { stroke: #999; fill: none; }
.below, .event { text-anchor: middle; stroke: none; } .beside { text-anchor: end; }
.title { font-weight: 600; }
.unit { font-weight: 400; } path.event { stroke: #999; stroke-dasharray: 3 3; }
.l { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.with { stroke: #0a66c2; } .without { stroke: #c0392b; } .p { fill: #0a66c2; }
text.with { fill: #0a66c2; stroke: none; } text.without { fill: #c0392b; stroke: none; }
@media (prefers-color-scheme: dark) {
svg { fill: #ddd; } .card { fill: #161b22; } .grid { stroke: #30363d; }
.axis, path.event { stroke: #777; } .with { stroke: #58a6ff; } .without { stroke: #ff7b72; }
.p, text.with { fill: #58a6ff; } text.without { fill: #ff7b72; }
}
"""


def image(width: float, height: float, inside: str, style: str = STYLE, said: str = "") -> str:
    """A file that needs nothing else, readable on a light and on a dark page; `said`: in words."""
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
            f'width="{width:g}" height="{height:g}"><style>{style}</style>'
            f'<rect class="card" width="100%" height="100%" rx="6"/>{hover(said)}{inside}</svg>\n')


class Plot(Frame):
    """A drawing of its own, with a title, points and labels."""

    def __init__(self, title: str, x: Axis, y: Axis) -> None:
        super().__init__(x, y, LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM)
        self.title = title

    def event(self, value: float, label: str, text: str) -> None:
        """A vertical line with a short label at its head."""
        self.mark(value, "event", text)
        self.parts.append(f'<text class="event" x="{coordinate(self.at_x(value))}" '
                          f'y="{TOP - 3}">{escape(label)}{hover(text)}</text>')

    def point(self, x: float, y: float, style: str, text: str, radius: float = 4) -> None:
        self.parts.append(
            f'<circle class="p {style}" cx="{coordinate(self.at_x(x))}" '
            f'cy="{coordinate(self.at_y(y))}" r="{radius}">{hover(text)}</circle>')

    def label(self, x: float, y: float, text: str, style: str) -> None:
        """Text to the right of a point."""
        self.parts.append(f'<text class="{style}" x="{coordinate(self.at_x(x) + 7)}" '
                          f'y="{coordinate(self.at_y(y) + 4)}" text-anchor="start">'
                          f"{escape(text)}</text>")

    def svg(self) -> str:
        """The drawing, with its title above and what y is in it."""
        unit = f", {self.y.label}" if self.y.label else ""
        across = (f'<text x="{(self.left + self.right) / 2:g}" y="{HEIGHT - 6}">'
                  f"{escape(self.x.label)}</text>")
        return (f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
                f'aria-label="{escape(self.title + unit)}">{self.grid()}'
                f'<path class="axis" d="M{LEFT} {TOP}V{self.bottom}H{self.right}"/>'
                f'{self.below(across)}{self.beside()}{"".join(self.parts)}'
                f'<text class="title" x="{LEFT - 50}" y="13">{escape(self.title)}'
                f'<tspan class="unit">{escape(unit)}</tspan></text></svg>')

