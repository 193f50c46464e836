# SPDX-License-Identifier: GPL-2.0-or-later
"""A disk of one's own: a loop device on a sparse file, with a filesystem."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, Optional


def run(*argv: str) -> str:
    """Standard output of a command; AssertionError with its stderr when it fails."""
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr.strip()}"
    return done.stdout.strip()


@dataclass(frozen=True)
class Scratch:
    device: str  # loop3
    devno: str  # 7:3
    mountpoint: Optional[Path]
    backing: Path


def as_born(device: str, devno: str) -> None:
    """Give a loop device the queue and the BDI limits that it was born with.

    Both stay when its file is detached, so a run that was killed leaves them to the next
    one that gets the device, which would take them for what it has to put back.
    """
    queue, bdi = Path(f"/sys/block/{device}/queue"), Path(f"/sys/class/bdi/{devno}")
    depth = Path("/sys/module/loop/parameters/hw_queue_depth")  # since Linux 5.16
    largest = min(1280, int((queue / "max_hw_sectors_kb").read_text()))  # BLK_DEF_MAX_SECTORS
    born = {
        queue / "nr_requests": depth.read_text() if depth.exists() else "128",
        queue / "max_sectors_kb": str(largest),
        # The strict limit first: alone it would hold the device to 1 %.
        bdi / "strict_limit": "0",
        bdi / "min_ratio_fine": "0",
        bdi / "max_ratio_fine": "1000000",
    }
    for file, text in born.items():
        if file.exists() and file.read_text().strip() != text.strip():
            file.write_text(text)


def wait_until_free(device: str, backing: Path) -> None:
    """Wait until a detached loop device lets go of its file.

    It keeps it while anybody has the device open, as udev has for a moment after each change:
    the next disk would get another device.
    """
    bound = Path(f"/sys/block/{device.rpartition('/')[2]}/loop/backing_file")
    deadline = time.monotonic() + 10.0
    with contextlib.suppress(OSError):
        while bound.read_text().startswith(str(backing)) and time.monotonic() < deadline:
            time.sleep(0.02)


MKFS = {"ext4": ["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"],
        "xfs": ["-q", "-f"], "btrfs": ["-q", "-f"]}


@contextlib.contextmanager
def loop_device(backing: Path, size_mb: int = 512) -> Iterator[str]:
    """Kernel name (loop3) of a loop device over a sparse file, which is made."""
    with open(backing, "wb") as file:
        file.truncate(size_mb << 20)
    try:
        node = run("losetup", "--find", "--show", str(backing))
        try:
            yield node.rpartition("/")[2]
        finally:
            run("losetup", "--detach", node)
            wait_until_free(node, backing)
    finally:
        backing.unlink()


@contextlib.contextmanager
def mounted(name: str, fstype: str, where: Path, *options: str) -> Iterator[Path]:
    """A new filesystem on a device, mounted at a directory that is made."""
    run(f"mkfs.{fstype}", *MKFS[fstype], f"/dev/{name}")
    where.mkdir()
    run("mount", "-t", fstype, *options, f"/dev/{name}", str(where))
    try:
        yield where
    finally:
        run("umount", str(where))
        where.rmdir()


@contextlib.contextmanager
def scratch_disk(
    fstype: Optional[str], size_mb: int = 512, directory: Optional[str] = None
) -> Iterator[Scratch]:
    """A loop device with `fstype` mounted (None: bare); taken down whatever happens.

    Its file lies in `directory`: on tmpfs it is fast but takes no direct IO.
    """
    home = Path(tempfile.mkdtemp(prefix="writebackd-test-", dir=directory))
    backing, mountpoint = home / "disk", home / "mnt"
    try:
        with contextlib.ExitStack() as stack:
            name = stack.enter_context(loop_device(backing, size_mb))
            devno = Path(f"/sys/block/{name}/dev").read_text().strip()
            as_born(name, devno)
            if fstype is not None:
                stack.enter_context(mounted(name, fstype, mountpoint))
            yield Scratch(name, devno, mountpoint if fstype else None, backing)
    finally:
        home.rmdir()
