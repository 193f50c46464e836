# SPDX-License-Identifier: GPL-2.0-or-later
"""CACHE_DEGRADED: small writes are no longer as fast as the write cache makes them."""

from __future__ import annotations

from writebackd.alerts import messages
from writebackd.alerts.alert_types import Alert, AlertName, Cause
from writebackd.alerts.baseline import LATENCY_FOLLOWS_S, MOST_FALLS_S
from writebackd.alerts.cause import (
    ENOUGH_WRITES,
    FLOODED_SHARE,
    QUEUED,
    SMALL,
    SOON_SHARE,
    fast_share,
    has_cached,
    is_write_through,
)
from writebackd.alerts.detector_memory import (
    ENOUGH_S,
    Baseline,
    BesideFlood,
    DeviceHealth,
    Incident,
    Recovery,
    size_class,
)
from writebackd.alerts.incident import UNWANTED_S, alert_of, extended, is_lasting
from writebackd.alerts.views import DeviceView
from writebackd.types.copying import replace

# Seconds until the alert: the first tick, and three whole ones of about a second, which are needed
# to rule out a limiter (EVEN_LEAST).
DEGRADED_S = 3.5
FAST_AGAIN = 0.5  # share of fast small writes above which the cache is back
# Bytes.  With a larger backlog every write is slow, with or without a cache.  A limited flood has a
# backlog of a tenth of a second of R (MOST_S), R being up to 2 GB/s.
HIDING_BYTES = 256 << 20
# Factor on the longest time without a fast write during a flood while the cache was working.
SLOW_TIMES = 2.0
# Seconds.  Without a small write for this long the alert ends; it is raised again if the cache is
# still off.
UNSEEN_S = 300.0


def degraded(view: DeviceView, health: DeviceHealth) -> DeviceHealth:
    """Add this tick to the incident, if there is one, and raise the alert once it is certain."""
    count, size_bytes, _ = view.small_writes
    size = size_class(count, size_bytes)
    if not count or size > SMALL:
        return _unseen(view, health)
    usual = health.usual(health.writes, size)
    if usual is None or _behind_much(view):
        return _over(health)
    if _is_fast(view, health, usual):
        return _over(health)
    incident = extended(health.degraded, view, True, DEGRADED_S)
    if incident.lasted_s >= DEGRADED_S:
        if not is_write_through(incident, health):
            return _over(health)
        if is_lasting(incident) and not _is_usual(incident, health.beside):
            view.tick.tell(cache_alert(view, health, incident, usual))
    return replace(health, degraded=incident)


def beside_flood(view: DeviceView, health: DeviceHealth) -> DeviceHealth:
    """Record how long small writes are fast or slow during a flood and shortly after it."""
    count, size_bytes, latencies = view.small_writes
    size = size_class(count, size_bytes)
    usual = health.usual(health.writes, size)
    if not count or size > SMALL or usual is None:
        return health
    fast_s, fast_at_s, slow_s, longest_s = health.beside
    if not has_cached(latencies, usual):
        return replace(health, beside=BesideFlood(
            max(0.0, fast_s - view.dt_s), fast_at_s, slow_s + view.dt_s, longest_s
        ))  # fmt: skip
    if view.estimate.flooded:
        # Only consecutive ticks: the first and last of a flood have fast writes on any disk.
        now_s = view.tick.sample.time_s
        if now_s - fast_at_s < 1.5 * view.dt_s:
            fast_s = min(fast_s + view.dt_s, LATENCY_FOLLOWS_S)
        fast_at_s = now_s
    longest_s *= 1.0 - view.dt_s / MOST_FALLS_S
    if (AlertName.CACHE_DEGRADED.value, view.name) not in view.tick.stands:
        longest_s = max(longest_s, slow_s)
    return replace(health, beside=BesideFlood(fast_s, fast_at_s, 0.0, longest_s))


def recovering(view: DeviceView, health: DeviceHealth) -> DeviceHealth:
    """Check whether a cache reported as off works again.

    A single tick of a quiet host has too few writes to judge by, so ticks are combined.
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


def _is_fast(view: DeviceView, health: DeviceHealth, usual: Baseline) -> bool:
    """Whether a cache completed some of the tick's small writes."""
    _, size_bytes, latencies = view.small_writes
    if view.estimate.flooded:
        return has_cached(latencies, usual)
    share = fast_share(latencies, size_bytes, health)
    # Twice the share allowed in an incident, since a single tick has few writes.
    return share is not None and share > 2 * SOON_SHARE


def _is_usual(incident: Incident, beside: BesideFlood) -> bool:
    """Whether a flood explains the incident.

    Either no fast writes have been seen during floods, or earlier floods had none for as long.
    """
    return incident.flooded_s >= FLOODED_SHARE * incident.seconds and (
        beside.fast_s < ENOUGH_S or beside.slow_s < SLOW_TIMES * beside.longest_s
    )


def _hidden(view: DeviceView) -> bool:
    """Whether a flood may be why small writes are slow in this tick."""
    if not view.estimate.flooded:
        return False
    middle = view.small_writes[2].quantile(0.5)
    queued_s = view.backlog_bytes / max(view.estimate.rate, 1.0)
    return _behind_much(view) or (middle is not None and middle <= QUEUED * queued_s)


def _unseen(view: DeviceView, health: DeviceHealth) -> DeviceHealth:
    """A tick without small writes: after UNWANTED_S of them the incident is dropped."""
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
