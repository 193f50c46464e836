# SPDX-License-Identifier: GPL-2.0-or-later
"""Makes a large host behave like one of 8 GB: a process holds the rest of the memory.

Default limits are shares of memory.  With 20 % of 24 GB a flood runs for eight
seconds before the first page of it is written back, of 256 GB it would be minutes,
and every run would have to wait for that.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Optional

from .remains import RigError

LEFT = 8 << 30  # bytes; more than the published host's 6 GB, enough for every scenario
WORTH = 2 << 30  # less is not worth the wait


HOLD = Path(__file__).with_name("hold.py")


def available() -> int:
    with open("/proc/meminfo") as file:
        fields = dict(line.split(":") for line in file)
    return int(fields["MemAvailable"].split()[0]) << 10


def left() -> int:
    """Bytes that a host has while the ballast is on it."""
    return min(LEFT, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


class Ballast:
    """A context manager; the memory is given back when it ends, or when this process does."""

    def __init__(self) -> None:
        self.bytes = max(0, available() - LEFT)
        self._process: Optional[subprocess.Popen[bytes]] = None

    def __enter__(self) -> Ballast:
        if self.bytes >= WORTH:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", sys.executable, "-I", "-S", str(HOLD),
                 str(self.bytes)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                start_new_session=True)
            assert self._process.stdout is not None
            if self._process.stdout.readline() != b"full\n":
                self.__exit__()
                raise RigError(f"{self.bytes >> 20} MB of memory cannot be held: end what uses "
                               "memory on this host, or what limits this process's")
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
