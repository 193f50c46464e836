# SPDX-License-Identifier: GPL-2.0-or-later
"""Renders metrics as OpenMetrics 1.0 or Prometheus text.  Pure.

Prometheus requests the first; node_exporter's textfiles and `promtool check metrics` know only
the second. Names and labels are the same in both. Latencies are classic histograms: neither
format can carry a native one (only protobuf can). An unknown value has no sample, never zero.
Label values are bounded: devices, and words of the program; never processes or cgroup paths. A
device that is left alone has no series of its own.
"""

from __future__ import annotations

import math
from itertools import accumulate
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from writebackd.alerts.alert_types import AlertName, Severity
from writebackd.report.device_answers import time_to_clean
from writebackd.report.snapshot import (
    COMMIT_BOUNDS_S,
    LIMITS,
    TICK_BOUNDS_S,
    DeviceTotals,
    Snapshot,
    original_bytes,
)
from writebackd.types.decision import DeviceDecision, DeviceState, Mode
from writebackd.types.estimate import Estimate
from writebackd.types.levers import LeverKind
from writebackd.types.samples import DeviceSample
from writebackd.types.storage import Device

OPENMETRICS = "openmetrics"
PROMETHEUS = "prometheus"
CONTENT_TYPES = {
    OPENMETRICS: "application/openmetrics-text; version=1.0.0; charset=utf-8",
    PROMETHEUS: "text/plain; version=0.0.4; charset=utf-8",
}
PREFIX = "writebackd_"

Number = Union[int, float]
Labels = Sequence[Tuple[str, str]]
Value = Tuple[str, str, Optional[Number]]  # name, help, and the value where it is known


class _Row(NamedTuple):
    labels: str
    sample: DeviceSample
    estimate: Estimate
    decision: DeviceDecision
    totals: DeviceTotals
    time_to_clean_s: Optional[float]


class _Page:
    """Text of metric families, each of which is written at once."""

    def __init__(self, openmetrics: bool) -> None:
        self._openmetrics = openmetrics
        self._lines: List[str] = []

    def family(self, name: str, kind: str, text: str) -> str:
        """Write the head of a family; returns the name of its samples."""
        name = PREFIX + name
        sample = name + {"counter": "_total", "info": "_info"}.get(kind, "")
        if not self._openmetrics:
            name, kind = sample, "gauge" if kind == "info" else kind
        self._lines.append(f"# TYPE {name} {kind}")
        unit = name.rpartition("_")[2]
        if self._openmetrics and unit in ("bytes", "seconds", "ratio"):
            self._lines.append(f"# UNIT {name} {unit}")
        self._lines.append(f"# HELP {name} {text}")
        return sample

    def add(self, name: str, labels: str, value: Optional[Number]) -> None:
        """Add a sample, unless the value is unknown."""
        if value is not None and math.isfinite(value):
            shown = f"{value:d}" if isinstance(value, int) else repr(value)
            self._lines.append(f"{name}{{{labels}}} {shown}" if labels else f"{name} {shown}")

    def histogram(
        self, name: str, labels: str, bounds: Sequence[float], counts: Sequence[int], total: float
    ) -> None:
        """`counts` by bucket, one more than there are bounds; `total` is the sum of the values."""
        comma = labels and labels + ","
        cumulative = list(accumulate(counts))
        for bound, count in zip((*map(repr, bounds), "+Inf"), cumulative):
            self._lines.append(f'{name}_bucket{{{comma}le="{bound}"}} {count}')
        self.add(name + "_sum", labels, total)
        self.add(name + "_count", labels, cumulative[-1])

    def text(self) -> str:
        end = ["# EOF", ""] if self._openmetrics else [""]
        return "\n".join(self._lines + end)


def render(snapshot: Snapshot, form: str = OPENMETRICS) -> str:
    """All metrics of one tick, in one of CONTENT_TYPES."""
    page = _Page(form == OPENMETRICS)
    _host(page, snapshot)
    _alerts(page, snapshot)
    _devices(page, snapshot)
    return page.text()


_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def labels_text(labels: Labels) -> str:
    # Names of the kernel are bytes; what has no text must not cost the scrape.
    texts = ((name, value.encode("utf-8", "replace").decode("utf-8")) for name, value in labels)
    return ",".join('{}="{}"'.format(name, text.translate(_ESCAPED)) for name, text in texts)


