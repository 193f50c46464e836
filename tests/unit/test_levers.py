# SPDX-License-Identifier: GPL-2.0-or-later
"""The levers beside the global pair: applied, let go, and brought home from every crash."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path
from typing import Any, Callable, Iterator, List, Tuple

import pytest

from fake_levers import BDI, CGROUPS, FakeLevers
from fake_vm import DEFAULT, SYSCTL, Crash
from limit_cases import MIB
from writebackd.actuate import ledger as ledger_module
from writebackd.actuate import levers as levers_module
from writebackd.actuate.actuator import Actuator
from writebackd.actuate.ledger import LeverEntry, load
from writebackd.actuate.restore import restore_from_ledger
from writebackd.kernel import bdi, cgroups
from writebackd.kernel.levers import Lever, is_lever
from writebackd.model import Action, LeverKind, Setting, VmLimits

UNIT = "/system.slice/dump.service"
PAIR = (64 * MIB, 32 * MIB)
FLUSH = Setting(LeverKind.FLUSH, "vm", "dirty_writeback_centisecs", 100)
NR = Setting(LeverKind.QUEUE, "sda", "nr_requests", 8)
SECTORS = Setting(LeverKind.QUEUE, "sda", "max_sectors_kb", 128)


def bdi_settings(limit: int, least: int) -> Tuple[Setting, ...]:
    return (
        Setting(LeverKind.BDI, "8:0", "strict_limit", 1),
        Setting(LeverKind.BDI, "8:0", "max_bytes", limit),
        Setting(LeverKind.BDI, "8:0", "min_bytes", least),
    )


def pace(rate: int) -> Setting:
    return Setting(LeverKind.PACE, UNIT, "8:0", rate)


CAP = bdi_settings(8 * MIB, 8 * MIB)
ALL = (FLUSH, *CAP, NR, SECTORS, pace(20_000_000))
OTHERS = (
    Setting(LeverKind.FLUSH, "vm", "dirty_expire_centisecs", 500),
    *bdi_settings(4 * MIB, 2 * MIB),
    Setting(LeverKind.QUEUE, "sda", "nr_requests", 4),
    pace(15_000_000),
)
SPELL = (ALL, OTHERS, (), ALL)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.json"


@pytest.fixture(params=["cgroups are nobody's", "systemd owns them"])
def files(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FakeLevers:
    return world(monkeypatch, request.param.startswith("systemd"))


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> FakeLevers:
    return world(monkeypatch, False)


@pytest.fixture
def systemd(monkeypatch: pytest.MonkeyPatch) -> FakeLevers:
    return world(monkeypatch, True)


def world(monkeypatch: pytest.MonkeyPatch, systemd: bool) -> FakeLevers:
    files = FakeLevers()
    if systemd:
        files.boot_systemd()
    monkeypatch.setattr(levers_module, "Job", files.job)
    monkeypatch.setattr(cgroups, "_APPLY_S", 0.0)
    return files


def started(files: FakeLevers, path: Path, on_exit: str = "restore") -> Actuator:
    actuator = Actuator(files, path, on_exit)
    actuator.start()
    return actuator


def settle(actuator: Actuator, *settings: Setting) -> Tuple[Action, ...]:
    """As many ticks as the slow levers need: one write of a disk at a time."""
    return sum((actuator.apply_settings(settings) for _ in range(4)), ())


def by_lever(actions: Tuple[Action, ...]) -> dict[str, Action]:
    return {action.lever: action for action in actions}


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


def test_one_that_is_not_named_goes_home_alone(files: FakeLevers, path: Path) -> None:
    actuator = started(files, path)
    settle(actuator, *ALL)
    settle(actuator, NR)
    assert files.bdis["8:0"] == BDI and files.flush["dirty_writeback_centisecs"] == 500
    assert files.queues["sda"] == {"nr_requests": 8, "max_sectors_kb": 1280}
    assert files.cgroups[UNIT].get("8:0", {}).get("wbps", "max") == "max"
    ledger = load(path)
    assert ledger and [str(entry.lever) for entry in ledger.levers] == ["queue sda nr_requests"]


def test_levers_do_without_the_pair_and_the_pair_without_them(
    plain: FakeLevers, path: Path
) -> None:
    actuator = started(plain, path)
    actuator.apply_settings((FLUSH,))
    ledger = load(path)
    assert ledger and ledger.written == () and len(ledger.levers) == 1
    actuator.apply(*PAIR)
    actuator.restore_limits()
    assert plain.limits == DEFAULT and plain.flush["dirty_writeback_centisecs"] == 100
    ledger = load(path)
    assert ledger and ledger.written == () and len(ledger.levers) == 1
    actuator.apply(*PAIR)
    actuator.apply_settings(())
    ledger = load(path)
    assert ledger and ledger.written == (PAIR,) and ledger.levers == ()


def test_original_is_in_the_ledger_before_the_first_write(files: FakeLevers, path: Path) -> None:
    actuator = started(files, path)
    seen: List[str] = []

    def look(name: str) -> None:
        ledger = load(path)
        assert ledger is not None
        stands = files.read(name) if not name.endswith("io.max") else "max"
        last = name.rpartition("/")[2]
        names = {v: k for k, v in bdi.FILES.items()}
        entries = [e for e in ledger.levers if e.name == names.get(last, last) or e.name == "8:0"]
        assert entries, name
        if name not in seen:
            assert stands in {entry.original for entry in entries}
        seen.append(name)

    files.before_write = look
    settle(actuator, *ALL)
    assert len(set(seen)) >= 5


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


def test_fewer_requests_than_the_kernel_takes_are_its_least(
    plain: FakeLevers, path: Path
) -> None:
    actuator = started(plain, path)
    few = Setting(LeverKind.QUEUE, "sda", "nr_requests", 1)
    assert [action.ok for action in settle(actuator, few)] == [True]
    assert plain.queues["sda"]["nr_requests"] == 4


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
    actuator = started(plain, path)
    settle(actuator, *CAP)
    plain.available = plain.available * 100 // 101
    assert settle(actuator, *CAP) == ()
    plain.available = plain.available * 100 // 105
    assert {a.lever for a in settle(actuator, *CAP)} == {"bdi 8:0 max_bytes", "bdi 8:0 min_bytes"}


def test_both_fractions_are_taken_anew_together(plain: FakeLevers, path: Path) -> None:
    """A minimum of today's bytes may be above a maximum of yesterday's."""
    actuator = started(plain, path)
    settle(actuator, *bdi_settings(8 * MIB, 4 * MIB))
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


# -- the self-test -----------------------------------------------------------------


def test_self_test_leaves_no_trace(plain: FakeLevers) -> None:
    assert bdi.self_test(plain, "8:0", plain.thresholds()[0] * 4096) is None
    assert plain.bdis["8:0"] == BDI and len(plain.writes) == 4


@pytest.mark.parametrize("scale", [2, 10_000])
def test_kernel_with_the_wrong_unit_is_found_out(
    plain: FakeLevers, path: Path, scale: int
) -> None:
    plain.min_scale = scale
    actuator = started(plain, path)
    actions = settle(actuator, *CAP)
    assert len(actions) == 3 and not any(action.ok for action in actions)
    writes = len(plain.writes)
    assert settle(actuator, *bdi_settings(3 * MIB, MIB)) == () and len(plain.writes) == writes
    told = "Invalid argument" if scale > 2 else "reads back as 20000 instead of 10000"
    assert all(told in str(action.error) for action in actions)
    assert plain.bdis["8:0"] == BDI and load(path) is None


@pytest.mark.parametrize(
    "spoil, words",
    [
        (lambda f: f.poke("/sys/class/bdi/8:0/max_ratio_fine", "10000"), "limits of its own"),
        (lambda f: f.bdis["8:0"].pop("min_ratio_fine"), "no limits in bytes"),
        (lambda f: f.texts.update({STATS: "BdiDirtyThresh: 7 kB\nDirtyThresh: 40000 kB"}),
         "threshold is 7 of 40000 kB"),
        (lambda f: f.write_errors.update({FINE: (errno.EROFS, False)}), "read-only"),
        (lambda f: f.errors.update({"/sys/class/bdi/8:0/max_bytes": errno.EIO}), "Input/output"),
    ],
)
def test_self_test_tells_why(
    plain: FakeLevers, spoil: Callable[[FakeLevers], object], words: str
) -> None:
    spoil(plain)
    before = dict(plain.bdis["8:0"])
    reason = bdi.self_test(plain, "8:0", plain.thresholds()[0] * 4096)
    assert reason and words.lower() in reason.lower()
    assert plain.bdis["8:0"] == before


def test_self_test_that_cannot_put_back_is_put_right_later(
    plain: FakeLevers, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(levers_module, "RETRY_S", 0.0)
    actuator = started(plain, path)
    count = 0

    def break_down(name: str) -> None:
        nonlocal count
        count += 1
        if count == 3:
            plain.write_errors = {FINE: (errno.EIO, False), FINE_MIN: (errno.EIO, False)}

    plain.before_write = break_down
    assert not any(action.ok for action in actuator.apply_settings(CAP))
    assert plain.bdis["8:0"]["max_ratio_fine"] == bdi.TEST_MAX and load(path) is not None
    plain.write_errors = {}
    settle(actuator, *CAP)
    assert plain.bdis["8:0"] == BDI and load(path) is None
    actuator.take_over()  # or five minutes
    assert all(action.ok for action in settle(actuator, *CAP))
    assert plain.bdis["8:0"]["strict_limit"] == 1


def test_what_a_test_left_is_never_taken_for_the_original(
    plain: FakeLevers, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RETRY_S", "TEST_AGAIN_S"):
        monkeypatch.setattr(levers_module, name, 0.0)
    actuator = started(plain, path)
    plain.before_write = lambda name: plain.write_errors.update(
        {FINE: (errno.EIO, False)} if name == FINE_MIN else {}
    )
    settle(actuator, *CAP)
    assert plain.bdis["8:0"]["max_ratio_fine"] == bdi.TEST_MAX
    plain.before_write = lambda name: None
    plain.write_errors = {}
    actuator.finish()
    assert plain.bdis["8:0"] == BDI and load(path) is None


FINE_MIN = "/sys/class/bdi/8:0/min_ratio_fine"
STATS = "/sys/kernel/debug/bdi/8:0/stats"
FINE = "/sys/class/bdi/8:0/max_ratio_fine"


def test_self_test_compares_the_scale_of_bytes(plain: FakeLevers) -> None:
    """A kernel whose bytes are not the fraction of the threshold that it says."""
    assert "millionths" in str(bdi.self_test(plain, "8:0", plain.thresholds()[0] * 4096 * 3))


# -- pace ------------------------------------------------------------------------


def test_only_our_key_of_our_disk_is_touched(plain: FakeLevers, path: Path) -> None:
    others = {"8:0": {"rbps": "1000", "wiops": "7"}, "8:16": {"wbps": "5000"}}
    plain.cgroups[UNIT] = json.loads(json.dumps(others))
    actuator = started(plain, path)
    settle(actuator, pace(123))
    assert plain.writes == [(f"{CGROUPS}{UNIT}/io.max", "8:0 wbps=123")]
    assert plain.cgroups[UNIT]["8:0"] == {"rbps": "1000", "wbps": "123", "wiops": "7"}
    settle(actuator)
    others["8:0"]["wbps"] = "max"
    assert plain.cgroups[UNIT] == others


def test_a_pace_that_was_there_comes_back(files: FakeLevers, path: Path) -> None:
    if files.units is None:
        files.poke(f"{CGROUPS}{UNIT}/io.max", "8:0 wbps=777")
    else:
        files.set_property("dump.service", "IOWriteBandwidthMax", "/dev/block/8:0", "777")
    actuator = started(files, path)
    settle(actuator, pace(5))
    assert files.cgroups[UNIT]["8:0"]["wbps"] == "5"
    settle(actuator)
    assert files.cgroups[UNIT]["8:0"]["wbps"] == "777"


def test_systemd_is_asked_in_its_own_spelling_of_the_disk(
    systemd: FakeLevers, path: Path, tmp_path: Path
) -> None:
    devno = systemd.devno(str(tmp_path))
    systemd.set_property("dump.service", "IOReadBandwidthMax", str(tmp_path), "999")
    actuator = started(systemd, path)
    setting = Setting(LeverKind.PACE, UNIT, devno, 5)
    assert [action.ok for action in settle(actuator, setting)] == [True]
    assert systemd.commands[-1] == (
        "systemctl", "set-property", "--runtime", "dump.service",
        f"IOWriteBandwidthMax={tmp_path} 5",
    )
    lines = systemd.cgroups[UNIT][devno]
    assert (lines["rbps"], lines["wbps"]) == ("999", "5")
    settle(actuator)
    assert systemd.commands[-1][-1] == f"IOWriteBandwidthMax={tmp_path} infinity"
    assert (lines := systemd.cgroups[UNIT][devno]) and lines["rbps"] == "999"
    assert lines["wbps"] == "max"


def test_pace_of_a_unit_that_stopped_is_taken_back_from_the_unit(
    systemd: FakeLevers, path: Path
) -> None:
    """The property outlives the cgroup, and would hold the unit at its next start."""
    actuator = started(systemd, path)
    settle(actuator, pace(5))
    systemd.rmdir(UNIT)
    assert actuator.levers.foreign() == () and settle(actuator, pace(5)) == ()
    systemd.mkdir(UNIT)
    assert systemd.cgroups[UNIT]["8:0"]["wbps"] == "5"
    assert actuator.levers.foreign() == ()
    systemd.rmdir(UNIT)
    assert [action.ok for action in settle(actuator)] == [True]
    systemd.mkdir(UNIT)
    assert systemd.cgroups[UNIT]["8:0"]["wbps"] == "max" and load(path) is None


def test_pace_of_a_transient_unit_that_ended_is_gone_with_it(
    systemd: FakeLevers, path: Path
) -> None:
    actuator = started(systemd, path)
    settle(actuator, pace(5))
    systemd.rmdir(UNIT)
    assert systemd.units is not None
    del systemd.units["dump.service"]
    assert [action.ok for action in settle(actuator)] == [True]
    assert load(path) is None


def test_systemd_that_does_not_answer_is_told_and_tried_again_at_exit(
    systemd: FakeLevers, path: Path
) -> None:
    actuator = started(systemd, path)
    settle(actuator, pace(5))
    systemd.write_errors = {"systemctl dump.service": (1, False)}
    count = len(systemd.commands)
    told = [actuator.apply_settings((pace(rate),)) for rate in (6, 7, 8, 9)]
    assert [len(actions) for actions in told] == [0, 1, 0, 0]
    assert len(systemd.commands) == count + 2  # show and set-property, once
    (action,) = settle(actuator)
    assert "Connection timed out" in str(action.error) and load(path) is not None
    systemd.write_errors = {}
    assert [action.ok for action in actuator.finish()] == [True]
    assert load(path) is None


def test_without_io_max_there_is_no_limit_where_systemd_turns_it_on(files: FakeLevers) -> None:
    files.errors = {f"{CGROUPS}{UNIT}/io.max": errno.ENOENT}
    if files.units is not None:
        assert cgroups.read(files, UNIT, "8:0") == "max"
        files.rmdir(UNIT)
    with pytest.raises(FileNotFoundError):
        cgroups.read(files, UNIT, "8:0")


def test_who_owns_a_cgroup(plain: FakeLevers) -> None:
    assert cgroups.owner(plain, UNIT) is None
    plain.boot_systemd()
    assert cgroups.owner(plain, UNIT) == "dump.service"
    assert cgroups.owner(plain, "/user.slice") == "user.slice"
    assert cgroups.owner(plain, "/system.slice/_cpu.service") == "cpu.service"
    # Delegated, or nobody's:
    for cgroup in (UNIT + "/payload", "/system.slice/a.service/b.service", "/lxc/x", "/"):
        assert cgroups.owner(plain, cgroup) is None


# -- children that hang ------------------------------------------------------------


def test_nothing_waits_for_a_stalled_disk(plain: FakeLevers, path: Path) -> None:
    found = plain.state()
    actuator = started(plain, path)
    plain.stalled = True
    assert settle(actuator, NR, SECTORS) == ()
    assert len(plain.jobs) == 1  # the second would only wait behind the first
    ledger = load(path)
    assert ledger and ledger.levers[0].written == ("64", "8")
    # What holds the queue also holds whoever reads it.
    read, seen = plain.read, []

    def look(name: str) -> str:
        seen.append(name)
        return read(name)

    plain.read = look  # type: ignore[method-assign]
    assert actuator.levers.foreign() == ()
    plain.jobs[0].overdue = True
    (late,) = settle(actuator, NR, SECTORS)
    assert late.error == "not done within 5 s" and len(plain.jobs) == 1
    assert actuator.restore() == () and len(plain.jobs) == 1
    assert not [name for name in seen if "/queue/" in name]
    plain.release()
    assert plain.queues["sda"]["nr_requests"] == 8
    settle(actuator)
    assert plain.state() == found and load(path) is None


def test_exit_with_a_stalled_disk_leaves_it_to_the_ledger(
    plain: FakeLevers, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = plain.state()
    actuator = started(plain, path)
    actuator.apply(*PAIR)
    settle(actuator, FLUSH, NR)
    plain.stalled = True
    monkeypatch.setattr("writebackd.actuate.actuator._EXIT_WAIT_S", 0.01)
    told = by_lever(actuator.finish())
    assert "not done yet" in str(told["queue sda nr_requests"].error)
    assert plain.limits == DEFAULT and plain.flush["dirty_writeback_centisecs"] == 500
    ledger = load(path)
    assert ledger and [e.name for e in ledger.levers] == ["nr_requests"]
    plain.stalled = False  # the child never came to write
    assert restore_from_ledger(plain, path).status == "restored"
    assert plain.state() == found and load(path) is None


# -- others ----------------------------------------------------------------------


def test_foreign_change_lets_go_of_that_lever_alone(files: FakeLevers, path: Path) -> None:
    actuator = started(files, path)
    actuator.apply(*PAIR)
    settle(actuator, *ALL)
    files.poke("/sys/block/sda/queue/nr_requests", "32")
    (write,) = actuator.levers.foreign()
    assert (write.lever, write.value, write.is_limit) == ("queue sda nr_requests", "32", False)
    assert actuator.levers.foreign() == ()
    assert settle(actuator, *ALL) == ()
    assert actuator.foreign(files.limits) == ()
    actuator.finish()
    assert files.queues["sda"] == {"nr_requests": 32, "max_sectors_kb": 1280}
    assert files.limits == DEFAULT and load(path) is None
    # `enforce`: theirs is what we go back to.
    actuator.take_over()
    settle(actuator, *ALL)
    assert files.queues["sda"]["nr_requests"] == 8
    actuator.finish()
    assert files.queues["sda"]["nr_requests"] == 32


def test_levers_of_a_bdi_are_let_go_together(plain: FakeLevers, path: Path) -> None:
    """A cap of ours with a minimum of theirs is nobody's wish."""
    actuator = started(plain, path)
    settle(actuator, *ALL)
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
    actuator = started(plain, path)
    settle(actuator, FLUSH)
    plain.poke(SYSCTL + "dirty_writeback_centisecs", "0")
    other = Setting(LeverKind.FLUSH, "vm", "dirty_writeback_centisecs", 200)
    (action,) = actuator.apply_settings((other,))
    assert "somebody else set 0" in str(action.error)
    assert plain.flush["dirty_writeback_centisecs"] == 0
    assert [w.value for w in actuator.levers.foreign()] == ["0"]


