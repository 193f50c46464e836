# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon and its routes: told each tick, kept, shown, changed by a reload."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import List

import pytest

import schema
from fake_host import Rig
from route_cases import FLOOD, open_directory, wait_for
from writebackd.alerts.alert_types import Alert
from writebackd.notify.journal_route import DECISION, FOREIGN_WRITER, REVERTED
from writebackd.policy import Policy, load_policy
from writebackd.report.history_schema import Event, read_alerts, read_history


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(tmp_path, monkeypatch)


def policy(tmp_path: Path, text: str) -> Policy:
    path = tmp_path / "test.conf"
    path.write_text(text)
    return load_policy(str(path))


def tell(rig: Rig, *alerts: Alert, later_s: float = 0.0) -> None:
    rig.daemon._report.alerts(alerts, rig.wall + later_s)


def test_what_is_told_is_kept(rig: Rig, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    rig.tick(2)
    tell(rig, FLOOD)
    tell(rig, later_s=60)
    rig.tick()
    answer = rig.daemon.handle("alerts", {}, 0)
    assert [route["name"] for route in answer["routes"]] == ["journal"]
    assert answer["active"] == []
    # Somewhere it was told: the journal, or the log.
    wait_for(lambda: rig.daemon._report.routes.states()[0].told == 2)
    rig.end()
    path = tmp_path / "state" / "history.db"
    told = [json.loads(record) for record in read_alerts(path)]
    assert [(each["what"], each["alert"]["name"]) for each in told] == [
        ("begin", "COLLAPSE"), ("end", "COLLAPSE"),
    ]  # fmt: skip
    assert told[0]["id"] == told[1]["id"]
    assert [event.text[:13] for event in read_history(path) if event.kind == "alert"] == [
        "COLLAPSE sda:", "COLLAPSE on s",
    ]  # fmt: skip


def test_the_answer_shows_what_stands(rig: Rig) -> None:
    rig.tick(2)
    daemon = rig.daemon
    assert daemon.state.snapshot is not None
    daemon.state.snapshot = replace(daemon.state.snapshot, alerts=(FLOOD,))
    answer = daemon.handle("alerts", {}, 0)
    full = {**answer, "past": []}
    del full["state_dir"]
    sample = daemon.state.snapshot.sample
    assert full.pop("devices") == [each.device.name for each in sample.devices]
    assert list(schema.problems(full, schema.load("alerts"))) == []
    assert answer["active"][0]["runbook"].endswith("/docs/howto/runbook.md#collapse")
    assert Path(answer["active"][0]["runbook"][len("file://") :].split("#")[0]).is_file()
    rig.end()


def test_a_reload_changes_the_routes(rig: Rig, tmp_path: Path) -> None:
    rig.tick(2)
    with open_directory() as directory:
        out, hook = directory / "out", directory / "hook"
        hook.write_text(f"#!/bin/sh\ncat >>{out}\n")
        hook.chmod(0o755)
        changed = policy(tmp_path, f"[alerts]\njournal = off\nexec = {hook}\n")
        rig.daemon.policies.load = lambda: changed
        rig.daemon.reload()
        wait_for(lambda: rig.daemon.policies._loaded)
        rig.tick()
        assert [state.name for state in rig.daemon._report.routes.states()] == ["exec"]
        tell(rig, FLOOD)
        wait_for(lambda: out.exists() and '"begin"' in out.read_text())
        rig.end()


def test_why_the_journal_and_the_history_have_the_same_id(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    told: List[Event] = []
    rig.daemon._history.record = told.append  # type: ignore[method-assign,assignment]
    rig.probe.next = None  # fsync cannot be seen: a flood is enough
    rig.host.dirty = (1 << 18, 1 << 14)  # a gigabyte waits
    for _ in range(4):
        rig.host.flow(200 << 20)
        rig.tick()
    why = {each["decision_id"] for each in rig.daemon.handle("why", {}, 0)["devices"]}
    entries = [getattr(record, "journal", {}) for record in caplog.records]
    limits = [each for each in entries if each.get("LEVER") == "dirty_bytes"]
    actions = [each for each in told if each.kind == "action"]
    assert limits and actions
    ids = {each.decision_id for each in told if each.kind == "decision"}
    assert {each["DECISION_ID"] for each in limits} == {each.decision_id for each in actions} <= ids
    assert limits[-1]["DECISION_ID"] in why
    # An admin's limit follows no decision of the law.
    rig.pin(15 << 20)
    rig.tick()
    assert [each for each in told if each.kind == "action"][-1].decision_id is None
    rig.end()


def test_levers_are_told_with_fields(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    rig.tick(2)
    rig.pin(15 << 20)
    rig.tick()
    rig.host.write("/proc/sys/vm/dirty_bytes", str(99 << 20))
    rig.tick()
    rig.end()

    def fields(kind: str) -> List["dict[str, str]"]:
        found = [getattr(record, "journal", {}) for record in caplog.records]
        return [each for each in found if each.get("MESSAGE_ID") == kind]

    set_ = {each["LEVER"]: each for each in fields(DECISION)}
    assert set_["dirty_bytes"]["NEW_BYTES"] == str(15 << 20)
    assert set_["dirty_bytes"]["REASON"]
    (foreign,) = fields(FOREIGN_WRITER)
    assert (foreign["LEVER"], foreign["NEW"]) == ("dirty_bytes", str(99 << 20))
    assert [each["LEVER"] for each in fields(REVERTED)]
    assert [record.levelno for record in caplog.records if "yielding" in record.message] == [
        logging.WARNING
    ]
