# SPDX-License-Identifier: GPL-2.0-or-later
"""An incident on one device: evidence summed up tick by tick while something looks wrong."""

from __future__ import annotations

from typing import Dict, Optional, Tuple

from writebackd.alerts import messages
from writebackd.alerts.alert_types import Alert, AlertName, Cause, Culprit, Evidence, Severity
from writebackd.alerts.cause import fast_share
from writebackd.alerts.detector_memory import DeviceHealth, Dirtied, Incident, Program
from writebackd.alerts.views import DeviceView
from writebackd.types.copying import replace
from writebackd.types.histogram import Histogram
from writebackd.types.samples import IoClass, TaskSample

# Seconds.  An incident ends when all looks well for this long; the flusher's rounds are shorter.
INCIDENT_ENDS_S = 3.0
# Seconds.  It also ends when no sync was pending for this long: then there are few syncs because
# there is no load.
UNWANTED_S = 10.0
INCIDENT_TICKS = 12
# Number of programs remembered with their dirtied bytes; beyond that the HEAVIEST are kept.
MANY_PROGRAMS, HEAVIEST = 32, 16


def extended(
    incident: Optional[Incident], view: DeviceView, bad: bool, window_s: float
) -> Incident:
    """Add this tick to the incident, or begin one.

    The sums cover the last `window_s` to 2 x `window_s` seconds, or while the incident is younger
    all but its first tick.
    """
    newer = None if incident is None or len(incident.ticks) == 1 else incident.newer
    begun = newer or _begun(view)
    if incident is None:
        incident = begun
    elif len(incident.ticks) == 1:
        # The first tick began before the trouble: its fast writes are no evidence.
        incident = replace(
            begun, began_s=incident.began_s, began_wall_s=incident.began_wall_s,
            flood_age_s=incident.flood_age_s, lasted_s=incident.lasted_s, good_s=incident.good_s,
            unwanted_s=incident.unwanted_s, ticks=incident.ticks,
        )  # fmt: skip
    whole, newer = _added(incident, view), _added(begun, view)
    if newer.seconds >= window_s:
        whole = replace(
            newer, began_s=incident.began_s, began_wall_s=incident.began_wall_s,
            flood_age_s=incident.flood_age_s, ticks=whole.ticks, newer=None,
        )  # fmt: skip
    else:
        whole = replace(whole, newer=newer)
    return replace(
        whole,
        lasted_s=incident.lasted_s + view.dt_s,
        good_s=0.0 if bad else incident.good_s + view.dt_s,
        unwanted_s=0.0 if view.waited else incident.unwanted_s + view.dt_s,
    )


def _begun(view: DeviceView) -> Incident:
    sample, devices = view.tick.sample, view.tick.core.devices
    flood_s = devices[view.name].flood_began_s if view.name in devices else None
    return Incident(
        sample.time_s - view.dt_s,
        sample.wall_s - view.dt_s,
        flood_age_s=sample.time_s - flood_s if flood_s is not None else float("inf"),
        before=_before(view),
    )


def _before(view: DeviceView) -> Dict[Program, Dirtied]:
    """Who dirtied the backlog: the most recently dirtied pages, up to its size."""
    left = view.backlog_bytes
    dirtied_by: Dict[Program, Dirtied] = {}
    heavy = view.tick.heavy
    if heavy and heavy[-1].time_s == view.tick.sample.time_s:  # the sums contain it already
        heavy = heavy[:-1]
    for tick in reversed(heavy):
        tasks = [task for task in tick.tasks if task.device in (view.name, None)]
        dirtied = sum([task.dirtied_bytes for task in tasks])
        share = min(1.0, left / dirtied) if dirtied else 0.0
        for task in tasks if share else ():
            part = replace(task, dirtied_bytes=int(share * task.dirtied_bytes))
            _add_task(dirtied_by, part, share * tick.dt_s, task.cgroup)
        left -= share * dirtied
    return dirtied_by


def _add_task(
    sums: Dict[Program, Dirtied], task: TaskSample, dt_s: float, path: Optional[str]
) -> None:
    program = (task.comm, task.cgroup_id)
    had = sums.get(program)
    if had is None:
        sums[program] = Dirtied(task.dirtied_bytes, replace(task, cgroup=path), seconds=dt_s)
    else:
        sums[program] = Dirtied(
            had.count + task.dirtied_bytes, replace(task, cgroup=path or had.task.cgroup),
            had.several or task.pid != had.task.pid, had.seconds + dt_s,
        )  # fmt: skip


