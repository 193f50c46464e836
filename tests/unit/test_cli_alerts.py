# SPDX-License-Identifier: GPL-2.0-or-later
"""`writebackctl alerts`: what stands, what was, and the answer to Nagios."""

from __future__ import annotations

import functools
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Callable, Iterator, List, Sequence, Tuple

import pytest

import samples
import schema
from route_cases import BATTERY, BLIND, CRITICAL, FLOOD, WALL_S
from test_cli import FakeDaemon, Run, run
from writebackd.alerts.alert_types import Alert
from writebackd.cli.alerts import render
from writebackd.cli.exit_codes import GOOD, NO_DAEMON, USAGE
from writebackd.cli.history import folded, render_history
from writebackd.notify.alert_events import Tracker
from writebackd.notify.route import RouteState
from writebackd.report.alert_answers import alert_answer, past_json
from writebackd.report.history_events import RESOLVED, alert_events
from writebackd.report.history_schema import Event, read_alerts, read_history
from writebackd.report.history_store import History
from writebackd.report.status_answer import status_json

DEAD = RouteState("mail", "root", 3, 7, 2, "exit code 75: queue is full")
FINE = RouteState("journal", "/run/systemd/journal/socket", 5, 0, 0, None)

__all__ = ["run"]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Callable[..., None]]:
    running: List[FakeDaemon] = []

    def start(*active: Alert, routes: Sequence[RouteState] = (FINE,)) -> None:
        running.append(FakeDaemon(tmp_path))
        running[-1].snapshot = replace(
            samples.guard(), alerts=active, routes=tuple(routes), state_dir=str(tmp_path),
            runbook="https://wiki/r",
        )  # fmt: skip

    yield start
    for each in running:
        each.stop()


@pytest.fixture
def alerts(run: Run) -> Run:
    """`writebackctl alerts`."""
    return functools.partial(run, "alerts")


def kept(path: Path, *ticks: Sequence[Alert]) -> None:
    """A history in which these alerts stood, tick by tick, a minute each."""
    tracker, history = Tracker(), History(path / "history.db")
    for number, active in enumerate(ticks):
        happened = tracker.tell(active, WALL_S + 60 * number)
        for event in alert_events(happened, "db1", "https://wiki/r"):
            history.record(event)
    assert history.close(5.0)


@pytest.mark.parametrize("active, code, first", [
    ((), 0, "WRITEBACKD OK - no alerts | alerts=0;;;0 critical=0;;;0"),
    ((FLOOD,), 1, "WRITEBACKD WARNING - COLLAPSE sda: syncs 12/s"),
    ((FLOOD, replace(BLIND, severity=CRITICAL.severity)), 2,
     "WRITEBACKD CRITICAL - 2 alerts, BLIND (critical): no data | alerts=2;;;0"),
])  # fmt: skip
def test_check_is_a_nagios_plugin(
    daemon: Callable[..., None], alerts: Run, active: Tuple[Alert, ...], code: int, first: str
) -> None:
    daemon(*active)
    found, out, err = alerts("--check")
    assert (found, err) == (code, "")
    lines = out.splitlines()
    assert lines[0].startswith(first)
    assert len(lines) == max(1, len(active))
    assert lines[0].count("|") == 1


def test_check_without_a_daemon_is_unknown_and_says_so_where_nagios_looks(alerts: Run) -> None:
    code, out, err = alerts("--check")
    assert (code, err) == (3, "")
    assert out.startswith("WRITEBACKD UNKNOWN - no daemon at ")


def test_check_of_a_device_that_is_well(daemon: Callable[..., None], alerts: Run) -> None:
    daemon(replace(CRITICAL, device="sdb"))
    assert alerts("--check", "--device", "sda")[0] == 0
    assert alerts("--check")[0] == 2


@pytest.mark.parametrize("name", ["sda", "/dev/sda", "8:0", "/var/lib/postgresql"])
def test_a_device_is_named_as_why_takes_it(
    daemon: Callable[..., None], alerts: Run, name: str
) -> None:
    daemon(CRITICAL)
    assert alerts("--check", "--device", name)[0] == 2
    assert "COLLAPSE on sda" in alerts("--device", name)[1]


@pytest.mark.parametrize("name", ["sdaa", "/dev/sdaa", "8:99", "/nowhere"])
def test_check_of_a_device_that_nobody_knows_is_unknown(
    daemon: Callable[..., None], alerts: Run, tmp_path: Path, name: str
) -> None:
    daemon()
    code, out, _ = alerts("--check", "--device", name)
    assert code == 3
    assert out.startswith(f"WRITEBACKD UNKNOWN - no device is called {name!r}")
    # But one that is gone may have a past.
    kept(tmp_path, (replace(FLOOD, device="sdaa"),), ())
    assert ("COLLAPSE on sdaa" in alerts("--device", name)[1]) is (name in ("sdaa", "/dev/sdaa"))


