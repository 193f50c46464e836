# SPDX-License-Identifier: GPL-2.0-or-later
"""The verbs history and report: events with repetitions folded, figures, an HTML page.

They read the history file themselves, and need no daemon.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import os
import re
import socket
import sys
import time
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Sequence, Tuple

from writebackd import __version__, formats
from writebackd.cli.client import kernel_name, request, status_of
from writebackd.cli.exit_codes import GOOD, USAGE, CommandError
from writebackd.cli.output import (
    Answer,
    Paint,
    as_text,
    clean,
    moment,
    show_answer,
    show_json,
    wants_colour,
    width,
    wrapped,
    write_page,
)
from writebackd.paths import HISTORY, STATE_DIR
from writebackd.report.alert_answers import past_json
from writebackd.report.device_figures import STEP_S, Figures
from writebackd.report.history_events import readable
from writebackd.report.history_schema import (
    EVENT_COLUMNS,
    count_events,
    known_devices,
    read_alerts,
    read_figures,
    read_history,
)
from writebackd.report.report_page import render
from writebackd.report.timeline import Span

if TYPE_CHECKING:
    from writebackd.cli.client_answers import FigureRow, HistoryAnswer, ReportAnswer

_SPAN = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(s|m|min|h|d|w)")
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
# What a screen gets, and how many events it is folded from; a file gets everything.
_LAST, _READ = 50, 1000
# What comes again within so many events is the same going on: a state and back, with the
# actions of each, of a few devices.
_NEAR = 12
# These come and go by themselves; others are caused by people, and what follows is news.
_FOLDED = ("decision", "action", "alert")
_NUMBER = re.compile(r"\d+(\.\d+)?[kKMGTP]?")


def history(options: argparse.Namespace) -> int:
    since_s, until_s = span(options, time.time())
    path = state_dir(options) / HISTORY
    folds = not (options.csv or options.json or options.figures)
    limit = options.limit or (None if options.csv else _READ if folds else _LAST)
    device = device_in(path, options)
    if options.figures:
        rows = read_figures(path, since_s, device, until_s)
        answer: List[Any] = [figures_json(row) for row in rows[-limit if limit else 0 :]]
        known = len(rows)
    else:
        known = count_events(path, since_s, device, until_s)
        events = read_history(path, since_s, device, limit, until_s)
        answer = [asdict(event) for event in events]
        for event in answer:
            del event["alert"]  # is for the verb alerts
    if options.csv:
        # With a header; what is not known is an empty field, times are seconds since 1970.
        columns = _FIGURE_COLUMNS if options.figures else EVENT_COLUMNS
        writer = csv.DictWriter(sys.stdout, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(answer)
    elif options.json:
        left_out = max(0, known - len(answer))
        data: HistoryAnswer = {"events": answer, "left_out": left_out}
        if options.figures:
            data = {"figures": answer, "left_out": left_out}
        show_json(data)
    else:
        what, shown = "rows", len(answer)
        colour = wants_colour(sys.stdout, options.color)
        if options.figures:
            print(render_figures(answer, colour))
        else:
            entries = folded(answer)[0 if options.limit else -_LAST :]
            what, shown = "events", sum(entry.count for entry in entries)
            print(render_history(entries, width(), colour))
        if known > shown:
            which = f"the last {shown} of {known} {what}"
            print(f"({which}; --limit {known} shows all, --since others)")
    return GOOD


def figures_json(row: Figures) -> FigureRow:
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
        "commit_p50_s": row.commit_latency.quantile(0.5),
        "commit_p99_s": row.commit_latency.quantile(0.99),
        "commit_write_share": row.write_share,
        "commit_oldest_s": row.pending_s,
        "fsync_p50_s": row.latency.quantile(0.5),
        "fsync_p99_s": row.latency.quantile(0.99),
        "fsync_oldest_s": row.oldest_s,
        "fsync_baseline_s": row.baseline_s,
        "objective_s": row.objective_s,
        "flooded_s": row.flooded_s,
        "held_s": row.ours_s,
    }


_FIGURE_COLUMNS = tuple(figures_json(Figures(0.0, 1.0, "", 0.0, 0.0, 0.0)))


def span(options: argparse.Namespace, now_s: float) -> Tuple[Optional[float], Optional[float]]:
    """`--since` and `--until` in wall clock seconds. Raises CommandError."""
    since_s = None if options.since is None else _when(options.since, now_s, "--since")
    until_s = None if options.until is None else _when(options.until, now_s, "--until")
    if since_s is not None and until_s is not None and since_s >= until_s:
        raise CommandError(f"--until {options.until} is not after --since {options.since}", USAGE)
    return since_s, until_s


def _when(text: str, now_s: float, option: str) -> float:
    """Wall clock seconds of a time before now (`90s`, `30m`, `1h`, `2d`), or of a date."""
    match = _SPAN.fullmatch(text)
    if match:
        return now_s - float(match.group(1)) * _SECONDS[match.group(2)]
    for form in ("%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%d"):
        with contextlib.suppress(ValueError, OverflowError):
            return time.mktime(time.strptime(text, form))
    raise CommandError(f"{option} {text}: write it like 30m, 1h, 2d or '2024-05-01 03:00'", USAGE)


def device_in(path: Path, options: argparse.Namespace) -> Optional[str]:
    """The name of the `--device` option in a history; None: all devices.

    Names other than below /dev (a mount point, a leaf disk) are looked up by the daemon, which
    also knows devices without events. Raises HistoryError, or CommandError for an unknown name.
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
    """The directory from the option, else the running daemon's, else the default."""
    if options.state_dir is not None:
        return Path(options.state_dir)
    status = status_of(options.runtime_dir)
    return STATE_DIR if status is None else Path(status["state_dir"])


