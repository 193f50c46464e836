# SPDX-License-Identifier: GPL-2.0-or-later
"""Maps filesystems to their BDI and to the leaf disks below it.

Dirty pages belong to the BDI of a whole block device (that of the disk for a
partition, the dm or md device's own for LVM and RAID) or to btrfs' own.
Only /sys is read; no device node or mount point is opened.  Even so a read of queue/*
may wait for a write to another file of a frozen queue: up to 6.10 for any file, on 6.18
rotational and write_cache for max_sectors_kb.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from dataclasses import dataclass, replace
from math import inf
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from writebackd.kernel.child_process import Job
from writebackd.kernel.disk_identity import (
    Drivers,
    diskseq,
    leaf_identity,
    links_of,
    stacked_identity,
    volume_identity,
)
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.mounts import Mount, MountWatch, Uevents, read_mounts
from writebackd.types.storage import Device

log = logging.getLogger(__name__)

# Without a filesystem these are no disks to guard: memory, removable media
# without write-back, and the hidden paths below a multipath NVMe head.
_NOT_A_RAW_DISK = re.compile(r"(?:ram|zram|sr|fd)\d|nvme\d+c\d")
_PARTITION = re.compile(r"p?\d+")
# FUSE sets up a BDI of its own even for a block device (fuse_bdi_init()).
_OWN_BDI = "fuseblk"

_RESCAN_S = 300.0  # queue/write_cache can be changed without an event
_RESCAN_BLIND_S = 30.0  # no uevents: the price of 1024 disks stays below 0.5 % of a core
# After a scan the next one waits 20 times as long as it took: a storm of events (a cluster
# node starting its volumes) costs 5 % of a core at worst.  One that hung cost nothing.
_SCAN_DUTY = 20.0
_LONGEST_PAUSE_S = 30.0
_HANGS_S = 10.0  # 1024 disks take less than a second


def _natural(name: str) -> str:
    """Sort key that puts dm-2 before dm-10."""
    return re.sub(r"\d+", lambda digits: digits.group().zfill(9), name)


def _agreed(values: List[Optional[str]]) -> Optional[str]:
    """The only known value, 'mixed' if they differ, None if none is known."""
    known = {value for value in values if value is not None}
    if len(known) > 1:
        return "mixed"
    return known.pop() if known else None


@dataclass(frozen=True)
class _Leaf:
    devno: str
    rotational: Optional[bool]
    write_cache: Optional[str]
    driver: Optional[str]
    diskseq: Optional[int]
    identity: Optional[str]


class _Scan:
    """One pass over /sys; devices that vanish meanwhile are skipped."""

    def __init__(self, files: KernelFiles, mounts: Sequence[Mount]) -> None:
        self._files = files
        self._mounts = mounts
        self.devno: Dict[str, str] = {}  # kernel name -> "major:minor", partitions too
        self._place: Dict[str, List[str]] = {}  # kernel name -> parts of its sysfs path
        self._slaves: Dict[str, Set[str]] = {}  # disk -> those that it is stacked upon
        self._leaves: Dict[str, Set[str]] = {}
        self._facts: Dict[str, _Leaf] = {}
        self._drivers = Drivers(files)
        for devno in files.listdir("/sys/dev/block"):
            link = files.readlink(f"/sys/dev/block/{devno}")
            if link is not None and "/" in link:
                parts = link.split("/")
                self.devno[parts[-1]] = devno
                self._place[parts[-1]] = parts
        self.name = {devno: name for name, devno in self.devno.items()}

    def disk(self, name: str) -> str:
        """The whole disk of a partition; any other name unchanged.

        A partition's directory lies in its disk's, but so does that of an eMMC
        boot area (mmcblk0boot0), a disk of its own: the name decides.
        """
        parent = self._place[name][-2]
        if parent in self.devno and _PARTITION.fullmatch(name[len(parent) :]):
            return parent
        return name

    def devices(self) -> Tuple[Device, ...]:
        for name in self.devno:
            if self.disk(name) == name:
                below = self._files.listdir(f"/sys/block/{name}/slaves")
                self._slaves[name] = {self.disk(slave) for slave in below if slave in self.devno}
        pools = self._btrfs_members()
        used: Set[str] = set().union(*self._slaves.values())
        used.update(self.disk(member) for members in pools.values() for member in members)
        mounted = self._mounted_disks()
        devices = [
            self._device(name, self.devno[name], (name,), mounted.get(name, []))
            for name in self._slaves
            if self._counts(name, name in mounted, name in used)
        ]
        devices += self._btrfs_devices(pools)
        # An identity that two of them share names neither.
        seen = Counter(device.identity for device in devices)
        devices = [
            replace(device, identity=None) if seen[device.identity] > 1 else device
            for device in devices
        ]
        return tuple(sorted(devices, key=lambda device: _natural(device.name)))

    def _leaves_of(self, disk: str, above: Tuple[str, ...] = ()) -> Set[str]:
        if disk not in self._leaves:
            above += (disk,)
            # A number reused in mid-scan may show a loop that never existed.
            below = self._slaves.get(disk, set()).difference(above)
            lowest = {leaf for name in below for leaf in self._leaves_of(name, above)}
            self._leaves[disk] = lowest or {disk}
        return self._leaves[disk]

    def _counts(self, disk: str, mounted: bool, used: bool) -> bool:
        """Whether this disk's own BDI can have dirty pages."""
        if not mounted and (used or _NOT_A_RAW_DISK.match(disk)):
            return False
        size = self._files.try_read(f"/sys/block/{disk}/size")
        if mounted or size is None:
            return size is not None  # None: it vanished since the table was read
        if disk.startswith("loop"):
            return bool(self._files.try_read(f"/sys/block/{disk}/loop/backing_file"))
        return size != "0"

    def _mounted_disks(self) -> Dict[str, List[Mount]]:
        on_disk: Dict[str, List[Mount]] = {}
        for mount in self._mounts:
            name = self.name.get(mount.st_dev)
            if name is not None and mount.fstype != _OWN_BDI:
                on_disk.setdefault(self.disk(name), []).append(mount)
        return on_disk

    def _device(
        self,
        name: str,
        devno: str,
        disks: Sequence[str],
        mounts: Sequence[Mount],
        uuid: Optional[str] = None,
    ) -> Device:
        leaves = sorted({leaf for disk in disks for leaf in self._leaves_of(disk)}, key=_natural)
        facts = [self._leaf(leaf) for leaf in leaves]
        spins = {fact.rotational for fact in facts}
        below = [fact.identity for fact in facts]
        if uuid is not None:
            identity: Optional[str] = stacked_identity(f"btrfs {uuid}", below)
        elif leaves == [name]:
            (identity,) = below
        else:
            identity = volume_identity(self._files, name, devno, below)
        # A filesystem over several disks has no node of its own.
        own_leaves = [] if devno in self.name else [fact.devno for fact in facts]
        return Device(
            name=name,
            devno=devno,
            bdi=devno,
            leaves=tuple(leaves),
            leaf_devnos=tuple(fact.devno for fact in facts),
            filesystems=tuple((m.st_dev, m.fstype, m.mountpoint) for m in mounts),
            rotational=True if True in spins else None if None in spins else False,
            write_cache=_agreed([fact.write_cache for fact in facts]),
            driver=_agreed([fact.driver for fact in facts]),
            diskseq=facts[0].diskseq,
            identity=identity,
            links=links_of(self._files, (devno, *(m.st_dev for m in mounts), *own_leaves)),
        )

    def _leaf(self, name: str) -> _Leaf:
        fact = self._facts.get(name)
        if fact is None:
            read = self._files.try_read
            spins = read(f"/sys/block/{name}/queue/rotational")
            write_cache = read(f"/sys/block/{name}/queue/write_cache") or None
            fact = self._facts[name] = _Leaf(
                devno=self.devno[name],
                rotational={"0": False, "1": True}.get(spins or ""),
                write_cache=write_cache,
                driver=self._drivers.of(name, self._place[name]),
                diskseq=diskseq(self._files, name),
                identity=leaf_identity(self._files, name, self.devno[name], write_cache),
            )
        return fact

    def _btrfs_members(self) -> Dict[str, Set[str]]:
        """Kernel names of the devices of every mounted btrfs, by UUID."""
        members = {}
        for uuid in self._files.listdir("/sys/fs/btrfs"):
            names = self._files.listdir(f"/sys/fs/btrfs/{uuid}/devices")
            known = {name for name in names if name in self.devno}
            if known:  # "features" has no devices, nor has one that is being unmounted
                members[uuid] = known
        return members

    def _btrfs_devices(self, pools: Dict[str, Set[str]]) -> List[Device]:
        mounted = self._btrfs_mounts(pools)
        devices = []
        for uuid, members in pools.items():
            link = self._files.readlink(f"/sys/fs/btrfs/{uuid}/bdi")
            # Before 5.10 it is unknown which of btrfs-1, btrfs-2 it is.
            bdi = link.rsplit("/", 1)[-1] if link else f"btrfs-{uuid[:8]}"
            disks = [self.disk(name) for name in members]
            devices.append(self._device(bdi, bdi, disks, mounted.get(uuid, []), uuid))
        return devices

    def _btrfs_mounts(self, pools: Dict[str, Set[str]]) -> Dict[str, List[Mount]]:
        """Mounts by UUID: st_dev is anonymous, only the source names a member."""
        mounts: Dict[str, List[Mount]] = {}
        strays = []
        for mount in self._mounts:
            if mount.fstype != "btrfs":
                continue
            name = self._kernel_name(mount.source)
            owners = [uuid for uuid, members in pools.items() if name in members]
            if owners:
                mounts.setdefault(owners[0], []).append(mount)
            else:
                strays.append(mount)  # "/dev/root", or a node that udev has renamed
        left = [uuid for uuid in pools if uuid not in mounts]
        if len(strays) == len(left) == 1:
            mounts[left[0]] = strays
        return mounts

    def _kernel_name(self, source: str) -> Optional[str]:
        """Kernel name of a node in /dev, followed through udev's symbolic links."""
        if not source.startswith("/dev/"):
            return None
        name = source[len("/dev/") :].replace("/", "!")  # as sysfs writes cciss/c0d0
        if name in self.devno:
            return name
        link = self._files.readlink(source)
        if link is not None and link.rsplit("/", 1)[-1] in self.devno:
            return link.rsplit("/", 1)[-1]
        # Without udev, /dev/mapper/NAME is a node and no link.
        for disk in self.devno:
            if disk.startswith("dm-"):
                dm_name = self._files.try_read(f"/sys/block/{disk}/dm/name")
                if source == f"/dev/mapper/{dm_name}":
                    return disk
        return None


