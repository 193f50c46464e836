# SPDX-License-Identifier: GPL-2.0-or-later
"""FOREIGN_WRITER: another process changed a lever."""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional, Tuple

from writebackd.alerts.alert_types import Alert, AlertName, Cause, Culprit, Severity
from writebackd.alerts.cause import container_in, unit_in
from writebackd.types.core_memory import Memory
from writebackd.types.levers import Intrusion, LeverKind
from writebackd.types.samples import Sample


def foreign_alerts(memory: Memory, sample: Sample) -> Tuple[Alert, ...]:
    """One alert for the global limits, and one for each device with released levers."""
    if not memory.intrusions:
        return ()
    alerts: List[Alert] = []
    for device, some in by_device(memory, sample).items():
        limits = [intrusion for intrusion in some if intrusion.write.is_limit]
        others = [intrusion for intrusion in some if not intrusion.write.is_limit]
        if limits:
            # One of the pair is as good as both: everything is released.
            said = memory.yielded or "another process set the limits"
            until = "then" if memory.retry is not None else "`writebackctl enforce`"
            summary = f"{said}; nothing is protected until {until}"
            summary += f"; {_said(others)}" if others else ""
            alerts.insert(0, _alert(None, summary, [*limits, *others], "released all limits"))
        else:
            which = "it is" if len(some) == 1 else "they are"
            summary = f"{_said(some)}; {which} not touched until `writebackctl enforce`"
            alerts.append(_alert(device, summary, some, "released it, keeps the rest"))
    return tuple(alerts)


def by_device(memory: Memory, sample: Sample) -> Dict[Optional[str], List[Intrusion]]:
    """The changes behind each alert, by device; None: the host, or an unknown device."""
    owners = _owners(sample)
    intrusions: Dict[Optional[str], List[Intrusion]] = {}
    for intrusion in memory.intrusions:
        device = None
        if not intrusion.write.is_limit:
            kind, target, name = intrusion.write.lever.split(" ", 2)
            device = owners.get(target if kind != LeverKind.PACE.value else name)
        intrusions.setdefault(device, []).append(intrusion)
    return intrusions


def _owners(sample: Sample) -> Mapping[str, str]:
    """Device names by what levers are named after: device, BDI, or a leaf disk's name or number."""
    devices = [seen.device for seen in sample.devices]
    owners = {
        disk: device.name for device in devices for disk in (*device.leaves, *device.leaf_devnos)
    }
    own = {key: device.name for device in devices for key in (device.name, device.bdi)}
    return {**owners, **own}


def _said(intrusions: List[Intrusion]) -> str:
    return "; ".join(
        f"{change.write.who} set {change.write.lever}={change.write.value}" for change in intrusions
    )


def _alert(
    device: Optional[str], summary: str, intrusions: List[Intrusion], did: str
) -> Alert:
    return Alert(
        name=AlertName.FOREIGN_WRITER,
        device=device,
        severity=Severity.WARNING,
        cause=Cause.FOREIGN_CHANGE,
        since_s=min(intrusion.wall_s for intrusion in intrusions),
        summary=summary,
        done=f"{did}: `writebackctl enforce` takes over from the current values",
        culprits=writers(intrusions),
    )


def writers(intrusions: List[Intrusion]) -> Tuple[Culprit, ...]:
    """The processes that made the changes, as far as known."""
    writes = {one.write.pid: one.write for one in intrusions if one.write.pid is not None}
    return tuple(
        Culprit(
            pid=write.pid, comm=write.comm, cmdline=write.cmdline, cgroup=write.cgroup,
            unit=unit_in(write.cgroup), container=container_in(write.cgroup),
        )
        for write in writes.values()
    )
