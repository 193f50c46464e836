# SPDX-License-Identifier: GPL-2.0-or-later
"""A benchmark on a disk of this host writes in a directory of its own, and takes it away."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Callable, Iterator, Optional

import pytest

from tests.lab import ground, host, own_disk
from tests.lab.ground import OWN, Ground
from tests.lab.remains import Remains, RigError


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
        host.write_limits({"dirty_bytes": 64 << 20, "dirty_ratio": 0})
    assert os.listdir(directory) == ["theirs"]
    assert host.read_limits() == before


def killed(own: Path, instead: Optional[Callable[[], None]] = None) -> None:
    """A run that made `own` and was killed; then `instead` happens, and `make bench-clean`."""
    remains = Remains("ground-killed")
    assert remains.take()
    remains.directory.mkdir(parents=True)
    own.mkdir()
    (own / "ours").write_text("ours")
    made = own.lstat()
    remains.record(token="0", limits=host.read_limits(),
                   ground=[str(own), made.st_dev, made.st_ino])
    remains.drop()
    if instead is not None:
        instead()
    again = Remains("ground-killed")
    assert again.take()
    again.remove()
    again.drop()


def test_what_a_killed_run_left_is_removed(directory: Path) -> None:
    (directory / "theirs").write_text("theirs")
    killed(directory / OWN)
    assert os.listdir(directory) == ["theirs"]


def test_what_somebody_put_in_its_place_is_left_alone(directory: Path) -> None:
    own, theirs = directory / OWN, directory / "theirs"

    def replaced() -> None:
        shutil.rmtree(own)
        theirs.mkdir()
        (theirs / "data").write_text("theirs")
        own.symlink_to(theirs)

    killed(own, replaced)
    assert (theirs / "data").read_text() == "theirs"


def test_a_directory_of_that_name_that_is_not_ours_is_left_alone(directory: Path) -> None:
    theirs = directory / OWN / "theirs"
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


def test_a_flood_is_refused_where_somebody_commits(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_disk, "LOOK_S", 2.0)
    done = threading.Event()

    def commit() -> None:
        with open(directory / "log", "wb", buffering=0) as log:
            while not done.wait(0.1):
                log.write(b"commit")
                os.fsync(log.fileno())

    commits = threading.Thread(target=commit)
    commits.start()
    before = host.read_limits()
    try:
        with Ground("ground-test", directory) as rig, pytest.raises(RigError, match="syncs on"):
            own_disk.refuse_others(rig, [])
    finally:
        done.set()
        commits.join()
    assert os.listdir(directory) == ["log"]
    assert host.read_limits() == before
