# SPDX-License-Identifier: GPL-2.0-or-later
"""Parses the JSON of Broadcom's storcli64 and Dell's perccli64."""

from __future__ import annotations

import re
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from writebackd.storage.raid_types import Controller, ToolError, Volume, all_write_through
from writebackd.storage.tool_output import (
    MOST_CONTROLLERS,
    MOST_WORKS,
    moment,
    name,
    pci_address,
    read_json,
    rows,
    share,
    size_bytes,
    under,
    whole,
    worded,
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


def parse(outputs: Sequence[str]) -> Tuple[Controller, ...]:
    """From the output of COMMANDS; the later ones may be empty. Raises ToolError."""
    found = [
        _controller(number, data, outputs)
        for number, data in _answers(outputs[0] if outputs else "", must=True)
    ]
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
        if worded(status.get("Status")) == "Success" and "Response Data" in each:
            yield whole(worded(status.get("Controller"))), each["Response Data"]


def _controller(number: Optional[int], data: Any, outputs: Sequence[str]) -> Controller:
    pci = pci_address(worded(under(data, "Basics").get("PCI Address")))
    hardware = under(data, "HwCfg")
    batteries = rows(under(data).get("BBU_Info")) + rows(under(data).get("Cachevault_Info"))
    battery = batteries[0] if batteries else {}
    # Both are there on some, and the controller's schedule is the one with a date in it.
    learns = [
        worded(battery.get("Next Learn")),
        worded(under(data, "Scheduled Tasks").get("Next Battery Learn")),
    ]
    busy = _works_by_volume(number, data, outputs)
    capacity_bytes = size_bytes(worded(hardware.get("Current Size of FW Cache (MB)")), "M")
    volumes = tuple(
        Volume(number=vd, mode=_mode(row), works=busy.get(vd, ()))
        for row in rows(under(data).get("VD LIST"))
        for vd in [_volume_number(row)]
        if vd is not None
    )
    return Controller(
        pci=pci,
        model=name(under(data, "Basics").get("Model")),
        capacity_bytes=capacity_bytes,
        protection=_protection(
            under(data, "Status"), hardware, battery,
            needed=capacity_bytes != 0 and not all_write_through(volumes),
        ),
        learn_s=next((at for at in map(moment, learns) if at is not None), None),
        works=busy.get(None, ()),
        volumes=volumes,
    )


def _volume_number(row: Dict[str, Any]) -> Optional[int]:
    """Of "DG/VD": "0/239" the latter, which is its SCSI target."""
    return whole((worded(row.get("DG/VD")) or "").partition("/")[2])


def _mode(row: Dict[str, Any]) -> Optional[CacheMode]:
    found = _POLICY.fullmatch((worded(row.get("Cache")) or "").strip())
    return _MODES[found.group(1)] if found else None


def _protection(
    status: Dict[str, Any], hardware: Dict[str, Any], battery: Dict[str, Any], needed: bool
) -> Optional[Protection]:
    """By what the battery says of itself, or else the controller of it: the worse counts.

    None is missed where none is `needed`: a controller without a cache is sold without a battery.
    """
    absent = Protection.ABSENT if battery or needed else None
    said = (worded(battery.get("State")) or "").lower()
    own = next((p for words, p in _STATES if any(word in said for word in words)), None)
    if own is not None and own is not Protection.OK:
        return own
    if not battery and (worded(hardware.get("BBU")) or "").lower() == "absent":
        return absent
    bits = whole(worded(status.get("BBU Status")))
    if bits is None or bits == _NOT_KNOWN:
        return own
    if bits & _MISSING:
        return absent
    if bits & _BAD:
        return Protection.FAILED
    if bits & _LEARNS:
        return Protection.LEARNING
    return Protection.CHARGING if bits & _CHARGING else Protection.OK


def _works_by_volume(
    number: Optional[int], data: Any, outputs: Sequence[str]
) -> Dict[Optional[int], Tuple[ArrayWork, ...]]:
    """What is done to each volume; None is the whole controller."""
    found: Dict[Optional[int], List[ArrayWork]] = {}
    group_of = {
        (worded(row.get("EID:Slt")) or "").strip(): worded(row.get("DG"))
        for row in rows(under(data).get("PD LIST"))
    }
    volumes: Dict[Optional[str], Set[Optional[int]]] = {}
    for row in rows(under(data).get("VD LIST")):
        group = (worded(row.get("DG/VD")) or "").partition("/")[0]
        volumes.setdefault(group, set()).add(_volume_number(row))
    done = {slot: part for own, slot, part in _rebuilds(outputs) if own == number}
    slots = {
        (worded(row.get("EID:Slt")) or "").strip()
        for row in rows(under(data).get("PD LIST"))
        if (worded(row.get("State")) or "").lower() in _REBUILDS
    }
    parts: Dict[Optional[str], List[Optional[float]]] = {}
    for slot in sorted(slots | done.keys()):
        parts.setdefault(group_of.get(slot), []).append(done.get(slot))
    for in_group, shares in parts.items():
        known = [each for each in shares if each is not None]
        work = ArrayWork("rebuild", min(known) if known else None)
        for volume in volumes.get(in_group, {None}):
            found.setdefault(volume, []).append(work)
    for own, volume, part in _checks(outputs):
        if own == number:
            found.setdefault(volume, []).append(ArrayWork("check", part))
    if number in _patrols(outputs):
        found.setdefault(None, []).append(ArrayWork("patrol"))
    return {volume: tuple(works[:MOST_WORKS]) for volume, works in found.items()}


def _rebuilds(outputs: Sequence[str]) -> Iterator[Tuple[Optional[int], str, Optional[float]]]:
    """(controller, "enclosure:slot", share done) of the drives that are being rebuilt."""
    for number, data in _answers(outputs[1] if len(outputs) > 1 else ""):
        for row in rows(data):
            place = _DRIVE.fullmatch(worded(row.get("Drive-ID")) or "")
            if place and _in_progress(row):
                own = int(place.group(1)) if number is None else number
                yield own, f"{place.group(2) or ' '}:{place.group(3)}", _progress(row)


def _checks(
    outputs: Sequence[str],
) -> Iterator[Tuple[Optional[int], Optional[int], Optional[float]]]:
    for number, data in _answers(outputs[2] if len(outputs) > 2 else ""):
        listed = data if isinstance(data, list) else under(data).get("VD Operation Status")
        for row in rows(listed):
            if _in_progress(row):
                yield number, whole(worded(row.get("VD"))), _progress(row)


def _in_progress(row: Dict[str, Any]) -> bool:
    return (worded(row.get("Status")) or "").strip().lower() == "in progress"


def _progress(row: Dict[str, Any]) -> Optional[float]:
    said = worded(row.get("Progress%"))
    return share(f"{said.strip().rstrip('%')}%") if said is not None else None


def _patrols(outputs: Sequence[str]) -> Set[Optional[int]]:
    """Numbers of the controllers that read their disks through just now."""
    return {
        number
        for number, data in _answers(outputs[3] if len(outputs) > 3 else "")
        for row in rows(under(data).get("Controller Properties"))
        if worded(row.get("Ctrl_Prop")) == "PR Current State"
        and (worded(row.get("Value")) or "").lower().startswith("active")
    }
