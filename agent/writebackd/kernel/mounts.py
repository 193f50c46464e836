# SPDX-License-Identifier: GPL-2.0-or-later
"""Mounted filesystems from /proc/self/mountinfo, and a cheap check for changes."""

from __future__ import annotations

import os
import re
import select
from dataclasses import dataclass
from typing import Optional, Tuple

from writebackd.kernel.files import KernelFiles

MOUNTINFO = "/proc/self/mountinfo"

# seq_path() escapes blank, tab, newline, backslash and '#' this way; every
# other byte of a name stands as it is, so lines may be cut at "\n" and fields
# at " " only (a name may well contain what str.split() takes for white space).
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


def _parse_line(line: str) -> Optional[Mount]:
    fields = line.split(" ")
    try:
        # Any number of optional fields ("shared:1 master:2") stand between the
        # mount options and the lone dash.
        dash = fields.index("-", 6)
        fstype, source = fields[dash + 1 : dash + 3]
    except ValueError:
        return None
    return Mount(
        st_dev=fields[2],
        fstype=fstype,
        source=_unescape(source),
        mountpoint=_unescape(fields[4]),
        root=_unescape(fields[3]),
    )


def parse_mountinfo(text: str) -> Tuple[Mount, ...]:
    """The mounts in `text` in the kernel's order; lines that make no sense are left out."""
    parsed = (_parse_line(line) for line in text.split("\n"))
    return tuple(mount for mount in parsed if mount is not None)


def read_mounts(files: KernelFiles) -> Tuple[Mount, ...]:
    """The mounts of our mount namespace; empty where /proc cannot be read."""
    return parse_mountinfo(files.try_read(MOUNTINFO) or "")


class MountWatch:
    """Tells whether mounts changed, for the price of one poll(2).

    The kernel raises POLLERR|POLLPRI on an open mountinfo once after every
    change of the mount namespace the file was opened in.
    """

    def __init__(self, files: KernelFiles) -> None:
        self._fd: Optional[int] = None
        self._poll = select.poll()
        try:
            self._fd = os.open(files.path(MOUNTINFO), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return  # no /proc: never a change, as read_mounts() is always empty
        self._poll.register(self._fd, select.POLLPRI | select.POLLERR)

    def changed(self) -> bool:
        """Whether something was mounted or unmounted since the last call.

        Ask first and read mountinfo after: a mount in between then shows twice,
        never not at all.
        """
        return bool(self._poll.poll(0))

    def close(self) -> None:
        if self._fd is not None:
            self._poll.unregister(self._fd)
            os.close(self._fd)
            self._fd = None
