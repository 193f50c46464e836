# SPDX-License-Identifier: GPL-2.0-or-later
"""The hidden verb lease-watcher: the watcher as a service (writebackd-watch.service)."""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time

from writebackd.actuate.watcher import run
from writebackd.cli.exit_codes import NOT_PERMITTED, USAGE, CommandError
from writebackd.cli.sd_notify import LIMIT_S, tell

_PURPOSE = (
    "writebackd-watch.service runs this to restore the limits when the daemon dies or hangs"
)
_AGAIN_S = 0.2


def lease_watcher(options: argparse.Namespace) -> int:
    """Run until told to end; if another watcher runs it waits for its turn."""
    if any(stream.isatty() for stream in (sys.stdin, sys.stdout) if stream is not None):
        raise CommandError(
            f"lease-watcher is not for a terminal: {_PURPOSE}; `writebackctl top` shows the state"
            " there", USAGE,
        )  # fmt: skip
    if os.geteuid() != 0:
        raise CommandError(f"lease-watcher needs root: {_PURPOSE}", NOT_PERMITTED)

    return run(options.runtime_dir, stay=True, ready=_tell_ready)


def _tell_ready() -> None:
    """Retry in a thread until systemd takes it: there may be limits to restore meanwhile."""

    def main() -> None:
        while not tell("READY=1", LIMIT_S):
            time.sleep(_AGAIN_S)

    threading.Thread(target=main, name="ready", daemon=True).start()
