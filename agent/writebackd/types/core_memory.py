# SPDX-License-Identifier: GPL-2.0-or-later
"""Memory: everything that estimate and control keep between ticks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping, Optional, Tuple

from writebackd.types.decision import Mode
from writebackd.types.device_memory import DeviceMemory
from writebackd.types.levers import Intrusion, VmLimits


@dataclass(frozen=True)
class PaceMemory:
    """What is remembered of pacing on one disk; see control/pacing/pace.py."""

    rate: Optional[float] = None  # of all paced cgroups together; None: not paced
    rates: Mapping[str, int] = field(default_factory=dict)  # by path: the requested pace
    names: Tuple[str, ...] = ()  # the devices that share the disk
    began_s: Optional[float] = None  # of a pace adopted at a restart: the restart
    step_s: float = float("-inf")  # when the rate last changed
    in_force_s: Optional[float] = None  # since when io.max shows all paces
    unset_s: float = 0.0  # for how long it has not shown them
    used: Mapping[str, float] = field(default_factory=dict)  # by path: written, smoothed
    background_rate: float = 0.0  # bytes per second of the flusher, smoothed
    wrote_s: float = float("-inf")  # when one of them last wrote
    stray_s: float = 0.0  # for how long cgroups that cannot be paced have flooded
    narrow: bool = False  # a commit has waited for what was dirty under the wide limit
    barred_until_s: float = float("-inf")
    barred_why: str = ""


@dataclass(frozen=True)
class Cap:
    """A per-device limit; see control/device_limits.py."""

    bytes: int
    in_force: bool = False  # the kernel has accepted it
    standing: bool = False  # due to the device's own ceiling in the policy, also without demand


@dataclass(frozen=True)
class Lift:
    """The global limit raised for small cgroups; see control/small_cgroups.py."""

    limit_bytes: Optional[int] = None  # the raised one; None: not raised
    seen_s: Mapping[str, float] = field(default_factory=dict)  # by path: when each last wrote
    others: bool = False  # other cgroups flood as well
    others_s: float = float("-inf")  # when they last did


@dataclass(frozen=True)
class Trial:
    """The current block of a trial; see trial/trial_run.py."""

    device: str
    block: int  # from 1
    blocks: int
    original: bool  # True: the original limits; False: the agent's
    # The original limits reduced to what drains in a short time; None: not reduced.
    limit_bytes: Optional[int]
    background_bytes: Optional[int]
    ends_s: float  # of the block; as Sample.time_s
    returns_to: Mode  # after the trial


@dataclass(frozen=True)
class Stuck:
    """Dirty pages that do not drain; see estimate/hung_device.py."""

    bytes: int = 0
    hang: Tuple[str, ...] = ()  # the hung devices
    since_s: float = float("-inf")
    idle_s: float = 0.0  # for how long they have had nothing in flight
    # Until STUCK_S have passed:
    suspects: Tuple[str, ...] = ()  # devices that completed nothing so far
    left_bytes: Optional[int] = None  # the most that was dirty or under writeback
    lasted_s: float = 0.0  # for how long that has not fallen
    written: int = 0  # bytes written back meanwhile
    above: bool = False  # more than the goal all the time
    starved: bool = False  # writers to other devices were throttled all the time


@dataclass(frozen=True)
class Retry:
    """A yield that ends by itself: the boot's settings were only applied again."""

    at_s: float  # as Sample.time_s
    limits: Optional[VmLimits] = None  # of the tick after the yield; other ones are wanted


@dataclass(frozen=True)
class Memory:
    """All state of the pure core.  The same policy, memory and sample give the same decision."""

    devices: Mapping[str, DeviceMemory] = field(default_factory=dict)
    limit_bytes: Optional[int] = None  # what the last decision set
    goal_bytes: Optional[int] = None  # its goal, without the room for stuck pages
    background_bytes: Optional[int] = None
    caps: Mapping[str, Cap] = field(default_factory=dict)  # by device
    refused_caps: Mapping[str, float] = field(default_factory=dict)  # by BDI: when
    others_s: float = float("-inf")  # when writers without a device (NFS, FUSE) last dirtied
    hurry: bool = False  # of the last decision
    last_raise_s: float = float("-inf")
    hold_until_s: float = float("-inf")  # until then limits adopted from an earlier run are kept
    pin_bytes: Optional[int] = None
    draining: Tuple[str, ...] = ()  # devices kept at their floor by `drain`
    mode: Mode = Mode.ENFORCE
    off: bool = False  # a kill-switch file exists
    paces: Mapping[str, PaceMemory] = field(default_factory=dict)  # by devno of the disk
    # Cgroup id -> its path, and when it last synced: such a cgroup is never paced.
    syncers: Mapping[int, Tuple[Optional[str], float]] = field(default_factory=dict)
    destage: Mapping[str, int] = field(default_factory=dict)  # by bcache: sectors per second
    lift: Optional[Lift] = None
    stuck: Stuck = Stuck()
    stuck_room: int = 0  # bytes added to the limit of the last decision for stuck pages
    trial: Optional[Trial] = None
    yielded: Optional[str] = None  # the process and the value it set, in words
    intrusions: Tuple[Intrusion, ...] = ()  # since the last `enforce`, one per lever
    retry: Optional[Retry] = None
    retried_s: Tuple[float, ...] = ()  # yields of the last hour that end by themselves

    @property
    def dry(self) -> bool:  # nothing is set, whatever is decided
        return self.off or self.mode is Mode.OBSERVE
