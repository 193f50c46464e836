# SPDX-License-Identifier: GPL-2.0-or-later
"""What tests/conftest.py does for the gate, over tests of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from checkout import ROOT

TESTS = """
import pytest

@pytest.mark.full("takes hours")
@pytest.mark.parametrize("number", [1, 2])
def test_long(number): pass

def test_that_skips(): pytest.skip("no disk")
"""


@pytest.mark.parametrize("words", [[], ["-n", "2"]])
def test_what_is_left_out_is_counted_once_and_in_ci_a_skip_fails(
    words: list[str], tmp_path: Path
) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = full(why)\n")
    left_out = tmp_path / "left_out"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "not full", *words, str(tmp_path)],
        # This may itself be a worker of pytest-xdist.
        env={**os.environ, "LEFT_OUT": str(left_out), "CI": "true", "PYTEST_XDIST_WORKER": "gw1"},
        capture_output=True, text=True, check=False,
    )
    assert left_out.read_text() == "test_it.py::test_long: takes hours\n" * 2, done.stdout
    assert done.returncode == 1 and "1 failed" in done.stdout
    assert "CI=true takes no skips: Skipped: no disk" in done.stdout
