# SPDX-License-Identifier: GPL-2.0-or-later
"""A file replaced as a whole: whoever reads it meanwhile has the old one, or the new one."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_over(path: Path, data: bytes) -> None:
    """Put `data` in the place of what is there, readable for all.

    Raises OSError, and leaves nothing of its own behind then.
    """
    temporary = path.with_name(path.name + ".new")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), 0o644)
        # No fsync, as in the history: it would count as the demand that we
        # look for.  A crash of the host may cost the file.
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
