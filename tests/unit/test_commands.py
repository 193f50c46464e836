# SPDX-License-Identifier: GPL-2.0-or-later
"""Orders from the socket to the real daemon: who pinned, and what `forget` forgets."""

from __future__ import annotations

import errno
import json
import os
import pwd
import re
from dataclasses import replace
from pathlib import Path
from typing import Iterator

import pytest

import schema
from fake_host import Rig
from route_cases import wait_for
from writebackd import formats
from writebackd.alerts.detector_memory import DeviceHealth
from writebackd.cli.daemon_verbs import render_why
from writebackd.cli.status_screen import render_status
from writebackd.control.device_decision import kernel_floor_bytes
from writebackd.estimate.learned import FACTS, facts_of, forgotten, learn, recall
from writebackd.policy.reload import read_timetable
from writebackd.report.control_server import RequestError
from writebackd.report.history_schema import HistoryError, read_history
from writebackd.report.learned_store import read_learned
from writebackd.report.timeline import pin_spans
from writebackd.types.core_memory import Memory
from writebackd.types.device_memory import DeviceMemory, Drain, Fact, LawMemory, Learned


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    rig = Rig(tmp_path, monkeypatch)
    wait_for(lambda: bool(rig.daemon._learned._read))  # its thread has looked for the file
    rig.tick(2)
    yield rig
    rig.end()


def test_the_log_begins_with_what_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    Rig(tmp_path, monkeypatch).end()
    assert re.fullmatch(
        r"writebackd 0\S+, Linux \d\S+, probe \w+, policy default, mode enforce",
        caplog.messages[0],
    )


def test_who_pinned_and_when_is_told(rig: Rig, tmp_path: Path) -> None:
    assert rig.status()["pin"] is None
    rig.daemon.handle("pin", {"bytes": 16 << 20}, os.getuid())
    at = rig.wall
    rig.tick(3)
    status, why = rig.status(), rig.daemon.handle("why", {}, 1000)
    pin = {"uid": os.getuid(), "since_s": at, "left_s": None}
    assert status["pin"] == why["limit"]["pin"] == pin
    assert list(schema.problems(status, schema.load("status"))) == []
    assert list(schema.problems(why, schema.load("why"))) == []
    name = pwd.getpwuid(os.getuid()).pw_name
    words = f"pinned to 16M by {name}, uid {os.getuid()}, since "
    assert words in render_status(status, 160)
    assert f"cause    pinned by {name}, uid" in render_why(why, 160)
    rig.daemon.handle("release", {}, 1234)
    rig.tick()
    assert rig.status()["pin"] is None
    wait_for(lambda: len(pins(tmp_path)) == 2)
    assert pins(tmp_path) == [
        f"pinned to 16M by uid {os.getuid()}", "released by uid 1234"
    ]  # fmt: skip


def test_a_pin_ends_when_its_time_is_over(rig: Rig, tmp_path: Path) -> None:
    rig.daemon.handle("pin", {"bytes": 16 << 20, "for_s": 600.0}, os.getuid())
    rig.tick(10)
    pin = rig.status()["pin"]
    assert pin["left_s"] == 591.0 and rig.host.limits.dirty_bytes == 16 << 20
    assert ", 9m51s left; `writebackctl release` ends it)" in render_status(rig.status(), 160)
    rig.tick(590)
    assert rig.status()["pin_bytes"] == 16 << 20
    rig.tick(2)
    assert rig.status()["pin_bytes"] is None and rig.status()["pin"] is None
    assert rig.host.limits.dirty_bytes != 16 << 20
    wait_for(lambda: len(pins(tmp_path)) == 2)
    assert pins(tmp_path)[-1] == "released when the pin expired"
    ((begin_s, end_s),) = pin_spans(list(read_history(tmp_path / "state" / "history.db")))
    assert begin_s < end_s < float("inf")  # as the report draws it


