# SPDX-License-Identifier: GPL-2.0-or-later
"""The answers to status, devices, why and the steering verbs, as plain data.

Pure: made from a Snapshot alone, so the screen, the socket and the tests see
the same.  What is not known is None (null), never zero.
"""

from __future__ import annotations

import math
import os
from dataclasses import asdict, replace
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from writebackd import human
from writebackd.alert.behind import battery
from writebackd.control.explain import explain, verdict, what_next
from writebackd.estimate.learned import earlier_drain_age_s
from writebackd.model import (
    Backing,
    CacheMode,
    CgroupSample,
    Device,
    DeviceDecision,
    DeviceMemory,
    DeviceSample,
    Estimate,
    ForeignWrite,
    HeldLever,
    Mode,
    Protection,
    State,
    TaskSample,
    VmLimits,
    VmState,
)
from writebackd.report.alerts import alerts_json, route_warnings
from writebackd.report.server import RequestError
from writebackd.report.snapshot import Snapshot

Json = Dict[str, Any]
# Name, file, what was written last and what is found.
LeverDifference = Tuple[str, str, str, str]

_TOP_DIRTIERS = 3
_MOST_SHOWN = 40  # of processes and of cgroups in `top`: more than a screen has lines
_VM = "/proc/sys/vm/"


def status_json(snapshot: Snapshot) -> Json:
    """The answer to `status`: sizes in bytes, times in seconds, rates per second."""
    sample, memory = snapshot.sample, snapshot.memory
    decisions, backings = _decisions(snapshot), _backings(sample.backings)
    return {
        "version": snapshot.version,
        "mode": snapshot.mode.value,
        "policy": snapshot.policy_name,
        "policy_reason": snapshot.policy_chosen,
        "policy_files": [os.path.abspath(each) for each in snapshot.policy_files],
        "window": asdict(snapshot.window) if snapshot.window is not None else None,
        "time_s": _number(sample.wall_s),
        "uptime_s": _number(max(0.0, sample.time_s - snapshot.started_s)),
        "yielded": memory.yielded,
        "off": snapshot.off,
        "pin_bytes": memory.pin_bytes,
        "pin": _pin(snapshot),
        "trial": _trial(snapshot),
        "reason": snapshot.decision.reason,
        "probe": {
            "backend": snapshot.probe.backend,
            "request_hook": snapshot.probe.request_hook,
            "fsync_hook": snapshot.probe.fsync_hook,
            "misses": list(snapshot.probe.misses),
            "lost": list(snapshot.probe.lost),
        },
        "limits": _limits(snapshot),
        "levers": _held(snapshot.levers),
        "memory": {
            "total_bytes": sample.host.memory_bytes,
            "dirty_bytes": sample.vm.dirty_bytes,
            "writeback_bytes": sample.vm.writeback_bytes,
        },
        "devices": [
            _device_row(
                each, decisions.get(each.device.name), snapshot.estimates.get(each.device.name),
                backings.get(each.device.name, ()),
            )
            for each in sample.devices
        ],
        "dirtiers": _programs(sample.tasks, sample.dt_s),
        "alerts": alerts_json(snapshot),
        "rivals": _rivals(snapshot),
        "processes_unseen": snapshot.unseen,
        "warnings": _warnings(snapshot),
        "state_dir": snapshot.state_dir,
        "lease": {
            "remaining_s": _number(snapshot.lease_s),
            "watcher_pid": snapshot.watcher_pid,
            "lost": snapshot.leases_lost,
        },
        "self": {
            "cpu_fraction": _number(snapshot.self_cpu_fraction),
            "rss_bytes": snapshot.self_rss_bytes,
            "map_bytes": snapshot.probe.map_bytes,
            "bpf_ns_per_io": _number(snapshot.probe.bpf_ns_per_io),
            "history_dropped": snapshot.history_dropped,
        },
    }


def top_json(snapshot: Snapshot) -> Json:
    """The answer to `top`: who dirties and who sleeps for it, by process and by cgroup."""
    sample = snapshot.sample
    return {
        "time_s": _number(sample.wall_s),
        "tasks": _dirtiers(sample.tasks, sample.dt_s, _MOST_SHOWN),
        "cgroups": _cgroups(sample.cgroups, sample.dt_s),
    }


def devices_json(snapshot: Snapshot) -> Json:
    """The answer to `devices`: what each device is made of, and whether it is managed."""
    decisions, backings = _decisions(snapshot), _backings(snapshot.sample.backings)
    return {
        "devices": [
            _topology_row(
                each.device, decisions.get(each.device.name), backings.get(each.device.name, ())
            )
            for each in snapshot.sample.devices
        ]
    }


