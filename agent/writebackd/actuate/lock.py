# SPDX-License-Identifier: GPL-2.0-or-later
"""Lock files held for a daemon's lifetime: of its runtime directory and of the host."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path
from typing import Optional

from writebackd.paths import LOCK

_POLL_S = 0.02
# Seconds to wait for a lock: a process that only checks for a daemon holds it for a moment.
LOOK_S = 0.16


class AlreadyRunning(Exception):
    """Another daemon runs on this host, or its settings cannot be restored yet."""


def take_lock(runtime_dir: Path, path: Optional[Path] = None) -> int:
    """A descriptor that holds the lock of this directory, or the one at `path`.

    Raises AlreadyRunning, which names the holder, or OSError.
    """
    fd = open_private(path or runtime_dir / LOCK)
    if not hold(fd, LOOK_S):
        holder = os.fsdecode(os.read(fd, 4096)).strip() or "unknown"
        os.close(fd)
        raise AlreadyRunning(f"writebackd is already running (pid {holder}): stop it first")
    try:
        os.ftruncate(fd, 0)
        os.write(fd, os.fsencode(f"{os.getpid()}, {runtime_dir}\n"))
    except OSError:  # read-only or full
        os.close(fd)
        raise
    return fd


def open_private(path: Path) -> int:
    """Open a lock file that only root can open; creates it if missing. Raises OSError.

    flock(2) also accepts a descriptor opened for reading, so anybody who can open the file can lock
    it.  The file is never replaced, since the lock belongs to the inode.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # enough for the way back
    try:
        os.fchmod(fd, 0o600)  # an earlier version may have made it readable for all
    except OSError:
        os.close(fd)
        raise
    return fd


def is_locked(runtime_dir: Path) -> Optional[bool]:
    """Whether a daemon runs, with or without a socket: it holds the lock until all is restored.

    None without permission to check.  On other errors (ENFILE, ENOMEM) True, since one may run: the
    caller does nothing, or restores and keeps the ledger.
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
    """Take the file's lock until the descriptor is closed; False if another process keeps it."""
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
    """Whether another descriptor holds the lock of this file."""
    if hold(fd):
        fcntl.flock(fd, fcntl.LOCK_UN)
        return False
    return True
