# SPDX-License-Identifier: GPL-2.0-or-later
"""Orders from the socket to the real daemon: who pinned, and what `forget` forgets."""

from __future__ import annotations

import errno
import json
import os
import pwd
from dataclasses import replace
from pathlib import Path
from typing import Iterator

import pytest

import schema
from fake_host import Rig
from route_cases import wait_for
from writebackd import formats
from writebackd.alerts.detector_memory import DeviceHealth
from writebackd.cli.answer_screens import render_why
from writebackd.cli.status_screen import render_status
from writebackd.estimate.learned import FACTS, facts_of, forgotten, learn, recall
from writebackd.policy.timetable import read_timetable
from writebackd.report.control_server import RequestError
from writebackd.report.history_query import HistoryError, read_history
from writebackd.report.learned_store import decode
from writebackd.types.core_memory import Memory
from writebackd.types.device_memory import DeviceMemory, Drain, Fact, LawMemory, Learned


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    rig = Rig(tmp_path, monkeypatch)
    wait_for(lambda: bool(rig.daemon._keeper._read))  # its thread has looked for the file
    rig.tick(2)
    yield rig
    rig.end()


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
        f"pinned to {16 << 20} bytes by uid {os.getuid()}", "released by uid 1234"
    ]  # fmt: skip


def test_a_pin_ends_when_its_time_is_over(rig: Rig, tmp_path: Path) -> None:
    rig.daemon.handle("pin", {"bytes": 16 << 20, "for_s": 600.0}, os.getuid())
    rig.tick(10)
    pin = rig.status()["pin"]
    assert pin["left_s"] == 591.0 and rig.host.limits.dirty_bytes == 16 << 20
    assert ", 9m51s left)" in render_status(rig.status(), 160)
    rig.tick(590)
    assert rig.status()["pin_bytes"] == 16 << 20
    rig.tick(2)
    assert rig.status()["pin_bytes"] is None and rig.status()["pin"] is None
    assert rig.host.limits.dirty_bytes != 16 << 20
    wait_for(lambda: len(pins(tmp_path)) == 2)
    assert pins(tmp_path)[-1] == "released at the end of its time"


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
    try:
        events = read_history(tmp_path / "state" / "history.db")
    except HistoryError:
        return []  # its thread has not made it yet
    return [event.text for event in events if event.kind == "pin"]


def test_the_files_of_the_policy_are_told(rig: Rig) -> None:
    (own,) = rig.status()["policy_files"]
    assert own.endswith("/default.conf") and os.path.isabs(own) and os.path.exists(own)


def test_a_user_that_has_no_name_is_a_number() -> None:
    shown = render_why(
        {"mode": "enforce", "policy": "p", "devices": [], "limit": {
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
    rig.daemon._keeper.keep(rig.daemon.state.memory, rig.wall)
    file = tmp_path / "state" / "learned.json"
    wait_for(lambda: file.exists() and "disk" in decode(file.read_bytes()))
    rate = decode(file.read_bytes())["disk"].usual_sync_rate
    assert rate is not None and rate.value == 900.0
    answer = rig.daemon.handle("forget", {"device": f"/dev/{name}"}, 0)
    assert list(schema.problems(json.loads(json.dumps(answer)), schema.load("forget"))) == []
    assert answer["device"] == name
    wait_for(lambda: "disk" not in decode(file.read_bytes()))
    after = rig.daemon.state.memory.devices[name]
    assert all(getattr(after, fact) is None for fact in FACTS)
    assert after.decisions == 7  # a decision id never comes twice
    rig.tick(3)  # nothing brings it back
    assert rig.daemon.state.memory.devices[name].drain_rate is None


def test_forget_needs_a_device_and_a_file_that_was_read(rig: Rig) -> None:
    for args in ({}, {"device": "nothing"}):
        with pytest.raises(RequestError):
            rig.daemon.handle("forget", dict(args), 0)
    rig.daemon._keeper._known = None
    name = next(iter(rig.daemon.state.memory.devices))
    with pytest.raises(RequestError, match="try again"):
        rig.daemon.handle("forget", {"device": name}, 0)
    rig.daemon._keeper._known = {}


def test_what_is_forgotten_is_not_learned_again_from_memory() -> None:
    old = DeviceMemory(
        identity=("8:0", 7), known_as="disk", drain_rate=1e8, baseline_s=1e-3, cache_bytes=5e8,
        write_baseline_s=1e-4, earlier=Learned(drain_rate=Fact(1e8, 1.0)),
        law=LawMemory(limit_bytes=2.0**20), drain=Drain(full_ticks=((1e8, 2.0**20),)),
        last_demand=(55.0, 0.0, True),
    )  # fmt: skip
    fresh = forgotten(Memory(devices={"sda": old}), "sda").devices["sda"]
    assert facts_of(learn(fresh, Learned(), 2.0)) == {}
    assert (fresh.law, fresh.drain, fresh.earlier) == (LawMemory(), Drain(), Learned())
    # The same device to recall(): it is not seeded again either.
    assert (fresh.identity, fresh.known_as) == (("8:0", 7), "disk")
    assert fresh.last_demand == (55.0, 0.0, True)
    memory = Memory(devices={"sda": fresh})
    assert recall(memory, [], {}, 2.0) == memory


def test_a_pin_without_a_unit_is_told_to_have_one(rig: Rig) -> None:
    with pytest.raises(RequestError, match="15 bytes: the kernel takes .* with a unit, like 15M"):
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
    assert device["state"] == "idle" and "min-sync-rate (1.5/s over 10 s)" in device["next"]


def test_limits_that_others_set_while_it_observes_are_told_as_theirs(rig: Rig) -> None:
    rig.daemon.handle("mode", {"mode": "observe"}, 0)
    rig.tick()
    assert "changed since" not in render_status(rig.status(), 160)
    for name, value in (("dirty_bytes", 300 << 20), ("dirty_background_bytes", 100 << 20)):
        rig.host.write(f"/proc/sys/vm/{name}", str(value))
    rig.tick()
    shown = render_status(rig.status(), 160)
    assert "limit    300M, background 100M" in shown
    assert "; changed since by another process, enforce starts from there\n" in shown
    rig.daemon.handle("mode", {"mode": "enforce"}, 0)
    rig.tick()
    assert "before   300M / 100M, in force\n" in render_status(rig.status(), 160)
