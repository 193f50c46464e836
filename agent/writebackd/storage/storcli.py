# SPDX-License-Identifier: GPL-2.0-or-later
"""Parses the JSON of Broadcom's storcli64 and Dell's perccli64."""

from __future__ import annotations

import re
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from writebackd.storage.raid_types import Controller, ToolError, Volume, all_write_through
from writebackd.storage.tool_output import (
    MOST_CONTROLLERS,
    MOST_WORKS,
    by_words,
    moment,
    name,
    padded,
    pci_address,
    read_json,
    rows,
    share,
    size_bytes,
    under,
    whole,
    word,
)  # fmt: skip
from writebackd.types.storage import ArrayWork, CacheMode, Protection

# `nolog`: without it each run leaves storcli.log in the working directory.
COMMANDS = (
    ("/cALL", "show", "all", "J", "nolog"),
    ("/cALL/eALL/sALL", "show", "rebuild", "J", "nolog"),
    ("/cALL/vALL", "show", "cc", "J", "nolog"),
    ("/cALL", "show", "patrolread", "J", "nolog"),
)

# R or NR (read-ahead), then the write policy, then C or D (cached or direct reads).
_POLICY = re.compile(r"(?:N?R)?(AWB|FWB|WB|WT)[CD]?")
_MODES = {
    "WB": CacheMode.WRITE_BACK, "WT": CacheMode.WRITE_THROUGH,
    "AWB": CacheMode.ALWAYS_WRITE_BACK, "FWB": CacheMode.ALWAYS_WRITE_BACK,
}  # fmt: skip
# Bits of the battery's status as the firmware gives it (MR_DCMD_BBU_GET_STATUS): pack missing;
# voltage low, learn cycle failed or timed out, bus error, pack to be replaced; charging; a learn
# cycle that runs. Not: hot, discharging, learn requested or due, capacity low, which firmware
# tells of batteries that it relies on (4096 is usual).
_MISSING, _CHARGING, _LEARNS = 1 << 0, 1 << 3, 1 << 6
_BAD = 1 << 1 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10
_NOT_KNOWN = 0xFF
_STATES = (
    (("missing", "absent", "not present", "not found"), Protection.ABSENT),
    (("learn",), Protection.LEARNING),
    (("charging",), Protection.CHARGING),
    (("fail", "fld", "degraded", "dgd", "replace", "need", "low", "bad"), Protection.FAILED),
    (("optimal", "opt", "ok", "healthy"), Protection.OK),
)  # fmt: skip
_DRIVE = re.compile(r"/c([0-9]{1,3})(?:/e([0-9]{1,5}))?/s([0-9]{1,5})")
_REBUILDS = ("rbld", "cpybck")  # state of a drive: it is being written anew


Works = Dict[Optional[int], Tuple[ArrayWork, ...]]  # by volume; None is the whole controller


def parse(outputs: Sequence[str]) -> Tuple[Controller, ...]:
    """From the output of COMMANDS; the later ones may be empty. Raises ToolError."""
    shown, rebuilding, checking, patrolling = padded(outputs, COMMANDS)
    rebuilds, checks = tuple(_rebuilds(rebuilding)), tuple(_checks(checking))
    patrols = set(_patrols(patrolling))
    found = []
    for number, data in _answers(shown, must=True):
        works = _works(
            under(data),
            {slot: done for own, slot, done in rebuilds if own == number},
            [(volume, done) for own, volume, done in checks if own == number],
            number in patrols,
        )
        found.append(_controller(under(data), works))
    return tuple(found)


def _answers(text: str, must: bool = False) -> Iterator[Tuple[Optional[int], Any]]:
    """(number of the controller, its response data) of one command that succeeded.

    What is asked for in addition (`must` is false) may fail as a whole.
    """
    try:
        top = read_json(text)
        if not isinstance(top, dict) or not isinstance(top.get("Controllers"), list):
            raise ToolError("no list of controllers")
    except ToolError:
        if must:
            raise
        return
    for each in rows(top["Controllers"], MOST_CONTROLLERS):
        status = under(each, "Command Status")
        # "Failure" also where there is no controller, which is no error.
        if word(status, "Status") == "Success" and "Response Data" in each:
            yield whole(word(status, "Controller")), each["Response Data"]


def _controller(data: Dict[str, Any], works: Works) -> Controller:
    basics, hardware = under(data, "Basics"), under(data, "HwCfg")
    batteries = rows(data.get("BBU_Info")) + rows(data.get("Cachevault_Info"))
    battery = batteries[0] if batteries else {}
    # Both are there on some, and the controller's schedule is the one with a date in it.
    learns = [
        word(battery, "Next Learn"),
        word(under(data, "Scheduled Tasks"), "Next Battery Learn"),
    ]
    capacity_bytes = size_bytes(word(hardware, "Current Size of FW Cache (MB)"), "M")
    volumes = tuple(
        Volume(number=number, mode=_mode(row), works=works.get(number, ()))
        for row, _, number in _volumes(data)
        if number is not None
    )
    return Controller(
        pci=pci_address(word(basics, "PCI Address")),
        model=name(basics.get("Model")),
        capacity_bytes=capacity_bytes,
        protection=_protection(
            under(data, "Status"), hardware, battery,
            needed=capacity_bytes != 0 and not all_write_through(volumes),
        ),
        learn_s=next((at for at in map(moment, learns) if at is not None), None),
        works=works.get(None, ()),
        volumes=volumes,
    )  # fmt: skip


