# SPDX-License-Identifier: GPL-2.0-or-later
"""Keeps the daemon's view of arrays and caches current: threads read their state."""

from __future__ import annotations

import time
from typing import Callable, List, Optional, Sequence, Tuple

from writebackd import formats
from writebackd.estimate.cache_size import FILL_FRESH_S
from writebackd.kernel.child_process import Job
from writebackd.kernel.files import KernelFiles
from writebackd.paths import CACHES, RAID
from writebackd.storage import report_file
from writebackd.storage.device_matcher import Matcher
from writebackd.storage.linux_storage import MDSTAT, parse_mdstat
from writebackd.storage.report_file import STALE_S, CollectorReport
from writebackd.storage.tool_output import ToolError
from writebackd.types.storage import Backing, Device

LOOK_S = 60.0
# The same of what the kernel's caches hold.
CACHES_S = 2.0
# A look that takes so many times longer hangs in the kernel; what was seen before may be over.
HANGS = 5
# More than any device has behind it; a tick copies and records all of them.
MOST_BACKINGS = 4096
MOST_UNMATCHED = 4  # controllers that are named


# What is behind these devices at that time (CLOCK_BOOTTIME), by a file of this owner's, and what is
# wrong with the file.
Look = Callable[
    [KernelFiles, Sequence[Device], float, int], Tuple[Tuple[Backing, ...], Optional[str]]
]


class BackingWatch:
    """`seen` returns the result of the last look."""

    def __init__(
        self, files: KernelFiles, owner: int = 0, look: Optional[Look] = None,
        every_s: float = LOOK_S,
    ) -> None:
        """`owner` must own the collector's file; the default `look` is the one at arrays."""
        self._files, self._owner = files, owner
        self._look, self._every_s = look or look_at_arrays, every_s
        self._job: Optional[Job] = None
        self._next_s = float("-inf")
        self._seen: Tuple[Backing, ...] = ()
        self._seen_s = float("-inf")
        self.error: Optional[str] = None

    def seen(self, devices: Sequence[Device], now_s: float) -> Tuple[Backing, ...]:
        """The storage behind these devices, `now_s` being CLOCK_BOOTTIME; never waits.

        Empty before the first look, and once a look hangs.
        """
        if now_s >= self._next_s and not (self._job is not None and self._job.busy):
            self._next_s = now_s + self._every_s
            self._job = Job(lambda _: self._run(devices), self._every_s, "backing")
        return self._seen if now_s - self._seen_s <= HANGS * self._every_s else ()

    def _run(self, devices: Sequence[Device]) -> None:
        now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        try:
            self._seen, self.error = self._look(self._files, devices, now_s, self._owner)
        except Exception as error:  # other people's files: whatever is wrong with them
            self._seen, self.error = (), f"cannot read RAID tools' report: {error}"
        self._seen_s = now_s


def look_at_arrays(
    files: KernelFiles, devices: Sequence[Device], now_s: float, owner: int = 0
) -> Tuple[Tuple[Backing, ...], Optional[str]]:
    """A Look at the reports of RAID tools and md."""
    matcher = Matcher(files, devices)
    backings: List[Backing] = []
    error = None
    try:
        report = report_file.read(files.path(RAID), owner)
        if is_stale(report, files, now_s):
            if not slept(report, files):
                error = f"{RAID} is {_age(report, now_s)}: check that writebackd-raid.timer runs"
        else:
            seen = [tool.name for tool in report.tools if tool.controllers]
            for tool in report.tools:
                backings += matcher.backings(tool.name, tool.controllers, report.wall_s)
                if tool.error is None and not tool.controllers:
                    matcher.miss(tool.name, seen)
            error = "; ".join(matcher.unmatched[:MOST_UNMATCHED]) or None
    except FileNotFoundError:
        pass  # nobody collects
    except (OSError, ToolError) as problem:
        error = f"{RAID}: {problem}"
    wall_s = time.time()
    for array in parse_mdstat(files.try_read(MDSTAT) or ""):
        for device in matcher.on_the_disks_of(array.disk or "") if array.works else ():
            backings.append(Backing(device.name, "md", wall_s, works=array.works))
    return tuple(backings[:MOST_BACKINGS]), error


def look_at_caches(
    files: KernelFiles, devices: Sequence[Device], now_s: float, owner: int = 0
) -> Tuple[Tuple[Backing, ...], Optional[str]]:
    """A Look at the kernel's caches."""
    try:
        report = report_file.read(files.path(CACHES), owner)
    except FileNotFoundError:
        return (), None  # there is none
    except (OSError, ToolError) as problem:
        return (), f"{CACHES}: {problem}"
    if is_stale(report, files, now_s, FILL_FRESH_S):
        return (), f"{CACHES} is {_age(report, now_s)}: check that writebackd-caches.service runs"
    matcher = Matcher(files, devices)
    return tuple(
        backing
        for tool in report.tools
        for backing in matcher.backings(
            tool.name, tool.controllers, report.wall_s, report.boottime_s
        )
    )[:MOST_BACKINGS], None


def together(arrays: Sequence[Backing], caches: Sequence[Backing]) -> Tuple[Backing, ...]:
    """Both, without array reports about a cache that has a newer reading of its own."""
    if not caches:
        return tuple(arrays)
    known = {(cache.device, cache.source) for cache in caches}
    return (*(array for array in arrays if (array.device, array.source) not in known), *caches)


def is_stale(
    report: CollectorReport, files: KernelFiles, now_s: float, stale_s: float = STALE_S
) -> bool:
    """Whether the report is too old, or from another boot."""
    age_s = now_s - report.boottime_s
    return not (_is_of_this_boot(report, files) and -LOOK_S <= age_s <= stale_s)


def slept(report: CollectorReport, files: KernelFiles) -> bool:
    """Whether a report is old only because of a suspend, in which the timer did not run either."""
    if report.awake_s is None or not _is_of_this_boot(report, files):
        return False
    return 0 <= time.clock_gettime(time.CLOCK_MONOTONIC) - report.awake_s <= STALE_S


def _is_of_this_boot(report: CollectorReport, files: KernelFiles) -> bool:
    return report.boot_id == files.try_read("/proc/sys/kernel/random/boot_id")


def _age(report: CollectorReport, now_s: float) -> str:
    age_s = now_s - report.boottime_s
    if age_s < 0:
        return "of another boot"
    return f"{formats.duration(round(age_s))} old"
