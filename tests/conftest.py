# SPDX-License-Identifier: GPL-2.0-or-later
"""For all layers: what the gate leaves out is counted, and in CI nothing is skipped or random.

A skip says that something was missing.  On a developer's machine that is fair,
in CI it would let a test die quietly.  Expected failures (xfail) stay what they are.
"""

from __future__ import annotations

import os
from typing import Any, Generator, Sequence, Union

import pytest
from hypothesis import settings

Report = Union[pytest.TestReport, pytest.CollectReport]
IN_CI = os.environ.get("CI") == "true"

# A developer's run looks for new counterexamples, CI repeats the same examples:
# there a red test has to mean that the change at hand did it, not a slow machine.
settings.register_profile("ci", derandomize=True, deadline=None)
if IN_CI:
    settings.load_profile("ci")


def fail_skip(report: Report) -> None:
    """Turn a skip into a failure that gives the skip's reason."""
    if report.outcome != "skipped" or hasattr(report, "wasxfail"):
        return
    where = report.longrepr
    reason = where[2] if isinstance(where, tuple) else str(where)
    report.outcome = "failed"
    report.longrepr = f"CI=true takes no skips: {reason}"


@pytest.hookimpl(hookwrapper=True, trylast=True)
def pytest_runtest_makereport() -> Generator[None, Any, None]:
    outcome = yield
    if IN_CI:
        fail_skip(outcome.get_result())


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, None]:
    outcome = yield
    if IN_CI:
        fail_skip(outcome.get_result())


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Tell tests/run, which names a file for it, which tests only the full suite has."""
    path = os.environ.get("LEFT_OUT")
    # Each of pytest-xdist's workers collects all tests: the first one tells.
    if not path or getattr(items[0].config, "workerinput", {}).get("workerid", "gw0") != "gw0":
        return
    with open(path, "a", encoding="utf-8") as file:
        for item in items:
            mark = item.get_closest_marker("full")
            if mark is not None:
                (why,) = mark.args
                print(f"{item.nodeid.partition('[')[0]}: {why}", file=file)
