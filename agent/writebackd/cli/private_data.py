# SPDX-License-Identifier: GPL-2.0-or-later
"""Removes private data from a bug report: secrets, addresses, names of hosts and people.

Each is replaced by ``***``.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any, Optional, Tuple

from writebackd.kernel.argv_redaction import MASK, SECRET, redacted_text
from writebackd.kernel.files import KernelFiles

# Group 1 stays.  Of a unit name@instance.service and of file:// nothing is left out.
_PATTERNS = tuple(re.compile(pattern, re.IGNORECASE | re.MULTILINE) for pattern in (
    r"^(\s*(?:[#;][ \t]*)?(?:Environment|PassEnvironment|UnsetEnvironment"
    r"|(?:Set|Load)Credential(?:Encrypted)?)\s*=)(?=.).*$",
    r"""\b((?!file:)[a-z][a-z0-9+.-]{1,20}://)(?!/)[^\s"'<>\\]+""",
    r"()[\w.%+-]+@[a-z0-9-]+(?:\.[a-z0-9-]+)*\.(?!service|scope|slice|socket|mount|timer)[a-z]{2,}",
    r"\b()[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b",
    r"\b()(?:naa\.|eui\.|nvme\.|wwn-0x|0x)[0-9a-f]{16,64}\b",
    r"(?<![\w.-])()\d{1,3}(?:\.\d{1,3}){3}(?![\w-]|\.\d)",
    # IPv6 and MAC: a time of day has two colons.
    r"(?<![\w:.])()(?:[0-9a-f]{0,4}:){3,7}[0-9a-f]{0,4}(?![\w:])",
    r"(/by-(?:id|uuid|label)/)[^\s,\"']+",
    # Wherever home directories are: /var/home, /export/home, a subvolume.
    r"((?:/@?home|(?<![\w/])(?:/run)?/media)/)[^/\s:,\"']+",
))  # fmt: skip
_SHORTEST_NAME = 3


class PrivateData:
    """The private data of one host, and how often they were removed."""

    def __init__(self, files: KernelFiles) -> None:
        self.count = 0
        names = {os.uname().nodename, files.try_read("/etc/hostname") or ""}
        names |= {name.split(".")[0] for name in names}
        # Installers name volume groups after the host; device-mapper doubles each '-' of it.
        known = "|".join(
            "-+".join(map(re.escape, name.split("-")))
            for name in sorted(names, key=len, reverse=True)
            if len(name) >= _SHORTEST_NAME and name != "localhost"
        )
        host = re.compile(rf"(?<![^\W_])()(?:{known or '(?!)'})(?![^\W_])", re.IGNORECASE)
        self._patterns = (*_PATTERNS, host)

    def without(self, text: str) -> str:
        """The text without private data."""
        rest = redacted_text(text)
        for pattern in self._patterns:
            rest = pattern.sub(rf"\g<1>{MASK}", rest)
        self.count += max(0, rest.count(MASK) - text.count(MASK))
        return rest

    def document(self, text: str, indent: Optional[int] = None) -> str:
        """JSON without private data in its strings, still JSON; other text as `without`."""
        try:
            return json.dumps(self._value(json.loads(text)), indent=indent)
        except (ValueError, RecursionError):
            return self.without(text)

    def _value(self, value: Any) -> Any:
        if isinstance(value, dict):
            return dict(map(self._item, value.items()))
        if isinstance(value, list):
            return [self._value(each) for each in value]
        return self.without(value) if isinstance(value, str) else value

    def _item(self, item: Tuple[str, Any]) -> Tuple[str, Any]:
        name, value = item
        if (SECRET.search(name) or name == "wwn") and value not in (None, ""):
            self.count += 1
            return name, MASK
        # Names of fields stay whatever the host is called.
        return name, self._value(value)
