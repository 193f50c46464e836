# SPDX-License-Identifier: GPL-2.0-or-later
"""Types of a RAID tool's answer: controllers and volumes, not matched to devices yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Sequence, Tuple

from writebackd.types.storage import ArrayWork, CacheMode, Protection, Threshold


class ToolError(ValueError):
    """A tool's output is not as expected; the message says where, or quotes the tool."""


@dataclass(frozen=True)
class Volume:
    """A disk made by a controller, with the kernel's name for it or its number."""

    number: Optional[int] = None  # SCSI target on the controller's channels for volumes
    disk: Optional[str] = None  # kernel name
    diskseq: Optional[int] = None  # of that disk then; None: older than Linux 5.15
    mode: Optional[CacheMode] = None
    works: Tuple[ArrayWork, ...] = ()
    wwn: Optional[str] = None  # hexadecimal digits of its NAA identifier
    unread: Tuple[str, ...] = ()  # states whose words are in no row of the tool's table


def all_write_through(volumes: Sequence[Volume]) -> bool:
    """Whether all volumes are known to be write-through; False without volumes."""
    return bool(volumes) and all(each.mode is CacheMode.WRITE_THROUGH for each in volumes)


@dataclass(frozen=True)
class Controller:
    """A RAID controller, or a kernel driver in its role."""

    pci: Optional[str] = None  # as sysfs writes it: 0000:3b:00.0
    model: Optional[str] = None
    capacity_bytes: Optional[int] = None
    protection: Optional[Protection] = None
    dirty_bytes: Optional[int] = None
    learn_s: Optional[float] = None  # wall clock
    works: Tuple[ArrayWork, ...] = ()  # on all of its disks, or it is not said on which
    volumes: Tuple[Volume, ...] = ()
    thresholds: Tuple[Threshold, ...] = ()
    slot: Optional[int] = None  # PCI slot, of one that does not tell its address
    unread: Tuple[str, ...] = ()  # as in Volume, or why the tool could not read it
