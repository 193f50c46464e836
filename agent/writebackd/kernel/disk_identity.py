# SPDX-License-Identifier: GPL-2.0-or-later
"""A stable identity of a disk: the same after a restart and in another slot; and its driver.

Kernel names and numbers change at every boot, so learned values are stored under the
disk's own identity, as cached by the kernel or by udev.  Two sources are not read:
/sys/block/vda/serial of virtio, which queries the disk at every read and waits in its
queue (virtblk_get_id()), and the inode of a loop device's file, whose stat(2) may wait
for a server.

The cache mode is part of the identity: without its write cache a disk drains at
another rate, and a sync waits for the media, so learned values no longer apply.
"""

from __future__ import annotations

import re
from typing import Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from writebackd.kernel.files import KernelFiles

_UDEV = "/run/udev/data/b"  # in memory; written when the disk came
_VPD_HEAD = 4  # page code and length, in front of the serial number
# Written into the identifier where a vendor had none to write.
_NOTHING = "0-. "


def leaf_identity(
    files: KernelFiles, name: str, devno: str, write_cache: Optional[str]
) -> Optional[str]:
    """A name of the disk that no other has; None if nothing tells it apart."""
    known = _disk(files, name, devno)
    if known is None:
        return None
    modes = [write_cache] if write_cache else []
    # What the SCSI layer believes, "daft" mode pages included; may be set by hand.
    for address in files.listdir(f"/sys/block/{name}/device/scsi_disk"):
        cache = files.try_read(f"/sys/block/{name}/device/scsi_disk/{address}/cache_type")
        if cache and cache not in modes:
            modes.append(cache)
    return f"{known}, cache {' / '.join(modes) or 'unknown'}"


def volume_identity(
    files: KernelFiles, name: str, devno: str, leaves: Sequence[Optional[str]]
) -> Optional[str]:
    """The identity of a stacked device: its own name, and those of its disks."""
    own = None
    if name.startswith("dm-"):
        own = _clean(files.try_read(f"/sys/block/{name}/dm/uuid"))
    elif name.startswith("md"):
        own = _clean(files.try_read(f"/sys/block/{name}/md/uuid"))  # not on older kernels
        own = own or _udev(files, devno, "MD_UUID")
    if own is None:
        if None in leaves:
            return None
        # No name of its own (dmsetup, bcache): at least what it is and how large.
        own = f"{name.rstrip('0123456789-')} of {files.try_read(f'/sys/block/{name}/size')}"
    return stacked_identity(own, leaves)


def stacked_identity(own: str, leaves: Sequence[Optional[str]]) -> str:
    """`own`, which identifies the device by itself, on top of these disks."""
    return f"{own} on {' + '.join(leaf or 'unknown' for leaf in leaves)}"


def _disk(files: KernelFiles, name: str, devno: str) -> Optional[str]:
    here = f"/sys/block/{name}"

    def read(attribute: str) -> Optional[str]:
        return _clean(files.try_read(f"{here}/{attribute}"))

    wwid = read("wwid" if name.startswith("nvme") else "device/wwid")
    if wwid is not None:
        return wwid
    size = files.try_read(f"{here}/size")
    if name.startswith("loop"):
        backing, offset = read("loop/backing_file"), files.try_read(f"{here}/loop/offset")
        return f"file {backing} at {offset} of {size}" if backing else None
    made = " ".join(part for part in (read("device/vendor"), read("device/model")) if part)
    serial = read("device/serial")  # nvme, mmc
    if serial is None:
        page = files.try_read(f"{here}/device/vpd_pg80")
        serial = _clean(page[_VPD_HEAD:] if page else None) or _udev(files, devno, "ID_SERIAL")
    # The size, because the parts of one card or drive share its number.
    if serial is not None:
        return f"{made} serial {serial} of {size}".strip()
    # Two of one model are then indistinguishable, which the scan detects.
    return f"{made} of {size}" if read("device/model") else None


def links_of(files: KernelFiles, devnos: Iterable[str]) -> Tuple[str, ...]:
    """The links below /dev that udev has made for these numbers.

    From its data: in the unit /dev is private, and has none of them.
    """
    known = dict.fromkeys(devnos)
    links = (f"/dev/{name}" for devno in known for name in _lines(files, devno, "S:"))
    return tuple(dict.fromkeys(links))


def diskseq(files: KernelFiles, disk: str) -> Optional[int]:
    """A number that no later disk has in this boot; None: before Linux 5.15, or it is gone."""
    text = files.try_read(f"/sys/block/{disk}/diskseq")
    return int(text) if text and re.fullmatch("[0-9]{1,20}", text) else None


def _udev(files: KernelFiles, devno: str, key: str) -> Optional[str]:
    return next(map(_clean, _lines(files, devno, f"E:{key}=")), None)


def _lines(files: KernelFiles, devno: str, head: str) -> Iterator[str]:
    for line in (files.try_read(_UDEV + devno) or "").split("\n"):
        if line.startswith(head):
            yield line[len(head):]


def _clean(text: Optional[str]) -> Optional[str]:
    """Printable text with single blanks; None for empty text or only zeros."""
    if text is None:
        return None
    plain = "".join(c if c.isprintable() and not "\ud800" <= c <= "\udfff" else " " for c in text)
    words = " ".join(plain.split())
    # "naa.0000000000000000": a kind of identifier, and nothing in it.
    return words if words.split(".", 1)[-1].strip(_NOTHING) else None


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
