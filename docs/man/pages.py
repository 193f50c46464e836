# SPDX-License-Identifier: GPL-2.0-or-later
"""The man pages as roff: options, verbs, keys and examples from the code, prose from here."""

from __future__ import annotations

import re
from typing import Iterable, List, Tuple

from commands import Command, writebackctl, writebackd, writebackd_raid
from writebackd import __version__
from writebackd.cli.examples import EXAMPLES
from writebackd.paths import (
    CACHE_DIR,
    CACHES,
    HISTORY,
    LEARNED,
    LEDGER,
    OFF,
    OFF_ON_DISK,
    RAID,
    RUNTIME_DIR,
    SOCKET,
    STATE_DIR,
)
from writebackd.policy.keys import KEYS, SECTIONS, WHEN, WINDOW_KEYS, Key

EXIT_CODES: Tuple[Tuple[str, str], ...] = (
    ("0", "success"),
    ("1", "check failed: `verify` found a difference, `doctor` a blocker, `drain` is not clean,"
     " `restore` failed, `trial` was stopped or found fsync slower, `replay` decides differently,"
     " `recommend` has too little evidence, `calibrate` did not start or finish, or its result is"
     " not stored"),
    ("2", "wrong use or wrong configuration"),
    ("3", "no daemon to talk to"),
    ("4", "not permitted: needs root"),
)  # fmt: skip
POLICY_EXAMPLE = """\
[policy]
summary = the array behind our databases

[match]
least = 100
drivers = 40: megaraid_sas smartpqi
services = 60: postgres mysqld*

[limits]
floor = 2M
ceiling = 1G

[objective]
fsync-p99 = 5ms

[devices]
exclude = sdz

[device sdb]
fsync-p99 = 50ms

[device driver:usb-storage]
ceiling = 48M

[window night-backup]
when = Mon..Fri 22:00-06:00
fsync-p99 = 100ms
"""

_SECTION_PROSE = {
    "match": (
        "Which hosts the policy fits, if none is named. A rule is `POINTS: WHAT`, the points"
        " (1 to 1000) first: `services = 60: postgres mysqld*` gives 60 points to a host on which"
        " one of the two runs. Of several words, separated by blanks, one is enough; memory is a"
        " range, `64G..`, `..8G` or `8G..64G`. An empty rule gives none. A policy with `least`"
        " points fits; the fitting one with the most points is used."
        " `writebackctl policy match --all` shows all of them with the evidence.",
    ),
}


def writebackctl_1() -> str:
    root = writebackctl()
    lines = [
        *_title("WRITEBACKCTL", 1),
        *_section("NAME"), "writebackctl \\- query and control writebackd",
        *_section("SYNOPSIS"),
        ".B writebackctl", "[\\fB\\-\\-runtime\\-dir\\fR \\fIDIR\\fR] [\\fB\\-\\-json\\fR]"
        " [\\fB\\-\\-color\\fR \\fIWHEN\\fR]"
        " \\fIVERB\\fR [\\fIARGUMENT\\fR ...]",
        *_section("DESCRIPTION"),
        *_prose(
            "Queries and controls a running `writebackd`(8), which keeps `fsync` fast while others"
            " write, over its Unix socket. Queries need no root, changes do. `history`, `report`,"
            " `recommend` and `replay` need root or the group adm. The options below may stand"
            " before or after the verb.",
        ),
        *_section("OPTIONS"), *_options(root),
        *_section("VERBS"),
    ]  # fmt: skip
    for each in root.all():
        if each.words:
            lines += _verb(each)
    lines += [
        *_section("EXIT STATUS"), *_list(EXIT_CODES),
        *_prose("`run` returns its command's exit code: 128 plus the signal's number if one ended"
                " it, 127 if it is not found, 126 if it cannot be started."),
        *_section("ENVIRONMENT"),
        *_list((("NO_COLOR", "not empty: no colours, unless `--color` says so"),
                ("TERM", "`dumb`: no colours, and `top` prints its frames one below the other"),
                ("COLUMNS", "width of the text; default: that of the terminal, or 80"))),
        *_section("FILES"),
        *_list(((f"{RUNTIME_DIR}/{SOCKET}", "the socket: one line of JSON in, one out"),
                (f"{RUNTIME_DIR}/{LEDGER}", "original settings; `restore` reads it"),
                (f"{STATE_DIR}/{HISTORY}", "past events; `history` reads it"))),
        *_section("SEE ALSO"), *_prose("`writebackd`(8), `writebackd.conf`(5), `systemd-run`(1)"),
    ]  # fmt: skip
    return _page(lines)


