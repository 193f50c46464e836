# SPDX-License-Identifier: GPL-2.0-or-later
"""Parses the output of HPE's ssacli (earlier hpssacli, hpacucli)."""

from __future__ import annotations

import re
from typing import List, Optional, Sequence, Tuple

from writebackd.storage import tool_output as out
from writebackd.storage import tool_table as table
from writebackd.storage.tool_output import Controller, Volume
from writebackd.types.storage import ArrayWork, Protection

COMMANDS = (("ctrl", "all", "show", "config", "detail"),)

KEYS: table.Table = {
    "address": ("pci address",), "slot": ("slot",),
    "cache status": ("cache status",), "cache board": ("cache board present",),
    "why": ("cache status details", "cache disable reason"),
    "caching": ("caching", "array accelerator"), "method": ("ld acceleration method",),
    "without battery": ("no-battery write cache",),
    "battery": ("battery/capacitor status", "battery status", "capacitor status",
                "energy pack status"),
    "batteries": ("battery/capacitor count", "battery pack count", "capacitor pack count"),
    "size": ("total cache memory available",), "write share": ("cache ratio", "accelerator ratio"),
    "disk": ("disk name",), "work": ("status",),
    "parity": ("parity initialization status",), "parity done": ("parity initialization progress",),
}  # fmt: skip
BATTERY: table.Words[Protection] = (*table.GOOD, *table.TROUBLE)
# Not "ready for rebuild" and "interim recovery mode": it waits for a drive.
WORK: table.Words[str] = (
    ("rebuild", ("recovering *", "rebuilding *")), ("migration", ("transforming *", "expanding *")),
    ("initialisation", ("initializing *",)),
)  # fmt: skip

# "Smart Array P420i in Slot 0 (Embedded)", "HPE Smart Array P408i-a SR Gen10 in Slot 0", and as
# hpacucli knew them "Smart Array P400 in Slot 1". What is in an enclosure is no controller.
_HEADER = re.compile(r"(\S.{0,100}?) in slot \w{1,4}(?:\s*\(.*\))?", re.IGNORECASE)
# Of what else has keys of the same names below a controller.
_PART = re.compile(r"physicaldrive |array(?: \w\w?)?: |logical drive: |sep |enclosure |expander |"
                   r"port name:|internal drive cage|external drive cage|physical drives|unassigned")
# What every release has: its indentation is that of a section's keys. Sensors and the like are
# deeper; warnings between header and keys are not indented, or not as the keys are.
_FIRST = ("slot", "bus interface", "controller status", "size", "fault tolerance", "status")


def parse(outputs: Sequence[str]) -> Tuple[Controller, ...]:
    """Parse the output of COMMANDS. Raises ToolError."""
    sections: List[Tuple[str, out.Keys, List[out.Keys]]] = []
    section: Optional[out.Keys] = None
    indent: Optional[int] = None  # of the section's keys
    (text,) = out.padded(outputs, COMMANDS)
    for line in out.lines_of(text):
        header = _HEADER.fullmatch(line.text) if line.value is None and not line.indent else None
        if header is not None:
            section, indent = {}, None
            sections.append((header.group(1), section, []))
        elif not sections:
            continue
        elif line.key == "logical drive" and out.whole(line.value) is not None:
            section, indent = {}, None
            sections[-1][2].append(section)
        elif _PART.match(f"{line.key}: "):
            section = None
        elif section is not None and line.value is not None and line.indent:
            if indent is None and line.key in _FIRST:
                indent = line.indent
            if line.indent == indent:
                section.setdefault(line.key, line.value)
    # Of a machine without such a controller it says that none was detected.
    if not sections and "no controllers detected" not in text.lower():
        raise out.complaint(text, "no controller in it")
    return tuple(_controller(model, keys, drives) for model, keys, drives in sections)


def _controller(model: str, keys: out.Keys, drives: Sequence[out.Keys]) -> Controller:
    own = table.Facts(KEYS, keys)
    writes = re.search(r"[0-9]{1,3}\s*%(?= write)", own.text("write share").lower())
    part = out.share(writes.group()) if writes else None
    volumes = tuple(_volume(table.Facts(KEYS, drive), own, part) for drive in drives)
    return table.switched_controller(own, own, BATTERY, model, "G", part, volumes)


def _volume(drive: table.Facts, controller: table.Facts, write_part: Optional[float]) -> Volume:
    works = []
    kind = table.meaning(drive.text("work"), WORK)
    if kind is not None:
        works.append(ArrayWork(kind, out.share(drive.text("work"))))
    if "progress" in drive.text("parity").lower():
        works.append(ArrayWork("initialisation", out.share(drive.text("parity done"))))
    return Volume(
        disk=out.disk_name(drive.text("disk")),
        mode=table.switched_mode(controller, drive, write_part),
        works=tuple(works),
        unread=tuple(drive.unread),
    )
