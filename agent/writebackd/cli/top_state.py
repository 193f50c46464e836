# SPDX-License-Identifier: GPL-2.0-or-later
"""What the screen of the verb top shows, and what its keys change."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Deque, Dict, List, Optional, Sequence

from writebackd.cli.output import Answer
from writebackd.cli.status_screen import urgency

if TYPE_CHECKING:
    from writebackd.cli.io_waits import Wait

# Points of a sparkline that are kept for each device: a wide terminal shows 60.
KEPT = 120
SORTS = ("state", "p99", "writes", "commits", "name")
KEYS = "q quit  s sort  g group  j/k scroll  space freeze  ? help"
SHORT_KEYS = "q quit  s sort  g group  space freeze  ? help"
HELP = (
    "q, Ctrl-C       quit",
    "s               sort the devices by: " + ", ".join(SORTS),
    "g               group writers and waiters by process or by cgroup",
    "j, k            scroll the devices; also with the arrow keys",
    "space           freeze the screen; again: go on",
    "Esc             leave this page",
    "",
    "p50, p99        of commits: an fsync and the sleep in write() before it",
    "sparkline       p99: each step is a factor of 3, from 0.1 ms up; a gap is a",
    "                tick without a commit",
    "cache           estimated fill of the write cache",
    "dirties         in whole folios: a write of 4 KB may count as up to 2 MB",
    "sleeps          share of the time that a writer slept for the dirty limit",
    "waits           seconds per second that all threads waited for block IO",
    "D               sleeps uninterruptibly at this moment",
)


@dataclass
class Top:
    """Everything the screen shows."""

    status: Optional[Answer] = None
    load: Optional[Answer] = None  # who dirties: the answer to the verb top
    waits: Sequence[Wait] = ()
    wait_note: Optional[str] = None
    problem: Optional[str] = None  # why the daemon does not answer now
    message: Optional[str] = None
    sort: str = SORTS[0]
    by_cgroup: bool = False
    frozen: bool = False
    helping: bool = False
    offset: int = 0  # devices scrolled away
    p99: Dict[str, Deque[Optional[float]]] = field(default_factory=dict)
    _last_s: Optional[float] = None

    def take(self, status: Answer, load: Answer) -> None:
        """Store a new answer; one of the same tick adds no point."""
        self.status, self.load, self.problem = status, load, None
        if status["time_s"] == self._last_s:
            return
        self._last_s = status["time_s"]
        names = {device["name"] for device in status["devices"]}
        self.p99 = {name: points for name, points in self.p99.items() if name in names}
        for device in status["devices"]:
            points = self.p99.setdefault(device["name"], deque(maxlen=KEPT))
            points.append(device["commit_p99_s"])

    @property
    def devices(self) -> List[Answer]:
        """Sorted; equal devices keep the daemon's order."""
        rows = list(self.status["devices"]) if self.status else []
        return sorted(rows, key=_SORT_KEYS[self.sort])

    def press(self, key: str) -> bool:
        """Handle a key: returns whether to continue."""
        self.message = None
        if key == "\x03" or (key in ("q", "Q") and not self.helping):
            return False
        if self.helping:
            self.helping = False
        elif key in _ACTIONS:
            _ACTIONS[key](self)
        return True

    def _sort(self) -> None:
        self.sort = SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)]
        self.offset = 0
        self.message = f"devices sorted by {self.sort}"

    def _group(self) -> None:
        self.by_cgroup = not self.by_cgroup

    def _freeze(self) -> None:
        self.frozen = not self.frozen

    def _help(self) -> None:
        self.helping = True

    def _scroll(self, by: int) -> None:
        last = max(0, len(self.status["devices"]) - 1) if self.status else 0
        self.offset = min(max(0, self.offset + by), last)


_SORT_KEYS: Dict[str, Callable[[Answer], Any]] = {
    "state": urgency,
    "p99": lambda device: -(device["commit_p99_s"] or 0.0),
    "writes": lambda device: -(device["write_rate"] or 0.0),
    "commits": lambda device: -(device["sync_rate"] or 0.0),
    "name": lambda device: str(device["name"]),
}
_ACTIONS: Dict[str, Callable[[Top], None]] = {
    "s": Top._sort,
    "g": Top._group,
    " ": Top._freeze,
    "?": Top._help,
    "h": Top._help,
    "j": lambda top: top._scroll(1),
    "k": lambda top: top._scroll(-1),
    "\x1b[B": lambda top: top._scroll(1),
    "\x1b[A": lambda top: top._scroll(-1),
}
