# SPDX-License-Identifier: GPL-2.0-or-later
"""COLLAPSE: the sync rate falls far below its baseline while syncs are slow.

EXHAUSTED: the limit is at its floor and commits still miss the objective.

STALL: requests are pending and nothing completes.
"""

from __future__ import annotations

from typing import NamedTuple, Optional, Tuple

from writebackd.alerts import messages
from writebackd.alerts.alert_types import Alert, AlertName, Cause, Culprit, Evidence, Severity
from writebackd.alerts.baseline import RATE_FALLS_S, committers
from writebackd.alerts.cause import (
    BACKLOG_LEAST_BYTES,
    FLOODED_SHARE,
    QUEUED,
    cause_of,
    culprits_of,
)
from writebackd.alerts.degraded import cache_alert
from writebackd.alerts.detector_memory import Baseline, DeviceHealth, Incident, size_class
from writebackd.alerts.foreign import writers
from writebackd.alerts.incident import INCIDENT_ENDS_S, alert_of, extended, is_lasting, is_over
from writebackd.alerts.views import DeviceView
from writebackd.types.copying import replace

# Share of an incident in which a sync must be pending.  A low rate without waiting is no collapse.
DEMAND_SHARE = 0.8
# Seconds.  Time for the law to control a flood: within half a minute it finds an unknown drain rate
# and drains a full cache (docs/explanation/how-it-decides.md).
LAW_ACTS_S = 30.0
# Share of the usual rate.  The usual rate is learned without a flood; during a limited flood about
# this share of it remains (f at the knee, tests/sim/plant.py).
BESIDE_HELD_FLOOD = 0.65
# Seconds of flood after which the usual rate is that during the flood, so BESIDE_HELD_FLOOD no
# longer applies, unless syncs only wait for the queue that the law allows: it tries larger limits,
# which cost some syncs.
BESIDE_USUAL_S = 3 * RATE_FALLS_S
# Factor: a large sync may take this times the time for its bytes at the highest sync write rate.
SIZE_SLACK = 3.0


class Syncs(NamedTuple):
    """The syncs of a tick or an incident."""

    done: int
    size_bytes: int  # 0 where others write most of it
    seconds: float


# Commits per second.  Below this 8 s have too few to tell a collapse from a pause: a month
# of hosts that commit less than once a second gave 21 alerts.  One that hangs is a STALL.
ENOUGH_RATE = 5.0


def collapse(view: DeviceView, health: DeviceHealth) -> DeviceHealth:
    """Add this tick to the incident, if there is one, and raise the alert once it is certain."""
    tick, incident, bad = view.tick, health.collapse, suspicious(view, health)
    if incident is None and not bad:
        if _is_well(view, health):
            view.well(AlertName.COLLAPSE)
        return health
    incident = extended(incident, view, bad or _lasts(view, health), view.rules.collapse_s)
    if not view.waited:
        view.well(AlertName.COLLAPSE)
    if is_over(incident):
        return replace(health, collapse=None)
    health = replace(health, collapse=incident)
    cause = messages.likeliest(tick, view.name, cause_of(incident, health, tick.core))
    if not _is_collapse(view, health, incident, cause):
        return health
    usual = _usual(health, _of_spell(view, health, incident))
    if cause is Cause.WRITE_THROUGH and usual is not None:
        tick.tell(cache_alert(view, health, incident, usual))
        return health
    culprits, limit = culprits_of(incident, cause, committers(health)), ""
    setters: Tuple[Culprit, ...] = ()
    if cause in (Cause.THROTTLED_WRITER, Cause.FOREIGN_CHANGE):
        cap = tick.core.caps.get(view.name)
        own = cap is not None and cap.in_force and tick.protects
        limit = messages.limit(
            cap.bytes if cap is not None and own else tick.sample.vm.threshold_bytes, tick.core
        )
    if cause is Cause.THROTTLED_WRITER:
        setters = writers([one for one in tick.core.intrusions if one.write.is_limit])
    tick.tell(alert_of(
        incident, view, health, AlertName.COLLAPSE, cause,
        messages.collapsed(view.name, incident, health, usual, cause, culprits, limit),
        Severity.CRITICAL if incident.lasted_s >= view.rules.critical_s else Severity.WARNING,
        (*culprits, *setters),
    ))  # fmt: skip
    return health


