# SPDX-License-Identifier: GPL-2.0-or-later
"""Cgroup ids to paths, and the limits and statistics in a cgroup's files.

The id of a cgroup is the inode number of its directory.  The path comes from one of its
processes: a search of thousands of cgroups takes a tenth of a second.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import Collection, Dict, List, Mapping, Optional, Tuple

from writebackd.kernel.cgroup_io_max import UNITS, is_booted, owner, path_of_process
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.unit_relations import UnitRelations
from writebackd.tuning import FLOOD_RATE
from writebackd.types.samples import SERVICES, CgroupControl, CgroupMemory

# systemd marks what it hands over (Delegate=) with one of these; the first since
# version 251, the second can be read with CAP_SYS_ADMIN only.
DELEGATE_MARKS = ("user.delegate", "trusted.delegate")
# Levels of a path: those above are looked at as well, and any user may make 2000. A container in
# a container has a dozen.
MOST_LEVELS = 32
# Bytes of a path; a container of Kubernetes has 220. Longer ones are not shown: 32 names of
# 255 bytes are 8 KB, and as text, if a single character is beyond U+FFFF, 32 KB.
MOST_PATH_BYTES = 512
# Paths that are remembered, and how long the files of one that flooded are read.
MOST_PATHS = 1024
WATCHED_S = 60.0
# Read are the largest dirtiers that make up this share of what is dirtied on a device (18 of
# 20 equal writers), and no more than this: 0.1 ms each, so 6 ms of a tick.
BULK, MOST_WATCHED = 0.9, 64
# Cgroups whose memory is read in a tick, those whose writers slept last.
MOST_SMALL = 8
# Cgroups that are searched for one without a process.
MOST_SEARCHED = 4096


@dataclass(frozen=True)
class _Watched:
    last_s: float
    written: Mapping[str, int]  # io.stat's own counts, by devno


class CgroupIndex:
    """Paths and files of the cgroups below one v2 mount.  No method raises."""

    def __init__(self, files: KernelFiles, mount: Optional[str]) -> None:
        """`mount`: where cgroup v2 is mounted, or None."""
        self._files = files
        self._mount = mount
        self._paths: "OrderedDict[int, bytes]" = OrderedDict()  # text has up to 4 bytes a letter
        self._watched: Dict[str, _Watched] = {}
        self._paced: Collection[str] = ()
        self._slept: Dict[str, float] = {}  # by path, when its writers last slept
        self.own = path_of_process(files, "self") if mount else None
        # inode_cgwb_enabled(): only with both has a cgroup dirty limits of its own.
        controllers = files.try_read(f"{mount}/cgroup.controllers") if mount else None
        self._has_dirty_limits = {"memory", "io"} <= set((controllers or "").split())
        self._systemd = is_booted(files)
        self._relations = UnitRelations()

    def path(self, cgroup_id: int, pid: int) -> Optional[str]:
        """The path of a cgroup that the process `pid` was in; None if unknown."""
        known = self._paths.get(cgroup_id)
        if known is not None:
            self._paths.move_to_end(cgroup_id)
            return known.decode("utf-8", "surrogateescape")
        path = self.of_process(pid) if self._mount is not None and pid else None
        # It may have moved since, or another process may have got its number.
        if path is None or path.count("/") > MOST_LEVELS or self.id(path) != cgroup_id:
            return None
        self._paths[cgroup_id] = path.encode("utf-8", "surrogateescape")
        if len(self._paths) > MOST_PATHS:
            self._paths.popitem(last=False)
        return path

    def of_process(self, pid: int) -> Optional[str]:
        """The path of its cgroup; None if it is gone, in none, or the path is too long."""
        path = path_of_process(self._files, str(pid))
        if path is None or len(path.encode("utf-8", "surrogateescape")) > MOST_PATH_BYTES:
            return None
        return path

    def find(self, cgroup_id: int) -> Optional[str]:
        """The path of a cgroup by its id alone, for one whose process has ended.

        Looks into MOST_SEARCHED cgroups at most, those nearest to the root first, 8 us each.
        """
        known = self._paths.get(cgroup_id)
        if known is not None:
            return known.decode("utf-8", "surrogateescape")
        if self._mount is None:
            return None
        if self.id("/") == cgroup_id:
            return "/"
        todo = [""]
        for above in todo:  # grows meanwhile
            try:
                with os.scandir(self._files.path(self._directory(above))) as entries:
                    below = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
            except OSError:
                continue  # removed since
            for entry in below:
                path = f"{above}/{entry.name}"
                if len(os.fsencode(path)) > MOST_PATH_BYTES:
                    continue
                if entry.inode() == cgroup_id:
                    return path
                if len(todo) < MOST_SEARCHED:
                    todo.append(path)
        return None

    def id(self, path: str) -> Optional[int]:
        """The id of the cgroup that now has this path; None if there is none."""
        return self._files.inode(self._directory(path))

    def _directory(self, path: str) -> str:
        return (self._mount or "") + path.rstrip("/")

    def control(
        self,
        dirtied: Mapping[Optional[str], Mapping[str, float]],
        now_s: float,
        paced: Collection[str] = (),
    ) -> Dict[str, CgroupControl]:
        """Control files of cgroups that are paced, or flood or did so lately, by path.

        `dirtied` is bytes per second by device and path.  One that is gone is left out.
        """
        total: Dict[str, float] = {}
        seen = dict.fromkeys(set(paced).difference(self._paced))  # as if they had just flooded
        self._paced = paced
        for rates in dirtied.values():
            seen.update(dict.fromkeys(_bulk(rates)))
            for path, rate in rates.items():
                total[path] = total.get(path, 0.0) + rate
        for path in seen:
            last = self._watched.get(path)
            self._watched[path] = _Watched(now_s, last.written if last else {})
        busiest = sorted(
            (
                path for path, watched in self._watched.items()
                if now_s - watched.last_s <= WATCHED_S and self.id(path) is not None
            ),
            key=lambda x: (x not in paced, -total.get(x, 0.0), -self._watched[x].last_s),
        )
        self._watched = {path: self._watched[path] for path in busiest[:MOST_PATHS]}
        found = {path: self._read(path, now_s) for path in busiest[:MOST_WATCHED]}
        self._relations.ask(now_s)
        return found

    def memory(self, slept: Mapping[str, float], now_s: float) -> Dict[str, CgroupMemory]:
        """Memory of cgroups whose writers sleep for a limit, or did so lately, by path.

        `slept` is seconds by path.  Left out are those without a limit of memory, their own or
        one above.
        """
        if not self._has_dirty_limits:
            return {}
        for path, seconds in slept.items():
            if seconds > 0:
                self._slept[path] = now_s
        latest = sorted(
            (path for path, last in self._slept.items() if now_s - last <= WATCHED_S),
            key=lambda path: (-self._slept[path], -slept.get(path, 0.0)),
        )
        self._slept = {path: self._slept[path] for path in latest[:MOST_PATHS]}
        memories = {path: self._read_memory(path) for path in latest[:MOST_SMALL]}
        return {path: memory for path, memory in memories.items() if memory is not None}

    def _read_memory(self, path: str) -> Optional[CgroupMemory]:
        limits: List[Tuple[int, int]] = []  # with what is left of each
        home = ""
        for above in _upwards(path):
            directory = self._directory(above)
            used = self._number(f"{directory}/memory.current")
            if used is None:
                continue  # the controller is off here: its pages are counted above
            home = home or above
            for name in ("max", "high"):
                limit = self._number(f"{directory}/memory.{name}")
                if limit is not None:
                    limits.append((limit, max(0, limit - used)))
        if not limits:
            return None
        # Last, and only of those with a limit: the kernel adds up all CPUs for it.
        text = self._files.try_read(f"{self._directory(home)}/memory.stat") or ""
        stat = {key: int(value) for key, value in re.findall(r"^(\w+) (\d+)$", text, re.MULTILINE)}
        cached = stat.get("inactive_file", 0) + stat.get("active_file", 0)
        return CgroupMemory(
            path=home,
            ceiling_bytes=min(limit for limit, _ in limits),
            avail_bytes=cached + min(room for _, room in limits),
            dirty_bytes=stat.get("file_dirty", 0) + stat.get("file_writeback", 0),
        )

    def _number(self, name: str) -> Optional[int]:
        """The number in a file; None if there is none, or it says max."""
        text = self._files.try_read(name) or ""
        return int(text) if text.isdigit() else None

    def _read(self, path: str, now_s: float) -> CgroupControl:
        directory, unit = self._directory(path), owner(self._files, path)
        written = _written(self._files.try_read(f"{directory}/io.stat") or "")
        last = self._watched[path].written
        # The first look shows what was written ever, and nothing of this tick.
        grown = [
            (devno, size - last[devno])
            for devno, size in written.items()
            if devno in last and size >= last[devno]
        ]
        self._watched[path] = _Watched(self._watched[path].last_s, written)
        limits = self._files.try_read(f"{directory}/io.max")
        # systemd turns the controller on in it and all above it with its first limit.
        off = limits is None and self._has_dirty_limits and unit is not None
        return CgroupControl(
            io_max=() if off else _lines(limits) if limits is not None else None,
            off=off,
            written=tuple(grown),
            delegated=any(self._delegated(above) for above in _upwards(path)),
            outside=self._systemd and not path.split("/")[1].endswith(UNITS),
            related=self._relations.of(unit, now_s) if unit and path.startswith(SERVICES) else None,
        )

    def _delegated(self, path: str) -> bool:
        directory = self._files.path(self._directory(path))
        for mark in DELEGATE_MARKS:
            try:
                if os.getxattr(directory, mark).strip(b"\0\n ") == b"1":
                    return True
            except OSError:
                continue  # not marked, or not ours to read
        return False


def _bulk(rates: Mapping[str, float]) -> List[str]:
    """The largest dirtiers, until they make up the share BULK of all dirtied bytes."""
    paths: List[str] = []
    missing = BULK * sum(rates.values())
    floods = ((rate, path) for path, rate in rates.items() if rate >= FLOOD_RATE)
    for rate, path in sorted(floods, reverse=True):
        if missing <= 0:
            break
        paths.append(path)
        missing -= rate
    return paths


def _upwards(path: str) -> List[str]:
    """The path and all its parents except the root."""
    paths = []
    while path.strip("/"):
        paths.append(path)
        path = path.rpartition("/")[0]
    return paths


def _lines(text: str) -> Tuple[Tuple[str, str], ...]:
    parts = (line.partition(" ") for line in text.split("\n"))
    return tuple((number, rest) for number, _, rest in parts if number)


def _written(text: str) -> Dict[str, int]:
    """Bytes written by devno, from an io.stat."""
    sizes = re.findall(r"^(\S+) (?:.* )?wbytes=([0-9]{1,20})(?: |$)", text, re.MULTILINE)
    return {number: int(size) for number, size in sizes}
