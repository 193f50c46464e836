# SPDX-License-Identifier: GPL-2.0-or-later
"""A trial beside all else that a daemon does: windows, reloads, tapes, paces, what was found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Iterator, List, Tuple

import pytest

from fake_host import Rig
from paced_plant import Group, PacedPlant
from test_trial import DRAIN, Host, by_pin, by_reload
from test_window import UTC, load, window
from trial_case import Run, plan
from writebackd import daemon as daemon_module
from writebackd.cli.replay import policy_of
from writebackd.policy import Policy, load_policy
from writebackd.policy.reload import Timetable
from writebackd.report.recorder import Recorded, Recorder, read_recording
from writebackd.report.replayer import replay
from writebackd.types.core_memory import Cap, Memory, Trial

MB = 1 << 20


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    rig = Rig(tmp_path, monkeypatch)
    yield Host(rig)
    rig.end()


def follow(host: Host, policy: Policy) -> None:
    """From the next tick on this is the policy, as if it had been so from the start."""
    host.rig.daemon.policies.timetable = Timetable(policy, UTC)
    host.tick()


def test_one_begun_from_observe_finds_what_stands_now(host: Host) -> None:
    daemon = host.rig.daemon
    limits = replace(daemon.policy.limits, ceiling_bytes=1 << 40)
    follow(host, replace(daemon.policy, limits=limits))
    daemon.handle("mode", {"mode": "observe"}, 0)
    host.tick()
    for lever, value in (("dirty_bytes", 640 * MB), ("dirty_background_bytes", 320 * MB)):
        host.rig.host.sysctl(lever, value)
    host.tick(2)
    answer = host.start("oa", ceiling_s=60.0)
    assert (answer["found_bytes"], answer["cut"]) == (640 * MB, None)
    for _ in range(4):
        host.tick()
        # What stands is what it looks for in this arm: nobody else has set it since.
        assert host.ask()["ended"] is None
        assert host.limit == 640 * MB
    host.ask("end")
    host.tick(2)
    assert host.mode == "observe" and host.limit == 640 * MB


@pytest.mark.parametrize("how", [by_pin, by_reload, lambda host: host.ask("end")])
def test_what_stands_on_exit_is_the_policys_only_once_no_limit_of_a_trial_does(
    host: Host, how: Callable[[Host], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = host.rig.daemon
    follow(host, replace(daemon.policy, on_exit="keep"))
    host.start("oa")
    host.tick(2)
    assert host.limit == DRAIN
    seen: List[Tuple[str, int]] = []
    real = daemon._actuator.set_on_exit

    def spy(on_exit: str) -> None:
        seen.append((on_exit, host.limit))
        real(on_exit)

    monkeypatch.setattr(daemon._actuator, "set_on_exit", spy)
    how(host)
    host.tick()
    assert host.ask()["ended"] is not None and daemon._actuator.on_exit == "keep"
    kept = [limit for on_exit, limit in seen if on_exit == "keep"]
    assert kept and DRAIN not in kept
    daemon._actuator.set_on_exit("restore")


def test_it_ends_when_another_window_of_the_policy_opens(host: Host, tmp_path: Path) -> None:
    follow(host, load(tmp_path, window("Mon 16:01-18:00", "fsync-p99 = 100ms")))  # it is 16:00
    host.start("oaoa", block_s=30.0, settle_s=10.0)
    while host.rig.wall % 3600 < 60:
        host.tick()
        assert host.ask()["ended"] is None
    host.tick()
    answer = host.ask()
    assert answer["ended"] == "disturbed" and "window of the policy" in answer["why"]
    assert host.limit != DRAIN


def test_the_bounds_of_the_open_window_are_a_trials(host: Host, tmp_path: Path) -> None:
    follow(host, load(tmp_path, window("Mon 15:00-18:00", "ceiling = 120M")))
    assert host.rig.daemon.policy.limits.ceiling_bytes > DRAIN
    answer = host.start("oa")
    assert (answer["limit_bytes"], answer["cut"]) == (120 * MB, "the policy's ceiling")
    host.tick()
    assert host.limit == 120 * MB
    assert host.rig.host.limits.dirty_background_bytes == pytest.approx(60 * MB, rel=0.01)


def test_who_syncs_under_the_limits_as_found_is_not_paced_under_the_agents() -> None:
    levers = replace(load_policy(None, None).levers, pace="on")
    host = PacedPlant(replace(load_policy(None, None), levers=levers), groups=[Group(syncs=1)])
    host.memory = replace(host.memory, trial=Trial(
        "sda", 1, 2, True, 200 * MB, 100 * MB, 2000.0, host.memory.mode))  # fmt: skip
    host.calm()
    assert not any(decision.settings for decision in host.run(10))
    host.groups[0].syncs = 0
    host.memory = replace(host.memory, trial=None)
    assert not any(decision.settings for decision in host.run(250))
    assert any(decision.settings for decision in host.run(100))


# ---- on a tape -----------------------------------------------------------------


def recorded(directory: Path, warm_s: float) -> "List[Recorded]":
    """Ticks around the beginning of a trial, or from within it."""
    run = Run(replace(plan(1), arms="oa"), warm_s=40.0)
    tape = Recorder(directory, 1 << 30)
    first = run.loop.plant.now_s + warm_s
    while run.loop.plant.now_s < first + 20.0:
        before = run.loop.memory
        sample, _, decision = run.loop.tick()
        if run.loop.plant.now_s >= first:
            # The daemon's is the one that the course of this tick is in already.
            before = replace(before, trial=run.loop.memory.trial)
            tape.record(run.loop.policy, before, sample, decision, run.loop.memory)
    assert tape.close(20.0) and tape.dropped == 0
    return list(read_recording(directory))


@pytest.mark.parametrize("warm_s", [-2.0, 5.0])
def test_another_policy_is_asked_what_it_would_do_and_not_what_was_tried(
    tmp_path: Path, warm_s: float
) -> None:
    ticks = recorded(tmp_path, warm_s)
    tried = [tick.memory for tick in ticks if tick.memory is not None and tick.memory.trial]
    assert tried and tried[0].trial is not None and tried[0].trial.limit_bytes is not None
    bound = tried[0].trial.limit_bytes
    assert {tick.outcome.goal_bytes for tick in ticks[-10:]} == {bound}
    policy = load_policy(None, None)
    limits = replace(policy.limits, ceiling_bytes=8 * MB, rest_bytes=8 * MB)
    decided = list(replay(ticks, policy_of, replace(policy, limits=limits)))
    assert len(decided) == len(ticks)
    for each in decided:
        assert "trial" not in each.decision.reason
        assert each.decision.goal_bytes is not None and each.decision.goal_bytes <= 8 * MB


# ---- reading the policy again --------------------------------------------------


def test_caps_outlive_reading_the_policy_again(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device in mid-flood would not get it again before the global limit is as small.

    Nor would one that syncs beside a stick that floods, and that takes minutes to drain.
    """
    daemon = host.rig.daemon
    caps = {"sda": Cap(48 * MB, in_force=True, standing=True), "sdb": Cap(4 * MB, in_force=True)}
    given: List[Memory] = []
    real = getattr(daemon_module, "decide")  # noqa: B009

    def spy(policy: Policy, memory: Memory, *more: Any) -> Any:
        given.append(memory)
        return real(policy, memory, *more)

    monkeypatch.setattr(daemon_module, "decide", spy)
    daemon.state.memory = replace(daemon.state.memory, caps=caps, goal_bytes=12345)
    host.tick()
    assert (given[-1].caps, given[-1].goal_bytes) == (caps, 12345)
    daemon.state.memory = replace(daemon.state.memory, caps=caps, goal_bytes=12345)
    daemon.policies._asked = True
    again = Timetable(load(tmp_path, "[device sda]\nceiling = 48M\n"))
    daemon.policies._loaded.append(again)
    host.tick()
    assert (given[-1].caps, given[-1].goal_bytes) == (caps, None)