def test_a_pin_ends_in_time_also_where_nothing_can_be_read(rig: Rig) -> None:
    rig.daemon.handle("pin", {"bytes": 16 << 20, "for_s": 3.0}, 0)
    rig.tick()
    rig.host.errors["/proc/vmstat"] = errno.EIO
    rig.tick(3)
    assert rig.daemon.state.memory.pin_bytes is None


def test_a_later_pin_takes_the_time_of_the_first_with_it(rig: Rig) -> None:
    rig.daemon.handle("pin", {"bytes": 16 << 20, "for_s": 3.0}, 0)
    rig.daemon.handle("pin", {"bytes": 8 << 20}, 0)
    rig.tick(5)
    assert rig.status()["pin_bytes"] == 8 << 20 and rig.status()["pin"]["left_s"] is None
    for bad in (0, -1, True, "10m"):
        with pytest.raises(RequestError, match="seconds above 0"):
            rig.daemon.handle("pin", {"bytes": 16 << 20, "for_s": bad}, 0)
    assert rig.status()["pin_bytes"] == 8 << 20


def pins(tmp_path: Path) -> "list[str]":
    return events(tmp_path, "pin")


def events(tmp_path: Path, kind: str) -> "list[str]":
    try:
        found = read_history(tmp_path / "state" / "history.db")
    except HistoryError:
        return []  # its thread has not made it yet
    return [event.text for event in found if event.kind == kind]


def floor_of(rig: Rig) -> int:
    """The policy's, or what this host's kernel keeps."""
    assert rig.daemon.state.snapshot is not None
    host = rig.daemon.state.snapshot.sample.host
    return max(rig.daemon.policy.limits.floor_bytes, kernel_floor_bytes(host))


def test_a_drain_lowers_the_limit_to_the_floor_until_its_client_ends_it(rig: Rig) -> None:
    begun = rig.daemon.handle("drain", {"order": "start", "devices": []}, 1234)
    assert begun["devices"] == ["sda"] and begun["lowered"] and begun["lines"] == []
    number = {"number": begun["number"]}
    for _ in range(20):
        rig.tick()
        rig.daemon.handle("drain", {"order": "renew", **number}, 1234)
    assert rig.host.limits.dirty_bytes == floor_of(rig)
    status, why = rig.status(), rig.daemon.handle("why", {}, 0)
    assert list(schema.problems(status, schema.load("status"))) == []
    assert status["drain"]["devices"] == ["sda"] and status["drain"]["uid"] == 1234
    assert 0 < status["drain"]["left_s"] <= 10.0
    assert status["verdict"]["text"].startswith("PINNED: draining sda; ")
    assert "enforce (draining sda by uid 1234, since " in render_status(status, 160)
    assert "at its floor until the drain ends" in render_why(why, 160)
    assert rig.daemon.handle("drain", {"order": "end", **number}, 1234)["devices"] == []
    rig.tick()
    assert rig.status()["drain"] is None and rig.host.limits == rig.host.found


def test_a_drain_whose_client_is_gone_ends_by_itself(rig: Rig, tmp_path: Path) -> None:
    rig.daemon.handle("drain", {"order": "start", "devices": ["sda"]}, 0)
    rig.tick(10)
    assert rig.status()["drain"] is not None and rig.host.limits != rig.host.found
    rig.tick(2)
    assert rig.status()["drain"] is None and rig.host.limits == rig.host.found
    wait_for(lambda: len(events(tmp_path, "drain")) == 2)
    assert events(tmp_path, "drain") == ["drain of sda by uid 0", "drain ended since its client is"
                                         " gone"]


def test_a_drain_that_is_held_stays_until_release(rig: Rig) -> None:
    number = rig.daemon.handle("drain", {"order": "start"}, 0)["number"]
    held = rig.daemon.handle("drain", {"order": "hold", "number": number}, 0)
    assert held["devices"] == ["sda"] and held["lowered"]
    rig.daemon.handle("drain", {"order": "renew", "number": number}, 0)  # takes nothing back
    rig.tick(60)
    assert rig.status()["drain"]["left_s"] is None and rig.host.limits.dirty_bytes == floor_of(rig)
    rig.daemon.handle("release", {}, 0)
    rig.tick()
    assert rig.status()["drain"] is None and rig.host.limits == rig.host.found


