# SPDX-License-Identifier: GPL-2.0-or-later
"""A filesystem that is there already as the ground of a benchmark: files of its own, no model.

`bench --directory PATH` makes one directory there, runs in it, and removes it; so does
`make bench-clean` after a run that was killed. Nothing outside that directory is written.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Dict, Optional, Tuple

from . import scenario
from .disks import Control, Disk
from .loads import KINDS
from .loads.flood import beyond_default_limit
from .remains import RigError, run
from .rig import Rig
from .scenario import DiskSpec, LoadSpec, Scenario, Span

PREFIX = "ground-"
OWN = "writebackd-bench"  # the directory that is made, and removed
DATABASE = "256M"
KEEP_FREE = 0.1  # of the filesystem: other programs write there as well
# A first and a second flood, each from its first second on.
IDLE, JUDGED, SECOND = Span(0.5, 4.5), Span(5.0, 65.0), Span(75.0, 135.0)
SWEEP = ("4M", "16M/1600K", "32M", "64M", "128M")


class NoControl(Control):
    """Of a disk that cannot be told anything, and says nothing of its cache."""

    def __init__(self) -> None:
        pass

    def get(self) -> Dict[str, Any]:
        return {"fill": 0, "capacity": None, "stripes_whole": 0, "stripes_part": 0,
                "bytes_destaged": 0}

    def set(self, key: str, value: str) -> None:
        pass

    def close(self) -> None:
        pass


class Ground(Rig):
    """A directory on a disk of this host, in a rig's place."""

    def __init__(self, name: str, directory: Path) -> None:
        """Raises RigError unless `directory` lies on a disk and has room enough."""
        fs, device = below(directory)
        super().__init__(name, fs, Disk())
        self.mountpoint, self.device, self.control = directory / OWN, device, NoControl()

    def _check(self) -> None:
        check_room(self.mountpoint.parent)
        if self.mountpoint.exists():
            raise RigError(f"{self.mountpoint} is there already, and not of this run: move it away")

    def _bring_up(self) -> None:
        self.directory.mkdir(parents=True)
        # Made before it is recorded: what is recorded will be removed, and has to be ours.
        self.mountpoint.mkdir(mode=0o700)
        made = self.mountpoint.lstat()
        self._record(ground=[str(self.mountpoint), made.st_dev, made.st_ino])


def below(directory: Path) -> Tuple[str, str]:
    """Filesystem and whole disk (xfs, sda) that a directory lies on. RigError for none."""
    if not directory.is_dir():
        raise RigError(f"{directory} is no directory")
    # Of several that are mounted over each other, the last one is on top.
    mounts = run("findmnt", "-nro", "FSTYPE,MAJ:MIN", "-T", str(directory)).splitlines()
    fs, number = mounts[-1].split()
    if fs not in scenario.FILESYSTEMS:
        raise RigError(f"{directory} is on {fs}: take a directory on one of "
                       f"{', '.join(scenario.FILESYSTEMS)}, on a disk of this host")
    block = Path(f"/sys/dev/block/{number}")
    if not block.exists():
        raise RigError(f"{directory}: no block device {number}: a volume over several disks "
                       "cannot be measured")
    block = block.resolve()
    return fs, (block.parent if (block / "partition").exists() else block).name


def check_room(directory: Path) -> None:
    """RigError unless the files fit and KEEP_FREE of the filesystem stays free."""
    disk = os.statvfs(directory)
    free = disk.f_bavail * disk.f_frsize
    need = beyond_default_limit() + (1 << 30) + int(KEEP_FREE * disk.f_blocks * disk.f_frsize)
    if free < need:
        raise RigError(f"{directory}: {need >> 30} GB have to be free (the flood's file, the "
                       f"database, and a tenth of the filesystem), {free >> 30} GB are")


def on(directory: Path) -> Scenario:
    """The scenario of a directory's disk. RigError."""
    directory = directory.resolve()
    fs, device = below(directory)
    check_room(directory)
    return _scenario(f"{PREFIX}{device}", fs, directory)


def named(name: str) -> Scenario:
    """The same without its directory: what its runs are judged by."""
    return _scenario(name, "xfs", None)


def _scenario(name: str, fs: str, directory: Optional[Path]) -> Scenario:
    options = {kind: {key: parser(default) for key, (parser, default)
                      in KINDS[kind].OPTIONS.items()} for kind in ("fsync", "dd")}
    options["fsync"]["size"] = KINDS["fsync"].OPTIONS["size"][0](DATABASE)
    options["dd"]["size"] = KINDS["dd"].OPTIONS["size"][0]("auto")
    return Scenario(
        name=name, summary="A database and a flood in a directory of this host's own disk.",
        shows="What a contender does on a real disk.",
        disks=(DiskSpec("db", "", fs, Disk(), "", directory),),
        loads=(LoadSpec("database", "fsync", "sync", "db", (Span(0.0, SECOND.end),),
                        options["fsync"]),
               LoadSpec("flood", "dd", "flood", "db", (JUDGED, SECOND),
                        options["dd"])),
        events=(), expectations=(), sweep=SWEEP,
        contenders=("default", "static-16M", "sweep", "agent"),
        idle=IDLE, judged=JUDGED, changed=SECOND, contend=0.0, prepare=4.0,
        ways=frozenset(("native",)), tags=frozenset(("extra",)))

