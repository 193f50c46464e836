# SPDX-License-Identifier: GPL-2.0-or-later
"""Sends each alert event to all configured routes, waiting for none."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Dict, Iterator, Sequence, Set, Tuple

from writebackd.alerts.alert_types import Alert
from writebackd.policy.keys import Routing

from .alert_events import RUNBOOK, AlertEvent, Tracker
from .alertmanager import Alertmanager
from .exec_hook import hook_route
from .journal_route import journal_route
from .mail import mail_route
from .route import Route, RouteState

# What a route stays the same by at a reload: its kind, of Alertmanagers also the address.
_Key = Tuple[str, str]


class Routes:
    """The alert routes of the policy. Each has its own thread and limits, so that a dead one delays
    neither the caller nor the others."""

    def __init__(self, settings: Routing, host: str = "") -> None:
        """Start the routes. `host` is the host's name for receivers, default its own name."""
        self.host = host or os.uname().nodename
        # Looked for once: a reload comes in the loop, which never waits for a disk.
        self._installed = installed_runbook()
        self._tracker = Tracker()
        self._routes: Dict[_Key, Route] = {}
        self._strangers: Set[_Key] = set()  # who do not know yet what stands
        self.reload(settings)

    def reload(self, settings: Routing) -> None:
        """Apply new settings: a route of the same kind continues with its queue.

        A new one, or one with other receivers, gets the active alerts as begun. A removed one
        sends what is queued, and ends.
        """
        self.runbook = settings.runbook or self._installed  # its address, without a section
        before, self._routes = self._routes, {}
        for wanted in self._wanted(settings):
            key = (wanted.name, wanted.target if isinstance(wanted, Alertmanager) else "")
            route = before.pop(key, None)
            if route is None:
                route = wanted
                route.start()
                self._strangers.add(key)
            elif route.become(wanted):
                self._strangers.add(key)
            self._routes[key] = route
        for key, route in before.items():
            route.end()
            self._strangers.discard(key)

    def _wanted(self, settings: Routing) -> Iterator[Route]:
        """The routes in the settings, not started."""
        host, book, limit_s = self.host, self.runbook, settings.timeout_s
        if settings.journal:
            yield journal_route(book)
        for url in settings.alertmanager:
            yield Alertmanager(url, host, book, settings.resend_s, limit_s)
        if settings.exec:
            yield hook_route(settings.exec, host, book, limit_s)
        if settings.mail:
            yield mail_route(settings.sendmail, settings.mail, host, book, limit_s)

    def tell(
        self, active: Sequence[Alert], wall_s: float, hidden: Sequence[Alert] = ()
    ) -> Tuple[AlertEvent, ...]:
        """Send the alerts of this tick; returns the events since the last call.

        Never blocks. `wall_s` in seconds since 1970; `hidden` are explained by another alert.
        """
        events = self._tracker.tell(active, wall_s, hidden)
        # A new Alertmanager must learn of alerts that were sent and have not ended.
        active = (*active, *(alert for alert in hidden if self._tracker.knows(alert)))
        news = {event.id for event in events}
        old = [event for event in self._tracker.standing(wall_s) if event.id not in news]
        for key, route in self._routes.items():
            route.start()  # there may have been no thread to be had before
            if key in self._strangers:
                route.meet(old)
            route.take(events, active, wall_s)
        self._strangers.clear()
        return events

    def states(self) -> Tuple[RouteState, ...]:
        return tuple(route.state() for route in self._routes.values())

    def close(self, timeout_s: float = 1.0) -> bool:
        """Try once more to send what is queued, within `timeout_s`. True if all was sent.

        Active alerts are not resolved: Alertmanager keeps them for three resends, within which
        the next start sends them again.
        """
        deadline = time.monotonic() + timeout_s
        for route in self._routes.values():
            route.end()
        ended = [route.join(deadline - time.monotonic()) for route in self._routes.values()]
        return all(ended) and not any(state.lost or state.waiting for state in self.states())


def installed_runbook() -> str:
    """The address of the runbook next to this program: in the checkout, or below its prefix."""
    here = Path(__file__).resolve().parents
    # A package may lie less deep than both, in /opt or a container.
    for depth, docs in ((3, "docs"), (4, "share/doc/writebackd/docs")):
        page = here[min(depth, len(here) - 1)] / docs / "howto" / "runbook.md"
        if page.is_file():
            return page.as_uri()
    return RUNBOOK
