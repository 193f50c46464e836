# SPDX-License-Identifier: GPL-2.0-or-later
"""Routes: what is told of alerts, in which order, and that a dead route delays nobody."""

from __future__ import annotations

import json
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Iterator, List, Optional, Tuple

import pytest

from route_cases import (
    BATTERY,
    BLIND,
    CRITICAL,
    DD,
    FLOOD,
    WALL_S,
    happening,
    open_directory,
    script,
    settings,
    wait_for,
)
from writebackd.alerts.alert_types import Alert, AlertName, Cause, Culprit
from writebackd.notify import dispatch
from writebackd.notify import journal_route as journal
from writebackd.notify.alert_events import (
    RUNBOOK,
    AlertEvent,
    EventKind,
    Tracker,
    alert_event_json,
    fact,
    headline,
    line,
    runbook_of,
    who,
)
from writebackd.notify.dispatch import Routes
from writebackd.notify.journal_route import MESSAGE_IDS, fields, journal_route
from writebackd.notify.route import MAX_WAITING, REFUSALS, Backoff, QueuedRoute, Refused, RouteError

ROOT = Path(__file__).resolve().parents[2]
BOOK = "https://wiki/runbook"


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with open_directory() as directory:
        yield directory


def told(tracker: Tracker, *active: Alert) -> List[Tuple[str, str]]:
    return [(each.what.value, each.alert.cause.value) for each in tracker.tell(active, WALL_S)]


# ---- what is worth a word --------------------------------------------------


def test_begin_and_end_are_told_once() -> None:
    tracker = Tracker()
    assert told(tracker, FLOOD) == [("begin", "writeback-flood")]
    assert told(tracker, replace(FLOOD, summary="syncs 11/s")) == []
    assert told(tracker) == [("end", "writeback-flood")]
    assert told(tracker) == []


def test_the_end_knows_the_last_figures_and_has_the_id_of_the_begin() -> None:
    tracker = Tracker()
    (begin,) = tracker.tell([FLOOD], WALL_S)
    tracker.tell([replace(FLOOD, summary="syncs 11/s")], WALL_S + 1)
    (end,) = tracker.tell([], WALL_S + 2)
    assert (end.alert.summary, end.id) == ("syncs 11/s", begin.id)
    (again,) = tracker.tell([FLOOD], WALL_S + 3)
    assert again.id != begin.id


def test_another_cause_of_the_same_trouble_is_one_change() -> None:
    tracker = Tracker()
    (begin,) = tracker.tell([FLOOD], WALL_S)
    (change,) = tracker.tell([BATTERY], WALL_S)
    assert change.changed == "cause writeback-flood -> write-through"
    assert (change.what, change.id) == (EventKind.CHANGE, begin.id)
    assert told(tracker) == [("end", "write-through")]


def test_two_causes_at_once_are_two_alerts() -> None:
    tracker = Tracker()
    tracker.tell([FLOOD], WALL_S)
    assert told(tracker, FLOOD, BATTERY) == [("begin", "write-through")]
    assert told(tracker, BATTERY) == [("end", "writeback-flood")]


def test_severity_is_told_and_the_way_back_too() -> None:
    tracker = Tracker()
    tracker.tell([FLOOD], WALL_S)
    (worse,) = tracker.tell([CRITICAL], WALL_S)
    (better,) = tracker.tell([FLOOD], WALL_S)
    assert [worse.changed, better.changed] == [
        "severity warning -> critical",
        "severity critical -> warning",
    ]


def test_the_first_culprit_is_told_and_no_other() -> None:
    tracker = Tracker()
    tracker.tell([replace(FLOOD, culprits=())], WALL_S)
    (found,) = tracker.tell([FLOOD], WALL_S)
    assert found.changed == "culprit found"
    assert told(tracker, replace(FLOOD, culprits=(replace(DD, pid=1),))) == []
    assert told(tracker, replace(FLOOD, culprits=())) == []
    assert told(tracker, FLOOD) == []  # lost from sight for a tick