def writebackd_8() -> str:
    root = writebackd()
    lines = [
        *_title("WRITEBACKD", 8),
        *_section("NAME"), "writebackd \\- keeps dirty pages from starving synchronous IO",
        *_section("SYNOPSIS"), *_synopsis(root.usage),
        *_section("DESCRIPTION"),
        *_prose(
            "Measures with BPF how fast the disks of this host write and sync, and adapts the limit"
            " of dirty memory (`vm.dirty_bytes`, and other settings if the policy says so): low"
            " enough that `fsync` stays fast, high enough that the disks stay busy. It runs in the"
            " foreground until SIGTERM or SIGINT, then restores the original settings.",
            "It saves the original settings in a ledger before its first change. If it crashes, is"
            " killed or hangs, a second process restores them within 12.5 s; `writebackctl restore`"
            " works without either. When another process sets a limit, it writes nothing until"
            " `writebackctl enforce`, or for a minute if sysctl.d was only applied again.",
        ),
        *_section("OPTIONS"), *_options(root),
        *_section("SIGNALS"),
        *_list((("SIGTERM, SIGINT", "restore everything (unless the policy says `on-exit = keep`),"
                 " then end"),
                ("SIGHUP", "reload the policy; if it has errors, the old one stays"))),
        *_section("EXIT STATUS"),
        *_list((("0", "ended by a signal, everything restored"),
                ("1", "could not start or go on; the log says why"),
                ("2", "wrong use or wrong policy"), ("4", "not permitted: needs root"))),
        *_section("FILES"),
        *_list((("/etc/default/writebackd", "options of the service, see `writebackd.conf`(5)"),
                (f"/etc/writebackd/policies.d, {RUNTIME_DIR}/policies.d,"
                 " /usr/lib/writebackd/policies.d", "policies, see `writebackd.conf`(5)"),
                (f"{RUNTIME_DIR}/{SOCKET}", "for `writebackctl`(1)"),
                (f"{RUNTIME_DIR}/{LEDGER}", "original settings"),
                (f"{RUNTIME_DIR}/{OFF}, {OFF_ON_DISK}", "kill switch: while one of them exists,"
                 " the original settings are in force and nothing is written"),
                (RAID, "state from RAID tools; written by writebackd-raid.service"),
                (f"{STATE_DIR}/{HISTORY}, {STATE_DIR}/{LEARNED}",
                 "past events, and learned values of the disks"),
                (str(CACHE_DIR), "the probe compiled by bcc for a kernel without BTF"))),
        *_section("EXAMPLES"),
        *_list((("sudo writebackd --mode observe", "decide and report, write nothing"),
                ("sudo writebackd --policy db-hwraid --device sdb", "one disk, with the policy for"
                 " databases on a RAID controller"))),
        *_section("SEE ALSO"),
        *_prose("`writebackctl`(1), `writebackd.conf`(5), `writebackd-raid`(8), `proc`(5)"),
    ]  # fmt: skip
    return _page(lines)


