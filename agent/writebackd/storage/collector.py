# SPDX-License-Identifier: GPL-2.0-or-later
"""One run of the collector: asks every installed tool, one after the other."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Callable, List, Optional, Sequence, Set

from writebackd import __version__
from writebackd.kernel.files import KernelFiles
from writebackd.storage import linux_storage
from writebackd.storage.device_matcher import diskseq
from writebackd.storage.raid_tools import LIMIT_S, find, kinds, question, search_path
from writebackd.storage.report_file import CollectorReport, Tool

# Another tool for the same controllers says the same, and each question costs the firmware time;
# where the controller is what hangs, it would hang there too.
_SAME = {"megacli": ("storcli", "perccli"), "perccli": ("storcli",)}


def _nowhere(_: CollectorReport) -> None:
    pass


def collect(
    files: KernelFiles,
    limit_s: float = LIMIT_S,
    directories: Optional[Sequence[str]] = None,
    top: Path = Path("/"),
    leave: Callable[[CollectorReport], None] = _nowhere,
) -> CollectorReport:
    """Ask everybody; a tool gets `limit_s` seconds for each of its few questions.

    `top` is as in `find`. `leave` is given what is known after each tool, as the next may take
    the run with it; what it raises ends the run.
    """
    begun = CollectorReport(
        wall_s=time.time(),
        boottime_s=time.clock_gettime(time.CLOCK_BOOTTIME),
        boot_id=files.try_read("/proc/sys/kernel/random/boot_id") or "",
        release=__version__,
        awake_s=time.clock_gettime(time.CLOCK_MONOTONIC),
    )
    found: List[Tool] = []
    hang: Set[str] = set()
    places = search_path() if directories is None else directories
    # Some leave logs where they are.
    with tempfile.TemporaryDirectory(prefix="writebackd-raid-") as home:
        for kind in kinds(files):
            path = find(kind, places, top)
            known = {each.name for each in found if each.controllers}
            if path is None or (known | hang) & set(_SAME.get(kind.name, ())):
                continue
            tool, hung = question(kind, path, home, limit_s)
            found.append(_stamped(tool, files))
            if hung:
                hang.add(kind.name)
            leave(replace(begun, tools=tuple(found)))
    return replace(begun, tools=tuple(found))


def with_earlier(report: CollectorReport, before: Optional[CollectorReport]) -> CollectorReport:
    """And what those said `before` who were not asked yet; then all of it is as old as that."""
    asked = {each.name for each in report.tools}
    rest = [each for each in before.tools if each.name not in asked] if before else []
    if before is None or not rest:
        return report
    return replace(
        report, wall_s=before.wall_s, boottime_s=before.boottime_s, awake_s=before.awake_s,
        tools=(*report.tools, *rest),
    )  # fmt: skip


def _stamped(tool: Tool, files: KernelFiles) -> Tool:
    """With the sequence numbers of the disks: a name may be another disk's in ten minutes."""
    return replace(tool, controllers=tuple(
        replace(controller, volumes=tuple(
            replace(each, diskseq=diskseq(files, each.disk)) if each.disk else each
            for each in controller.volumes
        ))
        for controller in tool.controllers
    ))  # fmt: skip


def with_kernel(report: CollectorReport, files: KernelFiles) -> CollectorReport:
    """And what the kernel says, last: whoever reads its files may be held up with a disk."""
    found = []
    for name, controllers in (
        ("bcache", linux_storage.read_bcache(files)), ("md", linux_storage.read_md_journals(files)),
    ):  # fmt: skip
        if controllers:
            found.append(_stamped(Tool(name, "/sys/block", None, controllers), files))
    return replace(report, tools=(*report.tools, *found))
