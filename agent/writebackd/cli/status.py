# SPDX-License-Identifier: GPL-2.0-or-later
"""The verb status."""

from __future__ import annotations

import argparse
import sys

from writebackd.cli.client import request
from writebackd.cli.exits import GOOD
from writebackd.cli.output import show, show_json, width
from writebackd.cli.render import MIN_WIDTH, render_status, wants_colour


def status(options: argparse.Namespace) -> int:
    answer = request(options.runtime_dir, "status")
    if options.json:
        show_json(answer)
    else:
        show(render_status(answer, width(MIN_WIDTH), wants_colour(sys.stdout)))
    return GOOD
