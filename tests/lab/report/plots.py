# SPDX-License-Identifier: GPL-2.0-or-later
"""The drawings of one scenario: contenders over each other, and the limits of each."""

from __future__ import annotations

from typing import List, Optional, Sequence, Tuple

from writebackd import formats
from writebackd.report.plot import LINEAR, LOG, SIZES, Axis, Point, Words, axis

from .drawing import Plot
from .evaluation import AGENT, DEFAULT, PEER, STATIC, Contender, Run, Scenario
from .palette import Palette

FULL_G = 0.95  # a sequential rate from which on the score is the sync rate alone
HAND_TUNED = 15 << 20
LEAST_LATENCY_S = 1e-5  # below it a log axis would only show the clock's grain
LEAST_BYTES = 64 * 1024

Curve = Tuple[Sequence[Point], str, str, bool]  # points, classes, what it is, in steps


def _number(value: float) -> str:
    return f"{value:.3g}"


def _byte_rate(value: float) -> str:
    return f"{formats.size(value)}/s"


def main_ones(scenario: Scenario, ones: Sequence[Contender]) -> List[Contender]:
    """Those whose curves are on at first: what anybody wants to see beside the agent's."""
    return [one for one in ones if one.kind in (DEFAULT, AGENT)
            or one.name == scenario.best_static
            or (one.kind == STATIC and one.limit_bytes == HAND_TUNED)]


def curve(run: Optional[Run], name: str, disk: str = "", factor: float = 1.0) -> List[Point]:
    """A series of the run over time; [] when it has none, or only unknown values."""
    series = run["series"] if run else {}
    values = series.get(name, {}).get(disk, []) if disk else series.get(name, [])
    points = [(time, None if value is None else value * factor)
              for time, value in zip(series.get("t", []), values)]
    return points if any(value is not None for _, value in points) else []


def distribution(run: Run, window: str) -> List[Tuple[float, float]]:
    """Latency and share of operations up to it, all synchronous loads by their number."""
    curves = [(measured["ops"], measured["cdf"]) for load in run["loads"]
              for measured in [load["windows"].get(window)]
              if load["role"] == "sync" and measured and measured["ops"] and measured["cdf"]]
    total = sum(ops for ops, _ in curves)
    latencies = sorted({latency for _, points in curves for latency, _ in points})
    return [(latency, sum(ops * max((share for at, share in points if at <= latency), default=0.0)
                          for ops, points in curves) / total) for latency in latencies]


def _over_time(title: str, up: Axis, curves: Sequence[Curve], run: Optional[Run]) -> str:
    """With the windows and events of a run below; empty when there is nothing to draw."""
    end = max((time for points, _, _, _ in curves for time, _ in points), default=0.0)
    if not end or run is None:
        return ""
    plot = Plot(title, Axis("seconds", 0, end, words=_number), up)
    for name in ("idle", "judged"):
        if name in run["windows"]:
            begin, until = run["windows"][name]
            plot.span(begin, until, name, f"{name}: {begin:.3g} to {until:.3g} s")
    for at, event in enumerate(run["events"], 1):
        plot.event(event["t"], str(at), f"{at}: at {event['t']:.3g} s {event['text']}")
    for points, style, hover, step in curves:
        plot.line(points, style, hover, step)
    return plot.svg()


def _values(curves: Sequence[Curve]) -> List[Optional[float]]:
    return [value for points, _, _, _ in curves for _, value in points]


def _reference(ones: Sequence[Contender]) -> Optional[Run]:
    """The run whose events and windows are drawn where curves of several are."""
    agents = [one for one in ones if one.kind == AGENT]
    return next((one.median_run for one in [*agents, *ones]), None)


def _disks(run: Optional[Run]) -> List[str]:
    return [disk["name"] for disk in run["disks"]] if run else []


def overlaid(ones: Sequence[Contender], palette: Palette) -> List[str]:
    """Latency and throughput over time, a line for each contender."""
    run = _reference(ones)

    def drawn(title: str, name: str, label: str = "", base: int = LINEAR,
              words: Words = _byte_rate, floor: Optional[float] = None, disk: str = "") -> str:
        curves = [(curve(one.median_run, name, disk), f"s {palette.style(one.name)} {one.kind}",
                   one.name, False) for one in ones]
        return _over_time(title, axis(label, _values(curves), base, words, floor), curves, run)

    return [
        drawn("p99 of synchronous operations", "sync_p99", "ms, log", LOG, formats.milliseconds,
              LEAST_LATENCY_S),
        drawn("synchronous operations", "sync_rate", "per second, log", LOG, formats.count, 0.1),
        drawn("handed over by the flood", "flood_rate"),
        *(drawn(f"written to disk {disk}", "device_rate", disk=disk) for disk in _disks(run))]


