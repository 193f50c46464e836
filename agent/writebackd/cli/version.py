# SPDX-License-Identifier: GPL-2.0-or-later
"""The verb version: of this program, of the running daemon, of the kernel."""

from __future__ import annotations

import argparse
import os

from writebackd import __version__
from writebackd.cli.client import NoDaemon, request
from writebackd.cli.exit_codes import GOOD, CommandError
from writebackd.cli.output import show, show_json
from writebackd.cli.status_screen import as_text


def version(options: argparse.Namespace) -> int:
    """Without a daemon that part is unknown, which is no bad news."""
    daemon = probe = None
    unknown = ""
    try:
        status = request(options.runtime_dir, "status")
        daemon, probe = status["version"], status["probe"]["backend"]
    except CommandError as error:
        unknown = "not running" if isinstance(error, NoDaemon) else "no answer"
    kernel = os.uname().release
    if options.json:
        show_json({"writebackctl": __version__, "writebackd": daemon, "probe": probe,
                   "kernel": kernel})  # fmt: skip
        return GOOD
    running = unknown if daemon is None else f"{as_text(daemon)}, probe {as_text(probe)}"
    show(f"writebackctl  {__version__}\nwritebackd    {running}\nkernel        {kernel}")
    return GOOD
