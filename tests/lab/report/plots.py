# SPDX-License-Identifier: GPL-2.0-or-later
"""The drawings of one scenario."""

from __future__ import annotations

from typing import List, Optional, Sequence, Tuple

from . import facts, text
from .evaluation import AGENT, DEFAULT, STATIC, Contender, Run, Scenario
from .palette import Palette, rank
from .svg import Axis, Format, Plot, Point, axis

FULL_G = 0.95  # a sequential rate from which on the score is the sync rate alone
HAND_TUNED = 15 * text.MIB
LEAST_LATENCY = 1e-5  # seconds; below it a log axis would only show the clock's grain
LEAST_BYTES = 64 * 1024


def main_ones(scenario: Scenario) -> List[Contender]:
    """Those whose curves are on at first: what anybody wants to see beside the agent's."""
    shown = [one for one in scenario.contenders.values()
             if one.kind in (DEFAULT, AGENT) or one.name == scenario.best_static
             or (one.kind == STATIC and one.limit_bytes == HAND_TUNED)]
    return sorted(shown, key=rank)


def sorted_by(scenario: Scenario, palette: Palette) -> List[Contender]:
    """In the page's order, so that the agent is drawn last, on top."""
    return [scenario.contenders[one.name] for one in palette.contenders
            if one.name in scenario.contenders]


def _format_mib(value: Optional[float]) -> str:
    return text.size(None if value is None else value * text.MIB)


def _decorate(plot: Plot, run: Optional[Run]) -> None:
    """Windows and events of the run, below its curves."""
    for name in ("idle", "judged"):
        span = facts.span(run, name)
        if span is not None:
            plot.span(*span, name, f"{name}: {text.number(span[0])} to {text.number(span[1])} s")
    for at, (time, event) in enumerate(facts.events(run), 1):
        plot.mark(time, str(at), f"{at}: at {text.number(time)} s {event}")


Curve = Tuple[Sequence[Point], str, str, bool]  # points, classes, what it is, in steps


def _over_time(title: str, label: str, curves: Sequence[Curve], run: Optional[Run],
               log: bool, words: Format, floor: Optional[float] = None) -> str:
    """Empty when there is nothing to draw."""
    if not any(points for points, _, _, _ in curves):
        return ""
    end = max(time for points, _, _, _ in curves for time, _ in points)
    values = [value for points, _, _, _ in curves for _, value in points]
    plot = Plot(title, Axis("seconds", 0, end), axis(label, values, log, words, floor))
    _decorate(plot, run)
    for points, style, hover, step in curves:
        plot.line(points, style, hover, step)
    return plot.svg()


def reference(scenario: Scenario) -> Optional[Run]:
    """The run whose events and windows are drawn where curves of several are."""
    runs = [one.median_run for one in scenario.contenders.values() if one.median_run]
    agents = [one.median_run for one in scenario.contenders.values()
              if one.kind == AGENT and one.median_run]
    return next(iter(agents + runs), None)


def overlaid(scenario: Scenario, palette: Palette) -> List[str]:
    """Latency and throughput over time, a line for each contender."""
    ones = sorted_by(scenario, palette)
    run = reference(scenario)

    def curves(name: str, disk: Optional[str] = None) -> List[Curve]:
        return [(facts.curve(one.median_run, name, disk), f"s {palette.style(one.name)} {one.kind}",
                 one.name, False) for one in ones]

    drawn = [
        _over_time("fsync p99", "log", curves("sync_p99"), run, True, text.seconds, LEAST_LATENCY),
        _over_time("synchronous operations", "per second, log", curves("sync_rate"), run, True,
                   text.number, 0.1),
        _over_time("written by the flood", "", curves("flood_rate"), run, False, text.byte_rate)]
    for disk in facts.disks(run):
        drawn.append(_over_time(f"device {disk}", "writes", curves("device_rate", disk), run,
                                False, text.byte_rate))
    return [svg for svg in drawn if svg]


def limits(one: Contender, palette: Palette) -> str:
    """The limits in force and what is dirty under them, one contender."""
    run, style = one.median_run, palette.style(one.name)

    def mib(name: str) -> List[Point]:
        return facts.curve(run, name, factor=1 / text.MIB)

    return _over_time(
        f"{one.name}: dirty pages and limits", "log",
        [(mib("dirty"), "dirty", "dirty pages", False),
         (mib("writeback"), "writeback", "under writeback", False),
         (mib("background_limit"), f"{style} background", "background limit", True),
         (mib("dirty_limit"), f"{style} limit", "dirty limit", True),
         (mib("agent_target"), "target", "the agent's target", True)],
        run, True, _format_mib, LEAST_BYTES / text.MIB)


