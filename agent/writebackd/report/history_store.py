# SPDX-License-Identifier: GPL-2.0-or-later
"""Keeps the history in SQLite, in a thread that the loop never waits for: writes and retention."""

from __future__ import annotations

import contextlib
import os
import queue
import sqlite3
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, Optional, Tuple

from writebackd.report.background_writer import BackgroundWriter
from writebackd.report.device_figures import COARSE_S, Figures, fold
from writebackd.report.history_schema import (
    EVENT_COLUMNS,
    FIGURE_COLUMNS,
    TABLES,
    VERSION,
    Event,
    event_to_row,
    figures_to_row,
    storable,
)
from writebackd.safe_files import MODE, for_admins

MAX_ROWS = 50_000
MAX_ALERTS = 5_000  # begins, changes and ends; in a table of their own, which decisions don't fill
# Rows of figures: those of 10 s for a day, those of 5 minutes for a month, and so for events.
FINE_S, KEPT_S = 86_400.0, 30 * 86_400.0
# Alerts are few, and the last bad battery may be long ago.
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
_BATCH = 256
# How long the writer waits for a lock, or before it tries again.
_RETRY_S = 0.25
# Seconds for which another process' lock is waited for, before a copy takes the file's place.
_LOCKED_S = 30.0

# The oldest of the last rows: the others may be of a clock that was ahead before the restart.  Too
# old a time costs an hour of doubt, no more.
_LAST = " UNION ALL ".join(
    f"SELECT * FROM (SELECT CAST(wall_s AS REAL) AS last FROM {table} ORDER BY id DESC LIMIT 1000)"
    for table in ("events", "fine")
)
_LAST = f"SELECT min(last) FROM ({_LAST})"


@dataclass
class _Batch:
    """The content of one transaction."""

    events: List[Event] = field(default_factory=list)
    fine: List[Figures] = field(default_factory=list)
    coarse: List[Figures] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.events) + len(self.fine) + len(self.coarse)


