# SPDX-License-Identifier: GPL-2.0-or-later
"""A trial that is on: whose limits when, when it stops, and what is left of it afterwards."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional

import pytest

import samples
import schema
from fake_host import Rig
from fake_vm import DEFAULT
from tests.sim.plant import Disk, Flood, Plant, SyncLoad
from trial_case import Run, plan, plant, report
from writebackd.alerts.alert_types import Alert, AlertName, Cause, Severity
from writebackd.cli.daemon_verbs import render_why
from writebackd.cli.status_screen import render_status
from writebackd.control.decide import decide, released
from writebackd.estimate.estimator import estimate
from writebackd.kernel.map_readers import Reading
from writebackd.policy import load_policy
from writebackd.policy.reload import Timetable
from writebackd.report.control_server import RequestError
from writebackd.report.device_figures import Collector
from writebackd.trial.analysis import P99, SYNC_RATE, WRITE_RATE, analyse
from writebackd.trial.plan import bound
from writebackd.trial.trial_page import remarks
from writebackd.trial.trial_run import End, TrialRun, TrialTick
from writebackd.types.codec import Interned, pack, unpack
from writebackd.types.core_memory import Memory
from writebackd.types.decision import Decision, DeviceDecision, DeviceState, Mode
from writebackd.types.histogram import Histogram
from writebackd.types.samples import SyncSample

DRAIN = 200e6
ALERT = Alert(
    AlertName.COLLAPSE, "sda", Severity.WARNING, Cause.FLOOD, 0.0, "2 fsync/s, were 300", ""
)


# ---- on a host that the model plays --------------------------------------------


def test_a_whole_trial_finds_what_the_agent_does() -> None:
    run = Run(plan(4))
    course = run.whole()
    assert course.ended is End.DONE
    result = analyse(course.plan, course.ticks)
    assert result.pairs == 4
    # tests/sim/shape.py: a second of dirty data before a full cache, against a held one.
    assert result.of(P99).better and (result.of(P99).ratio or 0) > 20
    assert result.of(SYNC_RATE).better
    assert 0.85 < (result.of(WRITE_RATE).ratio or 0) < 1.15
    for block in result.blocks:
        assert block.figures is not None and block.figures.span_s == pytest.approx(20.0, abs=1.5)
        limit = block.figures.limit_bytes
        if block.original:
            assert limit == pytest.approx(course.bound.limit_bytes, rel=0.01)
        else:
            assert limit < 16e6
    # The law is back, and as good as before.
    run.until(lambda: run.loop.memory.trial is None)
    assert run.loop.memory.goal_bytes is not None and run.loop.memory.goal_bytes < 16e6


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_flood_that_ends_within_a_pair_is_no_difference_of_limits(seed: int) -> None:
    """Whichever arm has it: blocks 5 and 6 begin 180 and 210 s after the plant does."""
    host = Plant(
        disks=(Disk(),), floods=(Flood(0, 5.0, 210.0),), syncs=(SyncLoad(0, think_s=2e-3),), seed=7
    )
    course = Run(plan(4, seed), host).whole()
    result = analyse(course.plan, course.ticks)
    ((first, other, why),) = result.left_out
    assert (first, other) == (5, 6) and "writers dirtied" in why
    assert result.pairs == 3
    assert any(line.startswith("Blocks 5 and 6 are not") for line in remarks(report(course)))


def test_without_a_flood_there_is_no_difference() -> None:
    course = Run(plan(4), plant(flood=False)).whole()
    result = analyse(course.plan, course.ticks)
    assert not result.of(P99).better and not result.of(P99).worse
    assert (result.of(P99).ratio or 0) == pytest.approx(1.0, rel=0.25)


def test_the_law_learns_nothing_about_limits_that_are_not_its_own() -> None:
    run = Run(plan(1))
    course = run.course
    assert course is not None
    run.until(lambda: (trial := run.loop.memory.trial) is not None and trial.original)
    before = run.loop.memory.devices["sda"].law
    run.until(lambda: (trial := run.loop.memory.trial) is None or not trial.original)
    after = run.seen[-2][2].devices["sda"].law
    assert before.limit_bytes is not None
    assert after == before


def test_it_stops_in_the_tick_that_sees_a_slow_commit() -> None:
    asked = replace(plan(4), stop_s=0.3)
    run = Run(asked)
    course = run.whole()
    assert course.ended is End.STOPPED and "more than the 0.3s allowed" in course.why
    slow = []
    for tick in course.ticks:
        commits, oldest_s = tick.figures.commits, tick.figures.oldest_commit_s
        assert commits is not None and oldest_s is not None
        if max(commits.quantile(0.99) or 0.0, oldest_s) > 0.3:
            slow.append(tick)
    assert slow == [course.ticks[-1]]
    # The decision of that same tick is the law's again.
    _, decision, memory = run.seen[-1]
    assert memory.trial is None and decision.goal_bytes is not None
    assert decision.goal_bytes < 16e6
    assert "Ended before its time: a commit on sda" in remarks(report(course))[0]


def test_a_slow_disk_may_be_as_slow_as_it_is() -> None:
    slow = Disk(drain=60e6, cache=0.0, baseline_s=150e-3)
    host = Plant(disks=(slow,), syncs=(SyncLoad(0, threads=4, think_s=2e-3),), seed=3)
    # Its own p99 is near the bound of a tenth of a second for which a fast disk would stop.
    course = Run(replace(plan(1), ceiling_s=0.1), host).whole()
    assert course.ended is End.DONE


def running(asked: Optional[Any] = None, host: Optional[Plant] = None) -> "tuple[Run, TrialRun]":
    run = Run(asked or plan(2), host)
    course = run.course
    assert course is not None
    run.until(lambda: len(course.ticks) > 5)
    return run, course


@pytest.mark.parametrize("alert, ended", [
    (replace(ALERT, name=AlertName.STALL), End.STOPPED),
    (replace(ALERT, cause=Cause.DEVICE), End.STOPPED),
    (replace(ALERT, name=AlertName.FOREIGN_WRITER), End.DISTURBED),
])  # fmt: skip
def test_an_alert_ends_it(alert: Alert, ended: End) -> None:
    run, course = running()
    run.alerts = (alert,)
    run.loop.tick()
    assert course.ended is ended and course.why.endswith(": 2 fsync/s, were 300")


def test_a_collapse_of_what_is_tried_ends_it_when_there_is_enough_to_compare() -> None:
    run, course = running(plan(6))
    run.alerts = (ALERT,)
    run.whole()
    assert course.ended is End.ENOUGH and "4 pairs measured, and COLLAPSE: 2 fsync/s" in course.why
    result = analyse(course.plan, course.ticks)
    assert result.pairs == 4 and result.of(P99).better
    assert "Ended early: 4 pairs" in remarks(report(course))[0]


def test_it_ends_where_nobody_syncs_any_more() -> None:
    host = plant(end_s=70.0)
    run = Run(plan(4), host)
    course = run.whole()
    assert course.ended is End.QUIET
    assert host.now_s < 90.0


def test_it_ends_at_a_foreign_write() -> None:
    run, course = running()
    run.loop.memory = replace(run.loop.memory, yielded="sysctl set dirty_ratio=40")
    run.loop.tick()
    assert course.ended is End.DISTURBED and "sysctl" in course.why


def test_the_original_arm_is_a_decision_that_can_be_replayed() -> None:
    run, _ = running(replace(plan(1), arms="oa"))
    _, decision, memory = run.seen[-1]
    assert decision.limit_bytes is not None and not decision.settings
    assert decision.devices[0].target_bytes == decision.limit_bytes
    assert "block 1 of 2: original limits, reduced to" in decision.reason
    again = unpack(Memory, json.loads(json.dumps(pack(memory, interned := Interned()))),
                   _copy(interned))  # fmt: skip
    assert again == memory
    assert released(memory).trial is None


def _copy(interned: Interned) -> Interned:
    copy = Interned()
    copy.give(interned.take())
    return copy


def test_a_yield_beats_the_arm() -> None:
    run, _ = running(replace(plan(1), arms="oa"))
    sample, _, memory = run.seen[-1]
    policy = load_policy(None, None)
    estimates, _ = estimate(policy, memory, sample)
    decision, _ = decide(policy, replace(memory, yielded="tuned"), sample, estimates)
    assert decision.limit_bytes is None and decision.reason == "tuned"


def test_the_limits_as_found_come_down_no_faster_than_what_is_dirty() -> None:
    """Below that every buffered writer of the host would stop."""
    run, _ = running(replace(plan(1), arms="oa"))
    sample, _, memory = run.seen[-1]
    assert memory.trial is not None and memory.trial.limit_bytes is not None
    policy = load_policy(None, None)
    estimates, _ = estimate(policy, memory, sample)
    vm = replace(sample.vm, dirty_bytes=12 << 30, threshold_bytes=13 << 30)
    decision, _ = decide(policy, memory, replace(sample, vm=vm), estimates)
    assert decision.limit_bytes is not None and decision.limit_bytes >= 12 << 30
    assert decision.goal_bytes == memory.trial.limit_bytes


def test_ticks_that_the_client_has_are_not_kept() -> None:
    _, course = running()
    whole = list(course.ticks)
    assert course.take(0, 2) == (whole[:2], len(whole) - 2)
    assert course.take(2, 500) == (whole[2:], 0) and course.ticks == whole[2:]
    assert course.take(2, 500) == (whole[2:], 0)  # an answer that was lost
    assert course.take(10**6, 500) == ([], 0) and course.ticks == []


# ---- in the daemon -----------------------------------------------------------------


class Host:
    """A daemon whose disk drains so much, with somebody who syncs on it."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.fsync_s = 1e-3
        self.rate = 40
        for _ in range(12):
            self.tick()

    def tick(self, count: int = 1) -> None:
        for _ in range(count):
            bucket = ((60 if self.fsync_s > 1e-2 else 40), self.rate)
            sync = SyncSample(fsyncs=self.rate, latency=Histogram((bucket,) if self.rate else ()),
                              oldest_s=self.fsync_s if self.fsync_s > 1.0 else 0.0)  # fmt: skip
            self.rig.probe.next = Reading(syncs={"8:1": sync})
            self.rig.host.flow(1 << 20)
            daemon = self.rig.daemon
            mine = daemon.state.memory.devices.get("sda")
            if mine is not None and mine.drain_rate is None:
                mine = replace(mine, drain_rate=DRAIN)
                daemon.state.memory = replace(daemon.state.memory, devices={"sda": mine})
            self.rig.tick()

    def start(self, arms: str = "oaoa", **more: Any) -> Any:
        args = {"order": "start", "arms": arms, "block_s": 10.0, "settle_s": 5.0,
                "ceiling_s": 1.0, "stop_s": None, **more}  # fmt: skip
        self.id = 0
        answer = self.rig.daemon.handle("trial", args, 0)
        self.id = answer["id"]
        return answer

    def ask(self, order: str = "go", since: int = 0) -> Any:
        args = {"order": order, "id": self.id, "since": since}
        return self.rig.daemon.handle("trial", args, 0)

    def refused(self, **more: Any) -> str:
        with pytest.raises(RequestError) as refusal:
            self.start(**more)
        assert refusal.value.exit_code == 1
        return str(refusal.value)

    @property
    def limit(self) -> int:
        return self.rig.host.limits.dirty_bytes

    @property
    def mode(self) -> str:
        mode: str = self.rig.status()["mode"]
        return mode


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    rig = Rig(tmp_path, monkeypatch)
    yield Host(rig)
    rig.end()


