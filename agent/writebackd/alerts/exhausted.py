# SPDX-License-Identifier: GPL-2.0-or-later
"""EXHAUSTED: the limit is at its floor and commits still miss the objective."""

from __future__ import annotations

from writebackd.alerts import messages
from writebackd.alerts.alert_types import AlertName
from writebackd.alerts.cause import cause_of, culprits_of
from writebackd.alerts.detector_memory import DeviceHealth
from writebackd.alerts.incident import INCIDENT_ENDS_S, alert_of, extended
from writebackd.alerts.views import DeviceView
from writebackd.types.copying import replace

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
            culprits=culprits_of(incident, cause),
        ))  # fmt: skip
    return replace(health, exhausted=incident)
