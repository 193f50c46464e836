# SPDX-License-Identifier: GPL-2.0-or-later
"""Hotplug: the kernel's uevents about block devices, through pyroute2."""

from __future__ import annotations

import os
import socket
from typing import Optional, Tuple

# The kernel sends at most 2 KiB of strings (UEVENT_BUFFER_SIZE), udevd some more;
# of a longer message the rest is cut off, which drain() can live with.
_RECV_BYTES = 16384
_BLOCK = b"\0SUBSYSTEM=block\0"


class Uevents:
    """A bound netlink uevent socket that only counts what concerns block devices."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sock.setblocking(False)

    def fileno(self) -> int:
        """For a selector: readable when events wait."""
        return self._sock.fileno()

    def drain(self) -> int:
        """Read all that waits, without blocking; the number of reasons to scan again.

        What cannot be understood is no reason.  Lost events are one: ENOBUFS
        says that the kernel dropped some, and not which.
        """
        reasons = 0
        while True:
            try:
                message = self._sock.recv(_RECV_BYTES)
            except BlockingIOError:
                return reasons
            except OSError:
                return reasons + 1
            # Both the kernel's messages and udevd's (binary header, then the
            # same strings) are matched; no string of theirs is decoded.
            if _BLOCK in message + b"\0":
                reasons += 1

    def close(self) -> None:
        self._sock.close()


def open_uevents() -> Tuple[Optional[Uevents], Optional[str]]:
    """The socket, or None and the reason to print: hotplug is then found by rescans."""
    try:
        # Here and not above: 21 MB and 90 ms, and a host may do without.
        from pyroute2 import UeventSocket
    except ImportError as error:
        return None, f"hotplug is seen late, pyroute2 cannot be imported: {error}"
    try:
        opener = UeventSocket()
        try:
            opener.bind()
            # Only the bound socket is kept: get() of 0.7 blocks and raises on
            # udevd's binary messages, get() of 0.9 runs an event loop.
            sock = socket.socket(fileno=os.dup(opener.fileno()))
        finally:
            opener.close()
    except Exception as error:  # 0.7 raises KeyError when bind(2) fails, 0.9 OSError
        return None, f"hotplug is seen late, no uevent socket: {error!r}"
    return Uevents(sock), None