def _volumes(data: Dict[str, Any]) -> Iterator[Tuple[Dict[str, Any], str, Optional[int]]]:
    """(row, drive group, number) of each: of "DG/VD": "0/239" the latter is its SCSI target."""
    for row in rows(data.get("VD LIST")):
        group, _, number = word(row, "DG/VD").partition("/")
        yield row, group, whole(number)


def _mode(row: Dict[str, Any]) -> Optional[CacheMode]:
    found = _POLICY.fullmatch(word(row, "Cache"))
    return _MODES[found.group(1)] if found else None


def _protection(
    status: Dict[str, Any], hardware: Dict[str, Any], battery: Dict[str, Any], needed: bool
) -> Optional[Protection]:
    """By what the battery says of itself, or else the controller of it: the worse counts.

    None is missed where none is `needed`: a controller without a cache is sold without a battery.
    """
    absent = Protection.ABSENT if battery or needed else None
    own = by_words(word(battery, "State"), _STATES)
    if own is not None and own is not Protection.OK:
        return own
    if not battery and word(hardware, "BBU").lower() == "absent":
        return absent
    bits = whole(word(status, "BBU Status"))
    if bits is None or bits == _NOT_KNOWN:
        return own
    if bits & _MISSING:
        return absent
    if bits & _BAD:
        return Protection.FAILED
    if bits & _LEARNS:
        return Protection.LEARNING
    return Protection.CHARGING if bits & _CHARGING else Protection.OK


def _works(
    data: Dict[str, Any],
    rebuilt: Dict[str, Optional[float]],  # slot -> share done
    checks: Sequence[Tuple[Optional[int], Optional[float]]],
    patrol: bool,
) -> Works:
    """What is done to each volume of one controller."""
    found: Dict[Optional[int], List[ArrayWork]] = {}
    drives = {word(row, "EID:Slt"): row for row in rows(data.get("PD LIST"))}
    volumes: Dict[str, Set[Optional[int]]] = {}
    for _, group, number in _volumes(data):
        volumes.setdefault(group, set()).add(number)
    busy = {slot for slot, row in drives.items() if word(row, "State").lower() in _REBUILDS}
    shares: Dict[str, List[Optional[float]]] = {}
    for slot in sorted(busy | rebuilt.keys()):
        shares.setdefault(word(drives.get(slot, {}), "DG"), []).append(rebuilt.get(slot))
    for group, parts in shares.items():
        known = [each for each in parts if each is not None]
        work = ArrayWork("rebuild", min(known) if known else None)
        for volume in volumes.get(group, {None}):
            found.setdefault(volume, []).append(work)
    for volume, done in checks:
        found.setdefault(volume, []).append(ArrayWork("check", done))
    if patrol:
        found.setdefault(None, []).append(ArrayWork("patrol"))
    return {volume: tuple(works[:MOST_WORKS]) for volume, works in found.items()}


def _rebuilds(text: str) -> Iterator[Tuple[Optional[int], str, Optional[float]]]:
    """(controller, "enclosure:slot", share done) of the drives that are being rebuilt."""
    for number, data in _answers(text):
        for row in rows(data):
            place = _DRIVE.fullmatch(word(row, "Drive-ID"))
            if place and _in_progress(row):
                own = int(place.group(1)) if number is None else number
                yield own, f"{place.group(2) or ''}:{place.group(3)}", _progress(row)


def _checks(text: str) -> Iterator[Tuple[Optional[int], Optional[int], Optional[float]]]:
    """(controller, volume, share done)."""
    for number, data in _answers(text):
        listed = data if isinstance(data, list) else under(data).get("VD Operation Status")
        for row in rows(listed):
            if _in_progress(row):
                yield number, whole(word(row, "VD")), _progress(row)


def _in_progress(row: Dict[str, Any]) -> bool:
    return word(row, "Status").lower() == "in progress"


def _progress(row: Dict[str, Any]) -> Optional[float]:
    return share(f"{word(row, 'Progress%').rstrip('%')}%")


def _patrols(text: str) -> Iterator[Optional[int]]:
    """Numbers of the controllers that read their disks through just now."""
    for number, data in _answers(text):
        for row in rows(under(data).get("Controller Properties")):
            state = word(row, "Value").lower()
            if word(row, "Ctrl_Prop") == "PR Current State" and state.startswith("active"):
                yield number