def writebackd_raid_8() -> str:
    root = writebackd_raid()
    lines = [
        *_title("WRITEBACKD-RAID", 8),
        *_section("NAME"), "writebackd-raid \\- read the state of RAID caches for writebackd",
        *_section("SYNOPSIS"), *_synopsis(root.usage),
        *_section("DESCRIPTION"),
        *_prose(
            "Queries RAID tools (storcli, perccli, MegaCli, ssacli, arcconf), dmsetup and the"
            " kernel for caches and arrays behind the disks, and writes the answers to a file that"
            " `writebackd`(8) reads. Nothing is ever set. A tool is run only if root owns it and"
            " nobody else may write it or a directory above it.",
            "writebackd-raid.timer runs it every ten minutes while the daemon runs. It prints a"
            " line for each tool on stderr.",
        ),
        *_section("OPTIONS"), *_options(root),
        *_section("EXIT STATUS"),
        *_list((("0", "the file was written, whatever the tools answered"),
                ("1", "the file cannot be written"), ("2", "wrong use"))),
        *_section("FILES"),
        *_list(((RAID, "the answers; valid for 35 minutes"),
                (CACHES, "state of the kernel's own caches, from --caches; valid for 8 s"))),
        *_section("EXAMPLES"),
        *_list((("sudo writebackd-raid --output -", "print what it finds"),)),
        *_section("SEE ALSO"), *_prose("`writebackd`(8), `writebackctl`(1)"),
    ]  # fmt: skip
    return _page(lines)


def writebackd_conf_5() -> str:
    lines = [
        *_title("WRITEBACKD.CONF", 5),
        *_section("NAME"), "writebackd.conf \\- options and policies of writebackd",
        *_section("SYNOPSIS"), "/etc/default/writebackd", ".br",
        "/etc/writebackd/policies.d/\\fINAME\\fR.conf", ".br",
        "/etc/writebackd/policies.d/\\fINAME\\fR.conf.d/*.conf", ".br",
        "/etc/writebackd/policies.d/all.conf.d/*.conf", ".br",
        "/run/writebackd/policies.d/...", ".br", "/usr/lib/writebackd/policies.d/...",
        *_section("DESCRIPTION"),
        *_prose(
            "/etc/default/writebackd has the options of the service in one line:"
            " `OPTIONS=\"--policy db-hwraid --mode observe\"`. They take effect with `systemctl"
            " restart writebackd`. All else is in policies.",
            "A policy sets bounds for `writebackd`(8): floor and ceiling of the limit, the latency"
            " to aim at, which devices. A file in /etc masks one of the same name in /run, and that"
            " one in /usr/lib. Drop-ins of all three directories are merged over it, sorted by file"
            " name, with the same masking; the last value wins. Those in all.conf.d are merged into"
            " every policy, before its own. `writebackctl policy show --effective` prints the"
            " result, each value with file and line.",
            "The files are strict: an unknown section or key, a bad unit or an impossible range"
            " is an error with file and line, and `writebackctl policy check FILE` finds it before"
            " the daemon does. Lines that begin with # or ; are comments.",
            "Sizes are 1024-based (`15M`), times have a unit (`20ms`, `3s`), shares are `20%`,"
            " multiples `10x`, frequencies `5/s`, switches `on` or `off`, rules of [match] points"
            " and a condition (`40: nvme`). Devices are globs of kernel names, `MAJ:MIN`,"
            " `driver:NAME`, links below /dev or mount points, separated by blanks.",
        ),
    ]  # fmt: skip
    for section in SECTIONS:
        lines += _section(f"[{section}]")
        lines += _prose(*_SECTION_PROSE.get(section, ()))
        for key in KEYS:
            if key.section == section:
                lines += _key(key)
    per_device = ", ".join(f"`{key.name}`" for key in KEYS if key.per_device)
    lines += [
        *_section("[device GLOB]"),
        *_prose("Values for matching devices: by kernel name (`sd[a-c]`), by MAJ:MIN, by the"
                " driver of their disks as `driver:NAME` (`[device driver:usb-storage]`), by a link"
                " of udev's (`[device /dev/disk/by-id/wwn-0x5000c500a1b2c3d4]`, or the last part"
                " alone) or by mount point (`[device /srv/db]`);"
                f" `writebackctl devices` shows these. Keys: {per_device}. If several sections"
                " match, the last line read wins."),
        *_section("[window NAME]"),
        *_prose("Values for certain times. Keys: when, and of [limits] and [objective] "
                f"{', '.join(f'`{name}`' for name in WINDOW_KEYS if name != WHEN.name)}. A"
                " `[device GLOB]` section overrides them. Days are those on which it opens; hours"
                " may span midnight, in the host's time zone. Windows may not overlap."),
        *_key(WHEN),
        *_section("EXAMPLE"), ".nf", ".RS 4",
        *(_escape(line) for line in POLICY_EXAMPLE.splitlines()), ".RE", ".fi",
        *_section("SEE ALSO"), *_prose("`writebackd`(8), `writebackctl`(1)"),
    ]  # fmt: skip
    return _page(lines)


