# SPDX-License-Identifier: GPL-2.0-or-later
"""Replays recorded samples: decides again under the recorded or another policy.  Pure.

Under another policy the samples still show the disks under the recorded limits: a replay shows
what that policy would have decided, not how the disks would have behaved.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timezone, tzinfo
from typing import Callable, Dict, Iterable, Iterator, List, Optional, Tuple

from writebackd.control.decide import decide, rebounded
from writebackd.estimate.estimator import estimate
from writebackd.policy import Policy
from writebackd.policy.reload import Timetable
from writebackd.report.effectiveness import weighted_median
from writebackd.report.recorder import Recorded, RecordedDecision, recorded_decision
from writebackd.types.copying import replace
from writebackd.types.core_memory import Memory
from writebackd.types.decision import Decision
from writebackd.types.samples import Sample

# Differences that are listed.
MOST_DIFFERENCES = 20


@dataclass(frozen=True)
class Replayed:
    """One tick with its recorded and its new decision."""

    sample: Sample
    recorded: RecordedDecision
    outcome: RecordedDecision
    decision: Decision

    @property
    def same(self) -> bool:
        return self.recorded == self.outcome


def replay(
    ticks: Iterable[Recorded],
    load: Callable[[str], Policy],
    other: Optional[Policy] = None,
    zone: tzinfo = timezone.utc,
) -> Iterator[Replayed]:
    """Decide each tick again. `load` makes a policy from a file's text; `other` replaces it.

    Windows of `other` open by the recorded time in `zone`; the recording contains the policy that
    was in force. Raises what `load` raises.
    """
    memory: Optional[Memory] = None
    known: Dict[str, Policy] = {}
    timetable = Timetable(other, zone) if other is not None else None
    last: Optional[Policy] = None
    for tick in ticks:
        if tick.memory is not None:
            if memory is None or other is None:
                memory = tick.memory if other is None else replace(tick.memory, trial=None)
            else:
                # Orders of then count; what the other policy has come to stays.
                memory = replace(
                    memory, mode=tick.memory.mode, pin_bytes=tick.memory.pin_bytes,
                    draining=tick.memory.draining, yielded=tick.memory.yielded,
                    intrusions=tick.memory.intrusions,
                )
        if memory is None:
            continue  # the beginning was lost
        if timetable is not None:
            policy = timetable.at(tick.sample.wall_s).policy
            if last is not None and policy is not last:
                memory = rebounded(memory)
            last = policy
        else:
            if tick.policy not in known:
                known[tick.policy] = load(tick.policy)
            policy = known[tick.policy]
        estimates, memory = estimate(policy, memory, tick.sample)
        decision, memory = decide(policy, memory, tick.sample, estimates)
        yield Replayed(tick.sample, tick.outcome, recorded_decision(decision), decision)


@dataclass
class Tally:
    ticks: int = 0
    different: int = 0
    decisions: int = 0  # new ids
    begin_s: Optional[float] = None  # wall clock
    end_s: Optional[float] = None

    def __post_init__(self) -> None:
        # Seconds by device and state: then and now.
        self.states: Dict[str, Dict[str, List[float]]] = {}
        self.limits: Tuple[List[Tuple[float, float]], List[Tuple[float, float]]] = ([], [])
        self.differences: List[Tuple[float, str, str]] = []  # when, what was decided then, what now
        self._ids: Dict[str, str] = {}

    def add(self, tick: Replayed) -> None:
        wall_s, dt_s = tick.sample.wall_s, tick.sample.dt_s
        self.ticks += 1
        self.begin_s = wall_s if self.begin_s is None else self.begin_s
        self.end_s = wall_s
        for which, outcome in enumerate((tick.recorded, tick.outcome)):
            for name, _, state, _ in outcome.devices:
                self.states.setdefault(name, {}).setdefault(state, [0.0, 0.0])[which] += dt_s
            if outcome.limit_bytes is not None:
                self.limits[which].append((float(outcome.limit_bytes), dt_s))
        for device in tick.decision.devices:
            if self._ids.get(device.name) != device.decision_id:
                self._ids[device.name] = device.decision_id
                self.decisions += 1
        if not tick.same:
            self.different += 1
            if len(self.differences) < MOST_DIFFERENCES:
                then, now = _difference(tick.recorded, tick.outcome)
                self.differences.append((wall_s, then, now))

    def median_limit(self, which: int) -> Optional[float]:
        """The median limit while the agent had one: recorded (0), now (1)."""
        return weighted_median(self.limits[which])


def _difference(then: RecordedDecision, now: RecordedDecision) -> Tuple[str, str]:
    pairs: List[Tuple[str, str]] = []
    names = ("limit", "background", "goal")
    for name, old, new in zip(names, then, now):
        if old != new:
            pairs.append((f"{name} {old}", f"{name} {new}"))
    mine = {device[0]: device for device in now.devices}
    for device in then.devices:
        other = mine.get(device[0])
        if other != device:
            pairs.append((" ".join(map(str, device)), " ".join(map(str, other or ("gone",)))))
    if then.settings != now.settings:
        pairs.append((f"levers {then.settings}", f"levers {now.settings}"))
    pairs = pairs or [("fewer devices", "more devices")]
    return "; ".join(then_ for then_, _ in pairs), "; ".join(now_ for _, now_ in pairs)
