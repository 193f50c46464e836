# SPDX-License-Identifier: GPL-2.0-or-later
"""Base of what is written by a thread, since the disk may hang: nobody waits for it."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from pathlib import Path
from typing import Any, Callable, Iterator, Optional

log = logging.getLogger(__name__)


class BackgroundWriter:
    """A thread with a queue of at most `most` items; subclasses write them in `_run`."""

    def __init__(self, path: Path, name: str, most: int) -> None:
        """Touches no file, and does not start the thread."""
        self.path = path
        self.error: Optional[str] = None  # why the last attempt to write failed
        self._waiting: "queue.Queue[Any]" = queue.Queue(most)
        self._closing = threading.Event()
        # A daemon thread: one stuck in the disk must not hold up the exit.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def close(self, timeout: float) -> bool:
        """Write what is queued, for at most `timeout` seconds. True if all was written."""
        self._closing.set()
        # Where there is no room for it the thread is awake, and looks at _closing.
        self._offer(None)
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive() and not self.error

    def _offer(self, item: Any) -> bool:
        """Queue it; False where the thread is stuck. Never blocks."""
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(item)
            return True
        return False

    def _offer_instead(self, item: Any) -> None:
        """As `_offer`, in the place of what waits: the newest is enough."""
        with contextlib.suppress(queue.Empty):
            self._waiting.get_nowait()
        self._offer(item)

    def _run(self) -> None:
        raise NotImplementedError

    def _items(self) -> Iterator[Any]:
        """What is queued, until all of it was taken after `close`."""
        while not (self._closing.is_set() and self._waiting.empty()):
            item = self._waiting.get()
            if item is not None:
                yield item

    def _try(self, work: Callable[[], object], text: str) -> None:
        """Do it, and `_tell` whether it failed."""
        try:
            work()
        except OSError as error:
            self._tell(error.strerror or str(error), text)
        else:
            self._tell(None, text)

    def _tell(self, problem: Optional[str], text: str) -> None:
        """Log a problem once, until one time there was none; `text` has path and problem."""
        if problem is not None and self.error is None:
            log.warning(text, self.path, problem)
        self.error = problem