def _key(key: Key) -> List[str]:
    default = key.default or "empty"
    values = " or ".join(key.kind.choices) or f"{key.kind.unit}, {key.range}"
    facts = f"{values}, default {default}"
    if key.per_device:
        facts += "; also per device"
    return [".TP", f"\\fB{_escape(key.name)}\\fR ({_escape(facts)})", *_text(key.doc)]


def _verb(command: Command) -> List[str]:
    own = [each for each in command.options if each.flags[-1] not in _COMMON]
    lines = [".SS " + _escape(command.name)]
    usage = command.usage
    for common in (" [-h]", " [--runtime-dir DIR]", " [--json]", " [--color {auto,always,never}]"):
        usage = usage.replace(common, "")
    lines += [*_synopsis(usage), ".PP", *_text(_sentence(command.summary))]
    for argument in command.arguments:
        name = argument.name.upper() if argument.name.islower() else argument.name
        lines += [".TP", f"\\fI{_escape(name)}\\fR", *_text(argument.help or name)]
    for option in own:
        lines += _option(option.flags, option.value, option.help)
    for example, comment in EXAMPLES.get(command.name, ()):
        lines += [".PP", ".nf", ".RS 4", f"\\fB{_escape(example)}\\fR", ".RE", ".fi"]
        lines += [".RS 8", *_text(comment), ".RE"]
    return lines


_COMMON = ("--help", "--runtime-dir", "--json", "--color")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _synopsis(usage: str) -> List[str]:
    program, _, rest = usage.partition(" ")
    return [f"\\fB{program}\\fR {_escape(rest)}".rstrip()]


def _options(command: Command) -> List[str]:
    lines: List[str] = []
    for option in command.options:
        lines += _option(option.flags, option.value, option.help)
    return lines


def _option(flags: Iterable[str], value: object, text: str) -> List[str]:
    names = ", ".join(f"\\fB{_escape(flag)}\\fR" for flag in flags)
    if value is not None:
        names += f" \\fI{_escape(str(value))}\\fR"
    return [".TP", names, *_text(text)]


def _list(entries: Iterable[Tuple[str, str]]) -> List[str]:
    lines: List[str] = []
    for name, text in entries:
        lines += [".TP", f"\\fB{_escape(name)}\\fR", *_text(text)]
    return lines


def _prose(*paragraphs: str) -> List[str]:
    lines: List[str] = []
    for number, text in enumerate(paragraphs):
        lines += [*([".PP"] if number else []), *_text(text)]
    return lines


def _title(name: str, section: int) -> List[str]:
    # No date: the same sources give the same page.
    return [f'.TH {name} {section} "" "writebackd {__version__}"', ".ad l", ".nh"]


def _section(name: str) -> List[str]:
    return [f'.SH "{_escape(name)}"']


def _text(markdown: str) -> List[str]:
    """Sentences with `code` and [links](to a file) of the manual, as roff."""
    plain = re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", markdown)
    parts = plain.split("`")
    text = "".join(
        f"\\fB{_escape(part)}\\fR" if number % 2 else _escape(part)
        for number, part in enumerate(parts)
    )
    # A line of its own for each sentence keeps lines short; man fills them again.
    return [_guarded(line) for line in re.sub(r"([.;:]) ", r"\1\n", text).split("\n")]


def _escape(text: str) -> str:
    return _guarded(text.replace("\\", "\\e").replace("-", "\\-"))


def _guarded(line: str) -> str:
    """A line that begins with a point or a quote would be a command."""
    return "\\&" + line if line.startswith((".", "'")) else line


def _page(lines: Iterable[str]) -> str:
    head = '.\\" SPDX-License-Identifier: GPL-2.0-or-later\n.\\" Made by docs/man/generate.py.\n'
    return head + "\n".join(lines) + "\n"
