# SPDX-License-Identifier: GPL-2.0-or-later
"""One run of the collector: all tools that are there, one after the other."""

from __future__ import annotations

import tempfile
import time
from typing import List, Optional, Sequence

from writebackd import __version__
from writebackd.cache import linux
from writebackd.cache.report import Report, Tool
from writebackd.cache.tools import LIMIT_S, find, kinds, question, search_path
from writebackd.kernel.files import KernelFiles

# Another tool for the same controllers says the same, and each question costs the firmware time.
_SAME = {"megacli": ("storcli", "perccli"), "perccli": ("storcli",)}


def collect(
    files: KernelFiles, limit_s: float = LIMIT_S, directories: Optional[Sequence[str]] = None
) -> Report:
    """Ask everybody; a tool gets `limit_s` seconds for each of its few questions."""
    wall_s, boottime_s = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)
    found: List[Tool] = []
    places = search_path() if directories is None else directories
    # Some leave logs where they are.
    with tempfile.TemporaryDirectory(prefix="writebackd-raid-") as home:
        for kind in kinds(files):
            path = find(kind, places)
            known = [each.name for each in found if each.controllers]
            if path is not None and not set(_SAME.get(kind.name, ())) & set(known):
                found.append(question(kind, path, home, limit_s))
    return Report(
        wall_s=wall_s,
        boottime_s=boottime_s,
        boot_id=files.try_read("/proc/sys/kernel/random/boot_id") or "",
        release=__version__,
        tools=tuple(found),
    )


def with_kernel(report: Report, files: KernelFiles) -> Report:
    """And what the kernel says, last: whoever reads its files may be held up with a disk."""
    found = []
    for name, controllers in (
        ("bcache", linux.read_bcache(files)), ("md", linux.read_md_journals(files)),
    ):  # fmt: skip
        if controllers:
            found.append(Tool(name, "/sys/block", None, controllers))
    return Report(
        report.wall_s, report.boottime_s, report.boot_id, report.release,
        (*report.tools, *found),
    )  # fmt: skip
