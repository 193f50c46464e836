# SPDX-License-Identifier: GPL-2.0-or-later
"""The checks of doctor for RAID tools and the collector's service."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path
from typing import Iterator, Optional, Sequence, Tuple

from writebackd import formats
from writebackd.kernel.files import KernelFiles
from writebackd.paths import RAID
from writebackd.storage import report_file
from writebackd.storage.backing_watch import is_stale, slept
from writebackd.storage.raid_tools import installed
from writebackd.storage.raid_types import Controller, ToolError
from writebackd.storage.report_file import CollectorReport
from writebackd.types.storage import CacheMode, Protection

TIMER = "writebackd-raid.timer"
_SYSTEMCTL_S = 5.0


def raid(
    files: KernelFiles, owner: int = 0, top: Path = Path("/")
) -> Iterator[Tuple[str, str]]:
    """Level and text: tools, timer, what was read last, and caches that may lose writes.

    `owner` is whose the collector's file has to be, `top` is as in `find`.
    """
    tools = installed(files, top)
    vendors = {name: path for name, path in tools.items() if not name.startswith("dm-")}
    for name, path in vendors.items():
        yield "good", f"{name} found ({path})"
    runs = _timer_runs()
    if runs:
        yield "good", f"{TIMER} runs"
    elif vendors and runs is not None:
        yield (
            "note",
            f"{TIMER} is not running: no battery or rebuild state from {', '.join(vendors)};"
            f" `sudo systemctl enable --now {TIMER}`",
        )
    now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    try:
        told = report_file.read(files.path(RAID), owner)
    except FileNotFoundError:
        if vendors:
            yield "note", f"no {RAID} yet: `sudo systemctl start writebackd-raid`"
        return
    except (OSError, ToolError) as error:
        yield "warning", f"{RAID} is not used: {error}"
        return
    if is_stale(told, files, now_s):
        age = formats.duration(max(0.0, now_s - told.boottime_s))
        if slept(told, files):
            yield "note", f"{RAID} is from {age} ago, before a suspend: {TIMER} renews it"
            return
        yield "warning", f"{RAID} is not used: written {age} ago, or before this boot"
        return
    age = formats.duration(max(0.0, now_s - told.boottime_s))
    yield "good", f"{RAID} was written {age} ago"
    yield from _said(told)


def _said(told: CollectorReport) -> Iterator[Tuple[str, str]]:
    for tool in told.tools:
        if tool.error is not None:
            yield "warning", f"{tool.name} ({tool.path}) failed: {tool.error}"
        for controller in tool.controllers:
            where = controller.model or controller.pci or "a controller"
            yield from _caches(tool.name, where, controller)


def _caches(source: str, where: str, controller: Controller) -> Iterator[Tuple[str, str]]:
    protection = controller.protection
    if protection is not None and protection is not Protection.OK:
        yield "warning", f"{where}: battery {protection.value} ({source})"
    always = _named(controller, CacheMode.ALWAYS_WRITE_BACK)
    if always:
        yield (
            "warning",
            f"{where}: writes are kept back also without a battery ({always}, {source}): a power"
            " failure loses them, and the file system with them",
        )


def _named(controller: Controller, mode: CacheMode) -> str:
    """The volumes with that mode, a few of them."""
    names: Sequence[str] = [
        volume.disk or f"volume {volume.number}"
        for volume in controller.volumes
        if volume.mode is mode
    ]
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more


def _timer_runs() -> Optional[bool]:
    """None where that cannot be told."""
    if not shutil.which("systemctl"):
        return None
    try:
        done = subprocess.run(
            ["systemctl", "is-active", "--quiet", TIMER],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            timeout=_SYSTEMCTL_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    # 3: it is not active; what else there is (4, 1) says that nobody can tell.
    return {0: True, 3: False}.get(done.returncode)
