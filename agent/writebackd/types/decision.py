# SPDX-License-Identifier: GPL-2.0-or-later
"""What is to be set, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Optional, Tuple

from writebackd.types.levers import Setting


class DeviceState(Enum):
    """What the agent is doing about a device."""

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
    """The branch of the law that decided; control/reasons.py has each in words."""

    AS_FOUND = "as-found"  # nobody syncs, no flood
    RELAXED = "relaxed"  # nobody syncs: what the device drains in bounded time
    BLIND = "blind"  # fsync cannot be seen
    REST = "rest"  # somebody syncs, no flood
    WAVES = "waves"  # floods are short: memory takes what the pauses drain
    COMING = "coming"  # the limit in force is not the one asked for yet
    OBSERVING = "observing"  # nor will it be: nothing is set in observe mode
    LOOSE = "loose"  # the limit holds nobody back
    SEEK = "seek"  # R is not known, a larger limit may bring more
    MEASURE = "measure"  # R is not known, and the cache is full: its rate is R
    FOUND = "found"  # R is known now, and the search for it went too far: smaller at once
    CUT = "cut"  # full, and syncs cost less than they may: smaller
    SHORT = "short"  # full, and the flood has less than it keeps: larger
    DEAR = "dear"  # syncs cost more than they may: larger
    STEADY = "steady"  # full, and the limit is right
    ROOM = "room"  # the cache has room: what lets in a little less than R
    FLOOR = "floor"  # smaller is not allowed
    OTHER = "other"  # not the law: hands off, pinned, excluded, a trial


@dataclass(frozen=True)
class Basis:
    """What the law reckoned with while somebody syncs on a device."""

    objective_s: float  # p99 of an fsync
    # within which the limit is searched
    floor_bytes: int = 0
    ceiling_bytes: int = 1 << 62
    spent: float = 0.0  # share of R that the syncs cost
    may_spend: float = 0.0  # the same, that they may cost


@dataclass(frozen=True)
class DeviceDecision:
    """What the law wants for one device and why, in plain words.

    The whole chain of reasoning is put together by control/explain.py when somebody asks.
    """

    name: str
    state: DeviceState
    target_bytes: Optional[int]  # None: the limits as found
    reason: str
    decision_id: str
    steps: Tuple[str, ...] = ()  # what was concluded, one sentence each
    basis: Optional[Basis] = None
    rule: Rule = Rule.OTHER


@dataclass(frozen=True)
class Decision:
    """What the global pair shall be; None means the originals."""

    limit_bytes: Optional[int]
    background_bytes: Optional[int]
    goal_bytes: Optional[int]  # where the ramp is heading
    reason: str
    devices: Tuple[DeviceDecision, ...] = ()
    # Levers beside the global pair; one that is not named goes back to its original.
    settings: Tuple[Setting, ...] = ()
    hurry: bool = False  # somebody waits behind a flood: look again sooner
    decision_id: Optional[str] = None  # of the device whose need is the goal; None: of none