# ---- screens -----------------------------------------------------------


@dataclass
class Entry:
    """Events that differ only in numbers, oldest first; `count` includes those joined into one."""

    events: List[Answer]
    count: int
    place: int  # of the last one


def folded(events: Sequence[Answer]) -> List[Entry]:
    """`events`, oldest first, with repeated ones shown only once, where they began."""
    entries: List[Entry] = []
    open_: Dict[Tuple[object, ...], Entry] = {}
    for place, (event, count) in enumerate(_changes(events)):
        if event["kind"] not in _FOLDED:
            open_.clear()
        text = _NUMBER.sub("#", event["text"] or "")
        key = (event["kind"], event["device"], event["state"], text)
        known = open_.get(key)
        if known is None or place - known.place > _NEAR:
            open_[key] = Entry([event], count, place)
            entries.append(open_[key])
        else:
            known.events.append(event)
            known.count, known.place = known.count + count, place
    return entries


def _changes(events: Sequence[Answer]) -> Iterator[Tuple[Answer, int]]:
    """Each event, with actions carried out together as one, and their number."""

    def change(numbered: Tuple[int, Answer]) -> Tuple[bool, float]:
        number, event = numbered
        action = event["kind"] == "action"
        return action, event["wall_s"] if action else number

    for _, numbered in groupby(enumerate(events), change):
        together = [event for _, event in numbered]
        texts = "; ".join(event["text"] or "" for event in together)
        yield {**together[0], "text": texts}, len(together)


def render_history(entries: Sequence[Entry], width: int = 80, colour: bool = False) -> str:
    """Oldest first: decisions with figures and the reason below, others in one line."""
    if not entries:
        return "no events in that time"
    paint = Paint(colour)
    lines = [
        paint("WHEN           WHAT      DECISION   STATE      LIMIT TARGET WRITES  p99 ms", "faint")
    ]
    for entry in entries:
        first = entry.events[0]
        row = _decision if first["kind"] == "decision" else _event
        lines += row(first, width, paint)
        if len(entry.events) > 1:
            lines += wrapped(_repeats(entry.events), width, "    ")
    if any(len(entry.events) > 1 for entry in entries):
        lines.append("(xN: N times, with other numbers; --csv has each)")
    return "\n".join(lines)


def _decision(event: Answer, width: int, paint: Paint) -> List[str]:
    state = clean(event["state"] or "")
    figures = [
        _known(event["limit_bytes"], formats.size).rjust(5),
        _known(event["target_bytes"], formats.size).rjust(6),
        _known(event["write_rate"], formats.size).rjust(6),
        _known(event["commit_p99_s"], formats.milliseconds).rjust(7),
    ]
    who = as_text(event["decision_id"] or event["device"])
    cells = [moment(event["wall_s"]), "decision ", who.ljust(10), paint(state.ljust(9), state)]
    line = " ".join(cells + figures).rstrip()
    return [line, *(wrapped(event["text"], width, "    ") if event["text"] else ())]


