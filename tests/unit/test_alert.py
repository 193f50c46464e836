# SPDX-License-Identifier: GPL-2.0-or-later
"""The detector, second by second: what is an alert, what is none, and how long one stands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, List, Mapping, Optional, Tuple

import pytest

from alert_host import DD, MB, SDA, SDB, SLOW, STARVED, Watched, remembered
from plant import latencies
from writebackd.alert.baseline import to_keep
from writebackd.alert.cause import container_in, is_even, unit_in
from writebackd.alert.routes.track import Tracker
from writebackd.alert.standing import hidden
from writebackd.alert.state import AlertMemory, Spell
from writebackd.alert.unread import unread
from writebackd.alert.values import AlertName, Cause, Severity
from writebackd.estimate.learned import KEEP_S, learn, seed
from writebackd.model import (
    CgroupSample,
    ClassSample,
    Device,
    DeviceMemory,
    DeviceSample,
    Fact,
    ForeignWrite,
    Intrusion,
    IoClass,
    Learned,
    Memory,
    Mode,
    State,
    SyncSample,
)
from writebackd.policy import load_policy

HANGS: Mapping[str, Any] = {
    "completed": False, "inflight": 4, "waiting": 2, "oldest_s": 5.0,
}  # fmt: skip
UNCACHED: Mapping[str, Any] = {"syncs": 150, "latency_s": 5e-3, "seeks": True, "waiting": 1}


def starved(mode: Mode = Mode.OBSERVE) -> Watched:
    host = Watched(core=remembered(mode=mode)).usual()
    host.until(60, **STARVED)
    return host


# ---- STALL -------------------------------------------------------------------


def test_five_seconds_without_a_completion_are_a_stall() -> None:
    host = Watched().usual()
    assert host.until(6, **HANGS) == 5
    (alert,) = host.alerts
    assert (alert.name, alert.severity) == (AlertName.STALL, Severity.CRITICAL)
    assert (alert.device, alert.cause) == ("sda", Cause.DEVICE)
    assert alert.since_s == pytest.approx(1.7e9 + 1060.0)
    assert "4 requests wait" in alert.summary and "kernel's log" in alert.done
    assert alert.evidence is not None and dict(alert.evidence.facts)["inflight"] == 4


def test_a_sync_that_waits_where_no_request_is_under_way_is_a_stall_of_unknown_cause() -> None:
    host = Watched().usual()
    host.until(6, completed=False, waiting=1, oldest_s=6.0)
    (alert,) = host.alerts
    assert (alert.cause, alert.severity) == (Cause.UNKNOWN, Severity.WARNING)
    assert "frozen" in alert.summary
    for _ in range(60):
        host.second(completed=False, waiting=1, oldest_s=6.0)
    assert host.alerts[0].severity is Severity.CRITICAL


def test_what_no_sync_waits_for_is_a_stall_later() -> None:
    host = Watched().usual()
    assert host.until(20, completed=False, inflight=1) == 15
    assert host.alerts[0].severity is Severity.CRITICAL
    # A disk in standby spins up.
    Watched().usual().usual(12, completed=False, inflight=1).usual()


@pytest.mark.parametrize(
    "quiet",
    [
        {"completed": False},  # nobody wants anything
        {"completed": False, "inflight": 1, "flushes": 1},
        {"completed": False, "inflight": 1, "others": 1},  # fstrim
        {"completed": False, "inflight": 1, "flood": 4096},
        {"completed": False, "inflight": 1, "excluded": "by policy"},
    ],
)
def test_no_demand_or_any_completion_is_no_stall(quiet: Mapping[str, Any]) -> None:
    Watched().usual().usual(30, **quiet)


# ---- COLLAPSE ----------------------------------------------------------------


def test_a_flood_with_the_agent_off_is_a_collapse_with_its_culprit() -> None:
    host = Watched(core=remembered(mode=Mode.OBSERVE)).usual()
    assert host.until(15, **STARVED) == 8
    (alert,) = host.alerts
    assert (alert.name, alert.cause) == (AlertName.COLLAPSE, Cause.FLOOD)
    assert alert.severity is Severity.WARNING
    assert "2.0 syncs/s instead of" in alert.summary
    assert "dd (pid 4711, backup.service) 200M/s" in alert.summary
    assert "writebackctl enforce" in alert.done
    (culprit,) = alert.culprits
    assert (culprit.unit, culprit.cmdline) == ("backup.service", None)


def test_it_is_critical_after_a_minute_and_stays_the_same_alert() -> None:
    host = starved()
    key = host.alerts[0].key
    for _ in range(60):
        host.second(**STARVED)
    assert host.alerts[0].severity is Severity.CRITICAL and host.alerts[0].key == key


def test_the_agent_gets_half_a_minute_to_hold_a_flood() -> None:
    host = Watched(core=remembered(mode=Mode.ENFORCE)).usual()
    assert host.until(60, **STARVED) == 30
    assert "holds the limit at 4.0M" in host.alerts[0].done


def test_a_held_flood_costs_some_syncs() -> None:
    some: Mapping[str, Any] = {
        "syncs": 250, "latency_s": 1.6e-3, "spread": 20.0, "waiting": 1, "flood": 200 * MB,
    }  # fmt: skip
    held = remembered(mode=Mode.ENFORCE)
    Watched(core=held).usual().usual(60, **some)
    assert Watched(core=held, in_force=False).usual().until(15, **some) == 8
    Watched(core=held).usual().until(40, **{**some, "syncs": 150})


@pytest.mark.parametrize(
    "core, said",
    [
        (remembered(yielded="tuned set dirty_bytes=1"), "somebody else set the limit"),
        (remembered(pin_bytes=1 << 30), "the pinned 1.0G"),
    ],
)
def test_under_an_admins_limit_it_is_the_admins_change(core: Any, said: str) -> None:
    host = Watched(core=core).usual()
    assert host.until(15, **STARVED) == 8
    assert host.alerts[0].cause is Cause.FOREIGN_CHANGE
    assert said in host.alerts[0].done


@pytest.mark.parametrize(
    "differs",
    [
        {"syncs": 5},  # the load has ended
        {"syncs": 5, "waiting": 1},
        {"syncs": 900, "latency_s": 1.5e-3},  # slower, and nearly as many
        {"syncs": 100, "latency_s": 4e-3, "waiting": 1},  # within the objective
        {"syncs": 20, "latency_s": 50e-3, "sync_bytes": 4 * MB, "waiting": 1},  # larger
    ],
)
def test_fewer_syncs_are_no_collapse_by_themselves(differs: Mapping[str, Any]) -> None:
    Watched().usual().usual(60, **differs)


# Eight at once, of which one a second returns: as many bytes as a thousand small ones.
LARGE: Mapping[str, Any] = {
    "syncs": 1, "latency_s": 8.0, "sync_bytes": 64 * MB, "waiting": 8, "oldest_s": 7.0,
}  # fmt: skip


def test_a_collapse_after_larger_syncs_is_told_as_soon_as_any() -> None:
    host = Watched(core=remembered(mode=Mode.OBSERVE)).usual(sync_bytes=64 << 10)
    assert host.usual(60, **LARGE).until(15, **STARVED) == 8


def test_larger_syncs_that_begin_with_a_second_without_any_are_no_collapse() -> None:
    host = Watched().usual(sync_bytes=64 << 10)
    host.usual(1, syncs=0, waiting=8, oldest_s=0.9).usual(60, **LARGE)


def test_syncs_that_hardly_anybody_waits_for_are_no_collapse() -> None:
    host = Watched(core=remembered(mode=Mode.OBSERVE)).usual()
    for n in range(60):
        # journald, each time for a second and a half, after the database has ended.
        waits = n % 4 == 0
        host.second(
            syncs=int(n % 4 == 1), latency_s=1.5, waiting=int(waits), flood=200 * MB,
            dirty=3 << 30, oldest_s=0.9 if waits else 0.0,
        )  # fmt: skip
        assert host.alerts == ()


@pytest.mark.parametrize("seconds", [60, 600])
def test_a_trickle_that_nobody_waits_for_hides_no_collapse(seconds: int) -> None:
    host = Watched(core=remembered(mode=Mode.OBSERVE)).usual()
    host.usual(seconds, syncs=4, latency_s=40e-3)
    assert host.until(15, **STARVED) == 8
    assert host.alerts[0].cause is Cause.FLOOD
    evidence = host.alerts[0].evidence
    assert evidence is not None and evidence.end_s - evidence.begin_s <= 16


def test_an_hour_of_a_slow_trickle_is_what_is_usual() -> None:
    host = Watched().usual().usual(3600, syncs=4, latency_s=40e-3)
    assert host.memory.watches["sda"].sync_rate == pytest.approx(4, abs=0.1)


def test_demand_half_of_the_time_does_not_hide_a_collapse_either() -> None:
    host = Watched(core=remembered(mode=Mode.OBSERVE)).usual()
    for n in range(303):
        host.second(syncs=20, latency_s=20e-3, spread=2.0, waiting=n % 2)
        assert host.alerts == ()
    assert host.until(15, **STARVED) <= 12


def test_a_trickle_that_nobody_waits_for_ends_an_alert() -> None:
    host = starved()
    for _ in range(310):
        host.second(**STARVED)
    stood = 0
    while host.alerts and stood < 100:
        host.second(syncs=4, latency_s=40e-3)
        stood += 1
    assert 60 <= stood <= 64


def test_what_never_was_usual_cannot_collapse() -> None:
    Watched(core=remembered(mode=Mode.OBSERVE)).usual(5).usual(60, **STARVED)


def test_a_limiter_serves_all_alike_and_a_neighbour_does_not() -> None:
    capped = Watched().usual()
    capped.until(10, syncs=40, latency_s=50e-3, waiting=1)
    assert capped.alerts[0].cause is Cause.CAP
    shared = Watched().usual()
    for n in range(10):
        shared.second(syncs=60 + 40 * (n % 2), latency_s=0.4e-3, spread=500.0, waiting=1)
    assert shared.alerts[0].cause is Cause.NEIGHBOUR
    failing = Watched().usual()
    failing.until(10, syncs=3, latency_s=0.3, spread=4.0, waiting=1)
    assert failing.alerts[0].cause is Cause.DEVICE


def test_what_was_fast_before_the_trouble_within_its_first_tick_is_no_evidence() -> None:
    capped = Watched().usual()
    capped.second(syncs=100, latency_s=0.4e-3, spread=500.0, waiting=1)
    capped.until(10, syncs=40, latency_s=50e-3, waiting=1)
    assert capped.alerts[0].cause is Cause.CAP


@pytest.mark.parametrize(
    "operations, inflight, even",
    [
        ((60, 60, 62, 60, 58), 4, True),  # each waits for those ahead of it: 18 to 72 ms
        ((60, 60, 62, 60, 58), 1, False),
        ((60, 66, 58, 63, 57), 4, False),  # seeks
    ],
)
def test_those_that_queue_for_turns_wait_one_after_the_other(
    operations: Tuple[int, ...], inflight: int, even: bool
) -> None:
    waits = latencies(18e-3, 100) + latencies(40e-3, 100) + latencies(72e-3, 100)
    ticks = tuple((1.0, count, 4096 * count * (1 + n % 2)) for n, count in enumerate(operations))
    assert is_even(Spell(0.0, 0.0, inflight=inflight, writes=waits, ticks=ticks)) is even


def test_who_sleeps_in_write_for_others_pages_is_a_throttled_writer() -> None:
    host = Watched(core=remembered(mode=Mode.OBSERVE)).usual()
    cgroups = (
        CgroupSample(7, "/system.slice/backup.service", "sda", 200 * MB, 0.9),
        CgroupSample(8, "/system.slice/db.service", "sda", 1 * MB, 0.8, syncs=20),
    )
    assert host.until(12, syncs=20, tasks=(DD,), cgroups=cgroups) == 8
    (alert,) = host.alerts
    assert alert.cause is Cause.THROTTLED_WRITER
    assert alert.culprits[0].comm == "dd"
    # Who sleeps for his own pages is none.
    alone = Watched(core=remembered(mode=Mode.OBSERVE)).usual()
    own = (CgroupSample(8, "/system.slice/db.service", "sda", 200 * MB, 0.8, syncs=20),)
    alone.usual(30, syncs=20, cgroups=own)


# ---- CACHE_DEGRADED ----------------------------------------------------------


def test_when_no_write_is_faster_than_media_the_cache_is_off() -> None:
    host = Watched().usual()
    assert host.until(10, **UNCACHED) == 6
    (alert,) = host.alerts
    assert (alert.name, alert.cause) == (AlertName.CACHE_DEGRADED, Cause.WRITE_THROUGH)
    assert "battery" in alert.done
    # Months of it are not the new usual.
    for _ in range(600):
        host.second(**UNCACHED)
    assert host.names() == [AlertName.CACHE_DEGRADED]
    for _ in range(70):
        host.second()
    assert host.alerts == ()


@pytest.mark.parametrize("rate", [10, 15, 25])
def test_a_cache_that_is_back_is_seen_on_a_quiet_host_too(rate: int) -> None:
    host = Watched().usual(syncs=rate, latency_s=0.2e-3)
    host.until(30, syncs=rate - rate % 5, latency_s=8e-3, seeks=True)
    assert host.names() == [AlertName.CACHE_DEGRADED]
    for _ in range(400):
        host.second(syncs=rate - rate % 5, latency_s=8e-3, seeks=True)
    assert host.names() == [AlertName.CACHE_DEGRADED]
    well = 0
    while host.alerts and well < 100:
        host.second(syncs=rate, latency_s=0.2e-3)
        well += 1
    assert 60 <= well <= 70


def test_a_cache_that_nobody_uses_is_not_off_for_ever() -> None:
    host = Watched().usual()
    host.until(10, **UNCACHED)
    idle = 0
    while host.alerts and idle < 1000:
        host.second(syncs=0)
        idle += 1
    assert 359 <= idle <= 361


def test_a_disk_that_never_had_a_cache_has_none_to_lose() -> None:
    Watched().usual(latency_s=5e-3, syncs=150, seeks=True).usual(
        60, syncs=100, latency_s=40e-3, seeks=True
    )


@pytest.mark.parametrize(
    "other, cause, told",
    [
        # A volume on the same disk.
        (Device("dm-0", "253:0", "253:0", ("sda",), ("8:0",)), Cause.NEIGHBOUR, False),
        (Device("dm-0", "253:0", "253:0", ("sda",), ("8:0",)), Cause.DEVICE, True),
        (SDB, Cause.NEIGHBOUR, True),  # of the same driver
        (SDB, Cause.DEVICE, True),
    ],
)
def test_a_lost_cache_explains_a_collapse_on_the_same_disk_and_on_no_other(
    other: Device, cause: Cause, told: bool
) -> None:
    host = Watched().usual()
    host.until(10, **UNCACHED)
    lost = host.memory.standing["CACHE_DEGRADED", "sda"]
    alert = replace(lost.alert, name=AlertName.COLLAPSE, device=other.name, cause=cause)
    standing = {**host.memory.standing, ("COLLAPSE", other.name): replace(lost, alert=alert)}
    host.memory = replace(host.memory, standing=standing)
    host.second(**UNCACHED, more=(DeviceSample(other, inflight=1, writes=1),))
    behind = [] if told else [AlertName.COLLAPSE]
    assert [each.name for each in hidden(host.memory.standing, host.alerts)] == behind
    assert host.names() == [AlertName.CACHE_DEGRADED] + [AlertName.COLLAPSE] * told


def test_a_disk_that_fails_is_told_beside_a_lost_cache() -> None:
    host = Watched().usual()
    host.until(10, **UNCACHED)
    for _ in range(15):
        host.second(syncs=3, latency_s=0.3, spread=4.0, waiting=1)
    assert host.names() == [AlertName.CACHE_DEGRADED, AlertName.COLLAPSE]
    assert host.alerts[1].cause is Cause.DEVICE


# ---- EXHAUSTED, BLIND, FOREIGN_WRITER ----------------------------------------


def test_a_minute_at_the_floor_without_help_is_exhausted() -> None:
    slow: Mapping[str, Any] = {"syncs": 700, "latency_s": 1e-3, "state": State.EXHAUSTED}
    host = Watched().usual()
    assert host.until(70, **slow) == 60
    assert host.names() == [AlertName.EXHAUSTED]
    watching = Watched(core=remembered(mode=Mode.OBSERVE)).usual()
    watching.usual(70, **slow)


def test_blind_after_half_a_minute_unless_nothing_else_was_expected() -> None:
    host = Watched().usual()
    assert host.until(40, sighted=False) == 30
    assert (host.names(), host.alerts[0].device) == ([AlertName.BLIND], None)
    Watched(memory=AlertMemory(sighted=False)).usual(60, sighted=False)


def test_ticks_that_cannot_be_read_keep_what_stands_and_say_blind() -> None:
    host = Watched().usual()
    host.until(6, **HANGS)
    found = unread(unread(host.alerts, 5.0, "/proc: gone"), 7.0, "/proc: gone for long")
    assert [each.name for each in found] == [AlertName.STALL, AlertName.BLIND]
    assert found[1].summary == "/proc: gone for long"


def test_a_foreign_write_is_told_at_once_also_in_the_quiet_of_a_boot() -> None:
    write = ForeignWrite("dirty_bytes", "1", 17, "tuned", 9, "/system.slice/tuned.service", "tuned")
    host = Watched(time_s=5.0, core=remembered(intrusions=(Intrusion(write, 1.7e9),)))
    (alert,) = host.second()
    assert (alert.name, alert.cause) == (AlertName.FOREIGN_WRITER, Cause.FOREIGN_CHANGE)
    assert alert.culprits[0].unit == "tuned.service"


# ---- when it is quiet, and how long an alert stands ---------------------------


def test_two_minutes_after_boot_nothing_is_told_and_nothing_learned() -> None:
    host = Watched(time_s=10.0)
    for _ in range(100):
        assert host.second(**HANGS) == ()
    assert host.until(12, **HANGS) == 10
    loaded = Watched(time_s=10.0)
    for _ in range(105):
        loaded.second(**SLOW)
    assert loaded.memory.watches["sda"].syncs == {}


def test_two_minutes_after_a_resume_nothing_is_told() -> None:
    host = Watched().usual()
    assert host.second(dt_s=8 * 3600.0) == ()
    for _ in range(119):
        assert host.second(**HANGS) == ()
    assert host.until(3, **HANGS) == 1


def test_an_alert_stands_for_five_minutes_at_least() -> None:
    host = starved()
    stood = 0
    while host.alerts:
        host.second()
        stood += 1
    assert 299 <= stood <= 301


def test_it_is_resolved_after_a_minute_above_the_resolve_share_and_not_below_it() -> None:
    host = starved()
    for _ in range(310):
        host.second(**STARVED)
    for _ in range(100):
        # Half of what is usual, and still slow: neither collapsed nor well.
        host.second(syncs=500, latency_s=10e-3, spread=10.0, waiting=1)
        assert host.names() == [AlertName.COLLAPSE]
    well = 0
    while host.alerts:
        host.second(syncs=700)
        well += 1
    assert 59 <= well <= 64  # of which a few end the spell


def test_a_flood_in_waves_is_one_alert() -> None:
    host = starved()
    since = host.alerts[0].since_s
    for _ in range(20):
        for _ in range(20):
            host.second(**STARVED)
        for _ in range(25):
            host.second()
    assert [each.since_s for each in host.alerts] == [since]


def test_trouble_is_not_learned_as_usual() -> None:
    host = starved()
    before = host.memory.watches["sda"]
    for _ in range(1200):
        host.second(**STARVED)
    after = host.memory.watches["sda"]
    assert (after.syncs, after.sync_rate) == (before.syncs, before.sync_rate)


def test_nothing_is_learned_while_an_alert_stands() -> None:
    host = starved()
    for _ in range(10):
        host.second()
    before = host.memory.watches["sda"]
    for _ in range(200):
        host.second(syncs=700, latency_s=0.7e-3)
    assert host.names() == [AlertName.COLLAPSE]
    assert host.memory.watches["sda"] == before


def test_fewer_syncs_are_the_new_usual_only_while_they_are_fast() -> None:
    ended = Watched().usual().usual(60, syncs=200)
    assert ended.memory.watches["sda"].sync_rate == pytest.approx(200, rel=0.02)
    slower = Watched().usual().usual(60, syncs=400, latency_s=2e-3)
    assert slower.memory.watches["sda"].sync_rate > 900


def test_another_disk_starts_anew() -> None:
    host = Watched().usual()
    host.device = replace(SDA, diskseq=9)
    host.usual(60, **UNCACHED)


def test_after_a_restart_a_cache_that_is_off_is_told_at_once() -> None:
    known = Learned(baseline_s=Fact(0.4e-3, 1.0), write_baseline_s=Fact(0.3e-3, 1.0))
    core = Memory(devices={"sda": DeviceMemory(earlier=known)})
    assert Watched(core=core).until(10, **UNCACHED) == 6
    Watched().usual(30, **UNCACHED)


def test_an_alert_of_a_disk_that_is_gone_ends() -> None:
    host = starved()
    host.device = SDB
    for _ in range(299):
        host.second()
    assert host.names() == [AlertName.COLLAPSE]
    host.second()
    host.second()
    assert host.alerts == ()


def test_an_alert_of_a_disk_that_is_left_alone_ends_at_once() -> None:
    host = starved()
    assert host.second(excluded="by policy") == ()
    assert host.memory.standing == {}


def test_a_disk_that_is_gone_is_said_to_be() -> None:
    host = Watched().usual()
    host.until(6, **HANGS)
    host.device = SDB
    host.second()
    (alert,) = host.alerts
    assert (alert.name, alert.device) == (AlertName.STALL, "sda")
    assert alert.summary.startswith("sda: the disk is gone; sda: nothing has completed")
    host.second()
    assert host.alerts[0].summary == alert.summary


def test_what_an_alert_explains_has_not_ended_and_does_not_begin_again() -> None:
    host = starved()
    tracker = Tracker()
    told = list(tracker.tell(host.alerts, 0.0))

    def second(**differs: Any) -> None:
        host.second(**differs)
        behind = hidden(host.memory.standing, host.alerts)
        told.extend(tracker.tell(host.alerts, host.time_s, behind))

    for _ in range(10):
        second(**HANGS)
    assert host.names() == [AlertName.STALL]
    for _ in range(400):
        second(**STARVED)
    assert host.names() == [AlertName.COLLAPSE]
    assert [(each.what.value, each.alert.name.value) for each in told] == [
        ("begin", "COLLAPSE"), ("begin", "STALL"), ("end", "STALL"), ("change", "COLLAPSE"),
    ]  # fmt: skip
    # And one that began behind another is told when it comes out, and not before.
    fresh = Tracker()
    assert fresh.tell((), 0.0, host.alerts) == ()
    assert [each.what.value for each in fresh.tell(host.alerts, 1.0)] == ["begin"]


def test_of_a_disk_that_is_gone_one_alert_is_told() -> None:
    host = starved()
    for _ in range(10):
        host.second(**HANGS)
    host.device = SDB
    stood = 0
    while host.alerts:
        host.second()
        stood += 1
        assert host.names() in ([AlertName.STALL], [])
    assert 290 <= stood <= 301


def test_severity_only_rises_while_an_alert_stands() -> None:
    host = starved()
    for _ in range(60):
        host.second(**STARVED)
    for _ in range(3):
        for _ in range(60):
            host.second()
            assert host.alerts[0].severity is Severity.CRITICAL
        for _ in range(20):
            host.second(**STARVED)
            assert host.alerts[0].severity is Severity.CRITICAL


def test_another_cause_is_told_when_it_holds() -> None:
    host = starved()
    for _ in range(120):
        host.second()
    host.core = Memory(mode=Mode.OBSERVE, devices={"sda": DeviceMemory()})
    causes = []
    for _ in range(30):
        host.second(syncs=3, latency_s=300e-3, spread=4.0, waiting=1)
        causes.append(host.alerts[0].cause)
    assert causes.count(Cause.FLOOD) == 16  # 8 until it is sure, and 10 in which it holds
    assert set(causes[16:]) == {Cause.DEVICE}
    assert "3.0 syncs/s" in host.alerts[0].summary and host.alerts[0].culprits == ()


def test_limits_that_are_not_in_force_hold_nothing() -> None:
    host = Watched(core=remembered(mode=Mode.ENFORCE), in_force=False).usual()
    assert host.until(60, **STARVED) == 8
    assert "refused or held off" in host.alerts[0].done
    held_off = Watched(in_force=False).usual()
    held_off.usual(70, syncs=700, latency_s=1e-3, state=State.EXHAUSTED)


@pytest.mark.parametrize("objective, names", [("2s", []), ("2ms", [AlertName.COLLAPSE])])
def test_a_device_is_judged_by_its_own_objective(
    tmp_path: Path, objective: str, names: List[AlertName]
) -> None:
    (tmp_path / "x.conf").write_text(
        "[policy]\nname = x\n[objective]\nfsync-p99 = 1s\n"
        f"[device driver:megaraid_sas]\nfsync-p99 = {objective}\n"
    )
    host = Watched(policy=load_policy("x", tmp_path), core=remembered(mode=Mode.OBSERVE)).usual()
    for _ in range(12):
        host.second(**SLOW)
    assert host.names() == names


def test_idle_disks_are_not_even_remembered() -> None:
    host = Watched()
    more = tuple(
        DeviceSample(replace(SDB, name=f"sd{n}"), classes={}, sync=SyncSample()) for n in range(9)
    )
    host.second(more=more)
    assert list(host.memory.watches) == ["sda"]


def test_same_policy_memory_and_second_give_the_same_alerts() -> None:
    one, two = starved(), starved()
    assert (one.alerts, one.memory) == (two.alerts, two.memory)


def test_reads_alone_that_complete_are_no_stall() -> None:
    host = Watched().usual()
    reads = {IoClass.READ: ClassSample(5, 5 << 12, latencies(1e-3, 5))}
    more = (DeviceSample(SDB, read_bytes=5 << 12, inflight=3, classes=reads, sync=SyncSample()),)
    host.usual(20, more=more)


@pytest.mark.parametrize(
    "path, unit, container",
    [
        ("/system.slice/backup.service", "backup.service", None),
        (f"/system.slice/docker-{'a' * 64}.scope", f"docker-{'a' * 64}.scope", "a" * 64),
        (f"/kubepods/burstable/pod1/{'b' * 64}", None, "b" * 64),
        (f"/machine.slice/libpod-{'c' * 64}.scope/container", f"libpod-{'c' * 64}.scope", "c" * 64),
        # Units of a container, which may be called as the host's are.
        (f"/docker/{'d' * 64}/system.slice/mysql.service", None, "d" * 64),
        ("/lxc.payload.web/system.slice/mysql.service", None, "web"),
        ("/lxc/101/ns/system.slice/mysql.service", None, "101"),
        ("/user.slice/user-0.slice/user@0.service/app.slice/x.service", "user@0.service", None),
        ("/", None, None),
        (None, None, None),
    ],
)
def test_a_cgroup_path_tells_unit_and_container(path: Any, unit: Any, container: Any) -> None:
    assert (unit_in(path), container_in(path)) == (unit, container)




def test_behind_what_a_held_flood_has_queued_a_slow_write_says_nothing_of_the_cache() -> None:
    copy = {"syncs": 150, "latency_s": 10e-3, "flood": 200 * MB, "waiting": 1, "seeks": True}
    Watched(core=remembered(mode=Mode.ENFORCE)).usual().usual(12, **copy, dirty=2 * MB)
    little = Watched(core=remembered(mode=Mode.ENFORCE)).usual()
    little.until(12, **copy, dirty=MB // 4)
    assert little.alerts[0].name is AlertName.CACHE_DEGRADED


def restarted(host: Watched, away_s: float = 5.0) -> Watched:
    """The host as the next run of the daemon sees it, with what this one has kept."""
    mine = DeviceMemory(
        identity=("8:0", 1), known_as="naa.5a", baseline_s=0.4e-3, flood_began_s=1055.0
    )
    (mine,) = to_keep(Memory(devices={"sda": mine}), host.memory.watches)
    kept = learn(mine, Learned(), 1.7e9)
    new = seed(DeviceMemory(flood_began_s=1055.0), kept, 1.7e9 + away_s)
    return Watched(core=Memory(mode=Mode.OBSERVE, devices={"sda": new}), time_s=host.time_s)


@pytest.mark.parametrize("trouble", [0, 12])
def test_after_a_restart_a_collapse_is_told_as_soon_as_any(trouble: int) -> None:
    host = Watched(core=remembered(mode=Mode.OBSERVE)).usual()
    for _ in range(trouble):
        host.second(**STARVED)
    host = restarted(host)
    assert host.until(15, **STARVED) == 8
    (alert,) = host.alerts
    assert (alert.name, alert.cause) == (AlertName.COLLAPSE, Cause.FLOOD)
    assert "syncs/s instead of 954," in alert.summary


def test_a_month_after_it_was_seen_no_rate_is_usual() -> None:
    host = Watched(core=remembered(mode=Mode.OBSERVE)).usual()
    restarted(host, KEEP_S + 1.0).usual(60, **STARVED)


def test_a_rate_from_before_a_restart_is_none_of_a_disk_that_does_nothing_now() -> None:
    host = restarted(Watched(core=remembered(mode=Mode.OBSERVE)).usual())
    host.usual(60, syncs=0).usual(60, **STARVED)


def test_in_the_quiet_after_boot_no_earlier_rate_is_begun_with() -> None:
    host = restarted(Watched(core=remembered(mode=Mode.OBSERVE)).usual())
    host.time_s = 10.0
    host.usual(110, syncs=1).usual(60, **STARVED)


def test_of_another_disk_and_of_one_that_nobody_syncs_no_rate_is_kept() -> None:
    host = Watched(core=remembered()).usual()
    other = Memory(devices={"sda": DeviceMemory(identity=("8:0", 9))})
    assert list(to_keep(other, host.memory.watches)) == [*other.devices.values()]
    ended = host.usual(120, syncs=0)
    same = Memory(devices={"sda": DeviceMemory(identity=("8:0", 1), usual_sync_rate=900.0)})
    assert [each.usual_sync_rate for each in to_keep(same, ended.memory.watches)] == [None]


def test_media_of_which_some_answer_soon_are_no_cache() -> None:
    host = Watched().usual(latency_s=0.46e-3)
    for n in range(6):
        assert host.alerts == ()
        # A fifth of every other second's within 1.38 ms, which is 3 x usual.
        host.second(**{**UNCACHED, "latency_s": 5e-3 if n % 2 else 3.2e-3})
    assert host.names() == [AlertName.CACHE_DEGRADED]


def test_a_neighbour_who_leaves_some_room_in_the_cache_is_none_that_took_it() -> None:
    host = Watched().usual(latency_s=0.46e-3)
    for _ in range(30):
        host.second(syncs=200, latency_s=0.5e-3, waiting=1, spread=60.0)
        host.second(syncs=200, latency_s=8e-3, waiting=1, seeks=True)
        assert AlertName.CACHE_DEGRADED not in host.names()


def test_a_queue_that_comes_and_goes_explains_no_more_than_it_does_on_average() -> None:
    host = Watched(core=remembered(mode=Mode.ENFORCE)).usual()
    for n in range(6):
        assert host.alerts == ()
        host.second(syncs=200, latency_s=36e-3, seeks=True, flood=56 * MB, waiting=1,
                    dirty=(MB // 5, MB * 6 // 5)[n % 2])  # fmt: skip
    assert host.names() == [AlertName.CACHE_DEGRADED]


@pytest.mark.parametrize("dirty, within_s", [(MB, 8), (20 * MB, None)])
def test_beside_a_flood_held_for_long_what_its_queue_does_not_explain_is_a_collapse(
    dirty: int, within_s: Optional[int]
) -> None:
    core = Memory(mode=Mode.ENFORCE, devices={"sda": DeviceMemory(flood_began_s=1000.0)})
    host = Watched(core=core).usual(flood=200 * MB, dirty=dirty)
    some: Mapping[str, Any] = {
        "syncs": 220, "latency_s": 0.4e-3, "spread": 500.0, "waiting": 1, "flood": 200 * MB,
    }  # fmt: skip
    if within_s is None:
        host.usual(60, **some, dirty=dirty)
    else:
        assert host.until(15, **some, dirty=dirty) == within_s
        assert host.alerts[0].cause is Cause.NEIGHBOUR


@pytest.mark.parametrize(
    "paused",
    [
        {"dt_s": 9.0, "completed": False, "inflight": 4, "waiting": 2, "oldest_s": 9.0},
        {"dt_s": 9.0, "syncs": 40, "latency_s": 0.4e-3, "spread": 2e4, "waiting": 1},
    ],
)
def test_one_tick_in_which_the_whole_host_stood_still_is_no_alert(
    paused: Mapping[str, Any]
) -> None:
    Watched().usual().usual(1, **paused).usual()


def test_one_slow_second_in_every_half_minute_keeps_no_alert() -> None:
    host = starved()
    stood = 0
    while host.alerts and stood < 1000:
        stood += 1
        if stood % 30:
            host.second(syncs=700)
        else:
            host.second(syncs=500, latency_s=10e-3, spread=10.0, waiting=1)
    assert 300 <= stood <= 330
    # Every fifth is another matter.
    often = starved()
    for n in range(1000):
        if n % 5:
            often.second(syncs=700)
        else:
            often.second(syncs=500, latency_s=10e-3, spread=10.0, waiting=1)
    assert often.names() == [AlertName.COLLAPSE]


def test_seconds_that_are_far_apart_are_no_spell() -> None:
    host = Watched().usual().usual(2, **UNCACHED)
    spells = [host.memory.watches["sda"].degraded]
    host.usual(15, syncs=0)
    spells.append(host.memory.watches["sda"].degraded)
    assert [each is None for each in spells] == [False, True]
    assert host.until(10, **UNCACHED) == 6
    assert host.alerts[0].since_s == pytest.approx(1.7e9 + 1077.0)


@pytest.mark.parametrize("pause", [2, 4])
def test_a_cache_that_is_off_is_told_where_syncs_come_in_bursts(pause: int) -> None:
    """All pauses together are longer than a spell may go without a write; none of them is."""
    host = Watched().usual()
    seconds = 0
    while not host.alerts and seconds < 100:
        seconds += 1
        if seconds % (pause + 1) == 1:
            host.second(**UNCACHED)
        else:
            host.second(syncs=0)
    assert seconds == 5 * (pause + 1) + 1 and host.names() == [AlertName.CACHE_DEGRADED]


def test_what_a_device_is_known_for_can_be_forgotten_under_an_alert() -> None:
    host = Watched().usual()
    smaller: Mapping[str, Any] = {"syncs": 40, "latency_s": 50e-3, "waiting": 1}
    for _ in range(600):
        host.second(**smaller)
    assert host.names() == [AlertName.COLLAPSE]
    host.memory = replace(host.memory, watches={})  # writebackctl forget
    well = 0
    while host.alerts:
        host.second(**smaller)
        well += 1
    assert well == 60


@pytest.mark.parametrize("doubles_s, told", [(60, True), (300, True), (1200, False)])
def test_what_gets_slower_by_the_minute_is_a_collapse_and_by_the_hour_is_usual(
    doubles_s: int, told: bool
) -> None:
    host = Watched(core=remembered(mode=Mode.OBSERVE)).usual()
    names = []
    for n in range(6 * doubles_s):
        worse = 2.0 ** (n / doubles_s)
        host.second(syncs=int(1000 / worse), latency_s=0.4e-3 * worse, spread=4.0, waiting=1)
        names += host.names()
    assert (AlertName.COLLAPSE in names) is told


def test_the_most_that_syncs_were_seen_to_write_is_forgotten_in_a_day() -> None:
    host = Watched().usual().usual(1, sync_bytes=1 << 20)
    most = host.memory.watches["sda"].most_sync_bytes
    host.usual(3600, syncs=20)
    assert 0.95 * most < host.memory.watches["sda"].most_sync_bytes < 0.97 * most
