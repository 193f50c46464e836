# SPDX-License-Identifier: GPL-2.0-or-later
"""`why`: what is said of a decision, and the figures in it."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from types import FunctionType
from typing import Callable, List, Optional, Tuple

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from samples import MIB, estimate
from tests.sim.plant import Loop
from tests.sim.scenarios import BY_NAME
from writebackd.control import reasons
from writebackd.control.explain import explain, verdict, what_next
from writebackd.policy import load_policy
from writebackd.types.core_memory import Memory, Trial
from writebackd.types.decision import Basis, DeviceDecision, DeviceState, Mode, Rule
from writebackd.types.estimate import Estimate

POLICY = load_policy(None, None)
# control/device_decision.py and control/pacing have words of their own for these.
PACES = {Rule.CUT, Rule.DEAR, Rule.STEADY, Rule.ROOM, Rule.LOOSE}
ELSEWHERE = {Rule.AS_FOUND, Rule.RELAXED, Rule.BLIND, Rule.OTHER, *PACES}
# In observe mode every branch has the same words.
LAWS = sorted(set(Rule) - ELSEWHERE - {Rule.OBSERVING}, key=lambda rule: rule.value)
TARGET = 4 * MIB
BASIS = Basis(objective_s=20e-3, floor_bytes=MIB, delay_s=16e-3)


def flood(**more: object) -> Estimate:
    usual = estimate(
        "sda", write_rate=248.0 * MIB, background_rate=240.0 * MIB, drain_rate=256.0 * MIB,
        rate=248.0 * MIB, sync_rate=90.0, demand=True, flooded=True, held_back=True, full=True,
        commit_p50_s=8e-3, commit_p99_s=15e-3, baseline_s=0.2e-3, slow_share=0.71,
    )  # fmt: skip
    return replace(usual, **more)  # type: ignore[arg-type]


def decided(rule: Rule = Rule.KNEE, state: Optional[DeviceState] = None) -> DeviceDecision:
    return DeviceDecision(
        "sda", reasons.STATES[rule] if state is None else state, TARGET, "why", "sda#1",
        ("concluded",), BASIS, rule,
    )  # fmt: skip


LATE = flood(commit_p99_s=40e-3)


# ---- control/reasons.py ----------------------------------------------------


def test_the_state_says_where_a_larger_limit_is_tried() -> None:
    for rule, state in reasons.STATES.items():
        larger = rule in (Rule.SEEK, Rule.SHORT, Rule.TEST)
        assert state is (DeviceState.PROBE if larger else DeviceState.GUARD)


def test_no_two_branches_are_told_alike_and_no_other_has_a_state() -> None:
    said = {reasons.law(rule, TARGET, flood(), BASIS) for rule in LAWS}
    assert len(said) == len(LAWS)
    assert set(reasons.STATES) == {*LAWS, Rule.OBSERVING}


@pytest.mark.parametrize("target,share,said", [
    (4.096, 1.0, "what drains in 16 ms at 256M/s: 4.1M"),
    (8.192, 0.5, "what drains in 16 ms at 256M/s, as 50 % of the limit: 8.2M"),
    (6.0, 1.0, "the smallest limit allowed, more than what drains in 16 ms at 256M/s: 6.0M"),
    (2.0, 1.0, "the largest limit allowed, less than what drains in 16 ms at 256M/s: 2.0M"),
])  # fmt: skip
def test_a_limit_has_what_decided_it(target: float, share: float, said: str) -> None:
    seen = flood(limit_share=share)
    assert reasons.law(Rule.KNEE, int(target * MIB), seen, BASIS) == said


def test_missing_the_objective_has_two_prices() -> None:
    # Half of the limit halves what a sync waits for, and the flood: 120 of 256.
    assert reasons.trade(TARGET, LATE, BASIS) == (
        "; p99 40 ms misses 20 ms: about 2.0M would meet it and lose up to 53 % of 256M/s"
    )
    assert reasons.law(Rule.KNEE, TARGET, LATE, BASIS).endswith("53 % of 256M/s")
    # At rest nobody pays.
    assert "misses" not in reasons.law(Rule.REST, TARGET, LATE, BASIS)


def test_what_the_cache_takes_beside_is_no_gain() -> None:
    quick = replace(LATE, background_rate=768.0 * MIB)
    assert "lose up to 0 % of 256M/s" in reasons.trade(TARGET, quick, BASIS)


@pytest.mark.parametrize("seen", [
    flood(), flood(commit_p99_s=20e-3), flood(commit_p99_s=None, oldest_commit_s=2.0),
    replace(LATE, full=False), replace(LATE, flooded=False),
])  # fmt: skip
def test_only_then_and_only_where_a_smaller_limit_would_do(seen: Estimate) -> None:
    assert reasons.trade(TARGET, seen, BASIS) == ""


@pytest.mark.parametrize("p99_s,share,prices", [
    # Below the floor none is told, and of a limit that is shared the floor is larger.
    (79e-3, 1.0, True), (81e-3, 1.0, False), (79e-3, 0.5, True), (81e-3, 0.5, False),
])  # fmt: skip
def test_no_limit_is_offered_below_the_floor(p99_s: float, share: float, prices: bool) -> None:
    seen = flood(commit_p99_s=p99_s, limit_share=share)
    # The basis has the device's own part of the floor.
    basis = replace(BASIS, floor_bytes=int(MIB * share))
    said = reasons.trade(TARGET, seen, basis)
    assert "misses 20 ms" in said and ("would meet it" in said) is prices


ENFORCE, OBSERVE, OFF = Memory(), Memory(mode=Mode.OBSERVE), Memory(off=True)
YIELDED, PINNED = Memory(yielded="sysctl (pid 7) set dirty_bytes=1"), Memory(pin_bytes=TARGET)
PRICE = "p99 40 ms misses 20 ms: about 2.0M would meet it and lose up to 53 % of 256M/s"
WORDS = {
    Rule.SEEK: "drain rate unknown, trying a larger limit",
    Rule.MEASURE: "drain rate unknown, a larger limit did not raise throughput",
    Rule.KNEE: "the largest limit allowed, less than what drains in 16 ms at 256M/s",
    Rule.FILLING: "write cache has room, and takes more than the drain rate",
    Rule.SHORT: "buffered writes got less than 80 % of the drain rate",
    Rule.TEST: "a larger limit, to see whether the device takes more",
    Rule.FLOOR: "write cache full at the smallest limit allowed",
}
WOULD = "flood, drain rate 256M/s: {} would set 4.0M"
BLIND, IDLE = "fsync latency is not visible", "no sync demand"
Say = Callable[[str], str]


def law_in(rule: Rule) -> Say:
    return lambda after: reasons.law(rule, TARGET, LATE, BASIS, after)


@pytest.mark.parametrize("said,enforce,would", [
    (law_in(Rule.REST), "no flood; 4.0M held while programs commit",
     "no flood; {} would hold 4.0M while programs commit"),
    # A price only where the limit that it is of is in force.
    (law_in(Rule.COMING), "this limit is not in force yet: 4.0M", WOULD),
    *((law_in(rule), f"{words}: 4.0M; {PRICE}", WOULD)
      for rule, words in WORDS.items()),
    (lambda after: reasons.ceiling(TARGET, after),
     ", except its ceiling: 4.0M", ", except its ceiling: {} would set 4.0M"),
    (lambda after: reasons.kept("WHY", True, TARGET, 2.0, 3.0, after),
     "WHY; last fsync 2s ago, limit kept for 3s more",
     "WHY; last fsync 2s ago, limit would be kept for 3s more"),
    (lambda after: reasons.kept("WHY", False, TARGET, 2.0, 3.0, after),
     "last fsync 2s ago, no flood now: 4.0M kept for 3s more",
     "last fsync 2s ago, no flood now: {} would keep 4.0M for 3s"),
    (lambda after: reasons.without_demand(False, after),
     f"{IDLE} and no flood: original limits", f"{IDLE} and no flood: no limit needed"),
    (lambda after: reasons.without_demand(True, after),
     f"{IDLE}, drain rate unknown: original limits",
     f"{IDLE}, drain rate unknown: no limit needed"),
    (lambda after: reasons.relaxed(768 * MIB, 256.0 * MIB, 3.0, after),
     f"{IDLE}: 768M, which drains in 3s at 256M/s",
     f"{IDLE}: {{}} would set 768M, which drains in 3s at 256M/s"),
    (lambda after: reasons.blind(None, None, 30.0, after),
     f"{BLIND}, no flood: original limits", f"{BLIND}, no flood: no limit needed"),
    (lambda after: reasons.blind(TARGET, None, 30.0, after),
     f"{BLIND}, a flood ended less than 30s ago: 4.0M",
     f"{BLIND}, a flood ended less than 30s ago: {{}} would set 4.0M"),
    (lambda after: reasons.blind(TARGET, 256.0 * MIB, 30.0, after),
     f"{BLIND}, a flood of 256M/s: 4.0M", f"{BLIND}, a flood of 256M/s: {{}} would set 4.0M"),
])  # fmt: skip
def test_each_sentence_claims_in_each_mode_only_what_is_done(
    said: Say, enforce: str, would: str
) -> None:
    # What ends a yield is `enforce` as well, a pin `release`.
    for memory, verb in ((OBSERVE, "enforce"), (YIELDED, "enforce"), (PINNED, "release"),
                         (OFF, "removal of the off file")):  # fmt: skip
        assert said(reasons.unset(memory, "sda")) == would.format(verb)
    assert said(reasons.unset(ENFORCE, "sda")) == enforce


@pytest.mark.parametrize("memory,would", [
    (ENFORCE, ""), (OBSERVE, "enforce"), (YIELDED, ""), (PINNED, ""),
    (OFF, "removal of the off file"),
])  # fmt: skip
def test_a_pin_or_a_drain_holds_no_limit_where_nothing_is_set(memory: Memory, would: str) -> None:
    pin, drain = (f"; {would} would set this limit", f"{would} would keep the limit")
    assert reasons.pinned(memory) == f"pinned{pin if would else ''}"
    drain = drain if would else "limit is"
    assert reasons.draining(memory) == f"draining: {drain} at its floor until the drain ends"
    holds = f"{would} would hold" if would else "to hold"
    if memory is not YIELDED and memory is not PINNED:  # nobody is paced then
        assert reasons.held(memory, ["/system.slice/b.service"], 2.0 * MIB) == (
            f"{holds} b.service at 2.0M/s")
    drained = Memory(draining=("sda",))
    assert [reasons.unset(drained, name) for name in ("sda", "sdb")] == ["release", ""]


# What is needed, seen or counted is the same in every mode; a pace is named only once it is set.
ALIKE = {
    reasons.YIELDED: "yielded: another process set the limits",
    reasons.tightest("sda"): "sda needs the smallest limit",
    reasons.loosest("sda"): "no sync demand; sda drains this within drain-time",
    reasons.of_memory(TARGET, 0.3): "; at most 4.0M, 30 % of dirtyable memory",
    reasons.stuck(TARGET, "sdb"): "; plus 4.0M stuck on sdb",
    reasons.small_share("/a", MIB): "/a gets 1.0M of it",
    reasons.raised(TARGET, MIB): "4.0M instead, of which it gets 1.0M",
    reasons.not_raised(None): "not raised: other writers flooded until just now",
    reasons.others_flood(MIB, "sda"): "other cgroups write 1.0M/s to sda, which has sync demand",
    reasons.RESTARTED: "just restarted: keeping the previous limit",
    reasons.held_to("sdb", TARGET): "sdb needs less, and its 4.0M applies to both",
    reasons.trial(Trial("sda", 1, 4, True, TARGET, None, 0.0, Mode.ENFORCE)):
        "trial of sda, block 1 of 4: original limits, reduced to 4.0M",
    reasons.paced(Rule.CUT): "lowered: write cache full",
    reasons.longest(LATE): "p99 40 ms",
    reasons.too_many(3, MIB, 2 * MIB): "3 cgroups flood: the smallest pace of 1.0M/s for each adds"
        " up to more than the 2.0M/s allowed",
    reasons.cost(256.0 * MIB, 0.15, 0.2): "fsyncs take 15 % of 256M/s, 20 % allowed",
}  # fmt: skip


def test_every_sentence_is_in_a_table() -> None:
    assert list(ALIKE) == list(ALIKE.values())
    text = Path(__file__).read_text()
    makers = {name for name, each in vars(reasons).items() if isinstance(each, FunctionType)
              and each.__annotations__.get("return") == "str"}  # fmt: skip
    parts = {"_wanted", "_drains", "exempt", "refusals", "some", "speed", "unit_of", "units"}
    assert [name for name in makers - parts if f"reasons.{name}(" not in text] == []


# ---- control/explain.py ----------------------------------------------------


def test_why_begins_with_whether_all_is_well() -> None:
    assert verdict(decided(), flood()) == "OK: p99 15 ms within 20 ms"
    assert verdict(decided(), LATE) == "MISSES OBJECTIVE: p99 40 ms > 20 ms"
    # p99 is of syncs that have returned.
    stuck = flood(oldest_fsync_s=3.0, oldest_commit_s=3.0)
    assert verdict(decided(), stuck) == "MISSES OBJECTIVE: oldest pending fsync 3s > 20 ms"


def test_at_the_floor_it_says_that_the_limit_can_do_no_more() -> None:
    said = verdict(decided(Rule.FLOOR, DeviceState.EXHAUSTED), flood(commit_p99_s=90e-3))
    assert said == "MISSES OBJECTIVE: p99 90 ms > 20 ms, limit at its floor"
    assert "check for direct IO" in what_next(decided(Rule.FLOOR, DeviceState.EXHAUSTED))


def test_where_nobody_is_to_be_protected_there_is_no_verdict() -> None:
    for seen in (None, flood(demand=False), flood(demand_known=False), flood(commit_p99_s=None)):
        assert verdict(decided(), seen) is None
    assert verdict(replace(decided(), basis=None), flood()) is None


@pytest.mark.parametrize("rule", LAWS)
def test_what_comes_next_is_a_sentence_of_the_laws(rule: Rule) -> None:
    said = what_next(decided(rule))
    assert not said[0].islower() and said.lower() == f"{reasons.next_step(rule)}.".lower()


@pytest.mark.parametrize("state", list(DeviceState))
def test_without_the_law_the_state_alone_speaks(state: DeviceState) -> None:
    said = what_next(DeviceDecision("sda", state, None, "other", "sda#1"))
    assert said[0].isupper() and said.endswith(".") and "{" not in said


def test_when_idle_the_policys_figures_are_told() -> None:
    idle = DeviceDecision("sda", DeviceState.IDLE, None, "idle", "sda#1", rule=Rule.AS_FOUND)
    said = what_next(idle, replace(POLICY.objective, min_sync_rate=7.0))
    assert said.startswith("The original limits stay until there is a lasting flood.")
    assert "min-sync-rate (7/s over 10s)" in said
    assert "(" not in what_next(idle)
    relaxed = replace(idle, target_bytes=TARGET, rule=Rule.RELAXED)
    assert what_next(relaxed).startswith("The target follows the drain rate.")


def test_the_reasoning_goes_from_what_was_seen_to_the_decision() -> None:
    assert explain(decided(), flood()) == (
        "seen: writes 248M/s, 240M/s of it writeback",
        "seen: drain rate 256M/s",
        "seen: 90 commits/s, p50 8.0 ms, p99 15 ms, unloaded 0.20 ms",
        "seen: sleep in write() not visible on this kernel: times are of fsync alone",
        "seen: 71 % of sync time in slow syncs",
        "means: flood, the limit throttles its writers",
        "means: write cache full or absent: fsync waits for the media",
        "means: objective met: p99 15 ms within 20 ms",
        "law: objective p99 20 ms; a flood's limit is what drains in 16 ms",
        "concluded",
    )
    paced = replace(decided(state=DeviceState.PACE), basis=replace(BASIS, delay_s=None))
    assert explain(paced, flood())[-2] == "law: objective p99 20 ms"


def test_where_commits_wait_stands_beside_how_long() -> None:
    seen = flood(fsync_p99_s=6.4e-3, commit_p99_s=140e-3, commit_write_share=0.8)
    steps = explain(decided(), seen)
    assert steps[2:4] == (
        "seen: 90 commits/s, p50 8.0 ms, p99 140 ms, unloaded 0.20 ms",
        "seen: commits wait in write(): 80 % of their time; fsync p99 6.4 ms",
    )
    assert "means: objective missed: p99 140 ms > 20 ms" in steps
    asleep = flood(oldest_fsync_s=0.0, oldest_commit_s=23.0)
    assert "means: objective missed: oldest pending commit, in write(), 23s > 20 ms" in (
        explain(decided(), asleep)
    )


def test_what_is_not_known_is_not_told_as_a_figure() -> None:
    new = flood(
        drain_rate=None, commit_p50_s=None, commit_p99_s=None, baseline_s=None, slow_share=None,
        oldest_commit_s=0.3, oldest_fsync_s=0.3, full=False, cache_bytes=None, held_back=False,
    )  # fmt: skip
    assert explain(decided(), new) == (
        "seen: writes 248M/s, 240M/s of it writeback",
        "seen: drain rate unknown",
        "seen: 90 commits/s, oldest pending 300 ms",
        "means: flood, not throttled",
        "means: write cache has room: few syncs wait",
        "means: objective missed: oldest pending fsync 300 ms > 20 ms",
        "law: objective p99 20 ms; a flood's limit is what drains in 16 ms once the drain rate is"
        " known",
        "concluded",
    )
    known = "means: write cache (about 512M) has room: few syncs wait"
    assert known in explain(decided(), flood(full=False, cache_bytes=512.0 * MIB))


def test_without_a_flood_or_demand_nothing_is_said_of_the_cache_or_of_whom_it_harms() -> None:
    calm = explain(decided(), flood(flooded=False))
    assert "means: no flood: writeback keeps up" in calm
    alone = explain(decided(), flood(full=False, demand=False))
    assert "means: no sync demand" in alone
    blind = explain(decided(), flood(full=False, demand=False, demand_known=False))
    assert not any("no sync demand" in step for step in blind)
    for told in (calm, alone, blind):
        assert not any("write cache" in step for step in told)


def test_of_a_device_that_is_left_alone_nothing_is_seen() -> None:
    left = replace(decided(), state=DeviceState.EXCLUDED, rule=Rule.OTHER)
    assert explain(left, flood()) == ("concluded",) == explain(decided(), None)


# ---- in a loop -------------------------------------------------------------


def number(text: str) -> float:
    """What formats.py wrote, without it: 250M, 1.9G, 12 %."""
    if text.endswith(" %"):
        return float(text[:-2]) / 100
    power = " KMGTP".find(text[-1])
    return float(text) if power < 0 else float(text[:-1]) * 1024.0**power


Told = Tuple[DeviceDecision, Estimate, str, Tuple[str, ...]]


def played(name: str, seconds: float) -> List[Told]:
    """Each tick of the first device: decision, estimate, what comes next, reasoning."""
    loop, ticks = Loop(POLICY, BY_NAME[name].plant()), []
    while loop.plant.now_s < seconds:
        _, estimates, decision = loop.tick()
        (device, *_) = decision.devices
        seen, said = estimates[device.name], what_next(device, POLICY.objective)
        ticks.append((device, seen, said, explain(device, seen)))
    return ticks


@pytest.mark.parametrize("name", ["flood", "battery-gone", "stick", "no-sync", "waves-5s"])
def test_every_tick_has_its_reasons_and_they_have_its_figures(name: str) -> None:
    drains = re.compile(r"what drains in (\S+) ms at (\S+)/s: (\S+)")
    checked = 0
    for device, seen, said, why in played(name, 60.0):
        assert not said[0].islower() and said.endswith(".") and "{" not in said
        text = " ".join((device.reason, said, *why))
        assert "None" not in text and "nan" not in text and "inf" not in text.split()
        heads = [step.split(":", 1)[0] for step in why[: -len(device.steps)]]
        order = [("seen", "means", "law").index(head) for head in heads]
        assert order == sorted(order) and "seen" in heads and "means" in heads
        if device.rule in LAWS:
            state = reasons.STATES[device.rule]
            assert device.state in (
                state,
                *((DeviceState.EXHAUSTED, DeviceState.PACE) if device.rule is Rule.FLOOR else ()),
            )
        for found in drains.finditer(device.reason.replace(";", "")):
            delay_ms, rate, limit = map(number, found.groups())
            assert delay_ms == 16 if name == "flood" else delay_ms >= 16
            assert rate == pytest.approx(seen.drain_rate, rel=0.06)
            assert limit == pytest.approx(1e-3 * delay_ms * (seen.drain_rate or 0), rel=0.06)
            checked += 1
    assert checked >= (10 if name in ("flood", "battery-gone") else 0)
