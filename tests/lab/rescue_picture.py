# SPDX-License-Identifier: GPL-2.0-or-later
"""Draws a flood and its end: fsync, limit and throughput over one time axis.  Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple

from writebackd.formats import latency, size
from writebackd.report.plot import LINEAR, LOG, SIZES, Axis, Frame, Point, axis, coordinate, escape

from .drawing import STYLE, image

WIDTH, LEFT, RIGHT, TOP, GAP, FOOT = 880.0, 66.0, 16.0, 92.0, 30.0, 42.0
HEIGHTS = (150.0, 84.0, 84.0)
SLOW_S = 0.1  # what everybody notices
LEAST_S = 1e-4  # the axis of latencies begins there: less is nobody's trouble
HEAD = "fsync p99 while another program floods the disk"
LABELS = """\
.head { font-size: 16px; font-weight: 600; } .event, .said { font-size: 13px; }
.said { font-weight: 600; }
.said { text-anchor: middle; } .event { text-anchor: start; } .note { text-anchor: end; }
"""


@dataclass(frozen=True)
class Second:
    """What was seen at the end of a second."""

    at_s: float
    p99_s: Optional[float]
    limit_bytes: int
    device_rate: float  # bytes per second
    longest_s: float = 0.0  # fsync


@dataclass(frozen=True)
class Stage:
    """A stretch of the run, with what is said of it."""

    begin_s: float
    end_s: float
    said: str
    style: str = ""


def relief(seconds: Sequence[Second], stages: Sequence[Stage]) -> str:
    """The first seconds under the agent, for who shows the picture."""
    begin_s = stages[-1].begin_s
    after = [each for each in seconds if each.at_s > begin_s]
    slow = [each.at_s - begin_s for each in after if (each.p99_s or 0.0) > SLOW_S]
    return (
        f"What is dirty already drains first: in the worst second after writebackd began to"
        f" enforce p99 was {latency(max(each.p99_s or 0.0 for each in after))}, the longest commit"
        f" took {latency(max(each.longest_s for each in after))}, and after"
        f" {max(slow, default=0.0):.0f} s p99 stayed below {latency(SLOW_S)}."
    )


def picture(seconds: Sequence[Second], stages: Sequence[Stage], about: str, said: str = "") -> str:
    """`stages`: no flood, a flood, and the agent's limits; `about` is the line at the foot, `said`
    the same run in words."""
    seconds = [each for each in seconds if each.at_s <= stages[-1].end_s + 1]
    flood_s, agent_s = (stage.begin_s for stage in stages[1:])
    time = Axis("", 0.0, seconds[-1].at_s)
    top, parts = TOP, [_text(14, 26, "head", HEAD)]
    for (title, up, points), height in zip(_panels(seconds), HEIGHTS):
        frame = Frame(time, up, LEFT, top, WIDTH - RIGHT, top + height)
        before = [point for point in points if point[0] <= agent_s]
        frame.line(before, "without", title)
        # From the last point on, so that the line has no hole.
        frame.line([*before[-1:], *points[len(before):]], "with", title)
        parts += [_text(LEFT, top - 8, "title", title), frame.grid(), frame.beside(), *frame.parts]
        top += height + GAP
    whole = Frame(time, Axis("", 0.0, 1.0, at=()), LEFT, TOP - 30, WIDTH - RIGHT, top - GAP)
    for at_s, label in ((flood_s, "flood begins"), (agent_s, "writebackd enforces")):
        whole.mark(at_s, "event", label)
        parts.append(_text(whole.at_x(at_s) + 5, TOP - 22, "event", label))
    for stage in stages:
        parts.append(_text(whole.at_x((stage.begin_s + stage.end_s) / 2), 50,
                           f"said {stage.style}", stage.said))
    parts += [*whole.parts, whole.below(), _text(LEFT, top - GAP + 32, "", "seconds"),
              _text(WIDTH - RIGHT, top - GAP + 32, "note", about)]
    return image(WIDTH, top - GAP + FOOT, "".join(parts), STYLE + LABELS, said)


def _panels(seconds: Sequence[Second]) -> List[Tuple[str, Axis, List[Point]]]:
    waits = [each.p99_s for each in seconds]
    limits = [each.limit_bytes for each in seconds]
    rates = [each.device_rate / 1e6 for each in seconds]
    times = [each.at_s for each in seconds]
    return [
        ("fsync p99 of each second, log scale", axis("", waits, LOG, latency, LEAST_S),
         list(zip(times, waits))),
        ("dirty limit, log scale", axis("", limits, SIZES, size), list(zip(times, limits))),
        ("written to the disk, MB/s", axis("", rates, LINEAR), list(zip(times, rates))),
    ]


def _text(x: float, y: float, style: str, text: str) -> str:
    return (f'<text class="{style}" x="{coordinate(x)}" y="{coordinate(y)}">'
            f"{escape(text)}</text>")
