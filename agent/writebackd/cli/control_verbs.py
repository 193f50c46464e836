# SPDX-License-Identifier: GPL-2.0-or-later
"""The verbs observe, enforce, pin, release and forget."""

from __future__ import annotations

import argparse
from typing import Any, Mapping

from writebackd import formats
from writebackd.cli.client import request
from writebackd.cli.exit_codes import BAD_NEWS, GOOD, USAGE, CommandError
from writebackd.cli.output import show, show_json
from writebackd.policy.units import UnitError, parse_size


def mode(options: argparse.Namespace) -> int:
    """`observe` and `enforce`."""
    answer = request(options.runtime_dir, "mode", {"mode": options.verb})
    return report(options, answer, f"mode: {answer['mode']}")


def pin(options: argparse.Namespace) -> int:
    try:
        size = parse_size(options.size)
    except UnitError as error:
        raise CommandError(f"pin: {error}", USAGE) from None
    args = {"bytes": size} if options.span is None else {"bytes": size, "for_s": options.span}
    answer = request(options.runtime_dir, "pin", args)
    lasts = "" if options.span is None else f" for {formats.duration(options.span)}"
    return report(options, answer, f"pinned to {formats.size(answer['pin_bytes'])}{lasts}")


def release(options: argparse.Namespace) -> int:
    answer = request(options.runtime_dir, "release")
    return report(options, answer, "pin released")


def forget(options: argparse.Namespace) -> int:
    answer = request(options.runtime_dir, "forget", {"device": options.device})
    return report(options, answer, f"learned values of {answer['device']} dropped")


def report(options: argparse.Namespace, answer: Mapping[str, Any], headline: str) -> int:
    """Print what was done; bad news when the answer says that some of it failed."""
    if options.json:
        show_json(answer)
    else:
        show("\n".join([headline, *(f"  {line}" for line in answer["lines"])]))
    return GOOD if answer.get("good", True) else BAD_NEWS
