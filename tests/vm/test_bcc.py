# SPDX-License-Identifier: GPL-2.0-or-later
"""Under a flood of a slow disk: the probe that bcc compiles, where BTF is hidden, and no probe.

The cases are in inside/bcc_cases.py and inside/procfs_cases.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from .fetch_kernel import KernelUnavailable, fetch_bcc
from .guest_tests import check_tests
from .kernels import fetched, missing
from .machine import Machine
from .matrix import WRITE_RATE

# Seconds. Half a minute to boot and one to flood; bcc compiles for one, or for five on a host
# that has other things to do.
TIME_LIMIT = 1500.0
SUITES = pytest.mark.parametrize("suite", ["bullseye", "bookworm", "trixie"])


@pytest.mark.full("bcc compiles, emulated, for a minute or more")
@SUITES
def test_a_flood_is_held_by_the_bcc_probe(suite: str, tmp_path: Path) -> None:
    kernel = fetched(suite)
    try:
        trees = fetch_bcc(kernel, suite)
    except KernelUnavailable as error:
        missing(str(error))
    run_cases("bcc_cases", kernel, tmp_path, WRITEBACKD_BCC=":".join(map(str, trees)))


@pytest.mark.full("a minute of flood, emulated")
@SUITES
def test_a_flood_is_held_without_a_probe(suite: str, tmp_path: Path) -> None:
    run_cases("procfs_cases", fetched(suite), tmp_path)


def run_cases(name: str, kernel: Path, share: Path, **settings: str) -> None:
    """Run inside/NAME.py beside a disk that is slow."""
    machine = Machine(kernel, write_rate=WRITE_RATE)
    check_tests(machine, [f"tests/vm/inside/{name}.py"], settings, share, TIME_LIMIT)
