# SPDX-License-Identifier: GPL-2.0-or-later
"""Curves over the time of a run: what the loads got, the limits, the true cache fill."""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from . import host
from .agent import Agent
from .loads.base import Load
from .loads.stats import percentile
from .remains import RigError
from .rig import Rig

STEP_S = 0.5
RECENT_S = 1.0  # of latencies behind each point
ANSWER_S = 0.3  # a stopped agent must not stop the clock


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

    def __init__(self, rigs: Mapping[str, Rig], loads: Callable[[Sequence[str]], Sequence[Load]],
                 agent: Optional[Agent]) -> None:
        """loads: those running now that have one of some roles."""
        self._rigs = rigs
        self._loads = loads
        self._agent = agent
        self._rates = {"sync_rate": rate_of(lambda: self._total("ops", ["sync"])),
                       "flood_rate": rate_of(lambda: self._total("bytes", ["flood", "job"])),
                       "processors": rate_of(host.busy_processors)}
        self._written = {name: rate_of(functools.partial(host.device_written, rig.device))
                         for name, rig in rigs.items()}
        self._read = {name: rate_of(functools.partial(host.device_read, rig.device))
                      for name, rig in rigs.items()}
        self.columns: Dict[str, Any] = {
            name: [] for name in ("t", "sync_rate", "sync_p99", "sync_max", "flood_rate",
                                  "processors", "dirty_limit", "background_limit", "dirty",
                                  "writeback")}
        per_disk = ["device_rate", "read_rate", "fill"]
        if agent is not None:
            self.columns["agent_target"] = []
            per_disk.append("agent_fill")
        for name in per_disk:
            self.columns[name] = {disk: [] for disk in rigs}

    def sample(self, now: float) -> None:
        """Add a point; `now` is the run's clock."""
        add = self._add
        add("t", round(now, 3))
        for name, rate in self._rates.items():
            add(name, rate(now))
        latencies = sorted(latency for load in self._loads(["sync"])
                           for latency in load.recent(RECENT_S))
        add("sync_p99", percentile(latencies, 0.99))
        add("sync_max", percentile(latencies, 1.0))
        add("dirty_limit", host.vmstat("nr_dirty_threshold"))
        add("background_limit", host.vmstat("nr_dirty_background_threshold"))
        add("dirty", host.vmstat("nr_dirty"))
        add("writeback", host.vmstat("nr_writeback"))
        for name, rig in self._rigs.items():
            self._add_disk("device_rate", name, self._written[name](now))
            self._add_disk("read_rate", name, self._read[name](now))
            self._add_disk("fill", name, rig.control.get()["fill"])
        if self._agent is not None:
            self._sample_agent(self._agent)

    def _sample_agent(self, agent: Agent) -> None:
        try:
            status = agent.status(ANSWER_S) if agent.alive() else {}
        except RigError:  # stopped, or it has not opened its socket yet
            status = {}
        self._add("agent_target", status.get("limits", {}).get("wanted_bytes"))
        devices = {mount: device for device in status.get("devices", [])
                   for mount in device["mounts"]}
        for name, rig in self._rigs.items():
            device = devices.get(str(rig.mountpoint), {})
            self._add_disk("agent_fill", name, device.get("write_cache", {}).get("fill"))

    def _add(self, name: str, value: Any) -> None:
        self.columns[name].append(value)

    def _add_disk(self, name: str, disk: str, value: Any) -> None:
        self.columns[name][disk].append(value)

    def _total(self, field: str, roles: List[str]) -> Optional[float]:
        totals = [getattr(load.counters(), field) for load in self._loads(roles)]
        known = [total for total in totals if total is not None]
        return sum(known) if known else None
