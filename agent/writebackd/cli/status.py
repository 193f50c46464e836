# SPDX-License-Identifier: GPL-2.0-or-later
"""The verb status: asks the daemon and prints the status screen."""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
import time
from typing import Any, Mapping

from writebackd.cli.client import request
from writebackd.cli.exit_codes import GOOD, CommandError
from writebackd.cli.output import frame, show, show_json, width
from writebackd.cli.status_screen import MIN_WIDTH, clean, render_status, wants_colour

_CLEAR = "\x1b[2J"


def status(options: argparse.Namespace) -> int:
    if options.watch is not None:
        with contextlib.suppress(KeyboardInterrupt):
            _watch(options)
        return GOOD
    answer = request(options.runtime_dir, "status")
    if options.json:
        show_json(answer)
    else:
        show(_screen(answer))
    return GOOD


def _screen(answer: Mapping[str, Any]) -> str:
    return render_status(answer, width(MIN_WIDTH), wants_colour(sys.stdout))


def _watch(options: argparse.Namespace) -> None:
    """Until Ctrl-C: the screen in place on a terminal, elsewhere a line each time.

    Raises CommandError where there is no daemon to begin with.
    """
    in_place = sys.stdout.isatty() and not options.json
    answer: Mapping[str, Any] = request(options.runtime_dir, "status")
    if in_place:
        sys.stdout.write(_CLEAR)
    while True:
        if in_place:
            height = shutil.get_terminal_size().lines
            sys.stdout.write(frame(_screen(answer), height))
        elif options.json:
            print(json.dumps(answer))
        else:
            print(_line(answer))
        sys.stdout.flush()
        time.sleep(options.watch)
        answer = _ask_again(options, answer)


def _ask_again(options: argparse.Namespace, last: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the daemon says, or the last answer with a verdict that it does not."""
    try:
        return request(options.runtime_dir, "status")
    except CommandError:  # it restarts, hangs, or is gone
        since = time.strftime("%H:%M:%S", time.localtime(last["time_s"]))
        text = f"NO ANSWER: writebackd does not answer, last values are from {since}"
        return {**last, "verdict": {"code": None, "device": None, "since_s": None, "text": text}}


def _line(answer: Mapping[str, Any]) -> str:
    return f"{time.strftime('%H:%M:%S')} {clean(answer['verdict']['text'])}"
