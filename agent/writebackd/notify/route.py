# SPDX-License-Identifier: GPL-2.0-or-later
"""Base of every route: a thread with a queue and back-off, which nobody waits for."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Callable, Deque, Literal, Optional, Sequence

from writebackd.alerts.alert_types import Alert
from writebackd.types.quantities import Count

from .alert_events import AlertEvent

log = logging.getLogger(__name__)

# Events that may wait for a dead route: an alert that begins, changes and ends every
# minute fills it in an hour and a half. About 2 KiB each.
MAX_WAITING = 256
# Between two tries at a dead route.
FIRST_RETRY_S = 1.0
LAST_RETRY_S = 60.0
# A hook that has answered no so often will not take this one, and holds up those behind it.
REFUSALS = 5


class RouteError(Exception):
    """The event could not be sent; the text says why. It will be tried again."""


class Refused(RouteError):
    """The receiver rejected the event; it is tried again up to REFUSALS times."""


@dataclass(frozen=True)
class RouteState:
    """The state of a route as shown by `alerts`."""

    name: Annotated[str, Literal["journal", "alertmanager", "exec", "mail"]]
    target: str
    told: Count  # events sent, or how often the whole state was
    waiting: Count
    lost: Count  # that were never sent and never will be
    error: Optional[str]  # of the last try; None: it went well


class Backoff:
    """Doubling delays between tries, in seconds."""

    def __init__(self, first_s: float = FIRST_RETRY_S, last_s: float = LAST_RETRY_S) -> None:
        self._first_s, self._last_s = first_s, last_s
        self._next_s = first_s

    def fail(self) -> float:
        wait_s, self._next_s = self._next_s, min(2 * self._next_s, self._last_s)
        return wait_s

    def reset(self) -> None:
        self._next_s = self._first_s


class Route:
    """A thread with its last error and counts. Subclasses send in `_run`."""

    def __init__(self, name: str, target: str, backoff: Backoff) -> None:
        self.name, self.target = name, target
        self._backoff = backoff
        self._sent = 0
        self._lost = 0
        self._error: Optional[str] = None
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._replaced = False  # since the try before: a pause is no longer worth it
        # A daemon thread: one stuck in a dead server must not hold up the exit.
        self._thread = threading.Thread(target=self._live, name=f"route {name}"[:15], daemon=True)

    def start(self) -> None:
        """Start the thread if it does not run; without a thread the error is shown."""
        if self._thread.ident is not None:
            return
        try:
            self._thread.start()
        except RuntimeError as error:  # TasksMax= of the unit
            self._failed(str(error))

    def become(self, other: Any) -> bool:
        """Take the settings of `other`, a route of the same kind that was not started; whether its
        target changed.

        Queue and counters stay. A try in progress still uses the old settings.
        """
        with self._lock:
            moved = bool(self.target != other.target)
            self.target = other.target
            self._adopt(other)
        self._replaced = True
        self._wake.set()
        return moved

    def _adopt(self, other: Any) -> None:
        """Take over the settings of `other`, which has this class."""
        self._send, self._backoff = other._send, other._backoff

    def meet(self, standing: Sequence[AlertEvent]) -> None:
        """Receive earlier events, for a new route or one with a new target. Never blocks."""

    def take(self, events: Sequence[AlertEvent], active: Sequence[Alert], wall_s: float) -> None:
        """Receive the events of this tick and the active alerts. Never blocks."""
        raise NotImplementedError

    def state(self) -> RouteState:
        with self._lock:
            waiting = self._count_waiting()
        return RouteState(self.name, self.target, self._sent, waiting, self._lost, self._error)

    def _count_waiting(self) -> int:
        raise NotImplementedError

    def end(self) -> None:
        """Try once more to send what is queued, without back-off, then stop. Does not wait."""
        self._closing = True
        self._wake.set()

    def join(self, timeout_s: float) -> bool:
        if self._thread.ident is not None:
            self._thread.join(max(0.0, timeout_s))
        return not self._thread.is_alive()

    def _live(self) -> None:
        try:
            self._run()
        except Exception as error:
            log.exception("the route %s has ended", self.name)
            self._failed(f"ended until the next start: {error!r}")

    def _run(self) -> None:
        raise NotImplementedError

    def _rest(self, seconds: Optional[float]) -> None:
        """Wait for something to send, or for the given time; None: without a limit."""
        self._wake.wait(seconds)
        self._wake.clear()

    def _pause(self, seconds: float, is_over: Callable[[], bool] = lambda: False) -> None:
        """Wait, unless new settings come; news do not shorten the pause of a dead route."""
        until = time.monotonic() + seconds
        while not (self._closing or self._replaced or is_over()) and time.monotonic() < until:
            self._rest(until - time.monotonic())

    def _try(self, send: Callable[[], None], what: object) -> Optional[Exception]:
        """Send `what`; returns the error."""
        self._replaced = False
        try:
            send()
        except (RouteError, OSError) as error:
            self._failed(str(error))
            return error
        except Exception as error:  # a bug of ours: the next one may fare better
            if self._error != repr(error):
                log.error("cannot send %s to %s: %r", what, self.name, error)
            self._failed(repr(error))
            return error
        if self._error is not None:
            log.info("alerts reach %s %s again", self.name, self.target)
        self._error = None
        self._sent += 1
        self._backoff.reset()
        return None

    def _failed(self, error: str) -> None:
        if self._error is None:  # logged once, until it works again
            log.warning("alerts do not reach %s %s: %s", self.name, self.target, error)
        self._error = error


class QueuedRoute(Route):
    """A route that sends each event once, in order; events beyond the queue are counted."""

    def __init__(
        self, name: str, target: str, send: Callable[[AlertEvent], None],
        backoff: Optional[Backoff] = None,
    ) -> None:
        """`send` raises RouteError or OSError, and takes bounded time."""
        super().__init__(name, target, backoff or Backoff())
        self._send = send
        self._waiting: Deque[AlertEvent] = deque()

    def take(self, events: Sequence[AlertEvent], active: Sequence[Alert], wall_s: float) -> None:
        with self._lock:
            for event in events:
                if len(self._waiting) >= MAX_WAITING:
                    # The oldest but the one that may be on its way: news are worth more.
                    del self._waiting[1]
                    self._lost += 1
                self._waiting.append(event)
        if events:
            self._wake.set()

    def meet(self, standing: Sequence[AlertEvent]) -> None:
        with self._lock:
            waiting = {event.id for event in self._waiting}
        self.take([event for event in standing if event.id not in waiting], (), 0.0)

    def _count_waiting(self) -> int:
        return len(self._waiting)

    def _run(self) -> None:
        refused = 0
        while True:
            # In this order: events from before the flag was set are still sent.
            closing = self._closing
            event = self._waiting[0] if self._waiting else None
            if event is None:
                if closing:
                    return
                self._rest(None)
                continue
            error = self._try(partial(self._send, event), event.alert.key)
            refused = refused + 1 if isinstance(error, Refused) else 0
            if isinstance(error, (RouteError, OSError)):
                if self._replaced:
                    refused = 0  # by the one before
                    continue
                if not closing and refused < REFUSALS:
                    self._pause(self._backoff.fail())
                    continue
            refused = 0
            with self._lock:
                self._waiting.popleft()
                self._lost += error is not None
