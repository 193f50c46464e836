# SPDX-License-Identifier: GPL-2.0-or-later
"""Types of the host facts that [match] rules test; kernel/host_facts.py reads them.

None means unknown, not "no".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple

# What stands behind a disk, as far as the kernel knows. `controller` is a guess by the driver:
# queue/write_cache says "write through" of a RAID controller whose cache is protected.
CACHES = ("controller", "drive", "none")
# `host` is a Xen dom0: a guest by its CPU flags, and the machine's own by all else.
VIRTUALISATIONS = ("metal", "guest", "host")


@dataclass(frozen=True)
class DiskFacts:
    """A disk that is not stacked on others."""

    name: str
    driver: Optional[str] = None
    cache: Optional[str] = None  # one of CACHES
    rotational: Optional[bool] = None
    removable: bool = False  # behind USB, or with media that can be taken out


@dataclass(frozen=True)
class HostFacts:
    """The facts about a host at one time."""

    disks: Tuple[DiskFacts, ...] = ()
    units: Optional[Tuple[str, ...]] = None  # systemd units that have a process, sorted
    # Names as the kernel keeps them (15 bytes, kernel threads more), sorted.
    processes: Optional[Tuple[str, ...]] = None
    unseen: Optional[str] = None  # the option of /proc that hides others of both
    virtualisation: Optional[str] = None  # one of VIRTUALISATIONS
    virtualisation_shown_by: str = ""
    memory_bytes: Optional[int] = None

    @property
    def fixed_disks(self) -> Tuple[DiskFacts, ...]:
        """The disks that are not removable: a USB stick calls itself rotational."""
        return tuple(disk for disk in self.disks if not disk.removable)
