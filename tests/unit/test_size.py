# SPDX-License-Identifier: GPL-2.0-or-later
"""The checkout stays within the lines that [size] in setup.cfg allows."""

from __future__ import annotations

import configparser
from pathlib import PurePath
from typing import Dict

import pytest

from checkout import ROOT, files

SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")
BUDGET = {pattern: int(lines) for pattern, lines in SETUP["size"].items()}
# Lines by which an entry may be too large: who cuts more lowers it in the same commit.
SLACK = 100


def belongs(name: str, pattern: str) -> bool:
    return name.startswith(pattern + "/") or PurePath(name).match(pattern)


@pytest.fixture(scope="module")
def lines() -> Dict[str, int]:
    """Lines of each file that counts: the agent's Python, all of tests/ and docs/."""
    paths = files("agent/*.py", "tests", "docs")
    return {str(path.relative_to(ROOT)): path.read_bytes().count(b"\n") for path in paths}


@pytest.mark.parametrize("pattern", BUDGET)
def test_no_part_outgrows_its_budget(pattern: str, lines: Dict[str, int]) -> None:
    size = sum(count for name, count in lines.items() if belongs(name, pattern))
    assert size <= BUDGET[pattern], "make it shorter, or lower another entry by as much"
    assert size > BUDGET[pattern] - SLACK, f"lower the entry in setup.cfg to {size}"


def test_every_file_has_a_budget_of_its_part(lines: Dict[str, int]) -> None:
    parts = [pattern for pattern in BUDGET if "/" in pattern]
    assert not [
        name
        for name in lines
        if not name.startswith("docs/") and not any(belongs(name, part) for part in parts)
    ]