def limits(ones: Sequence[Contender], palette: Palette) -> List[str]:
    """The limits in force and what is dirty under them; one axis for all contenders."""
    drawings: List[Tuple[Contender, List[Curve]]] = []
    for one in ones:
        run, style = one.median_run, palette.style(one.name)
        drawings.append((one, [
            (curve(run, "dirty"), "dirty", "dirty pages", False),
            (curve(run, "writeback"), "writeback", "under writeback", False),
            (curve(run, "background_limit"), f"{style} background", "background limit", True),
            (curve(run, "dirty_limit"), f"{style} limit", "dirty limit", True),
            (curve(run, "agent_target"), "target", "the agent's target", True)]))
    values = [value for _, curves in drawings for value in _values(curves)]
    up = axis("log", values, SIZES, formats.size, LEAST_BYTES)
    return [_over_time(f"{one.name}: dirty pages and limits", up, curves, one.median_run)
            for one, curves in drawings]


def fill(ones: Sequence[Contender], palette: Palette) -> List[str]:
    """The true fill of each disk's write cache, with the agent's estimate, where it is used."""
    found = []
    up = Axis("share that is dirty", 0.0, 1.05, LINEAR, formats.percent)
    for one in ones:
        run = one.median_run
        for disk in run["disks"] if run else []:
            name, cache = disk["name"], disk["cache_bytes"]
            curves: List[Curve] = [
                (curve(run, "fill", name, 1 / cache) if cache else [],
                 f"{palette.style(one.name)} true", "true fill", False),
                (curve(run, "agent_fill", name), "estimate", "the agent's estimate", False)]
            if any(_values(curves)):
                found.append(_over_time(f"{one.name}: write cache of {name}", up, curves, run))
    return found


def frontier(ones: Sequence[Contender], palette: Palette) -> str:
    """What each contender buys with which share of the sequential rate."""
    known = [(one, one.f, one.g) for one in ones if one.f is not None and one.g is not None]
    if not known:
        return ""
    across = Axis("g: sequential rate, of that under default limits", 0.0,
                  max([1.1] + [1.2 * g for _, _, g in known]), words=_number)
    up = axis("log", [f for _, f, _ in known] + [1.0], LOG, _number, 1e-4)
    plot = Plot("f: synchronous rate, of the idle rate", across, up)
    for score in (0.001, 0.01, 0.1, 0.2, 0.5, 1.0):
        points: List[Point] = []
        for step in range(1, 101):
            g = across.high * step / 100
            f = score / min(1.0, g / FULL_G) ** 4
            points.append((g, f if up.low <= f <= up.high else None))
        plot.line(points, "contour", f"a score of {score:g}")
    sweep = sorted((one.limit_bytes or 0, g, f) for one, f, g in known if one.kind == STATIC)
    plot.line([(g, f) for _, g, f in sweep], "sweep", "static limits in order of size")
    for one, f, g in known:
        plot.point(g, f, f"{palette.style(one.name)} {one.kind}",
                   f"{one.name}: f {f:.3g}, g {g:.3g}", 6 if one.kind == AGENT else 4)
    # Those that matter most choose their place first.
    for one, f, g in sorted(known, key=lambda each: (AGENT, DEFAULT, STATIC, PEER).index(
            each[0].kind)):
        plot.label(g, f, one.name, f"name {palette.style(one.name)} {one.kind}",
                   needed=one.kind != PEER)
    return plot.svg()


def latencies(ones: Sequence[Contender], palette: Palette) -> str:
    """Cumulative distribution of the synchronous operations."""
    runs = [(one, one.median_run) for one in ones if one.median_run]
    curves: List[Curve] = [(distribution(run, "judged"), f"s {palette.style(one.name)} {one.kind}",
                            one.name, False) for one, run in runs]
    curves += [(distribution(run, "idle"), "idle-line", "before the flood", False)
               for run in [_reference(ones)] if run]
    times = [time for points, _, _, _ in curves for time, _ in points]
    if not times:
        return ""
    plot = Plot("latency of synchronous operations",
                axis("ms, log", times, LOG, formats.milliseconds, LEAST_LATENCY_S),
                Axis("share that took no longer", 0, 1.0, LINEAR, formats.percent))
    plot.rule(0.99, "rule", "99 %")
    for points, style, hover, step in curves:
        plot.line(points, style, hover, step)
    return plot.svg()
