# SPDX-License-Identifier: GPL-2.0-or-later
"""A Snapshot: everything that reports are made of, as of one tick."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Mapping, NamedTuple, Optional, Tuple

from writebackd.alerts.alert_types import Alert, AlertName
from writebackd.kernel.conflicting_tools import ConflictingTool
from writebackd.notify import RouteState
from writebackd.policy import Policy
from writebackd.policy.keys import Objective
from writebackd.policy.reload import Open
from writebackd.report.totals import Totals
from writebackd.types.core_memory import Memory
from writebackd.types.decision import Decision, DeviceDecision, Mode
from writebackd.types.estimate import Estimate
from writebackd.types.levers import HeldLever, VmLimits
from writebackd.types.samples import ProbeInfo, Sample


class Pinned(NamedTuple):
    """Who pinned the limit, and when."""

    uid: int  # of the process at the control socket, as the kernel tells it
    wall_s: float
    until_s: Optional[float] = None  # as Sample.time_s; None: until it is released

    def is_over(self, now_s: float) -> bool:
        return self.until_s is not None and now_s >= self.until_s


class Draining(NamedTuple):
    """Who drains, and how long the limits of the devices stay at the floor."""

    number: int  # by which the client that began it is known
    uid: int
    wall_s: float
    until_s: Optional[float]  # as Sample.time_s, unless renewed; None: until it is released

    def is_over(self, now_s: float) -> bool:
        return self.until_s is not None and now_s >= self.until_s


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
    mode: Mode
    policy_name: str
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
    policy_chosen: str = ""  # why this policy, in words
    policy_files: Tuple[str, ...] = ()  # that it was read from, its own first
    rivals: Optional[Tuple[ConflictingTool, ...]] = None  # None: not looked for yet
    totals: Totals = field(default_factory=Totals)
    alerts: Tuple[Alert, ...] = ()  # active
    routes: Tuple[RouteState, ...] = ()
    runbook: str = ""  # its address
    pinned: Optional[Pinned] = None
    draining: Optional[Draining] = None
    window: Optional[Open] = None  # of the policy, that is open
    objective: Optional[Objective] = None  # in force, that of the window where one is open
    problem: Optional[str] = None  # why this tick is not whole
    standing: Optional[Standing] = None
    policy: Optional[Policy] = None  # in force

    @property
    def sets_limits(self) -> bool:
        """Whether decisions are carried out."""
        return self.mode is Mode.ENFORCE and self.off is None and self.memory.yielded is None

    def limit_of(self, device: Optional[str]) -> int:
        """The dirty limit that holds for a device: its own where it has one, else the host's."""
        cap = self.memory.caps.get(device or "") if self.sets_limits else None
        return cap.bytes if cap is not None and cap.in_force else self.sample.vm.threshold_bytes

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
    return replace(snapshot, mode=memory.mode, memory=memory, alerts=alerts)
