# SPDX-License-Identifier: GPL-2.0-or-later
"""State of the live screen, and the actions of its keys; needs no terminal."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Deque,
    Dict,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
)

from writebackd import formats
from writebackd.cli.status_screen import urgency
from writebackd.policy.units import UnitError, parse_size

if TYPE_CHECKING:  # top reports a missing psutil; --json needs none
    from writebackd.cli.io_waits import Wait

Answer = Mapping[str, Any]

# Points of a sparkline that are kept for each device: a wide terminal shows 60.
KEPT = 120
SORTS = ("state", "p99", "writes", "commits", "name")
KEYS = "q quit  s sort  g group  j/k scroll  space freeze  p pin  r release  m mode  ? help"
SHORT_KEYS = "q quit  s sort  g group  space freeze  p pin  r release  m mode  ? help"
SHORTEST_KEYS = "q quit  s sort  g group  space freeze  ? help"
HELP = (
    "q, Ctrl-C       quit",
    "s               sort the devices by: " + ", ".join(SORTS),
    "g               group writers and waiters by process or by cgroup",
    "j, k            scroll the devices; also with the arrow keys",
    "space           freeze the screen; again: go on",
    "p               pin the limit (asks for a size, then whether you mean it); root",
    "r               release the pin; root",
    "m               switch between enforce and observe; root",
    "Esc             leave a question, or this page",
    "",
    "p50, p99        of commits: an fsync and the sleep in write() before it",
    "sparkline       p99: each step is a factor of 3, from 0.1 ms up; a gap is a",
    "                tick without a commit",
    "cache           estimated fill of the write cache",
    "sleeps          share of the time that a writer slept for the dirty limit",
    "waits           seconds per second that all threads waited for block IO",
    "D               sleeps uninterruptibly at this moment",
)
_ESCAPE = "\x1b"
_YES = ("y", "Y")


@dataclass(frozen=True)
class Order:
    """A confirmed change."""

    verb: str
    args: Mapping[str, Any]
    done: str  # what to say when it went well


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
    entry: Optional[str] = None  # the size that is being typed
    pending: Optional[Order] = None  # waits for y or n
    question: str = ""
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

    def press(self, key: str) -> Tuple[bool, Optional[Order]]:
        """Handle a key: returns whether to continue, and an order confirmed with it."""
        if key == "\x03":
            return False, None
        if self.pending is not None:
            return True, self._answered(key)
        if self.entry is not None:
            self._typed(key)
            return True, None
        self.message = None
        if self.helping:
            self.helping = False
            return True, None
        if key in ("q", "Q"):
            return False, None
        action = _ACTIONS.get(key)
        if action is not None:
            action(self)
        return True, None

    def _answered(self, key: str) -> Optional[Order]:
        order, self.pending = self.pending, None
        if key in _YES:
            return order
        self.message = "nothing changed"
        return None

    def _typed(self, key: str) -> None:
        assert self.entry is not None
        if key == _ESCAPE:
            self.entry = None
            self.message = "nothing changed"
        elif key in ("\r", "\n"):
            text, self.entry = self.entry, None
            self._ask_pin(text)
        elif key in ("\x7f", "\b"):
            self.entry = self.entry[:-1]
        elif len(key) == 1 and key.isprintable() and len(self.entry) < 16:
            self.entry += key

    def _ask_pin(self, text: str) -> None:
        if not text.strip():
            self.message = "nothing changed"
            return
        try:
            size = parse_size(text.strip())
        except UnitError as error:
            self.message = f"pin: {error}"
            return
        if not size:
            self.message = "pin: needs a size above 0, like 15M"
            return
        shown = formats.size(size)
        self._ask(
            Order("pin", {"bytes": size}, f"pinned to {shown}"),
            f"pin the limit to {shown} until `release` or a reboot?",
        )

    def _ask(self, order: Order, question: str) -> None:
        self.pending, self.question = order, question

    def _begin_pin(self) -> None:
        self.entry = ""

    def _release(self) -> None:
        self._ask(Order("release", {}, "pin released"), "release the pin?")

    def _switch(self) -> None:
        if self.status is None:
            return
        if self.status["mode"] == "observe":
            self._ask(
                Order("mode", {"mode": "enforce"}, "mode: enforce"),
                "set limits (mode enforce)?",
            )
        else:
            self._ask(
                Order("mode", {"mode": "observe"}, "mode: observe"),
                "restore the original limits and only watch (mode observe)?",
            )

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
    "p": Top._begin_pin,
    "r": Top._release,
    "m": Top._switch,
    "?": Top._help,
    "h": Top._help,
    "j": lambda top: top._scroll(1),
    "k": lambda top: top._scroll(-1),
    "\x1b[B": lambda top: top._scroll(1),
    "\x1b[A": lambda top: top._scroll(-1),
}
