# SPDX-License-Identifier: GPL-2.0-or-later
"""Reads the history file, with or without a daemon."""

from __future__ import annotations

import logging
import math
import os
import sqlite3
from operator import attrgetter
from pathlib import Path
from typing import Any, List, Optional, Sequence, Tuple

from writebackd.report.device_figures import Figures
from writebackd.report.history_schema import (
    EVENT_COLUMNS,
    FIGURE_COLUMNS,
    Event,
    figures_from_row,
    is_event_row,
)

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
    whole = [row for row in reversed(rows) if is_event_row(row)]
    if len(whole) < len(rows):
        log.warning("%s: %d damaged events left out", path, len(rows) - len(whole))
    return [Event(*row) for row in whole]


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


def read_alerts(path: Path, limit: int) -> List[str]:
    """The last `limit` alert records, oldest first, each as the stored JSON.

    Raises HistoryError.
    """
    query = "SELECT alert FROM alerts ORDER BY id DESC LIMIT ?"
    rows = _rows(path, ((query, (limit,)),))[0]
    return [row[0] for row in reversed(rows) if isinstance(row[0], str)]


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
