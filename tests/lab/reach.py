# SPDX-License-Identifier: GPL-2.0-or-later
"""How soon and how quietly a contender gets where it settles: figures of one run.

All are taken from what the run recorded, so that a better definition needs no new run.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple

from .report.evaluation import Run
from .scenario import Scenario
from .series import RECENT_S

NEVER = math.inf
SETTLED = 1 / 3  # of the judged window, its end: what a contender has settled at
WITHIN = 2.0  # times the settled p99: protected
NEAR = 0.9  # of the best static limit's rate: reached
# A bad point weighs as much as three good ones: three quarters of the time have to be good.
GOOD, BAD = 1.0, -3.0
# What one point may make up for; the second after an onset, when the write cache has room
# yet, has ten times the rate that comes afterwards and must not outweigh it.
MOST = 1.25
LAST_S = 30.0  # of the run: there a limit should rest
TICK_S = 1.0  # of the agent
GRID_S = 0.5  # of the limit, for its correlation: twice a tick
LEAST_LAG = int(2 * TICK_S / GRID_S)  # a period has to be longer
# A peak of a correlation with itself that noise seldom has: of 1000 series of 30 s, 22 of
# random limits and 5 of random walks had a higher one.
PEAK = 0.5
SWING = 0.10  # of the mean limit: a smaller swing is of no account


@dataclass(frozen=True)
class Swing:
    """A limit that comes and goes in periods."""

    period_s: float
    amplitude: float  # of the sine with the same deviation, as a share of the mean


NONE = Swing(0, 0)


def settled_at(margins: Sequence[float]) -> Optional[int]:
    """Number of the first point from which all is well: before it more was lacking than spare.

    margins: of each point what it has above what is wanted, below 0 what it lacks.  Where
    their sum is lowest is the change looked for: from there on every stretch is well on
    balance, up to there every stretch was not.  None if that is the end of all points.
    """
    lowest, total, found = 0.0, 0.0, 0
    for number, margin in enumerate(margins, start=1):
        total += margin
        if total <= lowest:
            lowest, found = total, number
    return found if found < len(margins) else None


def onset(scenario: Scenario, run: Run) -> Optional[float]:
    """From when a contender has to answer: flood, its own arrival or the last change of a disk.

    None where nothing floods, or where floods come and go and nothing can settle.
    """
    floods = [load for load in scenario.loads if load.role in ("flood", "job")]
    if not floods or any(load.options.get("off") or len(load.spans) > 1 for load in floods):
        return None
    disks = {disk.name for disk in scenario.disks}
    end = run["windows"]["judged"][1]
    changes = [event.time for event in scenario.events
               if event.target in disks and event.time < end]
    return max([min(load.spans[0].start for load in floods), scenario.contend, *changes])


def curve(run: Run, name: str, start: float, end: float) -> List[Tuple[float, float]]:
    """What is known of a column between two times, each point of the second before it."""
    points = [(time, value) for time, value in zip(run["series"]["t"], run["series"][name])
              if value is not None]
    if name == "sync_rate":
        # Two steps make a second: tools tell what they did only once in one.
        points = [(time, (before + value) / 2)
                  for (_, before), (time, value) in zip(points, points[1:])]
    return [(time, value) for time, value in points if start < time <= end]


def settled(run: Run, name: str) -> Optional[float]:
    """Median of a column in the last third of the judged window."""
    start, end = run["windows"]["judged"]
    values = [value for _, value in curve(run, name, end - SETTLED * (end - start), end)]
    return statistics.median(values) if values else None


def protected(scenario: Scenario, run: Run) -> Optional[float]:
    """Seconds from the onset until p99 of fsync is within twice of what it settles at.

    NEVER where it still is not in the last third.  None for loads that tell no latencies
    while they run.
    """
    start, target = onset(scenario, run), settled(run, "sync_p99")
    if start is None or target is None:
        return None
    points = curve(run, "sync_p99", start, run["windows"]["judged"][1])
    return since(start, points, run,
                 [GOOD if value <= WITHIN * target else BAD for _, value in points])


def reached(scenario: Scenario, run: Run, wanted: Optional[float]) -> Optional[float]:
    """Seconds from the onset until the fsync rate is at 90 % of `wanted`; NEVER as above."""
    start, ends_at = onset(scenario, run), settled(run, "sync_rate")
    if start is None or ends_at is None or not wanted:
        return None
    if ends_at < NEAR * wanted:
        return NEVER
    points = curve(run, "sync_rate", start, run["windows"]["judged"][1])
    return since(start, points, run, [min(value / wanted, MOST) - NEAR for _, value in points])


def since(start: float, points: Sequence[Tuple[float, float]], run: Run,
          margins: Sequence[float]) -> float:
    """Seconds until the second began that the first point tells of from which all is well."""
    begin, end = run["windows"]["judged"]
    first = settled_at(margins)
    if first == 0:
        return 0.0
    if first is None or points[first][0] - RECENT_S > end - SETTLED * (end - begin):
        return NEVER
    return max(0.0, points[first][0] - RECENT_S - start)


def longest_stall(run: Run) -> Optional[float]:
    """The longest write of a buffered writer since the contender came, in seconds."""
    found: List[float] = [load["stall"] for load in run["loads"]
             if load["role"] in ("flood", "job", "bystander") and load.get("stall") is not None]
    return max(found, default=None)


def last(run: Run) -> Tuple[float, float]:
    """The end of the run, but no more of it than what is judged: there a limit should rest."""
    end = max(window[1] for window in run["windows"].values())
    return max(run["windows"]["judged"][0], end - LAST_S), end


def writes_per_minute(run: Run) -> Optional[float]:
    """Changes of the limits at the end of the run."""
    limits = run.get("limits")
    if not limits:
        return None
    start, end = last(run)
    # The first entry is what was there, not a write.
    writes = sum(start < time <= end for time, _ in limits[1:])
    return float(writes * 60 / (end - start))


def swing(run: Run) -> Optional[Swing]:
    """The limit's oscillation at the end of the run; NONE, or None where that is too short.

    It oscillates if, with its mean and its trend taken off, its correlation with itself has
    a peak of at least PEAK at more than two ticks and at least three periods of it were
    seen, and if it swings by more than SWING of the mean.
    """
    limits = run.get("limits")
    if not limits:
        return None
    values = resampled(limits, *last(run))
    if len(values) // 3 <= LEAST_LAG:
        return None
    found = periodic(without_trend(values))
    if found is None:
        return NONE
    lag, deviation = found
    amplitude = math.sqrt(2) * deviation / statistics.fmean(values)
    return Swing(lag * GRID_S, amplitude) if amplitude > SWING else NONE


def resampled(limits: Sequence[Sequence[float]], start: float, end: float) -> List[float]:
    """A limit, told by its changes, on an even grid."""
    values: List[float] = []
    for step in range(int((end - start) / GRID_S)):
        time = start + step * GRID_S
        now = [value for when, value in limits if when <= time]
        values.append(float(now[-1] if now else limits[0][1]))
    return values


def without_trend(values: Sequence[float]) -> List[float]:
    """Less the straight line through them: a limit that climbs does not oscillate."""
    if len(values) < 3:
        return [0.0] * len(values)
    middle, mean = (len(values) - 1) / 2, statistics.fmean(values)
    spread = sum((at - middle) ** 2 for at in range(len(values)))
    slope = sum((at - middle) * (value - mean) for at, value in enumerate(values)) / spread
    return [value - mean - slope * (at - middle) for at, value in enumerate(values)]


def periodic(values: Sequence[float]) -> Optional[Tuple[int, float]]:
    """Lag of the highest peak, in steps, and the standard deviation; None without a peak.

    A peak comes after a lag at which the values go against themselves: a slow change
    correlates with itself at short lags too, and has no period.
    """
    power = statistics.fmean(value * value for value in values) if values else 0.0
    if power <= 0:
        return None
    alike = [statistics.fmean(values[at] * values[at + lag]
                              for at in range(len(values) - lag)) / power
             for lag in range(len(values) // 3 + 2)]
    opposed = False
    best: Optional[int] = None
    for lag in range(1, len(alike) - 1):
        opposed = opposed or alike[lag] < 0
        if (opposed and lag > LEAST_LAG and alike[lag] >= PEAK
                and alike[lag - 1] <= alike[lag] >= alike[lag + 1]
                and (best is None or alike[lag] > alike[best])):
            best = lag
    return None if best is None else (best, math.sqrt(power))