def test_a_slip_in_a_devices_name_is_no_all_clear(
    daemon: Callable[..., None], alerts: Run, tmp_path: Path
) -> None:
    daemon()
    kept(tmp_path, (replace(FLOOD, device="sdz"),), ())
    code, out, err = alerts("--device", "sdx")
    assert (code, out) == (USAGE, "no alerts\n")
    assert err == "writebackctl: no device is called 'sdx': `writebackctl devices`\n"
    assert alerts("--device", "sda")[0] == GOOD
    code, out, err = alerts("--device", "sdz")  # gone since
    assert (code, err) == (GOOD, "") and "COLLAPSE on sdz" in out


@pytest.mark.parametrize("words, said", [
    (["alerts", "--check", "--devcie", "sda"], "unrecognized arguments: --devcie sda"),
    (["alerts", "--check", "--limit", "x"], "argument --limit: invalid integer: 'x'"),
    (["alerts", "--check", "--device"], "argument --device: expected one argument"),
    (["alert", "--check"], "did you mean alerts?"),
    (["--check"], "arguments: --check"),
    (["policy", "--check"], "list/show/check/match"),  # a bar would begin figures
])  # fmt: skip
def test_a_slip_in_a_check_is_unknown_and_not_critical(
    run: Run, words: List[str], said: str
) -> None:
    code, out, err = run(*words)
    assert (code, err) == (3, "")
    assert out.startswith("WRITEBACKD UNKNOWN - writebackctl") and said in out
    assert out.count("\n") == 1 and "|" not in out


def test_only_a_check_answers_as_nagios_wants_it(run: Run) -> None:
    code, out, _ = run("alerts", "--check", "--help")
    assert code == GOOD and "Nagios plugin: 0 good" in out
    for words in (["alerts", "--chek"], ["run", "--slcie", "x", "--", "rsync", "--check"]):
        code, out, err = run(*words)
        assert (code, out) == (USAGE, "") and "unrecognized arguments" in err


def test_what_an_alert_says_cannot_add_figures(daemon: Callable[..., None], alerts: Run) -> None:
    daemon(replace(FLOOD, summary="a | alerts=0 \x1b[2J\nOK"))
    out = alerts("--check")[1]
    assert out.count("|") == 1 and "\x1b" not in out and out.count("\n") == 1


def test_the_screen_has_what_is_needed_at_3_am(daemon: Callable[..., None], alerts: Run) -> None:
    daemon(BLIND, CRITICAL, routes=(FINE, DEAD))
    code, out, _ = alerts()
    assert code == GOOD
    assert out.startswith("CRITICAL  COLLAPSE on sda  since ")
    flat = " ".join(out.split())
    for said in (
        "what syncs 12/s against 340/s, p99 2.1 s against 3 ms, figures of ",
        "why writeback-flood (over 15s: sync_rate 12/s, fsync_p99 2.1s)",
        "who dd (pid 4242, backup.service) 296M/s: dd if=/dev/zero of=/backup/x",
        "done limit 4.0G -> 15M",
        "runbook https://wiki/r#collapse",
        "WARNING BLIND on the host",
        "route mail root: exit code 75: queue is full; 7 waiting; 2 lost",
    ):
        assert said in flat, out
    assert "systemd/journal" not in out


def test_json_follows_the_schema(daemon: Callable[..., None], alerts: Run, tmp_path: Path) -> None:
    kept(tmp_path, [FLOOD], [BATTERY], [])
    daemon(BLIND, CRITICAL, routes=(FINE, DEAD))
    code, out, _ = alerts("--json")
    answer = json.loads(out)
    assert code == GOOD
    assert list(schema.problems(answer, schema.load("alerts"))) == []
    assert [each["name"] for each in answer["active"]] == ["COLLAPSE", "BLIND"]
    assert len(answer["past"]) == 1


def test_the_past_is_one_line_each(
    daemon: Callable[..., None], alerts: Run, tmp_path: Path
) -> None:
    kept(tmp_path, [FLOOD], [CRITICAL], [BATTERY], [], [BLIND], [])
    daemon()
    out = alerts()[1]
    assert out.startswith("no alerts\n\nPAST")
    rows = [line for line in out.splitlines() if " on " in line]
    assert len(rows) == 2
    assert rows[0].split(None, 4)[2:] == [
        "3m12s", "critical", "COLLAPSE on sda: writeback-flood, then write-through",
    ]  # fmt: skip
    assert "BLIND on the host: no-data" in rows[1]
    assert alerts("--limit", "1")[1].count(" on ") == 1
    assert alerts("--device", "sdz")[1].count("COLLAPSE") == 0


def test_the_past_of_a_device_does_not_hide_behind_anothers(
    daemon: Callable[..., None], alerts: Run, tmp_path: Path
) -> None:
    of_b = replace(FLOOD, device="sdz")  # gone since
    kept(tmp_path, [of_b], [], *([FLOOD], []) * 90)
    assert "COLLAPSE on sdz" in alerts("--device", "/dev/sdz", "--state-dir", str(tmp_path))[1]
    daemon()
    for limit in ("1", "10", "50"):
        code, out, err = alerts("--device", "sdz", "--limit", limit)
        assert (code, err) == (GOOD, "") and out.count("COLLAPSE on sdz") == 1, limit
    out = alerts("--device", "sda", "--limit", "3")[1]
    assert out.count("COLLAPSE on sda") == 3


