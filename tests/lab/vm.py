# SPDX-License-Identifier: GPL-2.0-or-later
"""The lab in a virtual machine: another kernel, and if wanted another time.

    vm       emulated processors in real time: as noisy as the host
    virtual  time is counted in instructions of the one processor, and jumps ahead while
             that sleeps: the host's load has no part in it.  Runs are alike, not the
             same: microseconds differ, and a flooded disk makes much of little
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Callable, Optional, Sequence

from tests.vm import image
from tests.vm.fetch_kernel import KernelUnavailable, fetch
from tests.vm.machine import GuestFailed, Machine, MachineMissing, Result, check_host
from tests.vm.sealed import SealedMachine

from . import attach, rig
from .loads import KINDS
from .remains import RigError

WAYS = ("vm", "virtual")
SCALE = 0.1  # of bytes and bytes per second: an emulated page cache takes 70-300 MB/s
MEMORY = "2G"
MODULES = ("nbd", "fuse", "loop", "xfs", "ext4", "btrfs", "mq-deadline", "kyber-iosched", "bfq")
# What the image of the virtual way holds besides the checkout: the rig's and the loads' programs.
PACKAGES = ("python3", "python3-psutil", "python3-pyroute2", "procps", "iproute2",
            *rig.PACKAGES.values(), *attach.Nbd.TOOLS.values(), *attach.Loop.TOOLS.values(),
            *(package for kind in KINDS.values() for package in kind.TOOLS.values()))


def run(argv: Sequence[str], way: str, out: Path, timeout: float,
        progress: Optional[Callable[[str], None]] = None) -> Result:
    """Run a command of this checkout in a guest; RigError when that cannot be done.

    out: directory that the command may write to, under the same path.
    timeout: seconds of wall time, the boot included.
    progress: called with what the command prints, as it does; in virtual time only.
    """
    if way not in WAYS:
        raise RigError(f"no way {way}: take one of {', '.join(WAYS)}")
    rig.build_model()  # a guest has no compiler
    try:
        check_host()
        guest = Machine(fetch(), memory=MEMORY, modules=MODULES)
        if way == "vm":
            return guest.run(argv, timeout, share=out)
        with tempfile.TemporaryDirectory(prefix="writebackd-lab-") as name:
            root = Path(name) / "root"
            image.make(root, PACKAGES, [out])
            sealed = SealedMachine(guest.kernel, root, MEMORY, MODULES)
            return sealed.run(argv, timeout, share=out, env={"PYTHONHASHSEED": "0"},
                              progress=progress)
    except (MachineMissing, KernelUnavailable, GuestFailed) as error:
        raise RigError(str(error)) from None
