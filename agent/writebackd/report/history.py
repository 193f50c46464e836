# SPDX-License-Identifier: GPL-2.0-or-later
"""What happened, kept in SQLite by a thread that the loop never waits for."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import queue
import sqlite3
import threading
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, List, Optional, Sequence, Tuple

log = logging.getLogger(__name__)

MAX_ROWS = 50_000
MAX_ALERTS = 5_000  # begins, changes and ends; in a table of their own, which decisions don't fill
# Events that may wait for a stuck disk: some minutes' worth, well below 1 MB.
MAX_WAITING = 2048
_VERSION = 1
_BATCH = 256
# How long the writer waits for a lock, or before it tries again.
_RETRY_S = 0.25
_LATEST_S = 1e11  # the year 5138: later no clock of today can be, and localtime(3) fails at last


@dataclass(frozen=True)
class Event:
    """One line of history; None where a figure does not apply or is not known."""

    wall_s: float
    kind: str  # decision, action, mode, pin, forget, foreign, alert, start, stop
    device: Optional[str] = None
    decision_id: Optional[str] = None
    state: Optional[str] = None
    limit_bytes: Optional[int] = None
    background_bytes: Optional[int] = None
    target_bytes: Optional[int] = None
    drain_rate: Optional[float] = None
    write_rate: Optional[float] = None
    fsync_p50_s: Optional[float] = None
    fsync_p99_s: Optional[float] = None
    text: str = ""
    # What alerts_since() gives back, as JSON: not a column of the events.
    alert: Optional[str] = None


class HistoryError(Exception):
    """The history cannot be read; the message says what to do."""


_COLUMNS = tuple(field.name for field in fields(Event) if field.name != "alert")
_CREATE = (
    "CREATE TABLE IF NOT EXISTS events (id INTEGER PRIMARY KEY, wall_s REAL NOT NULL,"
    " kind TEXT NOT NULL, device TEXT, decision_id TEXT, state TEXT, limit_bytes INTEGER,"
    " background_bytes INTEGER, target_bytes INTEGER, drain_rate REAL, write_rate REAL,"
    " fsync_p50_s REAL, fsync_p99_s REAL, text TEXT NOT NULL)"
)
# Beside the events since a later release than those: an earlier one leaves it alone.
_CREATE_ALERTS = (
    "CREATE TABLE IF NOT EXISTS alerts (id INTEGER PRIMARY KEY, wall_s REAL NOT NULL,"
    " alert TEXT NOT NULL)"
)
_INSERT = "INSERT INTO events ({}) VALUES ({})".format(
    ", ".join(_COLUMNS), ", ".join("?" for _ in _COLUMNS)
)


class History:
    """A bounded log of events; recording never waits, reading needs no root."""

    def __init__(self, path: Path, max_rows: int = MAX_ROWS) -> None:
        """Start the writer. Touches no file itself: the disk may be stuck."""
        self.path = path
        self.error: Optional[str] = None  # why the last attempt to write failed
        self._max_rows = max_rows
        self._waiting: "queue.Queue[Optional[Event]]" = queue.Queue(MAX_WAITING)
        self._dropped = 0
        self._lost = 0
        self._database: Optional[sqlite3.Connection] = None  # the writer thread's
        self._closing = threading.Event()
        # A daemon thread: a writer stuck in the disk must not hold up the exit.
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Events that did not reach the file and never will."""
        return self._dropped + self._lost

    def record(self, event: Event) -> None:
        """Queue an event; drop and count it when the writer is stuck. Never blocks."""
        try:
            self._waiting.put_nowait(event)
        except queue.Full:
            self._dropped += 1

    def close(self, timeout: float) -> bool:
        """Write what waits, for at most `timeout` seconds. True when all was written."""
        self._closing.set()
        # Where there is no room for it the writer is awake, and looks at _closing.
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(None)
        self._thread.join(timeout)
        return not self._thread.is_alive() and not self.error

    def _run(self) -> None:
        while not (self._closing.is_set() and self._waiting.empty()):
            batch = self._next_batch()
            while batch and not self._store(batch):
                # Once closing, only another's lock is worth waiting for.
                if self._closing.wait(_RETRY_S) and "locked" not in (self.error or ""):
                    self._lost += len(batch)
                    break
        if self._database is not None:
            self._database.close()

    def _next_batch(self) -> List[Event]:
        """Wait for an event, then take what else is there."""
        first = self._waiting.get()
        batch = [] if first is None else [first]
        while len(batch) < _BATCH:
            try:
                event = self._waiting.get_nowait()
            except queue.Empty:
                break
            if event is not None:
                batch.append(event)
        return batch

    def _store(self, batch: List[Event]) -> bool:
        """Write a batch. False when it has to be tried again."""
        try:
            if self._database is None:
                self._database = _open(self.path)
            with self._database:
                self._database.executemany(_INSERT, [_row(event) for event in batch])
                self._database.execute(
                    "DELETE FROM events WHERE id <= (SELECT max(id) FROM events) - ?",
                    (self._max_rows,),
                )
                _store_alerts(self._database, batch)
        except (sqlite3.Error, UnicodeDecodeError, OSError) as error:
            self._complain(error)
            # A bare DatabaseError is "malformed" or "not a database"; the rest
            # (locked, full, read-only) are subclasses and may pass.  A message that
            # cannot be decoded quotes a damaged schema.
            if type(error) in (sqlite3.DatabaseError, UnicodeDecodeError):
                self._start_anew()
            return False
        except Exception as error:  # a value that SQLite cannot take
            self._complain(error)
            self._lost += len(batch)
            return True
        self.error = None
        return True

    def _start_anew(self) -> None:
        """Move a damaged file out of the way, its journal too: it fits no other."""
        if self._database is not None:
            self._database.close()
            self._database = None
        stamp = f".damaged-{int(time.time())}"
        for name in (self.path.name, self.path.name + "-journal"):
            with contextlib.suppress(OSError):
                os.replace(self.path.with_name(name), self.path.with_name(name + stamp))

    def _complain(self, error: Exception) -> None:
        if self.error is None:
            log.warning("history %s: %s; events wait, then are dropped", self.path, error)
        self.error = str(error)


