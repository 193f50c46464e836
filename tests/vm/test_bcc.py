# SPDX-License-Identifier: GPL-2.0-or-later
"""The probe without BTF: bcc's, in a machine whose kernel hides its BTF (inside/bcc_cases.py)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .fetch_kernel import CHECKOUT, KernelUnavailable, fetch_bcc
from .machine import Machine
from .test_vm import check_run, kernel, missing

__all__ = ["kernel"]
# Seconds. Half a minute to boot and one to flood; bcc compiles for one, or for three on a host
# that has other things to do.
TIME_LIMIT = 900.0
# What a slow disk takes: under an endless flood the kernel's own limits mean seconds for a sync.
WRITE_RATE = 20_000_000


@pytest.mark.full("bcc compiles, emulated, for a minute or more")
def test_a_flood_is_held_by_the_bcc_probe(kernel: Path, tmp_path: Path) -> None:
    try:
        trees = fetch_bcc(kernel)
    except KernelUnavailable as error:
        missing(str(error))
    report = tmp_path / "result.xml"
    plain = ["--noconftest", "-p", "no:hypothesispytest", "--durations=0"]
    argv = [sys.executable, "-m", "pytest", "-q", "-s", "-rs", *plain, f"--junitxml={report}",
            "tests/vm/inside/bcc_cases.py"]  # fmt: skip
    machine = Machine(kernel, write_rate=WRITE_RATE)
    settings = {"WRITEBACKD_BCC": ":".join(map(str, trees)), "PYTHONPATH": f"{CHECKOUT}/agent"}

    result = machine.run(argv, TIME_LIMIT, share=tmp_path, env=settings)

    assert report.exists(), f"pytest did not start in the guest:\n{result.output}"
    check_run(result, report.read_text())
