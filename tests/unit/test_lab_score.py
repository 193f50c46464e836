# SPDX-License-Identifier: GPL-2.0-or-later
"""The lab's scores, on runs made up for the purpose."""

from __future__ import annotations

from typing import Any, Dict, Optional

import pytest

from tests.lab import score
from tests.lab.scenario import parse_expectation

MB = 1 << 20


def measured(rate: float, elapsed: float, **more: Any) -> Dict[str, Any]:
    return {"elapsed": elapsed, "ops": int(rate * elapsed), "rate": rate, "p99": 0.01,
            "inflight_age": 0.0, "longest_stall": None, "byte_rate": None, **more}


def made(contender: str, repeat: int = 1, sync: float = 1000, idle: float = 1000,
         device: float = 200 * MB, per_op: float = 0, error: Optional[str] = None,
         scenario: str = "flood") -> Dict[str, Any]:
    """A run of `flood`: 2 s of idle, 10 s of judgement; the device's rate is the flood's."""
    return {
        "scenario": scenario, "contender": contender, "repeat": repeat, "error": error,
        "windows": {"idle": [1, 3], "judged": [10, 20]},
        "loads": [{"name": "database", "role": "sync", "disk": "db", "windows": {
                       "idle": measured(idle, 2), "judged": measured(sync, 10)}},
                  {"name": "flood", "role": "flood", "disk": "db", "stall": 1.5, "windows": {
                      "idle": None, "judged": measured(0, 10)}}],
        "disks": [{"name": "db", "cache_bytes": 512 * MB, "written": {
            "idle": idle * 2 * per_op, "judged": 10 * (device + sync * per_op)}}],
        "series": {"t": [1, 20], "dirty_limit": [1, 4 * MB], "fill": {"db": [0, 256 * MB]},
                   "sync_rate": [idle, sync], "sync_p99": [0.001, 0.01]},
        "limits": [[0.1, 8 * MB], [3.0, 4 * MB]],
    }


def test_score_is_the_formula() -> None:
    assert score.score(0.5, 1.2) == 0.5
    assert score.score(0.5, 0.95) == pytest.approx(0.5)
    assert score.score(0.5, 0.475) == pytest.approx(0.5 / 16)
    assert score.score(None, 0.9) == 0.9
    assert score.score(0.5, None) == 0.5
    assert score.score(None, None) is None


def test_shares_are_those_of_the_same_repeat() -> None:
    # The machine is twice as fast in the second repeat: no score may see that.
    runs = [made("default", 1, sync=1, device=200 * MB), made("agent", 1, 600, device=190 * MB),
            made("default", 2, sync=2, idle=2000, device=400 * MB),
            made("agent", 2, 1200, idle=2000, device=380 * MB)]
    scenario, = score.evaluate(runs).scenarios
    agent = scenario.contenders["agent"]
    assert agent.f == pytest.approx(0.6) and agent.g == pytest.approx(0.95)
    assert agent.spread == pytest.approx((0.6, 0.6))
    assert scenario.contenders["default"].f == pytest.approx(0.001)


def test_what_the_synchronous_writer_writes_is_not_the_floods() -> None:
    runs = [made("default", sync=0, per_op=12288), made("agent", sync=800, per_op=12288)]
    scenario, = score.evaluate(runs).scenarios
    assert scenario.contenders["agent"].g == pytest.approx(1, rel=1e-6)


def test_best_static_is_found_and_totals_are_of_the_same_scenarios() -> None:
    runs = [made("default", sync=1), made("static-4M", sync=400), made("static-16M", sync=100),
            made("static-2M", sync=300), made("agent", sync=500)]
    other = [dict(run, scenario="flood-ext4") for run in runs if run["contender"] != "static-2M"]
    special = [dict(made(name, sync=10), scenario="nvme") for name in ("default", "agent")]
    found = score.evaluate(runs + other + special)
    assert [each.best_static for each in found.scenarios] == ["static-4M", "static-4M", None]
    assert found.totals == pytest.approx({"default": 0.001, "static-4M": 0.4, "static-16M": 0.1,
                                          "agent": 0.5})


@pytest.mark.parametrize("text, ok, value", [
    ("agent f >= 0.5", True, "0.5"),
    ("agent f >= 0.6", False, "0.5"),
    ("idle rate / default rate >= 500", True, "1e+03"),
    ("agent score / best score >= 0.95", True, "1.25"),
    ("agent stall <= 2", True, "1.5"),
    ("agent limit / default limit >= 0.9", True, "1"),
    ("agent p99 <= 0.02", True, "0.01"),
    ("kyber f >= 0.1", None, "not measured"),
])
def test_expectations_are_decided_by_medians(text: str, ok: Optional[bool], value: str) -> None:
    runs = [made("default", sync=1), made("static-2M", sync=400), made("agent", sync=500)]
    scenario, = score.evaluate(runs).scenarios
    found = score.check(parse_expectation(text), scenario, runs)
    assert (found.ok, found.value) == (ok, value)


def test_expectations_of_single_loads_and_of_harm() -> None:
    runs = []
    for name, rate, extents, whole, took in (("default", 10 * MB, 4, 300, 20.0),
                                             ("agent", 9 * MB, 12, 280, 21.0)):
        run = made(name)
        run["loads"] += [
            {"name": "copy", "role": "bystander", "disk": "db", "stall": 0.2,
             "windows": {"judged": measured(5, 10, byte_rate=rate)}},
            {"name": "oltp", "role": "bystander", "disk": "db", "stall": None,
             "windows": {"judged": measured(7, 10, extra={"checkpoint_s": took})}}]
        run["loads"][1]["extents"] = {"extents": extents, "bytes": 1 << 30}
        run["disks"][0].update(stripe_bytes=4 * MB, stripes={"judged": {
            "whole": whole, "part": 9, "bytes": 1250 * MB}})
        runs.append(run)
    scenario, = score.evaluate(runs).scenarios
    for text, ok, value in (
            ("agent copy.byte-rate / default copy.byte-rate >= 0.95", False, "0.9"),
            ("agent copy.stall <= 0.2", True, "0.2"), ("agent stall <= 0.2", False, "1.5"),
            ("agent copy.rate >= 5", True, "5"), ("agent rate >= 6", True, "1e+03"),
            ("agent oltp.checkpoint / default oltp.checkpoint <= 1.1", True, "1.05"),
            ("agent database.checkpoint <= 1", None, "not measured"),
            ("agent extents / default extents <= 2", False, "3"),
            ("agent stripes >= 0.5", True, "0.896"),
            ("agent flood.device-rate / default device-rate >= 1", True, "1"),
            ("agent stripes / default stripes >= 0.9", True, "0.933")):
        found = score.check(parse_expectation(text), scenario, runs)
        assert (text, found.ok, found.value) == (text, ok, value)
