# SPDX-License-Identifier: GPL-2.0-or-later
"""The sections of a policy with all their keys: type, unit, default, range, meaning.

It is the only place that knows them; the parser, ``render`` and docs/reference/policy-keys.md
all follow it. Reasons for the shipped values are in policies/*.conf.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Sequence, Tuple

from . import rules, units, window
from .rules import Rule


@dataclass(frozen=True)
class Kind:
    """A type of value: its name in the documentation, its parser and formatter."""

    unit: str
    parse: Callable[[str], Any]
    format: Callable[[Any], str]
    example: str
    suffix: str = ""  # of the field: sizes are in bytes, times in seconds
    choices: Tuple[str, ...] = ()


def _choice(*choices: str) -> Kind:
    return Kind("word", units.one_of(*choices), str, choices[0], choices=choices)


def _rule(parse: Callable[[str], Any], example: str) -> Kind:
    return Kind("rule", parse, rules.format_rule, example)


SIZE = Kind("size", units.parse_size, units.format_size, "15M", suffix="_bytes")
TIME = Kind("time", units.parse_time, units.format_time, "20ms", suffix="_s")
SHARE = Kind("share", units.parse_share, units.format_share, "20%")
MULTIPLE = Kind("multiple", units.parse_multiple, units.format_multiple, "10x")
FREQUENCY = Kind("per second", units.parse_frequency, units.format_frequency, "5/s")
SWITCH = Kind("switch", units.parse_switch, units.format_switch, "on", choices=("on", "off"))
COUNT = Kind("number", units.parse_count, str, "8")
DEVICES = Kind("devices", units.parse_devices, " ".join, "sda dm-*")
UNITS = Kind("units", units.parse_units, " ".join, "ssh.service backup-*.service")
ADDRESS = Kind("address", units.parse_address, units.format_address, "127.0.0.1:9900")
TEXTFILE = Kind("path", units.parse_textfile, lambda path: path or "", "/run/writebackd/host.prom")
URLS = Kind("URLs", units.parse_urls, " ".join, "http://127.0.0.1:9093")
ADDRESSES = Kind("addresses", units.parse_addresses, " ".join, "root ops@example.org")
PATH = Kind("path", units.parse_path, str, "/usr/local/bin/page")
TEXT = Kind("text", str, str, "some text")
RUNBOOK = Kind("text", units.parse_runbook, str, "https://wiki/writebackd")
DRIVERS = _rule(rules.parse_drivers, "40: nvme")
CACHE = _rule(rules.parse_cache, "40: controller")
ROTATIONAL = _rule(rules.parse_rotational, "20: no")
SERVICES = _rule(rules.parse_services, "60: mysqld")
VIRTUALISATION = _rule(rules.parse_virtualisation, "20: metal")
MEMORY = _rule(rules.parse_memory, "20: 64G..")
HOURS = Kind("hours", window.parse_when, window.format_when, "Mon..Fri 22:00-06:00")


@dataclass(frozen=True)
class Key:
    """One key. Default and range are written as in a file; without a range any value is valid."""

    section: str
    name: str
    attribute: str  # the field of the section's dataclass
    kind: Kind
    default: str
    low: str
    high: str
    doc: str
    per_device: bool

    @property
    def range(self) -> str:
        """The range as printed in the documentation."""
        if self.kind.choices:
            return ", ".join(self.kind.choices)
        return f"{self.low} to {self.high}" if self.low else "any"

    def parse(self, text: str) -> Any:
        """The value of ``text``; raises UnitError when it is malformed or out of range."""
        if not text and self.default:
            raise units.UnitError(f"no value: write it like '{self.name} = {self.kind.example}'")
        value = self.kind.parse(text)
        if self.low and value < self.kind.parse(self.low):
            raise units.UnitError(f"{text} is too small: use {self.range}")
        if self.high and value > self.kind.parse(self.high):
            raise units.UnitError(f"{text} is too large: use {self.range}")
        return value


def _key(
    kind: Kind, default: str, low: str = "", high: str = "", *, doc: str, per_device: bool = False
) -> Dict[str, Any]:
    """Metadata of a key's field; a key without a default may be empty."""
    return {"kind": kind, "default": default, "low": low, "high": high, "doc": doc,
            "per_device": per_device}  # fmt: skip


