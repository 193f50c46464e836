# SPDX-License-Identifier: GPL-2.0-or-later
"""Examples of each verb, for --help and the man page; a test runs every one of them."""

from __future__ import annotations

from typing import Iterable, Mapping, Tuple

Example = Tuple[str, str]  # the command, what it is good for

EXAMPLES: Mapping[str, Tuple[Example, ...]] = {
    "status": (
        ("writebackctl status", "state now, on one screen"),
        ("writebackctl --json status", "the same as data"),
    ),
    "devices": (("writebackctl devices", "which are managed, and why"),),
    "why": (
        ("writebackctl why sda", "verdict, cause and next step for sda"),
        ("writebackctl why -v /var/lib/postgresql", "by mount point, with every step"),
    ),
    "alerts": (
        ("writebackctl alerts", "what is wrong, the cause, what to do"),
        ("writebackctl alerts --check", "one line, with the exit codes of a Nagios plugin"),
    ),
    "top": (
        ("sudo writebackctl top", "live; ? lists the keys"),
        ("writebackctl top --interval 5", "a frame every 5 s, over a slow line"),
        ("writebackctl top --frames 1", "one frame of text, for a log or a mail"),
        ("writebackctl --json top", "current writers, as data"),
    ),
    "history": (
        ("writebackctl history --since 1h", "events of the last hour"),
        ("writebackctl history --device sda --limit 20", "the last 20 events of sda"),
        ("writebackctl history --figures --csv --since 1d", "rates and latencies, as a table"),
    ),
    "report": (
        ("writebackctl report --since 1d", "writes writebackd-report.html"),
        ("writebackctl report --device sda -o sda.html", "only sda, to another file"),
    ),
    "recommend": (
        ("sudo writebackctl recommend", "a fixed limit, its reason and its cost"),
        ("sudo writebackctl recommend --since 30d --format sysctl",
         "the same as a file for /etc/sysctl.d"),
    ),
    "calibrate": (
        ("sudo writebackctl calibrate --directory /srv", "drain rate and best limit of the disk of"
         " /srv"),
        ("sudo writebackctl calibrate --directory /srv --budget 30G --time 3m",
         "the same for a fast disk"),
    ),
    "trial": (
        ("sudo writebackctl trial", "8 minutes, new and original limits in turn"),
        ("sudo writebackctl trial --duration 1h --output trial.html",
         "an hour, with an HTML report"),
    ),
    "replay": (
        ("sudo writebackctl replay", "exit code 1 when a decision differs"),
        ("sudo writebackctl replay --policy default", "what another policy would decide"),
    ),
    "observe": (("sudo writebackctl observe", "restore the original limits, only watch"),),
    "enforce": (("sudo writebackctl enforce", "set limits again, also after a yield"),),
    "pin": (
        ("sudo writebackctl pin 15M", "15 MiB until release"),
        ("sudo writebackctl pin 15M --for 10m", "15 MiB for ten minutes"),
    ),
    "release": (("sudo writebackctl release", "return to automatic limits"),),
    "drain": (
        ("sudo writebackctl drain", "before a shutdown or a battery test"),
        ("sudo writebackctl drain sda --hold --timeout 10m",
         "before a controller swap; limits stay low until `release`"),
    ),
    "reset-stats": (("sudo writebackctl reset-stats", "before a measurement"),),
    "forget": (("sudo writebackctl forget sda", "after a new battery, or another array"),),
    "run": (
        ("sudo writebackctl run -- rsync -a /srv /backup", "a backup in its own scope"),
        ("sudo writebackctl run --name nightly --slice backup.slice -- true",
         "with a name and slice that policies can refer to"),
    ),
    "verify": (("writebackctl verify", "exit code 1 when another process changed a limit"),),
    "restore": (("sudo writebackctl restore", "restore everything, with or without a daemon"),),
    "doctor": (
        ("sudo writebackctl doctor", "can it run here; if not, why"),
        ("sudo writebackctl doctor --bundle", "an archive for a bug report, without secrets"),
    ),
    "version": (("writebackctl version", "for a bug report"),),
    "metrics": (
        ("writebackctl metrics", "metrics of the last tick, as Prometheus gets them"),
        ("writebackctl metrics --format prometheus", "in the older text format, for promtool"),
    ),
    "policy list": (("writebackctl policy list", "names and purpose of each policy"),),
    "policy show": (
        ("writebackctl policy show --effective", "values in force, each with file and line"),
    ),
    "policy match": (("writebackctl policy match", "which policy fits this host, and why"),),
    "policy check": (
        ("writebackctl policy check default", "exit code 2 when a file has errors"),
        ("writebackctl policy check --as all.conf.d/50-site.conf site.conf",
         "before installing it; with every policy it is merged into"),
    ),
}  # fmt: skip


def examples(of: Iterable[Example]) -> str:
    """The end of a --help; empty if there is no example."""
    rows = list(of)
    if not rows:
        return ""
    width = max(len(command) for command, _ in rows)
    if any(5 + width + len(text) > 80 for _, text in rows):
        lines = [f"  {command}\n      {text}" for command, text in rows]
    else:
        lines = [f"  {command.ljust(width)}   {text}" for command, text in rows]
    return "\n".join(["examples:", *lines])