def test_foreign_value_is_not_overwritten_on_the_way_home(plain: FakeLevers, path: Path) -> None:
    actuator = started(plain, path)
    settle(actuator, FLUSH)
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
    actuator = started(files, path)
    actuator.apply(*PAIR)
    settle(actuator, *ALL)
    files.poke(SYSCTL + "dirty_writeback_centisecs", "0")
    result = restore_from_ledger(files, path)
    assert result.status == "foreign"
    assert any("flush vm dirty_writeback_centisecs=0 left alone" in x for x in result.lines)
    assert files.limits == DEFAULT and files.bdis["8:0"] == BDI
    assert files.flush["dirty_writeback_centisecs"] == 0
    assert restore_from_ledger(files, path).status == "nothing"


# -- devices that go ---------------------------------------------------------------


def test_unplugged_device_is_dropped_and_its_successor_is_another(
    plain: FakeLevers, path: Path
) -> None:
    actuator = started(plain, path)
    settle(actuator, *CAP, NR)
    plain.unplug("8:0", "sda")
    assert actuator.levers.foreign() == ()
    assert actuator.levers.entries == ()
    plain.plug("8:0", "sda")
    assert actuator.levers.foreign() == ()
    assert plain.bdis["8:0"] == BDI
    assert all(action.ok for action in settle(actuator, *CAP, NR))
    settle(actuator)
    assert plain.bdis["8:0"] == BDI and load(path) is None


