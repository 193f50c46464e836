# SPDX-License-Identifier: GPL-2.0-or-later
"""The loop: read, estimate, decide, act, report; once a tick, in one thread.

Nothing here waits for a disk, because the host this runs on is the one whose
disk hangs: ledger, lease, lock and socket live in /run, logging, history and
what was learned have threads that drop and count, memory is locked.
"""

from __future__ import annotations

import gc
import logging
import os
import selectors
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from writebackd import __version__
from writebackd.actuate.actuator import Actuator
from writebackd.actuate.lease import Lease
from writebackd.actuate.ledger import LedgerError
from writebackd.actuate.lock import AlreadyRunning, take_lock
from writebackd.actuate.off import OffSwitch
from writebackd.actuate.restore import WAIT_S
from writebackd.actuate.watch import Watch
from writebackd.alert.baseline import to_keep
from writebackd.alert.blind import unread
from writebackd.alert.detect import detect
from writebackd.alert.routes import Routes
from writebackd.alert.standing import hidden
from writebackd.alert.state import AlertMemory
from writebackd.alert.values import Alert, AlertName
from writebackd.cache.watch import BackingWatch
from writebackd.control.decide import HURRY, decide, rebounded, released
from writebackd.control.resume import resumed
from writebackd.estimate.estimate import estimate
from writebackd.estimate.learned import forgotten
from writebackd.kernel.cmdlines import CommandLines
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.libbpf import BpfError
from writebackd.kernel.probe import Probe, open_probe
from writebackd.kernel.rivals import RivalWatch, find_rivals
from writebackd.kernel.sampler import Sampler
from writebackd.kernel.signals import Signals
from writebackd.kernel.topology import Topology
from writebackd.kernel.uevents import open_uevents
from writebackd.kernel.usage import Usage
from writebackd.kernel.vm import LEVERS
from writebackd.kernel.writers import writer_of
from writebackd.model import (
    Action,
    Decision,
    Device,
    Estimate,
    ForeignWrite,
    Memory,
    Mode,
    Sample,
)
from writebackd.paths import HISTORY, LEARNED, LEDGER, METRICS, OFF, OFF_ON_DISK, SAMPLES, SOCKET
from writebackd.policy import Policy
from writebackd.policy.timetable import InForce, Timetable, read_timetable
from writebackd.report import entry
from writebackd.report.events import alert_events, events_of, window_in_words
from writebackd.report.figures import Collector
from writebackd.report.history import Event, History
from writebackd.report.keeper import Keeper
from writebackd.report.metrics import alerts_of
from writebackd.report.scrape import Exposition, MetricsServer, open_tcp, open_unix
from writebackd.report.server import ControlServer, LoopServer
from writebackd.report.snapshot import Pinned, Snapshot
from writebackd.report.tape import Tape
from writebackd.report.textfile import TextFile
from writebackd.report.totals import Totals
from writebackd.trial.course import End
from writebackd.trial.desk import Desk
from writebackd.verbs import State, Verbs

log = logging.getLogger(__name__)

FOREIGN_WRITER = AlertName.FOREIGN_WRITER.value

# Ticks that may fail to read before the originals are put back: long enough
# for a passing EINTR or a device in transition, short enough that a stale
# limit does not outlive the flood it was made for.
SILENT_TICKS = 5
# Ticks in a row that must be good before BLIND is over: what fails now and then is told once.
GOOD_TICKS = 30
# After a restart the limits adopted from the run before are kept this long,
# which is what it takes to see again whether anybody syncs.
ADOPTED_HOLD_S = 15.0
# A lease lasts so many ticks at least.
LEAST_LEASE_TICKS = 5
# How long the start waits for the watcher, which takes 0.1 to 0.2 s to load.
WATCHER_WAIT_S = 5.0