def test_a_drain_to_be_held_has_the_lease_of_its_client_first(rig: Rig) -> None:
    rig.daemon.handle("drain", {"order": "start", "hold": True}, 0)
    rig.tick(12)
    assert rig.status()["drain"] is None and rig.host.limits == rig.host.found


def test_a_pin_that_expires_leaves_a_held_drain(rig: Rig) -> None:
    number = rig.daemon.handle("drain", {"order": "start"}, 0)["number"]
    rig.daemon.handle("pin", {"bytes": 16 << 20, "for_s": 5.0}, 0)
    held = rig.daemon.handle("drain", {"order": "hold", "number": number}, 0)
    assert not held["lowered"] and held["lines"] == ["limits stay pinned to 16M"]
    rig.tick(3)
    assert rig.host.limits.dirty_bytes == 16 << 20
    rig.tick(30)
    status = rig.status()
    assert status["pin"] is None and status["drain"]["devices"] == ["sda"]
    assert rig.host.limits.dirty_bytes == floor_of(rig)


def test_a_drain_that_is_released_is_over_for_its_client_too(rig: Rig, tmp_path: Path) -> None:
    number = rig.daemon.handle("drain", {"order": "start"}, 0)["number"]
    rig.daemon.handle("release", {}, 0)
    again = rig.daemon.handle("drain", {"order": "renew", "number": number}, 0)
    assert again["devices"] == [] and not again["lowered"]
    assert rig.daemon.state.draining is None
    rig.tick(20)
    wait_for(lambda: pins(tmp_path) == ["released by uid 0"])
    assert events(tmp_path, "drain") == ["drain of sda by uid 0"]  # it did not end once more


def test_a_later_drain_takes_the_place_of_the_first(rig: Rig) -> None:
    first = rig.daemon.handle("drain", {"order": "start"}, 0)["number"]
    rig.tick()
    second = rig.daemon.handle("drain", {"order": "start"}, 0)["number"]
    for order in ("renew", "hold", "end"):
        over = rig.daemon.handle("drain", {"order": order, "number": first}, 0)
        assert over["devices"] == []
    rig.tick()
    assert rig.status()["drain"] is not None
    assert rig.daemon.handle("drain", {"order": "renew", "number": second}, 0)["devices"] == ["sda"]


def test_what_keeps_a_drain_from_the_limits_is_told_and_obeyed(rig: Rig) -> None:
    rig.daemon.handle("pin", {"bytes": 16 << 20}, 0)
    begun = rig.daemon.handle("drain", {"order": "start"}, 0)
    rig.tick(5)
    assert begun["lines"] == ["limits stay pinned to 16M"] and not begun["lowered"]
    assert rig.host.limits.dirty_bytes == 16 << 20
    rig.daemon.handle("mode", {"mode": "observe"}, 0)
    begun = rig.daemon.handle("drain", {"order": "start"}, 0)
    rig.tick(5)
    assert begun["lines"] == ["limits stay as they are until `writebackctl enforce`"]
    assert not begun["lowered"]
    assert rig.host.limits == rig.host.found


def test_a_drain_of_what_is_not_there_or_not_managed_is_refused(rig: Rig) -> None:
    with pytest.raises(RequestError, match="known devices: sda"):
        rig.daemon.handle("drain", {"order": "start", "devices": ["sdz"]}, 0)
    with pytest.raises(RequestError, match="order is start, renew, hold or end"):
        rig.daemon.handle("drain", {}, 0)
    shown = rig.daemon.state.snapshot
    assert shown is not None
    (seen,) = shown.sample.devices
    alone = replace(shown.sample, devices=(replace(seen, excluded="as the policy says"),))
    rig.daemon.state.snapshot = replace(shown, sample=alone)
    with pytest.raises(RequestError, match="sda is not managed .as the policy says."):
        rig.daemon.handle("drain", {"order": "start", "devices": ["sda"]}, 0)
    with pytest.raises(RequestError, match="no device is managed"):
        rig.daemon.handle("drain", {"order": "start"}, 0)
    assert rig.daemon.state.memory.draining == ()


