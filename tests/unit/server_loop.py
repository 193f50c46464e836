# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon's loop in small, with a clock that tests move, and what its clients do."""

from __future__ import annotations

import selectors
import socket
import struct
import time
from typing import Any, Callable

import pytest

TIMEOUT_S = 10.0


class ServerLoop:
    """Servers of report/control_server.py, driven by the test."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.selector = selectors.DefaultSelector()

    def turn(self) -> int:
        """One round of the loop; how many sockets were ready."""
        ready = self.selector.select(0)
        for key, mask in ready:
            key.data.service(key, mask)
        return len(ready)

    def settle(self) -> None:
        """Turn until nothing is ready."""
        for _ in range(10_000):
            if not self.turn():
                return
        pytest.fail("the loop spins: a socket stays ready and is not handled")

    def until(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + TIMEOUT_S
        while not done():
            self.turn()
            if time.monotonic() > end:
                pytest.fail("the server did not get there in time")


def connected(address: Any) -> socket.socket:
    """To a path, or to a host and port."""
    sock = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
    # settimeout() would make connect() fail while the backlog is full.
    timeout = struct.pack("ll", int(TIMEOUT_S), 0)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
    sock.connect(address)
    sock.settimeout(TIMEOUT_S)
    return sock


def read_all(sock: socket.socket, between: Callable[[], None] = lambda: None) -> bytes:
    """To the end; `between` lets the server go on."""
    received = b""
    while True:
        try:
            chunk = sock.recv(1 << 16)
        except ConnectionResetError:  # closed before it had read all
            return received
        if not chunk:
            return received
        received += chunk
        between()