def read_history(
    path: Path,
    since_s: Optional[float] = None,
    device: Optional[str] = None,
    limit: Optional[int] = None,
) -> List[Event]:
    """The last `limit` events, oldest first, from wall clock time `since_s` on.

    With `device`, events of that device and of the host as a whole. Opens the
    file read-only. Raises HistoryError.
    """
    where: List[str] = []
    values: List[object] = []
    if since_s is not None:
        where.append("wall_s >= ?")
        values.append(since_s)
    if device is not None:
        where.append("(device = ? OR device IS NULL)")
        values.append(device)
    query = f"SELECT {', '.join(_COLUMNS)} FROM events"
    if where:
        query += " WHERE " + " AND ".join(where)
    query += " ORDER BY id DESC LIMIT ?"
    values.append(-1 if limit is None else limit)
    rows = _query(path, query, values)
    whole = [row for row in reversed(rows) if _makes_sense(row)]
    if len(whole) < len(rows):
        log.warning("%s: %d damaged events left out", path, len(rows) - len(whole))
    return [Event(*row) for row in whole]


def _query(path: Path, query: str, values: Sequence[object]) -> List[Tuple[Any, ...]]:
    try:
        path.stat()
    except PermissionError:
        raise HistoryError(f"no access to {path}: try again as root") from None
    except OSError:
        raise HistoryError(
            f"no history in {path.parent}: is that writebackd's --state-dir?"
        ) from None
    try:
        database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=2.0)
        try:
            return database.execute(query, values).fetchall()
        finally:
            database.close()
    # UnicodeDecodeError: of SQLite's own message, which quotes the damaged schema.
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise HistoryError(f"{path}: {error}; if this stays, restart writebackd") from error


def read_alerts(path: Path, limit: int) -> List[str]:
    """The last `limit` records of alerts, oldest first, each as the JSON that was kept.

    None at all where the file is of a release that had no alerts. Raises HistoryError.
    """
    query = "SELECT alert FROM alerts ORDER BY id DESC LIMIT ?"
    try:
        rows = _query(path, query, [limit])
    except HistoryError as error:
        if "no such table" in str(error):
            return []
        raise
    return [row[0] for row in reversed(rows) if isinstance(row[0], str)]


def _store_alerts(database: sqlite3.Connection, batch: List[Event]) -> None:
    rows = [(each.wall_s, _plain(each.alert)) for each in batch if each.alert is not None]
    if rows:
        database.executemany("INSERT INTO alerts (wall_s, alert) VALUES (?, ?)", rows)
        database.execute(
            "DELETE FROM alerts WHERE id <= (SELECT max(id) FROM alerts) - ?", (MAX_ALERTS,)
        )


def _makes_sense(row: Tuple[object, ...]) -> bool:
    """SQLite keeps any type in any column, and finds no flipped bit in a row."""
    event = dict(zip(_COLUMNS, row))
    wall_s = event.pop("wall_s")
    if not isinstance(wall_s, (int, float)) or not 0 <= wall_s < _LATEST_S:
        return False
    texts = [event.pop(name) for name in ("kind", "text", "device", "decision_id", "state")]
    return (
        all(isinstance(text, str) for text in texts[:2])
        and all(text is None or isinstance(text, str) for text in texts)
        and all(
            value is None or (isinstance(value, (int, float)) and math.isfinite(value))
            for value in event.values()
        )
    )


def _open(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    database = sqlite3.connect(str(path), timeout=_RETRY_S)
    try:
        # No fsync of our own: it would count as the demand we are looking for,
        # and wait for the disk that hangs.  A crash of the host may cost the file.
        database.execute("PRAGMA synchronous=OFF")
        # A rollback journal, not WAL: WAL readers must be able to write.
        database.execute("PRAGMA journal_mode=TRUNCATE")
        # Rows are appended and dropped in order: SQLite's own 2 MB gain nothing.
        database.execute("PRAGMA cache_size=-256")
        version = int(database.execute("PRAGMA user_version").fetchone()[0])
        if version not in (0, _VERSION):
            raise sqlite3.DatabaseError(f"version {version}, not {_VERSION}")
        with database:
            database.execute(_CREATE)
            database.execute(_CREATE_ALERTS)
            database.execute(f"PRAGMA user_version={_VERSION}")
        os.chmod(path, 0o644)
        return database
    except BaseException:
        database.close()
        raise


def _row(event: Event) -> Tuple[object, ...]:
    # Names of devices and processes are bytes: surrogates have no UTF-8 form.
    return tuple(_plain(getattr(event, name)) for name in _COLUMNS)


def _plain(value: object) -> object:
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
