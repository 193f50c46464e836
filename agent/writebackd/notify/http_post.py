# SPDX-License-Identifier: GPL-2.0-or-later
"""One HTTP POST with a total time limit; http.client has only one for each read.

A server that sends a byte every nine seconds never exceeds a read limit of ten.  It also saves the
3 MB of http.client and ssl if https is not used.
"""

from __future__ import annotations

import socket
import time
from typing import NamedTuple
from urllib.parse import urlsplit

_MOST = 16384  # bytes of an answer that are looked at


class Answer(NamedTuple):
    """The status code, and the start of the body."""

    status: int
    text: str


def post(url: str, body: bytes, limit_s: float) -> Answer:
    """Send JSON. Raises OSError (TimeoutError when `limit_s` is over) or ValueError.

    The resolver's own limit applies to the lookup of the server's name, about 10 s.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    deadline = time.monotonic() + limit_s
    head = (
        f"POST {parts.path or '/'} HTTP/1.0\r\nHost: {parts.netloc}\r\nUser-Agent: writebackd\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with _connect(host, port, deadline) as plain:
        with _secured(plain, host) if parts.scheme == "https" else plain as connection:
            _limit(connection, deadline)
            connection.sendall(head.encode("ascii") + body)
            return _answer(connection, deadline)


def _connect(host: str, port: int, deadline: float) -> socket.socket:
    """Connect to the first address that answers: localhost is also ::1, where few listen."""
    error: OSError = OSError("the name has no address")
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for tried, (family, kind, protocol, _, address) in enumerate(addresses):
        try:
            # Refused as well: where IPv6 is off, or the unit lets no such socket be made.
            connection = socket.socket(family, kind, protocol)
        except OSError as failed:
            error = failed
            continue
        try:
            # A share of the time: one that is never answered leaves some for the next.
            now = time.monotonic()
            _limit(connection, now + (deadline - now) / (len(addresses) - tried))
            connection.connect(address)
            return connection
        except OSError as failed:
            error = failed
            connection.close()
    raise error


def _secured(connection: socket.socket, host: str) -> socket.socket:
    import ssl

    return ssl.create_default_context().wrap_socket(connection, server_hostname=host)


def _limit(connection: socket.socket, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    connection.settimeout(left)


def _answer(connection: socket.socket, deadline: float) -> Answer:
    received = b""
    while len(received) < _MOST:
        _limit(connection, deadline)
        chunk = connection.recv(4096)
        if not chunk:
            break
        received += chunk
    head, _, text = received.partition(b"\r\n\r\n")
    words = head.split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        raise ValueError("the answer is not HTTP")
    return Answer(int(words[1]), text.decode("utf-8", "replace"))
