# SPDX-License-Identifier: GPL-2.0-or-later
"""The lab's classes: every policy has one, and a verdict says what does not hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, List, Optional

import pytest

from tests.lab import contenders, scenario
from tests.lab.classes import BY_POLICY, CLASSES, Class, Task, judge
from tests.lab.evaluation import Check, Contender
from tests.lab.evaluation import Scenario as Scored
from writebackd.policy import list_policies


def test_every_shipped_policy_has_a_class_of_its_own_scenario() -> None:
    assert sorted(BY_POLICY) == sorted(entry.name for entry in list_policies())
    assert len({each.scenario for each in CLASSES}) == len(CLASSES)
    for each in CLASSES:
        assert contenders.named(each.contender).as_class == each.policy
        scenario.load(each.scenario)


# ---- verdicts ----------------------------------------------------------------


def run(**agent: Any) -> Dict[str, Any]:
    return {"error": None, "agent": {"limit_writes": 0, "alerts": ["COLLAPSE"], **agent}}


def scored(each: Class, default: Optional[float], agent: Optional[float], g: float = 1.0,
           *checks: Check, told: Optional[Dict[str, Any]] = None) -> Scored:
    return Scored(each.scenario, checks=list(checks), contenders={
        "default": Contender("default", "default", f=default, g=1.0, score=default),
        each.contender: Contender(each.contender, "agent", f=agent, g=g, score=agent,
                                  runs=[told or run()])})


PROTECT, HARMLESS = BY_POLICY["etcd"], BY_POLICY["desktop"]
THROUGHPUT, WATCH = BY_POLICY["analytics"], BY_POLICY["ceph-osd"]


def test_what_protects_has_to_be_much_better() -> None:
    assert PROTECT.task is Task.PROTECT
    assert judge(PROTECT, scored(PROTECT, 0.01, 0.02)).good
    worse = judge(PROTECT, scored(PROTECT, 0.01, 0.019))
    assert worse.good is False and worse.misses == ["score below 2 x default's"]


def test_what_needs_nothing_is_not_harmed() -> None:
    assert judge(HARMLESS, scored(HARMLESS, 0.80, 0.77)).good
    assert judge(HARMLESS, scored(HARMLESS, 0.80, 0.75)).good is False


def test_throughput_stays() -> None:
    assert judge(THROUGHPUT, scored(THROUGHPUT, 1.0, 0.99, g=0.99)).good
    assert judge(THROUGHPUT, scored(THROUGHPUT, 1.0, 0.98, g=0.98)).good is False


@pytest.mark.parametrize("agent, missed", [
    ({}, []),
    ({"limit_writes": 1}, ["a limit was written"]),
    ({"alerts": ["EXHAUSTED"]}, ["the collapse was not told"]),
])
def test_what_watches_writes_nothing_and_tells_the_collapse(
    agent: Dict[str, Any], missed: List[str]
) -> None:
    found = judge(WATCH, scored(WATCH, 0.01, 0.01, told=run(**agent)))
    assert list(found.misses) == missed and found.good is not bool(missed)


def test_what_a_scenario_expects_of_its_class_counts_and_of_others_does_not() -> None:
    mine = Check("agent-as-etcd p99 / default p99 <= 0.5", False, "0.7")
    other = Check("agent score / best score >= 0.95", False, "0.9")
    good = scored(PROTECT, 0.01, 0.5, 1.0, other, replace(mine, ok=True), replace(mine, ok=None))
    assert judge(PROTECT, good).good
    assert judge(PROTECT, scored(PROTECT, 0.01, 0.5, 1.0, mine)).misses == [f"{mine.text}: 0.7"]


def test_a_missing_run_is_no_verdict() -> None:
    assert judge(PROTECT, scored(PROTECT, 0.01, None)).good is None
    assert judge(PROTECT, Scored("etcd")).good is None
