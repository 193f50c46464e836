# SPDX-License-Identifier: GPL-2.0-or-later
"""A trial on the host that the plant model plays, as daemon and client would run it.

    python3 tests/unit/trial_case.py FILE [SEED]

writes its page to look at.
"""

from __future__ import annotations

import sys
import time
from bisect import bisect_right
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.sim.plant import RATIOS, Disk, Flood, Loop, Plant, SyncLoad
from writebackd.alerts.alert_types import Alert
from writebackd.control.decide import decide
from writebackd.policy import load_policy
from writebackd.policy.schema import Policy
from writebackd.report.device_figures import Figures
from writebackd.trial.analysis import analyse
from writebackd.trial.plan import ORIGINAL, Bound, Plan, order, settle_s
from writebackd.trial.trial_page import TrialSummary, render
from writebackd.trial.trial_run import TrialRun, TrialTick, stop_s
from writebackd.types.codec import pack
from writebackd.types.core_memory import Memory
from writebackd.types.decision import Decision, Mode
from writebackd.types.estimate import Estimate
from writebackd.types.histogram import BUCKET_EDGES_S, Histogram
from writebackd.types.samples import Sample

FOUND = int(4.7e9)  # 20 % of the plant's memory


def plan(pairs: int, seed: int = 1, block_s: float = 30.0, ceiling_s: float = 1.0) -> Plan:
    arms = order(2 * pairs * block_s, block_s, seed)
    return Plan("sda", arms, block_s, settle_s(block_s), ceiling_s, None)


def plant(flood: bool = True, seed: int = 7, end_s: float = 1e9) -> Plant:
    return Plant(
        disks=(Disk(),),
        floods=(Flood(0, 5.0),) if flood else (),
        syncs=(SyncLoad(0, think_s=2e-3, end_s=end_s),),
        seed=seed,
    )


class Run:
    """The pure core, a plant, and a course that begins after `warm_s` seconds."""

    def __init__(self, asked: Plan, host: Optional[Plant] = None, warm_s: float = 60.0) -> None:
        self.plan = asked
        self.loop = Loop(load_policy(None, None), host or plant())
        self.loop.law = self._law
        self.course: Optional[TrialRun] = None
        self.alerts: Tuple[Alert, ...] = ()
        self.seen: List[Tuple[Sample, Decision, Memory]] = []
        while self.loop.plant.now_s < warm_s:
            self.loop.tick()
        rate = 250e6 if self._drain() is None else self._drain() or 0.0
        limit = int(rate * asked.ceiling_s)
        bound = Bound(FOUND, limit, limit // 2, f"what the disk drains in {asked.ceiling_s:g} s")
        self.course = TrialRun(
            asked, bound, Mode.ENFORCE, RATIOS, 100.0, self.seen[-1][0].time_s
        )

    def _drain(self) -> Optional[float]:
        return self.loop.memory.devices["sda"].drain_rate

    def _law(
        self, policy: Policy, memory: Memory, sample: Sample, estimates: Mapping[str, Estimate]
    ) -> Tuple[Decision, Memory]:
        if self.course is not None and self.course.ended is None:
            self.course.renew(sample.time_s)
            trial = self.course.step(sample, estimates, memory, self.alerts)
            memory = replace(memory, trial=trial)
        decision, memory = decide(policy, memory, sample, estimates)
        self.seen.append((sample, decision, memory))
        return decision, memory

    def until(self, done: Callable[[], bool], most: int = 5000) -> None:
        for _ in range(most):
            if done():
                return
            self.loop.tick()
        raise AssertionError("did not come to its end")

    def whole(self) -> TrialRun:
        course = self.course
        assert course is not None
        self.until(lambda: course.ended is not None)
        return course


def made(
    asked: Plan,
    p99_s: Callable[[int, bool], float] = lambda block, original: 0.4 if original else 0.01,
    rate: Callable[[int, bool], float] = lambda block, original: 2e8,
    fsyncs: int = 200,
    blocks: Optional[int] = None,
) -> List[TrialTick]:
    """Ticks of a second, as made to order: `p99_s` and `rate` get a block (from 0) and its arm."""
    found = []
    for block, arm in enumerate(asked.arms[:blocks]):
        original = arm == ORIGINAL
        index = bisect_right(BUCKET_EDGES_S, p99_s(block, original)) - 1
        for second in range(int(asked.block_s)):
            found.append(TrialTick(block, second >= asked.settle_s, Figures(
                wall_s=1.7e9 + block * asked.block_s + second, span_s=1.0, device="sda",
                limit_bytes=2.5e8 if original else 4e6, found_bytes=float(FOUND),
                write_rate=rate(block, original), flooded_s=1.0, ours_s=float(not original),
                latency=Histogram(((index, fsyncs),) if fsyncs else ()),
                oldest_s=0.0 if fsyncs else p99_s(block, original),
            )))  # fmt: skip
    return found


class FakeTrial:
    """What the daemon answers to `trial`: all at once."""

    def handle(self, args: Mapping[str, Any]) -> Dict[str, Any]:
        if args["order"] == "start":
            self.plan = Plan("sda", *(args[name] for name in (
                "arms", "block_s", "settle_s", "ceiling_s", "stop_s")))  # fmt: skip
            return {
                "id": 7, "device": "sda", "mode": "enforce", "policy": "default",
                "version": "0.1.0", "found_bytes": FOUND, "limit_bytes": 250 << 20,
                "cut": "what the disk drains in 1 s", "stop_s": 2.0,
            }  # fmt: skip
        ticks = made(self.plan)[args["since"] :]
        return {"ended": "done", "why": "all blocks are done", "left": 0,
                "ticks": [pack(each) for each in ticks]}


def report(course: TrialRun, seed: int = 1) -> TrialSummary:
    assert course.ended is not None
    return TrialSummary(
        host="db7", version="0.1.0", policy="db-hwraid", mode="enforce", seed=seed,
        plan=course.plan, found_bytes=course.bound.found_bytes,
        limit_bytes=course.bound.limit_bytes, cut=course.bound.cut,
        stop_s=stop_s(course.plan, 4e-4), ended=course.ended.value, why=course.why,
        result=analyse(course.plan, course.ticks),
    )  # fmt: skip


def page(course: TrialRun, seed: int = 1) -> str:
    ticks: List[TrialTick] = course.ticks
    return render(report(course, seed), ticks, time.time())


if __name__ == "__main__":
    wanted = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    ended = Run(plan(8, wanted)).whole()
    Path(sys.argv[1]).write_text(page(ended, wanted), encoding="utf-8")
