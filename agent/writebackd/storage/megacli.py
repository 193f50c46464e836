# SPDX-License-Identifier: GPL-2.0-or-later
"""Parses the output of LSI's MegaCli, the predecessor of storcli."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Dict, List, Optional, Sequence, Tuple

from writebackd.storage.raid_types import Controller, ToolError, Volume, all_write_through
from writebackd.storage.tool_output import (
    MOST_CONTROLLERS,
    MOST_VOLUMES,
    Keys,
    Line,
    lines_of,
    moment,
    padded,
    share,
)  # fmt: skip
from writebackd.types.storage import ArrayWork, CacheMode, Protection

# -NoLog: without it each run leaves MegaSAS.log in the working directory.
COMMANDS = (
    ("-AdpBbuCmd", "-aALL", "-NoLog"),
    ("-LDInfo", "-Lall", "-aALL", "-NoLog"),
    ("-AdpGetPciInfo", "-aALL", "-NoLog"),
)

# "Adapter 0 -- Virtual Drive Information:", "BBU status for Adapter: 0",
# "PCI information for Controller 0".
_ADAPTER = re.compile(
    r"(?:adapter[ :]*#?([0-9]{1,3})\b.*|.*\bfor (?:adapter|controller)[ :]*([0-9]{1,3}))", re.DOTALL
)
_WORKS = {
    "check consistency": "check", "background initialization": "initialisation",
    "foreground initialization": "initialisation", "initialization": "initialisation",
    "rebuild": "rebuild", "reconstruction": "migration", "patrol read": "patrol",
}  # fmt: skip
_NO_BATTERY = ("get bbu status failed", "no bbu", "battery hw not present", "not have bbu")


@dataclass
class _Adapter:
    keys: Keys = field(default_factory=dict)  # of its battery and its address
    volumes: List[Tuple[Optional[int], Keys]] = field(default_factory=list)
    without_battery: bool = False


def parse(outputs: Sequence[str]) -> Tuple[Controller, ...]:
    """From the output of COMMANDS; those behind the first may be empty. Raises ToolError."""
    adapters: Dict[int, _Adapter] = {}
    for command, output in zip(COMMANDS, padded(outputs, COMMANDS)):
        here: Optional[_Adapter] = None
        for line in lines_of(output):
            at = _adapter(line)
            if at is not None:
                here = adapters.setdefault(at, _Adapter())
                if len(adapters) > MOST_CONTROLLERS:
                    raise ToolError(f"more than {MOST_CONTROLLERS} adapters")
            if here is not None and command[0] == "-LDInfo":
                _add_volume(here, line)
            elif here is not None:
                _add(here, line)
    if not adapters:
        raise ToolError("no adapter in it")
    return tuple(_controller(each) for _, each in sorted(adapters.items()))


def _adapter(line: Line) -> Optional[int]:
    text = line.key if not line.value else f"{line.key}: {line.value}"
    found = _ADAPTER.fullmatch(text.lower())
    return int(found.group(1) or found.group(2)) if found else None


def _add(adapter: _Adapter, line: Line) -> None:
    text = f"{line.key} {line.value or ''}".lower()
    if any(each in text for each in _NO_BATTERY):
        adapter.without_battery = True
    if line.value is not None:
        adapter.keys.setdefault(line.key, line.value)


def _add_volume(adapter: _Adapter, line: Line) -> None:
    if line.key in ("virtual drive", "virtual disk", "cachecade virtual drive"):
        target = re.search(r"target id:\s*([0-9]{1,6})", (line.value or "").lower())
        adapter.volumes.append((int(target.group(1)) if target else None, {}))
        if len(adapter.volumes) > MOST_VOLUMES:
            raise ToolError(f"more than {MOST_VOLUMES} virtual drives")
    elif adapter.volumes and line.value is not None:
        adapter.volumes[-1][1].setdefault(line.key, line.value)


def _controller(adapter: _Adapter) -> Controller:
    keys = adapter.keys
    volumes = tuple(
        Volume(number=number, mode=_mode(each), works=_works(each))
        for number, each in adapter.volumes
    )
    # A volume that is told to write back and does not is one that waits for a battery.
    wanted = any(
        "writeback" in each.get("default cache policy", "").lower() for _, each in adapter.volumes
    )
    missed = adapter.without_battery and (wanted or not all_write_through(volumes))
    return Controller(
        pci=_address(keys),
        protection=_protection(keys) or (Protection.ABSENT if missed else None),
        learn_s=moment(keys.get("next learn time")),
        volumes=volumes,
    )


def _address(keys: Keys) -> Optional[str]:
    """In hexadecimal digits; it knows no domain but the first."""
    try:
        bus, slot, function = (
            int(keys[f"{part} number"][:4], 16) for part in ("bus", "device", "function")
        )
    except (KeyError, ValueError):
        return None
    inside = 0 <= bus < 256 and 0 <= slot < 32 and 0 <= function < 8
    return f"0000:{bus:02x}:{slot:02x}.{function}" if inside else None


def _protection(keys: Keys) -> Optional[Protection]:
    def yes(key: str) -> bool:
        return keys.get(key, "").lower() == "yes"

    state = keys.get("battery state", "").lower()
    if yes("battery pack missing") or "missing" in state:
        return Protection.ABSENT
    if yes("battery replacement required") or yes("pack is about to fail & should be replaced"):
        return Protection.FAILED
    if yes("learn cycle active") or state.startswith("learn"):
        return Protection.LEARNING
    if "fail" in state or state.startswith("degraded"):
        return Protection.FAILED
    if "charging" in (state, keys.get("charging status", "").lower()):
        return Protection.CHARGING
    # Older firmware gives no state, but flags.
    good = keys.get("battery replacement required", "").lower() == "no"
    return Protection.OK if good or state in ("optimal", "operational") else None


def _mode(keys: Keys) -> Optional[CacheMode]:
    """The current policy: the default one is what it was told, not what it does."""
    words = [word.strip().lower() for word in keys.get("current cache policy", "").split(",")]
    if "writethrough" in words:
        return CacheMode.WRITE_THROUGH
    if "writeback" not in words:
        return None
    always = "write cache ok if bad bbu" in words
    return CacheMode.ALWAYS_WRITE_BACK if always else CacheMode.WRITE_BACK


def _works(keys: Keys) -> Tuple[ArrayWork, ...]:
    """Below "Ongoing Progresses": `Check Consistency : Completed 13%, Taken 4 min.`"""
    return tuple(
        ArrayWork(kind, share(keys[title]))
        for title, kind in _WORKS.items()
        if keys.get(title, "").lower().startswith("completed")
    )
