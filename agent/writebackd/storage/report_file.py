# SPDX-License-Identifier: GPL-2.0-or-later
"""The report file, written by the collector as root and read by the confined daemon.

It is read strictly: only root can have written it, but its content comes from other programs, and
must not crash the daemon.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import stat
import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Optional, Tuple, Union, get_args, get_origin, get_type_hints

from writebackd import __version__
from writebackd.formats import printable
from writebackd.kernel.files import KernelFiles
from writebackd.safe_files import write_atomically
from writebackd.storage.tool_output import MOST_NAME, MOST_VOLUMES, Controller, ToolError, read_json

VERSION = 1
# 64 controllers with 1 024 volumes each would be 5 MB; no host has that many of both.
MOST_FILE = 1 << 20
# Three turns of the timer, and the time that a run may take.
STALE_S = 35 * 60.0


@dataclass(frozen=True)
class Tool:
    """The answer of one tool, or why there is none."""

    name: str
    path: str
    error: Optional[str] = None
    controllers: Tuple[Controller, ...] = ()


@dataclass(frozen=True)
class CollectorReport:
    """One run of the collector."""

    wall_s: float  # when it began
    boottime_s: float  # the same, CLOCK_BOOTTIME: how old it is, whatever became of the clock
    boot_id: str
    release: str  # of writebackd
    tools: Tuple[Tool, ...] = ()
    version: int = VERSION
    awake_s: Optional[float] = None  # when it began, CLOCK_MONOTONIC: without suspended time


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
    """The format that `decode` reads."""
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
    report: CollectorReport = _fields(CollectorReport, plain, "report")
    return report


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


def _checked(kind: Any, value: Any, where: str) -> Any:
    """`value` as a `kind`, rebuilt. Raises ToolError naming the place."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Union:
        (inner,) = (arg for arg in args if arg is not type(None))
        return None if value is None else _checked(inner, value, where)
    if origin is tuple:
        if not isinstance(value, list) or len(value) > MOST_VOLUMES:
            raise ToolError(f"{where}: no list of at most {MOST_VOLUMES}")
        return tuple(_checked(args[0], item, f"{where}[{n}]") for n, item in enumerate(value))
    if dataclasses.is_dataclass(kind):
        return _fields(kind, value, where)
    if isinstance(kind, type) and issubclass(kind, Enum):
        members = {member.value: member for member in kind}
        if not isinstance(value, str) or value not in members:
            raise ToolError(f"{where}: none of {', '.join(members)}")
        return members[value]
    if kind is str and isinstance(value, str) and len(value) <= 4 * MOST_NAME:
        return printable(value)
    if kind is int and type(value) is int and 0 <= value < 1 << 63:
        return value
    if kind is float and type(value) in (int, float) and 0 <= value and math.isfinite(value):
        return float(value)
    raise ToolError(f"{where}: no {kind.__name__} that is possible")


def _fields(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise ToolError(f"{where}: no object")
    hints = _hints(kind)
    # What a later release adds is passed over: the version says what can be relied on.
    values = {
        name: _checked(hint, value[name], f"{where}.{name}")
        for name, hint in hints.items()
        if name in value
    }
    try:
        return kind(**values)
    except TypeError:
        missing = ", ".join(hints.keys() - values.keys())
        raise ToolError(f"{where}: without one of {missing}") from None


_hints = functools.lru_cache(maxsize=None)(get_type_hints)
