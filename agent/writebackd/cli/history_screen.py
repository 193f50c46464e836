# SPDX-License-Identifier: GPL-2.0-or-later
"""Text of the history: events with repetitions folded, and figures."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from writebackd import formats
from writebackd.cli.status_screen import Paint, as_text, clean, wrapped

Answer = Mapping[str, Any]

# What comes again within so many events is the same going on: a state and back, with the
# actions of each, of a few devices.
_NEAR = 12
# These come and go by themselves; all others are somebody's doing, and what follows is news.
_FOLDED = ("decision", "action", "alert")
_NUMBER = re.compile(r"\d+(\.\d+)?[kKMGTP]?")
_BYTES = re.compile(r"(?<=bytes )(\d+) -> (\d+)")


@dataclass
class Entry:
    """Events that differ in numbers only, oldest first; `count` has those joined into one."""

    events: List[Answer]
    count: int
    place: int  # of the last one


def folded(events: Sequence[Answer]) -> List[Entry]:
    """`events`, oldest first, with what comes again and again only once, where it began."""
    entries: List[Entry] = []
    open_: Dict[Tuple[object, ...], Entry] = {}
    for place, (event, count) in enumerate(map(_joined, _changes(events))):
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


def _changes(events: Sequence[Answer]) -> List[List[Answer]]:
    """Each event alone, but those actions together that were carried out in one go."""
    changes: List[List[Answer]] = []
    for event in events:
        before = changes[-1][0] if changes else None
        if before is not None and event["kind"] == before["kind"] == "action" and (
            event["wall_s"] == before["wall_s"]
        ):
            changes[-1].append(event)
        else:
            changes.append([event])
    return changes


def _joined(events: Sequence[Answer]) -> Tuple[Answer, int]:
    texts = "; ".join(event["text"] or "" for event in events)
    return {**events[0], "text": texts}, len(events)


def render_history(entries: Sequence[Entry], width: int = 80, colour: bool = False) -> str:
    """Oldest first: decisions with their figures and the reason below, all else in a line."""
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
        _known(event["fsync_p99_s"], formats.milliseconds).rjust(7),
    ]
    who = as_text(event["decision_id"] or event["device"])
    cells = [_when(event), "decision ", who.ljust(10), paint(state.ljust(9), state)]
    line = " ".join(cells + figures).rstrip()
    return [line, *(wrapped(event["text"], width, "    ") if event["text"] else ())]


def _event(event: Answer, width: int, paint: Paint) -> List[str]:
    text = _readable(event)
    kind = as_text(event["kind"]).ljust(9)
    # An alert's text says of which device it is.
    who = event["device"]
    if who and event["kind"] != "alert" and who not in text:
        text = f"{who}: {text}"
    first, *rest = wrapped(text or formats.UNKNOWN, width, "    ", f"{_when(event)} {kind} ")
    at = len(_when(event)) + 1
    painted = paint(kind, event["state"] or "")
    return [first[:at] + painted + first[at + len(kind) :], *rest]


def _repeats(events: Sequence[Answer]) -> str:
    first, last = events[0], events[-1]
    form = "%H:%M:%S" if _day(first) == _day(last) else "%m-%d %H:%M:%S"
    until = time.strftime(form, time.localtime(last["wall_s"]))
    text = f"x{len(events)} until {until}"
    if first["kind"] == "decision":
        limits = [each["limit_bytes"] for each in events if each["limit_bytes"] is not None]
        p99s = [each["fsync_p99_s"] for each in events if each["fsync_p99_s"] is not None]
        if limits:
            ends = dict.fromkeys((formats.size(min(limits)), formats.size(max(limits))))
            text += f", limit {' to '.join(ends)}"
        if p99s:
            text += f", p99 up to {formats.milliseconds(max(p99s))} ms"
    elif _readable(last) != _readable(first):
        text += f", last: {_readable(last)}"
    return text


def _readable(event: Answer) -> str:
    """The text; what was written in bytes as a size."""
    return _BYTES.sub(
        lambda found: f"{formats.size(int(found[1]))} -> {formats.size(int(found[2]))}",
        event["text"] or "",
    )


def _known(value: Any, words: Any) -> str:
    return "" if value is None else str(words(value))


def _when(event: Answer) -> str:
    return time.strftime("%m-%d %H:%M:%S", time.localtime(event["wall_s"]))


def _day(event: Answer) -> Tuple[int, ...]:
    return time.localtime(event["wall_s"])[:3]


def render_figures(rows: Sequence[Answer], width: int = 80, colour: bool = False) -> str:
    """One line per device and span of time, oldest first."""
    if not rows:
        return "no figures of that time: a row covers 10 s in which a device wrote or synced"
    head = "WHEN            SPAN DEVICE    LIMIT WRITES  DRAIN CACHE fsync/s  p50 ms  p99 ms"
    lines = [Paint(colour)(head, "faint")]
    for row in rows:
        figures = [
            formats.duration(row["span_s"]).rjust(5),
            clean(row["device"])[:8].ljust(8),
            formats.size(row["limit_bytes"]).rjust(6),
            formats.size(row["write_rate"]).rjust(6),
            formats.size(row["drain_rate"]).rjust(6),
            formats.percent(row["cache_fill"]).rjust(5),
            formats.count(row["sync_rate"]).rjust(7),
            formats.milliseconds(row["fsync_p50_s"]).rjust(7),
            formats.milliseconds(row["fsync_p99_s"]).rjust(7),
        ]
        lines.append(" ".join([_when(row), *figures]))
    return "\n".join(lines)
