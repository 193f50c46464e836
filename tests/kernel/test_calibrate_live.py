# SPDX-License-Identifier: GPL-2.0-or-later
"""`writebackctl calibrate` on a real disk: however it ends, limits, files and loads are gone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Callable, Iterator, List

import pytest

from tests.kernel.fault_rig import AGENT, is_alive, limits, runtime_in_memory, wait_for
from tests.kernel.scratch import Scratch, scratch_disk
from tests.kernel.test_daemon import Running, start, untouched  # noqa: F401 (fixtures)

SIZE_MB = 1024
BUDGET = ("--budget", "512M", "--time", "60s")
# A lease, the watcher's grace, and what the loop takes to be written.
HOME_S = 30.0


@pytest.fixture
def disk() -> Iterator[Scratch]:
    with scratch_disk("ext4", SIZE_MB) as made:
        yield made


@pytest.fixture
def runtime_dir() -> Iterator[Path]:
    with runtime_in_memory() as made:
        yield made


def begun(disk: Scratch, runtime_dir: Path, tmp_path: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "writebackd.cli.ctl", "--runtime-dir", str(runtime_dir),
         "--json", "calibrate", "--directory", str(disk.mountpoint), *BUDGET,
         "--state-dir", str(tmp_path / "state")],
        env={**os.environ, "PYTHONPATH": str(AGENT)}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def children(pid: int) -> List[int]:
    """Its loads; the watcher has a session of its own, and outlives it."""
    own = os.getsid(pid)
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(each) for each in found if os.getsid(int(each)) == own]


def used(disk: Scratch) -> int:
    assert disk.mountpoint is not None
    found = os.statvfs(disk.mountpoint)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_nothing_is_left_of_one_that_is_ended(
    disk: Scratch, runtime_dir: Path, tmp_path: Path, number: signal.Signals
) -> None:
    before, empty = limits(), used(disk)
    with begun(disk, runtime_dir, tmp_path) as process:
        wait_for(lambda: limits() != before, what="for the first limit")
        loads = children(process.pid)
        assert len(loads) == 2 and used(disk) > empty
        assert disk.mountpoint is not None
        assert [each.name for each in disk.mountpoint.iterdir()] == ["lost+found"]
        process.send_signal(number)
        process.communicate(timeout=HOME_S)
    assert process.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 130)
    wait_for(lambda: not any(map(is_alive, loads)), HOME_S)
    wait_for(lambda: limits() == before, HOME_S)
    # What ext4 keeps of names that were there is a block or two.
    wait_for(lambda: used(disk) - empty < 1 << 20, HOME_S)
    assert not (tmp_path / "state").exists(), "kept what was not measured to its end"


def test_it_says_what_it_found_or_why_not_and_stays_within_its_budget(
    disk: Scratch, runtime_dir: Path, tmp_path: Path
) -> None:
    before = limits()
    process = begun(disk, runtime_dir, tmp_path)
    out, error = process.communicate(timeout=120)
    assert process.returncode in (0, 1) and error == "" and out, error
    assert limits() == before
    print(f"\n{out}")
    found = json.loads(out)
    assert 0 < found["written_bytes"] <= 512 << 20
    assert found["problems"] or (found["drain_rate"] and found["limit_bytes"])


def test_beside_a_daemon_it_does_not_begin(
    disk: Scratch, runtime_dir: Path, tmp_path: Path,
    start: Callable[..., Running],  # noqa: F811
) -> None:  # fmt: skip
    daemon = start("--device", disk.device, "--mode", "observe")
    before = limits()
    process = begun(disk, runtime_dir, tmp_path)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"writebackd is already running (pid {daemon.process.pid}" in error
    assert "systemctl stop writebackd" in error and limits() == before
