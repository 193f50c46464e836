# SPDX-License-Identifier: GPL-2.0-or-later
"""The history: what is recorded is read back, and recording never waits."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import replace
from pathlib import Path
from typing import Callable

import pytest

import samples
from writebackd.report import history_store as history_module
from writebackd.report.device_figures import Figures
from writebackd.report.history_events import events_of
from writebackd.report.history_query import HistoryError, count_events, read_alerts, read_history
from writebackd.report.history_schema import Event
from writebackd.report.history_store import ALERTS_KEPT_S, KEPT_S, MAX_WAITING, History
from writebackd.types.decision import Mode
from writebackd.types.levers import Action

TIMEOUT_S = 10.0


def event(number: int, device: "str | None" = "sda", text: str = "") -> Event:
    return Event(
        wall_s=1000.0 + number, kind="decision", device=device, decision_id=f"sda-{number}",
        state="guard", limit_bytes=4 << 20, background_bytes=2 << 20, target_bytes=1 << 20,
        drain_rate=2.5e8, write_rate=None, fsync_p50_s=0.0004, fsync_p99_s=0.002, text=text,
    )  # fmt: skip


def until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not done():
        if time.monotonic() > end:
            pytest.fail("did not get there in time")
        time.sleep(0.005)


def test_events_come_back_as_they_went_in(tmp_path: Path) -> None:
    path = tmp_path / "state" / "history.db"
    history = History(path)
    sent = [event(0), Event(1001.0, "mode", text="observe"), event(2, "sdb")]
    for each in sent:
        history.record(each)
    assert history.close(TIMEOUT_S)
    assert read_history(path) == sent
    assert history.dropped == 0


@pytest.mark.parametrize(
    "since_s, device, limit, expected",
    [
        (None, None, None, [0, 1, 2, 3, 4]),
        (1002.0, None, None, [2, 3, 4]),
        (None, None, 2, [3, 4]),
        (None, "sdb", None, [1, 3, 4]),  # 4 is of the whole host
        (1002.0, "sdb", 1, [4]),
        (9999.0, None, None, []),
    ],
)
def test_reading_selects(
    tmp_path: Path, since_s: float, device: str, limit: int, expected: "list[int]"
) -> None:
    path = tmp_path / "history.db"
    history = History(path)
    for number, name in enumerate(["sda", "sdb", "sda", "sdb", None]):
        history.record(event(number, name))
    assert history.close(TIMEOUT_S)
    found = read_history(path, since_s, device, limit)
    assert [each.decision_id for each in found] == [f"sda-{n}" for n in expected]


def test_it_goes_on_where_the_last_one_stopped(tmp_path: Path) -> None:
    for number in range(3):
        history = History(tmp_path / "history.db")
        history.record(event(number))
        assert history.close(TIMEOUT_S)
    assert [each.wall_s for each in read_history(tmp_path / "history.db")] == [1000, 1001, 1002]


def test_the_oldest_rows_make_room(tmp_path: Path) -> None:
    history = History(tmp_path / "history.db", max_rows=100)
    for number in range(250):
        history.record(event(number))
    assert history.close(TIMEOUT_S)
    kept = [each.decision_id for each in read_history(tmp_path / "history.db")]
    assert kept == [f"sda-{n}" for n in range(150, 250)]


def test_a_locked_database_never_holds_up_the_loop(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    history = History(path)
    history.record(event(0))
    until(lambda: path.exists() and len(_count(path)) == 1)
    blocker = sqlite3.connect(str(path), isolation_level=None)
    blocker.execute("BEGIN EXCLUSIVE")
    total = MAX_WAITING + 1000
    slow = 0
    for number in range(1, total + 1):
        start = time.perf_counter()
        history.record(event(number))
        # Far below a tick; a thread switch takes up to 5 ms (sys.getswitchinterval).
        slow += time.perf_counter() - start >= 0.1
    dropped = history.dropped
    # The writer holds at most one batch besides the queue.
    assert total - MAX_WAITING - 256 <= dropped <= total - MAX_WAITING
    # A machine may stand still once or twice; the lock lasts.
    assert slow <= 2
    until(lambda: history.error is not None)
    blocker.execute("COMMIT")
    blocker.close()
    assert history.close(TIMEOUT_S)
    assert history.error is None
    assert len(read_history(path)) == 1 + total - dropped


def _count(path: Path) -> "list[Event]":
    try:
        return read_history(path)
    except HistoryError:
        return []


def test_closing_does_not_wait_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    first = History(path)
    first.record(event(0))
    assert first.close(TIMEOUT_S)
    blocker = sqlite3.connect(str(path), isolation_level=None)
    blocker.execute("BEGIN EXCLUSIVE")
    history = History(path)
    history.record(event(1))
    start = time.monotonic()
    assert history.close(0.2) is False
    assert time.monotonic() - start < 5.0
    blocker.execute("COMMIT")
    blocker.close()
    history._thread.join(TIMEOUT_S)
    assert len(read_history(path)) == 2


def test_a_state_directory_that_cannot_be_made_costs_events_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    history = History(tmp_path / "file" / "history.db")
    history.record(event(0))
    until(lambda: history.error is not None)
    assert history.close(TIMEOUT_S) is False
    assert history.dropped == 1


@pytest.mark.parametrize(
    "damage",
    [b"this is no database" * 100, None],
    ids=["garbage", "other version"],
)
def test_a_damaged_file_is_kept_aside_and_a_new_one_begun(
    tmp_path: Path, damage: "bytes | None"
) -> None:
    path = tmp_path / "history.db"
    if damage is not None:
        path.write_bytes(damage)
    else:
        with sqlite3.connect(str(path)) as other:
            other.execute("PRAGMA user_version=99")
            other.execute("CREATE TABLE other (x)")
        other.close()
    history = History(path)
    history.record(event(0))
    until(lambda: len(_count(path)) == 1)
    assert history.close(TIMEOUT_S)
    assert len(list(tmp_path.glob("history.db.damaged-*"))) == 1


@pytest.mark.parametrize("bad", ["na\udcffme", "nul\x00", "\x1b[2J"])
def test_names_that_are_no_text_are_recorded(tmp_path: Path, bad: str) -> None:
    history = History(tmp_path / "history.db")
    history.record(event(0, device=bad, text=bad))
    history.record(event(1))
    assert history.close(TIMEOUT_S)
    assert len(read_history(tmp_path / "history.db")) == 2


def test_a_value_sqlite_cannot_take_costs_its_batch_only(tmp_path: Path) -> None:
    history = History(tmp_path / "history.db")
    history.record(Event(1.0, "decision", limit_bytes=1 << 80))
    until(lambda: history.dropped == 1)
    history.record(event(1))
    assert history.close(TIMEOUT_S)
    assert len(read_history(tmp_path / "history.db")) == 1


def test_no_history_says_so(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="state-dir"):
        read_history(tmp_path / "history.db")
    (tmp_path / "history.db").write_bytes(b"x" * 4096)
    with pytest.raises(HistoryError, match="not a database"):
        read_history(tmp_path / "history.db")


def test_its_own_writing_never_syncs(tmp_path: Path) -> None:
    # An fsync of the agent would be the demand that it looks for.
    database = history_module.open_database(tmp_path / "history.db")
    assert database.execute("PRAGMA synchronous").fetchone() == (0,)
    assert database.execute("PRAGMA journal_mode").fetchone() == ("truncate",)
    database.close()


def test_observe_does_not_fill_the_history_with_the_steps_of_a_ramp_that_nobody_goes() -> None:
    step = (Action("dirty_bytes", "1", "2", True),)
    shown = samples.observe()
    later = replace(shown, decision=replace(shown.decision, limit_bytes=77 << 20))
    assert [each.kind for each in events_of(shown, later, step)] == []
    goal = replace(shown, decision=replace(shown.decision, goal_bytes=9 << 20))
    assert [each.text for each in events_of(shown, goal, step)] == [
        "would be set: dirty_bytes 1 -> 2"
    ]
    enforced = replace(shown, mode=Mode.ENFORCE)
    # As little is written where the kill switch is on, whatever the mode.
    held_off = replace(enforced, off="/run/writebackd/off")
    assert [each.text for each in events_of(enforced, held_off, step)] == [
        "would be set: dirty_bytes 1 -> 2"
    ]
    assert events_of(held_off, held_off, step) == []
    assert [each.text for each in events_of(held_off, enforced, step)] == ["dirty_bytes 1 -> 2"]
    assert [each.text for each in events_of(enforced, enforced, step)] == ["dirty_bytes 1 -> 2"]
    assert [each.kind for each in events_of(enforced, shown, step)] == ["action"]


def test_events_and_alerts_go_when_they_are_too_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "_DOUBT_S", 0.0)
    path = tmp_path / "history.db"
    history = History(path)
    alert = Event(1000.0, "alert", text="raised", alert='{"id": "a"}')
    # The clock was set back once: what came before that is no older for it.
    for each in (Event(1040.0, "start"), event(0), alert, event(5), Event(1030.0, "mode")):
        history.record(each)
    until(lambda: path.exists() and len(read_history(path)) == 5)
    # A quiet host has rows of figures only, or events only.
    history.record_figures((Figures(1000.0 + KEPT_S + 15.0, 10.0, "sda", 1e6, 1e8, 0.0),))
    until(lambda: len(read_history(path)) == 2)
    assert [each.wall_s for each in read_history(path)] == [1040.0, 1030.0]
    assert len(read_alerts(path, 10)) == 1
    history.record(event(int(ALERTS_KEPT_S) + 1))
    until(lambda: len(read_history(path)) == 1 and not read_alerts(path, 10))
    assert history.close(TIMEOUT_S)
    assert history.error is None


def test_many_old_events_go_in_the_batches_to_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "_DOUBT_S", 0.0)
    path = tmp_path / "history.db"
    history = History(path)
    for number in range(1300):
        history.record(event(number))
    until(lambda: path.exists() and len(read_history(path)) == 1300)
    left = []
    for number in range(3):
        now = event(int(KEPT_S) + 5000 + number)
        history.record(now)
        until(lambda: read_history(path)[-1] == now)  # noqa: B023
        left.append(len(read_history(path)))
    assert left == [1301 - 512, 1302 - 1024, 3]
    assert history.close(TIMEOUT_S)


@pytest.mark.parametrize("restarted", [True, False])
def test_a_clock_that_was_fifty_years_ahead_costs_nothing(tmp_path: Path, restarted: bool) -> None:
    """An RTC that has lost its time, until NTP answers: some ticks later, or minutes."""
    path = tmp_path / "history.db"
    history = History(path)
    alert = Event(1000.0, "alert", text="raised", alert='{"id": "a"}')
    kept = [event(0), alert, event(1)]
    for each in kept:
        history.record(each)
    until(lambda: path.exists() and len(read_history(path)) == 3)
    if restarted:
        assert history.close(TIMEOUT_S)
        history = History(path)
    ahead_s = 1000.0 + 50 * 365 * 86_400.0
    for number in range(4):
        kept.append(Event(ahead_s + number, "start"))
        history.record(kept[-1])
        until(lambda: read_history(path)[-1] == kept[-1])
    if restarted:
        assert history.close(TIMEOUT_S)
        history = History(path)
        kept.append(Event(ahead_s + 60.0, "start"))
        history.record(kept[-1])
        until(lambda: read_history(path)[-1] == kept[-1])
    kept.append(event(10))
    history.record(kept[-1])
    until(lambda: read_history(path)[-1] == kept[-1])
    assert history.close(TIMEOUT_S)
    assert read_history(path) == [replace(each, alert=None) for each in kept]
    assert len(read_alerts(path, 10)) == 1


def test_a_clock_that_stays_ahead_is_believed_after_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host was off for two months."""
    now = [5000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    history = History(tmp_path / "history.db")
    try:
        assert history._trusts(1000.0) and history._trusts(1000.0 + 86_000.0)
        later_s = 1000.0 + 2 * KEPT_S
        assert not history._trusts(later_s)
        now[0] += 3599.0
        assert not history._trusts(later_s + 3599.0)
        now[0] += 1.0
        assert history._trusts(later_s + 3600.0) and history._trusts(later_s + 3600.0)
        # Set right before the hour is over: the next leap has an hour of its own.
        assert not history._trusts(9 * later_s)
        now[0] += 3000.0
        assert history._trusts(later_s + 6600.0)
        now[0] += 3000.0
        assert not history._trusts(9 * later_s)
    finally:
        monkeypatch.undo()
        assert history.close(TIMEOUT_S)


def test_rows_of_a_clock_that_was_ahead_do_not_keep_the_old_ones_behind_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "_DOUBT_S", 0.0)
    path = tmp_path / "history.db"
    history = History(path)
    for number in range(600):
        history.record(event(int(9 * KEPT_S) + number))
    for number in range(300):
        history.record(event(number))
    until(lambda: path.exists() and len(read_history(path)) == 900)
    history.record(event(int(KEPT_S) + 5000))
    until(lambda: len(read_history(path)) == 601)
    assert history.close(TIMEOUT_S)


def test_they_are_counted_as_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    history = History(path)
    for number, name in enumerate(["sda", "sdb", "sda", "sdb", None]):
        history.record(event(number, name))
    assert history.close(TIMEOUT_S)
    for chosen in ((None, None, None), (1002.0, None, None), (None, "sdb", None),
                   (1001.0, "sda", 1003.0), (9999.0, None, None)):  # fmt: skip
        since_s, device, until_s = chosen
        found = read_history(path, since_s, device, None, until_s)
        assert count_events(path, *chosen) == len(found)
