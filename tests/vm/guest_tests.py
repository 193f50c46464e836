# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs tests in a virtual machine and reads what its pytest wrote.

The guest's pytest writes JUnit XML, of which only passed tests count as evidence: a skip fails.
An xfail does not: the test says that this kernel may refuse what it asks for.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Tuple
from xml.etree import ElementTree

import pytest

from .fetch_kernel import CHECKOUT
from .machine import Machine, Result
from .records import REFUSED

# Without what none of these uses and what takes long to import.
PYTEST = (
    sys.executable, "-m", "pytest", "-q", "-s", "-rs", "--noconftest", "-p", "no:hypothesispytest",
    "-p", "no:xdist", "--durations=0",
)  # fmt: skip
# Seconds. The boot takes 12-20 on an idle host, each probe that is opened 10, on a busy one three
# times that.
TIME_LIMIT = 900.0

Run = Tuple[Result, str]  # and the JUnit XML


@dataclass(frozen=True)
class Tally:
    """Outcome of a test run; passed counts tests that ran to their end and held."""

    passed: int
    failed: tuple[str, ...]
    skipped: tuple[str, ...]

    @property
    def proves(self) -> bool:
        """True when something ran, and nothing failed or was skipped."""
        return self.passed > 0 and not self.failed and not self.skipped


def read_junit(text: str) -> Tally:
    """Count the test cases of a JUnit XML report."""
    passed = 0
    failed: list[str] = []
    skipped: list[str] = []
    for case in ElementTree.fromstring(text).iter("testcase"):
        name = case.get("name")
        skip = case.find("skipped")
        # A test that failed may also have an error, in the teardown.
        wrong = [each for each in case if each.tag in ("failure", "error")]
        failed += [f"{name}: {each.text or each.get('message')}" for each in wrong]
        if skip is not None and not wrong and skip.get("type") != REFUSED:
            skipped.append(f"{name}: {skip.get('message')}")
        passed += skip is None and not wrong
    return Tally(passed, tuple(failed), tuple(skipped))


def check_run(result: Result, report: str) -> None:
    """Fail unless the guest's tests, of which `report` is the JUnit XML, prove something.

    Names of what failed come first, its text last: who cuts a long report keeps one of them.
    """
    print(f"\nguest: booted in {result.booted_s:.0f} s, off after {result.seconds:.0f} s")
    tally = read_junit(report)
    if not tally.proves or result.returncode:
        names = [each.partition(": ")[0] for each in (*tally.failed, *tally.skipped)]
        pytest.fail("\n\n".join([
            " ".join(["in the guest:", *names]), result.output.rstrip(),
            f"{tally.passed} passed, exit code {result.returncode}",
            *(f"skipped: {each}" for each in tally.skipped),
            *(f"failed: {each}" for each in tally.failed),
        ]), pytrace=False)  # fmt: skip
    print(result.output)


def run_in_guest(
    machine: Machine, tests: Sequence[str], settings: Mapping[str, str], share: Path,
    time_limit: float = TIME_LIMIT,
) -> Run:
    """What the guest's pytest did with `tests`, and its JUnit XML, which it writes to `share`."""
    report = share / "result.xml"
    command = [*PYTEST, f"--junitxml={report}", *tests]
    argv = ["sh", "-c", 'echo "kernel $(uname -r)"; exec "$@"', "sh", *command]
    env = {"PYTHONPATH": f"{CHECKOUT}/agent", **settings}
    result = machine.run(argv, time_limit, share=share, env=env)
    assert report.exists(), f"pytest did not start in the guest:\n{result.output}"
    return result, report.read_text()


def check_tests(
    machine: Machine, tests: Sequence[str], settings: Mapping[str, str], share: Path,
    time_limit: float = TIME_LIMIT,
) -> None:
    """Run tests in the guest; fail unless all of them passed."""
    check_run(*run_in_guest(machine, tests, settings, share, time_limit))
