# SPDX-License-Identifier: GPL-2.0-or-later
"""Run a command under another kernel, in a virtual machine on the host's own root filesystem.

virtme-ng boots the kernel with the host's root as a read-only 9p mount. Guest writes to /etc,
/usr, /var, /home, /opt, /srv, /tmp and the checkout go to a copy in the guest's memory; only the
exchange directory of a run is shared for writing. TMPDIR is on a scratch disk of the guest.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .fetch_kernel import CHECKOUT, SEARCH_PATH

# What virtme-ng 1.42 needs on the host besides itself: qemu, and busybox (static, which it tells
# with file) for the initramfs that loads a distribution kernel's 9p modules.
HOST_TOOLS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "file": "file",
    "modprobe": "kmod",
}
# virtme-ng makes these copy-on-write by itself; a second overlay inside one of them would only
# cost memory.
COPY_ON_WRITE = ("/etc", "/lib", "/home", "/opt", "/srv", "/usr", "/var", "/tmp")
# udev would load these in the guest for hardware no test uses; without them a boot took 12 s
# instead of 20.
UNUSED_MODULES = (
    "kvm_amd,kvm_intel,kvm,ahci,"
    "aesni_intel,ghash_clmulni_intel,sha1_ssse3,sha256_ssse3,sha512_ssse3"
)
# Overlay and tmpfs, which is all the guest's root offers, take no O_DIRECT and so no loop device
# with direct IO on top: temporary files go to a disk with a filesystem of its own.
SCRATCH = "scratch"
SCRATCH_BYTES = 8 << 30
FILESYSTEMS = ("xfs", "ext4", "btrfs", "loop")
# Processors take turns in one thread of the host. With a thread each, one of them may go on with a
# translation of code that the kernel has patched meanwhile, as it does for BPF's statistics: guests
# with 6.1 froze under a flood, four of four, and none this way.
ACCELERATOR = ("-accel", "tcg,thread=single")

_SCRIPT = """\
exec 2>&1
set -eu
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export LC_ALL=C.UTF-8
modprobe -a {modules}
mounted() {{ grep -q " $1 " /proc/mounts || mount -t "$2" "$2" "$1"; }}
mounted /sys/kernel/tracing tracefs
mounted /sys/kernel/debug debugfs
mounted /sys/fs/cgroup cgroup2
mkfs.ext4 -q /dev/disk/by-id/virtio-{scratch}
mkdir /run/{scratch}
mount /dev/disk/by-id/virtio-{scratch} /run/{scratch}
export TMPDIR=/run/{scratch}
cd {cwd}
cut -d' ' -f1 /proc/uptime >{share}/booted
set +e
{command}
echo $? >{share}/exit-code.tmp
mv {share}/exit-code.tmp {share}/exit-code
"""


class MachineMissing(Exception):
    """The host lacks a program that a virtual machine needs; the text names the package."""


class GuestFailed(Exception):
    """The guest ended without an exit code: it crashed, hung or did not boot."""


@dataclass(frozen=True)
class Result:
    """What a command left behind.

    seconds is wall time from power-on to power-off; booted_s the guest's uptime when the command
    began. output holds stdout and stderr in order, console the kernel's messages.
    """

    returncode: int
    output: str
    console: str
    seconds: float
    booted_s: float


@dataclass(frozen=True)
class Machine:
    """A kernel with the memory it is to be booted with, and two processors, or one if counted.

    kernel: image with its modules beside it, as fetch() leaves them. It is always emulated:
    /dev/kvm may be there and still hang the boot, and a result must not depend on that.
    write_rate: bytes a second of the scratch disk; without it, what the host gives.
    counted: its clock counts instructions, a nanosecond each, and jumps ahead while it sleeps. (Two
    processors, which take turns for some milliseconds of that time, did not boot.)
    """

    kernel: Path
    memory: str = "2G"
    modules: Sequence[str] = FILESYSTEMS
    write_rate: int | None = None
    counted: bool = False

    def run(
        self,
        argv: Sequence[str],
        timeout: float,
        *,
        share: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Result:
        """Boot, run one command as root in the checkout, power off.

        timeout: seconds for all of it; afterwards the machine is killed, as it is when this
        process ends before. share: directory the guest may write to, under the same path. Paths may
        hold no spaces, commas or equals signs (QEMU's and virtme-ng's own syntax).
        Raises MachineMissing, GuestFailed.
        """
        with tempfile.TemporaryDirectory(prefix="writebackd-vm-") as name:
            exchange = Path(name)
            settings = [f"{key}={value}" for key, value in (env or {}).items()]
            script = _SCRIPT.format(
                modules=shlex.join(self.modules),
                cwd=shlex.quote(str(CHECKOUT)),
                share=shlex.quote(name),
                scratch=SCRATCH,
                command=shlex.join(["env", *settings, *argv]),
            )
            # The command itself would go onto the kernel's command line, which ends at 2 KiB.
            (exchange / "run.sh").write_text(script)
            (exchange / SCRATCH).touch()
            os.truncate(exchange / SCRATCH, SCRATCH_BYTES)
            writable = [exchange] if share is None else [exchange, share.absolute()]
            started = time.monotonic()
            output, console = _boot(self._command(exchange, writable), timeout, exchange)
            seconds = time.monotonic() - started
            try:
                returncode = int((exchange / "exit-code").read_text())
            except FileNotFoundError:
                why = "ran out of time" if seconds >= timeout else "ended early"
                raise GuestFailed(
                    f"{self.kernel.name} {why} after {seconds:.0f} s of {timeout:.0f} s\n"
                    f"--- output\n{_tail(output)}\n--- console\n{_tail(console)}"
                ) from None
            booted_s = float((exchange / "booted").read_text())
        return Result(returncode, output, console, seconds, booted_s)

    def _command(self, exchange: Path, writable: Sequence[Path]) -> list[str]:
        command = [_vng(), "--verbose", "--run", str(self.kernel.absolute())]
        # 9p only: a virtiofsd that happens to be installed changes what the guest sees.
        command += ["--disable-kvm", "--disable-microvm", "--force-9p", "--user", "root"]
        command += ["--cpus", "1" if self.counted else "2"]
        command += ["--memory", self.memory, "--name", exchange.name]
        command += ["--append", f"module_blacklist={UNUSED_MODULES}"]
        if not any(_inside(CHECKOUT, Path(top)) for top in COPY_ON_WRITE):
            command += ["--overlay-rwdir", str(CHECKOUT)]
        for directory in writable:
            command += ["--rwdir", str(directory)]
        # Sparse, thrown away after the run: the host's disk need not see its flushes.
        drive = f"if=none,id=scratch,format=raw,file={exchange / SCRATCH},cache=unsafe"
        if self.write_rate is not None:
            drive += f",throttling.bps-write={self.write_rate}"
        device = f"virtio-blk-pci,drive=scratch,serial={SCRATCH}"
        options = [*ACCELERATOR, "-drive", drive, "-device", device]
        if self.counted:
            options += ["-icount", "shift=0,sleep=off"]
        command.append(f"--qemu-opts={shlex.join(options)}")
        return [*command, "--", f"sh {exchange}/run.sh"]


def check_host() -> None:
    """Raise MachineMissing, naming the packages, when no machine can be started here."""
    lacking = [package for tool, package in HOST_TOOLS.items() if not _which(tool)]
    if lacking:
        raise MachineMissing(f"no virtual machines here: apt-get install {' '.join(lacking)}")
    _vng()


def _vng() -> str:
    found = _which("vng")
    if found is None:
        raise MachineMissing("no virtual machines here: pip install virtme-ng")
    return found


def _which(program: str) -> str | None:
    return shutil.which(program, path=_path())


def _path() -> str:
    # vng starts virtme-run from the path; both sit beside the interpreter of the test run.
    return os.pathsep.join([os.path.dirname(sys.executable), SEARCH_PATH])


def _boot(command: Sequence[str], timeout: float, scratch: Path) -> tuple[str, str]:
    # timeout(1) is the limit and setpriv(1) the leash: a test run that is killed, which no handler
    # in this process survives, takes its machine along.
    # Pipes, not files: QEMU opens its output twice and truncates, so that files get garbled.
    leash = ["setpriv", "--pdeathsig", "TERM"]
    process = subprocess.Popen(
        [*leash, "timeout", "--signal=KILL", f"{timeout:.0f}", *command],
        env={**os.environ, "PATH": _path(), "TMPDIR": str(scratch)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        return process.communicate()
    finally:
        # Its own session is its own process group: nothing but this machine is in there.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _inside(path: Path, top: Path) -> bool:
    return top == path or top in path.parents


def _tail(text: str, lines: int = 40) -> str:
    return "\n".join(text.splitlines()[-lines:])
