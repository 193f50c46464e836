# SPDX-License-Identifier: GPL-2.0-or-later
"""Devices, and what stands behind them: write caches, batteries, arrays."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Optional, Tuple

# What keeps the writes, other than a controller, by the source that tells of it.
CACHES_OF_THE_KERNEL = {
    "md": "md-journal", "bcache": "bcache", "dm-writecache": "dm-writecache",
    "dm-cache": "dm-cache",
}  # fmt: skip


@dataclass(frozen=True)
class Device:
    """A filesystem's BDI (or a bare disk) and the leaf disks listed below it."""

    name: str  # kernel name: sda, dm-0, md0, nvme0n1, loop3, btrfs-1
    devno: str  # "major:minor" of the BDI; "btrfs-1" where the kernel gives none
    bdi: str  # directory name under /sys/class/bdi
    leaves: Tuple[str, ...] = ()  # kernel names of the disks at the bottom
    leaf_devnos: Tuple[str, ...] = ()
    filesystems: Tuple[Tuple[str, str, str], ...] = ()  # (st_dev "maj:min", type, mount point)
    rotational: Optional[bool] = None
    write_cache: Optional[str] = None  # queue/write_cache of the leaves
    driver: Optional[str] = None
    diskseq: Optional[int] = None  # of the first leaf: changes when the disk is another one
    # The same after a restart and in another slot; None: nothing tells it apart.
    identity: Optional[str] = None


class CacheMode(Enum):
    """What a write cache does with a write; the word is the one that status shows."""

    WRITE_BACK = "write-back"
    WRITE_THROUGH = "write-through"
    ALWAYS_WRITE_BACK = "always-write-back"  # also without a battery that would save it


class Protection(Enum):
    """What would keep a write cache over a power failure: a battery, or a capacitor."""

    OK = "ok"
    CHARGING = "charging"
    LEARNING = "learning"  # empties and fills itself to find out what it still holds
    FAILED = "failed"
    ABSENT = "absent"


@dataclass(frozen=True)
class ArrayWork:
    """What an array does to its disks beside the host's IO."""

    kind: str  # rebuild, check, patrol, initialisation, migration
    share: Optional[float] = None  # of it that is done
    rate: Optional[float] = None  # bytes per second, of each disk


@dataclass(frozen=True)
class Threshold:
    """A setting of a cache, by the kernel's name and in its unit."""

    name: str
    value: int


@dataclass(frozen=True)
class Backing:
    """What a tool or the kernel says of that which stands behind one device."""

    device: str  # name of the Device
    source: str  # who says so: storcli, ssacli, md, bcache ...
    wall_s: float  # when it was asked
    capacity_bytes: Optional[int] = None  # of the write cache, as far as writes may use it
    mode: Optional[CacheMode] = None
    protection: Optional[Protection] = None
    dirty_bytes: Optional[int] = None  # in the write cache
    learn_s: Optional[float] = None  # wall clock: when the battery learns next
    works: Tuple[ArrayWork, ...] = ()
    thresholds: Tuple[Threshold, ...] = ()
    # Of a cache that the kernel runs: its disk, and when it was read (CLOCK_BOOTTIME), which is
    # every other second.
    disk: Optional[str] = None
    read_s: Optional[float] = None
