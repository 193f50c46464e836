# SPDX-License-Identifier: GPL-2.0-or-later
"""The history's events and figures, their rows in SQLite, and reading them without a daemon."""

from __future__ import annotations

import logging
import math
import os
import sqlite3
from dataclasses import dataclass, fields
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Dict, List, Literal, Optional, Sequence, Tuple, Type, TypeVar

from writebackd.report.device_figures import Figures
from writebackd.types.codec import unpack
from writebackd.types.histogram import HIST_BUCKETS, Histogram
from writebackd.types.quantities import Bytes, Rate, Seconds, Share, Time

T = TypeVar("T")
# A file of another version is set aside.
VERSION = 3
_LATEST_S = 1e11  # the year 5138: later no clock of today can be, and localtime(3) fails at last


@dataclass(frozen=True)
class Event:
    """One line of history; a figure that does not apply or is unknown is None."""

    wall_s: Time
    kind: Annotated[str, Literal[
        "decision", "action", "mode", "pin", "drain", "trial", "forget", "reset", "foreign",
        "window", "alert", "start", "stop",
    ]]  # fmt: skip
    device: Optional[str] = None
    decision_id: Optional[str] = None  # of an alert: its own, from begin to end
    state: Optional[str] = None  # of the device; of an alert its severity, or resolved
    limit_bytes: Optional[Bytes] = None
    background_bytes: Optional[Bytes] = None
    target_bytes: Optional[Bytes] = None
    drain_rate: Optional[Rate] = None
    write_rate: Optional[Rate] = None
    fsync_p50_s: Optional[Seconds] = None
    fsync_p99_s: Optional[Seconds] = None
    commit_p50_s: Optional[Seconds] = None
    commit_p99_s: Optional[Seconds] = None
    commit_write_share: Optional[Share] = None  # of the commits' time, slept in write()
    text: str = ""
    # What read_alerts() gives back, as JSON: not a column of the events.
    alert: Optional[str] = None


EVENT_COLUMNS = tuple(each.name for each in fields(Event) if each.name != "alert")
FIGURE_COLUMNS = tuple(each.name for each in fields(Figures))
# Rows are checked as they are read: SQLite keeps any type in any column.
TABLES = tuple(
    f"CREATE TABLE IF NOT EXISTS {table} (id INTEGER PRIMARY KEY, {', '.join(columns)})"
    for table, columns in (
        ("events", EVENT_COLUMNS), ("fine", FIGURE_COLUMNS), ("coarse", FIGURE_COLUMNS),
        ("alerts", ("wall_s", "alert")),
    )
)


def event_to_row(event: Event) -> Tuple[object, ...]:
    return tuple(storable(getattr(event, name)) for name in EVENT_COLUMNS)


def figures_to_row(row: Figures) -> Tuple[object, ...]:
    values = {**row.__dict__, "latency": _buckets(row.latency), "commits": _buckets(row.commits)}
    return tuple(storable(values[name]) for name in FIGURE_COLUMNS)


def _buckets(histogram: Optional[Histogram]) -> Optional[str]:
    if histogram is None:
        return None
    return " ".join(f"{index}:{count}" for index, count in histogram.buckets)


def _pairs(text: str) -> List[Tuple[int, int]]:
    """Raises ValueError."""
    pairs = [(int(index), int(n)) for index, n in (pair.split(":") for pair in text.split())]
    if not all(0 <= index < HIST_BUCKETS and count > 0 for index, count in pairs):
        raise ValueError("no such bucket")
    return pairs


def storable(value: object) -> object:
    # Names of devices and processes are bytes: surrogates have no UTF-8 form.
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def event_from_row(row: Tuple[object, ...]) -> Optional[Event]:
    """The event; None if the row is damaged: SQLite detects no flipped bit."""
    return _of_row(Event, dict(zip(EVENT_COLUMNS, row)))


def figures_from_row(row: Tuple[object, ...]) -> Optional[Figures]:
    """As event_from_row."""
    values: Dict[str, Any] = dict(zip(FIGURE_COLUMNS, row))
    try:
        for name in ("latency", "commits"):
            if values[name] is not None:
                values[name] = {"buckets": _pairs(values[name])}
    except (ValueError, TypeError, AttributeError):
        return None
    return _of_row(Figures, values) if values["span_s"] else None


def _of_row(kind: Type[T], values: Dict[str, Any]) -> Optional[T]:
    try:
        return unpack(kind, values) if values["wall_s"] < _LATEST_S else None
    except (ValueError, TypeError):
        return None


log = logging.getLogger(__name__)

