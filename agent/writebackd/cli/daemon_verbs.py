# SPDX-License-Identifier: GPL-2.0-or-later
"""Verbs that are one request to the daemon: status, why, pin, observe, ..."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import time
from typing import Any, Mapping

from writebackd import __version__, formats
from writebackd.cli.answer_screens import render_devices, render_verify, render_why
from writebackd.cli.client import NoDaemon, request
from writebackd.cli.exit_codes import BAD_NEWS, GOOD, USAGE, CommandError
from writebackd.cli.output import frame, show_answer, width
from writebackd.cli.status_screen import (
    MIN_WIDTH,
    Answer,
    as_text,
    clean,
    render_status,
    wants_colour,
)

_CLEAR = "\x1b[2J"

# ---- questions ---------------------------------------------------------


def status(options: argparse.Namespace) -> int:
    answer = request(options.runtime_dir, "status")
    if options.watch is None:
        show_answer(options, answer, lambda: _screen(options, answer))
    else:
        with contextlib.suppress(KeyboardInterrupt):
            _watch(options, answer)
    return GOOD


def _screen(options: argparse.Namespace, answer: Answer) -> str:
    return render_status(answer, width(MIN_WIDTH), wants_colour(sys.stdout, options.color))


def _watch(options: argparse.Namespace, answer: Answer) -> None:
    """Repeat until Ctrl-C: the screen in place on a terminal, elsewhere one line each time."""
    in_place = sys.stdout.isatty() and not options.json
    if in_place:
        sys.stdout.write(_CLEAR)
    while True:
        if in_place:
            height = shutil.get_terminal_size().lines
            sys.stdout.write(frame(_screen(options, answer), height))
        elif options.json:
            print(json.dumps(answer))
        else:
            print(f"{time.strftime('%H:%M:%S')} {clean(answer['verdict']['text'])}")
        sys.stdout.flush()
        time.sleep(options.watch)
        try:
            answer = request(options.runtime_dir, "status")
        except CommandError:  # it restarts, hangs, or is gone
            answer = {**answer, "verdict": _no_answer(answer["time_s"])}


def _no_answer(last_s: float) -> Mapping[str, Any]:
    """The verdict while the daemon does not answer; `last_s` is the time of its last answer."""
    since = time.strftime("%H:%M:%S", time.localtime(last_s))
    text = f"BLIND: writebackd does not answer; last values are from {since}"
    return {"code": "BLIND", "device": None, "since_s": last_s, "text": text}


def devices(options: argparse.Namespace) -> int:
    answer = request(options.runtime_dir, "devices")
    colour = wants_colour(sys.stdout, options.color)
    show_answer(options, answer, lambda: render_devices(answer, width(), colour))
    return GOOD


def why(options: argparse.Namespace) -> int:
    args = {} if options.device is None else {"device": options.device}
    answer = request(options.runtime_dir, "why", args)
    show_answer(
        options,
        answer,
        lambda: render_why(
            answer, width(), wants_colour(sys.stdout, options.color), options.verbose
        ),
    )
    return GOOD


def verify(options: argparse.Namespace) -> int:
    answer = request(options.runtime_dir, "verify")
    show_answer(options, answer, lambda: render_verify(answer, width()))
    return GOOD if answer["good"] else BAD_NEWS


def metrics(options: argparse.Namespace) -> int:
    answer = request(options.runtime_dir, "metrics", {"format": options.format})
    show_answer(options, answer, lambda: str(answer["text"]).rstrip("\n"))
    return GOOD


def version(options: argparse.Namespace) -> int:
    """The version of this program, the daemon and the kernel; without a daemon it is no failure."""
    answer = {
        "writebackctl": __version__, "writebackd": None, "probe": None,
        "kernel": os.uname().release,
    }  # fmt: skip
    try:
        status = request(options.runtime_dir, "status")
        answer["writebackd"], answer["probe"] = status["version"], status["probe"]["backend"]
        running = f"{as_text(answer['writebackd'])}, probe {as_text(answer['probe'])}"
    except CommandError as error:
        running = "not running" if isinstance(error, NoDaemon) else "no answer"
    show_answer(options, answer, lambda: (
        f"writebackctl  {__version__}\nwritebackd    {running}\nkernel        {answer['kernel']}"
    ))  # fmt: skip
    return GOOD


# ---- orders ------------------------------------------------------------


def mode(options: argparse.Namespace) -> int:
    """`observe` and `enforce`."""
    answer = request(options.runtime_dir, "mode", {"mode": options.verb})
    return report(options, answer, f"mode: {answer['mode']}")


def pin(options: argparse.Namespace) -> int:
    # Imported here: the other verbs do without, and start-up time is imports.
    from writebackd.policy.units import UnitError, parse_size

    try:
        args: Mapping[str, Any] = {"bytes": parse_size(options.size)}
    except UnitError as error:
        raise CommandError(f"pin: {error}", USAGE) from None
    lasts = ""
    if options.span is not None:
        args = {**args, "for_s": options.span}
        lasts = f" for {formats.duration(options.span)}"
    answer = request(options.runtime_dir, "pin", args)
    return report(options, answer, f"pinned to {formats.size(answer['pin_bytes'])}{lasts}")


def release(options: argparse.Namespace) -> int:
    answer = request(options.runtime_dir, "release")
    return report(options, answer, "released")


def reset_stats(options: argparse.Namespace) -> int:
    answer = request(options.runtime_dir, "reset-stats")
    return report(options, answer, "counters zeroed")


def forget(options: argparse.Namespace) -> int:
    answer = request(options.runtime_dir, "forget", {"device": options.device})
    return report(options, answer, f"learned values of {answer['device']} dropped")


def report(options: argparse.Namespace, answer: Answer, headline: str) -> int:
    """Print what was done; BAD_NEWS if the answer says that a part of it failed."""
    lines = [headline, *(f"  {line}" for line in answer["lines"])]
    show_answer(options, answer, lambda: "\n".join(lines))
    return GOOD if answer.get("good", True) else BAD_NEWS