def suspicious(view: DeviceView, health: DeviceHealth) -> bool:
    """Whether this tick looks like a collapse: few commits, and slow ones."""
    rate, few = view.estimate.sync_rate, view.rules.sync_share * health.sync_rate
    if (
        rate is None
        or rate / 2 >= few
        or health.sync_rate < max(ENOUGH_RATE, view.tick.policy.objective.min_sync_rate)
        or _rate(view, health, rate) >= few
    ):
        return False
    syncs = _of_tick(view, health)
    if _larger(view, health, syncs):
        return False
    return view.latency_s > _threshold_s(view, health, syncs) and view.late


def _lasts(view: DeviceView, health: DeviceHealth) -> bool:
    """Whether an incident continues: a few fast syncs do not end it while the rate is low."""
    rate = _rate(view, health, view.estimate.sync_rate or 0.0)
    few = rate < view.rules.sync_share * health.sync_rate
    return few and view.seen.sync is not None and view.waited


def _is_collapse(view: DeviceView, health: DeviceHealth, incident: Incident, cause: Cause) -> bool:
    """Whether the incident's last seconds together are a collapse."""
    least_s = view.rules.collapse_s
    if cause is Cause.FLOOD and view.tick.protects:
        # No alert while the law still lowers the limit.
        least_s = max(LAW_ACTS_S, least_s)
    elif incident.oldest_s >= view.rules.stall_s:
        least_s = min(least_s, view.rules.stall_s)  # no commit at all is found sooner than few
    beside = 1.0
    held = view.tick.protects and incident.flooded_s >= FLOODED_SHARE * incident.seconds
    if held and (
        health.flooded_s < BESIDE_USUAL_S or incident.judged_s <= QUEUED * incident.queued_s
    ):
        beside = BESIDE_HELD_FLOOD
    syncs, rate = _of_spell(view, health, incident), _rate(view, health, incident.sync_rate)
    return (
        # 16 ticks of half a second may add up to 7.99 s.
        incident.lasted_s >= least_s - view.dt_s / 4
        and is_lasting(incident)
        and rate < view.rules.sync_share * beside * health.sync_rate
        and incident.judged_s > _threshold_s(view, health, syncs)
        and incident.waited_s >= DEMAND_SHARE * incident.seconds
        and not _larger(view, health, syncs)
    )


def _is_well(view: DeviceView, health: DeviceHealth) -> bool:
    rate = view.estimate.sync_rate or 0.0
    if rate >= view.rules.resolve_share * health.sync_rate:
        return True
    slow = view.latency_s > _threshold_s(view, health, _of_tick(view, health))
    return not (slow and view.late)


def _of_tick(view: DeviceView, health: DeviceHealth) -> Syncs:
    own = view.sync_bytes if _own(view, health) else 0
    return Syncs(view.estimate.fsyncs, own, view.dt_s)


def _of_spell(view: DeviceView, health: DeviceHealth, incident: Incident) -> Syncs:
    own = incident.sync_bytes if _own(view, health) else 0
    return Syncs(incident.syncs.total, own, incident.seconds)


def _rate(view: DeviceView, health: DeviceHealth, rate: float) -> float:
    """`rate`, but at most that of the usual programs: several that wait alike share it."""
    others = [task for task in view.tick.tasks.get(view.name, ()) if task.synced
              and task.comm not in committers(health)]
    return rate / 2 if others and not _own(view, health) else rate


def _own(view: DeviceView, health: DeviceHealth) -> bool:
    """Whether the programs that commit wrote what syncs write, not other programs or direct IO."""
    known = committers(health)
    return not known or view.is_of(known)


def _usual(health: DeviceHealth, syncs: Syncs) -> Optional[Baseline]:
    size = size_class(syncs.done, syncs.size_bytes) if syncs.done else health.size
    return health.usual(health.syncs, size)


def _threshold_s(view: DeviceView, health: DeviceHealth, syncs: Syncs) -> float:
    """The mean latency above which syncs of this number and size are slow."""
    usual = _usual(health, syncs)
    if usual is None:
        return float("inf")
    by_size = 0.0
    if _is_behind(view):
        pass  # the bytes are a flood's, for which small syncs wait
    elif size_class(syncs.done, syncs.size_bytes) > usual.size and health.most_sync_bytes:
        # Larger than any syncs with a known latency: allow time for the bytes.
        by_size = SIZE_SLACK * syncs.size_bytes / max(1, syncs.done) / health.most_sync_bytes
    return view.rules.latency_multiple * usual.latency_s + by_size


