# SPDX-License-Identifier: GPL-2.0-or-later
"""Parses the output of LSI's MegaCli, the predecessor of storcli."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Dict, List, Optional, Sequence, Tuple

from writebackd.storage import tool_output as out
from writebackd.storage import tool_table as table
from writebackd.storage.tool_output import Controller, Volume, all_write_through
from writebackd.types.storage import ArrayWork, CacheMode, Protection

# -NoLog: without it each run leaves MegaSAS.log in the working directory.
COMMANDS = (
    ("-AdpBbuCmd", "-aALL", "-NoLog"),
    ("-LDInfo", "-Lall", "-aALL", "-NoLog"),
    ("-AdpGetPciInfo", "-aALL", "-NoLog"),
)
RETRIES = (("-NoLog",),)

KEYS: table.Table = {
    "bus": ("bus number",), "device": ("device number",), "function": ("function number",),
    "battery": ("battery state",), "charging": ("charging status",),
    "replacement": ("battery replacement required",), "learn": ("next learn time",),
    "mode": ("current cache policy",), "default mode": ("default cache policy",),
}  # fmt: skip
BATTERY: table.Words[Protection] = (*table.GOOD, *table.TROUBLE)
# What firmware says with "Yes".
FLAGS: table.Words[Optional[Protection]] = (
    (Protection.ABSENT, ("battery pack missing",)),
    (Protection.FAILED, ("battery replacement required", "i2c errors detected",
                         "learn cycle timeout", "pack is about to fail should be replaced",
                         # With another word than "Yes".
                         "voltage low", "learn cycle status fail", "learn cycle status failed",
                         "issohgood no", "is soh good no")),
    (Protection.LEARNING, ("learn cycle active",)),
    # No reason not to rely on it, as storcli's bits of the same names.
    (Protection.OK, (
        "learn cycle requested", "remaining capacity low", "periodic learn required",
        "transparent learn", "fully charged", "initialized", "discharging", "issohgood",
        "is soh good", "remaining capacity alarm", "remaining time alarm",
        "discharge terminated", "charging terminated")),
)  # fmt: skip
# Newer firmware, which always reports a state, reports this; one of _BEHIND follows.
_NEWER = "pack is about to fail & should be replaced"
_BEHIND = ("bbu gasgauge status", "relative state of charge", "auto learn period",
           "next learn time", "exit code")  # fmt: skip
WORK = {
    "check consistency": "check", "background initialization": "initialisation",
    "foreground initialization": "initialisation", "initialization": "initialisation",
    "rebuild": "rebuild", "reconstruction": "migration", "patrol read": "patrol",
}  # fmt: skip
# "Adapter 0 -- Virtual Drive Information:", "BBU status for Adapter: 0",
# "PCI information for Controller 0".
_ADAPTER = re.compile(
    r"(?:adapter[ :]*#?([0-9]{1,3})\b.*|.*\bfor (?:adapter|controller)[ :]*([0-9]{1,3}))", re.DOTALL
)
_NO_BATTERY = re.compile(
    "get bbu status failed|no bbu|not have bbu|(?:bbu|battery) .*(?:absent|not present)")


@dataclass
class _Adapter:
    keys: out.Keys = field(default_factory=dict)  # of its battery and its address
    volumes: List[Tuple[Optional[int], out.Keys]] = field(default_factory=list)
    without_battery: bool = False


def parse(outputs: Sequence[str]) -> Tuple[Controller, ...]:
    """From the output of COMMANDS; those behind the first may be empty. Raises ToolError."""
    adapters: Dict[int, _Adapter] = {}
    for command, output in zip(COMMANDS, out.padded(outputs, COMMANDS)):
        here: Optional[_Adapter] = None
        for line in out.lines_of(output):
            at = _adapter(line)
            if at is not None:
                here = adapters.setdefault(at, _Adapter())
            if here is not None and command[0] == "-LDInfo":
                _add_volume(here, line)
            elif here is not None:
                _add(here, line)
    if not adapters:
        raise out.complaint("\n".join(outputs), "no adapter in it")
    return tuple(_controller(adapter) for _, adapter in sorted(adapters.items()))


def _adapter(line: out.Line) -> Optional[int]:
    text = line.key if not line.value else f"{line.key}: {line.value}"
    match = _ADAPTER.fullmatch(text.lower())
    return int(match.group(1) or match.group(2)) if match else None


def _add(adapter: _Adapter, line: out.Line) -> None:
    text = f"{line.key} {line.value or ''}".lower()
    if _NO_BATTERY.search(text):
        adapter.without_battery = True
    if line.value is not None:
        adapter.keys.setdefault(line.key, line.value)
        meant = table.meaning(text, FLAGS)
        if line.value and meant:
            adapter.keys[text] = "Yes"


def _add_volume(adapter: _Adapter, line: out.Line) -> None:
    if line.key in ("virtual drive", "virtual disk", "cachecade virtual drive"):
        target = re.search(r"target id:\s*([0-9]{1,6})", (line.value or "").lower())
        adapter.volumes.append((int(target.group(1)) if target else None, {}))
    elif adapter.volumes and line.value is not None:
        adapter.volumes[-1][1].setdefault(line.key, line.value)


def _controller(adapter: _Adapter) -> Controller:
    facts = table.Facts(KEYS, adapter.keys)
    drives = [(number, table.Facts(KEYS, keys), keys) for number, keys in adapter.volumes]
    volumes = tuple(
        Volume(number, mode=_mode(drive), works=_works(keys), unread=tuple(drive.unread))
        for number, drive, keys in drives
    )
    # A volume set to write back that does not is waiting for a battery.
    wanted = any("writeback" in drive.text("default mode").lower() for _, drive, _ in drives)
    missed = adapter.without_battery and (wanted or not all_write_through(volumes))
    return Controller(
        pci=_address(facts),
        protection=_protection(facts, adapter.keys) or (Protection.ABSENT if missed else None),
        learn_s=out.moment(facts.text("learn")),
        volumes=volumes,
        unread=tuple(facts.unread),
    )


def _address(facts: table.Facts) -> Optional[str]:
    """The PCI address from hexadecimal digits; only the first domain is known."""
    return out.pci_address(":".join(facts.text(part) for part in ("bus", "device", "function")))


def _protection(facts: table.Facts, keys: out.Keys) -> Optional[Protection]:
    """By flags and state: the worse counts, and unknown words do not count as good."""
    if not facts.is_reported("replacement") and not facts.is_reported("battery"):
        return None
    flags = {
        key: table.meaning(key, FLAGS)
        for key, said in keys.items()
        if said.lower() == "yes"
    }
    if Protection.LEARNING in flags.values():  # which discharges it
        flags = {key: meant for key, meant in flags.items() if not key.startswith("voltage")}
    for bad in (Protection.ABSENT, Protection.FAILED, Protection.LEARNING):
        if bad in flags.values():
            return bad
    state = facts.state("battery", BATTERY)
    if state not in (None, Protection.OK):
        return state
    if facts.text("charging").lower() == "charging":
        return Protection.CHARGING
    for key in (key for key, meant in flags.items() if meant is None):
        facts.unknown("battery", key)
    # Some gives an empty state, but flags; of a CacheVault no state at all.
    silent = facts.is_reported("battery") and not facts.text("battery") and _NEWER not in keys
    vault = keys.get("batterytype", "").upper().startswith("CV")
    silent = silent or (vault and not facts.is_reported("battery"))
    whole = any(key in keys for key in _BEHIND)
    good = whole and facts.text("replacement").lower() == "no" and not facts.unread
    return Protection.OK if good and (state or silent) else None


def _mode(facts: table.Facts) -> Optional[CacheMode]:
    """The current policy: the default one is what was configured, not what is in effect."""
    words = [word.strip().lower() for word in facts.text("mode").split(",")]
    if "writethrough" in words:
        return CacheMode.WRITE_THROUGH
    if "writeback" not in words:
        if facts.text("mode"):
            facts.unknown("mode", facts.text("mode"))
        return None
    always = "write cache ok if bad bbu" in words
    return CacheMode.ALWAYS_WRITE_BACK if always else CacheMode.WRITE_BACK


def _works(keys: out.Keys) -> Tuple[ArrayWork, ...]:
    """Work below "Ongoing Progresses": `Check Consistency : Completed 13%, Taken 4 min.`"""
    return tuple(
        ArrayWork(kind, out.share(keys[title]))
        for title, kind in WORK.items()
        if keys.get(title, "").lower().startswith("completed")
    )
