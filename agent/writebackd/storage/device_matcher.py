# SPDX-License-Identifier: GPL-2.0-or-later
"""Matches a tool's volumes to devices, by disk name or by controller address and number."""

from __future__ import annotations

import re
from typing import Dict, FrozenSet, Iterator, List, NamedTuple, Optional, Sequence, Set

from writebackd.kernel.drivers import Drivers
from writebackd.kernel.files import KernelFiles
from writebackd.storage.raid_types import Controller, Volume
from writebackd.types.storage import Backing, Device

# The drivers that a tool's controllers have, for those that do not say where they are.
_DRIVERS = {
    "storcli": ("megaraid_sas",), "perccli": ("megaraid_sas",), "megacli": ("megaraid_sas",),
    "arcconf": ("aacraid", "smartpqi"), "ssacli": ("hpsa", "smartpqi"),
}  # fmt: skip
# From this channel on a controller shows its volumes, 128 on each: the number of one is
# (channel - first) * 128 + target (MEGASAS_MAX_PD_CHANNELS, megasas_queue_command()); of aacraid
# the container's is its target on channel 0. What has another channel is a disk handed through.
_FIRST_CHANNEL = {"megaraid_sas": 2, "aacraid": 0}
_MOST_CHANNEL = {"megaraid_sas": 3, "aacraid": 0}
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ADDRESS = re.compile(r"[0-9]{1,6}:([0-9]{1,6}):([0-9]{1,6}):[0-9]{1,12}")
# What is stacked deeper than this is a loop in what sysfs showed.
_DEEPEST = 16


class _Place(NamedTuple):
    """Of a disk."""

    driver: Optional[str]
    pci: Optional[str]
    number: Optional[int]  # of the volume; None: it is none, or it cannot be told
    is_volume: Optional[bool]  # None: cannot be told


class _Table:
    """A controller with its volumes by name and by number."""

    def __init__(self, controller: Controller, alone: bool) -> None:
        self.controller, self.alone = controller, alone
        volumes = controller.volumes
        self.by_disk = {each.disk: each for each in volumes if each.disk is not None}
        self.by_number: Dict[Optional[int], Volume] = {
            each.number: each
            for each in volumes
            if each.disk is None and each.number is not None
        }


class Matcher:
    """Answers for the devices of one look."""

    def __init__(self, files: KernelFiles, devices: Sequence[Device]) -> None:
        self._files = files
        self._devices = devices
        self._drivers = Drivers(files)
        self._places: Dict[str, _Place] = {}
        self._below: Dict[str, FrozenSet[str]] = {}

    def backings(
        self, source: str, controllers: Sequence[Controller], wall_s: float
    ) -> Iterator[Backing]:
        """What `source` says, by device."""
        adapters = self._adapters(_DRIVERS.get(source, ()))
        tables = [_Table(each, len(controllers) == 1) for each in controllers]
        for device in self._devices:
            # Two disks of one array say the same.
            said = [
                _backing(device.name, source, wall_s, table.controller, volume)
                for table in tables
                for volume in self._volumes(table, adapters, device)
            ]
            yield from dict.fromkeys(said)

    def on_the_disks_of(self, array: str) -> List[Device]:
        """The devices on top of an array, and those that share a disk with it."""
        disks = self._names(array)
        return [
            each
            for each in self._devices
            if array in self._names(each.name) or disks & set(each.leaves)
        ]

    def _volumes(
        self, table: "_Table", adapters: FrozenSet[Optional[str]], device: Device
    ) -> Iterator[Optional[Volume]]:
        """Those below the device; None: the controller says nothing of volumes."""
        controller = table.controller
        if table.by_disk:
            for name in sorted(self._names(device.name) | set(device.leaves)):
                volume = table.by_disk.get(name)
                # Another disk of the name may have come since the tool was asked.
                if volume and volume.diskseq in (None, diskseq(self._files, name)):
                    yield volume
        for leaf in device.leaves:
            place = self._place(leaf)
            # One that does not say where it is: the only one of its kind.
            lonely = table.alone and place.pci is not None and adapters == {place.pci}
            if not (place.pci == controller.pci if controller.pci is not None else lonely):
                continue
            if not controller.volumes and place.is_volume is not False:
                yield None
            if place.number in table.by_number:
                yield table.by_number[place.number]

    def _adapters(self, drivers: Sequence[str]) -> FrozenSet[Optional[str]]:
        """Where the controllers with these drivers are."""
        leaves = {leaf for device in self._devices for leaf in device.leaves}
        places = [self._place(leaf) for leaf in leaves] if drivers else []
        return frozenset(place.pci for place in places if place.driver in drivers)

    def _place(self, disk: str) -> "_Place":
        if disk not in self._places:
            parts = (self._files.readlink(f"/sys/block/{disk}") or "").split("/")
            driver = self._drivers.of(disk, parts)
            pci = [part for part in parts if _PCI.fullmatch(part)]
            first, number, is_volume = _FIRST_CHANNEL.get(driver or ""), None, None
            address = next(filter(None, map(_ADDRESS.fullmatch, parts)), None)
            if address is not None and first is not None:
                channel, target = int(address.group(1)), int(address.group(2))
                is_volume = first <= channel <= _MOST_CHANNEL[driver or ""]
                number = (channel - first) * 128 + target if is_volume else None
            self._places[disk] = _Place(driver, pci[-1] if pci else None, number, is_volume)
        return self._places[disk]

    def _names(self, name: str) -> FrozenSet[str]:
        """The disk and all that it is stacked upon, partitions as their disks."""
        if name not in self._below:
            found: Set[str] = set()
            waiting = [(name, 0)]
            while waiting:
                each, depth = waiting.pop()
                each = self._disk(each)
                if each in found or depth > _DEEPEST:
                    continue
                found.add(each)
                below = self._files.listdir(f"/sys/block/{each}/slaves")
                waiting += [(slave, depth + 1) for slave in below]
            self._below[name] = frozenset(found)
        return self._below[name]

    def _disk(self, name: str) -> str:
        """The disk of a partition: its directory lies in the disk's."""
        parts = (self._files.readlink(f"/sys/class/block/{name}") or "").split("/")
        parent = parts[-2] if len(parts) > 1 else ""
        is_part = self._files.try_read(f"/sys/class/block/{name}/partition") is not None
        return parent if is_part else name


def diskseq(files: KernelFiles, disk: str) -> Optional[int]:
    """A number that no disk after it has, in this boot; None: before Linux 5.15, or it is gone."""
    text = files.try_read(f"/sys/block/{disk}/diskseq")
    return int(text) if text and re.fullmatch("[0-9]{1,20}", text) else None


def _backing(
    device: str, source: str, wall_s: float, controller: Controller, volume: Optional[Volume]
) -> Backing:
    return Backing(
        device=device,
        source=source,
        wall_s=wall_s,
        capacity_bytes=controller.capacity_bytes,
        mode=volume.mode if volume is not None else None,
        protection=controller.protection,
        dirty_bytes=controller.dirty_bytes,
        learn_s=controller.learn_s,
        works=controller.works + (volume.works if volume is not None else ()),
    )