def test_replaced_between_two_ticks(plain: FakeLevers, path: Path) -> None:
    actuator = started(plain, path)
    settle(actuator, *CAP, NR)
    plain.unplug("8:0", "sda")
    plain.plug("8:0", "sda")
    plain.poke("/sys/block/sda/queue/nr_requests", "8")  # by chance what we wrote
    actuator.levers.foreign()
    actuator.finish()
    assert plain.queues["sda"]["nr_requests"] == 8 and plain.bdis["8:0"] == BDI


def test_removed_cgroup_is_dropped(plain: FakeLevers, path: Path) -> None:
    actuator = started(plain, path)
    settle(actuator, pace(5))
    plain.rmdir(UNIT)
    assert settle(actuator) == () and load(path) is None


# -- the way home ------------------------------------------------------------------


def home_by_ledger(files: FakeLevers, path: Path) -> None:
    assert restore_from_ledger(files, path).status in ("restored", "nothing")


def home_by_next_run(files: FakeLevers, path: Path) -> None:
    following = started(files, path)
    assert settle(following) is not None
    assert all(action.ok for action in following.finish())


def home_by_next_run_that_writes(files: FakeLevers, path: Path) -> None:
    following = started(files, path)
    following.apply(96 * MIB, 32 * MIB)
    assert all(action.ok for action in settle(following, *OTHERS))
    assert all(action.ok for action in following.finish())


