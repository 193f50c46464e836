# SPDX-License-Identifier: GPL-2.0-or-later
"""A small /sys and /proc built below a directory, shaped as kernels shape theirs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Dict, Optional, Sequence

from writebackd.kernel.files import KernelFiles

SATA = "pci0000:00/0000:00:1f.2/ata1/host0/target0:0:0/0:0:0:0/block"
RAID = "pci0000:00/0000:02:00.0/host2/target2:2:0/2:2:0:0/block"
USB = "pci0000:00/0000:00:14.0/usb1/1-2/1-2:1.0/host9/target9:0:0/9:0:0:0/block"
VIRTIO = "pci0000:00/0000:00:02.0/virtio1/block"
NVME = "pci0000:00/0000:00:04.0/nvme/nvme0"
VIRTUAL = "virtual/block"


class FakeSysfs:
    """Adds devices one by one; `files` is the door that code under test uses."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = KernelFiles(root)
        self._place: Dict[str, str] = {}
        for name in ("sys/block", "sys/dev/block", "sys/class/bdi", "sys/devices", "proc/self"):
            (root / name).mkdir(parents=True)
        self.text("/proc/self/mountinfo", "21 1 0:20 / /proc rw,relatime - proc proc rw")

    def text(self, name: str, value: str) -> None:
        path = self.files.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value + "\n")

    def link(self, name: str, target: str) -> None:
        path = self.files.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)

    def disk(
        self,
        name: str,
        devno: str,
        place: str = VIRTUAL,
        slaves: Sequence[str] = (),
        rotational: Optional[bool] = False,
        write_cache: Optional[str] = "write back",
        diskseq: Optional[int] = None,
        size: int = 2048,
        driver: Optional[str] = None,
    ) -> None:
        """A whole disk; `place` is its directory's parent below /sys/devices."""
        self._add(name, devno, f"{place}/{name}", size)
        here = f"/sys/block/{name}"
        self.link(here, f"../devices/{place}/{name}")
        self.link(f"/sys/class/bdi/{devno}", f"../../devices/virtual/bdi/{devno}")
        if rotational is not None:
            self.text(f"{here}/queue/rotational", str(int(rotational)))
        if write_cache is not None:
            self.text(f"{here}/queue/write_cache", write_cache)
        if diskseq is not None:
            self.text(f"{here}/diskseq", str(diskseq))
        if driver is not None:
            self.link(f"{here}/device/driver", f"../../bus/drivers/{driver}")
        for slave in slaves:
            self.link(f"{here}/slaves/{slave}", f"../../../../{self._place[slave]}")
            self.link(f"/sys/devices/{self._place[slave]}/holders/{name}", here)

    def partition(self, disk: str, name: str, devno: str) -> None:
        self._add(name, devno, f"{self._place[disk]}/{name}", 1024)
        self.text(f"/sys/devices/{self._place[name]}/partition", "1")

    def says(self, disk: str, **attributes: str) -> None:
        """What it is called: `device__wwid="naa.5"` is its file device/wwid."""
        for name, value in attributes.items():
            self.text(f"/sys/block/{disk}/{name.replace('__', '/')}", value)

    def process(self, pid: int, name: str, cgroup: str = "0::/", uid: int = 0) -> None:
        """`cgroup`: the lines of its /proc/PID/cgroup; `uid`: all four."""
        uids = "\t".join(4 * [str(uid)])
        self.text(f"/proc/{pid}/status", f"Name:\t{name}\nUid:\t{uids}")
        self.text(f"/proc/{pid}/comm", name)
        self.text(f"/proc/{pid}/cgroup", cgroup)

    def scsi_host(self, host: str, proc_name: str) -> None:
        self.text(f"/sys/class/scsi_host/{host}/proc_name", proc_name)

    def btrfs(self, uuid: str, members: Sequence[str], bdi: Optional[str]) -> None:
        for member in members:
            self.link(f"/sys/fs/btrfs/{uuid}/devices/{member}", f"../../../../{member}")
        if bdi is not None:
            self.link(f"/sys/fs/btrfs/{uuid}/bdi", f"../../../devices/virtual/bdi/{bdi}")

    def mount(
        self, st_dev: str, fstype: str, source: str, mountpoint: str, root: str = "/"
    ) -> None:
        with open(self.files.path("/proc/self/mountinfo"), "a") as mountinfo:
            mountinfo.write(
                f"30 1 {st_dev} {root} {mountpoint} rw shared:1 - {fstype} {source} rw\n"
            )

    def unplug(self, name: str) -> None:
        """What is left after a surprise removal: nothing of the disk."""
        for entry in self.files.path("/sys/dev/block").iterdir():
            if os.path.basename(os.readlink(entry)) == name:
                entry.unlink()
        self.files.path(f"/sys/block/{name}").unlink()
        shutil.rmtree(self.files.path(f"/sys/devices/{self._place[name]}"))

    def _add(self, name: str, devno: str, place: str, size: int) -> None:
        self._place[name] = place
        self.text(f"/sys/devices/{place}/size", str(size))
        self.text(f"/sys/devices/{place}/dev", devno)
        for empty in ("slaves", "holders"):
            self.files.path(f"/sys/devices/{place}/{empty}").mkdir()
        self.link(f"/sys/dev/block/{devno}", f"../../devices/{place}")


def many_disks(tree: FakeSysfs, count: int) -> None:
    """`count` partitioned SCSI disks with a filesystem each, on four adapters."""
    for index in range(count):
        host = f"host{index % 4}"
        place = f"pci0000:00/0000:02:00.0/{host}/target0:0:{index}/0:0:{index}:0/block"
        name, major, minor = f"sd{index}", 65 + index // 16, index % 16 * 16
        tree.disk(name, f"{major}:{minor}", place, rotational=True, diskseq=index + 1)
        tree.says(name, device__wwid=f"naa.6{index:031x}")
        tree.text(f"/sys/block/{name}/device/scsi_disk/0:0:{index}:0/cache_type", "write back")
        tree.partition(name, f"{name}p1", f"{major}:{minor + 1}")
        tree.mount(f"{major}:{minor + 1}", "xfs", f"/dev/{name}p1", f"/srv/{index}")
    for number in range(4):
        tree.scsi_host(f"host{number}", "megaraid_sas")
