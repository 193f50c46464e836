# SPDX-License-Identifier: GPL-2.0-or-later
"""The lab in a virtual machine: another kernel, and if wanted another time.

    vm       emulated processors in real time: as noisy as the host
    virtual  time is counted in instructions of the one processor, and jumps ahead while
             that sleeps: the same figures tomorrow, however busy the host is
"""

from __future__ import annotations

from pathlib import Path
from typing import Dict, Optional, Sequence

from tests.vm.fetch_kernel import KernelUnavailable, fetch
from tests.vm.machine import GuestFailed, Machine, MachineMissing, Result, check_host

from .remains import RigError

WAYS = ("vm", "virtual")
SCALE = 0.1  # of bytes and bytes per second: an emulated page cache takes 70-300 MB/s
MEMORY = "2G"
MODULES = ("nbd", "fuse", "loop", "xfs", "ext4", "btrfs", "mq-deadline", "kyber-iosched", "bfq")
# 2 ns for an instruction. sleep=off: a sleeping processor does not wait for the host's clock.
ICOUNT = ("-icount", "shift=1,sleep=off", "-rtc", "clock=vm")


def machine(way: str, kernel: Path) -> Machine:
    if way == "virtual":
        return Machine(kernel, cpus=1, memory=MEMORY, modules=MODULES, qemu_options=ICOUNT)
    if way == "vm":
        return Machine(kernel, cpus=2, memory=MEMORY, modules=MODULES)
    raise RigError(f"no way {way}: take one of {', '.join(WAYS)}")


def run(argv: Sequence[str], way: str, out: Path, timeout: float,
        kernel: Optional[str] = None, cwd: Optional[Path] = None) -> Result:
    """Run a command of this checkout in a guest; RigError when that cannot be done.

    out: directory that the command may write to, under the same path.
    timeout: seconds of wall time, the boot included.
    kernel: Debian package of the kernel, instead of the one that this release has.
    """
    try:
        check_host()
        guest = machine(way, fetch(kernel))
        environment: Dict[str, str] = {"PYTHONHASHSEED": "0"}
        return guest.run(argv, timeout, share=out, env=environment,
                         **({"cwd": cwd} if cwd else {}))
    except (MachineMissing, KernelUnavailable, GuestFailed) as error:
        raise RigError(str(error)) from None
