# SPDX-License-Identifier: GPL-2.0-or-later
"""The published tables: their scenarios, the figures of runs, the Markdown; nothing is measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, List, Optional

import pytest

from tests.lab import contenders
from tests.lab.bench import plan
from tests.lab.loads import KINDS
from tests.lab.published import TABLES, figures, table

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
