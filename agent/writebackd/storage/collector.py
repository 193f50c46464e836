# SPDX-License-Identifier: GPL-2.0-or-later
"""writebackd-raid, the collector: asks RAID tools and the kernel about arrays and caches.

It is a separate program, as tools need device nodes that the daemon's sandbox hides, and hang if
their controller hangs; and reading bcache's files may wait for a lock.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import List, Optional, Sequence, Set

from writebackd import __version__
from writebackd.command_line import Parser, complain, drop_unwritten, open_streams, seconds
from writebackd.kernel.child_process import Job, Run
from writebackd.kernel.files import KernelFiles
from writebackd.paths import CACHES, RAID
from writebackd.storage import linux_storage, raid_tools, report_file
from writebackd.storage.device_matcher import stamped
from writebackd.storage.report_file import CollectorReport, Tool
from writebackd.storage.tool_output import ToolError

# Another tool for the same controllers says the same, and each question costs the firmware time;
# where the controller is what hangs, it would hang there too.
_SAME = {
    "megacli": ("storcli", "perccli"), "perccli": ("storcli",), "perccli2": ("storcli2",)
}  # fmt: skip
_TIME = seconds(0.1, 600.0)


def collect(
    files: KernelFiles,
    limit_s: float = raid_tools.LIMIT_S,
    directories: Optional[Sequence[str]] = None,
    top: Path = Path("/"),
) -> CollectorReport:
    """Ask all tools; each gets `limit_s` seconds for each of its few questions.

    `top` is as in `find`.
    """
    begun = report_file.begun(files)
    tools: List[Tool] = []
    hang: Set[str] = set()
    places = raid_tools.search_path() if directories is None else directories
    # Some leave logs where they are.
    with tempfile.TemporaryDirectory(prefix="writebackd-raid-") as home:
        for kind in raid_tools.kinds(files):
            path = raid_tools.find(kind, places, top)
            known = {earlier.name for earlier in tools if earlier.controllers}
            if (known | hang) & set(_SAME.get(kind.name, ())):
                continue
            if path is None:
                tools += raid_tools.distrusted(kind, places, top)
                continue
            tool, hung = raid_tools.question(kind, path, home, limit_s)
            tools.append(replace(tool, controllers=stamped(tool.controllers, files)))
            if hung:
                hang.add(kind.name)
    return replace(begun, tools=tuple(tools))


def with_kernel(report: CollectorReport, files: KernelFiles) -> CollectorReport:
    """Add what the kernel reports; what waits for a disk is left out."""
    tools: List[Tool] = []

    def look(_: Run) -> None:
        for name, read in (
            ("bcache", linux_storage.read_bcache), ("md", linux_storage.read_md_journals)
        ):  # fmt: skip
            controllers = read(files)
            if controllers:
                tools.append(Tool(name, "/sys/block", None, stamped(controllers, files)))

    Job(look, raid_tools.LIMIT_S, "kernel").wait(raid_tools.LIMIT_S)
    return replace(report, tools=(*report.tools, *tools))


def parser() -> Parser:
    made = Parser(
        prog="writebackd-raid",
        description="Asks RAID tools (storcli, storcli2, perccli, perccli2, MegaCli, ssacli,"
        " arcconf, tw_cli), dmsetup and the kernel about arrays and caches behind the disks, and"
        " writes a report for writebackd.",
    )
    made.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    made.add_argument(
        "--output", type=Path, metavar="FILE",
        help=f"default: {RAID}, with --caches {CACHES}; - for standard output",
    )  # fmt: skip
    made.add_argument(
        "--caches", type=_TIME, metavar="SECONDS",
        help="read only bcache, dm-writecache and dm-cache, repeatedly, while there is any",
    )  # fmt: skip
    made.add_argument(
        "--limit", type=_TIME, default=raid_tools.LIMIT_S, metavar="SECONDS",
        help="for each question; default: %(default)g",
    )  # fmt: skip
    return made


@open_streams()
def main(argv: Optional[Sequence[str]] = None, top: Path = Path("/")) -> int:
    """0: written, whatever the tools said; 1: not written; 2: wrong usage. `top`: see `find`.

    With --caches 0: there is no cache any more; 1 also if tools fail and no cache is seen.
    """
    options = parser().parse_args(argv)
    if options.caches is not None and str(options.output) == "-":
        complain("writebackd-raid: --caches needs a file for its output")
        return 2
    files = KernelFiles()
    output = options.output or Path(RAID if options.caches is None else CACHES)
    try:
        if options.caches is not None:
            follow(files, output, options.caches, top)
            return 0
        report = with_kernel(collect(files, options.limit, top=top), files)
        if str(output) != "-":
            report_file.write(report, output)
        else:
            print(report_file.encode(report).decode(), end="", flush=True)
    except ToolError as error:  # of `follow`; systemd starts it again
        complain(f"writebackd-raid: {error}")
        return 1
    except OSError as error:
        complain(f"writebackd-raid: {output}: {error.strerror}")
        drop_unwritten("stdout")
        return 1
    for tool in report.tools:
        said = f"{len(tool.controllers)} controllers or caches"
        complain(f"{tool.name} ({tool.path}): {tool.error or said}")
    return 0


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
        empty |= {kind.name for kind in raid_tools.mapped(files)} - {tool.name for tool in tools}
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
    for kind in (each for each in raid_tools.mapped(files) if each.name not in empty):
        path = raid_tools.find(kind, raid_tools.search_path(), top)
        if path is not None:
            tools.append(raid_tools.question(kind, path, "/")[0])
    return [replace(tool, controllers=stamped(tool.controllers, files)) for tool in tools]


if __name__ == "__main__":
    sys.exit(main())
