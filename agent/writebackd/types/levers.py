# SPDX-License-Identifier: GPL-2.0-or-later
"""Kernel settings that are written, and the results."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Optional

from writebackd.types.quantities import Bytes, Count


@dataclass(frozen=True)
class VmLimits:
    """The four files of the global limits; of bytes and ratio, the unused one is 0."""

    dirty_bytes: Bytes
    dirty_ratio: Count
    dirty_background_bytes: Bytes
    dirty_background_ratio: Count


# Programs by which people write to /proc/sys.
_TYPED = ("sysctl", "bash", "sh", "dash", "zsh", "fish", "ksh", "tee", "dd")


@dataclass(frozen=True)
class ForeignWrite:
    """A lever changed by another process; the writer's fields are None if unknown.

    `lever` is a file of the global pair, or kind, target and name as in Setting.
    """

    lever: str
    value: str
    pid: Optional[int] = None
    comm: Optional[str] = None
    cgroup_id: Optional[int] = None
    cgroup: Optional[str] = None  # path below the v2 root; None: it no longer exists
    cmdline: Optional[str] = None  # the beginning of it; shown to root only
    original: bool = False  # the value is what was found before the first write
    ours: bool = False  # it is a limit that writebackd had set before, and the writer found
    place: Optional[str] = None  # file:line that sets this value at boot

    @property
    def who(self) -> str:
        """The writer in words; without its command line, since everybody may read it."""
        if self.pid is None:
            return "an unknown process"
        return f"{self.comm} (pid {self.pid}, cgroup {self.cgroup or 'gone'})"

    @property
    def typed(self) -> bool:
        """Whether a person wrote it, in a login session, and no tool."""
        return self.comm in _TYPED and (self.cgroup or "").startswith("/user.slice/")

    @property
    def is_limit(self) -> bool:
        """Whether it is one of the global limits; any other lever is released on its own."""
        return self.lever in VmLimits.__dataclass_fields__


@dataclass(frozen=True)
class Intrusion:
    """A lever released because another process set it; until `enforce`."""

    write: ForeignWrite
    wall_s: float


@dataclass(frozen=True)
class Action:
    """One write to a kernel file, and its result."""

    lever: str
    old: str
    new: str
    ok: bool
    error: Optional[str] = None


class LeverKind(Enum):
    """Kinds of levers other than the global limits; Setting explains their targets.

    FLUSH and QUEUE are those of an earlier release: only restored, from its ledger.
    """

    FLUSH = "flush"
    BDI = "bdi"
    QUEUE = "queue"
    PACE = "pace"
    CACHE = "cache"


@dataclass(frozen=True)
class Setting:
    """A lever other than the global limits, and the value to set.

    kind   target                        name                          value
    flush  "vm"                          dirty_writeback_centisecs     1/100 s
    bdi    name under /sys/class/bdi     max_bytes, min_bytes,         bytes; 0 or 1
                                         strict_limit
    queue  kernel name of a disk         nr_requests, max_sectors_kb   requests; KiB
    pace   cgroup path below the root    devno of a disk "8:0"         bytes per second
           ("/system.slice/x.service")                                 (io.max wbps)
    cache  kernel name of a bcache       writeback_percent,            per cent;
                                         writeback_delay,              seconds;
                                         writeback_rate_minimum        sectors per second
    """

    kind: LeverKind
    target: str
    name: str
    value: int


@dataclass(frozen=True)
class HeldLever:
    """A lever other than the global limits that writebackd has set; units as in Setting."""

    kind: LeverKind
    target: str  # vm; a name under /sys/class/bdi; a disk; the path of a cgroup
    name: str  # of the file, in bytes where it says so; of a pace the disk's major:minor
    value: Optional[Count]  # the last value written, of a pace bytes per second; None: no limit
    original: Optional[Count]  # the value to restore; None: no limit
