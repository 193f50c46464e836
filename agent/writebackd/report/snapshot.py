# SPDX-License-Identifier: GPL-2.0-or-later
"""A Snapshot: everything that reports are made of, as of one tick, with counters since the start.

Frozen: a thread may render it while the loop continues.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Iterable, Mapping, NamedTuple, Optional, Tuple

from writebackd.alerts.alert_types import Alert, AlertName
from writebackd.kernel.conflicting_tools import ConflictingTool
from writebackd.notify.route import RouteState
from writebackd.policy import Policy
from writebackd.policy.reload import Open
from writebackd.types.copying import replace
from writebackd.types.core_memory import Memory
from writebackd.types.decision import Decision, DeviceDecision, Mode
from writebackd.types.estimate import Estimate
from writebackd.types.histogram import BUCKET_EDGES_S, HIST_BUCKETS
from writebackd.types.levers import Action, HeldLever, LeverKind, VmLimits
from writebackd.types.samples import ProbeInfo, Sample

# Upper bounds. From an NVMe's unloaded fsync to a hung task; 5, 10, 20, 50 and 100 ms are what
# policies name as objectives. Fifteen series a device with +Inf.
COMMIT_BOUNDS_S = (
    0.0001, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 30.0,
)  # fmt: skip
# The tick is due every second; 50 ms is what it may cost with 1 024 disks.
TICK_BOUNDS_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)

# The probe's bucket -> ours. Its buckets are up to 12.5 % wide and their edges are not ours: a
# value counts as below a bound when all of its bucket is, so a latency is never made to look
# better. The probe's last bucket has no upper edge.
_BUCKET = (
    *(bisect_left(COMMIT_BOUNDS_S, BUCKET_EDGES_S[n + 1]) for n in range(HIST_BUCKETS - 1)),
    len(COMMIT_BOUNDS_S),
)

LIMITS = "limits"
_KINDS = frozenset(kind.value for kind in LeverKind)
_LIMIT = frozenset(("dirty_bytes", "dirty_ratio"))


class DeviceTotals(NamedTuple):
    """One device since the daemon started, the device appeared, or a reset."""

    diskseq: Optional[int] = None
    commits: Tuple[int, ...] = (0,) * (len(COMMIT_BOUNDS_S) + 1)  # by bucket, not cumulative
    commit_s: float = 0.0  # their times together
    fsync_s: float = 0.0  # of it in fsync
    written_bytes: int = 0
    read_bytes: int = 0
    busy_s: float = 0.0
    decisions: int = 0
    decision_id: Optional[str] = None  # the last one counted


@dataclass(frozen=True)
class Totals:
    """The daemon since its start, or a reset."""

    reset_s: Optional[float] = None  # wall clock; None: never
    devices: Mapping[str, DeviceTotals] = field(default_factory=dict)  # by name
    limit_changes: int = 0  # writes that gave the dirty limit another value
    # By kind of lever ("limits" for the global pair) and whether the kernel took it.
    writes: Mapping[Tuple[str, bool], int] = field(default_factory=dict)
    foreign_writes: int = 0
    ticks: Tuple[int, ...] = (0,) * (len(TICK_BOUNDS_S) + 1)  # by duration, not cumulative
    ticks_s: float = 0.0
    failed_ticks: int = 0  # nothing could be read
    cpu_s: float = 0.0
    raised: Mapping[str, int] = field(default_factory=dict)  # alerts by name

    def zeroed(self, wall_s: float) -> "Totals":
        """Anew from now on; what is no count stays, as does processor time, the kernel's."""
        devices = {
            name: DeviceTotals(diskseq=each.diskseq, decision_id=each.decision_id)
            for name, each in self.devices.items()
        }
        return Totals(reset_s=wall_s, devices=devices, cpu_s=self.cpu_s)

    def acted(self, actions: Iterable[Action]) -> "Totals":
        """Count these writes, which were actually tried."""
        writes, changes = dict(self.writes), self.limit_changes
        for action in actions:
            first = action.lever.partition(" ")[0]
            key = (first if first in _KINDS else LIMITS, action.ok)
            writes[key] = writes.get(key, 0) + 1
            changes += action.ok and first in _LIMIT and action.old != action.new
        return replace(self, writes=writes, limit_changes=changes)

    def alerted(self, name: str) -> "Totals":
        """Count an alert that begins."""
        return replace(self, raised={**self.raised, name: self.raised.get(name, 0) + 1})

    def ticked(self, seconds: float) -> "Totals":
        counts = list(self.ticks)
        counts[bisect_left(TICK_BOUNDS_S, seconds)] += 1
        return replace(self, ticks=tuple(counts), ticks_s=self.ticks_s + seconds)

    def seen(
        self, sample: Sample, estimates: Mapping[str, Estimate], decision: Decision, cpu_s: float
    ) -> "Totals":
        """Count what a tick measured and decided; `cpu_s` is the daemon's own since its start."""
        ids = {each.name: each.decision_id for each in decision.devices}
        devices, known, dt_s = {}, self.devices, sample.dt_s
        for each in sample.devices:
            if each.excluded is not None:
                continue
            name, diskseq = each.device.name, each.device.diskseq
            before = known.get(name)
            if before is None or before.diskseq != diskseq:
                before = DeviceTotals(diskseq)
            _, commits, commit_s, fsync_s, written, read, busy_s, decisions, decided_before = before
            estimate, sync = estimates[name], each.sync
            ended = sync.commit_latency if sync is not None else None
            if ended is not None and ended.counts:
                counts = list(commits)
                for bucket, count in zip(ended.indices, ended.counts):
                    counts[_BUCKET[bucket]] += count
                commits = tuple(counts)
            decided = ids.get(name)
            # As a tuple, as in kernel/diskstats.py: the order of the fields above.
            devices[name] = tuple.__new__(DeviceTotals, (
                diskseq,
                commits,
                commit_s + estimate.commit_total_s,
                fsync_s + estimate.fsync_total_s,
                written + each.write_bytes,
                read + each.read_bytes,
                busy_s + each.busy_share * dt_s,
                decisions + (decided is not None and decided != decided_before),
                decided,
            ))  # fmt: skip
        return replace(
            self,
            devices=devices,
            foreign_writes=self.foreign_writes + len(sample.foreign),
            # A clock's figure that went back would be taken for a restart.
            cpu_s=max(self.cpu_s, cpu_s),
        )


