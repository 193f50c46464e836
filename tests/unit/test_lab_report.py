# SPDX-License-Identifier: GPL-2.0-or-later
"""The lab's report: its figures are those of the runs, whatever is in them, and it is alone."""

from __future__ import annotations

import copy
import json
import math
import re
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional

import pytest

from html_tree import Element, Tree, corners, paths
from tests.lab.remains import RigError
from tests.lab.report import facts, plots, text
from tests.lab.report.__main__ import main, read_runs
from tests.lab.report.drawing import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH
from tests.lab.report.evaluation import Check, Contender, Evaluation, Run, Scenario
from tests.lab.report.page import render, write_report
from tests.lab.report.palette import Palette

MIB = 1 << 20
NASTY = "<script>alert('&quot;\"')</script>"


def parse(evaluation: Evaluation) -> Element:
    return Tree(render(evaluation)).root


def measured(**figures: Any) -> Dict[str, Any]:
    nothing = dict.fromkeys(("ops", "rate", "mean", "p50", "p95", "p99", "max", "bytes",
                             "byte_rate", "longest_stall"))
    return {"elapsed": 10.0, **nothing, "inflight_age": 0.0, "cdf": [], "series": [], "extra": {},
            **figures}


def make_run(contender: str, repeat: int = 1, **changes: Any) -> Dict[str, Any]:
    """A complete one of a scenario with everything in it, on two disks."""
    times = [0.5 * step for step in range(1, 41)]
    run: Dict[str, Any] = {
        "schema": 1, "scenario": "everything", "contender": contender, "repeat": repeat,
        "way": "native", "kernel": "6.18.0", "cpus": 2, "memory_bytes": 24 << 30, "scale": 1.0,
        "started": "2026-11-21T10:00:00+00:00", "took_s": 60.0, "error": None,
        "windows": {"idle": [1.0, 4.0], "judged": [9.0, 19.0]},
        "loads": [
            {"name": "database", "kind": "fsync", "role": "sync", "disk": "db",
             "windows": {"idle": measured(ops=7500, rate=2500.0, mean=0.35e-3, p50=0.3e-3,
                                          p95=0.6e-3, p99=0.9e-3, max=4e-3,
                                          cdf=[[1e-4, 0.1], [3e-4, 0.5], [4e-3, 1.0]]),
                         "judged": measured(ops=4510, rate=450.75, mean=2.22e-3, p50=0.41e-3,
                                            p95=12.35e-3, p99=30.4e-3, max=0.146,
                                            cdf=[[2e-4, 0.2], [1e-3, 0.7], [0.146, 1.0]],
                                            series=[400, 500, 450])},
             "extents": None},
            {"name": "flood", "kind": "dd", "role": "flood", "disk": "db",
             "windows": {"idle": None,
                         "judged": measured(bytes=2_470_000_000, byte_rate=247e6,
                                            longest_stall=0.0512)},
             "extents": {"extents": 12, "bytes": 1 << 30}},
            {"name": "stick", "kind": "writer", "role": "bystander", "disk": "other",
             "windows": {"idle": None, "judged": measured(byte_rate=1.9e6, longest_stall=0.75)},
             "extents": None}],
        "disks": [{"name": name, "preset": "raid", "fs": "xfs", "device": "loop1",
                   "cache_bytes": 512 * MIB, "written": {"idle": 1, "judged": 2}}
                  for name in ("db", "other")],
        "series": {"t": times, "sync_rate": [400.0] * 40, "sync_p99": [0.03, None] * 20,
                   "flood_rate": [None] + [250e6] * 39, "dirty_limit": [15 * MIB] * 40,
                   "background_limit": [7 * MIB] * 40, "dirty": [14 * MIB] * 40,
                   "writeback": [3 * MIB] * 40,
                   "device_rate": {"db": [260e6] * 40, "other": [1e6] * 40},
                   "fill": {"db": [256 * MIB] * 40, "other": [0] * 40}},
        "events": [{"t": 12.0, "text": "db: mode=writethrough"}], "agent": None}
    if contender == "agent":
        run["series"].update(
            agent_target=[None] * 10 + [2 * MIB] * 30,
            agent_drain={"db": [None] * 10 + [250e6] * 30, "other": [None] * 40},
            agent_fill={"db": [0.4] * 40, "other": [None] * 40},
            agent_state={"db": ["observe"] * 10 + ["guard"] * 30, "other": [None] * 40})
        run["agent"] = {"cpu_fraction": 0.0023, "rss_bytes": 39 * MIB, "bpf_ns_per_io": 41.2,
                        "limit_writes": 17}
    run.update(changes)
    return run


