# SPDX-License-Identifier: GPL-2.0-or-later
"""The verb watch: the watcher as a service of its own (writebackd-watch.service)."""

from __future__ import annotations

import argparse
import contextlib
import os
import socket

from writebackd.actuate.watcher import run
from writebackd.cli.exits import NOT_PERMITTED, CommandError


def watch(options: argparse.Namespace) -> int:
    """Until told to end; beside another watcher it waits for its turn."""
    if os.geteuid() != 0:
        raise CommandError("watch needs root: it is for writebackd-watch.service", NOT_PERMITTED)
    return run(options.runtime_dir, stay=True, ready=_ready)


def _ready() -> None:
    """sd_notify(READY=1), when systemd listens; python3-systemd would be 2 MB more."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock, contextlib.suppress(OSError):
        sock.sendto(b"READY=1", "\0" + address[1:] if address[0] == "@" else address)