def test_of_two_alerts_with_one_key_the_first_counts() -> None:
    (only,) = Tracker().tell([FLOOD, replace(FLOOD, summary="again")], WALL_S)
    assert only.alert is FLOOD


# ---- words -----------------------------------------------------------------


def test_nothing_that_any_user_names_ends_a_line() -> None:
    evil = "x\r\nBcc: all@example.org\x1b[2J\u2028\u202e\ud800"
    assert line(evil) == "x??Bcc: all@example.org?[2J???"
    assert len(line("x" * 5000)) == 512
    culprit = Culprit(1, evil, evil, evil, evil, evil)
    assert "\n" not in who(culprit) and "\x1b" not in who(culprit)
    alert = replace(FLOOD, summary=evil, done=evil, device=evil, culprits=(culprit,))
    assert "\n" not in headline(happening(alert=alert))


def test_a_culprit_is_what_is_known_of_it() -> None:
    assert who(DD) == "dd (pid 4242, backup.service) 296M/s: dd if=/dev/zero of=/backup/x"
    assert who(Culprit()) == "an unknown process"
    assert who(Culprit(unit="a.service")) == "a.service"
    assert who(Culprit(comm="dd", cgroup="/x")) == "dd (cgroup /x)"


@pytest.mark.parametrize("name, value, said", [
    ("sync_rate", 12.0, "sync_rate 12/s"),
    ("write_rate", 123456789.0, "write_rate 118M/s"),
    ("backlog_bytes", 67108864.0, "backlog 64M"),
    ("waited_share", 0.876, "waited 88 %"),
    ("fsync_mean_s", 0.0123, "fsync_mean 12 ms"),
    ("commit_p99_s", 2.315, "commit_p99 2.3s"),
    ("x_s", float("nan"), "x_s -"),
])  # fmt: skip
def test_figures_have_units(name: str, value: float, said: str) -> None:
    assert fact(name, value) == said


def test_headlines() -> None:
    assert headline(happening()) == f"COLLAPSE sda: {FLOOD.summary}"
    named = replace(FLOOD, summary="sda: 6.8 fsync/s (usually 107), caused by dd (pid 42)")
    assert headline(happening(alert=named)) == (
        "COLLAPSE sda: 6.8 fsync/s (usually 107), caused by dd (pid 42)"
    )
    changed = headline(happening(EventKind.CHANGE, CRITICAL, before=FLOOD))
    assert changed.startswith("COLLAPSE (critical) sda: ")
    assert changed.endswith(" (severity warning -> critical)")
    over = happening(EventKind.END, wall_s=WALL_S + 48)
    assert headline(over) == "COLLAPSE on sda is over after 1m0s (writeback-flood)"
    assert headline(happening(alert=BLIND)) == f"BLIND: {BLIND.summary}"


def test_every_alert_and_every_cause_is_in_the_runbook() -> None:
    text = (ROOT / "docs/howto/runbook.md").read_text()
    headings = [each[3:].strip().lower() for each in text.splitlines() if each.startswith("## ")]
    for name in AlertName:
        alert = replace(FLOOD, name=name)
        assert runbook_of(alert, BOOK) == f"{BOOK}#{name.value.lower()}"
        # As GitHub and every renderer of Markdown makes anchors of headings.
        assert name.value.lower() in headings
    for cause in Cause:
        assert f"`{cause.value}`" in text, cause


# ---- a route that is told in order -----------------------------------------


class Sink:
    """Where happenings arrive, or what is raised instead."""

    def __init__(self) -> None:
        self.got: List[AlertEvent] = []
        self.error: Optional[Exception] = None
        self.tries = 0
        self.gate = threading.Event()
        self.gate.set()

    def send(self, happened: AlertEvent) -> None:
        self.tries += 1
        self.gate.wait()
        if self.error is not None:
            raise self.error
        self.got.append(happened)


@pytest.fixture
def sink() -> Sink:
    return Sink()


def teller(sink: Sink, first_s: float = 0.01) -> QueuedRoute:
    route = QueuedRoute("test", "here", sink.send, Backoff(first_s, 4 * first_s))
    route.start()
    return route


