# SPDX-License-Identifier: GPL-2.0-or-later
"""Parses the output of HPE's ssacli (earlier hpssacli, hpacucli)."""

from __future__ import annotations

import re
from typing import List, Optional, Sequence, Tuple

from writebackd.storage.raid_types import Controller, ToolError, Volume
from writebackd.storage.tool_output import (
    MOST_CONTROLLERS,
    MOST_VOLUMES,
    Keys,
    by_words,
    disk_name,
    lines_of,
    name,
    own_address,
    padded,
    share,
    size_bytes,
    whole,
)  # fmt: skip
from writebackd.types.storage import ArrayWork, CacheMode, Protection

COMMANDS = (("ctrl", "all", "show", "config", "detail"),)

# "Smart Array P420i in Slot 0 (Embedded)", "HPE Smart Array P408i-a SR Gen10 in Slot 0", and as
# hpacucli knew them "Smart Array P400 in Slot 1". What is in an enclosure is no controller.
_HEADER = re.compile(r"(\S.{0,100}?) in slot [0-9]", re.IGNORECASE)
# Of what else has keys of the same names below a controller.
_PART = re.compile(r"physicaldrive |array:? |logical drive: |sep |enclosure |expander |port name:|"
                   r"internal drive cage|external drive cage|physical drives|unassigned")
_BATTERIES = (
    (("fail", "replace", "error"), Protection.FAILED),
    (("recharging", "charging"), Protection.CHARGING),
    (("not present", "not installed", "missing", "none"), Protection.ABSENT),
    (("ok",), Protection.OK),
)  # fmt: skip
# Not "ready for rebuild" and "interim recovery mode": it waits for a drive.
_WORKS = (
    (("recovering", "rebuilding"), "rebuild"), (("transforming", "expanding"), "migration"),
    (("initializing",), "initialisation"),
)  # fmt: skip


def parse(outputs: Sequence[str]) -> Tuple[Controller, ...]:
    """From the output of COMMANDS. Raises ToolError."""
    found: List[Tuple[str, Keys, List[Keys]]] = []
    section: Optional[Keys] = None
    indent: Optional[int] = None  # of the section's keys; sensors and the like are deeper
    (text,) = padded(outputs, COMMANDS)
    for line in lines_of(text):
        header = _HEADER.match(line.text) if line.value is None and line.indent == 0 else None
        if header is not None:
            section, indent = {}, None
            found.append((header.group(1), section, []))
            if len(found) > MOST_CONTROLLERS:
                raise ToolError(f"more than {MOST_CONTROLLERS} controllers")
        elif not found:
            continue
        elif line.key == "logical drive" and whole(line.value) is not None:
            section, indent = {}, None
            found[-1][2].append(section)
            if len(found[-1][2]) > MOST_VOLUMES:
                raise ToolError(f"more than {MOST_VOLUMES} logical drives")
        elif _PART.match(f"{line.key}: "):
            section = None
        elif section is not None and line.value is not None:
            indent = line.indent if indent is None else indent
            if line.indent == indent:
                section.setdefault(line.key, line.value)
    # Of a machine without such a controller it says that none was detected.
    if not found and "no controllers detected" not in text.lower():
        raise ToolError("no controller in it")
    return tuple(_controller(model, keys, drives) for model, keys, drives in found)


def _controller(model: str, keys: Keys, drives: Sequence[Keys]) -> Controller:
    ratio = keys.get("cache ratio", keys.get("accelerator ratio", "")).lower()
    writes = re.search(r"([0-9]{1,3})\s*% write", ratio)
    part = min(100, int(writes.group(1))) / 100 if writes else None
    size = size_bytes(keys.get("total cache memory available"), "G")
    return Controller(
        pci=own_address(keys),
        model=name(model),
        capacity_bytes=int(size * part) if size is not None and part is not None else None,
        protection=_protection(keys),
        volumes=tuple(_volume(each, keys, part) for each in drives),
    )


def _protection(keys: Keys) -> Optional[Protection]:
    said = keys.get("battery/capacitor status", keys.get("battery status", ""))
    found = by_words(said, _BATTERIES)
    count = whole(keys.get("battery/capacitor count", keys.get("battery pack count")))
    return Protection.ABSENT if found is None and count == 0 else found


def _volume(drive: Keys, controller: Keys, write_part: Optional[float]) -> Volume:
    works = []
    said = drive.get("status", "")
    kind = by_words(said, _WORKS)
    if kind is not None:
        works.append(ArrayWork(kind, share(said)))
    if "progress" in drive.get("parity initialization status", "").lower():
        done = share(drive.get("parity initialization progress"))
        works.append(ArrayWork("initialisation", done))
    return Volume(
        disk=disk_name(drive.get("disk name")),
        mode=_mode(drive, controller, write_part),
        works=tuple(works),
    )


def _mode(drive: Keys, controller: Keys, write_part: Optional[float]) -> Optional[CacheMode]:
    cache = controller.get("cache status", "").lower()
    own = drive.get("caching", "").lower()
    method = drive.get("ld acceleration method", "").lower()
    # "Smart Path" goes past the controller's cache, straight to the drives.
    if "disabled" in (own, cache.rpartition(" ")[2]) or method.startswith(
        ("disabled", "all disabled", "smart", "io bypass", "ssd smart")
    ):
        return CacheMode.WRITE_THROUGH
    if controller.get("cache board present", "true").lower() == "false" or write_part == 0:
        return CacheMode.WRITE_THROUGH
    if cache != "ok" or not (own == "enabled" or method == "controller cache"):
        return None
    if controller.get("no-battery write cache", "").lower() == "enabled":
        return CacheMode.ALWAYS_WRITE_BACK
    return CacheMode.WRITE_BACK
