# SPDX-License-Identifier: GPL-2.0-or-later
"""Keeps the daemon's view of arrays and caches current: a thread reads them every minute."""

from __future__ import annotations

import threading
import time
from typing import List, Optional, Sequence, Tuple

from writebackd.kernel.files import KernelFiles
from writebackd.paths import RAID
from writebackd.storage import report_file
from writebackd.storage.device_matcher import Matcher
from writebackd.storage.linux_storage import MDSTAT, parse_mdstat
from writebackd.storage.raid_types import ToolError
from writebackd.storage.report_file import STALE_S, CollectorReport
from writebackd.types.storage import Backing, Device

LOOK_S = 60.0
# A look that takes so long hangs in the kernel; what was seen before it may be over.
HANGS_S = 5 * LOOK_S
# More than any device has behind it; a tick copies and records all of them.
MOST_BACKINGS = 4096


class BackingWatch:
    """`seen` is what the last look found."""

    def __init__(self, files: KernelFiles, owner: int = 0) -> None:
        """`owner` is whose the collector's file has to be."""
        self._files, self._owner = files, owner
        self._thread: Optional[threading.Thread] = None
        self._wanted = threading.Event()
        self._devices: Sequence[Device] = ()
        self._next_s = float("-inf")
        self._seen: Tuple[Backing, ...] = ()
        self._seen_s = float("-inf")
        self.error: Optional[str] = None

    def seen(self, devices: Sequence[Device], now_s: float) -> Tuple[Backing, ...]:
        """What is behind these devices, `now_s` being CLOCK_BOOTTIME; never waits.

        Nothing is known before the first look, and of an earlier one while a look hangs.
        """
        if now_s >= self._next_s:
            self._next_s = now_s + LOOK_S
            self._devices = devices
            self._wanted.set()
            self._start()
        return self._seen if now_s - self._seen_s <= HANGS_S else ()

    def _start(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="backing", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # TasksMax= of the unit
                self.error = f"cannot look for RAID tools' report: {error}"
                return
            self._thread = thread

    def _run(self) -> None:
        while self._wanted.wait():
            self._wanted.clear()
            now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
            try:
                self._seen, self.error = look(self._files, self._devices, now_s, self._owner)
            except Exception as error:  # other people's files: whatever is wrong with them
                self._seen = ()
                self.error = f"cannot read RAID tools' report: {error}"
            self._seen_s = now_s


def look(
    files: KernelFiles, devices: Sequence[Device], now_s: float, owner: int = 0
) -> Tuple[Tuple[Backing, ...], Optional[str]]:
    """One look, and what is wrong with the collector's file; `now_s` is CLOCK_BOOTTIME."""
    matcher = Matcher(files, devices)
    found: List[Backing] = []
    error = None
    try:
        told = report_file.read(files.path(RAID), owner)
        if is_stale(told, files, now_s):
            if not slept(told, files):
                error = f"{RAID} is {_age(told, now_s)}: check that writebackd-raid.timer runs"
        else:
            for tool in told.tools:
                found += matcher.backings(tool.name, tool.controllers, told.wall_s)
    except FileNotFoundError:
        pass  # nobody collects
    except (OSError, ToolError) as problem:
        error = f"{RAID}: {problem}"
    wall_s = time.time()
    for array in parse_mdstat(files.try_read(MDSTAT) or ""):
        for device in matcher.on_the_disks_of(array.disk or "") if array.works else ():
            found.append(Backing(device.name, "md", wall_s, works=array.works))
    return tuple(found[:MOST_BACKINGS]), error


def is_stale(told: CollectorReport, files: KernelFiles, now_s: float) -> bool:
    """Whether it says nothing of now: too old, or of another boot."""
    age_s = now_s - told.boottime_s
    return not (_is_of_this_boot(told, files) and -LOOK_S <= age_s <= STALE_S)


def slept(told: CollectorReport, files: KernelFiles) -> bool:
    """Whether one that is too old is so for a suspend alone: the timer's clock stood still too."""
    if told.awake_s is None or not _is_of_this_boot(told, files):
        return False
    return 0 <= time.clock_gettime(time.CLOCK_MONOTONIC) - told.awake_s <= STALE_S


def _is_of_this_boot(told: CollectorReport, files: KernelFiles) -> bool:
    return told.boot_id == files.try_read("/proc/sys/kernel/random/boot_id")


def _age(told: CollectorReport, now_s: float) -> str:
    age_s = now_s - told.boottime_s
    return f"{age_s / 60:.0f} minutes old" if age_s >= 0 else "of another boot"