def _device_key(*args: Any, doc: str) -> Dict[str, Any]:
    """A key that [device GLOB] sections may have, too."""
    return _key(*args, doc=doc, per_device=True)


@dataclass(frozen=True)
class Setting:
    """One line of a ``[device GLOB]`` section, or of a ``[window NAME]`` section."""

    key: Key
    value: Any
    origin: str = field(compare=False)
    glob: str = ""  # none in a window


# fmt: off
@dataclass(frozen=True)
class PolicySection:
    name: str = field(metadata=_key(TEXT, "", doc=
        "Name of the policy; if given, it must be the file's name without `.conf` (a guard "
        "against copies)."))
    summary: str = field(metadata=_key(TEXT, "", doc="One line for `writebackctl policy list`."))
    mode: str = field(metadata=_key(_choice("enforce", "observe"), "enforce", doc=
        "`enforce` sets limits, `observe` decides and writes nothing."))
    on_exit: str = field(metadata=_key(_choice("restore", "keep"), "restore", doc=
        "At a normal stop: `restore` the original limits, or `keep` the last ones."))


@dataclass(frozen=True)
class Match:
    """[match]; a missing rule is None."""

    least: int = field(metadata=_key(COUNT, "100", "1", "10000", doc=
        "Points that a host needs for this policy to fit. Of the fitting policies the one with "
        "the most points is used, unless one is named."))
    drivers: Optional[Rule] = field(metadata=_key(DRIVERS, "", doc=
        "A disk has one of these drivers, with `*`, `?`, `[...]`; `writebackctl devices` shows "
        "them."))
    cache: Optional[Rule] = field(metadata=_key(CACHE, "", doc=
        "A fixed disk has this write cache: `controller` (a volume of a RAID controller), "
        "`drive` (a cache that flushes empty), `none`."))
    rotational: Optional[Rule] = field(metadata=_key(ROTATIONAL, "", doc=
        "`yes`: a fixed disk rotates; `no`: none does."))
    services: Optional[Rule] = field(metadata=_key(SERVICES, "", doc=
        "One of these runs: units (`etcd.service`), or processes by name (`etcd`), with `*`, `?`, "
        "`[...]`. Those of user sessions, containers and cron do not count."))
    virtualisation: Optional[Rule] = field(metadata=_key(VIRTUALISATION, "", doc=
        "`metal`: no virtual machine; `guest`: one; `host`: Xen's dom0."))
    memory: Optional[Rule] = field(metadata=_key(MEMORY, "", doc=
        "Memory size: `64G..`, `..8G`, `8G..64G`."))


@dataclass(frozen=True)
class Limits:
    """[limits]; background is a share of the limit (0..1), step_up a factor."""

    # Two pages of 4 KiB are the least that vm.dirty_bytes accepts.
    floor_bytes: int = field(metadata=_device_key(SIZE, "1M", "8K", "1T", doc=
        "The dirty limit never goes below this."))
    ceiling_bytes: int = field(metadata=_device_key(SIZE, "4G", "8K", "1T", doc=
        "The dirty limit never goes above this (except for pages stuck on a hung disk), nor "
        "above a fifth of free memory and page cache."))
    drain_time_s: float = field(metadata=_device_key(TIME, "3s", "0.5s", "60s", doc=
        "Without sync demand the limit is relaxed to what the device drains in this time."))
    background: float = field(metadata=_key(SHARE, "50%", "1%", "50%", doc=
        "Background limit (where the flusher starts) as a share of the dirty limit; above half of "
        "a small one all writers would sleep at once, for up to 0.8 s."))
    step_up: float = field(metadata=_key(MULTIPLE, "2x", "1.1x", "16x", doc=
        "The limit grows by at most this factor in one step."))
    cooldown_s: float = field(metadata=_key(TIME, "1s", "0s", "10min", doc=
        "Minimum time between two increases."))
    rest_bytes: int = field(metadata=_device_key(SIZE, "4M", "8K", "1T", doc=
        "First limit of a flood beside commits while the device's drain rate is not yet known; it "
        "rises from there."))
    lease_s: float = field(metadata=_key(TIME, "10s", "1s", "5min", doc=
        "The watcher process restores the original limits when the daemon has not renewed its "
        "lease for this long. At least five ticks. Takes effect at the next start."))


