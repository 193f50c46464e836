# SPDX-License-Identifier: GPL-2.0-or-later
"""The verb restore: the way home, with the daemon or without it."""

from __future__ import annotations

import argparse
import os

from writebackd.actuate.lock import is_locked
from writebackd.actuate.restore import restore_from_ledger
from writebackd.cli.client import NoAnswer, NoDaemon, request
from writebackd.cli.exits import BAD_NEWS, GOOD, NO_DAEMON, NOT_PERMITTED, CommandError
from writebackd.cli.output import show, show_json
from writebackd.cli.steering import report
from writebackd.kernel.files import KernelFiles
from writebackd.paths import LEDGER


def restore(options: argparse.Namespace) -> int:
    """Put the limits back: through the daemon, or from its ledger when there is none."""
    try:
        answer = request(options.runtime_dir, "mode", {"mode": "observe"})
    except NoDaemon:
        return _restore_from_ledger(options)
    except NoAnswer as error:
        # A daemon that hangs may still write: restoring behind its back would
        # be undone, or taken for a foreign write.
        raise CommandError(
            f"{error}; to restore without it, stop it first: `systemctl stop writebackd`",
            NO_DAEMON,
        ) from None
    answer = {"status": "observe", "lines": list(answer["lines"])}
    return report(options, answer, "writebackd runs: mode is now observe")


def _restore_from_ledger(options: argparse.Namespace) -> int:
    path = options.runtime_dir / LEDGER
    if is_locked(options.runtime_dir):
        raise CommandError(
            "a writebackd without a socket lives: it is starting or stopping, try again,"
            " or stop it with `systemctl stop writebackd`",
            NO_DAEMON,
        )
    if os.geteuid() != 0 and path.exists():
        raise CommandError("restore needs root: try again with sudo", NOT_PERMITTED)
    result = restore_from_ledger(KernelFiles(), path, honour_keep=options.honour_keep)
    answer = {"status": result.status, "lines": list(result.lines)}
    if options.json:
        show_json(answer)
    else:
        show("\n".join(result.lines))
    return BAD_NEWS if result.status == "failed" else GOOD
