# SPDX-License-Identifier: GPL-2.0-or-later
"""Prints an answer: as JSON, as text that fits the terminal, or as a page to a file."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import textwrap
import time
from pathlib import Path
from typing import Any, Callable, List, Mapping, Optional, TextIO

from writebackd import formats
from writebackd.cli.exit_codes import BAD_NEWS, CommandError
from writebackd.safe_files import write_atomically

# A pipe or a file has no width: a page that fits everywhere.
_PLAIN_WIDTH = 80
_MAX_WIDTH = 160  # longer lines of prose are hard to read
Answer = Mapping[str, Any]  # of the daemon, or a part of it
_LABEL = 9
_MORE = ".. (doctor)"
_COLOURS = {
    "guard": "32", "pace": "32", "probe": "36", "pinned": "36", "squeeze": "33", "blind": "33",
    "yielded": "35", "exhausted": "31;1", "warning": "33", "heading": "1", "faint": "2",
    "blocker": "31;1", "good": "32", "critical": "31;1",
    "OK": "32;1", "MISSES_OBJECTIVE": "31;1", "FAILED": "31;1", "ALERT": "31;1", "BLIND": "33;1",
    "YIELDED": "35;1", "OFF": "33;1", "PINNED": "36;1", "TRIAL": "36;1", "OBSERVING": "36;1",
}  # fmt: skip
# What all that comes from elsewhere goes through on its way to a screen.
clean = formats.printable


def width(least: int = 60) -> int:
    """Columns to fill, at least `least`: from $COLUMNS, else the terminal, else 80."""
    columns = shutil.get_terminal_size((_PLAIN_WIDTH, 0)).columns
    return max(least, min(columns or _PLAIN_WIDTH, _MAX_WIDTH))


def show_json(data: Any) -> None:
    print(json.dumps(data, indent=2))


def show_answer(options: argparse.Namespace, data: Any, text: Callable[[], str]) -> None:
    """`data` with --json, else `text()`."""
    if options.json:
        show_json(data)
    else:
        print(text())


def show_screen(
    options: argparse.Namespace, data: Any, render: Callable[..., str], *more: Any
) -> None:
    """As show_answer, by a function of the data, the width, and whether to colour."""
    colour = wants_colour(sys.stdout, options.color)
    show_answer(options, data, lambda: render(data, width(), colour, *more))


def frame(text: str, height: int) -> str:
    """`text` over what a terminal shows: home, then clear to the end of each line, no flicker."""
    lines = text.splitlines()[: height - 1]
    return "\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J"


def wants_colour(stream: TextIO, when: str = "auto") -> bool:
    """`when` is the value of --color; a non-empty NO_COLOR counts (no-color.org)."""
    if when != "auto":
        return when == "always"
    no_colour = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return stream.isatty() and not no_colour


class Paint:
    """Colours text by the name of a state or role, or returns it unchanged."""

    def __init__(self, colour: bool) -> None:
        self._colour = colour

    def __call__(self, text: str, role: Optional[str]) -> str:
        code = _COLOURS.get(role or "")
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour and code else text


def labelled(label: str, text: str, width: int) -> List[str]:
    """`label` in a column of its own, `text` wrapped beside it."""
    return wrapped(text, width, " " * _LABEL, label.ljust(_LABEL)) or [label]


def one_line(label: str, text: str, width: int, more: str = _MORE) -> str:
    """As `labelled`, cut to one line; `more` says where to find the rest."""
    line = label.ljust(_LABEL) + clean(text)
    return line if len(line) <= width else line[: width - len(more)].rstrip() + more


def wrapped(text: str, width: int, indent: str, first: Optional[str] = None) -> List[str]:
    return textwrap.wrap(
        clean(text),
        width,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )


def fit(text: str, width: int) -> str:
    """`text` in exactly `width` columns, with its start cut off if it is too long."""
    text = clean(text)
    return text.ljust(width) if len(text) <= width else ".." + text[len(text) - width + 2 :]


def moment(wall_s: float) -> str:
    """A time with its date, as 05-01 03:00:00."""
    return time.strftime("%m-%d %H:%M:%S", time.localtime(wall_s))


def as_text(value: Optional[object]) -> str:
    """A value of an answer as text: '-' for None, yes and no for booleans."""
    if value is None or value == "":
        return formats.UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    return clean(str(value))


def write_page(output: Path, page: str) -> None:
    """Write all or nothing to a plain file; other files as they are. Raises CommandError."""
    if str(output) == "-":
        sys.stdout.write(page)
        return
    try:
        if _is_plain(output):
            write_atomically(output, page.encode(), for_all=False)
        else:
            output.write_text(page, encoding="utf-8")
    except OSError as error:
        raise CommandError(
            f"{output} cannot be written ({error.strerror}): name another with -o", BAD_NEWS
        ) from None


def _is_plain(output: Path) -> bool:
    """Whether the file may be replaced: never that of /dev/null or /dev/stdout.

    Any other link to a file is itself replaced, since another user may have put it into /tmp.
    """
    parent = os.path.realpath(output.parent)
    if output.is_symlink() and (parent == "/dev" or parent.startswith("/proc/")):
        return False
    return output.is_file() or not output.exists()
