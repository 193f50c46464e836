# SPDX-License-Identifier: GPL-2.0-or-later
"""The table of all policy keys: section, unit, default, range.

It is the only place that knows a key's unit, default and range; the parser, ``render``
and docs/reference/policy-keys.md all follow it. Reasons for the shipped values are in
policies/*.conf.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Mapping, Tuple

from . import rules, units, window


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
ADDRESS = Kind("address", units.parse_address, units.format_address, "127.0.0.1:9900")
TEXTFILE = Kind("path", units.parse_textfile, units.format_textfile, "/run/writebackd/host.prom")
URLS = Kind("URLs", units.parse_urls, units.format_devices, "http://127.0.0.1:9093")
ADDRESSES = Kind("addresses", units.parse_addresses, units.format_devices, "root ops@example.org")
PATH = Kind("path", units.parse_path, _text, "/usr/local/bin/page")
TEXT = Kind("text", _text, _text, "some text")
HOURS = Kind("hours", window.parse_when, window.format_when, "Mon..Fri 22:00-06:00")
DRIVERS_RULE = Kind("rule", rules.parse_drivers, rules.format_rule, "40: nvme")
CACHE_RULE = Kind("rule", rules.parse_cache, rules.format_rule, "40: controller")
ROTATIONAL_RULE = Kind("rule", rules.parse_rotational, rules.format_rule, "20: no")
SERVICES_RULE = Kind("rule", rules.parse_services, rules.format_rule, "60: mysqld")
VIRTUALISATION_RULE = Kind("rule", rules.parse_virtualisation, rules.format_rule, "20: metal")
MEMORY_RULE = Kind("rule", rules.parse_memory, rules.format_rule, "20: 64G..")


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
    Key("match", "least", COUNT, "100", "1", "10000",
        "Points from which this policy fits a host. Of those that fit, the one with the most "
        "points is taken where none is named."),
    Key("match", "drivers", DRIVERS_RULE, "", "", "",
        "A disk has one of these drivers, with `*`, `?`, `[...]`; `writebackctl devices` shows "
        "them.", may_be_empty=True),
    Key("match", "cache", CACHE_RULE, "", "", "",
        "A disk that stays has this behind it: `controller` (a volume of a RAID controller), "
        "`drive` (a cache that flushes empty), `none`.", may_be_empty=True),
    Key("match", "rotational", ROTATIONAL_RULE, "", "", "",
        "`yes`: a disk that stays rotates; `no`: none does.", may_be_empty=True),
    Key("match", "services", SERVICES_RULE, "", "", "",
        "One of these runs: units (`etcd.service`), or processes by name (`etcd`), with `*`, `?`, "
        "`[...]`. Those of user sessions, containers and cron do not count.", may_be_empty=True),
    Key("match", "virtualisation", VIRTUALISATION_RULE, "", "", "",
        "`metal`: no virtual machine; `guest`: one; `host`: Xen's dom0.", may_be_empty=True),
    Key("match", "memory", MEMORY_RULE, "", "", "",
        "So much memory: `64G..`, `..8G`, `8G..64G`.", may_be_empty=True),
    # Two pages of 4 KiB are the least that vm.dirty_bytes accepts.
    Key("limits", "floor", SIZE, "1M", "8K", "1T",
        "The dirty limit never goes below this.", per_device=True),
    Key("limits", "ceiling", SIZE, "4G", "8K", "1T",
        "The dirty limit never goes above this, but for what is dirty on a disk that hangs, nor"
        " above a fifth of free memory and page cache.",
        per_device=True),
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
        "Limit while there is sync demand and the device's drain rate is not yet known.",
        per_device=True),
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
        "Share of the drain rate that a flood gets while the write cache has room."),
    Key("objective", "prefer", _choice("latency", "balanced", "throughput"), "balanced", "", "",
        "Share of the drain rate that syncs may cost a flood: a fourth, a seventh, or a tenth."),
    Key("objective", "min-sync-rate", FREQUENCY, "5/s", "0.1/s", "1000000/s",
        "fsyncs per second from which a device counts as having sync demand."),
    Key("objective", "demand-hold", TIME, "60s", "1s", "1h",
        "How long sync demand outlives its last sync beside a flood, and at most without one: "
        "there 5 s, or twice the gap after which it came back lately."),
    Key("objective", "allowed-delay", TIME, "10ms", "1ms", "10s",
        "Queueing delay that the limit allows, limit = drain rate x this, where a drain rate is "
        "known and nothing else yet.",
        per_device=True),
    Key("levers", "per-device", SWITCH, "on", "", "",
        "While others write, give a device that needs a tight limit one of its own, where the "
        "kernel can (6.8 and later, tried out before it is used)."),
    Key("levers", "queue", SWITCH, "off", "", "",
        "While a device is flooded, and 10 s longer, set `nr-requests` and `max-sectors` of its "
        "disks."),
    Key("levers", "nr-requests", COUNT, "8", "0", "65536",
        "Requests in a disk's queue under `queue = on`; 0 leaves it."),
    Key("levers", "max-sectors", SIZE, "0B", "0B", "32M",
        "Largest request under `queue = on`, in whole KB; 0B leaves it."),
    Key("levers", "flush-interval", TIME, "0s", "0s", "60s",
        "Period of the flusher (vm.dirty_writeback_centisecs) while there is sync demand; 0s "
        "leaves it."),
    Key("levers", "pace", SWITCH, "off", "", "",
        "Hold a flooding unit or login session just below the drain rate with `io.max`, where it "
        "is another one than that which syncs and no dirty limit keeps room in the write cache."),
    Key("levers", "pace-share", SHARE, "85%", "10%", "95%",
        "Paced units together always get this share of the drain rate."),
    Key("protect", "units", UNITS, "", "", "",
        "Units that are never paced, by name, with `*`, `?`, `[...]`; a slice (`backup.slice`) "
        "stands for all units in it. Some never are, named here or not: see "
        "[pacing](../explanation/pacing.md).",
        may_be_empty=True),
    Key("devices", "include", DEVICES, "*", "", "",
        "Devices to manage. A loop device is managed only if a pattern that does not begin with a "
        "wildcard names it."),
    Key("devices", "exclude", DEVICES, "", "", "",
        "Devices to leave alone; stronger than `include`.", may_be_empty=True),
    Key("alerts", "sync-share", SHARE, "30%", "1%", "90%",
        "Syncs per second, as a share of the device's own usual rate, below which they collapse: "
        "when their latency (`latency-multiple`) and their bytes (`bytes-share`) say so as well."),
    Key("alerts", "latency-multiple", MULTIPLE, "3x", "1.5x", "1000x",
        "Latency of a sync that counts as bad, in multiples of the device's own usual latency; "
        "never below `fsync-p99`."),
    Key("alerts", "bytes-share", SHARE, "70%", "1%", "100%",
        "Syncs that write this share of the most that syncs were ever seen to write are larger, "
        "not slower."),
    Key("alerts", "collapse", TIME, "8s", "2s", "1h",
        "How long syncs have to be that bad before COLLAPSE."),
    Key("alerts", "critical", TIME, "60s", "2s", "24h",
        "How long after its begin a COLLAPSE is critical."),
    Key("alerts", "stall", TIME, "5s", "2s", "1h",
        "How long requests or syncs have to wait without one completion before STALL."),
    Key("alerts", "resolve-share", SHARE, "60%", "2%", "100%",
        "Share of the usual rate from which on syncs are well again."),
    Key("alerts", "resolve-after", TIME, "60s", "1s", "1h",
        "How long things have to be well before an alert is resolved."),
    Key("alerts", "hold", TIME, "5min", "0s", "24h",
        "The least time for which an alert stands."),
    Key("alerts", "quiet", TIME, "2min", "0s", "1h",
        "No new alert for so long after boot and after a resume, but for FOREIGN_WRITER."),
    Key("alerts", "journal", SWITCH, "on", "", "",
        "Tell alerts to the journal, or the log where there is none; see "
        "[routes](alert-routes.md)."),
    Key("alerts", "alertmanager", URLS, "", "", "",
        "Alertmanagers to tell, 4 at most, without the `/api/v2/alerts` at the end.",
        may_be_empty=True),
    Key("alerts", "exec", PATH, "", "", "",
        "A program to run, as nobody, when an alert begins, changes or ends; it gets JSON on its "
        "standard input.", may_be_empty=True),
    Key("alerts", "mail", ADDRESSES, "", "", "",
        "Whom to send mail when an alert begins, changes or ends.", may_be_empty=True),
    Key("alerts", "sendmail", PATH, "/usr/sbin/sendmail", "", "",
        "The program that takes the mail, called as nobody with `-t -i`."),
    # Alertmanager forgets what it has not heard of for three of these.
    Key("alerts", "resend", TIME, "1min", "30s", "3min",
        "How often an Alertmanager is told of an alert that stands."),
    Key("alerts", "timeout", TIME, "10s", "1s", "1min",
        "Time limit for one try at a route: an answer of Alertmanager, a run of a program."),
    Key("alerts", "runbook", TEXT, "", "", "",
        "Address of the runbook in alerts, to which `#collapse` and the like is added; empty: the "
        "one that was installed.", may_be_empty=True),
    Key("probe", "backend", _choice("auto", "libbpf", "bcc", "procfs"), "auto", "", "",
        "Where measurements come from; `auto` tries the best first, `bcc` is not in this version."),
    Key("probe", "queue-latency", SWITCH, "off", "", "",
        "Also measure the time that requests wait in the block queue (costs more per IO)."),
    Key("probe", "talkers", SWITCH, "on", "", "",
        "Count who dirties pages, per process and cgroup."),
    Key("metrics", "http", ADDRESS, "", "", "",
        "Also serve metrics over HTTP on this loopback address and port; empty: only on "
        "`metrics.sock` in the runtime directory. Takes effect at the next start.",
        may_be_empty=True),
    Key("metrics", "textfile", TEXTFILE, "", "", "",
        "Also write metrics to this file, for node_exporter's textfile collector; empty: none. "
        "Takes effect at the next start.", may_be_empty=True),
    Key("metrics", "textfile-interval", TIME, "15s", "1s", "10min",
        "How often that file is replaced. Takes effect at the next start."),
    Key("history", "samples", SIZE, "0B", "0B", "16G",
        "Keep raw samples for `writebackctl replay`, in so much space at most; 0B keeps none. "
        "Takes effect at the next start."),
)
# fmt: on

DEVICE_KEYS: Mapping[str, Key] = {key.name: key for key in KEYS if key.per_device}
WHEN = Key(
    "window", "when", HOURS, "", "", "",
    "Days on which it opens, and from when to when, by the host's clock. Without days: every day; "
    "empty: never.", may_be_empty=True,
)  # fmt: skip
# What a [window NAME] may say; the lease is taken once, at the start.
WINDOW_KEYS: Mapping[str, Key] = {
    key.name: key
    for key in (WHEN, *KEYS)
    if key.section in ("window", "limits", "objective") and key.name != "lease"
}
SECTIONS: Tuple[str, ...] = tuple(dict.fromkeys(key.section for key in KEYS))