def _host(page: _Page, snapshot: Snapshot) -> None:
    probe = snapshot.probe
    facts: Sequence[Tuple[str, str, Labels]] = (
        ("build", "Version of writebackd.", [("version", snapshot.version)]),
        ("policy", "Policy in force.", [("policy", snapshot.policy.name)]),
        ("probe", "Where measurements come from, and what is hooked.",
         [("backend", probe.backend), ("request_hook", probe.request_hook or ""),
          ("fsync_hook", probe.fsync_hook or "")]),
    )  # fmt: skip
    for name, text, labels in facts:
        page.add(page.family(name, "info", text), labels_text(labels), 1)
    name = page.family("mode", "gauge", "1 for the mode in force.")
    for mode in Mode:
        page.add(name, labels_text([("mode", mode.value)]), int(snapshot.memory.mode is mode))
    name = page.family("window", "gauge", "1 for the time window of the policy that is open.")
    if snapshot.window is not None:
        page.add(name, labels_text([("window", snapshot.window.name)]), 1)
    for kind, values in (("gauge", _gauges(snapshot)), ("counter", _counters(snapshot))):
        for name, text, value in values:
            if value is not None:
                page.add(page.family(name, kind, text), "", value)
    name = page.family("levers_held", "gauge", "Levers other than the limits set by writebackd.")
    for lever in LeverKind:
        count = sum(held.kind is lever for held in snapshot.levers)
        page.add(name, labels_text([("lever", lever.value)]), count)
    totals = snapshot.totals
    name = page.family("lever_writes", "counter", "Writes to kernel files, by kind and result.")
    for what in (LIMITS, *(each.value for each in LeverKind)):
        for ok, result in ((True, "ok"), (False, "error")):
            labels = [("lever", what), ("result", result)]
            page.add(name, labels_text(labels), totals.writes.get((what, ok), 0))
    name = page.family("tick_duration_seconds", "histogram", "Duration of a tick.")
    page.histogram(name, "", TICK_BOUNDS_S, totals.ticks, totals.ticks_s)


def _gauges(snapshot: Snapshot) -> Sequence[Value]:
    sample, probe, memory = snapshot.sample, snapshot.probe, snapshot.memory
    vm, decision, window = sample.vm, snapshot.decision, snapshot.window
    limit, background = original_bytes(snapshot)
    return (
        ("enforcing", "Whether limits are set: not observing, yielded or switched off.",
         snapshot.sets_limits),
        ("yielded", "Whether another process set the limits, which are left in force.",
         memory.yielded is not None),
        ("held_off", "Whether a kill-switch file exists.", snapshot.off is not None),
        ("watcher_running", "Whether the watcher runs, which restores if the daemon hangs.",
         snapshot.watcher_pid is not None),
        ("start_time_seconds", "Wall clock of the daemon's start.", snapshot.started_wall_s),
        ("last_tick_timestamp_seconds", "Wall clock of the last readable tick.",
         sample.wall_s),
        ("window_end_timestamp_seconds", "Wall clock at which the open window closes.",
         None if window is None else window.until_s),
        ("read_errors", "Read errors in the last tick.", len(sample.errors)),
        ("lease_expiry_timestamp_seconds",
         "Wall clock at which the settings are restored unless the lease is renewed.",
         None if snapshot.lease_s is None else sample.wall_s + snapshot.lease_s),
        ("memory_bytes", "Memory of the host.", sample.host.memory_bytes),
        ("dirty_bytes", "Dirty memory of the host.", vm.dirty_bytes),
        ("writeback_bytes", "Memory under writeback.", vm.writeback_bytes),
        ("time_to_clean_seconds", "Time to write out all dirty data, at the drain rates.",
         time_to_clean(sample, snapshot.estimates).host_s),
        ("resident_memory_bytes", "Resident memory of the daemon.", snapshot.self_rss_bytes),
        ("bpf_map_bytes", "Memory of the BPF maps.", probe.map_bytes),
        ("bpf_seconds_per_io", "Cost of the probe per block IO, measured at the start.",
         None if probe.bpf_ns_per_io is None else probe.bpf_ns_per_io / 1e9),
        ("dirty_limit_bytes", "Dirty limit in force, in bytes.", vm.threshold_bytes),
        ("dirty_background_limit_bytes", "Background limit in force, in bytes.",
         vm.background_threshold_bytes),
        ("dirty_limit_original_bytes", "Original dirty limit; estimated if ratio.", limit),
        ("dirty_background_limit_original_bytes", "Original background limit; estimated if ratio.",
         background),
        ("dirty_limit_wanted_bytes", "Dirty limit of the last decision; not set if observing.",
         decision.limit_bytes),
        ("dirty_limit_goal_bytes", "Where the dirty limit is heading.", decision.goal_bytes),
        ("dirty_limit_pinned_bytes", "Pinned dirty limit.", memory.pin_bytes),
    )  # fmt: skip


