# SPDX-License-Identifier: GPL-2.0-or-later
"""Log handler for journald's native protocol; never blocks on a hanging journald.

systemd.journal.send() (python3-systemd 235) holds the interpreter lock while it waits: if
journald hangs, for example with its disk, every thread of the process hangs, including the
loop. A socket of our own waits without the lock, and for a limited time.
"""

from __future__ import annotations

import logging
import re
import socket
import struct
from typing import Mapping, Union

SOCKET = "/run/systemd/journal/socket"
# For room in journald's queue.
LIMIT_S = 5.0
# One datagram: the kernel takes 208 KiB (net.core.wmem_default), and entries have 20 fields.
_LONGEST = 16384
_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
_PRIORITIES = (
    (logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6),
)  # fmt: skip

Fields = Mapping[str, Union[str, int]]


def send(fields: Fields, path: str = SOCKET, limit_s: float = LIMIT_S) -> None:
    """Send an entry. Raises OSError, TimeoutError among it."""
    data = b"".join(_field(name, str(value)) for name, value in fields.items())
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.settimeout(limit_s)
        # Connected, or else poll() would not wait for room in the other one's queue.
        sock.connect(path)
        sock.send(data)


def _field(name: str, value: str) -> bytes:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a field")
    data = value.encode("utf-8", "backslashreplace")[:_LONGEST]
    if b"\n" in data:
        return name.encode() + b"\n" + struct.pack("<Q", len(data)) + data + b"\n"
    return name.encode() + b"=" + data + b"\n"


def priority(level: int) -> int:
    """The syslog(3) priority for a log level."""
    return next((number for least, number in _PRIORITIES if level >= least), 7)


class JournalHandler(logging.Handler):
    """Log records as entries; `extra={"journal": {...}}` adds fields. Failures are dropped."""

    def __init__(self, path: str = SOCKET) -> None:
        super().__init__()
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        fields = {
            "MESSAGE": self.format(record),
            "PRIORITY": priority(record.levelno),
            "SYSLOG_IDENTIFIER": "writebackd",
            "LOGGER": record.name,
            "THREAD_NAME": record.threadName or "",
            "CODE_FILE": record.pathname,
            "CODE_LINE": record.lineno,
            "CODE_FUNC": record.funcName or "",
            **getattr(record, "journal", {}),
        }
        try:
            send(fields, self._path)
        except (OSError, ValueError):
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Do nothing: there is nowhere to report it."""


class PriorityFormatter(logging.Formatter):
    """`<4>text`: the form in which journald reads a priority from our standard error."""

    def format(self, record: logging.LogRecord) -> str:
        prefix = f"<{priority(record.levelno)}>"
        return "\n".join(prefix + line for line in super().format(record).split("\n"))
