# SPDX-License-Identifier: GPL-2.0-or-later
"""The limits: read, applied, read back, and restored, also after a crash."""

from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path
from typing import Iterator, Tuple

import pytest

from actuator_cases import (
    AFTER_CRASH,
    FIRST,
    ODD,
    SECOND,
    WORDS,
    Home,
    begun,
    bytes_form,
    error_of,
    holding,
    home_by_restore,
    originals,
    started,
)
from fake_vm import DEFAULT, PAGE, SYSCTL, Crash, FakeVm
from limit_cases import MIB
from writebackd.actuate.actuator import Actuator
from writebackd.actuate.ledger import load
from writebackd.actuate.ledger_restore import restore_from_ledger
from writebackd.kernel.vm import (
    expected_thresholds,
    host_info,
    read_limits,
    read_state,
    readback_error,
)
from writebackd.types.levers import VmLimits
from writebackd.types.samples import HostInfo

SPELL = (FIRST, SECOND, ODD)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.json"


# -- reading ----------------------------------------------------------------


def test_state_in_bytes() -> None:
    files = FakeVm(VmLimits(10 * MIB + 1, 0, 0, 0))
    state = read_state(files)
    assert state.limits == files.limits
    assert (state.dirty_bytes, state.writeback_bytes) == (21 * PAGE, 3 * PAGE)
    assert state.threshold_bytes == 10 * MIB + PAGE
    assert state.background_threshold_bytes == 0
    assert state.dirtyable_bytes == 6_000_000 * PAGE


def test_what_can_be_dirty_is_not_known_without_its_counters() -> None:
    files = FakeVm()
    full = files._vmstat()
    files._vmstat = lambda: full.replace("nr_active_file", "nr_gone")  # type: ignore[method-assign]
    assert read_state(files).dirtyable_bytes is None


@pytest.mark.parametrize("vmstat", ["nr_dirty 1\nnr_writeback 0", "", "nr_dirty x\nnr_writeback 0"])
def test_vmstat_without_the_counters_is_an_error(vmstat: str) -> None:
    files = FakeVm()
    files._vmstat = lambda: vmstat  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="/proc/vmstat"):
        read_state(files)


def test_write_between_two_reads_is_not_taken_for_a_setting() -> None:
    """Somebody writes dirty_ratio after dirty_bytes was read."""
    files = FakeVm(VmLimits(10 * MIB, 0, 0, 10))
    read, pending = files.read, [("dirty_ratio", 30)]

    def slow_read(name: str) -> str:
        text = read(name)
        if name.endswith("/dirty_bytes") and pending:
            files.sysctl(*pending.pop())
        return text

    files.read = slow_read  # type: ignore[method-assign]
    assert read_limits(files) == VmLimits(0, 30, 0, 10)


def test_host_info() -> None:
    files = FakeVm()
    assert host_info(files) == HostInfo(PAGE, 65, 24689100 * 1024)
    files.texts = {"/proc/meminfo": "MemTotal: 100 kB"}
    assert host_info(files).cpus_online >= 1
    files.texts = {"/proc/meminfo": "garbage"}
    with pytest.raises(ValueError, match="MemTotal"):
        host_info(files)


@pytest.mark.parametrize(
    "limit, background, pages",
    [
        (10 * PAGE, 5 * PAGE, (10, 5)),
        (10 * PAGE, 10 * PAGE, (10, 5)),
        (11 * PAGE, 12 * PAGE, (11, 5)),
        (10 * PAGE + 1, 10 * PAGE, (11, 10)),
        (2 * PAGE, 1, (2, 1)),
    ],
)
def test_expected_thresholds(limit: int, background: int, pages: Tuple[int, int]) -> None:
    assert expected_thresholds(limit, background, PAGE) == pages


# -- applying ----------------------------------------------------------------


@originals
@pytest.mark.parametrize("wanted", [FIRST, SECOND, ODD])
def test_apply_takes_effect_and_is_read_back(
    path: Path, original: VmLimits, wanted: Tuple[int, int]
) -> None:
    files, actuator = begun(path, original)
    actions = actuator.apply(*wanted)
    assert all(action.ok for action in actions)
    assert files.limits == bytes_form(wanted)
    assert files.thresholds() == expected_thresholds(*wanted, PAGE)
    assert actuator.originals == original
    assert actuator.foreign(files.limits) == ()
    assert actuator.apply(*wanted) == ()


