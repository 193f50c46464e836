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
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from writebackd.model import HIST_BUCKETS, Histogram
from writebackd.report.figures import COARSE_S, Figures, fold
from writebackd.report.permissions import MODE, for_admins

log = logging.getLogger(__name__)

MAX_ROWS = 50_000
MAX_ALERTS = 5_000  # begins, changes and ends; in a table of their own, which decisions don't fill
# Rows of figures: those of 10 s for a day, those of 5 minutes for a month, and so for events.
FINE_S, KEPT_S = 86_400.0, 30 * 86_400.0
# Alerts are few, and whoever looks for the last bad battery looks back further.
ALERTS_KEPT_S = 365 * 86_400.0
_KEPT_S = {"events": KEPT_S, "alerts": ALERTS_KEPT_S, "fine": FINE_S, "coarse": KEPT_S}
# A clock that is ahead of what was recorded last by more than this says for an hour nothing of
# what is too old: until NTP sets it right, an RTC may well stand in 2099.
_LEAP_S, _DOUBT_S = 86_400.0, 3600.0
# Of the file.  A row of figures has 100 to 400 bytes, most of them its latencies: a month of six
# devices that are busy all the time.  More devices: a shorter time.
MAX_BYTES = 32 << 20
# Events that may wait for a stuck disk: some minutes' worth, well below 1 MB.
MAX_WAITING = 2048
# Rows of figures that may wait as well: five minutes of the most devices, or hours of a few.
MAX_ROWS_WAITING = 4096
# 2 has the figures and the alerts; a file of version 1 gets them, a later one is set aside.
_VERSION = 2
_BATCH = 256
# How long the writer waits for a lock, or before it tries again.
_RETRY_S = 0.25
_LATEST_S = 1e11  # the year 5138: later no clock of today can be, and localtime(3) fails at last


@dataclass(frozen=True)
class Event:
    """One line of history; None where a figure does not apply or is not known."""

    wall_s: float
    kind: str  # decision, action, mode, pin, forget, foreign, window, alert, start, stop
    device: Optional[str] = None
    decision_id: Optional[str] = None  # of an alert: its own, from begin to end
    state: Optional[str] = None  # of an alert: its severity, or resolved
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


Item = Union[Event, Tuple[Figures, ...]]


@dataclass
class _Batch:
    """What is written in one transaction."""

    events: List[Event] = field(default_factory=list)
    fine: List[Figures] = field(default_factory=list)
    coarse: List[Figures] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.events) + len(self.fine) + len(self.coarse)


class HistoryError(Exception):
    """The history cannot be read; the message says what to do."""


_COLUMNS = tuple(each.name for each in fields(Event) if each.name != "alert")
_FIGURES = tuple(each.name for each in fields(Figures))
_TABLES = (
    "CREATE TABLE IF NOT EXISTS events (id INTEGER PRIMARY KEY, wall_s REAL NOT NULL,"
    " kind TEXT NOT NULL, device TEXT, decision_id TEXT, state TEXT, limit_bytes INTEGER,"
    " background_bytes INTEGER, target_bytes INTEGER, drain_rate REAL, write_rate REAL,"
    " fsync_p50_s REAL, fsync_p99_s REAL, text TEXT NOT NULL)",
    *(
        f"CREATE TABLE IF NOT EXISTS {table} (id INTEGER PRIMARY KEY, wall_s REAL NOT NULL,"
        " span_s REAL NOT NULL, device TEXT NOT NULL, limit_bytes REAL, found_bytes REAL,"
        " write_rate REAL, flooded_s REAL, ours_s REAL, target_bytes REAL, drain_rate REAL,"
        " fill_share REAL, baseline_s REAL, objective_s REAL, oldest_s REAL,"
        " latency TEXT NOT NULL)"
        for table in ("fine", "coarse")
    ),
    "CREATE TABLE IF NOT EXISTS alerts (id INTEGER PRIMARY KEY, wall_s REAL NOT NULL,"
    " alert TEXT NOT NULL)",
)


# The oldest of the last rows: the others may be of a clock that was ahead before the restart.  Too
# old a time costs an hour of doubt, no more.
_LAST = " UNION ALL ".join(
    f"SELECT * FROM (SELECT CAST(wall_s AS REAL) AS last FROM {table} ORDER BY id DESC LIMIT 1000)"
    for table in ("events", "fine")
)
_LAST = f"SELECT min(last) FROM ({_LAST})"


