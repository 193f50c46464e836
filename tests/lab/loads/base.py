# SPDX-License-Identifier: GPL-2.0-or-later
"""What every load generator of the lab offers to the run that drives it.

A load lives in processes of its own and is looked at from outside, so that a
stuck fsync delays neither the measurement nor its end.
"""

from __future__ import annotations

import abc
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, ClassVar, Dict, List, Mapping, Optional, Sequence, Tuple

Spawn = Callable[..., "subprocess.Popen[bytes]"]
Parser = Callable[[str], object]  # raises ValueError
Options = Mapping[str, Tuple[Parser, str]]  # key: (parser, default as text)


@dataclass(frozen=True)
class Place:
    """Where a load runs."""

    directory: Path  # its own, on the modelled disk
    runtime: Path  # its own, elsewhere: sockets, logs, result files
    spawn: Spawn  # as Rig.spawn: the process dies with the rig
    scale: float = 1.0  # factor on all sizes and rates, 0.1 in a virtual machine
    seed: int = 1


@dataclass(frozen=True)
class Measured:
    """One window of one load; rates per second, times in seconds, sizes in bytes.

    What a load cannot tell is None. `ops` are its synchronous operations or
    transactions; `bytes` what its writers handed to the kernel.
    """

    elapsed: float
    ops: Optional[int] = None
    rate: Optional[float] = None
    mean: Optional[float] = None
    p50: Optional[float] = None
    p95: Optional[float] = None
    p99: Optional[float] = None
    max: Optional[float] = None
    inflight_age: float = 0.0  # of the operation that had not ended, 0 when there was none
    cdf: List[Tuple[float, float]] = field(default_factory=list)  # (latency, share), <= 100 points
    series: List[float] = field(default_factory=list)  # operations in each whole second
    bytes: Optional[int] = None
    byte_rate: Optional[float] = None
    longest_stall: Optional[float] = None  # of a buffered writer, in one piece
    extra: Dict[str, float] = field(default_factory=dict)  # tool's own figures, named as it does


@dataclass(frozen=True)
class Counters:
    """Running totals since start, cheap to read: for curves over time."""

    ops: Optional[int] = None
    bytes: Optional[int] = None


class Load(abc.ABC):
    """prepare, start, {open, close}..., stop; all errors are RigError."""

    KIND: ClassVar[str]  # its name in a scenario's file
    OPTIONS: ClassVar[Options] = {}
    TOOLS: ClassVar[Mapping[str, str]] = {}  # program: Debian package it comes in
    WAITS: ClassVar[bool] = False  # `close` waits for a tool: close the others first

    def __init__(self, place: Place, options: Mapping[str, Any]) -> None:
        self.place = place
        self.options = options

    def scaled(self, key: str) -> int:
        """An option that is a size or a rate in bytes, as large as it has to be here."""
        return int(self.options[key] * self.place.scale)

    @abc.abstractmethod
    def prepare(self) -> None:
        """Make its files or databases; the clock of the run does not tick yet."""

    @abc.abstractmethod
    def start(self) -> None:
        """Begin. A tool that only runs for a given time begins in `open`."""

    @abc.abstractmethod
    def open(self, seconds: float) -> None:
        """A measured window begins now and will last this long."""

    @abc.abstractmethod
    def close(self) -> Measured:
        """The window has ended; waits for a tool that has not, within reason."""

    @abc.abstractmethod
    def stop(self) -> None:
        """End all its processes; harmless to repeat."""

    def counters(self) -> Counters:
        return Counters()

    def recent(self, last_s: float) -> Sequence[float]:
        """Latencies of the last seconds, the age of one in flight included; () if unknown."""
        return ()

    def look(self) -> None:
        """Called ten times a second, by another thread: for what nobody tells the load."""
        return

    def stall(self, since: float) -> Optional[float]:
        """Longest write of a buffered writer that ended after a time.monotonic(); None: unknown."""
        return None

    def files(self) -> List[Path]:
        """Files that it flooded: their extents are counted."""
        return []