def test_action_names_the_form_that_was_in_force(path: Path) -> None:
    files = FakeVm(VmLimits(0, 20, 100 * MIB, 0))
    actions = {action.lever: action for action in started(files, path).apply(*FIRST)}
    assert actions["dirty_bytes"].old == "dirty_ratio=20"
    assert actions["dirty_background_bytes"].old == str(100 * MIB)
    assert actions["dirty_background_bytes"].new == str(7 * MIB)


def test_lowering_begins_with_the_background_raising_with_the_limit(path: Path) -> None:
    files, actuator = begun(path)
    for wanted in (FIRST, SECOND, FIRST):
        actuator.apply(*wanted)
    lower = ["dirty_background_bytes", "dirty_bytes"]
    assert [lever for lever, _ in files.writes] == [*lower, *reversed(lower), *lower]


def test_only_what_differs_is_written(path: Path) -> None:
    files, actuator = holding(path)
    del files.writes[:]
    actuator.apply(FIRST[0], 5 * MIB)
    assert files.writes == [("dirty_background_bytes", str(5 * MIB))]


def test_kernel_that_uses_something_else_is_told_at_once(path: Path) -> None:
    files, actuator = begun(path)
    real = files.thresholds
    files.thresholds = lambda: (real()[0] + 2, real()[1])  # type: ignore[method-assign]
    assert "nr_dirty_threshold is 3842 pages" in error_of(actuator.apply(*FIRST))
    assert actuator.restore() and files.limits == DEFAULT


def test_what_is_not_in_force_fails_in_the_same_words_each_time(path: Path) -> None:
    """Its pages move in every tick, and log and history have each error once."""
    files, actuator = begun(path)
    real, pages = files.thresholds, itertools.count(1000)
    files.thresholds = lambda: (real()[0] + next(pages), real()[1])  # type: ignore[method-assign]
    first = error_of(actuator.apply(*FIRST))
    del files.writes[:]
    assert {error_of(actuator.apply(*FIRST)) for _ in range(3)} == {first} and not files.writes
    files.thresholds = real  # type: ignore[method-assign]
    assert actuator.apply(*FIRST) == ()


def test_one_page_of_difference_is_allowed() -> None:
    files = FakeVm(bytes_form(FIRST))
    assert readback_error(FIRST[0] + PAGE, FIRST[1] - PAGE, read_state(files)) is None
    assert readback_error(FIRST[0], FIRST[1] - 2 * PAGE, read_state(files)) is not None


def test_what_the_admin_changes_between_two_spells_is_the_new_original(path: Path) -> None:
    files, actuator = holding(path)
    actuator.restore()
    files.sysctl("dirty_ratio", 33)
    assert all(action.ok for action in actuator.apply(*FIRST))
    actuator.restore()
    assert files.limits == VmLimits(0, 33, 0, 10)


@pytest.mark.parametrize("late", [False, True], ids=["refused", "refused but in effect"])
@pytest.mark.parametrize("code", WORDS, ids=lambda code: errno.errorcode[code])
@pytest.mark.parametrize("lever", ["dirty_bytes", "dirty_background_bytes"])
@pytest.mark.parametrize("held", [None, FIRST, (256 * MIB, 128 * MIB)], ids=str)
@originals
def test_failed_write_leaves_nothing_half_applied(
    path: Path, original: VmLimits, held: Tuple[int, int], lever: str, code: int, late: bool
) -> None:
    files, actuator = begun(path, original)
    if held:
        actuator.apply(*held)
    before = files.limits

    def fail_once(written: str) -> None:
        files.write_errors = {lever: (code, late)} if written == lever and armed.pop() else {}

    armed = [False, False, False, True]
    files.before_write = fail_once
    assert WORDS[code] in error_of(actuator.apply(*SECOND))
    assert files.limits == before
    assert actuator.foreign(files.limits) == ()
    actuator.restore()
    assert files.limits == original
    assert load(path) is None


