# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon's event loop: ticks by the clock, between them signals and sockets."""

from __future__ import annotations

import selectors
import signal
import socket
import time
from typing import Callable, Optional, Sequence

from writebackd.report.control_server import LoopServer
from writebackd.tuning import HURRY


class Signals:
    """SIGTERM and SIGINT ask to stop, SIGHUP to read the policy again."""

    def __init__(self) -> None:
        self.stop: Optional[str] = None  # the name of the signal that asked
        self.reload = False  # asked for, and not done yet
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)

    def catch(self) -> None:
        """Handle signals from now on; only in the main thread."""
        signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGHUP, self._on_reload)

    def fileno(self) -> int:
        """A file descriptor that is readable after a signal."""
        return self._receiver.fileno()

    def drain(self) -> None:
        """Read the bytes that woke the selector."""
        try:
            self._receiver.recv(64)
        except BlockingIOError:
            pass

    def close(self) -> None:
        signal.set_wakeup_fd(-1)
        self._receiver.close()
        self._sender.close()

    def _on_stop(self, number: int, _frame: object) -> None:
        self.stop = signal.Signals(number).name

    def _on_reload(self, _number: int, _frame: object) -> None:
        self.reload = True


# Of a tick, from the counters' zero to the first decision, which a start takes less than a second
# to come to.
FIRST = 0.25


class EventLoop:
    """Runs ticks before requests: a client may wait for a tick, but no tick waits for a client."""

    def __init__(self, signals: Signals, servers: Sequence[LoopServer]) -> None:
        self._signals = signals
        self._servers = servers
        self._selector = selectors.DefaultSelector()
        for server in servers:
            server.register(self._selector)
        self._selector.register(signals, selectors.EVENT_READ)

    def run(
        self, interval_s: float, tick: Callable[[], bool], reload: Callable[[], None]
    ) -> None:
        """Run until a signal; the first tick comes after a quarter of `interval_s`.

        `tick` returns whether the next one should come sooner; `reload` is called on SIGHUP.
        """
        signals = self._signals
        next_tick = time.monotonic() + interval_s * FIRST
        while signals.stop is None:
            for key, mask in self._selector.select(max(0.0, next_tick - time.monotonic())):
                if isinstance(key.data, LoopServer):
                    key.data.service(key, mask)
                elif key.fileobj is signals:
                    signals.drain()
                if time.monotonic() >= next_tick:
                    break  # waiting clients are ready in the next round as well
            if signals.reload:
                signals.reload = False
                reload()
            now = time.monotonic()
            if now >= next_tick and signals.stop is None:
                for server in self._servers:
                    server.expire(now)
                # Ticks missed while the machine was busy are not made up for: one
                # of a few milliseconds would count as much as a whole one.
                next_tick += interval_s * (HURRY if tick() else 1.0)
                if next_tick < time.monotonic():
                    next_tick = time.monotonic() + interval_s

    def close(self) -> None:
        """Close the servers; the signals belong to the caller."""
        for server in self._servers:
            server.close()
        self._selector.close()