def _counters(snapshot: Snapshot) -> Sequence[Value]:
    totals = snapshot.totals
    return (
        ("limit_changes", "Changes of the dirty limit by writebackd.",
         totals.limit_changes),
        ("foreign_writes", "Writes of other processes to levers.", totals.foreign_writes),
        ("leases_lost", "Times the lease expired and the original settings were restored.",
         snapshot.leases_lost),
        ("history_dropped_events", "Events dropped by the history.",
         snapshot.history_dropped),
        ("failed_ticks", "Ticks in which nothing could be read.", totals.failed_ticks),
        ("cpu_seconds", "Processor time of the daemon.", totals.cpu_s),
    )  # fmt: skip


def _alerts(page: _Page, snapshot: Snapshot) -> None:
    # By name, device ("": the host) and cause; the worse of two severities counts.
    severities: Dict[Tuple[str, str, str], str] = {}
    for alert in snapshot.alerts:
        key = (alert.name.value, alert.device or "", alert.cause.value)
        if severities.get(key) != Severity.CRITICAL.value:
            severities[key] = alert.severity.value
    name = page.family("alerts_raised", "counter", "Alerts raised, by name.")
    for each in AlertName:
        count = snapshot.totals.raised.get(each.value, 0)
        page.add(name, labels_text([("name", each.value)]), count)
    name = page.family("alert", "gauge", "1 for each active alert; no device: the host.")
    for (what, device, cause), severity in sorted(severities.items()):
        labels = [("name", what), ("device", device), ("severity", severity), ("cause", cause)]
        page.add(name, labels_text(labels), 1)


def _devices(page: _Page, snapshot: Snapshot) -> None:
    decisions = snapshot.decisions
    clean = time_to_clean(snapshot.sample, snapshot.estimates)
    states = [each.state for each in decisions.values()]
    name = page.family("devices", "gauge", "Devices by state, excluded ones included.")
    for state in DeviceState:
        page.add(name, labels_text([("state", state.value)]), states.count(state))
    rows = [
        _Row(
            labels_text([("device", name)]), each, snapshot.estimates[name], decisions[name],
            snapshot.totals.devices.get(name, DeviceTotals()), clean.devices[name],
        )
        for each in snapshot.sample.devices if each.excluded is None
        for name in [each.device.name]
    ]  # fmt: skip
    name = page.family("device", "info", "Properties of a device; its shortest mount point.")
    for row in rows:
        page.add(name, labels_text(_topology(row.sample.device)), 1)
    name = page.family("device_state", "gauge", "1 for the state of the device.")
    for row in rows:
        for state, label in _STATES:
            page.add(name, f"{row.labels},{label}", int(row.decision.state is state))
    name = page.family(
        "device_commit_duration_seconds", "histogram",
        "fsync, fdatasync, msync, O_(D)SYNC writes, and the sleep in write() before them.",
    )
    for row in rows:
        if row.sample.sync is not None:
            totals = row.totals
            page.histogram(name, row.labels, COMMIT_BOUNDS_S, totals.commits, totals.commit_s)
    for what, kind, text, value_of in DEVICE:
        name = page.family(what, kind, text)
        for row in rows:
            page.add(name, row.labels, value_of(row))


