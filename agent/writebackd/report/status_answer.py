# SPDX-License-Identifier: GPL-2.0-or-later
"""The answers to status, why and top: what is not known is None (null), never zero."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Dict, List, Optional, Sequence, Tuple

from writebackd import formats
from writebackd.alerts.messages import battery
from writebackd.control.explain import explain, verdict, what_next
from writebackd.estimate.learned import earlier_drain_age_s
from writebackd.report.alert_answers import alerts_json, route_warnings
from writebackd.report.answer_parts import (
    draining_json,
    finite,
    pinned_json,
    trial_json,
)
from writebackd.report.device_answers import (
    backings_of,
    device_figures,
    find_devices,
    time_to_clean,
    write_cache,
)
from writebackd.report.snapshot import DeviceTotals, Snapshot, original_bytes
from writebackd.report.verdict import verdict_json
from writebackd.types.codec import pack
from writebackd.types.decision import DeviceDecision, Mode
from writebackd.types.device_memory import DeviceMemory
from writebackd.types.samples import CgroupSample, DeviceSample, TaskSample
from writebackd.types.storage import Backing, CacheMode

if TYPE_CHECKING:
    from writebackd.report import answers

_MOST_SHOWN = 40  # of processes and of cgroups: more than a screen has lines


def top_json(snapshot: Snapshot) -> answers.TopAnswer:
    """The answer to `top`, by process and by cgroup."""
    sample = snapshot.sample
    return {
        "time_s": finite(sample.wall_s),
        "tasks": dirtiers_json(sample.tasks, sample.dt_s, _MOST_SHOWN),
        "cgroups": _cgroups(sample.cgroups, sample.dt_s),
    }


def dirtiers_json(tasks: Sequence[TaskSample], dt_s: float, most: int) -> List[answers.Task]:
    """The processes that dirtied most in this tick; a process has a row for each device."""
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


def _cgroups(cgroups: Sequence[CgroupSample], dt_s: float) -> List[answers.CgroupRow]:
    """Cgroups that dirtied, slept or synced in this tick; a cgroup has a row for each device."""
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


_TOP_DIRTIERS = 3


def status_json(snapshot: Snapshot) -> answers.StatusAnswer:
    sample, memory, totals = snapshot.sample, snapshot.memory, snapshot.totals
    decisions, backings = snapshot.decisions, backings_of(sample.backings)
    clean = time_to_clean(sample, snapshot.estimates)
    limit, background = original_bytes(snapshot)
    return {
        "verdict": verdict_json(snapshot),
        "version": snapshot.version,
        "mode": snapshot.memory.mode.value,
        "policy": snapshot.policy.name,
        "policy_reason": snapshot.policy.chosen,
        "policy_files": [os.path.abspath(each) for each in snapshot.policy.files],
        "window": asdict(snapshot.window) if snapshot.window is not None else None,
        "time_s": finite(sample.wall_s),
        "uptime_s": finite(max(0.0, sample.time_s - snapshot.started_s)),
        "yielded": memory.yielded,
        "yield_left_s": (
            max(0.0, memory.retry.at_s - sample.time_s) if memory.retry else None
        ),
        "off": snapshot.off,
        "pin_bytes": memory.pin_bytes,
        "pin": pinned_json(snapshot),
        "drain": draining_json(snapshot),
        "trial": trial_json(snapshot),
        "reason": snapshot.decision.reason,
        "probe": {
            "backend": snapshot.probe.backend,
            "request_hook": snapshot.probe.request_hook,
            "fsync_hook": snapshot.probe.fsync_hook,
            "misses": list(snapshot.probe.misses),
            "lost": list(snapshot.probe.lost),
            "passed_over": snapshot.probe.passed_over,
            "refused": list(snapshot.probe.refused),
        },
        "limits": {
            # What the kernel makes of the files, whatever their form.
            "dirty_bytes": sample.vm.threshold_bytes,
            "dirty_background_bytes": sample.vm.background_threshold_bytes,
            "wanted_bytes": snapshot.decision.limit_bytes,
            "goal_bytes": snapshot.decision.goal_bytes,
            "files": asdict(sample.vm.limits),
            "original": asdict(snapshot.originals),
            "original_in_bytes": {"dirty_bytes": limit, "dirty_background_bytes": background},
        },
        "levers": list(map(pack, snapshot.levers)),
        "memory": {
            "total_bytes": sample.host.memory_bytes,
            "dirty_bytes": sample.vm.dirty_bytes,
            "writeback_bytes": sample.vm.writeback_bytes,
            "time_to_clean_s": finite(clean.host_s),
        },
        "counters": {
            "reset_s": finite(totals.reset_s),
            "limit_changes": totals.limit_changes,
            "foreign_writes": totals.foreign_writes,
            "failed_ticks": totals.failed_ticks,
        },
        "devices": [
            {
                **device_figures(snapshot, each, decisions[each.device.name]),
                "write_cache": write_cache(
                    snapshot.estimates[each.device.name], backings.get(each.device.name, ())
                ),
                "time_to_clean_s": finite(clean.devices.get(each.device.name)),
                "counters": _counters(totals.devices.get(each.device.name)),
            }
            for each in sample.devices
        ],
        "dirtiers": _programs(sample.tasks, sample.dt_s),
        "alerts": alerts_json(snapshot),
        "rivals": None if snapshot.rivals is None else [
            {
                "level": each.level, "kind": each.kind, "name": each.name,
                "setting": each.setting, "where": each.where, "summary": each.text,
            }
            for each in snapshot.rivals
        ],
        "processes_unseen": snapshot.unseen,
        "warnings": _warnings(snapshot),
        "state_dir": snapshot.state_dir,
        "lease": {
            "remaining_s": finite(snapshot.lease_s),
            "watcher_pid": snapshot.watcher_pid,
            "lost": snapshot.leases_lost,
        },
        "self": {
            "cpu_fraction": finite(snapshot.self_cpu_fraction),
            "rss_bytes": snapshot.self_rss_bytes,
            "map_bytes": snapshot.probe.map_bytes,
            "bpf_ns_per_io": finite(snapshot.probe.bpf_ns_per_io),
            "history_dropped": snapshot.history_dropped,
        },
    }


def _counters(totals: Optional[DeviceTotals]) -> Optional[answers.DeviceCounters]:
    """None for a device that is left alone, and not counted."""
    if totals is None:
        return None
    return {
        "written_bytes": totals.written_bytes,
        "read_bytes": totals.read_bytes,
        "busy_s": finite(totals.busy_s),
        "fsyncs": sum(totals.commits),
        "fsync_s": finite(totals.fsync_s),
        "commit_s": finite(totals.commit_s),
        "decisions": totals.decisions,
    }


def _programs(tasks: Sequence[TaskSample], dt_s: float) -> List[answers.Program]:
    """The busiest programs: processes of one name and cgroup together, as a loop of short copies
    is no crowd (alerts/detector_memory.py)."""
    programs: Dict[Tuple[str, int, Optional[str]], List[TaskSample]] = {}
    for task in sorted(tasks, key=lambda task: -task.dirtied_bytes):
        programs.setdefault((task.comm, task.cgroup_id, task.device), []).append(task)
    merged = [
        replace(
            each[0],
            dirtied_bytes=sum([task.dirtied_bytes for task in each]),
            throttled_s=sum([task.throttled_s for task in each]),
        )
        for each in programs.values()
    ]
    several = {(each[0].pid, each[0].device) for each in programs.values() if len(each) > 1}
    rows: List[answers.Program] = []
    for row in dirtiers_json(merged, dt_s, _TOP_DIRTIERS):
        many = (row["pid"], row["device"]) in several
        if many:
            row["throttled_share"] = None  # a sum is no share of the time of any of them
        rows.append({**row, "several": many})
    return rows


def _warnings(snapshot: Snapshot) -> List[str]:
    sample = snapshot.sample
    lines = list(snapshot.messages)
    if snapshot.unseen is not None:
        lines.append(snapshot.unseen)
    if snapshot.off is not None:
        lines.append(f"{snapshot.off} exists; original limits until it is removed")
    for action in sample.actions:
        if not action.ok:
            lines.append(f"cannot set {action.lever} to {action.new}: {action.error}")
    lines.extend(sample.errors)
    unwatched = snapshot.lease_s is not None and snapshot.watcher_pid is None
    if unwatched and snapshot.sets_limits:
        lines.append("no watcher: limits will not be restored if the daemon hangs")
    if snapshot.history_dropped:
        lines.append(
            f"history: {snapshot.history_dropped} events dropped; {snapshot.state_dir} is slow or"
            " full"
        )
    lines += _cache_warnings(sample.backings)
    lines += route_warnings(snapshot)
    return list(dict.fromkeys(lines))


def _cache_warnings(backings: Sequence[Backing]) -> List[str]:
    lines = []
    for cache in backings:
        wrong = battery(cache)
        if wrong and cache.mode is CacheMode.ALWAYS_WRITE_BACK:
            lines.append(f"{cache.device}: {wrong}, and its cache still holds writes back: a power"
                         " failure loses them")
        elif wrong:
            kept = f"; its cache is {cache.mode.value}" if cache.mode else ""
            lines.append(f"{cache.device}: {wrong}{kept}")
    return lines


def why_json(snapshot: Snapshot, device: Optional[str] = None) -> answers.WhyAnswer:
    """The answer to `why`: the limit's reason, and each device's chain of reasoning.

    `device` is a name, major:minor, /dev path, mount point or leaf disk; None
    means all. Raises RequestError if no device has that name.
    """
    decision = snapshot.decision
    chosen, decisions = find_devices(snapshot, device), snapshot.decisions
    return {
        "verdict": verdict_json(snapshot),
        "mode": snapshot.memory.mode.value,
        "policy": snapshot.policy.name,
        "window": asdict(snapshot.window) if snapshot.window is not None else None,
        "off": snapshot.off,
        "limit": {
            "limit_bytes": decision.limit_bytes,
            "background_bytes": decision.background_bytes,
            "goal_bytes": decision.goal_bytes,
            "threshold_bytes": snapshot.sample.vm.threshold_bytes,
            "reason": decision.reason,
            "pin": pinned_json(snapshot),
            "trial": trial_json(snapshot),
            "next": _next_of_limit(snapshot),
        },
        "devices": [
            _reasoning(snapshot, each, decisions[each.device.name]) for each in chosen
        ],
    }


def _from_earlier(snapshot: Snapshot, name: str) -> Tuple[str, ...]:
    """Inputs of the reasoning that this run has not measured itself."""
    memory = snapshot.memory.devices.get(name, DeviceMemory())
    age_s = earlier_drain_age_s(memory, snapshot.sample.wall_s)
    if age_s is None:
        return ()
    rate, age = formats.size(memory.drain_rate), formats.duration(age_s)
    return (f"drain rate {rate}/s, learned before the restart, {age} ago",)


def _reasoning(
    snapshot: Snapshot, sample: DeviceSample, decision: DeviceDecision
) -> answers.DeviceReason:
    estimate = snapshot.estimates[decision.name]
    return {
        **device_figures(snapshot, sample, decision),
        "sections": snapshot.policy.sections(sample.device),
        "verdict": verdict(decision, estimate),
        "steps": [
            *_from_earlier(snapshot, decision.name),
            *explain(decision, estimate),
            # The levers that another process has set, and which one.
            *(x["summary"] for x in alerts_json(snapshot) if x["device"] == decision.name),
        ],
        "rule": decision.rule.value,
        "next": what_next(decision, snapshot.policy.objective, _unset(snapshot)),
    }


def _unset(snapshot: Snapshot) -> str:
    """In which state of the daemon nothing is set; empty in others."""
    if snapshot.memory.mode is Mode.OBSERVE:
        return "in observe mode, until `writebackctl enforce`"
    return "" if snapshot.off is None else f"while {snapshot.off} exists"


def _next_of_limit(snapshot: Snapshot) -> str:
    decision, vm = snapshot.decision, snapshot.sample.vm
    if _unset(snapshot):
        return f"Nothing is set {_unset(snapshot)}."
    if snapshot.memory.yielded is not None:
        return "Nothing is written while it yields; `writebackctl enforce` ends that."
    trial = snapshot.memory.trial
    if trial is not None and trial.original:
        return "Trial: writebackd's limits return with a later block, or once fsync is too slow."
    if snapshot.memory.pin_bytes is not None:
        return "The limit stays until the end of the pin, `writebackctl release` or a reboot."
    if decision.goal_bytes is None or decision.limit_bytes is None:
        return "The original limits stay."
    # What reads the same is the same: the law leaves small differences alone.
    if formats.size(decision.goal_bytes) == formats.size(decision.limit_bytes):
        return "The limit stays until a device's target changes."
    if decision.goal_bytes < decision.limit_bytes:
        backlog = vm.dirty_bytes + vm.writeback_bytes
        rate = sum(each.background_rate for each in snapshot.estimates.values())
        takes = (
            f" (about {formats.duration(backlog / rate)} at {formats.size(rate)}/s)" if rate else ""
        )
        return (
            f"The limit falls to {formats.size(decision.goal_bytes)} as {formats.size(backlog)} of"
            f" dirty pages are written{takes}."
        )
    return f"The limit rises to {formats.size(decision.goal_bytes)} step by step."
