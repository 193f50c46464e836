# SPDX-License-Identifier: GPL-2.0-or-later
"""The problem and the cure, on a modelled RAID disk or on one of yours, in two minutes.

One process writes 4 KiB and calls fsync, again and again; beside it `dd` floods
the disk, first with the kernel's default limits, then with the 15 MB that admins
found by hand, then with the agent.  For a picture the flood goes on while the
agent, which observed until then, sets its limits.
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
from typing import Any, Dict, List, Optional, Sequence, Tuple

from writebackd.policy.units import parse_size

from . import host, own_disk
from .agent import Agent, refuse_second
from .disks import Disk
from .ground import Ground, check_room
from .phases import (
    AGENT_IDLE_S,
    AGENT_SETTLE_S,
    CACHE,
    COLLAPSE_S,
    DRAIN_S,
    FLOOD_FILE,
    IDLE_SETTLE_S,
    MIB,
    RATE,
    RESCUE_S,
    SETTLE_S,
    SYNC_FILE,
    WINDOW_S,
    Demo,
    Result,
)
from .remains import RigError
from .rescue_picture import picture, relief
from .rig import Rig
from .screen import Screen, render, table
from .screenshots import Screenshots


@dataclass(frozen=True)
class Verdict:
    what: str
    ratio: float
    at_least: Optional[float]  # None: on a disk that nobody knows

    @property
    def good(self) -> bool:
        return self.at_least is None or self.ratio >= self.at_least


def verdicts(results: Dict[str, Result], modelled: bool) -> List[Verdict]:
    """What the demo has to show."""
    agent, default = results["agent"], results["default"]
    found = [("fsync rate, agent / default limits", _rate(agent) / _rate(default), 100.0)]
    if "static" in results:
        found.append(("fsync rate, agent / static 15 MB",
                      _rate(agent) / _rate(results["static"]), 1.0))
    found.append(("written to the disk, agent / default limits",
                  agent.device_rate / default.device_rate, 0.85))
    judged = [Verdict(what, ratio, least if modelled else None) for what, ratio, least in found]
    if agent.flood_rate is not None and default.flood_rate:
        judged.append(Verdict("by the flood, agent / default limits",
                              agent.flood_rate / default.flood_rate, None))
    return judged


def _rate(of: Result) -> float:
    # With no fsync at all in the window, one is what it was below.
    return max(of.sync.rate or 0.0, 1 / of.sync.elapsed)


def report(demo: Demo, judged: List[Verdict], restored: bool) -> Dict[str, Any]:
    own = isinstance(demo.rig, Ground)
    return {
        "kernel": platform.release(), "cpus": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "fs": demo.rig.fs, "disk": None if own else asdict(demo.rig.disk), "window_s": WINDOW_S,
        "phases": [asdict(result) for result in demo.results.values()],
        "seconds": [asdict(second) for second in demo.seconds],
        "agent_status": demo.agent_status,
        "verdicts": [dict(asdict(verdict), good=verdict.good) for verdict in judged],
        "restored": restored,
    }


def expected_s(rescue: bool, drain_s: float) -> Tuple[float, float]:
    """Seconds from the start to the last result, and those of them with a flood."""
    if rescue:
        floods = COLLAPSE_S + SETTLE_S + RESCUE_S + 3.0 * WINDOW_S
        return 1 + WINDOW_S + Agent.START_S + drain_s + floods, floods
    floods = 3.0 * WINDOW_S + COLLAPSE_S + SETTLE_S + AGENT_SETTLE_S
    return (1 + IDLE_SETTLE_S + WINDOW_S + floods + 2 * drain_s + Agent.START_S + AGENT_IDLE_S,
            floods)


def show_verdicts(demo: Demo, judged: List[Verdict], restored: bool) -> None:
    for verdict in judged:
        wanted = "" if verdict.at_least is None else (
            f"   wanted >= {verdict.at_least:<5g} {'good' if verdict.good else 'MISSED'}")
        print(f"  {verdict.what:44} {verdict.ratio:8.{0 if verdict.ratio >= 100 else 2}f}{wanted}")
    devices = demo.agent_status.get("devices", [])
    for device in (device for device in devices if device.get("name") == demo.rig.device):
        print(f"\nThe agent says of {device.get('name')} ({device.get('state')}): "
              f"{device.get('reason')}")
    print(f"\n{_gone(demo.rig)} and vm.dirty_* are as they were before." if restored else
          "\nvm.dirty_* are NOT as they were before.")


def _gone(rig: Rig) -> str:
    return "Its files are gone" if isinstance(rig, Ground) else "The disk is gone"


def modelled(options: argparse.Namespace, screen: Screen, agent_options: Sequence[str]) -> Demo:
    threshold = host.vmstat("nr_dirty_threshold")
    # Room for the flood's file whatever the default limit is here: the model's data is zeros.
    disk = Disk(size=f"{(4 * threshold >> 30) + 4}G", cache=f"{CACHE // MIB}M",
                rate=f"{RATE // MIB}M")
    screen.title = f"Modelled RAID: {disk.cache} write cache, {disk.rate}/s behind it; {options.fs}"
    return Demo(Rig("demo", options.fs, disk), screen, agent_options)


def on_own_disk(options: argparse.Namespace, screen: Screen, agent_options: Sequence[str]) -> Demo:
    """Says what it will write. RigError where that would do harm."""
    directory = options.directory.resolve()
    whole_s, floods_s = expected_s(bool(options.svg), own_disk.DRAIN_S)
    rig = Ground("demo", directory)
    check_room(directory)
    files = own_disk.files_bytes(SYNC_FILE, FLOOD_FILE)
    print(own_disk.warning(directory, rig.fs, rig.device, files, floods_s,
                           whole_s + own_disk.LOOK_S + Agent.START_S, options.budget), flush=True)
    screen.title = f"Disk {rig.device}, {rig.fs}"
    return Demo(rig, screen, agent_options, own_disk.DRAIN_S, own_disk.DATA, options.budget)


def demonstrate(options: argparse.Namespace) -> int:
    started = time.monotonic()
    refuse_second()
    before = host.read_limits()
    agent_options = ["--policy", options.policy] if options.policy else []
    phases = Demo.RESCUE if options.svg else Demo.PHASES
    screen = Screen(phases, expected_s(bool(options.svg), DRAIN_S)[0])
    make = on_own_disk if options.directory else modelled
    demo = make(options, screen, agent_options)
    with demo.rig as rig:
        if isinstance(rig, Ground):
            own_disk.refuse_others(rig, agent_options)
        screen.title += f"\nLoad: 4 KiB random write + fsync; flood: dd bs=1M, {demo.data} data"
        try:
            if options.svg:
                demo.rescue(Screenshots(options.top, options.report))
            else:
                demo.run()
        finally:
            screen.end()
    restored = host.read_limits() == before
    judged = verdicts(demo.results, not options.directory)
    if not screen.terminal:
        print(render(screen.title, screen.rows))
    print()
    show_verdicts(demo, judged, restored)
    print(f"Took {time.monotonic() - started:.0f} s.")
    if options.svg:
        about = f"tests/demo --svg; {screen.title.splitlines()[0]}"
        said = f"{table(screen.rows)}\n{relief(demo.seconds, demo.stages)}"
        print(said)
        options.svg.write_text(picture(demo.seconds, demo.stages, about, said))
    if options.json:
        Path(options.json).write_text(json.dumps(report(demo, judged, restored), indent=1) + "\n")
    return 0 if restored and all(verdict.good for verdict in judged) else 1


def main(argv: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="tests/demo", description=__doc__.split("\n")[0])
    parser.add_argument("--fs", default="xfs", choices=("xfs", "ext4"),
                        help="of the modelled disk")
    parser.add_argument("--directory", metavar="DIR", type=Path,
                        help="on the disk that DIR is on, with files of its own, in place of the"
                        " modelled one")
    parser.add_argument("--budget", metavar="SIZE", type=parse_size, default=own_disk.BUDGET,
                        help="with --directory, end before so much is written (default 300G)")
    parser.add_argument("--policy", metavar="NAME|FILE", help="for the agent")
    parser.add_argument("--json", metavar="FILE", help="write the results to a file")
    parser.add_argument("--svg", metavar="FILE", type=Path,
                        help="let the agent set limits in the midst of the flood, and draw it")
    parser.add_argument("--top", metavar="FILE", type=Path,
                        help="with --svg, `writebackctl top` meanwhile, as an image")
    parser.add_argument("--report", metavar="FILE", type=Path,
                        help="with --svg, the plot of `writebackctl report`, as an image")
    options = parser.parse_args(argv)
    if (options.top or options.report) and not options.svg:
        parser.error("--top and --report are pictures of the run that --svg makes")
    try:
        return demonstrate(options)
    except RigError as error:
        print(f"tests/demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: what it made is gone, vm.dirty_* are as they were before",
              file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
