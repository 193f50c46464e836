# SPDX-License-Identifier: GPL-2.0-or-later
"""The unit as systemd sees it: valid, confined, and of one mind with the program."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Dict, List

import pytest

from checkout import ROOT, run
from writebackd.cli.exits import NOT_PERMITTED, USAGE
from writebackd.paths import RUNTIME_DIR, STATE_DIR

UNIT = ROOT / "systemd" / "writebackd.service"
# Exposure of 10; others on Debian 12: oomd 2.0, chrony 3.7, irqbalance 8.9, tuned 9.6.
MOST_EXPOSED = 2.2


def settings() -> Dict[str, List[str]]:
    """Key -> values in order of the file, over all sections."""
    found: Dict[str, List[str]] = {}
    for key, value in re.findall(r"^([A-Z]\w+)=(.*)$", UNIT.read_text(), re.MULTILINE):
        found.setdefault(key, []).append(value)
    return found


@pytest.fixture
def runnable(tmp_path: Path) -> Path:
    """The unit with commands that exist here: verify looks for them."""
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is missing: apt-get install systemd")
    unit = tmp_path / UNIT.name
    unit.write_text(re.sub(r"/usr/bin/writeback\w+", "/bin/true", UNIT.read_text()))
    return unit


def test_verify_finds_nothing(runnable: Path, tmp_path: Path) -> None:
    result = run(["systemd-analyze", "verify", str(runnable)], tmp_path)
    # An unknown key is told and ignored, with exit code 0.
    about_us = [line for line in result.stdout.splitlines() if "writebackd" in line]
    assert (result.returncode, about_us) == (0, [])


def test_exposure(runnable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threshold = f"--threshold={MOST_EXPOSED * 10:.0f}"
    argv = ["systemd-analyze", "security", "--no-pager", "--offline=true", threshold]
    result = run([*argv, str(runnable)], tmp_path)
    match = re.search(r"exposure level for writebackd.service: (\d+\.\d)", result.stdout)
    assert match, result.stdout
    with capsys.disabled():
        print(f"\n  systemd-analyze security: exposure {match[1]}, at most {MOST_EXPOSED}")
    assert result.returncode == 0
    assert float(match[1]) <= MOST_EXPOSED


def test_directories_are_the_programs_own() -> None:
    unit = settings()
    assert unit["RuntimeDirectory"] == [str(RUNTIME_DIR.relative_to("/run"))]
    assert unit["StateDirectory"] == [str(STATE_DIR.relative_to("/var/lib"))]
    # The ledger is in the runtime directory: without this, systemd deletes it at a
    # restart, and the next start would take our limits for the originals.
    assert unit["RuntimeDirectoryPreserve"] == ["yes"]


def test_limits_can_be_written_and_nothing_else() -> None:
    unit = settings()
    assert unit["ProtectKernelTunables"] == ["yes"]
    assert unit["ReadWritePaths"] == ["/proc/sys/vm /sys/devices"]


def test_mounts_stay_visible() -> None:
    """ProtectHome=yes or tmpfs hides a filesystem on /home from mountinfo, and so from us."""
    assert settings()["ProtectHome"] == ["read-only"]


def test_killed_means_restored_and_hopeless_means_stopped() -> None:
    unit = settings()
    assert unit["ExecStopPost"] == ["/usr/bin/writebackctl restore --honour-keep"]
    assert unit["Restart"] == ["on-failure"]
    assert {int(code) for code in unit["RestartPreventExitStatus"][0].split()} == {
        USAGE,
        NOT_PERMITTED,
    }


def test_kill_exists_where_the_unit_calls_it() -> None:
    command = settings()["ExecReload"][0].split()
    assert Path(command[0]).exists()
    listed = subprocess.run([command[0], "-l"], capture_output=True, text=True, check=True)
    assert command[1].lstrip("-") in listed.stdout
