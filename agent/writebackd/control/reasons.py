# SPDX-License-Identifier: GPL-2.0-or-later
"""Each branch of the law in words: why it decided so, and what comes next."""

from __future__ import annotations

from typing import Mapping, Tuple

from writebackd import human
from writebackd.model import Basis, Estimate, Rule, State
from writebackd.tuning import (
    EXTRA,
    PAYS,
    SEEK,
    SHOWN_S,
    TRY_AGAIN_S,
    TRY_S,
)

STATES: Mapping[Rule, State] = {
    Rule.REST: State.GUARD, Rule.WAVES: State.GUARD, Rule.COMING: State.GUARD,
    Rule.OBSERVING: State.GUARD, Rule.LOOSE: State.GUARD, Rule.SEEK: State.PROBE,
    Rule.MEASURE: State.GUARD, Rule.CUT: State.SQUEEZE, Rule.SHORT: State.PROBE,
    Rule.DEAR: State.PROBE, Rule.STEADY: State.GUARD, Rule.ROOM: State.GUARD,
    Rule.FLOOR: State.GUARD,
}

# What is so, without its figures, and what the law does next.
_WORDS: Mapping[Rule, Tuple[str, str]] = {
    Rule.REST: ("no flood: the limit that was found for one",
                "a flood is held at this limit from its first second on"),
    Rule.WAVES: ("floods come and go: memory takes what the pause between them drains",
                 "a flood that lasts longer than the one before gets the limit of a long one"),
    Rule.COMING: ("the limit in force is not this one yet",
                  "it moves as fast as what is dirty drains, unless another device or somebody else"
                  " needs less; then its effect is measured"),
    Rule.OBSERVING: ("observing: would set",
                     "nothing is set in observe mode; after `writebackctl enforce` the law measures"
                     " what this limit brings"),
    Rule.LOOSE: ("the limit holds no writer back",
                 "a larger limit would change nothing; a flood that it holds back is measured"),
    Rule.SEEK: ("the drain rate is not known, and a larger limit may bring more",
                f"{SEEK:g} times the limit while that brings {human.percent(PAYS - 1)} more"),
    Rule.MEASURE: ("the drain rate is not known, and a larger limit brought no more",
                   f"{SHOWN_S:g} s with a full cache show the drain rate"),
    Rule.CUT: ("the write cache is full, and syncs cost less than they may",
               "a smaller limit, until the cache has room or syncs cost what they may"),
    Rule.SHORT: ("the write cache is full, and the flood gets less than it keeps",
                 "a larger limit; if that does not bring it back, the disk has become slower"),
    Rule.DEAR: ("syncs cost more than they may", "a larger limit, which lets fewer syncs through"),
    Rule.STEADY: ("the write cache is full, and a smaller limit would cost too much throughput",
                  "the limit follows what syncs cost"),
    Rule.ROOM: ("the write cache has room",
                "slowly more, the longer it has: so a faster disk is found"),
    Rule.FLOOR: ("the write cache is full at the smallest limit that is allowed",
                 "below it only pacing helps (levers.pace), or a smaller floor if the kernel"
                 " keeps it"),
}


# The same of a flood that is held by io.max.
_PACED: Mapping[Rule, str] = {
    Rule.CUT: "the write cache is full: less",
    Rule.STEADY: "the write cache is full, and the flood keeps this much",
    Rule.SHORT: "the flood keeps more than this",
    Rule.DEAR: "syncs cost more than they may: more",
    Rule.ROOM: "the write cache has room: slowly more, which finds a faster disk",
    Rule.LOOSE: "the flood does not use it up",
}


def paced(rule: Rule) -> str:
    """Why the pace of a flood is what it is."""
    return _PACED.get(rule, "it stays")


def wait_s(estimate: Estimate) -> float:
    """How long a sync takes at worst, the one in flight included, seconds."""
    return max(estimate.fsync_p99_s or 0.0, estimate.oldest_fsync_s)


def verdict(rule: Rule, target_bytes: int, estimate: Estimate, basis: Basis) -> str:
    """Why the limit is `target_bytes`, in a sentence, with the price of doing better."""
    if rule is Rule.OBSERVING:
        return f"{_WORDS[rule][0]} {human.size(target_bytes)}"
    words = f"{_WORDS[rule][0]}: {human.size(target_bytes)}"
    if rule is Rule.REST:
        return f"sync demand and {words}"
    if estimate.flooded and estimate.drain_rate and basis.spent:
        words += f"; {cost(estimate, basis)}"
    return words + trade(target_bytes, estimate, basis)


def held_to(name: str, target_bytes: int) -> str:
    """That another device, which needs less, is why a limit does not come."""
    return f"{name} needs less, and its {human.size(target_bytes)} holds for both"


def cost(estimate: Estimate, basis: Basis) -> str:
    """What syncs cost of the drain rate, and may."""
    return (f"syncs cost {human.percent(basis.spent)} of {human.size(estimate.drain_rate or 0.0)}"
            f"/s, and may cost {human.percent(basis.may_spend)}")


def trade(target_bytes: int, estimate: Estimate, basis: Basis) -> str:
    """Both prices where syncs miss the objective under a limit that could be smaller."""
    p99 = estimate.fsync_p99_s
    if not (estimate.flooded and estimate.full and p99 and p99 > basis.objective_s):
        return ""
    floor = basis.floor_bytes / estimate.limit_share
    smaller = target_bytes * basis.objective_s / p99
    text = f"; p99 {_ms(p99)} ms misses {_ms(basis.objective_s)} ms"
    if smaller < floor or not estimate.drain_rate:
        return text
    # What a sync waits for, and below the knee the rate as well, go with the limit.
    loss = 1.0 - min(1.0, estimate.background_rate * smaller / target_bytes / estimate.drain_rate)
    return (f"{text}: about {human.size(int(smaller))} would meet it, for up to"
            f" {human.percent(loss)} less than the disk's {human.size(estimate.drain_rate)}/s")


def next_step(rule: Rule) -> str:
    """What the law does next under a rule of its own."""
    return _WORDS[rule][1]


def objective_note() -> str:
    """What the law does about an objective that is missed."""
    return (f"while p99 is above the objective {human.percent(EXTRA)} of the drain rate more may be"
            f" spent on syncs, for {TRY_S:g} s, and if that does not help not again for"
            f" {human.duration(TRY_AGAIN_S)}")


def _ms(seconds: float) -> str:
    return human.milliseconds(seconds)
