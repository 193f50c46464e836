# SPDX-License-Identifier: GPL-2.0-or-later
"""Mounted filesystems from /proc/self/mountinfo, and what tells of changes: a poll, uevents."""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
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
        mount for mount in read_mounts(files)
        if mount.mountpoint == "/" or place == mount.mountpoint
        or place.startswith(f"{mount.mountpoint}/")
    ]  # fmt: skip
    # Of two on one directory the later one hides the other.
    return max(reversed(above), key=lambda mount: len(mount.mountpoint), default=None)


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


# The kernel sends at most 2 KiB of strings (UEVENT_BUFFER_SIZE), udevd some more;
# of a longer message the rest is cut off, which drain() can live with.
_RECV_BYTES = 16384
_BLOCK = b"\0SUBSYSTEM=block\0"
_PROTOCOL = 15  # NETLINK_KOBJECT_UEVENT
_KERNEL, _UDEV = 1, 2  # groups: as it happens, and when udevd has set the disk up
# A tick may come late to some thousand events of 300 to 1000 bytes; what the kernel had to drop
# costs a scan.
_BUFFER_BYTES = 1 << 20


class Uevents:
    """A bound netlink uevent socket that only counts what concerns block devices."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sock.setblocking(False)

    def drain(self) -> int:
        """Read all pending events, without blocking; returns the number of reasons to scan again.

        Lost events count as one: ENOBUFS does not say which the kernel dropped.
        """
        reasons = 0
        while True:
            try:
                message = self._sock.recv(_RECV_BYTES)
            except BlockingIOError:
                return reasons
            except OSError:
                return reasons + 1
            # Of the kernel's messages and of udevd's: a binary header, then the same strings.
            if _BLOCK in message + b"\0":
                reasons += 1

    def close(self) -> None:
        self._sock.close()


def open_uevents() -> Tuple[Optional[Uevents], Optional[str]]:
    """The socket, or None and the reason: new disks are then found by periodic scans."""
    # No library: what it takes is these calls, and one that knows all of netlink 17 MB and 90 ms.
    sock: Optional[socket.socket] = None
    try:
        sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _PROTOCOL)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        sock.bind((0, _KERNEL | _UDEV))
    except OSError as error:
        if sock is not None:
            sock.close()
        return None, f"new disks show up to 30 s late, without a uevent socket: {error}"
    return Uevents(sock), None
