# SPDX-License-Identifier: GPL-2.0-or-later
"""The texts of decisions: for each rule of the law the reason, and what happens next.

Where the law's limit is not set, `after` is what would set it, and a text says "would".
"""

from __future__ import annotations

import shlex
from typing import Iterable, Mapping, NamedTuple, Optional, Sequence, Tuple

from writebackd import formats
from writebackd.control.pacing.exclusions import unit_of
from writebackd.tuning import CYCLE_S, LEAST, PAYS, SEEK, SHOWN_S
from writebackd.types.core_memory import Memory, Trial
from writebackd.types.decision import Basis, DeviceState, Mode, Rule
from writebackd.types.estimate import Estimate

MOST_NAMED = 4  # cgroups in a text

STATES: Mapping[Rule, DeviceState] = {
    Rule.REST: DeviceState.GUARD, Rule.COMING: DeviceState.GUARD,
    Rule.OBSERVING: DeviceState.GUARD, Rule.SEEK: DeviceState.PROBE,
    Rule.MEASURE: DeviceState.GUARD, Rule.KNEE: DeviceState.GUARD, Rule.SHORT: DeviceState.PROBE,
    Rule.FILLING: DeviceState.GUARD, Rule.TEST: DeviceState.PROBE, Rule.FLOOR: DeviceState.GUARD,
}

# The reason, without figures, and what the law does next.
_WORDS: Mapping[Rule, Tuple[str, str]] = {
    Rule.REST: ("no flood", "this limit holds from the first second of the next flood"),
    Rule.COMING: ("this limit is not in force yet",
                  "the limit moves as fast as dirty pages drain, unless another device or tool"
                  " needs less; then its effect is measured"),
    Rule.SEEK: ("drain rate unknown, trying a larger limit",
                f"the limit is multiplied by {SEEK:g} as long as that raises throughput by"
                f" {formats.percent(PAYS - 1)}"),
    Rule.MEASURE: ("drain rate unknown, a larger limit did not raise throughput",
                   f"the drain rate is measured over {formats.duration(SHOWN_S)} with a full write"
                   " cache"),
    Rule.KNEE: ("what drains in the allowed delay", "the limit follows the drain rate"),
    Rule.FILLING: ("write cache has room, and takes more than the drain rate",
                   "once it is full, the limit is what drains in the allowed delay"),
    Rule.TEST: ("a larger limit, to see whether the device takes more",
                "the drain rate follows what comes; then the limit is what drains in the allowed"
                " delay again"),
    Rule.SHORT: (f"buffered writes got less than {formats.percent(LEAST)} of the drain rate",
                 f"every {formats.duration(CYCLE_S)} the limit rises, to {SEEK:g} times what"
                 " drains in the allowed delay at most, or falls back"),
    Rule.FLOOR: ("write cache full at the smallest limit allowed",
                 "`pace = auto` in [levers] helps, or a smaller floor if the kernel can apply it"),
}

YIELDED = "yielded: another process set the limits"
UNKNOWN_FLOOD = "the flooding cgroup is unknown, or many write less than 1.0M/s each"
RESTARTED = "just restarted: keeping the previous limit"


def pinned(memory: Memory) -> str:
    return f"pinned; {unset(memory, '')} would set this limit" if memory.dry else "pinned"


def draining(memory: Memory) -> str:
    limit = f"{unset(memory, '')} would keep the limit" if memory.dry else "limit is"
    return f"draining: {limit} at its floor until the drain ends"


# The reason for the pace of a flood held by io.max.
_PACED: Mapping[Rule, str] = {
    Rule.CUT: "lowered: write cache full",
    Rule.STEADY: "write cache full, but the flood keeps its minimum share",
    Rule.SHORT: "raised: the flood gets too little",
    Rule.DEAR: "raised: fsyncs take too much of the disk",
    Rule.ROOM: "raised slowly: write cache has room",
    Rule.LOOSE: "unchanged: the flood writes less",
}


def paced(rule: Rule) -> str:
    """Why the pace of a flood is what it is."""
    return _PACED.get(rule, "unchanged")


def units(paths: Iterable[str]) -> str:
    return some([unit_of(path) for path in sorted(paths)], ", ")


def held(memory: Memory, paths: Iterable[str], rate: float) -> str:
    """Who is to be held at what rate; before the pace is in force."""
    after = unset(memory, "")
    does = f"{after} would hold" if after else "to hold"
    return f"{does} {units(paths)} at {speed(rate)}"


def exempt(paths: Iterable[str], devno: str) -> str:
    """The commands after which units are never paced: for each a limit that never binds."""
    names = [shlex.quote(unit_of(path)) for path in sorted(paths)]
    commands = [
        f"`systemctl set-property {name} IOReadIOPSMax='/dev/block/{devno} 1G'`" for name in names
    ]
    return f"to exempt a unit: {some(commands, ', ')}, or [protect] units"


