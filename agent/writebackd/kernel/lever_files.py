# SPDX-License-Identifier: GPL-2.0-or-later
"""Kernel files of the levers other than the global pair: read, write, describe as text."""

from __future__ import annotations

import re
from typing import Callable, Dict, NamedTuple, Optional, Sequence

from writebackd.kernel import bdi, cgroup_io_max, child_process
from writebackd.kernel.child_process import Work, write_in_child
from writebackd.kernel.files import KernelFiles
from writebackd.types.levers import LeverKind, Setting

PERCENT = "writeback_percent"  # of the cache that may be dirty; the kernel takes 40 at most
DELAY = "writeback_delay"  # seconds that it rests after each pass
RATE = "writeback_rate_minimum"  # sectors of 512 bytes a second, at least 1
NAMES = (PERCENT, DELAY, RATE)


def directory(disk: str) -> str:
    return f"/sys/block/{disk}/bcache"


FLUSH_NAMES = ("dirty_writeback_centisecs", "dirty_expire_centisecs")
QUEUE_NAMES = ("nr_requests", "max_sectors_kb")
# Files of a disk whose read or write may wait for a lock, by kind.
SLOW: Dict[LeverKind, Callable[[str], str]] = {
    LeverKind.QUEUE: "/sys/block/{}/queue".format, LeverKind.CACHE: directory,
}  # fmt: skip
_NAMES = {
    LeverKind.BDI: tuple(bdi.FILES), LeverKind.QUEUE: QUEUE_NAMES,
    LeverKind.CACHE: NAMES,
}  # fmt: skip


class Lever(NamedTuple):
    """One kernel value; target and name as in Setting."""

    kind: LeverKind
    target: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind.value} {self.target} {self.name}"


def lever_of(setting: Setting) -> Lever:
    return Lever(setting.kind, setting.target, setting.name)


def is_lever(lever: Lever) -> bool:
    """Whether this lever can exist at all, on this host or another."""
    parts = lever.target.split("/")
    if ".." in parts or not lever.target:
        return False
    if lever.kind is LeverKind.FLUSH:
        return lever.target == "vm" and lever.name in FLUSH_NAMES
    if lever.kind is LeverKind.PACE:
        return lever.target.startswith("/") and lever.name.replace(":", "").isdigit()
    return lever.name in _NAMES[lever.kind] and len(parts) == 1


def is_slow(lever: Lever) -> bool:
    """Whether a write to it may hang: `write` then returns work for a child."""
    return lever.kind is LeverKind.PACE or lever.kind in SLOW


def identity(files: KernelFiles, lever: Lever) -> Optional[int]:
    """A number that no other device or cgroup of the same name has.

    None where the target is gone; 0 where it cannot go: the flusher.  Of a unit of
    systemd it is the disk's, since the property outlives the unit's cgroup; elsewhere a
    pace goes with the cgroup as well as with the disk.
    """
    if lever.kind is LeverKind.FLUSH:
        return 0
    if lever.kind is not LeverKind.PACE:
        return files.inode(SLOW.get(lever.kind, bdi.directory)(lever.target))
    disk = cgroup_io_max.disk(files, lever.name)
    if disk is None or outlives(files, lever):
        return disk
    cgroup = _cgroup(files, lever)
    return None if cgroup is None else cgroup << 64 | disk


def present(files: KernelFiles, lever: Lever) -> bool:
    there = identity(files, lever) is not None
    return there and (lever.kind is not LeverKind.PACE or _cgroup(files, lever) is not None)


def _cgroup(files: KernelFiles, lever: Lever) -> Optional[int]:
    """The id of the paced cgroup; None if it is gone."""
    try:
        return files.inode(cgroup_io_max.directory(files, lever.target))
    except FileNotFoundError:
        return None


def outlives(files: KernelFiles, lever: Lever) -> bool:
    """Whether the value remains after its target is gone: a property of a unit."""
    return lever.kind is LeverKind.PACE and cgroup_io_max.owner(files, lever.target) is not None


def read(files: KernelFiles, lever: Lever) -> str:
    """The value as text, which `write` restores exactly. Raises OSError."""
    if lever.kind is LeverKind.PACE:
        return cgroup_io_max.read(files, lever.target, lever.name)
    if lever.kind in SLOW:
        text = child_process.read(files, SLOW[lever.kind](lever.target), lever.name)
    else:
        text = files.read(_path(lever))
    if not re.fullmatch("[0-9]{1,20}", text):
        raise OSError(5, f"expected a number, found {text[:40]!r}", _path(lever))
    return text


def write(
    files: KernelFiles, lever: Lever, text: str, ours: Sequence[str] = ()
) -> Optional[Work]:
    """Write at once, or return the work if it may hang. Raises OSError.

    `ours`: what may have been written before.
    """
    if lever.kind is LeverKind.PACE:
        return cgroup_io_max.write(files, lever.target, lever.name, text, ours)
    if lever.kind in SLOW:
        return write_in_child(str(files.path(_path(lever))), text)
    files.write(_path(lever), text)
    return None


def text_for(setting: Setting, threshold_bytes: int) -> str:
    """The text to write for a setting while `threshold_bytes` is the global limit in force."""
    if setting.kind is LeverKind.BDI:
        return bdi.text_for(setting.name, setting.value, threshold_bytes)
    return str(setting.value)


def value_of(lever: Lever, text: str, threshold_bytes: int) -> Optional[int]:
    """The value of `text` in the unit of a Setting; None for no limit."""
    if not text.isdigit():
        return None
    if lever.kind is LeverKind.BDI:
        return bdi.value_of(lever.name, text, threshold_bytes)
    return int(text)


def holds(setting: Setting, text: str, threshold_bytes: int) -> bool:
    """Whether a lever that reads `text` is set as the setting wants."""
    if setting.kind is LeverKind.BDI:
        return bdi.holds(setting.name, text, setting.value, threshold_bytes)
    return text == text_for(setting, threshold_bytes)


def describe(lever: Lever, text: str) -> str:
    return bdi.describe(lever.name, text) if lever.kind is LeverKind.BDI else text


def file_of(lever: Lever) -> str:
    """The file that shows the value, for people."""
    return f"io.max of {lever.target}" if lever.kind is LeverKind.PACE else _path(lever)


def _path(lever: Lever) -> str:
    if lever.kind is LeverKind.FLUSH:
        return f"/proc/sys/vm/{lever.name}"
    if lever.kind is LeverKind.BDI:
        return bdi.path(lever.target, lever.name)
    return f"{SLOW[lever.kind](lever.target)}/{lever.name}"
