# SPDX-License-Identifier: GPL-2.0-or-later
"""The detector, second by second: what is an alert, and what is none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, List, Mapping, Optional, Tuple

import pytest

from alert_host import (
    DD,
    HANGS,
    MB,
    SDA,
    SDB,
    SLOW,
    STARVED,
    UNCACHED,
    Watched,
    remembered,
    starved,
)
from plant import latencies
from writebackd.alerts.alert_types import AlertName, Cause, Severity
from writebackd.alerts.blind import BlindTicks
from writebackd.alerts.cause import is_even
from writebackd.alerts.detector_memory import AlertMemory, Incident
from writebackd.alerts.lifecycle import hidden
from writebackd.types.decision import DeviceState, Mode
from writebackd.types.device_memory import DeviceMemory
from writebackd.types.levers import ForeignWrite, Intrusion
from writebackd.types.samples import DeviceSample, TaskSample
from writebackd.types.storage import Device

# ---- STALL -------------------------------------------------------------------


def test_five_seconds_without_a_completion_are_a_stall() -> None:
    host = Watched().usual()
    assert host.until(6, **HANGS) == 5
    (alert,) = host.alerts
    assert (alert.name, alert.severity) == (AlertName.STALL, Severity.CRITICAL)
    assert (alert.device, alert.cause) == ("sda", Cause.DEVICE)
    assert alert.since_s == pytest.approx(1.7e9 + 1060.0)
    assert "4 requests pending" in alert.summary and "kernel log" in alert.done
    assert alert.evidence is not None and dict(alert.evidence.facts)["inflight"] == 4


def test_a_sync_that_waits_where_no_request_is_under_way_is_a_stall_of_unknown_cause() -> None:
    host = Watched().usual()
    host.until(6, completed=False, waiting=1, oldest_s=6.0)
    (alert,) = host.alerts
    assert (alert.cause, alert.severity) == (Cause.UNKNOWN, Severity.WARNING)
    assert "frozen" in alert.summary and ", 1 sync pending" in alert.summary
    host.seconds(60, completed=False, waiting=1, oldest_s=6.0)
    assert host.alerts[0].severity is Severity.CRITICAL


def test_what_no_sync_waits_for_is_a_stall_later() -> None:
    host = Watched().usual()
    assert host.until(20, completed=False, inflight=1) == 15
    assert host.alerts[0].severity is Severity.CRITICAL
    # A disk in standby spins up.
    Watched().usual().usual(12, completed=False, inflight=1).usual()


@pytest.mark.parametrize(
    "rotational, idle_s, expected", [(True, 70, 15), (True, 20, 5), (False, 70, 5), (None, 70, 5)]
)
def test_a_rotating_disk_that_was_idle_has_time_to_spin_up_for_an_fsync(
    rotational: Optional[bool], idle_s: int, expected: int
) -> None:
    host = Watched(device=replace(SDA, rotational=rotational)).usual()
    host.seconds(idle_s, completed=False)
    assert host.until(20, **HANGS) == expected


@pytest.mark.parametrize("quiet", [
    {"completed": False},  # nobody wants anything
    {"completed": False, "inflight": 1, "flushes": 1},
    {"completed": False, "inflight": 1, "others": 1},  # fstrim
    {"completed": False, "inflight": 1, "flood": 4096},
    {"completed": False, "inflight": 1, "excluded": "by policy"},
])  # fmt: skip
def test_no_demand_or_any_completion_is_no_stall(quiet: Mapping[str, Any]) -> None:
    Watched().usual().usual(30, **quiet)


# ---- COLLAPSE ----------------------------------------------------------------


def test_a_flood_with_the_agent_off_is_a_collapse_with_its_culprit() -> None:
    host = Watched(core=remembered(mode=Mode.OBSERVE)).usual()
    assert host.until(15, **STARVED) == 8
    (alert,) = host.alerts
    assert (alert.name, alert.cause) == (AlertName.COLLAPSE, Cause.FLOOD)
    assert alert.severity is Severity.WARNING
    assert "sda: 2.0 fsync/s (usually " in alert.summary
    assert "dd (pid 4711, backup.service) 200M/s" in alert.summary
    assert "writebackctl enforce" in alert.done
    (culprit,) = alert.culprits
    assert (culprit.unit, culprit.cmdline) == ("backup.service", None)


def test_it_is_critical_after_a_minute_and_stays_the_same_alert() -> None:
    host = starved()
    key = host.alerts[0].key
    host.seconds(60, **STARVED)
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


# `dd conv=fsync`: 1 GB in memory within a second, then one fsync that writes it back.
BURST = replace(DD, dirtied_bytes=1000 * MB)
COMMITTER = TaskSample(99, "postgres", 8, "sda", MB, 0.0, "/system.slice/postgres.service")
FSYNCED: Mapping[str, Any] = {
    "syncs": 1, "latency_s": 3.0, "sync_bytes": 40 * MB, "waiting": 2, "oldest_s": 6.0,
    "dirty": 900 * MB, "tasks": (COMMITTER,),
}  # fmt: skip


def test_a_flood_that_fsyncs_is_a_flood_of_the_program_that_dirtied_it() -> None:
    host = Watched(core=remembered(mode=Mode.OBSERVE)).usual()
    host.second(tasks=(replace(DD, comm="cp", pid=7),), dirty=0)  # has been written since
    host.second(tasks=(BURST, COMMITTER), dirty=1000 * MB)
    assert host.until(15, **FSYNCED) == 5
    (alert,) = host.alerts
    assert (alert.name, alert.cause) == (AlertName.COLLAPSE, Cause.FLOOD)
    assert [(each.pid, each.dirty_rate) for each in alert.culprits] == [(4711, 1000.0 * MB)]
    assert "caused by dd (pid 4711, backup.service)" in alert.summary


def test_who_commits_is_not_blamed_for_whole_folios() -> None:
    committer = replace(COMMITTER, synced=True)
    host = Watched(core=remembered(mode=Mode.OBSERVE)).usual(tasks=(committer,))
    folios = replace(committer, dirtied_bytes=900 * MB)
    assert host.until(15, **{**STARVED, "tasks": (DD, folios)}) == 8
    assert [each.comm for each in host.alerts[0].culprits] == ["dd"]


@pytest.mark.parametrize("tasks, named", [
    ((replace(DD, dirtied_bytes=30 * MB),), ["dd"]),
    # dd oflag=dsync
    ((replace(DD, dirtied_bytes=30 * MB, synced=True),), ["dd"]),
    ((), []),  # oflag=direct, which dirties nothing
])  # fmt: skip
def test_what_others_write_makes_no_commit_larger(
    tasks: Tuple[TaskSample, ...], named: List[str]
) -> None:
    committer = replace(COMMITTER, synced=True)
    host = Watched(core=remembered(mode=Mode.OBSERVE)).usual(tasks=(committer,))
    few = replace(committer, dirtied_bytes=MB // 10)
    starved: Mapping[str, Any] = {**SLOW, "sync_bytes": 1600 << 10, "tasks": (few, *tasks)}
    for _ in range(4):
        host.second(**{**starved, "syncs": 18})
        assert host.second(**{**starved, "syncs": 27}) == () or len(host.memory.standing) == 1
    assert [each.comm for each in host.alerts[0].culprits] == named
    # Its own commits may be as large.
    large = replace(committer, dirtied_bytes=32 * MB)
    Watched().usual(tasks=(committer,)).usual(60, **{**starved, "tasks": (large, *tasks[:0])})


def test_a_part_of_the_syncs_is_of_the_flood_that_syncs() -> None:
    committer = replace(COMMITTER, synced=True)
    host = Watched(core=remembered(mode=Mode.OBSERVE)).usual(tasks=(committer,))
    writer = replace(DD, dirtied_bytes=30 * MB)
    some: Mapping[str, Any] = {**SLOW, "syncs": 400, "sync_bytes": 80 << 10}
    host.usual(15, **some, tasks=(committer, writer))
    assert host.until(15, **some, tasks=(committer, replace(writer, synced=True))) <= 8


def test_commits_at_the_end_of_a_size_class_have_a_usual_latency() -> None:
    host = Watched(core=remembered(mode=Mode.OBSERVE))
    for _ in range(10):
        host.usual(1, sync_bytes=16 << 10).usual(1, sync_bytes=17 << 10)
    assert host.until(15, **STARVED) == 8


def test_a_device_at_a_fraction_of_its_rate_is_not_flooded_by_an_fsync() -> None:
    known = replace(
        remembered(mode=Mode.OBSERVE), devices={"sda": DeviceMemory(drain_rate=400.0 * MB)}
    )
    host = Watched(core=known).usual()
    host.second(tasks=(BURST,), dirty=1000 * MB)
    host.seconds(40, **FSYNCED)
    assert Cause.FLOOD not in {alert.cause for alert in host.alerts}


def test_a_device_at_its_known_rate_is_never_slow_however_small_the_writes() -> None:
    known = replace(
        remembered(mode=Mode.OBSERVE), devices={"sda": DeviceMemory(drain_rate=40.0 * MB)}
    )
    host = Watched(core=known).usual()
    host.second(tasks=(BURST,), dirty=1000 * MB)
    assert host.until(15, **FSYNCED, writes=5000) == 5
    assert host.alerts[0].cause is Cause.FLOOD


def test_direct_io_of_this_host_is_no_neighbour() -> None:
    direct: Mapping[str, Any] = {**SLOW, "sync_bytes": 2 * MB}
    host = Watched(core=remembered(mode=Mode.OBSERVE)).usual(sync_bytes=2 * MB, syncs=500)
    for syncs in (18, 27, 15, 24) * 4:  # no limiter
        host.second(**{**direct, "syncs": syncs})
    assert (host.alerts[0].cause, host.alerts[0].culprits) == (Cause.FLOOD, ())


@pytest.mark.parametrize("core, said", [
    (remembered(yielded="tuned set dirty_bytes=1"), "another process set the limits"),
    (remembered(pin_bytes=1 << 30), "pinned to 1.0G"),
])  # fmt: skip
def test_under_an_admins_limit_it_is_the_admins_change(core: Any, said: str) -> None:
    host = Watched(core=core).usual()
    assert host.until(15, **STARVED) == 8
    assert host.alerts[0].cause is Cause.FOREIGN_CHANGE
    assert said in host.alerts[0].done and " under the limit of " in host.alerts[0].summary


@pytest.mark.parametrize("differs", [
    {"syncs": 5},  # the load has ended
    {"syncs": 5, "waiting": 1},
    {"syncs": 900, "latency_s": 1.5e-3},  # slower, and nearly as many
    {"syncs": 100, "latency_s": 4e-3, "waiting": 1},  # within the objective
    {"syncs": 20, "latency_s": 50e-3, "sync_bytes": 4 * MB, "waiting": 1},  # larger
])  # fmt: skip
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
    assert host.memory.health["sda"].sync_rate == pytest.approx(4, abs=0.1)


def test_demand_half_of_the_time_does_not_hide_a_collapse_either() -> None:
    host = Watched(core=remembered(mode=Mode.OBSERVE)).usual()
    for n in range(303):
        host.second(syncs=20, latency_s=20e-3, spread=2.0, waiting=n % 2)
        assert host.alerts == ()
    assert host.until(15, **STARVED) <= 12


def test_a_trickle_that_nobody_waits_for_ends_an_alert() -> None:
    host = starved()
    host.seconds(310, **STARVED)
    stood = host.ends_in(syncs=4, latency_s=40e-3)
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


@pytest.mark.parametrize("operations, inflight, even", [
    ((60, 60, 62, 60, 58), 4, True),  # each waits for those ahead of it: 18 to 72 ms
    ((60, 60, 62, 60, 58), 1, False),
    ((60, 66, 58, 63, 57), 4, False),  # seeks
])  # fmt: skip
def test_those_that_queue_for_turns_wait_one_after_the_other(
    operations: Tuple[int, ...], inflight: int, even: bool
) -> None:
    waits = latencies(18e-3, 100) + latencies(40e-3, 100) + latencies(72e-3, 100)
    ticks = tuple((1.0, count, 4096 * count * (1 + n % 2)) for n, count in enumerate(operations))
    incident = Incident(
        0.0, 0.0, inflight=inflight, syncs=waits, writes=waits, ticks=ticks, seconds=3.0
    )
    assert is_even(incident) is even
    # Half of the time they think: that keeps the rate even, not a limiter.
    assert not is_even(replace(incident, seconds=6.0))


def test_a_committer_asleep_in_write_under_anothers_limit_is_a_collapse() -> None:
    tuned = ForeignWrite("dirty_bytes", "1048576", 733, "tuned", cmdline="tuned --daemon")
    host = Watched().usual(syncs=100)
    host.core = remembered(
        yielded="tuned (pid 733) set dirty_bytes=1048576", intrusions=(Intrusion(tuned, 1.7e9),)
    )
    for second in range(1, 9):
        host.second(
            syncs=0, asleep_s=1.0 * second, flood=200 * MB, dirty=MB, limit=MB, tasks=(DD,)
        )
        assert (AlertName.COLLAPSE in host.names()) is (second >= 5)
    (alert,) = (each for each in host.alerts if each.name is AlertName.COLLAPSE)
    assert alert.cause is Cause.THROTTLED_WRITER
    assert alert.summary == (
        "sda: 0 fsync/s (usually 95), programs that commit are throttled in write() by the limit of"
        " 1.0M, tuned (pid 733) set dirty_bytes=1048576: dd (pid 4711, backup.service) 200M/s;"
        " slowest 8s"
    )
    assert [each.cmdline for each in alert.culprits][-1] == "tuned --daemon"
    assert "`writebackctl enforce` takes over" in alert.done
    # One that has slept, and does something else now, waits for nothing.
    idle = Watched().usual(syncs=100)
    for _ in range(30):
        idle.second(syncs=0, asleep_s=30.0)
    assert idle.alerts == ()


@pytest.mark.parametrize(
    "write_s, cause", [(0.2, Cause.THROTTLED_WRITER), (0.03, Cause.FLOOD)],
)  # fmt: skip
def test_the_cause_is_where_commits_wait(write_s: float, cause: Cause) -> None:
    host = Watched(core=remembered(mode=Mode.OBSERVE)).usual()
    assert host.until(
        12, syncs=4, latency_s=0.1, write_s=write_s, flood=200 * MB, dirty=900 * MB, tasks=(DD,)
    ) == 8
    assert host.alerts[0].cause is cause
    assert host.alerts[0].culprits[0].comm == "dd"


# ---- CACHE_DEGRADED ----------------------------------------------------------


def test_when_no_write_is_faster_than_media_the_cache_is_off() -> None:
    host = Watched().usual()
    assert host.until(10, **UNCACHED) == 4
    (alert,) = host.alerts
    assert (alert.name, alert.cause) == (AlertName.CACHE_DEGRADED, Cause.WRITE_THROUGH)
    assert "battery" in alert.done
    # Months of it are not the new usual.
    host.seconds(600, **UNCACHED)
    assert host.names() == [AlertName.CACHE_DEGRADED]
    host.seconds(70)
    assert host.alerts == ()


@pytest.mark.parametrize("rate", [10, 15, 25])
def test_a_cache_that_is_back_is_seen_on_a_quiet_host_too(rate: int) -> None:
    host = Watched().usual(syncs=rate, latency_s=0.2e-3)
    host.until(30, syncs=rate - rate % 5, latency_s=8e-3, seeks=True)
    assert host.names() == [AlertName.CACHE_DEGRADED]
    host.seconds(400, syncs=rate - rate % 5, latency_s=8e-3, seeks=True)
    assert host.names() == [AlertName.CACHE_DEGRADED]
    well = host.ends_in(syncs=rate, latency_s=0.2e-3)
    assert 60 <= well <= 70


def test_a_cache_that_nobody_uses_is_not_off_for_ever() -> None:
    host = Watched().usual()
    host.until(10, **UNCACHED)
    idle = host.ends_in(syncs=0)
    assert 359 <= idle <= 361


def test_a_disk_that_never_had_a_cache_has_none_to_lose() -> None:
    Watched().usual(latency_s=5e-3, syncs=150, seeks=True).usual(
        60, syncs=100, latency_s=40e-3, seeks=True
    )


@pytest.mark.parametrize("other, cause, told", [
    # A volume on the same disk.
    (Device("dm-0", "253:0", "253:0", ("sda",), ("8:0",)), Cause.NEIGHBOUR, False),
    (Device("dm-0", "253:0", "253:0", ("sda",), ("8:0",)), Cause.DEVICE, True),
    (SDB, Cause.NEIGHBOUR, True),  # of the same driver
    (SDB, Cause.DEVICE, True),
])  # fmt: skip
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
    host.seconds(15, syncs=3, latency_s=0.3, spread=4.0, waiting=1)
    assert host.names() == [AlertName.CACHE_DEGRADED, AlertName.COLLAPSE]
    assert host.alerts[1].cause is Cause.DEVICE


# ---- EXHAUSTED, BLIND, FOREIGN_WRITER ----------------------------------------


def test_a_minute_at_the_floor_without_help_is_exhausted() -> None:
    slow: Mapping[str, Any] = {"syncs": 700, "latency_s": 1e-3, "state": DeviceState.EXHAUSTED}
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
    ticks = BlindTicks()
    found = ticks.blind(ticks.blind(host.alerts, 5.0, "/proc: gone"), 7.0, "/proc: gone for long")
    assert [each.name for each in found] == [AlertName.STALL, AlertName.BLIND]
    assert found[1].summary == "/proc: gone for long"


def test_a_foreign_write_is_told_at_once_also_in_the_quiet_of_a_boot() -> None:
    write = ForeignWrite("dirty_bytes", "1", 17, "tuned", 9, "/system.slice/tuned.service", "tuned")
    host = Watched(time_s=5.0, core=remembered(intrusions=(Intrusion(write, 1.7e9),)))
    (alert,) = host.second()
    assert (alert.name, alert.cause) == (AlertName.FOREIGN_WRITER, Cause.FOREIGN_CHANGE)
    assert alert.culprits[0].unit == "tuned.service"