@dataclass(frozen=True)
class Objective:
    """[objective]; keep_throughput is a share (0..1), min_sync_rate fsyncs per second."""

    fsync_p99_s: float = field(metadata=_device_key(TIME, "20ms", "100us", "60s", doc=
        "Wanted 99th percentile of a commit: an fsync and what its caller slept in write() since "
        "the last one. Where the kernel does not show that sleep, of the fsync alone. The "
        "objective in force is the larger of this and `baseline-multiple` times the unloaded "
        "baseline."))
    baseline_multiple: float = field(metadata=_device_key(MULTIPLE, "10x", "1.5x", "1000x", doc=
        "Time of a commit that counts as good, in multiples of the device's own unloaded fsync."))
    keep_throughput: float = field(metadata=_key(SHARE, "95%", "10%", "100%", doc=
        "Share of the drain rate that a paced flood gets while the write cache has room."))
    prefer: str = field(metadata=_key(_choice("latency", "balanced", "throughput"), "balanced", doc=
        "Half of `allowed-delay`, all of it, or twice as much; under a pace syncs may take 1/3, "
        "1/4 or 1/7 of the drain rate, at most what `pace-share` leaves."))
    min_sync_rate: float = field(metadata=_key(FREQUENCY, "0.1/s", "0.1/s", "1000000/s", doc=
        "Commits per second, over 10 s and at regular intervals, from which a device counts as "
        "having sync demand. So does one on which a commit waits for longer than the objective."))
    demand_hold_s: float = field(metadata=_key(TIME, "60s", "1s", "1h", doc=
        "How long sync demand outlasts its last sync during a flood. Without a flood: 5 s, or "
        "twice the gap after which syncs recently resumed, at most this."))
    allowed_delay_s: float = field(metadata=_device_key(TIME, "16ms", "1ms", "10s", doc=
        "The limit in a flood beside commits once the drain rate is known: what drains in this "
        "time, or in half of `baseline-multiple` unloaded commits if that is longer."))


@dataclass(frozen=True)
class Levers:
    """[levers]; pace_share and destage_share are shares (0..1); 0 leaves a lever alone."""

    per_device: bool = field(metadata=_key(SWITCH, "on", doc=
        "While others write, give a device that needs a tight limit its own, if the kernel "
        "passes a self-test (6.8 and later)."))
    pace: str = field(metadata=_key(_choice("off", "auto", "on"), "off", doc=
        "Throttle a flooding unit or login session to just below the drain rate with `io.max`, if "
        "another one syncs and the write cache is full; `auto`: if the limit alone misses the "
        "objective, and only units that no syncing unit waits for."))
    pace_share: float = field(metadata=_key(SHARE, "75%", "10%", "95%", doc=
        "Share of the drain rate that paced units always get together."))
    destage_share: float = field(metadata=_key(SHARE, "0%", "0%", "95%", doc=
        "Let bcache write out dirty blocks within 10 s, at no more than this share of the drain "
        "rate; 0%: unchanged."))


