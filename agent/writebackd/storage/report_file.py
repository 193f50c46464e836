# SPDX-License-Identifier: GPL-2.0-or-later
"""The report file, written by the collector as root and read by the confined daemon.

It is read strictly: only root can have written it, but its content comes from other programs, and
must not crash the daemon.
"""

from __future__ import annotations

import dataclasses
import json
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Optional, Tuple

from writebackd import __version__
from writebackd.kernel.files import KernelFiles
from writebackd.safe_files import write_atomically
from writebackd.storage.tool_output import Controller, Name, ToolError, read_json
from writebackd.types.codec import unpack
from writebackd.types.quantities import Seconds, Time

VERSION = 1
# 64 controllers with 1 024 volumes each would be 5 MB; no host has that many of both.
MOST_FILE = 1 << 20
# Three turns of the timer, and the time that a run may take.
STALE_S = 35 * 60.0


@dataclass(frozen=True)
class Tool:
    """The answer of one tool, or why there is none."""

    name: Name
    path: Name
    error: Optional[Name] = None
    controllers: Tuple[Controller, ...] = ()


@dataclass(frozen=True)
class CollectorReport:
    """One run of the collector."""

    wall_s: Time  # when it began
    boottime_s: Seconds  # the same, CLOCK_BOOTTIME: how old it is, whatever became of the clock
    boot_id: Name
    release: Name  # of writebackd
    tools: Tuple[Tool, ...] = ()
    version: int = VERSION
    awake_s: Optional[Seconds] = None  # when it began, CLOCK_MONOTONIC: without suspended time


def begun(files: KernelFiles) -> CollectorReport:
    """A report that starts now."""
    return CollectorReport(
        wall_s=time.time(),
        boottime_s=time.clock_gettime(time.CLOCK_BOOTTIME),
        boot_id=files.try_read("/proc/sys/kernel/random/boot_id") or "",
        release=__version__,
        awake_s=time.clock_gettime(time.CLOCK_MONOTONIC),
    )


def encode(report: CollectorReport) -> bytes:
    plain = dataclasses.asdict(report)
    text = json.dumps(plain, default=lambda member: member.value, separators=(",", ":"))
    return text.encode() + b"\n"


def decode(data: bytes) -> CollectorReport:
    """Reverse `encode`. Raises ToolError."""
    if len(data) > MOST_FILE:
        raise ToolError(f"more than {MOST_FILE >> 10} KB")
    try:
        plain = read_json(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise ToolError("no text") from None
    if not isinstance(plain, dict) or plain.get("version") != VERSION:
        raise ToolError(f"not of version {VERSION}")
    try:
        return unpack(CollectorReport, plain)
    except ValueError as error:
        raise ToolError(str(error)) from None


def write(report: CollectorReport, path: Path) -> None:
    """Raises OSError."""
    write_atomically(path, encode(report))


def read(path: Path, owner: int = 0) -> CollectorReport:
    """The report, which only `owner` may be able to write. Raises ToolError, OSError."""
    # A fifo put there would hold an open() for ever.
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ToolError("no file")
        if status.st_uid != owner or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ToolError(f"uid {owner} is not the only one who may write it")
        return decode(file.read(MOST_FILE + 1))
