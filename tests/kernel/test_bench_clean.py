# SPDX-License-Identifier: GPL-2.0-or-later
"""A killed benchmark, with databases, a FUSE mount and the agent, is removed by one command."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Iterator

import pytest

from tests.kernel.test_lab_clean import before, check_host, left
from tests.lab.rig import main

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root for loop devices")

__all__ = ["before"]  # a fixture
TOP = Path(__file__).resolve().parents[2]
RUN = """
import sys
from tests.lab import contenders, scenario
from tests.lab.run import Conditions, perform
found = perform(scenario.load(sys.argv[2]), contenders.named(sys.argv[3]), 1,
                Conditions("native", 1.0, sys.argv[1], 8 << 30, "here"))
print(found["error"], flush=True)
"""
LONGEST_S = 10.0  # all runs below take longer: preparations, idle, flood


@pytest.fixture
def prefix() -> Iterator[str]:
    name = f"killed-{os.getpid()}"
    yield name
    main(["clean"])


def clean() -> str:
    """What tests/lab/README.md says to do; by Debian's own Python, which has nothing installed."""
    return subprocess.run(["make", "--silent", "bench-clean"], cwd=TOP, check=True,
                          capture_output=True, text=True).stdout


CASES = [(scenario, contender, seed) for seed in range(3) for scenario, contender in (
    ("flood", "bfq"), ("several-databases", "agent"), ("bystanders", "static-15M"))]


@pytest.mark.full("runs of the lab, killed; the gate has test_lab_clean.py")
@pytest.mark.parametrize("scenario, contender, seed", CASES)
def test_a_killed_run_is_removed(scenario: str, contender: str, seed: int, prefix: str,
                                 before: dict[str, str]) -> None:
    delay = random.Random(f"{scenario} {seed}").uniform(0.5, LONGEST_S)
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, prefix, scenario, contender], stdout=subprocess.DEVNULL,
        start_new_session=True, env=dict(os.environ, PYTHONPATH=str(TOP)))
    time.sleep(delay)
    assert process.poll() is None, "the run ended before it was killed"
    assert "in use, left alone" in clean() or delay < 2
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    clean()
    assert left(prefix) == [], f"killed after {delay:.1f} s"
    check_host(before)
