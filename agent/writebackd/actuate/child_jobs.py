# SPDX-License-Identifier: GPL-2.0-or-later
"""Writes that may hang: each goes on in a child with a time limit, and is heard of later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional

from writebackd.actuate.outcome import Change
from writebackd.kernel.child_process import Job, Work
from writebackd.kernel.lever_files import Lever

# What a child may take: a queue that is frozen waits for the requests in
# flight, which a slow array works off in 1 to 2 s.
CHILD_LIMIT_S = 5.0
# Writes that may be under way. Each is a thread and a child, and the watcher's unit has 16 tasks.
MOST_AT_ONCE = 6


@dataclass
class ChildWrite:
    """A write in a child; `failure` and `running` are as `collect` found them last."""

    lever: Lever
    change: Change
    job: Job
    failure: Optional[Exception] = None
    running: bool = False  # over its time, and may still write
    slept: bool = False  # the lease was lost meanwhile: its lateness may be this process's own


class ChildJobs:
    """At most one write of each target at a time; nothing here waits but `wait`."""

    def __init__(self) -> None:
        self._writes: Dict[Lever, ChildWrite] = {}

    @property
    def pending(self) -> Mapping[Lever, Change]:
        return {lever: each.change for lever, each in self._writes.items()}

    def start(self, lever: Lever, change: Change, work: Work) -> None:
        self._writes[lever] = ChildWrite(lever, change, Job(work, CHILD_LIMIT_S))

    def busy(self, lever: Lever) -> bool:
        """Whether a child writes this lever, or another one of the same target."""
        return any(
            other.kind is lever.kind and other.target == lever.target for other in self._writes
        )

    @property
    def crowded(self) -> bool:
        """Whether no other may be started yet. One that is over its time counts no more: a disk
        that hangs may keep it for ever."""
        return sum(not each.running for each in self._writes.values()) >= MOST_AT_ONCE

    def mark_slept(self) -> None:
        """After a lost lease."""
        for each in self._writes.values():
            each.slept = True

    def collect(self) -> List[ChildWrite]:
        """The writes that ended since the last call, and once those over their time."""
        found = []
        for lever, each in list(self._writes.items()):
            if not each.job.decided or (each.running and each.job.busy):
                continue
            each.failure, each.running = each.job.failure(), each.job.busy
            if not each.running:
                del self._writes[lever]
            found.append(each)
        return found

    def wait(self, timeout_s: float) -> None:
        """Until the first of them is done, `timeout_s` seconds at most."""
        for each in self._writes.values():
            each.job.wait(timeout_s)
            break
