# SPDX-License-Identifier: GPL-2.0-or-later
"""Examples of each verb, for --help and the man page; a test runs every one of them."""

from __future__ import annotations

from typing import Mapping, Tuple

Example = Tuple[str, str]  # the command, what it is good for

EXAMPLES: Mapping[str, Tuple[Example, ...]] = {
    "status": (
        ("writebackctl status", "what it does right now, on one screen"),
        ("writebackctl --json status", "the same as data"),
    ),
    "devices": (("writebackctl devices", "what is managed, what is not, and why"),),
    "why": (
        ("writebackctl why sda", "how it came to sda's target"),
        ("writebackctl why /var/lib/postgresql", "the same by mount point"),
    ),
    "alerts": (
        ("writebackctl alerts", "what is wrong, who did it, what to do"),
        ("writebackctl alerts --check", "a line and the exit codes of a Nagios plugin"),
    ),
    "top": (
        ("sudo writebackctl top", "live; ? tells the keys"),
        ("writebackctl top --interval 5", "a frame every 5 s, over a slow line"),
        ("writebackctl top --frames 1", "one frame of text, for a log or a mail"),
        ("writebackctl --json top", "who dirties now, as data"),
    ),
    "history": (
        ("writebackctl history --since 1h", "what it did in the last hour"),
        ("writebackctl history --device sda --limit 20", "the last 20 events of sda"),
        ("writebackctl history --figures --csv --since 1d", "rates and latencies, as a table"),
    ),
    "report": (
        ("writebackctl report --since 1d", "writebackd-report.html, for a browser"),
        ("writebackctl report --device sda -o sda.html", "only sda, under another name"),
    ),
    "trial": (
        ("sudo writebackctl trial", "8 minutes: its limits and those found in turn"),
        ("sudo writebackctl trial --duration 1h --output trial.html",
         "an hour, with a page for a browser"),
    ),
    "replay": (
        ("sudo writebackctl replay", "exit code 1 when it decides otherwise now"),
        ("sudo writebackctl replay --policy default", "what another policy would have decided"),
    ),
    "observe": (("sudo writebackctl observe", "put the limits found back, only watch"),),
    "enforce": (("sudo writebackctl enforce", "back to work, also after a yield"),),
    "pin": (("sudo writebackctl pin 15M", "15 MiB, whatever happens, until release"),),
    "release": (("sudo writebackctl release", "let it decide again"),),
    "forget": (("sudo writebackctl forget sda", "after a new battery, or another array"),),
    "run": (
        ("sudo writebackctl run -- rsync -a /srv /backup", "a backup that can be told apart"),
        ("sudo writebackctl run --name nightly --slice backup.slice -- true",
         "by a name, in a slice that policies can speak of"),
    ),
    "verify": (("writebackctl verify", "exit code 1 when somebody changed a limit"),),
    "restore": (("sudo writebackctl restore", "put everything back, daemon or not"),),
    "doctor": (
        ("sudo writebackctl doctor", "can it run here, and what stands in its way"),
        ("sudo writebackctl doctor --bundle", "an archive for a bug report, without secrets"),
    ),
    "metrics": (
        ("writebackctl metrics", "of the last tick, as Prometheus gets them"),
        ("writebackctl metrics --format prometheus", "in the older form, for promtool"),
    ),
    "policy list": (("writebackctl policy list", "names, and what each is for"),),
    "policy show": (
        ("writebackctl policy show --effective", "the running one, with where each value is from"),
    ),
    "policy match": (
        ("writebackctl policy match", "which policy fits this host, with the evidence"),
    ),
    "policy check": (
        ("writebackctl policy check default", "exit code 2 when a file has errors"),
        ("writebackctl policy check --as all.conf.d/50-site.conf site.conf",
         "before it is installed there: with every policy that it is to be a part of"),
    ),
}  # fmt: skip


def epilog(verb: str) -> str:
    """The end of a verb's --help; empty where there is no example."""
    examples = EXAMPLES.get(verb, ())
    if not examples:
        return ""
    width = max(len(command) for command, _ in examples)
    if any(5 + width + len(text) > 80 for _, text in examples):
        lines = [f"  {command}\n      {text}" for command, text in examples]
    else:
        lines = [f"  {command.ljust(width)}   {text}" for command, text in examples]
    return "\n".join(["examples:", *lines])
