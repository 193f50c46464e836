# SPDX-License-Identifier: GPL-2.0-or-later
"""The answers as data: shape by schema and contract, and what the numbers mean."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Callable, Dict, Optional, Tuple

import pytest

import samples
import schema
from writebackd.alerts.foreign import foreign_alerts
from writebackd.cli.daemon_verbs import render_why
from writebackd.cli.status_screen import render_status
from writebackd.kernel.conflicting_tools import ConflictingTool
from writebackd.kernel.lever_writers import writer_of
from writebackd.report.control_server import RequestError
from writebackd.report.device_answers import devices_json
from writebackd.report.history_events import events_of
from writebackd.report.snapshot import Snapshot, original_bytes
from writebackd.report.status_answer import status_json, why_json
from writebackd.types.decision import Mode
from writebackd.types.device_memory import DeviceMemory, Fact, Learned
from writebackd.types.levers import ForeignWrite, Intrusion, VmLimits
from writebackd.types.samples import VmState

MIB = samples.MIB
every_sample = pytest.mark.parametrize("make", samples.ALL.values(), ids=samples.ALL.keys())

# What scripts rely on; docs/reference/commands.md promises it.
CONTRACT: Dict[str, Any] = {
    "version": None, "mode": None, "policy": None, "uptime_s": None,
    "probe": {"backend": None, "request_hook": None, "fsync_hook": None, "misses": None,
              "lost": None},
    "limits": {
        "dirty_bytes": None, "dirty_background_bytes": None,
        "original": {
            "dirty_bytes": None, "dirty_ratio": None,
            "dirty_background_bytes": None, "dirty_background_ratio": None,
        },
    },
    "levers": None,
    "alerts": None,
    "self": {"cpu_fraction": None, "rss_bytes": None, "bpf_ns_per_io": None},
}  # fmt: skip
CONTRACT_DEVICE: Dict[str, Any] = {
    "name": None, "devno": None, "state": None, "reason": None, "decision_id": None,
    "target_bytes": None, "write_rate": None, "drain_rate": None, "sync_rate": None,
    "fsync_p50_s": None, "fsync_p99_s": None, "fsync_baseline_s": None, "inflight": None,
    "write_cache": {
        "kind": None, "capacity_bytes": None, "mode": None, "protected": None, "fill": None,
    },
}  # fmt: skip


def assert_valid(answer: Any, name: str) -> None:
    # Through JSON and back, as it comes out of the socket; a NaN would fail here.
    answer = json.loads(json.dumps(answer, allow_nan=False))
    assert list(schema.problems(answer, schema.load(name))) == []


def assert_keys(answer: Any, wanted: Dict[str, Any]) -> None:
    for key, inner in wanted.items():
        assert key in answer
        if inner is not None:
            assert_keys(answer[key], inner)


@every_sample
def test_answers_follow_their_schemas(make: Callable[[], Snapshot]) -> None:
    snapshot = make()
    assert_valid(status_json(snapshot), "status")
    assert_valid(devices_json(snapshot), "devices")
    assert_valid(why_json(snapshot), "why")


@every_sample
def test_status_keeps_the_contract(make: Callable[[], Snapshot]) -> None:
    answer = status_json(make())
    assert_keys(answer, CONTRACT)
    for device in answer["devices"]:
        assert_keys(device, CONTRACT_DEVICE)


def test_unknown_is_null_and_never_zero() -> None:
    (device,) = status_json(samples.blind())["devices"]
    for key in ("sync_rate", "sync_demand", "fsync_p50_s", "oldest_fsync_s", "drain_rate"):
        assert device[key] is None
    (device,) = status_json(samples.first_tick())["devices"]
    assert device["target_bytes"] is None and device["objective_s"] is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_figures_that_json_cannot_carry_are_null(value: float) -> None:
    snapshot = samples.guard()
    estimate = replace(snapshot.estimates["sda"], drain_rate=value, fsync_p99_s=value)
    snapshot = replace(snapshot, estimates={"sda": estimate}, self_cpu_fraction=value)
    assert_valid(status_json(snapshot), "status")
    assert status_json(snapshot)["devices"][0]["drain_rate"] is None


GIB = samples.GIB


@pytest.mark.parametrize("found, standing, expected", [
    # ratio in force: what the kernel makes of it
    (VmLimits(0, 20, 0, 10), VmLimits(0, 20, 0, 10), (3 * GIB, 1 * GIB)),
    # ratio replaced: of all memory (10 GiB)
    (VmLimits(0, 20, 0, 10), VmLimits(MIB, 0, MIB, 0), (2 * GIB, 1 * GIB)),
    (VmLimits(200 * MIB, 0, 50 * MIB, 0), VmLimits(MIB, 0, MIB, 0), (200 * MIB, 50 * MIB)),
    # background not below the limit: the kernel takes half
    (VmLimits(200 * MIB, 0, 300 * MIB, 0), VmLimits(MIB, 0, MIB, 0), (200 * MIB, 100 * MIB)),
    (VmLimits(0, 10, 0, 10), VmLimits(MIB, 0, MIB, 0), (1 * GIB, GIB // 2)),
    (VmLimits(0, 20, 64 * MIB, 0), VmLimits(MIB, 0, MIB, 0), (2 * GIB, 64 * MIB)),
])  # fmt: skip
def test_originals_in_bytes(found: VmLimits, standing: VmLimits, expected: Tuple[int, int]) -> None:
    snapshot = samples.idle()
    host = replace(samples.HOST, memory_bytes=10 * GIB)
    vm = VmState(standing, 0, 0, 3 * GIB, 1 * GIB)
    sample = replace(snapshot.sample, host=host, vm=vm)
    assert original_bytes(replace(snapshot, sample=sample, originals=found)) == expected


def test_the_busiest_dirtiers_come_first_and_are_few() -> None:
    answer = status_json(samples.squeeze())
    assert [task["comm"] for task in answer["dirtiers"]] == ["dd", "postgres", "rsyslogd"]
    assert answer["dirtiers"][0]["dirty_rate"] == 248 * MIB


def test_what_went_wrong_is_a_warning() -> None:
    warnings = "\n".join(status_json(samples.several())["warnings"])
    assert "cannot set dirty_bytes to 1048576: Read-only file system" in warnings
    assert "/sys/block/sdc/stat" in warnings
    assert "history: 12 events dropped" in warnings


def intruded(*writes: ForeignWrite, yielded: Optional[str] = None) -> Snapshot:
    found = tuple(Intrusion(write, 1_717_200_700.0 + n) for n, write in enumerate(writes))
    snapshot = samples.idle()
    memory = replace(snapshot.memory, intrusions=found, yielded=yielded)
    return replace(snapshot, memory=memory, alerts=foreign_alerts(memory, snapshot.sample))


def test_a_foreign_write_is_an_alert_that_names_its_writer() -> None:
    who = ForeignWrite(
        "dirty_ratio", "40", 17, "tuned", 99, "/system.slice/tuned.service", "tuned -l -P"
    )
    also = ForeignWrite("dirty_background_ratio", "10")
    (alert,) = status_json(intruded(who, also, yielded="tuned (pid 17, ...) set"))["alerts"]
    assert (alert["name"], alert["device"]) == ("FOREIGN_WRITER", None)
    assert alert["severity"] == "warning"
    assert alert["since"] == 1_717_200_700.0
    assert "tuned (pid 17" in alert["summary"] and "writebackctl enforce" in alert["summary"]
    assert alert["writers"] == [
        {"lever": "dirty_ratio", "value": "40", "pid": 17, "comm": "tuned",
         "cgroup": "/system.slice/tuned.service", "cmdline": "tuned -l -P"},
        {"lever": "dirty_background_ratio", "value": "10", "pid": None, "comm": None,
         "cgroup": None, "cmdline": None},
    ]  # fmt: skip


@pytest.mark.parametrize("lever, device", [
    ("queue sda nr_requests", "sda"), ("bdi 8:0 max_bytes", "sda"),
    ("pace /a.service 8:0", "sda"), ("queue sdz nr_requests", None),
    ("flush vm dirty_expire_centisecs", None),
])  # fmt: skip
def test_a_lever_that_was_let_go_is_an_alert_of_its_device(
    lever: str, device: Optional[str]
) -> None:
    (alert,) = status_json(intruded(ForeignWrite(lever, "5")))["alerts"]
    assert alert["device"] == device
    assert f"an unknown process set {lever}=5" in alert["summary"]
    assert status_json(samples.idle())["alerts"] == []


def test_two_levers_of_a_device_are_one_alert_with_both_writers() -> None:
    shown = intruded(
        ForeignWrite("queue sda nr_requests", "5", 17, "sh"), ForeignWrite("bdi 8:0 max_bytes", "1")
    )
    (alert,) = status_json(shown)["alerts"]
    assert [each["lever"] for each in alert["writers"]] == [
        "queue sda nr_requests", "bdi 8:0 max_bytes",
    ]  # fmt: skip
    assert "nr_requests=5" in alert["summary"] and "max_bytes=1" in alert["summary"]


def test_an_alert_says_who_and_on_what_evidence() -> None:
    (alert,) = status_json(samples.collapse())["alerts"]
    assert (alert["name"], alert["device"], alert["severity"]) == ("COLLAPSE", "sda", "critical")
    assert alert["cause"] == "writeback-flood" and alert["since"] == 1_717_200_600.0
    (culprit,) = alert["culprits"]
    assert culprit["unit"] == "backup.service" and culprit["dirty_rate"] == 248.0 * MIB
    assert alert["evidence"] and alert["evidence"]["facts"] == {"sync_rate": 2.0, "backlog_s": 12.5}
@pytest.mark.parametrize(
    "lever", ["queue sda nr_requests", "bdi 8:0 max_bytes", "pace /a.service 8:0"]
)
def test_who_writes_sysfs_or_cgroups_is_not_seen_and_nobody_is_named(lever: str) -> None:
    """The probe is asked for /proc/sys only; whoever wrote the same number there did not do it."""
    found = ForeignWrite(lever, "5")
    ring = [ForeignWrite("dirty_bytes", "5", 17, "sysctl", 99, "/a.service", "sysctl -w")] * 16
    named = writer_of(found, [ring, ring], own=()) or found
    said = f"an unknown process set {lever}=5"
    snapshot = intruded(named)
    (alert,) = status_json(snapshot)["alerts"]
    assert said in alert["summary"]
    assert alert["writers"][0] == {
        "lever": lever, "value": "5", "pid": None, "comm": None, "cgroup": None, "cmdline": None
    }  # fmt: skip
    assert said in " ".join(render_status(status_json(snapshot), 200).split())
    (row,) = why_json(snapshot, "sda")["devices"]
    assert said in row["steps"][-1]
    assert said in " ".join(render_why(why_json(snapshot, "sda"), 200, verbose=True).split())
    noticed = replace(snapshot, sample=replace(snapshot.sample, foreign=(named,)))
    told = {each.kind: each.text for each in events_of(snapshot, noticed, ())}
    assert told["foreign"] == said


def test_rivals_are_listed_and_not_known_before_the_first_look() -> None:
    snapshot = samples.idle()
    assert status_json(snapshot)["rivals"] is None
    rival = ConflictingTool(
        "warning", "tuned", "mine", "vm.dirty_ratio=40", "/etc/tuned:4", "tuned sets"
    )
    assert status_json(replace(snapshot, rivals=(rival,)))["rivals"] == [
        {"level": "warning", "kind": "tuned", "name": "mine", "setting": "vm.dirty_ratio=40",
         "where": "/etc/tuned:4", "summary": "tuned sets"}
    ]  # fmt: skip


def test_excluded_devices_are_listed_and_not_managed() -> None:
    rows = {row["name"]: row for row in devices_json(samples.several())["devices"]}
    assert rows["sda"]["managed"] is True
    assert rows["loop0"]["managed"] is False
    assert rows["loop0"]["reason"] == "loop devices only when named"
    assert rows["dm-0"]["leaves"] == ["nvme0n1", "nvme1n1"]


@pytest.mark.parametrize("wanted, found", [
    (None, ["sda", "sdb", "dm-0", "loop0", "loop1", "loop2"]),
    ("sda", ["sda"]),
    ("/dev/sda", ["sda"]),
    ("8:16", ["sdb"]),
    ("/srv/backup/archive/2024", ["dm-0"]),
    ("nvme1n1", ["dm-0"]),  # a disk below
])  # fmt: skip
def test_why_finds_a_device_by_any_of_its_names(wanted: Optional[str], found: "list[str]") -> None:
    answer = why_json(samples.several(), wanted)
    assert [device["name"] for device in answer["devices"]] == found


@pytest.mark.parametrize("wanted", ["sdz", "", "/dev/", "8", "\udcff"])
def test_why_of_an_unknown_device_lists_the_known(wanted: str) -> None:
    with pytest.raises(RequestError, match=r"known devices: sda, sdb, dm-0") as caught:
        why_json(samples.several(), wanted)
    assert caught.value.exit_code == 2


def test_why_says_what_is_only_known_from_before_the_restart() -> None:
    shown = samples.guard()
    fact = Fact(250.0 * MIB, shown.sample.wall_s - 3 * 3600)
    memory = DeviceMemory(drain_rate=fact.value, earlier=Learned(drain_rate=fact))

    def first_step(memory: DeviceMemory) -> str:
        known = replace(shown.memory, devices={"sda": memory})
        step = why_json(replace(shown, memory=known), "sda")["devices"][0]["steps"][0]
        return str(step)

    assert first_step(memory) == "drain rate 250M/s, learned before the restart, 3h0m ago"
    assert "restart" not in first_step(replace(memory, drain_rate=251.0 * MIB))
    assert "restart" not in first_step(DeviceMemory(drain_rate=fact.value))


@pytest.mark.parametrize("make, words", [
    (samples.observe, "observe mode"),
    (samples.yielded, "writebackctl enforce"),
    (samples.first_tick, "The original limits stay"),
    (samples.guard, "until a device's target changes"),
    (samples.squeeze, "The limit falls to 4.0M as 30M of dirty pages are written"
                      " (about 0.1s at 240M/s)."),
])  # fmt: skip
def test_what_happens_next_to_the_limit(make: Callable[[], Snapshot], words: str) -> None:
    assert words in why_json(make())["limit"]["next"]


def test_levers_beside_the_limits_are_listed() -> None:
    rows = status_json(samples.levers())["levers"]
    assert rows[1] == {
        "kind": "bdi", "target": "8:0", "name": "max_bytes", "value": 4 * MIB,
        "original": 64 * MIB,
    }  # fmt: skip
    assert rows[-1]["original"] is None and len(rows) == len(samples.LEVERS)
    assert status_json(samples.guard())["levers"] == []


def test_the_lease_and_who_watches_it() -> None:
    watched = replace(samples.idle(), lease_s=9.6, watcher_pid=4712, leases_lost=1)
    answer = status_json(watched)
    assert answer["lease"] == {"remaining_s": 9.6, "watcher_pid": 4712, "lost": 1}
    line = "safety   if the daemon dies, pid 4712 restores within 12s; lease lost "
    assert line + "once\n" in render_status(answer)
    assert line + "3 times\n" in render_status(status_json(replace(watched, leases_lost=3)))
    alone = replace(watched, watcher_pid=None)
    assert any("no watcher" in warning for warning in status_json(alone)["warnings"])
    # Where nothing is set nothing is restored.
    for shown in (samples.in_mode(watched, Mode.OBSERVE), samples.in_mode(alone, Mode.OBSERVE)):
        answer = status_json(shown)
        assert "safety" not in render_status(answer) and answer["warnings"] == []
