# SPDX-License-Identifier: GPL-2.0-or-later
"""For all layers: where CI=true a skipped test is a failed one, and no test rolls dice.

A skip says that something was missing.  On a developer's machine that is fair,
in CI it would let a test die quietly.  Expected failures (xfail) stay what they are.
"""

from __future__ import annotations

import os
from typing import Any, Generator, Union

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