def _added(incident: Incident, view: DeviceView) -> Incident:
    tick, seen, estimate, dt_s = view.tick, view.seen, view.estimate, view.dt_s
    name, sync = view.name, seen.sync
    _, sync_bytes, latencies = view.small_writes
    read = (seen.classes or {}).get(IoClass.READ)
    operations = seen.writes + (read.count if read is not None else 0)
    backlog = view.backlog_bytes
    backlog_s = backlog / estimate.rate if estimate.rate else 0.0
    dirtied = dict(incident.dirtied)
    tasks = sorted(
        (*tick.tasks.get(name, ()), *tick.tasks.get(None, ())), key=lambda task: task.dirtied_bytes
    )
    for task in tasks:  # the heaviest last
        _add_task(dirtied, task, dt_s, task.cgroup or tick.path(task.cgroup_id))
    if len(dirtied) > MANY_PROGRAMS:
        heavy = sorted(dirtied.items(), key=lambda item: -item[1].count)[:HEAVIEST]
        dirtied = dict(heavy)
    return replace(
        incident,
        seconds=incident.seconds + dt_s,
        syncs=incident.syncs + (Histogram() if sync is None else sync.commit_latency),
        sync_bytes=incident.sync_bytes + sync_bytes,
        oldest_s=max(incident.oldest_s, view.oldest_s),
        waited_s=incident.waited_s + (dt_s if view.waited else 0.0),
        flooded_s=incident.flooded_s + (dt_s if view.flooded else 0.0),
        loaded_s=incident.loaded_s + (dt_s if view.loaded and not estimate.flooded else 0.0),
        backlog_s=max(incident.backlog_s, backlog_s),
        queued_s2=incident.queued_s2 + backlog_s * dt_s,
        backlog_bytes=max(incident.backlog_bytes, backlog),
        throttled_s=incident.throttled_s + view.throttled_s,
        inflight=max(incident.inflight, seen.inflight),
        writes=incident.writes + latencies,
        written_bytes=incident.written_bytes + seen.write_bytes,
        ticks=(*incident.ticks[-INCIDENT_TICKS:], (dt_s, operations, seen.write_bytes)),
        dirtied=dirtied,
    )


def is_over(incident: Incident) -> bool:
    return incident.good_s >= INCIDENT_ENDS_S or incident.unwanted_s >= UNWANTED_S


def is_lasting(incident: Incident) -> bool:
    """Whether it is longer than one tick: during one long tick the host may have been stopped."""
    return len(incident.ticks) > 1


def alert_of(
    incident: Incident, view: DeviceView, health: DeviceHealth, name: AlertName, cause: Cause,
    summary: str, severity: Severity = Severity.WARNING, culprits: Tuple[Culprit, ...] = (),
) -> Alert:
    return Alert(
        name, view.name, severity, cause, incident.began_wall_s,
        summary + messages.array_says(view.tick, view.name, cause),
        messages.done(view.tick, view.name, cause), culprits,
        _evidence(incident, view, health),
    )  # fmt: skip


def _evidence(incident: Incident, view: DeviceView, health: DeviceHealth) -> Evidence:
    usual = health.usual(health.syncs, health.size)
    facts = [
        ("sync_rate", incident.sync_rate),
        ("baseline_sync_rate", health.sync_rate),
        ("commit_mean_s", incident.syncs.mean()),
        ("commit_p99_s", incident.syncs.quantile(0.99)),
        ("baseline_commit_s", usual.latency_s if usual is not None else None),
        ("oldest_commit_s", incident.oldest_s),
        ("write_p10_s", incident.writes.quantile(0.1)),
        ("write_p90_s", incident.writes.quantile(0.9)),
        ("fast_write_share", fast_share(incident.writes, incident.sync_bytes, health)),
        ("waited_share", incident.waited_s / incident.seconds),
        ("flooded_share", incident.flooded_s / incident.seconds),
        ("backlog_bytes", incident.backlog_bytes),
        ("backlog_s", incident.backlog_s),
        ("throttled_share", incident.throttled_s / incident.seconds),
        ("write_rate", incident.written_bytes / incident.seconds),
        ("inflight", float(incident.inflight)),
    ]  # fmt: skip
    return Evidence(
        view.tick.sample.wall_s - incident.seconds,
        view.tick.sample.wall_s,
        tuple((name, float(value)) for name, value in facts if value is not None),
    )
