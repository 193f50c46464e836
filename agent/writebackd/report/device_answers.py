# SPDX-License-Identifier: GPL-2.0-or-later
"""What the answers say of a device: its row, its topology, and which one a name means. Pure."""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional, Sequence

from writebackd.report.answer_parts import Json, decisions_of, finite
from writebackd.report.control_server import RequestError
from writebackd.report.snapshot import Snapshot
from writebackd.types.decision import DeviceDecision, DeviceState
from writebackd.types.estimate import Estimate
from writebackd.types.samples import DeviceSample
from writebackd.types.storage import Backing, Device, Protection


def devices_json(snapshot: Snapshot) -> Json:
    """The answer to `devices`: what each device is made of, and whether it is managed."""
    decisions, backings = decisions_of(snapshot), backings_of(snapshot.sample.backings)
    return {
        "devices": [
            _topology_row(
                each.device, decisions.get(each.device.name), backings.get(each.device.name, ())
            )
            for each in snapshot.sample.devices
        ]
    }


def find_devices(snapshot: Snapshot, wanted: Optional[str]) -> List[DeviceSample]:
    """Those that `wanted` may mean, all for None. Raises RequestError when there is none."""
    devices = list(snapshot.sample.devices)
    if wanted is None:
        return devices
    bare = wanted[5:] if wanted.startswith("/dev/") else wanted
    exact = [d for d in devices if bare in (d.device.name, d.device.devno)]
    chosen = exact or [d for d in devices if wanted in [fs[2] for fs in d.device.filesystems]]
    chosen = chosen or [d for d in devices if bare in d.device.leaves]
    if not chosen:
        names = ", ".join(d.device.name for d in devices) or "none"
        raise RequestError(f"no device is called {wanted!r}; known devices: {names}")
    return chosen


def device_row(
    sample: DeviceSample, decision: Optional[DeviceDecision], estimate: Optional[Estimate],
    backings: Sequence[Backing] = (),
) -> Json:
    device = sample.device
    said = next((each for each in backings if each.mode or each.protection), None)
    cache = estimate.cache_bytes if estimate else None
    row: Json = {
        "name": device.name,
        "devno": device.devno,
        "mounts": [mount for _, _, mount in device.filesystems],
        "state": decision.state.value if decision else None,
        "reason": decision.reason if decision else "",
        "decision_id": decision.decision_id if decision else None,
        "target_bytes": decision.target_bytes if decision else None,
        "objective_s": decision.basis.objective_s if decision and decision.basis else None,
        "inflight": sample.inflight,
        "busy_share": finite(sample.busy_share),
        # Capacity and fill are as its behaviour shows them, the rest as somebody says;
        # queue/write_cache is no evidence of a controller's.
        "write_cache": {
            "kind": cache_kind(said) if said else None,
            "capacity_bytes": finite(cache),
            "mode": said.mode.value if said and said.mode else None,
            "protected": said.protection is Protection.OK if said and said.protection else None,
            "source": said.source if said else None,
            "reported": [_backing(each) for each in backings],
            "fill": finite(min(1.0, estimate.fill_bytes / cache)) if estimate and cache else None,
        },
    }
    row.update(_figures(estimate))
    return row


def _figures(estimate: Optional[Estimate]) -> Json:
    """The numbers of one estimate; all None before the first one."""
    return {
        "write_rate": finite(estimate.write_rate) if estimate else None,
        "background_rate": finite(estimate.background_rate) if estimate else None,
        "drain_rate": finite(estimate.drain_rate) if estimate else None,
        "sync_rate": finite(estimate.sync_rate) if estimate else None,
        "sync_demand": estimate.demand if estimate and estimate.demand_known else None,
        "fsync_p50_s": finite(estimate.fsync_p50_s) if estimate else None,
        "fsync_p99_s": finite(estimate.fsync_p99_s) if estimate else None,
        "fsync_baseline_s": finite(estimate.baseline_s) if estimate else None,
        "fsyncs_inflight": estimate.fsyncs_inflight
        if estimate and estimate.demand_known
        else None,
        "oldest_fsync_s": finite(estimate.oldest_fsync_s)
        if estimate and estimate.demand_known
        else None,
        "slow_share": finite(estimate.slow_share) if estimate else None,
    }


def _topology_row(
    device: Device, decision: Optional[DeviceDecision], backings: Sequence[Backing]
) -> Json:
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
        "state": decision.state.value if decision else None,
        "managed": decision is not None and decision.state is not DeviceState.EXCLUDED,
        "reason": decision.reason if decision else "not decided yet",
    }


def backings_of(backings: Sequence[Backing]) -> Mapping[str, Sequence[Backing]]:
    found: Dict[str, List[Backing]] = {}
    for each in backings:
        found.setdefault(each.device, []).append(each)
    return found


def _backing(backing: Backing) -> Json:
    return {
        "source": backing.source,
        "time_s": finite(backing.wall_s),
        "capacity_bytes": backing.capacity_bytes,
        "mode": backing.mode.value if backing.mode else None,
        "protection": backing.protection.value if backing.protection else None,
        "dirty_bytes": backing.dirty_bytes,
        "learn_s": finite(backing.learn_s),
        "works": [
            {"kind": work.kind, "share": finite(work.share), "rate": finite(work.rate)}
            for work in backing.works
        ],
    }


def cache_kind(backing: Backing) -> str:
    """What keeps the writes: a controller, or what the kernel has for it."""
    kernels = {"md": "md-journal", "bcache": "bcache", "dm-writecache": "dm-writecache"}
    return {**kernels, "dm-cache": "dm-cache"}.get(backing.source, "controller")
