# SPDX-License-Identifier: GPL-2.0-or-later
"""CACHE_DEGRADED: small writes are no longer as fast as the write cache makes them."""

from __future__ import annotations

from writebackd.alerts import messages
from writebackd.alerts.alert_types import Alert, AlertName, Cause
from writebackd.alerts.cause import (
    ENOUGH_WRITES,
    FLOODED_SHARE,
    QUEUED,
    SMALL,
    SOON_SHARE,
    fast_share,
    is_write_through,
)
from writebackd.alerts.detector_memory import (
    Baseline,
    DeviceHealth,
    Incident,
    Recovery,
    size_class,
)
from writebackd.alerts.incident import UNWANTED_S, alert_of, extended, is_lasting
from writebackd.alerts.views import DeviceView
from writebackd.types.copying import replace

# Five ticks of about a second, which a limiter is told by (EVEN_TICKS): with four 14 of 40 volume
# caps were taken for a lost cache.
DEGRADED_S = 4.5
FAST_AGAIN = 0.5  # share of small writes, from which on the cache is back
# Behind seconds of a flood every write waits, cache or not.
HIDING_BYTES = 64 << 20
# Without a small write for so long it is not known to be off any more; it is told again when it is.
UNSEEN_S = 300.0


def degraded(view: DeviceView, health: DeviceHealth) -> DeviceHealth:
    """`health` with this tick in its incident, if there is one; tells of it when it is sure."""
    count, size_bytes, latencies = view.small_writes
    size = size_class(count, size_bytes)
    if not count or size > SMALL:
        return _unseen(view, health)
    usual = health.usual(health.writes, size)
    if usual is None or _behind_much(view):
        return _over(health)
    incident = extended(health.degraded, view, True, DEGRADED_S)
    share = fast_share(latencies, size_bytes, health)
    # Twice as many as those of an incident may be: a tick has few to count.
    if (share is not None and share > 2 * SOON_SHARE) or (
        incident.lasted_s >= DEGRADED_S / 2
        and (_is_queued(incident) or not is_write_through(incident, health))
    ):
        return _over(health)
    if incident.lasted_s >= DEGRADED_S and is_lasting(incident):
        view.tick.tell(cache_alert(view, health, incident, usual))
    return replace(health, degraded=incident)


def recovering(view: DeviceView, health: DeviceHealth) -> DeviceHealth:
    """`health` with what this tick says of a cache that was told to be off.

    A tick of a quiet host has too few writes to tell by: they are taken together.
    """
    count, size_bytes, latencies = view.small_writes
    before = health.recovery
    if not count or size_class(count, size_bytes) > SMALL:
        now = replace(before, unseen_s=before.unseen_s + view.dt_s)
    elif _hidden(view):
        now = replace(before, unseen_s=0.0)
    else:
        now = Recovery(
            before.count + count, before.bytes + size_bytes, before.latencies + latencies,
            fast=before.fast,
        )  # fmt: skip
        if health.usual(health.writes, 0) is None:
            now = Recovery(fast=True)  # another disk: nothing was lost
        elif now.count >= ENOUGH_WRITES:
            share = fast_share(now.latencies, now.bytes, health)
            now = Recovery(fast=share is not None and share > FAST_AGAIN)
    if now.fast or now.unseen_s >= UNSEEN_S:
        view.well(AlertName.CACHE_DEGRADED)
    return replace(health, recovery=now)


def _behind_much(view: DeviceView) -> bool:
    return view.estimate.flooded and view.backlog_bytes > HIDING_BYTES


def _is_queued(incident: Incident) -> bool:
    """Whether what a flood has queued explains why small writes are slow; from tick to tick that
    is a fourth or four times as much."""
    middle = incident.writes.quantile(0.5)
    return (
        incident.flooded_s >= FLOODED_SHARE * incident.seconds
        and middle is not None
        and middle <= QUEUED * incident.queued_s
    )


def _hidden(view: DeviceView) -> bool:
    """Whether a flood may be why small writes are slow in this tick."""
    if not view.estimate.flooded:
        return False
    middle = view.small_writes[2].quantile(0.5)
    queued_s = view.backlog_bytes / max(view.estimate.rate, 1.0)
    return _behind_much(view) or (middle is not None and middle <= QUEUED * queued_s)


def _unseen(view: DeviceView, health: DeviceHealth) -> DeviceHealth:
    """Nothing small was written: that says nothing, and in the end what was before says no more."""
    incident = health.degraded
    if incident is None:
        return health
    good_s = incident.good_s + view.dt_s  # in a row: a slow tick sets it to 0
    incident = replace(incident, good_s=good_s)
    return replace(health, degraded=incident if good_s < UNWANTED_S else None)


def _over(health: DeviceHealth) -> DeviceHealth:
    return replace(health, degraded=None) if health.degraded is not None else health


def cache_alert(
    view: DeviceView, health: DeviceHealth, incident: Incident, usual: Baseline
) -> Alert:
    return alert_of(
        incident, view, health, AlertName.CACHE_DEGRADED, Cause.WRITE_THROUGH,
        messages.degraded(view.name, incident, usual),
    )  # fmt: skip
