# SPDX-License-Identifier: GPL-2.0-or-later
"""Signals as a file descriptor for the selector."""

from __future__ import annotations

import signal
import socket
from typing import Optional


class Signals:
    """SIGTERM and SIGINT ask to stop, SIGHUP to read the policy again."""

    def __init__(self) -> None:
        self.stop: Optional[str] = None  # the name of the signal that asked
        self._reload = False
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

    def take_reload(self) -> bool:
        """Whether SIGHUP came since the last call."""
        asked, self._reload = self._reload, False
        return asked

    def close(self) -> None:
        signal.set_wakeup_fd(-1)
        self._receiver.close()
        self._sender.close()

    def _on_stop(self, number: int, _frame: object) -> None:
        self.stop = signal.Signals(number).name

    def _on_reload(self, _number: int, _frame: object) -> None:
        self._reload = True
