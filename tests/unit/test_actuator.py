# SPDX-License-Identifier: GPL-2.0-or-later
"""The limits: read, applied, read back and restored, over several runs and crashes."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from pathlib import Path
from typing import Any, Iterator, List, Optional, Tuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    started,
)
from fake_vm import DEFAULT, PAGE, SYSCTL, Crash, FakeVm
from limit_cases import MIB, ORIGINALS, saved
from writebackd.actuate.actuator import Actuator
from writebackd.actuate.ledger import LedgerError, load
from writebackd.actuate.ledger_restore import restore_from_ledger
from writebackd.kernel.vm import (
    BACKGROUND,
    LEVERS,
    LIMIT,
    PAIRS,
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


def each_original(directory: Path) -> Iterator[Tuple[VmLimits, Path]]:
    """What a host may be found with, and a path for a ledger of its own."""
    for number, original in enumerate(ORIGINALS.values()):
        yield original, directory / f"ledger-{number}.json"


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


@pytest.mark.parametrize("limit, background, pages", [
    (10 * PAGE, 5 * PAGE, (10, 5)),
    (10 * PAGE, 10 * PAGE, (10, 5)),
    (11 * PAGE, 12 * PAGE, (11, 5)),
    (10 * PAGE + 1, 10 * PAGE, (11, 10)),
    (2 * PAGE, 1, (2, 1)),
])  # fmt: skip
def test_expected_thresholds(limit: int, background: int, pages: Tuple[int, int]) -> None:
    assert expected_thresholds(limit, background, PAGE) == pages


# -- applying ----------------------------------------------------------------


@pytest.mark.parametrize("wanted", [FIRST, SECOND, ODD])
def test_apply_takes_effect_and_is_read_back(tmp_path: Path, wanted: Tuple[int, int]) -> None:
    for original, path in each_original(tmp_path):
        files, actuator = begun(path, original)
        actions = actuator.apply(*wanted)
        assert all(action.ok for action in actions), original
        assert files.limits == bytes_form(wanted), original
        assert files.thresholds() == expected_thresholds(*wanted, PAGE), original
        assert actuator.originals == original
        assert actuator.foreign(files.limits) == (), original
        assert actuator.apply(*wanted) == (), original


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


REFUSED = [
    (lever, code, late)
    for lever in ("dirty_bytes", "dirty_background_bytes")
    for code in WORDS
    for late in (False, True)  # refused but in effect
]


@pytest.mark.parametrize("held", [None, FIRST, (256 * MIB, 128 * MIB)], ids=str)
def test_failed_write_leaves_nothing_half_applied(tmp_path: Path, held: Tuple[int, int]) -> None:
    for original, path in each_original(tmp_path):
        for lever, code, late in REFUSED:
            refused_once(path, original, held, lever, code, late)


def refused_once(
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


@pytest.mark.parametrize("home", [home_by_restore, home_by_exit, *AFTER_CRASH])
@pytest.mark.parametrize(
    "spell", [(), (FIRST,), (FIRST, SECOND), (SECOND, FIRST, ODD)], ids=lambda s: str(len(s))
)
def test_restored_in_the_form_it_was_found(
    tmp_path: Path, home: Home, spell: Tuple[Tuple[int, int], ...]
) -> None:
    for original, path in each_original(tmp_path):
        files, actuator = begun(path, original)
        for wanted in spell:
            actuator.apply(*wanted)
        home(actuator, files, path)
        assert files.limits == original
        assert load(path) is None, original
        assert ("dirty_bytes", "0") not in files.writes, original
        assert ("dirty_background_bytes", "0") not in files.writes, original


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


@pytest.mark.parametrize("home", AFTER_CRASH)
def test_restored_after_a_crash_before_any_write(tmp_path: Path, home: Home) -> None:
    for original in ORIGINALS.values():
        lives = 0
        for files, path in crashed_lives(original, tmp_path):
            home(Actuator(files, path, "restore"), files, path)
            assert files.limits == original, f"after {files.writes}"
            assert load(path) is None, original
            lives += 1
        assert lives >= 2 * len(SPELL), original


def test_restored_when_the_restore_crashes_too(tmp_path: Path) -> None:
    for original in ORIGINALS.values():
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


# ==== over several runs ===============================================================


BOOT_ID = "/proc/sys/kernel/random/boot_id"
ANOTHER_BOOT = "5e4d3c2b-0000-4111-8222-333344445555"


def test_restart_does_not_let_the_limits_jump(path: Path) -> None:
    files, _ = holding(path)
    del files.writes[:]
    following = Actuator(files, path, "restore")
    messages = following.start()
    assert files.writes == [] and following.originals == DEFAULT
    assert f"of process {os.getpid()}, original dirty_ratio=20" in messages[0]
    following.apply(*SECOND)
    ledger = load(path)
    assert ledger and ledger.written == (FIRST, SECOND)
    assert ledger.originals == DEFAULT


def test_ledger_of_an_earlier_boot_is_set_aside(path: Path) -> None:
    files = FakeVm(VmLimits(0, 33, 0, 10))
    started(files, path).apply(*FIRST)
    rebooted = FakeVm(DEFAULT)
    rebooted.boot_id = ANOTHER_BOOT
    actuator = Actuator(rebooted, path, "restore")
    (message,) = actuator.start()
    assert "earlier boot" in message and load(path) is None
    assert actuator.originals == DEFAULT


def test_restore_after_a_reboot_touches_nothing(path: Path) -> None:
    files = FakeVm(VmLimits(0, 33, 0, 10))
    started(files, path).apply(*FIRST)
    rebooted = FakeVm(bytes_form(FIRST))  # as sysctl.d may set at boot
    rebooted.boot_id = ANOTHER_BOOT
    assert restore_from_ledger(rebooted, path).status == "nothing"
    assert rebooted.writes == []


@pytest.mark.parametrize("text", [None, "", "0c5d1a3e-7b1f-4c7e", "garbage"])
@pytest.mark.parametrize("when", ["saved", "restored", "adopted"])
def test_a_boot_that_cannot_be_told_is_not_taken_for_an_earlier_one(
    path: Path, when: str, text: Optional[str]
) -> None:
    files = FakeVm()
    whole = files.boot_id

    def boot(readable: bool) -> None:
        files.boot_id = whole if readable else text or ""
        if not readable and text is None:
            files.errors[BOOT_ID] = errno.EIO
        else:
            files.errors.pop(BOOT_ID, None)

    boot(when != "saved")
    started(files, path).apply(*FIRST)
    boot(when == "saved")
    if when == "adopted":
        following = Actuator(files, path, "restore")
        assert "adopted" in following.start()[0] and following.originals == DEFAULT
        following.finish()
    else:
        assert restore_from_ledger(files, path).status == "restored"
    assert files.limits == DEFAULT and load(path) is None


def test_damaged_ledger_stops_the_start_and_survives_the_exit(path: Path) -> None:
    """What stands may be ours: it must not become the original, nor the ledger go."""
    files, _ = holding(path)
    path.write_text(path.read_text()[:-20])
    actuator = Actuator(files, path, "restore")
    with pytest.raises(LedgerError, match=r"vm\.dirty_ratio=20"):
        actuator.start()
    assert actuator.finish() == ()
    assert path.exists() and files.limits == bytes_form(FIRST)
    result = restore_from_ledger(files, path)
    assert result.status == "failed" and "vm.dirty_ratio=20" in result.lines[0]
    assert path.exists()


def test_exit_before_start_keeps_the_ledger_of_the_crashed_run(path: Path) -> None:
    files, _ = holding(path)
    assert Actuator(files, path, "restore").finish() == ()
    assert restore_from_ledger(files, path).status == "restored"
    assert files.limits == DEFAULT


# -- others --------------------------------------------------------------------


def test_nothing_is_foreign_before_the_first_write(path: Path) -> None:
    files, actuator = begun(path)
    files.sysctl("dirty_ratio", 40)
    assert actuator.foreign(files.limits) == ()
    assert actuator.restore() == ()
    assert files.limits == VmLimits(0, 40, 0, 10)


FOREIGN = [
    ("dirty_bytes", 111 * MIB),
    ("dirty_ratio", 40),
    ("dirty_ratio", 20),  # the original: sysctl --system, say
    ("dirty_background_bytes", 5 * MIB),
    ("dirty_background_ratio", 5),
    ("dirty_background_ratio", 0),
]


@pytest.mark.parametrize("lever, value", FOREIGN)
def test_yield_leaves_theirs_and_puts_back_ours(tmp_path: Path, lever: str, value: int) -> None:
    for original, path in each_original(tmp_path):
        yielded(path, original, lever, value)


def yielded(path: Path, original: VmLimits, lever: str, value: int) -> None:
    files, actuator = holding(path, original)
    files.sysctl(lever, value)
    (write,) = actuator.foreign(files.limits)
    assert (write.lever, write.value, write.pid) == (lever, str(value), None)
    assert all(action.ok for action in actuator.yield_())
    theirs, mine = (LIMIT, BACKGROUND) if lever in LIMIT else (BACKGROUND, LIMIT)
    stands = files.limits
    assert theirs.in_force(theirs.value(stands)) == (lever, value)
    assert mine.value(stands) == mine.value(original)
    assert actuator.originals == stands
    # Hands off until told otherwise.
    assert actuator.apply(*SECOND) == ()
    assert actuator.foreign(files.limits) == ()
    assert actuator.finish() == ()
    assert files.limits == stands and load(path) is None
    # `enforce`: their value is what we go back to.
    files.sysctl("dirty_background_ratio", 3)
    stands = files.limits
    actuator.take_over()
    assert actuator.originals == stands
    assert all(action.ok for action in actuator.apply(*SECOND))
    actuator.restore()
    assert files.limits == stands


@pytest.mark.parametrize("lever", ["dirty_bytes", "dirty_background_bytes"])
def test_the_same_value_by_somebody_else_changes_nothing(path: Path, lever: str) -> None:
    """Nothing moved, so there is nothing to yield to, and the way home is as it was."""
    files, actuator = holding(path)
    files.sysctl(lever, FIRST[0] if lever == "dirty_bytes" else FIRST[1])
    assert actuator.foreign(files.limits) == ()
    assert all(action.ok for action in actuator.apply(*SECOND))
    actuator.restore()
    assert files.limits == DEFAULT


def test_one_writer_after_another_leaves_the_last_value(path: Path) -> None:
    files, actuator = holding(path)
    files.sysctl("dirty_ratio", 40)
    files.sysctl("dirty_bytes", 99 * MIB)
    (write,) = actuator.foreign(files.limits)
    assert (write.lever, write.value) == ("dirty_bytes", str(99 * MIB))
    # Set, and set back to ours before anybody looked: nothing stands to yield to.
    files.sysctl("dirty_bytes", FIRST[0])
    assert actuator.foreign(files.limits) == ()


def test_a_restore_from_the_ledger_behind_a_live_daemon_is_a_foreign_write(path: Path) -> None:
    """Whoever did it wanted the originals: hands off, until `enforce`."""
    files, actuator = holding(path)
    assert restore_from_ledger(files, path).status == "restored"
    assert files.limits == DEFAULT and load(path) is None
    assert [w.lever for w in actuator.foreign(files.limits)] == [
        "dirty_ratio", "dirty_background_ratio",
    ]  # fmt: skip
    assert actuator.yield_() == () and actuator.apply(*SECOND) == ()
    assert files.limits == DEFAULT and load(path) is None
    actuator.take_over()
    assert all(action.ok for action in actuator.apply(*SECOND))
    assert load(path) is not None
    actuator.restore()
    assert files.limits == DEFAULT


@pytest.mark.parametrize("lever, value", FOREIGN)
def test_foreign_value_of_this_very_tick_is_not_overwritten(
    path: Path, lever: str, value: int
) -> None:
    files, actuator = holding(path)
    files.sysctl(lever, value)
    stands = files.limits
    assert f"another process set {lever}={value}" in error_of(actuator.apply(*SECOND))
    assert files.limits == stands


def test_holding_a_value_that_was_there_already_still_sees_a_foreign_write(path: Path) -> None:
    files = FakeVm(bytes_form(FIRST))
    actuator = started(files, path)
    assert actuator.apply(*FIRST) == () and files.writes == []
    files.sysctl("dirty_bytes", 100 * MIB)
    assert [w.value for w in actuator.foreign(files.limits)] == [str(100 * MIB)]
    actuator.yield_()
    assert files.limits == bytes_form((100 * MIB, FIRST[1]))


@pytest.mark.parametrize("lever, value", FOREIGN[:2] + FOREIGN[3:])
def test_restore_without_the_daemon_leaves_a_foreign_value(
    path: Path, lever: str, value: int
) -> None:
    files, _ = holding(path)
    files.sysctl(lever, value)
    result = restore_from_ledger(files, path)
    assert result.status == "foreign"
    pair = LIMIT if lever in LIMIT else BACKGROUND
    assert any(f"{lever}={value} not restored" in line for line in result.lines)
    assert any(pair.describe(pair.value(DEFAULT)) in line for line in result.lines)
    assert pair.in_force(pair.value(files.limits)) == (lever, value)
    other = BACKGROUND if pair is LIMIT else LIMIT
    assert other.value(files.limits) == other.value(DEFAULT)
    # Nothing of ours is left: a later restore must not take their value for ours.
    assert restore_from_ledger(files, path).status == "nothing"
    assert path.with_name("ledger.json.old").exists()


def test_start_takes_a_foreign_value_as_original_and_adopts_the_rest(path: Path) -> None:
    files, _ = holding(path)
    files.sysctl("dirty_ratio", 40)
    actuator = Actuator(files, path, "restore")
    messages = actuator.start()
    assert "dirty_ratio=40 was set by another process" in messages[0]
    assert "adopted dirty_background_bytes" in messages[1]
    actuator.apply(*SECOND)
    actuator.restore()
    assert files.limits == VmLimits(0, 40, 0, 10)


# -- observe -------------------------------------------------------------------


def test_dry_run_tells_and_writes_nothing(path: Path) -> None:
    files, actuator = begun(path)
    actuator.dry_run = True
    actions = actuator.apply(*FIRST)
    assert [(a.lever, a.old, a.new, a.ok, a.error) for a in actions] == [
        ("dirty_bytes", "dirty_ratio=20", str(FIRST[0]), True, None),
        ("dirty_background_bytes", "dirty_background_ratio=10", str(FIRST[1]), True, None),
    ]
    assert actuator.apply(*FIRST) == ()
    assert [a.old for a in actuator.apply(SECOND[0], FIRST[1])] == [str(FIRST[0])]
    files.sysctl("dirty_ratio", 40)
    assert actuator.foreign(files.limits) == ()
    assert actuator.finish() == ()
    assert files.writes == [] and load(path) is None


def test_dry_run_and_back_at_run_time(path: Path) -> None:
    files, actuator = begun(path)
    for _ in range(2):
        assert len(actuator.apply(*FIRST)) == 2
        actuator.dry_run = True
        assert len(actuator.restore()) == 2
        assert files.limits == DEFAULT
        assert len(actuator.apply(*SECOND)) == 2
        assert files.limits == DEFAULT
        actuator.dry_run = False
    assert actuator.foreign(files.limits) == ()


def test_dry_start_after_a_crash_puts_the_originals_back(path: Path) -> None:
    files, _ = holding(path)
    actuator = Actuator(files, path, "restore")
    actuator.dry_run = True
    actuator.start()
    files.write_errors = {"dirty_ratio": (errno.EIO, False)}
    actuator.restore()
    assert files.limits == VmLimits(FIRST[0], 0, 0, 10)
    files.write_errors = {}
    assert [action.lever for action in actuator.apply(*SECOND)] == ["dirty_ratio"]
    assert files.limits == DEFAULT and load(path) is None
    assert len(actuator.apply(*SECOND)) == 2
    assert files.limits == DEFAULT


# -- any order of events ---------------------------------------------------------

# Even numbers are the agent's, odd ones others': a foreign write of a value the
# agent wrote just now cannot be told from its own, and neither can dirty_ratio=1
# over an original of 0.
agents = st.tuples(st.integers(PAGE, 1 << 40), st.integers(1, 1 << 40)).map(
    lambda pair: (2 * pair[0], 2 * pair[1])
)
odd_bytes = st.integers(PAGE, 1 << 40).map(lambda n: 2 * n + 1)
ratios = st.sampled_from([0, 2, 10, 20, 50, 100])
foreign_writes = st.one_of(
    st.tuples(st.sampled_from([pair.bytes_lever for pair in PAIRS]), odd_bytes),
    st.tuples(st.sampled_from([pair.ratio_lever for pair in PAIRS]), ratios),
)
pair_values = st.one_of(
    st.tuples(odd_bytes, st.just(0)), st.tuples(st.just(0), st.integers(0, 100))
)
Event = Tuple[str, Any]
events: Any = st.one_of(
    st.tuples(st.just("apply"), agents),
    st.tuples(st.just("apply"), st.just(FIRST)),
    st.tuples(st.just("foreign"), foreign_writes),
    st.tuples(
        st.just("failing write"), st.tuples(st.sampled_from(LEVERS), st.sampled_from(sorted(WORDS)))
    ),
    st.tuples(st.just("crash"), st.tuples(agents, st.integers(0, 2))),
    st.tuples(st.sampled_from(["tick", "enforce", "restore", "ctl restore", "observe"]), st.none()),
)


@settings(max_examples=300, deadline=None)
@given(
    limit=pair_values,
    background=pair_values,
    script=st.lists(events, max_size=12),
    home=st.sampled_from([*AFTER_CRASH, home_by_restore]),
)
def test_home_after_any_order_of_events(
    tmp_path_factory: pytest.TempPathFactory,
    limit: Tuple[int, int],
    background: Tuple[int, int],
    script: List[Event],
    home: Home,
) -> None:
    """At the end each pair is as it was found, or as somebody else set it last."""
    path = tmp_path_factory.getbasetemp() / "any-order.json"
    path.unlink(missing_ok=True)
    files = FakeVm(VmLimits(*limit, *background))
    expected = {LIMIT: limit, BACKGROUND: background}
    actuator = started(files, path)
    for event, argument in script:
        if event == "foreign":
            lever, value = argument
            before = files.limits
            files.sysctl(lever, value)
            for pair in PAIRS:
                # Unless it was without effect, as dirty_ratio=0 in bytes form.
                if lever in pair and pair.value(files.limits) != pair.value(before):
                    expected[pair] = pair.value(files.limits)
        else:
            actuator = play(event, argument, actuator, files, path)
    files.write_errors = {}
    home(actuator, files, path)
    assert {pair: pair.value(files.limits) for pair in PAIRS} == expected
    assert load(path) is None


def play(event: str, argument: Any, actuator: Actuator, files: FakeVm, path: Path) -> Actuator:
    if event == "apply":
        actuator.dry_run = False
        actuator.apply(*argument)
    elif event == "failing write":
        lever, code = argument
        files.write_errors = {lever: (code, code == errno.EIO)}
    elif event == "tick" and actuator.foreign(files.limits):
        actuator.yield_()
    elif event == "enforce":
        files.write_errors = {}
        actuator.dry_run = False
        actuator.take_over()
    elif event == "restore":
        actuator.restore()
    elif event == "observe":
        actuator.restore()
        actuator.dry_run = True
    elif event == "ctl restore":
        restore_from_ledger(files, path)
        actuator = started(files, path)
    elif event == "crash":
        wanted, files.crash_before = argument
        with contextlib.suppress(Crash):
            actuator.apply(*wanted)
        files.crash_before = None
        actuator = started(files, path)
    return actuator


@pytest.mark.parametrize("first,then", [("restore", "keep"), ("keep", "restore")])
def test_a_changed_wish_for_the_exit_is_in_the_ledger(path: Path, first: str, then: str) -> None:
    # ExecStopPost reads it there, and must not undo what finish() kept.
    files = FakeVm(DEFAULT)
    actuator = started(files, path, first)
    actuator.apply(*FIRST)
    actuator.set_on_exit(then)
    assert saved(path).on_exit == then
    # A crash, and a restart under the other policy again: it adopts, and says so.
    again = started(files, path, first)
    assert again.held_limit_bytes == FIRST[0]
    assert saved(path).on_exit == first
