# SPDX-License-Identifier: GPL-2.0-or-later
"""Figures of each device, downsampled for the history.  Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Dict, List, Optional, Sequence, Tuple

from writebackd.report.snapshot import Snapshot, original_bytes
from writebackd.types.estimate import Estimate
from writebackd.types.histogram import Histogram
from writebackd.types.quantities import Figure, Rate, Seconds, Time
from writebackd.types.samples import DeviceSample

STEP_S = 10.0  # of the fine rows
COARSE_S = 300.0
# Of a host with more busy devices, so many have figures: 1 024 would cost 10 ms of each tick.
MAX_DEVICES = 128


@dataclass(frozen=True)
class Figures:
    """One device over `span_s`; rates are means per second, in bytes."""

    wall_s: Time  # of its beginning
    span_s: Seconds
    device: str
    limit_bytes: Figure  # in force for the device, mean
    found_bytes: Figure  # the limit as found, which would be in force without the agent
    write_rate: Rate
    flooded_s: Seconds = 0.0  # of the span
    ours_s: Seconds = 0.0  # of the span: with a limit of the agent's in force for the device
    target_bytes: Optional[Figure] = None  # the device's own, at the end
    drain_rate: Optional[Rate] = None  # at the end
    fill_share: Optional[Figure] = None  # of the write cache, the most
    baseline_s: Optional[Seconds] = None  # unloaded p50 of an fsync, at the end
    objective_s: Optional[Seconds] = None  # p99 wanted, at the end; None while nobody syncs
    oldest_s: Seconds = 0.0  # the longest that an fsync was seen to wait
    latency: Histogram = field(default_factory=Histogram)  # of the fsyncs
    # Of commits, as in SyncSample; None where their sleep in write() is not visible.
    oldest_commit_s: Optional[Seconds] = None
    commits: Optional[Histogram] = None
    throttled_s: Optional[Seconds] = None

    @property
    def fsyncs(self) -> int:
        return self.latency.total

    @property
    def commit_latency(self) -> Histogram:
        return self.latency if self.commits is None else self.commits

    @property
    def pending_s(self) -> float:
        """The longest observed wait of a pending commit."""
        return self.oldest_s if self.oldest_commit_s is None else self.oldest_commit_s

    @property
    def write_share(self) -> Optional[float]:
        """The share of the commits' time that was slept in write()."""
        total_s = self.commit_latency.total_s()
        if self.throttled_s is None or not total_s:
            return None
        return min(1.0, self.throttled_s / total_s)

    @property
    def end_s(self) -> float:
        return self.wall_s + self.span_s

    @property
    def longest_s(self) -> float:
        """The longest commit, including one that is still pending."""
        return max(self.pending_s, self.commit_latency.quantile(1.0) or 0.0)


def fold(rows: Sequence[Figures]) -> Figures:
    """Combine several rows of one device, oldest first. Gaps between them are not part of the span.

    Rows with no time in them count nothing; at least one has to have some.
    """
    span_s = sum([row.span_s for row in rows])
    fills = [row.fill_share for row in rows if row.fill_share is not None]
    slept = [row.throttled_s for row in rows if row.throttled_s is not None]
    return replace(
        rows[-1],
        wall_s=rows[0].wall_s,
        span_s=span_s,
        limit_bytes=sum([row.limit_bytes * row.span_s for row in rows]) / span_s,
        found_bytes=sum([row.found_bytes * row.span_s for row in rows]) / span_s,
        write_rate=sum([row.write_rate * row.span_s for row in rows]) / span_s,
        flooded_s=sum([row.flooded_s for row in rows]),
        ours_s=sum([row.ours_s for row in rows]),
        fill_share=max(fills, default=None),
        oldest_s=max([row.oldest_s for row in rows]),
        latency=sum((row.latency for row in rows), Histogram()),
        oldest_commit_s=max([row.pending_s for row in rows]) if slept else None,
        commits=sum((row.commit_latency for row in rows), Histogram()) if slept else None,
        throttled_s=sum(slept) if slept else None,
    )


