# SPDX-License-Identifier: GPL-2.0-or-later
"""One daemon per host: the lock, and the limits from before the first daemon.

Two daemons would take each other's limits for the host's originals.  Lock and records are in a
fixed directory below the root whose kernel files are written.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import List

from writebackd.actuate.ledger import (
    KERNEL_LOCK,
    first_found,
    keep_first,
    last_in_use,
    set_attribute,
)
from writebackd.actuate.ledger_restore import restore_left
from writebackd.actuate.lock import LOOK_S, AlreadyRunning, hold, take_lock
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.vm import in_words, read_limits
from writebackd.paths import HOST_LOCK, IN_USE, LEDGER, RUNTIME_DIR, runtime_dir_in_use
from writebackd.safe_files import write_atomically
from writebackd.types.levers import VmLimits

log = logging.getLogger(__name__)


class HostLock:
    """Held for the daemon's lifetime, also in observe mode, since it may enforce at any time."""

    def __init__(self, files: KernelFiles, runtime_dir: Path) -> None:
        """Restores first the settings of a daemon with another runtime directory.

        Raises AlreadyRunning, OSError or ValueError.
        """
        self._files = files
        self._dir = files.path(str(RUNTIME_DIR))
        self._dir.mkdir(mode=0o755, parents=True, exist_ok=True)
        self._runtime_dir = runtime_dir.resolve()
        self._first_kept = False
        self._fds: List[int] = []
        try:
            self._fds.append(take_lock(runtime_dir, self._dir / HOST_LOCK))
            self._lock_kernel()
            _settle(files, self._dir, self._runtime_dir)
            self._fds.append(take_lock(runtime_dir))
            write_atomically(self._dir / IN_USE, os.fsencode(self._runtime_dir))
            set_attribute(files, IN_USE, os.fsencode(self._runtime_dir))
        except (AlreadyRunning, OSError, ValueError) as error:
            self._unlock()
            if isinstance(error, OSError):  # /run is read-only or full: no run, but a way back
                with contextlib.suppress(AlreadyRunning, OSError):
                    log.error("%s", "; ".join(restore_left(files, runtime_dir).lines))
            raise

    def _lock_kernel(self) -> None:
        """Raises AlreadyRunning."""
        try:
            fd = os.open(self._files.path(KERNEL_LOCK), os.O_WRONLY | os.O_CLOEXEC)
        except OSError:  # read-only, as the limits then are
            return
        self._fds.append(fd)
        if not hold(fd, LOOK_S):
            raise AlreadyRunning(
                "writebackd is already running in another mount namespace: stop it first"
            )

    def keep_first(self, limits: VmLimits) -> None:
        """Call before every write; saves once per boot. Raises OSError."""
        if self._first_kept:
            return
        keep_first(self._files, limits)
        self._first_kept = True

    def close(self) -> None:
        """Release the lock; remove the record if no setting is in force. Never raises."""
        if not (self._runtime_dir / LEDGER).exists():
            with contextlib.suppress(OSError):
                os.unlink(self._dir / IN_USE)
            set_attribute(self._files, IN_USE, None)
        self._unlock()

    def _unlock(self) -> None:
        for fd in self._fds:
            os.close(fd)


def _settle(files: KernelFiles, host_dir: Path, runtime_dir: Path) -> None:
    """Restore limits recorded in another run's ledger: these are not the host's originals."""
    last = runtime_dir_in_use(host_dir).resolve()
    if last == runtime_dir or not (last / LEDGER).exists():
        _refuse_unknown(files, host_dir, runtime_dir)
        return
    try:
        result = restore_left(files, last)
        good, text = result.status != "failed", "; ".join(result.lines)
    except OSError as error:  # read-only in the unit's view of the host
        good, text = False, f"{error}; try `sudo writebackctl restore`"
    if not good:
        raise AlreadyRunning(
            f"cannot restore the limits of an earlier writebackd ({last}): {text}"
        )
    log.warning("limits of an earlier writebackd restored from %s: %s", last / LEDGER, text)


def _refuse_unknown(files: KernelFiles, host_dir: Path, runtime_dir: Path) -> None:
    """Refuse if the ledger of a killed daemon is not visible, as with PrivateTmp= in its unit."""
    record, last, first = host_dir / IN_USE, last_in_use(files), first_found(files)
    if last == runtime_dir and record.exists():
        return
    if last is None or first is None or read_limits(files) == first:
        return
    if not record.exists() or not last.is_dir() or (last / LEDGER).exists():
        raise AlreadyRunning(
            f"an earlier writebackd did not exit cleanly, and its ledger in {last} cannot be"
            " used here: `sudo writebackctl restore`, or with --first-found for"
            f" {in_words(first)}; if the limits are your own, remove {record}"
        )