def home_by_observer(files: FakeLevers, path: Path) -> None:
    following = Actuator(files, path, "restore")
    following.dry_run = True
    following.start()
    for _ in range(4):
        following.apply(*PAIR)
        following.apply_settings(ALL)


HOMES = [home_by_ledger, home_by_next_run, home_by_next_run_that_writes, home_by_observer]


def life(files: FakeLevers, path: Path) -> None:
    actuator = started(files, path)
    actuator.apply(*PAIR)
    for settings in SPELL:
        settle(actuator, *settings)
        actuator.apply(PAIR[0] + len(files.writes) * 4096, PAIR[1])
    actuator.finish()


def crashed_lives(files: Callable[[], FakeLevers], home: Path) -> Iterator[Tuple[Any, Path]]:
    """One life for each of its writes, ended by a crash right before that write."""
    for count in range(200):
        each, path = files(), home / f"ledger-{count}.json"
        each.crash_before = count
        try:
            life(each, path)
        except Crash:
            each.crash_before = None
            yield each, path
        else:
            assert count > 40
            return


@pytest.mark.parametrize("systemd", [False, True])
@pytest.mark.parametrize("home", HOMES)
def test_home_after_a_crash_before_any_write(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    home: Callable[[FakeLevers, Path], None],
    systemd: bool,
) -> None:
    expected = world(monkeypatch, systemd).state()
    for files, path in crashed_lives(lambda: world(monkeypatch, systemd), tmp_path):
        home(files, path)
        assert files.state() == expected, f"after {path.name}"
        assert load(path) is None