# What befell the host as a whole befell each of its devices.
_OF_DEVICE = "(device = ? OR device IS NULL)"


class HistoryError(Exception):
    """The history cannot be read; the message says what to do."""

    exit_code = 1  # of a command that it ends


def read_history(
    path: Path,
    since_s: Optional[float] = None,
    device: Optional[str] = None,
    limit: Optional[int] = None,
    until_s: Optional[float] = None,
) -> List[Event]:
    """The last `limit` events, oldest first, in `[since_s, until_s)` of wall clock time.

    With `device`, events of that device and of the host as a whole. Opens the
    file read-only. Raises HistoryError.
    """
    where, values = _where(since_s, until_s, _OF_DEVICE, device)
    query = f"SELECT {', '.join(EVENT_COLUMNS)} FROM events{where} ORDER BY id DESC LIMIT ?"
    rows = _rows(path, ((query, (*values, -1 if limit is None else limit)),))[0]
    whole = list(filter(None, map(event_from_row, reversed(rows))))
    if len(whole) < len(rows):
        log.warning("%s: %d damaged events left out", path, len(rows) - len(whole))
    return whole


def count_events(
    path: Path,
    since_s: Optional[float] = None,
    device: Optional[str] = None,
    until_s: Optional[float] = None,
) -> int:
    """How many events `read_history` finds without a limit. Raises HistoryError."""
    where, values = _where(since_s, until_s, _OF_DEVICE, device)
    rows = _rows(path, ((f"SELECT count(*) FROM events{where}", values),))[0]
    return int(rows[0][0]) if rows else 0


def read_figures(
    path: Path,
    since_s: Optional[float] = None,
    device: Optional[str] = None,
    until_s: Optional[float] = None,
) -> List[Figures]:
    """Rows that overlap `[since_s, until_s)`, oldest first: fine ones as far back as they go.

    Raises HistoryError.
    """
    where, values = _where(since_s, until_s, "device = ?", device, "wall_s + span_s > ?")
    select = f"SELECT {', '.join(FIGURE_COLUMNS)} FROM {{}}{where} ORDER BY id"
    fine, coarse = (
        sorted(filter(None, map(figures_from_row, rows)), key=attrgetter("wall_s"))
        for rows in _rows(
            path, tuple((select.format(table), values) for table in ("fine", "coarse"))
        )
    )
    first_s = fine[0].wall_s if fine else math.inf
    return [row for row in coarse if row.end_s <= first_s] + fine


def known_devices(path: Path) -> List[str]:
    """The devices in the history, sorted. Raises HistoryError."""
    tables = ("events", "fine", "coarse")
    queries = tuple(
        (f"SELECT DISTINCT device FROM {table} WHERE device IS NOT NULL", ()) for table in tables
    )
    names = [row[0] for rows in _rows(path, queries) for row in rows]
    return sorted({name for name in names if isinstance(name, str)})


def read_alerts(path: Path) -> List[str]:
    """All alert records, oldest first, each as the stored JSON. Raises HistoryError."""
    rows = _rows(path, (("SELECT alert FROM alerts ORDER BY id", ()),))[0]
    return [row[0] for row in rows if isinstance(row[0], str)]


def _where(
    since_s: Optional[float], until_s: Optional[float], of_device: str, device: Optional[str],
    since: str = "wall_s >= ?",
) -> Tuple[str, Tuple[object, ...]]:
    parts = ((since, since_s), ("wall_s < ?", until_s), (of_device, device))
    given = [(text, value) for text, value in parts if value is not None]
    text = " AND ".join(text for text, _ in given)
    return (f" WHERE {text}" if text else ""), tuple(value for _, value in given)


def _rows(
    path: Path, queries: Sequence[Tuple[str, Tuple[object, ...]]]
) -> List[List[Tuple[Any, ...]]]:
    """The rows of each query; empty if nothing was written to the file yet."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except PermissionError:
        raise HistoryError(
            f"{path} is for root and the group adm, as it names processes: try again with sudo"
        ) from None
    except OSError:
        raise HistoryError(
            f"no history in {path.parent}: is that writebackd's --state-dir?"
        ) from None
    try:
        database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=2.0)
        try:
            if not database.execute("PRAGMA user_version").fetchone()[0]:
                return [[] for _ in queries]
            return [database.execute(query, values).fetchall() for query, values in queries]
        finally:
            database.close()
    # UnicodeDecodeError: of SQLite's own message, which quotes the damaged schema.
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise HistoryError(f"{path}: {error}; if this stays, restart writebackd") from error
