# SPDX-License-Identifier: GPL-2.0-or-later
"""The demo: its pictures, what it says before it writes to a disk, and when it refuses."""

from __future__ import annotations

import fcntl
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from checkout import ROOT
from html_tree import Tree, corners
from tests.lab import agent, demo, own_disk
from tests.lab.ground import OWN
from tests.lab.remains import RigError
from tests.lab.rescue_picture import LEFT, RIGHT, WIDTH, Second, Stage, picture
from tests.lab.rig import Rig
from writebackd.types.storage import Device

MIB, GB = 1 << 20, 1 << 30


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


# ---- screenshots -------------------------------------------------------


PICTURES = ROOT / "docs" / "img"


@pytest.mark.parametrize("name", ["rescue.svg", "top.svg", "report.svg"])
def test_the_manual_s_pictures_are_small_and_load_nothing(name: str) -> None:
    text = (PICTURES / name).read_text()
    ET.fromstring(text)
    assert len(text) < 60_000 and "<script" not in text
    assert "http" not in re.sub(r"http://www.w3.org/2000/svg|https://www.textualize.io", "", text)


def test_the_readme_begins_with_the_picture_and_the_command_that_draws_it() -> None:
    head = (ROOT / "README.md").read_text().splitlines()[:6]
    assert any("](docs/img/rescue.svg)" in line for line in head)
    assert any("`sudo tests/demo --svg docs/img/rescue.svg" in line for line in head)


def test_picture_table_and_comparison_are_of_one_run() -> None:
    readme, compared = (" ".join((ROOT / name).read_text().split())
                        for name in ("README.md", "docs/explanation/comparison.md"))
    root = Tree((PICTURES / "rescue.svg").read_text()).root
    *table, relief = root.one("svg").children[2].own.split("\n")
    assert " ".join("\n".join(table).split()) in readme and relief in readme
    idle, default, static, ours = (re.findall(r"[^|]+", row) for row in table[2:])
    labels = [each.own.split(": ")[1] for each in root.all("text", "said")]
    assert labels == [row[2].strip() for row in (idle, default, ours)]
    assert f"leaves{static[1]}syncs/s, writebackd{ours[1].rstrip()}." in compared


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

