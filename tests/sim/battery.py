# SPDX-License-Identifier: GPL-2.0-or-later
"""How soon a failed battery is answered, on drawn disks: by the law's limit, and by an alert.

    PYTHONPATH=agent python -m tests.sim battery work [HOSTS]
    PYTHONPATH=agent python -m tests.sim battery judge [HOSTS]

Hosts are those of `drawn` with a protected cache.  Each runs without a flood and with its own, and
each of these twice: once the cache is lost, a minute after the flood began and anywhere in a tick,
once it is not.  The first limit that differs between the two is the law's answer; what the one
without a failure raises in the same time is false.  Disks with another cache, or none, only run
without a failure.
"""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass, replace
from typing import List, Optional, Sequence, Tuple

from tests.sim import drawn
from tests.sim.alerts import STEP_S, Host
from tests.sim.plant import Event, Plant
from writebackd.alerts.alert_types import AlertName

QUIET_S, FLOODED_S, AFTER_S = 60.0, 60.0, 30.0
PROMISED_S = 5.0
LOADS = ("no flood", "steady flood", "flood in waves")


@dataclass(frozen=True)
class Answer:
    """One host under one load."""

    name: str
    load: str
    changed_s: Optional[float]  # from the failure to the first limit that it changed
    told_s: Optional[float]  # to CACHE_DEGRADED
    others: Tuple[str, ...]  # alerts that came before that, from the failure on
    false: Tuple[str, ...]  # in all of the run without a failure

    @property
    def false_lost(self) -> bool:
        return AlertName.CACHE_DEGRADED.value in self.false


@dataclass(frozen=True)
class _Run:
    limits: Tuple[Tuple[float, Optional[int]], ...]  # end of a tick, the limit decided there
    raised: Tuple[Tuple[float, AlertName], ...]


def seeds(half: str, hosts: int, protected: bool) -> Tuple[int, ...]:
    """The first of a half with such a cache."""
    found = [seed for seed in drawn.seeds(half, 8 * hosts)
             if drawn.host(seed).name.startswith("protected") is protected]
    return tuple(found[:hosts])


def _run(seed: int, flooded: bool, fails: bool) -> Tuple[_Run, float]:
    """The run, and when the battery fails or would."""
    scenario, dice = drawn.host(seed), random.Random(f"battery {seed}")
    disk, flood = scenario.disks[0], scenario.floods[0]
    at_s = QUIET_S + FLOODED_S + dice.uniform(0.0, 30.0)
    # A seek and a part of a turn for each write; the media lose what the cache sorted.
    lost = Event(at_s, {"cache": 0.0, "baseline_s": dice.uniform(4e-3, 9e-3),
                        "drain": 0.6 * disk.drain, "seeks": True})
    host = Host(Plant(
        scenario.disks, (replace(flood, start_s=QUIET_S),) if flooded else (), scenario.syncs,
        (lost,) if fails else (), seed=seed, step_s=STEP_S))
    limits: List[Tuple[float, Optional[int]]] = []
    while host.plant.now_s < at_s + AFTER_S:
        host.tick(dice.uniform(0.97, 1.03))
        limits.append((host.plant.now_s, host.plant.limit))
    return _Run(tuple(limits), tuple((time_s, each.name) for time_s, each in host.raised)), at_s


def answer(seed: int, flooded: bool) -> Answer:
    scenario = drawn.host(seed)
    well, at_s = _run(seed, flooded, fails=False)
    failed = well
    if scenario.name.startswith("protected"):
        failed, _ = _run(seed, flooded, fails=True)
    changed = [time_s for (time_s, limit), (_, other) in zip(failed.limits, well.limits)
               if limit != other]
    since = [(time_s, name) for time_s, name in failed.raised if time_s > at_s]
    told = [time_s for time_s, name in since if name is AlertName.CACHE_DEGRADED]
    until_s = told[0] if told else at_s + AFTER_S
    return Answer(
        scenario.name, LOADS[flooded * (1 + drawn.in_waves(scenario))],
        changed[0] - at_s if changed else None, told[0] - at_s if told else None,
        tuple(name.value for time_s, name in since
              if time_s <= until_s and name is not AlertName.CACHE_DEGRADED),
        tuple(name.value for _, name in well.raised),
    )


def table(half: str, hosts: int, verbose: bool = False) -> str:
    """`hosts` with a battery, and as many disks of other kinds."""
    answers = [answer(seed, flooded) for seed in seeds(half, hosts, True)
               for flooded in (False, True)]
    others = [answer(seed, True) for seed in seeds(half, hosts, False)]
    soon = f"<= {PROMISED_S:g} s"
    heads = "".join(f"{head:>8}" for head in ("limit", "latest", soon, "none",
                                              "alert", "latest", soon, "none", "false"))
    lines = [f"{half}: {hosts} drawn hosts with a battery that fails; seconds from then", "",
             f"{'':16}{'hosts':>6}{heads}"]
    for load in LOADS:
        group = [each for each in answers if each.load == load]
        if group:
            lines.append(
                f"{load:16}{len(group):6}{_times([each.changed_s for each in group])}"
                f"{_times([each.told_s for each in group])}"
                f"{sum(each.false_lost for each in group):8}")
    lines += ["", f"false: CACHE_DEGRADED without a failure; on {len(others)} other disks beside a "
              f"flood: {sum(each.false_lost for each in others)}"]
    if verbose:
        lines += ["", *(
            f"{each.name:16}{each.load:16}{_time(each.changed_s)}{_time(each.told_s)}"
            f"  before it: {' '.join(each.others) or '-'}; false: {' '.join(each.false) or '-'}"
            for each in (*answers, *others))]
    return "\n".join(lines)


def _times(values: Sequence[Optional[float]]) -> str:
    """Median, latest, how many in time, how many never."""
    known = [value for value in values if value is not None]
    middle = f"{statistics.median(known):8.1f}{max(known):8.1f}" if known else f"{'-':>8}{'-':>8}"
    soon = sum(value <= PROMISED_S for value in known)
    return f"{middle}{soon:8}{len(values) - len(known):8}"


def _time(value: Optional[float]) -> str:
    return f"{'-':>8}" if value is None else f"{value:8.1f}"
