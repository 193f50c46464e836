# SPDX-License-Identifier: GPL-2.0-or-later
"""An array with a write cache under a flood that lives in a cgroup of its own.

A second is ten steps of a cache that takes what comes and drains at the media's rate.  What
is beyond the cache's room waits, and with it every sync: for the limit's worth of dirty
pages when the flood is not held, for the paced cgroup's data when `entangled` says that
commits wait for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Optional, Tuple

from plant import AS_FOUND, DISK, HOST, RATIOS, UNLOADED_S, latencies
from writebackd.control.decide import decide
from writebackd.estimate.estimator import estimate
from writebackd.policy.schema import Policy
from writebackd.types.core_memory import Memory
from writebackd.types.decision import Decision
from writebackd.types.histogram import Histogram
from writebackd.types.levers import ForeignWrite
from writebackd.types.samples import (
    CgroupControl,
    CgroupSample,
    ClassSample,
    DeviceSample,
    IoClass,
    Sample,
    SyncSample,
    TaskSample,
    VmState,
)

FLOOD, DATABASE = "/system.slice/backup.service", "/system.slice/postgresql.service"
CACHE = 256 << 20
STEPS = 10
GRAIN = 1 << 20  # below this the limit loses its grip: see docs/reference/decisions.md
SYNCS = 2000.0  # per second without anything in the way


@dataclass
class Group:
    """A cgroup that floods: what it would write, and what its files say."""

    path: str = FLOOD
    demand: float = 1e9
    delegated: bool = False
    outside: bool = False
    related: Optional[Tuple[str, ...]] = None
    foreign: Tuple[Tuple[str, str], ...] = ()
    controller: bool = True
    off: bool = False  # until systemd sets the first limit
    syncs: int = 0
    cgroup_id: int = 7
    refuses: bool = False  # io.max cannot be set
    asked_s: float = 0.0
    pace: int = 0
    written: int = 0

    def sample(self) -> CgroupSample:
        lines = list(self.foreign)
        if self.pace:
            lines.append((DISK.devno, f"rbps=max wbps={self.pace} riops=max wiops=max"))
        off = self.off and not self.pace
        return CgroupSample(
            self.cgroup_id, self.path, DISK.name, dirtied_bytes=self.written, syncs=self.syncs,
            control=CgroupControl(
                io_max=tuple(lines) if self.controller else None, off=off,
                written=() if off else ((DISK.devno, self.written),),
                delegated=self.delegated, outside=self.outside, related=self.related,
            ),
        )  # fmt: skip


@dataclass
class PacedPlant:
    policy: Policy
    drain_rate: float = 60e6
    sync_cost: float = 200.0  # bytes of media time that a sync costs: most are overwritten
    groups: List[Group] = field(default_factory=lambda: [Group()])
    flooding: bool = True
    syncing: bool = True
    oldest_s: float = 0.0  # age of the sync that is in flight at the tick
    entangled_s: float = 0.0  # that every sync waits for paced data
    database: Optional[str] = DATABASE
    limit: int = AS_FOUND
    background: int = AS_FOUND // 2
    time_s: float = 1000.0
    dt_s: float = 1.0
    child_s: float = 0.0  # from a pace that is asked for until the kernel has it
    fill: float = 0.0
    dirty: float = 0.0
    foreign: Tuple[ForeignWrite, ...] = ()
    memory: Memory = field(default_factory=Memory)

    def tick(self) -> Decision:
        sample = self._sample()
        estimates, memory = estimate(self.policy, self.memory, sample)
        decision, self.memory = decide(self.policy, memory, sample, estimates)
        self.limit = decision.limit_bytes if decision.limit_bytes is not None else AS_FOUND
        self.background = decision.background_bytes or AS_FOUND // 2
        rates = {setting.target: setting.value for setting in decision.settings}
        for group in self.groups:
            asked = rates.get(group.path, 0)
            if not asked or group.pace:
                group.asked_s = self.time_s
            late = asked and not group.pace and self.time_s - group.asked_s < self.child_s
            if not group.refuses and not late:
                group.pace = asked
        self.time_s += self.dt_s
        return decision

    def run(self, ticks: int) -> List[Decision]:
        return [self.tick() for _ in range(ticks)]

    def run_s(self, seconds: float) -> List[Decision]:
        return self.run(round(seconds / self.dt_s))

    def calm(self) -> None:
        """Idle for a while, so that the unloaded latency is known."""
        self.flooding = False
        self.run_s(15.0)
        self.flooding = True

    @property
    def paced(self) -> Dict[str, int]:
        return {group.path: group.pace for group in self.groups if group.pace}

    @property
    def rate(self) -> float:
        return float(sum(self.paced.values()))

    def _sample(self) -> Sample:
        flood = [min(g.demand, g.pace or g.demand) if self.flooding else 0.0 for g in self.groups]
        unheld = any(self.flooding and g.demand > 0 and not g.pace for g in self.groups)
        syncs, full_steps, inflow = 0.0, 0, 0.0
        steps = round(STEPS * self.dt_s)
        for _ in range(steps):
            room = CACHE - self.fill + self.drain_rate / STEPS
            wanted = sum(flood) / STEPS
            taken = min(wanted, room)
            full = wanted + self.syncing * SYNCS / STEPS * self.sync_cost > room
            wait = UNLOADED_S
            if full:
                wait += max(GRAIN, self.limit if unheld else GRAIN) / self.drain_rate
                full_steps += 1
            if self.rate:
                wait += self.entangled_s
            done = min(SYNCS, 1 / wait) / STEPS if self.syncing else 0.0
            self.fill = min(
                CACHE, max(0.0, self.fill + taken + done * self.sync_cost - self.drain_rate / STEPS)
            )
            syncs += done
            inflow += taken
        for group, rate in zip(self.groups, flood):
            group.written = int(inflow * rate / max(sum(flood), 1.0))
        # Who writes less than is taken leaves little behind; else it is at the kernel's setpoint.
        held = self.flooding and (unheld or any(g.demand > g.pace for g in self.groups))
        limit, background = min(self.limit, 1e9), min(self.background, 5e8)
        self.dirty = (0.75 * limit + 0.25 * background) if held else 0.3 * limit * self.flooding
        return self._seen(inflow, syncs, full_steps / steps, unheld)

    def _seen(self, inflow: float, syncs: float, full: float, unheld: bool) -> Sample:
        slow = UNLOADED_S + max(GRAIN, self.limit if unheld else GRAIN) / self.drain_rate
        fast = UNLOADED_S + (self.entangled_s if self.rate else 0.0)
        number = max(1, round(syncs)) if self.syncing else 0
        # Of a closed loop most are done while there is room.
        late = number if full >= 1 else round(full * STEPS) * number // (10 * STEPS)
        histogram = latencies(fast, number - late) + latencies(slow, late)
        writes = number if full >= 1 else round(number * full)
        blocks = latencies(0.1e-3, number - writes) + latencies(slow, writes)
        chunks = int(inflow / (1 << 20))
        classes = {
            IoClass.BACKGROUND_WRITE: ClassSample(chunks, int(inflow),
                                                   latencies(slow if full > 0.5 else 4e-3, chunks)),
            IoClass.SYNC_WRITE: ClassSample(number, number * 4096, blocks),
        }
        cgroups = [group.sample() for group in self.groups]
        cgroups.append(CgroupSample(3, self.database, DISK.name, syncs=number))
        return Sample(
            time_s=self.time_s, wall_s=self.time_s, dt_s=self.dt_s, host=HOST,
            vm=VmState(RATIOS, int(self.dirty), 0, self.limit, self.background),
            devices=(
                DeviceSample(
                    DISK, write_bytes=int(inflow) + number * 4096,
                    busy_share=1.0 if inflow else 0.3, classes=classes,
                    sync=SyncSample(
                        fsyncs=number, latency=histogram if number else Histogram(),
                        inflight=int(self.syncing), oldest_s=self.oldest_s,
                    ),
                ),
            ),
            # Who is not paced brings more than the limit lets in.
            tasks=tuple([
                TaskSample(g.cgroup_id, "dd", g.cgroup_id, DISK.name, g.written,
                           0.9 * self.dt_s * (not g.pace and g.demand > self.drain_rate))
                for g in self.groups
            ]) if self.flooding else (),
            cgroups=tuple(cgroups), foreign=self.foreign,
        )  # fmt: skip