def _event(event: Answer, width: int, paint: Paint) -> List[str]:
    text = readable(event["text"] or "")
    kind = as_text(event["kind"]).ljust(9)
    # An alert's text says of which device it is.
    who = event["device"]
    if who and event["kind"] != "alert" and who not in text:
        text = f"{who}: {text}"
    when = moment(event["wall_s"])
    first, *rest = wrapped(text or formats.UNKNOWN, width, "    ", f"{when} {kind} ")
    at = len(when) + 1
    painted = paint(kind, event["state"] or "")
    return [first[:at] + painted + first[at + len(kind) :], *rest]


def _repeats(events: Sequence[Answer]) -> str:
    first, last = events[0], events[-1]
    until = moment(last["wall_s"])
    if _day(first) == _day(last):
        until = until.partition(" ")[2]
    text = f"x{len(events)} until {until}"
    if first["kind"] == "decision":
        limits = [each["limit_bytes"] for each in events if each["limit_bytes"] is not None]
        waits = [each["commit_p99_s"] for each in events]
        p99s = [p99_s for p99_s in waits if p99_s is not None]
        if limits:
            ends = dict.fromkeys((formats.size(min(limits)), formats.size(max(limits))))
            text += f", limit {' to '.join(ends)}"
        if p99s:
            text += f", p99 up to {formats.milliseconds(max(p99s))} ms"
    elif last["text"] != first["text"]:
        text += f", last: {readable(last['text'])}"
    return text


def _known(value: Any, words: Any) -> str:
    return "" if value is None else str(words(value))


def _day(event: Answer) -> Tuple[int, ...]:
    return time.localtime(event["wall_s"])[:3]


def render_figures(rows: Sequence[Answer], colour: bool = False) -> str:
    if not rows:
        return "no figures of that time: a row covers 10 s in which a device wrote or synced"
    head = "WHEN            SPAN DEVICE    LIMIT WRITES  DRAIN CACHE commit/s p50 ms  p99 ms"
    lines = [Paint(colour)(head, "faint")]
    for row in rows:
        figures = [
            formats.duration(row["span_s"]).rjust(5),
            clean(row["device"])[:8].ljust(8),
            formats.size(row["limit_bytes"]).rjust(6),
            formats.size(row["write_rate"]).rjust(6),
            formats.size(row["drain_rate"]).rjust(6),
            formats.percent(row["cache_fill"]).rjust(5),
            formats.count(row["sync_rate"]).rjust(8),
            formats.milliseconds(row["commit_p50_s"]).rjust(6),
            formats.milliseconds(row["commit_p99_s"]).rjust(7),
        ]
        lines.append(" ".join([moment(row["wall_s"]), *figures]))
    return "\n".join(lines)


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
    past = past_json(read_alerts(path))
    first_s = min([row.wall_s for row in rows] + [event.wall_s for event in events], default=now_s)
    # Whole rows: what the page says it is about is what its figures are of.
    end_s = max([last_s, *(row.end_s for row in rows)])
    begin_s = max(since_s or 0.0, first_s)
    status = status_of(options.runtime_dir)
    writes_here = status is not None and (
        os.path.realpath(status["state_dir"]) == os.path.realpath(path.parent)
    )
    about = Span(
        host=socket.gethostname(),
        version=__version__,
        # Of a time before the first record there is nothing to draw, and it would take the room.
        begin_s=min([begin_s, end_s, *(row.wall_s for row in rows)]),
        end_s=end_s,
        made_s=now_s,
        running=writes_here,
    )
    page = render(about, rows, events, past)
    write_page(options.output, page)
    if str(options.output) == "-":
        return GOOD
    size = len(page.encode())
    shown = sum(about.begin_s <= event.wall_s <= about.end_s for event in events)
    answer: ReportAnswer = {"file": str(options.output), "bytes": size, "rows": len(rows)}
    show_answer(
        options, answer,
        lambda: f"{options.output}: {formats.size(size)} from {len(rows)} rows of figures and"
        f" {shown} events",
    )
    return GOOD