# Objects that a tick may leave before the collector looks for cycles, about 5 MB of them.
COLLECT_AFTER = 50_000


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
        self._on_tick = on_tick
        self._files = files or KernelFiles()
        self._timetable = self._read_policy()
        self.policy = self._timetable.policy
        self._in_force: Optional[InForce] = None  # since the last tick
        self._trial_over = False  # and what holds on exit is still a trial's
        self._probe_settings = self.policy.probe  # as of the start, also after a reload
        self._metrics_settings = self.policy.metrics
        self._lock = take_lock(options.runtime_dir)
        # Before all that takes time: what an earlier run has set must not go home meanwhile.
        least = LEAST_LEASE_TICKS * options.interval_s
        self._lease = Lease(options.runtime_dir, max(least, self.policy.limits.lease_s))
        self._take_lease()
        self._watch = Watch(options.runtime_dir)
        self._off_switch = OffSwitch(
            options.runtime_dir / OFF, self._files.path(OFF_ON_DISK)
        )
        self._off: Optional[Path] = None  # the file that holds us off
        self._leases_lost = 0
        self._not_taken_up: Optional[str] = None  # why a lost lease is not held again
        self._uevents, hotplug_problem = open_uevents()
        self._messages = [hotplug_problem] if hotplug_problem else []
        self._topology = Topology(self._files, self._uevents)
        self._topology.refresh(force=True)
        self._sampler = Sampler(self._files, self._topology, self._open_probe(), self._excluded)
        self._actuator = Actuator(
            self._files, options.runtime_dir / LEDGER, self.policy.on_exit, self._lease.permit
        )
        self._memory = Memory(mode=options.mode or Mode(self.policy.mode))
        self._actuator.dry_run = self._memory.mode is Mode.OBSERVE
        # Where procfs was asked for, that fsync cannot be seen is no news.
        self._alerts = AlertMemory(sighted=self._wanted_probe != "procfs")
        self._command_lines = CommandLines(self._files)
        self._history = History(options.state_dir / HISTORY)
        self._routes = Routes(self.policy.alerts)
        self._figures = Collector()
        kept = self.policy.history.samples_bytes
        self._tape = Tape(options.state_dir / SAMPLES, kept) if kept else None
        self._keeper = Keeper(
            options.state_dir / LEARNED, lambda memory: to_keep(memory, self._alerts.watches)
        )
        self._backings = BackingWatch(self._files)
        self._rivals = RivalWatch(lambda: find_rivals(self._files, os.getpid()))
        self._started_s = _boottime()
        self._usage = Usage(self._files)
        self._actions: Tuple[Action, ...] = ()
        self._last_s: Optional[float] = None
        self._failures = 0
        self._still_ticks = 0  # in a row in which nothing could be looked for
        self._good_ticks = 0  # in a row since then
        self._blind_since_s: Optional[float] = None  # wall clock; None: BLIND is not told
        self._problem: Optional[str] = None  # why the last tick was not whole
        self._totals = Totals()
        self._snapshot: Optional[Snapshot] = None
        self._textfile: Optional[TextFile] = None
        self._signals = Signals()
        self._refusals: Dict[str, str] = {}  # by lever, the last error that was told
        self._tried_types: Set[str] = set()  # filesystems that the probe was opened anew for
        self._earlier_writers: Tuple[ForeignWrite, ...] = ()
        self._loaded: List[Timetable] = []  # by the thread that read it again
        self._reload_due = False
        self._reload_asked = False  # by somebody, not by the clock
        self._reloader: Optional[threading.Thread] = None
        self._mode_by_verb = False
        self._pinned: Optional[Pinned] = None
        self._mode_before_trial = self._memory.mode
        self._exposition = Exposition(lambda: self._snapshot)
        self._desk = Desk(self._begin_trial, self._end_trial)
        # What `writebackctl` asks and orders.
        self.handle = Verbs(
            self._files, self._actuator, self._state, self._order_mode, self._order_pin,
            self._order_forget, self._order_trial, self._exposition.told,
        ).handle
        self._hurry = False
        # What a tick makes has no cycles and is freed without the collector, which would
        # look through it again and again: a seventh of a tick's time with 1 024 disks.
        gc.freeze()
        gc.set_threshold(COLLECT_AFTER)

    # ---- the loop ------------------------------------------------------

    def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Until a signal.  The originals are put back whatever ends it."""
        selector = selectors.DefaultSelector()
        server = ControlServer(self._options.runtime_dir / SOCKET, self.handle)
        servers: List[LoopServer] = [server, *self._open_metrics()]
        for each in servers:
            each.register(selector)
        textfile = self._metrics_settings.textfile
        if textfile is not None:
            self._textfile = TextFile(Path(textfile), self._metrics_settings.textfile_interval_s)
        self._signals.catch()
        selector.register(self._signals, selectors.EVENT_READ)
        try:
            if not self._watch.wait(WATCHER_WAIT_S):
                log.warning("no watcher yet: nobody would restore if this process hung")
            if not self._lease.renew():
                self._take_lease()  # loading took longer than it lasts
            self._adopt()
            self._rivals.look()
            # The first tick only gives the counters their zero.
            self._tick()
            ready()
            self._loop(selector, *servers)
            log.info("stopping: %s", self._signals.stop)
        finally:
            # Limits first: everything below may fail, they may not stay.
            done = all(action.ok for action in self._log_actions(self._actuator.finish()))
            if done and self._actuator.started:
                # Or else the watcher tries again, or takes home what was never taken up.
                self._lease.release()
            for each in servers:
                each.close()
            selector.close()
            self._signals.close()
            self._off_switch.close()
            self._sampler.probe.close()
            self._routes.close(timeout_s=1.0)
            self._keeper.keep(self._memory, time.time())
            self._keeper.close(timeout=1.0)
            if self._textfile is not None:
                self._textfile.close(timeout=1.0)
            ended = f"{self._signals.stop or 'an error'}, on-exit = {self.policy.on_exit}"
            ended += "" if done else ", which could not be done in full: see the log"
            self._history.record(Event(time.time(), "stop", text=ended))
            self._history.close(timeout=2.0)
            if self._tape is not None:
                self._tape.close(timeout=1.0)
            os.close(self._lock)

    def _take_lease(self) -> None:
        """Raises AlreadyRunning where somebody restores, and does not come to an end."""
        if not self._lease.take(WAIT_S):
            raise AlreadyRunning(
                "what an earlier writebackd left is being restored "
                f"({self._options.runtime_dir}): start it again when that has come to its end"
            )

    def _adopt(self) -> None:
        """Go on from what the ledger says: an earlier run's, or ours before the lease was lost.

        Raises LedgerError, OSError or ValueError.
        """
        for message in self._actuator.start():
            log.info("%s", message)
        self._memory = taken_over(
            self._memory, self._actuator, self._topology.devices, _boottime()
        )

    def _take_again(self) -> str:
        """The lease was lost: what was set is home, or on its way. Begin anew from there.

        The answer is how far that has come, for whoever asks.
        """
        if not self._lease.take():
            # The watcher is at it: nothing is written before it has done.
            return "the lease had run out, the limits are being restored"
        if self._not_taken_up is None:
            self._leases_lost += 1
            log.warning("the lease had run out and the limits were restored: taking them up again")
        self._memory = released(self._memory)
        try:
            self._adopt()
        except (LedgerError, OSError, ValueError) as error:
            self._lease.drop()
            problem = f"not taken up again yet: {error}"
            if problem != self._not_taken_up:
                log.error("%s", problem)
            self._not_taken_up = problem
            return problem
        self._not_taken_up = None
        return "the lease had run out and the limits were restored: taken up again"

    def _loop(self, selector: selectors.BaseSelector, *servers: LoopServer) -> None:
        interval = self._options.interval_s
        next_tick = time.monotonic() + interval
        while self._signals.stop is None:
            for key, mask in selector.select(max(0.0, next_tick - time.monotonic())):
                if isinstance(key.data, LoopServer):
                    key.data.service(key, mask)
                elif key.fileobj is self._signals:
                    self._signals.drain()
                if time.monotonic() >= next_tick:
                    break  # who still waits is ready in the next round as well
            if self._signals.take_reload():
                self.reload()
                self._rivals.look()
            now = time.monotonic()
            if now >= next_tick and self._signals.stop is None:
                for server in servers:
                    server.expire(now)
                self._tick()
                # Ticks missed while the machine was busy are not made up for: one
                # of a few milliseconds would count as much as a whole one.
                next_tick += interval * (HURRY if self._hurry else 1.0)
                if next_tick < time.monotonic():
                    next_tick = time.monotonic() + interval

    # ---- one tick ------------------------------------------------------

    def _tick(self) -> None:
        begun = time.monotonic()
        # In the middle of a tick the collector would look through all that it makes; at its end
        # most of that is gone.
        gc.disable()
        try:
            self._look_and_act()
        finally:
            gc.enable()
        self._totals = self._totals.ticked(time.monotonic() - begun)

    def _look_and_act(self) -> None:
        now = _boottime()
        self._watch.tend()
        self._obey_off_switch()
        dt = max(now - self._last_s, 1e-3) if self._last_s is not None else None
        try:
            if self._topology.refresh():
                # That leaves cycles, unlike a tick: 1 MB for 300 disks that come and go.
                gc.collect()
                self._renew_probe_if_blind()
            self._take_loaded_policy()
            self._sampler.watch_cgroups = self.policy.levers.pace
            self._sampler.paced = frozenset(
                path for paced in self._memory.paces.values() for path in paced.rates
            )
            sample = self._sampler.read(
                now, time.time(), dt or self._options.interval_s, self._actions
            )
            sample = replace(sample, backings=self._backings.seen(self._topology.devices, now))
        except (OSError, ValueError, BpfError) as error:
            self._hold(error)
            return
        self._failures = 0
        self._last_s = now
        if dt is None:
            return
        if not self._lease.renew():
            self._stand_still(self._take_again(), sample)
            return
        foreign = self._actuator.foreign(sample.vm.limits) + self._actuator.levers.foreign()
        if foreign and self._lease.lost:
            # Stopped since it was renewed: what looks strange are the originals.
            self._stand_still("the lease has run out, the limits are restored", sample)
            return
        if foreign:
            sample = replace(sample, foreign=self._name_writers(foreign))
            self._rivals.look()  # whoever did it may have been installed just now
        devices = [seen.device for seen in sample.devices]
        self._memory = self._keeper.recall(self._memory, devices, sample.wall_s)
        policy = self._look_at_clock(sample.wall_s)
        before = self._memory
        estimates, memory = estimate(policy, self._memory, sample)
        self._earlier_writers = self._sampler.writers
        if self._desk.running:
            alerts = self._snapshot.alerts if self._snapshot is not None else ()
            trial = self._desk.step(sample, estimates, memory, alerts)
            if trial != self._memory.trial:
                self._memory = replace(self._memory, trial=trial)
            # Where it has come to its end, all else may be another as well.
            before = self._memory
            estimates, memory = estimate(policy, before, sample)
        decision, self._memory = decide(policy, memory, sample, estimates)
        self._hurry = decision.hurry
        if self._tape is not None:
            self._tape.record(policy, before, sample, decision, self._memory)
        self._keeper.keep_now_and_then(self._memory, sample)
        self._actions = self._act(decision, before.yielded)
        if self._trial_over:
            # Not before: until then a limit of the trial stands, which is never kept.
            self._trial_over = False
            self._actuator.set_on_exit(self.policy.on_exit)
        if self._lease.lost:
            # Stopped right before a write, which then came after the watcher's.
            self._log_actions(self._actuator.restore())
        self._report(policy, before, sample, estimates, decision)

    def _look_at_clock(self, wall_s: float) -> Policy:
        """The policy of this tick, which has no windows: that of the one which is open."""
        last, now = self._in_force, self._timetable.at(wall_s)
        self._in_force = now
        if last is not None and last.policy is not now.policy and last.policy != now.policy:
            self._memory = rebounded(self._memory)
            self._desk.end(End.DISTURBED, "another window of the policy has opened")
        changed = window_in_words(last.window if last is not None else None, now.window)
        if changed:
            log.info("%s", changed)
        return now.policy

    def _obey_off_switch(self) -> None:
        """Before all else in a tick: it works also where nothing can be read."""
        last, self._off = self._off, self._off_switch.file()
        if (last is None) == (self._off is None):
            return
        self._desk.end(End.DISTURBED, f"held off by {self._off}")
        if self._off is not None:
            log.warning("held off by %s: back to the limits as found", self._off)
            self._log_actions(self._actuator.restore())
        else:
            log.warning("%s is gone: at work again", last)
        self._set_dry_run()
        self._memory = released(self._memory)

    def _set_dry_run(self) -> None:
        observe = self._memory.mode is Mode.OBSERVE
        self._actuator.dry_run = observe or self._off is not None

    def _act(self, decision: Decision, was_yielded: Optional[str]) -> Tuple[Action, ...]:
        if self._memory.yielded is not None:
            if was_yielded is None:
                log.warning(
                    "%s: %s: yielding", FOREIGN_WRITER, self._memory.yielded,
                    extra=entry.foreign_limits(self._memory.intrusions),
                )
                return self._log_actions(self._actuator.yield_())
            # What went home in the background comes to its end here.
            return self._log_actions(self._actuator.apply_settings(()))
        if decision.limit_bytes is None or decision.background_bytes is None:
            actions = self._actuator.restore_limits()
        else:
            actions = self._actuator.apply(decision.limit_bytes, decision.background_bytes)
        just_restarted = _boottime() < self._memory.hold_until_s
        actions += self._actuator.apply_settings(decision.settings, just_restarted)
        return self._log_actions(actions, decision.reason, decision.decision_id)

    def _hold(self, error: Exception) -> None:
        """Blind for a tick: keep what is set; for longer: back to the originals."""
        self._failures += 1
        self._totals = replace(self._totals, failed_ticks=self._totals.failed_ticks + 1)
        self._sampler.writers = ()
        if self._failures == 1:
            log.warning("a tick could not be read, holding: %s", error)
        if self._failures == SILENT_TICKS:
            log.error("%d ticks could not be read: back to the limits as found", SILENT_TICKS)
        if self._failures >= SILENT_TICKS:
            # Again every tick: what hides /proc may also refuse the write.
            self._log_actions(self._actuator.restore())
            self._memory = released(self._memory)
        self._stand_still(f"{self._failures} ticks in a row could not be read: {error}")

    def _stand_still(self, problem: str, sample: Optional[Sample] = None) -> None:
        """A tick in which no alert could be looked for; of some in a row BLIND is told.

        Whoever asks must not take the last good tick for this one: it is shown with the
        problem, and of `sample` the limits. The loop is alive, which is what the watchdog
        wants to know.
        """
        self._problem = problem
        self._desk.end(End.DISTURBED, problem)
        self._still_ticks += 1
        self._good_ticks = 0
        if self._still_ticks >= SILENT_TICKS:
            shown = self._snapshot
            if self._blind_since_s is None:
                self._blind_since_s = shown.sample.wall_s if shown is not None else time.time()
            alerts = unread(shown.alerts if shown else (), self._blind_since_s, problem)
            if shown is not None:
                self._snapshot = replace(shown, alerts=alerts)
            self._tell(alerts, time.time())
        if self._snapshot is None:
            return
        last = self._snapshot.sample
        snapshot = replace(
            self._snapshot,
            sample=replace(last, vm=sample.vm if sample else last.vm, errors=(problem,)),
            lease_s=self._lease.remaining_s,
            watcher_pid=self._watch.pid,
            leases_lost=self._leases_lost,
            off=str(self._off) if self._off is not None else None,
        )
        self._show(snapshot)

    def _or_blind(self, alerts: Tuple[Alert, ...]) -> Tuple[Alert, ...]:
        """Those of a good tick, and BLIND until enough of them were good in a row."""
        self._problem = None
        self._still_ticks = 0
        self._good_ticks += 1
        if self._blind_since_s is None or self._good_ticks >= GOOD_TICKS:
            self._blind_since_s = None
            return alerts
        said = f"could not be read: {self._good_ticks} of {GOOD_TICKS} good ticks since"
        *others, blind = unread(alerts, self._blind_since_s, said)
        return (*others, replace(blind, done="back at work, over when that lasts"))

    def _name_writers(self, foreign: Tuple[ForeignWrite, ...]) -> Tuple[ForeignWrite, ...]:
        """The same writes with their writers, where the probe saw who it was."""
        # Of the last tick as well: a write may come between reading the limits and
        # reading the probe.
        seen = (self._earlier_writers, self._sampler.writers)
        own = (os.getpid(), self._watch.pid)
        named = []
        for write in foreign:
            writer = self._sampler.locate(writer_of(write, seen, own) or write)
            named.append(writer)
            if not write.is_limit:
                log.warning(
                    "%s: %s set %s=%s: let go",
                    FOREIGN_WRITER, writer.who, write.lever, write.value,
                    extra=entry.foreign(writer),
                )
        return tuple(named)

    def _log_actions(
        self, actions: Tuple[Action, ...], reason: str = "", decision_id: Optional[str] = None
    ) -> Tuple[Action, ...]:
        """Each that was done, for the `reason` of a decision, or else as the way back."""
        failed: Dict[str, List[str]] = {}
        for action in actions:
            error = None if action.ok else str(action.error)
            if error is not None and self._refusals.get(action.lever) != error:
                failed.setdefault(error, []).append(f"{action.lever}={action.new}")
            elif error is None and not self._actuator.dry_run:
                log.info(
                    "%s %s -> %s", action.lever, action.old, action.new,
                    extra=entry.lever(action, reason, decision_id),
                )
            if error is None:
                self._refusals.pop(action.lever, None)
            else:
                self._refusals[action.lever] = error
        if not self._actuator.dry_run:
            self._totals = self._totals.acted(actions)
        # What is refused is tried again in every tick, and told once.
        for error, values in failed.items():
            log.error("%s failed: %s", ", ".join(values), error)
        return actions

    def _report(
        self,
        policy: Policy,
        before: Memory,
        sample: Sample,
        estimates: Mapping[str, Estimate],
        decision: Decision,
    ) -> None:
        spent, resident = self._usage.read()
        self._totals = self._totals.seen(sample, estimates, decision, spent)
        alerts, self._alerts = detect(
            policy, self._alerts, sample, estimates, decision, self._memory,
            self._off is None and all(each.ok for each in self._actions if each.lever in LEVERS),
        )
        alerts = self._or_blind(self._with_command_lines(alerts))
        self._tell(alerts, sample.wall_s)
        snapshot = Snapshot(
            version=__version__,
            mode=self._memory.mode,
            policy_name=self.policy.name,
            policy_chosen=self.policy.chosen,
            started_s=self._started_s,
            sample=sample,
            estimates=estimates,
            decision=decision,
            memory=self._memory,
            originals=self._actuator.originals,
            probe=self._sampler.probe.info(),
            self_cpu_fraction=spent / max(1.0, sample.time_s - self._started_s),
            self_rss_bytes=resident,
            state_dir=str(self._options.state_dir),
            levers=self._actuator.levers.held(sample.vm.threshold_bytes),
            lease_s=self._lease.remaining_s,
            watcher_pid=self._watch.pid,
            leases_lost=self._leases_lost,
            history_dropped=self._history.dropped,
            off=str(self._off) if self._off is not None else None,
            messages=(*self._messages, *filter(None, (self._rivals.error, self._backings.error))),
            rivals=self._rivals.found,
            alerts=alerts,
            routes=self._routes.states(),
            runbook=self._routes.runbook,
            pinned=self._pinned,
            window=self._in_force.window if self._in_force is not None else None,
        )
        for event in events_of(self._snapshot, snapshot, self._actions):
            self._history.record(event)
        self._history.record_figures(self._figures.add(snapshot))
        self._show(snapshot)

    def _show(self, snapshot: Snapshot) -> None:
        """From now on this is what everybody is told."""
        self._totals = self._totals.alerted(frozenset(alerts_of(snapshot)))
        self._snapshot = replace(snapshot, totals=self._totals)
        if self._textfile is not None:
            self._textfile.offer(self._snapshot)
        self._on_tick(self._snapshot)

    def _open_metrics(self) -> List[MetricsServer]:
        """What scrapers ask. Good to have: what cannot be had is told, and is no reason to end."""
        exposition = self._exposition
        address = self._metrics_settings.http
        openers: List[Callable[[], MetricsServer]] = [
            lambda: open_unix(self._options.runtime_dir / METRICS, exposition)
        ]
        if address is not None:
            host, port = address
            openers.append(lambda: open_tcp(host, port, exposition))
        servers = []
        for opener in openers:
            try:
                servers.append(opener())
            except OSError as error:
                problem = f"no metrics on {error.filename}: {error.strerror}"
                log.error("%s", problem)
                self._messages.append(problem)
        return servers

    def _with_command_lines(self, alerts: Tuple[Alert, ...]) -> Tuple[Alert, ...]:
        """The same alerts with the command lines of those that they blame, as far as known."""
        lines, missing, named = self._command_lines, [], []
        for alert in alerts:
            culprits = []
            for each in alert.culprits:
                if each.cmdline is None and each.pid is not None and each.comm is not None:
                    missing.append((each.pid, each.comm))
                    each = replace(each, cmdline=lines.of(each.pid, each.comm))
                culprits.append(each)
            named.append(replace(alert, culprits=tuple(culprits)) if culprits else alert)
        if missing:
            lines.ask(missing)
        return tuple(named)

    def _tell(self, alerts: Tuple[Alert, ...], wall_s: float) -> None:
        happened = self._routes.tell(alerts, wall_s, hidden(self._alerts.standing, alerts))
        for event in alert_events(happened, self._routes.host, self._routes.runbook):
            self._history.record(event)

    # ---- parts that change ---------------------------------------------

    def _open_probe(self) -> Probe:
        settings = self._probe_settings
        return open_probe(
            self._wanted_probe, self._files, settings.queue_latency, settings.talkers
        )

    @property
    def _wanted_probe(self) -> str:
        wanted = self._options.probe
        return self._probe_settings.backend if wanted == "auto" else wanted

    def _renew_probe_if_blind(self) -> None:
        """A filesystem came whose module had not been there to hook."""
        types = {kind for device in self._topology.devices for _, kind, _ in device.filesystems}
        if self._sampler.probe.covers(sorted(types - self._tried_types)):
            return
        self._tried_types |= types  # what is refused now will be refused again
        log.info("opening the probe again for %s", ", ".join(sorted(types)))
        try:
            renewed = self._open_probe()
        except (OSError, BpfError) as error:
            log.error("the probe stays as it was: %s", error)
            return
        if renewed.info().backend == "procfs":
            renewed.close()  # better what we have than nothing
            return
        self._sampler.probe.close()
        self._sampler.probe = renewed

    def _excluded(self, device: Device) -> Optional[str]:
        return self.policy.selects(
            device.name, device.driver == "loop", self._options.devices, device.devno,
            device.leaves, device.driver)

    def reload(self) -> None:
        """Read the policy again, in a thread: its files may be on the disk that hangs."""
        self._reload_asked = True
        self.rematch()

    def rematch(self) -> None:
        """As `reload`, but what turns out the same changes nothing and is not told."""
        self._reload_due = True
        self._start_reload()

    def _read_policy(self) -> Timetable:
        return read_timetable(self._load(), self._files.path("/"))

    def _start_reload(self) -> None:
        """One at a time: behind a disk that hangs each signal would leave a thread more."""

        def load() -> None:
            try:
                self._loaded.append(self._read_policy())
            except Exception as error:  # whatever is wrong with it, the old one goes on
                log.error("the policy stays as it was: %s", error)

        if self._reloader is not None and self._reloader.is_alive():
            return
        self._reload_due = False
        reloader = threading.Thread(target=load, name="reload", daemon=True)
        try:
            reloader.start()
        except RuntimeError as error:  # TasksMax= of the unit
            log.error("the policy stays as it was: %s", error)
            return
        self._reloader = reloader

    def _take_loaded_policy(self) -> None:
        if self._reload_due:  # asked for while it was being read
            self._start_reload()
        if not self._loaded:
            return
        self._timetable = self._loaded.pop()  # the newest; what was read before it is stale
        self._loaded.clear()
        policy = self._timetable.policy
        same, self.policy = policy == self.policy, policy
        if same and not self._reload_asked:
            return
        self._reload_asked = False
        self._desk.end(End.DISTURBED, "the policy was read again")
        # Bounds may have moved: the next goal is taken as it is.
        # Caps by the policy stand as they are, or go with the next tick's decision.
        standing = {name: cap for name, cap in self._memory.caps.items() if cap.standing}
        self._memory = replace(self._memory, goal_bytes=None, caps=standing)
        if policy.probe != self._probe_settings:
            log.warning("a change of [probe] takes effect at the next start")
        if policy.metrics != self._metrics_settings:
            log.warning("a change of [metrics] takes effect at the next start")
        # The verb beats the command line, which beats the policy.
        if self._options.mode is None and not self._mode_by_verb:
            mode = Mode(policy.mode)
            if mode is not self._memory.mode:
                self._set_mode(mode)
        if not self._trial_over:
            self._actuator.set_on_exit(policy.on_exit)
        self._routes.reload(policy.alerts)
        log.info("policy %s loaded%s", policy.name, policy.chosen and f": {policy.chosen}")

    def _set_mode(self, mode: Mode) -> Tuple[Action, ...]:
        """Switch; the answer is what was put back.  Raises OSError or ValueError."""
        actions: Tuple[Action, ...] = ()
        if mode is Mode.OBSERVE:
            actions = self._log_actions(self._actuator.restore())
        else:
            # After a yield what stands now is somebody else's wish, and what
            # to go back to.
            self._actuator.take_over()
        self._memory = replace(released(self._memory), mode=mode, yielded=None, intrusions=())
        self._set_dry_run()
        if self._snapshot is not None:
            # Whoever asks now must not be told the mode of the last tick.
            left = [each for each in self._snapshot.alerts if each.name.value != FOREIGN_WRITER]
            self._snapshot = replace(
                self._snapshot, mode=mode, memory=self._memory, alerts=tuple(left)
            )
        self._history.record(Event(time.time(), "mode", text=mode.value))
        return actions

    # ---- orders from the socket ----------------------------------------

    def _state(self) -> State:
        return State(self._snapshot, self._memory, self._off, self._problem)

    def _order_mode(self, mode: Mode) -> Tuple[Action, ...]:
        self._desk.end(End.DISTURBED, f"{mode.value} was asked for")
        actions = self._set_mode(mode)
        self._mode_by_verb = True
        return actions

    def _order_pin(self, pin_bytes: Optional[int], uid: int) -> None:
        self._desk.end(End.DISTURBED, "pinned" if pin_bytes is not None else "released")
        self._memory = replace(self._memory, pin_bytes=pin_bytes, hold_until_s=float("-inf"))
        self._pinned = Pinned(uid, time.time()) if pin_bytes is not None else None
        text = f"pinned to {pin_bytes} bytes" if pin_bytes is not None else "released"
        self._history.record(Event(time.time(), "pin", text=f"{text} by uid {uid}"))

    def _order_trial(self, args: Mapping[str, Any], snapshot: Snapshot) -> Dict[str, Any]:
        policy = self._in_force.policy if self._in_force is not None else self.policy
        return self._desk.order(args, snapshot, self._problem, policy, _boottime())

    def _begin_trial(self, text: str) -> None:
        """Work, whatever the mode; and however this ends, no limit of a trial stays."""
        self._mode_before_trial = self._memory.mode
        if self._memory.mode is Mode.OBSERVE:
            self._set_mode(Mode.ENFORCE)
        self._trial_over = False
        self._actuator.set_on_exit("restore")
        self._history.record(Event(time.time(), "trial", text=text))

    def _end_trial(self, text: str) -> None:
        self._trial_over = True
        self._memory = replace(self._memory, trial=None)
        self._history.record(Event(time.time(), "trial", text=text))
        if self._mode_before_trial is not self._memory.mode:
            self._set_mode(self._mode_before_trial)

    def _order_forget(self, name: str) -> bool:
        if name not in self._memory.devices or not self._keeper.was_read:
            return False
        self._memory = forgotten(self._memory, name)
        watches = {n: watch for n, watch in self._alerts.watches.items() if n != name}
        self._alerts = replace(self._alerts, watches=watches)
        self._keeper.keep(self._memory, time.time())
        self._history.record(Event(time.time(), "forget", device=name))
        return True


def taken_over(
    memory: Memory, actuator: Actuator, devices: Sequence[Device], now_s: float
) -> Memory:
    """The memory to begin with, when an earlier run has left something that stands."""
    adopted = actuator.held_limit_bytes
    if memory.mode is not Mode.ENFORCE or (adopted is None and not actuator.levers.entries):
        return memory
    memory = replace(
        memory,
        limit_bytes=adopted,
        goal_bytes=adopted,
        hold_until_s=now_s + ADOPTED_HOLD_S,
    )
    return resumed(memory, actuator.levers.adopted(), devices, now_s)


def _boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