def contender(name: str, kind: str, score: Optional[float], limit: Optional[int] = None,
              runs: Optional[List[Run]] = None, **figures: Any) -> Contender:
    mine: List[Run] = [make_run(name)] if runs is None else runs
    return Contender(name, kind, limit, score=score, runs=mine,
                     median_run=next((run for run in mine if not run["error"]), None), **figures)


def sample(**changes: Any) -> Evaluation:
    ones = [
        contender("default", "default", 0.0004, f=0.0004, g=1.0, spread=(0.0002, 0.0009)),
        contender("static-15M", "static", 0.151, 15 * MIB, f=0.152, g=0.949),
        contender("static-2M", "static", 0.413, 2 * MIB, f=0.4444, g=0.933),
        contender("kyber", "peer", None,
                  runs=[make_run("kyber", error=f"no kyber {NASTY}", loads=[], disks=[],
                                 series={}, windows={}, events=[])]),
        contender("agent", "agent", 0.523, f=0.531, g=0.987, spread=(0.5, 0.55), regret=1.27,
                  changed=0.4, changed_regret=0.8, protected_s=2.5, reached_s=math.inf,
                  stall_s=0.0512, writes_per_min=8.0, swing=0.25)]
    facts_of: Dict[str, Any] = {
        "summary": f"All of it {NASTY}", "shows": "that nothing is lost", "source": "evidence 4",
        "checks": [Check("agent f >= 0.5", True, "0.531"), Check("agent g >= 1", False, "0.987"),
                   Check("kyber f >= 1", None, "not measured")],
        "contenders": {one.name: one for one in ones}, "best_static": "static-2M", **changes}
    return Evaluation([Scenario("everything", **facts_of)],
                      {"default": 0.0004, "static-15M": 0.151, "static-2M": 0.413,
                       "agent": 0.523})


def row_of(section: Element, name: str) -> Dict[str, str]:
    """A contender's line in its scenario's table, by column."""
    table = section.one("table", "results")
    heads = [head.whole for head in table.one("thead").all("th")]
    for row in table.one("tbody").all("tr"):
        cells = [cell.whole for cell in row.children]
        if cells[0].split()[0] == name:
            return dict(zip(heads, cells))
    raise AssertionError(name)


# What the page says is what was measured.

def test_figures_of_a_contender() -> None:
    section = parse(sample()).by_id("s-everything")
    agent = row_of(section, "agent")
    assert agent == {
        "contender": "agent", "score": "0.5230.5 … 0.55", "f": "0.531", "g": "0.987",
        "sync": "451/s", "p50": "410 µs", "p99": "30.4 ms", "max": "146 ms",
        "variation": "9.07 %", "written": "247 MB/s", "worst stall": "51.2 ms",
        "of best static": "1.27", "changed": "0.40.8 of the best", "protected": "2.5 s",
        "reached": "never", "in the end": "8/min", "swings": "25 %",
        "extents": "12in 1 GB", "bystanders": "stick 1.9 MB/s, 750 ms", "limit writes": "17",
        "repeats": "1"}
    assert [item.whole for item in section.one("ul", "checks").children] == [
        "✓ agent f >= 0.5 measured: 0.531", "✗ agent g >= 1 measured: 0.987",
        "? kyber f >= 1 not measured"]
    failed = row_of(section, "kyber")
    assert failed["score"] == text.UNKNOWN and failed["repeats"] == "1 (1 failed)"
    assert row_of(section, "default")["limit writes"] == text.UNKNOWN
    assert f"kyber, run 1: no kyber {NASTY}" in section.one("ul", "failed").whole


