# SPDX-License-Identifier: GPL-2.0-or-later
"""Reports a tick: alerts, totals, history, routes, and the snapshot that answers are made of."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Callable, List, Mapping, Optional, Tuple

from writebackd import __version__
from writebackd.actuate.actuator import Actuator
from writebackd.actuate.executor import Actions
from writebackd.actuate.watcher_supervisor import LeaseHolder, WatcherSupervisor
from writebackd.alerts.alert_types import Alert
from writebackd.alerts.blind import BlindTicks
from writebackd.alerts.detect import detect
from writebackd.alerts.lifecycle import hidden
from writebackd.host_monitor import HostMonitor
from writebackd.kernel.argv_redaction import CommandLines
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.memory_lock import Usage
from writebackd.kernel.vm import LEVERS
from writebackd.notify.alert_events import EventKind
from writebackd.notify.dispatch import Routes
from writebackd.policy import Policy
from writebackd.policy.keys import Metrics
from writebackd.policy.reload import ActivePolicy
from writebackd.report.attribution import with_command_lines
from writebackd.report.device_figures import Collector
from writebackd.report.history_events import alert_events, events_of
from writebackd.report.history_store import History
from writebackd.report.metrics_server import TextFile
from writebackd.report.snapshot import Snapshot
from writebackd.report.verdict import standing
from writebackd.runtime_state import RuntimeState
from writebackd.types.decision import Decision
from writebackd.types.estimate import Estimate
from writebackd.types.samples import Sample

log = logging.getLogger(__name__)


@dataclass
class TickReport:
    """Reads the daemon's parts, and updates all of its state except the memory.

    Routes, history and textfile have threads, which drop and count.
    """

    files: KernelFiles
    state: RuntimeState
    monitor: HostMonitor
    policies: ActivePolicy
    actuator: Actuator
    lease: LeaseHolder
    watch: WatcherSupervisor
    history: History
    on_tick: Callable[[Optional[Snapshot]], None]
    state_dir: Path
    started_s: float  # CLOCK_BOOTTIME
    no_metrics: List[str] = field(default_factory=list)  # why a socket for scrapers is missing

    def __post_init__(self) -> None:
        policy = self.policies.policy
        self.routes = Routes(policy.alerts)
        self._usage = Usage(self.files)
        self._command_lines = CommandLines(self.files)
        self._unread = BlindTicks()
        self._figures = Collector()
        self._textfile: Optional[TextFile] = None
        self._started_wall_s = time.time()
        log.info(
            "writebackd %s, Linux %s, probe %s, policy %s, mode %s", __version__,
            os.uname().release, self.monitor.sampler.probe.info().backend, policy.name,
            self.state.memory.mode.value,
        )  # fmt: skip

    def open_textfile(self, settings: Metrics) -> None:
        if settings.textfile is not None:
            self._textfile = TextFile(Path(settings.textfile), settings.textfile_interval_s)

    def close(self) -> None:
        """Flush each queue for at most a second; the history stays open to record the end."""
        self.routes.close(timeout_s=1.0)
        if self._textfile is not None:
            self._textfile.close(timeout=1.0)

    def alerts(self, alerts: Tuple[Alert, ...], wall_s: float) -> None:
        """Send the active alerts, and record what happened to them."""
        happened = self.routes.tell(alerts, wall_s, hidden(self.state.alerts.standing, alerts))
        for each in happened:
            if each.what is EventKind.BEGIN:
                self.state.totals = self.state.totals.alerted(each.alert.name.value)
        for event in alert_events(happened, self.routes.host, self.routes.runbook):
            self.history.record(event)

    def tick(
        self, policy: Policy, sample: Sample, estimates: Mapping[str, Estimate],
        decision: Decision, actions: Actions,
    ) -> None:
        """Report a tick that was decided under the policy in force; `actions` carried it out."""
        state, in_force = self.state, self.policies.in_force
        spent, resident = self._usage.read()
        state.totals = state.totals.seen(sample, estimates, decision, spent)
        limits_set = all(action.ok for action in actions if action.lever in LEVERS)
        alerts, state.alerts = detect(
            policy, state.alerts, sample, estimates, decision, state.memory,
            state.off is None and limits_set,
        )
        alerts = self._unread.good(with_command_lines(alerts, self._command_lines))
        state.problem = None
        self.alerts(alerts, sample.wall_s)
        snapshot = Snapshot(
            version=__version__,
            policy=policy,
            started_s=self.started_s,
            started_wall_s=self._started_wall_s,
            sample=sample,
            estimates=estimates,
            decision=decision,
            memory=state.memory,
            originals=self.actuator.originals,
            probe=self.monitor.sampler.probe.info(),
            self_cpu_fraction=spent / max(1.0, sample.time_s - self.started_s),
            self_rss_bytes=resident,
            state_dir=str(self.state_dir),
            levers=self.actuator.levers.held(sample.vm.threshold_bytes),
            lease_s=self.lease.remaining_s,
            watcher_pid=self.watch.pid,
            leases_lost=self.lease.losses,
            history_dropped=self.history.dropped,
            off=self._off,
            unseen=self.monitor.hidepid.unseen(),
            messages=tuple(filter(None, (
                *self.no_metrics, *self.monitor.problems, *self.monitor.unmatched(),
                *policy.unresolved(self.monitor.topology.devices),
                self.policies.problem,
            ))),
            rivals=self.monitor.conflicting,
            alerts=alerts,
            routes=self.routes.states(),
            runbook=self.routes.runbook,
            pinned=state.pinned,
            draining=state.draining,
            standing=state.snapshot.standing if state.snapshot is not None else None,
            window=in_force.window if in_force is not None else None,
        )
        for event in events_of(state.snapshot, snapshot, actions):
            self.history.record(event)
        self.history.record_figures(self._figures.add(snapshot))
        self._show(snapshot)

    def standing_still(self, problem: str, silent_ticks: int, sample: Optional[Sample]) -> None:
        """Report a tick that could not be read; BLIND after `silent_ticks` in a row.

        The last good tick is shown with the problem, so that it cannot be mistaken for this one,
        and with the limits of `sample`. The watchdog is notified that the loop is alive.
        """
        state = self.state
        state.problem = problem
        self._unread.still()
        shown = state.snapshot
        if self._unread.ticks >= silent_ticks:
            since_s = shown.sample.wall_s if shown is not None else time.time()
            alerts = self._unread.blind(shown.alerts if shown else (), since_s, problem)
            shown = replace(shown, alerts=alerts) if shown is not None else None
            self.alerts(alerts, time.time())
        if shown is None:
            self.on_tick(None)
            return
        vm = sample.vm if sample is not None else shown.sample.vm
        self._show(replace(
            shown,
            problem=problem,
            sample=replace(shown.sample, vm=vm, errors=(problem,)),
            lease_s=self.lease.remaining_s,
            watcher_pid=self.watch.pid,
            leases_lost=self.lease.losses,
            off=self._off,
        ))  # fmt: skip

    @property
    def _off(self) -> Optional[str]:
        return str(self.state.off) if self.state.off is not None else None

    def _show(self, snapshot: Snapshot) -> None:
        """Answer requests from this snapshot from now on."""
        self.state.snapshot = replace(
            snapshot, totals=self.state.totals, standing=standing(snapshot)
        )
        if self._textfile is not None:
            self._textfile.offer(self.state.snapshot)
        self.on_tick(self.state.snapshot)