class Pinned(NamedTuple):
    """Who pinned the limit, and when."""

    uid: int  # of the process at the control socket, as the kernel tells it
    wall_s: float
    until_s: Optional[float] = None  # as Sample.time_s; None: until it is released


class Draining(NamedTuple):
    """Who drains, and how long the limits of the devices stay at the floor."""

    number: int  # by which the client that began it is known
    uid: int
    wall_s: float
    until_s: Optional[float]  # as Sample.time_s, unless renewed; None: until it is released


class VerdictCode(Enum):
    """The first word of status; report/verdict.py chooses it, the worst first."""

    BLIND = "BLIND"  # statistics cannot be read, or fsync latency is not visible
    FAILED = "FAILED"  # a limit could not be written, or is set and not in force
    MISSES_OBJECTIVE = "MISSES_OBJECTIVE"
    OFF = "OFF"  # a kill-switch file exists
    YIELDED = "YIELDED"  # another process set the limits
    ALERT = "ALERT"  # an alert stands, and none of the above says so
    TRIAL = "TRIAL"
    PINNED = "PINNED"  # or held at the floor by a drain
    OBSERVING = "OBSERVING"
    OK = "OK"


class Standing(NamedTuple):
    """The verdict of the last tick; times as in Sample.wall_s."""

    code: VerdictCode
    since_s: float
    missing: Tuple[Tuple[str, float], ...] = ()  # devices that miss the objective, since when


