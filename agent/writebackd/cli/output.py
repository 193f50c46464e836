# SPDX-License-Identifier: GPL-2.0-or-later
"""Prints an answer: as JSON, or as text that fits the terminal."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any, Callable

# A pipe or a file has no width: a page that fits everywhere.
_PLAIN_WIDTH = 80
_MAX_WIDTH = 160  # longer lines of prose are hard to read


def width(least: int = 60) -> int:
    """Columns to fill, at least `least`: from $COLUMNS, else the terminal, else 80."""
    try:
        columns = int(os.environ.get("COLUMNS", "")) or 0
    except ValueError:
        columns = 0
    if not columns:
        try:
            columns = os.get_terminal_size(sys.stdout.fileno()).columns
        except (OSError, ValueError):
            columns = _PLAIN_WIDTH
    return max(least, min(columns or _PLAIN_WIDTH, _MAX_WIDTH))


def show(text: str) -> None:
    print(text)


def show_json(data: Any) -> None:
    print(json.dumps(data, indent=2))


def show_answer(options: argparse.Namespace, data: Any, text: Callable[[], str]) -> None:
    """`data` with --json, else `text()`."""
    if options.json:
        show_json(data)
    else:
        show(text())


def frame(text: str, height: int) -> str:
    """`text` over what a terminal shows: home, then clear to the end of each line, no flicker."""
    lines = text.splitlines()[: height - 1]
    return "\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J"