def test_restart_keeps_what_it_adopts_until_it_is_asked(
    plain: FakeLevers, path: Path
) -> None:
    actuator = started(plain, path)
    settle(actuator, *ALL)
    following = Actuator(plain, path, "restore")
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


def test_start_leaves_what_somebody_changed_since(plain: FakeLevers, path: Path) -> None:
    settle(started(plain, path), FLUSH, NR)
    plain.poke(SYSCTL + "dirty_writeback_centisecs", "0")
    following = Actuator(plain, path, "restore")
    assert "flush vm dirty_writeback_centisecs=0 was set by somebody else" in following.start()
    following.finish()
    assert plain.flush["dirty_writeback_centisecs"] == 0
    assert plain.queues["sda"]["nr_requests"] == 64


def test_keep_is_about_the_limits(plain: FakeLevers, path: Path) -> None:
    actuator = started(plain, path, on_exit="keep")
    actuator.apply(*PAIR)
    settle(actuator, *ALL)
    actuator.finish()
    assert plain.limits == VmLimits(PAIR[0], 0, PAIR[1], 0) and plain.bdis["8:0"] == BDI
    ledger = load(path)
    assert ledger and ledger.levers == () and ledger.written == (PAIR,)


def test_a_changed_wish_for_the_exit_is_told_without_a_limit_held(
    plain: FakeLevers, path: Path
) -> None:
    actuator = started(plain, path)
    settle(actuator, FLUSH)
    actuator.set_on_exit("keep")
    ledger = load(path)
    assert ledger and ledger.on_exit == "keep" and len(ledger.levers) == 1


