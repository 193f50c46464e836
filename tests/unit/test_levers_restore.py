# SPDX-License-Identifier: GPL-2.0-or-later
"""Levers that go with their device, and the way home from every crash."""

from __future__ import annotations

import errno
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Callable, Iterator, Tuple

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
    holding,
    pace,
    settle,
    started,
    world,
)
from limit_cases import MIB, saved
from writebackd.actuate.actuator import Actuator
from writebackd.actuate.ledger import LeverEntry, load
from writebackd.actuate.ledger_restore import restore_from_ledger
from writebackd.actuate.lever_writer import Levers
from writebackd.kernel.lever_files import Lever, identity, is_lever
from writebackd.safe_files import with_checksum
from writebackd.types.levers import LeverKind, Setting, VmLimits

path, files, plain, systemd = FIXTURES


# -- devices that go ---------------------------------------------------------------


def test_unplugged_device_is_dropped_and_its_successor_is_another(
    plain: FakeLevers, path: Path
) -> None:
    actuator = holding(plain, path, *CAP, NR)
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
    actuator = holding(plain, path, *CAP, NR)
    plain.unplug("8:0", "sda")
    plain.plug("8:0", "sda")
    plain.poke("/sys/block/sda/queue/nr_requests", "8")  # by chance what we wrote
    actuator.levers.foreign()
    actuator.finish()
    assert plain.queues["sda"]["nr_requests"] == 8 and plain.bdis["8:0"] == BDI


def test_removed_cgroup_is_dropped(plain: FakeLevers, path: Path) -> None:
    actuator = holding(plain, path, pace(5))
    plain.rmdir(UNIT)
    assert settle(actuator) == () and load(path) is None


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
    for number in range(2000):
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
    systemd: FakeLevers, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr("time.monotonic", clock)
    actuator = holding(systemd, path, pace(5), *CAP)
    systemd.poke(f"{CGROUPS}{UNIT}/io.max", "8:0 wbps=1000")
    assert len(actuator.levers.foreign()) == 1
    clock.now += 1000.0
    assert settle(actuator, pace(5), *CAP) == ()
    assert systemd.cgroups[UNIT]["8:0"]["wbps"] == "1000"


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
    holding(plain, path, *ALL)
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
    assert "flush vm dirty_writeback_centisecs=0 was set by another process" in following.start()
    following.finish()
    assert plain.flush["dirty_writeback_centisecs"] == 0
    assert plain.queues["sda"]["nr_requests"] == 64


def test_keep_is_about_the_limits(plain: FakeLevers, path: Path) -> None:
    actuator = holding(plain, path, *ALL, pair=PAIR, on_exit="keep")
    actuator.finish()
    assert plain.limits == VmLimits(PAIR[0], 0, PAIR[1], 0) and plain.bdis["8:0"] == BDI
    assert saved(path).levers == () and saved(path).written == (PAIR,)


def test_a_changed_wish_for_the_exit_is_told_without_a_limit_held(
    plain: FakeLevers, path: Path
) -> None:
    actuator = holding(plain, path, FLUSH)
    actuator.set_on_exit("keep")
    assert saved(path).on_exit == "keep" and len(saved(path).levers) == 1


def test_killed_with_keep_the_levers_go_home_alone(plain: FakeLevers, path: Path) -> None:
    holding(plain, path, *ALL, pair=PAIR, on_exit="keep")
    assert restore_from_ledger(plain, path, honour_keep=True).status == "restored"
    assert plain.limits == VmLimits(PAIR[0], 0, PAIR[1], 0) and plain.bdis["8:0"] == BDI
    assert restore_from_ledger(plain, path, honour_keep=True).status == "nothing"
    assert restore_from_ledger(plain, path).status == "restored"
    assert plain.limits == DEFAULT


def test_levers_that_are_no_longer_used_go_home_from_an_earlier_ledger(
    plain: FakeLevers, path: Path
) -> None:
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
    path.write_text(json.dumps(with_checksum(body)))
    assert restore_from_ledger(plain, path).status == "restored" and not path.exists()
    assert plain.limits == DEFAULT and plain.flush["dirty_writeback_centisecs"] == 500
    assert plain.queues["sda"] == {"nr_requests": 64, "max_sectors_kb": 1280}


def test_yield_of_the_pair_sends_the_levers_home(files: FakeLevers, path: Path) -> None:
    actuator = holding(files, path, *ALL, pair=PAIR)
    files.sysctl("dirty_ratio", 40)
    actuator.yield_()
    settle(actuator, *ALL)
    assert files.bdis["8:0"] == BDI and files.queues["sda"]["nr_requests"] == 64
    assert files.limits == VmLimits(0, 40, 0, 10) and load(path) is None


def test_queues_are_looked_at_when_all_else_is_home(files: FakeLevers, path: Path) -> None:
    """A child of the dead daemon may hang in a queue, and then reading it hangs, too."""
    holding(files, path, NR, *ALL, pair=PAIR)
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
    holding(plain, path, FLUSH, pair=PAIR)
    plain.sysctl("dirty_ratio", 40)
    plain.write_errors = {SYSCTL + "dirty_writeback_centisecs": (errno.EIO, False)}
    assert restore_from_ledger(plain, path).status == "failed"
    aside, ledger = load(path.with_name("ledger.json.old")), load(path)
    assert aside and aside.originals == DEFAULT and aside.written == (PAIR,)
    assert ledger and ledger.written == () and len(ledger.levers) == 1


def test_one_lever_that_fails_does_not_keep_the_rest(files: FakeLevers, path: Path) -> None:
    holding(files, path, *ALL, pair=PAIR)
    name = SYSCTL + "dirty_writeback_centisecs"
    files.write_errors = {name: (errno.EIO, False)}
    result = restore_from_ledger(files, path)
    assert result.status == "failed" and "Input/output" in "".join(result.lines)
    assert files.limits == DEFAULT and files.bdis["8:0"] == BDI
    assert saved(path).written == () and [e.kind for e in saved(path).levers] == ["flush"]
    files.write_errors = {}
    assert restore_from_ledger(files, path).status == "restored" and load(path) is None


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
    path.write_text(json.dumps(with_checksum(body)))
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
    known = identity(plain, Lever(LeverKind.PACE, target, "8:0"))
    assert ledger and known
    assert ledger.levers == (LeverEntry("pace", target, "8:0", known, "max", ("5",)),)
