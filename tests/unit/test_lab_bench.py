# SPDX-License-Identifier: GPL-2.0-or-later
"""The benchmark's plan, how it goes on after an end, and what it calls a regression."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any, Dict, List

import pytest

from test_lab_score import made
from tests.lab import bench, regress, scenario, score, vm
from tests.lab.remains import RigError
from tests.lab.run import Conditions
from tests.lab.show import figures, table

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


def test_a_scenario_without_the_way_is_left_out() -> None:
    assert bench.plan([scenario.load("oltp-mariadb")], "virtual", (), 1) == []


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


def test_a_change_of_the_agent_leaves_the_others_results(
        performed: List[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = jobs()[:3]
    bench.do(plan, CONDITIONS, tmp_path)
    real = bench.digest
    monkeypatch.setattr(bench, "digest", lambda *patterns: real(*patterns) + (
        "changed" if "bpf/*.[ch]" in patterns else ""))
    performed.clear()
    bench.do(plan, CONDITIONS, tmp_path)
    assert performed == ["agent-1"]


def test_a_result_depends_on_the_scenario_that_its_own_is_like(
        monkeypatch: pytest.MonkeyPatch) -> None:
    seen: List[str] = []

    def digest(*patterns: str) -> str:
        seen.extend(patterns)
        return ""

    monkeypatch.setattr(bench, "digest", digest)
    job, = bench.plan([scenario.load("hung-late")], "native", ("default",), 1)
    bench.inputs(job, CONDITIONS)
    names = {f"tests/lab/scenarios/{name}.conf" for name in ("hung-late", "hung-disk")}
    assert names <= set(seen)


def test_errors_are_told_and_the_rest_goes_on(tmp_path: Path,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "perform", lambda of, contender, repeat, conditions: made(
        contender.name, repeat, error="no room" if contender.name == "static-2M" else None))
    assert bench.do(jobs()[:3], CONDITIONS, tmp_path) == ["flood, static-2M: no room"]
    assert len(bench.read_runs(tmp_path, [scenario.load("flood")], CONDITIONS)) == 3


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


def test_ratios_are_measured_as_they_are_stored() -> None:
    runs = [made("default", sync=1), made("static-16M", sync=100), made("agent", sync=500)]
    names = {"flood": {"agent f": 0.0, "agent f / static-16M f": 0.0}}
    assert regress.measured(score.evaluate(runs), runs, names) == {
        "flood": {"agent f": 0.5, "agent f / static-16M f": 5.0}}


@pytest.mark.parametrize("argv, said", [
    (["--scenario", "nothing"], "no scenario nothing"),
    (["--scenario", "flood", "--contender", "nothing"], "no contender nothing"),
    (["--scenario", "flood", "--contender", "io-max"], "WAY=vm"),
    (["--scenario", "oltp-mariadb", "--way", "virtual"], "nothing to run"),
])
def test_wrong_wishes_are_refused(argv: List[str], said: str,
                                  capsys: pytest.CaptureFixture[str],
                                  monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert bench.main(argv) == 2
    assert said in capsys.readouterr().err


def test_root_is_asked_for(capsys: pytest.CaptureFixture[str],
                           monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert bench.main(["--scenario", "flood"]) == 2
    assert "sudo make bench" in capsys.readouterr().err


def test_missing_programs_are_named_with_the_command(monkeypatch: pytest.MonkeyPatch,
                                                     capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda tool, path=None: None)
    assert bench.main(["--scenario", "seed-table"]) == 2
    said = capsys.readouterr().err
    assert "apt-get install" in said and " sysbench" in said


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


def test_a_fixed_limit_with_a_better_total_is_a_miss() -> None:
    runs = [run for run in two_scenarios() if run["scenario"] == "flood"]
    lines = [line.split() for line in table(score.evaluate(runs)).splitlines()]
    assert ["MISSED", "static-2M", "0.3", "against", "0.4", "in", "1", "scenario"] in lines


def test_variants_of_the_agent_have_columns_of_their_own() -> None:
    runs = [*two_scenarios(), made("agent-pace", sync=600, scenario="flood")]
    lines = [line.split() for line in table(score.evaluate(runs)).splitlines()]
    assert ["flood", "0.75", "1.5", "static-2M"] in lines
    assert ["flood-ext4", "3", "-", "static-16M"] in lines
    assert ["good", "static-2M", "0.6", "against", "0.4", "in", "1", "scenario"] in lines


def test_figures_are_written_for_programs(tmp_path: Path) -> None:
    evaluation = score.evaluate(two_scenarios())
    found = json.loads(figures(evaluation))
    agent = found["scenarios"]["flood"]["contenders"]["agent"]
    assert agent["regret"] == pytest.approx(0.75) and agent["stall_s"] == 1.5
    assert found["scenarios"]["flood"]["best_static"] == "static-2M"
    assert ["agent", "0.3", "1", "0.3", "0.3", "0.3", "0.75", "10", "1.5"] in [
        line.split()[:9] for line in table(evaluation).splitlines()]


def test_quick_runs_leave_long_windows_out(performed: List[str], tmp_path: Path) -> None:
    battery = scenario.load("battery")
    quick, full = (bench.plan([each], "native", WANTED, 1)
                   for each in (battery.short(), battery))
    assert sum(job.seconds for job in quick) < sum(job.seconds for job in full) - 90
    bench.do(quick, CONDITIONS, tmp_path)
    bench.do(quick, CONDITIONS, tmp_path)
    assert len(performed) == 3
    bench.do(full, CONDITIONS, tmp_path)
    assert len(performed) == 6  # a quick one does not stand for a full one


def test_a_machine_runs_at_the_scale_that_was_asked_for(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its runs would be of another disk than the one they are filed under."""
    told: List[List[str]] = []
    did: List[Conditions] = []

    def machine(argv: List[str], *rest: Any, **more: Any) -> Any:
        told.append(argv)
        raise RigError("no machine here")

    monkeypatch.setattr(vm, "run", machine)
    monkeypatch.setattr(bench, "check_tools", lambda jobs: None)
    monkeypatch.setattr(bench, "rigs_left", list)
    monkeypatch.setattr(bench, "alone", contextlib.nullcontext)
    asked = ["--scenario", "flood", "--contender", "default", "--way", "virtual", "--repeats", "1",
             "--out", str(tmp_path)]
    for more in ([], ["--scale", "0.5"]):
        bench.bench(bench.parse([*asked, *more]))
    monkeypatch.setattr(bench, "do",
                        lambda jobs, conditions, *rest, **more: did.append(conditions))
    for argv in told:
        inside = argv[argv.index("--inside"):]
        bench.bench(bench.parse(inside))
    assert [conditions.scale for conditions in did] == [0.1, 0.5]
    with pytest.raises(SystemExit):
        bench.parse(["--scale", "0"])
