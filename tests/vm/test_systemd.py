# SPDX-License-Identifier: GPL-2.0-or-later
"""The units as they are installed, paces and driver modules, in a machine that systemd has booted.

Its time is virtual: leases, watchdogs and start limits are those of a host, and
to wait for them costs nothing but the instructions of the ticks meanwhile.
"""

from __future__ import annotations

import os
import shutil
from compileall import compile_dir
from pathlib import Path

import pytest

from tests.installed import make_install

from . import image, sealed
from .fetch_kernel import CHECKOUT, KernelUnavailable, fetch
from .guest_tests import check_run
from .kernels import missing
from .machine import MachineMissing

INSIDE = "tests/vm/inside"
SYSTEMD, PACE = f"{INSIDE}/systemd_cases.py", f"{INSIDE}/pace_cases.py"
# By machine, so that they take about as long. The first case takes the unit as it is; those after
# it bend its law, and leave it bent.
GROUPS = {
    "units": (SYSTEMD,),
    "paces": (*(f"{PACE}::test_{name}" for name in
                ("killed_at_random_points", "restarted_within_the_lease", "stopped_past_the_lease",
                 "two_daemons", "session", "refused")),
              f"{INSIDE}/module_cases.py", f"{INSIDE}/route_cases.py"),
}
# Without tests/conftest.py and hypothesis, which no case there uses and which take long to import:
# what conftest.py is for, that nothing is skipped, is asserted here.
PYTEST = ("/usr/bin/python3", "-m", "pytest", "-q", "-rP", "--durations=0", "--noconftest",
          "-p", "no:hypothesispytest", "-o", "cache_dir=/tmp/cache")
REPORT = "result.xml"
PACKAGES = ("systemd", "udev", "dbus", "kmod", "mount", "util-linux", "procps", "python3",
            "libbpf1", "python3-psutil", "python3-pyroute2", "python3-systemd", "python3-pytest")
MODULES = ("null_blk", "sd_mod", "scsi_debug", "loop")
# 1 ns for an instruction: a start of the daemon is well within its lease.
SHIFT = 0
# Seconds of wall time.
TIME_LIMIT = 600.0


@pytest.fixture(scope="module")
def kernel() -> Path:
    if os.geteuid() != 0:
        return missing("an image with root's files needs root")
    try:
        sealed.SealedMachine.check_tools()
        return fetch()
    except (MachineMissing, KernelUnavailable) as error:
        return missing(str(error))


def install(tmp_path: Path) -> Path:
    """What is installed, and the checkout's own code compiled, as that is.

    The guest cannot write, and would compile it again with each daemon and watcher that a test
    starts from there.
    """
    tree = make_install(tmp_path)
    for part in ("agent", "tests"):
        copy_of = tree / str(CHECKOUT)[1:] / part
        shutil.copytree(CHECKOUT / part, copy_of, ignore=shutil.ignore_patterns("__pycache__"))
        assert compile_dir(copy_of, stripdir=str(tree), quiet=1)
    return tree


@pytest.fixture(scope="module")
def root(kernel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image; beside it is room for a directory of each group, which it can mount."""
    tmp = tmp_path_factory.mktemp("systemd")
    mountpoints = [*(tmp / name for name in GROUPS), Path("/usr/lib/modules")]
    image.make(tmp / "root", PACKAGES, mountpoints, install(tmp))
    return tmp / "root"


@pytest.mark.full("two more machines; the gate has tests/kernel/test_under_systemd.py")
@pytest.mark.parametrize("name", GROUPS)
def test_cases_hold_under_systemd(kernel: Path, root: Path, name: str) -> None:
    share = root.parent / name
    share.mkdir()
    machine = sealed.SealedMachine(kernel, root, modules=MODULES, systemd=True, shift=SHIFT)
    command = [*PYTEST, f"--junitxml={share / REPORT}", *GROUPS[name]]
    result = machine.run(command, TIME_LIMIT, share=share, env={"PYTHONPATH": "agent"})
    check_run(result, (share / REPORT).read_text())