def test_limits_take_turns_and_the_law_has_them_after_it(host: Host) -> None:
    own = host.limit
    assert 0 < own < 100 << 20
    answer = host.start("oa")
    assert answer["limit_bytes"] == DRAIN and "drains in 1 s" in answer["cut"]
    assert answer["stop_s"] == 2.0
    limits: List[int] = []
    for _ in range(21):
        host.tick()
        limits.append(host.limit)
        host.ask()
    assert limits[:10] == [DRAIN] * 10 and limits[11:20] == [own] * 9
    told = host.ask()
    assert (told["ended"], told["left"]) == ("done", 0)
    ticks = [unpack(TrialTick, each) for each in json.loads(json.dumps(told["ticks"]))]
    assert [tick.block for tick in ticks] == [0] * 10 + [1] * 10
    assert [tick.counts for tick in ticks] == ([False] * 5 + [True] * 5) * 2
    assert all(tick.figures.fsyncs == 40 for tick in ticks)
    assert host.limit == own and host.rig.status()["trial"] is None
    assert host.ask(since=15)["ticks"] == told["ticks"][15:]


def test_status_and_why_say_that_it_is_on(host: Host) -> None:
    host.start("oa")
    host.tick()
    status = host.rig.status()
    why = host.rig.daemon.handle("why", {}, 1000)
    assert status["trial"] == why["limit"]["trial"] == {
        "device": "sda", "block": 1, "blocks": 2, "arm": "original", "limit_bytes": DRAIN,
        "block_left_s": 10.0, "returns_to": "enforce",
    }  # fmt: skip
    assert list(schema.problems(status, schema.load("status"))) == []
    assert list(schema.problems(why, schema.load("why"))) == []
    for text in (render_status(status, 160), render_why(why, 160)):
        assert "trial of sda, block 1 of 2: original limits" in text
    for _ in range(11):
        host.tick()
        host.ask()
    status = host.rig.status()
    assert status["trial"]["arm"] == "agent"
    assert "block 2 of 2: writebackd's limits" in render_status(status, 160)