@pytest.mark.parametrize("code", WORDS, ids=lambda code: errno.errorcode[code])
def test_roll_back_that_fails_too_is_told_and_still_ours(path: Path, code: int) -> None:
    files, actuator = begun(path)
    files.write_errors = {
        "dirty_bytes": (code, False),
        "dirty_background_ratio": (code, False),
    }
    assert "dirty_background_bytes=7340032 stays" in error_of(actuator.apply(*FIRST))
    assert files.limits == VmLimits(0, 20, 7 * MIB, 0)
    assert not actuator.restore()[0].ok
    assert load(path) is not None
    files.write_errors = {}
    assert restore_from_ledger(files, path).status == "restored"
    assert files.limits == DEFAULT


@pytest.mark.parametrize("wanted", [(PAGE, 1), (0, 1), (MIB, 0)], ids=str)
def test_value_the_kernel_refuses(path: Path, wanted: Tuple[int, int]) -> None:
    files = FakeVm()
    assert "refuses" in error_of(started(files, path).apply(*wanted))
    assert files.limits == DEFAULT


@pytest.mark.parametrize("name", ["/proc/vmstat", SYSCTL + "dirty_ratio"])
def test_unreadable_before_a_write_writes_nothing(path: Path, name: str) -> None:
    files, actuator = begun(path)
    files.errors[name] = errno.EIO
    assert "Input/output" in error_of(actuator.apply(*FIRST))
    assert files.writes == [] and load(path) is None


def test_unreadable_at_restore_writes_nothing_and_keeps_the_ledger(path: Path) -> None:
    files, actuator = holding(path)
    files.errors[SYSCTL + "dirty_ratio"] = errno.EIO
    assert "Input/output" in error_of(actuator.restore())
    assert restore_from_ledger(files, path).status == "failed"
    assert files.limits == bytes_form(FIRST)
    files.errors.clear()
    actuator.restore()
    assert files.limits == DEFAULT and load(path) is None


def test_garbage_in_a_file_is_an_action_not_an_exception(path: Path) -> None:
    files, actuator = begun(path)
    read = files.read

    def garbage(name: str) -> str:
        return "" if name.endswith("/dirty_ratio") else read(name)

    files.read = garbage  # type: ignore[method-assign]
    assert "expected an integer" in error_of(actuator.apply(*FIRST))


@pytest.mark.parametrize("held", [None, SECOND], ids=str)
def test_no_ledger_no_write(
    path: Path, monkeypatch: pytest.MonkeyPatch, held: Tuple[int, int]
) -> None:
    files, actuator = begun(path)
    if held:
        actuator.apply(*held)
    before = files.limits
    del files.writes[:]

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        error = error_of(actuator.apply(*FIRST))
    assert "No space" in error and str(path) in error
    assert files.writes == [] and files.limits == before
    assert all(action.ok for action in actuator.apply(*FIRST))


def test_no_runtime_directory_no_write(tmp_path: Path) -> None:
    files = FakeVm()
    actuator = started(files, tmp_path / "gone" / "ledger.json")
    assert "No such file" in error_of(actuator.apply(*FIRST))
    assert files.writes == []


@pytest.mark.parametrize("code", WORDS, ids=lambda code: errno.errorcode[code])
@pytest.mark.parametrize("lever", ["dirty_ratio", "dirty_background_ratio"])
def test_failed_restore_puts_the_other_pair_back_and_can_be_tried_again(
    path: Path, lever: str, code: int
) -> None:
    files, actuator = holding(path)
    files.write_errors = {lever: (code, False)}
    actions = {action.lever: action for action in actuator.restore()}
    assert not actions.pop(lever).ok
    assert [action.ok for action in actions.values()] == [True]
    result = restore_from_ledger(files, path)
    assert result.status == "failed"
    assert WORDS[code] in result.lines[0]
    assert "sysctl -w vm.dirty_ratio=20 vm.dirty_background_ratio=10" in result.lines[-1]
    files.write_errors = {}
    actuator.restore()
    assert files.limits == DEFAULT and load(path) is None


