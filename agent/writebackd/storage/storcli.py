# SPDX-License-Identifier: GPL-2.0-or-later
"""Parses the JSON of Broadcom's storcli and storcli2, and Dell's perccli and perccli2."""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from writebackd.formats import printable
from writebackd.storage import tool_output as out
from writebackd.storage import tool_table as table
from writebackd.storage.tool_output import Controller, ToolError, Volume, all_write_through
from writebackd.types.storage import ArrayWork, CacheMode, Protection

# `nolog`: without it each run leaves storcli.log in the working directory.
COMMANDS = (
    ("/cALL", "show", "all", "J", "nolog"),
    ("/cALL/eALL/sALL", "show", "rebuild", "J", "nolog"),
    ("/cALL/vALL", "show", "cc", "J", "nolog"),
    ("/cALL", "show", "patrolread", "J", "nolog"),
    # Only for storcli2: the disk of each volume, which does not follow from its numbers.
    ("/cALL/vALL", "show", "all", "J", "nolog"),
)
# What is left out where the first command fails: 007.1508 knows no `nolog` behind a show, and
# 7.3405 dies of `show all` with two generations of cards.
RETRIES = (("nolog",), ("all",), ("all", "nolog"))

KEYS: table.Table = {
    "address": ("basics/pci address", "hostinterface/pci address", "pci address"),
    "model": ("basics/model", "basics/product name", "product name", "model"),
    "size": ("hwcfg/current size of fw cache",), "learn": ("scheduled tasks/next battery learn",),
    "pack": ("hwcfg/bbu", "hwcfg/energy pack"),
    "battery bits": ("status/bbu status", "status/energy pack status"),
}  # fmt: skip
# Of a row of BBU_Info, Cachevault_Info or "Energy Pack Info", and of VD LIST.
PACK_KEYS: table.Table = {"battery": ("state", "status"), "learn": ("next learn",)}
VOLUME_KEYS: table.Table = {
    "volume": ("dg/vd",), "mode": ("cache", "currentcache"),
    "disk": ("os drive name",), "wwn": ("scsi naa id",),
}  # fmt: skip
TABLES = (KEYS, PACK_KEYS, VOLUME_KEYS)
BATTERY: table.Words[Protection] = (*table.GOOD, *table.TROUBLE)
MODES = {
    "WB": CacheMode.WRITE_BACK, "WT": CacheMode.WRITE_THROUGH,
    "AWB": CacheMode.ALWAYS_WRITE_BACK, "FWB": CacheMode.ALWAYS_WRITE_BACK,
}  # fmt: skip
# R, NR or Ra (read-ahead; adaptive), then the write policy, then C or D (cached or direct reads):
# "RAWBD" is R and AWB. storcli2 has commas between them.
_POLICY = re.compile(
    r"(?:N?R|Ra)?(AWB|FWB|WB|WT)[CD]?|(?:(?:N?RA?|Ra),)?(AWB|FWB|WB|WT)(?:,[CD])?"
)
# Bits of the battery's status as the firmware gives it (MR_DCMD_BBU_GET_STATUS): pack missing;
# voltage low, learn cycle failed or timed out, bus error, pack to be replaced; a learn cycle that
# runs; charging.
_MISSING = 1 << 0
_BITS = (
    (1 << 1 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10, Protection.FAILED),
    (1 << 6, Protection.LEARNING), (1 << 3, Protection.CHARGING),
)  # fmt: skip
# Hot, discharging, learn requested, capacity low, learn due: firmware reports these of batteries
# that it relies on (4096 is usual). In MegaCli's order transparent learn, old microcode, which no
# header names: they do not contradict a good pack.
_HARMLESS = 1 << 2 | 1 << 4 | 1 << 5 | 1 << 11 | 1 << 12
_NO_CONTRADICTION = _HARMLESS | 1 << 13 | 1 << 17
_NOT_KNOWN = 0xFF
# A list of batteries, whatever a release calls it.
_PACKS = re.compile("vault|_?info$|bbu|energy|pack")
_NO_CONTROLLER = re.compile(r"\bno\b.*\bcontrollers?\b.*\bfound\b", re.IGNORECASE)
_DRIVE = re.compile(r"/c([0-9]{1,3})(?:/e([0-9]{1,5}))?/s([0-9]{1,5})")
_REBUILDS = {"rbld", "cpybck", "rebuild", "copyback"}  # of a drive that is being written anew
_NO_DISK = table.Facts(VOLUME_KEYS, {})

Works = Dict[Optional[int], List[ArrayWork]]  # by volume; None is the whole controller
Answer = Tuple[Optional[int], Any]  # number of the controller, its response data


