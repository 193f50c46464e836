# SPDX-License-Identifier: GPL-2.0-or-later
"""Devices in answers: row, topology, name, and the time until they have no dirty data.  Pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Dict, List, Mapping, NamedTuple, Optional, Sequence

from writebackd.report.answer_parts import finite
from writebackd.report.control_server import RequestError
from writebackd.report.snapshot import Snapshot
from writebackd.types.decision import DeviceDecision, DeviceState
from writebackd.types.estimate import Estimate
from writebackd.types.samples import DeviceSample, Sample
from writebackd.types.storage import CACHES_OF_THE_KERNEL, Backing, Device, Protection

if TYPE_CHECKING:
    from writebackd.report import answers

def devices_json(snapshot: Snapshot) -> answers.DevicesAnswer:
    """The answer to `devices`: the disks of each device, and whether it is managed."""
    decisions, backings = snapshot.decisions, backings_of(snapshot.sample.backings)
    return {
        "devices": [
            _topology_row(
                each.device, decisions[each.device.name], backings.get(each.device.name, ())
            )
            for each in snapshot.sample.devices
        ]
    }


def find_devices(snapshot: Snapshot, wanted: Optional[str]) -> List[DeviceSample]:
    """Devices that `wanted` may mean, or all for None. Raises RequestError if none matches."""
    devices = list(snapshot.sample.devices)
    if wanted is None:
        return devices
    bare = wanted[5:] if wanted.startswith("/dev/") else wanted
    exact = [d for d in devices if bare in (d.device.name, d.device.devno)]
    chosen = exact or [d for d in devices if wanted in d.device.names]
    chosen = chosen or [d for d in devices if bare in d.device.leaves]
    if not chosen:
        names = ", ".join(d.device.name for d in devices) or "none"
        raise RequestError(f"no device is called {wanted!r}; known devices: {names}")
    return chosen


def device_figures(
    snapshot: Snapshot, sample: DeviceSample, decision: DeviceDecision
) -> answers.DeviceFigures:
    device, estimate = sample.device, snapshot.estimates[decision.name]
    syncs = estimate if estimate.demand_known else None
    return {
        "name": device.name,
        "devno": device.devno,
        "mounts": [mount for _, _, mount in device.filesystems],
        "state": decision.state.value,
        "reason": decision.reason,
        "decision_id": decision.decision_id,
        "limit_bytes": snapshot.limit_of(device.name),
        "target_bytes": decision.target_bytes,
        "objective_s": decision.basis.objective_s if decision.basis else None,
        "inflight": sample.inflight,
        "busy_share": finite(sample.busy_share),
        "write_rate": finite(estimate.write_rate),
        "background_rate": finite(estimate.background_rate),
        "drain_rate": finite(estimate.drain_rate),
        "sync_rate": finite(estimate.sync_rate),
        "sync_demand": syncs.demand if syncs else None,
        "commit_p50_s": finite(estimate.commit_p50_s),
        "commit_p99_s": finite(estimate.commit_p99_s),
        "commit_write_share": finite(estimate.commit_write_share),
        "oldest_commit_s": finite(syncs.oldest_commit_s) if syncs else None,
        "fsync_p50_s": finite(estimate.fsync_p50_s),
        "fsync_p99_s": finite(estimate.fsync_p99_s),
        "fsync_baseline_s": finite(estimate.baseline_s),
        "fsyncs_inflight": syncs.fsyncs_inflight if syncs else None,
        "oldest_fsync_s": finite(syncs.oldest_fsync_s) if syncs else None,
        "slow_share": finite(estimate.slow_share),
    }


def write_cache(estimate: Estimate, backings: Sequence[Backing]) -> answers.WriteCache:
    """Capacity and fill as the kernel reads them from a cache of its own, else as behaviour shows
    them, the rest as reported; queue/write_cache is no evidence of a controller's."""
    said = next((each for each in backings if each.mode or each.protection), None)
    # Words about a battery that are not understood do not protect anything.
    known = said is not None and (said.protection or any("battery" in word for word in said.unread))
    return {
        "kind": CACHES_OF_THE_KERNEL.get(said.source, "controller") if said else None,
        "capacity_bytes": None if estimate.cache_bytes is None else int(estimate.cache_bytes),
        "mode": said.mode.value if said and said.mode else None,
        "protected": said.protection is Protection.OK if said and known else None,
        "source": said.source if said else None,
        "reported": [_backing(each) for each in backings],
        "fill": finite(estimate.fill_share),
        "fill_source": estimate.fill_source or (
            "estimate" if estimate.fill_share is not None else None
        ),
    }


