# SPDX-License-Identifier: GPL-2.0-or-later
"""The units as they are installed, paces and driver modules, in a machine that systemd has booted.

Its time is virtual: leases, watchdogs and start limits are those of a host, and
to wait for them costs nothing but the instructions of the ticks meanwhile.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from . import image, sealed
from .fetch_kernel import CHECKOUT, KernelUnavailable, fetch
from .machine import MachineMissing
from .test_vm import missing, read_junit

INSIDE = "tests/vm/inside"
# What has been seen to hold; the others there are run by name (docs/reliability.md).
CASES = (
    f"{INSIDE}/systemd_cases.py::test_as_installed_and_stopped_in_order",
    f"{INSIDE}/systemd_cases.py::test_raid_tools_are_asked_in_their_sandbox",
    f"{INSIDE}/systemd_cases.py::test_killed",
    f"{INSIDE}/systemd_cases.py::test_start_limit",
    f"{INSIDE}/pace_cases.py::test_killed_at_random_points",
    f"{INSIDE}/module_cases.py",
)
PACKAGES = ("systemd", "udev", "kmod", "mount", "util-linux", "procps", "python3", "libbpf1",
            "python3-psutil", "python3-pyroute2", "python3-systemd", "python3-pytest",
            "python3-hypothesis")
MODULES = ("null_blk", "sd_mod", "scsi_debug", "loop")
PARTS = ("LICENSE", "MANIFEST.in", "Makefile", "README.md", "pyproject.toml", "setup.cfg", "agent",
         "bpf", "docs", "policies", "systemd")
# 1 ns for an instruction: a start of the daemon is well within its lease.
SHIFT = 0
# Seconds of wall time.
TIME_LIMIT = 300.0


@pytest.fixture(scope="module")
def kernel() -> Path:
    if os.geteuid() != 0:
        return missing("an image with root's files needs root")
    try:
        sealed.check_tools()
        return fetch()
    except (MachineMissing, KernelUnavailable) as error:
        return missing(str(error))


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """What `make install` makes of this checkout, with the probe that lies in it."""
    checkout, tree = tmp_path / "checkout", tmp_path / "installed"
    checkout.mkdir()
    for part in PARTS:
        source = CHECKOUT / part
        copy = shutil.copytree if source.is_dir() else shutil.copy2
        copy(source, checkout / part)
    done = subprocess.run(
        ["make", "-s", "install", f"DESTDIR={tree}"], cwd=checkout, text=True,
        env={**os.environ, "WRITEBACKD_BUILD_PROBE": "no"}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    probe = Path("writebackd/_bpf")
    shutil.copytree(CHECKOUT / "agent" / probe, tree / "usr/lib/writebackd" / probe,
                    dirs_exist_ok=True)
    return tree


def test_units_paces_and_modules(kernel: Path, installed: Path, tmp_path: Path) -> None:
    share, root = tmp_path / "share", tmp_path / "root"
    share.mkdir()
    image.make(root, PACKAGES, [share], installed)
    report = share / "result.xml"
    command = ["/usr/bin/python3", "-m", "pytest", "-q", "-rP", "-o", "cache_dir=/tmp/cache",
               f"--junitxml={report}"]
    machine = sealed.SealedMachine(kernel, root, modules=MODULES, systemd=True, shift=SHIFT)

    result = machine.run([*command, *CASES], TIME_LIMIT, share=share, env={"PYTHONPATH": "agent"})

    print(f"\nguest: booted in {result.booted_s:.0f} s, off after {result.seconds:.0f} s")
    print(result.output)
    tally = read_junit(report.read_text())
    assert tally.proves and not tally.skipped and result.returncode == 0, result.output