def test_killed_with_keep_the_levers_go_home_alone(plain: FakeLevers, path: Path) -> None:
    actuator = started(plain, path, on_exit="keep")
    actuator.apply(*PAIR)
    settle(actuator, *ALL)
    assert restore_from_ledger(plain, path, honour_keep=True).status == "restored"
    assert plain.limits == VmLimits(PAIR[0], 0, PAIR[1], 0) and plain.bdis["8:0"] == BDI
    assert restore_from_ledger(plain, path, honour_keep=True).status == "nothing"
    assert restore_from_ledger(plain, path).status == "restored"
    assert plain.limits == DEFAULT


def test_yield_of_the_pair_sends_the_levers_home(files: FakeLevers, path: Path) -> None:
    actuator = started(files, path)
    actuator.apply(*PAIR)
    settle(actuator, *ALL)
    files.sysctl("dirty_ratio", 40)
    actuator.yield_()
    settle(actuator, *ALL)
    assert files.bdis["8:0"] == BDI and files.queues["sda"]["nr_requests"] == 64
    assert files.limits == VmLimits(0, 40, 0, 10) and load(path) is None


def test_queues_are_looked_at_when_all_else_is_home(files: FakeLevers, path: Path) -> None:
    """A child of the dead daemon may hang in a queue, and then reading it hangs, too."""
    actuator = started(files, path)
    actuator.apply(*PAIR)
    settle(actuator, NR, *ALL)
    read = files.read

    def hang(name: str) -> str:
        if "/queue/" in name:
            raise Crash
        return read(name)

    files.read = hang  # type: ignore[method-assign]
    with pytest.raises(Crash):
        restore_from_ledger(files, path)
    assert files.limits == DEFAULT and files.bdis["8:0"] == BDI
    assert files.flush["dirty_writeback_centisecs"] == 500
    assert files.cgroups[UNIT]["8:0"]["wbps"] == "max"


