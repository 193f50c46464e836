# SPDX-License-Identifier: GPL-2.0-or-later
"""The history: what is recorded is read back, and recording never waits."""

from __future__ import annotations

import contextlib
import grp
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, List

import pytest

import samples
from history_cases import TIMEOUT_S, event, readable, written
from route_cases import wait_for
from writebackd.cli.history import folded, render_history
from writebackd.report import history_store as history_module
from writebackd.report.device_figures import Figures
from writebackd.report.history_events import events_of
from writebackd.report.history_schema import (
    Event,
    HistoryError,
    count_events,
    read_alerts,
    read_history,
)
from writebackd.report.history_store import ALERTS_KEPT_S, KEPT_S, MAX_WAITING, History
from writebackd.types.decision import Mode
from writebackd.types.levers import Action


def test_events_come_back_as_they_went_in(tmp_path: Path) -> None:
    path = tmp_path / "state" / "history.db"
    sent = [event(0), Event(1001.0, "mode", text="observe"), event(2, "sdb")]
    assert read_history(written(path, sent)) == sent
    # The next run goes on where it stopped.
    assert read_history(written(path, [event(3)])) == [*sent, event(3)]


@pytest.mark.parametrize("since_s, device, limit, until_s, expected", [
    (None, None, None, None, [0, 1, 2, 3, 4]),
    (1002.0, None, None, None, [2, 3, 4]),
    (None, None, 2, None, [3, 4]),
    (None, "sdb", None, None, [1, 3, 4]),  # 4 is of the whole host
    (1002.0, "sdb", 1, None, [4]),
    (1001.0, "sda", None, 1003.0, [2]),
    (9999.0, None, None, None, []),
])  # fmt: skip
def test_reading_and_counting_select(
    tmp_path: Path, since_s: float, device: str, limit: "int | None", until_s: float,
    expected: "list[int]",
) -> None:
    names = ("sda", "sdb", "sda", "sdb", None)
    path = written(tmp_path / "history.db", [event(n, name) for n, name in enumerate(names)])
    found = read_history(path, since_s, device, limit, until_s)
    assert [each.decision_id for each in found] == [f"sda-{n}" for n in expected]
    if limit is None:
        assert count_events(path, since_s, device, until_s) == len(expected)


def test_the_oldest_rows_make_room(tmp_path: Path) -> None:
    path = written(tmp_path / "history.db", map(event, range(250)), max_rows=100)
    kept = [each.decision_id for each in read_history(path)]
    assert kept == [f"sda-{n}" for n in range(150, 250)]