def test_limits_that_need_no_cut_are_the_files_as_found(host: Host) -> None:
    daemon = host.rig.daemon
    limits = replace(daemon.policy.limits, ceiling_bytes=1 << 40)
    daemon.policies.timetable = Timetable(replace(daemon.policy, limits=limits))
    host.tick()
    answer = host.start("oa", ceiling_s=60.0)
    assert answer["cut"] is None
    host.tick()
    assert host.rig.host.limits == DEFAULT
    host.ask()
    host.rig.host.sysctl("dirty_ratio", 40)
    host.tick(2)
    assert host.ask()["ended"] == "disturbed"


def test_a_second_one_is_refused_and_an_old_id_is_unknown(host: Host) -> None:
    host.start()
    first = host.id
    assert "is running" in host.refused()
    host.id = first - 1
    with pytest.raises(RequestError, match="restarted"):
        host.ask()


@pytest.mark.parametrize("mode", [Mode.ENFORCE, Mode.OBSERVE])
def test_it_leaves_the_mode_that_it_found(host: Host, mode: Mode) -> None:
    host.rig.daemon.handle("mode", {"mode": mode.value}, 0)
    host.tick(3)
    before = host.rig.host.limits
    host.start("ao")
    host.tick(3)
    assert host.mode == "enforce" and host.limit
    assert host.rig.status()["trial"]["returns_to"] == mode.value
    host.ask("end")
    assert host.mode == mode.value
    host.tick(3)
    assert host.rig.host.limits == before
    assert host.ask()["ended"] == "asked"


