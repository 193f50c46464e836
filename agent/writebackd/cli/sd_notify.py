# SPDX-License-Identifier: GPL-2.0-or-later
"""sd_notify(3): tells systemd the state of the service.

python3-systemd is not used: its notify() sleeps in sendmsg(2) while PID 1 does not read, and holds
the interpreter lock, so that every thread stops.

Any user may send to systemd's socket and keep its queue full, so a sender must wait for room.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
from typing import Callable, List

# How long a state may wait for room: past the busiest queue, well within WatchdogSec=.
LIMIT_S = 5.0


def notifier() -> Callable[[str], None]:
    """Passes states to a thread that sends them; unsent ones go with the next.

    The thread repeats nothing on its own: WATCHDOG=1 means that the caller is alive.
    """
    handed: "queue.SimpleQueue[str]" = queue.SimpleQueue()
    threading.Thread(target=_send, args=(handed,), name="notify", daemon=True).start()
    return handed.put


def _send(handed: "queue.SimpleQueue[str]") -> None:
    untold: List[str] = []
    while True:
        states = [handed.get()]
        while not handed.empty():  # or what came while it waited would be sent one by one
            states.append(handed.get())
        untold = list(dict.fromkeys(untold + states))
        if tell("\n".join(untold), LIMIT_S):
            untold.clear()


def tell(state: str, limit_s: float) -> bool:
    """Send one datagram, waiting up to `limit_s` for room in systemd's queue; returns success.

    Without NOTIFY_SOCKET nothing needs to be sent.
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
