# SPDX-License-Identifier: GPL-2.0-or-later
"""Hotplug: the kernel's uevents about block devices."""

from __future__ import annotations

import socket
from typing import Optional, Tuple

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
