# SPDX-License-Identifier: GPL-2.0-or-later
"""The lab: scenarios, loads, scores, plans, verdicts and tables; nothing is measured."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence

import pytest

from tests.lab import (
    bench,
    catalogue,
    contenders,
    drawn,
    host,
    reach,
    regress,
    scenario,
    score,
)
from tests.lab.bench import plan
from tests.lab.classes import BY_POLICY, CLASSES, Class, judge
from tests.lab.commit_figures import Found, Record, Window, musts
from tests.lab.disks import presets
from tests.lab.evaluation import Check, Contender
from tests.lab.evaluation import Scenario as Scored
from tests.lab.loads import KINDS, postgres, stats, worker
from tests.lab.loads.base import Place
from tests.lab.loads.options import parsed
from tests.lab.loads.own import Told
from tests.lab.loads.sync import Fsync
from tests.lab.loads.writers import Writer
from tests.lab.published import TABLES
from tests.lab.remains import RigError
from tests.lab.run import Conditions, policy_options
from tests.lab.scenario import Expectation, Span, Term, parse_expectation
from tests.lab.watch import Watch
from writebackd.policy import list_policies
from writebackd.policy.load import load_policy

Sections = Dict[str, Dict[str, str]]

GOOD: Sections = {
    "scenario": {"summary": "a flood", "shows": "a collapse", "idle": "1s..3s",
                 "judged": "8s..12s", "sweep": "1M 2M"},
    "disk db": {"preset": "raid-512M-bbu", "fs": "ext4"},
    "load database": {"kind": "fsync", "role": "sync"},
    "load flood": {"kind": "dd", "role": "flood", "runs": "4s..", "size": "1G"},
    "events": {"6s": "db mode=writethrough, vm dirty_ratio=20", "5s": "agent SIGSTOP"},
    "expect": {"collapse": "default f <= 0.01", "agent": "agent f / static-15M f >= 1"},
}


def test_a_scenario_is_read() -> None:
    found = scenario.parse("good", GOOD)
    assert found.idle == Span(1, 3) and found.judged == Span(8, 12)
    assert found.length == 12 and found.has_sync
    assert [each.fs for each in found.disks] == ["ext4"]
    database, flood = found.loads
    assert (database.role, database.spans, database.disk) == ("sync", (Span(0, 12),), "db")
    assert flood.spans == (Span(4, 12),) and flood.options["size"] == 1 << 30
    assert [(each.time, each.text) for each in found.events] == [
        (5, "agent: SIGSTOP"), (6, "db: mode=writethrough"), (6, "vm: dirty_ratio=20")]
    assert found.expectations[1] == Expectation(
        "agent f / static-15M f >= 1", Term("agent", "f"), Term("static-15M", "f"), ">=", 1)


BAD = [
    (("scenario", "summary", None), "summary is missing"),
    (("scenario", "color", "red"), "unknown key color"),
    (("scenario", "judged", "8s"), "is not a span"),
    (("scenario", "idle", "none"), "idle is missing"),
    (("scenario", "tags", "quik"), "no quik"),
    (("events", "99s", "agent SIGSTOP"), "when the run is over"),
    (("events", "6s", "vm dirty_ratio=much"), "take a number"),
    (("disk db", "device", "/dev/sda"), "never on another"),
    (("load flood", "bs", "1 parsec"), "bs"),
    (("load database", "runs", "0s..9s"), "in all windows, idle and judged"),
    (("events", "6s", "other mode=writeback"), "no other: take vm, agent or a disk"),
    (("events", "6s", "db spin=3"), "no spin"),
    (("expect", "agent", "agent is good"), "is no expectation"),
    (("expect", "agent", "agent other.stall <= 1"), "no load other"),
    (("scenario", "changed", "11s..20s"), "have to follow each other"),
]


@pytest.mark.parametrize("change, said", BAD)
def test_what_is_wrong_is_said(change: tuple[str, str, str | None], said: str) -> None:
    section, key, value = change
    sections = copy.deepcopy(GOOD)
    if value is None:
        del sections[section][key]
    else:
        sections[section][key] = value
    with pytest.raises(RigError, match=said) as caught:
        scenario.parse("bad", sections)
    assert str(caught.value).startswith("bad.conf: ")


@pytest.mark.parametrize("name", scenario.names())
def test_shipped_scenarios_are_whole(name: str) -> None:
    found = scenario.load(name)
    assert found.shows and found.expectations, "a scenario has to say what it must show"
    way = next(way for way in scenario.WAYS if way in found.ways)
    named = {each.name for each in contenders.of(found, way)} | {"best", "idle"}
    for each in found.expectations:
        for term in filter(None, (each.left, each.right)):
            assert term.contender in named, f"{each.text}: {term.contender} does not run"
    assert {"default", "agent"} <= named


def test_every_preset_and_filesystem_is_used() -> None:
    scenarios = [*map(scenario.load, scenario.names()),
                 *(each for table in TABLES.values() for each in table.scenarios())]
    found = [disk for each in scenarios for disk in each.disks]
    assert {disk.preset for disk in found} == set(presets())
    assert {disk.fs for disk in found} == set(scenario.FILESYSTEMS)


def test_an_agent_may_have_a_policy_of_its_own(tmp_path: Path) -> None:
    lines = contenders.parse_policy("objective.fsync-p99 = 5ms, limits.floor=2M\nprobe.talkers=off")
    assert lines == (("objective", "fsync-p99", "5ms"), ("limits", "floor", "2M"),
                     ("probe", "talkers", "off"))
    variant = replace(contenders.named("agent"), name="agent-other", policy=lines)
    flag, directory = policy_options(variant, tmp_path)
    loaded = load_policy(None, Path(directory))
    assert flag == "--config-dir" and loaded.name == "default"
    assert (loaded.objective.fsync_p99_s, loaded.limits.floor_bytes) == (0.005, 2 << 20)
    assert not loaded.probe.talkers
    assert policy_options(contenders.named("agent"), tmp_path) == []


# ==== lab drawn =======================================================================


SEEDS = range(240)


def test_each_draw_can_be_run_and_is_the_same_again() -> None:
    for seed in SEEDS:
        found = drawn.draw(seed)
        scenario.check(found.name, found)
        assert repr(found) == repr(catalogue.load(found.name))
        (disk,) = (each.disk for each in found.disks)
        disk.args()  # raises for what the model does not take
        floods = [span.start for span in found.loads[1].spans]
        for window in (found.judged, found.changed):
            assert window is not None and window.length == 60 and window.start in floods


# ==== lab loads =======================================================================


MIB = 1 << 20


@pytest.fixture
def place(tmp_path: Path) -> Place:
    def spawn(argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(argv, start_new_session=True, stdin=subprocess.DEVNULL, **options)
    for name in ("disk", "runtime"):
        (tmp_path / name).mkdir()
    return Place(tmp_path / "disk", tmp_path / "runtime", spawn)


def test_sizes_and_byte_rates_scale_and_counts_do_not(place: Place) -> None:
    small = Place(place.directory, place.runtime, place.spawn, scale=0.1)
    job, = Writer(small, parsed(Writer, size="100M", rate="8M/s", block="8K")).jobs()
    assert job["size"] == 10 * MIB
    assert job["block"] == 8192
    assert job["interval"] == pytest.approx(8192 / (0.8 * MIB), rel=1e-4)
    jobs = Fsync(small, parsed(Fsync, rate="100/s", threads="4")).jobs()
    assert [each["interval"] for each in jobs] == [0.04] * 4
    assert len({each["seed"] for each in jobs}) == 4


def test_told_is_what_was_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "CAPACITY", 4)
    memory = os.memfd_create("test")
    os.ftruncate(memory, worker.LENGTH)
    record, told = worker.Record(memory), Told(memory)
    os.close(memory)
    assert (told.done, told.bytes, told.age(time.monotonic())) == (0, 0, 0)
    assert told.since(0) == ([], [])
    start = time.monotonic()
    for _ in range(6):
        record.begin()
        record.end(100)
    assert (told.done, told.bytes) == (6, 600)
    ends, latencies = told.since(start)
    assert len(ends) == len(latencies) == 4, "the ring keeps the last ones"
    assert ends == sorted(ends, reverse=True)
    record.begin()
    time.sleep(0.01)
    assert told.age(time.monotonic()) >= 0.01
    assert told.since(time.monotonic()) == ([], [])


# A window's figures

def test_window_of_operations() -> None:
    measured = stats.of_operations(10, 12.5, [10.5, 10.9, 11.5, 12.4], [0.1, 0.2, 0.3, 0.4])
    assert (measured.elapsed, measured.ops, measured.rate) == (2.5, 4, 1.6)
    assert (measured.mean, measured.p50, measured.p95, measured.max) == (0.25, 0.2, 0.4, 0.4)
    assert measured.series == [2, 1], "the last half second is no whole one"
    assert measured.cdf == [(0.1, 0.25), (0.2, 0.5), (0.3, 0.75), (0.4, 1.0)]
    assert measured.inflight_age == 0


def test_an_operation_in_flight_counts_by_its_age() -> None:
    measured = stats.of_operations(10, 12, [10.5], [0.1], [1.5, 0, 0.7])
    assert (measured.ops, measured.inflight_age, measured.max) == (1, 1.5, 1.5)
    stuck = stats.of_operations(10, 12, [], [], [2.0])
    assert (stuck.rate, stuck.p50, stuck.p99) == (0, 2.0, 2.0)
    nothing = stats.of_operations(10, 12, [], [])
    assert (nothing.rate, nothing.mean, nothing.p99, nothing.cdf) == (0, None, None, [])


def test_checkpoints_are_those_that_end_in_the_window() -> None:
    log = ["1000.000 LOG:  checkpoint starting: shutdown immediate\n",
           "1000.020 LOG:  checkpoint complete: wrote 1710 buffers (20.9%); 0 WAL file(s) added, "
           "0 removed, 1 recycled; write=0.018 s, sync=0.001 s, total=0.019 s; sync files=0\n",
           "1028.000 LOG:  checkpoint starting: time\n",
           "1040.500 LOG:  checkpoint complete: wrote 9 buffers (1%); 0 WAL file(s) added, "
           "0 removed, 0 recycled; write=9.1 s, sync=3.2 s, total=12.500 s; sync files=20\n"]
    before = len("".join(log[:2]))
    assert postgres.checkpoints("".join(log), before, 1050.0) == [12.5]
    assert postgres.checkpoints("".join(log[:2]), before, 1050.0) == []
    # One that the flood keeps from ending counts with its age.
    assert postgres.checkpoints("".join(log[:3]), before, 1050.0) == [22.0]


# ==== lab score =======================================================================


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


def test_best_static_is_found_and_totals_are_of_the_same_scenarios() -> None:
    runs = [made("default", sync=1), made("static-4M", sync=400), made("static-16M", sync=100),
            made("static-2M", sync=300), made("agent", sync=500)]
    other = [dict(run, scenario="flood-ext4") for run in runs if run["contender"] != "static-2M"]
    special = [dict(made(name, sync=10), scenario="nvme") for name in ("default", "agent")]
    found = score.evaluate(runs + other + special)
    assert [each.best_static for each in found.scenarios] == ["static-4M", "static-4M", None]
    assert found.totals == pytest.approx({"default": 0.001, "static-4M": 0.4, "static-16M": 0.1,
                                          "agent": 0.5})


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


# ==== lab bench =======================================================================


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


@pytest.mark.parametrize("agent, regressed", [(500, False), (430, False), (420, True)])
def test_more_than_15_percent_is_a_regression(agent: float, regressed: bool) -> None:
    runs = [made("default", sync=1), made("static-16M", sync=100), made("agent", sync=agent)]
    ratios = {"flood": {"agent f / static-16M f": 5.0}}
    line, = regress.compare(score.evaluate(runs), runs, ratios)
    assert line.startswith("REGRESSED") == regressed


# ==== lab classes =====================================================================


def test_every_shipped_policy_has_a_class_of_its_own_scenario() -> None:
    assert sorted(BY_POLICY) == sorted(entry.name for entry in list_policies())
    assert len({each.scenario for each in CLASSES}) == len(CLASSES)
    for each in CLASSES:
        assert contenders.named(each.contender).as_class == each.policy
        scenario.load(each.scenario)


# ---- verdicts ----------------------------------------------------------------


def agent_run(**agent: Any) -> Dict[str, Any]:
    return {"error": None, "agent": {"limit_writes": 0, "alerts": ["COLLAPSE"], **agent}}


def scored(each: Class, default: Optional[float], agent: Optional[float], g: float = 1.0,
           *checks: Check, told: Optional[Dict[str, Any]] = None) -> Scored:
    return Scored(each.scenario, checks=list(checks), contenders={
        "default": Contender("default", "default", f=default, g=1.0, score=default),
        each.contender: Contender(each.contender, "agent", f=agent, g=g, score=agent,
                                  runs=[told or agent_run()])})


PROTECT, HARMLESS = BY_POLICY["etcd"], BY_POLICY["desktop"]
THROUGHPUT, WATCH = BY_POLICY["analytics"], BY_POLICY["ceph-osd"]


@pytest.mark.parametrize("each, default, agent, g, good", [
    (PROTECT, 0.01, 0.02, 1.0, True), (PROTECT, 0.01, 0.019, 1.0, False),
    (PROTECT, 0.01, None, 1.0, None), (HARMLESS, 0.80, 0.77, 1.0, True),
    (HARMLESS, 0.80, 0.75, 1.0, False), (THROUGHPUT, 1.0, 0.99, 0.99, True),
    (THROUGHPUT, 1.0, 0.98, 0.98, False),
])
def test_each_task_has_its_verdict(
    each: Class, default: float, agent: Optional[float], g: float, good: Optional[bool]
) -> None:
    assert judge(each, scored(each, default, agent, g)).good is good


@pytest.mark.parametrize("agent, missed", [
    ({}, []),
    ({"limit_writes": 1}, ["a limit was written"]),
    ({"alerts": ["EXHAUSTED"]}, ["the collapse was not told"]),
])
def test_what_watches_writes_nothing_and_tells_the_collapse(
    agent: Dict[str, Any], missed: List[str]
) -> None:
    found = judge(WATCH, scored(WATCH, 0.01, 0.01, told=agent_run(**agent)))
    assert list(found.misses) == missed and found.good is not bool(missed)


def test_what_a_scenario_expects_of_its_class_counts_and_of_others_does_not() -> None:
    mine = Check("agent-as-etcd p99 / default p99 <= 0.5", False, "0.7")
    other = Check("agent score / best score >= 0.95", False, "0.9")
    good = scored(PROTECT, 0.01, 0.5, 1.0, other, replace(mine, ok=True), replace(mine, ok=None))
    assert judge(PROTECT, good).good
    assert judge(PROTECT, scored(PROTECT, 0.01, 0.5, 1.0, mine)).misses == [f"{mine.text}: 0.7"]


# ==== lab commits =====================================================================


def test_figures_of_a_window() -> None:
    """Eight seconds of 100 commits/s of 1 + 3 ms, 20 in the third, 3 slow ones in the sixth."""
    commits = [(second + n / 100, 0.001, 0.003) for second in range(8)
               for n in range(20 if second == 2 else 100)]
    commits += [(5.5, 0.6, 0.2)] * 3
    # The media write 250 MB/s, but 20 from 5.4 s on.
    drained = tuple((n / 50, 5e6 * min(n, 270) + 4e5 * max(0, n - 270), 200e6) for n in range(400))
    figures = Window(8.0, tuple(commits), 950e6, 2000e6, drained, 250e6).figures(200.0)
    assert figures == pytest.approx({
        "rate": 90.375, "f": 0.451875, "g": 0.475, "score": 0.451875 / 16,
        "write": 2.52 / 5.28, "p99": 4, "worst": 800, "longest": 800,
        "fewest": 84, "slow_seconds": 1, "over100": 3, "swept": 3, "write_p99": 1, "write_max": 600,
        "sync_p99": 3})


def window_figures(rate: float, score: float, write: float = 0.1, slow: float = 0.0) -> Any:
    """Half of `slow` commits, rounded down, were in a sweep."""
    return {"rate": rate, "score": score, "write": write, "fewest": rate / 2, "over100": slow,
            "swept": slow // 2, "slow_seconds": slow, "longest": 20.0 + 600 * slow}


def runs(disk: str, second: float, write: float = 0.1, slow: float = 0.0,
         plain_slow: float = 0.0) -> List[Record]:
    """A pair of 500/s at 0.4 and the plain one at 0.2, an agent with so much.

    Before the agent's run the disk did twice as many idle commits/s.
    """
    def found(first: Any, then: Optional[Any] = None) -> Found:
        idle = {"rate": 2000.0 if then else 1000.0}
        return {"idle": idle, "first": first, **({"second": then} if then else {})}
    return [(disk, "16000/8000", found(window_figures(300, 0.2, slow=plain_slow))),
            (disk, "8000/4000", found(window_figures(500, 0.4))),
            (disk, "default", found(window_figures(900, 0.9))),
            (disk, "agent", found(window_figures(400, 0.15),
                                  window_figures(500, second / 2, write, slow)))]


@pytest.mark.parametrize("second, write, slow, text", [
    (0.44, 0.25, 0, "good at rest: 25% of a commit in write(), at most 25% where a pair with as "
     "many commits has that (8000/4000)"),
    (0.44, 0.26, 0, "MISSED at rest: 26% of a commit in write()"),
    (0.44, 0.1, 0, "good 1 of 1 at rest: windows without a commit above 100 ms but in sweeps of "
     "the disk (0 of 0), longest 20 ms"),
    (0.44, 0.1, 2, "MISSED 0 of 1 at rest: windows without a commit above 100 ms but in sweeps of "
     "the disk (1 of 2), longest 1220 ms"),
    (0.44, 0.1, 0, "good second flood: score 1.10 of the best pair's (8000/4000), at least 0.85"),
    (0.32, 0.1, 0, "MISSED second flood: score 0.80 of the best pair's"),
    (0.32, 0.1, 0, "good first flood: fewest commits in 5 s 1.33 of 16000/8000's, at least 0.9"),
    (0.18, 0.1, 0, "MISSED second flood: score 0.90 of 16000/8000's, at least 1"),
])
def test_what_has_to_hold_of_one_disk(second: float, write: float, slow: float,
                                      text: str) -> None:
    assert any(f"ssd-array agent: {text}" in line
               for line in musts(runs("ssd-array", second, write, slow)))


# ==== lab published ===================================================================


DESTAGE = TABLES["destage"]


def load(rate: float, cdf: Any, series: List[float], role: str = "sync", **more: Any
         ) -> Dict[str, Any]:
    ops = int(rate * 10)
    return {"name": "db", "role": role, "disk": "db", "windows": {"judged": {
        "ops": ops, "rate": rate, "mean": 0.01, "max": 0.2, "inflight_age": 0.0, "cdf": cdf,
        "series": series, **more}}}


def published_run(contender: str, *loads: Dict[str, Any], error: Optional[str] = None,
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


# ==== lab reach =======================================================================


FLOOD = scenario.load("flood")  # from second 2 on


def curve(p99: Callable[[float], Optional[float]]) -> Dict[str, Any]:
    """A run; the figures of second t are those of what was in the time before it."""
    times = [0.5 * step for step in range(1, 41)]
    return {"loads": [], "windows": {"idle": (0.5, 2.0), "judged": (8.0, 20.0)},
            "series": {"t": times, "sync_p99": [p99(t) for t in times]}}


def test_the_worst_second_and_the_longest_commit_count_from_the_floods_first_second() -> None:
    run = curve(lambda t: 0.9 if t <= 2 else 0.2 if t == 2.5 else 0.004)
    run["series"]["sync_max"] = [5.0 if t <= 2 else 0.7 if t == 3 else None
                                 for t in run["series"]["t"]]
    assert (reach.worst_second(FLOOD, run), reach.longest(FLOOD, run)) == (0.2, 0.7)
    # Of one that comes in mid-flood, from then on.
    assert reach.worst_second(scenario.load("mid-flood"), run) == 0.004
    assert reach.worst_second(scenario.load("fsync-storm"), run) is None


class Looked:
    def __init__(self) -> None:
        self.looks = 0

    def look(self) -> None:
        self.looks += 1


def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loads: List[Any],
            act: Callable[[], None]) -> Watch:
    for name in ("dirty_bytes", "dirty_background_bytes", "dirty_background_ratio"):
        (tmp_path / name).write_text("0\n")
    (tmp_path / "dirty_ratio").write_text("20\n")
    monkeypatch.setattr(host, "VM", tmp_path)
    monkeypatch.setattr(host, "vmstat", lambda name: 5000)
    with Watch(lambda roles: loads, time.monotonic, 0.002) as watch:
        act()
    assert not [each for each in threading.enumerate() if each is watch._thread]
    return watch


def test_every_write_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def act() -> None:
        for size in ("4096", "8192", "8192", "4096"):
            time.sleep(0.05)
            with open(tmp_path / "dirty_bytes", "r+") as file:  # never empty, as in /proc
                file.write(f"{size:<8}")
        time.sleep(0.05)

    load = Looked()
    watch = watched(tmp_path, monkeypatch, [load], act)
    assert [size for _, size in watch.limits if size] == [5000, 4096, 8192, 4096]
    assert [time for time, _ in watch.limits] == sorted(time for time, _ in watch.limits)
    assert load.looks > 10
