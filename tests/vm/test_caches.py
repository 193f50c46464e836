# SPDX-License-Identifier: GPL-2.0-or-later
"""bcache, dm-writecache and dm-cache as the kernel has them, in a machine in virtual time."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import image, sealed
from .guest_tests import check_run
from .test_systemd import PYTEST, REPORT, install, kernel  # noqa: F401

CASES = ("tests/vm/inside/cache_cases.py", "tests/vm/inside/cache_drain_cases.py")
PACKAGES = ("bcache-tools", "dmsetup", "e2fsprogs", "mount", "util-linux", "procps", "python3",
            "libbpf1", "python3-psutil", "python3-pyroute2", "python3-pytest")
MODULES = ("null_blk", "bcache", "dm-writecache", "dm-cache", "dm-cache-smq")
# Seconds of wall time.
TIME_LIMIT = 1200.0


@pytest.mark.full("another machine; parsers and levers have unit tests")
def test_cases_hold_with_real_caches(kernel: Path, tmp_path: Path) -> None:  # noqa: F811
    share = tmp_path / "share"
    share.mkdir()
    image.make(tmp_path / "root", PACKAGES, [share], install(tmp_path))
    machine = sealed.SealedMachine(kernel, tmp_path / "root", modules=MODULES, shift=0)
    command = [*PYTEST, f"--junitxml={share / REPORT}", *CASES]
    result = machine.run(command, TIME_LIMIT, share=share, env={"PYTHONPATH": "agent"})
    check_run(result, (share / REPORT).read_text())