def why_json(snapshot: Snapshot, device: Optional[str] = None) -> Json:
    """The answer to `why`: the limit's reason, and each device's chain of reasoning.

    `device` is a name, major:minor, /dev path, mount point or leaf disk; None
    means all. Raises RequestError when no device is called that.
    """
    decision = snapshot.decision
    chosen, decisions = find_devices(snapshot, device), _decisions(snapshot)
    return {
        "mode": snapshot.mode.value,
        "policy": snapshot.policy_name,
        "window": asdict(snapshot.window) if snapshot.window is not None else None,
        "off": snapshot.off,
        "limit": {
            "limit_bytes": decision.limit_bytes,
            "background_bytes": decision.background_bytes,
            "goal_bytes": decision.goal_bytes,
            "threshold_bytes": snapshot.sample.vm.threshold_bytes,
            "reason": decision.reason,
            "pin": _pin(snapshot),
            "trial": _trial(snapshot),
            "next": _next_of_limit(snapshot),
        },
        "devices": [
            _reasoning(
                each,
                decisions.get(each.device.name),
                snapshot.estimates.get(each.device.name),
                _from_earlier(snapshot, each.device.name),
                _let_go(snapshot, each.device.name),
                snapshot.memory.devices.get(each.device.name),
                snapshot,
            )
            for each in chosen
        ],
    }


def verify_json(
    vm: VmState,
    page_size: int,
    written: Optional[Tuple[int, int]],
    foreign: Sequence[ForeignWrite] = (),
    yielded: Optional[str] = None,
    levers: Sequence[HeldLever] = (),
    differing: Sequence[LeverDifference] = (),
) -> Json:
    """The answer to `verify`: does what was last written stand in the kernel?

    `written` is the last (limit, background) pair in bytes, None while the
    daemon has nothing of its own in the kernel; `vm` has just been read.
    `levers` are those held beside the pair, `differing` those that read otherwise.
    """
    differences = _differences(vm, page_size, written) if written is not None else []
    differences += [
        {"lever": lever, "file": file, "expected": _natural(expected), "found": _natural(found)}
        for lever, file, expected, found in differing
    ]
    writers = {each.lever: each for each in foreign}
    for difference in differences:
        writer = writers.get(str(difference["lever"]))
        for field in ("pid", "comm", "cgroup", "cmdline"):
            difference[field] = getattr(writer, field, None)
    return {
        "good": not differences and yielded is None,
        "written": None
        if written is None
        else {"dirty_bytes": written[0], "dirty_background_bytes": written[1]},
        "found": _levers(vm.limits),
        "levers": _held(levers),
        "yielded": yielded,
        "differences": differences,
    }


def mode_json(mode: Mode, lines: Sequence[str] = (), good: bool = True) -> Json:
    """The answer to `observe` and `enforce`; `lines` say what was done, `good` if all of it."""
    return {"mode": mode.value, "good": good, "lines": list(lines)}


def pin_json(pin_bytes: Optional[int], lines: Sequence[str] = ()) -> Json:
    """The answer to `pin` and `release` (None: no longer pinned)."""
    return {"pin_bytes": pin_bytes, "lines": list(lines)}


def forget_json(device: str, lines: Sequence[str] = ()) -> Json:
    """The answer to `forget`."""
    return {"device": device, "lines": list(lines)}


def _pin(snapshot: Snapshot) -> Optional[Json]:
    """Who pinned, by uid: names may come over the network, which the daemon never waits for."""
    if snapshot.memory.pin_bytes is None or snapshot.pinned is None:
        return None
    return {"uid": snapshot.pinned.uid, "since_s": _number(snapshot.pinned.wall_s)}


def _trial(snapshot: Snapshot) -> Optional[Json]:
    trial = snapshot.memory.trial
    if trial is None:
        return None
    return {
        "device": trial.device,
        "block": trial.block,
        "blocks": trial.blocks,
        "arm": "original" if trial.original else "agent",
        "limit_bytes": trial.limit_bytes,
        "block_left_s": _number(max(0.0, trial.ends_s - snapshot.sample.time_s)),
        "returns_to": trial.returns_to.value,
    }


