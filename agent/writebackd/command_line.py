# SPDX-License-Identifier: GPL-2.0-or-later
"""Helpers of every program's command line: parser, error output, closed streams."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from typing import Any, Callable, Iterator, NoReturn


@contextlib.contextmanager
def open_streams() -> Iterator[None]:
    """For a program: open closed standard streams (`>&-`, some starters), so that orders still run.

    In the end what standard error did not take is dropped.
    """
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")
    try:
        yield
    finally:
        drop_unwritten()


def complain(text: str) -> None:
    """Print a line to stderr; if that fails only the exit code reports the problem."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def drop_unwritten(name: str = "stderr") -> None:
    """Drop what a stream did not take: Python would retry at exit, and end with 120."""
    try:
        getattr(sys, name).flush()
    except OSError:
        setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))


def seconds(least: float, most: float) -> Callable[[str], float]:

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = least - 1.0
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"takes {least:g} to {most:g} seconds, as a number")
        return value

    return parse


class Parser(argparse.ArgumentParser):
    """Like the standard parser, but its errors suggest the nearest word, and where to find help."""

    def error(self, message: str) -> NoReturn:
        complain(f"{self.prog}: {message}; `{self.prog} --help` says more")
        self.exit(2)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        choices = list(map(str, action.choices or ()))
        if not choices or value in choices:
            return
        # Of verbs those that the help lists.
        choices = [verb.dest for verb in getattr(action, "_choices_actions", ())] or choices
        from difflib import get_close_matches  # 10 ms, which only a slip costs

        close = get_close_matches(str(value)[:60].lower(), choices, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(choices)}"
        raise argparse.ArgumentError(action, f"invalid choice {value!r}: {hint}")
