# SPDX-License-Identifier: GPL-2.0-or-later
"""The rights that the systemd unit leaves are enough to see everything root sees."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest

UNIT = Path(__file__).resolve().parents[2] / "systemd" / "writebackd.service"
# What the probe found, comparable between two processes.
SHOW_PROBE = """
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.probe import open_probe
probe = open_probe("auto", KernelFiles(), False, True)
info = probe.info()
print(info.backend, info.request_hook, info.fsync_hook, *info.misses, sep="; ")
probe.close()
"""


def bounding_set() -> List[str]:
    match = re.search(r"^CapabilityBoundingSet=(.+)$", UNIT.read_text(), re.MULTILINE)
    assert match
    return [name.replace("CAP_", "").lower() for name in match[1].split()]


def probe_with(capabilities: str) -> str:
    confined = ["setpriv", f"--bounding-set={capabilities}", "--inh-caps=-all", "--no-new-privs"]
    result = subprocess.run(
        [*confined, sys.executable, "-c", SHOW_PROBE],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.fixture(autouse=True)
def root_with_setpriv() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: BPF programs are loaded")
    if not shutil.which("setpriv"):
        pytest.skip("setpriv is missing: apt-get install util-linux")


def test_capabilities_of_the_unit_suffice(capsys: pytest.CaptureFixture[str]) -> None:
    names = bounding_set()
    confined = probe_with(",".join(["-all", *(f"+{name}" for name in names)]))
    with capsys.disabled():
        print(f"\n  with {' '.join(names)}: {confined}")
    assert confined == probe_with("+all")
    assert confined.startswith("libbpf")


def test_each_capability_is_needed() -> None:
    names = bounding_set()
    full = probe_with(",".join(["-all", *(f"+{name}" for name in names)]))
    for left_out in names:
        fewer = ",".join(["-all", *(f"+{name}" for name in names if name != left_out)])
        assert probe_with(fewer) != full, f"{left_out} is not needed"
