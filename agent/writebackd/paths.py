# SPDX-License-Identifier: GPL-2.0-or-later
"""Paths of files and directories, and checks which of them root may trust."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Optional

RUNTIME_DIR = Path("/run/writebackd")
STATE_DIR = Path("/var/lib/writebackd")
CACHE_DIR = Path("/var/cache/writebackd")  # the probe, as compiled for a kernel
# Of the collector, a service of its own: no directory that the daemon owns.
RAID = "/run/writebackd-raid/raid.json"
CACHES = "/run/writebackd-raid/caches.json"
OFF_ON_DISK = "/etc/writebackd/off"  # the same, over a reboot

# In the runtime directory:
SOCKET = "control.sock"
METRICS = "metrics.sock"  # speaks HTTP
LEDGER = "ledger.json"
LOCK = "lock"  # flock()ed by the daemon as long as it lives
LEASE = "lease"  # written by the daemon; flock()ed by whoever restores
OFF = "off"  # the kill switch
WATCH = "watch"  # written by the watcher, and flock()ed as long as it lives
ORDERS = "orders.json"  # of verbs, and a yield: what a restart does not end
TAKEN = "class"  # name of the policy that was last taken without being named; gone with the boot
# In RUNTIME_DIR whatever --runtime-dir says, for they belong to the host:
HOST_LOCK = "host.lock"  # flock()ed by the daemon as long as it lives
IN_USE = "in-use"  # the runtime directory of the daemon that started last
FIRST = "first-found.json"  # the limits before the first write since boot
# In the state directory:
HISTORY = "history.db"
LEARNED = "learned.json"
CALIBRATIONS = "calibrations.json"
SAMPLES = "samples"  # a directory

_MOST_LINKS = 40  # that the kernel follows


def others_may_change(
    path: Path, top: Path = Path("/"), sticky: bool = False, place: str = "/usr/local/sbin"
) -> Optional[str]:
    """Who but root (or we) may write a file or put another in its place, and the remedy; None:
    nobody. Of a path without links; of one with links, who may change those. Raises OSError.

    `top` and the directories above it are trusted. `sticky`: so are sticky directories above
    `path`, like /tmp, where users cannot replace root's files, but can create missing ones. `place`
    is where the remedy sends files in other people's directories, which must keep their owners.
    """
    directories = list(reversed(path.parents))
    if top in directories:
        directories = directories[directories.index(top) :]
    moving = f"move {path} to where root alone may write, such as {place}"
    for directory in (*directories, path):
        status = directory.lstat()
        if status.st_uid not in (0, os.geteuid()):
            remedy = moving if directory != path else f"chown -h root {directory}"
            return f"uid {status.st_uid} owns {directory}: {remedy}"
        wide = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not stat.S_ISLNK(status.st_mode)
        safe = sticky and directory != path and status.st_mode & stat.S_ISVTX
        if wide and not safe:
            remedy = moving if directory != path else f"chmod go-w {directory}"
            return f"others than root may write {directory}: {remedy}"
    return None


def others_may_choose(path: str, place: str = "/usr/local/sbin") -> Optional[str]:
    """As `others_may_change`, for a path named by root, with all its links. Raises OSError."""
    at = Path.cwd() / path
    for _ in range(_MOST_LINKS):
        why = others_may_change(at, sticky=True, place=place)
        link = next((parent for parent in reversed((at, *at.parents)) if parent.is_symlink()), None)
        if why or link is None:
            return why
        at = link.parent / os.readlink(link) / at.relative_to(link)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)


def read_taken(runtime_dir: Path) -> Optional[str]:
    """Name of the policy chosen earlier since boot; None if there is none, or it is unknown."""
    try:
        with open(runtime_dir / TAKEN, encoding="utf-8", errors="replace") as file:
            return file.read(256).strip()
    except OSError:
        return None


def runtime_dir_in_use(host_dir: Path = RUNTIME_DIR) -> Path:
    """The directory of the last daemon's socket or ledger, else `host_dir`.

    Below /tmp any user may create a directory of that name once it is gone: it counts only
    while the owner of the record owns it, and no other user may write there.
    """
    try:
        with open(host_dir / IN_USE, "rb") as file:
            owner, path = os.fstat(file.fileno()).st_uid, Path(os.fsdecode(file.read(4096)))
        there = os.lstat(path)
        if there.st_uid == owner and not there.st_mode & 0o022:
            if (path / SOCKET).exists() or (path / LEDGER).exists():
                return path
    except OSError:
        pass
    return host_dir