def test_one_that_could_not_begin_is_none(host: Host) -> None:
    host.rig.daemon.handle("mode", {"mode": "observe"}, 0)
    host.tick()
    host.rig.host.errors["/proc/sys/vm/dirty_ratio"] = errno.EIO
    assert "cannot read the limits" in host.refused()
    del host.rig.host.errors["/proc/sys/vm/dirty_ratio"]
    host.tick()
    assert host.mode == "observe" and host.rig.host.limits == DEFAULT
    assert host.start()["id"]


def test_the_history_takes_no_such_limit_for_the_agents(host: Host) -> None:
    host.start("oa")
    host.tick()
    snapshot = host.rig.daemon.state.snapshot
    assert snapshot is not None and snapshot.decision.limit_bytes is not None
    rows = Collector(step_s=0.0).add(snapshot)
    assert [row.ours_s for row in rows] == [0.0]
    for _ in range(11):
        host.tick()
        host.ask()
    snapshot = host.rig.daemon.state.snapshot
    assert snapshot is not None and snapshot.memory.trial is not None
    rows = Collector(step_s=0.0).add(snapshot)
    assert [row.ours_s for row in rows] == [1.0]


def by_mode(host: Host) -> None:
    host.rig.daemon.handle("mode", {"mode": "observe"}, 0)


