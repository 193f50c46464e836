# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon: its start and end, and one tick: read, estimate, decide, act, report.

Everything runs in one thread. Only this module writes the memory: in a tick, or by commands between
two ticks. Nothing waits for a disk, since the disk of this host may hang: ledger, lease, lock and
socket are in /run; logging, history and learned values have threads that drop and count; memory is
locked.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from writebackd.actuate import kill_switch
from writebackd.actuate.actuator import Actuator
from writebackd.actuate.executor import Actions, Executor, taken_over
from writebackd.actuate.host_lock import HostLock
from writebackd.actuate.watcher_supervisor import SERVICE_S, LeaseHolder, WatcherSupervisor
from writebackd.alerts.baseline import to_keep
from writebackd.alerts.detector_memory import AlertMemory
from writebackd.commands import Command, Commands, overdue, set_mode
from writebackd.control.decide import decide, rebounded, released
from writebackd.estimate.estimator import estimate
from writebackd.event_loop import EventLoop, Signals
from writebackd.host_monitor import HostMonitor, linked
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.libbpf import BpfError
from writebackd.kernel.memory_lock import collect_seldom
from writebackd.paths import HISTORY, LEARNED, LEDGER, METRICS, ORDERS, SAMPLES, SOCKET
from writebackd.policy import Policy
from writebackd.policy.reload import ActivePolicy
from writebackd.report.control_server import ControlServer
from writebackd.report.history_events import window_in_words
from writebackd.report.history_schema import Event
from writebackd.report.history_store import History
from writebackd.report.learned_store import LearnedStore
from writebackd.report.metrics_server import Exposition, MetricsServer, open_servers
from writebackd.report.recorder import Recorder
from writebackd.report.snapshot import Snapshot, in_mode
from writebackd.runtime_state import OrdersFile
from writebackd.tick_report import TickReport
from writebackd.trial.trial_run import End, TrialController
from writebackd.types.decision import Decision, Mode
from writebackd.types.samples import Sample
from writebackd.types.storage import Device

log = logging.getLogger(__name__)

# Ticks that may fail to read before the originals are put back: long enough for a passing EINTR or
# a device in transition, short enough that no limit outlives the flood it was made for.
SILENT_TICKS = 5
# A lease lasts so many ticks at least.
LEAST_LEASE_TICKS = 5
# How long the start waits for the watcher, which takes 0.1 to 0.2 s to load.
WATCHER_WAIT_S = 5.0


@dataclass(frozen=True)
class Options:
    """The parsed command line."""

    runtime_dir: Path
    state_dir: Path
    interval_s: float
    probe: str
    fsync_hook: str
    devices: Tuple[str, ...]
    mode: Optional[Mode]  # None: as the policy says