def _insert(table: str, columns: Sequence[str]) -> str:
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"


class History:
    """A bounded log of events; recording never waits, reading needs root or the group adm."""

    def __init__(
        self, path: Path, max_rows: int = MAX_ROWS, max_bytes: int = MAX_BYTES
    ) -> None:
        """Start the writer. Touches no file itself: the disk may be stuck."""
        self.path = path
        self.error: Optional[str] = None  # why the last attempt to write failed
        self._max_rows, self._max_bytes = max_rows, max_bytes
        self._waiting: "queue.Queue[Optional[Item]]" = queue.Queue(MAX_WAITING)
        # Rows of figures put in by the loop, and taken out by the thread.
        self._rows_in = self._rows_out = 0
        self._coarse: Dict[str, Figures] = {}  # the thread's: what is not yet a row
        self._dropped = 0
        self._lost = 0
        self._database: Optional[sqlite3.Connection] = None  # the writer thread's
        # As are these: what the clock said last, and when it was first seen to be far ahead of it.
        self._clock_s: Optional[float] = None
        self._leapt_at: Optional[float] = None
        self._closing = threading.Event()
        # A daemon thread: a writer stuck in the disk must not hold up the exit.
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Events and rows that did not reach the file and never will."""
        return self._dropped + self._lost

    def record(self, event: Event) -> None:
        """Queue an event; drop and count it when the writer is stuck. Never blocks."""
        try:
            self._waiting.put_nowait(event)
        except queue.Full:
            self._dropped += 1

    def record_figures(self, rows: Tuple[Figures, ...]) -> None:
        """As `record`, rows of one moment."""
        if not rows:
            return
        if self._rows_in - self._rows_out + len(rows) > MAX_ROWS_WAITING:
            self._dropped += len(rows)
            return
        try:
            self._waiting.put_nowait(rows)
            self._rows_in += len(rows)
        except queue.Full:
            self._dropped += len(rows)

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
            self._keep(self._next_batch())
        if self._coarse:
            self._keep(_Batch(coarse=list(self._coarse.values())))
        if self._database is not None:
            self._database.close()

    def _keep(self, batch: _Batch) -> None:
        while len(batch) and not self._store(batch):
            # Once closing, only another's lock is worth waiting for.
            if self._closing.wait(_RETRY_S) and "locked" not in (self.error or ""):
                self._lost += len(batch)
                break

    def _next_batch(self) -> _Batch:
        """Wait for an item, then take what else is there."""
        item, batch = self._waiting.get(), _Batch()
        while True:
            if isinstance(item, Event):
                batch.events.append(item)
            elif item is not None:
                batch.fine.extend(item)
                batch.coarse.extend(self._coarser(item))
                self._rows_out += len(item)
            if len(batch) >= _BATCH:
                return batch
            try:
                item = self._waiting.get_nowait()
            except queue.Empty:
                return batch

    def _coarser(self, rows: Tuple[Figures, ...]) -> List[Figures]:
        """The coarse rows that end here: a device may have none for hours, then goes on."""
        done = []
        for row in rows:
            begun = self._coarse.get(row.device)
            if begun is None:
                self._coarse[row.device] = row
            elif begun.wall_s // COARSE_S == row.wall_s // COARSE_S:
                self._coarse[row.device] = fold((begun, row))
            else:
                done.append(begun)
                self._coarse[row.device] = row
        # Of a device that is gone, too.
        for name, begun in list(self._coarse.items()):
            if begun.wall_s // COARSE_S < rows[0].wall_s // COARSE_S:
                done.append(self._coarse.pop(name))
        return done

    def _store(self, batch: _Batch) -> bool:
        """Write a batch. False when it has to be tried again."""
        try:
            if self._database is None:
                self._database = _open(self.path)
            with self._database:
                if self._clock_s is None:
                    self._clock_s = self._database.execute(_LAST).fetchone()[0]
                write = self._database.executemany
                write(_insert("events", _COLUMNS), [_row(event) for event in batch.events])
                write(_insert("fine", _FIGURES), [_figures_row(row) for row in batch.fine])
                write(_insert("coarse", _FIGURES), [_figures_row(row) for row in batch.coarse])
                _store_alerts(self._database, batch.events)
                self._trim(self._database, batch)
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

    def _trim(self, database: sqlite3.Connection, batch: _Batch) -> None:
        """Delete what is too old, and where it is too much the first by rowid."""
        for table, most in (("events", self._max_rows), ("alerts", MAX_ALERTS)):
            database.execute(
                f"DELETE FROM {table} WHERE id <= (SELECT max(id) FROM {table}) - ?", (most,)
            )
        ends = [event.wall_s for event in batch.events] + [row.end_s for row in batch.fine]
        if not ends:
            return
        for table, kept_s in _KEPT_S.items() if self._trusts(max(ends)) else ():
            # Of the oldest rows; where there are more, they go with the next batches.  Not all up
            # to the last old one: a host without a clock of its own boots in 1970 each time.  What
            # a clock wrote that was ahead is passed over, or the rest would wait behind it.
            oldest = (
                f"SELECT id, wall_s FROM {table} WHERE wall_s < ? ORDER BY id LIMIT {2 * _BATCH}"
            )
            database.execute(
                f"DELETE FROM {table} WHERE id IN (SELECT id FROM ({oldest}) WHERE wall_s < ?)",
                (max(ends) + _LEAP_S, max(ends) - kept_s),
            )
        if not batch.fine:
            return
        pages, free, size = (
            int(database.execute(f"PRAGMA {name}").fetchone()[0])
            for name in ("page_count", "freelist_count", "page_size")
        )
        # The file never shrinks, but what is free is used again.
        if (pages - free) * size > self._max_bytes:
            for table in ("fine", "coarse"):
                database.execute(
                    f"DELETE FROM {table} WHERE id <="
                    f" (SELECT min(id) + (max(id) - min(id)) / 8 FROM {table})"
                )

    def _trusts(self, newest_s: float) -> bool:
        """Whether what the clock says now can tell what is too old."""
        if self._clock_s is not None and newest_s > self._clock_s + _LEAP_S:
            now = time.monotonic()
            if self._leapt_at is None:
                self._leapt_at = now
            if now < self._leapt_at + _DOUBT_S:
                return False
        self._clock_s, self._leapt_at = newest_s, None
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
    until_s: Optional[float] = None,
) -> List[Event]:
    """The last `limit` events, oldest first, in `[since_s, until_s)` of wall clock time.

    With `device`, events of that device and of the host as a whole. Opens the
    file read-only. Raises HistoryError.
    """
    where, values = _where(since_s, until_s, _OF_DEVICE, device)
    query = f"SELECT {', '.join(_COLUMNS)} FROM events{where} ORDER BY id DESC LIMIT ?"
    rows = _rows(path, ((query, (*values, -1 if limit is None else limit)),), 1)[0]
    whole = [row for row in reversed(rows) if _makes_sense(row)]
    _count_damaged(path, "events", len(rows) - len(whole))
    return [Event(*row) for row in whole]


def count_events(
    path: Path,
    since_s: Optional[float] = None,
    device: Optional[str] = None,
    until_s: Optional[float] = None,
) -> int:
    """How many `read_history` finds without a limit, damaged ones too. Raises HistoryError."""
    where, values = _where(since_s, until_s, _OF_DEVICE, device)
    rows = _rows(path, ((f"SELECT count(*) FROM events{where}", values),), 1)[0]
    return int(rows[0][0]) if rows else 0


def read_figures(
    path: Path,
    since_s: Optional[float] = None,
    device: Optional[str] = None,
    until_s: Optional[float] = None,
) -> List[Figures]:
    """Rows of any part of `[since_s, until_s)`, oldest first: fine ones as far back as they go.

    None from a file of a release that kept none. Raises HistoryError.
    """
    where, values = _where(since_s, until_s, "device = ?", device, "wall_s + span_s > ?")
    select = f"SELECT {', '.join(_FIGURES)} FROM {{}}{where} ORDER BY id"
    fine, coarse = (
        sorted((row for row in map(_figures_of, rows) if row is not None), key=_begin_of)
        for rows in _rows(
            path, tuple((select.format(table), values) for table in ("fine", "coarse")), 2
        )
    )
    first_s = fine[0].wall_s if fine else math.inf
    return [row for row in coarse if row.end_s <= first_s] + fine


def known_devices(path: Path) -> List[str]:
    """The devices that anything is told of, sorted. Raises HistoryError."""
    tables = ("events", "fine", "coarse")
    queries = tuple(
        (f"SELECT DISTINCT device FROM {table} WHERE device IS NOT NULL", ()) for table in tables
    )
    # A file of version 1 has events only.
    found = _rows(path, queries[:1], 1) + _rows(path, queries[1:], 2)
    return sorted({row[0] for rows in found for row in rows if isinstance(row[0], str)})


# What befell the host as a whole befell each of its devices.
_OF_DEVICE = "(device = ? OR device IS NULL)"


def _begin_of(row: Figures) -> float:
    return row.wall_s


def _where(
    since_s: Optional[float], until_s: Optional[float], of_device: str, device: Optional[str],
    since: str = "wall_s >= ?",
) -> Tuple[str, Tuple[object, ...]]:
    parts = ((since, since_s), ("wall_s < ?", until_s), (of_device, device))
    given = [(text, value) for text, value in parts if value is not None]
    text = " AND ".join(text for text, _ in given)
    return (f" WHERE {text}" if text else ""), tuple(value for _, value in given)


def _rows(
    path: Path, queries: Sequence[Tuple[str, Tuple[object, ...]]], version: int
) -> List[List[Tuple[Any, ...]]]:
    """The answers to each query; empty where the file is of a version before `version`."""
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
            if int(database.execute("PRAGMA user_version").fetchone()[0]) < version:
                return [[] for _ in queries]
            return [database.execute(query, values).fetchall() for query, values in queries]
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
    rows = _rows(path, ((query, (limit,)),), 2)[0]
    return [row[0] for row in reversed(rows) if isinstance(row[0], str)]


def _store_alerts(database: sqlite3.Connection, events: List[Event]) -> None:
    rows = [(each.wall_s, _storable(each.alert)) for each in events if each.alert is not None]
    if rows:
        database.executemany("INSERT INTO alerts (wall_s, alert) VALUES (?, ?)", rows)


def _count_damaged(path: Path, what: str, number: int) -> None:
    if number:
        log.warning("%s: %d damaged %s left out", path, number, what)


def _figures_of(row: Tuple[object, ...]) -> Optional[Figures]:
    """The row; None where it is damaged."""
    found = dict(zip(_FIGURES, row))
    device, latency = found.pop("device"), found.pop("latency")
    wall_s, span_s = found["wall_s"], found["span_s"]
    if not (isinstance(device, str) and isinstance(latency, str)):
        return None
    if not all(
        value is None or (isinstance(value, (int, float)) and math.isfinite(value) and value >= 0)
        for value in found.values()
    ):
        return None
    if any(found[name] is None for name in _NEEDED) or not isinstance(wall_s, (int, float)):
        return None
    if wall_s >= _LATEST_S or not isinstance(span_s, (int, float)) or span_s <= 0:
        return None
    try:
        pairs = [pair.split(":") for pair in latency.split()]
        buckets = tuple((int(index), int(count)) for index, count in pairs)
    except ValueError:
        return None
    if not all(0 <= index < HIST_BUCKETS and count > 0 for index, count in buckets):
        return None
    return Figures(device=device, latency=Histogram(buckets), **found)  # type: ignore[arg-type]


_NEEDED = (
    "wall_s", "span_s", "limit_bytes", "found_bytes", "write_rate", "flooded_s", "ours_s",
    "oldest_s",
)  # fmt: skip


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
    # Never readable for all, not even while it is empty.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, MODE))
    # Its journal and what was set aside as well, which an earlier version made for all.
    for ending in ("", "-*", ".damaged-*"):
        for each in path.parent.glob(path.name + ending):
            for_admins(each)
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
        if version > _VERSION:
            raise sqlite3.DatabaseError(f"version {version}, not {_VERSION}")
        if not version and database.execute("SELECT 1 FROM sqlite_master").fetchone():
            raise sqlite3.DatabaseError("another program's database")
        if version < _VERSION:
            with database:
                database.execute("BEGIN IMMEDIATE")
                for table in _TABLES:
                    database.execute(table)
                database.execute(f"PRAGMA user_version={_VERSION}")
        return database
    except BaseException:
        database.close()
        raise


def _row(event: Event) -> Tuple[object, ...]:
    return tuple(_storable(getattr(event, name)) for name in _COLUMNS)


def _figures_row(row: Figures) -> Tuple[object, ...]:
    latency = " ".join(f"{index}:{count}" for index, count in row.latency.buckets)
    values = {**row.__dict__, "latency": latency}
    return tuple(_storable(values[name]) for name in _FIGURES)


def _storable(value: object) -> object:
    # Names of devices and processes are bytes: surrogates have no UTF-8 form.
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
