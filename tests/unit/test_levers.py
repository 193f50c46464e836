# SPDX-License-Identifier: GPL-2.0-or-later
"""The levers beside the global pair: set, others' values, the way home, paces."""

from __future__ import annotations

import contextlib
import copy
import errno
import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Callable, Iterator, Sequence, Tuple

import pytest

from fake_levers import BDI, CGROUPS, FakeLevers
from fake_vm import DEFAULT, SYSCTL, Crash
from lever_cases import (
    ALL,
    CAP,
    FIXTURES,
    FLUSH,
    NR,
    OTHERS,
    PAIR,
    SPELL,
    UNIT,
    bdi_settings,
    by_lever,
    holding,
    pace,
    settle,
    started,
    world,
)
from limit_cases import MIB, saved
from writebackd.actuate import lever_plan
from writebackd.actuate.actuator import Actuator
from writebackd.actuate.ledger import LeverEntry, load
from writebackd.actuate.ledger_restore import restore_from_ledger
from writebackd.actuate.lever_writer import Levers
from writebackd.kernel import cgroup_io_max
from writebackd.kernel.child_process import Ended
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.lever_files import Lever, identity, is_lever
from writebackd.safe_files import with_checksum
from writebackd.types.levers import LeverKind, Setting, VmLimits

files, plain, systemd = FIXTURES


# -- applying -------------------------------------------------------------------


def test_every_kind_takes_effect_and_goes_home(files: FakeLevers) -> None:
    found = files.state()
    actuator = started(files)
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
    assert files.state() == found and load(files.ledger) is None


def test_actions_tell_the_old_value_in_its_form(plain: FakeLevers) -> None:
    actuator = started(plain)
    told = by_lever(settle(actuator, *ALL))
    assert (told["bdi 8:0 max_bytes"].old, told["bdi 8:0 max_bytes"].new) == (
        "max_ratio_fine=1000000", str(8 * MIB),
    )
    name = f"pace {UNIT} 8:0"
    assert (told[name].old, told[name].new) == ("max", "20000000")
    home = by_lever(settle(actuator))
    assert home["bdi 8:0 max_bytes"].new == "max_ratio_fine=1000000"
    assert home["flush vm dirty_writeback_centisecs"].new == "500"


def test_what_is_held_is_told_in_the_units_of_the_settings(files: FakeLevers) -> None:
    actuator = started(files)
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


def test_what_differs_in_the_kernel_is_found_and_left_as_it_is(files: FakeLevers) -> None:
    actuator = holding(files, *ALL)
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


def test_one_that_is_not_named_goes_home_alone(files: FakeLevers) -> None:
    actuator = holding(files, *ALL)
    settle(actuator, NR)
    assert files.bdis["8:0"] == BDI and files.flush["dirty_writeback_centisecs"] == 500
    assert files.queues["sda"] == {"nr_requests": 8, "max_sectors_kb": 1280}
    assert files.cgroups[UNIT].get("8:0", {}).get("wbps", "max") == "max"
    assert [str(entry.lever) for entry in saved(files.ledger).levers] == ["queue sda nr_requests"]


def test_levers_do_without_the_pair_and_the_pair_without_them(plain: FakeLevers) -> None:
    actuator = started(plain)
    actuator.apply_settings((FLUSH,))
    assert saved(plain.ledger).written == () and len(saved(plain.ledger).levers) == 1
    actuator.apply(*PAIR)
    actuator.restore_limits()
    assert plain.limits == DEFAULT and plain.flush["dirty_writeback_centisecs"] == 100
    assert saved(plain.ledger).written == () and len(saved(plain.ledger).levers) == 1
    actuator.apply(*PAIR)
    actuator.apply_settings(())
    assert saved(plain.ledger).written == (PAIR,) and saved(plain.ledger).levers == ()


def test_no_ledger_no_write(files: FakeLevers, monkeypatch: pytest.MonkeyPatch) -> None:
    actuator = started(files)
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


def test_a_refused_value_is_told_once_in_a_while_and_leaves_nothing(plain: FakeLevers) -> None:
    actuator = started(plain)
    bad = Setting(LeverKind.QUEUE, "sda", "nr_requests", 100_000)
    (action,) = settle(actuator, bad)
    assert not action.ok and "refuses" in str(action.error)
    assert plain.queues["sda"]["nr_requests"] == 64
    assert actuator.levers.entries == () and load(plain.ledger) is None
    assert [action.ok for action in settle(actuator, NR)] == [True]


def test_what_the_kernel_makes_of_a_value_is_ours_too(plain: FakeLevers) -> None:
    """max_sectors_kb is cut to what the hardware takes."""
    plain.queues["sda"]["max_sectors_kb"] = 64
    actuator = started(plain)
    big = Setting(LeverKind.QUEUE, "sda", "max_sectors_kb", 4096)
    (action,) = settle(actuator, big)
    assert "reads back as 1280" in str(action.error)
    assert actuator.levers.foreign() == ()
    settle(actuator)
    assert plain.queues["sda"]["max_sectors_kb"] == 64


@pytest.mark.parametrize("setting", [
    Setting(LeverKind.BDI, "8:99", "max_bytes", MIB),
    Setting(LeverKind.QUEUE, "sdz", "nr_requests", 8),
    Setting(LeverKind.PACE, "/none.service", "8:0", 1),
    Setting(LeverKind.BDI, "8:0", "read_ahead_kb", 8),
    Setting(LeverKind.QUEUE, "sda/../sdb", "nr_requests", 8),
])  # fmt: skip
def test_no_such_target_is_an_error_not_a_crash(files: FakeLevers, setting: Setting) -> None:
    (action,) = settle(started(files), setting)
    assert not action.ok and load(files.ledger) is None


# -- BDI -------------------------------------------------------------------------