def test_matrix() -> None:
    table = parse(sample()).by_id("matrix").one("table")
    heads = [head.whole for head in table.one("thead").all("th")]
    cells = list(table.one("tbody").one("tr").children)
    by_head = dict(zip(heads, cells))
    assert by_head["agent"].whole == "0.523f 0.531g 0.987"
    assert by_head["static-15M"].whole == "0.151f 0.152g 0.949"
    assert by_head["static-2M"].whole == "★ 0.413f 0.444g 0.933"
    assert by_head["kyber"].whole == "failed"
    assert [head for head, cell in by_head.items()
            if "best" in cell.attrs.get("class", "").split()] == ["static-2M"]
    assert by_head["agent : best static"].whole == "1.27regret0 %"
    # The colour compares with the best of the row.
    assert "--v:79%" in by_head["static-2M"].attrs["style"]
    foot = dict(zip(heads, (cell.whole for cell in table.one("tfoot").one("tr").children)))
    assert (foot["agent"], foot["static-15M"], foot["kyber"]) == ("0.523", "0.151", text.UNKNOWN)
    assert "1 of 3" in cells[0].whole and "that nothing is lost" in cells[0].whole


def test_a_scenario_without_sync_shows_g() -> None:
    ones = {name: contender(name, name, score, g=score, runs=[make_run(name)])
            for name, score in (("default", 1.0), ("agent", 0.98))}
    root = parse(sample(has_sync=False, contenders=ones, best_static=None, checks=[]))
    assert "0.98g 0.98" in root.by_id("matrix").whole
    bars = [table.whole for table in root.by_id("s-everything").all("table", "bars")]
    assert any(bar.startswith("g: ") and "agent0.98" in bar for bar in bars)


def test_headline() -> None:
    header = parse(sample()).one("header")
    said = header.one("p", "answer").whole
    assert said.startswith("The agent reaches 1.27 of the best static limit in hindsight")
    assert "every single static value: yes (the best of them, static-2M, has 0.79 of" in said
    facts_told = {pair.children[0].whole: pair.children[1].whole
                  for pair in header.one("dl").children}
    assert facts_told["runs"] == "5, 1 failed" and facts_told["time for them"] == "5 min"
    assert facts_told["kernel"] == "6.18.0" and facts_told["memory"] == "24 GB"
    assert facts_told["expectations met"] == "1 of 3"
    assert facts_told["agent's memory, at most"] == "39 MB"
    totals = next(table for table in header.all("table") if "everywhere" in table.whole)
    names = [row.children[0].whole for row in totals.one("tbody").all("tr")]
    assert names == ["agent", "static-2M", "static-15M", "default"]
    widths = [bar.attrs["style"] for bar in totals.all("span", "bar")]
    assert widths == ["width:100.0%", "width:79.0%", "width:28.9%", "width:0.1%"]


def test_a_worse_agent_is_said_to_be_worse() -> None:
    evaluation = sample()
    contenders = evaluation.scenarios[0].contenders
    contenders["agent"] = contender("agent", "agent", 0.2065, f=0.3, g=0.9)
    root = parse(evaluation)
    said = root.one("p", "answer").whole
    assert "reaches 0.5 of the best" in said and "static value: no" in said
    assert "0.5regret50 %" in root.by_id("matrix").whole


def test_without_a_static_limit_there_is_no_answer() -> None:
    evaluation = sample(contenders={"agent": contender("agent", "agent", 0.5)}, best_static=None)
    assert parse(evaluation).one("p", "answer").whole.startswith("No answer yet")
    assert parse(Evaluation()).one("p", "answer").whole.startswith("No answer yet")


