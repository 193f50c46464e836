# SPDX-License-Identifier: GPL-2.0-or-later
"""Serves GET /metrics over a Unix socket, and over loopback TCP where the policy says so.

A thread writes the same for node_exporter's textfile collector.
A scraper's effect on the loop is limited as in report/control_server.py.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import time
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Callable, Dict, List, Optional, Tuple

from writebackd.kernel.socket_owner import owners_are_known, tcp_peer_uid
from writebackd.report.background_writer import BackgroundWriter
from writebackd.report.control_server import (
    MAX_CLIENTS,
    MAX_REQUEST,
    LoopServer,
    open_unix_listener,
)
from writebackd.report.metrics import CONTENT_TYPES, OPENMETRICS, PROMETHEUS, render
from writebackd.report.snapshot import Snapshot
from writebackd.safe_files import write_atomically

log = logging.getLogger(__name__)

_PLAIN = "text/plain; charset=utf-8"
_END = b"\r\n\r\n"  # of a head
_UNWRITTEN = "metrics: %s cannot be written: %s"  # of the textfile in the log


class Exposition:
    """The metrics of the last tick as HTTP answers, made for the first client of the tick.

    All clients of one tick share the same bytes: with 1 024 devices they are 3 MB, and 64
    scrapers that do not read must not hold 64 copies.
    """

    def __init__(self, snapshot: Callable[[], Optional[Snapshot]]) -> None:
        """`snapshot` returns the last tick, None before the first."""
        self._snapshot = snapshot
        self._of: Optional[Snapshot] = None
        self._made: Dict[str, bytes] = {}

    def get(self, form: str) -> Optional[bytes]:
        """The answer in one of CONTENT_TYPES, head included; None before the first tick."""
        snapshot = self._snapshot()
        if snapshot is not self._of:
            self._of, self._made = snapshot, {}
        if snapshot is None:
            return None
        if form not in self._made:
            body = render(snapshot, form).encode("utf-8")
            self._made[form] = _answer(HTTPStatus.OK, CONTENT_TYPES[form], body)
        return self._made[form]


class MetricsServer(LoopServer):
    """Answers scrapers; see LoopServer for how it is driven."""

    def __init__(
        self,
        listener: socket.socket,
        where: str,
        exposition: Exposition,
        remove: Optional[Tuple[Path, int]] = None,
        uid_of: Optional[Callable[[socket.socket], Optional[int]]] = None,
    ) -> None:
        """`uid_of`: of a TCP connection's peer."""
        super().__init__(listener, f"metrics on {where}", remove=remove)
        self._exposition = exposition
        self._tcp_uid_of = uid_of

    def _reply(self, received: bytes, uid: Optional[int]) -> Optional[bytes]:
        head, end, _ = received.partition(_END)
        if not end:
            if len(received) <= MAX_REQUEST:
                return None
            return _failure(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        first, *fields = head.decode("latin-1").split("\r\n")
        method, _, rest = first.partition(" ")
        target, _, version = rest.partition(" ")
        if not version.startswith("HTTP/1."):
            return _failure(HTTPStatus.BAD_REQUEST)
        if method not in ("GET", "HEAD"):
            return _failure(HTTPStatus.METHOD_NOT_ALLOWED, "Allow: GET, HEAD\r\n")
        if target.partition("?")[0] != "/metrics":
            return _failure(HTTPStatus.NOT_FOUND)
        form = OPENMETRICS if _takes_openmetrics(fields) else PROMETHEUS
        answer = self._exposition.get(form)
        if answer is None:
            return _failure(HTTPStatus.SERVICE_UNAVAILABLE)
        if method == "HEAD":
            return answer[: answer.index(_END) + len(_END)]
        return answer

    def _busy(self) -> bytes:
        return _failure(HTTPStatus.SERVICE_UNAVAILABLE)

    def _uid_of(self, sock: socket.socket) -> Optional[int]:
        return self._tcp_uid_of(sock) if self._tcp_uid_of is not None else super()._uid_of(sock)


def open_unix(path: Path, exposition: Exposition) -> MetricsServer:
    """Raises OSError naming the path."""
    listener, inode = open_unix_listener(path)
    return MetricsServer(listener, str(path), exposition, remove=(path, inode))


def open_tcp(host: str, port: int, exposition: Exposition) -> MetricsServer:
    """`host` is a loopback address, as checked by the policy. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        listener = socket.create_server((host, port), family=family, backlog=MAX_CLIENTS)
    except OSError as error:
        number = error.errno or errno.EINVAL
        text = os.strerror(number)
        if number == errno.EAFNOSUPPORT:
            text += " (the unit's RestrictAddressFamilies=; see docs/reference/metrics.md)"
        raise OSError(number, text, where) from None
    listener.setblocking(False)
    known = owners_are_known(listener)
    return MetricsServer(
        listener, where, exposition, uid_of=tcp_peer_uid if known else lambda _: None
    )


def open_servers(
    path: Path, http: Optional[Tuple[str, int]], exposition: Exposition
) -> Tuple[List[MetricsServer], List[str]]:
    """Listen on the socket at `path` and the address `http`; returns also the problems, in words.

    Metrics are optional: a problem is logged, and does not end the daemon.
    """
    openers: List[Callable[[], MetricsServer]] = [lambda: open_unix(path, exposition)]
    if http is not None:
        host, port = http
        openers.append(lambda: open_tcp(host, port, exposition))
    servers, problems = [], []
    for opener in openers:
        try:
            servers.append(opener())
        except OSError as error:
            problems.append(f"no metrics on {error.filename}: {error.strerror}")
            log.error("%s", problems[-1])
    return servers, problems


def _takes_openmetrics(fields: "list[str]") -> bool:
    pairs = (field.partition(":") for field in fields)
    return any(
        name.strip().lower() == "accept" and "application/openmetrics-text" in value
        for name, _, value in pairs
    )


def _failure(status: HTTPStatus, more: str = "") -> bytes:
    text = f"{status.value} {status.phrase}: try GET /metrics\n"
    return _answer(status, _PLAIN, text.encode("ascii"), more=more)


def _answer(status: HTTPStatus, kind: str, body: bytes, more: str = "") -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n{more}\r\n"
    ).encode("ascii")
    return head + body


class TextFile(BackgroundWriter):
    """Replaces the file periodically; the loop never waits for its disk."""

    def __init__(self, path: Path, interval_s: float) -> None:
        """Start the thread."""
        super().__init__(path, "textfile", 1)
        self._interval_s = interval_s
        self._due_s = float("-inf")
        self._start()

    def offer(self, snapshot: Snapshot) -> None:
        """Have the file written if the last one is `interval_s` old. Never blocks."""
        now = time.monotonic()
        if now >= self._due_s:
            self._due_s = now + self._interval_s
            self._start()
            self._offer_instead(snapshot)

    def _start(self) -> None:
        """Start the thread if it does not run; without a thread the daemon continues."""
        if self._thread.ident is not None:
            return
        try:
            self._thread.start()
        except RuntimeError as error:  # TasksMax= of the unit
            self._tell(str(error), _UNWRITTEN)

    def _run(self) -> None:
        for snapshot in self._items():
            data = render(snapshot, PROMETHEUS).encode("utf-8")
            # node_exporter reads *.prom, so it never sees the temporary file.
            self._try(partial(write_atomically, self.path, data), _UNWRITTEN)
        # Or else node_exporter would show its last values for ever.
        removed = partial(self.path.unlink, missing_ok=True)
        self._try(removed, "metrics: %s cannot be removed: %s")
