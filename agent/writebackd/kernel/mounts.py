# SPDX-License-Identifier: GPL-2.0-or-later
"""Mounted filesystems from /proc/self/mountinfo, and a cheap check for changes."""

from __future__ import annotations

import contextlib
import os
import re
import select
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Optional, Set, Tuple

from writebackd.kernel.files import KernelFiles

MOUNTINFO = "/proc/self/mountinfo"

# seq_path() escapes blank, tab, newline, backslash and '#'; a name may contain whatever else
# str.split() takes for white space.
_LINE = re.compile(
    r"^[^ \n]+ [^ \n]+ ([^ \n]*) ([^ \n]*) ([^ \n]*) [^ \n]*"
    # Any number of optional fields ("shared:1 master:2") before the lone dash.
    r"(?: [^ \n]+)*? - ([^ \n]*) ([^ \n]*)", re.MULTILINE
)  # fmt: skip
_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Mount:
    """One line of mountinfo."""

    st_dev: str  # "major:minor" of the superblock; major 0: not on a block device
    fstype: str
    source: str  # as the filesystem prints it, mostly a path in /dev
    mountpoint: str
    root: str  # what of the filesystem is mounted there: "/" but for bind mounts and subvolumes


def _unescape(field: str) -> str:
    if "\\" in field:
        field = _ESCAPE.sub(lambda match: chr(int(match.group(1), 8)), field)
    if not field.isascii():
        # Names are bytes; what is not UTF-8 shall be printable, not exact.
        field = field.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return field


def parse_mountinfo(text: str) -> Tuple[Mount, ...]:
    """The mounts in `text` in the kernel's order, without malformed lines."""
    return tuple(
        Mount(st_dev, fstype, _unescape(source), _unescape(mountpoint), _unescape(root))
        for st_dev, root, mountpoint, fstype, source in _LINE.findall(text)
    )


def read_mounts(files: KernelFiles) -> Tuple[Mount, ...]:
    """The mounts of our mount namespace; empty if /proc cannot be read."""
    return parse_mountinfo(files.try_read(MOUNTINFO) or "")


def mounted_types(files: KernelFiles) -> Set[str]:
    """Types of the mounted filesystems: ext4, xfs, proc."""
    return {mount.fstype for mount in read_mounts(files)}


def mount_of(files: KernelFiles, path: Path) -> Optional[Mount]:
    """The mount of a path, links followed; None if /proc cannot be read."""
    place = os.path.realpath(path)
    above = [
        each for each in read_mounts(files)
        if each.mountpoint == "/" or place == each.mountpoint
        or place.startswith(f"{each.mountpoint}/")
    ]  # fmt: skip
    # Of two on one directory the later one hides the other.
    return max(reversed(above), key=lambda each: len(each.mountpoint), default=None)


class MountWatch:
    """Detects changes of mounts with one poll(2).

    The kernel raises POLLERR|POLLPRI on an open mountinfo once after every change.
    """

    def __init__(self, files: KernelFiles) -> None:
        self._file: Optional[FileIO] = None
        self._poll = select.poll()
        # No /proc: never a change, as read_mounts() is always empty.
        with contextlib.suppress(OSError):
            self._file = FileIO(files.path(MOUNTINFO))
            self._poll.register(self._file, select.POLLPRI | select.POLLERR)

    def changed(self) -> bool:
        """Whether something was mounted or unmounted since the last call; call before reading."""
        return bool(self._poll.poll(0))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
