# SPDX-License-Identifier: GPL-2.0-or-later
"""writebackd-raid, the collector: asks RAID tools and the kernel about arrays and caches.

A program of its own, as tools need device nodes that the daemon's sandbox hides, and as they
hang with the controller they ask.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Optional, Sequence

from writebackd import __version__
from writebackd.command_line import Parser, complain, drop_unwritten, open_closed_streams
from writebackd.kernel.files import KernelFiles
from writebackd.paths import RAID
from writebackd.storage import report_file
from writebackd.storage.backing_watch import is_stale
from writebackd.storage.collector import collect, with_earlier, with_kernel
from writebackd.storage.raid_tools import LIMIT_S
from writebackd.storage.raid_types import ToolError


def parser() -> Parser:
    """Its command line."""
    made = Parser(
        prog="writebackd-raid",
        description="Asks RAID tools (storcli, perccli, MegaCli, ssacli, arcconf), dmsetup and the"
        " kernel what stands behind the disks, and leaves it for writebackd.",
    )
    made.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    made.add_argument(
        "--output", type=Path, default=Path(RAID), metavar="FILE",
        help="default: %(default)s; - for standard output",
    )  # fmt: skip
    made.add_argument(
        "--limit", type=float, default=LIMIT_S, metavar="SECONDS",
        help="for each question; default: %(default)g",
    )  # fmt: skip
    return made


def main(argv: Optional[Sequence[str]] = None, top: Path = Path("/")) -> int:
    """0: written, whatever tools said; 1: it could not be; 2: wrong use. `top`: see `find`."""
    open_closed_streams()
    try:
        return _main(argv, top)
    finally:
        drop_unwritten()


def _main(argv: Optional[Sequence[str]], top: Path) -> int:
    options = parser().parse_args(argv)
    if not 0 < options.limit <= 600:
        complain("writebackd-raid: --limit is between 0 and 600 s")
        return 2
    files = KernelFiles()
    before = _earlier(files, options.output)

    def leave(so_far: report_file.CollectorReport) -> None:
        _leave(with_earlier(so_far, before), options.output, last=False)

    try:
        # After each tool, and before the last part, which may hang in the kernel.
        found = collect(files, options.limit, top=top, leave=leave)
        leave(found)
        found = with_kernel(found, files)
        _leave(found, options.output, last=True)
    except OSError as error:
        complain(f"writebackd-raid: {options.output}: {error.strerror}")
        drop_unwritten("stdout")
        return 1
    for tool in found.tools:
        said = f"{len(tool.controllers)} controllers or caches"
        complain(f"{tool.name} ({tool.path}): {tool.error or said}")
    return 0


def _earlier(files: KernelFiles, output: Path) -> Optional[report_file.CollectorReport]:
    """What the last run left, if it can still be relied on."""
    try:
        found = report_file.read(output, os.geteuid())
    except (OSError, ToolError):
        return None  # it is about to be replaced
    return None if is_stale(found, files, time.clock_gettime(time.CLOCK_BOOTTIME)) else found


def _leave(found: report_file.CollectorReport, output: Path, last: bool) -> None:
    if str(output) != "-":
        report_file.write(found, output)
    elif last:
        print(report_file.encode(found).decode(), end="", flush=True)


if __name__ == "__main__":
    sys.exit(main())