class _Sum:
    """Sums for one device since its row began; mutable, as copying in each tick takes too long."""

    __slots__ = (
        "commits", "counts", "fill", "flooded_s", "last", "oldest_commit_s", "oldest_s",
        "throttled_s", "written",
    )

    def __init__(self, estimate: Estimate) -> None:
        self.written = self.flooded_s = self.oldest_s = self.oldest_commit_s = 0.0
        self.throttled_s: Optional[float] = None
        self.fill: Optional[float] = None
        self.counts: Dict[int, int] = {}
        self.commits: Dict[int, int] = {}
        self.last = estimate

    def add(self, seen: DeviceSample, estimate: Estimate, dt_s: float) -> None:
        self.written += seen.write_bytes
        if estimate.flooded:
            self.flooded_s += dt_s
        if estimate.oldest_fsync_s > self.oldest_s:
            self.oldest_s = estimate.oldest_fsync_s
        if estimate.oldest_commit_s > self.oldest_commit_s:
            self.oldest_commit_s = estimate.oldest_commit_s
        fill = estimate.fill_share
        if fill is not None and (self.fill is None or fill > self.fill):
            self.fill = fill
        if seen.sync is not None:
            _count(self.counts, seen.sync.latency)
            if seen.sync.commits is not None:
                _count(self.commits, seen.sync.commits)
                self.throttled_s = (self.throttled_s or 0.0) + seen.sync.throttled_s
        self.last = estimate


def _count(counts: Dict[int, int], latency: Histogram) -> None:
    for index, count in zip(latency.indices, latency.counts):
        counts[index] = counts.get(index, 0) + count


class Collector:
    """Adds ticks up; returns a row for each active device every `step_s` seconds."""

    def __init__(self, step_s: float = STEP_S) -> None:
        self._step_s = step_s
        self._begin()

    def _begin(self) -> None:
        self._sums: Dict[str, _Sum] = {}
        self._span_s = self._ours_s = self._limit = 0.0
        # By device with a limit of its own: how much it is above the host's, and for how long it
        # is the agent's while the host's is not.
        self._own: Dict[str, Tuple[float, float]] = {}

    def add(self, snapshot: Snapshot) -> Tuple[Figures, ...]:
        """The rows that this tick completes, usually none."""
        sample, estimates, sums = snapshot.sample, snapshot.estimates, self._sums
        dt_s = sample.dt_s
        self._span_s += dt_s
        self._limit += sample.vm.threshold_bytes * dt_s
        ours = _ours(snapshot)
        if ours:
            self._ours_s += dt_s
        for name, limit in snapshot.own_limits.items():
            above, mine = limit - sample.vm.threshold_bytes, name in snapshot.memory.caps
            if above:
                before, ours_s = self._own.get(name, (0.0, 0.0))
                own_s = dt_s if snapshot.sets_limits and mine and not ours else 0.0
                self._own[name] = before + above * dt_s, ours_s + own_s
        for seen in sample.devices:
            sync = seen.sync
            if not (seen.write_bytes or (sync is not None and (sync.inflight or sync.count))):
                continue
            name = seen.device.name
            if name not in sums:
                if len(sums) >= MAX_DEVICES:
                    continue
                sums[name] = _Sum(estimates[name])
            sums[name].add(seen, estimates[name], dt_s)
        # Half a tick early rather than half a tick late: clocks are never quite even.
        if self._span_s < self._step_s - dt_s / 2:
            return ()
        rows = self._rows(snapshot)
        self._begin()
        return rows

    def _rows(self, snapshot: Snapshot) -> Tuple[Figures, ...]:
        span_s, decided = self._span_s, snapshot.decisions
        original, _ = original_bytes(snapshot)
        rows: List[Figures] = []
        for name, each in self._sums.items():
            decision = decided.get(name)  # None: it is gone by now
            basis = decision.basis if decision is not None else None
            visible = each.throttled_s is not None
            above, own_s = self._own.get(name, (0.0, 0.0))
            mine = snapshot.sets_limits and name in snapshot.memory.caps
            share = 1.0 if mine else snapshot.limit_of(name) / max(1, snapshot.limit_of(None))
            rows.append(
                Figures(
                    wall_s=snapshot.sample.wall_s - span_s,
                    span_s=span_s,
                    device=name,
                    limit_bytes=(self._limit + above) / span_s,
                    found_bytes=share * original,
                    write_rate=each.written / span_s,
                    flooded_s=each.flooded_s,
                    ours_s=self._ours_s + own_s,
                    target_bytes=decision.target_bytes if decision is not None else None,
                    drain_rate=each.last.drain_rate,
                    fill_share=each.fill,
                    baseline_s=each.last.baseline_s,
                    objective_s=basis.objective_s if basis is not None else None,
                    oldest_s=each.oldest_s,
                    latency=Histogram(sorted(each.counts.items())),
                    oldest_commit_s=each.oldest_commit_s if visible else None,
                    commits=Histogram(sorted(each.commits.items())) if visible else None,
                    throttled_s=each.throttled_s,
                )
            )
        return tuple(rows)


def _ours(snapshot: Snapshot) -> bool:
    trial = snapshot.memory.trial
    return (
        # What the limits as found are cut to in a trial is not what the agent would set.
        not (trial is not None and trial.original)
        and snapshot.sets_limits
        and snapshot.decision.limit_bytes is not None
    )
