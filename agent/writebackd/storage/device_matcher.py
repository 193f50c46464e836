# SPDX-License-Identifier: GPL-2.0-or-later
"""Matches a tool's volumes to devices, by disk name or by controller address and number."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Dict, FrozenSet, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from writebackd.kernel.disk_identity import Drivers, diskseq
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.host_facts import VOLUMES
from writebackd.storage.tool_output import Controller, Volume
from writebackd.types.storage import Backing, Device

# The drivers that a tool's controllers have, for those that do not say where they are.
_DRIVERS = {
    "storcli": ("megaraid_sas",), "perccli": ("megaraid_sas",), "megacli": ("megaraid_sas",),
    "storcli2": ("mpi3mr",), "perccli2": ("mpi3mr",), "tw_cli": ("3w-9xxx", "3w-sas", "3w-xxxx"),
    "arcconf": ("aacraid", "smartpqi"), "ssacli": ("hpsa", "smartpqi", "cciss"),
}  # fmt: skip
# With 128 volumes on each of its channels, the number of one is (channel - first) * 128 + target
# (MEGASAS_MAX_PD_CHANNELS, megasas_queue_command()); of aacraid the container's is its target, of
# 3w-9xxx the unit's. What has another channel is a disk handed through.
_NUMBERED = ("megaraid_sas", "aacraid", *_DRIVERS["tw_cli"])
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ADDRESS = re.compile(r"[0-9]{1,6}:([0-9]{1,6}):([0-9]{1,6}):[0-9]{1,12}")


class _Place(NamedTuple):
    driver: Optional[str]
    pci: Optional[str]
    number: Optional[int]  # of the volume; None: it is none, or unknown
    is_volume: bool


class _Located:
    """A controller, its PCI address, and its volumes by disk, WWN and number."""

    def __init__(self, controller: Controller, pci: Optional[str]) -> None:
        self.controller, self.pci = controller, pci
        volumes = controller.volumes
        self.by_disk = {volume.disk: volume for volume in volumes if volume.disk is not None}
        named = [volume for volume in volumes if volume.disk is None]
        self.by_wwn = {volume.wwn: volume for volume in named if volume.wwn is not None}
        self.by_number = {volume.number: volume for volume in named if volume.number is not None}


class Matcher:
    """Answers for the devices of one look; `unmatched` are controllers without a disk, as text."""

    def __init__(self, files: KernelFiles, devices: Sequence[Device]) -> None:
        self._files = files
        self._devices = devices
        self._drivers = Drivers(files)
        self._places: Dict[str, _Place] = {}
        self._below: Dict[str, FrozenSet[str]] = {}
        self.unmatched: List[str] = []

    def backings(
        self, source: str, controllers: Sequence[Controller], wall_s: float,
        read_s: Optional[float] = None,
    ) -> Iterator[Backing]:
        """The reports of `source` by device; `read_s` as in Backing."""
        adapters = self._adapters(_DRIVERS.get(source, ()))
        # One that does not say where it is: the only one of its kind.
        lonely = next(iter(adapters)) if len(controllers) == len(adapters) == 1 else None
        located = [
            _Located(one, _among(adapters, one.pci) or self._in_slot(one.slot, adapters) or lonely)
            for one in controllers
        ]
        matched: Set[int] = set()
        for device in self._devices:
            said = []
            for at, one in enumerate(located):
                own = one.controller
                for volume in self._volumes(one, device):
                    matched.add(at)
                    # Two disks of one array say the same.
                    said.append(Backing(
                        device.name, source, wall_s, own.capacity_bytes, volume.mode,
                        own.protection, own.dirty_bytes, own.learn_s,
                        (*own.works, *volume.works), own.thresholds,
                        volume.disk if read_s is not None else None, read_s,
                        (*own.unread, *volume.unread),
                    ))  # fmt: skip
            yield from dict.fromkeys(said)
        for at, one in enumerate(located):
            here = one.pci is None or one.pci in adapters
            if at not in matched and here and one.controller.volumes and not one.by_disk:
                what = one.controller.model or f"controller {at}"
                why = "" if one.pci else ", which tells no address"
                self.unmatched.append(f"{source}: no disk is known to be of {what}{why}")

    def miss(self, source: str, seen: Sequence[str]) -> None:
        """Add that `source` finds no controller, if none of the tools `seen` does in its place."""
        known = [driver for each in seen for driver in _DRIVERS.get(each, ())]
        for driver in _DRIVERS.get(source, ()):
            if driver not in known and self._adapters((driver,)):
                self.unmatched.append(f"{source}: finds no controller, but {driver} has disks")

    def on_the_disks_of(self, array: str) -> List[Device]:
        """The devices on top of an array, and those that share a disk with it."""
        disks = self._names(array)
        return [
            device
            for device in self._devices
            if array in self._names(device.name) or disks & set(device.leaves)
        ]

    def _volumes(self, located: _Located, device: Device) -> Iterator[Volume]:
        """The volumes below the device; an empty one if the controller lists none."""
        if located.by_disk:
            for name in sorted(self._names(device.name) | set(device.leaves)):
                volume = located.by_disk.get(name)
                # Another disk of the name may have come since the tool was asked.
                if volume and volume.diskseq in (None, diskseq(self._files, name)):
                    yield volume
        for leaf in device.leaves:
            if located.by_wwn:
                naa = (self._files.try_read(f"/sys/block/{leaf}/device/wwid") or "").lower()
                if naa[4:] in located.by_wwn and naa.startswith("naa."):
                    yield located.by_wwn[naa[4:]]
                    continue
            place = self._place(leaf)
            if located.pci is None or place.pci != located.pci:
                continue
            if not located.controller.volumes and place.is_volume:
                yield Volume()
            if place.number is not None and place.number in located.by_number:
                yield located.by_number[place.number]

    def _in_slot(self, slot: Optional[int], adapters: FrozenSet[Optional[str]]) -> Optional[str]:
        """The adapter in the PCI slot with that number, by the firmware's table."""
        at = self._files.try_read(f"/sys/bus/pci/slots/{slot}/address")
        return next((pci for pci in adapters if at and (pci or "").startswith(f"{at}.")), None)

    def _adapters(self, drivers: Sequence[str]) -> FrozenSet[Optional[str]]:
        """PCI addresses of the controllers with these drivers."""
        leaves = {leaf for device in self._devices for leaf in device.leaves}
        places = [self._place(leaf) for leaf in leaves] if drivers else []
        return frozenset(place.pci for place in places if place.driver in drivers)

    def _place(self, disk: str) -> _Place:
        if disk not in self._places:
            parts = (self._files.readlink(f"/sys/block/{disk}") or "").split("/")
            driver = self._drivers.of(disk, parts)
            pci = [part for part in parts if _PCI.fullmatch(part)]
            channels, number, is_volume = VOLUMES.get(driver or "", ()), None, False
            address = next(filter(None, map(_ADDRESS.fullmatch, parts)), None)
            if address is not None:
                channel, target = int(address.group(1)), int(address.group(2))
                is_volume = channel in channels
                if is_volume and driver in _NUMBERED:
                    number = channels.index(channel) * 128 + target
            self._places[disk] = _Place(driver, pci[-1] if pci else None, number, is_volume)
        return self._places[disk]

    def _names(self, name: str) -> FrozenSet[str]:
        """The disk and all devices below it, partitions as their disks."""
        if name not in self._below:
            names: Set[str] = set()
            waiting = [name]
            while waiting:
                disk = self._disk(waiting.pop())
                if disk not in names:
                    names.add(disk)
                    waiting += self._files.listdir(f"/sys/block/{disk}/slaves")
            self._below[name] = frozenset(names)
        return self._below[name]

    def _disk(self, name: str) -> str:
        """The disk of a partition, whose directory is inside the disk's."""
        parts = (self._files.readlink(f"/sys/class/block/{name}") or "").split("/")
        parent = parts[-2] if len(parts) > 1 else ""
        is_part = self._files.try_read(f"/sys/class/block/{name}/partition") is not None
        return parent if is_part else name


def _among(adapters: FrozenSet[Optional[str]], pci: Optional[str]) -> Optional[str]:
    """The address, with the domain that some tools leave out; None for one of zeros only."""
    if pci is None or pci == "0000:00:00.0":
        return None
    of, _, place = pci.partition(":")
    same = [at for at in adapters if at and at.partition(":")[2] == place]
    return same[0] if of == "0000" and len(same) == 1 else pci


def stamped(
    controllers: Sequence[Controller], files: KernelFiles
) -> Tuple[Controller, ...]:
    """Add the sequence numbers of the disks: in ten minutes another disk may have the name."""
    return tuple(
        replace(controller, volumes=tuple(
            replace(volume, diskseq=diskseq(files, volume.disk)) if volume.disk else volume
            for volume in controller.volumes
        ))
        for controller in controllers
    )  # fmt: skip