def parse(outputs: Sequence[str]) -> Tuple[Controller, ...]:
    """Parse the output of COMMANDS; the later ones may be empty. Raises ToolError."""
    shown, *others = outputs or ("",)
    answers, failures = _answers(out.read_json(shown))
    more: List[Answer] = []
    for text in others:
        # What is asked for in addition may fail as a whole.
        with contextlib.suppress(ToolError):
            more += _answers(out.read_json(text))[0]
    controllers = [
        _controller(number, out.under(data), [each for of, each in more if of in (number, None)])
        for number, data in answers
    ]
    if failures and not controllers:
        raise ToolError(failures[0])
    if failures:  # of some; the first of the others tells it
        controllers[0] = replace(controllers[0], unread=(*controllers[0].unread, *failures))
    return tuple(controllers)


def _answers(top: Any) -> Tuple[List[Answer], List[str]]:
    """The answers of controllers, and the failures of others. Raises ToolError."""
    if not isinstance(top, dict) or not isinstance(top.get("Controllers"), list):
        raise ToolError("no list of controllers")
    answers: List[Answer] = []
    failures = []
    for row in out.rows(top["Controllers"], out.MOST_CONTROLLERS):
        status = out.under(row, "Command Status")
        number, said = out.whole(out.word(status, "Controller")), out.word(status, "Status")
        answered = said == "Success" and "Response Data" in row
        # With an error, too, as far as it came.
        if answered or "VD LIST" in out.under(row, "Response Data"):
            answers.append((number, row["Response Data"]))
        if not answered and not _NO_CONTROLLER.search(out.word(status, "Description")):
            why = out.word(status, "Description")
            if why in ("", "None"):
                why = next((out.word(row, "ErrMsg")
                            for row in out.rows(status.get("Detailed Status"))), why)
            failure = f"{said or 'no status'}: {why}"
            failure = failure if number is None else f"controller {number}: {failure}"
            failures.append(printable(failure)[: out.MOST_NAME])
    return answers, failures


def _flat(data: Dict[str, Any]) -> out.Keys:
    """Texts and numbers by `key` or `section/key`."""
    flat: out.Keys = {}
    for key, value in data.items():
        inside = isinstance(value, dict)
        for inner in value if inside else ("",):
            said = out.word(value, inner) if inside else out.word(data, key)
            flat[out.key_of(f"{key}/{inner}" if inside else key)] = said
    return flat


def _controller(number: Optional[int], data: Dict[str, Any], more: Sequence[Any]) -> Controller:
    facts = table.Facts(KEYS, _flat(data))
    packs = [
        table.Facts(PACK_KEYS, _flat(row))
        for key, listed in data.items() if _PACKS.search(key.lower()) for row in _unfolded(listed)
    ]
    # Both are there on some, and the controller's schedule is the one with a date in it.
    learns = [out.moment(part.text("learn")) for part in (*packs[:1], facts)]
    capacity_bytes = out.size_bytes(facts.text("size"), "M")
    works, disks = _works(number, data, more), dict(_disks(more))
    volumes = tuple(
        _volume(row, volume, works.get(volume, ()), disks.get(volume, _NO_DISK))
        for row, _, volume in _volumes(data)
        if volume is not None
    )
    # storcli2 tells what was asked for, which a volume does not do without a battery.
    wanted = any("WB" in out.word(row, "DefaultCache") for row, *_ in _volumes(data))
    needed = bool(volumes) and capacity_bytes != 0 and (wanted or not all_write_through(volumes))
    return Controller(
        pci=out.pci_address(facts.text("address")),
        model=out.name(facts.text("model")),
        capacity_bytes=capacity_bytes,
        protection=_protection(facts, packs, needed),
        learn_s=next((at for at in learns if at is not None), None),
        works=tuple(works.get(None, ())),
        volumes=volumes,
        unread=tuple(word for pack in (facts, *packs) for word in pack.unread),
    )


def _unfolded(listed: Any) -> List[Dict[str, Any]]:
    """The rows of a list; one row of what has a row for each "Property"."""
    listed = out.rows(listed)
    folded = {out.word(row, "Property"): row.get("Value") for row in listed if "Property" in row}
    return [folded] if folded else listed


def _volumes(data: Dict[str, Any]) -> Iterator[Tuple[Dict[str, Any], str, Optional[int]]]:
    """(row, drive group, number) of each; in a "DG/VD" of "0/239" the latter is its SCSI target."""
    for row in out.rows(data.get("VD LIST")):
        group, _, number = out.word(row, "DG/VD").partition("/")
        yield row, group, out.whole(number)


