# SPDX-License-Identifier: GPL-2.0-or-later
"""Limits over several runs: adopted, set by others; observe mode; any order of events."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Any, List, Optional, Tuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actuator_cases import (
    AFTER_CRASH,
    FIRST,
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
from fake_vm import DEFAULT, PAGE, Crash, FakeVm
from limit_cases import MIB, saved
from writebackd.actuate.actuator import Actuator
from writebackd.actuate.ledger import LedgerError, load
from writebackd.actuate.ledger_restore import restore_from_ledger
from writebackd.kernel.vm import BACKGROUND, LEVERS, LIMIT, PAIRS
from writebackd.types.levers import VmLimits

BOOT_ID = "/proc/sys/kernel/random/boot_id"
ANOTHER_BOOT = "5e4d3c2b-0000-4111-8222-333344445555"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.json"


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
@originals
def test_yield_leaves_theirs_and_puts_back_ours(
    path: Path, original: VmLimits, lever: str, value: int
) -> None:
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