def test_one_alert_that_changed_often_hides_no_other(alerts: Run, tmp_path: Path) -> None:
    worse = replace(FLOOD, severity=CRITICAL.severity)
    kept(tmp_path, [BLIND], [], *([FLOOD], [worse]) * 40, [])
    out = alerts("--limit", "2", "--state-dir", str(tmp_path))[1]
    assert "BLIND on the host" in out and "COLLAPSE on sda" in out


def test_without_a_daemon_the_past_is_still_there(alerts: Run, tmp_path: Path) -> None:
    kept(tmp_path, [FLOOD])
    code, out, err = alerts("--state-dir", str(tmp_path))
    assert code == NO_DAEMON and "no daemon at" in err
    assert out.startswith("current alerts unknown: no daemon")
    assert "?        warning   COLLAPSE on sda" in out
    code, out, _ = alerts("--json", "--state-dir", str(tmp_path))
    answer = json.loads(out)
    assert (code, answer["active"], answer["past"][0]["end"]) == (NO_DAEMON, None, None)
    assert list(schema.problems(answer, schema.load("alerts"))) == []


def test_what_stands_is_not_past(tmp_path: Path) -> None:
    kept(tmp_path, [FLOOD], [], [FLOOD])  # and the daemon is killed, and sees it again
    records = read_alerts(tmp_path / "history.db")
    active = alert_answer(replace(samples.guard(), alerts=(FLOOD,)))["active"]
    assert [each["end"] for each in past_json(records, active)] == [WALL_S + 60]
    assert [each["end"] for each in past_json(records, [])] == [WALL_S + 60, None]


def test_one_that_the_daemon_died_in_is_past_when_it_stands_again(tmp_path: Path) -> None:
    kept(tmp_path, [FLOOD])
    kept(tmp_path, [], [FLOOD])
    active = alert_answer(replace(samples.guard(), alerts=(FLOOD,)))["active"]
    records = read_alerts(tmp_path / "history.db")
    assert [(each["began"], each["end"]) for each in past_json(records, active)] == [(WALL_S, None)]


@pytest.mark.parametrize(
    "damage",
    ["", "[]", "{", '{"what": "end"}', '{"what": "begin", "id": "x", "time": 1, "alert": {}}',
     '{"what": "begin", "id": [], "time": 1, "alert": 5}'],
)  # fmt: skip
def test_damaged_records_are_left_out(damage: str, tmp_path: Path) -> None:
    kept(tmp_path, [FLOOD], [])
    records = read_alerts(tmp_path / "history.db")
    assert len(past_json([damage, *records], [])) == 1


def test_the_history_shows_them_as_well(tmp_path: Path) -> None:
    kept(tmp_path, [FLOOD], [])
    events = read_history(tmp_path / "history.db")
    assert [event.kind for event in events] == ["alert", "alert"]
    assert events[1].text == "COLLAPSE on sda is over after 1m12s (writeback-flood)"
    assert events[0].alert is None  # the text is for people


def test_alerts_outlive_the_decisions_and_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    history = History(path, max_rows=3)
    for number in range(10):
        history.record(Event(WALL_S, "alert", alert=json.dumps(number)))
    for _ in range(20):
        history.record(Event(WALL_S, "decision"))
    assert history.close(5.0)
    assert [event.kind for event in read_history(path)] == ["decision"] * 3
    assert read_alerts(path) == [str(number) for number in range(10)]


def test_begin_change_and_end_have_one_id(tmp_path: Path) -> None:
    worse = replace(FLOOD, severity=CRITICAL.severity)
    kept(tmp_path, [FLOOD], [worse], [])
    events = read_history(tmp_path / "history.db")
    assert [event.state for event in events] == ["warning", "critical", RESOLVED]
    assert len({event.decision_id for event in events}) == 1
    # It is long: a screen shows the device.
    shown = render_history(folded([asdict(event) for event in events]))
    assert str(events[0].decision_id) not in shown and f"{FLOOD.device}: " in shown


def test_status_says_which_route_is_dead() -> None:
    warnings = status_json(replace(samples.guard(), routes=(FINE, DEAD)))["warnings"]
    assert warnings == [
        "alerts do not reach mail root: exit code 75: queue is full",
        "2 alerts were never delivered to mail root",
    ]


def test_narrow_and_wide() -> None:
    snapshot = replace(samples.guard(), alerts=(CRITICAL,))
    active = alert_answer(snapshot)["active"]
    for columns in (60, 120):
        lines = render({"active": active, "past": [], "routes": []}, columns).splitlines()
        # An address that is broken up cannot be opened.
        manual = "file:///usr/share/doc/writebackd/docs"
        assert lines.pop() == f"runbook  {manual}/howto/runbook.md#collapse"
        assert max(map(len, lines)) <= columns, lines
