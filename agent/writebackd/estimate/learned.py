# SPDX-License-Identifier: GPL-2.0-or-later
"""Learned values of a device that outlive a restart of the daemon.

A restart costs a database its latency until the next flood has shown the drain
rate again; a disk's rate and unloaded latency outlive the daemon by far.  What
is seeded here the estimators correct as they correct their own values.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Dict, Mapping, Optional, Sequence

from writebackd.tuning import KEEP_S
from writebackd.types.copying import replace
from writebackd.types.core_memory import Memory
from writebackd.types.device_memory import DeviceMemory, Fact, Learned
from writebackd.types.storage import Device

FACTS = tuple(each.name for each in fields(Learned))


def facts_of(learned: Learned) -> Dict[str, Fact]:
    """The facts that are known, by name."""
    found = {name: getattr(learned, name) for name in FACTS}
    return {name: fact for name, fact in found.items() if fact is not None}


def learn(memory: DeviceMemory, before: Learned, wall_s: float) -> Learned:
    """What is to be kept of `memory`; a value that is as `before` keeps its date."""
    facts: Dict[str, Optional[Fact]] = {}
    for name in FACTS:
        value, old = getattr(memory, name), getattr(before, name)
        if value is None or not 0 < value < float("inf"):
            facts[name] = None
        else:
            same = old is not None and old.value == value
            facts[name] = old if same else Fact(float(value), wall_s)
    return Learned(**facts)


def unexpired(learned: Learned, wall_s: float) -> Learned:
    """The same without what was learned more than KEEP_S ago, or as far ahead."""
    facts = facts_of(learned)
    # Ahead: by a clock that was wrong.  By less, one was only set back.
    kept = {n: fact for n, fact in facts.items() if abs(wall_s - fact.wall_s) <= KEEP_S}
    return learned if kept == facts else Learned(**kept)


def seed(memory: DeviceMemory, learned: Learned, wall_s: float) -> DeviceMemory:
    """`memory` with the gaps filled from what was learned earlier.

    A first guess, whatever its age: batteries age, arrays fill and get rebuilt, and
    the first ticks with a full cache replace a drain rate that has none of its own.
    """
    known = facts_of(unexpired(learned, wall_s))
    values: Dict[str, Any] = {
        name: fact.value for name, fact in known.items() if getattr(memory, name) is None
    }
    seeds: Dict[str, Any] = {name: known[name] for name in values}
    return replace(memory, **values, earlier=Learned(**seeds))


def recall(
    memory: Memory, devices: Sequence[Device], known: Mapping[str, Learned], wall_s: float
) -> Memory:
    """`memory` with every device that is new in it seeded by what is `known`.

    A device starts anew when its disk is another one: by number and sequence,
    or because it calls itself something else (its cache mode is part of that).  With the
    same number it is the same host that goes on syncing, and its decisions are counted on.
    """
    changed: Dict[str, DeviceMemory] = {}
    for device in devices:
        mine = memory.devices.get(device.name)
        identity = (device.devno, device.diskseq)
        if mine is not None and mine.identity == identity:
            if mine.known_as == device.identity:
                continue
            if None not in (mine.known_as, device.identity):
                mine = _unlearned(mine)
        else:
            mine = None
        mine = replace(mine or DeviceMemory(identity=identity), known_as=device.identity)
        learned = known.get(device.identity) if device.identity is not None else None
        changed[device.name] = seed(mine, learned, wall_s) if learned is not None else mine
    if not changed:
        return memory
    return replace(memory, devices={**memory.devices, **changed})


def forgotten(memory: Memory, name: str) -> Memory:
    """`memory` without anything that was learned of a device; what it does now stays known."""
    return replace(
        memory, devices={**memory.devices, name: _unlearned(memory.devices[name])}
    )


def _unlearned(mine: DeviceMemory) -> DeviceMemory:
    # The count goes on: a decision id must not come twice.  Demand is not learned but seen.
    return DeviceMemory(
        identity=mine.identity,
        known_as=mine.known_as,
        recent_syncs=mine.recent_syncs,
        last_demand=mine.last_demand,
        state=mine.state,
        target_bytes=mine.target_bytes,
        decisions=mine.decisions,
    )


def earlier_drain_age_s(memory: DeviceMemory, wall_s: float) -> Optional[float]:
    """How long ago the drain rate was learned; None when it is this run's own."""
    fact = memory.earlier.drain_rate
    if fact is None or memory.drain_rate != fact.value:
        return None
    return max(0.0, wall_s - fact.wall_s)  # a clock may have been set back
