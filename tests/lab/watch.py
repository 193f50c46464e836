# SPDX-License-Identifier: GPL-2.0-or-later
"""What has to be looked at more often than the curves are: limit writes and stalls.

In a thread, since a load's start or an agent that does not answer must not hide a write.
"""

from __future__ import annotations

import contextlib
import os
import threading
from types import TracebackType
from typing import Callable, List, Optional, Sequence, Tuple, Type

from . import host
from .loads.base import Load

STEP_S = 0.1
# Of a guest's time: its emulated processor needs some 50 times as long for a look.
GUEST_STEP_S = 0.25
# A write of any of the six shows in one of these; the intervals are no limits.
FILES = ("dirty_bytes", "dirty_background_bytes", "dirty_ratio", "dirty_background_ratio")
WRITERS = ("flood", "job")


class Watch:
    """A context manager; inside it `limits` grows with every change of a dirty limit.

    Each entry is (time, bytes) by the clock given, the first one what was found. A write of
    what is there already is not seen, and of several within a step only the last.
    """

    def __init__(self, loads: Callable[[Sequence[str]], Sequence[Load]],
                 clock: Callable[[], float], step_s: float = STEP_S) -> None:
        """loads: those running now that have one of some roles."""
        self.limits: List[Tuple[float, int]] = []
        self._loads = loads
        self._clock = clock
        self._step_s = step_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._failed: Optional[Exception] = None

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self._ended.set()
        self._thread.join()
        if self._failed is not None and error is None:
            raise self._failed

    def _run(self) -> None:
        try:
            with contextlib.ExitStack() as stack:
                self._look([stack.enter_context(open(host.VM / name, "rb")).fileno()
                            for name in FILES])
        except Exception as error:  # told where the run is, not lost with the thread
            self._failed = error

    def _look(self, files: Sequence[int]) -> None:
        last: List[bytes] = []
        while not self._ended.wait(self._step_s):
            now = [os.pread(file, 32, 0) for file in files]
            if now != last:
                # A share of memory has no bytes of its own: the kernel says what it makes of it.
                self.limits.append((round(self._clock(), 3),
                                    int(now[0]) or host.vmstat("nr_dirty_threshold")))
                last = now
            for load in self._loads(WRITERS):
                load.look()
