# SPDX-License-Identifier: GPL-2.0-or-later
"""Counts which programs past alerts blamed for the floods of a device.  Pure."""

from __future__ import annotations

from collections import Counter
from typing import Any, Iterable, List, Mapping, Optional, Tuple

from writebackd.alerts.alert_types import Cause

# More names make no sentence.
_MOST = 3


def blamed(
    past: Iterable[Mapping[str, Any]], device: str, begin_s: float, end_s: float
) -> List[Tuple[str, int]]:
    """Names and numbers of alerts that began in the span, most first; alerts as in past_json()."""
    counts: Counter[str] = Counter()
    for alert in past:
        within = begin_s <= alert["began"] <= end_s and alert["device"] == device
        if within and Cause.FLOOD.value in alert["causes"]:
            # Once an alert, however many processes of that name it lists.
            counts.update(dict.fromkeys(filter(None, map(_name, alert["culprits"])), 1))
    return counts.most_common()


def _name(culprit: Any) -> Optional[str]:
    """dd (backup.service); None if the record is damaged, or names nobody."""
    if not isinstance(culprit, dict):
        return None
    comm, unit = culprit.get("comm"), culprit.get("unit")
    if comm and unit:
        return f"{comm} ({unit})"
    name = comm or unit or culprit.get("container")
    return str(name) if name else None


def sentence(blamed: List[Tuple[str, int]]) -> str:
    """Which programs were blamed; empty if no alert names any."""
    if not blamed:
        return ""
    named = ", ".join(f"{name} in {count}" for name, count in blamed[:_MOST])
    more = f", {len(blamed) - _MOST} others less often" if len(blamed) > _MOST else ""
    return f"Alerts blamed on floods named {named}{more}."
