# SPDX-License-Identifier: GPL-2.0-or-later
"""The verb report: a page of the history, made from its file alone."""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from pathlib import Path

from writebackd import __version__
from writebackd.cli.exits import BAD_NEWS, GOOD, CommandError
from writebackd.cli.history import span, state_dir
from writebackd.cli.output import show, show_json
from writebackd.paths import HISTORY
from writebackd.report.history import HistoryError, read_figures, read_history
from writebackd.report.page import Span, render


def report(options: argparse.Namespace) -> int:
    now_s = time.time()
    since_s, until_s = span(options, now_s)
    path = state_dir(options) / HISTORY
    try:
        rows = read_figures(path, since_s, options.device, until_s)
        # What stood at its beginning was decided before.
        events = read_history(path, None, options.device, None, until_s)
    except HistoryError as error:
        raise CommandError(str(error), BAD_NEWS) from None
    there = [row.wall_s for row in rows] + [event.wall_s for event in events]
    about = Span(
        host=socket.gethostname(),
        version=__version__,
        begin_s=since_s if since_s is not None else min(there, default=now_s),
        end_s=until_s if until_s is not None else max([now_s, *(row.end_s for row in rows)]),
        made_s=now_s,
    )
    page = render(about, rows, events)
    write_page(options.output, page)
    if str(options.output) == "-":
        return GOOD
    if options.json:
        show_json({"file": str(options.output), "bytes": len(page.encode()), "rows": len(rows)})
    else:
        show(f"{options.output}: {len(page.encode()) / 1e6:.1f} MB, {len(rows)} rows of figures")
    return GOOD


def write_page(output: Path, page: str) -> None:
    """All of it or nothing. Raises CommandError."""
    if str(output) == "-":
        sys.stdout.write(page)
        return
    temporary = output.with_name(f".{output.name}.new")
    try:
        temporary.write_text(page, encoding="utf-8")
        os.replace(temporary, output)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise CommandError(
            f"{output} cannot be written ({error.strerror}): name another with -o", BAD_NEWS
        ) from None
