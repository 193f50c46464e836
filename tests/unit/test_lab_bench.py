# SPDX-License-Identifier: GPL-2.0-or-later
"""The benchmark's plan, how it goes on after an end, and what it calls a regression."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List

import pytest

from test_lab_score import made
from tests.lab import bench, regress, scenario, score
from tests.lab.run import Conditions
from tests.lab.show import table

CONDITIONS = Conditions("native", 1.0, "test", 8 << 30, "6.18, 2 CPUs")
WANTED = ("default", "static-2M", "agent")


@pytest.fixture
def performed(monkeypatch: pytest.MonkeyPatch) -> List[str]:
    """Contenders and repeats that were run; nothing is."""
    done: List[str] = []

    def perform(of: Any, contender: Any, repeat: int, conditions: Any) -> Dict[str, Any]:
        done.append(f"{contender.name}-{repeat}")
        return {**made(contender.name, repeat), "schema": 1}

    monkeypatch.setattr(bench, "perform", perform)
    return done


def jobs() -> List[bench.Job]:
    return bench.plan([scenario.load("flood")], "native", WANTED, 3)


def test_contenders_take_turns() -> None:
    order = [(job.repeat, job.contender.name) for job in jobs()]
    assert order == [(1, "default"), (1, "static-2M"), (1, "agent"),
                     (2, "static-2M"), (2, "agent"), (2, "default"),
                     (3, "agent"), (3, "default"), (3, "static-2M")]


def test_what_was_interrupted_goes_on(performed: List[str], tmp_path: Path) -> None:
    plan = jobs()
    assert bench.do(plan[:4], CONDITIONS, tmp_path) == []
    assert bench.do(plan, CONDITIONS, tmp_path) == []
    assert performed == [f"{job.contender.name}-{job.repeat}" for job in plan]


def test_results_of_other_inputs_are_done_again(performed: List[str], tmp_path: Path,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    plan = jobs()[:3]
    bench.do(plan, CONDITIONS, tmp_path)
    failed = plan[1].file(tmp_path)
    failed.write_text(json.dumps({**json.loads(failed.read_text()), "error": "disk full"}))
    plan[0].file(tmp_path).write_text("{ half a fi")
    real = bench.digest

    def changed(*patterns: str) -> str:
        return real(*patterns) + ("changed" if "bpf/*.[ch]" in patterns else "")

    monkeypatch.setattr(bench, "digest", changed)
    performed.clear()
    bench.do(plan, CONDITIONS, tmp_path)
    assert performed == ["default-1", "static-2M-1", "agent-1"]
    performed.clear()
    bench.do(plan, Conditions("vm", 0.1, "test", 2 << 30, "vm"), tmp_path)
    assert len(performed) == 3


def test_only_runs_that_can_be_compared_are_scored(performed: List[str], tmp_path: Path) -> None:
    bench.do(jobs(), CONDITIONS, tmp_path)
    flood = [scenario.load("flood")]
    old = jobs()[1].file(tmp_path)
    old.write_text(json.dumps({**json.loads(old.read_text()), "inputs": "of last year"}))
    jobs()[2].file(tmp_path).write_text("{ half a fi")
    found = bench.read_runs(tmp_path, flood, CONDITIONS)
    assert len(found) == 7
    assert bench.read_runs(tmp_path, flood, Conditions(
        "native", 1.0, "test", 8 << 30, "7.0, 64 CPUs")) == []


@pytest.mark.parametrize("agent, regressed", [(500, False), (430, False), (420, True)])
def test_more_than_15_percent_is_a_regression(agent: float, regressed: bool) -> None:
    runs = [made("default", sync=1), made("static-16M", sync=100), made("agent", sync=agent)]
    ratios = {"flood": {"agent f / static-16M f": 5.0}}
    line, = regress.compare(score.evaluate(runs), runs, ratios)
    assert line.startswith("REGRESSED") == regressed


def test_what_cannot_be_compared_is_a_regression() -> None:
    runs = [made("default", sync=1), made("agent", error="broke")]
    found = score.evaluate(runs)
    for ratios in ({}, {"flood": {"agent f": 0.5}}):
        line, = regress.compare(found, runs, ratios)
        assert line.startswith("REGRESSED")


def two_scenarios() -> List[Dict[str, Any]]:
    """The agent is the better one in sum, a small limit in one of them."""
    rates = {"flood": {"default": 1, "static-2M": 400, "static-16M": 100, "agent": 300},
             "flood-ext4": {"default": 1, "static-2M": 20, "static-16M": 100, "agent": 300}}
    return [made(name, sync=rate, scenario=each)
            for each, of in rates.items() for name, rate in of.items()]


def test_the_table_ends_with_hindsight() -> None:
    said = table(score.evaluate(two_scenarios()))
    lines = [line.split() for line in said.splitlines()]
    assert ["flood", "0.75", "static-2M"] in lines
    assert ["flood-ext4", "3", "static-16M"] in lines
    assert ["good", "static-16M", "0.3", "against", "0.1", "in", "2", "scenarios"] in lines
    assert ["good", "static-2M", "0.3", "against", "0.0894", "in", "2", "scenarios"] in lines
    assert ["good", "default", "0.3", "against", "0.001", "in", "2", "scenarios"] in lines
