# SPDX-License-Identifier: GPL-2.0-or-later
"""A policy: the frozen values of its sections, and the devices it is for."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Dict, Iterator, Mapping, Optional, Sequence, Tuple

from . import rules, window
from .keys import Key


class PolicyError(Exception):
    """One or more errors of a policy, each ``file:line: what to do``; str() has one per line."""

    def __init__(self, messages: Tuple[str, ...]) -> None:
        super().__init__("\n".join(messages))
        self.messages = messages


@dataclass(frozen=True)
class Match:
    """[match]; a rule that is not given is None."""

    least: int
    drivers: Optional[rules.Rule]
    cache: Optional[rules.Rule]
    rotational: Optional[rules.Rule]
    services: Optional[rules.Rule]
    virtualisation: Optional[rules.Rule]
    memory: Optional[rules.MemoryRule]


@dataclass(frozen=True)
class Limits:
    """[limits]; background is a share of the limit (0..1), step_up a factor."""

    floor_bytes: int
    ceiling_bytes: int
    drain_time_s: float
    background: float
    step_up: float
    cooldown_s: float
    rest_bytes: int
    lease_s: float


@dataclass(frozen=True)
class Objective:
    """[objective]; keep_throughput is a share (0..1), min_sync_rate fsyncs per second."""

    fsync_p99_s: float
    baseline_multiple: float
    keep_throughput: float
    prefer: str
    min_sync_rate: float
    demand_hold_s: float
    allowed_delay_s: float


@dataclass(frozen=True)
class Levers:
    """[levers]; pace_share is a share (0..1); 0 leaves a lever alone."""

    per_device: bool
    queue: bool
    nr_requests: int
    max_sectors_bytes: int
    flush_interval_s: float
    pace: bool
    pace_share: float


@dataclass(frozen=True)
class Protect:
    """[protect]; globs of unit names, those of slices for all units below."""

    units: Tuple[str, ...]

    def covers(self, unit: str, slices: Sequence[str] = ()) -> Optional[str]:
        """The glob that names the unit or one of the slices that it is in; else None.

        A glob for services (`s*`) shall not take in system.slice and all in it: of slices
        only one that says so is asked.
        """
        for glob in self.units:
            names = (unit, *slices) if glob.endswith(".slice") else (unit,)
            if any(fnmatchcase(name, glob) for name in names):
                return glob
        return None


@dataclass(frozen=True)
class Routing:
    """Of [alerts]: where they are told; empty means not."""

    journal: bool
    alertmanager: Tuple[str, ...]
    exec: str
    mail: Tuple[str, ...]
    sendmail: str
    resend_s: float
    timeout_s: float
    runbook: str


@dataclass(frozen=True)
class Alerts(Routing):
    """[alerts]; shares are 0..1."""

    sync_share: float
    latency_multiple: float
    bytes_share: float
    collapse_s: float
    critical_s: float
    stall_s: float
    resolve_share: float
    resolve_after_s: float
    hold_s: float
    quiet_s: float


@dataclass(frozen=True)
class Probe:
    """[probe]."""

    backend: str
    queue_latency: bool
    talkers: bool


@dataclass(frozen=True)
class HistorySettings:
    """[history]."""

    samples_bytes: int


@dataclass(frozen=True)
class DevicePolicy:
    """What holds for one device: [limits] and [objective] with its [device ...] sections."""

    floor_bytes: int
    ceiling_bytes: int
    drain_time_s: float
    rest_bytes: int
    fsync_p99_s: float
    baseline_multiple: float
    allowed_delay_s: float
    # That a section of its own gives it, below the one of all: it is capped at that alone.
    own_ceiling_bytes: Optional[int] = None


@dataclass(frozen=True)
class Metrics:
    """[metrics]; http is a loopback address and a port, textfile an absolute path."""

    http: Optional[Tuple[str, int]]
    textfile: Optional[str]
    textfile_interval_s: float


# What a pattern begins with that is one of drivers: a stick is sdb today and sdc tomorrow.
_BY_DRIVER = "driver:"


def matches(glob: str, name: str, devno: str = "", driver: Optional[str] = None) -> bool:
    """Whether a glob names the device, by its kernel name, MAJOR:MINOR or ``driver:NAME``."""
    if glob.startswith(_BY_DRIVER) and driver is not None:
        return fnmatchcase(driver, glob[len(_BY_DRIVER) :])
    return fnmatchcase(name, glob) or (bool(devno) and fnmatchcase(devno, glob))


def is_pattern(glob: str) -> bool:
    """Whether it may match devices that nobody knows by name."""
    return glob.startswith(_BY_DRIVER) or any(each in glob for each in "*?[")


@dataclass(frozen=True)
class DeviceSetting:
    """One line of a ``[device GLOB]`` section."""

    glob: str
    key: Key
    value: Any
    origin: str = field(compare=False)


@dataclass(frozen=True)
class WindowSetting:
    """One line of a ``[window NAME]`` section."""

    key: Key
    value: Any
    origin: str = field(compare=False)


@dataclass(frozen=True)
class Window:
    """A time in which [limits] and [objective] are others; they are all here, changed or not."""

    name: str
    when: window.When
    settings: Tuple[WindowSetting, ...]  # `when` left out
    limits: Limits
    objective: Objective
    origin: str = field(compare=False)  # of `when`


@dataclass(frozen=True)
class Devices:
    """[devices] and, in the order they were read, the lines of all [device GLOB] sections."""

    include: Tuple[str, ...]
    exclude: Tuple[str, ...]
    settings: Tuple[DeviceSetting, ...] = ()


@dataclass(frozen=True)
class Policy:
    """A merged, valid policy. Two are equal when they say the same, wherever it was written."""

    name: str
    summary: str
    mode: str
    on_exit: str
    match: Match
    limits: Limits
    objective: Objective
    levers: Levers
    protect: Protect
    alerts: Alerts
    devices: Devices
    probe: Probe
    metrics: Metrics
    history: HistorySettings
    # (section, key) -> 'file:line' or 'default'; device sections as ('device GLOB', key).
    origins: Mapping[Tuple[str, str], str] = field(compare=False)
    # The files that were merged, in the order they were read.
    files: Tuple[str, ...] = field(compare=False)
    # Why this one and no other, in words.
    chosen: str = field(default="", compare=False)
    windows: Tuple[Window, ...] = ()  # of which at most one is open

    def within(self, window: Optional[Window]) -> "Policy":
        """What the policy is while the window is open, or none: one without windows."""
        if window is None:
            return replace(self, windows=()) if self.windows else self
        changed = {(each.key.section, each.key.name): each.origin for each in window.settings}
        return replace(
            self, limits=window.limits, objective=window.objective, windows=(),
            origins={**self.origins, **changed},
        )  # fmt: skip

    def value(self, key: Key) -> Any:
        """The value of `key`, of the section that it belongs to."""
        part = self if key.section == "policy" else getattr(self, key.section)
        return getattr(part, key.attribute)

    @cached_property
    def _answers(self) -> Dict[Tuple[str, str, Optional[str]], DevicePolicy]:
        """What for_device() answered: it is asked for every device in every tick."""
        return {}

    @cached_property
    def _selected(self) -> Dict[Tuple[object, ...], Optional[str]]:
        """What selects() answered, likewise."""
        return {}

    def for_device(self, name: str, devno: str, driver: Optional[str] = None) -> DevicePolicy:
        """The values for one device; of several matching sections the last line read wins."""
        asked = (name, devno, driver)
        known = self._answers.get(asked)
        if known is None:
            known = self._answers[asked] = self._merge_device(*asked)
        return known

    def _merge_device(self, name: str, devno: str, driver: Optional[str]) -> DevicePolicy:
        merged = DevicePolicy(
            floor_bytes=self.limits.floor_bytes,
            ceiling_bytes=self.limits.ceiling_bytes,
            drain_time_s=self.limits.drain_time_s,
            rest_bytes=self.limits.rest_bytes,
            fsync_p99_s=self.objective.fsync_p99_s,
            baseline_multiple=self.objective.baseline_multiple,
            allowed_delay_s=self.objective.allowed_delay_s,
        )
        changes: Dict[str, Any] = {
            setting.key.attribute: setting.value
            for setting in self.devices.settings
            if matches(setting.glob, name, devno, driver)
        }
        merged = replace(merged, **changes)
        # Globs that only this device makes overlap escape the check at load. The floor wins:
        # below it throughput collapses for every writer of the host.
        ceiling = max(merged.floor_bytes, merged.ceiling_bytes)
        own = ceiling if ceiling < self.limits.ceiling_bytes else None
        rest = min(max(merged.rest_bytes, merged.floor_bytes), ceiling)
        return replace(merged, ceiling_bytes=ceiling, rest_bytes=rest, own_ceiling_bytes=own)

    def selects(
        self,
        name: str,
        driver_is_loop: bool,
        cmdline_devices: Tuple[str, ...],
        devno: str = "",
        leaves: Tuple[str, ...] = (),
        driver: Optional[str] = None,
    ) -> Optional[str]:
        """None when the device is to be managed, else the reason why not.

        Devices named on the command line are the whole list: they overrule include and exclude.
        There a disk stands for what lies on it, since nobody knows that a btrfs is btrfs-19.
        """
        asked = (name, driver_is_loop, cmdline_devices, devno, leaves, driver)
        known = self._selected
        why = known.get(asked, "")  # which is no reason
        if why == "":
            why = known[asked] = self._select(*asked)
        return why

    def _select(
        self,
        name: str,
        driver_is_loop: bool,
        cmdline_devices: Tuple[str, ...],
        devno: str,
        leaves: Tuple[str, ...],
        driver: Optional[str],
    ) -> Optional[str]:
        named = [glob for glob in device_globs(cmdline_devices)
                 if any(matches(glob, each, devno, driver) for each in (name, *leaves))]
        if cmdline_devices:
            if not named:
                return "not among the devices named by --device"
        else:
            for glob in self.devices.exclude:
                if matches(glob, name, devno, driver):
                    return f"excluded by '{glob}' ({self.origins['devices', 'exclude']})"
            named = [glob for glob in self.devices.include if matches(glob, name, devno, driver)]
            if not named:
                return f"not in include ({self.origins['devices', 'include']})"
        if driver_is_loop and all(glob[0] in "*?[" for glob in named):
            return "loop device: only managed when named by --device or a policy"
        return None


def device_globs(devices: Sequence[str]) -> Iterator[str]:
    """What --device is given, as `matches` takes it."""
    for device in devices:
        yield device[len("/dev/") :] if device.startswith("/dev/") else device
