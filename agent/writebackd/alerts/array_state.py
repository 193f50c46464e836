# SPDX-License-Identifier: GPL-2.0-or-later
"""Array state as a cause: rebuild, failed battery, write-through, and the words for it."""

from __future__ import annotations

from typing import Iterator, List

from writebackd import formats
from writebackd.alerts import messages
from writebackd.alerts.alert_types import Cause
from writebackd.alerts.views import DeviceView
from writebackd.types.storage import Backing, CacheMode, Protection

_VERBS = {
    "rebuild": "rebuilds", "resync": "is resynced", "check": "is checked",
    "patrol": "is in a patrol read", "initialisation": "is initialised",
    "migration": "is reshaped",
}  # fmt: skip


def cause(view: DeviceView, likeliest: Cause) -> Cause:
    """The likeliest cause, unless the array itself is at work: then that is the cause.

    From the host a rebuild looks like the load of a neighbour: only the array can tell.
    """
    if likeliest in (Cause.NEIGHBOUR, Cause.UNKNOWN) and _works(view):
        return Cause.DEVICE
    return likeliest


def said(view: DeviceView, why: Cause) -> str:
    """What is known about such a cause, as the end of a sentence; empty for other causes."""
    if why is Cause.DEVICE:
        known = _works(view)
    elif why is Cause.WRITE_THROUGH:
        known = _caches(view)
    else:
        known = []
    return f": {', '.join(known)}" if known else ""


def done(view: DeviceView, why: Cause) -> str:
    """What the agent did about it, and what is left to do."""
    if why is Cause.DEVICE and _works(view):
        return "wait until the array is done, or lower its rebuild rate"
    tick = view.tick
    return messages.done(view.name, why, tick.decision, tick.core, tick.in_force)


def battery(backing: Backing) -> str:
    """What is wrong with the battery or capacitor of the cache; empty if nothing is."""
    if backing.protection is None:
        words = [word for word in backing.unread if "battery" in word]
        return f"{', '.join(words)} is not understood ({backing.source})" if words else ""
    if backing.protection is Protection.OK:
        return ""
    return f"battery {backing.protection.value} ({backing.source})"


def _here(view: DeviceView) -> Iterator[Backing]:
    return (backing for backing in view.tick.sample.backings if backing.device == view.name)


def _works(view: DeviceView) -> List[str]:
    lines = []
    for backing in _here(view):
        for work in backing.works:
            line = f"array {_VERBS.get(work.kind, 'is busy')}"
            if work.share is not None:
                line += f", {formats.percent(work.share)} done"
            if work.rate is not None:
                line += f" at {formats.size(work.rate)}/s"
            lines.append(f"{line} ({backing.source})")
    return list(dict.fromkeys(lines))


def _caches(view: DeviceView) -> List[str]:
    lines = []
    for backing in _here(view):
        lines.append(battery(backing))
        if backing.mode is CacheMode.WRITE_THROUGH:
            lines.append(f"cache write-through ({backing.source})")
        elif backing.mode is not None:
            lines.append(f"but {backing.source} says {backing.mode.value}")
    return list(dict.fromkeys(filter(None, lines)))