def original_bytes(snapshot: Snapshot) -> Tuple[int, int]:
    """The limits as found (limit, background), in bytes.

    A ratio is of dirtyable memory, which drifts: while the ratio is in force
    the kernel's own figure is used, later the share of all memory, which is
    somewhat too large.
    """
    found, vm = snapshot.originals, snapshot.sample.vm
    if vm.limits == found:
        return vm.threshold_bytes, vm.background_threshold_bytes
    total = snapshot.sample.host.memory_bytes
    limit = found.dirty_bytes or total * found.dirty_ratio // 100
    background = found.dirty_background_bytes or total * found.dirty_background_ratio // 100
    # The kernel takes half of the limit where the background is not below it.
    return limit, background if background < limit else limit // 2


def _number(value: Optional[float]) -> Optional[float]:
    """`value` as JSON can carry it: None for an infinity or a NaN."""
    return value if value is not None and math.isfinite(value) else None


def _natural(text: str) -> Optional[int]:
    """The number in a file; None for `max`, which is no limit."""
    return int(text) if text.isdigit() else None


def _held(levers: Sequence[HeldLever]) -> List[Json]:
    return [
        {
            "kind": lever.kind.value,
            "target": lever.target,
            "name": lever.name,
            "value": lever.value,
            "original": lever.original,
        }
        for lever in levers
    ]


def _levers(limits: VmLimits) -> Json:
    return {
        "dirty_bytes": limits.dirty_bytes,
        "dirty_ratio": limits.dirty_ratio,
        "dirty_background_bytes": limits.dirty_background_bytes,
        "dirty_background_ratio": limits.dirty_background_ratio,
    }


def _limits(snapshot: Snapshot) -> Json:
    vm = snapshot.sample.vm
    limit, background = original_bytes(snapshot)
    return {
        # What the kernel makes of the files, whatever their form.
        "dirty_bytes": vm.threshold_bytes,
        "dirty_background_bytes": vm.background_threshold_bytes,
        # What the law wants now and in the end; in observe mode it stays a wish.
        "wanted_bytes": snapshot.decision.limit_bytes,
        "goal_bytes": snapshot.decision.goal_bytes,
        "files": _levers(vm.limits),
        "original": _levers(snapshot.originals),
        "original_in_bytes": {"dirty_bytes": limit, "dirty_background_bytes": background},
    }


def _decisions(snapshot: Snapshot) -> Mapping[str, DeviceDecision]:
    return {each.name: each for each in snapshot.decision.devices}


def _device_row(
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
        "inflight": sample.inflight,
        "busy_share": _number(sample.busy_share),
        # Capacity and fill are as its behaviour shows them, the rest as somebody says;
        # queue/write_cache is no evidence of a controller's.
        "write_cache": {
            "kind": cache_kind(said) if said else None,
            "capacity_bytes": _number(cache),
            "mode": said.mode.value if said and said.mode else None,
            "protected": said.protection is Protection.OK if said and said.protection else None,
            "source": said.source if said else None,
            "reported": [_backing(each) for each in backings],
            "fill": _number(min(1.0, estimate.fill_bytes / cache)) if estimate and cache else None,
        },
    }
    row.update(_figures(estimate))
    return row


def _backings(backings: Sequence[Backing]) -> Mapping[str, Sequence[Backing]]:
    found: Dict[str, List[Backing]] = {}
    for each in backings:
        found.setdefault(each.device, []).append(each)
    return found


def cache_kind(backing: Backing) -> str:
    """What keeps the writes: a controller, or what the kernel has for it."""
    kernels = {"md": "md-journal", "bcache": "bcache", "dm-writecache": "dm-writecache"}
    return {**kernels, "dm-cache": "dm-cache"}.get(backing.source, "controller")


def _backing(backing: Backing) -> Json:
    return {
        "source": backing.source,
        "time_s": _number(backing.wall_s),
        "capacity_bytes": backing.capacity_bytes,
        "mode": backing.mode.value if backing.mode else None,
        "protection": backing.protection.value if backing.protection else None,
        "dirty_bytes": backing.dirty_bytes,
        "learn_s": _number(backing.learn_s),
        "works": [
            {"kind": work.kind, "share": _number(work.share), "rate": _number(work.rate)}
            for work in backing.works
        ],
    }


def _cache_warnings(backings: Sequence[Backing]) -> List[str]:
    """By device, what is wrong with the battery behind it."""
    lines = []
    for each in backings:
        wrong = battery(each)
        if wrong and each.mode is CacheMode.ALWAYS_WRITE_BACK:
            lines.append(f"{each.device}: {wrong}, and its cache still keeps writes back: a power"
                         " failure loses them")
        elif wrong:
            kept = f"; its cache is {each.mode.value}" if each.mode else ""
            lines.append(f"{each.device}: {wrong}{kept}")
    return lines


