# SPDX-License-Identifier: GPL-2.0-or-later
"""The verb doctor: findings about this host, or a bundle for a bug report."""

from __future__ import annotations

import argparse
import sys

from writebackd.cli.bundle import bundle
from writebackd.cli.daemon_verbs import render_findings
from writebackd.cli.doctor_checks import findings
from writebackd.cli.exit_codes import BAD_NEWS, GOOD
from writebackd.cli.output import show_answer, width
from writebackd.cli.status_screen import wants_colour


def doctor(options: argparse.Namespace) -> int:
    if options.bundle is not None:
        return bundle(options)
    rows = [{"level": level, "text": text} for level, text in findings(options.runtime_dir)]
    good = all(row["level"] != "blocker" for row in rows)
    show_answer(
        options,
        {"good": good, "findings": rows},
        lambda: render_findings(rows, width(), wants_colour(sys.stdout, options.color)),
    )
    return GOOD if good else BAD_NEWS
