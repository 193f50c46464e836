# SPDX-License-Identifier: GPL-2.0-or-later
"""What somebody should know about now, as the `alerts` of status. Pure."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional

from writebackd.model import Intrusion, LeverKind
from writebackd.report.snapshot import Snapshot

FOREIGN_WRITER = "FOREIGN_WRITER"


def alerts_json(snapshot: Snapshot) -> List[Dict[str, Any]]:
    """Every alert that stands; `since` in seconds since 1970."""
    alerts = []
    intrusions = snapshot.memory.intrusions
    limits = [each for each in intrusions if each.write.is_limit]
    if limits:
        # One of the pair is as good as both: everything is let go.
        said = snapshot.memory.yielded or "somebody set the limits"
        summary = f"{said}; nothing is protected until `writebackctl enforce`"
        alerts.append(_alert(None, "the limits", summary, limits))
    owners = _owners(snapshot)
    for each in intrusions:
        if not each.write.is_limit:
            kind, target, name = each.write.lever.split(" ", 2)
            summary = (
                f"{each.write.who} set {each.write.lever}={each.write.value};"
                " it is left alone until `writebackctl enforce`"
            )
            device = owners.get(target if kind != LeverKind.PACE.value else name)
            alerts.append(_alert(device, "a lever", summary, [each]))
    return alerts


def _owners(snapshot: Snapshot) -> Mapping[str, str]:
    """Devices by what a lever is of: their BDI, or a disk below by name or number."""
    devices = [seen.device for seen in snapshot.sample.devices]
    owners = {
        disk: device.name for device in devices for disk in (*device.leaves, *device.leaf_devnos)
    }
    return {**owners, **{device.bdi: device.name for device in devices}}


def _alert(
    device: Optional[str], what: str, summary: str, intrusions: List[Intrusion]
) -> Dict[str, Any]:
    return {
        "name": FOREIGN_WRITER,
        "device": device,
        "severity": "warning",
        "cause": f"somebody else set {what}",
        "since": min(each.wall_s for each in intrusions),
        "summary": summary,
        "writers": [
            {
                "lever": each.write.lever,
                "value": each.write.value,
                "pid": each.write.pid,
                "comm": each.write.comm,
                "cgroup": each.write.cgroup,
                "cmdline": each.write.cmdline,
            }
            for each in intrusions
        ],
    }
