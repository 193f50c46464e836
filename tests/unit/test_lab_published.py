# SPDX-License-Identifier: GPL-2.0-or-later
"""The published tables: their scenarios, the figures of runs, the Markdown; nothing is measured."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Dict, List, Optional

import pytest

from tests.lab import contenders, published
from tests.lab.bench import plan
from tests.lab.loads import KINDS
from tests.lab.published import HEADS, TABLES, cell, figures, medians, table, variation

DESTAGE = TABLES["destage"]


def load(rate: float, cdf: Any, series: List[float], role: str = "sync", **more: Any
         ) -> Dict[str, Any]:
    ops = int(rate * 10)
    return {"name": "db", "role": role, "disk": "db", "windows": {"judged": {
        "ops": ops, "rate": rate, "mean": 0.01, "max": 0.2, "inflight_age": 0.0, "cdf": cdf,
        "series": series, **more}}}


def run(contender: str, *loads: Dict[str, Any], error: Optional[str] = None,
        scenario: str = "destage-at-10") -> Dict[str, Any]:
    t = [0.0, 1.0, 2.0, 3.0]
    return {"scenario": scenario, "contender": contender, "repeat": 1, "error": error, "cpus": 2,
            "windows": {"judged": [1.0, 2.0]}, "loads": list(loads),
            "series": {"t": t, "processors": [9.0, 0.5, 1.5, 9.0],
                       "sync_rate": [1.0, 2.0, None, 4.0],
                       "read_rate": {"db": [0.0, 1 << 20, None, 0.0]},
                       "device_rate": {"db": [0.0, 2 << 20, 4 << 20, 0.0]}}}


STEADY = [(0.01, 0.5), (0.02, 0.99), (0.04, 0.999), (0.05, 1.0)]


@pytest.mark.parametrize("name", TABLES)
def test_every_table_has_scenarios_that_run_here(name: str) -> None:
    scenarios = TABLES[name].scenarios()
    jobs = plan(scenarios, "native", TABLES[name].contenders, 1)
    assert len(jobs) == len(scenarios) * len(TABLES[name].contenders)
    assert all(contenders.named(each) for each in TABLES[name].contenders)
    for each in scenarios:
        assert all(load.kind in KINDS for load in each.loads)
        assert TABLES[name].idle <= any(load.role == "flood" for load in each.loads)


def test_the_databases_are_as_many_as_published() -> None:
    numbers = [sum(load.role == "sync" for load in each.loads)
               for each in TABLES["databases"].scenarios()]
    assert numbers == [4, 8, 12, 16]
    due, full = ([load.options["rate"] for each in TABLES[name].scenarios() for load in each.loads
                  if load.role == "sync"] for name in ("databases", "databases-full"))
    assert set(due) == {20} and set(full) == {0} and len(full) == 4 + 16


def test_databases_count_together() -> None:
    found = figures(run("agent", load(30, STEADY, [20, 40]), load(10, [(0.1, 1.0)], [10, 10]),
                        load(1000, STEADY, [1000, 1000], role="flood")), "judged")
    assert found["per s"] == 40
    assert found["mean ms"] == pytest.approx(10)
    # A quarter of the operations took 100 ms.
    assert found["p95"] == found["p99"] == pytest.approx(100)
    assert found["CV"] == pytest.approx(10 / 40)  # of 30 and 50
    assert found["disk reads MB/s"] == 1 and found["disk writes MB/s"] == 3
    assert found["CPU"] == 0.5


def test_quantiles_are_of_the_distribution() -> None:
    found = figures(run("agent", load(30, STEADY, [30, 30])), "judged")
    assert (found["p95"], found["p99"], found["p99.9"]) == (20, 20, 40)
    assert found["CV"] == 0 and found["max"] == 200


def test_latencies_are_not_known_where_a_tool_was_killed() -> None:
    killed = load(0, [], [1.0], mean=None, inflight_age=40.0, max=40.0)
    found = figures(run("default", load(30, STEADY, [30, 30]), killed), "judged")
    assert found["mean ms"] is found["p99"] is None and found["max"] == 40_000
    assert found["CV"] == pytest.approx(0.5 / 30.5)  # it counts for nothing in its last second


def test_no_operations_have_no_variation() -> None:
    assert variation([]) is None and variation([5.0]) is None and variation([0.0, 0.0]) is None
    assert variation([0.0, 2.0]) == 1


def test_medians_leave_out_what_is_unknown() -> None:
    each = dict.fromkeys(HEADS)
    found = medians([{**each, "p99": 1.0}, {**each, "p99": 5.0}, {**each, "p99": 2.0}, each])
    assert found["p99"] == 2 and found["CV"] is None
    assert math.isnan(float("nan")) and cell("CV", None) == "-"


def test_the_table_has_a_line_for_what_was_not_measured() -> None:
    alone = load(50, STEADY, [50, 50])
    alone["windows"]["idle"] = alone["windows"]["judged"]
    good = run("agent", alone)
    good["windows"]["idle"] = good["windows"]["judged"]
    bad = run("default", alone, error="a disk did not answer")
    lines = table(replace(DESTAGE), [DESTAGE.scenarios()[1]], [good, bad])
    assert len({line.count("|") for line in lines if "not measured" not in line}) == 1
    assert [line.split("|")[1].strip() for line in lines] == [
        "here", "---", "destage-at-10, alone", "destage-at-10, default", "destage-at-10, agent"]
    assert lines[3].endswith("| not measured |") and "| 50 |" in lines[4]


def test_the_picture_has_both_lines_and_the_flood() -> None:
    scenario = DESTAGE.scenarios()[1]
    one = load(30, STEADY, [30, 60])
    drawn = published.picture(scenario, [
        run("default", one), run("agent", one), run("static-15M", one),
        run("agent", one, scenario="destage-by-time"), run("agent", one, error="it ended")])
    assert drawn.count('class="l with"') == drawn.count('class="l without"') == 3
    assert drawn.count("the flood begins") == 3


def test_transactions_are_drawn_by_second_within_their_window() -> None:
    found = run("agent", load(30, STEADY, [20, 40, 50]), load(30, STEADY, [1, 2]))
    assert published.transactions(found) == [(1.0, 21), (2.0, None)]


def test_a_table_that_is_none_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        published.main(["vcache"])
    assert "hand-tuned" in capsys.readouterr().err


def test_a_plan_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert published.main(["--plan", "databases", "tpcc"]) == 0
    assert "databases-16" in capsys.readouterr().out
