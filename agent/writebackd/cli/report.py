# SPDX-License-Identifier: GPL-2.0-or-later
"""The verb report: an HTML page from the history file."""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from pathlib import Path

from writebackd import __version__, formats
from writebackd.cli.client import request
from writebackd.cli.exit_codes import BAD_NEWS, GOOD, USAGE, CommandError
from writebackd.cli.history import device_in, span, state_dir
from writebackd.cli.output import show_answer
from writebackd.paths import HISTORY
from writebackd.report.alert_answers import past_json
from writebackd.report.device_figures import STEP_S
from writebackd.report.history_query import read_alerts, read_figures, read_history
from writebackd.report.history_store import MAX_ALERTS
from writebackd.report.report_page import render
from writebackd.report.safe_files import write_atomically
from writebackd.report.timeline import Span


def report(options: argparse.Namespace) -> int:
    now_s = time.time()
    since_s, until_s = span(options, now_s)
    last_s = now_s if until_s is None else until_s
    asked_s = last_s - (since_s or 0.0)
    if asked_s < STEP_S:
        raise CommandError(
            f"a span of {formats.duration(max(0.0, asked_s))} is too short: figures cover"
            f" {STEP_S:g} s each; use {STEP_S:g}s or more", USAGE,
        )  # fmt: skip
    path = state_dir(options) / HISTORY
    device = device_in(path, options)
    rows = read_figures(path, since_s, device, until_s)
    # The state at its beginning was decided before; later events show what ran then.
    events = read_history(path, None, device)
    past = past_json(read_alerts(path, MAX_ALERTS), ())
    first_s = min([row.wall_s for row in rows] + [event.wall_s for event in events], default=now_s)
    # Whole rows: what the page says it is about is what its figures are of.
    end_s = max([last_s, *(row.end_s for row in rows)])
    begin_s = max(since_s or 0.0, first_s)
    about = Span(
        host=socket.gethostname(),
        version=__version__,
        # Of a time before the first record there is nothing to draw, and it would take the room.
        begin_s=min([begin_s, end_s, *(row.wall_s for row in rows)]),
        end_s=end_s,
        made_s=now_s,
        running=_is_written(path, options),
    )
    page = render(about, rows, events, past)
    write_page(options.output, page)
    if str(options.output) == "-":
        return GOOD
    size = len(page.encode())
    shown = sum(about.begin_s <= event.wall_s <= about.end_s for event in events)
    show_answer(
        options,
        {"file": str(options.output), "bytes": size, "rows": len(rows)},
        lambda: f"{options.output}: {formats.size(size)} from {len(rows)} rows of figures and"
        f" {shown} events",
    )
    return GOOD


def _is_written(path: Path, options: argparse.Namespace) -> bool:
    """Whether a running daemon writes this history."""
    try:
        status = request(options.runtime_dir, "status", timeout_s=1.0)
    except CommandError:
        return False
    return os.path.realpath(str(status["state_dir"])) == os.path.realpath(str(path.parent))


def write_page(output: Path, page: str) -> None:
    """Write all or nothing to a plain file; other files as they are. Raises CommandError."""
    if str(output) == "-":
        sys.stdout.write(page)
        return
    try:
        if _is_plain(output):
            write_atomically(output, page.encode(), for_all=False)
        else:
            output.write_text(page, encoding="utf-8")
    except OSError as error:
        raise CommandError(
            f"{output} cannot be written ({error.strerror}): name another with -o", BAD_NEWS
        ) from None


def _is_plain(output: Path) -> bool:
    """Whether the file may be replaced: never that of /dev/null or /dev/stdout.

    Any other link to a file is itself replaced, since another user may have put it into /tmp.
    """
    parent = os.path.realpath(output.parent)
    if output.is_symlink() and (parent == "/dev" or parent.startswith("/proc/")):
        return False
    return output.is_file() or not output.exists()
