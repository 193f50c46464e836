# SPDX-License-Identifier: GPL-2.0-or-later
"""A change of any lever beside the pair is seen at the next look, and left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_levers import CGROUPS
from fake_vm import SYSCTL
from lever_cases import PAIR, UNIT, settle, started, world
from limit_cases import MIB
from writebackd.model import LeverKind, Setting

WISHES = (
    Setting(LeverKind.FLUSH, "vm", "dirty_writeback_centisecs", 100),
    Setting(LeverKind.FLUSH, "vm", "dirty_expire_centisecs", 500),
    Setting(LeverKind.BDI, "8:0", "strict_limit", 1),
    Setting(LeverKind.BDI, "8:0", "max_bytes", 8 * MIB),
    Setting(LeverKind.BDI, "8:0", "min_bytes", 4 * MIB),
    Setting(LeverKind.QUEUE, "sda", "nr_requests", 8),
    Setting(LeverKind.QUEUE, "sda", "max_sectors_kb", 128),
    Setting(LeverKind.PACE, UNIT, "8:0", 20_000_000),
)


@pytest.mark.parametrize(
    "file, value, lever",
    [
        (SYSCTL + "dirty_writeback_centisecs", "0", "flush vm dirty_writeback_centisecs"),
        (SYSCTL + "dirty_expire_centisecs", "100", "flush vm dirty_expire_centisecs"),
        ("/sys/class/bdi/8:0/max_ratio_fine", "500000", "bdi 8:0 max_bytes"),
        ("/sys/class/bdi/8:0/min_ratio_fine", "1", "bdi 8:0 min_bytes"),
        ("/sys/class/bdi/8:0/strict_limit", "0", "bdi 8:0 strict_limit"),
        ("/sys/block/sda/queue/nr_requests", "32", "queue sda nr_requests"),
        ("/sys/block/sda/queue/max_sectors_kb", "64", "queue sda max_sectors_kb"),
        (f"{CGROUPS}{UNIT}/io.max", "8:0 wbps=5", f"pace {UNIT} 8:0"),
    ],
)
def test_a_change_of_any_lever_is_seen_at_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, value: str, lever: str
) -> None:
    files = world(monkeypatch, False)
    actuator = started(files, tmp_path / "ledger.json")
    actuator.apply(*PAIR)
    settle(actuator, *WISHES)
    assert actuator.levers.foreign() == ()
    ours = files.read(file)
    files.poke(file, "8:0 wbps=20000000" if file.endswith("io.max") else ours)
    assert actuator.levers.foreign() == ()  # the same value once more changes nothing
    files.poke(file, value)
    theirs = files.read(file)
    assert theirs != ours
    assert [write.lever for write in actuator.levers.foreign()] == [lever]
    settle(actuator, *WISHES)
    actuator.finish()
    assert files.read(file) == theirs
