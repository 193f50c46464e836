# SPDX-License-Identifier: GPL-2.0-or-later
"""Filesystem -> BDI -> leaf disks, on hosts built from a few lines each."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple, cast
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_sysfs import NVME, RAID, SATA, USB, VIRTIO, FakeSysfs, many_disks
from writebackd.kernel import topology as topology_module
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.mounts import Mount, MountWatch, Uevents, open_uevents, parse_mountinfo
from writebackd.kernel.topology import Topology, scan
from writebackd.types.storage import Device

MANY = 128
READS_EACH, READS_ONCE = 12, 16  # files, directories and links: of each disk with its partition


@pytest.fixture
def tree(tmp_path: Path) -> FakeSysfs:
    return FakeSysfs(tmp_path)


def by_name(tree: FakeSysfs) -> Dict[str, Device]:
    return {device.name: device for device in scan(tree.files)}


def look(topology: Topology) -> bool:
    """A tick, and the next one, by which a thread has found what there is."""
    changed = topology.refresh()
    topology.join(10.0)
    return topology.refresh() or changed


def only(tree: FakeSysfs) -> Device:
    (device,) = scan(tree.files)
    return device


# --- what serves a filesystem ---


def test_a_partition_writes_through_the_bdi_of_its_disk(tree: FakeSysfs) -> None:
    tree.disk("sda", "8:0", RAID, rotational=True, write_cache="write through", diskseq=7)
    tree.scsi_host("host2", "megaraid_sas")
    tree.partition("sda", "sda1", "8:1")
    tree.partition("sda", "sda2", "8:2")
    tree.mount("8:1", "ext4", "/dev/sda1", "/")
    tree.mount("8:2", "xfs", "/dev/sda2", "/srv")
    assert only(tree) == Device(
        name="sda",
        devno="8:0",
        bdi="8:0",
        leaves=("sda",),
        leaf_devnos=("8:0",),
        filesystems=(("8:1", "ext4", "/"), ("8:2", "xfs", "/srv")),
        rotational=True,
        write_cache="write through",
        driver="megaraid_sas",
        diskseq=7,
    )


def test_lvm_on_md_on_partitions(tree: FakeSysfs) -> None:
    for name, devno, part in (("sda", "8:0", "8:1"), ("sdb", "8:16", "8:17")):
        tree.disk(name, devno, SATA, rotational=name == "sdb", diskseq=1)
        tree.partition(name, f"{name}1", part)
    tree.scsi_host("host0", "ahci")
    tree.disk("md0", "9:0", slaves=("sda1", "sdb1"))
    tree.disk("dm-0", "253:0", slaves=("md0",))
    tree.disk("dm-1", "253:1", slaves=("md0",))
    tree.mount("253:0", "ext4", "/dev/mapper/vg-root", "/")
    tree.mount("253:1", "xfs", "/dev/mapper/vg-srv", "/srv")
    found = by_name(tree)
    assert set(found) == {"dm-0", "dm-1"}  # not the disks nor md0: their BDIs hold nothing
    volume = found["dm-1"]
    assert (volume.bdi, volume.leaves, volume.leaf_devnos, volume.driver, volume.rotational) == (
        "253:1", ("sda", "sdb"), ("8:0", "8:16"), "ahci", True
    )  # fmt: skip


def test_a_disk_can_carry_both_a_filesystem_and_lvm(tree: FakeSysfs) -> None:
    tree.disk("vda", "254:0", VIRTIO, driver="virtio_blk")
    tree.partition("vda", "vda1", "254:1")
    tree.partition("vda", "vda2", "254:2")
    tree.disk("dm-0", "253:0", slaves=("vda2",))
    tree.mount("254:1", "ext4", "/dev/vda1", "/boot")
    tree.mount("253:0", "ext4", "/dev/mapper/vg-root", "/")
    assert {name: device.leaves for name, device in by_name(tree).items()} == {
        "vda": ("vda",),
        "dm-0": ("vda",),
    }


def test_btrfs_has_a_bdi_of_its_own(tree: FakeSysfs) -> None:
    tree.disk("nvme0n1", "259:0", NVME)
    tree.partition("nvme0n1", "nvme0n1p2", "259:2")
    tree.disk("sda", "8:0", SATA)
    tree.scsi_host("host0", "ahci")
    tree.disk("dm-3", "253:3", slaves=("sda",))
    tree.link("/dev/mapper/crypt", "../dm-3")
    tree.btrfs("6f", ("nvme0n1p2", "dm-3"), "btrfs-1")
    tree.text("/sys/fs/btrfs/features/raid56", "1")
    tree.mount("0:31", "btrfs", "/dev/mapper/crypt", "/home", root="/@home")
    tree.mount("0:31", "btrfs", "/dev/mapper/crypt", "/", root="/@")
    device = only(tree)
    assert (device.name, device.devno, device.bdi) == ("btrfs-1", "btrfs-1", "btrfs-1")
    assert device.leaves == ("nvme0n1", "sda")
    assert device.filesystems == (("0:31", "btrfs", "/"),)
    assert device.driver == "mixed"


def test_two_btrfs_are_told_apart_by_their_source(tree: FakeSysfs) -> None:
    for letter, devno in (("a", "8:0"), ("b", "8:16"), ("c", "8:32")):
        tree.disk(f"sd{letter}", devno, SATA)
    tree.disk("dm-0", "253:0", slaves=("sdc",))
    tree.text("/sys/block/dm-0/dm/name", "vg-data")  # no udev: no link in /dev/mapper
    tree.btrfs("01", ("sda",), "btrfs-1")
    tree.btrfs("02", ("sdb",), "btrfs-2")
    tree.btrfs("03", ("dm-0",), "btrfs-3")
    tree.mount("0:42", "btrfs", "/dev/sdb", "/b")
    tree.mount("0:43", "btrfs", "/dev/mapper/vg-data", "/c")
    tree.mount("0:41", "btrfs", "/dev/root", "/")  # named by the kernel: the one left over
    assert {name: device.filesystems[0][2] for name, device in by_name(tree).items()} == {
        "btrfs-1": "/",
        "btrfs-2": "/b",
        "btrfs-3": "/c",
    }


def test_btrfs_without_a_bdi_link_still_has_its_leaves(tree: FakeSysfs) -> None:
    tree.disk("sda", "8:0", SATA)
    tree.btrfs("c2e1f2aa-1111", ("sda",), None)  # before 5.10
    tree.mount("0:41", "btrfs", "/dev/sda", "/")
    device = only(tree)
    assert (device.name, device.leaves) == ("btrfs-c2e1f2aa", ("sda",))


@pytest.mark.parametrize("st_dev, fstype, source", [
    ("0:44", "overlay", "overlay"), ("0:45", "nfs4", "server:/export"),
    ("0:46", "fuse.sshfs", "host:"), ("0:47", "zfs", "tank/home"),
    ("0:48", "bcachefs", "/dev/sda"), ("8:99", "ext4", "/dev/gone"),
])  # fmt: skip
def test_what_is_on_no_block_device_is_not_listed(
    tree: FakeSysfs, st_dev: str, fstype: str, source: str
) -> None:
    tree.disk("sda", "8:0", SATA)
    tree.mount("8:0", "ext4", "/dev/sda", "/")
    tree.mount(st_dev, fstype, source, "/other")
    assert only(tree).filesystems == (("8:0", "ext4", "/"),)


def test_fuseblk_writes_through_the_disk_as_a_raw_user(tree: FakeSysfs) -> None:
    tree.disk("sda", "8:0", USB)
    tree.partition("sda", "sda1", "8:1")
    tree.mount("8:1", "fuseblk", "/dev/sda1", "/media/stick")
    assert only(tree).filesystems == ()


def test_bind_mounts_are_one_filesystem_under_its_own_name(tree: FakeSysfs) -> None:
    tree.disk("sda", "8:0", SATA)
    tree.mount("8:0", "xfs", "/dev/sda", "/a", root="/pods/1/volume")
    tree.mount("8:0", "xfs", "/dev/sda", "/run/host/var/lib")
    tree.mount("8:0", "xfs", "/dev/sda", "/var/lib")
    assert only(tree).filesystems == (("8:0", "xfs", "/var/lib"),)


# --- which disks without a filesystem count ---


def loop_with_file(tree: FakeSysfs) -> None:
    tree.disk("loop3", "7:3")
    tree.text("/sys/block/loop3/loop/backing_file", "/srv/image")


@pytest.mark.parametrize("build, listed", [
    (lambda tree: tree.disk("sdb", "8:16", SATA), True),
    (lambda tree: tree.disk("dm-5", "253:5"), True),
    (lambda tree: tree.disk("nbd0", "43:0"), True),
    (lambda tree: tree.disk("nbd0", "43:0", size=0), False),
    (loop_with_file, True),
    (lambda tree: tree.disk("loop3", "7:3"), False),
    (lambda tree: tree.disk("zram0", "252:0"), False),
    (lambda tree: tree.disk("ram0", "1:0"), False),
    (lambda tree: tree.disk("sr0", "11:0", SATA), False),
    (lambda tree: tree.disk("nvme0c0n1", "259:9", NVME), False),
])  # fmt: skip
def test_bare_disks(tree: FakeSysfs, build: Callable[[FakeSysfs], None], listed: bool) -> None:
    build(tree)
    assert bool(scan(tree.files)) is listed


def test_a_member_of_a_raid_or_of_btrfs_is_not_bare(tree: FakeSysfs) -> None:
    tree.disk("sda", "8:0", SATA)
    tree.partition("sda", "sda1", "8:1")
    tree.disk("sdb", "8:16", SATA)
    tree.disk("md0", "9:0", slaves=("sda1",))
    tree.btrfs("01", ("sdb",), "btrfs-1")
    assert set(by_name(tree)) == {"md0", "btrfs-1"}


def test_an_emmc_boot_area_is_a_disk_and_no_partition(tree: FakeSysfs) -> None:
    tree.disk("mmcblk0", "179:0", "platform/mmc0/mmc0:0001/block", driver="mmcblk")
    tree.disk("mmcblk0boot0", "179:8", "platform/mmc0/mmc0:0001/block/mmcblk0")
    tree.partition("mmcblk0", "mmcblk0p1", "179:1")
    tree.mount("179:1", "ext4", "/dev/mmcblk0p1", "/")
    found = by_name(tree)
    assert set(found) == {"mmcblk0", "mmcblk0boot0"}
    assert found["mmcblk0"].filesystems == (("179:1", "ext4", "/"),)


# --- what the leaves say ---


def nameless_host(tree: FakeSysfs) -> None:
    tree.disk("sda", "8:0", RAID)
    tree.scsi_host("host2", "(null)")
    tree.link("/sys/devices/pci0000:00/0000:02:00.0/driver", "../../../bus/pci/drivers/aacraid")


def scsi(tree: FakeSysfs) -> None:
    tree.disk("sda", "8:0", USB)
    tree.scsi_host("host9", "usb-storage")


def mixed(tree: FakeSysfs) -> None:
    tree.disk("vda", "254:0", VIRTIO, driver="virtio_blk")
    tree.disk("nvme0n1", "259:0", NVME)
    tree.disk("bcache0", "252:0", slaves=("vda", "nvme0n1"))


@pytest.mark.parametrize("build, driver", [
    (scsi, "usb-storage"),
    (nameless_host, "aacraid"),
    (lambda tree: tree.disk("sda", "8:0", RAID), None),
    (lambda tree: tree.disk("vda", "254:0", VIRTIO, driver="virtio_blk"), "virtio_blk"),
    (lambda tree: tree.disk("nvme0n1", "259:0", NVME), "nvme"),
    (lambda tree: tree.disk("nvme1n1", "259:1", "virtual/nvme-subsystem/nvme-subsys1"), "nvme"),
    (loop_with_file, "loop"),
    (lambda tree: tree.disk("nbd0", "43:0"), "nbd"),
    (mixed, "mixed"),
])  # fmt: skip
def test_driver(tree: FakeSysfs, build: Callable[[FakeSysfs], None], driver: Optional[str]) -> None:
    build(tree)
    assert only(tree).driver == driver


@pytest.mark.parametrize("caches, spins, cache, rotational", [
    (("write back", "write back"), (False, False), "write back", False),
    (("write back", "write through"), (False, True), "mixed", True),
    (("write through", None), (True, None), "write through", True),
    ((None, None), (False, None), None, None),
])  # fmt: skip
def test_leaves_that_differ(
    tree: FakeSysfs,
    caches: Tuple[Optional[str], ...],
    spins: Tuple[Optional[bool], ...],
    cache: Optional[str],
    rotational: Optional[bool],
) -> None:
    for letter, number, write_cache, spin in zip("ab", (0, 16), caches, spins):
        tree.disk(f"sd{letter}", f"8:{number}", SATA, (), spin, write_cache)
    tree.disk("md0", "9:0", slaves=("sda", "sdb"), rotational=False)
    device = only(tree)
    assert (device.write_cache, device.rotational) == (cache, rotational)


# --- while things change ---


class Observed(KernelFiles):
    """Calls `seen` before each file, directory or link that is read."""

    def __init__(self, root: Path, seen: Callable[[], None]) -> None:
        super().__init__(root)
        self._seen = seen

    def read(self, name: str) -> str:
        self._seen()
        return super().read(name)

    def listdir(self, name: str) -> List[str]:
        self._seen()
        return super().listdir(name)

    def readlink(self, name: str) -> Optional[str]:
        self._seen()
        return super().readlink(name)


@pytest.mark.parametrize("after", range(1, 40))
def test_a_disk_may_vanish_at_any_moment(tree: FakeSysfs, after: int) -> None:
    tree.disk("sda", "8:0", SATA)
    tree.disk("sdb", "8:16", USB)
    tree.partition("sdb", "sdb1", "8:17")
    tree.disk("dm-0", "253:0", slaves=("sdb1",))
    tree.mount("8:0", "ext4", "/dev/sda", "/")
    reads = 0

    def seen() -> None:
        nonlocal reads
        reads += 1
        if reads == after:
            tree.unplug("sdb")

    found = {device.name: device for device in scan(Observed(tree.root, seen))}
    assert found["sda"].filesystems == (("8:0", "ext4", "/"),)
    assert "sdb" not in found or found["sdb"].filesystems == ()


class Clock:
    now, step = 1000.0, 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def blind(tree: FakeSysfs, clock: Clock) -> Iterator[Topology]:
    """It hears no events."""
    topology = Topology(tree.files, None, clock)
    yield topology
    topology.close()


class Told(NamedTuple):
    topology: Topology
    kernel: socket.socket  # which sends the events that it hears


@pytest.fixture
def told(tree: FakeSysfs, clock: Clock) -> Iterator[Told]:
    kernel, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with kernel, contextlib.closing(Uevents(ours)) as events:
        with contextlib.closing(Topology(tree.files, events, clock)) as topology:
            yield Told(topology, kernel)


def names(topology: Topology) -> List[str]:
    return [device.name for device in topology.devices]


def test_topology_scans_only_for_a_reason(tree: FakeSysfs, clock: Clock, told: Told) -> None:
    topology, kernel = told
    assert not look(topology)  # nothing there yet
    tree.disk("sda", "8:0", SATA)
    assert not look(topology)  # nobody told
    kernel.send(b"add@/devices/x\0ACTION=add\0SUBSYSTEM=net\0")
    kernel.send(b"\xff\xfe garbage without end")
    assert not look(topology)
    kernel.send(b"add@/devices/x\0ACTION=add\0SUBSYSTEM=block\0DEVNAME=sda\0")
    assert look(topology) and names(topology) == ["sda"]
    assert not look(topology)
    tree.disk("sdb", "8:16", SATA)
    clock.now += 301
    assert look(topology)  # the safety net


def test_a_scan_that_hangs_holds_nobody_up_and_is_told(
    tree: FakeSysfs, clock: Clock, blind: Topology
) -> None:
    """As behind a foreign writer of queue/max_sectors_kb whose disk hangs."""
    tree.disk("sda", "8:0", SATA, rotational=True)
    assert blind.scan()
    known = blind.devices
    tree.disk("sdb", "8:16", SATA)
    stuck = tree.files.path("/sys/block/sda/queue/rotational")
    stuck.unlink()
    os.mkfifo(stuck)  # whoever opens it waits for a writer
    clock.now += 31
    tick = threading.Thread(target=blind.refresh, daemon=True)
    tick.start()
    tick.join(10.0)
    assert not tick.is_alive(), "it waits for the disk"
    clock.now += 11
    assert not blind.refresh() and blind.devices is known
    assert "scan of /sys" in (blind.problem or "")
    stuck.write_text("1")
    assert look(blind) and names(blind) == ["sda", "sdb"]
    assert not blind.problem


def test_a_scan_that_fails_is_told_and_made_again(
    tree: FakeSysfs, clock: Clock, blind: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.disk("sda", "8:0", SATA)
    with monkeypatch.context() as broken:
        broken.setattr(topology_module, "read_mounts", lambda files: 1 / 0)
        assert not look(blind)
        assert "division" in (blind.problem or "")
    clock.now += 31
    assert look(blind) and not blind.problem


def test_without_events_a_new_disk_shows_after_30_s(
    tree: FakeSysfs, clock: Clock, blind: Topology
) -> None:
    look(blind)
    tree.disk("sda", "8:0", SATA)
    clock.now += 29
    assert not look(blind)
    clock.now += 2
    assert look(blind)
    tree.unplug("sda")
    assert blind.scan() and names(blind) == []


def test_a_storm_of_events_costs_one_scan_in_twenty_times_its_length(
    tree: FakeSysfs, clock: Clock, told: Told
) -> None:
    topology, kernel = told
    clock.step = 0.1  # so every scan seems to take 100 ms
    look(topology)
    tree.disk("sda", "8:0", SATA)
    kernel.send(b"add@/devices/x\0SUBSYSTEM=block\0")
    assert not look(topology)
    clock.now += 1.0
    assert not look(topology)
    clock.now += 1.0
    assert look(topology)  # put off, not forgotten


def test_lost_events_are_a_reason_to_scan() -> None:
    overrun = mock.Mock(**{"recv.side_effect": OSError(105, "No buffer space available")})
    assert Uevents(overrun).drain() == 1
    overrun.setblocking.assert_called_once_with(False)


def test_the_events_of_the_kernel_and_of_udevd_are_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pyroute2, which hosts need not have."""
    monkeypatch.setitem(cast(Any, sys.modules), "pyroute2", None)
    bind = mock.Mock()
    with monkeypatch.context() as watched:
        watched.setattr(socket.socket, "bind", bind)
        opened, reason = open_uevents()
    assert reason is None and opened is not None
    bind.assert_called_once_with((0, 1 | 2))
    opened.drain()  # it does not block
    opened.close()


