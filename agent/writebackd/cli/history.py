# SPDX-License-Identifier: GPL-2.0-or-later
"""The verb history: reads the history file itself, so it needs no daemon."""

from __future__ import annotations

import argparse
import csv
import re
import sys
import time
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Dict, Optional, Sequence, Tuple

from writebackd.cli.arguments import kernel_name
from writebackd.cli.client import request
from writebackd.cli.exit_codes import BAD_NEWS, GOOD, USAGE, CommandError
from writebackd.cli.history_screen import folded, render_figures, render_history
from writebackd.cli.output import show, show_json, width
from writebackd.cli.status_screen import clean, wants_colour
from writebackd.paths import HISTORY, STATE_DIR
from writebackd.report.device_figures import Figures
from writebackd.report.history_query import (
    HistoryError,
    count_events,
    known_devices,
    read_figures,
    read_history,
)
from writebackd.report.history_schema import Event

_SPAN = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(s|m|min|h|d|w)")
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
# What a screen gets, and how many events it is folded from; a file gets everything.
_LAST, _READ = 50, 1000


def history(options: argparse.Namespace) -> int:
    since_s, until_s = span(options, time.time())
    path = state_dir(options) / HISTORY
    on_screen = not (options.csv or options.json)
    most = _READ if on_screen and not options.figures else _LAST
    limit = options.limit or (None if options.csv else most)
    try:
        device = device_in(path, options)
        if options.figures:
            rows = read_figures(path, since_s, device, until_s)
            answer = [figures_json(row) for row in rows[-limit if limit else 0 :]]
            known = len(rows)
        else:
            known = count_events(path, since_s, device, until_s)
            events = read_history(path, since_s, device, limit, until_s)
            answer = [asdict(event) for event in events]
            for event in answer:
                del event["alert"]  # is for the verb alerts
    except HistoryError as error:
        raise CommandError(str(error), BAD_NEWS) from None
    if options.csv:
        _show_csv(answer, _FIGURE_COLUMNS if options.figures else _EVENT_COLUMNS)
    elif options.json:
        left_out = max(0, known - limit) if limit is not None else 0
        show_json({"figures" if options.figures else "events": answer, "left_out": left_out})
    else:
        shown, cut = len(answer), limit is not None and known > limit
        if options.figures:
            show(render_figures(answer, width(), wants_colour(sys.stdout)))
        else:
            entries = folded(answer)
            if not options.limit and len(entries) > _LAST:
                entries, cut = entries[-_LAST:], True
            shown = sum(entry.count for entry in entries)
            show(render_history(entries, width(), wants_colour(sys.stdout)))
        if cut:
            show(_left_out(known, shown, "rows" if options.figures else "events"))
    return GOOD


def _left_out(known: int, limit: int, what: str) -> str:
    """How much of it is not on the screen, and how to come by it."""
    which = f"the last {limit} of {known} {what}"
    return f"({which}; --limit {known} shows all, --since others)"


def figures_json(row: Figures) -> Dict[str, Any]:
    """A row of figures as data: its latencies as p50 and p99, what is not known None."""
    return {
        "wall_s": row.wall_s,
        "span_s": row.span_s,
        "device": row.device,
        "limit_bytes": row.limit_bytes,
        "found_bytes": row.found_bytes,
        "target_bytes": row.target_bytes,
        "write_rate": row.write_rate,
        "drain_rate": row.drain_rate,
        "cache_fill": row.fill_share,
        "sync_rate": row.fsyncs / row.span_s,
        "fsync_p50_s": row.latency.quantile(0.5),
        "fsync_p99_s": row.latency.quantile(0.99),
        "fsync_oldest_s": row.oldest_s,
        "fsync_baseline_s": row.baseline_s,
        "objective_s": row.objective_s,
        "flooded_s": row.flooded_s,
        "held_s": row.ours_s,
    }


_EVENT_COLUMNS = tuple(each.name for each in fields(Event) if each.name != "alert")
_FIGURE_COLUMNS = tuple(figures_json(Figures(0.0, 1.0, "", 0.0, 0.0, 0.0)))


def _show_csv(rows: Sequence[Dict[str, Any]], columns: Sequence[str]) -> None:
    """With a header; what is not known is an empty field, times are seconds since 1970."""
    writer = csv.DictWriter(sys.stdout, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def span(
    options: argparse.Namespace, now_s: float
) -> Tuple[Optional[float], Optional[float]]:
    """`--since` and `--until` in wall clock seconds. Raises CommandError."""
    since_s, until_s = (
        None if text is None else _when(text, now_s, name)
        for name, text in (("--since", options.since), ("--until", options.until))
    )
    if since_s is not None and until_s is not None and since_s >= until_s:
        raise CommandError(f"--until {options.until} is not after --since {options.since}", USAGE)
    return since_s, until_s


def _when(text: str, now_s: float, option: str = "--since") -> float:
    """Wall clock seconds of a span before now (`90s`, `30m`, `1h`, `2d`) or of a date."""
    found = _SPAN.fullmatch(text)
    if found:
        return now_s - float(found.group(1)) * _SECONDS[found.group(2)]
    for form in ("%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%d"):
        try:
            return time.mktime(time.strptime(text, form))
        except (ValueError, OverflowError):
            continue
    raise CommandError(f"{option} {text}: write it like 30m, 1h, 2d or '2024-05-01 03:00'", USAGE)


def device_in(path: Path, options: argparse.Namespace) -> Optional[str]:
    """The name that `--device` has in a history; None: all of them.

    What is no name below /dev (a mount point, a disk below) is looked up at the daemon, which also
    knows devices that nothing has happened to yet. Raises HistoryError, and CommandError where no
    device is called that.
    """
    wanted: Optional[str] = options.device
    if wanted is None:
        return None
    known = known_devices(path)
    for name in (wanted, kernel_name(wanted)):
        if name in known:
            return name
    try:
        answer = request(options.runtime_dir, "why", {"device": wanted}, timeout_s=1.0)
    except CommandError:
        answer = {}
    names = [str(device["name"]) for device in answer.get("devices", ())]
    if len(names) == 1:
        return names[0]
    raise CommandError(
        f"no device is called {wanted!r} in {path}; known devices:"
        f" {', '.join(map(clean, known)) or 'none'}", USAGE,
    )  # fmt: skip


def state_dir(options: argparse.Namespace) -> Path:
    """The directory that was named, else the running daemon's, else the usual one."""
    if options.state_dir is not None:
        return Path(options.state_dir)
    try:
        return Path(request(options.runtime_dir, "status", timeout_s=1.0)["state_dir"])
    except CommandError:
        return STATE_DIR
