# SPDX-License-Identifier: GPL-2.0-or-later
"""Writes files as root safely: replaced in one step, with a checksum, or for root and group adm."""

from __future__ import annotations

import contextlib
import json
import os
import re
import zlib
from pathlib import Path
from typing import Any, Dict, Optional

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


# A ledger has about 400 bytes plus 200 for each other lever, what is learned of a disk 600, and of
# 4 096 arrays of many disks each some KB.
MOST_BYTES = 16 << 20


def save_json(path: Path, body: Dict[str, Any]) -> None:
    """Save `body` with a checksum, for `load_json`. Raises OSError."""
    write_atomically(path, _text(with_checksum(body)).encode() + b"\n")


def load_json(path: Path) -> Optional[Dict[str, Any]]:
    """What `save_json` saved; None without a file. Raises OSError, ValueError or KeyError."""
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES)
    except FileNotFoundError:
        return None
    return checked(json.loads(data.decode("ascii")))


def with_checksum(body: Dict[str, Any]) -> Dict[str, Any]:
    return {**body, "crc32": _checksum(body)}


def checked(body: Any) -> Dict[str, Any]:
    """The body that `with_checksum` gave. Raises ValueError or KeyError."""
    if not isinstance(body, dict):
        raise ValueError("not a JSON object")
    if body["crc32"] != _checksum(body):
        raise ValueError("the checksum does not fit")
    return body


def _checksum(body: Dict[str, Any]) -> str:
    """Detects a flipped bit in a number, which would still be valid JSON."""
    text = _text({key: body[key] for key in body if key != "crc32"})
    return f"{zlib.crc32(text.encode()):08x}"


def _text(body: Dict[str, Any]) -> str:
    """As json.dumps, which would hold the interpreter's lock for all of it: a tick waits."""
    return "".join(json.JSONEncoder(sort_keys=True).iterencode(body))


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