def _filesystems(files: KernelFiles) -> Tuple[Mount, ...]:
    """Filesystems on a BDI, each with the mount a person would name: whole, then shortest.

    Mounts of containers, overlay and tmpfs, change none of them.
    """
    best: Dict[str, Mount] = {}
    for mount in sorted(read_mounts(files), key=lambda m: (m.root != "/", len(m.mountpoint))):
        if mount.fstype == "btrfs" or not mount.st_dev.startswith("0:"):
            best.setdefault(mount.st_dev, mount)
    return tuple(sorted(best.values(), key=lambda mount: mount.mountpoint))


def scan(files: KernelFiles) -> Tuple[Device, ...]:
    """All devices that can hold dirty pages for a disk, sorted by name. Never raises.

    These are block devices with a filesystem, btrfs filesystems, and block
    devices that nothing is mounted from or stacked upon (users of raw disks).
    One Device may carry several filesystems, one entry for each, with one of
    its mount points.  Loop devices are listed when they have a backing file.
    """
    return _Scan(files, _filesystems(files)).devices()


class _ScanResult(NamedTuple):
    mounts: Tuple[Mount, ...]  # those that can move a BDI
    devices: Tuple[Device, ...]
    by_fs: Dict[str, Device]


class Topology:
    """The devices as of the last scan, and the device of each number."""

    def __init__(
        self,
        files: KernelFiles,
        uevents: Optional[Uevents] = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._files = files
        self._uevents = uevents
        self._clock = clock
        self._watch = MountWatch(files)
        self._pending = True
        self._remounted = False
        self._rescan_at = self._not_before = clock()
        self._job: Optional[Job] = None
        self._began = 0.0
        self._result: Optional[_ScanResult] = None  # by the job, not taken yet
        self._current = _ScanResult((), (), {})
        self._error: Optional[str] = None

    @property
    def devices(self) -> Tuple[Device, ...]:
        """The same object until they change."""
        return self._current.devices

    @property
    def problem(self) -> Optional[str]:
        """Why new or removed disks are not noticed; None if they are."""
        if self._scanning and self._clock() - self._began > _HANGS_S:
            return f"new disks are not detected: the scan of /sys has taken over {_HANGS_S:.0f} s"
        return self._error

    def refresh(self) -> bool:
        """Use the result of a finished scan, and start one if needed; never waits.

        Returns whether the devices changed.
        """
        if self._uevents is not None and self._uevents.drain():
            self._pending = True
        self._remounted |= self._watch.changed()
        if self._scanning:
            return False
        if self._job is not None:
            self._end(self._job)
        changed = self._take()
        now = self._clock()
        if now >= self._rescan_at or (self._pending and now >= self._not_before):
            self._start(self._scan)
        elif self._remounted:
            self._start(self._scan_if_remounted)
        return changed

    def scan(self) -> bool:
        """As `refresh`, but wait for the result."""
        self._scan()
        return self._take()

    def join(self, timeout_s: float) -> None:
        """Wait until the running scan has ended, or the time is over."""
        if self._job is not None:
            self._job.wait(timeout_s)

    def by_fs(self, st_dev: str) -> Optional[Device]:
        """The device for a superblock's number, or for a disk or partition.

        The latter serves filesystems of other mount namespaces and writers to
        the block device itself.
        """
        return self._current.by_fs.get(st_dev)

    def close(self) -> None:
        """Close the watch on mounts; the uevent socket belongs to the caller."""
        self._watch.close()

    @property
    def _scanning(self) -> bool:
        return self._job is not None and self._job.busy

    def _take(self) -> bool:
        result, self._result = self._result, None
        if result is None:
            return False
        changed = result.devices != self.devices
        self._current = result if changed else result._replace(devices=self.devices)
        return changed

    def _start(self, work: Callable[[], None]) -> None:
        self._began = self._clock()
        self._job = Job(lambda _: work(), inf, "topology")

    def _end(self, job: Job) -> None:
        self._job, error = None, job.failure()
        if error is not None:  # whatever is wrong with them, the devices stay
            self._rescan_at = self._clock() + _RESCAN_BLIND_S
            self._error = f"new disks are not detected, cannot scan /sys: {error}"
            log.error("%s", self._error)

    def _scan_if_remounted(self) -> None:
        self._remounted = False
        if _filesystems(self._files) == self._current.mounts:
            return
        self._pending = True
        if self._clock() >= self._not_before:
            self._scan()

    def _scan(self) -> None:
        began = self._clock()
        # Before it looks: what comes meanwhile is a reason for the next one.
        self._pending = self._remounted = False
        mounts = _filesystems(self._files)
        current = _Scan(self._files, mounts)
        devices = current.devices()
        by_devno = {device.devno: device for device in devices}
        by_fs = {}
        for devno, name in current.name.items():
            owner = by_devno.get(current.devno[current.disk(name)])
            if owner is not None:
                by_fs[devno] = owner
        for device in devices:
            by_fs.update((st_dev, device) for st_dev, _, _ in device.filesystems)
        end = self._clock()
        self._not_before = end + min(_SCAN_DUTY * (end - began), _LONGEST_PAUSE_S)
        self._rescan_at = end + (_RESCAN_BLIND_S if self._uevents is None else _RESCAN_S)
        self._error = None
        self._result = _ScanResult(mounts, devices, by_fs)
