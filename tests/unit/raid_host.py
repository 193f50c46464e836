# SPDX-License-Identifier: GPL-2.0-or-later
"""A host with RAID tools, and what they said."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Callable

import pytest

import raid_cases as cases
from fake_sysfs import FakeSysfs
from writebackd.storage import storcli
from writebackd.storage.report_file import CollectorReport, Tool

ME = os.geteuid()
BOOT = "0f0f0f0f-1111-2222-3333-444444444444"


def told(
    *found: Tool, age_s: float = 60.0, now_s: float = 5000.0, boot_id: str = BOOT
) -> CollectorReport:
    return CollectorReport(1000.0, now_s - age_s, boot_id, "1.0", found)


EXAMPLE = told(
    Tool("storcli", "/opt/storcli64", None, storcli.parse(
        [cases.storcli_all(drive="Rbld"), cases.REBUILD, cases.CHECK, cases.PATROL])),
    Tool("ssacli", "/usr/sbin/ssacli", "not done within 30 s"),
)  # fmt: skip


def program(directory: Path, name: str, text: str) -> Path:
    path = directory / name
    path.write_text(f"#!{sys.executable} -IS\nimport os, sys, time\n{text}\n")
    path.chmod(0o755)
    return path


def answering(**answers: str) -> str:
    """A program that answers by the verb in its arguments."""
    return (
        f"answers = {answers!r}\n"
        "print(next((text for word, text in answers.items() if word in sys.argv), ''))"
    )


@pytest.fixture
def tree(tmp_path: Path) -> FakeSysfs:
    tree = FakeSysfs(tmp_path / "root")
    tree.text("/proc/sys/kernel/random/boot_id", BOOT)
    return tree


@pytest.fixture
def bin_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tools are looked for here, and what is above its parent is trusted: /tmp is sticky."""
    path = tmp_path / "bin"
    path.mkdir()
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(path))
    return path


def soon(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 5.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
