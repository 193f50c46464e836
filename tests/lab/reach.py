# SPDX-License-Identifier: GPL-2.0-or-later
"""The worst second, the longest commit, and how often the limit changes: figures of one run.

All are taken from what the run recorded, so that a better definition needs no new run.
"""

from __future__ import annotations

from typing import List, Optional, Tuple

from .evaluation import Run
from .scenario import Scenario

LAST_S = 30.0  # of the run: there a limit should rest


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


def writes_per_minute(run: Run) -> Optional[float]:
    """Changes of the limits at the end of the run."""
    limits = run.get("limits")
    if not limits:
        return None
    end = max(window[1] for window in run["windows"].values())
    start = max(run["windows"]["judged"][0], end - LAST_S)
    # The first entry is what was there, not a write.
    writes = sum(start < time <= end for time, _ in limits[1:])
    return float(writes * 60 / (end - start))