def refusals(refused: Sequence[Tuple[str, str]]) -> str:
    return some([f"{path}: {why}" for path, why in refused], "; ")


def some(texts: Sequence[str], between: str) -> str:
    """The first MOST_NAMED, and the number of others."""
    more = len(texts) - MOST_NAMED
    shown = [*texts[:MOST_NAMED], *([f"{more} more"] if more > 0 else [])]
    return between.join(shown)


def too_many(count: int, least: float, rate: float) -> str:
    return (
        f"{count} cgroups flood: the smallest pace of {speed(least)} for each adds up to more than"
        f" the {speed(rate)} allowed"
    )


def speed(rate: float) -> str:
    return f"{formats.size(rate)}/s"


def wait_s(estimate: Estimate) -> float:
    """p99 of a commit or the age of the oldest pending one, whichever is larger; seconds."""
    return max(estimate.commit_p99_s or 0.0, estimate.oldest_commit_s)


class Judgement(NamedTuple):
    """Whether commits on a device meet the objective."""

    met: bool
    text: str
    over: float  # wait divided by objective


def judged(estimate: Estimate, basis: Optional[Basis]) -> Optional[Judgement]:
    """None without demand, or if no latency is known."""
    if basis is None or not estimate.demand_known or not estimate.demand:
        return None
    waits_s = wait_s(estimate)
    if not waits_s:
        return None
    met = waits_s <= basis.objective_s
    sign = "within" if met else ">"
    return Judgement(
        met, f"{longest(estimate)} {sign} {formats.latency(basis.objective_s)}",
        waits_s / basis.objective_s,
    )  # fmt: skip


def longest(estimate: Estimate) -> str:
    """`wait_s` in words: p99 covers only commits that have ended."""
    p99_s, oldest_s = estimate.commit_p99_s or 0.0, estimate.oldest_commit_s
    if oldest_s > p99_s:
        where = "fsync" if oldest_s <= estimate.oldest_fsync_s else "commit, in write(),"
        return f"oldest pending {where} {formats.latency(oldest_s)}"
    return f"p99 {formats.latency(p99_s)}"


# ---- a device's target -----------------------------------------------------


def unset(memory: Memory, device: str) -> str:
    """What has to happen before the law's limit is set; empty while it is."""
    if memory.off:
        return "removal of the off file"
    if memory.mode is Mode.OBSERVE or memory.yielded is not None:
        return "enforce"
    return "release" if memory.pin_bytes is not None or device in memory.draining else ""


def law(rule: Rule, target_bytes: int, estimate: Estimate, basis: Basis, after: str = "") -> str:
    """Why the limit is `target_bytes`, and what it would cost to meet a missed objective."""
    size = formats.size(target_bytes)
    if rule is Rule.REST:
        held = f"{after} would hold {size}" if after else f"{size} held"
        return f"{_WORDS[rule][0]}; {held} while programs commit"
    if after:
        rate = estimate.drain_rate
        drains = "unknown" if rate is None else f"{formats.size(rate)}/s"
        return f"flood, drain rate {drains}: {after} would set {size}"
    words = _drains(target_bytes, estimate, basis) if rule is Rule.KNEE else _WORDS[rule][0]
    # What commits wait for under another limit says nothing of the price of this one.
    price = "" if rule is Rule.COMING else trade(target_bytes, estimate, basis)
    return f"{words}: {size}{price}"


def _drains(target_bytes: int, estimate: Estimate, basis: Basis) -> str:
    """What the limit has to do with the delay that the policy allows."""
    rate, delay_s = estimate.drain_rate or 0.0, basis.delay_s or 0.0
    drains = f"drains in {formats.latency(delay_s)} at {formats.size(rate)}/s"
    exact = rate * delay_s / estimate.limit_share
    if target_bytes < 0.99 * exact:
        return f"the largest limit allowed, less than what {drains}"
    if target_bytes > 1.01 * exact:
        return f"the smallest limit allowed, more than what {drains}"
    if estimate.limit_share < 0.99:
        drains += f", as {formats.percent(estimate.limit_share)} of the limit"
    return f"what {drains}"


def held_to(name: str, target_bytes: int) -> str:
    """Why a limit is not set: another device needs a smaller one."""
    return f"{name} needs less, and its {formats.size(target_bytes)} applies to both"


def cost(drain_rate: float, spent: float, allowed: float) -> str:
    """Under a pace: the share of the drain rate that fsyncs take, and the share allowed."""
    return (
        f"fsyncs take {formats.percent(spent)} of {formats.size(drain_rate)}/s,"
        f" {formats.percent(allowed)} allowed"
    )


