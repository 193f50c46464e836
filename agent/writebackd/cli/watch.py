# SPDX-License-Identifier: GPL-2.0-or-later
"""The verb watch: the watcher as a service of its own (writebackd-watch.service)."""

from __future__ import annotations

import argparse
import os

from writebackd.actuate.watcher import run
from writebackd.cli.exits import NOT_PERMITTED, CommandError
from writebackd.cli.notify import tell

# Told once, before there is anything to restore: that may wait a little.
READY_LIMIT_S = 1.0


def watch(options: argparse.Namespace) -> int:
    """Until told to end; beside another watcher it waits for its turn."""
    if os.geteuid() != 0:
        raise CommandError("watch needs root: it is for writebackd-watch.service", NOT_PERMITTED)

    def ready() -> None:
        tell("READY=1", READY_LIMIT_S)

    return run(options.runtime_dir, stay=True, ready=ready)
