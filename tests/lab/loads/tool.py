# SPDX-License-Identifier: GPL-2.0-or-later
"""Loads that are other people's measuring tools: one run in each window, for its length.

Under a flood such a tool may sit in an fsync when its time is up.  It gets LATE_S
more, then it is killed, and what it has said until then is its result: none done,
and one in flight for so long.
"""

from __future__ import annotations

import abc
import subprocess
import time
from pathlib import Path
from typing import Any, List, Mapping, Optional, Sequence

from ..remains import RigError
from .base import Counters, Load, Measured, Place
from .own import end, kill_group

LATE_S = 30


class Tool(Load):
    WAITS = True

    def __init__(self, place: Place, options: Mapping[str, Any]) -> None:
        super().__init__(place, options)
        self._tool: Optional[subprocess.Popen[bytes]] = None
        self._windows = 0
        self._since = 0.0
        self._until = 0.0
        self._before = 0  # operations of earlier windows

    @abc.abstractmethod
    def command(self, seconds: int) -> List[str]:
        """The tool's command line; it works in the load's own directory on the disk."""

    @abc.abstractmethod
    def result(self, output: str) -> Measured:
        """What the tool said when it ended well."""

    def series(self, output: str) -> List[float]:
        """Operations in each second that the output tells of so far; none if it only sums up."""
        return []

    @property
    def window(self) -> Path:
        """What the names of this window's result files begin with."""
        return self.place.runtime / f"window-{self._windows}"

    @property
    def log(self) -> Path:
        """All that the tool says in this window."""
        return self.window.with_suffix(".log")

    def start(self) -> None:
        """Nothing runs outside of windows."""

    def open(self, seconds: float) -> None:
        # An earlier load of this name may have left results.
        self._windows = 1 + len(list(self.place.runtime.glob("window-*.log")))
        with open(self.log, "wb") as output:
            self._tool = self.place.spawn(self.command(max(1, round(seconds))), stdout=output,
                                          stderr=output, cwd=self.place.directory)
        self._since = time.monotonic()
        self._until = self._since + seconds

    def close(self) -> Measured:
        assert self._tool is not None, "open was not called"
        try:
            code = self._tool.wait(max(0.0, self._until + LATE_S - time.monotonic()))
        except subprocess.TimeoutExpired:
            return self._overdue()
        output = self.log.read_text(errors="replace")
        if code:
            raise RigError(f"{self.KIND}: exit status {code}: "
                           f"{output.strip()[-500:] or 'it said nothing'}")
        measured = self.result(output)
        self._before += measured.ops or 0
        return measured

    def _overdue(self) -> Measured:
        assert self._tool is not None
        kill_group(self._tool)
        elapsed = time.monotonic() - self._since
        series = self.series(self.log.read_text(errors="replace"))
        ops = round(sum(series))
        self._before += ops
        # The operation that it waits for began after the last second in which one was done.
        busy = max((second + 1 for second, done in enumerate(series) if done), default=0)
        return Measured(elapsed=elapsed, ops=ops, rate=ops / elapsed, series=series,
                        inflight_age=elapsed - busy, max=elapsed - busy)

    def counters(self) -> Counters:
        done = self._before
        if self._tool is not None and self._tool.poll() is None:
            done += round(sum(self.series(self.log.read_text(errors="replace"))))
        return Counters(ops=done)

    def stop(self) -> None:
        if self._tool is not None:
            end(self._tool, self.KIND)
            self._tool = None


def do(place: Place, argv: Sequence[str], name: str = "prepare") -> None:
    """Run a command of a load's preparation to its end; RigError with what it said."""
    log = place.runtime / f"{name}.log"
    with open(log, "wb") as output:
        process = place.spawn(argv, stdout=output, stderr=output, cwd=place.directory)
    if process.wait():
        said = log.read_text(errors="replace").strip()
        raise RigError(f"{' '.join(argv)}: exit status {process.returncode}: "
                       f"{said[-500:] or 'it said nothing'}")