def trade(target_bytes: int, estimate: Estimate, basis: Basis) -> str:
    """If the objective is missed: a limit that would meet it, and the throughput lost by it."""
    p99 = estimate.commit_p99_s
    if not (estimate.flooded and estimate.full and p99 and p99 > basis.objective_s):
        return ""
    floor = basis.floor_bytes / estimate.limit_share
    smaller = target_bytes * basis.objective_s / p99
    text = f"; p99 {formats.latency(p99)} misses {formats.latency(basis.objective_s)}"
    if smaller < floor or not estimate.drain_rate:
        return text
    # Latency is proportional to the limit; below the knee the rate is as well.
    loss = 1.0 - min(1.0, estimate.background_rate * smaller / target_bytes / estimate.drain_rate)
    return (
        f"{text}: about {formats.size(int(smaller))} would meet it and lose up to"
        f" {formats.percent(loss)} of {formats.size(estimate.drain_rate)}/s"
    )


def kept(
    reason: str, flooded: bool, target_bytes: int, over_s: float, left_s: float, after: str = ""
) -> str:
    """Add to `reason` that the last sync was `over_s` ago and the limit stays for `left_s`."""
    over, left = f"last fsync {formats.duration(over_s)} ago", formats.duration(max(0.0, left_s))
    size = formats.size(target_bytes)
    if flooded:
        return f"{reason}; {over}, limit {'would be ' if after else ''}kept for {left} more"
    keeps = f"{after} would keep {size} for {left}" if after else f"{size} kept for {left} more"
    return f"{over}, no flood now: {keeps}"


def without_demand(flooded_lately: bool, after: str = "") -> str:
    """Why a device without sync demand needs no limit."""
    why = ", drain rate unknown" if flooded_lately else " and no flood"
    return f"no sync demand{why}: {'no limit needed' if after else 'original limits'}"


def relaxed(target_bytes: int, drain_rate: float, seconds: float, after: str = "") -> str:
    return (
        f"no sync demand: {_wanted(target_bytes, after)}, which drains in"
        f" {formats.duration(seconds)} at {formats.size(drain_rate)}/s"
    )


def blind(
    target_bytes: Optional[int], flood_rate: Optional[float], hold_s: float, after: str = ""
) -> str:
    """`flood_rate`: None where a flood ended less than `hold_s` ago, or none was."""
    unseen = "fsync latency is not visible"
    if target_bytes is None:
        return f"{unseen}, no flood: {'no limit needed' if after else 'original limits'}"
    flood = f"a flood ended less than {formats.duration(hold_s)} ago"
    if flood_rate is not None:
        flood = f"a flood of {formats.size(flood_rate)}/s"
    return f"{unseen}, {flood}: {_wanted(target_bytes, after)}"


def _wanted(target_bytes: int, after: str) -> str:
    size = formats.size(target_bytes)
    return f"{after} would set {size}" if after else size


# ---- the limit of the host -------------------------------------------------


def ceiling(size_bytes: int, after: str) -> str:
    """The exception for a device that has a limit of its own all the time."""
    size = formats.size(size_bytes)
    return f", except its ceiling: {f'{after} would set ' if after else ''}{size}"


def tightest(device: str) -> str:
    return f"{device} needs the smallest limit"


def loosest(device: str) -> str:
    return f"no sync demand; {device} drains this within drain-time"


def of_memory(limit_bytes: int, share: float) -> str:
    return f"; at most {formats.size(limit_bytes)}, {formats.percent(share)} of dirtyable memory"


def stuck(stuck_bytes: int, devices: str) -> str:
    return f"; plus {formats.size(stuck_bytes)} stuck on {devices}"


def small_share(cgroup: str, bytes_: float) -> str:
    """The share of the limit that a small cgroup gets."""
    return f"{cgroup} gets {formats.size(bytes_)} of it"


def raised(limit_bytes: int, bytes_: float) -> str:
    return f"{formats.size(limit_bytes)} instead, of which it gets {formats.size(bytes_)}"


def not_raised(others: Optional[str]) -> str:
    return f"not raised: {others or 'other writers flooded until just now'}"


def others_flood(rate: float, device: str) -> str:
    return f"other cgroups write {formats.size(rate)}/s to {device}, which has sync demand"


def trial(running: Trial) -> str:
    """Why a block of a trial has the original limits, or reduced ones."""
    limit = running.limit_bytes
    reduced = "" if limit is None else f", reduced to {formats.size(limit)}"
    block = f"block {running.block} of {running.blocks}"
    return f"trial of {running.device}, {block}: original limits{reduced}"


# ---- what comes next -------------------------------------------------------


def next_step(rule: Rule) -> str:
    """What the law does next after `rule`, which is one of a limit."""
    return _WORDS[rule][1]
