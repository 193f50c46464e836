# SPDX-License-Identifier: GPL-2.0-or-later
"""What a policy can say: one table of keys, and the frozen values that come out of it.

The table is the only place that knows a key's unit, default and range; the parser, ``render``
and docs/policy.md all follow it. Reasons for the shipped values are in policies/*.conf.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Sequence, Tuple

from . import units


class PolicyError(Exception):
    """One or more errors of a policy, each ``file:line: what to do``; str() has one per line."""

    def __init__(self, messages: Tuple[str, ...]) -> None:
        super().__init__("\n".join(messages))
        self.messages = messages


@dataclass(frozen=True)
class Kind:
    """A type of value: its name in the documentation, how it is read and written."""

    unit: str
    parse: Callable[[str], Any]
    format: Callable[[Any], str]
    example: str
    suffix: str = ""
    choices: Tuple[str, ...] = ()


def _text(text: str) -> str:
    return text


def _choice(*choices: str) -> Kind:
    def parse(text: str) -> str:
        if text not in choices:
            raise units.UnitError(
                f"'{units.shorten(text)}' is not known here: use {' or '.join(choices)}"
            )
        return text

    return Kind("word", parse, _text, choices[0], choices=choices)


SIZE = Kind("size", units.parse_size, units.format_size, "15M", suffix="_bytes")
TIME = Kind("time", units.parse_time, units.format_time, "20ms", suffix="_s")
SHARE = Kind("share", units.parse_share, units.format_share, "20%")
MULTIPLE = Kind("multiple", units.parse_multiple, units.format_multiple, "10x")
FREQUENCY = Kind("per second", units.parse_frequency, units.format_frequency, "5/s")
SWITCH = Kind("switch", units.parse_switch, units.format_switch, "on", choices=("on", "off"))
COUNT = Kind("number", units.parse_count, str, "8")
DEVICES = Kind("devices", units.parse_devices, units.format_devices, "sda dm-*")
UNITS = Kind("units", units.parse_units, units.format_devices, "ssh.service backup-*.service")
TEXT = Kind("text", _text, _text, "some text")


@dataclass(frozen=True)
class Key:
    """One key. Default and range are written as in a file; no range means any value."""

    section: str
    name: str
    kind: Kind
    default: str
    low: str
    high: str
    doc: str
    per_device: bool = False
    may_be_empty: bool = False

    @property
    def attribute(self) -> str:
        """Field of the section's dataclass: sizes end in _bytes, times in _s (seconds)."""
        return self.name.replace("-", "_") + self.kind.suffix

    @property
    def range(self) -> str:
        """The range as the documentation prints it."""
        if self.kind.choices:
            return ", ".join(self.kind.choices)
        return f"{self.low} to {self.high}" if self.low else "any"

    def parse(self, text: str) -> Any:
        """The value of ``text``; raises UnitError when it is malformed or out of range."""
        if not text and not self.may_be_empty:
            raise units.UnitError(f"no value: write it like '{self.name} = {self.kind.example}'")
        value = self.kind.parse(text)
        if self.low and value < self.kind.parse(self.low):
            raise units.UnitError(f"{text} is too small: use {self.range}")
        if self.high and value > self.kind.parse(self.high):
            raise units.UnitError(f"{text} is too large: use {self.range}")
        return value