def test_published_figures_and_ours_side_by_side() -> None:
    evaluation = sample()
    seed = Scenario("seed-table", contenders=evaluation.scenarios[0].contenders)
    root = parse(Evaluation([seed], {})).by_id("published")
    rows = {row.children[0].whole: [cell.whole for cell in row.children[1:]]
            for row in next(root.all("table", "pair")).one("tbody").all("tr")}
    assert rows["no flood"] == ["1460", "0.68 ms", "3.28 ms", "276 ms",
                                "2\u202f500", "350 µs", "600 µs", "4 ms"]
    assert rows["flood, 15 MB by hand"] == ["450.75", "2.22 ms", "12.35 ms", "146 ms",
                                            "451", "2.22 ms", "12.3 ms", "146 ms"]
    assert rows["flood, 1 GB"][:4] == ["0.98", "1015 ms", "1591 ms", "1592 ms"]
    assert rows["flood, 1 GB"][4:] == [text.UNKNOWN] * 4  # no such contender was run
    # Two other tables of the host, and the four other systems.
    assert root.whole.count("No run of this report is comparable") == 6


def test_rows_of_databases_and_of_moving_drain_rates() -> None:
    run = make_run("agent")
    run["loads"][0]["kind"] = "mysql-oltp"
    agent = contender("agent", "agent", 0.5, runs=[run], f=0.181)
    root = parse(sample(contenders={"agent": agent})).by_id("published")
    rows = [[cell.whole for cell in row.children] for row in root.all("tr")]
    assert ["everything, agent", "451", "2.22 ms", "30.4 ms", "146 ms", "0.181",
            "9.07 %"] in rows
    assert ["everything, agent", "451", "30.4 ms", "247 MB/s", "0.5", "9.07 %"] in rows


def test_curves_are_the_series() -> None:
    scenario = sample().scenarios[0]
    palette = Palette(sample())
    agent = scenario.contenders["agent"]
    drawn = Tree(plots.limits([agent], palette)[0]).root
    # Level at 2 MB from 5.5 s on: one stretch, to the right edge.
    (target,) = paths(drawn, "target")
    start = LEFT + 5.5 / 20 * (WIDTH - LEFT - RIGHT)
    assert corners(target)[0][0] == pytest.approx(start, abs=0.06)
    assert [x for x, _ in corners(target)][1:] == [WIDTH - RIGHT]
    fill = Tree(plots.fill([agent], palette)[0]).root
    half = HEIGHT - BOTTOM - 0.5 / 1.05 * (HEIGHT - TOP - BOTTOM)
    assert corners(paths(fill, "true")[0])[-1] == pytest.approx((WIDTH - RIGHT, half), abs=0.06)
    assert len(plots.fill([agent], palette)) == 1  # nothing is in the other disk's cache
    drain = Tree(plots.drain(agent, palette)[0]).root
    strips = [strip.one("title").whole for strip in drain.all("rect", "strip")]
    assert strips == ["observe", "guard"]
    p99 = Tree(plots.overlaid(scenario, palette)[0]).root
    (line,) = paths(p99, "agent")
    assert line.count("M") == 20  # every second sample is unknown
    assert "12 s db: mode=writethrough" in p99.one("path", "event").whole


def test_frontier_has_each_contender_where_it_is() -> None:
    evaluation = sample()
    drawn = Tree(plots.frontier(evaluation.scenarios[0], Palette(evaluation))).root
    points = {point.one("title").whole.split(":")[0]: point.attrs for point in drawn.all("circle")}
    assert sorted(points) == ["agent", "default", "static-15M", "static-2M"]
    across = LEFT + 0.987 / 1.2 * (WIDTH - LEFT - RIGHT)
    assert float(points["agent"]["cx"]) == pytest.approx(across, abs=0.06)
    assert float(points["agent"]["cy"]) < float(points["static-2M"]["cy"])
    assert [name.whole for name in drawn.all("text", "name")] == ["agent", "default", "15 MB",
                                                                  "2 MB"]
    (sweep,) = paths(drawn, "sweep")
    assert sweep.startswith(f"M{points['static-2M']['cx']} ")  # from small to large


