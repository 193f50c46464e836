# SPDX-License-Identifier: GPL-2.0-or-later
"""Cgroups as the probe's counts need them: the path behind an id, what their files say.

The id of a cgroup is the inode number of its directory.  Its path is asked of one
of its processes, not searched for: a host of containers has thousands of cgroups,
and a look into all of them takes a tenth of a second.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Tuple

from writebackd.kernel.files import KernelFiles
from writebackd.model import CgroupControl

# systemd marks what it hands over (Delegate=) with one of these; the first since
# version 251, the second can be read with CAP_SYS_ADMIN only.
DELEGATE_MARKS = ("user.delegate", "trusted.delegate")
# Paths that are remembered, and how long the files of one that flooded are read.
MOST_PATHS = 1024
WATCHED_S = 60.0
# Cgroups whose files are read in a tick, the largest dirtiers; 0.1 ms each.
MOST_WATCHED = 8
# Below this a cgroup does not flood: see FLOOD_RATE in estimate/drain.py.
FLOOD_RATE = 1 << 20


@dataclass(frozen=True)
class _Watched:
    last_s: float
    written: Mapping[str, int]  # io.stat's own counts, by devno


class Cgroups:
    """Paths and files of the cgroups below one v2 mount.  Nothing here raises."""

    def __init__(self, files: KernelFiles, mount: Optional[str]) -> None:
        """`mount`: where cgroup v2 is mounted, None where it is not."""
        self._files = files
        self._mount = mount
        self._paths: "OrderedDict[int, str]" = OrderedDict()
        self._watched: Dict[str, _Watched] = {}
        self.own = self._path_of_process("self") if mount else None

    def path(self, cgroup_id: int, pid: int) -> Optional[str]:
        """The path of a cgroup, which the process `pid` was in; None when it cannot be told."""
        known = self._paths.get(cgroup_id)
        if known is not None:
            self._paths.move_to_end(cgroup_id)
            return known
        if self._mount is None or not pid:
            return None
        path = self._path_of_process(str(pid))
        # It may have moved since, or another process may have got its number.
        if path is None or self.id(path) != cgroup_id:
            return None
        self._paths[cgroup_id] = path
        if len(self._paths) > MOST_PATHS:
            self._paths.popitem(last=False)
        return path

    def _path_of_process(self, pid: str) -> Optional[str]:
        for line in (self._files.try_read(f"/proc/{pid}/cgroup") or "").splitlines():
            if line.startswith("0::"):
                return line[3:]
        return None

    def id(self, path: str) -> Optional[int]:
        """The id of the cgroup that has this path now; None when there is none."""
        try:
            return os.stat(self._files.path(self._directory(path))).st_ino
        except OSError:
            return None

    def _directory(self, path: str) -> str:
        return (self._mount or "") + path.rstrip("/")

    def control(
        self, dirtied: Mapping[str, float], now_s: float
    ) -> Dict[str, CgroupControl]:
        """The files of the cgroups that flood or did lately, by path.

        `dirtied` is bytes per second by path, of all devices together.
        """
        for path, rate in dirtied.items():
            if rate >= FLOOD_RATE:
                last = self._watched.get(path)
                self._watched[path] = _Watched(now_s, last.written if last else {})
        self._watched = {
            path: watched
            for path, watched in self._watched.items()
            if now_s - watched.last_s <= WATCHED_S
        }
        busiest = sorted(
            self._watched, key=lambda path: (-dirtied.get(path, 0.0), -self._watched[path].last_s)
        )
        return {path: self._read(path) for path in busiest[:MOST_WATCHED]}

    def _read(self, path: str) -> CgroupControl:
        directory = self._directory(path)
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
        return CgroupControl(
            io_max=_lines(limits) if limits is not None else None,
            written=tuple(grown),
            delegated=any(self._delegated(above) for above in _upwards(path)),
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


def _upwards(path: str) -> List[str]:
    """The path and all above it but the root."""
    found = []
    while path.strip("/"):
        found.append(path)
        path = path.rpartition("/")[0]
    return found


def _lines(text: str) -> Tuple[Tuple[str, str], ...]:
    found = (line.partition(" ") for line in text.splitlines())
    return tuple((number, rest) for number, _, rest in found if number)


def _written(text: str) -> Dict[str, int]:
    """Bytes written by devno, of an io.stat."""
    found = {}
    for number, rest in _lines(text):
        for word in rest.split():
            key, _, value = word.partition("=")
            if key == "wbytes" and re.fullmatch("[0-9]{1,20}", value):
                found[number] = int(value)
    return found
