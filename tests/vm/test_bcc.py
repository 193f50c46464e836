# SPDX-License-Identifier: GPL-2.0-or-later
"""The probe without BTF: bcc's, in a machine whose kernel hides its BTF (inside/bcc_cases.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from .fetch_kernel import KernelUnavailable, fetch_bcc
from .guest_tests import check_tests
from .kernels import fetched, missing
from .machine import Machine
from .matrix import WRITE_RATE


@pytest.mark.full("bcc compiles, emulated, for a minute or more")
def test_a_flood_is_held_by_the_bcc_probe(tmp_path: Path) -> None:
    kernel = fetched("bookworm")
    try:
        trees = fetch_bcc(kernel)
    except KernelUnavailable as error:
        missing(str(error))
    settings = {"WRITEBACKD_BCC": ":".join(map(str, trees))}
    machine = Machine(kernel, write_rate=WRITE_RATE)
    check_tests(machine, ["tests/vm/inside/bcc_cases.py"], settings, tmp_path)
