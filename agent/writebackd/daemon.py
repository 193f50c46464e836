# SPDX-License-Identifier: GPL-2.0-or-later
"""A tick: read, estimate, decide, act, report; all in one thread.

Nothing here waits for a disk, because the host this runs on is the one whose
disk hangs: ledger, lease, lock and socket live in /run, logging, history and
what was learned have threads that drop and count, memory is locked.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from writebackd import __version__
from writebackd.actuate.actuator import Actuator
from writebackd.actuate.host_lock import HostLock
from writebackd.actuate.off import OffSwitch
from writebackd.actuate.takeover import taken_over
from writebackd.actuate.tenure import Tenure
from writebackd.actuate.watch import Watch
from writebackd.alert.baseline import to_keep
from writebackd.alert.detect import detect
from writebackd.alert.state import AlertMemory
from writebackd.alert.unread import Unread
from writebackd.control.decide import decide, rebounded, released
from writebackd.estimate.estimate import estimate
from writebackd.hands import Hands
from writebackd.kernel.cmdlines import CommandLines
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.libbpf import BpfError
from writebackd.kernel.memory import collect_seldom
from writebackd.kernel.signals import Signals
from writebackd.kernel.usage import Usage
from writebackd.kernel.vm import LEVERS
from writebackd.loop import Loop
from writebackd.model import Action, Decision, Device, Estimate, Memory, Mode, Sample
from writebackd.orders import Orders
from writebackd.paths import HISTORY, LEARNED, LEDGER, METRICS, OFF, OFF_ON_DISK, SAMPLES, SOCKET
from writebackd.policy import Policy
from writebackd.policy.reload import Reloader
from writebackd.policy.timetable import InForce, Timetable, read_timetable
from writebackd.report.culprits import with_command_lines
from writebackd.report.events import window_in_words
from writebackd.report.history_schema import Event
from writebackd.report.history_store import History
from writebackd.report.keeper import Keeper
from writebackd.report.metrics import alerts_of
from writebackd.report.scrape import Exposition, MetricsServer, open_servers
from writebackd.report.server import ControlServer
from writebackd.report.snapshot import Snapshot
from writebackd.report.tape import Tape
from writebackd.report.teller import Teller
from writebackd.sight import Sight, linked
from writebackd.state import State
from writebackd.trial.course import End
from writebackd.verbs import Verbs

log = logging.getLogger(__name__)

# Ticks that may fail to read before the originals are put back: long enough
# for a passing EINTR or a device in transition, short enough that a stale
# limit does not outlive the flood it was made for.
SILENT_TICKS = 5
# A lease lasts so many ticks at least.
LEAST_LEASE_TICKS = 5
# How long the start waits for the watcher, which takes 0.1 to 0.2 s to load.
WATCHER_WAIT_S = 5.0
# What stays as it was at the start, also after a reload.
_AT_START: Tuple[Tuple[str, Callable[[Policy], object]], ...] = (
    ("[probe]", lambda policy: policy.probe),
    ("[metrics]", lambda policy: policy.metrics),
    ("[limits] lease", lambda policy: policy.limits.lease_s),
    ("[history] samples", lambda policy: policy.history.samples_bytes),
)


@dataclass(frozen=True)
class Options:
    """The command line, resolved."""

    runtime_dir: Path
    state_dir: Path
    interval_s: float
    probe: str
    devices: Tuple[str, ...]
    mode: Optional[Mode]  # None: as the policy says


class Daemon:
    """Owns every part; `run` returns after the originals are back."""

    def __init__(
        self,
        options: Options,
        load: Callable[[], Policy],
        on_tick: Callable[[Snapshot], None] = lambda snapshot: None,
        files: Optional[KernelFiles] = None,
    ) -> None:
        """`load` reads the policy, again on SIGHUP.

        Raises AlreadyRunning, PolicyError, and OSError or BpfError when what
        was asked for by name cannot be had.
        """
        self._options = options
        self._load = load
        self._files = files or KernelFiles()
        self._timetable = self._read_policy()
        self.policy = self._timetable.policy
        self._in_force: Optional[InForce] = None  # since the last tick
        self._first_policy = self.policy
        self._no_metrics: List[str] = []
        self._host_lock = HostLock(self._files, options.runtime_dir)
        try:
            self._make_parts(options, on_tick)
        except BaseException:
            self._host_lock.close()
            raise

    def _make_parts(self, options: Options, on_tick: Callable[[Snapshot], None]) -> None:
        # Before all that takes time: what an earlier run has set must not go home meanwhile.
        least = LEAST_LEASE_TICKS * options.interval_s
        self._tenure = Tenure(options.runtime_dir, max(least, self.policy.limits.lease_s))
        self._lease = self._tenure.lease
        self._watch = Watch(options.runtime_dir)
        self._off_switch = OffSwitch(options.runtime_dir / OFF, self._files.path(OFF_ON_DISK))
        self._devices = tuple(linked(self._files, each) for each in options.devices)
        self._sight = Sight(self._files, options.probe, self.policy.probe, self._excluded)
        self._sight.check_named(self._devices)
        self._actuator = Actuator(
            self._files, options.runtime_dir / LEDGER, self.policy.on_exit, self._lease.permit,
            self._host_lock.keep_first,
        )
        self.state = State(
            Memory(mode=options.mode or Mode(self.policy.mode)),
            # Where procfs was asked for, that fsync cannot be seen is no news.
            AlertMemory(sighted=self._sight.backend != "procfs"),
        )
        self._hands = Hands(self.state, self._actuator)
        self._command_lines = CommandLines(self._files)
        self._history = History(options.state_dir / HISTORY)
        self._teller = Teller(self._history, self.policy.alerts, on_tick)
        kept = self.policy.history.samples_bytes
        self._tape = Tape(options.state_dir / SAMPLES, kept) if kept else None
        self._keeper = Keeper(
            options.state_dir / LEARNED, lambda memory: to_keep(memory, self.state.alerts.watches)
        )
        self._started_s = _boottime()
        self._usage = Usage(self._files)
        self._actions: Tuple[Action, ...] = ()
        self._last_s: Optional[float] = None
        self._failures = 0
        self._unread = Unread()
        self._signals = Signals()
        self._reloader = Reloader(self._read_policy)
        self._exposition = Exposition(lambda: self.state.snapshot)
        self._orders = Orders(
            self.state, self._actuator, self._hands, self._history, self._keeper
        )
        # What `writebackctl` asks and orders.
        self.handle = Verbs(
            self._files, self._actuator, self.state, self._orders, self._order_trial,
            self._exposition.told, self._sight.hidepid.option,
        ).handle
        self._hurry = False
        collect_seldom()

    # ---- the loop ------------------------------------------------------

    def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Until a signal.  The originals are put back whatever ends it."""
        with contextlib.closing(self._host_lock):
            self._run(ready)

    def _run(self, ready: Callable[[], None]) -> None:
        server = ControlServer(self._options.runtime_dir / SOCKET, self.handle)
        loop = Loop(self._signals, [server, *self._open_metrics()])
        self._teller.open_textfile(self._first_policy.metrics)
        self._signals.catch()
        try:
            if not self._watch.wait(WATCHER_WAIT_S):
                log.warning(
                    "Watcher not running; limits will not be restored if this process hangs"
                )
            if not self._lease.renew():
                self._tenure.take()  # loading took longer than it lasts
            self._adopt()
            self._sight.rivals.look()
            # The first tick only gives the counters their zero.
            self._tick()
            ready()
            loop.run(self._options.interval_s, self._tick, self._reload_all)
            log.info("stopping: %s", self._signals.stop)
        finally:
            # Limits first: everything below may fail, they may not stay.
            done = all(action.ok for action in self._hands.finish())
            if done and self._actuator.started:
                # Or else the watcher tries again, or takes home what was never taken up.
                self._lease.release()
            loop.close()
            self._signals.close()
            self._off_switch.close()
            self._sight.sampler.probe.close()
            self._teller.close()
            self._keeper.keep(self.state.memory, time.time())
            self._keeper.close(timeout=1.0)
            ended = f"{self._signals.stop or 'an error'}, on-exit = {self.policy.on_exit}"
            ended += "" if done else ", which could not be done in full: see the log"
            self._history.record(Event(time.time(), "stop", text=ended))
            self._history.close(timeout=2.0)
            if self._tape is not None:
                self._tape.close(timeout=1.0)

    def _adopt(self) -> None:
        """Go on from what the ledger says: an earlier run's, or ours before the lease was lost.

        Raises LedgerError, OSError or ValueError.
        """
        for message in self._actuator.start():
            log.info("%s", message)
        self.state.memory = taken_over(
            self.state.memory, self._actuator, self._sight.topology.devices, _boottime()
        )

    def _begin_anew(self) -> None:
        """From where a lost lease has left it. Raises as `_adopt`."""
        self.state.memory = released(self.state.memory)
        self._adopt()

    # ---- one tick ------------------------------------------------------

    def _tick(self) -> bool:
        """Whether the next one is in a hurry."""
        begun = time.monotonic()
        # In the middle of a tick the collector would look through all that it makes; at its end
        # most of that is gone.
        gc.disable()
        try:
            self._look_and_act()
        finally:
            gc.enable()
        self.state.totals = self.state.totals.ticked(time.monotonic() - begun)
        return self._hurry

    def _look_and_act(self) -> None:
        now = _boottime()
        self._watch.tend()
        self._obey_off_switch()
        dt = max(now - self._last_s, 1e-3) if self._last_s is not None else None
        try:
            self._sight.refresh()
            self._take_loaded_policy()
            sample = self._sight.read(
                now, time.time(), dt or self._options.interval_s, self._actions,
                self.policy.levers.pace,
                (path for paced in self.state.memory.paces.values() for path in paced.rates),
            )
        except (OSError, ValueError, BpfError) as error:
            self._hold(error)
            return
        self._failures = 0
        self._last_s = now
        if dt is None:
            return
        if not self._lease.renew():
            self._stand_still(self._tenure.take_again(self._begin_anew), sample)
            return
        foreign = self._actuator.foreign(sample.vm.limits) + self._actuator.levers.foreign()
        if foreign and self._lease.lost:
            # Stopped since it was renewed: what looks strange are the originals.
            self._stand_still("the lease has run out, the limits are restored", sample)
            return
        if foreign:
            sample = replace(sample, foreign=self._sight.named(foreign, self._watch.pid))
        devices = [seen.device for seen in sample.devices]
        self.state.memory = self._keeper.recall(self.state.memory, devices, sample.wall_s)
        policy = self._look_at_clock(sample.wall_s)
        before = self.state.memory
        estimates, memory = estimate(policy, self.state.memory, sample)
        self._sight.keep_writers()
        if self._orders.desk.running:
            alerts = self.state.snapshot.alerts if self.state.snapshot is not None else ()
            trial = self._orders.desk.step(sample, estimates, memory, alerts)
            if trial != self.state.memory.trial:
                self.state.memory = replace(self.state.memory, trial=trial)
            # Where it has come to its end, all else may be another as well.
            before = self.state.memory
            estimates, memory = estimate(policy, before, sample)
        decision, self.state.memory = decide(policy, memory, sample, estimates)
        self._hurry = decision.hurry
        if self._tape is not None:
            self._tape.record(policy, before, sample, decision, self.state.memory)
        self._keeper.keep_now_and_then(self.state.memory, sample)
        self._actions = self._hands.act(decision, before.yielded, _boottime())
        self._orders.acted(self.policy.on_exit)
        if self._lease.lost:
            # Stopped right before a write, which then came after the watcher's.
            self._hands.restore()
        self._report(policy, sample, estimates, decision)

    def _look_at_clock(self, wall_s: float) -> Policy:
        """The policy of this tick, which has no windows: that of the one which is open."""
        last, now = self._in_force, self._timetable.at(wall_s)
        self._in_force = now
        if last is not None and last.policy is not now.policy and last.policy != now.policy:
            self.state.memory = rebounded(self.state.memory)
            self._orders.desk.end(End.DISTURBED, "another window of the policy has opened")
        changed = window_in_words(last.window if last is not None else None, now.window)
        if changed:
            log.info("%s", changed)
        return now.policy

    def _obey_off_switch(self) -> None:
        """Before all else in a tick: it works also where nothing can be read."""
        last, self.state.off = self.state.off, self._off_switch.file()
        if (last is None) == (self.state.off is None):
            return
        self._orders.desk.end(End.DISTURBED, f"held off by {self.state.off}")
        if self.state.off is not None:
            log.warning("held off by %s: back to the limits as found", self.state.off)
            self._hands.restore()
        else:
            log.warning("%s is gone: at work again", last)
        self._hands.set_dry_run()
        self.state.memory = released(self.state.memory)

    def _hold(self, error: Exception) -> None:
        """Blind for a tick: keep what is set; for longer: back to the originals."""
        self._failures += 1
        totals = self.state.totals
        self.state.totals = replace(totals, failed_ticks=totals.failed_ticks + 1)
        self._sight.sampler.writers = ()
        if self._failures == 1:
            log.warning("a tick could not be read, holding: %s", error)
        if self._failures == SILENT_TICKS:
            log.error("%d ticks could not be read: back to the limits as found", SILENT_TICKS)
        if self._failures >= SILENT_TICKS:
            # Again every tick: what hides /proc may also refuse the write.
            self._hands.restore()
            self.state.memory = released(self.state.memory)
        self._stand_still(f"{self._failures} ticks in a row could not be read: {error}")

    def _stand_still(self, problem: str, sample: Optional[Sample] = None) -> None:
        """A tick in which no alert could be looked for; of some in a row BLIND is told.

        Whoever asks must not take the last good tick for this one: it is shown with the
        problem, and of `sample` the limits. The loop is alive, which is what the watchdog
        wants to know.
        """
        self.state.problem = problem
        self._orders.desk.end(End.DISTURBED, problem)
        self._unread.still()
        if self._unread.ticks >= SILENT_TICKS:
            shown = self.state.snapshot
            since_s = shown.sample.wall_s if shown is not None else time.time()
            alerts = self._unread.told(shown.alerts if shown else (), since_s, problem)
            if shown is not None:
                self.state.snapshot = replace(shown, alerts=alerts)
            self._teller.alerts(alerts, self.state.alerts.standing, time.time())
        if self.state.snapshot is None:
            return
        last = self.state.snapshot.sample
        snapshot = replace(
            self.state.snapshot,
            sample=replace(last, vm=sample.vm if sample else last.vm, errors=(problem,)),
            lease_s=self._lease.remaining_s,
            watcher_pid=self._watch.pid,
            leases_lost=self._tenure.lost,
            off=str(self.state.off) if self.state.off is not None else None,
        )
        self._show(snapshot)

    def _report(
        self, policy: Policy, sample: Sample, estimates: Mapping[str, Estimate], decision: Decision
    ) -> None:
        spent, resident = self._usage.read()
        self.state.totals = self.state.totals.seen(sample, estimates, decision, spent)
        alerts, self.state.alerts = detect(
            policy, self.state.alerts, sample, estimates, decision, self.state.memory,
            self.state.off is None
            and all(each.ok for each in self._actions if each.lever in LEVERS),
        )
        alerts = self._unread.good(with_command_lines(alerts, self._command_lines))
        self.state.problem = None
        self._teller.alerts(alerts, self.state.alerts.standing, sample.wall_s)
        snapshot = Snapshot(
            version=__version__,
            mode=self.state.memory.mode,
            policy_name=self.policy.name,
            policy_chosen=self.policy.chosen,
            policy_files=self.policy.files,
            started_s=self._started_s,
            sample=sample,
            estimates=estimates,
            objective=policy.objective,
            decision=decision,
            memory=self.state.memory,
            originals=self._actuator.originals,
            probe=self._sight.sampler.probe.info(),
            self_cpu_fraction=spent / max(1.0, sample.time_s - self._started_s),
            self_rss_bytes=resident,
            state_dir=str(self._options.state_dir),
            levers=self._actuator.levers.held(sample.vm.threshold_bytes),
            lease_s=self._lease.remaining_s,
            watcher_pid=self._watch.pid,
            leases_lost=self._tenure.lost,
            history_dropped=self._history.dropped,
            off=str(self.state.off) if self.state.off is not None else None,
            unseen=self._sight.hidepid.unseen(),
            messages=(
                *self._no_metrics, *self._sight.problems, *self._sight.unmatched(self._devices),
                *filter(None, (self._reloader.problem,)),
            ),
            rivals=self._sight.rivals.found,
            alerts=alerts,
            routes=self._teller.routes.states(),
            runbook=self._teller.routes.runbook,
            pinned=self.state.pinned,
            window=self._in_force.window if self._in_force is not None else None,
        )
        self._teller.tick(self.state.snapshot, snapshot, self._actions)
        self._show(snapshot)

    def _show(self, snapshot: Snapshot) -> None:
        """From now on this is what everybody is told."""
        self.state.totals = self.state.totals.alerted(frozenset(alerts_of(snapshot)))
        self.state.snapshot = replace(snapshot, totals=self.state.totals)
        self._teller.show(self.state.snapshot)

    def _open_metrics(self) -> List[MetricsServer]:
        """What scrapers ask."""
        path, http = self._options.runtime_dir / METRICS, self._first_policy.metrics.http
        servers, self._no_metrics = open_servers(path, http, self._exposition)
        return servers

    # ---- parts that change ---------------------------------------------

    def _excluded(self, device: Device) -> Optional[str]:
        return self.policy.selects(
            device.name, device.driver == "loop", self._devices, device.devno,
            device.leaves, device.driver)

    def reload(self) -> None:
        """Read the policy again, in a thread: its files may be on the disk that hangs."""
        self._reloader.reload()

    def _reload_all(self) -> None:
        self.reload()
        self._sight.rivals.look()

    def rematch(self) -> None:
        """As `reload`, but what turns out the same changes nothing and is not told."""
        self._reloader.rematch()

    def _read_policy(self) -> Timetable:
        return read_timetable(self._load(), self._files.path("/"))

    def _take_loaded_policy(self) -> None:
        loaded = self._reloader.take()
        if loaded is None:
            return
        self._timetable = loaded.timetable
        policy = self._timetable.policy
        same, self.policy = policy == self.policy, policy
        if same and not loaded.asked:
            return
        for what, value in _AT_START:
            if value(policy) != value(self._first_policy):
                log.warning("a change of %s takes effect at the next start", what)
        self._orders.change_over(policy, self._options.mode is None)
        self._teller.routes.reload(policy.alerts)
        log.info("policy %s loaded%s", policy.name, policy.chosen and f": {policy.chosen}")

    def _order_trial(self, args: Mapping[str, Any], snapshot: Snapshot) -> Dict[str, Any]:
        policy = self._in_force.policy if self._in_force is not None else self.policy
        return self._orders.desk.order(args, snapshot, self.state.problem, policy, _boottime())


def _boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
