# SPDX-License-Identifier: GPL-2.0-or-later
"""The limits before the first write since boot, and who runs, also across mount namespaces.

A daemon in a mount namespace of its own may have a /run of its own.  So both are also kept in the
kernel: as extended attributes of a directory in sysfs, which only CAP_SYS_ADMIN can read or set and
which end with the boot, and as a lock of a file that only root can open.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Callable, Dict, Optional, Tuple

from writebackd.actuate.ledger import (
    Ledger,
    LedgerError,
    boot_id,
    checked,
    is_other_boot,
    load,
    load_json,
    parse_limits,
    save_json,
    with_checksum,
)
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.vm import read_limits
from writebackd.paths import FIRST, IN_USE, RUNTIME_DIR
from writebackd.types.levers import VmLimits

_SYSFS = "/sys/devices"
_PREFIX = "trusted.writebackd."
KERNEL_LOCK = "/proc/sys/vm/drop_caches"  # it is never written


def first_found(files: KernelFiles) -> Optional[VmLimits]:
    """The limits before the first write of any writebackd since boot; None if none wrote."""
    path = files.path(str(RUNTIME_DIR / FIRST))
    attribute = get_attribute(files, FIRST)
    sources: Tuple[Callable[[], Optional[Dict[str, Any]]], ...] = (
        lambda: load_json(path), lambda: checked(json.loads(attribute or b"null")),
    )  # fmt: skip
    for read in sources:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            body = read()
            if body is not None and not is_other_boot(files, body["boot_id"]):
                return parse_limits(body["limits"])
    return None


def keep_first(files: KernelFiles, limits: VmLimits) -> None:
    """Save the limits, unless they are of an earlier run. Raises OSError."""
    if first_found(files) is None:
        body = {"boot_id": boot_id(files), "limits": asdict(limits)}
        save_json(files.path(str(RUNTIME_DIR / FIRST)), body)
        set_attribute(files, FIRST, json.dumps(with_checksum(body)).encode())


def load_or_first(files: KernelFiles, path: Path) -> Tuple[Optional[Ledger], Tuple[str, ...]]:
    """The ledger, or if that is damaged one that restores `first_found`; lines for display.

    Raises LedgerError if neither can be used.
    """
    try:
        return load(path), ()
    except LedgerError as error:
        first = first_found(files)
        if first is None:
            raise
        try:
            limits = read_limits(files)
        except (OSError, ValueError):
            raise error from None
        written = ((limits.dirty_bytes, limits.dirty_background_bytes),)
        ledger = Ledger(boot_id(files), os.getpid(), time.time(), "restore", first, written)
        line = (
            f"{path} {error.problem}: the limits from before the first write since boot are used,"
            " other settings are not known"
        )
        return ledger, (line,)


def last_in_use(files: KernelFiles) -> Optional[Path]:
    """The runtime directory of a daemon that did not exit cleanly."""
    try:
        return Path(os.fsdecode(files.path(str(RUNTIME_DIR / IN_USE)).read_bytes()))
    except FileNotFoundError:
        value = get_attribute(files, IN_USE)
        return Path(os.fsdecode(value)) if value else None


def get_attribute(files: KernelFiles, name: str) -> Optional[bytes]:
    with contextlib.suppress(OSError):
        return os.getxattr(files.path(_SYSFS), _PREFIX + name)
    return None


def set_attribute(files: KernelFiles, name: str, value: Optional[bytes]) -> None:
    """None: remove it.  Without the right to, the file in /run is all there is."""
    with contextlib.suppress(OSError):
        if value is not None:
            os.setxattr(files.path(_SYSFS), _PREFIX + name, value)
        else:
            os.removexattr(files.path(_SYSFS), _PREFIX + name)