@dataclass(frozen=True)
class Protect:
    """[protect]; globs of unit names, those of slices for all units below."""

    units: Tuple[str, ...] = field(metadata=_key(UNITS, "", doc=
        "Units that are never paced, by name, with `*`, `?`, `[...]`; `.service` may be left out; "
        "a slice (`backup.slice`) stands for all units in it. Some are never paced: see "
        "[pacing](../explanation/pacing.md)."))

    def covers(self, unit: str, slices: Sequence[str] = ()) -> Optional[str]:
        """The glob that names the unit or one of the slices that it is in; else None.

        A glob for services (`s*`) shall not take in system.slice and all in it: of slices
        only one that says so is asked.
        """
        for glob in self.units:
            own = (unit, unit[: -len(".service")]) if unit.endswith(".service") else (unit,)
            names = (unit, *slices) if glob.endswith(".slice") else own
            if any(fnmatchcase(name, glob) for name in names):
                return glob
        return None


@dataclass(frozen=True)
class Devices:
    """[devices] and, in the order they were read, the lines of all [device GLOB] sections."""

    include: Tuple[str, ...] = field(metadata=_key(DEVICES, "*", doc=
        "Devices to manage. A loop device is managed only if a pattern that does not begin with a "
        "wildcard names it."))
    exclude: Tuple[str, ...] = field(metadata=_key(DEVICES, "", doc=
        "Devices to leave alone; overrides `include`."))
    settings: Tuple[Setting, ...] = ()


@dataclass(frozen=True)
class Routing:
    """The part of [alerts] with the routes; empty means none."""

    journal: bool = field(metadata=_key(SWITCH, "on", doc=
        "Write alerts to the journal, or without one to the log; see "
        "[routes](alert-routes.md)."))
    alertmanager: Tuple[str, ...] = field(metadata=_key(URLS, "", doc=
        "URLs of Alertmanagers, at most 4, without `/api/v2/alerts` at the end."))
    exec: str = field(metadata=_key(PATH, "", doc=
        "A program to run, as nobody, when an alert begins, changes or ends; it gets JSON on its "
        "standard input."))
    mail: Tuple[str, ...] = field(metadata=_key(ADDRESSES, "", doc=
        "Addresses to mail when an alert begins, changes or ends."))
    sendmail: str = field(metadata=_key(PATH, "/usr/sbin/sendmail", doc=
        "The program that sends the mail, run as nobody with `-t -i`."))
    # Alertmanager forgets what it has not heard of for three of these.
    resend_s: float = field(metadata=_key(TIME, "1min", "30s", "3min", doc=
        "How often an active alert is sent again to Alertmanager."))
    timeout_s: float = field(metadata=_key(TIME, "10s", "1s", "1min", doc=
        "Time limit for one delivery: a request to Alertmanager, a run of a program."))
    runbook: str = field(metadata=_key(RUNBOOK, "", doc=
        "URL of the runbook in alerts; `#collapse` etc. is appended; empty: the installed one."))


@dataclass(frozen=True)
class Alerts(Routing):
    """[alerts]; shares are 0..1."""

    sync_share: float = field(metadata=_key(SHARE, "30%", "1%", "90%", doc=
        "Share of the usual sync rate below which syncs may have collapsed; their latency "
        "(`latency-multiple`) and size (`bytes-share`) have to agree."))
    latency_multiple: float = field(metadata=_key(MULTIPLE, "3x", "1.5x", "1000x", doc=
        "Time of a commit that counts as bad, in multiples of the device's own usual latency; "
        "never below `fsync-p99`."))
    bytes_share: float = field(metadata=_key(SHARE, "70%", "1%", "100%", doc=
        "Syncs that write this share of the highest rate ever seen for syncs are larger, not "
        "slower."))
    collapse_s: float = field(metadata=_key(TIME, "8s", "2s", "1h", doc=
        "How long syncs must be that bad before COLLAPSE."))
    critical_s: float = field(metadata=_key(TIME, "60s", "2s", "24h", doc=
        "How long after its start a COLLAPSE becomes critical."))
    stall_s: float = field(metadata=_key(TIME, "5s", "2s", "1h", doc=
        "How long requests or syncs must wait without one completion before STALL."))
    resolve_share: float = field(metadata=_key(SHARE, "60%", "2%", "100%", doc=
        "Share of the usual rate at which syncs have recovered."))
    resolve_after_s: float = field(metadata=_key(TIME, "60s", "1s", "1h", doc=
        "How long syncs must have recovered before an alert is resolved."))
    hold_s: float = field(metadata=_key(TIME, "5min", "0s", "24h", doc=
        "Minimum time for which an alert is active."))
    quiet_s: float = field(metadata=_key(TIME, "2min", "0s", "1h", doc=
        "No new alert for this long after boot or resume, except FOREIGN_WRITER."))


