# SPDX-License-Identifier: GPL-2.0-or-later
"""A running trial, tick by tick: the block that is on, its figures, its end.  No clock."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from writebackd import formats
from writebackd.alerts.alert_types import Alert, AlertName, Cause
from writebackd.policy.schema import Policy
from writebackd.report.control_server import RequestError, text_argument
from writebackd.report.device_answers import find_devices
from writebackd.report.device_figures import Figures
from writebackd.report.snapshot import Snapshot
from writebackd.trial.plan import (
    AGENT,
    LEASE_S,
    LEAST_BLOCK_S,
    LEAST_PAIRS,
    MOST_BLOCK_S,
    MOST_BLOCKS,
    ORIGINAL,
    Bound,
    Plan,
    bound,
    objection,
    sync_rate,
)
from writebackd.types.codec import pack
from writebackd.types.core_memory import Memory, Trial
from writebackd.types.decision import Mode
from writebackd.types.estimate import Estimate
from writebackd.types.levers import VmLimits
from writebackd.types.samples import Sample

# An fsync behind a full queue waits for 0.4 to 0.75 of limit / rate
# (docs/research/2026-11-measurements.md), which is the ceiling's time here: one that waits twice as
# long waits for something else as well.
STOP_CEILINGS = 2.0
# A slow disk's own fsync is no alarm.
STOP_BASELINES = 20.0
# Without an fsync for so long, or for so many intervals at the rate of the beginning.
QUIET_S, QUIET_SYNCS = 10.0, 20.0
# Alerts that say nothing of how long a commit takes.
_OTHERS = (AlertName.FOREIGN_WRITER, AlertName.BLIND)


class End(Enum):
    DONE = "done"
    ENOUGH = "enough"  # to compare, and the limits as found do harm
    STOPPED = "stopped"  # commits suffered
    QUIET = "quiet"  # no fsync any more
    ASKED = "asked"
    ABANDONED = "abandoned"  # the client is gone
    DISTURBED = "disturbed"  # something else moved the limits


@dataclass(frozen=True)
class TrialTick:
    """What one tick saw of the device."""

    block: int  # from 0
    counts: bool  # False: the first part of a block, between two limits
    figures: Figures
    dirtied_bytes: int = 0  # by processes that write through the page cache
    slept_s: float = 0.0  # together, for the limit
    dirty_bytes: int = 0  # of the host at its end, and under writeback


class TrialRun:
    """Call `step` once a tick; it returns the block for the next tick."""

    def __init__(
        self, plan: Plan, limit: Bound, returns_to: Mode, originals: VmLimits, sync_rate: float,
        now_s: float,
    ) -> None:
        """`originals`: the original values of the four files; `now_s` as Sample.time_s."""
        self.plan, self.bound = plan, limit
        self.ended: Optional[End] = None
        self.why = ""
        self.ticks: List[TrialTick] = []
        self._dropped = 0  # of them, which the client has
        self._returns_to, self._originals = returns_to, originals
        self._quiet_after_s = max(QUIET_S, QUIET_SYNCS / sync_rate)
        self._quiet_s = 0.0
        self._renewed_s = now_s
        self._block = -1  # not begun
        self._began_s = 0.0  # the block

    def renew(self, now_s: float) -> None:
        self._renewed_s = now_s

    def take(self, since: int, most: int) -> Tuple[List[TrialTick], int]:
        """Up to `most` ticks from number `since` on, and how many are left after them.

        Earlier ticks are dropped: a trial may last for hours, and 1 000 ticks are 3 MB.
        """
        known = min(max(0, since - self._dropped), len(self.ticks))
        del self.ticks[:known]
        self._dropped += known
        return self.ticks[:most], max(0, len(self.ticks) - most)

    def end(self, how: End, why: str) -> None:
        """Record the end; only the first call counts."""
        if self.ended is None:
            self.ended, self.why = how, why

    def step(
        self, sample: Sample, estimates: Mapping[str, Estimate], memory: Memory,
        alerts: Sequence[Alert],
    ) -> Optional[Trial]:
        """Process a tick; the block for the next one, or None after the end."""
        if self._block >= 0:
            self._record(sample, estimates)
        objection = self._objection(sample, estimates, memory, alerts)
        if objection is not None:
            self.end(*objection)
        # Half a tick early rather than half a tick late: clocks are never quite even.
        elif self._block < 0 or self._ends_s - sample.time_s < sample.dt_s / 2:
            if self._block + 1 == len(self.plan.arms):
                self.end(End.DONE, "all blocks are done")
            else:
                self._block += 1
                self._began_s = sample.time_s
        return self._trial() if self.ended is None else None

    @property
    def _arm(self) -> str:
        return self.plan.arms[self._block]

    @property
    def _ends_s(self) -> float:
        return self._began_s + self.plan.block_s

    def _trial(self) -> Trial:
        cut = self.bound.cut is not None
        return Trial(
            device=self.plan.device, block=self._block + 1, blocks=len(self.plan.arms),
            original=self._arm == ORIGINAL,
            limit_bytes=self.bound.limit_bytes if cut else None,
            background_bytes=self.bound.background_bytes if cut else None,
            ends_s=self._ends_s, returns_to=self._returns_to,
        )

    def _record(self, sample: Sample, estimates: Mapping[str, Estimate]) -> None:
        name, dt_s = self.plan.device, sample.dt_s
        writers = [task for task in sample.tasks if task.device in (name, None)]
        for seen in sample.devices:
            if seen.device.name != name or seen.sync is None:
                continue
            estimate = estimates[name]
            self._quiet_s = 0.0 if seen.sync.count or seen.sync.inflight else self._quiet_s + dt_s
            begun_s = sample.time_s - dt_s - self._began_s
            self.ticks.append(TrialTick(
                self._block,
                begun_s >= self.plan.settle_s - dt_s / 2,
                Figures(
                    wall_s=sample.wall_s - dt_s, span_s=dt_s, device=name,
                    limit_bytes=float(sample.vm.threshold_bytes),
                    found_bytes=float(self.bound.found_bytes),
                    write_rate=seen.write_bytes / dt_s,
                    flooded_s=dt_s if estimate.flooded else 0.0,
                    ours_s=0.0 if self._arm == ORIGINAL else dt_s,
                    drain_rate=estimate.drain_rate, baseline_s=estimate.baseline_s,
                    oldest_s=estimate.oldest_fsync_s, latency=seen.sync.latency,
                    oldest_commit_s=estimate.oldest_commit_s, commits=seen.sync.commits,
                    throttled_s=None if seen.sync.commits is None else seen.sync.throttled_s,
                ),
                sum([task.dirtied_bytes for task in writers]),
                sum([task.throttled_s for task in writers]),
                sample.vm.dirty_bytes + sample.vm.writeback_bytes,
            ))  # fmt: skip

    def _objection(
        self, sample: Sample, estimates: Mapping[str, Estimate], memory: Memory,
        alerts: Sequence[Alert],
    ) -> Optional[Tuple[End, str]]:
        if memory.yielded is not None:
            return End.DISTURBED, f"yielded: {memory.yielded}"
        for alert in alerts:
            said = f"{alert.name.value}: {alert.summary}"
            if not _expected(alert):
                return End.DISTURBED if alert.name in _OTHERS else End.STOPPED, said
            if self._block >= 2 * LEAST_PAIRS:
                return End.ENOUGH, f"{LEAST_PAIRS} pairs measured, and {said}"
        harm = _harm(self.plan, sample, estimates)
        if harm is not None:
            return End.STOPPED, harm
        name = self.plan.device
        if all(each.device.name != name or each.excluded for each in sample.devices):
            return End.DISTURBED, f"{name} is gone or excluded"
        began = self._block >= 0 and sample.time_s - self._began_s > sample.dt_s
        if began and self._arm == ORIGINAL and self.bound.cut is None:
            if sample.vm.limits != self._originals:
                # None of the limits is ours, so this is no foreign write to anybody else.
                return End.DISTURBED, "another process set the limits"
        if self._quiet_s >= self._quiet_after_s:
            return End.QUIET, f"no fsync on {name} for {formats.duration(self._quiet_s)}"
        if sample.time_s - self._renewed_s > LEASE_S:
            return End.ABANDONED, f"the client sent no request for {LEASE_S:g} s"
        return None


def _expected(alert: Alert) -> bool:
    """Few syncs during a flood are the effect that the original limits are meant to show.

    The alert comes 30 s after the first of their blocks begins: if it ended the trial there would
    be no second pair. Commit latency is bounded throughout.
    """
    return alert.name is AlertName.COLLAPSE and alert.cause is Cause.FLOOD


def stop_s(plan: Plan, baseline_s: Optional[float]) -> float:
    """The commit latency at which the trial stops."""
    if plan.stop_s is not None:
        return plan.stop_s
    return max(STOP_CEILINGS * plan.ceiling_s, STOP_BASELINES * (baseline_s or 0.0))


def _harm(plan: Plan, sample: Sample, estimates: Mapping[str, Estimate]) -> Optional[str]:
    """A commit slower than agreed, on any device: the limit applies to the whole host."""
    for seen in sample.devices:
        estimate = estimates[seen.device.name]
        if seen.sync is None or seen.excluded or not estimate.demand:
            continue
        most_s = stop_s(plan, estimate.baseline_s)
        p99_s, oldest_s = estimate.commit_p99_s or 0.0, estimate.oldest_commit_s
        if max(p99_s, oldest_s) > most_s:
            what = "has been waiting for" if oldest_s >= p99_s else "took"
            return (
                f"a commit on {seen.device.name} {what} {formats.duration(max(p99_s, oldest_s))},"
                f" more than the {formats.duration(most_s)} allowed"
            )
    return None


log = logging.getLogger(__name__)

_BAD_NEWS = 1
# In an answer; a client that fell behind asks again.
_MOST_TICKS = 500


class TrialController:
    """Holds the running trial, and a finished one until its result is fetched.

    `begin` and `end` belong to the daemon: they start enforcing, and return to the mode
    before. If `begin` raises OSError or ValueError, it has changed nothing.
    """

    def __init__(self, begin: Callable[[str], None], end: Callable[[str], None]) -> None:
        self._begin, self._end = begin, end
        self._run: Optional[TrialRun] = None
        self._number = 0

    @property
    def running(self) -> bool:
        return self._run is not None and self._run.ended is None

    def order(
        self, args: Mapping[str, Any], snapshot: Snapshot, problem: Optional[str],
        policy: Policy, now_s: float,
    ) -> Dict[str, Any]:
        """Answer a client's request. Raises RequestError."""
        order = text_argument(args, "order")
        if order == "start":
            return self._start(args, snapshot, problem, policy, now_s)
        run = self._run
        if run is None or args.get("id") != self._number:
            raise RequestError("no such trial: the daemon was restarted", _BAD_NEWS)
        if order == "end":
            self.end(End.ASKED, "the user ended it")
        elif order != "go":
            raise RequestError("order is start, go or end")
        run.renew(now_s)
        since = int(_number(args, "since", 0, 1e9)) if "since" in args else 0
        ticks, left = run.take(since, _MOST_TICKS)
        return {
            "ended": run.ended.value if run.ended is not None else None,
            "why": run.why,
            "ticks": list(map(pack, ticks)),
            "left": left,
        }

    def step(
        self, sample: Sample, estimates: Mapping[str, Estimate], memory: Memory,
        alerts: Sequence[Alert],
    ) -> Optional[Trial]:
        """Call once a tick, before the decision; None if no trial runs, or it has ended."""
        run = self._run
        if run is None or run.ended is not None:
            return None
        trial = run.step(sample, estimates, memory, alerts)
        if trial is None:
            self._over(run)
        return trial

    def end(self, how: End, why: str) -> None:
        """End the trial, if one runs."""
        run = self._run
        if run is not None and run.ended is None:
            run.end(how, why)
            self._over(run)

    def _over(self, run: TrialRun) -> None:
        assert run.ended is not None
        log.info("trial of %s ended (%s): %s", run.plan.device, run.ended.value, run.why)
        self._end(f"trial of {run.plan.device} ended: {run.why}")

    def _start(
        self, args: Mapping[str, Any], snapshot: Snapshot, problem: Optional[str],
        policy: Policy, now_s: float,
    ) -> Dict[str, Any]:
        if self.running:
            assert self._run is not None
            raise RequestError(f"a trial of {self._run.plan.device} is running", _BAD_NEWS)
        if problem is not None:
            raise RequestError(f"no trial now: {problem}", _BAD_NEWS)
        if snapshot.memory.mode is Mode.OBSERVE:
            # No limit is ours: those in force are the originals, even if changed since the start.
            snapshot = replace(snapshot, originals=snapshot.sample.vm.limits)
        plan = _plan(args, _device(snapshot, text_argument(args, "device")))
        refused = objection(snapshot, policy, plan.device, plan.ceiling_s)
        if refused is not None:
            raise RequestError(f"no trial now: {refused}", _BAD_NEWS)
        limit = bound(snapshot, policy, plan.ceiling_s)
        rate = sync_rate(snapshot, plan.device)
        block = formats.duration(plan.block_s)
        text = f"trial of {plan.device}: {len(plan.arms)} blocks of {block}"
        try:
            self._begin(text)
        except (OSError, ValueError) as error:
            raise RequestError(f"cannot read the limits: {error}", _BAD_NEWS) from None
        log.info("%s", text)
        self._run = TrialRun(plan, limit, snapshot.memory.mode, snapshot.originals, rate, now_s)
        self._number = int(now_s * 1000)  # another one after a restart
        return {
            "id": self._number,
            "device": plan.device,
            "mode": snapshot.memory.mode.value,
            "policy": snapshot.policy.name,
            "version": snapshot.version,
            "found_bytes": limit.found_bytes,
            "limit_bytes": limit.limit_bytes,
            "cut": limit.cut,
            "stop_s": stop_s(plan, snapshot.estimates[plan.device].baseline_s),
        }