def _volume(
    row: Dict[str, Any], number: int, works: Sequence[ArrayWork], disk: table.Facts
) -> Volume:
    facts = table.Facts(VOLUME_KEYS, _flat(row))
    said = facts.text("mode").replace(", ", ",")
    policy = _POLICY.fullmatch(said)
    if policy is None and said:
        facts.unknown("mode", said)
    naa = re.fullmatch("(?:0x)?([0-9a-f]{16,32})", disk.text("wwn").lower())
    return Volume(
        number, out.disk_name(disk.text("disk")),
        mode=MODES[policy.group(1) or policy.group(2)] if policy else None,
        works=tuple(works), wwn=naa.group(1) if naa else None, unread=tuple(facts.unread),
    )  # fmt: skip


def _protection(
    facts: table.Facts, packs: Sequence[table.Facts], needed: bool
) -> Optional[Protection]:
    """From the battery's state and the controller's view of it: the worse counts.

    Unless it is `needed` none is missing: controllers without a cache are sold without a battery.
    """
    absent = Protection.ABSENT if packs or needed else None
    own = [pack.state("battery", BATTERY) for pack in packs]
    bad = [state for state in own if state not in (None, Protection.OK)]
    pack = facts.text("pack").lower()
    if bad:
        return bad[0]
    if not packs and pack == "absent":
        return absent
    bits = out.whole(facts.text("battery bits"))
    bits = None if bits == _NOT_KNOWN else bits
    if bits is not None and bits & _MISSING:
        return absent
    by_bits = next((meant for mask, meant in _BITS if bits is not None and bits & mask), None)
    if by_bits is not None:
        return by_bits
    good = bits is not None and not bits & ~_HARMLESS
    fine = bool(packs) and all(state is Protection.OK for state in own)
    if bits is not None and bits & ~(_NO_CONTRADICTION if fine else _HARMLESS):
        facts.unknown("battery bits", str(bits))
        return None
    if fine:
        return Protection.OK
    # A battery that says nothing of itself, or of which there is no more than that it is there.
    silent = all(pack.is_reported("battery") and not pack.text("battery") for pack in packs)
    return Protection.OK if good and silent and (packs or pack == "present") else None


def _works(number: Optional[int], data: Dict[str, Any], more: Sequence[Any]) -> Works:
    """The work on each volume of one controller."""
    by_volume: Works = {}
    drives = {out.word(row, "EID:Slt"): row for row in out.rows(data.get("PD LIST"))}
    rebuilt: Dict[str, Optional[float]] = {
        slot: None
        for slot, row in drives.items()
        if {out.word(row, key).lower() for key in ("State", "Status")} & _REBUILDS
    }
    for answer in more:
        under_way = out.rows(answer) + out.rows(out.under(answer).get("VD Operation Status"))
        for row in under_way:
            if out.word(row, "Status").lower() == "in progress":
                done = out.share(f"{out.word(row, 'Progress%').rstrip('%')}%")
                place = _DRIVE.fullmatch(out.word(row, "Drive-ID"))
                slot = f"{place.group(2) or ''}:{place.group(3)}" if place else ""
                if "VD" in row:
                    volume = out.whole(out.word(row, "VD"))
                    by_volume.setdefault(volume, []).append(ArrayWork("check", done))
                elif place is None or number in (int(place.group(1)), None):
                    rebuilt[slot or out.word(row, "EID:Slt")] = done
        for row in out.rows(out.under(answer).get("Controller Properties")):
            state = out.word(row, "Value").lower()
            if out.word(row, "Ctrl_Prop") == "PR Current State" and state.startswith("active"):
                by_volume.setdefault(None, []).append(ArrayWork("patrol"))
    groups: Dict[str, List[Optional[float]]] = {}
    for slot, done in rebuilt.items():
        groups.setdefault(out.word(drives.get(slot, {}), "DG"), []).append(done)
    for group, parts in groups.items():
        work = ArrayWork("rebuild", min((part for part in parts if part is not None), default=None))
        volumes = {volume for _, of, volume in _volumes(data) if of == group}
        for volume in volumes or {None}:
            by_volume.setdefault(volume, []).insert(0, work)
    return {volume: works[: out.MOST_WORKS] for volume, works in by_volume.items()}


def _disks(more: Sequence[Any]) -> Iterator[Tuple[Optional[int], table.Facts]]:
    """(volume, the kernel's name)."""
    for answer in more:
        for drive in out.rows(out.under(answer).get("Virtual Drives")):
            for row in out.rows(drive.get("VD Info")):
                properties = table.Facts(VOLUME_KEYS, _flat(out.under(drive, "VD Properties")))
                yield out.whole(out.word(row, "DG/VD").partition("/")[2]), properties
