# SPDX-License-Identifier: GPL-2.0-or-later
"""Under a flood of a slow disk: the probe that bcc compiles, where BTF is hidden, and no probe.

The cases are in inside/bcc_cases.py and inside/procfs_cases.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from .fetch_kernel import KernelUnavailable
from .guest_tests import check_run
from .kernels import fetched, missing
from .matrix import guest_run

SUITES = pytest.mark.parametrize("suite", ["bullseye", "bookworm", "trixie"])


@pytest.mark.full("bcc compiles, emulated, for a minute or more")
@SUITES
def test_a_flood_is_held_by_the_bcc_probe(suite: str, tmp_path: Path) -> None:
    fetched(suite)
    try:
        check_run(*guest_run(f"{suite}-bcc", tmp_path))
    except KernelUnavailable as error:
        missing(str(error))


@pytest.mark.full("a minute of flood, emulated")
@SUITES
def test_a_flood_is_held_without_a_probe(suite: str, tmp_path: Path) -> None:
    fetched(suite)
    check_run(*guest_run(f"{suite}-procfs", tmp_path))
