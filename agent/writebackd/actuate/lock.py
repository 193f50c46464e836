# SPDX-License-Identifier: GPL-2.0-or-later
"""One daemon per runtime directory: two would fight over the same limits."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from writebackd.paths import LOCK


class AlreadyRunning(Exception):
    """Another daemon holds the lock of this runtime directory."""


def take_lock(runtime_dir: Path) -> int:
    """A file descriptor that holds the directory's lock; AlreadyRunning names the holder."""
    path = runtime_dir / LOCK
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.read(fd, 32).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise AlreadyRunning(
            f"writebackd is running already (pid {holder}, {runtime_dir}): "
            "stop it first, or use --runtime-dir"
        ) from None
    os.ftruncate(fd, 0)
    os.write(fd, f"{os.getpid()}\n".encode())
    return fd
