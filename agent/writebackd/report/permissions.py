# SPDX-License-Identifier: GPL-2.0-or-later
"""File modes for files that name processes of all users: root and group adm."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Optional

MODE = 0o640
_GROUPS = Path("/etc/group")  # not through NSS, which may ask the network


def for_admins(path: Path) -> None:
    """Mode 0640 and group adm, where there is one. Raises OSError where the mode cannot be set."""
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
    found = re.search(r"^adm:[^:\n]*:([0-9]{1,9}):", text, re.MULTILINE)
    return int(found.group(1)) if found else None