def numbered(count: int, first: int = 0) -> List[AlertEvent]:
    return [happening(id=str(number)) for number in range(first, first + count)]


def ids(sink: Sink) -> List[int]:
    return [int(each.id) for each in sink.got]


def test_all_is_told_in_order_after_a_dead_time(sink: Sink) -> None:
    sink.error = RouteError("dead")
    route = teller(sink)
    for number in range(20):
        route.take(numbered(1, number), (), WALL_S)
    wait_for(lambda: sink.tries > 3)
    assert route.state().error == "dead"
    assert (route.state().waiting, route.state().lost) == (20, 0)
    sink.error = None
    wait_for(lambda: len(sink.got) == 20)
    assert ids(sink) == list(range(20))
    wait_for(lambda: route.state().waiting == 0)
    assert (route.state().error, route.state().told) == (None, 20)
    route.end()
    assert route.join(1.0)


def test_tries_at_a_dead_route_become_rare(sink: Sink) -> None:
    sink.error = OSError("dead")
    route = teller(sink, first_s=0.05)  # then 0.1, 0.2, 0.2 ...
    route.take(numbered(1), (), WALL_S)
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        route.take(numbered(1), (), WALL_S)  # what comes does not make it livelier
        time.sleep(0.01)
    assert 3 <= sink.tries <= 5
    route.end()
    assert route.join(1.0)


def test_the_bound_keeps_the_newest_and_counts_the_rest(sink: Sink) -> None:
    sink.gate.clear()
    route = teller(sink)
    begun = time.monotonic()
    for number in range(MAX_WAITING + 44):
        route.take(numbered(1, number), (), WALL_S)
        wait_for(lambda: sink.tries == 1)  # the first is on its way, and stays
    assert time.monotonic() - begun < 1.0
    assert (route.state().waiting, route.state().lost) == (MAX_WAITING, 44)
    sink.gate.set()
    wait_for(lambda: len(sink.got) == MAX_WAITING)
    assert ids(sink) == [0, *range(45, MAX_WAITING + 44)]


def test_the_one_on_its_way_is_not_dropped_for_the_bound(sink: Sink) -> None:
    sink.gate.clear()
    sink.error = RouteError("dead")
    route = teller(sink)
    route.take(numbered(1), (), WALL_S)
    wait_for(lambda: sink.tries == 1)
    route.take(numbered(MAX_WAITING + 5, 1), (), WALL_S)
    sink.gate.set()
    wait_for(lambda: sink.tries == 2)
    sink.error = None
    wait_for(lambda: len(sink.got) == MAX_WAITING)
    assert ids(sink)[:2] == [0, 7]


@pytest.mark.parametrize(
    "error, tries",
    [(Refused("exit code 1"), REFUSALS), (KeyError("a bug of ours"), 1)],
    ids=["refused for good", "a bug"],
)
def test_what_cannot_be_told_does_not_hold_up_the_rest(
    sink: Sink, error: Exception, tries: int
) -> None:
    sink.error = error
    route = teller(sink)
    route.take(numbered(1), (), WALL_S)
    wait_for(lambda: route.state().lost == 1)
    assert sink.tries == tries
    sink.error = None
    route.take(numbered(1, 7), (), WALL_S)
    wait_for(lambda: ids(sink) == [7])


def test_the_end_tries_once_more_and_is_not_held_up(sink: Sink) -> None:
    sink.error = RouteError("dead")
    route = teller(sink, first_s=60.0)
    route.take(numbered(3), (), WALL_S)
    wait_for(lambda: sink.tries == 1)
    route.end()
    assert route.join(1.0)
    assert (sink.tries, route.state().lost) == (4, 3)


