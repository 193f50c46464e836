# SPDX-License-Identifier: GPL-2.0-or-later
"""Filesystems on what hosts have below them: a plain disk, md raid10, LVM, dm-crypt.

The disks are loop devices. WRITEBACKD_TOOLS names the unpacked packages of mdadm, LVM and
cryptsetup; nothing of them is installed, and udev has no part in it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, ContextManager, Dict, Iterator, List, Tuple

import pytest

from tests.kernel.scratch import Scratch, loop_device, mounted, run

FILESYSTEMS = ("ext4", "xfs", "btrfs")
# Btrfs writes around the page cache where it keeps no checksums only, since Linux 6.15.
MOUNT_OPTIONS = {"btrfs": ("-o", "nodatasum")}
# Up to 512 MB ext4 has blocks of 1 KiB: where a chunk of md ends, 4 KiB are then two requests.
SIZE_MB = 640
LVM_CONFIG = (
    'devices { filter = [ "a|^/dev/loop|", "r|.*|" ] use_devicesfile = 0 } '
    "activation { udev_sync = 0 udev_rules = 0 monitoring = 0 } backup { backup = 0 archive = 0 }"
)


@dataclass(frozen=True)
class Stack:
    """A filesystem, and the disks that have each of its blocks `copies` times."""

    scratch: Scratch
    leaves: Tuple[str, ...]
    copies: int


def unpacked(pattern: str) -> List[Path]:
    """What matches in the packages; Debian 12's have their files in / and in /usr."""
    trees = [each for each in os.environ.get("WRITEBACKD_TOOLS", "").split(":") if each]
    return [path for tree in trees for top in (Path(tree), Path(tree, "usr"))
            for path in top.glob(pattern)]  # fmt: skip


def tool(program: str, *argv: str) -> str:
    """Run a program of the unpacked packages, with their libraries."""
    found = unpacked(f"sbin/{program}")
    if not found:
        pytest.skip(f"{program} is missing: WRITEBACKD_TOOLS names no package that has it")
    libraries = unpacked("lib/*-linux-gnu*")
    settings = {"LD_LIBRARY_PATH": ":".join(map(str, libraries)), "DM_DISABLE_UDEV": "1"}
    return run("env", *(f"{key}={value}" for key, value in settings.items()), str(found[0]), *argv)


def needs(module: str, where: str) -> None:
    """Skip unless the kernel has it, built in or as a module."""
    subprocess.run(["modprobe", "-q", module])
    if not Path(where).exists():
        pytest.skip(f"this kernel has no {module}")


def mapped(name: str) -> str:
    """The kernel's name (dm-0) of a device of the device mapper."""
    (found,) = [path.parts[3] for path in Path("/sys/block").glob("dm-*/dm/name")
                if path.read_text().strip() == name]  # fmt: skip
    return found


@contextlib.contextmanager
def plain(disks: Tuple[str, ...]) -> Iterator[str]:
    yield disks[0]


@contextlib.contextmanager
def raid10(disks: Tuple[str, ...]) -> Iterator[str]:
    needs("raid10", "/proc/mdstat")
    name = "md90"
    # Without a bitmap, and never marked clean: md then writes nothing of its own.
    tool("mdadm", "--create", f"/dev/{name}", "--run", "--assume-clean", "--bitmap=none",
         "--level=10", f"--raid-devices={len(disks)}", *(f"/dev/{disk}" for disk in disks))
    try:
        Path(f"/sys/block/{name}/md/safe_mode_delay").write_text("0")
        yield name
    finally:
        tool("mdadm", "--stop", f"/dev/{name}")


@contextlib.contextmanager
def lvm(disks: Tuple[str, ...]) -> Iterator[str]:
    needs("dm-mod", "/sys/class/misc/device-mapper")
    group, config = "writebackd_test", ("--config", LVM_CONFIG)
    tool("lvm", "vgcreate", *config, group, *(f"/dev/{disk}" for disk in disks))
    try:
        tool("lvm", "lvcreate", *config, "--zero=n", "--wipesignatures=n", "--yes",
             "--extents=100%FREE", "--name=disk", group)
        yield mapped(f"{group}-disk")
    finally:
        tool("lvm", "vgremove", *config, "--force", "--yes", group)


@contextlib.contextmanager
def crypt(disks: Tuple[str, ...]) -> Iterator[str]:
    needs("dm-crypt", "/sys/class/misc/device-mapper")
    name = "writebackd_test_crypt"
    with tempfile.NamedTemporaryFile() as key:
        key.write(os.urandom(32))
        key.flush()
        tool("cryptsetup", "open", "--type=plain", "--cipher=aes-xts-plain64", "--key-size=256",
             f"--key-file={key.name}", f"/dev/{disks[0]}", name)
    try:
        yield mapped(name)
    finally:
        tool("cryptsetup", "close", name)


# Name -> what makes it, disks, copies of a block.
STACKS: Dict[str, Tuple[Callable[[Tuple[str, ...]], ContextManager[str]], int, int]] = {
    "plain": (plain, 1, 1), "raid10": (raid10, 4, 2), "lvm": (lvm, 2, 1), "crypt": (crypt, 1, 1),
}  # fmt: skip


@contextlib.contextmanager
def stack_of(kind: str, fstype: str) -> Iterator[Stack]:
    """One of STACKS with a filesystem; taken down whatever happens."""
    make, count, copies = STACKS[kind]
    home = Path(tempfile.mkdtemp(prefix="writebackd-test-"))
    try:
        with contextlib.ExitStack() as inside:
            each_mb = SIZE_MB * copies // count
            disks = tuple(inside.enter_context(loop_device(home / f"disk{n}", each_mb))
                          for n in range(count))
            device = inside.enter_context(make(disks))
            mountpoint = inside.enter_context(
                mounted(device, fstype, home / "mnt", *MOUNT_OPTIONS.get(fstype, ())))
            # Not stat's st_dev, which on btrfs is a subvolume's.
            devno = run("findmnt", "--noheadings", "--output", "MAJ:MIN", str(mountpoint)).strip()
            leaves = tuple(Path(f"/sys/block/{disk}/dev").read_text().strip() for disk in disks)
            yield Stack(Scratch(device, devno, mountpoint, home), leaves, copies)
    finally:
        home.rmdir()