def test_a_locked_database_never_holds_up_the_loop(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    history = History(path)
    history.record(event(0))
    wait_for(lambda: len(readable(path)) == 1)
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
    wait_for(lambda: history.error is not None)
    blocker.execute("COMMIT")
    blocker.close()
    assert history.close(TIMEOUT_S)
    assert history.error is None
    assert len(read_history(path)) == 1 + total - dropped


def test_a_readers_transaction_does_not_stop_the_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "_LOCKED_S", 0.1)
    path = written(tmp_path / "history.db", [event(0)])
    with contextlib.closing(sqlite3.connect(str(path), isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM events").fetchone() == (1,)
        history = History(path)
        history.record(event(1))
        wait_for(lambda: len(readable(path)) == 2)
        assert reader.execute("SELECT count(*) FROM events").fetchone() == (1,)
        assert path.stat().st_mode & 0o777 == 0o640
        assert history.close(TIMEOUT_S)
    assert [each.name for each in tmp_path.glob("*")] == ["history.db", "history.db-journal"]


def test_closing_does_not_wait_for_ever(tmp_path: Path) -> None:
    path = written(tmp_path / "history.db", [event(0)])
    blocker = sqlite3.connect(str(path), isolation_level=None)
    blocker.execute("BEGIN EXCLUSIVE")
    history = History(path)
    history.record(event(1))
    start = time.monotonic()
    assert history.close(0.2) is False
    assert time.monotonic() - start < 5.0
    blocker.execute("COMMIT")
    blocker.close()
    wait_for(lambda: len(read_history(path)) == 2)


def test_a_state_directory_that_cannot_be_made_costs_events_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    history = History(tmp_path / "file" / "history.db")
    history.record(event(0))
    wait_for(lambda: history.error is not None)
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
    wait_for(lambda: len(readable(path)) == 1)
    assert history.close(TIMEOUT_S)
    assert len(list(tmp_path.glob("history.db.damaged-*"))) == 1


@pytest.mark.parametrize("bad", ["na\udcffme", "nul\x00", "\x1b[2J"])
def test_names_that_are_no_text_are_recorded(tmp_path: Path, bad: str) -> None:
    path = written(tmp_path / "history.db", [event(0, device=bad, text=bad), event(1)])
    assert len(read_history(path)) == 2


def test_a_value_sqlite_cannot_take_costs_its_batch_only(tmp_path: Path) -> None:
    history = History(tmp_path / "history.db")
    history.record(Event(1.0, "decision", limit_bytes=1 << 80))
    wait_for(lambda: history.dropped == 1)
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
    enforced = samples.in_mode(shown, Mode.ENFORCE)
    # As little is written where the kill switch is on, whatever the mode.
    held_off = replace(enforced, off="/run/writebackd/off")
    assert [each.text for each in events_of(enforced, held_off, step)] == [
        "would be set: dirty_bytes 1 -> 2"
    ]
    assert events_of(held_off, held_off, step) == []
    assert [each.text for each in events_of(held_off, enforced, step)] == ["dirty_bytes 1 -> 2"]
    assert [each.text for each in events_of(enforced, enforced, step)] == ["dirty_bytes 1 -> 2"]
    assert [each.kind for each in events_of(enforced, shown, step)] == ["action"]


def test_a_limit_that_fails_tick_after_tick_is_one_event() -> None:
    failed = (Action("dirty_bytes", "1", "2", False, "not in force"),)
    before = samples.in_mode(samples.observe(), Mode.ENFORCE)
    after = replace(before, sample=replace(before.sample, actions=failed))
    assert [each.kind for each in events_of(before, before, failed)] == ["action"]
    assert events_of(before, after, failed) == []
    other = (replace(failed[0], error="EINVAL"),)
    assert [each.kind for each in events_of(before, after, other)] == ["action"]


class Kept:
    """A history in use: what is recorded is there before the test goes on."""

    def __init__(self, path: Path) -> None:
        self.path, self.history = path, History(path)

    def record(self, *events: Event) -> List[Event]:
        """All that is kept after these."""
        for each in events:
            self.history.record(each)
        last = replace(events[-1], alert=None)
        wait_for(lambda: readable(self.path)[-1:] == [last])
        return read_history(self.path)

    def end(self) -> None:
        assert self.history.close(TIMEOUT_S) and self.history.error is None


ALERT = Event(1000.0, "alert", text="raised", alert='{"id": "a"}')


@pytest.fixture
def sure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that leaps is believed at once."""
    monkeypatch.setattr(history_module, "_DOUBT_S", 0.0)


@pytest.mark.usefixtures("sure")
def test_events_and_alerts_go_when_they_are_too_old(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "history.db")
    # The clock was set back once: what came before that is no older for it.
    kept.record(Event(1040.0, "start"), event(0), ALERT, event(5), Event(1030.0, "mode"))
    # A quiet host has rows of figures only, or events only.
    kept.history.record_figures((Figures(1000.0 + KEPT_S + 15.0, 10.0, "sda", 1e6, 1e8, 0.0),))
    wait_for(lambda: [each.wall_s for each in read_history(kept.path)] == [1040.0, 1030.0])
    assert len(read_alerts(kept.path)) == 1
    assert len(kept.record(event(int(ALERTS_KEPT_S) + 1))) == 1
    assert not read_alerts(kept.path)
    kept.end()


@pytest.mark.usefixtures("sure")
def test_many_old_events_go_in_the_batches_to_come(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "history.db")
    assert len(kept.record(*map(event, range(1300)))) == 1300
    left = [len(kept.record(event(int(KEPT_S) + 5000 + number))) for number in range(3)]
    assert left == [1301 - 512, 1302 - 1024, 3]
    kept.end()


@pytest.mark.parametrize("restarted", [True, False])
def test_a_clock_that_was_fifty_years_ahead_costs_nothing(tmp_path: Path, restarted: bool) -> None:
    """An RTC that has lost its time, until NTP answers: some ticks later, or minutes."""
    ahead_s = 1000.0 + 50 * 365 * 86_400.0
    before = [event(0), ALERT, event(1)]
    ahead = [Event(ahead_s + number, "start") for number in (0, 1, 2, 3, 60)]
    kept = Kept(tmp_path / "history.db")
    kept.record(*before)
    if restarted:
        kept.end()
        kept = Kept(kept.path)
    for each in ahead[:-1]:
        kept.record(each)
    if restarted:
        kept.end()
        kept = Kept(kept.path)
    kept.record(ahead[-1])
    found = kept.record(event(10))
    kept.end()
    assert found == [replace(each, alert=None) for each in (*before, *ahead, event(10))]
    assert len(read_alerts(kept.path)) == 1


def test_a_clock_that_stays_ahead_is_believed_after_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host was off for two months."""
    now = [5000.0]
    monkeypatch.setattr(history_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    two_months = int(2 * KEPT_S)
    kept = Kept(tmp_path / "history.db")
    assert len(kept.record(event(0), event(86_000))) == 2
    assert len(kept.record(event(two_months))) == 3
    now[0] += 3599.0
    assert len(kept.record(event(two_months + 3599))) == 4
    now[0] += 1.0
    assert len(kept.record(event(two_months + 3600))) == 3
    # Set right before the hour is over: the next leap has an hour of its own.
    assert len(kept.record(event(9 * two_months))) == 4
    now[0] += 3000.0
    kept.record(event(two_months + 6600))
    now[0] += 3000.0
    assert len(kept.record(event(9 * two_months + 1))) == 6
    kept.end()


@pytest.mark.usefixtures("sure")
def test_rows_of_a_clock_that_was_ahead_do_not_keep_the_old_ones_behind_them(
    tmp_path: Path,
) -> None:
    kept = Kept(tmp_path / "history.db")
    ahead = [event(int(9 * KEPT_S) + number) for number in range(600)]
    assert len(kept.record(*ahead, *map(event, range(300)))) == 900
    assert len(kept.record(event(int(KEPT_S) + 5000))) == 601
    kept.end()


# ==== history screen ==================================================================


def past_event(wall_s: float, kind: str, **more: object) -> Dict[str, Any]:
    keys = (
        "device", "decision_id", "state", "limit_bytes", "background_bytes", "target_bytes",
        "drain_rate", "write_rate", "commit_p50_s", "commit_p99_s",
    )  # fmt: skip
    return {"wall_s": wall_s, "kind": kind, **dict.fromkeys(keys), "text": "", **more}


DECISION = past_event(
    1_717_200_725.0, "decision", device="sda", decision_id="sda-58", state="squeeze",
    limit_bytes=32 << 20, target_bytes=4 << 20, write_rate=2.6e8, commit_p99_s=0.047,
    text="fsync is slow",
)  # fmt: skip


def shown(*events: Dict[str, Any], width: int = 80) -> List[str]:
    lines = render_history(folded(events), width).splitlines()
    assert max(map(len, lines)) <= width
    return lines


def test_history_screen() -> None:
    lines = shown(DECISION, past_event(1.0, "mode", text="observe"))
    assert lines[1].split()[-7:] == ["decision", "sda-58", "squeeze", "32M", "4.0M", "248M", "47"]
    assert lines[2] == "    fsync is slow"
    assert lines[3].endswith(" mode      observe") and len(lines) == 4
    assert shown() == ["no events in that time"]


def test_what_was_written_in_one_go_is_one_change_in_sizes() -> None:
    texts = ("dirty_bytes dirty_ratio=20 -> 67108864", "dirty_background_bytes 4096 -> 8192")
    events = (past_event(5.0, "action", text=text) for text in texts)
    lines = " ".join(" ".join(shown(*events)).split())
    assert lines.endswith(" dirty_bytes dirty_ratio=20 -> 64M; dirty_background_bytes 4K -> 8K")


def test_repetitions_are_folded_and_their_last_is_told() -> None:
    steps = [
        past_event(1000.0 + at, "action", text=f"dirty_bytes {at << 20} -> {at + 1 << 20}")
        for at in range(4, 18)
    ]
    stop = past_event(2000.0, "stop", text="SIGTERM")
    lines = " ".join(" ".join(shown(stop, *steps, stop)).split())
    until = time.strftime("%H:%M:%S", time.localtime(1017.0))
    assert "dirty_bytes 4.0M -> 5.0M x14 until " + until in lines
    assert "last: dirty_bytes 17M -> 18M" in lines and lines.count("SIGTERM") == 2


def test_states_that_come_and_go_are_folded_with_what_was_done_about_them() -> None:
    back = {**DECISION, "state": "guard", "text": "rests at 12M"}
    steps = (DECISION, past_event(0.0, "action", text="x 1 -> 2"), back, back)
    found = [
        {**each, "wall_s": 1000.0 + 10 * turn + at, "limit_bytes": turn + 1 << 20,
         "commit_p99_s": 0.001 * turn}
        for turn in range(5) for at, each in enumerate(steps[: 3 + turn % 2])
    ]  # fmt: skip
    entries = folded(found)
    assert [len(each.events) for each in entries] == [5, 5, 7]
    text = " ".join(" ".join(shown(*found)).split())
    until = time.strftime("%H:%M:%S", time.localtime(1040.0))
    assert f"x5 until {until}, limit 1.0M to 5.0M, p99 up to 4.0 ms" in text
    # Another device's are not the same, nor is what comes after an order or much later.
    other = [{**each, "device": "sdb"} if at % 2 else each for at, each in enumerate(found)]
    assert sum(each.count for each in folded(other)) == len(found) and len(folded(other)) > 3
    order = past_event(1020.5, "pin", text="64M")
    assert len(folded([*found[:4], order, *found[4:]])) == 7
    many = [past_event(1000.0, "alert", device=f"sd{name}") for name in "abcdefghijklmnopq"]
    assert [each.count for each in folded([DECISION, *many, DECISION])] == [1] * 19


def test_orders_are_never_folded() -> None:
    orders = [past_event(1000.0 + at, "mode", text="observe") for at in range(3)]
    assert [line[-7:] for line in shown(*orders)[1:]] == ["observe"] * 3


# ==== history access ==================================================================


ADM = next((group.gr_gid for group in grp.getgrall() if group.gr_name == "adm"), None)
root = pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
with_adm = pytest.mark.skipif(ADM is None, reason="no group adm: groupadd --system adm")


@root
@with_adm
def test_the_group_adm_can_read_while_it_is_written() -> None:
    # pytest's own directories are closed to other users.
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    path = directory / "history.db"
    history = History(path)
    source = Path(history_module.__file__).resolve().parents[2]
    script = (
        "import os, sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path;"
        "from writebackd.report.history_schema import read_history;"
        # In the script, not by Popen: other users may not be able to run this interpreter.
        "os.setgroups([int(sys.argv[3])]); os.setgid(65534); os.setuid(65534);"
        "print(len(read_history(Path(sys.argv[2]))))"
    )
    old_umask = os.umask(0o077)
    try:
        history.record(event(0))
        wait_for(lambda: len(readable(path)) == 1)
        with subprocess.Popen(
            [sys.executable, "-c", script, str(source), str(path), str(ADM)],
            stdout=subprocess.PIPE,
        ) as reader:
            number = 1
            while reader.poll() is None:
                history.record(event(number))
                number += 1
                time.sleep(0.001)
            assert reader.stdout is not None
            assert int(reader.stdout.read()) >= 1
        assert reader.returncode == 0
    finally:
        os.umask(old_umask)
        history.close(TIMEOUT_S)
        shutil.rmtree(directory)


@root
def test_other_users_are_told_whom_it_is_for() -> None:
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    written(directory / "history.db", [event(0)])
    child = os.fork()
    if not child:
        code = 1
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            read_history(directory / "history.db")
        except HistoryError as error:
            code = 0 if "is for root and the group adm" in str(error) else 2
        finally:
            os._exit(code)
    try:
        assert os.waitpid(child, 0)[1] == 0
    finally:
        shutil.rmtree(directory)


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_it_is_for_root_and_adm(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "history.db"
    old_umask = os.umask(umask)
    try:
        history_module.open_database(path).close()
        path.chmod(0o644)
        written(path, [event(0)])
    finally:
        os.umask(old_umask)
    for each in tmp_path.iterdir():
        status = each.stat()
        assert stat.S_IMODE(status.st_mode) == 0o640, each
        if ADM is not None and os.getuid() == 0:
            assert status.st_gid == ADM, each


def test_it_is_never_open_to_all_while_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    connect = sqlite3.connect

    def spy(name: str, **options: Any) -> sqlite3.Connection:
        seen.append(stat.S_IMODE(Path(name).stat().st_mode))
        connection: sqlite3.Connection = connect(name, **options)
        return connection

    monkeypatch.setattr(sqlite3, "connect", spy)
    history_module.open_database(tmp_path / "history.db").close()
    assert seen == [0o640]
