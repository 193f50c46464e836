# SPDX-License-Identifier: GPL-2.0-or-later
"""Faults: files that fail, state on disk that is damaged."""

from __future__ import annotations

import errno
import json
import logging
import os
import random
from dataclasses import asdict, replace
from pathlib import Path
from typing import Iterator, List

import pytest

from fake_host import Rig, no_trace
from fake_vm import PAGE, SYSCTL, FakeVm
from history_cases import TIMEOUT_S, event, written
from writebackd.actuate.actuator import Actuator
from writebackd.actuate.ledger import Ledger, LedgerError, LeverEntry, load
from writebackd.actuate.ledger_restore import restore_from_ledger
from writebackd.cli.history import folded, render_history
from writebackd.daemon import SILENT_TICKS
from writebackd.kernel.vm import LEVERS
from writebackd.report.history_schema import HistoryError, read_history
from writebackd.report.history_store import History
from writebackd.types.levers import VmLimits

PIN = 32 << 20
DAY_S = 86400.0
REFUSALS = [errno.EINVAL, errno.EACCES, errno.ENOENT]  # others: test_actuator.py
named = pytest.mark.parametrize("code", REFUSALS, ids=[errno.errorcode[code] for code in REFUSALS])


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    rig = Rig(tmp_path, monkeypatch)
    rig.tick(2)
    yield rig
    rig.close()


def lines(caplog: pytest.LogCaptureFixture, least: int = logging.WARNING) -> List[str]:
    """What the loop said; alerts are told by threads of their own, when they get to it."""
    assert no_trace(caplog.records)
    return [
        r.getMessage()
        for r in caplog.records
        if r.levelno >= least and not r.name.startswith("writebackd.notify")
    ]


