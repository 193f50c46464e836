# SPDX-License-Identifier: GPL-2.0-or-later
"""The verbs devices, why, verify and metrics."""

from __future__ import annotations

import argparse
import sys

from writebackd.cli.answer_screens import render_devices, render_verify, render_why
from writebackd.cli.client import request
from writebackd.cli.exit_codes import BAD_NEWS, GOOD
from writebackd.cli.output import show, show_json, width
from writebackd.cli.status_screen import wants_colour


def devices(options: argparse.Namespace) -> int:
    answer = request(options.runtime_dir, "devices")
    if options.json:
        show_json(answer)
    else:
        show(render_devices(answer, width(), wants_colour(sys.stdout)))
    return GOOD


def why(options: argparse.Namespace) -> int:
    args = {} if options.device is None else {"device": options.device}
    answer = request(options.runtime_dir, "why", args)
    if options.json:
        show_json(answer)
    else:
        show(render_why(answer, width(), wants_colour(sys.stdout), options.verbose))
    return GOOD


def verify(options: argparse.Namespace) -> int:
    answer = request(options.runtime_dir, "verify")
    if options.json:
        show_json(answer)
    else:
        show(render_verify(answer, width()))
    return GOOD if answer["good"] else BAD_NEWS


def metrics(options: argparse.Namespace) -> int:
    answer = request(options.runtime_dir, "metrics", {"format": options.format})
    if options.json:
        show_json(answer)
    else:
        show(answer["text"].rstrip("\n"))
    return GOOD
