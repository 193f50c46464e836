# SPDX-License-Identifier: GPL-2.0-or-later
"""The kernel settings that are written, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Optional


@dataclass(frozen=True)
class VmLimits:
    """The four files of the global pair; in each pair the form not in use is 0."""

    dirty_bytes: int
    dirty_ratio: int
    dirty_background_bytes: int
    dirty_background_ratio: int


@dataclass(frozen=True)
class ForeignWrite:
    """Somebody else changed a lever; the writer's fields are None when unknown.

    `lever` is a file of the global pair, or kind, target and name as in Setting.
    """

    lever: str
    value: str
    pid: Optional[int] = None
    comm: Optional[str] = None
    cgroup_id: Optional[int] = None
    cgroup: Optional[str] = None  # path below the v2 root; None: gone by now
    cmdline: Optional[str] = None  # its start; for root, as only root writes levers

    @property
    def who(self) -> str:
        """The writer in words, which everybody may read: without its command line."""
        if self.pid is None:
            return "an unknown process"
        return f"{self.comm} (pid {self.pid}, cgroup {self.cgroup or 'gone'})"

    @property
    def is_limit(self) -> bool:
        """Whether it was the global pair; any other lever is let go alone, at once."""
        return self.lever in VmLimits.__dataclass_fields__


@dataclass(frozen=True)
class Intrusion:
    """A lever that was let go because somebody else set it; until `enforce`."""

    write: ForeignWrite
    wall_s: float


@dataclass(frozen=True)
class Action:
    """One write to a kernel file and what came of it."""

    lever: str
    old: str
    new: str
    ok: bool
    error: Optional[str] = None


class LeverKind(Enum):
    """The levers beside the global pair; see Setting for what a target is."""

    FLUSH = "flush"
    BDI = "bdi"
    QUEUE = "queue"
    PACE = "pace"
    CACHE = "cache"


@dataclass(frozen=True)
class Setting:
    """A lever beside the global pair, and the value that it shall have.

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
    """A lever beside the global pair that holds a value of ours; all in the units of Setting."""

    kind: LeverKind
    target: str
    name: str
    value: Optional[int]  # what was written last; None: no limit
    original: Optional[int]  # what it goes back to; None: no limit