def _topology_row(
    device: Device, decision: DeviceDecision, backings: Sequence[Backing]
) -> answers.Topology:
    return {
        "name": device.name,
        "devno": device.devno,
        "bdi": device.bdi,
        "leaves": list(device.leaves),
        "leaf_devnos": list(device.leaf_devnos),
        "filesystems": [
            {"devno": devno, "type": kind, "mount": mount}
            for devno, kind, mount in device.filesystems
        ],
        "rotational": device.rotational,
        "queue_write_cache": device.write_cache,
        "reported": [_backing(each) for each in backings],
        "driver": device.driver,
        "diskseq": device.diskseq,
        "state": decision.state.value,
        "managed": decision.state is not DeviceState.EXCLUDED,
        "reason": decision.reason,
    }


def backings_of(backings: Sequence[Backing]) -> Mapping[str, Sequence[Backing]]:
    by_device: Dict[str, List[Backing]] = {}
    for each in backings:
        by_device.setdefault(each.device, []).append(each)
    return by_device


def _backing(backing: Backing) -> answers.Reported:
    return {
        "source": backing.source,
        "disk": backing.disk,
        "time_s": finite(backing.wall_s),
        "capacity_bytes": backing.capacity_bytes,
        "mode": backing.mode.value if backing.mode else None,
        "protection": backing.protection.value if backing.protection else None,
        "unread": list(backing.unread),
        "dirty_bytes": backing.dirty_bytes,
        "thresholds": {each.name: each.value for each in backing.thresholds},
        "learn_s": finite(backing.learn_s),
        "works": list(map(asdict, backing.works)),
    }


class TimeToClean(NamedTuple):
    """Seconds; None: unknown."""

    host_s: Optional[float]
    devices: Mapping[str, Optional[float]]  # of those that are managed


def time_to_clean(sample: Sample, estimates: Mapping[str, Estimate]) -> TimeToClean:
    """The dirty data divided by the drain rate.

    The kernel counts dirty pages of the host. They are those of the flooded devices, by their
    parts of the limit. Where none is flooded they are the only device's; of several nobody knows
    whose, and the host's time is that of the slowest, as if all were its own.
    """
    waiting = sample.vm.dirty_bytes + sample.vm.writeback_bytes
    managed = [estimates[each.device.name] for each in sample.devices if each.excluded is None]
    flooded = any(each.flooded for each in managed)
    devices, all_s, said = {}, [], backings_of(sample.backings)
    for each in managed:
        part = float(waiting)
        if flooded:
            part = waiting * each.limit_share if each.flooded else 0.0
        part += cache_bytes(each, said.get(each.name, ()))
        takes_s = part / each.drain_rate if each.drain_rate else None
        if part:
            all_s.append(takes_s)
        devices[each.name] = takes_s if flooded or len(managed) == 1 else None
    return TimeToClean(_longest(all_s) if managed else None, devices)


def cache_bytes(estimate: Estimate, backings: Sequence[Backing]) -> float:
    """Dirty bytes in the write caches: as reported, else as estimated; 0: unknown."""
    said = [each.dirty_bytes for each in backings if each.dirty_bytes is not None]
    if said:
        return float(sum(said))
    return min(estimate.fill_bytes, estimate.cache_bytes or 0.0)


def _longest(all_s: Sequence[Optional[float]]) -> Optional[float]:
    known: List[float] = [each for each in all_s if each is not None]
    return max(known, default=0.0) if len(known) == len(all_s) else None