def by_pin(host: Host) -> None:
    host.rig.daemon.handle("pin", {"bytes": 64 << 20}, 0)
    host.tick()


def by_reload(host: Host) -> None:
    policy = replace(host.rig.daemon.policy, on_exit="keep", name="new")
    host.rig.daemon.policies._loaded.append(Timetable(policy))
    host.tick(2)


def by_switch(host: Host) -> None:
    (host.rig.runtime_dir / "off").touch()
    host.tick()


def by_silence(host: Host) -> None:
    host.rig.host.errors["/proc/vmstat"] = errno.EIO
    host.tick()
    del host.rig.host.errors["/proc/vmstat"]
    host.tick()


def by_foreign_write(host: Host) -> None:
    host.rig.host.sysctl("dirty_bytes", 99 << 20)
    host.tick(2)


def by_slow_fsync(host: Host) -> None:
    host.fsync_s = 2.5
    host.tick()


def by_nobody(host: Host) -> None:
    host.tick(2)
    assert host.rig.status()["trial"]  # nobody has asked for 4 s
    host.tick(5)


@pytest.mark.parametrize("how, ended, mode", [
    (by_mode, "disturbed", "observe"), (by_pin, "disturbed", "enforce"),
    (by_reload, "disturbed", "enforce"), (by_switch, "disturbed", "enforce"),
    (by_silence, "disturbed", "enforce"),
    (by_foreign_write, "disturbed", "enforce"), (by_slow_fsync, "stopped", "enforce"),
    (by_nobody, "abandoned", "enforce"),
])  # fmt: skip
def test_what_ends_it(
    host: Host, how: Callable[[Host], None], ended: str, mode: str
) -> None:
    daemon = host.rig.daemon
    daemon.policies.timetable = Timetable(replace(daemon.policy, on_exit="keep"))
    host.tick()
    host.start("oa")
    host.tick(2)
    assert host.limit == DRAIN and daemon._actuator.on_exit == "restore"
    how(host)
    answer = host.ask()
    assert answer["ended"] == ended, answer["why"]
    assert host.mode == mode and host.limit != DRAIN
    assert daemon.state.memory.trial is None
    # What stands on exit is the policy's again once no limit of the trial stands.
    host.tick()
    assert daemon._actuator.on_exit == "keep"
    daemon._actuator.set_on_exit("restore")


def test_the_end_of_the_daemon_is_the_end_of_it_also_where_the_policy_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, monkeypatch)
    rig.daemon.policies.timetable = Timetable(replace(rig.daemon.policy, on_exit="keep"))
    rig.daemon._actuator.set_on_exit("keep")
    host = Host(rig)
    host.start("oa")
    host.tick(2)
    assert host.limit == DRAIN
    # As a kill, and what its watcher reads.
    assert json.loads((rig.runtime_dir / "ledger.json").read_text())["on_exit"] == "restore"
    rig.end()
    assert rig.host.limits == DEFAULT


# ---- what it does not begin without --------------------------------------------------


def test_it_needs_somebody_who_syncs(host: Host) -> None:
    host.rate = 2
    host.tick(10)
    said = host.refused(device="sda")
    assert "sda: 2.0 fsyncs/s over the last 10 s, at least 5.0 needed" in said
    host.rate = 0
    host.tick(60)
    assert "no device has sync demand" in host.refused()


def objects(host: Host, memory: Dict[str, Any], **more: Any) -> str:
    daemon = host.rig.daemon
    assert daemon.state.snapshot is not None
    changed = replace(daemon.state.snapshot.memory, **memory)
    daemon.state.snapshot = replace(daemon.state.snapshot, memory=changed, **more)
    return host.refused()


