# SPDX-License-Identifier: GPL-2.0-or-later
"""Writes the metrics for node_exporter's textfile collector, in a thread."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from pathlib import Path
from typing import Deque, Optional

from writebackd.report.metrics import PROMETHEUS, render
from writebackd.report.safe_files import write_atomically
from writebackd.report.snapshot import Snapshot

log = logging.getLogger(__name__)


class TextFile:
    """Replaces the file periodically; the loop never waits for its disk."""

    def __init__(self, path: Path, interval_s: float) -> None:
        """Start the thread. Touches no file itself."""
        self.path = path
        self.error: Optional[str] = None  # why the last attempt to write failed
        self._interval_s = interval_s
        self._due_s = float("-inf")
        self._waiting: Deque[Snapshot] = deque(maxlen=1)  # the newest is enough
        self._wake = threading.Event()
        self._closing = False
        # A daemon thread: one stuck in the disk must not hold up the exit.
        self._thread = threading.Thread(target=self._run, name="textfile", daemon=True)
        self._start()

    def offer(self, snapshot: Snapshot) -> None:
        """Have the file written if the last one is `interval_s` old. Never blocks."""
        now = time.monotonic()
        if now >= self._due_s:
            self._due_s = now + self._interval_s
            self._start()
            self._waiting.append(snapshot)
            self._wake.set()

    def close(self, timeout: float) -> bool:
        """Remove the file, or else node_exporter would show its last values for ever.

        Waits for at most `timeout` seconds. True when it is gone.
        """
        self._closing = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive() and not self.error

    def _start(self) -> None:
        """Start the thread if it does not run; without a thread the daemon continues."""
        if self._thread.ident is not None:
            return
        try:
            self._thread.start()
        except RuntimeError as error:  # TasksMax= of the unit
            self._tell(f"cannot be written: {error}")

    def _run(self) -> None:
        while not self._closing:
            if self._waiting:
                self._tell(self._store(render(self._waiting.popleft(), PROMETHEUS)))
            self._wake.wait()
            self._wake.clear()
        try:
            self.path.unlink()
        except FileNotFoundError:
            pass
        except OSError as error:
            self._tell(f"cannot be removed: {error.strerror}")

    def _store(self, text: str) -> Optional[str]:
        """Replace the file; returns the error."""
        try:
            # node_exporter reads *.prom, so it never sees the temporary file.
            write_atomically(self.path, text.encode("utf-8"))
        except OSError as error:
            return f"cannot be written: {error.strerror}"
        return None

    def _tell(self, problem: Optional[str]) -> None:
        if problem is not None and self.error is None:
            log.warning("metrics: %s %s", self.path, problem)
        self.error = problem
