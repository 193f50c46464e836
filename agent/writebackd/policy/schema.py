# SPDX-License-Identifier: GPL-2.0-or-later
"""A merged policy: the frozen values of its sections, its windows, and its devices."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from writebackd.types.storage import Device

from . import keys
from .keys import DEVICE_KEYS, Key, Setting
from .window import When

# What a pattern begins with that is one of drivers: a stick is sdb today and sdc tomorrow.
_BY_DRIVER = "driver:"
_BY_ID, _MAPPED = "/dev/disk/by-id/", "/dev/mapper/"


class PolicyError(Exception):
    """One or more errors of a policy, each ``file:line: what to do``; str() has one per line."""

    exit_code = 2  # of a command that it ends

    def __init__(self, *messages: str) -> None:
        super().__init__("\n".join(messages))
        self.messages = messages


@dataclass(frozen=True)
class DevicePolicy:
    """The values for one device: [limits] and [objective] with its [device ...] sections."""

    floor_bytes: int
    ceiling_bytes: int
    drain_time_s: float
    rest_bytes: int
    fsync_p99_s: float
    baseline_multiple: float
    allowed_delay_s: float
    # That a section of its own gives it, below the one of all: it is capped at that alone.
    own_ceiling_bytes: Optional[int] = None


def matches(
    glob: str, name: str, devno: str = "", driver: Optional[str] = None,
    names: Sequence[str] = (),
) -> bool:
    """Whether a glob names the device: by its kernel name, MAJOR:MINOR, ``driver:NAME``, or one
    of its stable `names`, which may be written without ``/dev/disk/by-id/``."""
    if glob.startswith(_BY_DRIVER) and driver is not None:
        return fnmatchcase(driver, glob[len(_BY_DRIVER) :])
    if is_stable(glob):
        path = glob if glob.startswith("/") else _BY_ID + glob
        return any(fnmatchcase(known, path) for known in names)
    if fnmatchcase(name, glob) or (bool(devno) and fnmatchcase(devno, glob)):
        return True
    return bool(names) and _BY_ID + glob in names


def is_stable(glob: str) -> bool:
    """Whether it names a disk by what stays: a link, a mount point, a WWN."""
    return glob.startswith(("/", "wwn-"))


def is_pattern(glob: str) -> bool:
    """Whether it may match devices whose names are not known."""
    return glob.startswith(_BY_DRIVER) or any(sign in glob for sign in "*?[")


def device_globs(devices: Sequence[str]) -> Iterator[str]:
    """The arguments of --device in the form that `matches` takes."""
    for device in devices:
        yield device[len("/dev/") :] if device.startswith("/dev/") else device


@dataclass(frozen=True)
class Window:
    """A time with other [limits] and [objective]; has all of them, changed or not."""

    name: str
    when: When
    settings: Tuple[Setting, ...]  # `when` left out
    limits: keys.Limits
    objective: keys.Objective
    origin: str = field(compare=False)  # of `when`


@dataclass(frozen=True)
class Policy(keys.PolicySection):
    """A merged, valid policy. Two are equal if their values are, wherever they were written."""

    match: keys.Match
    limits: keys.Limits
    objective: keys.Objective
    levers: keys.Levers
    protect: keys.Protect
    alerts: keys.Alerts
    devices: keys.Devices
    probe: keys.Probe
    metrics: keys.Metrics
    history: keys.HistorySettings
    # (section, key) -> 'file:line' or 'default'; device sections as ('device GLOB', key).
    origins: Mapping[Tuple[str, str], str] = field(compare=False)
    # The files that were merged, in the order they were read.
    files: Tuple[str, ...] = field(compare=False)
    # Why this one and no other, in words.
    chosen: str = field(default="", compare=False)
    windows: Tuple[Window, ...] = ()  # of which at most one is open

    def within(self, window: Optional[Window]) -> "Policy":
        """The policy while the window is open, or none is: a policy without windows."""
        if window is None:
            return replace(self, windows=()) if self.windows else self
        changed = {(line.key.section, line.key.name): line.origin for line in window.settings}
        return replace(
            self, limits=window.limits, objective=window.objective, windows=(),
            origins={**self.origins, **changed},
        )  # fmt: skip

    def value(self, key: Key) -> Any:
        """The value of `key` in its section."""
        part = self if key.section == "policy" else getattr(self, key.section)
        return getattr(part, key.attribute)

    @cached_property
    def _answers(self) -> Dict[Tuple[object, ...], Any]:
        """Cached results of of() and selects(), which every tick needs for every device."""
        return {}

    def of(self, device: Device) -> DevicePolicy:
        """The values for one device; of several matching sections the last line wins."""
        asked = (device.name, device.devno, device.driver, device.names)
        if asked not in self._answers:
            self._answers[asked] = self._merge_device(device)
        merged: DevicePolicy = self._answers[asked]
        return merged

    def sections(self, device: Device) -> List[str]:
        """The device sections that match it, each with the place of its first line."""
        origins = {
            setting.glob: setting.origin for setting in reversed(self.devices.settings)
            if matches(setting.glob, device.name, device.devno, device.driver, device.names)
        }
        return [f"[device {glob}] ({origins[glob]})" for glob in reversed(origins)]

    def unresolved(self, devices: Sequence[Device]) -> List[str]:
        """A warning for each link, WWN or mount point in the policy that names no device now."""
        known = self._answers.get((None,))
        if known is None or known[0] is not devices:
            known = self._answers[None,] = (devices, self.without_device(devices, is_stable))
        lines: List[str] = known[1]
        return lines

    def without_device(
        self, devices: Sequence[Device], asked: Callable[[str], bool]
    ) -> List[str]:
        """A warning for each of the names `asked` for that no device has."""
        written = {setting.glob: f"[device {setting.glob}] ({setting.origin})"
                   for setting in reversed(self.devices.settings)}
        for key, globs in (("include", self.devices.include), ("exclude", self.devices.exclude)):
            for glob in globs:
                written[glob] = f"{key} {glob} ({self.origins['devices', key]})"
        return [
            f"{where}: no device with a filesystem has this name now; "
            + (
                f"write {_MAPPED}{glob}" if any(_MAPPED + glob in each.names for each in devices)
                else "see `writebackctl devices`"
            )
            for glob, where in written.items()
            if asked(glob) and not any(
                matches(glob, each.name, each.devno, each.driver, each.names) for each in devices
            )
        ]

    def _merge_device(self, device: Device) -> DevicePolicy:
        values = {key.attribute: self.value(key) for key in DEVICE_KEYS.values()}
        for setting in self.devices.settings:
            if matches(setting.glob, device.name, device.devno, device.driver, device.names):
                values[setting.key.attribute] = setting.value
        # Globs that only this device makes overlap escape the check at load. The floor wins:
        # below it throughput collapses for every writer of the host.
        floor = values["floor_bytes"]
        ceiling = values["ceiling_bytes"] = max(floor, values["ceiling_bytes"])
        values["rest_bytes"] = min(max(values["rest_bytes"], floor), ceiling)
        own = ceiling if ceiling < self.limits.ceiling_bytes else None
        return DevicePolicy(**values, own_ceiling_bytes=own)

    def selects(self, device: Device, named: Tuple[str, ...] = ()) -> Optional[str]:
        """None if the device is to be managed, else the reason why not.

        Devices `named` on the command line are the whole list: they overrule include and exclude.
        A disk there includes its filesystems, since users do not know that a btrfs is btrfs-19.
        """
        asked = (device.name, device.devno, device.driver, device.names, device.leaves, named)
        if asked not in self._answers:
            self._answers[asked] = self._select(device, named)
        why: Optional[str] = self._answers[asked]
        return why

    def _select(self, device: Device, named: Tuple[str, ...]) -> Optional[str]:
        def those(globs: Iterable[str], *names: str) -> List[str]:
            return [glob for glob in globs if any(
                matches(glob, name, device.devno, device.driver, device.names) for name in names
            )]

        if named:
            named_by = those(device_globs(named), device.name, *device.leaves)
            if not named_by:
                return "not among the devices named by --device"
        else:
            excluded = those(self.devices.exclude, device.name)
            if excluded:
                return f"excluded by '{excluded[0]}' ({self.origins['devices', 'exclude']})"
            named_by = those(self.devices.include, device.name)
            if not named_by:
                return f"not in include ({self.origins['devices', 'include']})"
        if device.driver == "loop" and all(glob[0] in "*?[" for glob in named_by):
            return "loop device: only managed when named by --device or a policy"
        return None
