# SPDX-License-Identifier: GPL-2.0-or-later
"""How full the kernel's caches are: who reads it, how it reaches the daemon, when it is too old."""

from __future__ import annotations

import os
from pathlib import Path
from typing import List, Optional

import pytest

from fake_sysfs import FakeSysfs
from writebackd.estimate.cache_size import FILL_FRESH_S
from writebackd.paths import CACHES
from writebackd.storage import collector, raid_tools, report_file
from writebackd.storage.backing_watch import look_at_caches, together
from writebackd.storage.collector import ASK_ALL_S, follow, main
from writebackd.storage.report_file import CollectorReport
from writebackd.storage.tool_output import ToolError
from writebackd.types.storage import Backing, CacheMode, Device, Threshold

MIB = 1 << 20
BOOT = "5f0c2a3e-0000-4000-8000-000000000001"
ME = os.geteuid()
DMSETUP = """#!/bin/sh
echo "$@" >> {calls}
case $* in
*writecache) exit 0 ;;
table*) echo "slow: 0 2097152 cache 253:1 253:2 253:3 128 1 writeback smq 0" ;;
status*) echo "slow: 0 8 cache 8 27/1024 128 5/400 9 8 7 6 5 4 40 1 writeback 0 smq 0 rw -" ;;
esac
"""


@pytest.fixture
def tree(tmp_path: Path) -> FakeSysfs:
    tree = FakeSysfs(tmp_path / "root")
    tree.text("/proc/sys/kernel/random/boot_id", BOOT)
    tree.disk("sda", "8:0")
    tree.disk("nvme0n1", "259:0")
    return tree


def with_bcache(tree: FakeSysfs, dirty: str = "16.0M") -> None:
    tree.disk("bcache0", "252:0", slaves=["sda", "nvme0n1"], diskseq=5)
    tree.says(
        "bcache0", bcache__cache_mode="writethrough [writeback]", bcache__state="dirty",
        bcache__dirty_data=dirty, bcache__writeback_percent="10",
    )  # fmt: skip
    tree.text("/sys/block/bcache0/bcache/cache/cache0/nbuckets", "2048")
    tree.text("/sys/block/bcache0/bcache/cache/cache0/bucket_size", "64.0k")


class Sleeps:
    """In the place of time: what a look left is kept, and after some looks the cache goes."""

    def __init__(self, tree: FakeSysfs, output: Path, looks: int) -> None:
        self._tree, self._output, self._looks = tree, output, looks
        self.left: List[CollectorReport] = []
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.left.append(report_file.read(self._output, ME))
        self.now_s += seconds
        if len(self.left) == self._looks:
            self._tree.files.path("/sys/block/bcache0/bcache/state").unlink()


