# SPDX-License-Identifier: GPL-2.0-or-later
"""Parses the output of Adaptec's (Microchip's) arcconf.

What it says of memory is the board's, of which firmware and the read cache have an unknown part,
so that no capacity is told.
"""

from __future__ import annotations

import re
from typing import Dict, List, Optional, Sequence, Tuple

from writebackd.storage.raid_types import Controller, ToolError, Volume
from writebackd.storage.tool_output import (
    MOST_CONTROLLERS,
    MOST_VOLUMES,
    MOST_WORKS,
    disk_name,
    lines_of,
    name,
    pci_address,
    share,
    whole,
)  # fmt: skip
from writebackd.types.storage import ArrayWork, CacheMode, Protection

# Of one controller; their numbers begin at 1, and the first answer says how many there are.
COMMANDS = (("getconfig", "{number}"), ("getstatus", "{number}"))

_VOLUME = re.compile(r"logical (?:device|drive) number ([0-9]{1,6})")
# Each begins a part in which the same keys stand for something else.
_PARTS = (
    ("controller information", "controller"),
    ("controller battery information", "battery"),
    ("controller zmm information", "battery"),
    ("controller cache backup unit information", "battery"),
    ("supercap information", "supercap"),
    ("logical device segment information", "segments"),
    ("logical device information", "volumes"),
    ("logical drive information", "volumes"),
    ("physical device information", "drives"),
    ("controller version information", "version"),
    ("raid properties", "controller"),
    ("connector information", "connectors"),
    ("maxcache", "maxcache"),
)
_BATTERIES = (
    (("not present", "not installed", "absent"), Protection.ABSENT),
    (("fail", "fatal", "not ready", "replace", "error", "invalid"), Protection.FAILED),
    (("learn", "calibrat"), Protection.LEARNING),
    (("charging",), Protection.CHARGING),
    (("optimal", "ready", "ok", "full"), Protection.OK),
)
_WORKS = (
    ("rebuild", "rebuild"), ("verify", "check"), ("build", "initialisation"),
    ("clear", "initialisation"), ("initializ", "initialisation"), ("reconfig", "migration"),
    ("expan", "migration"), ("migrat", "migration"), ("patrol", "patrol"),
)  # fmt: skip

Keys = Dict[str, str]


def parse(outputs: Sequence[str]) -> Tuple[Controller, ...]:
    """The one controller that COMMANDS were about. Raises ToolError."""
    keys: Dict[str, Keys] = {"controller": {}, "battery": {}}
    volumes: List[Tuple[int, Keys]] = []
    part = ""
    for line in lines_of(outputs[0] if outputs else ""):
        if line.value is None:
            number = _VOLUME.fullmatch(line.key)
            if number is not None:
                part = "volumes"
                volumes.append((int(number.group(1)), {}))
                if len(volumes) > MOST_VOLUMES:
                    raise ToolError(f"more than {MOST_VOLUMES} logical devices")
            else:
                part = next((to for title, to in _PARTS if line.key.startswith(title)), part)
        elif part == "volumes" and volumes:
            volumes[-1][1].setdefault(line.key, line.value)
        elif part in keys:
            keys[part].setdefault(line.key, line.value)
    if not any(keys.values()) and not volumes:
        raise ToolError("neither a controller nor a logical device in it")
    busy = _works(outputs[1] if len(outputs) > 1 else "")
    own = keys["controller"]
    return (
        Controller(
            pci=next((pci_address(v) for k, v in own.items() if k.startswith("pci address")), None),
            model=name(own.get("controller model")),
            protection=_protection(keys["battery"]),
            works=busy.get(None, ()),
            volumes=tuple(_volume(number, each, busy) for number, each in volumes),
        ),
    )


def count(output: str) -> int:
    """How many controllers there are, by what any command says first; at most 64."""
    for line in lines_of(output):
        if line.key == "controllers found":
            return min(MOST_CONTROLLERS, whole(line.value) or 0)
    return 0


def _protection(battery: Keys) -> Optional[Protection]:
    said = battery.get("overall backup unit status", battery.get("status", "")).lower()
    return next((p for words, p in _BATTERIES if any(word in said for word in words)), None)


def _volume(
    number: int, keys: Keys, busy: Dict[Optional[int], Tuple[ArrayWork, ...]]
) -> Volume:
    return Volume(
        number=number,
        disk=disk_name(keys.get("disk name")),
        mode=_mode(keys),
        works=busy.get(number, ()),
    )


def _mode(keys: Keys) -> Optional[CacheMode]:
    """What it does now, not what it was told to."""
    setting = keys.get("write-cache setting", keys.get("write-cache mode", "")).lower()
    status = keys.get("write-cache status", "").lower()
    if not status:
        # The setting may wait for a battery that is not there: only "off" is sure.
        off = setting.startswith(("disabled", "off", "write-through"))
        return CacheMode.WRITE_THROUGH if off else None
    if status.startswith("off"):
        return CacheMode.WRITE_THROUGH
    if not status.startswith("on"):
        return None
    # "Enabled" is without a condition, beside "on when protected by battery/ZMM".
    always = setting.startswith("enabled") and "protected" not in setting
    return CacheMode.ALWAYS_WRITE_BACK if always else CacheMode.WRITE_BACK


def _works(output: str) -> Dict[Optional[int], Tuple[ArrayWork, ...]]:
    """What is under way, by logical device; None is the controller."""
    found: Dict[Optional[int], Tuple[ArrayWork, ...]] = {}
    kind, on, running = None, None, False
    for line in lines_of(output):
        said = (line.value or "").lower()
        if line.key in ("logical device task", "logical drive task", "controller task"):
            kind, on, running = None, None, False
        elif line.key in ("logical device", "logical drive"):
            on = whole(line.value)
        elif line.key == "current operation":
            kind = next((work for word, work in _WORKS if word in said), None)
        elif line.key == "status":
            running = "progress" in said
        elif line.key == "percentage complete" and kind is not None and running:
            found[on] = (*found.get(on, ()), ArrayWork(kind, share(f"{said.rstrip('% ')}%")))
            found[on] = found[on][:MOST_WORKS]
            kind = None
    return found
