# SPDX-License-Identifier: GPL-2.0-or-later
"""Each promise in docs/reference/promises.md names tests that exist, and that run where it says."""

from __future__ import annotations

import ast
import re
from typing import Dict, Iterator, List

from checkout import ROOT
from tests import mutants

PAGE = ROOT / "docs/reference/promises.md"
# Tables without promises: they say which file is whose, and what test_rails.py holds.
NO_PROMISES = ("file in `/run/writebackd`", "rail")
NAME = re.compile(r"`(test_\w+)`")


def rows(page: str) -> Iterator[str]:
    """The lines of its tables that promise something."""
    head = ""
    for line in page.splitlines():
        if not line.startswith("|"):
            head = ""
        elif not head:
            head = line.split("|")[1].strip()
        elif head not in NO_PROMISES and not line.startswith("|---"):
            yield line


def collected() -> Dict[str, List[bool]]:
    """By name, for each of that name: whether `tests/run full` alone runs all of it."""
    found: Dict[str, List[bool]] = {}
    for path in sorted((ROOT / "tests").glob("*/test_*.py")):
        text = path.read_text()
        of_all = "\npytestmark = pytest.mark.full(" in text
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                # A mark in a parameter leaves the others to the gate.
                marks = [ast.unparse(each) for each in node.decorator_list]
                found.setdefault(node.name, []).append(
                    of_all or any(mark.startswith("pytest.mark.full") for mark in marks))
    return found


def wrong(page: str) -> List[str]:
    """What does not hold of it, a line each."""
    known, found = collected(), []
    for row in rows(page):
        if not NAME.search(row):
            found.append(f"no test proves this: {row}")
        for name in NAME.findall(row):
            full = all(known.get(name, ["*full*" in row]))
            if full != ("*full*" in row):
                found.append(f"{name} runs {'only in the full suite' if full else 'always'}")
    found += [f"no test is named {name}" for name in NAME.findall(page) if name not in known]
    return found


def test_every_promise_has_a_test_where_it_says() -> None:
    page = PAGE.read_text()
    assert len(list(rows(page))) > 60, "the page is not read as it is written"
    assert wrong(page) == []


def test_every_promise_has_a_mutant_that_can_be_made() -> None:
    """`tests/mutants.py` breaks them, but for those that only a guest shows."""
    assert [NAME.findall(row) for row in mutants.without()] == [
        ["test_a_shutdown_drains_for_a_bounded_time"], ["test_cases_hold_under_systemd"],
    ]  # fmt: skip
    for test, several in mutants.MUTANTS.items():
        for each in several:
            text = (ROOT / "agent/writebackd" / each.file).read_text()
            assert text.count(each.old) == 1, f"{test}: {each.old!r}"
