# SPDX-License-Identifier: GPL-2.0-or-later
"""Where the daemon and the command line meet."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Optional

RUNTIME_DIR = Path("/run/writebackd")
STATE_DIR = Path("/var/lib/writebackd")
# Of the collector, a service of its own: no directory that the daemon owns.
RAID = "/run/writebackd-raid/raid.json"
OFF_ON_DISK = "/etc/writebackd/off"  # the same, over a reboot

# In the runtime directory:
SOCKET = "control.sock"
METRICS = "metrics.sock"  # speaks HTTP
LEDGER = "ledger.json"
LOCK = "lock"  # flock()ed by the daemon as long as it lives
LEASE = "lease"  # written by the daemon; flock()ed by whoever restores
OFF = "off"  # the kill switch
WATCH = "watch"  # written by the watcher, and flock()ed as long as it lives
TAKEN = "class"  # name of the policy that was last taken without being named; gone with the boot
# In RUNTIME_DIR whatever --runtime-dir says, for they belong to the host:
HOST_LOCK = "host.lock"  # flock()ed by the daemon as long as it lives
IN_USE = "in-use"  # the runtime directory of the daemon that started last
FIRST = "first-found.json"  # the limits before the first write since boot
# In the state directory:
HISTORY = "history.db"
LEARNED = "learned.json"
SAMPLES = "samples"  # a directory


def read_taken(runtime_dir: Path) -> Optional[str]:
    """Name of the policy taken earlier since boot; None when there is none, or no telling."""
    try:
        with open(runtime_dir / TAKEN, encoding="utf-8", errors="replace") as file:
            return file.read(256).strip()
    except OSError:
        return None


def runtime_dir_in_use(host_dir: Path = RUNTIME_DIR) -> Path:
    """Where the daemon that started last has its socket, or left its ledger; else `host_dir`.

    Below /tmp anybody may make a directory of that name once it is gone: it counts only
    while it belongs to the owner of the record, and nobody else may write there.
    """
    try:
        with open(host_dir / IN_USE, "rb") as file:
            owner, found = os.fstat(file.fileno()).st_uid, Path(os.fsdecode(file.read(4096)))
        there = os.lstat(found)
        if there.st_uid == owner and not there.st_mode & 0o022:
            if (found / SOCKET).exists() or (found / LEDGER).exists():
                return found
    except OSError:
        pass
    return host_dir
