# SPDX-License-Identifier: GPL-2.0-or-later
"""Keeps the results of calibrations by disk; their medians are what is known of it.

They seed the learned values (estimate/learned.py), and `recommend` takes the limit from here.
"""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from writebackd.report.learned_store import encode, read_known, read_learned
from writebackd.report.safe_files import write_atomically
from writebackd.tuning import KEEP_S
from writebackd.types.device_memory import Fact, Learned

VERSION = 1
# Of each disk: a median of more would be slow to see a new battery.
MOST_RUNS = 5
MOST_DISKS = 4096


@dataclass(frozen=True)
class Calibrated:
    """One run, or the median of several; None: unknown. Bytes, seconds, bytes per second."""

    wall_s: float
    drain_rate: Optional[float] = None
    cache_bytes: Optional[float] = None
    baseline_s: Optional[float] = None
    tau_s: Optional[float] = None
    limit_bytes: Optional[float] = None


VALUES = tuple(each.name for each in fields(Calibrated) if each.name != "wall_s")


def median(runs: Sequence[Calibrated]) -> Optional[Calibrated]:
    """The median of each value over the runs that know it; None without runs."""
    if not runs:
        return None
    known = {name: [v for v in (getattr(run, name) for run in runs) if v] for name in VALUES}
    values: Dict[str, Any] = {n: statistics.median(all_) for n, all_ in known.items() if all_}
    return Calibrated(max(run.wall_s for run in runs), **values)


def load(path: Path) -> Dict[str, Tuple[Calibrated, ...]]:
    """Runs by disk identity, oldest first. Raises OSError, or ValueError for a damaged file."""
    return read_known(path, _decode)


def _decode(data: bytes) -> Dict[str, Tuple[Calibrated, ...]]:
    body = json.loads(data)
    if body["version"] != VERSION:
        raise ValueError(f"version {body['version']}, this release knows {VERSION}")
    return {str(name): tuple(map(_run, rows)) for name, rows in body["disks"].items()}


def unexpired(runs: Sequence[Calibrated], wall_s: float) -> Tuple[Calibrated, ...]:
    """Drop runs as old as learned values may get: the disk may have another use by now."""
    return tuple(each for each in runs if abs(wall_s - each.wall_s) <= KEEP_S)


def add(path: Path, identity: str, run: Calibrated) -> Tuple[Calibrated, ...]:
    """Store a run; returns all runs of its disk. Raises OSError or ValueError as `load`."""
    known = {name: unexpired(runs, run.wall_s) for name, runs in load(path).items()}
    mine = (*known.pop(identity, ()), run)[-MOST_RUNS:]
    kept = [(name, runs) for name, runs in known.items() if runs][-MOST_DISKS + 1 :]
    rows = {name: [vars(each) for each in runs] for name, runs in [*kept, (identity, mine)]}
    body = {"version": VERSION, "disks": rows}
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    write_atomically(path, json.dumps(body).encode())
    return mine


def seed(path: Path, identity: str, run: Calibrated) -> None:
    """Write the daemon's file while no daemon runs. Raises OSError, or ValueError if damaged.

    No cache seen is no reason to forget a larger one: what was not measured stays as it is.
    """
    known = read_learned(path)
    names = ("drain_rate", "cache_bytes", "baseline_s")
    facts: Dict[str, Any] = {
        name: Fact(getattr(run, name), run.wall_s) for name in names if getattr(run, name)
    }
    learned = replace(known.get(identity, Learned()), **facts)
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    write_atomically(path, encode({**known, identity: learned}))


def _run(row: Mapping[str, Any]) -> Calibrated:
    values = {name: _positive(row[name]) for name in VALUES if row.get(name) is not None}
    return Calibrated(_positive(row["wall_s"]), **values)


def _positive(value: Any) -> float:
    number = float(value)
    if not 0 < number < math.inf:
        raise ValueError(f"{value} is impossible")
    return number
