# SPDX-License-Identifier: GPL-2.0-or-later
"""The problem and the cure on a modelled RAID disk, in under two minutes.

One process writes 4 KiB and calls fsync, again and again; beside it `dd` floods
the disk, first with the kernel's default limits, then with the 15 MB that admins
found by hand, then with the agent.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence

from . import host
from .agent import Agent
from .disks import Disk
from .loads.base import Measured, Place
from .loads.flood import Dd
from .loads.options import parsed
from .loads.sync import Fsync
from .remains import RigError
from .rig import Rig
from .screen import Screen, render

MIB = 1 << 20
WINDOW_S = 15  # every phase is measured for as long
SYNC_FILE = "256M"  # fits the write cache: no need to wait until it is on the media
# Small beside memory, so that the flood rewrites pages that are there already: a
# guest whose host takes free pages back gets new ones at 500 MB/s only, and would
# show its hypervisor's speed instead of the disk's.  4 s at the drain rate.
FLOOD_FILE = "1G"
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

    def __init__(self, rig: Rig, screen: Screen, agent_options: Sequence[str]) -> None:
        self.rig = rig
        self.screen = screen
        self.agent_options = agent_options
        self.agent_status: Dict[str, Any] = {}
        self.results: Dict[str, Result] = {}

    def run(self) -> None:
        self.screen.step("preparing", 1)
        host.write_limits(host.DEFAULT_LIMITS)
        self.sync_load().prepare()
        self.phase("idle", host.DEFAULT_LIMITS, flood=False)
        self.phase("default", host.DEFAULT_LIMITS)
        self.drain()
        self.phase("static", host.fixed_limits(STATIC))
        host.write_limits(host.DEFAULT_LIMITS)
        self.drain()
        with Agent([self.rig.device], self.rig.directory, self.rig.spawn,
                   self.agent_options) as agent:
            self.phase("agent", None, agent=agent)
        self.check_limits(host.DEFAULT_LIMITS, "the agent did not put the limits back")

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
            self.watch(name, "no flood yet", sync, AGENT_IDLE_S)
        writer = self.flood(name) if flood else None
        if name == "default":
            self.watch(name, "flood", sync, COLLAPSE_S, self.collapsed(), COLLAPSE_MAX_S)
        else:
            self.watch(name, "settling", sync, AGENT_SETTLE_S if agent else settle)
        self.results[name] = self.measure(name, sync, writer)
        if agent is not None:
            self.agent_status = agent.status()
        elif limits is not None:
            self.check_limits(limits, "something else on this host sets the limits, stop it first")
        if writer is not None:
            writer.stop()
            if name == "default":
                # Gigabytes of dirty pages go with the data instead of being written first.
                for path in writer.files():
                    os.truncate(path, 0)
        sync.stop()

    def place(self, name: str) -> Place:
        place = Place(self.rig.mountpoint / name, self.rig.directory / name, self.rig.spawn)
        place.directory.mkdir(exist_ok=True)
        place.runtime.mkdir(exist_ok=True)
        return place

    def sync_load(self) -> Fsync:
        return Fsync(self.place("database"), parsed(Fsync, size=SYNC_FILE))

    def flood(self, phase: str) -> Dd:
        # Dirty memory cannot reach the default limit with a file that is smaller.
        size = "auto" if phase == "default" else FLOOD_FILE
        flood = Dd(self.place(f"flood-{size}"), parsed(Dd, size=size))
        flood.prepare()
        flood.start()
        return flood

    def collapsed(self) -> Callable[[], bool]:
        """A test of the causes, the full cache and the busy flusher; not of the effect."""
        before = host.device_written(self.rig.device)
        return lambda: (host.device_written(self.rig.device) - before > 3 * CACHE
                        and host.vmstat("nr_dirty")
                        > 1.1 * host.vmstat("nr_dirty_background_threshold"))

    def drain(self) -> None:
        self.screen.step("emptying the write cache", DRAIN_S)
        end = time.monotonic() + DRAIN_S
        while time.monotonic() < end:
            time.sleep(min(0.5, max(0.0, end - time.monotonic())))
            self.screen.draw()

    def watch(self, name: str, doing: str, sync: Fsync, seconds: float,
              until: Callable[[], bool] = lambda: True, at_most: float = 0) -> None:
        """Show the phase live for some seconds, longer while `until` does not hold."""
        self.screen.step(f"{name}: {doing}", seconds)
        self.live(name, sync, lambda passed: passed >= seconds
                  and (until() or passed >= at_most))

    def measure(self, name: str, sync: Fsync, writer: Optional[Dd]) -> Result:
        self.screen.step(f"{name}: measuring", WINDOW_S)
        sync.open(WINDOW_S)
        device = host.device_written(self.rig.device)
        flood = writer.written() if writer else None
        self.live(name, sync, lambda passed: passed >= WINDOW_S)
        latencies = sync.close()
        written = writer.written() if writer else None
        rate = None if written is None or flood is None else (written - flood) / latencies.elapsed
        result = Result(name, latencies,
                        (host.device_written(self.rig.device) - device) / latencies.elapsed,
                        rate, host.vmstat("nr_dirty_threshold"))
        self.screen.row(name, result.sync, result.device_rate, result.dirty_limit, live=False)
        return result

    def live(self, name: str, sync: Fsync, done: Callable[[float], bool]) -> None:
        start = last = time.monotonic()
        device = host.device_written(self.rig.device)
        while not done(last - start):
            time.sleep(max(0.0, last + 1 - time.monotonic()))
            sync.check()
            now, written = time.monotonic(), host.device_written(self.rig.device)
            self.screen.row(name, sync.measured(last_s=2), (written - device) / (now - last),
                            host.vmstat("nr_dirty_threshold"), live=True)
            self.screen.draw()
            last, device = now, written


@dataclass(frozen=True)
class Verdict:
    what: str
    ratio: float
    at_least: float

    @property
    def good(self) -> bool:
        return self.ratio >= self.at_least


def verdicts(results: Dict[str, Result]) -> List[Verdict]:
    """What the demo has to show."""
    agent, default, static = (results[name] for name in ("agent", "default", "static"))

    def rate(of: Result) -> float:
        # With no fsync at all in the window, one is what it was below.
        return max(of.sync.rate or 0.0, 1 / of.sync.elapsed)

    return [
        Verdict("fsync rate, agent / default limits", rate(agent) / rate(default), 100),
        Verdict("fsync rate, agent / static 15 MB", rate(agent) / rate(static), 1),
        Verdict("sequential rate, agent / default limits",
                agent.device_rate / default.device_rate, 0.85),
    ]


def report(demo: Demo, judged: List[Verdict], restored: bool) -> Dict[str, Any]:
    return {
        "kernel": platform.release(), "cpus": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "fs": demo.rig.fs, "disk": asdict(demo.rig.disk), "window_s": WINDOW_S,
        "phases": [asdict(result) for result in demo.results.values()],
        "agent_status": demo.agent_status,
        "verdicts": [dict(asdict(verdict), good=verdict.good) for verdict in judged],
        "restored": restored,
    }


def expected_s() -> float:
    """Seconds from the start to the last result, for the progress bar."""
    settling = IDLE_SETTLE_S + COLLAPSE_S + SETTLE_S + AGENT_IDLE_S + AGENT_SETTLE_S
    return 1 + len(Demo.PHASES) * WINDOW_S + settling + 2 * DRAIN_S + Agent.START_S


def show_verdicts(demo: Demo, judged: List[Verdict], restored: bool) -> None:
    for verdict in judged:
        print(f"  {verdict.what:40} {verdict.ratio:8.{0 if verdict.ratio >= 100 else 2}f}"
              f"   wanted >= {verdict.at_least:<5g} {'good' if verdict.good else 'MISSED'}")
    devices = demo.agent_status.get("devices", [])
    for device in (device for device in devices if device.get("name") == demo.rig.device):
        print(f"\nThe agent says of {device.get('name')} ({device.get('state')}): "
              f"{device.get('reason')}")
    print("\nThe disk is gone and vm.dirty_* are as they were before." if restored else
          "\nvm.dirty_* are NOT as they were before.")


def demonstrate(options: argparse.Namespace) -> int:
    started = time.monotonic()
    before = host.read_limits()
    threshold = host.vmstat("nr_dirty_threshold")
    # Room for the flood's file whatever the default limit is here: the model's data is zeros.
    disk = Disk(size=f"{(4 * threshold >> 30) + 4}G", cache=f"{CACHE // MIB}M",
                rate=f"{RATE // MIB}M")
    screen = Screen(Demo.PHASES, expected_s())
    with Rig("demo", options.fs, disk) as rig:
        screen.title = (f"Modelled RAID: {disk.cache} write cache, {disk.rate}/s behind it; "
                        f"{rig.device}, {rig.fs}\n"
                        "Load: 4 KiB random write + fsync; flood: dd bs=1M")
        demo = Demo(rig, screen, ["--policy", options.policy] if options.policy else [])
        try:
            demo.run()
        finally:
            screen.end()
    restored = host.read_limits() == before
    judged = verdicts(demo.results)
    if not screen.terminal:
        print(render(screen.title, screen.rows))
    print()
    show_verdicts(demo, judged, restored)
    print(f"Took {time.monotonic() - started:.0f} s.")
    if options.json:
        Path(options.json).write_text(json.dumps(report(demo, judged, restored), indent=1) + "\n")
    return 0 if restored and all(verdict.good for verdict in judged) else 1


def main(argv: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="tests/demo", description=__doc__.split("\n")[0])
    parser.add_argument("--fs", default="xfs", choices=("xfs", "ext4"))
    parser.add_argument("--policy", metavar="NAME|FILE", help="for the agent")
    parser.add_argument("--json", metavar="FILE", help="write the results to a file")
    options = parser.parse_args(argv)
    try:
        return demonstrate(options)
    except RigError as error:
        print(f"tests/demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: the disk is gone, vm.dirty_* are as they were before",
              file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
