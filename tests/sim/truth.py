# SPDX-License-Identifier: GPL-2.0-or-later
"""R and the size of the cache, second by second, beside what the plant's disk really does."""

from __future__ import annotations

from dataclasses import replace
from typing import List, NamedTuple, Optional, Sequence, Tuple

from tests.sim.plant import MB, Disk, Event, Flood, Loop, Plant, SyncLoad
from tests.sim.scenarios import SSD, SSD_VOLATILE
from writebackd.policy.schema import Policy
from writebackd.types.core_memory import Memory

BEGINS_S, CHANGES_S, BACK_S, END_S = 6.0, 40.0, 80.0, 120.0


class Second(NamedTuple):
    now_s: float
    truth: float  # of the media, bytes per second
    rate: Optional[float]  # R
    cache: Optional[float]  # bytes
    written: float  # since the flood began, bytes


def played(
    policy: Policy, disk: Disk, seed: int, end_s: float, events: Sequence[Event] = ()
) -> List[Second]:
    """A flood beside syncs, from BEGINS_S on."""
    plant = Plant((disk,), (Flood(start_s=BEGINS_S),), (SyncLoad(),), tuple(events), seed=seed)
    loop, found, written = Loop(policy, plant, Memory()), [], 0.0
    while plant.now_s < end_s - 1e-6:
        sample, estimates, _ = loop.tick(1.0)
        (known,) = estimates.values()
        written += known.rate * sample.dt_s if plant.now_s > BEGINS_S else 0.0
        found.append(Second(
            plant.now_s, plant.disks[0].disk.drain, known.drain_rate, known.cache_bytes, written
        ))  # fmt: skip
    return found


# A name, the disk, and its rate from CHANGES_S to BACK_S.
CHANGES: Tuple[Tuple[str, Disk, float], ...] = (
    ("Data that does not compress", replace(SSD, drain=400.0 * MB), 200.0 * MB),
    ("Garbage collection", SSD_VOLATILE, 150.0 * MB),
)


def changing(disk: Disk, slower: float) -> Tuple[Event, ...]:
    return Event(CHANGES_S, {"drain": slower}), Event(BACK_S, {"drain": disk.drain})
