# SPDX-License-Identifier: GPL-2.0-or-later
"""Memory: all that estimate and control know from the ticks before."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping, Optional, Tuple

from writebackd.types.decision import Mode
from writebackd.types.device_memory import DeviceMemory
from writebackd.types.levers import Intrusion
from writebackd.types.pace_memory import PaceMemory


@dataclass(frozen=True)
class Cap:
    """A limit of one device's own; see control/device_limits.py."""

    bytes: int
    in_force: bool = False  # the kernel has taken it
    standing: bool = False  # by the policy's own ceiling for the device, whoever syncs


@dataclass(frozen=True)
class Lift:
    """The global limit raised for small cgroups; see control/small_cgroups.py."""

    limit_bytes: Optional[int] = None  # the raised one; None: not raised
    seen_s: Mapping[str, float] = field(default_factory=dict)  # by path: when each last wrote
    others: bool = False  # others flood as well
    others_s: float = float("-inf")  # when they were last seen to


@dataclass(frozen=True)
class Trial:
    """The block of a trial that is on; see trial/trial_run.py."""

    device: str
    block: int  # from 1
    blocks: int
    original: bool  # whose limits: those as found, or the agent's
    # What the limits as found are cut to, so that the disk drains them soon; None: as found.
    limit_bytes: Optional[int]
    background_bytes: Optional[int]
    ends_s: float  # of the block; as Sample.time_s
    returns_to: Mode  # after the trial


@dataclass(frozen=True)
class Stuck:
    """What is dirty and does not drain; see estimate/hung_device.py."""

    bytes: int = 0
    hang: Tuple[str, ...] = ()  # the devices that completed nothing
    since_s: float = float("-inf")
    idle_s: float = 0.0  # in a row, that they had nothing under way
    # While it is being found out: who may be it, the most that was dirty or under writeback, for
    # how long it has not fallen from that, what all others wrote back meanwhile, and whether it
    # was above the goal, or others slept for the limit, all the time.
    suspects: Tuple[str, ...] = ()
    left_bytes: Optional[int] = None
    lasted_s: float = 0.0
    written: int = 0
    above: bool = False
    starved: bool = False


@dataclass(frozen=True)
class Memory:
    """All state of the pure core; same policy, memory and sample: same decision."""

    devices: Mapping[str, DeviceMemory] = field(default_factory=dict)
    limit_bytes: Optional[int] = None  # what the last decision set
    goal_bytes: Optional[int] = None  # where it was heading, but for what is stuck
    background_bytes: Optional[int] = None
    caps: Mapping[str, Cap] = field(default_factory=dict)  # by device
    refused_caps: Mapping[str, float] = field(default_factory=dict)  # by BDI: when
    hurry: bool = False  # what the last decision said
    last_raise_s: float = float("-inf")
    hold_until_s: float = float("-inf")  # limits adopted from an earlier run stay so long
    pin_bytes: Optional[int] = None
    draining: Tuple[str, ...] = ()  # devices whose limit an admin has put at the floor
    mode: Mode = Mode.ENFORCE
    paces: Mapping[str, PaceMemory] = field(default_factory=dict)  # by devno of the disk
    # Cgroup id -> its path, and when it last synced: nobody who syncs is ever paced.
    syncers: Mapping[int, Tuple[Optional[str], float]] = field(default_factory=dict)
    destage: Mapping[str, int] = field(default_factory=dict)  # by bcache: sectors per second
    lift: Optional[Lift] = None
    stuck: Stuck = Stuck()
    stuck_room: int = 0  # bytes that the limit of the last decision has for it
    trial: Optional[Trial] = None
    yielded: Optional[str] = None  # whose value stands, in words
    intrusions: Tuple[Intrusion, ...] = ()  # since the last take-over, one a lever