def test_it_does_not_begin_on_a_host_in_trouble(host: Host) -> None:
    good = host.rig.daemon.state.snapshot
    assert good is not None
    for memory, more, words in (
        ({"yielded": "tuned set dirty_ratio=40"}, {}, "yielded (tuned"),
        ({"pin_bytes": 1 << 20}, {}, "pinned"),
        ({"draining": ("sda",)}, {}, "a drain holds the limit"),
        ({}, {"off": "/run/writebackd/off"}, "/run/writebackd/off exists"),
        ({}, {"alerts": (ALERT,)}, "active alert COLLAPSE"),
        ({}, {"sample": replace(good.sample, errors=("/proc/diskstats: EIO",))}, "cannot read all"),
    ):
        host.rig.daemon.state.snapshot = good
        assert words in objects(host, memory, **more)
    blind = {k: replace(e, demand_known=False) for k, e in good.estimates.items()}
    strange = {k: replace(e, drain_rate=None) for k, e in good.estimates.items()}
    for estimates, words in ((blind, "not visible"), (strange, "drain rate unknown")):
        host.rig.daemon.state.snapshot = replace(good, estimates=estimates)
        assert words in host.refused()
    host.rig.daemon.state.snapshot = replace(good, sample=good.sample)
    host.rig.daemon.state.problem = "cannot read kernel statistics for 3 ticks"
    assert "for 3 ticks" in host.refused()
    host.rig.daemon.state.problem = None
    assert host.start()["device"] == "sda"


def test_it_does_not_begin_where_there_is_nothing_to_compare(host: Host) -> None:
    daemon = host.rig.daemon
    assert daemon.state.snapshot is not None
    own = daemon.state.snapshot.decision.devices[0]
    big = replace(own, target_bytes=int(DRAIN))
    daemon.state.snapshot = replace(
        daemon.state.snapshot, decision=replace(daemon.state.snapshot.decision, devices=(big,))
    )
    assert "nothing to compare: the agent's limit is 191M" in host.refused()


def test_the_slowest_disk_with_sync_demand_sets_the_bound() -> None:
    state = samples.vm(4 << 20, 2 << 20, 0)
    array = samples.flooded("sda", 1e-3, 2e-3, 300.0, 0.0)
    stick = replace(samples.flooded("sdb", 1e-2, 2e-2, 9.0, 0.0), drain_rate=10e6)
    rows = tuple(
        (device, each, DeviceDecision(each.name, DeviceState.GUARD, 4 << 20, "", f"{each.name}#1"))
        for device, each in ((samples.RAID, array), (samples.STICK, stick))
    )
    snapshot = samples.snapshot(state, rows, Decision(4 << 20, 2 << 20, 4 << 20, ""))
    policy = load_policy(None, None)
    assert bound(snapshot, policy, 2.0).limit_bytes == 20e6
    found = bound(snapshot, policy, 1e4)
    assert found.limit_bytes == min(found.found_bytes, policy.limits.ceiling_bytes)
    idle = replace(snapshot, estimates={"sda": array, "sdb": replace(stick, demand=False)})
    left, other = snapshot.sample.devices
    out = replace(snapshot.sample, devices=(left, replace(other, excluded="by policy")))
    for without in (idle, replace(snapshot, sample=out)):
        assert bound(without, policy, 2.0).limit_bytes == 500 << 20


@pytest.mark.parametrize("wrong, words", [
    ({"arms": "aa"}, "letters"), ({"arms": "x"}, "letters"), ({"arms": "ao" * 2000}, "letters"),
    ({"block_s": 1.0}, "block_s"), ({"block_s": "30"}, "block_s"), ({"settle_s": 9.0}, "settle_s"),
    ({"ceiling_s": 0}, "--ceiling takes 0.1s to 60s"), ({"ceiling_s": 1e9}, "--ceiling"),
    ({"stop_s": -1.0}, "--stop-at takes "), ({"device": "sdz"}, "no device is called"),
    ({"block_s": float("nan")}, "block_s"), ({"order": "dance"}, ""),
])  # fmt: skip
def test_nonsense_is_refused_by_its_name(host: Host, wrong: Dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        host.start(**wrong)
    assert host.rig.daemon.state.memory.trial is None