# fmt: off
KEYS: Tuple[Key, ...] = (
    Key("policy", "name", TEXT, "", "", "", "Name of the policy; if given, it must be the file's "
        "name without `.conf` (a guard against copies).", may_be_empty=True),
    Key("policy", "summary", TEXT, "", "", "", "One line for `writebackctl policy list`.",
        may_be_empty=True),
    Key("policy", "mode", _choice("enforce", "observe"), "enforce", "", "",
        "`enforce` sets limits, `observe` decides and writes nothing."),
    Key("policy", "on-exit", _choice("restore", "keep"), "restore", "", "",
        "What an orderly stop does: put back the limits that were found, or leave the last ones."),
    # Two pages of 4 KiB are the least that vm.dirty_bytes accepts.
    Key("limits", "floor", SIZE, "1M", "8K", "1T",
        "The dirty limit never goes below this.", per_device=True),
    Key("limits", "ceiling", SIZE, "4G", "8K", "1T",
        "The dirty limit never goes above this.", per_device=True),
    Key("limits", "drain-time", TIME, "3s", "0.5s", "60s",
        "Without sync demand the limit is relaxed to what the device drains in this time.",
        per_device=True),
    # The kernel halves the limit itself when background is not below it, so 90 % is the most
    # that is sure to be taken as written.
    Key("limits", "background", SHARE, "50%", "1%", "90%",
        "Background limit (where the flusher starts) as a share of the dirty limit."),
    Key("limits", "step-up", MULTIPLE, "2x", "1.1x", "16x",
        "The limit grows by at most this factor in one step."),
    Key("limits", "cooldown", TIME, "1s", "0s", "10min",
        "Least time between two increases."),
    Key("limits", "rest", SIZE, "4M", "8K", "1T",
        "Limit while there is sync demand and the device's drain rate is not yet known."),
    Key("limits", "lease", TIME, "10s", "1s", "5min",
        "A process of its own restores what was found when the daemon was not heard of for so "
        "long. Five ticks at least. Takes effect at the next start."),
    Key("objective", "fsync-p99", TIME, "20ms", "100us", "60s",
        "Wanted 99th percentile of fsync latency. The objective in force is the larger of this "
        "and `baseline-multiple` times the unloaded baseline.", per_device=True),
    Key("objective", "baseline-multiple", MULTIPLE, "10x", "1.5x", "1000x",
        "fsync latency that counts as good, in multiples of the device's own unloaded baseline.",
        per_device=True),
    Key("objective", "keep-throughput", SHARE, "95%", "10%", "100%",
        "Share of the sequential write rate to keep while protecting fsync."),
    Key("objective", "min-sync-rate", FREQUENCY, "5/s", "0.1/s", "1000000/s",
        "fsyncs per second from which a device counts as having sync demand."),
    Key("objective", "demand-hold", TIME, "60s", "1s", "1h",
        "How long sync demand is remembered after it was last seen."),
    Key("objective", "allowed-delay", TIME, "10ms", "1ms", "10s",
        "Queueing delay that the limit allows, limit = drain rate x this, until the host's own "
        "round trip of writeback (tau) is measured.",
        per_device=True),
    Key("levers", "per-device", SWITCH, "on", "", "",
        "While others write, give a device that needs a tight limit one of its own, where the "
        "kernel can (6.2 and later, tried out before it is used)."),
    Key("levers", "queue", SWITCH, "off", "", "",
        "While a device is flooded, set `nr-requests` and `max-sectors` of its disks."),
    Key("levers", "nr-requests", COUNT, "8", "0", "65536",
        "Requests in a disk's queue under `queue = on`; 0 leaves it."),
    Key("levers", "max-sectors", SIZE, "0B", "0B", "32M",
        "Largest request under `queue = on`, in whole KB; 0B leaves it."),
    Key("levers", "flush-interval", TIME, "0s", "0s", "60s",
        "Period of the flusher (vm.dirty_writeback_centisecs) while there is sync demand; 0s "
        "leaves it."),
    Key("levers", "pace", SWITCH, "off", "", "",
        "Hold a flooding unit just below the drain rate with `io.max`, where it is another unit "
        "than the one that syncs and no dirty limit keeps syncs fast."),
    Key("levers", "pace-share", SHARE, "85%", "10%", "95%",
        "Paced units together always get this share of what syncs leave of the drain rate."),
    Key("protect", "units", UNITS, "", "", "",
        "Units that are never paced, by name, with `*`, `?`, `[...]`; a slice (`backup.slice`) "
        "stands for all units in it. Some never are, named here or not: see [pacing](pacing.md).",
        may_be_empty=True),
    Key("devices", "include", DEVICES, "*", "", "",
        "Devices to manage. A loop device is managed only if a pattern that does not begin with a "
        "wildcard names it."),
    Key("devices", "exclude", DEVICES, "", "", "",
        "Devices to leave alone; stronger than `include`.", may_be_empty=True),
    Key("probe", "backend", _choice("auto", "libbpf", "bcc", "procfs"), "auto", "", "",
        "Where measurements come from; `auto` tries the best first, `bcc` is not in this version."),
    Key("probe", "queue-latency", SWITCH, "off", "", "",
        "Also measure the time that requests wait in the block queue (costs more per IO)."),
    Key("probe", "talkers", SWITCH, "on", "", "",
        "Count who dirties pages, per process and cgroup."),
    Key("history", "samples", SIZE, "0B", "0B", "16G",
        "Keep raw samples for `writebackctl replay`, in so much space at most; 0B keeps none. "
        "Takes effect at the next start."),
)
# fmt: on

