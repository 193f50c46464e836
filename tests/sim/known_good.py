# SPDX-License-Identifier: GPL-2.0-or-later
"""The agent beside the fixed limit that admins found by hand, on random hosts.

`table` looks for hosts in which it is slower and shrinks them; test_long_runs.py asks in how many
of the same 400 it is.
"""

from __future__ import annotations

import random
from dataclasses import fields, is_dataclass, replace
from typing import List

from hypothesis import HealthCheck, Phase, find, settings
from hypothesis.errors import NoSuchExample

from tests.sim.cases import FLOOD_S, Case, Point, cases, drive, rates
from tests.sim.plant import MB

LIMIT = 15 * MB
LEAST = 0.9  # of its syncs, at the same throughput
GRACE_S = 15.0  # from a flood's start or an event until the agent is judged
JUDGED_S = 40.0


def demanding(case: Case) -> Case:
    """The same with commits that count as demand also when each takes a while."""
    return replace(case, sync=replace(case.sync, think_s=min(case.sync.think_s, 0.01)))


def share(ours: List[Point], theirs: List[Point], since_s: float) -> float:
    """The agent's syncs in times of the other's.

    Where the other limit is below the knee, only by what its lost throughput leaves of the score.
    """
    syncs, written = rates(ours, since_s)
    their_syncs, their_written = rates(theirs, since_s)
    worth = min(1.0, their_written / max(written, 1.0) / 0.95) ** 4
    wanted = worth * their_syncs
    return syncs / wanted if wanted else float("inf")


def begins_s(case: Case) -> float:
    """From when on the agent is judged: the dirty pages of the start are written by then."""
    return FLOOD_S + GRACE_S + 1.5 * case.dirty / case.disk.drain


def of_case(case: Case) -> float:
    case, since = demanding(case), begins_s(case)
    end = since + JUDGED_S
    return share(drive(case, end), drive(case, end, static=LIMIT), since)


def slower(seed: int, hosts: int) -> "Case | None":
    """The plainest host found in which the agent is slower, after up to so many without one."""
    chosen = settings(max_examples=hosts, deadline=None, database=None,
                      phases=[Phase.generate, Phase.shrink],
                      suppress_health_check=list(HealthCheck))
    try:
        return find(cases(waves=True, dirty=True), lambda case: of_case(case) < LEAST,
                    settings=chosen, random=random.Random(seed))
    except NoSuchExample:
        return None


def table(seed: int, searches: int, hosts: int) -> str:
    """What so many searches found, a line each."""
    lines = []
    for number in range(seed, seed + searches):
        case = slower(number, hosts)
        if case is None:
            lines.append(f"seed {number}: none in {hosts} hosts")
        else:
            said = ", ".join(_differences(case, Case())) or "the plain host"
            lines.append(f"seed {number}: {of_case(case):.2f} of the syncs: {said}")
    return "\n".join(lines)


def _differences(value: object, plain: object, name: str = "") -> List[str]:
    if not is_dataclass(value):
        return [] if value == plain else [f"{name} {value:.6g}"]
    found: List[str] = []
    for field in fields(value):
        inner = f"{name}.{field.name}" if name else field.name
        found += _differences(getattr(value, field.name), getattr(plain, field.name), inner)
    return found
