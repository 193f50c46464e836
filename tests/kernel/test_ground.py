# SPDX-License-Identifier: GPL-2.0-or-later
"""A benchmark on a disk of this host writes in a directory of its own, and takes it away."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Iterator

import pytest

from tests.lab import ground, host
from tests.lab.ground import Ground
from tests.lab.remains import GROUND, Remains, RigError


@pytest.fixture
def directory() -> Iterator[Path]:
    # Not pytest's: that may be on a tmpfs, which has no disk.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as path:
        yield Path(path)


@pytest.fixture(autouse=True)
def _room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ground, "beyond_default_limit", lambda: 0)


def test_it_takes_away_what_it_made_and_nothing_else(directory: Path) -> None:
    (directory / "theirs").write_text("theirs")
    before = host.read_limits()
    with Ground("ground-test", directory) as rig:
        assert (Path("/sys/block") / rig.device).exists()
        (rig.mountpoint / "ours").write_bytes(bytes(1 << 20))
        host.write_limits({**before, "dirty_bytes": 64 << 20, "dirty_ratio": 0})
    assert os.listdir(directory) == ["theirs"]
    assert host.read_limits() == before


def test_what_a_killed_run_left_is_removed_by_name(directory: Path) -> None:
    (directory / "theirs").write_text("theirs")
    remains = Remains("ground-killed")
    assert remains.take()
    remains.directory.mkdir(parents=True)
    (directory / GROUND).mkdir()
    (directory / GROUND / "ours").write_text("ours")
    remains.record(token="0", limits=host.read_limits(), ground=str(directory / GROUND))
    remains.drop()
    again = Remains("ground-killed")
    assert again.take()
    again.remove()
    again.drop()
    assert os.listdir(directory) == ["theirs"]


def test_a_directory_of_that_name_that_is_not_ours_is_left_alone(directory: Path) -> None:
    theirs = directory / GROUND / "theirs"
    theirs.parent.mkdir()
    theirs.write_text("theirs")
    with pytest.raises(RigError, match="move it away"), Ground("ground-test", directory):
        raise AssertionError("it began")
    assert theirs.read_text() == "theirs"


def test_what_is_on_no_disk_is_refused() -> None:
    with pytest.raises(RigError, match=r"/dev/shm is on tmpfs"):
        ground.on(Path("/dev/shm"))


def test_a_disk_without_room_is_refused(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ground, "beyond_default_limit", lambda: 1 << 50)
    with pytest.raises(RigError, match="have to be free"):
        ground.on(directory)
