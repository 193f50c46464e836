# SPDX-License-Identifier: GPL-2.0-or-later
"""Replaces a file atomically: readers see the old contents or the new."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_atomically(path: Path, data: bytes, for_all: bool = True) -> None:
    """Put `data` in the place of what is there, readable for all or as the umask has it.

    Raises OSError, and leaves nothing of its own behind then.
    """
    temporary = path.with_name(f".{path.name}.new")
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        # Never through a link that somebody has put there: who may write to the directory could
        # have root write elsewhere.
        with open(temporary, "xb", opener=_open) as file:
            file.write(data)
            if for_all:
                os.fchmod(file.fileno(), 0o644)
        # No fsync, as in the history: it would count as the demand that we
        # look for.  A crash of the host may cost the file.
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o644)
