# SPDX-License-Identifier: GPL-2.0-or-later
"""Parses the output of Adaptec's (Microchip's) arcconf.

Cards of the aacraid driver report the mode of each volume, and the board's memory; firmware and
read cache use an unknown part of it, so the cache size is unknown. SmartRAID (smartpqi) reports
the cache as ssacli does.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Dict, List, Optional, Sequence, Tuple

from writebackd.storage import tool_output as out
from writebackd.storage import tool_table as table
from writebackd.storage.tool_output import Controller, ToolError, Volume
from writebackd.types.storage import ArrayWork, CacheMode, Protection

# The first answer says how many controllers there are.
COMMANDS = (("getconfig", "1"),)

KEYS: table.Table = {
    "model": ("controller model",), "address": ("pci address",), "slot": ("physical slot",),
    "write cache": ("write-cache status", "write-cache mode"),  # what it does
    "write cache setting": ("write-cache setting",),  # its setting
    "cache status": ("cache status",), "cache board": (), "method": ("ld acceleration method",),
    "why": ("cache status details", "cache disable reason"),
    "caching": ("caching",), "without battery": ("no-battery write cache",),
    "battery": ("overall backup unit status", "backup power status", "status", "supercap status"),
    "batteries": ("battery/capacitor pack count",), "capacitor": ("supercap status",),
    "size": ("cache memory",), "write share": ("write cache percentage",), "disk": ("disk name",),
}  # fmt: skip
BATTERY: table.Words[Protection] = (*table.GOOD, *table.TROUBLE)
_BACK, _THROUGH = CacheMode.WRITE_BACK, CacheMode.WRITE_THROUGH
# The current mode of a volume's cache, or its setting if a battery is the condition.
MODES: table.Words[CacheMode] = (
    (_THROUGH, ("not supported", "off", "off *", "disabled", "disabled *", "write through",
                "enabled write through", "on write through")),
    (_BACK, ("* when protected *",)),
    (CacheMode.ALWAYS_WRITE_BACK, ("on", "enabled", "enabled write back", "on write back",
                                   "write back", *table.UNPROTECTED)),
)  # fmt: skip
WORK: table.Words[str] = (
    ("rebuild", table.anywhere("rebuild")), ("check", table.anywhere("verify")),
    ("initialisation", table.anywhere("build", "clear", "initialize", "initialization")),
    ("migration", table.anywhere("reconfigure", "reconfiguration", "expand", "expansion", "migrate",
                                 "migration")),
    ("patrol", table.anywhere("patrol")),
)  # fmt: skip

_VOLUME = re.compile(r"logical (?:device|drive) number ([0-9]{1,6})")
# Each begins a part in which the same keys stand for something else, as all other titles do.
_PARTS = (
    ("controller information", "controller"), ("raid properties", "controller"),
    ("cache properties", "controller"), ("controller battery information", "battery"),
    ("controller zmm information", "battery"), ("green backup information", "battery"),
    ("controller cache backup unit information", "battery"), ("supercap information", ""),
    ("logical device segment information", ""), ("logical device information", "volumes"),
    ("logical drive information", "volumes"), ("physical device information", ""),
    ("controller version information", ""), ("connector information", ""), ("maxcache", ""),
)  # fmt: skip

Works = Dict[Optional[int], Tuple[ArrayWork, ...]]  # by logical device; None is the controller


def more(first: str) -> List[Tuple[str, str]]:
    """The commands after the first, for each controller."""
    commands = [(verb, str(number)) for number in range(1, count(first) + 1)
                for verb in ("getconfig", "getstatus")]  # fmt: skip
    return commands[1:]


def parse(outputs: Sequence[str]) -> Tuple[Controller, ...]:
    """Parse the output of COMMANDS and of `more`. Raises ToolError."""
    controllers: List[Controller] = []
    if re.search(r"controllers found\s*:\s*0\b", outputs[0], re.IGNORECASE):
        return ()
    for config, status in zip(outputs[::2], [*outputs[1::2], ""]):
        try:
            controllers.append(_controller(config, status))
        except ToolError as error:
            if not controllers:
                raise
            said = f"controller {len(controllers) + 1}: {error}"  # what the others said is as good
            controllers[-1] = replace(controllers[-1], unread=(*controllers[-1].unread, said))
            break
    return tuple(controllers)


def _controller(config: str, status: str) -> Controller:
    keys: Dict[str, out.Keys] = {"controller": {}, "battery": {}}
    volumes: List[Tuple[int, out.Keys]] = []
    part = ""
    for line in out.lines_of(config):
        if line.value is None:
            number = _VOLUME.fullmatch(line.key)
            if number is not None:
                part = "volumes"
                volumes.append((int(number.group(1)), {}))
            else:
                default = "" if line.ruled else part
                part = next((to for title, to in _PARTS if line.key.startswith(title)), default)
        elif part == "volumes" and volumes:
            volumes[-1][1].setdefault(line.key, line.value)
        elif part in keys:
            keys[part].setdefault(line.key, line.value)
    if not any(keys.values()) and not volumes:
        raise out.complaint(config, "neither a controller nor a logical device in it")
    busy = _works(status)
    own, battery = (table.Facts(KEYS, keys[name]) for name in ("controller", "battery"))
    writes = out.share(own.text("write share"))
    mapped = tuple(
        _volume(number, table.Facts(KEYS, lines), own, writes, busy.get(number, ()))
        for number, lines in volumes
    )
    model, works = own.text("model"), busy.get(None, ())
    # After each power failure the unit is "Not Ready" until its capacitor is charged.
    charges = table.meaning(battery.text("capacitor"), BATTERY) is Protection.CHARGING
    if charges and battery.text("battery").lower() == "not ready":
        for key in ("overall backup unit status", "backup power status"):
            keys["battery"].pop(key, None)
    return table.switched_controller(own, battery, BATTERY, model, "M", writes, mapped, works)


def count(output: str) -> int:
    """The number of controllers, from the first line of any command; at most 64."""
    for line in out.lines_of(output):
        if line.key == "controllers found":
            return min(out.MOST_CONTROLLERS, out.whole(line.value) or 0)
    return 0


def _volume(
    number: int, volume: table.Facts, own: table.Facts, write_share: Optional[float],
    works: Tuple[ArrayWork, ...],
) -> Volume:
    if own.is_reported("cache status") or volume.is_reported("caching"):
        mode = table.switched_mode(own, volume, write_share)
    else:
        mode = _mode(volume)
    disk = out.disk_name(volume.text("disk"))
    return Volume(number, disk, mode=mode, works=works, unread=tuple(volume.unread))


def _mode(volume: table.Facts) -> Optional[CacheMode]:
    """The current mode; the setting tells whether that is conditional."""
    now = volume.state("write cache", MODES)
    setting = volume.state("write cache setting", MODES)
    if not volume.text("write cache"):
        # The setting may wait for a battery that is not there: only "off" is sure.
        return setting if setting is _THROUGH else None
    if now in (None, _THROUGH):
        return now
    bare = table.meaning(volume.text("write cache"), ((True, table.UNPROTECTED),))
    always = bare or setting is CacheMode.ALWAYS_WRITE_BACK
    return CacheMode.ALWAYS_WRITE_BACK if always else _BACK


def _works(output: str) -> Works:
    works: Works = {}
    kind, on, running = None, None, False
    for line in out.lines_of(output):
        said = (line.value or "").lower()
        if line.key in ("logical device task", "logical drive task", "controller task"):
            kind, on, running = None, None, False
        elif line.key in ("logical device", "logical drive"):
            on = out.whole(line.value)
        elif line.key == "current operation":
            kind = table.meaning(said, WORK)
        elif line.key == "status":
            running = "progress" in said
        elif line.key == "percentage complete" and kind is not None and running:
            works[on] = (*works.get(on, ()), ArrayWork(kind, out.share(f"{said.rstrip('% ')}%")))
            works[on] = works[on][:out.MOST_WORKS]
            kind = None
    return works
