# SPDX-License-Identifier: GPL-2.0-or-later
"""One daemon per host: the lock, and the limits from before the first daemon.

Two daemons would take each other's limits for the host's originals.  Lock and records are in a
fixed directory below the root whose kernel files are written.
"""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import asdict
from pathlib import Path
from typing import List, Optional

from writebackd.actuate.ledger import boot_id, parse_json, parse_limits, save_json, write_whole
from writebackd.actuate.ledger_restore import restore_left
from writebackd.actuate.lock import AlreadyRunning, is_locked, take_lock
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.vm import in_words, read_limits
from writebackd.paths import FIRST, HOST_LOCK, IN_USE, LEDGER, RUNTIME_DIR, runtime_dir_in_use
from writebackd.types.levers import VmLimits

log = logging.getLogger(__name__)


class HostLock:
    """Held for the daemon's lifetime, also in observe mode, since it may enforce at any time."""

    def __init__(self, files: KernelFiles, runtime_dir: Path) -> None:
        """Restores first the settings of a daemon with another runtime directory.

        Raises AlreadyRunning, OSError or ValueError.
        """
        self._files = files
        self._dir = _host_dir(files)
        self._dir.mkdir(mode=0o755, parents=True, exist_ok=True)
        self._runtime_dir = runtime_dir.resolve()
        self._first_kept = False
        self._fds: List[int] = []
        try:
            self._fds.append(take_lock(runtime_dir, self._dir / HOST_LOCK))
            _settle(files, self._dir, self._runtime_dir)
            self._fds.append(take_lock(runtime_dir))
            write_whole(self._dir / IN_USE, os.fsencode(self._runtime_dir))
        except (AlreadyRunning, OSError, ValueError):
            self._unlock()
            raise

    def keep_first(self, limits: VmLimits) -> None:
        """Call before every write; saves once per boot. Raises OSError."""
        if self._first_kept:
            return
        if first_found(self._files) is None:
            body = {"boot_id": boot_id(self._files), "limits": asdict(limits)}
            save_json(self._dir / FIRST, body)
        self._first_kept = True

    def close(self) -> None:
        """Release the lock; remove the record if no setting is in force. Never raises."""
        if not (self._runtime_dir / LEDGER).exists():
            with contextlib.suppress(OSError):
                os.unlink(self._dir / IN_USE)
        self._unlock()

    def _unlock(self) -> None:
        for fd in self._fds:
            os.close(fd)


def first_found(files: KernelFiles) -> Optional[VmLimits]:
    """The limits before the first write of any writebackd since boot; None if none wrote."""
    try:
        body = parse_json((_host_dir(files) / FIRST).read_bytes())
        limits, boot = parse_limits(body["limits"]), body["boot_id"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    now = boot_id(files)
    return None if now and boot and now != boot else limits


def _host_dir(files: KernelFiles) -> Path:
    return files.path(str(RUNTIME_DIR))


def _settle(files: KernelFiles, host_dir: Path, runtime_dir: Path) -> None:
    """Restore limits recorded in another run's ledger: these are not the host's originals."""
    last = runtime_dir_in_use(host_dir).resolve()
    if last == runtime_dir:
        _refuse_unknown(files, host_dir, runtime_dir)
        return
    if is_locked(last):  # an earlier release, without a host lock
        raise AlreadyRunning(f"writebackd is already running ({last}): stop it first")
    if not (last / LEDGER).exists():
        _refuse_unknown(files, host_dir, runtime_dir)
        return
    try:
        result = restore_left(files, last)
        good, told = result.status != "failed", "; ".join(result.lines)
    except OSError as error:  # read-only in the unit's view of the host
        good, told = False, f"{error}; try `sudo writebackctl restore`"
    if not good:
        raise AlreadyRunning(
            f"cannot restore the limits of an earlier writebackd ({last}): {told}"
        )
    log.warning("limits of an earlier writebackd restored from %s: %s", last / LEDGER, told)


def _refuse_unknown(files: KernelFiles, host_dir: Path, runtime_dir: Path) -> None:
    """Refuse if the ledger of a killed daemon is not visible, as with PrivateTmp= in its unit."""
    record = host_dir / IN_USE
    try:
        last = Path(os.fsdecode(record.read_bytes()))
    except FileNotFoundError:
        return
    first = first_found(files)
    if last == runtime_dir or first is None or read_limits(files) == first:
        return
    if not last.is_dir() or (last / LEDGER).exists():
        raise AlreadyRunning(
            f"an earlier writebackd did not exit cleanly, and its ledger in {last} cannot be"
            " used here: `sudo writebackctl restore`, or with --first-found for"
            f" {in_words(first)}; if the limits are your own, remove {record}"
        )
