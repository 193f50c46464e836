# SPDX-License-Identifier: GPL-2.0-or-later
"""Which processes wait for block IO: taskstats through pyroute2, names through psutil.

Used by the screen, not by the daemon: the kernel counts a thread's time in io_schedule()
only while kernel.task_delayacct is on, and reports it only with CAP_NET_ADMIN.  Otherwise
only the processes that sleep uninterruptibly right now are known.
"""

from __future__ import annotations

import errno
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

import psutil

from writebackd.kernel.cgroup_io_max import path_of_process
from writebackd.kernel.files import KernelFiles

# An answer takes 0.2 ms with pyroute2; of a host with thousands of processes each
# look asks as many as go into this, those that waited before first.
BUDGET_S = 0.1
# Below it a process does not wait, it reads a file now and then.
_LEAST_SHARE = 0.001
# All user processes are children of others than kthreadd.
_KTHREADD = 2
_DELAYACCT = "/proc/sys/kernel/task_delayacct"


@dataclass(frozen=True)
class Wait:
    """One process; `share` is seconds waited per second by all its threads, None: unknown."""

    pid: int
    name: str
    user: Optional[str]
    cgroup: Optional[str]
    share: Optional[float]
    stuck: bool  # sleeps uninterruptibly at this moment


class Delays:
    """Block-IO delay of whole processes, in seconds since their start.

    `note` says why delays are unavailable, or is None.
    """

    def __init__(self, delayacct: str = _DELAYACCT) -> None:
        self.note: Optional[str] = None
        self._stats: Any = None
        try:
            switch = Path(delayacct).read_text().strip()
        except OSError:
            switch = "1"  # before Linux 5.14 there is no switch, and it is on
        if switch == "0":
            self.note = "block-IO waits are not counted: `sysctl kernel.task_delayacct=1` helps"
            return
        try:
            self._stats = _open()
            answer = self._stats.get_pid_stat(os.getpid())
            if _values(answer)["ac_pid"] != os.getpid():
                # Linux 6.14 and 6.15 put fields into the middle of struct taskstats.
                self._give_up("the taskstats of this kernel have an unknown layout")
        except ImportError:
            self._give_up("block-IO waits need pyroute2: apt-get install python3-pyroute2")
        except Exception as error:  # pyroute2's own, of netlink, and OSError
            self._give_up(_in_words(error))

    def of(self, pid: int) -> Optional[float]:
        """None if the process is gone, or its delay is unavailable."""
        if self._stats is None:
            return None
        try:
            return float(_values(_ask(self._stats, pid))["blkio_delay_total"]) / 1e9
        except Exception as error:
            if getattr(error, "code", getattr(error, "errno", None)) != errno.ESRCH:
                self._give_up(_in_words(error))
            return None

    def close(self) -> None:
        if self._stats is not None:
            self._stats.close()
            self._stats = None

    def _give_up(self, note: str) -> None:
        self.note = note
        self.close()


class Waits:
    def __init__(self, delays: Optional[Delays] = None) -> None:
        self._delays = delays or Delays()
        self._last: Dict[Tuple[int, float], Tuple[float, float]] = {}  # when, delay
        self._next = 0  # whose turn it is, among those that do not wait

    @property
    def note(self) -> Optional[str]:
        return self._delays.note

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

    def close(self) -> None:
        self._delays.close()

    def _in_turn(self, processes: List[Any], urgent: List[Any]) -> List[Any]:
        """All processes that are not urgent, from where the last look ended."""
        others = [each for each in processes if each not in urgent]
        if others:
            self._next %= len(others)
        return others[self._next :] + others[: self._next]

    def _look(self, process: Any) -> Optional[Wait]:
        now, delay = time.monotonic(), self._delays.of(process.info["pid"])
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
            cgroup=path_of_process(KernelFiles(), str(process.info["pid"])),
            share=share,
            stuck=_is_stuck(process),
        )


def _open() -> Any:
    from pyroute2 import TaskStats

    stats = TaskStats()
    stats.bind()
    return stats


def _ask(stats: Any, pid: int) -> Any:
    """As TaskStats.get_pid_stat(), but for all threads: databases wait in those."""
    from pyroute2.netlink import NLM_F_REQUEST
    from pyroute2.netlink.taskstats import TASKSTATS_CMD_GET, tcmd

    message = tcmd()
    message["cmd"] = TASKSTATS_CMD_GET
    message["version"] = 1
    message["attrs"].append(["TASKSTATS_CMD_ATTR_TGID", pid])
    return stats.nlm_request(message, stats.prid, msg_flags=NLM_F_REQUEST)


def _values(answer: Any) -> Any:
    (message, *_) = answer
    (_, aggregate), *_ = message["attrs"]
    return aggregate.get_attr("TASKSTATS_TYPE_STATS")


def _in_words(error: Exception) -> str:
    code = getattr(error, "code", getattr(error, "errno", None))
    if code in (errno.EPERM, errno.EACCES):
        return "block-IO waits need root: sudo writebackctl top"
    if code == errno.ENOENT:
        return "this kernel has no taskstats (CONFIG_TASKSTATS): no block-IO waits"
    return f"cannot read block-IO waits: {error}"


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