@named
@pytest.mark.parametrize("late", [False, True], ids=["at once", "after it took effect"])
@pytest.mark.parametrize("lever", ["dirty_bytes", "dirty_background_bytes"])
def test_a_refused_write_is_told_once_undone_and_tried_again(
    rig: Rig, caplog: pytest.LogCaptureFixture, lever: str, late: bool, code: int
) -> None:
    rig.host.write_errors[lever] = (code, late)
    rig.pin(PIN)
    rig.tick(20)
    assert rig.host.limits == rig.host.found
    told = lines(caplog)
    assert 1 <= len(told) <= 2 and all(os.strerror(code) in line for line in told), told
    assert any("cannot set" in line for line in rig.status()["warnings"])
    rig.host.write_errors.clear()
    rig.tick(2)
    assert (rig.host.limits.dirty_bytes, rig.host.limits.dirty_background_bytes) == (PIN, PIN // 2)
    assert len(lines(caplog)) == len(told)
    assert not rig.status()["warnings"]


@named
@pytest.mark.parametrize("lever", LEVERS)
def test_a_way_home_that_is_barred_is_tried_again(
    rig: Rig, caplog: pytest.LogCaptureFixture, lever: str, code: int
) -> None:
    rig.pin(PIN)
    rig.tick(2)
    rig.host.write_errors[lever] = (code, False)
    rig.host.errors["/proc/diskstats"] = errno.EIO  # unread for long: restore
    rig.tick(SILENT_TICKS + 20)
    barred = lever in ("dirty_ratio", "dirty_background_ratio")
    assert (rig.host.limits == rig.host.found) is not barred
    told = lines(caplog)
    assert len(told) == 2 + barred, told
    rig.host.write_errors.clear()
    rig.tick()
    assert rig.host.limits == rig.host.found
    assert not (rig.runtime_dir / "ledger.json").exists()


@pytest.mark.parametrize("name", ["/proc/vmstat", "/proc/diskstats", SYSCTL + "dirty_ratio"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOENT, errno.EMFILE, errno.ENOMEM])
def test_a_file_that_cannot_be_read_means_hold_then_restore_then_go_on(
    rig: Rig, caplog: pytest.LogCaptureFixture, name: str, code: int
) -> None:
    rig.pin(PIN)
    rig.tick(2)
    rig.host.errors[name] = code
    rig.tick(SILENT_TICKS - 1)
    assert VmLimits(**rig.host.values).dirty_bytes == PIN
    rig.tick(10)
    readable = name == "/proc/diskstats" or name == "/proc/vmstat"
    assert (VmLimits(**rig.host.values) == rig.host.found) is readable, "unread is not overwritten"
    assert "keeping current limits" in lines(caplog)[0]
    assert len(lines(caplog)) <= 4
    rig.host.errors.clear()
    rig.tick(2)
    assert rig.host.limits.dirty_bytes == PIN


@pytest.mark.parametrize("slept_s", [61.0, 8 * 3600.0, 90 * DAY_S])
def test_a_host_that_was_suspended_goes_on(
    rig: Rig, caplog: pytest.LogCaptureFixture, slept_s: float
) -> None:
    rig.pin(PIN)
    rig.tick(3)
    rig.now += slept_s
    rig.wall += slept_s
    rig.host.flow(1 << 30)
    rig.tick(3)
    assert rig.host.limits.dirty_bytes == PIN
    assert not lines(caplog)
    assert rig.status()["uptime_s"] >= slept_s


def test_a_clock_that_stands_still_is_no_division_by_zero(rig: Rig) -> None:
    rig.pin(PIN)
    for _ in range(5):
        rig.host.flow(1 << 20)
        rig.daemon._tick()
    assert rig.host.limits.dirty_bytes == PIN


OURS = VmLimits(16 << 20, 0, 8 << 20, 0)
SEED = 20260102


@pytest.fixture
def good(tmp_path: Path) -> bytes:
    return written(tmp_path / "good.db", map(event, range(5))).read_bytes()


def look(path: Path) -> None:
    """What `writebackctl history` does with the file: an answer, or an error in words."""
    try:
        events = read_history(path)
    except HistoryError as error:
        assert "\n" not in str(error)
        return
    json.dumps([asdict(each) for each in events])
    render_history(folded([asdict(each) for each in events]), 100, False)


def flipped(data: bytes, dice: random.Random, count: int) -> Iterator[bytes]:
    for _ in range(count):
        damaged = bytearray(data)
        for _ in range(dice.randint(1, 3)):
            damaged[dice.randrange(len(damaged))] ^= 1 << dice.randrange(8)
        yield bytes(damaged)


def test_a_history_cut_short_is_read_or_refused(tmp_path: Path, good: bytes) -> None:
    path = tmp_path / "history.db"
    path.write_bytes(good)
    # SQLite reads whole pages: of those behind the first any length within counts alike.
    for length in reversed(range(len(good))):
        if length <= PAGE or length % PAGE in (0, 1, PAGE - 1):
            os.truncate(path, length)
            look(path)


def test_a_history_with_flipped_bits_is_read_or_refused(tmp_path: Path, good: bytes) -> None:
    path, dice = tmp_path / "history.db", random.Random(SEED)
    # Then one in each byte that is not 0: the header, the schema, the rows.
    used = [at for at, byte in enumerate(good) if byte]
    for damaged in flipped(good, dice, 250):
        path.write_bytes(damaged)
        look(path)
    for at in used:
        damaged_here = bytearray(good)
        damaged_here[at] ^= 1 << dice.randrange(8)
        path.write_bytes(damaged_here)
        look(path)


def test_a_damaged_history_takes_new_events(tmp_path: Path, good: bytes) -> None:
    """Or begins anew, with what was damaged beside it; it never ends the writer."""
    dice = random.Random(SEED)
    cut = [good[: dice.randrange(len(good))] for _ in range(40)]
    for number, damaged in enumerate([*cut, *flipped(good, dice, 40)]):
        directory = tmp_path / str(number)
        directory.mkdir()
        path = directory / "history.db"
        path.write_bytes(damaged)
        history = History(path)
        for each in range(5, 8):
            history.record(event(each))
        assert history.close(TIMEOUT_S) or history.dropped, "lost, and not counted"
        look(path)


LEDGER = Ledger(
    boot_id="0c5d1a3e-7b1f-4c7e-9d43-1a2b3c4d5e6f",
    pid=4711,
    created_wall_s=1_764_000_000.5,
    on_exit="restore",
    originals=VmLimits(0, 20, 0, 10),
    written=((15728640, 7340032), (OURS.dirty_bytes, OURS.dirty_background_bytes)),
    levers=(
        LeverEntry("bdi", "8:0", "max_bytes", 42, "1000000", ("20000", "10000")),
        LeverEntry("pace", "/backup.service", "8:0", 0, "max", ("1048576",)),
    ),
)


def test_a_damaged_ledger_is_refused_by_whoever_reads_it_and_touches_nothing(
    tmp_path: Path,
) -> None:
    """Cut short at any byte; test_ledger.py flips every bit."""
    path = tmp_path / "ledger.json"
    LEDGER.save(path)
    assert load(path) == LEDGER
    whole, vm = path.read_bytes(), FakeVm(OURS)
    for length in range(len(whole) - 1):
        path.write_bytes(whole[:length])
        outcome = restore_from_ledger(vm, path)
        assert outcome.status == "failed" and len(outcome.lines) == 1
        with pytest.raises(LedgerError):
            Actuator(vm, path, "restore").start()
        assert not vm.writes
        assert path.read_bytes() == whole[:length], "all that is known of the originals"
    replace(LEDGER, levers=()).save(path)
    assert restore_from_ledger(vm, path).status == "restored"
    assert vm.limits == LEDGER.originals
