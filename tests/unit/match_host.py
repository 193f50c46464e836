# SPDX-License-Identifier: GPL-2.0-or-later
"""A host put together word by word, and one for each class of hosts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Callable, Dict, List, Optional

from fake_sysfs import NVME, RAID, SATA, USB, VIRTIO, FakeSysfs
from writebackd.kernel.host_facts import read_facts
from writebackd.policy.load import load_all
from writebackd.policy.match import Choice, choose

GIB = 1 << 30
NOWHERE = Path("/nonexistent")  # no site has policies there


class Host:
    """A fake one, put together word by word; methods give it back."""

    def __init__(self, root: Path) -> None:
        self.tree = FakeSysfs(root)
        self._pid = 1
        self._disks = 0

    def memory(self, size: int) -> Host:
        self.tree.text("/proc/meminfo", f"MemTotal:       {size >> 10} kB\nMemFree: 1 kB")
        return self

    def metal(self) -> Host:
        self.tree.text("/proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu sse2 vmx")
        return self.memory(16 * GIB)

    def guest(self) -> Host:
        self.tree.text("/proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu hypervisor sse2")
        self.tree.text("/sys/class/dmi/id/sys_vendor", "QEMU")
        return self.memory(16 * GIB)

    def disk(self, place: str, driver: str, rotational: bool = False, name: str = "") -> Host:
        self._disks += 1
        host = re.search(r"/host\d+/", place)
        number = self._disks
        if host is not None:  # an adapter of its own for each
            place = place.replace(host.group(), f"/host{20 + number}/")
            self.tree.scsi_host(f"host{20 + number}", driver)
        name = name or f"sd{chr(96 + number)}"
        cache = "write through" if place.startswith(RAID[:20]) else "write back"
        self.tree.disk(
            name, f"8:{16 * number}", place, rotational=rotational, write_cache=cache,
            driver=None if host or driver == "nvme" else driver,
        )  # fmt: skip
        return self

    def raid(self) -> Host:
        return self.disk(RAID, "megaraid_sas", rotational=True)

    def ssd(self) -> Host:
        return self.disk(SATA, "ahci")

    def hdd(self) -> Host:
        return self.disk(SATA, "ahci", rotational=True)

    def nvme(self) -> Host:
        return self.disk(NVME, "nvme", name=f"nvme{self._disks}n1")

    def volume(self) -> Host:
        return self.disk(VIRTIO, "virtio_blk", rotational=True, name="vda")

    def stick(self) -> Host:
        return self.disk(USB, "usb-storage", rotational=True)

    def runs(self, *names: str) -> Host:
        """Units (in system.slice) or processes."""
        for name in names:
            self._pid += 1
            unit = name.endswith((".service", ".scope"))
            cgroup = f"0::/system.slice/{name}" if unit else "0::/system.slice/some.service"
            self.tree.process(self._pid, "java" if unit else name, cgroup)
        return self

    def by_user(self, name: str) -> Host:
        self._pid += 1
        where = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/x.service"
        self.tree.process(self._pid, name, where)
        return self

    def choice(
        self, config_dir: Optional[Path] = None, before: Optional[str] = None
    ) -> Choice:
        return choose(read_facts(self.tree.files), config_dir, root=NOWHERE, before=before)

    def fitting(self) -> List[str]:
        return [each.name for each in self.choice().verdicts if each.fits]


Build = Callable[[Host], Host]
# A host made for each class, and nothing else on it.
MADE_FOR: Dict[str, Build] = {
    "db-hwraid": lambda host: host.metal().raid().runs("postgres"),
    "db-ssd": lambda host: host.metal().ssd().ssd().runs("mariadbd"),
    "db-nvme": lambda host: host.metal().nvme().nvme().runs("mysqld"),
    "etcd": lambda host: host.metal().hdd().runs("etcd"),
    "kubernetes-node": lambda host: host.metal().ssd().runs("kubelet.service"),
    "file-server": lambda host: host.metal().hdd().runs("nfsd"),
    "backup-target": lambda host: host.metal().hdd().runs("bareos-sd"),
    "desktop": lambda host: host.metal().nvme().stick().runs("gdm.service"),
    "vm-guest": lambda host: host.guest().volume().runs("nginx"),
    "hypervisor": lambda host: host.metal().ssd().runs("qemu-system-x86"),
    "analytics": lambda host: host.metal().memory(256 * GIB).hdd().runs("hdfs-datanode.service"),
    "ceph-osd": lambda host: host.metal().hdd().nvme().runs("ceph-osd@3.service"),
    "default": lambda host: host.metal().ssd().runs("nginx"),
}


# ---- ties, other people's policies --------------------------------------------------------


def site(tmp_path: Path, **texts: str) -> Path:
    directory = tmp_path / "policies"
    directory.mkdir()
    for name, text in texts.items():
        (directory / f"{name}.conf").write_text(text)
    return directory


SHIPPED = tuple(each.policy for each in load_all(root=NOWHERE))