def _topology(device: Device) -> Labels:
    mounts = sorted((len(mount), mount, kind) for _, kind, mount in device.filesystems)
    _, mount, kind = mounts[0] if mounts else (0, "", "")
    rotational = {True: "1", False: "0", None: ""}[device.rotational]
    return [
        ("device", device.name), ("devno", device.devno), ("driver", device.driver or ""),
        ("rotational", rotational), ("fstype", kind), ("mountpoint", mount),
    ]  # fmt: skip


def _of_syncs(get: Callable[[Estimate], Number]) -> Callable[[_Row], Optional[Number]]:
    """Metrics that only a probe that sees fsync can measure."""
    return lambda row: get(row.estimate) if row.estimate.demand_known else None


# Of a device that is left alone there is no row.
_STATES = tuple(
    (state, labels_text([("state", state.value)]))
    for state in DeviceState
    if state is not DeviceState.EXCLUDED
)

# Name, kind, help, value; keys of answers that say the same have the help as their description.
DEVICE: Sequence[Tuple[str, str, str, Callable[[_Row], Optional[Number]]]] = (
    ("device_target_bytes", "gauge", "Dirty limit that the device needs.",
     lambda row: row.decision.target_bytes),
    ("device_drain_bytes_per_second", "gauge", "Drain rate of the device, once learned.",
     lambda row: row.estimate.drain_rate),
    ("device_time_to_clean_seconds", "gauge", "Time to write out its dirty data.",
     lambda row: row.time_to_clean_s),
    ("device_written_bytes", "counter", "Written to the device.",
     lambda row: row.totals.written_bytes),
    ("device_read_bytes", "counter", "Read from the device.", lambda row: row.totals.read_bytes),
    ("device_busy_seconds", "counter", "Time with at least one request in flight.",
     lambda row: row.totals.busy_s),
    ("device_inflight_requests", "gauge", "Requests in flight.", lambda row: row.sample.inflight),
    ("device_sync_demand", "gauge", "Whether the device has sync demand.",
     _of_syncs(lambda estimate: int(estimate.demand))),
    ("device_flooded", "gauge", "Whether a flood of buffered writes is on.",
     lambda row: int(row.estimate.flooded)),
    ("device_commit_p50_seconds", "gauge", "Median of the commits of the last tick.",
     lambda row: row.estimate.commit_p50_s),
    ("device_commit_p99_seconds", "gauge", "99th percentile of the commits of the last tick.",
     lambda row: row.estimate.commit_p99_s),
    ("device_commit_write_ratio", "gauge", "Share of the commits' time that was slept in write().",
     lambda row: row.estimate.commit_write_share),
    ("device_oldest_commit_seconds", "gauge", "Age of the oldest commit that has not ended.",
     _of_syncs(lambda estimate: estimate.oldest_commit_s)),
    ("device_fsync_p50_seconds", "gauge", "Median of the fsyncs of the last tick.",
     lambda row: row.estimate.fsync_p50_s),
    ("device_fsync_p99_seconds", "gauge", "99th percentile of the fsyncs of the last tick.",
     lambda row: row.estimate.fsync_p99_s),
    ("device_fsync_baseline_seconds", "gauge", "Median fsync of the unloaded device.",
     lambda row: row.estimate.baseline_s),
    ("device_fsync_objective_seconds", "gauge", "Wanted p99 of commits, under demand.",
     lambda row: row.decision.basis.objective_s if row.decision.basis else None),
    ("device_fsyncs_inflight", "gauge", "fsyncs that have not returned.",
     _of_syncs(lambda estimate: estimate.fsyncs_inflight)),
    ("device_oldest_fsync_seconds", "gauge", "Age of the oldest fsync that has not returned.",
     _of_syncs(lambda estimate: estimate.oldest_fsync_s)),
    ("device_cache_bytes", "gauge", "Size of the write cache behind the device.",
     lambda row: row.estimate.cache_bytes),
    ("device_cache_fill_ratio", "gauge", "Fill of that cache.",
     lambda row: row.estimate.fill_share),
    ("device_slow_syncs_ratio", "gauge", "Share of the fsyncs' time that slow ones took.",
     lambda row: row.estimate.slow_share),
    ("device_decisions", "counter", "Decisions about the device.",
     lambda row: row.totals.decisions),
)  # fmt: skip