def test_originals_of_a_foreign_pair_stay_readable_though_a_lever_fails(
    plain: FakeLevers, path: Path
) -> None:
    actuator = started(plain, path)
    actuator.apply(*PAIR)
    settle(actuator, FLUSH)
    plain.sysctl("dirty_ratio", 40)
    plain.write_errors = {SYSCTL + "dirty_writeback_centisecs": (errno.EIO, False)}
    assert restore_from_ledger(plain, path).status == "failed"
    aside, ledger = load(path.with_name("ledger.json.old")), load(path)
    assert aside and aside.originals == DEFAULT and aside.written == (PAIR,)
    assert ledger and ledger.written == () and len(ledger.levers) == 1


def test_one_lever_that_fails_does_not_keep_the_rest(files: FakeLevers, path: Path) -> None:
    actuator = started(files, path)
    actuator.apply(*PAIR)
    settle(actuator, *ALL)
    name = SYSCTL + "dirty_writeback_centisecs"
    files.write_errors = {name: (errno.EIO, False)}
    result = restore_from_ledger(files, path)
    assert result.status == "failed" and "Input/output" in "".join(result.lines)
    assert files.limits == DEFAULT and files.bdis["8:0"] == BDI
    ledger = load(path)
    assert ledger and ledger.written == () and [e.kind for e in ledger.levers] == ["flush"]
    files.write_errors = {}
    assert restore_from_ledger(files, path).status == "restored" and load(path) is None


