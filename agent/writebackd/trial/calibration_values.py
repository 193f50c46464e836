# SPDX-License-Identifier: GPL-2.0-or-later
"""Inputs and results of a calibration."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Optional, Tuple

from writebackd.trial.ladder import Rung


class Phase(Enum):
    WATCH = "watch"  # nothing of ours: does somebody else write or sync?
    IDLE = "idle"  # fsyncs alone
    FILL = "fill"  # and a flood, until R is known
    LADDER = "ladder"
    DONE = "done"


@dataclass(frozen=True)
class Budget:
    """How much time and data a calibration may use."""

    write_bytes: int
    time_s: float


@dataclass(frozen=True)
class Own:
    """What our own loads have done since they started."""

    syncs: int = 0  # as the probe began to be read
    unsure: int = 0  # that ended while it was: counted in this tick or in the next
    sync_s: float = 0.0  # that they took, and the writes before them
    written_bytes: int = 0  # by the flood, into memory
    pids: Tuple[int, ...] = ()


@dataclass(frozen=True)
class Order:
    """What to do until the next tick; limits None: the original limits."""

    flood: bool = False
    sync_wait_s: Optional[float] = None  # between two fsyncs; None: no fsyncs
    limit_bytes: Optional[int] = None
    background_bytes: Optional[int] = None


@dataclass(frozen=True)
class Result:
    """The measured values; None: unknown, and `problems` says why."""

    device: str
    seconds: float
    written_bytes: int
    idle: Rung
    # A second, of the fsyncs in the ladder without a flood: where as many as there may be would
    # take all of the media, they are spaced.
    ladder_idle_rate: float
    drain_rate: Optional[float]
    drain_rate_most: Optional[float]  # where the cache was never full: no more than that
    cache_bytes: Optional[float]
    cache_most_bytes: Optional[float]  # where none was seen: no more than that
    tau_s: Optional[float]  # below the knee the flood gets limit / tau
    rungs: Tuple[Rung, ...]  # by limit
    limit_bytes: Optional[int]  # the best
    problems: Tuple[str, ...] = ()

    def score(self, rung: Rung) -> Optional[float]:
        return None if not self.drain_rate else rung.score(self.ladder_idle_rate, self.drain_rate)