def _device(snapshot: Snapshot, wanted: Optional[str]) -> str:
    """The requested device, or the only one with sync demand. Raises RequestError."""
    if wanted is not None:
        names = [each.device.name for each in find_devices(snapshot, wanted)]
    else:
        names = [name for name, each in snapshot.estimates.items() if each.demand]
        if not names:
            raise RequestError("no trial now: no device has sync demand", _BAD_NEWS)
    if len(names) > 1:
        raise RequestError(f"name one device: --device {' or '.join(sorted(names))}")
    return names[0]


def _plan(args: Mapping[str, Any], device: str) -> Plan:
    arms = text_argument(args, "arms") or ""
    if not 2 <= len(arms) <= MOST_BLOCKS or set(arms) != {AGENT, ORIGINAL}:
        raise RequestError(f"arms is 2 to {MOST_BLOCKS} letters, {AGENT} and {ORIGINAL}")
    block_s = _number(args, "block_s", LEAST_BLOCK_S, MOST_BLOCK_S)
    return Plan(
        device, arms, block_s,
        settle_s=_number(args, "settle_s", 0.0, block_s / 2),
        # Less than a tick is indistinguishable, and a minute of dirty data is no bound.
        ceiling_s=_number(args, "ceiling_s", 0.1, 60.0),
        stop_s=None if args.get("stop_s") is None else _number(args, "stop_s", 0.01, 600.0),
    )  # fmt: skip


def _number(args: Mapping[str, Any], name: str, least: float, most: float) -> float:
    value = args.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        option = {"ceiling_s": "--ceiling", "stop_s": "--stop-at"}.get(name, name)
        raise RequestError(f"{option} takes {least:g}s to {most:g}s")
    return float(value)