def test_limits_follow_the_global_one(plain: FakeLevers) -> None:
    actuator = started(plain)
    for limit in (64 * MIB, 16 * MIB, 15_000_000, 256 * MIB):
        actuator.apply(limit, limit // 2)
        assert all(action.ok for action in settle(actuator, *CAP))
        effective = int(plain.read("/sys/class/bdi/8:0/max_bytes"))
        assert abs(effective - 8 * MIB) < 8 * MIB / 64 + 4096
        assert actuator.levers.foreign() == ()
    actuator.restore()
    assert plain.bdis["8:0"] == BDI and plain.limits == DEFAULT


def test_drift_of_the_threshold_is_not_worth_a_write(plain: FakeLevers) -> None:
    actuator = holding(plain, *CAP)
    plain.available = plain.available * 100 // 101
    assert settle(actuator, *CAP) == ()
    plain.available = plain.available * 100 // 105
    assert {a.lever for a in settle(actuator, *CAP)} == {"bdi 8:0 max_bytes", "bdi 8:0 min_bytes"}


def test_both_fractions_are_taken_anew_together(plain: FakeLevers) -> None:
    """A minimum of today's bytes may be above a maximum of yesterday's."""
    actuator = holding(plain, *bdi_settings(8 * MIB, 4 * MIB))
    plain.available = plain.available * 99 // 100
    assert [a for a in settle(actuator, *CAP) if not a.ok] == []
    assert plain.bdis["8:0"]["min_ratio_fine"] == plain.bdis["8:0"]["max_ratio_fine"]


@pytest.mark.parametrize("steps", [(8, 2), (2, 8), (8, 8, 1)])
def test_minimum_never_passes_the_maximum(plain: FakeLevers, steps: Tuple[int, ...]) -> None:
    actuator = started(plain)
    for step in steps:
        assert all(a.ok for a in settle(actuator, *bdi_settings(step * MIB, step * MIB)))
    names = [name.rpartition("/")[2] for name, _ in plain.writes]
    on = names.index("strict_limit")
    assert {"min_ratio_fine", "max_ratio_fine"} <= set(names[:on])
    del plain.writes[:]
    assert all(action.ok for action in settle(actuator))
    assert plain.writes[0][0].endswith("strict_limit")
    assert plain.bdis["8:0"] == BDI


def test_strict_stays_off_without_the_minimum(plain: FakeLevers) -> None:
    """Alone it holds a quiet device to nothing: its writers would sleep."""
    plain.plug("8:16", "sdb")
    plain.poke("/sys/class/bdi/8:16/min_ratio_fine", "985000")
    actuator = started(plain)
    actuator.apply(*PAIR)
    told = by_lever(settle(actuator, *CAP))
    assert "refuses" in str(told["bdi 8:0 min_bytes"].error)
    assert "go with it" in str(told["bdi 8:0 strict_limit"].error)
    assert plain.bdis["8:0"]["strict_limit"] == 0


def test_cap_above_the_global_limit_is_no_cap(plain: FakeLevers) -> None:
    actuator = started(plain)
    actuator.apply(*PAIR)
    settings = (Setting(LeverKind.BDI, "8:0", "max_bytes", 1 << 40),)
    assert all(action.ok for action in settle(actuator, *settings))
    assert plain.bdis["8:0"]["max_ratio_fine"] == 1_000_000


# -- observe -----------------------------------------------------------------------


def test_dry_run_tells_once_and_writes_nothing(files: FakeLevers) -> None:
    actuator = started(files)
    actuator.dry_run = True
    told = by_lever(actuator.apply_settings(ALL))
    assert len(told) == len(ALL) and all(action.ok for action in told.values())
    assert told["queue sda nr_requests"].old == "64"
    assert actuator.apply_settings(ALL) == ()
    fewer = Setting(LeverKind.QUEUE, "sda", "nr_requests", 4)
    (action,) = actuator.apply_settings((*ALL, fewer))
    assert (action.old, action.new) == ("8", "4")
    assert files.writes == [] and files.commands == [] and load(files.ledger) is None


def test_observe_at_run_time_sends_everything_home(files: FakeLevers) -> None:
    found = files.state()
    actuator = holding(files, *ALL, pair=PAIR)
    actuator.restore()
    actuator.dry_run = True
    for _ in range(4):
        with contextlib.suppress(IndexError):
            actuator.apply_settings(ALL)
    assert files.state() == found and load(files.ledger) is None


# ==== what others set =================================================================


WISHES = (*ALL, OTHERS[0])


@pytest.mark.parametrize("file, value, lever", [
    (SYSCTL + "dirty_writeback_centisecs", "0", "flush vm dirty_writeback_centisecs"),
    (SYSCTL + "dirty_expire_centisecs", "100", "flush vm dirty_expire_centisecs"),
    ("/sys/class/bdi/8:0/max_ratio_fine", "500000", "bdi 8:0 max_bytes"),
    ("/sys/class/bdi/8:0/min_ratio_fine", "1", "bdi 8:0 min_bytes"),
    ("/sys/class/bdi/8:0/strict_limit", "0", "bdi 8:0 strict_limit"),
    ("/sys/block/sda/queue/nr_requests", "32", "queue sda nr_requests"),
    ("/sys/block/sda/queue/max_sectors_kb", "64", "queue sda max_sectors_kb"),
    (f"{CGROUPS}{UNIT}/io.max", "8:0 wbps=5", f"pace {UNIT} 8:0"),
])  # fmt: skip
def test_a_change_of_any_lever_is_seen_at_the_next_look(
    plain: FakeLevers, file: str, value: str, lever: str
) -> None:
    actuator = holding(plain, *WISHES, pair=PAIR)
    assert actuator.levers.foreign() == ()
    ours = plain.read(file)
    plain.poke(file, "8:0 wbps=20000000" if file.endswith("io.max") else ours)
    assert actuator.levers.foreign() == ()  # the same value once more changes nothing
    plain.poke(file, value)
    theirs = plain.read(file)
    assert theirs != ours
    assert [write.lever for write in actuator.levers.foreign()] == [lever]
    settle(actuator, *WISHES)
    actuator.finish()
    assert plain.read(file) == theirs


def test_levers_of_a_bdi_are_let_go_together(plain: FakeLevers) -> None:
    """A cap of ours with a minimum of theirs is nobody's wish."""
    actuator = holding(plain, *ALL)
    plain.poke("/sys/class/bdi/8:0/max_bytes".replace("max_bytes", "max_ratio_fine"), "500000")
    (write,) = actuator.levers.foreign()
    assert (write.lever, write.value) == ("bdi 8:0 max_bytes", "max_ratio_fine=500000")
    assert {a.lever for a in settle(actuator, *ALL)} == {
        "bdi 8:0 min_bytes", "bdi 8:0 strict_limit",
    }
    assert plain.bdis["8:0"] == {**BDI, "max_ratio_fine": 500_000}


def test_foreign_value_of_this_very_tick_is_not_overwritten(plain: FakeLevers) -> None:
    actuator = holding(plain, FLUSH)
    plain.poke(SYSCTL + "dirty_writeback_centisecs", "0")
    other = Setting(LeverKind.FLUSH, "vm", "dirty_writeback_centisecs", 200)
    (action,) = actuator.apply_settings((other,))
    assert "another process set 0" in str(action.error)
    assert plain.flush["dirty_writeback_centisecs"] == 0
    assert [w.value for w in actuator.levers.foreign()] == ["0"]


def test_foreign_value_is_not_overwritten_on_the_way_home(plain: FakeLevers) -> None:
    actuator = holding(plain, FLUSH)
    plain.poke(SYSCTL + "dirty_writeback_centisecs", "0")
    assert actuator.apply_settings(()) == ()
    assert plain.flush["dirty_writeback_centisecs"] == 0
    assert [w.value for w in actuator.levers.foreign()] == ["0"]


def test_limits_that_were_never_ours_are_not_spoken_of(plain: FakeLevers) -> None:
    settle(started(plain), FLUSH)
    plain.sysctl("dirty_ratio", 33)
    result = restore_from_ledger(plain, plain.ledger)
    assert result.status == "restored" and len(result.lines) == 1
    assert plain.limits.dirty_ratio == 33


def test_restore_without_the_daemon_leaves_a_foreign_value(files: FakeLevers) -> None:
    holding(files, *ALL, pair=PAIR)
    files.poke(SYSCTL + "dirty_writeback_centisecs", "0")
    result = restore_from_ledger(files, files.ledger)
    assert result.status == "foreign"
    left = "flush vm dirty_writeback_centisecs=0 not restored: another process set it"
    assert left in result.lines
    assert files.limits == DEFAULT and files.bdis["8:0"] == BDI
    assert files.flush["dirty_writeback_centisecs"] == 0
    assert restore_from_ledger(files, files.ledger).status == "nothing"


# ==== the way home ====================================================================


# -- devices that go ---------------------------------------------------------------


def test_unplugged_device_is_dropped_and_its_successor_is_another(plain: FakeLevers) -> None:
    actuator = holding(plain, *CAP, NR)
    plain.unplug("8:0", "sda")
    assert actuator.levers.foreign() == ()
    assert actuator.levers.entries == ()
    plain.plug("8:0", "sda")
    assert actuator.levers.foreign() == ()
    assert plain.bdis["8:0"] == BDI
    assert all(action.ok for action in settle(actuator, *CAP, NR))
    settle(actuator)
    assert plain.bdis["8:0"] == BDI and load(plain.ledger) is None


def test_replaced_between_two_ticks(plain: FakeLevers) -> None:
    actuator = holding(plain, *CAP, NR)
    plain.unplug("8:0", "sda")
    plain.plug("8:0", "sda")
    plain.poke("/sys/block/sda/queue/nr_requests", "8")  # by chance what we wrote
    actuator.levers.foreign()
    actuator.finish()
    assert plain.queues["sda"]["nr_requests"] == 8 and plain.bdis["8:0"] == BDI


def test_removed_cgroup_is_dropped(plain: FakeLevers) -> None:
    actuator = holding(plain, pace(5))
    plain.rmdir(UNIT)
    assert settle(actuator) == () and load(plain.ledger) is None


ACTUATE = "writebackd.actuate."


class Clock:
    """In the place of time.monotonic."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_what_comes_and_goes_by_the_thousand_is_forgotten(
    systemd: FakeLevers, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr("time.monotonic", clock)
    hand = Levers(systemd, save=lambda: None)
    assert systemd.units is not None
    for number in range(400):
        unit, devno, disk = f"job-{number}.service", f"7:{number}", f"loop{number}"
        cgroup = f"/system.slice/{unit}"
        systemd.units[unit] = []
        systemd.mkdir(cgroup)
        systemd.plug(devno, disk)
        if number % 4 == 1:
            systemd.write_errors = {f"systemctl {unit}": (1, False)}
        if number % 4 == 2:
            systemd.bdis[devno]["strict_limit"] = 1  # unfit, like every FUSE mount
        settings = (
            Setting(LeverKind.PACE, cgroup, "8:0", 5),
            *(replace(each, target=devno) for each in CAP),
            Setting(LeverKind.QUEUE, disk, "nr_requests", 8),
        )
        hand.apply(settings)
        hand.apply(settings)
        systemd.write_errors = {}
        if number % 4 == 3:
            systemd.poke(f"{CGROUPS}{cgroup}/io.max", "8:0 wbps=1000")
            systemd.poke(f"/sys/class/bdi/{devno}/max_ratio_fine", "999998")
            assert len(hand.foreign()) == 2
        systemd.rmdir(cgroup)
        systemd.unplug(devno, disk)
        del systemd.units[unit]
        clock.now += 1.0
        hand.foreign()
    # 60 s of remembering, 30 s of not trying again.
    parts = [each for each in vars(hand).values() if type(each).__module__.startswith(ACTUATE)]
    sizes = {
        name: len(each) for part in (hand, *parts) for name, each in vars(part).items()
        if isinstance(each, (dict, set, list, tuple))
    }
    assert len(parts) >= 4
    assert max(sizes.values()) <= 62, sizes
    assert hand.entries == ()


def test_what_is_still_there_is_not_forgotten(
    systemd: FakeLevers, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr("time.monotonic", clock)
    actuator = holding(systemd, pace(5), *CAP)
    systemd.poke(f"{CGROUPS}{UNIT}/io.max", "8:0 wbps=1000")
    assert len(actuator.levers.foreign()) == 1
    clock.now += 1000.0
    assert settle(actuator, pace(5), *CAP) == ()
    assert systemd.cgroups[UNIT]["8:0"]["wbps"] == "1000"


# -- the way home ------------------------------------------------------------------


def home_by_ledger(files: FakeLevers) -> None:
    assert restore_from_ledger(files, files.ledger).status in ("restored", "nothing")


def home_by_next_run(files: FakeLevers) -> None:
    following = started(files)
    assert settle(following) is not None
    assert all(action.ok for action in following.finish())


def home_by_next_run_that_writes(files: FakeLevers) -> None:
    following = started(files)
    following.apply(96 * MIB, 32 * MIB)
    assert all(action.ok for action in settle(following, *OTHERS))
    assert all(action.ok for action in following.finish())


def home_by_observer(files: FakeLevers) -> None:
    following = Actuator(files, files.ledger, "restore")
    following.dry_run = True
    following.start()
    for _ in range(4):
        following.apply(*PAIR)
        following.apply_settings(ALL)


HOMES = [home_by_ledger, home_by_next_run, home_by_next_run_that_writes, home_by_observer]


def life(files: FakeLevers) -> None:
    actuator = started(files)
    actuator.apply(*PAIR)
    for settings in SPELL:
        settle(actuator, *settings)
        actuator.apply(PAIR[0] + len(files.writes) * 4096, PAIR[1])
    actuator.finish()


def crashed_lives(files: Callable[[], FakeLevers]) -> Iterator[FakeLevers]:
    """One life for each of its writes, ended by a crash right before that write."""
    for count in range(200):
        each = files()
        each.crash_before = count
        try:
            life(each)
        except Crash:
            each.crash_before = None
            yield each
        else:
            assert count > 40
            return


@pytest.mark.parametrize("systemd", [False, True])
def test_home_after_a_crash_before_any_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, systemd: bool
) -> None:
    expected = world(monkeypatch, tmp_path, systemd).state()
    for crashed in crashed_lives(lambda: world(monkeypatch, tmp_path, systemd)):
        left = crashed.ledger.read_bytes() if crashed.ledger.exists() else None
        for home in HOMES:
            files = copy.deepcopy(crashed)
            monkeypatch.setattr(lever_plan, "Job", files.job)
            if left is not None:
                files.ledger.write_bytes(left)
            home(files)
            assert files.state() == expected, f"{home.__name__} after {files.writes}"
            assert load(files.ledger) is None


def test_restart_keeps_what_it_adopts_until_it_is_asked(plain: FakeLevers) -> None:
    holding(plain, *ALL)
    following = Actuator(plain, plain.ledger, "restore")
    messages = following.start()
    assert "adopted flush vm dirty_writeback_centisecs=100" in messages
    assert len(messages) == len(ALL)
    del plain.writes[:]
    assert following.apply_settings((), keep_adopted=True) == () and plain.writes == []
    assert following.levers.foreign() == ()
    assert following.apply_settings((FLUSH,), keep_adopted=True) == ()
    following.apply_settings((), keep_adopted=True)
    assert plain.flush["dirty_writeback_centisecs"] == 500 and plain.bdis["8:0"] != BDI
    settle(following)
    assert plain.bdis["8:0"] == BDI


def test_start_leaves_what_somebody_changed_since(plain: FakeLevers) -> None:
    settle(started(plain), FLUSH, NR)
    plain.poke(SYSCTL + "dirty_writeback_centisecs", "0")
    following = Actuator(plain, plain.ledger, "restore")
    assert "flush vm dirty_writeback_centisecs=0 was set by another process" in following.start()
    following.finish()
    assert plain.flush["dirty_writeback_centisecs"] == 0
    assert plain.queues["sda"]["nr_requests"] == 64


def test_keep_is_about_the_limits(plain: FakeLevers) -> None:
    actuator = holding(plain, *ALL, pair=PAIR, on_exit="keep")
    actuator.finish()
    assert plain.limits == VmLimits(PAIR[0], 0, PAIR[1], 0) and plain.bdis["8:0"] == BDI
    assert saved(plain.ledger).levers == () and saved(plain.ledger).written == (PAIR,)


def test_a_changed_wish_for_the_exit_is_told_without_a_limit_held(plain: FakeLevers) -> None:
    actuator = holding(plain, FLUSH)
    actuator.set_on_exit("keep")
    assert saved(plain.ledger).on_exit == "keep" and len(saved(plain.ledger).levers) == 1


def test_killed_with_keep_the_levers_go_home_alone(plain: FakeLevers) -> None:
    holding(plain, *ALL, pair=PAIR, on_exit="keep")
    assert restore_from_ledger(plain, plain.ledger, honour_keep=True).status == "restored"
    assert plain.limits == VmLimits(PAIR[0], 0, PAIR[1], 0) and plain.bdis["8:0"] == BDI
    assert restore_from_ledger(plain, plain.ledger, honour_keep=True).status == "nothing"
    assert restore_from_ledger(plain, plain.ledger).status == "restored"
    assert plain.limits == DEFAULT


def test_levers_that_are_no_longer_used_go_home_from_an_earlier_ledger(plain: FakeLevers) -> None:
    plain.flush["dirty_writeback_centisecs"] = 50
    plain.queues["sda"].update(nr_requests=8, max_sectors_kb=128)
    plain.values = asdict(VmLimits(8 * MIB, 0, 4 * MIB, 0))
    queue, ratios = plain.inode("/sys/block/sda/queue"), {"dirty_ratio": 20, "dirty_bytes": 0}
    body = {
        "version": 2, "boot_id": plain.boot_id, "pid": 1, "created_wall_s": 0.0,
        "on_exit": "restore", "written": [[8 * MIB, 4 * MIB]], "earlier": [],
        "originals": {**ratios, "dirty_background_ratio": 10, "dirty_background_bytes": 0},
        "levers": [
            {"kind": kind, "target": target, "name": name, "identity": identity,
             "original": original, "written": [written]}
            for kind, target, name, identity, original, written in (
                ("flush", "vm", "dirty_writeback_centisecs", 0, "500", "50"),
                ("queue", "sda", "nr_requests", queue, "64", "8"),
                ("queue", "sda", "max_sectors_kb", queue, "1280", "128"),
            )
        ],
    }  # fmt: skip
    plain.ledger.write_text(json.dumps(with_checksum(body)))
    assert restore_from_ledger(plain, plain.ledger).status == "restored"
    assert not plain.ledger.exists()
    assert plain.limits == DEFAULT and plain.flush["dirty_writeback_centisecs"] == 500
    assert plain.queues["sda"] == {"nr_requests": 64, "max_sectors_kb": 1280}


def test_yield_of_the_pair_sends_the_levers_home(files: FakeLevers) -> None:
    actuator = holding(files, *ALL, pair=PAIR)
    files.sysctl("dirty_ratio", 40)
    actuator.yield_()
    settle(actuator, *ALL)
    assert files.bdis["8:0"] == BDI and files.queues["sda"]["nr_requests"] == 64
    assert files.limits == VmLimits(0, 40, 0, 10) and load(files.ledger) is None


def test_queues_are_looked_at_when_all_else_is_home(files: FakeLevers) -> None:
    """A child of the dead daemon may hang in a queue, and then reading it hangs, too."""
    holding(files, NR, *ALL, pair=PAIR)
    read = files.read

    def hang(name: str) -> str:
        if "/queue/" in name:
            raise Crash
        return read(name)

    files.read = hang  # type: ignore[method-assign]
    with pytest.raises(Crash):
        restore_from_ledger(files, files.ledger)
    assert files.limits == DEFAULT and files.bdis["8:0"] == BDI
    assert files.flush["dirty_writeback_centisecs"] == 500
    assert files.cgroups[UNIT]["8:0"]["wbps"] == "max"


def test_originals_of_a_foreign_pair_stay_readable_though_a_lever_fails(plain: FakeLevers) -> None:
    holding(plain, FLUSH, pair=PAIR)
    plain.sysctl("dirty_ratio", 40)
    plain.write_errors = {SYSCTL + "dirty_writeback_centisecs": (errno.EIO, False)}
    assert restore_from_ledger(plain, plain.ledger).status == "failed"
    aside, ledger = load(plain.ledger.with_name("ledger.json.old")), load(plain.ledger)
    assert aside and aside.originals == DEFAULT and aside.written == (PAIR,)
    assert ledger and ledger.written == () and len(ledger.levers) == 1


def test_one_lever_that_fails_does_not_keep_the_rest(files: FakeLevers) -> None:
    holding(files, *ALL, pair=PAIR)
    name = SYSCTL + "dirty_writeback_centisecs"
    files.write_errors = {name: (errno.EIO, False)}
    result = restore_from_ledger(files, files.ledger)
    assert result.status == "failed" and "Input/output" in "".join(result.lines)
    assert files.limits == DEFAULT and files.bdis["8:0"] == BDI
    left = saved(files.ledger)
    assert left.written == () and [e.kind for e in left.levers] == ["flush"]
    files.write_errors = {}
    assert restore_from_ledger(files, files.ledger).status == "restored"
    assert load(files.ledger) is None


@pytest.mark.parametrize("change", [
    {"kind": "engine"},
    {"target": "../../etc"},
    {"name": "scheduler"},
    {"written": []},
    {"original": 5},
    {"identity": -1},
], ids=str)  # fmt: skip
def test_impossible_lever_in_the_ledger_is_told(plain: FakeLevers, change: Any) -> None:
    settle(started(plain), NR)
    body = json.loads(plain.ledger.read_text())
    body["levers"][0].update(change)
    plain.ledger.write_text(json.dumps(with_checksum(body)))
    assert restore_from_ledger(plain, plain.ledger).status == "failed"
    assert plain.queues["sda"]["nr_requests"] == 8


@pytest.mark.parametrize("kind, target, name", [
    (LeverKind.PACE, "/a/../../../etc", "8:0"),
    (LeverKind.PACE, "relative", "8:0"),
    (LeverKind.PACE, UNIT, "8:0 rbps=1"),
    (LeverKind.BDI, "../8:0", "max_bytes"),
    (LeverKind.QUEUE, "", "nr_requests"),
    (LeverKind.FLUSH, "vm", "swappiness"),
])  # fmt: skip
def test_what_is_no_lever(kind: LeverKind, target: str, name: str) -> None:
    assert not is_lever(Lever(kind, target, name))


def test_entry_comes_back_as_it_was_saved(plain: FakeLevers) -> None:
    target = "/machine.slice/caf\udce9 \u00e9"
    plain.mkdir(target)
    settle(started(plain), Setting(LeverKind.PACE, target, "8:0", 5))
    ledger = load(plain.ledger)
    known = identity(plain, Lever(LeverKind.PACE, target, "8:0"))
    assert ledger and known
    assert ledger.levers == (LeverEntry("pace", target, "8:0", known, "max", ("5",)),)


# ==== pace ============================================================================


# -- pace ------------------------------------------------------------------------


def test_only_our_key_of_our_disk_is_touched(plain: FakeLevers) -> None:
    others = {"8:0": {"rbps": "1000", "wiops": "7"}, "8:16": {"wbps": "5000"}}
    plain.cgroups[UNIT] = json.loads(json.dumps(others))
    actuator = holding(plain, pace(123))
    assert plain.writes == [(f"{CGROUPS}{UNIT}/io.max", "8:0 wbps=123")]
    assert plain.cgroups[UNIT]["8:0"] == {"rbps": "1000", "wbps": "123", "wiops": "7"}
    settle(actuator)
    others["8:0"]["wbps"] = "max"
    assert plain.cgroups[UNIT] == others


def test_an_io_max_that_hangs_is_waited_for_by_a_child_alone(plain: FakeLevers) -> None:
    """Since 6.10 the first rule of a disk freezes its queue."""
    actuator = started(plain)
    plain.stalled = True
    assert actuator.apply_settings((pace(5),)) == () and plain.writes == []
    assert actuator.levers.foreign() == ()
    plain.release()
    assert [action.ok for action in actuator.apply_settings((pace(5),))] == [True]
    assert plain.cgroups[UNIT]["8:0"]["wbps"] == "5"
    settle(actuator)
    assert plain.cgroups[UNIT]["8:0"]["wbps"] == "max" and load(plain.ledger) is None


def test_a_pace_that_was_there_comes_back(files: FakeLevers) -> None:
    if files.units is None:
        files.poke(f"{CGROUPS}{UNIT}/io.max", "8:0 wbps=777")
    else:
        files.set_property("dump.service", "IOWriteBandwidthMax", "/dev/block/8:0", "777")
    actuator = holding(files, pace(5))
    assert files.cgroups[UNIT]["8:0"]["wbps"] == "5"
    settle(actuator)
    assert files.cgroups[UNIT]["8:0"]["wbps"] == "777"


def test_systemd_is_asked_in_its_own_spelling_of_the_disk(
    systemd: FakeLevers, tmp_path: Path
) -> None:
    devno = systemd.devno(str(tmp_path))
    systemd.inodes[f"/sys/dev/block/{devno}"] = 7
    systemd.set_property("dump.service", "IOReadBandwidthMax", str(tmp_path), "999")
    actuator = started(systemd)
    setting = Setting(LeverKind.PACE, UNIT, devno, 5)
    assert [action.ok for action in settle(actuator, setting)] == [True]
    assert systemd.commands[-1] == (
        "systemctl", "set-property", "--runtime", "--", "dump.service",
        f"IOWriteBandwidthMax={tmp_path} 5",
    )
    lines = systemd.cgroups[UNIT][devno]
    assert (lines["rbps"], lines["wbps"]) == ("999", "5")
    settle(actuator)
    assert systemd.commands[-1][-1] == f"IOWriteBandwidthMax={tmp_path} infinity"
    assert (lines := systemd.cgroups[UNIT][devno]) and lines["rbps"] == "999"
    assert lines["wbps"] == "max"


def test_the_spelling_is_found_without_the_disk_in_dev(tmp_path: Path) -> None:
    """As under PrivateDevices=: a second spelling would be a second entry for systemd."""
    for name, text in (("sys/class/block/sdzz/dev", "8:4000\n"), ("run/systemd/system/x", "")):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    asked = []

    def run(argv: Sequence[str]) -> Ended:
        asked.append(argv[-1])
        return Ended(0, "IOWriteBandwidthMax=/dev/sdzz 900000000\n", "")

    files = KernelFiles(tmp_path)
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cgroup.controllers").touch()
    work = cgroup_io_max.write(files, UNIT, "8:4000", "5")
    assert work is not None
    work(run)
    assert asked[-1] == "IOWriteBandwidthMax=/dev/sdzz 5"


def test_pace_of_a_unit_that_stopped_is_taken_back_from_the_unit(systemd: FakeLevers) -> None:
    """The property outlives the cgroup, and would hold the unit at its next start."""
    actuator = holding(systemd, pace(5))
    systemd.rmdir(UNIT)
    assert actuator.levers.foreign() == () and settle(actuator, pace(5)) == ()
    systemd.mkdir(UNIT)
    assert systemd.cgroups[UNIT]["8:0"]["wbps"] == "5"
    assert actuator.levers.foreign() == ()
    systemd.rmdir(UNIT)
    assert [action.ok for action in settle(actuator)] == [True]
    systemd.mkdir(UNIT)
    assert systemd.cgroups[UNIT]["8:0"]["wbps"] == "max" and load(systemd.ledger) is None


def test_pace_of_a_transient_unit_that_ended_is_gone_with_it(systemd: FakeLevers) -> None:
    actuator = holding(systemd, pace(5))
    systemd.rmdir(UNIT)
    assert systemd.units is not None
    del systemd.units["dump.service"]
    assert [action.ok for action in settle(actuator)] == [True]
    assert load(systemd.ledger) is None


def test_systemd_that_does_not_answer_is_told_and_tried_again_at_exit(systemd: FakeLevers) -> None:
    actuator = holding(systemd, pace(5))
    systemd.write_errors = {"systemctl dump.service": (1, False)}
    count = len(systemd.commands)
    told = [actuator.apply_settings((pace(rate),)) for rate in (6, 7, 8, 9)]
    assert [len(actions) for actions in told] == [0, 1, 0, 0]
    assert len(systemd.commands) == count + 2  # show and set-property, once
    (action,) = settle(actuator)
    assert "Connection timed out" in str(action.error) and load(systemd.ledger) is not None
    systemd.write_errors = {}
    assert [action.ok for action in actuator.finish()] == [True]
    assert load(systemd.ledger) is None


def test_a_pace_of_an_unplugged_disk_is_taken_back_from_the_unit(systemd: FakeLevers) -> None:
    """The property names the number: the next disk that gets it would be held as well."""
    actuator = holding(systemd, pace(5))
    systemd.unplug("8:0", "sda")
    assert actuator.levers.foreign() == ()
    # The law has not noticed yet and goes on asking: told once.
    home, told = settle(actuator, pace(6))
    assert home.ok and "no such disk" in str(told.error)
    assert systemd.units == {"dump.service": [("/dev/block/8:0", {"wbps": "max"})]}
    assert actuator.levers.entries == () and load(systemd.ledger) is None
    count = len(systemd.commands)
    assert settle(actuator) == () and actuator.levers.foreign() == ()
    assert len(systemd.commands) == count
    systemd.plug("8:0", "sda")
    systemd.mkdir(UNIT)  # started anew
    assert systemd.cgroups[UNIT]["8:0"]["wbps"] == "max"


def test_a_unit_s_own_limit_of_an_unplugged_disk_is_given_back(
    systemd: FakeLevers, tmp_path: Path
) -> None:
    """It names the disk by a systemd.ledger that leads nowhere now: it is told by our value."""
    name = tmp_path / "by-id"
    name.touch()
    devno = systemd.devno(str(name))
    systemd.inodes[f"/sys/dev/block/{devno}"] = 7
    systemd.set_property("dump.service", "IOWriteBandwidthMax", "/dev/other", "999")
    systemd.set_property("dump.service", "IOWriteBandwidthMax", str(name), "777")
    actuator = holding(systemd, Setting(LeverKind.PACE, UNIT, devno, 5))
    name.unlink()
    del systemd.inodes[f"/sys/dev/block/{devno}"]
    del systemd.cgroups[UNIT][devno]
    assert [action.ok for action in settle(actuator)] == [True]
    assert systemd.units is not None
    assert dict(systemd.units["dump.service"]) == {
        "/dev/other": {"wbps": "999"}, str(name): {"wbps": "777"}
    }
    assert load(systemd.ledger) is None


def test_a_pace_is_taken_back_though_the_disk_was_replaced_between_two_ticks(
    systemd: FakeLevers
) -> None:
    actuator = holding(systemd, pace(5))
    systemd.unplug("8:0", "sda")
    systemd.plug("8:0", "sda")
    assert actuator.levers.foreign() == ()  # nobody set it to max
    settle(actuator)
    assert systemd.units == {"dump.service": [("/dev/block/8:0", {"wbps": "max"})]}
    settle(actuator, pace(6))
    assert systemd.cgroups[UNIT]["8:0"]["wbps"] == "6"


@pytest.mark.parametrize("way", ["restart", "restore"])
def test_a_pace_of_a_disk_unplugged_while_nobody_looked_is_taken_back(
    systemd: FakeLevers, way: str
) -> None:
    settle(started(systemd), pace(5))
    systemd.unplug("8:0", "sda")
    if way == "restore":
        assert restore_from_ledger(systemd, systemd.ledger).status == "restored"
    else:
        actuator = started(systemd)
        actuator.levers.foreign()
        # Nobody would ask for it again, so it does not stay for the law to come back.
        assert [each.ok for each in actuator.apply_settings((), keep_adopted=True)] == []
        assert [each.ok for each in actuator.apply_settings((), keep_adopted=True)] == [True]
    assert systemd.units == {"dump.service": [("/dev/block/8:0", {"wbps": "max"})]}
    assert load(systemd.ledger) is None


def test_a_pace_of_an_unplugged_disk_that_systemd_refuses_is_kept_and_tried_seldom(
    systemd: FakeLevers
) -> None:
    actuator = holding(systemd, pace(5))
    systemd.unplug("8:0", "sda")
    systemd.write_errors = {"systemctl dump.service": (1, False)}
    actions = settle(actuator) + settle(actuator)
    assert [action.ok for action in actions] == [False] and load(systemd.ledger) is not None
    systemd.write_errors = {}
    assert [action.ok for action in actuator.finish()] == [True]
    assert load(systemd.ledger) is None


def test_a_pace_that_is_nobody_s_goes_with_the_disk(plain: FakeLevers) -> None:
    actuator = holding(plain, pace(5))
    plain.unplug("8:0", "sda")
    assert actuator.levers.foreign() == () and settle(actuator) == ()
    assert actuator.levers.entries == () and load(plain.ledger) is None


def test_without_io_max_there_is_no_limit_where_systemd_turns_it_on(files: FakeLevers) -> None:
    files.errors = {f"{CGROUPS}{UNIT}/io.max": errno.ENOENT}
    if files.units is not None:
        assert cgroup_io_max.read(files, UNIT, "8:0") == "max"
        files.rmdir(UNIT)
    with pytest.raises(FileNotFoundError):
        cgroup_io_max.read(files, UNIT, "8:0")


def test_a_disk_that_was_pulled_out_while_open_spoils_no_reading(files: FakeLevers) -> None:
    """Its limits are printed without its number as long as somebody has it open."""
    files.cgroups[UNIT]["(unknown)"] = {"wbps": "4096"}
    actuator = started(files)
    assert [action.ok for action in settle(actuator, pace(5))] == [True]
    assert cgroup_io_max.read(files, UNIT, "8:0") == "5"
    settle(actuator)
    assert cgroup_io_max.read(files, UNIT, "8:0") == "max"


def test_a_reading_that_fails_for_a_moment_is_waited_over(
    systemd: FakeLevers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """systemd applies a property after it has answered, and io.max may be cut short then."""
    readings: "Iterator[str | OSError]" = iter(
        [OSError(errno.EIO, "cut short"), "7", "5", "never asked"]
    )

    def read(*_: object) -> str:
        reading = next(readings)
        if isinstance(reading, OSError):
            raise reading
        return reading

    monkeypatch.setattr(cgroup_io_max, "_APPLY_S", 5.0)
    monkeypatch.setattr(cgroup_io_max, "read", read)
    work = cgroup_io_max.write(systemd, UNIT, "8:0", "5")
    assert work is not None
    work(systemd.run)
    assert next(readings) == "never asked"


def test_who_owns_a_cgroup(plain: FakeLevers) -> None:
    assert cgroup_io_max.owner(plain, UNIT) is None
    plain.boot_systemd()
    assert cgroup_io_max.owner(plain, UNIT) == "dump.service"
    assert cgroup_io_max.owner(plain, "/user.slice") == "user.slice"
    assert cgroup_io_max.owner(plain, "/system.slice/_cpu.service") == "cpu.service"
    # Delegated, or nobody's:
    for cgroup in (UNIT + "/payload", "/system.slice/a.service/b.service", "/lxc/x", "/"):
        assert cgroup_io_max.owner(plain, cgroup) is None


@pytest.mark.parametrize(
    "cgroup",
    ["/lxc/101/ns/system.slice/dump.service", "/lxc.payload.c1/dump.service",
     "/docker/dump.service", "/machine.slice/system.slice/dump.service",
     "/a.slice/system.slice/dump.service", "/a-b.slice/dump.service"],
)  # fmt: skip
def test_a_container_s_unit_is_not_the_host_s_of_that_name(
    systemd: FakeLevers, cgroup: str
) -> None:
    assert cgroup_io_max.owner(systemd, cgroup) is None
    systemd.mkdir(cgroup)
    settle(started(systemd), Setting(LeverKind.PACE, cgroup, "8:0", 5))
    assert systemd.commands == [] and systemd.cgroups[UNIT] == {}


def test_slices_below_slices_are_systemd_s(systemd: FakeLevers) -> None:
    for cgroup, unit in {
        "/a.slice/a-b.slice/a-b-c.slice/x.service": "x.service",
        "/_cpu.slice/cpu-x.slice/x.scope": "x.scope",
        "/a.slice/a-b.slice": "a-b.slice",
        "/a.slice/b.slice": None,
        "/x.service": "x.service",
    }.items():
        assert cgroup_io_max.owner(systemd, cgroup) == unit


def test_a_unit_that_systemd_has_elsewhere_is_not_asked_for(
    systemd: FakeLevers, monkeypatch: pytest.MonkeyPatch
) -> None:
    show, place = systemd._show, "/other.slice/dump.service"
    monkeypatch.setattr(systemd, "_show", lambda unit: f"ControlGroup={place}\n{show(unit)}")
    actuator = started(systemd)
    (told,) = settle(actuator, pace(5))
    assert "systemd has dump.service in /other.slice" in str(told.error)
    assert [argv[1] for argv in systemd.commands] == ["show"] and systemd.cgroups[UNIT] == {}
    actuator.finish()
    assert load(systemd.ledger) is None
    place = UNIT
    settle(actuator := started(systemd), pace(5))
    assert systemd.cgroups[UNIT]["8:0"]["wbps"] == "5"
    # Started anew in another slice, it has the property still.
    systemd.rmdir(UNIT)
    place = "/other.slice/dump.service"
    assert [action.ok for action in settle(actuator)] == [True]
    assert systemd.units == {"dump.service": [("/dev/block/8:0", {"wbps": "max"})]}


@pytest.mark.parametrize("way", ["let go", "exit", "killed", "restart"])
def test_a_property_that_does_not_show_yet_is_known_to_the_ledger(
    systemd: FakeLevers, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """systemd said yes, so the unit has it, and io.max may show it at any time later."""
    apply = systemd._apply
    monkeypatch.setattr(systemd, "_apply", lambda cgroup: None)
    actuator = started(systemd)
    (told,) = settle(actuator, pace(5))
    assert told.error == "reads back as max"
    (entry,) = saved(systemd.ledger).levers
    assert (entry.original, entry.written) == ("max", ("max", "5"))
    monkeypatch.setattr(systemd, "_apply", apply)
    if way == "let go":
        assert [action.ok for action in settle(actuator)] == [True]
    elif way == "exit":
        apply(UNIT)
        assert [action.ok for action in actuator.finish()] == [True]
    elif way == "killed":
        assert restore_from_ledger(systemd, systemd.ledger).status == "restored"
    else:
        again = started(systemd)
        assert [action.ok for action in settle(again)] == [True]
    assert systemd.units == {"dump.service": [("/dev/block/8:0", {"wbps": "max"})]}
    assert load(systemd.ledger) is None


def test_what_is_ours_never_becomes_the_original(
    systemd: FakeLevers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lever_plan, "RETRY_S", 0.0)
    apply = systemd._apply
    monkeypatch.setattr(systemd, "_apply", lambda cgroup: None)
    actuator = holding(systemd, pace(5))
    apply(UNIT)  # it took longer than it was waited for
    monkeypatch.setattr(systemd, "_apply", apply)
    assert actuator.levers.foreign() == ()
    settle(actuator, pace(6))
    assert [entry.original for entry in actuator.levers.entries] == ["max"]
    # And one that is lost: somebody's daemon-reload meanwhile.
    monkeypatch.setattr(systemd, "_apply", lambda cgroup: systemd.cgroups[cgroup].clear())
    settle(actuator, pace(7))
    assert actuator.levers.foreign() == () and len(actuator.levers.entries) == 1
    monkeypatch.setattr(systemd, "_apply", apply)
    settle(actuator)
    assert systemd.units == {"dump.service": [("/dev/block/8:0", {"wbps": "max"})]}
