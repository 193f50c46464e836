# SPDX-License-Identifier: GPL-2.0-or-later
"""Publishes a finished tick to history, alert routes, textfile and log."""

from __future__ import annotations

from pathlib import Path
from typing import Callable, Mapping, Optional, Tuple

from writebackd.alerts.alert_types import Alert
from writebackd.alerts.detector_memory import ActiveAlert, Key
from writebackd.alerts.lifecycle import hidden
from writebackd.notify import Routes
from writebackd.policy.schema import Metrics, Routing
from writebackd.report.device_figures import Collector
from writebackd.report.history_events import alert_events, events_of
from writebackd.report.history_store import History
from writebackd.report.snapshot import Snapshot
from writebackd.report.textfile import TextFile
from writebackd.types.levers import Action


class Publisher:
    """Nobody of these is waited for: each has its thread, which drops and counts."""

    def __init__(
        self, history: History, routing: Routing, on_tick: Callable[[Snapshot], None]
    ) -> None:
        self.routes = Routes(routing)
        self.on_tick = on_tick
        self._history = history
        self._figures = Collector()
        self._textfile: Optional[TextFile] = None

    def open_textfile(self, settings: Metrics) -> None:
        """Where the policy has one."""
        if settings.textfile is not None:
            self._textfile = TextFile(Path(settings.textfile), settings.textfile_interval_s)

    def alerts(
        self, alerts: Tuple[Alert, ...], standing: Mapping[Key, ActiveAlert], wall_s: float
    ) -> None:
        """What there is now; `standing` is what the detector remembers."""
        happened = self.routes.tell(alerts, wall_s, hidden(standing, alerts))
        for event in alert_events(happened, self.routes.host, self.routes.runbook):
            self._history.record(event)

    def tick(
        self, last: Optional[Snapshot], snapshot: Snapshot, actions: Tuple[Action, ...]
    ) -> None:
        """What has happened since the `last` one, and the figures."""
        for event in events_of(last, snapshot, actions):
            self._history.record(event)
        self._history.record_figures(self._figures.add(snapshot))

    def show(self, snapshot: Snapshot) -> None:
        """From now on this is what everybody is told."""
        if self._textfile is not None:
            self._textfile.offer(snapshot)
        self.on_tick(snapshot)

    def close(self) -> None:
        """For a second each, let out what waits; not the history, which the end itself is for."""
        self.routes.close(timeout_s=1.0)
        if self._textfile is not None:
            self._textfile.close(timeout=1.0)
