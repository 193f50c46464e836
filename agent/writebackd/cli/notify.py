# SPDX-License-Identifier: GPL-2.0-or-later
"""sd_notify(3): tells systemd the state of the service.

Not by python3-systemd: its notify() sleeps in sendmsg(2) while PID 1 does not read, and keeps the
interpreter's lock, so that every thread stops.
"""

from __future__ import annotations

import os
import socket
from typing import Callable, List


def notifier() -> Callable[[str], None]:
    """Sends a state at once or not at all; one that systemd did not take goes with the next."""
    untold: List[str] = []

    def send(state: str) -> None:
        if state not in untold:
            untold.append(state)
        if tell("\n".join(untold)):
            untold.clear()

    return send


def tell(state: str, limit_s: float = 0.0) -> bool:
    """Send one datagram, waiting up to `limit_s` for room in systemd's queue; whether it went.

    Nothing is left to send where systemd does not listen (NOTIFY_SOCKET).
    """
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return True
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.settimeout(limit_s)
            # Connected, or else poll() would not wait for room in the other one's queue.
            sock.connect("\0" + address[1:] if address[0] == "@" else address)
            sock.send(state.encode())
    except OSError:
        return False
    return True
