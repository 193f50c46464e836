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
    Keys,
    by_words,
    disk_name,
    lines_of,
    name,
    own_address,
    padded,
    share,
    whole,
)  # fmt: skip
from writebackd.types.storage import ArrayWork, CacheMode, Protection

# Of one controller; their numbers begin at 1, and the first answer says how many there are.
COMMANDS = (("getconfig", "{number}"), ("getstatus", "{number}"))

_VOLUME = re.compile(r"logical (?:device|drive) number ([0-9]{1,6})")
# Each begins a part in which the same keys stand for something else.
_PARTS = (
    ("controller information", "controller"), ("raid properties", "controller"),
    ("controller battery information", "battery"), ("controller zmm information", "battery"),
    ("controller cache backup unit information", "battery"),
    ("logical device segment information", ""), ("logical device information", "volumes"),
    ("logical drive information", "volumes"), ("supercap information", ""),
    ("physical device information", ""), ("controller version information", ""),
    ("connector information", ""), ("maxcache", ""),
)  # fmt: skip
_BATTERIES = (
    (("not present", "not installed", "absent"), Protection.ABSENT),
    (("fail", "fatal", "not ready", "replace", "error", "invalid"), Protection.FAILED),
    (("learn", "calibrat"), Protection.LEARNING),
    (("charging",), Protection.CHARGING),
    (("optimal", "ready", "ok", "full"), Protection.OK),
)
_WORKS = (
    (("rebuild",), "rebuild"), (("verify",), "check"),
    (("build", "clear", "initializ"), "initialisation"),
    (("reconfig", "expan", "migrat"), "migration"), (("patrol",), "patrol"),
)  # fmt: skip

Works = Dict[Optional[int], Tuple[ArrayWork, ...]]  # by logical device; None is the controller


def parse(outputs: Sequence[str]) -> Tuple[Controller, ...]:
    """The one controller that COMMANDS were about. Raises ToolError."""
    config, status = padded(outputs, COMMANDS)
    keys: Dict[str, Keys] = {"controller": {}, "battery": {}}
    volumes: List[Tuple[int, Keys]] = []
    part = ""
    for line in lines_of(config):
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
    busy = _works(status)
    own, battery = keys["controller"], keys["battery"]
    return (
        Controller(
            pci=own_address(own),
            model=name(own.get("controller model")),
            protection=by_words(
                battery.get("overall backup unit status", battery.get("status", "")), _BATTERIES
            ),
            works=busy.get(None, ()),
            volumes=tuple(
                Volume(number, disk_name(each.get("disk name")), mode=_mode(each),
                       works=busy.get(number, ()))
                for number, each in volumes
            ),
        ),
    )  # fmt: skip


def count(output: str) -> int:
    """How many controllers there are, by what any command says first; at most 64."""
    for line in lines_of(output):
        if line.key == "controllers found":
            return min(MOST_CONTROLLERS, whole(line.value) or 0)
    return 0


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


def _works(output: str) -> Works:
    """What is under way."""
    found: Works = {}
    kind, on, running = None, None, False
    for line in lines_of(output):
        said = (line.value or "").lower()
        if line.key in ("logical device task", "logical drive task", "controller task"):
            kind, on, running = None, None, False
        elif line.key in ("logical device", "logical drive"):
            on = whole(line.value)
        elif line.key == "current operation":
            kind = by_words(said, _WORKS)
        elif line.key == "status":
            running = "progress" in said
        elif line.key == "percentage complete" and kind is not None and running:
            found[on] = (*found.get(on, ()), ArrayWork(kind, share(f"{said.rstrip('% ')}%")))
            found[on] = found[on][:MOST_WORKS]
            kind = None
    return found
