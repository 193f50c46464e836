# SPDX-License-Identifier: GPL-2.0-or-later
"""A process's command line as one printable line: its program, its options by name, and paths.

The line is kept longer than /proc/PID/cmdline, and sent by mail: what may be private is left out.
Reading that file waits for the process' mmap_lock, which a page fault on a hung disk may hold: a
thread reads it, and never the loop.
"""

from __future__ import annotations

import re
from typing import Dict, Iterable, NamedTuple, Optional, Tuple

from writebackd import formats
from writebackd.kernel.child_process import Job
from writebackd.kernel.files import KernelFiles

MASK = "***"
# "pass" and "cookie" end a name: no passenger, compass or --pass-through. Read from its start and
# not twice: the time must not grow with the square of its length.
_NAME = (
    r"(?<![\w.-])(?=[\w.-]*(?:passw(?:or)?d|passphrase|pwd|secret|token|credential|(?:api|access"
    r"|private|[-_])key|(?:cookie|(?<![a-z])(?:app|db|user|smtp|key)?pass\d*)(?![\w.-])))"
    r"(?![\w.-]*(?:file|path|dir)(?![\w.-]))[\w.-]+"
)
# A quote that is never closed was cut off there; one behind a backslash is of a text within a text.
_VALUE = r"""(?:'[^']*(?:'|$)|"(?:[^"\\]|\\.)*(?:"|$)|\\+"[^"]*(?:"|$)|[^\s&'"]+)"""
# Group 1 stays. HTTP's headers; --password X; NAME=X, NAME: X, "NAME": ["X"]; ://user:X@host.
_LABELLED = tuple(re.compile(pattern, re.IGNORECASE) for pattern in (
    r"""((?:authorization|(?<![\w.-])(?:set-)?cookie)\\*["']?\s*[:=][\s\[\\"']*)[^"'\\\n]+""",
    r"(\bbearer\s+)[\w.~+/=-]+",
    rf"((?<!\S)(?=--){_NAME}\s+)(?!-){_VALUE}",
    rf"""({_NAME}\\*["']?\s*[:=]\s*(?:\[\s*)?)(?!\s){_VALUE}""",
    r"(://[^/\s:@]*:)[^/\s]*(?=@)",
))  # fmt: skip
SECRET = re.compile(rf"(?:{_NAME}|authorization)$", re.IGNORECASE)
_CONTINUED = re.compile(r"\\\r?\n(?:[ \t]*[#;][^\n]*\n)*")  # over comments between

_PATH = r"/(?!\S*://)[^\s@=]*"  # of an address neither its beginning nor "?token=X"
_SHOWN = re.compile(rf"{_PATH}|--(?:[a-zA-Z][\w.-]*)?|-[a-zA-Z0-9]")
# NAME=X, --option=X; of=/path, bs=1M; not "S3cret==", as base64 ends.
_SIZE = r"(?<=[a-z]=)\d+(?:\.\d+)?[kKMGTP]?(?:i?B)?"
_NAMED = re.compile(rf"(?s)((--)?([a-zA-Z_][\w.-]*)=)(?:({_PATH}|(?(2)(?!)|{_SIZE}))|=*[^=].*)")


def redacted(raw: str) -> str:
    """A command line whose words are separated by NUL, without what may be private."""
    program, *words = raw.rstrip("\0").split("\0")
    line = " ".join([redacted_text(program), *map(_shown, words)])
    return formats.printable(re.sub(r"(?: \*\*\*)+(?= |$)", f" {MASK}", line))


def _shown(word: str) -> str:
    named = _NAMED.fullmatch(word)
    if named:
        return word if named[4] and not SECRET.search(named[3]) else named[1] + MASK
    short = word[:2] if re.match("-[a-zA-Z0-9]", word) else ""
    return word if _SHOWN.fullmatch(word) else short + MASK


def redacted_text(text: str) -> str:
    """Lines of a log or a file, with continued ones joined, without secrets that have a label."""
    lines = _CONTINUED.sub(" ", text).split("\n")
    for pattern in _LABELLED:
        lines = [pattern.sub(rf"\g<1>{MASK}", line) for line in lines]
    return "\n".join(lines)


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
        wanted = [process for process in processes if process not in self._known]
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
        line = redacted(text[:_MOST_LOOKED_AT])
        more = "..." if len(line) > MOST_CHARS else ""
        return CommandLine(line[:MOST_CHARS] + more, uid) if line else None