def home_by_exit(actuator: Actuator, files: FakeVm, path: Path) -> None:
    assert all(action.ok for action in actuator.finish())


@originals
@pytest.mark.parametrize("home", [home_by_restore, home_by_exit, *AFTER_CRASH])
@pytest.mark.parametrize(
    "spell", [(), (FIRST,), (FIRST, SECOND), (SECOND, FIRST, ODD)], ids=lambda s: str(len(s))
)
def test_restored_in_the_form_it_was_found(
    path: Path, original: VmLimits, home: Home, spell: Tuple[Tuple[int, int], ...]
) -> None:
    files, actuator = begun(path, original)
    for wanted in spell:
        actuator.apply(*wanted)
    home(actuator, files, path)
    assert files.limits == original
    assert load(path) is None
    assert ("dirty_bytes", "0") not in files.writes
    assert ("dirty_background_bytes", "0") not in files.writes


def life(files: FakeVm, path: Path) -> None:
    actuator = started(files, path)
    for wanted in SPELL:
        actuator.apply(*wanted)
    actuator.restore()


def crashed_lives(original: VmLimits, directory: Path) -> Iterator[Tuple[FakeVm, Path]]:
    """One life for each of its writes, ended by a crash right before that write.

    Before the first write the ledger is there already; the others are between
    the two writes of a pair, between two applies, and within the restore.
    """
    for count in range(100):
        files, path = FakeVm(original), directory / f"ledger-{count}.json"
        files.crash_before = count
        try:
            life(files, path)
        except Crash:
            files.crash_before = None
            yield files, path
        else:
            return
    raise AssertionError("this life has no end")


@originals
@pytest.mark.parametrize("home", AFTER_CRASH)
def test_restored_after_a_crash_before_any_write(
    tmp_path: Path, original: VmLimits, home: Home
) -> None:
    lives = 0
    for files, path in crashed_lives(original, tmp_path):
        home(Actuator(files, path, "restore"), files, path)
        assert files.limits == original, f"after {files.writes}"
        assert load(path) is None
        lives += 1
    assert lives >= 2 * len(SPELL)


@originals
def test_restored_when_the_restore_crashes_too(tmp_path: Path, original: VmLimits) -> None:
    for files, path in crashed_lives(original, tmp_path):
        for count in range(3):
            files.crash_before = count
            try:
                restore_from_ledger(files, path)
            except Crash:
                continue
            break
        files.crash_before = None
        assert restore_from_ledger(files, path).status in ("restored", "nothing")
        assert files.limits == original, f"after {files.writes}"


def test_ratio_0_is_reached_through_1(path: Path) -> None:
    """The kernel ignores an unchanged dirty_ratio, and in bytes form it is 0."""
    files = FakeVm(VmLimits(0, 0, 0, 10))
    actuator = started(files, path)
    actuator.apply(*FIRST)
    files.write(SYSCTL + "dirty_ratio", "0")
    assert files.limits == bytes_form(FIRST)
    actuator.restore()
    assert files.writes[-3:] == [
        ("dirty_ratio", "1"),
        ("dirty_ratio", "0"),
        ("dirty_background_ratio", "10"),
    ]


def test_keep_leaves_the_values_and_the_way_home(path: Path) -> None:
    files, actuator = holding(path, on_exit="keep")
    assert actuator.finish() == ()
    assert restore_from_ledger(files, path, honour_keep=True).status == "nothing"
    assert files.limits == bytes_form(FIRST)
    following = Actuator(files, path, "keep")
    assert any("adopted dirty_bytes=15728640" in line for line in following.start())
    assert following.apply(*FIRST) == ()
    assert restore_from_ledger(files, path).status == "restored"
    assert files.limits == DEFAULT


def test_nothing_kept_nothing_left(path: Path) -> None:
    files = FakeVm()
    actuator = started(files, path, on_exit="keep")
    assert "refuses" in error_of(actuator.apply(PAGE, PAGE))
    assert load(path) is not None
    actuator.finish()
    assert restore_from_ledger(files, path).status == "nothing"
