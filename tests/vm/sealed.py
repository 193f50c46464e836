# SPDX-License-Identifier: GPL-2.0-or-later
"""A virtual machine in virtual time that no device of the host reaches.

Time is counted in instructions of the one processor and jumps ahead while that sleeps. So whatever
answers when the host gets round to it, a disk or a file server, would take another time in each
run. This machine has no such device: its root filesystem and the directory for results are images
in its address space, and reading them is copying memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .image_machine import SYSTEMD_APPEND, ImageMachine

NANOSECONDS_SHIFT = 1  # 2 ns for an instruction: a processor of 500 million in a second
# Here every step of a `rep movsb` is an instruction: copying bytes would take eight times as long
# as copying words, which is what the kernel does without these two (812 MB/s into the page cache
# instead of 211).
CPU = "max,-erms,-fsrm"
# Any date would do. The seed is that of all randomness QEMU gives to the guest.
CLOCK = "base=2026-01-01,clock=vm"
SEED = "1"
# No memory addresses that differ, and no work in the background of the boot.
APPEND = "console=ttyS0 quiet panic=-1 nokaslr norandmaps random.trust_cpu=on"


@dataclass(frozen=True)
class SealedMachine(ImageMachine):
    """shift: an instruction takes 2 ** shift nanoseconds."""

    shift: int = NANOSECONDS_SHIFT

    QEMU = "qemu-system-x86_64"
    PACKAGE = "qemu-system-x86"
    STORAGE = ("nfit", "nd_pmem", "ext4")
    DISKS = ("pmem0", "pmem1")
    OUTPUT = "ttyS1"

    def hardware(self, work: Path) -> list[str]:
        return ["-machine", "q35,nvdimm=on", "-cpu", CPU, "-smp", "1",
                "-icount", f"shift={self.shift},sleep=off", "-rtc", CLOCK, "-seed", SEED,
                "-m", f"{self.memory},slots=2,maxmem=64G",
                *_memory("root", self.root, "share=off,readonly=on", "unarmed=on"),
                *_memory("share", work / "share", "share=on"),
                "-serial", f"file:{work / 'console'}", "-serial", f"file:{work / 'output'}",
                "-append", APPEND + (SYSTEMD_APPEND if self.systemd else "")]


def _memory(name: str, image: Path, backend: str, device: str = "") -> list[str]:
    """An image as persistent memory: the guest reads it without the host having a part in it."""
    size = image.stat().st_size
    return ["-object", f"memory-backend-file,id={name},{backend},mem-path={image},size={size}",
            "-device", ",".join(filter(None, [f"nvdimm,memdev={name}", device]))]
