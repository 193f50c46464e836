# SPDX-License-Identifier: GPL-2.0-or-later
"""Views of a tick, and of one device in it, that the detectors read."""

from __future__ import annotations

from functools import cached_property
from typing import Container, Dict, List, Optional, Set, Tuple

from writebackd.alerts.alert_types import Alert, AlertName
from writebackd.alerts.baseline import small_bytes, small_writes
from writebackd.alerts.cause import BACKLOG_LEAST_BYTES, LARGE_BYTES
from writebackd.alerts.detector_memory import AlertMemory, Key
from writebackd.policy.keys import Alerts
from writebackd.policy.schema import Policy
from writebackd.tuning import FLOOD_RATE
from writebackd.types.core_memory import Memory
from writebackd.types.decision import Decision, Mode
from writebackd.types.estimate import Estimate
from writebackd.types.histogram import Histogram
from writebackd.types.samples import DeviceSample, Sample, TaskSample
from writebackd.types.storage import Backing

# Share of what syncs write that is dirtied before, unless direct IO writes it.  A journal of data
# doubles it, and of a thread the last 256 KB are not seen yet.
DIRTIED_SHARE = 0.25
# Share of the rate that a device is known to have, below which it is slow.
KNOWN_SHARE = 0.5


class TickView:
    """What the detectors of all devices share in a tick."""

    def __init__(
        self, policy: Policy, memory: AlertMemory, sample: Sample, decision: Decision,
        core: Memory, in_force: bool,
    ) -> None:
        self.policy, self.sample, self.decision, self.core = policy, sample, decision, core
        self.in_force = in_force
        # Whether the law limits floods: then alerts wait until it has had time to act.
        self.protects = in_force and core.mode is Mode.ENFORCE
        self.rules: Alerts = policy.alerts
        self.quiet = sample.time_s < memory.quiet_until_s
        self.begun_s = memory.begun_s
        # Devices with an active alert.
        self.stands = memory.standing.keys()
        self.alerting = {device for _, device in self.stands}
        self.left: Set[Optional[str]] = set()  # devices whose alerts are dropped
        self.raised: Dict[Key, Alert] = {}  # alerts of this tick
        self.well: Set[Key] = set()  # problems that are gone
        self.heavy = memory.heavy
        self.tasks: Dict[Optional[str], List[TaskSample]] = {}
        for task in sample.tasks:
            self.tasks.setdefault(task.device, []).append(task)

    def path(self, cgroup_id: int) -> Optional[str]:
        """The path of a cgroup, if it was seen in this tick."""
        return next((c.path for c in self.sample.cgroups if c.cgroup_id == cgroup_id), None)

    def backings_of(self, device: str) -> List[Backing]:
        return [backing for backing in self.sample.backings if backing.device == device]

    def tell(self, alert: Alert) -> None:
        self.raised[alert.name.value, alert.device] = alert


class DeviceView:
    """One device in one tick."""

    def __init__(
        self, tick: TickView, seen: DeviceSample, estimate: Estimate, slept_s: float
    ) -> None:
        """`slept_s`: SyncSample.throttled_now_s one tick ago."""
        self.tick, self.seen, self.estimate, self._slept_s = tick, seen, estimate, slept_s
        self.name = seen.device.name
        self.dt_s = tick.sample.dt_s
        self.rules = tick.rules
        self.standing = self.name in tick.alerting  # whether an alert stands on it

    def well(self, name: AlertName) -> None:
        """Note that this problem is gone, which matters only while its alert is active."""
        if self.standing:
            self.tick.well.add((name.value, self.name))

    @cached_property
    def small_writes(self) -> Tuple[int, int, Histogram]:
        return small_writes(self.seen)

    @property
    def sync_bytes(self) -> int:
        return small_bytes(self.seen)

    @property
    def late(self) -> bool:
        """Whether commits miss the policy's objective for the 99th percentile."""
        return max(self.estimate.commit_p99_s or 0.0, self.oldest_s) > self.objective_s

    @property
    def objective_s(self) -> float:
        device = self.seen.device
        policy = self.tick.policy
        return policy.of(device).fsync_p99_s

    def is_of(self, programs: Container[str]) -> bool:
        """Whether these programs dirtied most of what syncs write: now, or much of it lately."""
        tick = self.tick
        tasks = [*tick.tasks.get(self.name, ()), *tick.tasks.get(None, ())]
        for earlier in tick.heavy:
            if earlier.time_s < tick.sample.time_s:
                tasks += [task for task in earlier.tasks if task.device in (self.name, None)]
        own = sum([task.dirtied_bytes for task in tasks if task.comm in programs])
        most = sum([task.dirtied_bytes for task in tasks]) / 2
        return bool(own >= max(most, DIRTIED_SHARE * self.sync_bytes))

    @property
    def floor_bytes(self) -> Optional[int]:
        """The target if it is the lowest limit allowed, else None."""
        for d in self.tick.decision.devices:
            if d.name == self.name and d.basis is not None and d.target_bytes is not None:
                # The basis is of the part of the global limit that is this device's.
                part = int(d.target_bytes * self.estimate.limit_share)
                return d.target_bytes if part <= d.basis.floor_bytes else None
        return None

    @property
    def latency_s(self) -> float:
        """Mean latency of the tick's commits, or the age of a pending one."""
        estimate = self.estimate
        mean = estimate.commit_total_s / estimate.fsyncs if estimate.fsyncs else 0.0
        return max(mean, self.oldest_s)

    @cached_property
    def asleep_s(self) -> float:
        """How long a program that commits has slept in write(), if beyond the objective.

        A program whose sleep has not grown since the last tick does something else.
        """
        slept_s = self.seen.sync.throttled_now_s if self.seen.sync is not None else 0.0
        return slept_s if slept_s > self._slept_s and slept_s > self.objective_s else 0.0

    @property
    def oldest_s(self) -> float:
        """The age of the oldest pending commit."""
        return max(self.asleep_s, self.estimate.oldest_fsync_s)

    @property
    def waited(self) -> bool:
        """Whether a commit is pending, or was for half of the tick."""
        sync = self.seen.sync
        return bool((sync is not None and sync.inflight) or self.asleep_s) or (
            self.estimate.commit_total_s >= 0.5 * self.dt_s
        )

    @property
    def throttled_s(self) -> float:
        """The tick's length times the share of its commits' time slept in write()."""
        sync = self.seen.sync
        total_s = self.estimate.commit_total_s + self.oldest_s
        if sync is None or not total_s:
            return 0.0
        return self.dt_s * min(1.0, (sync.throttled_s + self.asleep_s) / total_s)

    @cached_property
    def loaded(self) -> bool:
        """Whether large fsyncs write back the flood: there are no background writes.

        At a fraction of its known rate the device is slow, not flooded.  If that rate is unknown,
        small writes may fill it by their number.
        """
        seen, core = self.seen, self.tick.core.devices.get(self.name)
        known = (core.drain_rate if core is not None else None) or 0.0
        rate = seen.write_bytes / self.dt_s
        return (
            rate >= max(FLOOD_RATE, KNOWN_SHARE * known)
            and (known > 0 or seen.write_bytes >= LARGE_BYTES * seen.writes)
            and self.backlog_bytes >= BACKLOG_LEAST_BYTES
        )

    @property
    def flooded(self) -> bool:
        """Whether a large backlog waits for writeback, whoever writes it."""
        return self.estimate.flooded or self.loaded

    @property
    def backlog_bytes(self) -> float:
        """This device's part of the dirty and writeback pages."""
        vm = self.tick.sample.vm
        return (vm.dirty_bytes + vm.writeback_bytes) * self.estimate.limit_share
