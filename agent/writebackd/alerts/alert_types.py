# SPDX-License-Identifier: GPL-2.0-or-later
"""Types of an alert: name, severity, cause, culprits, evidence.  Frozen.

The detector raises alerts, status shows them, the routes send them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Optional, Tuple

from writebackd import formats
from writebackd.types.quantities import Count, Rate


class AlertName(Enum):
    """What is wrong; docs/howto/runbook.md has a section for each."""

    STALL = "STALL"  # requests wait and none completes
    COLLAPSE = "COLLAPSE"  # syncs are far below the device's own baseline
    CACHE_DEGRADED = "CACHE_DEGRADED"  # the write cache takes no writes back any more
    EXHAUSTED = "EXHAUSTED"  # the agent has no lever left that helps
    FOREIGN_WRITER = "FOREIGN_WRITER"  # another process set a lever
    BLIND = "BLIND"  # nothing can be measured
    BATTERY_TEST = "BATTERY_TEST"  # the cache may be off for it, within a day
    CACHE_MISMATCH = "CACHE_MISMATCH"  # behaviour contradicts a RAID tool


class Severity(Enum):
    WARNING = "warning"
    CRITICAL = "critical"


class Cause(Enum):
    """The cause of an alert; the words are stable, as they are part of an alert's identity."""

    FLOOD = "writeback-flood"
    WRITE_THROUGH = "write-through"  # the write cache was switched off
    DEVICE = "device"  # errors, a rebuild, a disk that fails or hangs
    CAP = "volume-cap"  # a volume's limit on operations or bytes
    NEIGHBOUR = "neighbour"  # load of another host behind the same disks
    THROTTLED_WRITER = "throttled-writer"  # commits sleep in write()
    FOREIGN_CHANGE = "foreign-change"
    BATTERY = "battery"  # only of BATTERY_TEST
    NO_DATA = "no-data"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Culprit:
    """A program that caused the trouble; None: not known."""

    pid: Optional[Count] = None
    comm: Optional[str] = None
    cmdline: Optional[str] = None  # its start; for root and for its owner
    cgroup: Optional[str] = None  # path below the v2 root
    unit: Optional[str] = None  # systemd's name: backup.service
    container: Optional[str] = None  # id
    dirty_rate: Optional[Rate] = None
    several: bool = False  # processes of that name and cgroup, in turn or at once; pid is of one
    uid: Optional[Count] = None  # the owner, where the command line is known
    exited: bool = False

    @property
    def who(self) -> str:
        """The program without its command line: dd (pid 4242, backup.service) 310M/s."""
        name = self.comm or self.unit or self.container or "an unknown process"
        known = [f"pid {self.pid}"] if self.pid is not None else []
        if self.several:
            known = ["several processes"]  # a pid of one may be another's by now
        elif self.exited:
            known.append("exited")
        for place in (self.unit, self.container and f"container {self.container[:12]}"):
            if place and place != name:
                known.append(place)
        if self.cgroup and not self.unit:
            known.append(f"cgroup {self.cgroup}")
        text = f"{name} ({', '.join(known)})" if known else name
        return text if self.dirty_rate is None else f"{text} {formats.size(self.dirty_rate)}/s"


@dataclass(frozen=True)
class Evidence:
    """What the cause is based on: a span of time, and the figures measured in it.

    `facts` are (name, value) with the unit in the name: sync_rate, baseline_sync_rate,
    fsync_p99_s, inflight ...
    """

    begin_s: float  # wall clock
    end_s: float
    facts: Tuple[Tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Alert:
    """One problem, for as long as it lasts."""

    name: AlertName
    device: Optional[str]  # None: the host
    severity: Severity
    cause: Cause
    since_s: float  # wall clock: when it began, before it was sure
    summary: str  # one line: how bad against its own baseline, why, who
    done: str  # one line: what the agent did, or what to do
    culprits: Tuple[Culprit, ...] = ()  # the heaviest first
    evidence: Optional[Evidence] = None

    @property
    def key(self) -> Tuple[str, Optional[str], str]:
        """Identity: stays the same while numbers and severity change."""
        return (self.name.value, self.device, self.cause.value)