def _is_behind(view: DeviceView) -> bool:
    """Whether more waits to be written than a load of large syncs leaves behind."""
    return view.flooded and view.backlog_bytes >= BACKLOG_LEAST_BYTES


def _larger(view: DeviceView, health: DeviceHealth, syncs: Syncs) -> bool:
    """Whether syncs are fewer because they are larger: as many bytes are written as before."""
    if _is_behind(view):
        return False
    if syncs.size_bytes < view.rules.bytes_share * health.most_sync_bytes * syncs.seconds:
        return False
    usual = _usual(health, syncs)
    # If none has returned yet, one pending sync has written all of it.
    return usual is None or size_class(max(1, syncs.done), syncs.size_bytes) > usual.size


EXHAUSTED_S = 60.0


def exhausted(view: DeviceView, health: DeviceHealth, at_the_bound: bool) -> DeviceHealth:
    """Add this tick to the device's incident; raise EXHAUSTED when that has lasted."""
    tick = view.tick
    incident = extended(health.exhausted, view, at_the_bound, EXHAUSTED_S / 2)
    if incident.good_s >= INCIDENT_ENDS_S or not tick.protects:
        return replace(health, exhausted=None)
    if incident.lasted_s >= EXHAUSTED_S:
        cause = messages.likeliest(tick, view.name, cause_of(incident, health, tick.core))
        tick.tell(alert_of(
            incident, view, health, AlertName.EXHAUSTED, cause,
            messages.exhausted(view.name, incident, view.objective_s, cause, view.floor_bytes),
            culprits=culprits_of(incident, cause, committers(health)),
        ))  # fmt: skip
    return replace(health, exhausted=incident)


# What no sync waits for may be a read of a disk in standby, which takes up to 10 s to spin up, or
# one request that the kernel counts nowhere when it completes.
UNWANTED_STALL_S = 15.0
# Seconds without a completion after which a rotating disk may be in standby, even if awaited.
# While it works that is written down every WORKED_S.
STANDBY_S, WORKED_S = 60.0, 15.0


def stall(view: DeviceView, health: DeviceHealth) -> DeviceHealth:
    """Update how long nothing has completed; raise STALL when that is long."""
    seen, estimate, sample, name = view.seen, view.estimate, view.tick.sample, view.name
    sync = seen.sync
    waiting = sync.inflight if sync is not None else 0
    completed = seen.writes or seen.write_bytes or seen.read_bytes or seen.others or (
        sync is not None and (sync.fsyncs or sync.fdatasyncs)
    )
    if completed or not (seen.inflight or waiting):
        view.well(AlertName.STALL)
        if completed and sample.time_s - health.worked_s >= WORKED_S:
            return replace(health, stalled_s=0.0, worked_s=sample.time_s)
        return health if not health.stalled_s else replace(health, stalled_s=0.0)
    if seen.classes and any(requests.count for requests in seen.classes.values()):
        return replace(health, stalled_s=0.0) if health.stalled_s else health  # flushes
    before_s, stalled_s = health.stalled_s, health.stalled_s + view.dt_s
    health = replace(health, stalled_s=stalled_s)
    asleep = (
        seen.device.rotational and sample.time_s - stalled_s - health.worked_s >= STANDBY_S
    )
    least_s = view.rules.stall_s
    if asleep or not waiting:
        least_s = max(least_s, UNWANTED_STALL_S)
    # In one long tick the whole host may have stood still, as a guest does that is paused.
    if stalled_s < least_s or not before_s:
        return health
    # Without a request under way the disk may well be fine, for some time a snapshot holds it.
    critical = seen.inflight or stalled_s >= view.rules.critical_s
    view.tick.tell(Alert(
        AlertName.STALL, name, Severity.CRITICAL if critical else Severity.WARNING,
        Cause.DEVICE if seen.inflight else Cause.UNKNOWN, sample.wall_s - stalled_s,
        messages.stalled(name, stalled_s, seen.inflight, waiting, estimate.oldest_fsync_s),
        "nothing, no write to queue/* while it stalls: check the kernel log, the controller,"
        " the path to the disk",
        evidence=Evidence(
            sample.wall_s - stalled_s, sample.wall_s,
            (("stalled_s", stalled_s), ("inflight", float(seen.inflight)),
             ("fsyncs_inflight", float(waiting)), ("oldest_fsync_s", estimate.oldest_fsync_s)),
        ),
    ))  # fmt: skip
    return health
