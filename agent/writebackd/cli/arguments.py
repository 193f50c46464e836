# SPDX-License-Identifier: GPL-2.0-or-later
"""Command lines whose errors are one line that says what to do."""

from __future__ import annotations

import argparse
from typing import Any, Callable, NoReturn

from writebackd.cli.exits import USAGE, complain


class Parser(argparse.ArgumentParser):
    """As the standard one, but for its errors: it tells the nearest word, and where help is."""

    def error(self, message: str) -> NoReturn:
        complain(f"{self.prog}: {message}; `{self.prog} --help` tells more")
        self.exit(USAGE)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        choices = list(map(str, action.choices or ()))
        if not choices or value in choices:
            return
        # Of verbs those that the help lists.
        choices = [each.dest for each in getattr(action, "_choices_actions", ())] or choices
        from difflib import get_close_matches  # 10 ms, which only a slip costs

        close = get_close_matches(str(value)[:60].lower(), choices, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(choices)}"
        raise argparse.ArgumentError(action, f"invalid choice {value!r}: {hint}")


def kernel_name(device: str) -> str:
    """The name that a path below /dev most likely stands for, where no daemon can be asked."""
    # As sysfs writes cciss/c0d0.
    return device[5:].replace("/", "!") if device.startswith("/dev/") else device


def number(text: str) -> int:
    """A whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None


def positive(text: str) -> int:
    """A whole number above 0."""
    found = number(text)
    if found < 1:
        raise argparse.ArgumentTypeError("needs a number above 0")
    return found


def seconds(least: float, most: float) -> Callable[[str], float]:
    """A type of argument: so many seconds."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = least - 1.0
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"takes {least:g} to {most:g} seconds, as a number")
        return value

    return parse