def test_one_colour_for_each_contender() -> None:
    css = Palette(sample()).css()
    light = re.findall(r"--k\d+:(#\w+)", css.splitlines()[0])
    assert len(light) == len(set(light)) == 5 and "#c8470a" in light


def test_several_synchronous_loads_count_together() -> None:
    one = measured(rate=100.0, mean=0.01, p99=0.02, max=0.03, series=[10, 20])
    two = measured(rate=300.0, mean=0.02, p99=0.01, inflight_age=5.0, series=[30, 20, 99])
    both = facts.together([one, two])
    assert both.rate == 400 and both.p99 == 0.02
    assert both.max == 5.0  # the one that did not end
    assert both.mean == pytest.approx(0.0175)
    assert both.unsteady == 0  # 40 and 40


def test_distributions_are_weighted_by_operations() -> None:
    run = make_run("default")
    run["loads"] = [
        {"name": name, "role": "sync", "windows": {"judged": measured(ops=ops, cdf=cdf)}}
        for name, ops, cdf in (("a", 300, [[0.001, 0.5], [0.002, 1.0]]), ("b", 100, [[0.01, 1]]))]
    assert facts.distribution(run) == [(0.001, 0.375), (0.002, 0.75), (0.01, 1.0)]


def test_what_the_media_drained() -> None:
    run = make_run("default")
    run["series"]["device_rate"]["db"] = [100e6] * 40
    run["series"]["fill"]["db"] = [20e6 * step for step in range(40)]  # 40 MB a second stay
    points = facts.drained(run, "db")
    assert len(points) == 39
    assert all(rate == pytest.approx(60e6) for _, rate in points)


# The page as such.

def test_needs_nothing_else() -> None:
    page = render(sample())
    root = Tree(page).root
    for element in root.all():
        assert element.tag not in ("script", "link", "img", "iframe", "object", "use", "image")
        assert "src" not in element.attrs
        assert not any(name.startswith("on") for name in element.attrs)
        assert element.attrs.get("href", "#").startswith("#")
    assert "url(" not in page and "@import" not in page and "://" not in page
    assert "default-src 'none'" in page
    for link in root.all("a"):
        root.by_id(link.attrs["href"][1:])
    ids = [element.attrs["id"] for element in root.all() if "id" in element.attrs]
    assert len(ids) == len(set(ids))


def test_nothing_in_a_run_becomes_markup() -> None:
    evaluation = sample()
    for one in list(evaluation.scenarios[0].contenders.values()):
        for run in one.runs:
            assert isinstance(run, dict)
            run.update(kernel=NASTY, way=NASTY, started=NASTY, events=[{"t": 1.0, "text": NASTY}])
            for disk in run["disks"]:
                disk["name"] = NASTY
            for load in run["loads"]:
                load["name"] = NASTY
            for name, per_disk in run["series"].items():
                if isinstance(per_disk, dict):
                    run["series"][name] = {NASTY: per_disk["db"]}
    scenario = Scenario(NASTY, NASTY, NASTY, NASTY, [Check(NASTY, False, NASTY)],
                        contenders=evaluation.scenarios[0].contenders, best_static=NASTY)
    for name in (NASTY, '" onload="x'):
        scenario.contenders[name] = contender(name, "peer", 0.1, f=0.1, g=1.0,
                                              runs=[make_run(name)], summary=NASTY)
    root = parse(Evaluation([scenario], {NASTY: 0.1}))
    assert not list(root.all("script"))
    assert not [element for element in root.all() if "onload" in element.attrs]
    assert NASTY in root.by_id("matrix").whole and NASTY in root.one("section", "scenario").whole


