# SPDX-License-Identifier: GPL-2.0-or-later
"""The demo: its pictures, what it says before it writes to a disk, and when it refuses."""

from __future__ import annotations

import fcntl
import os
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence

import pytest

from checkout import ROOT
from html_tree import Tree, corners, paths
from tests.lab import agent, demo, ground, own_disk, screenshots
from tests.lab.ground import OWN, Ground
from tests.lab.loads.base import Measured
from tests.lab.phases import Demo, Result
from tests.lab.remains import RigError
from tests.lab.report.rescue_picture import LEFT, RIGHT, WIDTH, Second, Stage, picture
from tests.lab.rig import Rig
from tests.lab.screen import HEAD, Row, render_row
from writebackd.types.storage import Device

GB = 1 << 30


# ---- the picture -------------------------------------------------------


def drawn(seconds: int = 100) -> str:
    """10 s alone, a flood until 40 s, then the agent."""
    return picture(
        [Second(float(at), None if at == 20 else 1e-3 if at < 10 else 1.5 if at < 40 else 0.02,
                4 * GB if at < 40 else 2 << 20, 250e6) for at in range(1, seconds + 1)],
        (Stage(0.0, 10.0, "alone"), Stage(10.0, 40.0, "default", "without"),
         Stage(40.0, seconds, "agent", "with")), "by a <command>")


def test_the_picture_has_the_moments_at_which_flood_and_agent_begin() -> None:
    root = Tree(drawn()).root
    flood, enforces = (each for each in root.all("path", "event"))
    for mark, label, at_s in ((flood, "flood begins", 10.0),
                              (enforces, "writebackd enforces", 40.0)):
        assert mark.one("title").own == label
        ((x, top),) = corners(mark.attrs["d"].partition("V")[0])
        assert x == pytest.approx(LEFT + at_s / 100 * (WIDTH - RIGHT - LEFT), abs=0.1)
        (said,) = (each for each in root.all("text", "event") if each.own == label)
        assert float(said.attrs["x"]) == pytest.approx(x, abs=8) and float(said.attrs["y"]) > top
    assert [each.own for each in root.all("text", "said")] == ["alone", "default", "agent"]


def test_the_picture_tells_the_agent_s_time_from_the_one_before() -> None:
    root = Tree(drawn()).root
    before, after = paths(root, "without"), paths(root, "with")
    assert len(before) == len(after) == 3  # fsync, limit, throughput
    border = LEFT + 0.4 * (WIDTH - RIGHT - LEFT)
    assert max(x for line in before for x, _ in corners(line)) == pytest.approx(border, abs=0.2)
    assert min(x for line in after for x, _ in corners(line)) == pytest.approx(border, abs=0.2)
    # A second without a figure is a gap, and nothing is drawn at 0.
    assert before[0].count("M") == 2
    assert min(y for _, y in corners(after[0])) > min(y for _, y in corners(before[0]))


def test_the_picture_is_a_file_of_its_own_for_light_and_dark_pages() -> None:
    text = drawn(600)
    ET.fromstring(text)
    assert "prefers-color-scheme: dark" in text and "by a &lt;command&gt;" in text
    assert len(text) < 60_000 and "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert text == drawn(600)


# ---- screenshots -------------------------------------------------------


def test_the_last_whole_frame_of_top_becomes_an_image_that_loads_nothing() -> None:
    frames = [f"\x1b[1mwritebackd: {word}\x1b[0m\n\nDEVICE \x1b[32mguard\x1b[0m <{word}>\n"
              for word in ("first", "second", "third, half of")]
    frame = screenshots.last_frame("\n".join(frames))
    assert "second" in frame and "first" not in frame and "third" not in frame
    image = screenshots.terminal(frame, "a title")
    words = "".join(ET.fromstring(image).itertext()).replace("\u00a0", " ")
    assert "a title" in words and "<second>" in words
    assert "url(\"" not in image and "font-face" not in image
    with pytest.raises(RigError, match="showed nothing: no daemon"):
        screenshots.last_frame("no daemon at all")


