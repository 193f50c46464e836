# SPDX-License-Identifier: GPL-2.0-or-later
"""A change of any lever beside the pair is seen at the next look, and left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_levers import BDI, CGROUPS, FakeLevers
from fake_vm import DEFAULT, SYSCTL
from lever_cases import ALL, FIXTURES, FLUSH, OTHERS, PAIR, UNIT, holding, settle, started, world
from writebackd.actuate.ledger_restore import restore_from_ledger
from writebackd.types.levers import LeverKind, Setting

path, files, plain, systemd = FIXTURES


WISHES = (*ALL, OTHERS[0])


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


def test_levers_of_a_bdi_are_let_go_together(plain: FakeLevers, path: Path) -> None:
    """A cap of ours with a minimum of theirs is nobody's wish."""
    actuator = holding(plain, path, *ALL)
    plain.poke("/sys/class/bdi/8:0/max_bytes".replace("max_bytes", "max_ratio_fine"), "500000")
    (write,) = actuator.levers.foreign()
    assert (write.lever, write.value) == ("bdi 8:0 max_bytes", "max_ratio_fine=500000")
    assert {a.lever for a in settle(actuator, *ALL)} == {
        "bdi 8:0 min_bytes", "bdi 8:0 strict_limit",
    }
    assert plain.bdis["8:0"] == {**BDI, "max_ratio_fine": 500_000}


def test_foreign_value_of_this_very_tick_is_not_overwritten(
    plain: FakeLevers, path: Path
) -> None:
    actuator = holding(plain, path, FLUSH)
    plain.poke(SYSCTL + "dirty_writeback_centisecs", "0")
    other = Setting(LeverKind.FLUSH, "vm", "dirty_writeback_centisecs", 200)
    (action,) = actuator.apply_settings((other,))
    assert "another process set 0" in str(action.error)
    assert plain.flush["dirty_writeback_centisecs"] == 0
    assert [w.value for w in actuator.levers.foreign()] == ["0"]


def test_foreign_value_is_not_overwritten_on_the_way_home(plain: FakeLevers, path: Path) -> None:
    actuator = holding(plain, path, FLUSH)
    plain.poke(SYSCTL + "dirty_writeback_centisecs", "0")
    assert actuator.apply_settings(()) == ()
    assert plain.flush["dirty_writeback_centisecs"] == 0
    assert [w.value for w in actuator.levers.foreign()] == ["0"]


def test_limits_that_were_never_ours_are_not_spoken_of(plain: FakeLevers, path: Path) -> None:
    settle(started(plain, path), FLUSH)
    plain.sysctl("dirty_ratio", 33)
    result = restore_from_ledger(plain, path)
    assert result.status == "restored" and len(result.lines) == 1
    assert plain.limits.dirty_ratio == 33


def test_restore_without_the_daemon_leaves_a_foreign_value(
    files: FakeLevers, path: Path
) -> None:
    holding(files, path, *ALL, pair=PAIR)
    files.poke(SYSCTL + "dirty_writeback_centisecs", "0")
    result = restore_from_ledger(files, path)
    assert result.status == "foreign"
    left = "flush vm dirty_writeback_centisecs=0 not restored: another process set it"
    assert left in result.lines
    assert files.limits == DEFAULT and files.bdis["8:0"] == BDI
    assert files.flush["dirty_writeback_centisecs"] == 0
    assert restore_from_ledger(files, path).status == "nothing"