class History(BackgroundWriter):
    """A bounded log of events; recording never waits, reading needs root or the group adm."""

    def __init__(
        self, path: Path, max_rows: int = MAX_ROWS, max_bytes: int = MAX_BYTES
    ) -> None:
        """Start the writer."""
        super().__init__(path, "history", MAX_WAITING)
        self._max_rows, self._max_bytes = max_rows, max_bytes
        # Rows of figures put in by the loop, and taken out by the thread.
        self._rows_in = self._rows_out = 0
        self._locked_at: Optional[float] = None  # since when another process holds a lock
        self._coarse: Dict[str, Figures] = {}  # the thread's: what is not yet a row
        self._dropped = 0
        self._lost = 0
        self._database: Optional[sqlite3.Connection] = None  # the writer thread's
        # As are these: what the clock said last, and when it was first seen to be far ahead of it.
        self._clock_s: Optional[float] = None
        self._leapt_at: Optional[float] = None
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Events and rows that did not reach the file and never will."""
        return self._dropped + self._lost

    def record(self, event: Event) -> None:
        """Queue an event; drop and count it when the writer is stuck. Never blocks."""
        self._dropped += not self._offer(event)

    def record_figures(self, rows: Tuple[Figures, ...]) -> None:
        """As `record`, for the rows of one moment."""
        if not rows:
            return
        fits = self._rows_in - self._rows_out + len(rows) <= MAX_ROWS_WAITING
        if fits and self._offer(rows):
            self._rows_in += len(rows)
        else:
            self._dropped += len(rows)

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
        """Wait for an item, then take all other queued ones."""
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
        """The coarse rows that end here: a device may have none for hours, then continue."""
        done = []
        for row in rows:
            begun = self._coarse.get(row.device)
            if begun is not None and begun.wall_s // COARSE_S == row.wall_s // COARSE_S:
                row = fold((begun, row))
            elif begun is not None:
                done.append(begun)
            self._coarse[row.device] = row
        # Of a device that is gone, too.
        for name, begun in list(self._coarse.items()):
            if begun.wall_s // COARSE_S < rows[0].wall_s // COARSE_S:
                done.append(self._coarse.pop(name))
        return done

    def _store(self, batch: _Batch) -> bool:
        """Write a batch. False if it must be tried again."""
        try:
            if self._database is None:
                self._database = open_database(self.path)
            with self._database:
                if self._clock_s is None:
                    self._clock_s = self._database.execute(_LAST).fetchone()[0]
                _insert_batch(self._database, batch)
                self._trim(self._database, batch)
        except (sqlite3.Error, UnicodeDecodeError, OSError) as error:
            self._complain(error)
            # A bare DatabaseError is "malformed" or "not a database"; the rest
            # (locked, full, read-only) are subclasses and may pass.  A message that
            # cannot be decoded quotes a damaged schema.
            if type(error) in (sqlite3.DatabaseError, UnicodeDecodeError):
                self._start_anew()
            elif "locked" in str(error):
                now = time.monotonic()
                self._locked_at = self._locked_at or now
                if now >= self._locked_at + _LOCKED_S:
                    self._leave_to_reader()
            return False
        except Exception as error:  # a value that SQLite cannot take
            self._complain(error)
            self._lost += len(batch)
            return True
        self.error = self._locked_at = None
        return True

    def _leave_to_reader(self) -> None:
        """Continue in a copy: a reader's transaction, however long, keeps the old file."""
        database, copy = self._database, self.path.with_name(f"{self.path.name}.new")
        if database is None:
            return
        try:
            database.rollback()
            database.execute("BEGIN")
            database.execute("SELECT 1 FROM sqlite_master").fetchone()  # fails beside a writer
            copy.unlink(missing_ok=True)
            os.close(os.open(copy, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE))
            target = sqlite3.connect(str(copy))
            with contextlib.closing(target):
                target.execute("PRAGMA synchronous=OFF")
                database.backup(target)
            os.replace(copy, self.path)
        except (sqlite3.Error, OSError) as error:
            self._complain(error)
        else:
            self._locked_at = None
        database.close()
        self._database = None

    def _trim(self, database: sqlite3.Connection, batch: _Batch) -> None:
        """Delete old rows, and if the file is too large the first by rowid."""
        for table, most in (("events", self._max_rows), ("alerts", MAX_ALERTS)):
            database.execute(
                f"DELETE FROM {table} WHERE id <= (SELECT max(id) FROM {table}) - ?", (most,)
            )
        ends = [event.wall_s for event in batch.events] + [row.end_s for row in batch.fine]
        if not ends:
            return
        for table, kept_s in _KEPT_S.items() if self._trusts(max(ends)) else ():
            # Of the oldest rows; more of them go with the next batches.  Not all up to the last old
            # one: a host without a clock of its own boots in 1970 each time.  Rows of a clock that
            # was ahead are passed over, or the rest would wait behind them.
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
        """Whether the clock is reliable enough to tell what is too old."""
        if self._clock_s is not None and newest_s > self._clock_s + _LEAP_S:
            now = time.monotonic()
            if self._leapt_at is None:
                self._leapt_at = now
            if now < self._leapt_at + _DOUBT_S:
                return False
        self._clock_s, self._leapt_at = newest_s, None
        return True

    def _start_anew(self) -> None:
        """Move a damaged file aside with its journal, which fits no other file."""
        if self._database is not None:
            self._database.close()
            self._database = None
        stamp = f".damaged-{int(time.time())}"
        for name in (self.path.name, self.path.name + "-journal"):
            with contextlib.suppress(OSError):
                os.replace(self.path.with_name(name), self.path.with_name(name + stamp))

    def _complain(self, error: Exception) -> None:
        self._tell(str(error), "history %s: %s; events wait, then are dropped")


def _insert_batch(database: sqlite3.Connection, batch: _Batch) -> None:
    alerts = [each for each in batch.events if each.alert is not None]
    for table, columns, rows in (
        ("events", EVENT_COLUMNS, list(map(event_to_row, batch.events))),
        ("fine", FIGURE_COLUMNS, list(map(figures_to_row, batch.fine))),
        ("coarse", FIGURE_COLUMNS, list(map(figures_to_row, batch.coarse))),
        ("alerts", ("wall_s", "alert"), [(each.wall_s, storable(each.alert)) for each in alerts]),
    ):
        marks = ", ".join("?" * len(columns))
        database.executemany(
            f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", rows
        )


def open_database(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    # Never readable for all, not even while it is empty.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, MODE))
    for_admins(path)
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
        if version not in (0, VERSION):
            raise sqlite3.DatabaseError(f"version {version}, not {VERSION}")
        if not version and database.execute("SELECT 1 FROM sqlite_master").fetchone():
            raise sqlite3.DatabaseError("another program's database")
        if not version:
            with database:
                database.execute("BEGIN IMMEDIATE")
                for table in TABLES:
                    database.execute(table)
                database.execute(f"PRAGMA user_version={VERSION}")
        return database
    except BaseException:
        database.close()
        raise
