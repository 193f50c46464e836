# SPDX-License-Identifier: GPL-2.0-or-later
"""FOREIGN_WRITER: somebody else changed a lever."""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional, Tuple

from writebackd.alerts.alert_types import Alert, AlertName, Cause, Culprit, Severity
from writebackd.alerts.cause import container_in, unit_in
from writebackd.types.core_memory import Memory
from writebackd.types.levers import Intrusion, LeverKind
from writebackd.types.samples import Sample


def foreign_alerts(memory: Memory, sample: Sample) -> Tuple[Alert, ...]:
    """One for the global pair, and one for each device with levers that were let go."""
    if not memory.intrusions:
        return ()
    by_device: Dict[Optional[str], List[Intrusion]] = {}
    limits = [each for each in memory.intrusions if each.write.is_limit]
    owners = _owners(sample)
    for each in memory.intrusions:
        if not each.write.is_limit:
            by_device.setdefault(device_of(each, owners), []).append(each)
    alerts = []
    if limits:
        # One of the pair is as good as both: everything is let go.
        said = memory.yielded or "another process set the limits"
        summary = f"{said}; nothing is protected until `writebackctl enforce`"
        others = by_device.pop(None, [])
        if others:
            summary += "; " + _said(others)
        alerts.append(_alert(None, summary, [*limits, *others], "released all limits"))
    for device, some in by_device.items():
        which = "it is" if len(some) == 1 else "they are"
        summary = f"{_said(some)}; {which} not touched until `writebackctl enforce`"
        alerts.append(_alert(device, summary, some, "released it, keeps the rest"))
    return tuple(alerts)


def intrusions_of(alert: Alert, memory: Memory, sample: Sample) -> Tuple[Intrusion, ...]:
    """What a FOREIGN_WRITER alert is about."""
    limits = any(each.write.is_limit for each in memory.intrusions)
    owners = _owners(sample)
    return tuple(
        each
        for each in memory.intrusions
        if (each.write.is_limit and alert.device is None)
        or (not each.write.is_limit and device_of(each, owners) == alert.device)
        or (limits and alert.device is None and device_of(each, owners) is None)
    )


def device_of(intrusion: Intrusion, owners: Mapping[str, str]) -> Optional[str]:
    """The device that a lever is of; None: of the host, or not known."""
    if intrusion.write.is_limit:
        return None
    kind, target, name = intrusion.write.lever.split(" ", 2)
    return owners.get(target if kind != LeverKind.PACE.value else name)


def _owners(sample: Sample) -> Mapping[str, str]:
    """Devices by what a lever is of: their BDI, or a disk below by name or number."""
    devices = [seen.device for seen in sample.devices]
    owners = {
        disk: device.name for device in devices for disk in (*device.leaves, *device.leaf_devnos)
    }
    return {**owners, **{device.bdi: device.name for device in devices}}


def _said(intrusions: List[Intrusion]) -> str:
    return "; ".join(
        f"{each.write.who} set {each.write.lever}={each.write.value}" for each in intrusions
    )


def _alert(
    device: Optional[str], summary: str, intrusions: List[Intrusion], did: str
) -> Alert:
    writers = {each.write.pid: each.write for each in intrusions if each.write.pid is not None}
    return Alert(
        name=AlertName.FOREIGN_WRITER,
        device=device,
        severity=Severity.WARNING,
        cause=Cause.FOREIGN_CHANGE,
        since_s=min(each.wall_s for each in intrusions),
        summary=summary,
        done=f"{did}: `writebackctl enforce` takes over from the current values",
        culprits=tuple(
            Culprit(
                pid=write.pid, comm=write.comm, cmdline=write.cmdline, cgroup=write.cgroup,
                unit=unit_in(write.cgroup), container=container_in(write.cgroup),
            )
            for write in writers.values()
        ),
    )
