# SPDX-License-Identifier: GPL-2.0-or-later
"""Devices and the storage behind them: write caches, batteries, arrays."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Optional, Tuple

from writebackd.types.quantities import Count, Rate, Share

# Write caches of the kernel, by the source that reports them.
CACHES_OF_THE_KERNEL = {
    "md": "md-journal", "bcache": "bcache", "dm-writecache": "dm-writecache",
    "dm-cache": "dm-cache",
}  # fmt: skip


@dataclass(frozen=True)
class Device:
    """A filesystem's BDI (or a bare disk) and the leaf disks listed below it."""

    name: str  # kernel name: sda, dm-0, md0, nvme0n1, loop3, btrfs-1
    devno: str  # "major:minor" of the BDI; "btrfs-1" if the kernel has none
    bdi: str  # directory name under /sys/class/bdi
    leaves: Tuple[str, ...] = ()  # kernel names of the disks at the bottom
    leaf_devnos: Tuple[str, ...] = ()
    filesystems: Tuple[Tuple[str, str, str], ...] = ()  # (st_dev "maj:min", type, mount point)
    rotational: Optional[bool] = None
    write_cache: Optional[str] = None  # queue/write_cache of the leaves
    driver: Optional[str] = None
    diskseq: Optional[int] = None  # of the first leaf: changes when the disk is replaced
    # The same after a restart and in another slot; None: the disk has no unique identity.
    identity: Optional[str] = None
    links: Tuple[str, ...] = ()  # udev's, of the device and its mounted partitions: /dev/disk/...

    @cached_property
    def names(self) -> Tuple[str, ...]:
        """Names that stay when the kernel numbers its disks anew: links and mount points."""
        return (*self.links, *(mount for _, _, mount in self.filesystems))


class CacheMode(Enum):
    """What a write cache does with a write, in the word that status shows."""

    WRITE_BACK = "write-back"
    WRITE_THROUGH = "write-through"
    ALWAYS_WRITE_BACK = "always-write-back"  # also without a battery


class Protection(Enum):
    """State of the battery or capacitor that keeps a write cache during a power failure."""

    OK = "ok"
    CHARGING = "charging"
    LEARNING = "learning"  # discharges and recharges to measure its capacity
    FAILED = "failed"
    ABSENT = "absent"


@dataclass(frozen=True)
class ArrayWork:
    """Background work of an array on its disks."""

    kind: str  # rebuild, resync, check, patrol, initialisation, migration
    share: Optional[Share] = None  # that is done
    rate: Optional[Rate] = None  # of each disk


@dataclass(frozen=True)
class Threshold:
    """A setting of a cache, with the kernel's name and unit."""

    name: str
    value: Count


@dataclass(frozen=True)
class Backing:
    """What a tool or the kernel reports about the storage behind one device."""

    device: str  # name of the Device
    source: str  # the reporter: storcli, ssacli, md, bcache ...
    wall_s: float  # when it was asked
    capacity_bytes: Optional[int] = None  # part of the cache that writes may use
    mode: Optional[CacheMode] = None
    protection: Optional[Protection] = None
    dirty_bytes: Optional[int] = None  # in the write cache
    learn_s: Optional[float] = None  # wall clock of the next battery test
    works: Tuple[ArrayWork, ...] = ()
    thresholds: Tuple[Threshold, ...] = ()
    # For a cache of the kernel: its disk, and when it was read (CLOCK_BOOTTIME; every two seconds).
    disk: Optional[str] = None
    read_s: Optional[float] = None
    unread: Tuple[str, ...] = ()  # what the tool said and nobody understands
