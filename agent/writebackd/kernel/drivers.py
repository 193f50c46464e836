# SPDX-License-Identifier: GPL-2.0-or-later
"""The driver of a disk, from its place in /sys."""

from __future__ import annotations

import re
from typing import Dict, List, Optional

from writebackd.kernel.files import KernelFiles


class Drivers:
    """Drivers of the disks of one scan; answers about SCSI hosts are cached."""

    def __init__(self, files: KernelFiles) -> None:
        self._files = files
        self._hosts: Dict[str, Optional[str]] = {}  # SCSI host -> driver

    def of(self, name: str, place: List[str]) -> Optional[str]:
        """A SCSI host's driver, nvme, virtio_blk, loop, nbd ...; `place`: parts of its path."""
        if name.startswith("nvme"):
            return "nvme"
        for depth, part in enumerate(place):
            if re.fullmatch(r"host\d+", part):
                if part not in self._hosts:
                    self._hosts[part] = self._host_driver(part, place[:depth])
                return self._hosts[part]
        link = self._files.readlink(f"/sys/block/{name}/device/driver")
        if link is not None:
            return link.rsplit("/", 1)[-1]
        # Virtual disks (loop, nbd, zram, rbd, drbd) have no device; named by driver.
        kind = re.match(r"[a-z]+", name)
        return kind.group() if kind else None

    def _host_driver(self, host: str, above: List[str]) -> Optional[str]:
        name = self._files.try_read(f"/sys/class/scsi_host/{host}/proc_name")
        if name and not name.startswith(("(", "<")):  # "(null)", "<NULL>": driver gave no name
            return name
        # The adapter itself: the link is relative to /sys/dev/block or /sys/block.
        adapter = "/".join(part for part in above if part != "..")
        link = self._files.readlink(f"/sys/{adapter}/driver")
        return link.rsplit("/", 1)[-1] if link is not None else None