def blanked(value: Any) -> Iterator[Any]:
    """The same with one thing after the other unknown."""
    if isinstance(value, dict):
        for key, inside in value.items():
            yield {**value, key: None}
            yield {other: kept for other, kept in value.items() if other != key}
            for less in blanked(inside):
                yield {**value, key: less}
    elif isinstance(value, list) and value:
        if isinstance(value[0], (dict, list)):
            for at, inside in enumerate(value):
                for less in blanked(inside):
                    yield value[:at] + [less] + value[at + 1:]
        else:
            yield [None] * len(value)
        yield []
        yield value[:1]


def test_any_part_of_a_run_may_be_unknown() -> None:
    whole = make_run("agent")
    amount = 0
    for run in blanked(whole):
        agent = contender("agent", "agent", 0.5, f=0.5, g=1.0, runs=[{"error": None, **run}])
        render(sample(contenders={"agent": agent}, best_static=None))
        amount += 1
    assert amount > 200


def test_scores_may_be_unknown_or_nothing() -> None:
    for score in (None, 0.0):
        ones = {one.name: Contender(one.name, one.kind, one.limit_bytes, score, score, score,
                                    runs=one.runs, median_run=one.median_run)
                for one in sample().scenarios[0].contenders.values()}
        evaluation = sample(contenders=ones)
        evaluation.totals.update(dict.fromkeys(evaluation.totals, score))
        parse(evaluation)
    parse(sample(contenders={}, best_static=None, checks=[]))


def test_same_input_same_page() -> None:
    page = render(sample())
    assert page == render(sample())
    again = sample()
    backwards = dict(reversed(list(again.scenarios[0].contenders.items())))
    totals = dict(reversed(list(again.totals.items())))
    other = Scenario(**{**vars(again.scenarios[0]), "contenders": backwards})
    assert render(Evaluation([other], totals)) == page  # whatever order runs were read in


def test_a_large_report_stays_small() -> None:
    run = make_run("agent")
    wave = [1e6 * (1 + step * 7919 % 97) for step in range(120)]
    run["series"] = {name: dict.fromkeys(values, wave) if isinstance(values, dict) else wave
                     for name, values in run["series"].items()}
    run["series"]["t"] = [0.5 * step for step in range(120)]
    ones = {f"static-{size}M": contender(f"static-{size}M", "static", 0.2, size * MIB,
                                         runs=[run] * 3, f=0.2, g=0.99)
            for size in (1, 2, 4, 8, 15, 64)}
    for name, kind in (("default", "default"), ("wbt", "peer"), ("agent", "agent")):
        ones[name] = contender(name, kind, 0.2, runs=[run] * 3, f=0.2, g=0.99)
    scenarios = [Scenario(f"s{at}", contenders=ones, best_static="static-2M") for at in range(25)]
    assert len(render(Evaluation(scenarios, {})).encode()) < 5e6


# The command.

def test_reads_all_runs_below_a_directory(tmp_path: Path) -> None:
    for at, name in enumerate(("b/x-1.json", "a/y-1.json", "z.json")):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(make_run("default", at)))
    assert [run["repeat"] for run in read_runs(tmp_path)] == [1, 0, 2]


@pytest.mark.parametrize("content, said", [
    (None, "no runs in it"), ("{", "delete it"), ("[]", "no run of the lab"),
    ('{"schema": 99}', "no run of the lab of schema 1")])
def test_says_what_is_no_run(tmp_path: Path, content: Optional[str], said: str) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    with pytest.raises(RigError, match=said):
        read_runs(tmp_path)


def test_command_without_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                              monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments in ([str(tmp_path / "nowhere")], [str(tmp_path), "-o", str(tmp_path / "x")]):
        monkeypatch.setattr("sys.argv", ["report", *arguments])
        assert main() == 1
    assert capsys.readouterr().err.count("tests.lab.bench") == 2
    assert not list(tmp_path.iterdir())


def test_writes_the_page(tmp_path: Path) -> None:
    evaluation = copy.deepcopy(sample())
    write_report(evaluation, tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == render(sample())
