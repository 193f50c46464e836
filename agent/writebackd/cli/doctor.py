# SPDX-License-Identifier: GPL-2.0-or-later
"""The verb doctor: checks whether and how well writebackd can run here."""

from __future__ import annotations

import argparse
import sys

from writebackd.cli import doctor_checks
from writebackd.cli.answer_screens import render_findings
from writebackd.cli.exit_codes import BAD_NEWS, GOOD, USAGE, CommandError
from writebackd.cli.output import show, show_json, width
from writebackd.cli.status_screen import wants_colour


def doctor(options: argparse.Namespace) -> int:
    if options.bundle is not None:
        from writebackd.cli.bundle import bundle  # takes all other verbs with it

        return bundle(options)
    if options.keep_host:
        raise CommandError("--keep-host needs --bundle", USAGE)
    found = doctor_checks.findings(options.runtime_dir)
    rows = [{"level": level, "text": text} for level, text in found]
    blocked = any(level == "blocker" for level, _ in found)
    if options.json:
        show_json({"good": not blocked, "findings": rows})
    else:
        show(render_findings(rows, width(), wants_colour(sys.stdout)))
    return BAD_NEWS if blocked else GOOD
