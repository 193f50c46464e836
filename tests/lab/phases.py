# SPDX-License-Identifier: GPL-2.0-or-later
"""The parts of the demo: a synchronous writer alone, beside a flood, and with the agent."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

from writebackd.formats import latency

from . import host
from .agent import Agent
from .loads.base import Measured, Place
from .loads.flood import Dd
from .loads.options import parsed
from .loads.sync import Fsync
from .own_disk import check_budget
from .remains import RigError
from .rescue_picture import Second, Stage
from .rig import Rig
from .screen import Screen
from .screenshots import Screenshots

MIB = 1 << 20
WINDOW_S = 15  # every phase is measured for as long
SYNC_FILE = 256 * MIB  # fits the write cache: no need to wait until it is on the media
# Small beside memory, so that the flood rewrites pages that are there already: a
# guest whose host takes free pages back gets new ones at 500 MB/s only, and would
# show its hypervisor's speed instead of the disk's.  4 s at the drain rate.
FLOOD_FILE = 1024 * MIB
STATIC = 15 * MIB
CACHE = 512 * MIB
RATE = 250 * MIB
DRAIN_S = CACHE / RATE + 0.2  # to an empty write cache, so that no phase inherits one

# Under default limits nothing is written back until the background limit is passed,
# fsync is slow only once the write cache is full, and it recovers for a second each
# time that the flusher gets below the background limit and pauses.
COLLAPSE_S, COLLAPSE_MAX_S = 14, 24
IDLE_SETTLE_S = 2
SETTLE_S = 6
# The agent starts on a host where nothing is wrong yet, and gets as long to deal
# with the flood as the static limit plus what its own loop of 1 s needs.
AGENT_IDLE_S, AGENT_SETTLE_S = 5, 8
# One that comes into a flood cannot set a limit below what is dirty: 4.5 GB at the drain rate.
RESCUE_S = 30


@dataclass(frozen=True)
class Result:
    """A phase: what the synchronous writer, the device and the flood got."""

    phase: str
    sync: Measured
    device_rate: float  # bytes per second written to the device
    flood_rate: Optional[float]  # bytes per second as the flood's writer sees it
    dirty_limit: int  # bytes, at the end


class Demo:
    """The phases, on one rig; `results` grows as they are done."""

    PHASES = ("idle", "default", "static", "agent")
    RESCUE = ("idle", "default", "static", "agent")

    def __init__(self, rig: Rig, screen: Screen, agent_options: Sequence[str],
                 drain_s: float = DRAIN_S, data: str = "zero", budget: Optional[int] = None
                 ) -> None:
        """`data` is what the flood writes, `budget` the most that the disk may take, in bytes."""
        self.rig = rig
        self.screen = screen
        self.agent_options = agent_options
        self.drain_s = drain_s
        self.data = data
        self.budget = budget
        self.agent_status: Dict[str, Any] = {}
        self.results: Dict[str, Result] = {}
        self.seconds: List[Second] = []
        self.stages: List[Stage] = []
        self._at_first = 0  # bytes that the device had taken
        self._began = time.monotonic()

    # ---- one phase after the other -------------------------------------

    def run(self) -> None:
        self.prepare()
        self.phase("idle", host.DEFAULT_LIMITS, flood=False)
        self.phase("default", host.DEFAULT_LIMITS)
        self.drain()
        self.phase("static", host.fixed_limits(STATIC))
        host.write_limits(host.DEFAULT_LIMITS)
        self.drain()
        with self.agent() as agent:
            self.phase("agent", None, agent=agent)
        self.check_limits(host.DEFAULT_LIMITS, "the agent did not put the limits back")

    def prepare(self) -> None:
        self.screen.step("preparing", 1)
        self._at_first = host.device_written(self.rig.device)
        host.write_limits(host.DEFAULT_LIMITS)
        self.sync_load().prepare()

    def agent(self, *options: str) -> Agent:
        return Agent([self.rig.device], self.rig.directory, self.rig.spawn,
                     [*self.agent_options, *options])

    def check_limits(self, limits: Dict[str, int], otherwise: str) -> None:
        now = host.read_limits()
        wrong = [f"vm.{name} is {now[name]}" for name in limits if now[name] != limits[name]]
        if wrong:
            raise RigError(f"{otherwise}: {', '.join(wrong)}")

    def phase(self, name: str, limits: Optional[Dict[str, int]], flood: bool = True,
              agent: Optional[Agent] = None) -> None:
        """One row of the table; limits None: as they are, and as the agent makes them."""
        if limits is not None:
            host.write_limits(limits)
        settle = SETTLE_S if flood else IDLE_SETTLE_S
        sync = self.sync_load()
        sync.start()
        if agent is not None:
            self.watch(name, "no flood yet", sync, None, AGENT_IDLE_S)
        writer = self.flood(name) if flood else None
        if name == "default":
            self.collapse(sync, writer)
        else:
            self.watch(name, "settling", sync, writer, AGENT_SETTLE_S if agent else settle)
        self.measure(name, sync, writer)
        if agent is not None:
            self.agent_status = agent.status()
        elif limits is not None:
            self.check_limits(limits, "something else on this host sets the limits, stop it first")
        if writer is not None:
            writer.stop()
            if name == "default":
                self.discard(writer)
        sync.stop()

    # ---- for the picture -----------------------------------------------

    def rescue(self, screenshots: Screenshots) -> None:
        """A flood under default limits that goes on when the agent, which observed, enforces."""
        self.prepare()
        sync = self.sync_load()
        sync.start()
        with self.agent("--mode", "observe") as agent:
            self._began = time.monotonic()
            with self.stage("idle", "no flood"):
                self.measure("idle", sync, None)
            writer = self.flood("default")
            with self.stage("default", "flood, default limits", "without"):
                self.collapse(sync, writer)
                self.measure("default", sync, writer)
            with self.stage("agent", "flood, writebackd", "with"), screenshots.top(agent):
                agent.enforce()
                self.watch("agent", "settling", sync, writer, RESCUE_S)
                self.measure("agent", sync, writer)
            self.agent_status = agent.status()
        screenshots.report(agent)
        writer.stop()
        self.discard(writer)
        sync.stop()
        self.check_limits(host.DEFAULT_LIMITS, "the agent did not put the limits back")
        self.drain()
        self.phase("static", host.fixed_limits(STATIC))
        host.write_limits(host.DEFAULT_LIMITS)

    @contextlib.contextmanager
    def stage(self, name: str, who: str, style: str = "") -> Iterator[None]:
        """A part of the picture, with what was measured at its end."""
        begin_s = time.monotonic() - self._began
        yield
        self.stages.append(Stage(begin_s, time.monotonic() - self._began,
                                 f"{who}: {latency(self.results[name].sync.p99)}", style))

    # ---- parts ---------------------------------------------------------

    def place(self, name: str) -> Place:
        place = Place(self.rig.mountpoint / name, self.rig.directory / name, self.rig.spawn)
        place.directory.mkdir(exist_ok=True)
        place.runtime.mkdir(exist_ok=True)
        return place

    def sync_load(self) -> Fsync:
        return Fsync(self.place("database"), parsed(Fsync, size=f"{SYNC_FILE}B"))

    def flood(self, phase: str) -> Dd:
        # Dirty memory cannot reach the default limit with a file that is smaller.
        size = "auto" if phase == "default" else f"{FLOOD_FILE}B"
        flood = Dd(self.place(f"flood-{size}"), parsed(Dd, size=size, data=self.data))
        flood.prepare()
        flood.start()
        return flood

    @staticmethod
    def discard(writer: Dd) -> None:
        """Gigabytes of dirty pages go with the data instead of being written first."""
        for path in writer.files():
            os.truncate(path, 0)

    def collapse(self, sync: Fsync, writer: Optional[Dd]) -> None:
        self.watch("default", "flood", sync, writer, COLLAPSE_S, self.collapsed(), COLLAPSE_MAX_S)

    def collapsed(self) -> Callable[[], bool]:
        """A test of the causes, the full cache and the busy flusher; not of the effect."""
        before = host.device_written(self.rig.device)
        return lambda: (host.device_written(self.rig.device) - before > 3 * CACHE
                        and host.vmstat("nr_dirty")
                        > 1.1 * host.vmstat("nr_dirty_background_threshold"))

    def drain(self) -> None:
        self.screen.step("emptying the write cache", self.drain_s)
        end = time.monotonic() + self.drain_s
        while time.monotonic() < end:
            time.sleep(min(0.5, max(0.0, end - time.monotonic())))
            self.screen.draw()

    def watch(self, name: str, doing: str, sync: Fsync, writer: Optional[Dd], seconds: float,
              until: Callable[[], bool] = lambda: True, at_most: float = 0) -> None:
        """Show the phase live for some seconds, longer while `until` does not hold."""
        self.screen.step(f"{name}: {doing}", seconds)
        self.live(name, sync, writer, lambda passed: passed >= seconds
                  and (until() or passed >= at_most))

    def measure(self, name: str, sync: Fsync, writer: Optional[Dd]) -> None:
        self.screen.step(f"{name}: measuring", WINDOW_S)
        sync.open(WINDOW_S)
        device, flood = host.device_written(self.rig.device), written(writer)
        self.live(name, sync, writer, lambda passed: passed >= WINDOW_S)
        latencies = sync.close()
        result = Result(name, latencies,
                        (host.device_written(self.rig.device) - device) / latencies.elapsed,
                        rate(flood, written(writer), latencies.elapsed),
                        host.dirty_limit(self.rig.device))
        self.results[name] = result
        self.screen.row(name, result.sync, result.flood_rate, result.dirty_limit, live=False)

    def live(self, name: str, sync: Fsync, writer: Optional[Dd],
             done: Callable[[float], bool]) -> None:
        start = last = time.monotonic()
        device, flood = host.device_written(self.rig.device), written(writer)
        while not done(last - start):
            time.sleep(max(0.0, last + 1 - time.monotonic()))
            sync.check()
            if self.budget is not None:
                check_budget(self.rig.device, self._at_first, self.budget)
            now, to_device, by_flood = (time.monotonic(), host.device_written(self.rig.device),
                                        written(writer))
            limit = host.dirty_limit(self.rig.device)
            second = sync.measured(last_s=1)
            self.seconds.append(Second(now - self._began, second.p99, limit,
                                       (to_device - device) / (now - last), second.max or 0.0))
            self.screen.row(name, sync.measured(last_s=2), rate(flood, by_flood, now - last),
                            limit, live=True)
            self.screen.draw()
            last, device, flood = now, to_device, by_flood


def written(writer: Optional[Dd]) -> Optional[int]:
    """By the flood so far; None without one, and where the kernel does not account it."""
    return writer.written() if writer else None


def rate(before: Optional[int], after: Optional[int], seconds: float) -> Optional[float]:
    return None if before is None or after is None else (after - before) / seconds
