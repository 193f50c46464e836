# SPDX-License-Identifier: GPL-2.0-or-later
"""Decisions: the limits and settings to apply, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Optional, Tuple

from writebackd.types.levers import Setting


class DeviceState(Enum):
    """What the agent does about a device."""

    IDLE = "idle"
    GUARD = "guard"
    SQUEEZE = "squeeze"
    PROBE = "probe"
    PACE = "pace"
    EXHAUSTED = "exhausted"
    BLIND = "blind"
    YIELDED = "yielded"
    PINNED = "pinned"
    EXCLUDED = "excluded"


class Mode(Enum):
    ENFORCE = "enforce"
    OBSERVE = "observe"


class Rule(Enum):
    """The rule of the law that decided; control/reasons.py has the texts.  R is the drain rate."""

    AS_FOUND = "as-found"  # no sync demand, no flood: original limits
    RELAXED = "relaxed"  # no sync demand: what the device drains within drain-time
    BLIND = "blind"  # fsync is not visible
    REST = "rest"  # sync demand, no flood
    COMING = "coming"  # the limit in force is not yet the requested one
    OBSERVING = "observing"  # the same in observe mode, where it is never set
    SEEK = "seek"  # R unknown, a larger limit may raise the rate
    MEASURE = "measure"  # R unknown: it is measured once the cache is full
    KNEE = "knee"  # R known: what drains in the allowed delay
    FILLING = "filling"  # the write cache has room, and takes more than R
    SHORT = "short"  # the flood got too little under that, or under a pace: larger
    TEST = "test"  # twice that limit, as R may be more than is known
    FLOOR = "floor"  # a smaller limit is not allowed
    # of a pace
    CUT = "cut"  # cache full, and syncs take less than their share of R: lower
    DEAR = "dear"  # syncs take more than their share of R: higher
    STEADY = "steady"  # cache full, and the pace is right
    ROOM = "room"  # the cache has room: a little less than R
    LOOSE = "loose"  # the pace holds no writer
    OTHER = "other"  # not by the law: yielded, pinned, excluded, a trial


@dataclass(frozen=True)
class Basis:
    """The figures the law used for a device with sync demand."""

    objective_s: float  # p99 of a commit
    floor_bytes: int = 0  # of the limit
    delay_s: Optional[float] = None  # the limit is what drains in that; None: under a pace


@dataclass(frozen=True)
class DeviceDecision:
    """The limit one device needs, and why; control/explain.py renders the complete reasoning."""

    name: str
    state: DeviceState
    target_bytes: Optional[int]  # None: the original limits
    reason: str
    decision_id: str = ""  # given once all devices are decided
    steps: Tuple[str, ...] = ()  # what was concluded, one sentence each
    basis: Optional[Basis] = None
    rule: Rule = Rule.OTHER
    demand: bool = False
    pace_by: float = 1.0  # factor for the pace of its flood


@dataclass(frozen=True)
class Decision:
    """The global limits to set; None means the originals."""

    limit_bytes: Optional[int]
    background_bytes: Optional[int]
    goal_bytes: Optional[int]  # where the ramp is heading
    reason: str
    devices: Tuple[DeviceDecision, ...] = ()
    # Other settings.  One that is not listed is restored to its original.
    settings: Tuple[Setting, ...] = ()
    hurry: bool = False  # sync demand during a flood: shorten the next tick
    decision_id: Optional[str] = None  # of the device that determines the goal; None: of none
