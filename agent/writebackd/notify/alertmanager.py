# SPDX-License-Identifier: GPL-2.0-or-later
"""Alertmanager, API v2: posts the active alerts, again and again.

Its rules, as of 0.25: the labels are an alert's identity; with endsAt in the future it is firing,
and it is resolved then unless resent; of two messages on one alert the later endsAt counts, unless
the newer one is in the past of Alertmanager's own clock. So if our clock is ahead, "it ended now"
is ignored at first, and is resent until the last endsAt has passed.

A POST has one total time limit; http.client has only one for each read: a server that sends a byte
every nine seconds never exceeds ten.  It also saves the 3 MB of http.client and ssl without https.
"""

from __future__ import annotations

import json
import logging
import socket
import time
from datetime import datetime, timezone
from functools import partial
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple
from urllib.parse import urlsplit

from writebackd.alerts.alert_types import Alert

from .alert_events import AlertEvent, fact_lines, line, runbook_of, who
from .route import Backoff, Route, RouteError

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
    # A part of it for each address: localhost is also ::1, where few listen.
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    with socket.create_connection((host, port), timeout=limit_s / len(addresses)) as plain:
        connection = plain
        if parts.scheme == "https":
            import ssl

            connection = ssl.create_default_context().wrap_socket(plain, server_hostname=host)
        with connection:
            _limit(connection, deadline)
            connection.sendall(head.encode("ascii") + body)
            return _answer(connection, deadline)


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


log = logging.getLogger(__name__)

API = "/api/v2/alerts"
# An alert that is not heard of for so many resends is over, as Prometheus has it.
_LIVES = 3
# Culprits that fit a readable annotation.
_MOST_CULPRITS = 3
# Ended alerts that are still sent: bounds what we keep for a dead Alertmanager.
MAX_ENDED = 256

LabelSet = Tuple[Tuple[str, str], ...]
Post = Callable[[str, bytes, float], Answer]


def labels_of(alert: Alert, host: str) -> LabelSet:
    """The constant parts of an alert, and severity, by which receivers are chosen.

    A new severity makes it another alert for Alertmanager; the old label set is resolved.
    """
    labels = {
        "alertname": "Writebackd" + alert.name.value.title().replace("_", ""),
        "cause": alert.cause.value,
        "device": line(alert.device or ""),
        "instance": line(host),
        "job": "writebackd",
        "severity": alert.severity.value,
    }
    return tuple(sorted((name, value) for name, value in labels.items() if value))


def annotations_of(alert: Alert, runbook: str) -> Dict[str, str]:
    """The parts that change: numbers, culprits, what was done."""
    culprits = "; ".join(who(culprit) for culprit in alert.culprits[:_MOST_CULPRITS])
    annotations = {
        "summary": line(alert.summary),
        "done": line(alert.done),
        "culprits": culprits,
        "evidence": fact_lines(alert) or "",
        "runbook_url": runbook_of(alert, runbook),
    }
    return {name: text for name, text in annotations.items() if text}


class Alertmanager(Route):
    """One server; several have a route each, so that a dead one does not delay the others.

    All active alerts are one message: sent at once if one begins, ends or changes its labels,
    else every `resend_s`.
    """

    def __init__(
        self, url: str, host: str, runbook: str, resend_s: float, limit_s: float,
        send: Post = post, backoff: Optional[Backoff] = None,
    ) -> None:
        super().__init__("alertmanager", url, backoff or Backoff(last_s=min(60.0, resend_s)))
        self._url = url.rstrip("/") + API
        self._host, self._runbook = host, runbook
        self._resend_s, self._limit_s = resend_s, limit_s
        self._send = send
        self._active: Dict[LabelSet, Alert] = {}
        # The alert, when it ended (wall clock), and until when that is sent (monotonic; None:
        # not sent yet).
        self._ended: Dict[LabelSet, Tuple[Alert, float, Optional[float]]] = {}
        self._lost = 0
        self._news = 0  # changes of what stands, so far

    def take(self, events: Sequence[AlertEvent], active: Sequence[Alert], wall_s: float) -> None:
        now: Dict[LabelSet, Alert] = {}
        for alert in active:
            now.setdefault(labels_of(alert, self._host), alert)
        with self._lock:
            gone = [labels for labels in self._active if labels not in now]
            for labels in gone:
                self._ended[labels] = (self._active[labels], wall_s, None)
            while len(self._ended) > MAX_ENDED:
                if self._ended.pop(next(iter(self._ended)))[2] is None:
                    self._lost += 1
            for labels in now:
                self._ended.pop(labels, None)
            news = bool(gone) or any(labels not in self._active for labels in now)
            self._active = now
            self._news += news
        if news:
            self._wake.set()

    def _adopt(self, other: Alertmanager) -> None:
        super()._adopt(other)
        self._runbook, self._resend_s, self._limit_s = (
            other._runbook, other._resend_s, other._limit_s
        )

    def _count_waiting(self) -> int:
        """Count what a dead server has not received; otherwise nothing waits."""
        return len(self._active) + len(self._ended) if self._error is not None else 0

    def _run(self) -> None:
        said = 0  # of the news
        while True:
            closing = self._closing
            with self._lock:
                news, ended = self._news, list(self._ended)
                nothing = not self._active and not ended
            if closing and news == said:
                return
            if nothing:
                said = news
                self._rest(None)
                continue
            wait_s = self._resend_s
            if self._try(self._post, "alerts") is None:
                said = news
                self._keep_ended(ended)
            else:
                wait_s = self._backoff.fail()
            if closing:
                return
            self._pause(wait_s, partial(self._has_more, news))

    def _has_more(self, news: int) -> bool:
        return self._error is None and self._news != news

    def _body(self, now_s: float) -> List[Dict[str, Any]]:
        """All alerts to send at `now_s` (wall clock), including ended ones."""
        until_s = now_s + _LIVES * self._resend_s
        body = [self._entry(labels, alert, until_s) for labels, alert in self._active.items()]
        for labels, (alert, end_s, _) in self._ended.items():
            body.append(self._entry(labels, alert, end_s))
        return body

    def _entry(self, labels: LabelSet, alert: Alert, end_s: float) -> Dict[str, Any]:
        return {
            "labels": dict(labels),
            "annotations": annotations_of(alert, self._runbook),
            "startsAt": _rfc3339(min(alert.since_s, end_s)),  # or else all is refused
            "endsAt": _rfc3339(end_s),
        }

    def _post(self) -> None:
        """Raises RouteError or OSError."""
        with self._lock:
            body = self._body(time.time())
        try:
            answer = self._send(self._url, json.dumps(body).encode("ascii"), self._limit_s)
        except ValueError as error:
            raise RouteError(str(error)) from None
        if not 200 <= answer.status < 300:
            raise RouteError(f"HTTP status {answer.status}: {line(answer.text.strip())}")

    def _keep_ended(self, sent: List[LabelSet]) -> None:
        """Resend ended alerts while Alertmanager may still believe our last endsAt."""
        now = time.monotonic()
        with self._lock:
            for labels in sent:
                if labels not in self._ended:
                    continue
                alert, end_s, until = self._ended[labels]
                until = now + _LIVES * self._resend_s if until is None else until
                self._ended[labels] = (alert, end_s, until)
                if now >= until:
                    del self._ended[labels]


def _rfc3339(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, timezone.utc).isoformat(timespec="milliseconds")
