# SPDX-License-Identifier: GPL-2.0-or-later
"""What a disk is called across restarts, from what each kind of it says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, Optional

import pytest

from fake_sysfs import NVME, RAID, SATA, USB, VIRTIO, VIRTUAL, FakeSysfs
from writebackd.kernel.topology import scan

MMC = "platform/soc/mmc_host/mmc0/mmc0:0001/block"
WWID = "naa.600605b00d1c2b402c1f2e5e0a8b6f31"


@pytest.fixture
def tree(tmp_path: Path) -> FakeSysfs:
    return FakeSysfs(tmp_path)


def identities(tree: FakeSysfs) -> Dict[str, Optional[str]]:
    return {device.name: device.identity for device in scan(tree.files)}


def vpd(tree: FakeSysfs, disk: str, serial: str) -> None:
    """As the kernel shows a page: type, page code, length, text padded with blanks."""
    tree.text(f"/sys/block/{disk}/device/vpd_pg80", f"\0\x7f\0{chr(len(serial))}{serial}   ")


@pytest.mark.parametrize("name, devno, place, says, identity", [
    # By its wwid, with both cache modes.
    ("sda", "8:0", RAID,
     {"device__wwid": WWID, "device__model": "PERC H730P Mini",
      "device__scsi_disk__2:2:0:0__cache_type": "write back, no read (daft)"},
     f"{WWID}, cache write back / write back, no read (daft)"),
    ("nvme0n1", "259:0", NVME,
     {"wwid": "eui.0025385b71b00d1f", "device__serial": "S5GX",
      "queue__write_cache": "write through"},
     "eui.0025385b71b00d1f, cache write through"),
    ("loop0", "7:0", VIRTUAL, {"loop__backing_file": "/srv/a b.img", "loop__offset": "0"},
     "file /srv/a b.img at 0 of 2048, cache write back"),
    ("sda", "8:0", SATA, {"device__vendor": "ATA", "device__model": "QEMU HARDDISK"},
     "ATA QEMU HARDDISK of 2048, cache write back"),
    ("nbd0", "43:0", VIRTUAL, {}, None),
    # A read of it waits behind the disk's queue.
    ("vda", "254:0", VIRTIO, {"serial": "vol-0a1b"}, None),
])  # fmt: skip
def test_a_disk_is_what_it_says_of_itself(
    tree: FakeSysfs, name: str, devno: str, place: str, says: Dict[str, str],
    identity: Optional[str],
) -> None:  # fmt: skip
    tree.disk(name, devno, place)
    tree.says(name, **says)
    assert identities(tree) == {name: identity}


@pytest.mark.parametrize("nothing", ["naa.0000000000000000", "", "0", "eui.00-00", "\udcff"])
def test_an_empty_wwid_gives_way_to_the_serial_number(tree: FakeSysfs, nothing: str) -> None:
    tree.disk("sdb", "8:16", USB, size=4096)
    tree.files.path("/sys/block/sdb/device").mkdir()
    tree.files.path("/sys/block/sdb/device/wwid").write_bytes(
        nothing.encode("utf-8", "surrogateescape")
    )
    tree.says("sdb", device__vendor="Generic ", device__model="Flash  Disk")
    vpd(tree, "sdb", "07A31B")
    assert identities(tree) == {
        "sdb": "Generic Flash Disk serial 07A31B of 4096, cache write back"
    }


def test_virtio_is_asked_through_udev(tree: FakeSysfs) -> None:
    tree.disk("vda", "254:0", VIRTIO)
    tree.text("/run/udev/data/b254:0", "S:disk/by-id/virtio-x\nI:4711\nE:ID_SERIAL=vol-0a1b\nG:x")
    assert identities(tree) == {"vda": "serial vol-0a1b of 2048, cache write back"}


def test_links_are_udevs_also_of_mounted_partitions(tree: FakeSysfs) -> None:
    tree.disk("vda", "254:0", VIRTIO)
    tree.partition("vda", "vda1", "254:1")
    tree.mount("254:1", "ext4", "/dev/vda1", "/srv/db")
    tree.text("/run/udev/data/b254:0", "S:disk/by-id/virtio-x\nI:4711\nE:ID_SERIAL=vol-0a1b")
    tree.text("/run/udev/data/b254:1", "S:disk/by-uuid/0a1b\nS:disk/by-id/virtio-x")
    (disk,) = scan(tree.files)
    assert disk.names == ("/dev/disk/by-id/virtio-x", "/dev/disk/by-uuid/0a1b", "/srv/db")


def test_parts_of_one_card_are_told_apart(tree: FakeSysfs) -> None:
    tree.disk("mmcblk0", "179:0", MMC, size=60000)
    tree.disk("mmcblk0boot0", "179:8", MMC, size=8192)
    for name in ("mmcblk0", "mmcblk0boot0"):
        tree.says(name, device__serial="0x1c2d")
    found = identities(tree)
    assert None not in found.values() and len(set(found.values())) == 2


@pytest.mark.parametrize("says", [
    {"device__wwid": "t10.USB cheap 0123"},
    {"device__vendor": "ATA", "device__model": "QEMU HARDDISK"},
])  # fmt: skip
def test_what_two_disks_say_names_neither(tree: FakeSysfs, says: Dict[str, str]) -> None:
    for name, devno in (("sda", "8:0"), ("sdb", "8:16")):
        tree.disk(name, devno, SATA)
        tree.says(name, **says)
    assert identities(tree) == {"sda": None, "sdb": None}
    tree.unplug("sda")
    assert identities(tree)["sdb"] is not None


def volume(tree: FakeSysfs) -> None:
    for name, devno in (("sda", "8:0"), ("sdb", "8:16")):
        tree.disk(name, devno, SATA)
        tree.says(name, device__wwid=f"naa.5{name}")
    tree.disk("md0", "9:0", slaves=("sda", "sdb"))
    tree.disk("dm-0", "253:0", slaves=("md0",), size=77)
    tree.mount("253:0", "xfs", "/dev/mapper/vg-srv", "/srv")


LEAVES = "naa.5sda, cache write back + naa.5sdb, cache write back"


def test_a_logical_volume_is_itself_and_its_disks(tree: FakeSysfs) -> None:
    volume(tree)
    assert identities(tree) == {"dm-0": f"dm of 77 on {LEAVES}"}
    tree.says("dm-0", dm__uuid="LVM-x1Y2")
    assert identities(tree) == {"dm-0": f"LVM-x1Y2 on {LEAVES}"}


def test_a_raid_by_its_own_uuid_or_udevs(tree: FakeSysfs) -> None:
    volume(tree)
    tree.mount("9:0", "xfs", "/dev/md0", "/md")
    tree.text("/run/udev/data/b9:0", "E:MD_LEVEL=raid1\nE:MD_UUID=6a1b:2c3d")
    assert identities(tree)["md0"] == f"6a1b:2c3d on {LEAVES}"
    tree.says("md0", md__uuid="6a1b-kernel")
    assert identities(tree)["md0"] == f"6a1b-kernel on {LEAVES}"


def test_a_volume_without_a_name_on_a_disk_without_one_has_no_identity(tree: FakeSysfs) -> None:
    tree.disk("vda", "254:0", VIRTIO)
    tree.disk("dm-0", "253:0", slaves=("vda",))
    assert identities(tree) == {"dm-0": None}
    tree.says("dm-0", dm__uuid="CRYPT-LUKS2-77")
    assert identities(tree) == {"dm-0": "CRYPT-LUKS2-77 on unknown"}


def test_btrfs_by_its_uuid(tree: FakeSysfs) -> None:
    tree.disk("sda", "8:0", SATA)
    tree.says("sda", device__wwid="naa.5a")
    tree.btrfs("6f-11", ("sda",), "btrfs-1")
    tree.mount("0:31", "btrfs", "/dev/sda", "/")
    assert identities(tree) == {"btrfs-1": "btrfs 6f-11 on naa.5a, cache write back"}


@pytest.mark.parametrize("file", ["device__scsi_disk__0:0:0:0__cache_type", "queue__write_cache"])
def test_another_cache_mode_is_another_device(tree: FakeSysfs, file: str) -> None:
    volume(tree)
    before = identities(tree)["dm-0"]
    tree.says("sda", **{file: "write through"})
    after = identities(tree)["dm-0"]
    assert before != after and after is not None and "write through" in after
