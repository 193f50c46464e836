# SPDX-License-Identifier: GPL-2.0-or-later
"""The drawings of one scenario."""

from __future__ import annotations

from typing import List, Optional, Sequence, Tuple

from writebackd.report.plot import LINEAR, LOG, SIZES, Axis, Point, Words, axis

from . import facts, text
from .drawing import Plot
from .evaluation import AGENT, DEFAULT, PEER, STATIC, Contender, Run, Scenario
from .palette import Palette, rank

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


def _decorate(plot: Plot, run: Optional[Run]) -> None:
    """Windows and events of the run, below its curves."""
    for name in ("idle", "judged"):
        span = facts.span(run, name)
        if span is not None:
            plot.span(*span, name, f"{name}: {text.number(span[0])} to {text.number(span[1])} s")
    for at, (time, event) in enumerate(facts.events(run), 1):
        plot.event(time, str(at), f"{at}: at {text.number(time)} s {event}")


Curve = Tuple[Sequence[Point], str, str, bool]  # points, classes, what it is, in steps


def _values(curves: Sequence[Curve]) -> List[Optional[float]]:
    return [value for points, _, _, _ in curves for _, value in points]


def _over_time(title: str, up: Axis, curves: Sequence[Curve], run: Optional[Run],
               told: Sequence[facts.Stretch] = ()) -> str:
    """Empty when there is nothing to draw."""
    if not any(points for points, _, _, _ in curves):
        return ""
    end = max(time for points, _, _, _ in curves for time, _ in points)
    plot = Plot(title, Axis("seconds", 0, end or 1.0, words=text.number), up)
    _decorate(plot, run)
    names = list(dict.fromkeys(name for _, _, name in told))
    for start, stop, name in told:
        plot.strip(start, stop, name, f"state{names.index(name) % 4}")
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

    def drawn(title: str, name: str, label: str = "", base: int = LINEAR,
              words: Words = text.byte_rate, floor: Optional[float] = None,
              disk: Optional[str] = None) -> str:
        lines = curves(name, disk)
        return _over_time(title, axis(label, _values(lines), base, words, floor), lines, run)

    found = [drawn("p99 of synchronous operations", "sync_p99", "log", LOG, text.seconds,
                   LEAST_LATENCY),
             drawn("synchronous operations", "sync_rate", "per second, log", LOG, text.number, 0.1),
             drawn("handed over by the flood", "flood_rate")]
    found += [drawn(f"written to disk {disk}", "device_rate", disk=disk)
              for disk in facts.disks(run)]
    return [svg for svg in found if svg]


def limits(ones: Sequence[Contender], palette: Palette) -> List[str]:
    """The limits in force and what is dirty under them; one axis for all contenders."""
    drawings: List[Tuple[Contender, List[Curve]]] = []
    for one in ones:
        run, style = one.median_run, palette.style(one.name)
        drawings.append((one, [
            (facts.curve(run, "dirty"), "dirty", "dirty pages", False),
            (facts.curve(run, "writeback"), "writeback", "under writeback", False),
            (facts.curve(run, "background_limit"), f"{style} background", "background limit", True),
            (facts.curve(run, "dirty_limit"), f"{style} limit", "dirty limit", True),
            (facts.curve(run, "agent_target"), "target", "the agent's target", True)]))
    values = [value for _, curves in drawings for value in _values(curves)]
    up = axis("log", values, SIZES, text.size, LEAST_BYTES)
    found = [_over_time(f"{one.name}: dirty pages and limits", up, curves, one.median_run)
             for one, curves in drawings]
    return [svg for svg in found if svg]


def fill(ones: Sequence[Contender], palette: Palette) -> List[str]:
    """The true fill of each disk's write cache, with the agent's estimate, where it is used."""
    found = []
    up = Axis("share that is dirty", 0.0, 1.05, LINEAR, text.percent)
    for name in dict.fromkeys(name for one in ones for name in facts.disks(one.median_run)):
        for one in ones:
            run = one.median_run
            cache = text.known((facts.disks(run).get(name) or {}).get("cache_bytes"))
            curves: List[Curve] = [
                (facts.curve(run, "fill", name, 1 / cache) if cache else [],
                 f"{palette.style(one.name)} true", "true fill", False),
                (facts.curve(run, "agent_fill", name), "estimate", "the agent's estimate", False)]
            if any(_values(curves)):
                found.append(_over_time(f"{one.name}: write cache of {name}", up, curves, run))
    return found


def drain(one: Contender, palette: Palette) -> List[str]:
    """What the media really took, beside the agent's estimate of what it can take."""
    run, found = one.median_run, []
    for name in facts.disks(run):
        estimate = facts.curve(run, "agent_drain", name)
        curves: List[Curve] = [
            (facts.drained(run, name), f"{palette.style(one.name)} true", "drained by the media",
             False),
            (estimate, "estimate", "the agent's estimate", True)]
        if estimate:
            found.append(_over_time(f"{one.name}: drain rate of {name}",
                                    axis("with what the agent said", _values(curves), LINEAR,
                                         text.byte_rate), curves, run, facts.states(run, name)))
    return found


def frontier(scenario: Scenario, palette: Palette) -> str:
    """What each contender buys with which share of the sequential rate."""
    ones = [(one, f, g) for one in sorted_by(scenario, palette)
            for f, g in [(one.f, one.g)] if f is not None and g is not None]
    if not ones:
        return ""
    across = Axis("g: sequential rate, of that under default limits", 0.0,
                  max([1.1] + [1.2 * g for _, _, g in ones]), words=text.number)
    up = axis("log", [f for _, f, _ in ones] + [1.0], LOG, text.number, 1e-4)
    plot = Plot("f: synchronous rate, of the idle rate", across, up)
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
    for one, f, g in sorted(ones, key=lambda each: (AGENT, DEFAULT, STATIC, PEER).index(
            each[0].kind)):
        name = text.size(one.limit_bytes) if one.kind == STATIC and one.limit_bytes else one.name
        plot.label(g, f, name, f"name {palette.style(one.name)} {one.kind}",
                   needed=one.kind != PEER)
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
    across = axis("latency, log", times, LOG, text.seconds, LEAST_LATENCY)
    plot = Plot("latency of synchronous operations", across,
                Axis("share that took no longer", 0, 1.0, LINEAR, text.percent))
    plot.rule(0.99, "rule", "99 %")
    for points, style, hover, step in curves:
        plot.line(points, style, hover, step)
    return plot.svg()
