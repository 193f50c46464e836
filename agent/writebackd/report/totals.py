# SPDX-License-Identifier: GPL-2.0-or-later
"""Counters since the daemon's start, or a reset; those of a device end with it.

Frozen like everything in a Snapshot: a thread may render it while the loop continues.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import FrozenSet, Iterable, Mapping, NamedTuple, Optional, Tuple

from writebackd.types.copying import replace
from writebackd.types.decision import Decision
from writebackd.types.estimate import Estimate
from writebackd.types.histogram import BUCKET_EDGES_S, HIST_BUCKETS
from writebackd.types.levers import Action, LeverKind
from writebackd.types.samples import Sample

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
    # What stands, (name, device, cause), and by name how many came up.
    standing: FrozenSet[Tuple[str, str, str]] = frozenset()
    raised: Mapping[str, int] = field(default_factory=dict)

    def zeroed(self, wall_s: float) -> "Totals":
        """Anew from now on; what is no count stays, and so does processor time, which the kernel
        counts."""
        devices = {
            name: DeviceTotals(diskseq=each.diskseq, decision_id=each.decision_id)
            for name, each in self.devices.items()
        }
        return Totals(
            reset_s=wall_s, devices=devices, cpu_s=self.cpu_s, standing=self.standing
        )

    def acted(self, actions: Iterable[Action]) -> "Totals":
        """Count these writes, which were actually tried."""
        writes, changes = dict(self.writes), self.limit_changes
        for action in actions:
            first = action.lever.partition(" ")[0]
            key = (first if first in _KINDS else LIMITS, action.ok)
            writes[key] = writes.get(key, 0) + 1
            changes += action.ok and first in _LIMIT and action.old != action.new
        return replace(self, writes=writes, limit_changes=changes)

    def alerted(self, standing: FrozenSet[Tuple[str, str, str]]) -> "Totals":
        """Count the alerts, (name, device, cause), that are active now."""
        if standing == self.standing:
            return self
        raised = dict(self.raised)
        for name, _, _ in standing - self.standing:
            raised[name] = raised.get(name, 0) + 1
        return replace(self, standing=standing, raised=raised)

    def ticked(self, seconds: float) -> "Totals":
        """Count one more tick of this duration."""
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
