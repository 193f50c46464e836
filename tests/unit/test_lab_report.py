# SPDX-License-Identifier: GPL-2.0-or-later
"""The lab's page: it has the tables of the runs, and needs nothing else."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from html_tree import Tree
from test_lab_score import measured
from tests.lab.report.evaluation import Check, Contender, Evaluation, Scenario
from tests.lab.report.page import render

MIB = 1 << 20
NASTY = "<script>alert('&quot;\"')</script>"


def make_run(contender: str) -> Dict[str, Any]:
    """With everything in it, on two disks."""
    def each(db: List[Any], other: List[Any]) -> Dict[str, List[Any]]:
        return {"db": db, "other": other}

    sync = {"idle": measured(2500, 3, cdf=[[1e-4, 0.1], [4e-3, 1.0]]),
            "judged": measured(450, 10, cdf=[[2e-4, 0.2], [1e-3, 0.7], [0.146, 1.0]])}
    run: Dict[str, Any] = {
        "repeat": 1, "error": None, "windows": {"idle": [1.0, 4.0], "judged": [9.0, 19.0]},
        "loads": [{"name": "database", "role": "sync", "windows": sync},
                  {"name": "flood", "role": "flood", "windows": {}}],
        "disks": [{"name": name, "cache_bytes": 512 * MIB} for name in ("db", "other")],
        "series": {"t": [0.5 * step for step in range(1, 41)], "sync_rate": [400.0] * 40,
                   "sync_p99": [0.03, None] * 20, "flood_rate": [None] + [250e6] * 39,
                   "dirty_limit": [15 * MIB] * 40, "background_limit": [7 * MIB] * 40,
                   "dirty": [14 * MIB] * 40, "writeback": [3 * MIB] * 40,
                   "device_rate": each([260e6] * 40, [1e6] * 40),
                   "fill": each([256 * MIB] * 40, [0] * 40)},
        "events": [{"t": 12.0, "text": "db: mode=writethrough"}]}
    if contender == "agent":
        run["series"].update(agent_target=[2 * MIB] * 40, agent_fill=each([0.4] * 40, [None] * 40))
    return run


def contender(name: str, kind: str, score: Optional[float], limit: Optional[int] = None,
              **figures: Any) -> Contender:
    run = make_run(name)
    return Contender(name, kind, limit, score=score, runs=[run], median_run=run, **figures)


def sample() -> Evaluation:
    ones = [
        contender("default", "default", 0.0004, f=0.0004, g=1.0),
        contender("static-15M", "static", 0.151, 15 * MIB, f=0.152, g=0.949),
        contender("static-2M", "static", 0.413, 2 * MIB, f=0.4444, g=0.933),
        Contender("kyber", "peer", runs=[{"repeat": 1, "error": f"no kyber {NASTY}"}]),
        contender("agent", "agent", 0.523, f=0.531, g=0.987, regret=1.27)]
    checks = [Check("agent f >= 0.5", True, "0.531"), Check("kyber f >= 1", None, "not measured")]
    scenario = Scenario("everything", f"All of it {NASTY}", "that nothing is lost", checks,
                        contenders={one.name: one for one in ones}, best_static="static-2M")
    return Evaluation([scenario], {"default": 0.0004, "agent": 0.523})


def test_the_page_has_the_tables_and_the_curves() -> None:
    root = Tree(render(sample())).root
    section = root.by_id("s-everything")
    lines = [line.split() for line in section.one("pre").whole.splitlines()]
    assert ["agent", "0.531", "0.987", "0.523", "1.27"] in [
        [word for word in line if word != "-"] for line in lines]
    assert ["good", "agent", "f", ">=", "0.5:", "0.531"] in lines
    assert f"failed  kyber, repeat 1: no kyber {NASTY}" in section.whole
    assert "that nothing is lost" in section.whole
    assert "static-2M" in next(root.all("pre")).whole  # the best limit in hindsight
    boxes = {label.whole: "checked" in label.one("input").attrs for label in section.all("label")}
    assert boxes == {"default": True, "static-15M": True, "static-2M": True, "agent": True}
    assert len(list(section.all("figure"))) == 2 + 5 + 4 + 4


def test_the_page_needs_nothing_else_and_nothing_in_a_run_becomes_markup() -> None:
    evaluation = sample()
    (scenario,) = evaluation.scenarios
    scenario.contenders[NASTY] = contender(NASTY, "peer", 0.1, f=0.1, g=1.0)
    for one in scenario.contenders.values():
        for run in one.runs:
            assert isinstance(run, dict)
            run.update(events=[{"t": 1.0, "text": NASTY}])
    page = render(evaluation)
    for element in Tree(page).root.all():
        assert element.tag not in ("script", "link", "img", "iframe", "object", "use", "image")
        assert "src" not in element.attrs
        assert not any(name.startswith("on") for name in element.attrs)
        assert element.attrs.get("href", "#").startswith("#")
    assert "url(" not in page and "@import" not in page and "://" not in page
