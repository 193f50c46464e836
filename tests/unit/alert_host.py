# SPDX-License-Identifier: GPL-2.0-or-later
"""Seconds of one disk, as the detector sees them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Dict, List, Mapping, Optional, Tuple

import samples
from plant import latencies
from writebackd.alerts import messages
from writebackd.alerts.alert_types import Alert, AlertName, Cause
from writebackd.alerts.detect import detect
from writebackd.alerts.detector_memory import AlertMemory
from writebackd.alerts.views import TickView
from writebackd.policy import load_policy
from writebackd.policy.schema import Policy
from writebackd.types.core_memory import Memory
from writebackd.types.decision import Basis, Decision, DeviceDecision, DeviceState, Mode
from writebackd.types.device_memory import DeviceMemory
from writebackd.types.estimate import Estimate
from writebackd.types.histogram import Histogram
from writebackd.types.levers import VmLimits
from writebackd.types.samples import (
    CgroupSample,
    ClassSample,
    DeviceSample,
    IoClass,
    Sample,
    SyncSample,
    TaskSample,
    VmState,
)
from writebackd.types.storage import Backing, Device

MB = 1 << 20
SDA = Device("sda", "8:0", "8:0", ("sda",), ("8:0",), diskseq=1, driver="megaraid_sas")
SDB = Device("sdb", "8:16", "8:16", ("sdb",), ("8:16",), diskseq=2, driver="megaraid_sas")


def done_about(cause: Cause, decision: Decision, memory: Memory) -> str:
    """What an alert on sda with this cause says that the agent did."""
    sample = samples.guard().sample
    tick = TickView(load_policy(), AlertMemory(), sample, decision, memory, in_force=True)
    return messages.done(tick, "sda", cause)


# A seek and a part of a turn: none is like another.
SEEKS = (0.4, 0.7, 1.0, 1.3, 1.6)


@dataclass
class Watched:
    """One host; `second()` is one tick of it, with what differs from a usual one."""

    policy: Policy = field(default_factory=lambda: load_policy("default"))
    memory: AlertMemory = field(default_factory=AlertMemory)
    core: Memory = field(default_factory=Memory)
    time_s: float = 1000.0
    device: Device = SDA
    in_force: bool = True
    limit_share: float = 1.0
    alerts: Tuple[Alert, ...] = ()

    def second(
        self,
        syncs: int = 1000,
        latency_s: float = 0.4e-3,
        spread: float = 1.0,  # the slowest tenth takes so many times as long
        seeks: bool = False,
        inflight: int = 0,
        waiting: int = 0,
        oldest_s: float = 0.0,
        write_s: float = 0.0,  # that each commit slept in write()
        asleep_s: float = 0.0,  # of one that has not synced yet
        flood: int = 0,  # bytes
        writes: int = 0,  # where they are more than the syncs
        dirty: int = 0,
        completed: bool = True,
        sync_bytes: int = 4096,
        dt_s: float = 1.0,
        excluded: Optional[str] = None,
        flushes: int = 0,
        others: int = 0,
        state: DeviceState = DeviceState.GUARD,
        sighted: bool = True,
        tasks: Tuple[TaskSample, ...] = (),
        cgroups: Tuple[CgroupSample, ...] = (),
        more: Tuple[DeviceSample, ...] = (),
        backings: Tuple[Backing, ...] = (),
        basis: Optional[Basis] = None,
        cache_bytes: Optional[float] = None,
        drain_rate: Optional[float] = None,
        limit: int = 4 << 30,
    ) -> Tuple[Alert, ...]:
        self.time_s += dt_s
        done = syncs if completed else 0
        slow = done // 10
        found = latencies(latency_s, done - slow) + latencies(latency_s * spread, slow)
        if seeks:
            found = Histogram()
            for multiple in SEEKS:
                found += latencies(latency_s * multiple, done // len(SEEKS))
        commits = latencies(latency_s + write_s, done) if write_s or asleep_s else found
        classes: Dict[IoClass, ClassSample] = {
            IoClass.SYNC_WRITE: ClassSample(done, done * sync_bytes, found)
        }
        if flushes:
            classes[IoClass.FLUSH] = ClassSample(flushes, 0, latencies(1e-3, flushes))
        seen = DeviceSample(
            self.device, excluded, done * sync_bytes + flood, 0, writes or done, inflight, 1.0,
            classes if sighted else None,
            SyncSample(
                done, 0, found, waiting, oldest_s, commits=commits, throttled_s=done * write_s,
                throttled_now_s=asleep_s,
            ) if sighted else None,
            others,
        )  # fmt: skip
        estimate = samples.estimate(
            "sda", sync_rate=done / dt_s if sighted else None, demand_known=sighted,
            fsyncs=done, fsync_total_s=found.total_s(), fsync_p99_s=found.quantile(0.99),
            fsyncs_inflight=waiting, oldest_fsync_s=oldest_s, flooded=flood > MB,
            commit_total_s=commits.total_s(), commit_p99_s=commits.quantile(0.99),
            oldest_commit_s=max(oldest_s, asleep_s),
            rate=float(done * sync_bytes + flood) / dt_s, inflight=inflight,
            limit_share=self.limit_share, cache_bytes=cache_bytes, drain_rate=drain_rate,
        )
        estimates: Dict[str, Estimate] = {"sda": estimate}
        for each in more:
            estimates[each.device.name] = replace(estimate, name=each.device.name)
        sample = Sample(
            self.time_s, 1.7e9 + self.time_s, dt_s, samples.HOST,
            VmState(VmLimits(0, 20, 0, 10), dirty, 0, limit, limit // 2), (seen, *more),
            tasks, cgroups, backings=backings,
        )  # fmt: skip
        decision = Decision(
            4 * MB, 2 * MB, 4 * MB, "",
            (DeviceDecision("sda", state, 4 * MB, "at the floor", "sda#1", basis=basis),),
        )
        self.alerts, self.memory = detect(
            self.policy, self.memory, sample, estimates, decision, self.core, self.in_force
        )
        return self.alerts

    def seconds(self, count: int, **more: Any) -> None:
        for _ in range(count):
            self.second(**more)

    def ends_in(self, **more: Any) -> int:
        """Seconds until no alert stands any more."""
        for n in range(1000):
            if not self.alerts:
                return n
            self.second(**more)
        raise AssertionError("it stands for ever")

    def usual(self, seconds: int = 60, **more: Any) -> "Watched":
        for _ in range(seconds):
            assert self.second(**more) == ()
        return self

    def until(self, seconds: int, **differs: Any) -> int:
        """Seconds until there is an alert; fails when there is none within `seconds`."""
        for n in range(1, seconds + 1):
            if self.second(**differs):
                return n
        raise AssertionError(f"nothing was told in {seconds} s of {differs}")

    def names(self) -> List[AlertName]:
        return [alert.name for alert in self.alerts]


# A sync load that starves behind a flood.
DD = TaskSample(4711, "dd", 7, "sda", 200 * MB, 0.9, "/system.slice/backup.service")
STARVED: Mapping[str, Any] = {
    "syncs": 2, "latency_s": 1.0, "waiting": 1, "flood": 200 * MB, "dirty": 3 << 30,
    "tasks": (DD,),
}  # fmt: skip
SLOW: Mapping[str, Any] = {"syncs": 20, "latency_s": 50e-3, "spread": 3.0, "waiting": 1}
HANGS: Mapping[str, Any] = {
    "completed": False, "inflight": 4, "waiting": 2, "oldest_s": 5.0,
}  # fmt: skip
UNCACHED: Mapping[str, Any] = {"syncs": 150, "latency_s": 5e-3, "seeks": True, "waiting": 1}


def remembered(**more: Any) -> Memory:
    return Memory(devices={"sda": DeviceMemory(flood_began_s=1055.0)}, **more)


def starved(mode: Mode = Mode.OBSERVE) -> Watched:
    host = Watched(core=remembered(mode=mode)).usual()
    host.until(60, **STARVED)
    return host