def test_no_thread_to_be_had_is_shown(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    route = QueuedRoute("test", "here", sink.send)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    route.start()
    route.take(numbered(1), (), WALL_S)
    assert route.state().error == "can't start new thread"
    assert route.state().waiting == 1
    monkeypatch.undo()
    route.start()
    wait_for(lambda: len(sink.got) == 1)
    wait_for(lambda: route.state().error is None)
    route.end()
    assert route.join(1.0)


# ---- all together ----------------------------------------------------------


def test_dead_routes_delay_neither_the_loop_nor_the_others(tmp_path: Path) -> None:
    out = tmp_path / "out"
    hanging = socket.create_server(("127.0.0.1", 0))  # connects, and never answers
    routes = Routes(
        settings(
            alertmanager=(f"http://127.0.0.1:{hanging.getsockname()[1]}", "http://127.0.0.1:1"),
            exec=script(tmp_path / "hangs", "exec sleep 60"),
            mail=("root",),
            sendmail=script(tmp_path / "sendmail", f"cat >>{out}"),
        )
    )
    begun = time.monotonic()
    for number in range(50):
        routes.tell([FLOOD, *([BLIND] if number % 2 else [])], WALL_S + number)
    assert time.monotonic() - begun < 0.2
    wait_for(lambda: out.exists() and out.read_text().count("Subject: ") == 50)
    wait_for(lambda: routes.states()[3].told == 50)
    states = {state.target: state for state in routes.states()}
    assert "refused" in str(states["http://127.0.0.1:1"].error)
    begun = time.monotonic()
    assert not routes.close(1.0)
    assert time.monotonic() - begun < 1.2
    hanging.close()


def test_a_reload_keeps_what_stays_the_same(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    hook = script(tmp_path / "hook", f"cat >>{first}")
    routes = Routes(settings(exec=hook))
    routes.tell([FLOOD], WALL_S)
    before = routes.states()
    wait_for(lambda: routes.states()[0].told == 1)
    routes.reload(settings(exec=hook, mail=("root",), sendmail=script(tmp_path / "s", "exit 0")))
    # Not told again: it has not begun again; and the hook that stays has its counts.
    assert routes.tell([FLOOD], WALL_S) == ()
    assert [(state.name, state.told) for state in routes.states()] == [("exec", 1), ("mail", 0)]
    assert len(before) == 1
    routes.reload(settings(exec=script(tmp_path / "other", f"cat >>{second}")))
    routes.tell([], WALL_S)
    wait_for(lambda: second.exists() and '"what": "end"' in second.read_text())
    assert first.read_text().count('"what"') == 1
    assert routes.close(1.0)


def said(path: Path) -> List[str]:
    """What a hook was told, in order."""
    texts = path.read_text().splitlines() if path.exists() else []
    return [json.loads(text)["what"] for text in texts]


def test_a_hook_that_is_repaired_is_told_what_waited(tmp_path: Path) -> None:
    out = tmp_path / "out"
    routes = Routes(settings(exec=str(tmp_path / "misspelt")))
    routes.tell([FLOOD, BLIND], WALL_S)
    routes.tell([FLOOD], WALL_S)
    wait_for(lambda: routes.states()[0].error)
    routes.reload(settings(exec=script(tmp_path / "hook", f"cat >>{out}"), timeout_s=9.0))
    routes.tell([FLOOD], WALL_S)
    # At once, though the one before was about to rest; and nothing twice.
    wait_for(lambda: routes.states()[0].told == 3, 0.9)
    assert said(out) == ["begin", "begin", "end"]
    assert (routes.states()[0].lost, routes.states()[0].error) == (0, None)
    assert routes.close(1.0)


def test_who_is_new_is_told_what_stands(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    first, second = (script(tmp_path / f"{out.name}.sh", f"cat >>{out}") for out in (one, two))
    routes = Routes(settings())
    routes.tell([FLOOD], WALL_S)
    routes.reload(settings(exec=first))
    routes.tell([FLOOD, BLIND], WALL_S)
    wait_for(lambda: routes.states()[0].told == 2)
    routes.reload(settings(exec=second))
    routes.tell([FLOOD, BLIND], WALL_S)
    wait_for(lambda: routes.states()[0].told == 4)
    routes.reload(settings(exec=second, timeout_s=9.0, runbook="https://wiki/other"))
    routes.tell([FLOOD], WALL_S)
    wait_for(lambda: routes.states()[0].told == 5)
    assert said(one) == ["begin", "begin"]
    assert said(two) == ["begin", "begin", "end"]
    assert "https://wiki/other#blind" in two.read_text()
    assert routes.close(1.0)


def test_a_reload_forgets_no_count(tmp_path: Path) -> None:
    routes = Routes(settings(exec=script(tmp_path / "no", "exit 1")))
    route = next(iter(routes._routes.values()))
    route.take(numbered(MAX_WAITING + 7), (), WALL_S)
    routes.reload(settings(exec=script(tmp_path / "no", "exit 1"), timeout_s=9.0))
    assert (routes.states()[0].waiting, routes.states()[0].lost) == (MAX_WAITING, 7)
    routes.close(0.1)


def test_a_thread_that_died_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    route = QueuedRoute("test", "here", lambda happening: None)
    monkeypatch.setattr(route, "_rest", lambda seconds: 1 / 0)
    route.start()
    assert route.join(5.0)
    assert "ZeroDivisionError" in str(route.state().error)


def test_a_reload_touches_no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    routes = Routes(settings(exec="/bin/true"))
    looked: List[str] = []
    for name in ("resolve", "is_file", "stat", "exists"):
        monkeypatch.setattr(Path, name, lambda self, *_, **__: looked.append(str(self)))
    routes.reload(settings(exec="/bin/false", timeout_s=3.0))
    monkeypatch.undo()
    assert looked == []
    assert routes.runbook.endswith("runbook.md")
    assert routes.close(1.0)


# ---- the journal -----------------------------------------------------------


def test_fields_of_a_journal_entry() -> None:
    found = fields(happening(), BOOK)
    assert found["MESSAGE_ID"] == MESSAGE_IDS[EventKind.BEGIN]
    assert found["MESSAGE"].startswith("COLLAPSE sda: syncs 12/s")
    wanted = {
        "PRIORITY": 4, "ALERT": "COLLAPSE", "ALERT_STATE": "begin", "DEVICE": "sda",
        "CAUSE": "writeback-flood", "SEVERITY": "warning", "RUNBOOK": f"{BOOK}#collapse",
        "CULPRIT_PID": "4242", "OBJECT_SYSTEMD_UNIT": "backup.service", "FACT_SYNC_RATE": "12",
    }  # fmt: skip
    assert {name: found[name] for name in wanted} == wanted
    assert fields(happening(alert=CRITICAL), BOOK)["PRIORITY"] == 2
    over = fields(happening(EventKind.END, CRITICAL), BOOK)
    assert (over["PRIORITY"], over["ALERT_STATE"]) == (5, "end")
    assert "DEVICE" not in fields(happening(alert=BLIND), BOOK)


def test_without_a_journal_it_is_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    route = journal_route(BOOK)
    route.take([happening(), happening(EventKind.END)], (), WALL_S)
    route.start()
    wait_for(lambda: len(caplog.records) == 2)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_the_catalog_has_every_kind_of_message() -> None:
    text = (ROOT / "systemd" / "writebackd.catalog").read_text()
    known = {
        value for name, value in vars(journal).items()
        if name.isupper() and isinstance(value, str)
    }  # fmt: skip
    assert {row[3:] for row in text.splitlines() if row.startswith("-- ")} == known
    assert set(MESSAGE_IDS.values()) <= known and len(known) == 6


def test_json_of_a_happening_says_what_is_unknown() -> None:
    text = alert_event_json(happening(alert=BLIND), "db1", BOOK)
    assert text["host"] == "db1" and text["alert"]["device"] is None
    assert text["alert"]["evidence"] is None and text["changed"] is None


@pytest.mark.parametrize("place", ["/writebackd", "/agent/writebackd", "/usr/lib/w/writebackd"])
def test_a_package_may_lie_anywhere(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "__file__", f"{place}/notify/dispatch.py")
    assert dispatch.installed_runbook() == RUNBOOK
