# SPDX-License-Identifier: GPL-2.0-or-later
"""Follows the fill of bcache, dm-writecache and dm-cache, and writes it for the daemon.

It is a separate program (writebackd-raid --caches): dmsetup needs a device node that the daemon's
sandbox hides, and reading bcache's files may wait for a lock.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import List, Set

from writebackd.kernel.files import KernelFiles
from writebackd.storage import linux_storage, report_file
from writebackd.storage.device_matcher import stamped
from writebackd.storage.raid_tools import find, mapped, question, search_path
from writebackd.storage.raid_types import ToolError
from writebackd.storage.report_file import Tool

# How often those are asked that had no cache.
ASK_ALL_S = 60.0


def follow(files: KernelFiles, output: Path, every_s: float, top: Path = Path("/")) -> None:
    """Write `output` every `every_s` seconds, until there is no cache.

    Raises OSError, or ToolError if tools fail and no cache is seen: then the last report stays and
    becomes stale. `top` is as in `find`.
    """
    empty: Set[str] = set()
    ask_all_s = float("-inf")
    while True:
        if time.monotonic() >= ask_all_s:
            ask_all_s = time.monotonic() + ASK_ALL_S
            empty.clear()
        report = report_file.begun(files)
        tools = [tool for tool in _tools(files, top, empty) if tool.controllers or tool.error]
        empty.update({kind.name for kind in mapped(files)} - {tool.name for tool in tools})
        if not tools:
            output.unlink(missing_ok=True)
            return
        if not any(tool.controllers for tool in tools):
            raise ToolError(
                "; ".join(f"{tool.name} ({tool.path}): {tool.error}" for tool in tools)
            )  # fmt: skip
        report_file.write(replace(report, tools=tuple(tools)), output)
        time.sleep(every_s)


def _tools(files: KernelFiles, top: Path, empty: Set[str]) -> List[Tool]:
    tools = [Tool("bcache", "/sys/block", None, linux_storage.read_bcache(files))]
    for kind in mapped(files):
        path = find(kind, search_path(), top) if kind.name not in empty else None
        if path is not None:
            tools.append(question(kind, path, "/")[0])
    return [replace(each, controllers=stamped(each.controllers, files)) for each in tools]
