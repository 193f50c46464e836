# SPDX-License-Identifier: GPL-2.0-or-later
"""An emulated arm64 machine: Debian's kernel on a root filesystem of Debian's arm64 packages."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from . import image
from .fetch_kernel import fetch, fetch_root
from .guest_tests import Run
from .image_machine import ImageMachine
from .machine import ACCELERATOR, SCRATCH_BYTES

ARCHITECTURE = "arm64"
SUITE = "bookworm"  # kernel 6.1
PACKAGES = (
    "base-files", "base-passwd", "busybox-static", "coreutils", "dash", "e2fsprogs", "fio", "grep",
    "kmod", "libbpf1", "mount", "procps", "python3", "python3-psutil", "python3-pyroute2",
    "python3-pytest", "python3-rich", "sed", "util-linux", "xfsprogs",
)  # fmt: skip
SCRATCH = "/dev/vdc"
# In front of the command: TMPDIR on a disk on which loop devices with direct IO work.
ON_SCRATCH = (
    "sh", "-c", f'mkfs.ext4 -q {SCRATCH} && mkdir /run/scratch && mount {SCRATCH} /run/scratch &&'
    ' TMPDIR=/run/scratch exec "$@"', "sh",
)  # fmt: skip

CASES = (
    "tests/kernel/test_kernel_types.py", "tests/kernel/test_probe.py",
    "tests/vm/inside/arm64_cases.py",
)  # fmt: skip
MODULES = ("loop", "xfs", "btrfs", "overlay")
# Without tests/conftest.py and hypothesis, as in test_systemd.py.
PYTEST = ("python3", "-m", "pytest", "-q", "-s", "-rs", "--durations=10", "--noconftest",
          "-o", "cache_dir=/tmp/cache")  # fmt: skip
# This kernel takes no fentry (no CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS).
SETTINGS = {"WRITEBACKD_VM": "1", "WRITEBACKD_EXPECT_KPROBE": "1", "WRITEBACKD_EXPECT_TP_BTF": "1"}
# Seconds of wall time.
TIME_LIMIT = 1800.0


@dataclass(frozen=True)
class Arm64Machine(ImageMachine):
    """write_rate: bytes a second of the scratch disk."""

    write_rate: int = 20_000_000

    QEMU = "qemu-system-aarch64"
    PACKAGE = "qemu-system-arm"
    STORAGE = ("virtio_pci", "virtio_blk", "ext4")
    DISKS = ("vda", "vdb", "vdc")
    OUTPUT = "ttyS0"
    # Python keeps there what it compiles; QEMU throws it away after the run.
    ROOT_OPTIONS = "rw"

    def hardware(self, work: Path) -> list[str]:
        image.sparse(work / "scratch", SCRATCH_BYTES)
        throttled = f"cache=unsafe,throttling.bps-write={self.write_rate}"
        return ["-machine", "virt", "-cpu", "cortex-a57", "-smp", "2", "-m", self.memory,
                *ACCELERATOR, "-append", "console=ttyAMA0 quiet panic=-1",
                *_disk("root", self.root, "snapshot=on"),
                *_disk("share", work / "share", "cache=unsafe"),
                *_disk("scratch", work / "scratch", throttled),
                "-serial", f"file:{work / 'console'}",
                "-chardev", f"file,id=output,path={work / 'output'}",
                "-device", "pci-serial,chardev=output"]

    def busybox(self) -> Path:
        return root() / "bin/busybox"


def root() -> Path:
    """The packages' files, for image.make_from(). Raises KernelUnavailable."""
    return fetch_root(PACKAGES, SUITE, ARCHITECTURE)


def kernel(suite: str = SUITE) -> Path:
    """Image of the suite's kernel. Raises KernelUnavailable."""
    return fetch(suite=suite, architecture=ARCHITECTURE)


def run_cases(share: Path) -> Run:
    """What the guest's tests did. Raises KernelUnavailable, MachineMissing, GuestFailed."""
    Arm64Machine.check_tools()
    image_kernel, report = kernel(), share / "result.xml"
    with tempfile.TemporaryDirectory(prefix="writebackd-arm64-") as work:
        disk = Path(work) / "root"
        image.make_from(root(), disk, [share])
        command = [*ON_SCRATCH, *PYTEST, f"--junitxml={report}", *CASES]
        result = Arm64Machine(image_kernel, disk, modules=MODULES).run(
            command, TIME_LIMIT, share=share, env={**SETTINGS, "PYTHONPATH": "agent"})
    assert report.exists(), f"pytest did not start in the guest:\n{result.output}"
    return result, report.read_text()


def _disk(name: str, file: Path, options: str) -> list[str]:
    return ["-drive", f"if=none,id={name},format=raw,file={file},{options}",
            "-device", f"virtio-blk-pci,drive={name}"]
