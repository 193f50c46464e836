# SPDX-License-Identifier: GPL-2.0-or-later
"""The verb history: reads the file itself, so it works when the daemon is gone."""

from __future__ import annotations

import argparse
import re
import sys
import time
from dataclasses import asdict
from pathlib import Path

from writebackd.cli.client import request
from writebackd.cli.exits import BAD_NEWS, GOOD, USAGE, CommandError
from writebackd.cli.output import show, show_json, width
from writebackd.cli.render import wants_colour
from writebackd.cli.screens import render_history
from writebackd.paths import HISTORY, STATE_DIR
from writebackd.report.history import HistoryError, read_history

_SPAN = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(s|m|min|h|d|w)")
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}


def history(options: argparse.Namespace) -> int:
    since_s = None if options.since is None else _since(options.since, time.time())
    path = _state_dir(options) / HISTORY
    try:
        events = read_history(path, since_s, options.device, options.limit)
    except HistoryError as error:
        raise CommandError(str(error), BAD_NEWS) from None
    answer = [asdict(event) for event in events]
    for event in answer:
        del event["alert"]  # is for the verb alerts
    if options.json:
        show_json({"events": answer})
    else:
        show(render_history(answer, width(), wants_colour(sys.stdout)))
    return GOOD


def _since(text: str, now_s: float) -> float:
    """Wall clock seconds of a span before now (`90s`, `30m`, `1h`, `2d`) or of a date."""
    found = _SPAN.fullmatch(text)
    if found:
        return now_s - float(found.group(1)) * _SECONDS[found.group(2)]
    for form in ("%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%d"):
        try:
            return time.mktime(time.strptime(text, form))
        except (ValueError, OverflowError):
            continue
    raise CommandError(f"--since {text}: write it like 30m, 1h, 2d or '2024-05-01 03:00'", USAGE)


def _state_dir(options: argparse.Namespace) -> Path:
    """The directory that was named, else the running daemon's, else the usual one."""
    if options.state_dir is not None:
        return Path(options.state_dir)
    try:
        return Path(request(options.runtime_dir, "status", timeout_s=1.0)["state_dir"])
    except CommandError:
        return STATE_DIR
