# SPDX-License-Identifier: GPL-2.0-or-later
"""Two ways from the socket that a disk model serves to a block device of this kernel.

    nbd   nbd-client -> the kernel's own nbd driver, where there is one
    loop  nbdfuse -> loop device, wherever there is FUSE

remains.py takes either down, without the run that made it.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any, Callable, ClassVar, Dict, Protocol, Tuple, Type, Union

from . import host
from .remains import Remains, RigError, path_with_sbin


class Start(Protocol):
    """Starts a process of the disk and waits until `done` holds."""

    def __call__(self, done: Callable[[], bool], *argv: str) -> Any: ...


class Loop:
    """A loop device on the file that nbdfuse makes of the model."""

    TOOLS: ClassVar[Dict[str, str]] = {"nbdfuse": "libnbd-bin", "fusermount3": "fuse3",
                                       "losetup": "mount"}

    @staticmethod
    def lacks() -> str:
        """What this host would need for it; "" for nothing."""
        return "" if Path("/dev/fuse").exists() else (
            "no /dev/fuse: modprobe fuse, or allow FUSE in this container")

    @staticmethod
    def attach(remains: Remains, start: Start) -> str:
        """The new device's name (loop3)."""
        file = remains.disk_file
        file.parent.mkdir()
        start(file.exists, "nbdfuse", str(file), "--unix", str(remains.socket))
        remains.run("losetup", "--find", "--direct-io=on", str(file))
        device, = host.loops_on(file)
        return device


class Nbd:
    """A device of the kernel's nbd driver: no FUSE, no loop device, fewer threads in the way."""

    TOOLS: ClassVar[Dict[str, str]] = {"nbd-client": "nbd-client"}

    @staticmethod
    def lacks() -> str:
        """What this host would need for it; "" for nothing."""
        if not Path("/sys/block/nbd0").exists():
            # Where the module is a file the devices come with the first use of the driver.
            modprobe = shutil.which("modprobe", path=path_with_sbin())
            if modprobe is None or subprocess.run([modprobe, "-q", "nbd"],
                                                  stdin=subprocess.DEVNULL).returncode:
                return "this kernel has no nbd driver"
        return "" if shutil.which("nbd-client", path=path_with_sbin()) else (
            "no nbd-client: apt-get install nbd-client")

    @staticmethod
    def attach(remains: Remains, start: Start) -> str:
        """The new device's name (nbd0)."""
        for path in sorted(Path("/sys/block").glob("nbd*"), key=lambda path: int(path.name[3:])):
            device = path.name
            if host.nbd_client(device) == 0:
                # With netlink the device would belong to no process, and so to no rig.
                start(lambda: bool(host.nbds_of(remains.mark("DISK"))), "nbd-client", "-nofork",
                      "-nonetlink", "-unix", str(remains.socket), f"/dev/{device}")
                return device
        raise RigError("all nbd devices are in use: rmmod nbd; modprobe nbd nbds_max=64")


Attachment = Union[Type[Loop], Type[Nbd]]
KINDS: Tuple[Attachment, ...] = (Nbd, Loop)


def choose() -> Attachment:
    """The best that this host has; RigError when there is none."""
    lacks = [kind.lacks() for kind in KINDS]
    for kind, missing in zip(KINDS, lacks):
        if not missing:
            return kind
    raise RigError("; ".join(lacks))
