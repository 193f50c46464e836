# SPDX-License-Identifier: GPL-2.0-or-later
"""Types of arm64's kernels; probe and daemon on one are in test_matrix.py."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernel.btf import in_image

from . import arm64
from .fetch_kernel import CHECKOUT, KernelUnavailable
from .kernels import missing


def fetched(suite: str = arm64.SUITE) -> Path:
    if os.geteuid() != 0:
        return missing("an image with root's files needs root")
    try:
        return arm64.kernel(suite)
    except KernelUnavailable as error:
        return missing(str(error))


@pytest.mark.full("fetches two kernels of another architecture")
@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_the_kernel_s_types_are_what_the_probe_reads(suite: str, tmp_path: Path) -> None:
    types = tmp_path / "vmlinux"
    types.write_bytes(in_image(fetched(suite).read_bytes()))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "tests/kernel/test_kernel_types.py"], cwd=CHECKOUT,
        env={**os.environ, "BTF": str(types), "CI": "true"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_of_what_looks_like_types_in_an_image_the_longest_is_taken() -> None:
    def types(length: int, strings: int) -> bytes:
        return struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, length, length, strings)

    types_of_all, of_one = types(8, 4) + b"kernel types", types(4, 0) + b"mine"
    cut_off = types(1 << 20, 1 << 20)
    kernel = b"MZ" + of_one + types_of_all + b"code" + cut_off + bytes(100)
    assert in_image(kernel) == types_of_all
