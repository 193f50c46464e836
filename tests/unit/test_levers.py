# SPDX-License-Identifier: GPL-2.0-or-later
"""The levers beside the global pair: applied, held per device, told."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Tuple

import pytest

from fake_levers import BDI, CGROUPS, FakeLevers
from fake_vm import DEFAULT
from lever_cases import (
    ALL,
    CAP,
    FIXTURES,
    FLUSH,
    NR,
    OTHERS,
    PAIR,
    UNIT,
    bdi_settings,
    by_lever,
    holding,
    settle,
    started,
)
from limit_cases import MIB, saved
from writebackd.actuate.ledger import load
from writebackd.types.levers import LeverKind, Setting

path, files, plain, systemd = FIXTURES


# -- applying -------------------------------------------------------------------


def test_every_kind_takes_effect_and_goes_home(files: FakeLevers, path: Path) -> None:
    found = files.state()
    actuator = started(files, path)
    actuator.apply(*PAIR)
    actions = settle(actuator, *ALL)
    assert [a for a in actions if not a.ok] == []
    assert len(actions) == len(ALL)
    assert files.flush["dirty_writeback_centisecs"] == 100
    # 8 of 64 MiB is an eighth.
    assert files.bdis["8:0"] == {
        "min_ratio_fine": 125_000, "max_ratio_fine": 125_000, "strict_limit": 1,
    }
    assert files.queues["sda"] == {"nr_requests": 8, "max_sectors_kb": 128}
    assert files.cgroups[UNIT]["8:0"]["wbps"] == "20000000"
    assert settle(actuator, *ALL) == () and actuator.levers.foreign() == ()
    assert all(action.ok for action in actuator.finish())
    assert files.state() == found and load(path) is None


def test_actions_tell_the_old_value_in_its_form(plain: FakeLevers, path: Path) -> None:
    actuator = started(plain, path)
    told = by_lever(settle(actuator, *ALL))
    assert (told["bdi 8:0 max_bytes"].old, told["bdi 8:0 max_bytes"].new) == (
        "max_ratio_fine=1000000", str(8 * MIB),
    )
    name = f"pace {UNIT} 8:0"
    assert (told[name].old, told[name].new) == ("max", "20000000")
    home = by_lever(settle(actuator))
    assert home["bdi 8:0 max_bytes"].new == "max_ratio_fine=1000000"
    assert home["flush vm dirty_writeback_centisecs"].new == "500"


def test_what_is_held_is_told_in_the_units_of_the_settings(files: FakeLevers, path: Path) -> None:
    actuator = started(files, path)
    assert actuator.levers.held(64 * MIB) == ()
    actuator.apply(*PAIR)
    settle(actuator, *ALL)
    held = {(each.kind, each.name): each for each in actuator.levers.held(PAIR[0])}
    assert {(x.kind, x.name): x.value for x in ALL} == {key: x.value for key, x in held.items()}
    assert held[LeverKind.PACE, "8:0"].original is None
    assert held[LeverKind.QUEUE, "nr_requests"].original == 64
    assert held[LeverKind.BDI, "max_bytes"].original == PAIR[0]
    settle(actuator)
    assert actuator.levers.held(PAIR[0]) == ()


def test_what_differs_in_the_kernel_is_found_and_left_as_it_is(
    files: FakeLevers, path: Path
) -> None:
    actuator = holding(files, path, *ALL)
    assert actuator.levers.differing() == ()
    files.poke("/sys/block/sda/queue/nr_requests", "32")
    files.poke(f"{CGROUPS}{UNIT}/io.max", "8:0 wbps=max")
    before = actuator.levers.entries
    found = {str(lever): texts for lever, *texts in actuator.levers.differing()}
    assert found == {
        "queue sda nr_requests": ["8", "32"], f"pace {UNIT} 8:0": ["20000000", "max"]
    }
    assert actuator.levers.entries == before
    # Reading the queue of a disk that hangs in a write would hang as well.
    files.stalled = True
    actuator.apply_settings(OTHERS)
    assert all(lever.kind is not LeverKind.QUEUE for lever, *_ in actuator.levers.differing())
    files.release()


def test_one_that_is_not_named_goes_home_alone(files: FakeLevers, path: Path) -> None:
    actuator = holding(files, path, *ALL)
    settle(actuator, NR)
    assert files.bdis["8:0"] == BDI and files.flush["dirty_writeback_centisecs"] == 500
    assert files.queues["sda"] == {"nr_requests": 8, "max_sectors_kb": 1280}
    assert files.cgroups[UNIT].get("8:0", {}).get("wbps", "max") == "max"
    assert [str(entry.lever) for entry in saved(path).levers] == ["queue sda nr_requests"]


def test_levers_do_without_the_pair_and_the_pair_without_them(
    plain: FakeLevers, path: Path
) -> None:
    actuator = started(plain, path)
    actuator.apply_settings((FLUSH,))
    assert saved(path).written == () and len(saved(path).levers) == 1
    actuator.apply(*PAIR)
    actuator.restore_limits()
    assert plain.limits == DEFAULT and plain.flush["dirty_writeback_centisecs"] == 100
    assert saved(path).written == () and len(saved(path).levers) == 1
    actuator.apply(*PAIR)
    actuator.apply_settings(())
    assert saved(path).written == (PAIR,) and saved(path).levers == ()


def test_no_ledger_no_write(
    files: FakeLevers, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    actuator = started(files, path)
    found = files.state()

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        actions = settle(actuator, *ALL)
    assert {action.lever for action in actions if not action.ok} == {
        f"{s.kind.value} {s.target} {s.name}" for s in ALL
    }
    assert all("No space" in str(action.error) for action in actions)
    assert files.state() == found and files.writes == [] and actuator.levers.entries == ()


def test_a_refused_value_is_told_once_in_a_while_and_leaves_nothing(
    plain: FakeLevers, path: Path
) -> None:
    actuator = started(plain, path)
    bad = Setting(LeverKind.QUEUE, "sda", "nr_requests", 100_000)
    (action,) = settle(actuator, bad)
    assert not action.ok and "refuses" in str(action.error)
    assert plain.queues["sda"]["nr_requests"] == 64
    assert actuator.levers.entries == () and load(path) is None
    assert [action.ok for action in settle(actuator, NR)] == [True]


def test_what_the_kernel_makes_of_a_value_is_ours_too(plain: FakeLevers, path: Path) -> None:
    """max_sectors_kb is cut to what the hardware takes."""
    plain.queues["sda"]["max_sectors_kb"] = 64
    actuator = started(plain, path)
    big = Setting(LeverKind.QUEUE, "sda", "max_sectors_kb", 4096)
    (action,) = settle(actuator, big)
    assert "reads back as 1280" in str(action.error)
    assert actuator.levers.foreign() == ()
    settle(actuator)
    assert plain.queues["sda"]["max_sectors_kb"] == 64


@pytest.mark.parametrize(
    "setting",
    [
        Setting(LeverKind.BDI, "8:99", "max_bytes", MIB),
        Setting(LeverKind.QUEUE, "sdz", "nr_requests", 8),
        Setting(LeverKind.PACE, "/none.service", "8:0", 1),
        Setting(LeverKind.BDI, "8:0", "read_ahead_kb", 8),
        Setting(LeverKind.QUEUE, "sda/../sdb", "nr_requests", 8),
    ],
)
def test_no_such_target_is_an_error_not_a_crash(
    files: FakeLevers, path: Path, setting: Setting
) -> None:
    (action,) = settle(started(files, path), setting)
    assert not action.ok and load(path) is None


# -- BDI -------------------------------------------------------------------------


def test_limits_follow_the_global_one(plain: FakeLevers, path: Path) -> None:
    actuator = started(plain, path)
    for limit in (64 * MIB, 16 * MIB, 15_000_000, 256 * MIB):
        actuator.apply(limit, limit // 2)
        assert all(action.ok for action in settle(actuator, *CAP))
        effective = int(plain.read("/sys/class/bdi/8:0/max_bytes"))
        assert abs(effective - 8 * MIB) < 8 * MIB / 64 + 4096
        assert actuator.levers.foreign() == ()
    actuator.restore()
    assert plain.bdis["8:0"] == BDI and plain.limits == DEFAULT


def test_drift_of_the_threshold_is_not_worth_a_write(plain: FakeLevers, path: Path) -> None:
    actuator = holding(plain, path, *CAP)
    plain.available = plain.available * 100 // 101
    assert settle(actuator, *CAP) == ()
    plain.available = plain.available * 100 // 105
    assert {a.lever for a in settle(actuator, *CAP)} == {"bdi 8:0 max_bytes", "bdi 8:0 min_bytes"}


def test_both_fractions_are_taken_anew_together(plain: FakeLevers, path: Path) -> None:
    """A minimum of today's bytes may be above a maximum of yesterday's."""
    actuator = holding(plain, path, *bdi_settings(8 * MIB, 4 * MIB))
    plain.available = plain.available * 99 // 100
    assert [a for a in settle(actuator, *CAP) if not a.ok] == []
    assert plain.bdis["8:0"]["min_ratio_fine"] == plain.bdis["8:0"]["max_ratio_fine"]


@pytest.mark.parametrize("steps", [(8, 2), (2, 8), (8, 8, 1)])
def test_minimum_never_passes_the_maximum(
    plain: FakeLevers, path: Path, steps: Tuple[int, ...]
) -> None:
    actuator = started(plain, path)
    for step in steps:
        assert all(a.ok for a in settle(actuator, *bdi_settings(step * MIB, step * MIB)))
    names = [name.rpartition("/")[2] for name, _ in plain.writes]
    on = names.index("strict_limit")
    assert {"min_ratio_fine", "max_ratio_fine"} <= set(names[:on])
    del plain.writes[:]
    assert all(action.ok for action in settle(actuator))
    assert plain.writes[0][0].endswith("strict_limit")
    assert plain.bdis["8:0"] == BDI


def test_strict_stays_off_without_the_minimum(plain: FakeLevers, path: Path) -> None:
    """Alone it holds a quiet device to nothing: its writers would sleep."""
    plain.plug("8:16", "sdb")
    plain.poke("/sys/class/bdi/8:16/min_ratio_fine", "985000")
    actuator = started(plain, path)
    actuator.apply(*PAIR)
    told = by_lever(settle(actuator, *CAP))
    assert "refuses" in str(told["bdi 8:0 min_bytes"].error)
    assert "go with it" in str(told["bdi 8:0 strict_limit"].error)
    assert plain.bdis["8:0"]["strict_limit"] == 0


def test_cap_above_the_global_limit_is_no_cap(plain: FakeLevers, path: Path) -> None:
    actuator = started(plain, path)
    actuator.apply(*PAIR)
    settings = (Setting(LeverKind.BDI, "8:0", "max_bytes", 1 << 40),)
    assert all(action.ok for action in settle(actuator, *settings))
    assert plain.bdis["8:0"]["max_ratio_fine"] == 1_000_000


# -- observe -----------------------------------------------------------------------


def test_dry_run_tells_once_and_writes_nothing(files: FakeLevers, path: Path) -> None:
    actuator = started(files, path)
    actuator.dry_run = True
    told = by_lever(actuator.apply_settings(ALL))
    assert len(told) == len(ALL) and all(action.ok for action in told.values())
    assert told["queue sda nr_requests"].old == "64"
    assert actuator.apply_settings(ALL) == ()
    fewer = Setting(LeverKind.QUEUE, "sda", "nr_requests", 4)
    (action,) = actuator.apply_settings((*ALL, fewer))
    assert (action.old, action.new) == ("8", "4")
    assert files.writes == [] and files.commands == [] and load(path) is None


def test_observe_at_run_time_sends_everything_home(files: FakeLevers, path: Path) -> None:
    found = files.state()
    actuator = holding(files, path, *ALL, pair=PAIR)
    actuator.restore()
    actuator.dry_run = True
    for _ in range(4):
        with contextlib.suppress(IndexError):
            actuator.apply_settings(ALL)
    assert files.state() == found and load(path) is None
