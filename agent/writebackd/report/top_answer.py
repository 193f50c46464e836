# SPDX-License-Identifier: GPL-2.0-or-later
"""The answer to top: which processes dirty pages, and which wait for that. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, List, Sequence

from writebackd.report.answer_parts import finite
from writebackd.report.snapshot import Snapshot
from writebackd.types.samples import CgroupSample, TaskSample

if TYPE_CHECKING:
    from writebackd.report.answers import CgroupRow, Task, TopAnswer

_MOST_SHOWN = 40  # of processes and of cgroups: more than a screen has lines


def top_json(snapshot: Snapshot) -> TopAnswer:
    """The answer to `top`, by process and by cgroup."""
    sample = snapshot.sample
    return {
        "time_s": finite(sample.wall_s),
        "tasks": dirtiers_json(sample.tasks, sample.dt_s, _MOST_SHOWN),
        "cgroups": _cgroups(sample.cgroups, sample.dt_s),
    }


def dirtiers_json(tasks: Sequence[TaskSample], dt_s: float, most: int) -> List[Task]:
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


def _cgroups(cgroups: Sequence[CgroupSample], dt_s: float) -> List[CgroupRow]:
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
