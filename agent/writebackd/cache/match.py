# SPDX-License-Identifier: GPL-2.0-or-later
"""Which device a tool speaks of: by the disk's name, or by the controller's place and a number."""

from __future__ import annotations

import re
from typing import Dict, FrozenSet, Iterator, List, NamedTuple, Optional, Sequence, Set

from writebackd.cache.values import Controller, Volume
from writebackd.kernel.files import KernelFiles
from writebackd.model import Backing, Device

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
# What is stacked deeper than this is a loop in what sysfs showed.
_DEEPEST = 16


class _Place(NamedTuple):
    pci: Optional[str]
    number: Optional[int]  # of the volume; None: it is none, or it cannot be told
    is_volume: Optional[bool]  # None: cannot be told


class Matcher:
    """Answers for the devices of one look."""

    def __init__(self, files: KernelFiles, devices: Sequence[Device]) -> None:
        self._files = files
        self._devices = devices
        self._places: Dict[str, _Place] = {}
        self._below: Dict[str, FrozenSet[str]] = {}

    def backings(
        self, source: str, controllers: Sequence[Controller], wall_s: float
    ) -> Iterator[Backing]:
        """What `source` says, by device."""
        for device in self._devices:
            # Two disks of one array say the same.
            said = [
                _backing(device.name, source, wall_s, controller, volume)
                for controller in controllers
                for volume in self._volumes(source, controller, device, len(controllers))
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
        self, source: str, controller: Controller, device: Device, count: int
    ) -> Iterator[Optional[Volume]]:
        """Those below the device; None: the controller says nothing of volumes."""
        named = self._names(device.name) | set(device.leaves)
        for volume in controller.volumes:
            if volume.disk is not None and volume.disk in named:
                yield volume
        for leaf in device.leaves:
            place = self._place(leaf, device.driver)
            if not self._is_of(source, controller, place, device, count):
                continue
            if not controller.volumes and place.is_volume is not False:
                yield None
            for volume in controller.volumes:
                if volume.disk is None and place.number == volume.number is not None:
                    yield volume

    def _is_of(
        self, source: str, controller: Controller, place: _Place, device: Device, count: int
    ) -> bool:
        if controller.pci is not None:
            return place.pci == controller.pci
        # The only one of its kind: told by its driver.
        drivers = _DRIVERS.get(source, ())
        if count > 1 or device.driver not in drivers:
            return False
        places = {
            self._place(leaf, each.driver).pci
            for each in self._devices if each.driver in drivers
            for leaf in each.leaves
        }  # fmt: skip
        return len(places) == 1

    def _place(self, disk: str, driver: Optional[str]) -> _Place:
        if disk not in self._places:
            parts = (self._files.readlink(f"/sys/block/{disk}") or "").split("/")
            pci = [part for part in parts if _PCI.fullmatch(part)]
            address = next((m for m in (re.fullmatch(
                r"[0-9]{1,6}:([0-9]{1,6}):([0-9]{1,6}):[0-9]{1,12}", part) for part in parts) if m),
                None)  # fmt: skip
            first, number, is_volume = _FIRST_CHANNEL.get(driver or ""), None, None
            if address is not None and first is not None:
                channel, target = int(address.group(1)), int(address.group(2))
                is_volume = first <= channel <= _MOST_CHANNEL[driver or ""]
                number = (channel - first) * 128 + target if is_volume else None
            self._places[disk] = _Place(pci[-1] if pci else None, number, is_volume)
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