class Daemon:
    """Owns all parts; `run` returns after the original limits are restored."""

    def __init__(
        self, options: Options, load: Callable[[], Policy],
        on_tick: Callable[[Optional[Snapshot]], None] = lambda snapshot: None,
        files: Optional[KernelFiles] = None,
    ) -> None:
        """`load` reads the policy, again on SIGHUP.

        Raises AlreadyRunning, PolicyError, or OSError or BpfError for an unavailable probe.
        """
        self._options = options
        self._files = files or KernelFiles()
        self.policies = ActivePolicy(load, self._files.path("/"))
        self._host_lock = HostLock(self._files, options.runtime_dir)
        try:
            self._make_parts(options, on_tick)
        except BaseException:
            self._host_lock.close()
            raise

    def _make_parts(
        self, options: Options, on_tick: Callable[[Optional[Snapshot]], None]
    ) -> None:
        # First, as the rest takes time: limits of an earlier run must not be restored meanwhile.
        least = LEAST_LEASE_TICKS * options.interval_s
        self._lease = LeaseHolder(options.runtime_dir, max(least, self.policy.limits.lease_s))
        in_service = "NOTIFY_SOCKET" in os.environ
        self._watch = WatcherSupervisor(options.runtime_dir, SERVICE_S if in_service else 0.0)
        self._off_switch = kill_switch.of_host(self._files, options.runtime_dir)
        self._devices = tuple(linked(self._files, path) for path in options.devices)
        self._monitor = HostMonitor(
            self._files, options.probe, options.fsync_hook, self.policy.probe, self._devices,
            self._excluded,
        )
        self._actuator = Actuator(
            self._files, options.runtime_dir / LEDGER, self.policy.on_exit, self._lease.permit,
            self._host_lock.keep_first,
        )
        self._orders = OrdersFile(options.runtime_dir / ORDERS, self._files)
        self.state = self._orders.saved.state(
            options.mode or Mode(self.policy.mode),
            # With procfs by request, it is expected that fsync is not visible.
            AlertMemory(sighted=self._monitor.backend != "procfs"),
        )
        self._executor = Executor(self._actuator, self.state.count_writes)
        self._executor.set_dry_run(self.state.memory.mode, off=False)
        self._history = History(options.state_dir / HISTORY)
        kept = self.policy.history.samples_bytes
        self._recorder = Recorder(options.state_dir / SAMPLES, kept) if kept else None
        self._learned = LearnedStore(
            options.state_dir / LEARNED, lambda memory: to_keep(memory, self.state.alerts.health)
        )
        self._actions: Actions = ()
        self._last_s: Optional[float] = None
        self._failures = 0
        self._signals = Signals()
        self._report = TickReport(
            self._files, self.state, self._monitor, self.policies, self._actuator, self._lease,
            self._watch, self._history, on_tick, options.state_dir, _boottime(),
        )
        self._trial = TrialController(self._begin_trial, self._end_trial)
        self.handle = Commands(
            self._files, self._actuator, self.state, self._learned, self.apply, self._order_trial,
            self._monitor.hidepid.option, _boottime,
        ).handle
        self._hurry = False
        collect_seldom()

    @property
    def policy(self) -> Policy:
        """The policy as last read, with its windows."""
        return self.policies.policy

    # ---- the loop ------------------------------------------------------

    def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Run until a signal.  The originals are restored however it ends."""
        with contextlib.closing(self._host_lock):
            self._run(ready)

    def _run(self, ready: Callable[[], None]) -> None:
        server = ControlServer(self._options.runtime_dir / SOCKET, self.handle)
        loop = EventLoop(self._signals, [server, *self._open_metrics()])
        self._report.open_textfile(self.policies.first.metrics)
        self._signals.catch()
        try:
            if not self._watch.wait(WATCHER_WAIT_S) and self.state.memory.mode is Mode.ENFORCE:
                log.warning(
                    "Watcher not running; limits will not be restored if this process hangs"
                )
            if not self._lease.renew():
                self._lease.take_first()  # loading took longer than it lasts
            self._adopt()
            self._monitor.rivals.look()
            self._tick()
            ready()
            loop.run(self._options.interval_s, self._tick, self._reload_all)
            log.info("stopping: %s", self._signals.stop)
        finally:
            # Limits first: everything below may fail, but limits must not stay.
            done = all(action.ok for action in self._executor.finish())
            if done and self._actuator.started:  # else the watcher tries again
                self._lease.release()
            loop.close()
            self._signals.close()
            self._off_switch.close()
            self._monitor.sampler.probe.close()
            self._report.close()
            self._learned.keep(self.state.memory, time.time())
            self._learned.close(timeout=1.0)
            ended = self._signals.stop or "an error"
            if self.state.memory.mode is Mode.ENFORCE or not done:
                failed = "" if done else ", which could not be done in full: see the log"
                ended += f", on-exit = {self.policy.on_exit}{failed}"
            self._history.record(Event(time.time(), "stop", text=ended))
            self._history.close(timeout=2.0)
            if self._recorder is not None:
                self._recorder.close(timeout=1.0)

    def _adopt(self) -> None:
        """Continue from the ledger, of an earlier run or from before the lease was lost.

        Raises LedgerError, OSError or ValueError.
        """
        for message in self._actuator.start():
            log.info("%s", message)
        self.state.memory = taken_over(
            self.state.memory, self._actuator, self._monitor.topology.devices, _boottime()
        )

    def _begin_anew(self) -> None:
        """Continue after a lost lease. Raises as `_adopt`."""
        self.state.memory = released(self.state.memory)
        self._adopt()

    # ---- one tick ------------------------------------------------------

    def _tick(self) -> bool:
        """Run one tick; returns whether the next should come sooner."""
        begun = time.monotonic()
        # During a tick the collector would scan every object it allocates; most are freed after it.
        gc.disable()
        try:
            self._run_tick()
        finally:
            gc.enable()
        self.state.totals = self.state.totals.ticked(time.monotonic() - begun)
        return self._hurry

    def _run_tick(self) -> None:
        self._watch.tend()
        self._obey_off_switch()
        for command in overdue(self.state, _boottime()):
            self.apply(command)
        sample = self._read()
        if sample is None:
            return
        devices = [seen.device for seen in sample.devices]
        self.state.memory = self._learned.recall(self.state.memory, devices, sample.wall_s)
        policy = self._enter_window(sample.wall_s)
        self._step_trial(policy, sample)
        before = self.state.memory
        estimates, memory = estimate(policy, before, sample)
        decision, self.state.memory = decide(policy, memory, sample, estimates)
        self._orders.save(self.state)
        self._hurry = decision.hurry
        if self._recorder is not None:
            self._recorder.record(policy, before, sample, decision, self.state.memory)
        self._learned.keep_now_and_then(self.state.memory, sample)
        self._act(decision, was_yielded=before.yielded is not None)
        self._report.tick(policy, sample, estimates, decision, self._actions)

    def _read(self) -> Optional[Sample]:
        """This tick's sample; None if no decision may be based on it."""
        now = _boottime()
        dt = max(now - self._last_s, 1e-3) if self._last_s is not None else None
        try:
            self._monitor.refresh()
            self._take_loaded_policy()
            sample = self._monitor.read(
                now, time.time(), dt or self._options.interval_s, self._actions,
                self.policy.levers.pace != "off",
                (path for paced in self.state.memory.paces.values() for path in paced.rates),
            )
        except (OSError, ValueError, BpfError) as error:
            self._hold(error)
            return None
        self._failures = 0
        self._last_s = now
        if dt is None:
            return None  # the first only sets the counters' start values
        if not self._lease.renew():
            self._stand_still(self._lease.take_again(self._begin_anew), sample)
            return None
        foreign = self._actuator.foreign(sample.vm.limits) + self._actuator.levers.foreign()
        if foreign and self._lease.lost:
            # Stopped since it was renewed: the foreign values are the originals.
            self._stand_still("lease expired, original limits restored", sample)
            return None
        if foreign:
            sample = replace(sample, foreign=self._monitor.named(foreign, self._watch.pid))
        return sample

    def _step_trial(self, policy: Policy, sample: Sample) -> None:
        """Set the trial's arm for this tick; when the trial ends, other parts may change too."""
        if not self._trial.running:
            return
        estimates, memory = estimate(policy, self.state.memory, sample)
        alerts = self.state.snapshot.alerts if self.state.snapshot is not None else ()
        trial = self._trial.step(sample, estimates, memory, alerts)
        if trial != self.state.memory.trial:
            self.state.memory = replace(self.state.memory, trial=trial)

    def _act(self, decision: Decision, was_yielded: bool) -> None:
        self._actions = self._executor.execute(
            decision, self.state.memory, was_yielded, _boottime()
        )
        if self.state.trial_just_ended:
            # Not before: until now a limit of the trial was in force.
            self.state.trial_just_ended = False
            self._actuator.set_on_exit(self.policy.on_exit)
        if self._lease.lost:
            # Stopped right before a write, which then came after the watcher's.
            self._executor.restore()

    def _enter_window(self, wall_s: float) -> Policy:
        """The policy for this tick: that of the open window, without windows itself."""
        last, now = self.policies.advance(wall_s)
        if last is not None and last.policy is not now.policy and last.policy != now.policy:
            self.state.memory = rebounded(self.state.memory)
            self._trial.end(End.DISTURBED, "another window of the policy has opened")
        changed = window_in_words(last.window if last is not None else None, now.window)
        if changed:
            log.info("%s", changed)
        return now.policy

    def _obey_off_switch(self) -> None:
        """Runs before anything else in a tick, so that it works if nothing can be read."""
        last, self.state.off = self.state.off, self._off_switch.file()
        if (last is None) == (self.state.off is None):
            return
        self._trial.end(End.DISTURBED, f"{self.state.off} exists")
        if self.state.off is not None:
            log.warning("%s exists: original limits restored until it is removed", self.state.off)
            self._executor.restore()
        else:
            log.warning("%s is gone: %s again", last, self.state.memory.mode.value)
        self._executor.set_dry_run(self.state.memory.mode, self.state.off is not None)
        self.state.memory = replace(released(self.state.memory), off=self.state.off is not None)

    def _hold(self, error: Exception) -> None:
        """After a failed read keep the current limits; after several restore the originals."""
        self._failures += 1
        totals = self.state.totals
        self.state.totals = replace(totals, failed_ticks=totals.failed_ticks + 1)
        self._monitor.sampler.writers = ()
        if self._failures == 1:
            log.warning("cannot read kernel statistics, keeping current limits: %s", error)
        if self._failures == SILENT_TICKS:
            log.error(
                "kernel statistics unreadable for %d ticks: original limits restored", SILENT_TICKS
            )
        if self._failures >= SILENT_TICKS:
            # In every tick: whatever hides /proc may also refuse the write.
            self._executor.restore()
            self.state.memory = released(self.state.memory)
        self._stand_still(
            f"cannot read kernel statistics for {self._failures}"
            f" tick{'s' * (self._failures > 1)}: {error}"
        )

    def _stand_still(self, problem: str, sample: Optional[Sample] = None) -> None:
        """Make no decision in this tick; `sample` is what could be read."""
        self._trial.end(End.DISTURBED, problem)
        self._report.standing_still(problem, SILENT_TICKS, sample)

    def _open_metrics(self) -> List[MetricsServer]:
        path, http = self._options.runtime_dir / METRICS, self.policies.first.metrics.http
        exposition = Exposition(lambda: self.state.snapshot)
        servers, self._report.no_metrics = open_servers(path, http, exposition)
        return servers

    def _excluded(self, device: Device) -> Optional[str]:
        return self.policy.selects(device, self._devices)

    def reload(self) -> None:
        """Read the policy again, in a thread: its files may be on the disk that hangs."""
        self.policies.reload()

    def _reload_all(self) -> None:
        self.reload()
        self._monitor.rivals.look()

    def _take_loaded_policy(self) -> None:
        policy = self.policies.take()
        if policy is None:
            return
        self._trial.end(End.DISTURBED, "the policy was read again")
        # Bounds may have moved; caps that the policy no longer has go with the next decision.
        self.state.memory = rebounded(self.state.memory)
        # The verb beats the command line, which beats the policy.
        mode = Mode(policy.mode)
        from_policy = self._options.mode is None and self.state.mode_by_verb is None
        if from_policy and mode is not self.state.memory.mode:
            self.apply(set_mode(mode, by_verb=False))
        if not self.state.trial_just_ended:
            self._actuator.set_on_exit(policy.on_exit)
        self._report.routes.reload(policy.alerts)
        log.info("policy %s loaded%s", policy.name, policy.chosen and f": {policy.chosen}")

    # ---- commands ------------------------------------------------------

    def apply(self, command: Command) -> Actions:
        """Apply a command at once, between two ticks; returns what was restored.

        Raises OSError or ValueError if the current limits cannot be read.
        """
        state, wall_s = self.state, time.time()
        if command.disturbs_trial is not None:
            self._trial.end(End.DISTURBED, command.disturbs_trial)
        actions: Actions = ()
        if command.mode is not None:
            actions = self._executor.switch(command.mode)
        state.memory = command.applied(state.memory)
        for name, value in command.state.items():
            setattr(state, name, value)
        if command.mode is not None:
            self._executor.set_dry_run(command.mode, state.off is not None)
            if state.snapshot is not None:
                state.snapshot = in_mode(state.snapshot, state.memory)
        if command.forgets:
            watches = {n: each for n, each in state.alerts.health.items() if n != command.forgets}
            state.alerts = replace(state.alerts, health=watches)
            self._learned.keep(state.memory, wall_s)
        self._orders.save(state)
        self._history.record(command.event(wall_s))
        return actions

    def _order_trial(self, args: Mapping[str, Any], snapshot: Snapshot) -> Dict[str, Any]:
        return self._trial.order(args, snapshot, self.state.problem, self.policies.now, _boottime())

    def _begin_trial(self, text: str) -> None:
        """Enforce, whatever the mode is; no limit of the trial outlives it."""
        state = self.state
        state.mode_after_trial = state.memory.mode
        if state.memory.mode is Mode.OBSERVE:
            self.apply(set_mode(Mode.ENFORCE, by_verb=False))
        state.trial_just_ended = False
        self._actuator.set_on_exit("restore")
        self._history.record(Event(time.time(), "trial", text=text))

    def _end_trial(self, text: str) -> None:
        state = self.state
        state.trial_just_ended = True
        state.memory = replace(state.memory, trial=None)
        self._history.record(Event(time.time(), "trial", text=text))
        if state.mode_after_trial is not state.memory.mode:
            self.apply(set_mode(state.mode_after_trial, by_verb=False))


def _boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
