# SPDX-License-Identifier: GPL-2.0-or-later
"""Controls trials for `writebackctl trial`: start, continue, end; one at a time."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, Callable, Dict, Mapping, Optional, Sequence

from writebackd import formats
from writebackd.alerts.alert_types import Alert
from writebackd.policy.schema import Policy
from writebackd.report.codec import Interned, pack
from writebackd.report.control_server import RequestError, text_argument
from writebackd.report.device_answers import find_devices
from writebackd.report.snapshot import Snapshot
from writebackd.trial.plan import AGENT, LEAST_BLOCK_S, MOST_BLOCK_S, MOST_BLOCKS, ORIGINAL, Plan
from writebackd.trial.preconditions import bound, objection, sync_rate
from writebackd.trial.trial_run import End, TrialRun, stop_s
from writebackd.types.core_memory import Memory, Trial
from writebackd.types.decision import Mode
from writebackd.types.estimate import Estimate
from writebackd.types.samples import Sample

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
            "ticks": [pack(each, Interned()) for each in ticks],
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
        if snapshot.mode is Mode.OBSERVE:
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
        self._run = TrialRun(plan, limit, snapshot.mode, snapshot.originals, rate, now_s)
        self._number = int(now_s * 1000)  # another one after a restart
        return {
            "id": self._number,
            "device": plan.device,
            "mode": snapshot.mode.value,
            "policy": snapshot.policy_name,
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