@pytest.mark.parametrize("refused", ["socket", "setsockopt", "bind"])
def test_a_refused_socket_is_a_reason_and_no_crash(
    monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(105, "No buffer space available")

    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as broken:
        broken.setattr(socket if refused == "socket" else socket.socket, refused, refuse)
        opened, reason = open_uevents()
    assert opened is None and reason is not None
    assert "late" in reason and "No buffer space available" in reason
    assert len(os.listdir("/proc/self/fd")) == before


def test_lookups(tree: FakeSysfs, blind: Topology) -> None:
    tree.disk("sda", "8:0", SATA)
    for number in (1, 2, 3):
        tree.partition("sda", f"sda{number}", f"8:{number}")
    tree.disk("dm-0", "253:0", slaves=("sda2",))
    tree.btrfs("01", ("sda3",), "btrfs-1")
    tree.mount("8:1", "ext4", "/dev/sda1", "/")
    tree.mount("0:50", "btrfs", "/dev/sda3", "/data")
    assert look(blind)
    owners = {
        "8:1": "sda",
        "8:0": "sda",
        "8:2": "sda",  # a writer to the partition itself dirties the disk's BDI
        "253:0": "dm-0",
        "0:50": "btrfs-1",
        "0:21": None,
        "8:77": None,
    }
    found = {devno: blind.by_fs(devno) for devno in owners}
    assert {devno: owner and owner.name for devno, owner in found.items()} == owners


def test_each_of_many_disks_is_read_once(tree: FakeSysfs) -> None:
    """What a scan takes is what it reads."""
    many_disks(tree, MANY)
    reads: List[None] = []
    assert len(scan(Observed(tree.root, lambda: reads.append(None)))) == MANY
    assert len(reads) <= MANY * READS_EACH + READS_ONCE


# --- mountinfo ---


@pytest.mark.parametrize("line, mount", [
    (
        "36 35 98:0 /mnt1 /mnt2 rw,noatime - ext3 /dev/root rw,errors=continue",
        Mount("98:0", "ext3", "/dev/root", "/mnt2", "/mnt1"),
    ),
    (
        r"36 35 8:1 / /a\040b\011\134040\043 rw shared:1 master:2 - xfs /dev/x\040y rw",
        Mount("8:1", "xfs", "/dev/x y", "/a b\t\\040#", "/"),
    ),
    ("36 35 0:5 / /t rw -  tmpfs rw", Mount("0:5", "", "tmpfs", "/t", "/")),
    ("36 35 0:5 / /t rw - tmpfs  rw", Mount("0:5", "tmpfs", "", "/t", "/")),
    ("36 35 8:1 / /- rw - ext4 /dev/a rw", Mount("8:1", "ext4", "/dev/a", "/-", "/")),
    ("36 35 8:1 / /\u2028\x0b rw - ext4 a rw", Mount("8:1", "ext4", "a", "/\u2028\x0b", "/")),
    ("36 35 8:1 / /\udcff rw - ext4 a rw", Mount("8:1", "ext4", "a", "/\\xff", "/")),
])  # fmt: skip
def test_mountinfo(line: str, mount: Mount) -> None:
    assert parse_mountinfo(f"garbage\n\n{line}\n36 35 8:1 / /x rw ext4") == (mount,)


@given(st.text(min_size=1))
def test_any_mount_point_comes_back(name: str) -> None:
    escaped = "".join(f"\\{ord(c):03o}" if c in " \t\n\\#" else c for c in name)
    (mount,) = parse_mountinfo(f"36 35 8:1 / /{escaped} rw - ext4 /dev/a rw")
    assert mount.mountpoint == f"/{name}"


@given(st.text(alphabet="0123456789: -/\\\n\tabx\udcff", max_size=300))
def test_no_mountinfo_raises(text: str) -> None:
    parse_mountinfo(text)


def test_a_missing_proc_never_changes(tmp_path: Path) -> None:
    with contextlib.closing(MountWatch(KernelFiles(tmp_path / "nowhere"))) as watch:
        assert not watch.changed()


def test_a_closed_watch_holds_no_file(tree: FakeSysfs) -> None:
    before = len(os.listdir("/proc/self/fd"))
    watch = MountWatch(tree.files)
    watch.close()
    watch.close()
    assert len(os.listdir("/proc/self/fd")) == before
