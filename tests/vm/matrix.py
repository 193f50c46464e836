# SPDX-License-Identifier: GPL-2.0-or-later
"""Tries kernels with every storage, and records what was proven in results/NAME.json.

    python -m tests.vm.matrix [SUITE | host]...

Without arguments all of KERNELS, in virtual machines. `host` is the running kernel, on loop
devices; its own disks are not flooded. `make docs` makes the tables of the manual from the records.
"""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from .fetch_kernel import CHECKOUT, fetch, fetch_storage_tools
from .guest_tests import PYTEST, run_in_guest
from .kernels import KERNELS, Kernel, of_suite
from .machine import Machine
from .records import Record, of_junit, save

LEVERS = "tests/kernel/test_levers.py::test_"
LIMIT_TESTS = (
    "tests/kernel/test_vm_limits.py::test_restored_in_the_form_it_was_found",
    f"{LEVERS}all_take_effect_and_go_home", f"{LEVERS}cap_holds_a_flood_and_nothing_but_it",
)  # fmt: skip
STORAGE_TESTS = ("tests/vm/inside/storage_cases.py",)
# On a slow disk of the guest alone.
DAEMON_TESTS = ("tests/vm/inside/daemon_cases.py",)
# What a slow disk takes: under an endless flood the kernel's own limits mean seconds for a sync.
WRITE_RATE = 20_000_000
# Seconds; a third of it on an idle host.
TIME_LIMIT = 1800.0


def tried(kernel: Kernel) -> Record:
    """In a virtual machine. Raises KernelUnavailable, MachineMissing, GuestFailed."""
    machine = Machine(fetch(suite=kernel.suite), write_rate=WRITE_RATE)
    settings = {**kernel.settings, "WRITEBACKD_TOOLS": ":".join(map(str, fetch_storage_tools()))}
    tests = (*LIMIT_TESTS, *STORAGE_TESTS, *DAEMON_TESTS)
    with tempfile.TemporaryDirectory(prefix="writebackd-matrix-") as share:
        result, report = run_in_guest(machine, tests, settings, Path(share), TIME_LIMIT)
    print(f"{result.output}\n{kernel.suite}: {result.seconds:.0f} s", flush=True)
    release = result.output.partition("kernel ")[2].split()[0]
    return _record(f"Debian {kernel.suite}", release, "virtual machine", report)


def tried_here() -> Record:
    """The running kernel."""
    env = {"PYTHONPATH": f"{CHECKOUT}/agent",
           "WRITEBACKD_TOOLS": ":".join(map(str, fetch_storage_tools()))}  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="writebackd-matrix-") as share:
        report = Path(share) / "result.xml"
        subprocess.run(
            [*PYTEST, f"--junitxml={report}", *LIMIT_TESTS, *STORAGE_TESTS],
            cwd=CHECKOUT, env={**os.environ, **env}, check=False,
        )  # fmt: skip
        text = report.read_text()
    return _record("running kernel", os.uname().release, "the host itself", text)


def _record(kernel: str, release: str, place: str, report: str) -> Record:
    outcomes, properties = of_junit(report)
    return Record(
        kernel=kernel, release=release, machine=os.uname().machine, place=place,
        date=datetime.date.today().isoformat(), probe="libbpf",
        request_hook=properties.get("request_hook", [None])[0],
        fsync_hook=properties.get("fsync_hook", [None])[0],
        misses=properties.get("miss", []), outcomes=outcomes,
    )  # fmt: skip


def main(names: list[str]) -> int:
    """1 when a test failed anywhere."""
    good = True
    for name in names or [kernel.suite for kernel in KERNELS]:
        record = tried_here() if name == "host" else tried(of_suite(name))
        found = [outcome for rows in record.outcomes.values() for outcome in rows.values()]
        failed = sum(outcome.startswith("failed") for outcome in found)
        print(f"{save(name, record)}: {len(found)} tests, {failed} failed", flush=True)
        good &= not failed
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
