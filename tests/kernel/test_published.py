# SPDX-License-Identifier: GPL-2.0-or-later
"""Two databases and a flood on one disk, as the published tables have them, for a few seconds."""

from __future__ import annotations

import os

import pytest

from tests.lab import bench, contenders
from tests.lab.bench import Job
from tests.lab.published import MIX, TABLES, figures, made, table
from tests.lab.run import Conditions, perform


@pytest.mark.full("20 s; the gate has tests/unit/test_lab.py")
def test_a_row_of_databases() -> None:
    scenario = made("smoke", "two servers", "slow-raid-256M-60MBps", {"one": MIX, "two": MIX},
                    {"size": "64M"}, 3, "5s..9s")
    contender = contenders.named("static-15M")
    bench.check_tools([Job(scenario, contender, 1)])
    run = perform(scenario, contender, 1, Conditions(
        "native", 1.0, f"published-{os.getpid()}", 8 << 30, "here"))
    assert run["error"] is None
    for window in ("idle", "judged"):
        found = figures(run, window)
        assert None not in found.values(), found
        assert found["per s"] == pytest.approx(40, rel=0.5)  # 20 are due at each
    assert "not measured" not in table(TABLES["databases"], [scenario], [run])[2]
