# SPDX-License-Identifier: GPL-2.0-or-later
"""A disk that hangs, under this kernel; the other collapses are `python -m tests.lab.alerts`."""

from __future__ import annotations

import os

import pytest

from tests.lab.alerts import LABS, run

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root for loop devices and BPF")


@pytest.mark.full("40 s, for baselines; the gate has tests/sim/test_alerts.py and test_stuck.py")
def test_a_disk_that_hangs_is_told_within_seconds() -> None:
    told = run(next(lab for lab in LABS if lab.name == "stall"))
    assert told.right, told
    assert told.after_s is not None and told.after_s < 10
    (alert,) = [each for each in told.alerts if each["name"] == "STALL"]
    assert alert["severity"] == "critical"
    assert alert["evidence"]["facts"]["inflight"] > 0
