# SPDX-License-Identifier: GPL-2.0-or-later
"""Which processes wait for block IO, from /proc, names through psutil.

Used by the screen, not by the daemon: the kernel counts a thread's time in io_schedule() only while
kernel.task_delayacct is on.  Otherwise only the processes that sleep uninterruptibly right now are
known.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

import psutil

from writebackd.kernel.cgroup_io_max import path_of_process
from writebackd.kernel.files import KernelFiles

# A look at a thread takes 20 us; of a host with thousands of processes each look at all asks as
# many as go into this, those that waited before first.
BUDGET_S = 0.1
# Below it a process does not wait, it reads a file now and then.
_LEAST_SHARE = 0.001
# All user processes are children of others than kthreadd.
_KTHREADD = 2
# Before Linux 5.14 there is no such switch, and it is on.
_DELAYACCT = "/proc/sys/kernel/task_delayacct"
# Of /proc/PID/task/TID/stat: delayacct_blkio_ticks, the 42nd field, behind the name, the 2nd.
_BLKIO_TICKS = 39
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Wait:
    """One process; `share` is seconds waited per second by all its threads, None: unknown."""

    pid: int
    name: str
    user: Optional[str]
    cgroup: Optional[str]
    share: Optional[float]
    stuck: bool  # sleeps uninterruptibly at this moment


def delay_s(pid: int, files: KernelFiles) -> Optional[float]:
    """Block-IO delay of all threads of a process: databases wait in those. None if it is gone."""
    threads = files.listdir(f"/proc/{pid}/task")
    stats = [files.try_read(f"/proc/{pid}/task/{thread}/stat") for thread in threads]
    ticks = [int(stat.rpartition(")")[2].split()[_BLKIO_TICKS]) for stat in stats if stat]
    return sum(ticks) * _TICK_S if ticks else None


class Waits:
    """`note` says why delays are unavailable, or is None."""

    def __init__(self, files: Optional[KernelFiles] = None) -> None:
        self._files = files or KernelFiles()
        self.note: Optional[str] = None
        if self._files.try_read(_DELAYACCT) == "0":
            self.note = "block-IO waits are not counted: `sysctl kernel.task_delayacct=1` helps"
        self._last: Dict[Tuple[int, float], Tuple[float, float]] = {}  # when, delay
        self._next = 0  # whose turn it is, among those that do not wait

    def read(self, first: Sequence[int] = ()) -> List[Wait]:
        """Processes that waited since the last call, the longest first; `first` are pids."""
        processes = [
            each
            for each in psutil.process_iter(["pid", "ppid", "name", "status", "create_time"])
            if each.info["ppid"] != _KTHREADD and each.info["pid"] != _KTHREADD
        ]
        urgent = [each for each in processes if _is_stuck(each) or each.info["pid"] in first]
        waits, began = [], time.monotonic()
        for number, process in enumerate(urgent + self._in_turn(processes, urgent)):
            if time.monotonic() - began > BUDGET_S:
                self._next += max(0, number - len(urgent))
                break
            wait = self._look(process)
            if wait is not None:
                waits.append(wait)
        alive = {_key(each) for each in processes}
        self._last = {key: last for key, last in self._last.items() if key in alive}
        return sorted(waits, key=lambda each: (-(each.share or 0.0), not each.stuck, each.pid))

    def _in_turn(self, processes: List[Any], urgent: List[Any]) -> List[Any]:
        """All processes that are not urgent, from where the last look ended."""
        others = [each for each in processes if each not in urgent]
        if others:
            self._next %= len(others)
        return others[self._next :] + others[: self._next]

    def _look(self, process: Any) -> Optional[Wait]:
        now = time.monotonic()
        delay = None if self.note else delay_s(process.info["pid"], self._files)
        share = None
        if delay is not None:
            last = self._last.get(_key(process))
            self._last[_key(process)] = (now, delay)
            if last is not None and now > last[0]:
                share = max(0.0, delay - last[1]) / (now - last[0])
                if share > 1.1 * _threads(process):
                    # Slept while task_delayacct was turned on: counted from the boot.
                    share = None
        if (share or 0.0) < _LEAST_SHARE and not _is_stuck(process):
            return None
        return Wait(
            pid=process.info["pid"],
            name=process.info["name"] or "?",
            user=_user(process),
            cgroup=path_of_process(self._files, str(process.info["pid"])),
            share=share,
            stuck=_is_stuck(process),
        )


def _key(process: Any) -> Tuple[int, float]:
    return process.info["pid"], process.info["create_time"] or 0.0


def _is_stuck(process: Any) -> bool:
    return bool(process.info["status"] == psutil.STATUS_DISK_SLEEP)


def _threads(process: Any) -> int:
    try:
        return int(process.num_threads())
    except psutil.Error:
        return 1


def _user(process: Any) -> Optional[str]:
    try:
        return str(process.username())
    except psutil.Error:
        return None
