# SPDX-License-Identifier: GPL-2.0-or-later
"""Topology on the running kernel: filesystems on loop devices, hotplug, mounts. Needs root."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Iterator, List, Optional

import pytest

from tests.kernel.fault_rig import wait_for
from tests.kernel.scratch import MKFS, loop_device, mounted, run
from writebackd.kernel.diskstats import DiskStatsReader, delta
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.mounts import Uevents, open_uevents, read_mounts
from writebackd.kernel.topology import Topology, scan
from writebackd.types.storage import Device

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root for losetup and mount")

FILES = KernelFiles()
IDLE_BUDGET_US = 1000  # a fifth of the daemon's 0.5 % of a core at one tick a second


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[str]:
    with loop_device(tmp_path / "image") as name:
        yield name


@pytest.fixture
def uevents() -> Iterator[Uevents]:
    opened, reason = open_uevents()
    assert opened is not None, reason
    yield opened
    opened.close()


def find(name: str) -> Optional[Device]:
    return next((device for device in scan(FILES) if device.name == name), None)


def devno_of(name: str) -> str:
    return FILES.read(f"/sys/block/{name}/dev")


@pytest.mark.parametrize("fstype", ["ext4", "xfs"])
def test_a_filesystem_is_found_by_the_number_that_stat_gives(
    disk: str, tmp_path: Path, fstype: str
) -> None:
    with mounted(disk, fstype, tmp_path / "mnt") as where:
        device = find(disk)
        assert device is not None
        number = os.stat(where).st_dev
        st_dev = f"{os.major(number)}:{os.minor(number)}"
        assert device.filesystems == ((st_dev, fstype, str(where)),)
        assert device.driver == "loop"
        assert device.leaf_devnos == (devno_of(disk),)
        assert device.diskseq == FILES.read_int(f"/sys/block/{disk}/diskseq")
        assert device.write_cache in ("write back", "write through")
        assert device.rotational is not None
        assert FILES.path(f"/sys/class/bdi/{device.bdi}").is_dir()


def test_btrfs_over_two_disks(disk: str, tmp_path: Path) -> None:
    if "btrfs" not in FILES.read("/proc/filesystems").split():
        pytest.skip("this kernel has no btrfs")
    with loop_device(tmp_path / "second") as other:
        run("mkfs.btrfs", *MKFS["btrfs"], f"/dev/{other}")
        with mounted(disk, "btrfs", tmp_path / "mnt") as where:
            run("btrfs", "device", "add", "-f", f"/dev/{other}", str(where))
            (mount,) = [m for m in read_mounts(FILES) if m.mountpoint == str(where)]
            topology = Topology(FILES)
            topology.scan()
            device = topology.by_fs(mount.st_dev)
            topology.close()
            assert device is not None
            assert device.name.startswith("btrfs-")
            assert set(device.leaves) == {disk, other}
            assert FILES.path(f"/sys/class/bdi/{device.bdi}").is_dir()
            assert find(disk) is None  # its BDI holds no page of the filesystem


def test_a_bind_mount_adds_nothing(disk: str, tmp_path: Path) -> None:
    with mounted(disk, "ext4", tmp_path / "with blank") as where:
        (tmp_path / "b").mkdir()
        run("mount", "--bind", str(where / "lost+found"), str(tmp_path / "b"))
        try:
            device = find(disk)
            assert device is not None
            assert [where for _, _, where in device.filesystems] == [str(where)]
        finally:
            run("umount", str(tmp_path / "b"))


def test_a_bare_loop_device_is_a_raw_disk_while_it_has_a_file(tmp_path: Path) -> None:
    with loop_device(tmp_path / "image") as name:
        device = find(name)
        assert device is not None
        assert device.filesystems == ()
    wait_for(lambda: not FILES.path(f"/sys/block/{name}/loop").exists())
    assert find(name) is None


def test_uevents_tell_of_attach_and_detach(tmp_path: Path, uevents: Uevents) -> None:
    uevents.drain()
    with loop_device(tmp_path / "image"):
        wait_for(lambda: uevents.drain() > 0)
    wait_for(lambda: uevents.drain() > 0)


def test_topology_follows_hotplug_and_mounts(tmp_path: Path, uevents: Uevents) -> None:
    topology = Topology(FILES, uevents)

    def sees(name: str, filesystems: Optional[List[str]]) -> bool:
        topology.refresh()
        for device in topology.devices:
            if device.name == name:
                return filesystems == [where for _, _, where in device.filesystems]
        return filesystems is None

    try:
        with loop_device(tmp_path / "image") as name:
            wait_for(lambda: sees(name, []))
            with mounted(name, "ext4", tmp_path / "mnt") as where:
                wait_for(lambda: sees(name, [str(where)]))
            wait_for(lambda: sees(name, []))
        wait_for(lambda: sees(name, None))
    finally:
        topology.close()


def test_the_watch_tells_of_mount_and_unmount_once(tmp_path: Path) -> None:
    """In a mount namespace of its own, where nobody else mounts."""
    script = f"""
import subprocess
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.mounts import MountWatch
watch = MountWatch(KernelFiles())
seen = [watch.changed()]
for command in (["mount", "-t", "tmpfs", "none", {str(tmp_path)!r}], ["umount", {str(tmp_path)!r}]):
    subprocess.run(command, check=True)
    seen += [watch.changed(), watch.changed()]
print(seen)
"""
    own_namespace = ("unshare", "--mount", "--propagation", "private")
    said = run(*own_namespace, sys.executable, "-c", script)
    assert said == str([False, True, False, True, False])


def test_diskstats_count_what_was_written(disk: str) -> None:
    reader, devno = DiskStatsReader(FILES), devno_of(disk)
    before = reader.read()[devno]
    with open(f"/dev/{disk}", "r+b", buffering=0) as node:
        node.write(b"x" * (1 << 20))
        os.fsync(node.fileno())
    assert delta(before, reader.read()[devno]).write_bytes == 1 << 20
    assert reader.skipped == 0


def test_an_idle_refresh_costs_next_to_nothing(uevents: Uevents) -> None:
    topology = Topology(FILES, uevents)
    topology.scan()
    costs = []
    for _ in range(50):
        start = time.thread_time()
        topology.refresh()
        costs.append((time.thread_time() - start) * 1e6)
    topology.close()
    print(f"refresh without a change: {sorted(costs)[25]:.0f} us")
    assert sorted(costs)[25] < IDLE_BUDGET_US
