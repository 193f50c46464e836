# SPDX-License-Identifier: GPL-2.0-or-later
"""What is known of a drawn disk after one flood and then silence.

    PYTHONPATH=agent python -m tests.sim flood work [HOSTS]
    PYTHONPATH=agent python -m tests.sim flood judge [HOSTS]

The flood is three times the cache, or half of it.  Syncs go on all the time, or there are none.
With -v each host has a line.  The hosts are those of tests/sim/drawn.py that have a cache, with one
flood in the place of theirs.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import List, Optional, Sequence

from tests.sim import drawn
from tests.sim.plant import FOREVER, MB, DiskState, Loop, Plant
from tests.sim.scenarios import Scenario
from writebackd.policy.schema import Policy
from writebackd.types.core_memory import Memory
from writebackd.types.decision import Mode

TIMES, PART = 3.0, 0.5  # the cache: one that fills it, and one that does not
SHOWN_S = 2.0  # seconds of a full cache that a tick of a second is sure to see
RATE, SIZE = 0.1, 0.25  # what has to hold of R and of the size
# Seconds: vm.dirty_expire_centisecs, and what is waited for after all is written.
EXPIRE_S, SILENCE_S = 30.0, 10.0


class OneFlood(Plant):
    """A plant whose first disk gets one flood of `flood_bytes`, of which the last pages expire."""

    flood_bytes = FOREVER
    dirtied_s = FOREVER  # when the oldest dirty page was written
    full_s = 0.0  # for so long the cache was full
    wrote_s = 0.0  # and for so long the disk wrote

    def _write(
        self, state: DiskState, h: float, demand: float,
        limit: float, setpoint: float, background: float, blocked: bool, reach: float,
    ) -> None:
        if self.now_s - self.dirtied_s >= EXPIRE_S:
            background = 0.0
        before, written = state.accepted, state.written
        super()._write(state, h, demand, limit, setpoint, background, blocked, reach)
        self.flood_bytes -= state.accepted - before
        if self.flood_bytes <= 0.0:
            self.floods = []
        if state.dirty < 1.0:
            self.dirtied_s = FOREVER
        elif self.dirtied_s == FOREVER:
            self.dirtied_s = self.now_s
        if state.written > written:
            self.wrote_s += h
            self.full_s += h * (state.since_full_s == 0.0)

    @property
    def is_over(self) -> bool:
        return not self.floods and self.dirtied_s == FOREVER


@dataclass(frozen=True)
class Case:
    """What the agent does, how large the flood is, and whether anybody syncs beside it."""

    mode: Mode
    times: float  # the cache
    synced: bool = True

    @property
    def name(self) -> str:
        return f"{self.mode.value} {self.times:g}x" + ("" if self.synced else ", no syncs")


CASES = tuple(
    Case(mode, times, synced)
    for synced in (True, False) for times in (TIMES, PART) for mode in (Mode.OBSERVE, Mode.ENFORCE)
)  # fmt: skip


@dataclass(frozen=True)
class Known:
    """Of one host in one case, in parts of the truth; None: not known."""

    rate: Optional[float]
    size: Optional[float]
    full_s: float  # for so long the cache was full
    wrote_s: float  # for so long the flood was written

    @property
    def is_right(self) -> bool:
        return self.rate is not None and abs(self.rate - 1.0) <= RATE


def after_flood(host: Scenario, seed: int, policy: Policy, case: Case) -> Known:
    """What is known of a host's first disk after its first flood, which ends in this case's way."""
    disk = host.disks[0]
    # Anywhere between two ticks.
    start_s = drawn.FLOOD_S + random.Random(f"flood {seed}").random()
    flood = replace(host.floods[0], start_s=start_s, on_s=0.0, off_s=0.0)
    plant = OneFlood(host.disks, (flood,), host.syncs if case.synced else (), seed=seed)
    plant.flood_bytes = case.times * disk.cache
    loop, over_s = Loop(policy, plant, Memory(mode=case.mode)), FOREVER
    while plant.now_s < over_s + SILENCE_S:
        loop.tick()
        if over_s == FOREVER and plant.is_over:
            over_s = plant.now_s
    (known,) = loop.memory.devices.values()
    return Known(
        known.drain_rate / disk.drain if known.drain_rate is not None else None,
        known.cache_bytes / disk.cache if known.cache_bytes is not None else None,
        plant.full_s, plant.wrote_s,
    )  # fmt: skip


def cached(chosen: Sequence[int]) -> List[int]:
    """The seeds whose disk has a cache."""
    return [seed for seed in chosen if drawn.host(seed).disks[0].cache]


def table(chosen: Sequence[int], policy: Policy, verbose: bool = False) -> str:
    """How many know R and the size, and how many of these are right."""
    half, hosts = drawn.half_of(chosen), cached(chosen)
    lines = [f"{half}: {len(hosts)} hosts with a cache, of seeds {chosen[0]} to {chosen[-1]};"
             f" right: R within {RATE:.0%}, the cache within {SIZE:.0%}",
             f"{'':22}{f'full {SHOWN_S:g} s':>10}{'R known':>9}{'right':>7}{'below':>7}{'above':>7}"
             f"{'cache known':>13}{'right':>7}"]
    for case in CASES:
        found = [after_flood(drawn.host(seed), seed, policy, case) for seed in hosts]
        if verbose:
            lines += [_line(seed, known, case) for seed, known in zip(hosts, found)]
        rates = [known.rate for known in found if known.rate is not None]
        sizes = [known.size for known in found if known.size is not None]
        lines.append(
            f"{case.name:22}{sum(known.full_s >= SHOWN_S for known in found):10}{len(rates):9}"
            f"{sum(known.is_right for known in found):7}"
            f"{sum(rate < 1.0 - RATE for rate in rates):7}"
            f"{sum(rate > 1.0 + RATE for rate in rates):7}{len(sizes):13}"
            f"{sum(abs(size - 1.0) <= SIZE for size in sizes):7}")
    return "\n".join(lines)


def _line(seed: int, known: Known, case: Case) -> str:
    host = drawn.host(seed)
    disk = host.disks[0]
    return (f"{host.name:15}R{disk.drain / MB:5.0f} C{disk.cache / MB:5.0f}"
            f" C/R{disk.cache / disk.drain:6.1f} s link/R{disk.link / disk.drain:4.1f}"
            f" c{disk.scattered_s * 1e3:5.2f}ms  {case.name}: R{_part(known.rate)}"
            f" C{_part(known.size)} full {known.full_s:.1f} of {known.wrote_s:.1f} s")


def _part(value: Optional[float]) -> str:
    return "    -" if value is None else f"{value:5.2f}"