def _figures(estimate: Optional[Estimate]) -> Json:
    """The numbers of one estimate; all None before the first one."""
    return {
        "write_rate": _number(estimate.write_rate) if estimate else None,
        "background_rate": _number(estimate.background_rate) if estimate else None,
        "drain_rate": _number(estimate.drain_rate) if estimate else None,
        "sync_rate": _number(estimate.sync_rate) if estimate else None,
        "sync_demand": estimate.demand if estimate and estimate.demand_known else None,
        "fsync_p50_s": _number(estimate.fsync_p50_s) if estimate else None,
        "fsync_p99_s": _number(estimate.fsync_p99_s) if estimate else None,
        "fsync_baseline_s": _number(estimate.baseline_s) if estimate else None,
        "fsyncs_inflight": estimate.fsyncs_inflight
        if estimate and estimate.demand_known
        else None,
        "oldest_fsync_s": _number(estimate.oldest_fsync_s)
        if estimate and estimate.demand_known
        else None,
        "slow_share": _number(estimate.slow_share) if estimate else None,
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
        "managed": decision is not None and decision.state is not State.EXCLUDED,
        "reason": decision.reason if decision else "not decided yet",
    }


def _programs(tasks: Sequence[TaskSample], dt_s: float) -> List[Json]:
    """The busiest programs: processes of one name and cgroup together, as a loop of short copies
    is no crowd (alert/state.py)."""
    found: Dict[Tuple[str, int, Optional[str]], List[TaskSample]] = {}
    for task in sorted(tasks, key=lambda task: -task.dirtied_bytes):
        found.setdefault((task.comm, task.cgroup_id, task.device), []).append(task)
    merged = [
        replace(
            each[0],
            dirtied_bytes=sum([task.dirtied_bytes for task in each]),
            throttled_s=sum([task.throttled_s for task in each]),
        )
        for each in found.values()
    ]
    several = {(each[0].pid, each[0].device) for each in found.values() if len(each) > 1}
    rows = []
    for row in _dirtiers(merged, dt_s, _TOP_DIRTIERS):
        row["several"] = (row["pid"], row["device"]) in several
        if row["several"]:
            row["throttled_share"] = None  # a sum is no share of the time of any of them
        rows.append(row)
    return rows


def _dirtiers(tasks: Sequence[TaskSample], dt_s: float, most: int) -> List[Json]:
    """The processes that dirtied most in this tick; one may appear per device."""
    busy = sorted(
        (task for task in tasks if task.dirtied_bytes or task.throttled_s),
        key=lambda task: (-task.dirtied_bytes, -task.throttled_s, task.pid),
    )
    return [
        {
            "pid": task.pid,
            "comm": task.comm,
            "cgroup": task.cgroup,
            "device": task.device,
            "dirty_rate": task.dirtied_bytes / dt_s if dt_s > 0 else None,
            "throttled_share": min(1.0, task.throttled_s / dt_s) if dt_s > 0 else None,
        }
        for task in busy[:most]
    ]


def _cgroups(cgroups: Sequence[CgroupSample], dt_s: float) -> List[Json]:
    """Those that dirtied, slept or synced in this tick; one may appear per device."""
    busy = sorted(
        (each for each in cgroups if each.dirtied_bytes or each.throttled_s or each.syncs),
        key=lambda each: (-each.dirtied_bytes, -each.throttled_s, -each.syncs, each.cgroup_id),
    )
    return [
        {
            "cgroup": each.path,
            "device": each.device,
            "dirty_rate": each.dirtied_bytes / dt_s if dt_s > 0 else None,
            # Of all its threads together: above 1 where several sleep.
            "throttled_share": each.throttled_s / dt_s if dt_s > 0 else None,
            "sync_rate": each.syncs / dt_s if dt_s > 0 else None,
        }
        for each in busy[:_MOST_SHOWN]
    ]


def _warnings(snapshot: Snapshot) -> List[str]:
    sample = snapshot.sample
    lines = list(snapshot.messages)
    if snapshot.unseen is not None:
        lines.append(snapshot.unseen)
    if snapshot.off is not None:
        lines.append(f"held off by {snapshot.off}: the limits are as found until it is removed")
    for action in sample.actions:
        if not action.ok:
            lines.append(f"could not set {action.lever} to {action.new}: {action.error}")
    lines.extend(sample.errors)
    if snapshot.lease_s is not None and snapshot.watcher_pid is None:
        lines.append("no watcher runs: nobody would put the limits back if the daemon hung")
    if snapshot.history_dropped:
        lines.append(
            f"{snapshot.history_dropped} events are missing from the history:"
            f" {snapshot.state_dir} is slow or full"
        )
    lines += _cache_warnings(sample.backings)
    lines += route_warnings(snapshot)
    return list(dict.fromkeys(lines))


