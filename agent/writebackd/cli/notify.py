# SPDX-License-Identifier: GPL-2.0-or-later
"""sd_notify(3): what systemd is told of the service, with python3-systemd and without."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Callable

# For room in systemd's queue, where systemd itself hangs: far within a lease.
_LIMIT_S = 1.0


def notifier() -> Callable[[str], None]:
    """What tells systemd a state; nothing where it does not listen (NOTIFY_SOCKET)."""
    if not os.environ.get("NOTIFY_SOCKET"):
        return lambda state: None
    try:
        from systemd.daemon import notify
    except ImportError:  # the unit waits for READY=1 and WATCHDOG=1 all the same
        return tell

    def send(state: str) -> None:
        with contextlib.suppress(OSError):  # a full socket: the next tick tells it
            notify(state)

    return send


def tell(state: str) -> None:
    """The protocol by hand: a datagram, dropped where systemd does not take it."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.settimeout(_LIMIT_S)
        # Connected, or else the wait for room in systemd's queue would have no bound.
        sock.connect("\0" + address[1:] if address[0] == "@" else address)
        sock.send(state.encode())