def test_counters_are_zeroed_and_history_stays(rig: Rig, tmp_path: Path) -> None:
    rig.daemon.handle("pin", {"bytes": 16 << 20}, 0)
    rig.host.flow(8 << 20)
    rig.tick(2)
    counted = rig.status()
    assert counted["devices"][0]["counters"]["written_bytes"] == 8 << 20
    assert counted["counters"]["limit_changes"] > 0 and counted["counters"]["reset_s"] is None
    cpu_s = rig.daemon.state.totals.cpu_s
    answer = rig.daemon.handle("reset-stats", {}, 7)
    assert list(schema.problems(answer, schema.load("reset-stats"))) == []
    rig.tick()
    anew = rig.status()
    assert set(anew["devices"][0]["counters"].values()) == {0}
    assert anew["counters"] == {
        "reset_s": answer["reset_s"], "limit_changes": 0, "foreign_writes": 0, "failed_ticks": 0}
    assert rig.daemon.state.totals.cpu_s >= cpu_s > 0
    wait_for(lambda: events(tmp_path, "reset") == ["counters zeroed by uid 7"])
    assert len(pins(tmp_path)) == 1


def test_the_files_of_the_policy_are_told(rig: Rig) -> None:
    (own,) = rig.status()["policy_files"]
    assert own.endswith("/default.conf") and os.path.isabs(own) and os.path.exists(own)


def test_a_user_that_has_no_name_is_a_number() -> None:
    shown = render_why(
        {"mode": "enforce", "policy": "p", "devices": [], "verdict": {"code": "ok", "text": "OK"},
            "off": None, "limit": {
            "limit_bytes": 1, "background_bytes": 1, "goal_bytes": 1, "threshold_bytes": 1,
            "reason": "pinned", "next": "", "pin": {"uid": 4_000_000, "since_s": None}}}
    )  # fmt: skip
    assert "pinned by uid 4000000, since an unknown time" in shown


def test_forgetting_a_device_drops_it_from_memory_and_file(rig: Rig, tmp_path: Path) -> None:
    name, mine = next(iter(rig.daemon.state.memory.devices.items()))
    # The disk of this host does not say who it is, until the next tick it does.
    taught = replace(mine, known_as="disk", drain_rate=2.5e8, baseline_s=4e-4, decisions=7)
    rig.daemon.state.memory = replace(
        rig.daemon.state.memory, devices={**rig.daemon.state.memory.devices, name: taught}
    )
    watch = DeviceHealth((mine.identity[0], str(mine.identity[1])), sync_rate=900.0)
    rig.daemon.state.alerts = replace(rig.daemon.state.alerts, health={name: watch})
    rig.daemon._learned.keep(rig.daemon.state.memory, rig.wall)
    file = tmp_path / "state" / "learned.json"
    wait_for(lambda: file.exists() and "disk" in read_learned(file))
    rate = read_learned(file)["disk"].usual_sync_rate
    assert rate is not None and rate.value == 900.0
    answer = rig.daemon.handle("forget", {"device": f"/dev/{name}"}, 0)
    assert list(schema.problems(json.loads(json.dumps(answer)), schema.load("forget"))) == []
    assert answer["device"] == name
    wait_for(lambda: "disk" not in read_learned(file))
    after = rig.daemon.state.memory.devices[name]
    assert all(getattr(after, fact) is None for fact in FACTS)
    assert after.decisions == 7  # a decision id never comes twice
    rig.tick(3)  # nothing brings it back
    assert rig.daemon.state.memory.devices[name].drain_rate is None


