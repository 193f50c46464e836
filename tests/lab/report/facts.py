# SPDX-License-Identifier: GPL-2.0-or-later
"""Figures taken out of a run's JSON, in which anything may be null or missing."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from writebackd.report.plot import Point

from .evaluation import Run
from .text import known

Load = Mapping[str, Any]
Stretch = Tuple[float, float, str]  # of time, and what the agent said during it
WRITERS = ("flood", "job")


def loads(run: Optional[Run], *roles: str) -> List[Load]:
    found: List[Load] = [load for load in (run or {}).get("loads") or []
                         if not roles or load.get("role") in roles]
    return found


def window(load: Load, name: str = "judged") -> Mapping[str, Any]:
    """What the load measured in it; empty when it measured nothing."""
    measured: Mapping[str, Any] = (load.get("windows") or {}).get(name) or {}
    return measured


def largest(values: Sequence[Optional[float]]) -> Optional[float]:
    return max((value for value in values if value is not None), default=None)


def total(values: Sequence[Optional[float]]) -> Optional[float]:
    there = [value for value in values if value is not None]
    return sum(there) if there else None


def longest(measured: Mapping[str, Any]) -> Optional[float]:
    """The longest operation; one that never ended counts with its age."""
    ended, age = known(measured.get("max")), known(measured.get("inflight_age"))
    return largest([ended, age or None])


@dataclass(frozen=True)
class Sync:
    """The synchronous loads of a run together: rates add up, the worst latency counts."""

    rate: Optional[float] = None
    mean: Optional[float] = None
    p50: Optional[float] = None
    p95: Optional[float] = None
    p99: Optional[float] = None
    max: Optional[float] = None
    unsteady: Optional[float] = None  # coefficient of variation from second to second


def sync(run: Optional[Run], name: str = "judged") -> Sync:
    return together([window(load, name) for load in loads(run, "sync")])


def together(measured: Sequence[Mapping[str, Any]]) -> Sync:
    def worst(key: str) -> Optional[float]:
        return largest([known(one.get(key)) for one in measured])

    weighed = [(mean, rate) for one in measured
               for mean, rate in [(known(one.get("mean")), known(one.get("rate")))]
               if mean is not None and rate]
    all_of_them = sum(rate for _, rate in weighed)
    mean = sum(mean * rate for mean, rate in weighed) / all_of_them if weighed else worst("mean")
    return Sync(total([known(one.get("rate")) for one in measured]), mean, worst("p50"),
                worst("p95"), worst("p99"), largest([longest(one) for one in measured]),
                variation([one.get("series") or [] for one in measured]))


def variation(series: Sequence[Sequence[Any]]) -> Optional[float]:
    """Standard deviation over mean of the operations in each second, all loads together."""
    length = min((len(one) for one in series if one), default=0)
    sums = [sum(known(one[at]) or 0.0 for one in series if one) for at in range(length)]
    if len(sums) < 2 or not any(sums):
        return None
    return statistics.pstdev(sums) / statistics.fmean(sums)


def distribution(run: Optional[Run], name: str = "judged") -> List[Tuple[float, float]]:
    """Latency and share of operations up to it, all synchronous loads by their number."""
    curves: List[Tuple[float, List[Tuple[float, float]]]] = []
    for load in loads(run, "sync"):
        measured = window(load, name)
        curve = [(latency, share) for latency, share in (
            (known(pair[0]), known(pair[1])) for pair in measured.get("cdf") or []
            if len(pair) == 2) if latency is not None and share is not None]
        weight = known(measured.get("ops")) or known(measured.get("rate")) or 0.0
        if curve and weight > 0:
            curves.append((weight, sorted(curve)))
    if len(curves) == 1:
        return curves[0][1]
    weights = sum(weight for weight, _ in curves)
    latencies = sorted({latency for _, curve in curves for latency, _ in curve})
    return [(latency, sum(weight * _share(curve, latency) for weight, curve in curves) / weights)
            for latency in latencies]


def _share(curve: Sequence[Tuple[float, float]], latency: float) -> float:
    return max((share for at, share in curve if at <= latency), default=0.0)


def write_rate(run: Optional[Run]) -> Optional[float]:
    return total([known(window(load).get("byte_rate")) for load in loads(run, *WRITERS)])


def extents(run: Optional[Run]) -> Optional[Tuple[int, Optional[float]]]:
    """Of all flooded files, with the bytes in them."""
    counted = [load["extents"] for load in loads(run) if load.get("extents")]
    pieces = total([known(one.get("extents")) for one in counted])
    return None if pieces is None else (
        int(pieces), total([known(one.get("bytes")) for one in counted]))


@dataclass(frozen=True)
class Bystander:
    name: str
    rate: Optional[float]
    in_bytes: bool  # its rate is one of bytes, since it has no operations to count
    stall: Optional[float]


def bystanders(run: Optional[Run]) -> List[Bystander]:
    found = []
    for load in loads(run, "bystander"):
        measured = window(load)
        rate, byte_rate = known(measured.get("rate")), known(measured.get("byte_rate"))
        stalled = largest([known(measured.get("longest_stall")), longest(measured)])
        found.append(Bystander(str(load.get("name")), byte_rate if rate is None else rate,
                               rate is None and byte_rate is not None, stalled))
    return found


def limit_writes(run: Optional[Run]) -> Optional[float]:
    return known(((run or {}).get("agent") or {}).get("limit_writes"))


def span(run: Optional[Run], name: str) -> Optional[Tuple[float, float]]:
    pair = ((run or {}).get("windows") or {}).get(name) or []
    times = [known(value) for value in pair]
    if len(times) != 2 or times[0] is None or times[1] is None:
        return None
    return times[0], times[1]


def events(run: Optional[Run]) -> List[Tuple[float, str]]:
    return [(time, str(event.get("text", ""))) for event in (run or {}).get("events") or []
            for time in [known(event.get("t"))] if time is not None]


def curve(run: Optional[Run], name: str, disk: Optional[str] = None,
          factor: float = 1.0) -> List[Point]:
    """A series of the run over time; [] when it has none."""
    series = (run or {}).get("series") or {}
    values = series.get(name) or []
    if disk is not None:
        values = values.get(disk) or [] if isinstance(values, dict) else []
    points: List[Point] = []
    for at, value in zip(series.get("t") or [], values):
        time, number = known(at), known(value)
        if time is not None:
            points.append((time, None if number is None else number * factor))
    return points if any(value is not None for _, value in points) else []


def drained(run: Optional[Run], disk: str, over_s: float = 1.0) -> List[Point]:
    """What the media took per second: what came in, less what the cache gained.

    Over `over_s`, because both are sampled at slightly different moments.
    """
    came, fill = curve(run, "device_rate", disk), dict(curve(run, "fill", disk))
    points: List[Point] = []
    begin = 0
    for at in range(1, len(came)):
        time = came[at][0]
        while came[begin][0] < time - over_s - 1e-9:
            begin += 1
        start = came[begin][0]
        before, now = fill.get(start), fill.get(time)
        inside = [rate for _, rate in came[begin + 1:at + 1]]
        there = [rate for rate in inside if rate is not None]
        if before is None or now is None or len(there) < len(inside) or start >= time:
            points.append((time, None))
            continue
        points.append((time, max(0.0, statistics.fmean(there) - (now - before) / (time - start))))
    return points if any(value is not None for _, value in points) else []


def disks(run: Optional[Run]) -> Dict[str, Mapping[str, Any]]:
    return {str(disk.get("name")): disk for disk in (run or {}).get("disks") or []}


def states(run: Optional[Run], disk: str) -> List[Stretch]:
    """Stretches of time in which the agent said the same of a disk."""
    series = (run or {}).get("series") or {}
    told = (series.get("agent_state") or {}).get(disk) or []
    found: List[Stretch] = []
    last = 0.0
    for at, state in zip(series.get("t") or [], told):
        time = known(at)
        if time is None:
            continue
        if state is not None and found and found[-1][2] == str(state) and found[-1][1] == last:
            found[-1] = (found[-1][0], time, str(state))
        elif state is not None:
            found.append((last, time, str(state)))
        last = time
    return found
