# SPDX-License-Identifier: GPL-2.0-or-later
"""Cgroup v2 as the cure: the loads in groups of their own, and the io controller's levers.

remains.py removes the groups and undoes the levers, also those of a killed run.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any, Dict, Optional, Sequence

from writebackd.policy import units

from .loads.base import Spawn
from .remains import CGROUPS, RigError
from .rig import Rig

GROUPS = ("flood", "sync")
# Without memory no writeback of dirty pages is charged to the group that made them.
CONTROLLERS = ("memory", "io")
SYNC_WEIGHT = 1000  # a group has 100
COST_TARGET_US = 5000  # io.cost slows everybody down while 5 % of the requests take longer


class Groups:
    """A context manager; inside it the groups writebackd-lab-NAME.slice/{flood,sync} exist."""

    def __init__(self, rig: Rig) -> None:
        """rig: the one that the groups go with."""
        self._remains = rig.remains
        self.directory = rig.remains.cgroup

    def __enter__(self) -> Groups:
        check()
        try:
            self.directory.mkdir()
            for parent in (CGROUPS, self.directory):
                control = parent / "cgroup.subtree_control"
                there = control.read_text().split()
                for name in CONTROLLERS:
                    if name not in there:
                        self._write(control, f"+{name}", undo=f"-{name}")
            for name in GROUPS:
                (self.directory / name).mkdir()
        except BaseException:
            self._remains.remove_cgroups()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._remains.remove_cgroups()

    def spawn(self, spawn: Spawn, group: str) -> Spawn:
        """Like `spawn`, with the process in the group from its first instruction on."""
        procs = str(self.directory / group / "cgroup.procs")

        def into(argv: Sequence[str], *role: str, **options: Any) -> subprocess.Popen[bytes]:
            enter = ["sh", "-c", 'echo $$ >"$0" && exec "$@"', procs]
            return spawn([*enter, *argv], *role, **options)

        return into

    def apply(self, lever: str, rig: Rig) -> None:
        """Set a lever for a disk: `io.max 80%` (of its drain rate) or `io.max 20M`, `io.cost`,
        `io.latency 5ms`; nothing for `groups`.  RigError where this kernel has none."""
        name, _, argument = lever.partition(" ")
        if name == "groups":
            return  # somebody else sets them
        levers = {"io.max": self._max, "io.cost": self._cost, "io.latency": self._latency}
        if name not in levers:
            raise RigError(f"no lever {name}: take one of {', '.join(levers)}")
        number = Path(f"/sys/block/{rig.device}/dev").read_text().strip()
        levers[name](argument, number, rig)

    def _max(self, argument: str, number: str, rig: Rig) -> None:
        share = re.fullmatch(r"(\d+)%", argument)
        wbps = (rig.disk.rate_bytes * int(share.group(1)) // 100 if share
                else units.parse_size(argument))
        self._write(self.directory / "flood/io.max", f"{number} wbps={wbps}")

    def _cost(self, argument: str, number: str, rig: Rig) -> None:
        model = " ".join(f"{key}={value}" for key, value in cost_model(rig).items())
        self._write(CGROUPS / "io.cost.model", f"{number} ctrl=user model=linear {model}",
                    undo=f"{number} ctrl=auto")
        target = COST_TARGET_US
        self._write(CGROUPS / "io.cost.qos",
                    f"{number} enable=1 ctrl=user rpct=95 rlat={target} wpct=95 wlat={target} "
                    "min=50 max=100", undo=f"{number} enable=0")
        self._write(self.directory / "sync/io.weight", f"default {SYNC_WEIGHT}")

    def _latency(self, argument: str, number: str, rig: Rig) -> None:
        target = round(units.parse_time(argument) * 1_000_000)
        self._write(self.directory / "sync/io.latency", f"{number} target={target}")

    def _write(self, path: Path, value: str, undo: Optional[str] = None) -> None:
        if not path.exists():
            raise RigError(f"this kernel was built without {path.name}")
        if undo is not None:
            self._remains.record(cgroup=[*self._remains.state.get("cgroup", []),
                                         [str(path), undo]])
        try:
            path.write_text(value)
        except OSError as error:
            raise RigError(f"{path}: {value}: {error.strerror}") from None


def check() -> None:
    """RigError where there is no cgroup v2 with an io controller."""
    try:
        there = (CGROUPS / "cgroup.controllers").read_text().split()
    except OSError:
        there = []
    missing = [name for name in CONTROLLERS if name not in there]
    if missing:
        raise RigError(f"cgroup v2 has no {' and no '.join(missing)} controller on this host "
                       f"(in {CGROUPS}): run it in a virtual machine")


def cost_model(rig: Rig) -> Dict[str, int]:
    """The disk as the kernel's iocost_coef_gen.py would measure it, once its cache is full."""
    rate = rig.disk.rate_bytes
    sequential = rate // 4096
    random = int(1 / (rig.disk.seek_us / 1e6 + 4096 / rate))
    return {f"{direction}{key}": value for direction in "rw"
            for key, value in (("bps", rate), ("seqiops", sequential), ("randiops", random))}