def _rivals(snapshot: Snapshot) -> Optional[List[Json]]:
    """Who else may set the levers; None while nobody has looked."""
    if snapshot.rivals is None:
        return None
    return [
        {
            "level": each.level,
            "kind": each.kind,
            "name": each.name,
            "setting": each.setting,
            "where": each.where,
            "summary": each.text,
        }
        for each in snapshot.rivals
    ]


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


def _from_earlier(snapshot: Snapshot, name: str) -> Tuple[str, ...]:
    """What the reasoning leans on that this run has not measured itself."""
    memory = snapshot.memory.devices.get(name, DeviceMemory())
    age_s = earlier_drain_age_s(memory, snapshot.sample.wall_s)
    if age_s is None:
        return ()
    rate, age = human.size(memory.drain_rate), human.duration(age_s)
    return (f"drain rate {rate}/s (learned before the restart, {age} ago)",)


def _let_go(snapshot: Snapshot, name: str) -> Tuple[str, ...]:
    """The levers of a device that somebody else has set, and who."""
    return tuple(x["summary"] for x in alerts_json(snapshot) if x["device"] == name)


def _reasoning(
    sample: DeviceSample,
    decision: Optional[DeviceDecision],
    estimate: Optional[Estimate],
    earlier: Tuple[str, ...],
    let_go: Tuple[str, ...],
    memory: Optional[DeviceMemory],
    snapshot: Snapshot,
) -> Json:
    row = _device_row(sample, decision, estimate)
    row.pop("write_cache")
    steps = explain(decision, estimate) if decision else ()
    row["verdict"] = verdict(decision, estimate) if decision else None
    row["steps"] = [*earlier, *steps, *let_go]
    row["rule"] = decision.rule.value if decision else None
    row["next"] = "The first tick decides."
    if decision:
        row["next"] = what_next(decision, estimate, snapshot.objective)
    return row


def _next_of_limit(snapshot: Snapshot) -> str:
    decision, vm = snapshot.decision, snapshot.sample.vm
    if snapshot.mode is Mode.OBSERVE:
        return "Nothing is written: observe mode only shows what enforce would do."
    if snapshot.off is not None:
        return f"Nothing is written while {snapshot.off} is there."
    if snapshot.memory.yielded is not None:
        return "Nothing is written until `writebackctl enforce`."
    trial = snapshot.memory.trial
    if trial is not None and trial.original:
        return (
            "A trial is on: the agent's own limits come back with a later block, and at once when"
            " fsync suffers."
        )
    if decision.goal_bytes is None or decision.limit_bytes is None:
        return "The limits stay as they were found."
    # What reads the same is the same: the law leaves small differences alone.
    if human.size(decision.goal_bytes) == human.size(decision.limit_bytes):
        return "The limit stays until a device's target changes: what comes there is said below."
    if decision.goal_bytes < decision.limit_bytes:
        backlog = vm.dirty_bytes + vm.writeback_bytes
        rate = sum(each.background_rate for each in snapshot.estimates.values())
        takes = f" (about {human.duration(backlog / rate)} at {human.size(rate)}/s)" if rate else ""
        return (
            f"The limit goes down to {human.size(decision.goal_bytes)}, no faster than the"
            f" {human.size(backlog)} that wait are written out{takes}."
        )
    return f"The limit goes up to {human.size(decision.goal_bytes)}, one step at a time."


def _differences(vm: VmState, page_size: int, written: Tuple[int, int]) -> List[Json]:
    limit, background = written
    rows: List[Json] = []

    def check(lever: str, path: str, expected: int, found: int, slack: int = 0) -> None:
        if abs(expected - found) > slack:
            rows.append({"lever": lever, "file": path, "expected": expected, "found": found})

    check("dirty_bytes", _VM + "dirty_bytes", limit, vm.limits.dirty_bytes)
    check(
        "dirty_background_bytes",
        _VM + "dirty_background_bytes",
        background,
        vm.limits.dirty_background_bytes,
    )
    if rows:
        return rows
    # Reading a sysctl back proves nothing: the thresholds show what the kernel
    # made of it.  Pages round up; background >= limit means half of the limit.
    effective = background if background < limit else limit // 2
    check("dirty_bytes", "/proc/vmstat nr_dirty_threshold", limit, vm.threshold_bytes, page_size)
    check(
        "dirty_background_bytes",
        "/proc/vmstat nr_dirty_background_threshold",
        effective,
        vm.background_threshold_bytes,
        page_size,
    )
    return rows