@dataclass(frozen=True)
class Probe:
    backend: str = field(metadata=_key(_choice("auto", "libbpf", "bcc", "procfs"), "auto", doc=
        "Where measurements come from; `auto`: libbpf, or bcc on a kernel without BTF, or /proc."))
    queue_latency: bool = field(metadata=_key(SWITCH, "off", doc=
        "Also measure the time that requests wait in the block queue (costs more per IO)."))
    talkers: bool = field(metadata=_key(SWITCH, "on", doc=
        "Count who dirties pages, per process and cgroup."))


@dataclass(frozen=True)
class Metrics:
    """[metrics]; http is a loopback address and a port, textfile an absolute path."""

    http: Optional[Tuple[str, int]] = field(metadata=_key(ADDRESS, "", doc=
        "Also serve metrics over HTTP on this loopback address and port; empty: only on "
        "`metrics.sock` in the runtime directory. Takes effect at the next start."))
    textfile: Optional[str] = field(metadata=_key(TEXTFILE, "", doc=
        "Also write metrics to this file, for node_exporter's textfile collector; empty: none. "
        "The unit may write in `/run/writebackd` only: link the file from there. Takes effect at "
        "the next start."))
    textfile_interval_s: float = field(metadata=_key(TIME, "15s", "1s", "10min", doc=
        "How often that file is replaced. Takes effect at the next start."))


@dataclass(frozen=True)
class HistorySettings:
    samples_bytes: int = field(metadata=_key(SIZE, "0B", "0B", "16G", doc=
        "Keep raw samples for `writebackctl replay`, using at most this much space; 0B: none. "
        "Takes effect at the next start."))
# fmt: on


SECTIONS: Mapping[str, Any] = {
    "policy": PolicySection, "match": Match, "limits": Limits, "objective": Objective,
    "levers": Levers, "protect": Protect, "devices": Devices, "alerts": Alerts, "probe": Probe,
    "metrics": Metrics, "history": HistorySettings,
}  # fmt: skip


def _keys(section: str) -> Iterator[Key]:
    """A section's own keys come before inherited ones."""
    inherited = {entry.name for base in SECTIONS[section].__bases__ if base is not object
                 for entry in fields(base)}  # fmt: skip
    for entry in sorted(fields(SECTIONS[section]), key=lambda entry: entry.name in inherited):
        if entry.metadata:
            name = entry.name[: len(entry.name) - len(entry.metadata["kind"].suffix)]
            yield Key(section, name.replace("_", "-"), entry.name, **entry.metadata)


KEYS: Tuple[Key, ...] = tuple(key for section in SECTIONS for key in _keys(section))
DEVICE_KEYS: Mapping[str, Key] = {key.name: key for key in KEYS if key.per_device}
WHEN = Key("window", "when", "when", **_key(HOURS, "", doc=
    "Days and hours in which it is open, by the host's clock. Without days: every day; empty: "
    "never."))  # fmt: skip
# What a [window NAME] may say; the lease is taken once, at the start.
WINDOW_KEYS: Mapping[str, Key] = {
    key.name: key
    for key in (WHEN, *KEYS)
    if key.section in ("window", "limits", "objective") and key.name != "lease"
}