@dataclass(frozen=True)
class Snapshot:
    """A finished tick, and the state of the daemon itself."""

    version: str
    policy: Policy  # in force
    started_s: float  # CLOCK_BOOTTIME, as Sample.time_s
    sample: Sample
    estimates: Mapping[str, Estimate]  # by device name
    decision: Decision
    memory: Memory
    originals: VmLimits
    probe: ProbeInfo
    self_cpu_fraction: float  # of one core, since the daemon started
    self_rss_bytes: int
    state_dir: str
    levers: Tuple[HeldLever, ...] = ()  # beside the global pair, that hold a value of ours
    started_wall_s: Optional[float] = None  # by the wall clock of then
    lease_s: Optional[float] = None  # until the watcher restores unless it is renewed
    watcher_pid: Optional[int] = None  # None: no watcher runs
    leases_lost: int = 0  # since the start
    history_dropped: int = 0  # events that the history writer could not keep up with
    off: Optional[str] = None  # the kill-switch file that is there
    unseen: Optional[str] = None  # what /proc hides from the daemon, in words
    messages: Tuple[str, ...] = ()  # warnings to show, such as degraded hotplug
    rivals: Optional[Tuple[ConflictingTool, ...]] = None  # None: not looked for yet
    totals: Totals = field(default_factory=Totals)
    alerts: Tuple[Alert, ...] = ()  # active
    routes: Tuple[RouteState, ...] = ()
    runbook: str = ""  # its address
    pinned: Optional[Pinned] = None
    draining: Optional[Draining] = None
    window: Optional[Open] = None  # of the policy, that is open
    problem: Optional[str] = None  # why this tick is not whole
    standing: Optional[Standing] = None

    @property
    def sets_limits(self) -> bool:
        return self.memory.mode is Mode.ENFORCE and self.off is None and self.memory.yielded is None

    @cached_property
    def own_limits(self) -> Mapping[str, int]:
        """Limits of single devices, whoever set them, bytes, by name."""
        own = {
            seen.device.name: seen.strict_bytes for seen in self.sample.devices
            if seen.strict_bytes is not None
        }
        if self.sets_limits:
            own.update((name, cap.bytes) for name, cap in self.memory.caps.items() if cap.in_force)
        return own

    def limit_of(self, device: Optional[str]) -> int:
        """The dirty limit that holds for a device: its own where it has one, else the host's."""
        return self.own_limits.get(device or "", self.sample.vm.threshold_bytes)

    @property
    def decisions(self) -> Mapping[str, DeviceDecision]:
        """By device name."""
        return {each.name: each for each in self.decision.devices}


def original_bytes(snapshot: Snapshot) -> Tuple[int, int]:
    """The original limits (limit, background), in bytes.

    A ratio is of dirtyable memory, which drifts: while the ratio is in force
    the kernel's own figure is used, later the share of all memory, which is
    somewhat too large.
    """
    original, vm = snapshot.originals, snapshot.sample.vm
    if vm.limits == original:
        return vm.threshold_bytes, vm.background_threshold_bytes
    total = snapshot.sample.host.memory_bytes
    limit = original.dirty_bytes or total * original.dirty_ratio // 100
    background = original.dirty_background_bytes or total * original.dirty_background_ratio // 100
    # The kernel takes half of the limit where the background is not below it.
    return limit, background if background < limit else limit // 2


def in_mode(snapshot: Snapshot, memory: Memory) -> Snapshot:
    """The snapshot after a change of mode, so that no answer has the old one."""
    alerts = tuple(
        each for each in snapshot.alerts if each.name is not AlertName.FOREIGN_WRITER
    )
    # Anew: a quick copy would keep what was computed for the mode before.
    return dataclasses.replace(snapshot, memory=memory, alerts=alerts)
