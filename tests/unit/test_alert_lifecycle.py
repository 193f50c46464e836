# SPDX-License-Identifier: GPL-2.0-or-later
"""The detector, second by second: when it is quiet, and how long an alert stands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, List, Mapping, Optional

import pytest

from alert_host import (
    HANGS,
    MB,
    SDA,
    SDB,
    SLOW,
    STARVED,
    UNCACHED,
    Watched,
    done_about,
    remembered,
    starved,
)  # fmt: skip
from plant import latencies
from writebackd.alerts.alert_types import AlertName, Cause, Severity
from writebackd.alerts.baseline import to_keep
from writebackd.alerts.cause import container_in, unit_in
from writebackd.alerts.lifecycle import hidden
from writebackd.estimate.learned import learn, seed
from writebackd.notify.alert_events import Tracker
from writebackd.policy import load_policy
from writebackd.tuning import KEEP_S
from writebackd.types.core_memory import Cap, Memory
from writebackd.types.decision import Decision, DeviceState, Mode
from writebackd.types.device_memory import DeviceMemory, Fact, Learned
from writebackd.types.samples import ClassSample, DeviceSample, IoClass, SyncSample


def test_two_minutes_after_boot_nothing_is_told_and_nothing_learned() -> None:
    host = Watched(time_s=10.0)
    for _ in range(100):
        assert host.second(**HANGS) == ()
    assert host.until(12, **HANGS) == 10
    loaded = Watched(time_s=10.0)
    loaded.seconds(105, **SLOW)
    assert loaded.memory.health["sda"].syncs == {}


def test_two_minutes_after_a_resume_nothing_is_told() -> None:
    host = Watched().usual()
    assert host.second(dt_s=8 * 3600.0) == ()
    for _ in range(119):
        assert host.second(**HANGS) == ()
    assert host.until(3, **HANGS) == 1


def test_an_alert_stands_for_five_minutes_at_least() -> None:
    host = starved()
    stood = host.ends_in()
    assert 299 <= stood <= 301


def test_it_is_resolved_after_a_minute_above_the_resolve_share_and_not_below_it() -> None:
    host = starved()
    host.seconds(310, **STARVED)
    for _ in range(100):
        # Half of what is usual, and still slow: neither collapsed nor well.
        host.second(syncs=500, latency_s=10e-3, spread=10.0, waiting=1)
        assert host.names() == [AlertName.COLLAPSE]
    well = host.ends_in(syncs=700)
    assert 59 <= well <= 64  # of which a few end the incident


def test_a_flood_in_waves_is_one_alert() -> None:
    host = starved()
    since = host.alerts[0].since_s
    for _ in range(20):
        host.seconds(20, **STARVED)
        host.seconds(25)
    assert [each.since_s for each in host.alerts] == [since]


def test_trouble_is_not_learned_as_usual() -> None:
    host = starved()
    before = host.memory.health["sda"]
    host.seconds(1200, **STARVED)
    after = host.memory.health["sda"]
    assert (after.syncs, after.sync_rate) == (before.syncs, before.sync_rate)


def test_nothing_is_learned_while_an_alert_stands() -> None:
    host = starved()
    host.seconds(10)
    before = host.memory.health["sda"]
    host.seconds(200, syncs=700, latency_s=0.7e-3)
    assert host.names() == [AlertName.COLLAPSE]
    assert replace(host.memory.health["sda"], worked_s=before.worked_s) == before


def test_fewer_syncs_are_the_new_usual_only_while_they_are_fast() -> None:
    ended = Watched().usual().usual(60, syncs=200)
    assert ended.memory.health["sda"].sync_rate == pytest.approx(200, rel=0.02)
    slower = Watched().usual().usual(60, syncs=400, latency_s=2e-3)
    assert slower.memory.health["sda"].sync_rate > 900


def test_another_disk_starts_anew() -> None:
    host = Watched().usual()
    host.device = replace(SDA, diskseq=9)
    host.usual(60, **UNCACHED)


def test_after_a_restart_a_cache_that_is_off_is_told_at_once() -> None:
    known = Learned(baseline_s=Fact(0.4e-3, 1.0), write_baseline_s=Fact(0.3e-3, 1.0))
    core = Memory(devices={"sda": DeviceMemory(earlier=known)})
    assert Watched(core=core).until(10, **UNCACHED) == 4
    Watched().usual(30, **UNCACHED)


def test_an_alert_of_a_disk_that_is_gone_ends() -> None:
    host = starved()
    host.device = SDB
    host.seconds(299)
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
    assert alert.summary.startswith("sda: the disk is gone; sda: no IO completed")
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
    host.seconds(10, **HANGS)
    host.device = SDB
    stood = 0
    while host.alerts:
        host.second()
        stood += 1
        assert host.names() in ([AlertName.STALL], [])
    assert 290 <= stood <= 301


def test_severity_only_rises_while_an_alert_stands() -> None:
    host = starved()
    host.seconds(60, **STARVED)
    for _ in range(3):
        for _ in range(60):
            host.second()
            assert host.alerts[0].severity is Severity.CRITICAL
        for _ in range(20):
            host.second(**STARVED)
            assert host.alerts[0].severity is Severity.CRITICAL


def test_another_cause_is_told_when_it_holds() -> None:
    host = starved()
    host.seconds(120)
    host.core = Memory(mode=Mode.OBSERVE, devices={"sda": DeviceMemory()})
    causes = []
    for _ in range(30):
        host.second(syncs=3, latency_s=300e-3, spread=4.0, waiting=1)
        causes.append(host.alerts[0].cause)
    assert causes.count(Cause.FLOOD) == 16  # 8 until it is sure, and 10 in which it holds
    assert set(causes[16:]) == {Cause.DEVICE}
    assert "3.0 fsync/s" in host.alerts[0].summary and host.alerts[0].culprits == ()


def test_limits_that_are_not_in_force_hold_nothing() -> None:
    host = Watched(core=remembered(mode=Mode.ENFORCE), in_force=False).usual()
    assert host.until(60, **STARVED) == 8
    assert "refused or switched off" in host.alerts[0].done
    held_off = Watched(in_force=False).usual()
    held_off.usual(70, syncs=700, latency_s=1e-3, state=DeviceState.EXHAUSTED)


@pytest.mark.parametrize("objective, names", [("2s", []), ("2ms", [AlertName.COLLAPSE])])
def test_a_device_is_judged_by_its_own_objective(
    tmp_path: Path, objective: str, names: List[AlertName]
) -> None:
    (tmp_path / "x.conf").write_text(
        "[policy]\nname = x\n[objective]\nfsync-p99 = 1s\n"
        f"[device driver:megaraid_sas]\nfsync-p99 = {objective}\n"
    )
    host = Watched(policy=load_policy("x", tmp_path), core=remembered(mode=Mode.OBSERVE)).usual()
    host.seconds(12, **SLOW)
    assert host.names() == names


def test_idle_disks_are_not_even_remembered() -> None:
    host = Watched()
    more = tuple(
        DeviceSample(replace(SDB, name=f"sd{n}"), classes={}, sync=SyncSample()) for n in range(9)
    )
    host.second(more=more)
    assert list(host.memory.health) == ["sda"]


def test_reads_alone_that_complete_are_no_stall() -> None:
    host = Watched().usual()
    reads = {IoClass.READ: ClassSample(5, 5 << 12, latencies(1e-3, 5))}
    more = (DeviceSample(SDB, read_bytes=5 << 12, inflight=3, classes=reads, sync=SyncSample()),)
    host.usual(20, more=more)


@pytest.mark.parametrize("path, unit, container", [
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
])  # fmt: skip
def test_a_cgroup_path_tells_unit_and_container(path: Any, unit: Any, container: Any) -> None:
    assert (unit_in(path), container_in(path)) == (unit, container)


HELD: Mapping[str, Any] = {"flood": 200 * MB, "dirty": 2 * MB, "waiting": 1}
BESIDE: Mapping[str, Any] = {**HELD, "syncs": 600, "latency_s": 0.4e-3, "spread": 60.0}
SLOW_BESIDE: Mapping[str, Any] = {**HELD, "syncs": 150, "latency_s": 10e-3, "seeks": True}


@pytest.mark.parametrize("fast", [BESIDE, {**SLOW_BESIDE, "seeks": False, "spread": 0.04}])
def test_beside_a_flood_that_left_some_writes_fast_a_lost_cache_is_told_as_soon_as_any(
    fast: Mapping[str, Any]
) -> None:
    host = Watched(core=remembered(mode=Mode.ENFORCE)).usual().usual(30, **fast)
    assert host.until(12, **SLOW_BESIDE) == 4
    assert host.names() == [AlertName.CACHE_DEGRADED]


@pytest.mark.parametrize("fast_s, slow_s, pause_s", [
    (1, 0, 2),  # waves: each has fast writes in its first and last second, on any disk
    (2, 10, 0),  # hardly ever
])  # fmt: skip
def test_beside_floods_that_hardly_leave_a_write_fast_slow_ones_say_nothing_of_the_cache(
    fast_s: int, slow_s: int, pause_s: int
) -> None:
    host = Watched(core=remembered(mode=Mode.ENFORCE)).usual()
    for _ in range(60):
        host.usual(fast_s, **BESIDE).usual(slow_s, **SLOW_BESIDE).usual(pause_s)
    host.usual(60, **SLOW_BESIDE)


def test_beside_floods_slow_stretches_have_to_be_twice_as_long_as_those_that_ended() -> None:
    host = Watched(core=remembered(mode=Mode.ENFORCE)).usual().usual(60, **BESIDE)
    host.usual(3, **SLOW_BESIDE).usual(30, **BESIDE)
    assert host.until(12, **SLOW_BESIDE) == 6
    # One that a lost cache explains is none of them.
    host.seconds(600, **SLOW_BESIDE)
    host.seconds(1, **BESIDE)
    host.ends_in()
    host.usual(30, **BESIDE)
    assert host.until(12, **SLOW_BESIDE) == 6


def test_behind_seconds_of_a_flood_slow_writes_say_nothing_of_the_cache() -> None:
    host = Watched(core=remembered(mode=Mode.ENFORCE)).usual().usual(30, **BESIDE)
    host.usual(12, **{**SLOW_BESIDE, "dirty": 300 * MB})


def restarted(host: Watched, away_s: float = 5.0) -> Watched:
    """The host as the next run of the daemon sees it, with what this one has kept."""
    mine = DeviceMemory(
        identity=("8:0", 1), known_as="naa.5a", baseline_s=0.4e-3, flood_began_s=1055.0
    )
    (mine,) = to_keep(Memory(devices={"sda": mine}), host.memory.health)
    kept = learn(mine, Learned(), 1.7e9)
    new = seed(DeviceMemory(flood_began_s=1055.0), kept, 1.7e9 + away_s)
    return Watched(core=Memory(mode=Mode.OBSERVE, devices={"sda": new}), time_s=host.time_s)


def test_what_is_done_is_told_of_the_limit_that_the_device_has() -> None:
    nothing = Decision(None, None, None, "")
    own = Memory(caps={"sda": Cap(4 << 20, in_force=True)})
    for memory, said in ((own, "holds the limit at 4.0M"), (Memory(), "no limit set yet")):
        assert done_about(Cause.FLOOD, nothing, memory) == said


@pytest.mark.parametrize("trouble", [0, 12])
def test_after_a_restart_a_collapse_is_told_as_soon_as_any(trouble: int) -> None:
    host = Watched(core=remembered(mode=Mode.OBSERVE)).usual()
    host.seconds(trouble, **STARVED)
    host = restarted(host)
    assert host.until(15, **STARVED) == 8
    (alert,) = host.alerts
    assert (alert.name, alert.cause) == (AlertName.COLLAPSE, Cause.FLOOD)
    assert "fsync/s (usually 954), caused by dd (" in alert.summary


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
    assert list(to_keep(other, host.memory.health)) == [*other.devices.values()]
    ended = host.usual(120, syncs=0)
    same = Memory(devices={"sda": DeviceMemory(identity=("8:0", 1), usual_sync_rate=900.0)})
    assert [each.usual_sync_rate for each in to_keep(same, ended.memory.health)] == [None]


def test_media_of_which_some_answer_soon_are_no_cache() -> None:
    host = Watched().usual(latency_s=0.46e-3)
    for n in range(4):
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


@pytest.mark.parametrize("paused", [
    {"dt_s": 9.0, "completed": False, "inflight": 4, "waiting": 2, "oldest_s": 9.0},
    {"dt_s": 9.0, "syncs": 40, "latency_s": 0.4e-3, "spread": 2e4, "waiting": 1},
])  # fmt: skip
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
    spells = [host.memory.health["sda"].degraded]
    host.usual(15, syncs=0)
    spells.append(host.memory.health["sda"].degraded)
    assert [each is None for each in spells] == [False, True]
    assert host.until(10, **UNCACHED) == 4
    assert host.alerts[0].since_s == pytest.approx(1.7e9 + 1077.0)


@pytest.mark.parametrize("pause", [2, 4])
def test_a_cache_that_is_off_is_told_where_syncs_come_in_bursts(pause: int) -> None:
    """All pauses together are longer than an incident may go without a write; none of them is."""
    host = Watched().usual()
    seconds = 0
    while not host.alerts and seconds < 100:
        seconds += 1
        if seconds % (pause + 1) == 1:
            host.second(**UNCACHED)
        else:
            host.second(syncs=0)
    assert seconds == 3 * (pause + 1) + 1 and host.names() == [AlertName.CACHE_DEGRADED]


def test_what_a_device_is_known_for_can_be_forgotten_under_an_alert() -> None:
    host = Watched().usual()
    smaller: Mapping[str, Any] = {"syncs": 40, "latency_s": 50e-3, "waiting": 1}
    host.seconds(600, **smaller)
    assert host.names() == [AlertName.COLLAPSE]
    host.memory = replace(host.memory, health={})  # writebackctl forget
    well = host.ends_in(**smaller)
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
    most = host.memory.health["sda"].most_sync_bytes
    host.usual(3600, syncs=20)
    assert 0.95 * most < host.memory.health["sda"].most_sync_bytes < 0.97 * most
