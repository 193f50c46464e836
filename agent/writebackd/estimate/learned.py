# SPDX-License-Identifier: GPL-2.0-or-later
"""Learned values of a device that outlive a restart of the daemon.

Without them, fsync would be slow after each restart until a flood shows the drain rate again.  A
disk's rate and unloaded latency change far more slowly than the daemon restarts.  The estimators
correct a restored value as they correct their own.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Dict, Mapping, Optional, Sequence

from writebackd.tuning import KEEP_S
from writebackd.types.copying import replace
from writebackd.types.core_memory import Memory
from writebackd.types.device_memory import DeviceMemory, Fact, Learned
from writebackd.types.storage import Device

FACTS = tuple(field.name for field in fields(Learned))


def facts_of(learned: Learned) -> Dict[str, Fact]:
    """The facts that are known, by name."""
    facts = {name: getattr(learned, name) for name in FACTS}
    return {name: fact for name, fact in facts.items() if fact is not None}


def learn(memory: DeviceMemory, before: Learned, wall_s: float) -> Learned:
    """The facts in `memory` worth keeping; a value unchanged since `before` keeps its date."""
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
    """`learned` without facts dated more than KEEP_S in the past or in the future."""
    facts = facts_of(learned)
    # Far in the future: the clock was wrong then.  Slightly in the future: it was set back since.
    kept = {n: fact for n, fact in facts.items() if abs(wall_s - fact.wall_s) <= KEEP_S}
    return learned if kept == facts else Learned(**kept)


def seed(memory: DeviceMemory, learned: Learned, wall_s: float) -> DeviceMemory:
    """Fill the gaps in `memory` from what was learned earlier.

    A first guess, whatever its age: batteries age, arrays fill up and get rebuilt.  The first ticks
    with a full cache correct a drain rate that this run has not measured itself.
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
    """Seed every device that is new in `memory` with its `known` values.

    A device starts anew if its disk changed: its device number or disk sequence number, or its
    identity (which includes the cache mode).  If only the identity changed, sync demand and the
    count of decisions are kept.
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
    """Forget what was learned about a device, but not its current state."""
    return replace(
        memory, devices={**memory.devices, name: _unlearned(memory.devices[name])}
    )


def _unlearned(mine: DeviceMemory) -> DeviceMemory:
    # Decisions are counted on, since an id must not repeat.  Demand is observed, not learned.
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
    """Age of a drain rate learned by an earlier run; None if this run measured it."""
    fact = memory.earlier.drain_rate
    if fact is None or memory.drain_rate != fact.value:
        return None
    return max(0.0, wall_s - fact.wall_s)  # a clock may have been set back
