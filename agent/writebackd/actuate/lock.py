# SPDX-License-Identifier: GPL-2.0-or-later
"""Lock files held for the life of a daemon: of its runtime directory, and of the host."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Optional

from writebackd.paths import LOCK

_POLL_S = 0.02
# Who only looks whether somebody lives holds the lock for a moment.
LOOK_S = 0.16


class AlreadyRunning(Exception):
    """Another daemon lives on this host, or what it set cannot be restored yet."""


def take_lock(runtime_dir: Path, path: Optional[Path] = None) -> int:
    """A descriptor that holds the lock of this directory, or the one at `path`.

    Raises AlreadyRunning, which names the holder, or OSError.
    """
    fd = open_private(path or runtime_dir / LOCK)
    if not hold(fd, LOOK_S):
        holder = os.fsdecode(os.read(fd, 4096)).strip() or "unknown"
        os.close(fd)
        raise AlreadyRunning(f"writebackd is already running (pid {holder}): stop it first")
    os.ftruncate(fd, 0)
    os.write(fd, os.fsencode(f"{os.getpid()}, {runtime_dir}\n"))
    return fd


def open_private(path: Path) -> int:
    """A file whose lock is nobody else's business, made where it is missing. Raises OSError.

    flock(2) takes a descriptor for reading as well: who can open it can hold it.  Never
    replaced by another file: its lock belongs to the inode.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(fd, 0o600)  # one of an earlier version may be readable for all
    except OSError:
        os.close(fd)
        raise
    return fd


def is_locked(runtime_dir: Path) -> Optional[bool]:
    """Whether a daemon lives, socket or not: it holds its lock until the limits are back.

    None for those who may not look.  Where that fails (ENFILE, ENOMEM) one may live: who
    asks keeps off, or restores and leaves the ledger.
    """
    try:
        with open(runtime_dir / LOCK, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except PermissionError:
        return None
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # EWOULDBLOCK among them
        return True
    return False


def hold(fd: int, wait_s: float = 0.0) -> bool:
    """Take the file's lock, until the descriptor is closed; False when another keeps it."""
    until = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            if time.monotonic() >= until:
                return False
        time.sleep(_POLL_S)


def is_held(fd: int) -> bool:
    """Whether some other descriptor holds the lock of this file."""
    if hold(fd):
        fcntl.flock(fd, fcntl.LOCK_UN)
        return False
    return True
