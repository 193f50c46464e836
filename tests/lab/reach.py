# SPDX-License-Identifier: GPL-2.0-or-later
"""The worst second, the longest commit, and how quiet the limit is: figures of one run.

All are taken from what the run recorded, so that a better definition needs no new run.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple

from .report.evaluation import Run
from .scenario import Scenario

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


def flooded(scenario: Scenario, run: Run) -> Optional[Tuple[float, float]]:
    """From the first second of a flood with this contender to the end; None without a flood."""
    starts = [span.start for load in scenario.loads if load.role in ("flood", "job")
              for span in load.spans]
    if not starts:
        return None
    return max(min(starts), scenario.contend), max(end for _, end in run["windows"].values())


def worst_second(scenario: Scenario, run: Run) -> Optional[float]:
    """The highest p99 of commits in a second of a flood; None where loads tell none meanwhile."""
    return _highest(run, "sync_p99", flooded(scenario, run))


def longest(scenario: Scenario, run: Run) -> Optional[float]:
    """The longest commit of a flood; of tools, that in their windows."""
    found = [_highest(run, "sync_max", flooded(scenario, run))]
    found += [measured.get("max") for load in run["loads"] if load["role"] == "sync"
              for name, measured in load["windows"].items() if name != "idle" and measured]
    return max((each for each in found if each is not None), default=None)


def _highest(run: Run, name: str, span: Optional[Tuple[float, float]]) -> Optional[float]:
    """Of a column, each of whose points is of the second before it."""
    start, end = span or (0.0, 0.0)
    return max((value for time, value in zip(run["series"]["t"], run["series"].get(name, ()))
                if value is not None and start < time <= end), default=None)


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
