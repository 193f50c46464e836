# SPDX-License-Identifier: GPL-2.0-or-later
"""The answer to status, as plain data: what is not known is None (null), never zero."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Dict, List, Optional, Sequence, Tuple

from writebackd.alerts.messages import battery
from writebackd.kernel.conflicting_tools import ConflictingTool
from writebackd.report.alert_answers import alerts_json, route_warnings
from writebackd.report.answer_parts import (
    counters_json,
    draining_json,
    finite,
    held_json,
    pinned_json,
    trial_json,
)
from writebackd.report.device_answers import backings_of, device_figures, write_cache
from writebackd.report.snapshot import Snapshot, original_bytes
from writebackd.report.time_to_clean import time_to_clean
from writebackd.report.top_answer import dirtiers_json
from writebackd.report.totals import DeviceTotals
from writebackd.report.verdict import verdict_json
from writebackd.types.samples import TaskSample
from writebackd.types.storage import Backing, CacheMode

if TYPE_CHECKING:
    from writebackd.report.answers import DeviceCounters, Limits, Program, Rival, StatusAnswer

_TOP_DIRTIERS = 3


def status_json(snapshot: Snapshot) -> StatusAnswer:
    sample, memory = snapshot.sample, snapshot.memory
    decisions, backings = snapshot.decisions, backings_of(sample.backings)
    clean = time_to_clean(sample, snapshot.estimates)
    return {
        "verdict": verdict_json(snapshot),
        "version": snapshot.version,
        "mode": snapshot.mode.value,
        "policy": snapshot.policy_name,
        "policy_reason": snapshot.policy_chosen,
        "policy_files": [os.path.abspath(each) for each in snapshot.policy_files],
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
        "limits": _limits(snapshot),
        "levers": held_json(snapshot.levers),
        "memory": {
            "total_bytes": sample.host.memory_bytes,
            "dirty_bytes": sample.vm.dirty_bytes,
            "writeback_bytes": sample.vm.writeback_bytes,
            "time_to_clean_s": finite(clean.host_s),
        },
        "counters": counters_json(snapshot.totals),
        "devices": [
            {
                **device_figures(snapshot, each, decisions[each.device.name]),
                "write_cache": write_cache(
                    snapshot.estimates[each.device.name], backings.get(each.device.name, ())
                ),
                "time_to_clean_s": finite(clean.devices.get(each.device.name)),
                "counters": _counters(snapshot.totals.devices.get(each.device.name)),
            }
            for each in sample.devices
        ],
        "dirtiers": _programs(sample.tasks, sample.dt_s),
        "alerts": alerts_json(snapshot),
        "rivals": None if snapshot.rivals is None else [_rival(each) for each in snapshot.rivals],
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


def _counters(totals: Optional[DeviceTotals]) -> Optional[DeviceCounters]:
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


def _limits(snapshot: Snapshot) -> Limits:
    vm = snapshot.sample.vm
    limit, background = original_bytes(snapshot)
    return {
        # What the kernel makes of the files, whatever their form.
        "dirty_bytes": vm.threshold_bytes,
        "dirty_background_bytes": vm.background_threshold_bytes,
        "wanted_bytes": snapshot.decision.limit_bytes,
        "goal_bytes": snapshot.decision.goal_bytes,
        "files": asdict(vm.limits),
        "original": asdict(snapshot.originals),
        "original_in_bytes": {"dirty_bytes": limit, "dirty_background_bytes": background},
    }


def _programs(tasks: Sequence[TaskSample], dt_s: float) -> List[Program]:
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
    rows: List[Program] = []
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
    """Problems with the battery behind each device."""
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


def _rival(tool: ConflictingTool) -> Rival:
    return {
        "level": tool.level, "kind": tool.kind, "name": tool.name, "setting": tool.setting,
        "where": tool.where, "summary": tool.text,
    }
