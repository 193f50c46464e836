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


@dataclass(frozen=True)
class JobResult:
    """What a child came to; with `running` it is over its time, and may still write."""

    lever: Lever
    change: Change
    failure: Optional[Exception]
    running: bool
    # The lease was lost meanwhile: its lateness may be this process's own.
    slept: bool


@dataclass
class _Pending:
    job: Job
    change: Change
    reported: bool = False  # as late
    slept: bool = False


class ChildJobs:
    """At most one write of each target at a time; nothing here waits but `wait`."""

    def __init__(self) -> None:
        self._pending: Dict[Lever, _Pending] = {}

    @property
    def pending(self) -> Mapping[Lever, Change]:
        """What is being written."""
        return {lever: each.change for lever, each in self._pending.items()}

    def start(self, lever: Lever, change: Change, work: Work) -> None:
        self._pending[lever] = _Pending(Job(work, CHILD_LIMIT_S), change)

    def busy(self, lever: Lever) -> bool:
        """Whether a child writes this lever, or another one of the same target."""
        return any(
            other.kind is lever.kind and other.target == lever.target for other in self._pending
        )

    def mark_slept(self) -> None:
        """After a lost lease."""
        for each in self._pending.values():
            each.slept = True

    def collect(self) -> List[JobResult]:
        """The jobs that ended since the last call, and once those over their time."""
        results = []
        for lever, each in list(self._pending.items()):
            job = each.job
            if not job.decided or (each.reported and job.busy):
                continue
            failure, running = job.failure(), job.busy
            results.append(JobResult(lever, each.change, failure, running, each.slept))
            if running:
                each.reported = True
            else:
                del self._pending[lever]
        return results

    def wait(self, timeout_s: float) -> None:
        """Until the first of them is done, `timeout_s` seconds at most."""
        for each in self._pending.values():
            each.job.wait(timeout_s)
            break
