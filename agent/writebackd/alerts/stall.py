# SPDX-License-Identifier: GPL-2.0-or-later
"""STALL: requests are pending and nothing completes."""

from __future__ import annotations

from writebackd.alerts import messages
from writebackd.alerts.alert_types import Alert, AlertName, Cause, Evidence, Severity
from writebackd.alerts.detector_memory import DeviceHealth
from writebackd.alerts.views import DeviceView
from writebackd.types.copying import replace

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
