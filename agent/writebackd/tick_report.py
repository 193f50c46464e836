# SPDX-License-Identifier: GPL-2.0-or-later
"""Reports a tick: alerts, totals, history, and the snapshot that every answer is made of."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import List, Mapping, Optional

from writebackd import __version__
from writebackd.actuate.actuator import Actuator
from writebackd.actuate.executor import Actions
from writebackd.actuate.lease_holder import LeaseHolder
from writebackd.actuate.watcher_supervisor import WatcherSupervisor
from writebackd.alerts.blind_ticks import BlindTicks
from writebackd.alerts.detect import detect
from writebackd.host_monitor import HostMonitor
from writebackd.kernel.cmdlines import CommandLines
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.self_usage import Usage
from writebackd.kernel.vm import LEVERS
from writebackd.policy import Policy
from writebackd.policy.reload import ActivePolicy
from writebackd.report.attribution import with_command_lines
from writebackd.report.history_store import History
from writebackd.report.metrics import alerts_of
from writebackd.report.publisher import Publisher
from writebackd.report.snapshot import Snapshot
from writebackd.report.verdict import standing
from writebackd.runtime_state import RuntimeState
from writebackd.types.decision import Decision
from writebackd.types.estimate import Estimate
from writebackd.types.samples import Sample


class TickReport:
    """Reads the daemon's parts, and writes of its state all but the memory."""

    def __init__(
        self,
        files: KernelFiles,
        state: RuntimeState,
        monitor: HostMonitor,
        policies: ActivePolicy,
        actuator: Actuator,
        tenure: LeaseHolder,
        watch: WatcherSupervisor,
        history: History,
        teller: Publisher,
        state_dir: Path,
        started_s: float,
    ) -> None:
        """`started_s`: CLOCK_BOOTTIME."""
        self._state, self._monitor, self._policies = state, monitor, policies
        self._actuator, self._tenure, self._watch = actuator, tenure, watch
        self._history, self._teller = history, teller
        self._state_dir, self._started_s = state_dir, started_s
        self.no_metrics: List[str] = []  # why some socket for scrapers is missing
        self._usage = Usage(files)
        self._command_lines = CommandLines(files)
        self._unread = BlindTicks()

    def tick(
        self, policy: Policy, sample: Sample, estimates: Mapping[str, Estimate],
        decision: Decision, actions: Actions,
    ) -> None:
        """One that was decided under the policy in force, and carried out by `actions`."""
        state, in_force = self._state, self._policies.in_force
        spent, resident = self._usage.read()
        state.totals = state.totals.seen(sample, estimates, decision, spent)
        limits_set = all(each.ok for each in actions if each.lever in LEVERS)
        alerts, state.alerts = detect(
            policy, state.alerts, sample, estimates, decision, state.memory,
            state.off is None and limits_set,
        )
        alerts = self._unread.good(with_command_lines(alerts, self._command_lines))
        state.problem = None
        self._teller.alerts(alerts, state.alerts.standing, sample.wall_s)
        snapshot = Snapshot(
            version=__version__,
            mode=state.memory.mode,
            policy_name=policy.name,
            policy_chosen=policy.chosen,
            policy_files=policy.files,
            started_s=self._started_s,
            sample=sample,
            estimates=estimates,
            objective=policy.objective,
            decision=decision,
            memory=state.memory,
            originals=self._actuator.originals,
            probe=self._monitor.sampler.probe.info(),
            self_cpu_fraction=spent / max(1.0, sample.time_s - self._started_s),
            self_rss_bytes=resident,
            state_dir=str(self._state_dir),
            levers=self._actuator.levers.held(sample.vm.threshold_bytes),
            lease_s=self._tenure.lease.remaining_s,
            watcher_pid=self._watch.pid,
            leases_lost=self._tenure.lost,
            history_dropped=self._history.dropped,
            off=self._off,
            unseen=self._monitor.hidepid.unseen(),
            messages=tuple(filter(None, (
                *self.no_metrics, *self._monitor.problems, *self._monitor.unmatched(),
                self._policies.reloader.problem,
            ))),
            rivals=self._monitor.rivals.found,
            alerts=alerts,
            routes=self._teller.routes.states(),
            runbook=self._teller.routes.runbook,
            pinned=state.pinned,
            standing=state.snapshot.standing if state.snapshot is not None else None,
            window=in_force.window if in_force is not None else None,
        )
        self._teller.tick(state.snapshot, snapshot, actions)
        self._show(snapshot)

    def standing_still(self, problem: str, silent_ticks: int, sample: Optional[Sample]) -> None:
        """One in which no alert could be looked for; from `silent_ticks` in a row on BLIND is told.

        Whoever asks must not take the last good tick for this one: it is shown with the
        problem, and of `sample` the limits. The loop is alive, which is what the watchdog
        wants to know.
        """
        state = self._state
        state.problem = problem
        self._unread.still()
        shown = state.snapshot
        if self._unread.ticks >= silent_ticks:
            since_s = shown.sample.wall_s if shown is not None else time.time()
            alerts = self._unread.told(shown.alerts if shown else (), since_s, problem)
            shown = replace(shown, alerts=alerts) if shown is not None else None
            self._teller.alerts(alerts, state.alerts.standing, time.time())
        if shown is None:
            return
        vm = sample.vm if sample is not None else shown.sample.vm
        self._show(replace(
            shown,
            problem=problem,
            sample=replace(shown.sample, vm=vm, errors=(problem,)),
            lease_s=self._tenure.lease.remaining_s,
            watcher_pid=self._watch.pid,
            leases_lost=self._tenure.lost,
            off=self._off,
        ))  # fmt: skip

    @property
    def _off(self) -> Optional[str]:
        return str(self._state.off) if self._state.off is not None else None

    def _show(self, snapshot: Snapshot) -> None:
        """From now on every answer is made of this."""
        totals = self._state.totals.alerted(frozenset(alerts_of(snapshot)))
        self._state.totals = totals
        self._state.snapshot = replace(snapshot, totals=totals, standing=standing(snapshot))
        self._teller.show(self._state.snapshot)