def test_the_plot_of_a_report_becomes_an_image() -> None:
    page = ('<html><style>p{}</style><figure><svg viewBox="0 0 960 300" role="img"'
            ' aria-label="a &gt; b"><text>dirty limit</text><rect class="hover" x="1">'
            "<title>1&#10;2</title></rect></svg></figure><svg viewBox=\"0 0 1 1\"></svg></html>")
    root = ET.fromstring(screenshots.plot_of(page))
    assert root.attrib["width"] == "960" and root.attrib["aria-label"] == "a > b"
    assert [each.attrib["class"] for each in root.iter() if each.tag.endswith("rect")] == ["card"]
    assert "prefers-color-scheme:dark" in "".join(root.itertext())
    with pytest.raises(RigError, match="no figures"):
        screenshots.plot_of("<html></html>")


PICTURES = ROOT / "docs" / "img"


@pytest.mark.parametrize("name", ["rescue.svg", "top.svg", "report.svg"])
def test_the_manual_s_pictures_are_small_and_load_nothing(name: str) -> None:
    text = (PICTURES / name).read_text()
    ET.fromstring(text)
    assert len(text) < 60_000 and "<script" not in text
    assert "http" not in re.sub(r"http://www.w3.org/2000/svg|https://www.textualize.io", "", text)


def test_the_readme_begins_with_the_picture_and_the_command_that_draws_it() -> None:
    head = (ROOT / "README.md").read_text().splitlines()[:6]
    command = "tests/demo --svg docs/img/rescue.svg"
    assert any("](docs/img/rescue.svg)" in line for line in head)
    assert any(f"`sudo {command}" in line for line in head)
    words = [each.own for each in Tree((PICTURES / "rescue.svg").read_text()).root.all("text")]
    assert {"flood begins", "writebackd enforces"} <= set(words)


