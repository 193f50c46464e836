# SPDX-License-Identifier: GPL-2.0-or-later
"""Command lines of processes that an alert names, read in a thread.

Reading /proc/PID/cmdline waits for the process' mmap_lock, which a page fault on a hung disk may
hold: the loop never reads it itself.
"""

from __future__ import annotations

from typing import Dict, Iterable, NamedTuple, Optional, Tuple

from writebackd.kernel import argv_redaction
from writebackd.kernel.child_process import Job
from writebackd.kernel.files import KernelFiles

# Of a command line, its start; and processes remembered.
MOST_CHARS, MOST_PROCESSES = 256, 64
_MOST_LOOKED_AT = 1024  # characters; there may be two million

Process = Tuple[int, str]  # pid and name: a number is given away again


class CommandLine(NamedTuple):
    """The start of a command line, as one printable line, and its process."""

    text: str
    uid: int  # root's where /proc says so: of a set-uid program, say


class CommandLines:
    """Returns what has been read so far; what is requested anew arrives some ticks later."""

    def __init__(self, files: KernelFiles) -> None:
        self._files = files
        self._known: Dict[Process, Optional[CommandLine]] = {}  # filled by the thread
        self._job: Optional[Job] = None

    def of(self, pid: int, comm: str) -> Optional[CommandLine]:
        """The command line; None: unknown, or not read yet."""
        return self._known.get((pid, comm))

    def is_gone(self, pid: int, comm: str) -> bool:
        """Whether the process has exited, or the number is another's by now."""
        now = self._files.try_read(f"/proc/{pid}/comm")
        return now is None or now.rstrip("\n") != comm

    def ask(self, processes: Iterable[Process]) -> None:
        """Have unknown command lines read. Never blocks; one thread at a time."""
        wanted = [each for each in processes if each not in self._known]
        if not wanted or (self._job is not None and self._job.busy):
            return
        if len(self._known) > MOST_PROCESSES:
            self._known.clear()
        self._job = Job(lambda run: self._work(wanted), 0.0, "cmdlines")

    def _work(self, wanted: Iterable[Process]) -> None:
        for process in wanted:
            self._known[process] = self._line(*process)

    def _line(self, pid: int, comm: str) -> Optional[CommandLine]:
        if self.is_gone(pid, comm):
            return None
        try:
            # Of one open file: a number given away in between has another owner.
            text, uid = self._files.read_owned(f"/proc/{pid}/cmdline")
        except OSError:
            return None
        line = argv_redaction.redacted(text[:_MOST_LOOKED_AT])
        more = "..." if len(line) > MOST_CHARS else ""
        return CommandLine(line[:MOST_CHARS] + more, uid) if line else None
