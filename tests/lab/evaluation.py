# SPDX-License-Identifier: GPL-2.0-or-later
"""What tables are made of: recorded runs, and what the scoring made of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Tuple

Run = Mapping[str, Any]  # one run's JSON

# What a contender is: its place in the order, the sweep that it belongs to.
DEFAULT, STATIC, PEER, AGENT = "default", "static", "peer", "agent"


@dataclass(frozen=True)
class Check:
    """One thing that a scenario must show, and whether it did."""

    text: str
    ok: Optional[bool]  # None: not decided, the runs for it are missing
    value: str = ""  # what was measured, in words: "0.97 of the best static"


@dataclass(frozen=True)
class Contender:
    """One contender in one scenario: figures are medians of its repeats without an error."""

    name: str
    kind: str  # DEFAULT, STATIC, PEER or AGENT
    limit_bytes: Optional[int] = None  # of a static one
    f: Optional[float] = None  # None where the scenario has no sync load
    g: Optional[float] = None
    score: Optional[float] = None
    spread: Optional[Tuple[float, float]] = None  # lowest and highest score of the repeats
    runs: List[Run] = field(default_factory=list)  # all repeats, failed ones included
    summary: str = ""
    regret: Optional[float] = None  # score, of the best static limit's in the same scenario
    changed: Optional[float] = None  # score in a later window: after a change, or of a second flood
    changed_regret: Optional[float] = None  # of the static limit that was best there
    # Of commits, from the flood's first second on:
    worst_s: Optional[float] = None  # the highest p99 of a second
    longest_s: Optional[float] = None
    stall_s: Optional[float] = None  # longest write of a buffered writer since it came
    writes_per_min: Optional[float] = None  # of the limits, in the end


@dataclass(frozen=True)
class Scenario:
    name: str
    summary: str = ""
    shows: str = ""  # what it must show, in words
    checks: List[Check] = field(default_factory=list)
    has_sync: bool = True
    contenders: Dict[str, Contender] = field(default_factory=dict)  # by name
    best_static: Optional[str] = None  # name of the contender with the best score of its kind


@dataclass(frozen=True)
class Evaluation:
    scenarios: List[Scenario] = field(default_factory=list)
    totals: Dict[str, Optional[float]] = field(default_factory=dict)  # contender: geometric mean


def order(evaluation: Evaluation) -> List[Contender]:
    """All contenders, each once: default, static from large to small, peers, agent."""
    found: Dict[str, Contender] = {}
    for scenario in evaluation.scenarios:
        found = {**scenario.contenders, **found}
    kinds = (DEFAULT, STATIC, PEER, AGENT)
    return sorted(found.values(),
                  key=lambda one: (kinds.index(one.kind), -(one.limit_bytes or 0), one.name))
