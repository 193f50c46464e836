# SPDX-License-Identifier: GPL-2.0-or-later
"""Curves over the time of a run: latencies, limits, dirty memory, what the disks did."""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, Mapping, Optional, Sequence

from . import host
from .loads.base import Load
from .loads.stats import percentile
from .rig import Rig

STEP_S = 0.5
RECENT_S = 1.0  # of latencies behind each point


def rate_of(total: Callable[[], Optional[float]]) -> Callable[[float], Optional[float]]:
    """A function of time that gives a total's rate since the call before."""
    last_time: Optional[float] = None
    last: Optional[float] = None

    def rate(now: float) -> Optional[float]:
        nonlocal last_time, last
        value = total()
        result = None
        if value is not None and last is not None and last_time is not None and now > last_time:
            # A load that was started anew counts from 0 again.
            result = max(0.0, value - last) / (now - last_time)
        last_time, last = now, value
        return result

    return rate


class Series:
    """Columns by name, each a value per point in time, as the run's JSON has them."""

    def __init__(self, rigs: Mapping[str, Rig],
                 loads: Callable[[Sequence[str]], Sequence[Load]]) -> None:
        """loads: those running now that have one of some roles."""
        self._loads = loads
        self._processors = rate_of(host.busy_processors)
        self._written = {name: rate_of(functools.partial(host.device_written, rig.device))
                         for name, rig in rigs.items()}
        self._read = {name: rate_of(functools.partial(host.device_read, rig.device))
                      for name, rig in rigs.items()}
        self.columns: Dict[str, Any] = {
            name: [] for name in ("t", "sync_p99", "sync_max", "processors", "dirty_limit", "dirty",
                                  "writeback")}
        for name in ("device_rate", "read_rate"):
            self.columns[name] = {disk: [] for disk in rigs}

    def sample(self, now: float) -> None:
        """Add a point; `now` is the run's clock."""
        add = self._add
        add("t", round(now, 3))
        add("processors", self._processors(now))
        latencies = sorted(latency for load in self._loads(["sync"])
                           for latency in load.recent(RECENT_S))
        add("sync_p99", percentile(latencies, 0.99))
        add("sync_max", percentile(latencies, 1.0))
        add("dirty_limit", host.vmstat("nr_dirty_threshold"))
        add("dirty", host.vmstat("nr_dirty"))
        add("writeback", host.vmstat("nr_writeback"))
        for name in self._written:
            self.columns["device_rate"][name].append(self._written[name](now))
            self.columns["read_rate"][name].append(self._read[name](now))

    def _add(self, name: str, value: Any) -> None:
        self.columns[name].append(value)