DEVICE_KEYS: Mapping[str, Key] = {key.name: key for key in KEYS if key.per_device}
SECTIONS: Tuple[str, ...] = tuple(dict.fromkeys(key.section for key in KEYS))


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
class Probe:
    """[probe]."""

    backend: str
    queue_latency: bool
    talkers: bool


@dataclass(frozen=True)
class Kept:
    """[history]."""

    samples_bytes: int


@dataclass(frozen=True)
class DevicePolicy:
    """What holds for one device: [limits] and [objective] with its [device ...] sections."""

    floor_bytes: int
    ceiling_bytes: int
    drain_time_s: float
    fsync_p99_s: float
    baseline_multiple: float
    allowed_delay_s: float


def matches(glob: str, name: str, devno: str = "") -> bool:
    """Whether a glob names the device, by its kernel name or by MAJOR:MINOR."""
    return fnmatchcase(name, glob) or (bool(devno) and fnmatchcase(devno, glob))


@dataclass(frozen=True)
class DeviceSetting:
    """One line of a ``[device GLOB]`` section."""

    glob: str
    key: Key
    value: Any
    origin: str = field(compare=False)


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
    limits: Limits
    objective: Objective
    levers: Levers
    protect: Protect
    devices: Devices
    probe: Probe
    history: Kept
    # (section, key) -> 'file:line' or 'default'; device sections as ('device GLOB', key).
    origins: Mapping[Tuple[str, str], str] = field(compare=False)
    # The files that were merged, in the order they were read.
    files: Tuple[str, ...] = field(compare=False)

    def value(self, key: Key) -> Any:
        """The value of `key`, of the section that it belongs to."""
        part = self if key.section == "policy" else getattr(self, key.section)
        return getattr(part, key.attribute)

    @cached_property
    def _answers(self) -> Dict[Tuple[str, str], DevicePolicy]:
        """What for_device() answered: it is asked for every device in every tick."""
        return {}

    def for_device(self, name: str, devno: str) -> DevicePolicy:
        """The values for one device; of several matching sections the last line read wins."""
        known = self._answers.get((name, devno))
        if known is None:
            known = self._answers[name, devno] = self._merge_device(name, devno)
        return known

    def _merge_device(self, name: str, devno: str) -> DevicePolicy:
        merged = DevicePolicy(
            floor_bytes=self.limits.floor_bytes,
            ceiling_bytes=self.limits.ceiling_bytes,
            drain_time_s=self.limits.drain_time_s,
            fsync_p99_s=self.objective.fsync_p99_s,
            baseline_multiple=self.objective.baseline_multiple,
            allowed_delay_s=self.objective.allowed_delay_s,
        )
        changes: Dict[str, Any] = {
            setting.key.attribute: setting.value
            for setting in self.devices.settings
            if matches(setting.glob, name, devno)
        }
        merged = replace(merged, **changes)
        # Globs that only this device makes overlap escape the check at load. The floor wins:
        # below it throughput collapses for every writer of the host.
        return replace(merged, ceiling_bytes=max(merged.floor_bytes, merged.ceiling_bytes))

    def selects(
        self,
        name: str,
        driver_is_loop: bool,
        cmdline_devices: Tuple[str, ...],
        devno: str = "",
        leaves: Tuple[str, ...] = (),
    ) -> Optional[str]:
        """None when the device is to be managed, else the reason why not.

        Devices named on the command line are the whole list: they overrule include and exclude.
        There a disk stands for what lies on it, since nobody knows that a btrfs is btrfs-19.
        """
        named = [glob for glob in _globs(cmdline_devices)
                 if any(matches(glob, each, devno) for each in (name, *leaves))]
        if cmdline_devices:
            if not named:
                return "not among the devices named by --device"
        else:
            for glob in self.devices.exclude:
                if matches(glob, name, devno):
                    return f"excluded by '{glob}' ({self.origins['devices', 'exclude']})"
            named = [glob for glob in self.devices.include if matches(glob, name, devno)]
            if not named:
                return f"not in include ({self.origins['devices', 'include']})"
        if driver_is_loop and all(glob[0] in "*?[" for glob in named):
            return "loop device: only managed when named by --device or a policy"
        return None


def _globs(devices: Tuple[str, ...]) -> Iterator[str]:
    for device in devices:
        yield device[len("/dev/") :] if device.startswith("/dev/") else device
