# SPDX-License-Identifier: GPL-2.0-or-later
"""Scenarios and contenders of the lab: what the shipped ones are, and what is refused."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Dict

import pytest

from tests.lab import bench, contenders, scenario
from tests.lab.disks import presets
from tests.lab.published import TABLES
from tests.lab.remains import RigError
from tests.lab.run import policy_options
from tests.lab.scenario import Expectation, Span, Term
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
    (("scenario", "judged", "8s..7s"), "is not a span"),
    (("scenario", "idle", "none"), "idle is missing"),
    (("scenario", "idle", "4s"), "is not a span"),
    (("scenario", "tags", "quik"), "no quik"),
    (("events", "99s", "agent SIGSTOP"), "when the run is over"),
    (("events", "6s", "vm dirty_ratio=much"), "take a number"),
    (("events", "6s", "agent SIGFOO"), "no signal SIGFOO"),
    (("scenario", "ways", "native moon"), "no moon"),
    (("scenario", "sweep", "1X"), "unknown size unit"),
    (("disk db", "fs", "ntfs"), "no ntfs, take one of"),
    (("disk db", "preset", "floppy"), "floppy"),
    (("disk db", "device", "/dev/sda"), "never on another"),
    (("load flood", "kind", "cat"), "no cat, take one of"),
    (("load flood", "bs", "1 parsec"), "bs"),
    (("load flood", "disk", "other"), "no other, take one of db"),
    (("load database", "runs", "0s..9s"), "in all windows, idle and judged"),
    (("events", "6s", "other mode=writeback"), "no other: take vm, agent or a disk"),
    (("events", "soon", "agent SIGSTOP"), "not a time"),
    (("events", "6s", "db spin=3"), "no spin"),
    (("expect", "agent", "agent is good"), "is no expectation"),
    (("expect", "agent", "agent other.stall <= 1"), "no load other"),
    (("expect", "agent", "agent flood.score <= 1"), "is no expectation"),
    (("scenario", "changed", "11s..20s"), "have to follow each other"),
    (("scenario", "changed", "13s"), "is not a span"),
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


def test_a_scenario_may_be_like_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenario, "DIRECTORY", tmp_path)
    texts = {"good": {**GOOD, "scenario": {**GOOD["scenario"], "tags": "quick"}},
             "like": {"scenario": {"like": "good", "judged": "9s..12s"}, "disk db": {"fs": "xfs"},
                      "expect": {"agent": "agent f >= 0.5"}},
             "lost": {"scenario": {"like": "nothing"}}}
    for name, sections in texts.items():
        (tmp_path / f"{name}.conf").write_text("".join(
            f"[{header}]\n" + "".join(f"{key} = {value}\n" for key, value in values.items())
            for header, values in sections.items()))
    good, found = scenario.load("good"), scenario.load("like")
    assert found.judged == Span(9, 12) and found.disks[0].fs == "xfs"
    assert (found.loads, found.events, found.idle) == (good.loads, good.events, good.idle)
    assert [each.text for each in found.expectations] == ["agent f >= 0.5"]
    assert good.tags == {"quick"} and not found.tags
    assert scenario.lineage("like") == ["like", "good"]  # a result depends on both files
    with pytest.raises(RigError, match="no scenario nothing"):
        scenario.load("lost")


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


def planned(quick: bool) -> float:
    found = [scenario.load(name) for name in scenario.names()]
    chosen = [each.short() if quick else each for each in found
              if ("quick" in each.tags if quick else "extra" not in each.tags)]
    jobs = bench.plan(chosen, "native", bench.QUICK_CONTENDERS if quick else (),
                      1 if quick else bench.REPEATS)
    return sum(job.seconds for job in jobs)


def test_the_suite_has_the_length_that_is_promised() -> None:
    assert planned(quick=False) <= 4.6 * 3600
    assert planned(quick=True) <= 20 * 60


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
