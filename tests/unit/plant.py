# SPDX-License-Identifier: GPL-2.0-or-later
"""A host in a few lines: what the law's two measured relations say would happen.

Above the knee a sync waits for what is queued ahead of it, limit / drain rate;
below it the writeback loop moves one limit per `tau`, so throughput is
limit / tau and the write cache has room.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import List, Optional, Tuple

from writebackd.control.decide import decide
from writebackd.estimate.estimator import estimate
from writebackd.policy.schema import Policy
from writebackd.types.core_memory import Memory
from writebackd.types.decision import Decision
from writebackd.types.estimate import Estimate
from writebackd.types.histogram import BUCKET_EDGES_S, Histogram
from writebackd.types.levers import VmLimits
from writebackd.types.samples import (
    ClassSample,
    DeviceSample,
    HostInfo,
    IoClass,
    Sample,
    SyncSample,
    TaskSample,
    VmState,
)
from writebackd.types.storage import Device

HOST = HostInfo(page_size=4096, cpus_online=2, memory_bytes=24 << 30)
DISK = Device(name="sda", devno="8:0", bdi="8:0", leaves=("sda",), leaf_devnos=("8:0",))
RATIOS = VmLimits(0, 20, 0, 10)
AS_FOUND = 4 << 30
UNLOADED_S = 0.3e-3


def latencies(seconds: float, count: int) -> Histogram:
    """`count` values in the bucket that `seconds` falls into."""
    index = max(i for i, edge in enumerate(BUCKET_EDGES_S[:-1]) if edge <= seconds)
    return Histogram(((index, count),)) if count else Histogram()


@dataclass
class Plant:
    """One device under a flood and a sync load; both can be switched."""

    policy: Policy
    drain_rate: float
    tau_s: float = 7.5e-3
    flood: bool = False
    syncing: bool = True
    limit: int = AS_FOUND
    time_s: float = 1000.0
    memory: Memory = field(default_factory=Memory)
    dirty: float = 0.0
    background: int = AS_FOUND // 2
    driver: Optional[str] = None

    def sample(self) -> Sample:
        """What a tick of one second would read."""
        knee = self.drain_rate * self.tau_s
        rate = min(self.drain_rate, self.limit / self.tau_s) if self.flood else 0.0
        full = self.flood and self.limit >= knee
        if self.flood:
            # The kernel's setpoint, midway between freerun and limit; going
            # down takes as long as the device needs.
            setpoint = 0.75 * self.limit + 0.25 * min(self.background, self.limit / 2)
            self.dirty = max(
                min(setpoint, self.dirty + 1e9), min(self.dirty - self.drain_rate, self.limit)
            )
        else:
            self.dirty = max(0.0, self.dirty - self.drain_rate)
        wait = UNLOADED_S + (self.dirty / self.drain_rate if full else 0.0)
        syncs = round(1 / wait) if self.syncing else 0
        sync = SyncSample(
            fsyncs=syncs,
            latency=latencies(wait, syncs),
            inflight=int(self.syncing),
            oldest_s=wait if self.syncing and wait > 1 else 0.0,
        )
        classes = {
            IoClass.BACKGROUND_WRITE: ClassSample(
                int(rate / (1 << 20)), int(rate), latencies(4e-3, int(rate / (1 << 20)))
            ),
            IoClass.SYNC_WRITE: ClassSample(syncs, syncs * 4096, latencies(wait, syncs)),
        }
        vm = VmState(RATIOS, int(self.dirty), 0, self.limit, self.background)
        return Sample(
            time_s=self.time_s,
            wall_s=self.time_s,
            dt_s=1.0,
            host=HOST,
            vm=vm,
            devices=(
                DeviceSample(
                    replace(DISK, driver=self.driver),
                    write_bytes=int(rate) + syncs * 4096,
                    busy_share=1.0 if self.flood else 0.3,
                    classes=classes,
                    sync=sync,
                ),
            ),
            tasks=(TaskSample(1, "dd", 1, "sda", int(rate), 0.9),) if self.flood else (),
        )

    def tick(self) -> Tuple[Estimate, Decision]:
        """Read, estimate, decide, apply."""
        sample = self.sample()
        estimates, memory = estimate(self.policy, self.memory, sample)
        decision, self.memory = decide(self.policy, memory, sample, estimates)
        self.limit = decision.limit_bytes if decision.limit_bytes is not None else AS_FOUND
        self.background = decision.background_bytes or AS_FOUND // 2
        self.time_s += 1.0
        return estimates["sda"], decision

    def run(self, ticks: int) -> List[Tuple[Estimate, Decision]]:
        return [self.tick() for _ in range(ticks)]

    def set(self, **changes: object) -> "Plant":
        return replace(self, **changes)  # type: ignore[arg-type]
