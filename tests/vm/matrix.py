# SPDX-License-Identifier: GPL-2.0-or-later
"""Tries kernels, and records what was proven in results/NAME.json.

    python -m tests.vm.matrix [SUITE | SUITE-bcc | SUITE-procfs | arm64 | host]...

Without arguments all of NAMES, as test_matrix.py does. SUITE: every storage, in a virtual machine.
SUITE-bcc and SUITE-procfs: the same kernel without BTF, and without a probe, under a flood. `host`
is the running kernel, on loop devices; its own disks are not flooded. `make docs` makes the tables
of the manual from the records.
"""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from . import arm64
from .fetch_kernel import CHECKOUT, KernelUnavailable, fetch, fetch_bcc, fetch_storage_tools
from .guest_tests import PYTEST, Run, run_in_guest
from .inside.recorded import FLOOD, IO_INSTRUCTIONS
from .kernels import KERNELS, of_suite
from .machine import GuestFailed, Machine, MachineMissing
from .records import PASSED, Record, bpf_sha256, of_junit, save, unexpected

LEVERS = "tests/kernel/test_levers.py::test_"
LIMIT_TESTS = (
    "tests/kernel/test_vm_limits.py::test_restored_in_the_form_it_was_found",
    f"{LEVERS}all_take_effect_and_go_home", f"{LEVERS}cap_holds_a_flood_and_nothing_but_it",
)  # fmt: skip
STORAGE_TESTS = (*LIMIT_TESTS, "tests/vm/inside/storage_cases.py")
# Those of the daemon on a slow disk of the guest alone.
STORAGE_AND_DAEMON = (*STORAGE_TESTS, "tests/vm/inside/daemon_cases.py")
SUITES = [kernel.suite for kernel in KERNELS]
# Those that take longest first.
NAMES = (
    *SUITES, "arm64", "host",
    *(f"{suite}-{probe}" for probe in ("bcc", "procfs") for suite in SUITES if suite != "sid"),
)  # fmt: skip
# What a slow disk takes: under an endless flood the kernel's own limits mean seconds for a sync.
WRITE_RATE = 20_000_000
# Seconds; a third of it on an idle host.
TIME_LIMIT = 1800.0


def guest_run(name: str, share: Path) -> Run:
    """What a guest's tests did. Raises KernelUnavailable, MachineMissing, GuestFailed."""
    if name == "arm64":
        return arm64.run_cases(share)
    suite, _, probe = name.partition("-")
    kernel, image = of_suite(suite), fetch(suite=suite)
    if probe == "bcc":
        settings = {"WRITEBACKD_BCC": ":".join(map(str, fetch_bcc(image, suite)))}
    elif probe:
        settings = {}
    else:
        tools = ":".join(map(str, fetch_storage_tools()))
        settings = {**kernel.settings, "WRITEBACKD_TOOLS": tools}
    tests = (f"tests/vm/inside/{probe}_cases.py",) if probe else STORAGE_AND_DAEMON
    return run_in_guest(Machine(image, write_rate=WRITE_RATE), tests, settings, share, TIME_LIMIT)


def cost_run(suite: str, share: Path) -> Run:
    """Instructions per IO: see cost_cases.py. Raises as guest_run()."""
    machine = Machine(fetch(suite=suite), counted=True)
    return run_in_guest(machine, ["tests/vm/inside/cost_cases.py"], {}, share, TIME_LIMIT)


def tried(name: str) -> Record:
    """The record of a guest's runs."""
    reports = []
    for run in (guest_run, cost_run) if name in SUITES else (guest_run,):
        with tempfile.TemporaryDirectory(prefix="writebackd-matrix-") as share:
            result, report = run(name, Path(share))
        print(f"{result.output}\n{name}: {result.seconds:.0f} s", flush=True)
        reports.append(report)
    suite = arm64.SUITE if name == "arm64" else name.partition("-")[0]
    return _record(f"Debian {suite}", "virtual machine", *reports)


def tried_here() -> Record:
    """The running kernel."""
    env = {"PYTHONPATH": f"{CHECKOUT}/agent",
           "WRITEBACKD_TOOLS": ":".join(map(str, fetch_storage_tools()))}  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="writebackd-matrix-") as share:
        report = Path(share) / "result.xml"
        subprocess.run(
            [*PYTEST, f"--junitxml={report}", *STORAGE_TESTS],
            cwd=CHECKOUT, env={**os.environ, **env}, check=False,
        )  # fmt: skip
        text = report.read_text()
    record = _record("a build without modules", "the host itself", text)
    return replace(record, release=record.release.partition("-")[0])


def _record(kernel: str, place: str, *reports: str) -> Record:
    outcomes, properties = of_junit(*reports)
    first = {name: values[0] for name, values in properties.items()}
    return Record(
        kernel=kernel, release=first.get("release", "unknown"), machine=first.get("machine", ""),
        place=place, date=datetime.date.today().isoformat(), probe=first.get("backend", "none"),
        request_hook=first.get("request_hook"), fsync_hook=first.get("fsync_hook"),
        misses=properties.get("miss", []),
        io_instructions={key: int(value) for key, value in _named(first, IO_INSTRUCTIONS)},
        flood={key: float(value) for key, value in _named(first, FLOOD)},
        bpf_sha256=bpf_sha256(), outcomes=outcomes,
    )  # fmt: skip


def _named(properties: Mapping[str, str], prefix: str) -> list[tuple[str, str]]:
    """Those whose names begin so, without that."""
    return [(key[len(prefix):], value) for key, value in properties.items()
            if key.startswith(prefix)]  # fmt: skip


def wrong_in(name: str, record: Record) -> list[str]:
    """What failed, or was skipped for what a kernel should have; nobody knows what the host has."""
    outcomes = [outcome for rows in record.outcomes.values() for outcome in rows.values()]
    if name == "host":
        lacks = tuple(outcome.partition("skipped: ")[2] for outcome in outcomes)
    else:
        lacks = of_suite(name).lacks if name in SUITES else ()
    wrong = unexpected(record.outcomes, lacks)
    return wrong if PASSED in outcomes else [*wrong, "nothing passed"]


def renew(name: str) -> list[str]:
    """Try one of NAMES, keep its record, and return what is wrong in it.

    Raises KernelUnavailable, MachineMissing, GuestFailed, and leaves the record then as it was.
    """
    record = tried_here() if name == "host" else tried(name)
    wrong = wrong_in(name, record)
    tests = sum(map(len, record.outcomes.values()))
    print(f"{save(name, record)}: {tests} tests, {len(wrong)} wrong", flush=True)
    return wrong


def main(names: list[str]) -> int:
    """1 when something was wrong anywhere, or could not be tried."""
    good = True
    for name in names or NAMES:
        try:
            wrong = renew(name)
        except (KernelUnavailable, MachineMissing, GuestFailed) as error:
            wrong = [f"{name}: not run: {error}"]
        print(*wrong, sep="\n", flush=True)
        good &= not wrong
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