def test_it_reads_until_there_is_no_cache(
    tree: FakeSysfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "caches.json"
    with_bcache(tree)
    monkeypatch.setattr(collector, "time", sleeps := Sleeps(tree, output, 3))
    monkeypatch.setattr(raid_tools, "search_path", lambda: ())
    follow(tree.files, output, 2.0)
    assert not output.exists()
    (tool,) = sleeps.left[-1].tools
    assert len(sleeps.left) == 3 and tool.name == "bcache"
    assert tool.controllers[0].dirty_bytes == 16 * MIB
    assert tool.controllers[0].volumes[0].diskseq == 5
    assert sleeps.left[0].boottime_s < sleeps.left[2].boottime_s


def test_without_a_cache_it_ends_at_once(tree: FakeSysfs, tmp_path: Path) -> None:
    follow(tree.files, tmp_path / "caches.json", 2.0)
    assert not (tmp_path / "caches.json").exists()


FAILS = "#!/bin/sh\necho busy >&2\nexit 5\n"


def with_dmsetup(tree: FakeSysfs, tmp_path: Path, script: str) -> Path:
    """A volume of the device mapper, and the directory of a dmsetup that says this."""
    tree.disk("dm-0", "253:0", slaves=["sda"])
    tree.says("dm-0", dm__name="slow")
    bins = tmp_path / "bin"
    bins.mkdir()
    (bins / "dmsetup").write_text(script)
    (bins / "dmsetup").chmod(0o755)
    return bins


def test_a_tool_that_fails_is_not_the_end_of_all_caches(
    tree: FakeSysfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """systemd starts it again after an error, and after an end only the timer does."""
    bins, output = with_dmsetup(tree, tmp_path, FAILS), tmp_path / "caches.json"
    monkeypatch.setattr(raid_tools, "search_path", lambda: (str(bins),))
    output.write_text("left before")
    with pytest.raises(ToolError, match=r"dm-writecache \(.*; dm-cache \(.*dmsetup\): "):
        follow(tree.files, output, 2.0, bins.parent)
    assert output.read_text() == "left before"
    # Beside a cache that is seen it goes on.
    with_bcache(tree)
    monkeypatch.setattr(collector, "time", sleeps := Sleeps(tree, output, 2))
    with pytest.raises(ToolError):
        follow(tree.files, output, 2.0, bins.parent)
    assert len(sleeps.left) == 2
    assert [bool(each.error) for each in sleeps.left[0].tools] == [False, True, True]


def test_the_program_fails_where_all_tools_do(
    tree: FakeSysfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    bins = with_dmsetup(tree, tmp_path, FAILS)
    monkeypatch.setattr(raid_tools, "search_path", lambda: (str(bins),))
    monkeypatch.setattr(collector, "KernelFiles", lambda: tree.files)
    assert main(["--caches", "2", "--output", str(tmp_path / "caches.json")], bins.parent) == 1
    assert "dm-cache (" in capsys.readouterr().err


def test_the_device_mapper_is_asked_for_what_it_has(
    tree: FakeSysfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each question starts a program: where there was no such cache, once a minute."""
    with_bcache(tree)
    calls = tmp_path / "calls"
    bins = with_dmsetup(tree, tmp_path, DMSETUP.format(calls=calls))
    output = tmp_path / "caches.json"
    looks = round(ASK_ALL_S / 20) + 1
    sleeps = Sleeps(tree, output, 100)
    monkeypatch.setattr(collector, "time", sleeps)
    monkeypatch.setattr(raid_tools, "search_path", lambda: (str(bins),))

    class Enough(Exception):
        pass

    def sleep(seconds: float) -> None:
        Sleeps.sleep(sleeps, seconds)
        if len(sleeps.left) == looks:
            raise Enough

    monkeypatch.setattr(sleeps, "sleep", sleep)
    with pytest.raises(Enough):
        follow(tree.files, output, 20.0, bins.parent)
    asked = [line.split()[0] + " " + line.split()[-1] for line in calls.read_text().splitlines()]
    assert asked.count("status cache") == asked.count("table cache") == looks
    assert asked.count("table writecache") == 2
    assert [each.name for each in sleeps.left[1].tools] == ["bcache", "dm-cache"]


def reach(tree: FakeSysfs, tmp_path: Path, age_s: float = 1.0) -> "tuple[object, Optional[str]]":
    """What the daemon makes of what the follower left so long ago."""
    path = tree.files.path(CACHES)
    path.parent.mkdir(parents=True, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collector, "time", Sleeps(tree, path, 100))
        patch.setattr(raid_tools, "search_path", lambda: ())
        patch.setattr(Sleeps, "sleep", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            follow(tree.files, path, 2.0)
    then_s = report_file.read(path, ME).boottime_s
    device = Device("bcache0", "252:0", "252:0", ("sda", "nvme0n1"))
    return look_at_caches(tree.files, [device], then_s + age_s, ME)


def test_it_reaches_the_device_with_its_time_and_disk(tree: FakeSysfs, tmp_path: Path) -> None:
    with_bcache(tree)
    found, error = reach(tree, tmp_path)
    assert error is None and isinstance(found, tuple)
    (backing,) = found
    assert isinstance(backing, Backing) and backing.read_s is not None
    assert (backing.device, backing.disk, backing.mode) == (
        "bcache0", "bcache0", CacheMode.WRITE_BACK
    )
    assert (backing.dirty_bytes, backing.capacity_bytes) == (16 * MIB, 128 * MIB * 7 // 10)
    assert backing.thresholds == (Threshold("writeback_percent", 10),)


def test_what_is_old_is_not_believed(tree: FakeSysfs, tmp_path: Path) -> None:
    with_bcache(tree)
    assert reach(tree, tmp_path, FILL_FRESH_S - 0.1)[1] is None
    found, error = reach(tree, tmp_path, FILL_FRESH_S + 0.1)
    assert found == () and error is not None
    assert error.endswith("is 8s old: check that writebackd-caches.service runs")


def test_the_later_reading_of_a_cache_counts() -> None:
    old, md = Backing("bcache0", "bcache", 1.0, dirty_bytes=1), Backing("md0", "md", 1.0)
    new = Backing("bcache0", "bcache", 2.0, dirty_bytes=2, read_s=9.0)
    assert together((old, md), ()) == (old, md)
    assert together((old, md), (new,)) == (md, new)


def test_the_program_follows_into_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--caches", "2", "--output", "-"]) == 2
    assert "--caches needs a file" in capsys.readouterr().err
    for option in ("--caches", "--limit"):
        for value in ("0", "601", "nan", "abc"):
            with pytest.raises(SystemExit, match="2"):
                main([option, value])
            assert f"{option}: takes 0.1 to 600 seconds, as a number" in capsys.readouterr().err
