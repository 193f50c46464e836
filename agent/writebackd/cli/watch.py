# SPDX-License-Identifier: GPL-2.0-or-later
"""The verb watch: the watcher as a service of its own (writebackd-watch.service)."""

from __future__ import annotations

import argparse
import os

from writebackd.actuate.watcher import run
from writebackd.cli.exits import NOT_PERMITTED, CommandError
from writebackd.cli.notify import tell


def watch(options: argparse.Namespace) -> int:
    """Until told to end; beside another watcher it waits for its turn."""
    if os.geteuid() != 0:
        raise CommandError("watch needs root: it is for writebackd-watch.service", NOT_PERMITTED)
    # By hand in any case: python3-systemd would be 2 MB more, all of them locked.
    return run(options.runtime_dir, stay=True, ready=lambda: tell("READY=1"))