def fill(one: Contender, palette: Palette) -> List[str]:
    """The true fill of each disk's write cache, with the agent's estimate."""
    run, style = one.median_run, palette.style(one.name)
    drawn = []
    for name, disk in facts.disks(run).items():
        cache = text.known(disk.get("cache_bytes"))
        if not cache:
            continue
        drawn.append(_over_time(
            f"{one.name}: write cache of {name}", "share that is dirty",
            [(facts.curve(run, "fill", name, 1 / cache), f"{style} true", "true fill", False),
             (facts.curve(run, "agent_fill", name), "estimate", "the agent's estimate", False)],
            run, False, text.percent))
    return [svg for svg in drawn if svg]


def drain(one: Contender, palette: Palette) -> List[str]:
    """What the media really took, beside the agent's estimate of what it can take."""
    run, style = one.median_run, palette.style(one.name)
    drawn = []
    for name in facts.disks(run):
        estimate = facts.curve(run, "agent_drain", name)
        if not estimate:
            continue
        svg = _over_time(
            f"{one.name}: drain rate of {name}", "",
            [(facts.drained(run, name), f"{style} true", "drained by the media", False),
             (estimate, "estimate", "the agent's estimate", True)],
            run, False, text.byte_rate)
        drawn.append(svg)
    return drawn


def frontier(scenario: Scenario, palette: Palette) -> str:
    """What each contender buys with which share of the sequential rate."""
    ones = [(one, f, g) for one in sorted_by(scenario, palette)
            for f, g in [(one.f, one.g)] if f is not None and g is not None]
    if not ones:
        return ""
    across = Axis("g: sequential rate, of that under default limits", 0.0,
                  max([1.1] + [1.05 * g for _, _, g in ones]))
    up = axis("log", [f for _, f, _ in ones] + [1.0], True, text.number, 1e-4)
    plot = Plot("f: synchronous rate, of the idle rate", across, up, height=320)
    for score in (0.001, 0.01, 0.1, 0.2, 0.5, 1.0):
        points: List[Point] = []
        for step in range(101):
            g = across.low + (across.high - across.low) * step / 100
            f = score / min(1.0, g / FULL_G) ** 4 if g > 0 else None
            points.append((g, f if f is not None and up.low <= f <= up.high else None))
        plot.line(points, "contour", f"a score of {score:g}")
    sweep = [(g, f) for one, f, g in sorted(
        (each for each in ones if each[0].kind == STATIC),
        key=lambda each: each[0].limit_bytes or 0)]
    plot.line(list(sweep), "sweep", "static limits in order of size")
    for one, f, g in ones:
        plot.point(g, f, f"{palette.style(one.name)} {one.kind}",
                   f"{one.name}: f {text.number(f)}, g {text.number(g)}, score "
                   f"{text.number(one.score)}", 6 if one.kind == AGENT else 4)
    # Those that matter most choose their place first.
    for one, f, g in sorted(ones, key=lambda each: (AGENT, DEFAULT, STATIC, "peer").index(
            each[0].kind)):
        name = text.size(one.limit_bytes) if one.kind == STATIC and one.limit_bytes else one.name
        plot.label(g, f, name, f"name {palette.style(one.name)} {one.kind}")
    return plot.svg()


def latencies(scenario: Scenario, palette: Palette) -> str:
    """Cumulative distribution of the synchronous operations."""
    run = reference(scenario)
    curves: List[Curve] = [(facts.distribution(run, "idle"), "idle-line",
                            "before the flood", False)]
    for one in sorted_by(scenario, palette):
        curves.append((facts.distribution(one.median_run),
                       f"s {palette.style(one.name)} {one.kind}", one.name, False))
    times = [time for points, _, _, _ in curves for time, _ in points]
    if not times:
        return ""
    across = axis("latency, log", times, True, text.seconds, LEAST_LATENCY)
    plot = Plot("latency of synchronous operations", across,
                Axis("share that took no longer", 0, 1.0, False, text.percent), height=320)
    plot.rule(0.99, "rule", "99 %")
    for points, style, hover, step in curves:
        plot.line(points, style, hover, step)
    return plot.svg()
