# SPDX-License-Identifier: GPL-2.0-or-later
"""Writes files as root safely: replaces them atomically, or keeps them for root and group adm."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Optional

MODE = 0o640  # of files that name processes of all users
_GROUPS = Path("/etc/group")  # not through NSS, which may ask the network


def write_atomically(path: Path, data: bytes, for_all: bool = True) -> None:
    """Replace `path`: readers see the old contents or the new; for all, or by the umask.

    Raises OSError, which names it, and then leaves no temporary file.
    """
    temporary = path.with_name(f".{path.name}.new")
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        # Never through a link: who may write to the directory could have root write elsewhere.
        with open(temporary, "xb", opener=_open) as file:
            file.write(data)
            if for_all:
                os.fchmod(file.fileno(), 0o644)
        # No fsync, as in the history: it would count as the demand that we look for.
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise OSError(error.errno, error.strerror, str(path)) from error


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o644)


def for_admins(path: Path) -> None:
    """Mode 0640 and group adm, if it exists. Raises OSError if the mode cannot be set."""
    os.chmod(path, MODE)
    gid = _adm()
    # The unit has no CAP_CHOWN, but is in this group.
    with contextlib.suppress(PermissionError):
        if gid is not None:
            os.chown(path, -1, gid)


def _adm() -> Optional[int]:
    try:
        text = _GROUPS.read_text(errors="replace")
    except OSError:
        return None
    match = re.search(r"^adm:[^:\n]*:([0-9]{1,9}):", text, re.MULTILINE)
    return int(match.group(1)) if match else None