# ---- on a disk of this host --------------------------------------------


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may be set or started: a refusal comes before."""
    def fail(*_: object) -> None:
        raise AssertionError("it went on")

    monkeypatch.setattr(Rig, "__enter__", fail)
    monkeypatch.setattr("tests.lab.host.write_limits", fail)
    monkeypatch.setattr(demo, "refuse_second", lambda: None)


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("fs, said", [("tmpfs", "is on tmpfs"), ("nfs4", "is on nfs4"),
                                      ("overlay", "is on overlay")])
def test_what_is_on_no_disk_of_this_host_is_refused(
    fs: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(ground, "run", lambda *argv: f"{fs} 0:42")
    assert demo.main(["--directory", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert said in captured.err and captured.out == ""
    assert os.listdir(tmp_path) == []


@pytest.mark.usefixtures("untouched")
def test_a_disk_that_would_be_full_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Ground, "__init__", lambda rig, name, directory: None)
    monkeypatch.setattr(ground, "beyond_default_limit", lambda: 1 << 50)
    assert demo.main(["--directory", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert "have to be free" in captured.err and captured.out == ""


@pytest.mark.usefixtures("untouched")
def test_it_is_refused_where_a_daemon_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "refuse_second", agent.refuse_second)
    monkeypatch.setattr(agent, "runtime_dir_in_use", lambda: tmp_path)
    agent.refuse_second()
    with open(tmp_path / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for options in ([], ["--directory", str(tmp_path)]):
            assert demo.main(options) == 1
            assert "stop it first" in capsys.readouterr().err


def test_it_says_before_how_much_it_writes_and_for_how_long(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    said = own_disk.warning(Path("/srv"), "ext4", "sda", 6 * GB, 80.0, 130.0, 100 * GB)
    for word in ("sda (ext4)", f"/srv/{OWN}", "6.0G", "80 s", "16 GB", "160 GB", "100G", "2m10s"):
        assert word in said, word
    monkeypatch.setattr(own_disk, "beyond_default_limit", lambda: 5 * GB)
    assert [own_disk.files_bytes(GB, flood) for flood in (GB, 9 * GB)] == [6 * GB, 10 * GB]


def status(
    hook: Optional[str], *fsyncs: Optional[int], state: str = "idle", alerts: Sequence[str] = ()
) -> Dict[str, Any]:
    told = [{"name": name, "summary": f"sda: {name}"} for name in alerts]
    return {"probe": {"fsync_hook": hook}, "alerts": told, "devices": [
        {"state": state, "counters": None if count is None else {"fsyncs": count}}
        for count in fsyncs]}


class Watching:
    """The agent that observes: what it answers, one after the other."""

    answers: List[Dict[str, Any]]
    options: List[str]

    def __init__(self, devices: List[str], directory: Path, spawn: object, options: List[str]
                 ) -> None:
        type(self).options = options

    def __enter__(self) -> Watching:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def status(self) -> Dict[str, Any]:
        return self.answers.pop(0)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:
    monkeypatch.setattr(own_disk, "Agent", Watching)
    monkeypatch.setattr("tests.lab.own_disk.time.sleep", lambda seconds: None)
    rig = Ground.__new__(Ground)
    rig.device, rig.directory = "sda", Path("/nowhere")
    yield rig
    assert Watching.options[-2:] == ["--mode", "observe"]


@pytest.mark.parametrize("before, after, said", [
    (status("ext4", 7, None), status("ext4", 7, None), ""),
    (status("ext4", 7), status("ext4", 8), ""),  # nobody's commits
    (status("ext4", 7), status("ext4", 9), "somebody syncs on sda: 2 fsyncs in 5 s"),
    (status("ext4", 7, 3), status("ext4", 7, 40), "somebody syncs on sda: 37 fsyncs"),
    (status("ext4", 7, state="excluded"), status("ext4", 90, state="excluded"), ""),
    (status(None, 0), status(None, 0), "does not show fsync"),
    (status("ext4", 7, alerts=["STALL"]), status("ext4", 7), ""),  # it is over
    (status("ext4", 7), status("ext4", 7, alerts=["STALL"]), "alert STALL: sda: STALL"),
])  # fmt: skip
def test_somebody_else_s_commits_and_alerts_are_reasons_to_refuse(
    watched: Ground, before: Dict[str, Any], after: Dict[str, Any], said: str
) -> None:
    Watching.answers = [before, after]
    if not said:
        own_disk.refuse_others(watched, [])
        return
    with pytest.raises(RigError, match=said):
        own_disk.refuse_others(watched, [])


def test_other_volumes_on_the_disk_count() -> None:
    devices = [
        Device(name, name, name, (disk,), (disk,), ((name, "xfs", "/srv"),) if mounted else ())
        for name, disk, mounted in (
            ("sda", "sda", False), ("dm-0", "sda", True), ("dm-1", "sda", True),
            ("btrfs-1", "sda", True), ("sdb", "sdb", True),
        )
    ]  # fmt: skip
    for device in ("dm-0", "sda"):
        assert own_disk.on_the_disks_of(device, devices) == ["dm-0", "dm-1", "btrfs-1"]
    assert own_disk.on_the_disks_of("sdb", devices) == ["sdb"]
    assert own_disk.on_the_disks_of("vda", devices) == ["vda"]


def test_it_ends_when_the_disk_took_what_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.lab.host.device_written", lambda device: 12 * GB)
    own_disk.check_budget("sda", 2 * GB, 10 * GB)
    with pytest.raises(RigError, match=r"sda took 10G before the end, more than --budget 9\.0G"):
        own_disk.check_budget("sda", 2 * GB, 9 * GB)


# ---- the table ---------------------------------------------------------


def test_the_table_has_rate_waits_and_what_the_flood_got() -> None:
    row = Row(Measured(15.0, rate=776.0, p99=0.015, max=0.21), 245e6, 15 << 20, False)
    line = render_row("agent", row, Row(Measured(15.0, rate=2810.0), None, 0, False))
    assert line.split()[-9:] == ["776", "27.6", "%", "15", "210", "245", "MB/s", "15", "MB"]
    assert len(line) == len(HEAD) <= 77
    assert render_row("idle", Row(Measured(15.0, rate=1.0), None, GB, True), None).endswith("*")


def test_a_disk_that_nobody_knows_has_no_bounds() -> None:
    results = {name: Result(name, Measured(10.0, rate=rate), device, flood, GB)
               for name, rate, device, flood in (("default", 0.0, 6e6, 4e6),
                                                 ("agent", 20.0, 3e6, 1e6))}
    own = demo.verdicts(results, modelled=False)
    assert [each.ratio for each in own] == [200.0, 0.5, 0.25]
    assert all(each.good for each in own)
    # The flood's own rate has no bound: what syncs write is not lost.
    assert [each.good for each in demo.verdicts(results, modelled=True)] == [True, False, True]
    assert len(Demo.PHASES) == 4 and len(Demo.RESCUE) == 3