def test_ledger_of_the_version_without_levers_is_resolved(plain: FakeLevers, path: Path) -> None:
    started(plain, path).apply(*PAIR)
    body = json.loads(path.read_text())
    assert body.pop("levers") == []
    body["version"] = 1
    body["crc32"] = ledger_module._checksum(body)
    path.write_text(json.dumps(body))
    following = Actuator(plain, path, "restore")
    assert "adopted" in following.start()[0]
    following.apply_settings((FLUSH,))
    following.finish()
    assert plain.limits == DEFAULT and plain.flush["dirty_writeback_centisecs"] == 500


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "engine"},
        {"target": "../../etc"},
        {"name": "scheduler"},
        {"written": []},
        {"original": 5},
        {"identity": -1},
    ],
    ids=str,
)
def test_impossible_lever_in_the_ledger_is_told(
    plain: FakeLevers, path: Path, change: Any
) -> None:
    settle(started(plain, path), NR)
    body = json.loads(path.read_text())
    body["levers"][0].update(change)
    body["crc32"] = ledger_module._checksum(body)
    path.write_text(json.dumps(body))
    assert restore_from_ledger(plain, path).status == "failed"
    assert plain.queues["sda"]["nr_requests"] == 8


@pytest.mark.parametrize(
    "kind, target, name",
    [
        (LeverKind.PACE, "/a/../../../etc", "8:0"),
        (LeverKind.PACE, "relative", "8:0"),
        (LeverKind.PACE, UNIT, "8:0 rbps=1"),
        (LeverKind.BDI, "../8:0", "max_bytes"),
        (LeverKind.QUEUE, "", "nr_requests"),
        (LeverKind.FLUSH, "vm", "swappiness"),
    ],
)
def test_what_is_no_lever(kind: LeverKind, target: str, name: str) -> None:
    assert not is_lever(Lever(kind, target, name))


def test_entry_comes_back_as_it_was_saved(plain: FakeLevers, path: Path) -> None:
    target = "/machine.slice/caf\udce9 \u00e9"
    plain.mkdir(target)
    settle(started(plain, path), Setting(LeverKind.PACE, target, "8:0", 5))
    ledger = load(path)
    identity = plain.inode(CGROUPS + target)
    assert ledger and identity
    assert ledger.levers == (LeverEntry("pace", target, "8:0", identity, "max", ("5",)),)


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
    actuator = started(files, path)
    actuator.apply(*PAIR)
    settle(actuator, *ALL)
    actuator.restore()
    actuator.dry_run = True
    for _ in range(4):
        with contextlib.suppress(IndexError):
            actuator.apply_settings(ALL)
    assert files.state() == found and load(path) is None