def test_forget_needs_a_device_and_a_file_that_was_read(rig: Rig) -> None:
    for args in ({}, {"device": "nothing"}):
        with pytest.raises(RequestError):
            rig.daemon.handle("forget", dict(args), 0)
    rig.daemon._learned._known = None
    name = next(iter(rig.daemon.state.memory.devices))
    with pytest.raises(RequestError, match="try again"):
        rig.daemon.handle("forget", {"device": name}, 0)
    rig.daemon._learned._known = {}


def test_what_is_forgotten_is_not_learned_again_from_memory() -> None:
    old = DeviceMemory(
        identity=("8:0", 7), known_as="disk", drain_rate=1e8, baseline_s=1e-3, cache_bytes=5e8,
        write_baseline_s=1e-4, earlier=Learned(drain_rate=Fact(1e8, 1.0)),
        law=LawMemory(limit_bytes=2.0**20), drain=Drain(full_ticks=(1e8,)),
        last_demand=(55.0, 0.0, 3, True),
    )  # fmt: skip
    fresh = forgotten(Memory(devices={"sda": old}), "sda").devices["sda"]
    assert facts_of(learn(fresh, Learned(), 2.0)) == {}
    assert (fresh.law, fresh.drain, fresh.earlier) == (LawMemory(), Drain(), Learned())
    # The same device to recall(): it is not seeded again either.
    assert (fresh.identity, fresh.known_as) == (("8:0", 7), "disk")
    assert fresh.last_demand == (55.0, 0.0, 3, True)
    memory = Memory(devices={"sda": fresh})
    assert recall(memory, [], {}, 2.0) == memory


def test_a_pin_without_a_unit_is_told_to_have_one(rig: Rig) -> None:
    with pytest.raises(RequestError, match="15 bytes: the kernel's minimum .* like 15M"):
        rig.daemon.handle("pin", {"bytes": 15}, 0)
    with pytest.raises(RequestError, match="15T is more than the .* of memory"):
        rig.daemon.handle("pin", {"bytes": 15 << 40}, 0)
    assert rig.status()["pin"] is None


def test_what_the_kill_switch_keeps_from_being_set_is_told_as_a_wish(rig: Rig) -> None:
    rig.daemon.handle("pin", {"bytes": 16 << 20}, 0)
    (rig.runtime_dir / "off").touch()
    rig.tick(2)
    status, why = rig.status(), rig.daemon.handle("why", {}, 1000)
    assert status["mode"] == "enforce" and why["off"] == str(rig.runtime_dir / "off")
    assert list(schema.problems(why, schema.load("why"))) == []
    found = formats.size(status["limits"]["dirty_bytes"])
    assert f"limit    {found}, background" in render_status(status, 160)
    assert "; would set 16M\n" in render_status(status, 160)
    assert f"limit {found} (off); would set 16M (policy" in render_why(why, 160)


def test_why_tells_the_numbers_of_the_policy_in_force(rig: Rig) -> None:
    objective = rig.daemon.policy.objective
    rarely = replace(objective, min_sync_rate=1.5)
    rig.daemon.policies.timetable = read_timetable(replace(rig.daemon.policy, objective=rarely))
    rig.tick()
    (device,) = rig.daemon.handle("why", {}, 1000)["devices"]
    assert device["state"] == "idle" and "min-sync-rate (1.5/s over 10s)" in device["next"]


def test_limits_that_others_set_while_it_observes_are_told_as_theirs(rig: Rig) -> None:
    rig.daemon.handle("mode", {"mode": "observe"}, 0)
    rig.tick()
    assert "changed since" not in render_status(rig.status(), 160)
    for name, value in (("dirty_bytes", 300 << 20), ("dirty_background_bytes", 100 << 20)):
        rig.host.write(f"/proc/sys/vm/{name}", str(value))
    rig.tick()
    shown = render_status(rig.status(), 160)
    assert "limit    300M, background 100M" in shown
    assert "; another process has changed it, enforce will treat its" in shown
    rig.daemon.handle("mode", {"mode": "enforce"}, 0)
    rig.tick()
    assert "before   300M / 100M, in force\n" in render_status(rig.status(), 160)
