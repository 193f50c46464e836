# SPDX-License-Identifier: GPL-2.0-or-later
"""Writes that may hang: each is done in a child with a time limit, and collected later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional

from writebackd.actuate.outcome import Change
from writebackd.kernel.child_process import Job, Work
from writebackd.kernel.lever_files import Lever

# Seconds.  Time limit of a child: freezing a queue waits for the requests in flight, which take 1
# to 2 s on a slow array.
CHILD_LIMIT_S = 5.0
# Number of writes at a time.  Each needs a thread and a child; the watcher's unit has 16 tasks.
MOST_AT_ONCE = 6


@dataclass
class ChildWrite:
    """A write in a child; `failure` and `running` are as of the last `collect`."""

    lever: Lever
    change: Change
    job: Job
    failure: Optional[Exception] = None
    running: bool = False  # over its time, but may still write
    slept: bool = False  # the lease was lost meanwhile: this process may have been stopped


class ChildJobs:
    """At most one write per target at a time; only `wait` blocks."""

    def __init__(self) -> None:
        self._writes: Dict[Lever, ChildWrite] = {}

    @property
    def pending(self) -> Mapping[Lever, Change]:
        return {lever: write.change for lever, write in self._writes.items()}

    def start(self, lever: Lever, change: Change, work: Work) -> None:
        self._writes[lever] = ChildWrite(lever, change, Job(work, CHILD_LIMIT_S))

    def busy(self, lever: Lever) -> bool:
        """Whether a child is writing this lever or another one of the same target."""
        return any(
            other.kind is lever.kind and other.target == lever.target for other in self._writes
        )

    @property
    def crowded(self) -> bool:
        """Whether no more children may be started now.

        One over its time does not count, since a hung disk may keep it forever.
        """
        return sum(not write.running for write in self._writes.values()) >= MOST_AT_ONCE

    def mark_slept(self) -> None:
        """Mark all running writes after a lost lease."""
        for write in self._writes.values():
            write.slept = True

    def collect(self) -> List[ChildWrite]:
        """The writes that ended since the last call, and, once, those over their time."""
        ended = []
        for lever, write in list(self._writes.items()):
            if not write.job.decided or (write.running and write.job.busy):
                continue
            write.failure, write.running = write.job.failure(), write.job.busy
            if not write.running:
                del self._writes[lever]
            ended.append(write)
        return ended

    def wait(self, timeout_s: float) -> None:
        """Wait until one of them is done, for `timeout_s` seconds at most."""
        for write in self._writes.values():
            write.job.wait(timeout_s)
            break
