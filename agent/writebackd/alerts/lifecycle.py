# SPDX-License-Identifier: GPL-2.0-or-later
"""Lifecycle of an alert: raised, held, changed cause, resolved, inhibited by another."""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from writebackd.alerts import messages
from writebackd.alerts.alert_types import Alert, AlertName, Cause, Severity
from writebackd.alerts.detector_memory import ActiveAlert, Key
from writebackd.alerts.views import TickView
from writebackd.types.copying import replace
from writebackd.types.samples import Sample
from writebackd.types.storage import Device

# Seconds.  An alert changes its cause after another one has been found for this long; the evidence
# of an incident is at most 16 s old.
CAUSE_HOLDS_S = 10.0
# Good seconds cancelled by one bad second.  If a bad second cancelled all of them, an alert would
# never end on a database whose checkpoint causes one slow second in every minute.
GOOD_TAKEN = 10.0
# Alerts that explain another one, which is then not reported.
_WORSE: Mapping[str, Tuple[AlertName, ...]] = {
    AlertName.COLLAPSE.value: (AlertName.STALL, AlertName.CACHE_DEGRADED),
    AlertName.EXHAUSTED.value: (AlertName.STALL, AlertName.COLLAPSE, AlertName.CACHE_DEGRADED),
}


def update_active(tick: TickView, before: Mapping[Key, ActiveAlert]) -> Dict[Key, ActiveAlert]:
    """Raise alerts at once; end them after `resolve-after` without trouble and at least `hold`."""
    raised = tick.raised
    if tick.quiet:
        raised = {key: alert for key, alert in raised.items() if key in before}
    if not raised and not before:
        return {}
    now_s, rules = tick.sample.time_s, tick.rules
    here = {seen.device.name for seen in tick.sample.devices}
    standing: Dict[Key, ActiveAlert] = {}
    for key, active in before.items():
        if key[1] in tick.left:
            continue
        alert = raised.get(key)
        if alert is not None:
            standing[key] = _still(active, alert, tick)
            continue
        gone = key[1] is not None and key[1] not in here
        if key in tick.well or gone:
            good_s = active.good_s + tick.sample.dt_s
        else:
            good_s = max(0.0, active.good_s - GOOD_TAKEN * tick.sample.dt_s)
        if good_s < rules.resolve_after_s or now_s - active.raised_s < rules.hold_s:
            alert = messages.gone(active.alert) if gone else _done_now(active.alert, tick)
            standing[key] = replace(active, alert=alert, good_s=good_s)
    for key, alert in raised.items():
        if key not in standing:
            standing[key] = ActiveAlert(alert, now_s)
    # One alert is enough for a disk that is gone; the ones it hides would appear when it ends.
    for name, on in [key for key in standing if key[1] is not None and key[1] not in here]:
        if any((worse.value, on) in standing for worse in _WORSE.get(name, ())):
            del standing[name, on]
    return standing


def _done_now(alert: Alert, tick: TickView) -> Alert:
    """The alert with what is done now: mode and limit may have changed since it was raised."""
    if alert.device is None or alert.cause not in messages.LIMITED:
        return alert
    return replace(alert, done=messages.done(tick, alert.device, alert.cause))


def _still(before: ActiveAlert, alert: Alert, tick: TickView) -> ActiveAlert:
    """The active alert with this tick's numbers.

    Its cause changes only after CAUSE_HOLDS_S, and its severity only rises, or each flicker of a
    cause and each wave of a flood would be reported anew.
    """
    old = before.alert
    lasts = tick.sample.time_s - before.raised_s >= tick.rules.critical_s
    severity = alert.severity
    if old.severity is Severity.CRITICAL or (alert.name is AlertName.COLLAPSE and lasts):
        severity = Severity.CRITICAL
    other, other_s = None, 0.0
    if old.cause not in (Cause.UNKNOWN, alert.cause):
        other = alert.cause
        other_s = tick.sample.dt_s + (before.other_s if before.other is other else 0.0)
        if other is Cause.UNKNOWN or other_s < CAUSE_HOLDS_S:
            alert = old
        else:
            other, other_s = None, 0.0
    alert = replace(alert, severity=severity, since_s=old.since_s)
    return ActiveAlert(alert, before.raised_s, 0.0, other, other_s)


def hidden(standing: Mapping[Key, ActiveAlert], shown: Sequence[Alert]) -> Tuple[Alert, ...]:
    """Active alerts that are not `shown` because another one explains them."""
    keys = {(alert.name.value, alert.device) for alert in shown}
    return tuple(active.alert for key, active in standing.items() if key not in keys)


def uninhibited(standing: Mapping[Key, ActiveAlert], sample: Sample) -> Tuple[Alert, ...]:
    """Active alerts that no other alert explains."""
    if not standing:
        return ()
    devices = {seen.device.name: seen.device for seen in sample.devices}
    by_name: Dict[str, List[Optional[str]]] = {}
    for name, on in standing:
        by_name.setdefault(name, []).append(on)
    return tuple(
        active.alert
        for (name, on), active in standing.items()
        if not any(
            (on == other or _share_a_disk(devices.get(on or ""), devices.get(other or "")))
            # A missing cache, perhaps for weeks, does not explain writes of 100 ms or more.
            and (worse is not AlertName.CACHE_DEGRADED or active.alert.cause is not Cause.DEVICE)
            for worse in _WORSE.get(name, ())
            for other in by_name.get(worse.value, ())
        )
    )


def _share_a_disk(one: Optional[Device], other: Optional[Device]) -> bool:
    """Whether two devices have a common leaf disk.

    A common driver is no evidence: it may have two controllers, and of one controller each disk
    raises its own cache alert.
    """
    if one is None or other is None:
        return False
    return not set(one.leaf_devnos).isdisjoint(other.leaf_devnos)
