# SPDX-License-Identifier: GPL-2.0-or-later
"""The detector on a modelled disk under this kernel: each collapse once, and what was told of it.

    sudo build/venv/bin/python -m tests.lab.alerts [SCENARIO...]

Scenarios: stall, battery, cap, neighbour, flood, foreign; all without a name, in six minutes.
The agent runs in `observe`, but for `foreign`, in which it holds a flood until vm.dirty_bytes is
written.  A policy of its own ends alerts at once, so that one run is one scenario after the other.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from . import host
from .agent import Agent
from .disks import Disk
from .loads.base import Place
from .loads.flood import Dd
from .loads.options import parsed
from .loads.sync import Fsync
from .rig import Rig

DISK = Disk(size="8G", cache="256M", rate="120M", seek_us=4000, read_cache="0")
# Baselines are believed after 15 s of ticks; the first one sees nothing yet.
LEARN_S = 22.0
WITHIN_S = 15.0
POLICY = "[alerts]\nhold = 0s\nresolve-after = 5s\nquiet = 0s\n"


@dataclass(frozen=True)
class Lab:
    """What goes wrong with the disk, and what has to be told."""

    name: str
    settings: Tuple[Tuple[str, str], ...]
    expected: Tuple[str, str]
    threads: int = 4
    flood: bool = False
    found: Optional[int] = None  # the limit that is in force before the agent comes
    limit: Optional[int] = None  # that somebody writes then; the agent enforces before


LABS: Tuple[Lab, ...] = (
    Lab("stall", (("stall", "12"),), ("STALL", "device")),
    Lab("battery", (("mode", "writethrough"),), ("CACHE_DEGRADED", "write-through"), threads=1),
    Lab("cap", (("iops", "60"),), ("COLLAPSE", "volume-cap")),
    Lab("neighbour", (("neighbour", "400M"),), ("COLLAPSE", "neighbour")),
    # With the usual limits 2 GB of memory would fill first.
    Lab("flood", (), ("COLLAPSE", "writeback-flood"), flood=True, found=1 << 29),
    Lab("foreign", (), ("FOREIGN_WRITER", "foreign-change"), flood=True, limit=1 << 30),
)


@dataclass(frozen=True)
class Told:
    """What came of it."""

    lab: Lab
    after_s: Optional[float]
    alerts: Tuple[Dict[str, Any], ...]  # those that stood when the first one came

    @property
    def right(self) -> bool:
        names = [(alert["name"], alert["cause"]) for alert in self.alerts]
        return self.after_s is not None and self.after_s <= WITHIN_S and self.lab.expected in names


def run(lab: Lab) -> Told:
    """One scenario. Raises RigError."""
    with tempfile.TemporaryDirectory(prefix="writebackd-alerts-") as directory:
        config = Path(directory)
        (config / "default.conf").write_text(POLICY)
        mode = "observe" if lab.limit is None else "enforce"
        with Rig("alerts", "xfs", DISK) as rig:
            place = Place(rig.mountpoint, rig.directory, rig.spawn)
            sync = Fsync(place, parsed(Fsync, size="64M", threads=str(lab.threads)))
            flood = Dd(place, parsed(Dd))
            for load in (sync, flood)[: 1 + lab.flood]:
                load.prepare()
            time.sleep(3.0)  # what preparing left in the cache
            if lab.found is not None:
                _write_limit(lab.found)
            agent = Agent([rig.device], rig.directory, rig.spawn,
                          ("--mode", mode, "--config-dir", str(config)))
            with agent:
                sync.start()
                time.sleep(LEARN_S)
                if lab.limit is not None:
                    flood.start()
                    time.sleep(15.0)
                began = time.monotonic()
                for key, value in lab.settings:
                    rig.control.set(key, value)
                if lab.limit is not None:
                    _write_limit(lab.limit)
                elif lab.flood:
                    flood.start()
                found: List[Dict[str, Any]] = []
                while not found and time.monotonic() - began < 2 * WITHIN_S:
                    time.sleep(0.25)
                    found = agent.status()["alerts"]
                after = time.monotonic() - began if found else None
                for key, _ in lab.settings:
                    if key != "stall":
                        rig.control.set(key, "writeback" if key == "mode" else "0")
            flood.stop()
            sync.stop()
    return Told(lab, after, tuple(found))


def _write_limit(size: int) -> None:
    """Somebody does; the rig puts back what it found."""
    host.write_limits({"dirty_bytes": size, "dirty_ratio": 0})


def main(argv: Optional[Sequence[str]] = None) -> int:
    """1 when one was missed, late, or told by a wrong name."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab.alerts", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="SCENARIO")
    options = parser.parse_args(argv)
    chosen = [lab for lab in LABS if not options.names or lab.name in options.names]
    good = True
    for lab in chosen:
        told = run(lab)
        good = good and told.right
        after = "nothing" if told.after_s is None else f"{told.after_s:4.1f} s"
        print(f"{lab.name:10} {after:8} {'right' if told.right else 'WRONG'}")
        for alert in told.alerts:
            print(f"    {alert['name']} {alert['cause']}: {alert['summary']}")
            print(f"    evidence {alert['evidence']}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
