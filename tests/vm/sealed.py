# SPDX-License-Identifier: GPL-2.0-or-later
"""A virtual machine in virtual time that no device of the host reaches.

Time is counted in instructions of the one processor and jumps ahead while that sleeps. So whatever
answers when the host gets round to it, a disk or a file server, would take another time in each
run. This machine has no such device: its root filesystem and the directory for results are images
in its address space, and reading them is copying memory.
"""

from __future__ import annotations

import lzma
import os
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .fetch_kernel import CHECKOUT, SEARCH_PATH
from .image import format_image, sparse
from .machine import GuestFailed, MachineMissing, Result

TOOLS = {"qemu-system-x86_64": "qemu-system-x86", "busybox": "busybox-static", "modprobe": "kmod",
         "mkfs.ext4": "e2fsprogs", "debugfs": "e2fsprogs", "setpriv": "util-linux"}
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
STORAGE = ("nfit", "nd_pmem", "ext4")
SHARE_BYTES = 256 << 20

_INIT = """\
#!/bin/busybox sh
export PATH=/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
for module in $(cat /modules/order); do insmod /modules/$module; done
until [ -b /dev/pmem0 ] && [ -b /dev/pmem1 ]; do sleep 0.1; done
mount -t ext4 -o ro $(findfs LABEL=root) /root
share=$(findfs LABEL=share)
for at in run tmp var; do mount -t tmpfs $at /root/$at; done
for at in dev proc sys; do mount --move /$at /root/$at; done
cd /root
mkdir dev/shm dev/pts var/tmp var/log var/lib
mount -t tmpfs shm dev/shm
mount -t devpts pts dev/pts
mount -t tracefs tracefs sys/kernel/tracing
mount -t debugfs debugfs sys/kernel/debug
ifconfig lo up
mkdir -p .{share}
mount -t ext4 -o sync .$share .{share}
cp /command run/command
cut -d' ' -f1 proc/uptime >.{share}/booted
"""
# The script alone.
_SCRIPT = """\
mount -t cgroup2 cgroup2 sys/fs/cgroup
chroot . /bin/sh /run/command >dev/ttyS1 2>&1 <dev/null
echo $? >.{share}/exit-code
umount .{share}
poweroff -f
"""
# The script as a service, when systemd has booted.  The units of this host's admin and its
# filesystems are none of the guest's.
_SYSTEMD = """\
mount -t tmpfs units etc/systemd/system
cp -r /modules run/modules
mkdir -p run/systemd/system
cat >run/systemd/system/inside.service <<END
[Unit]
Description=What this machine was booted for
[Service]
Type=oneshot
ExecStart=/bin/sh /run/inside
TimeoutStartSec=infinity
END
cat >run/inside <<END
unset JOURNAL_STREAM NOTIFY_SOCKET
/bin/sh /run/command >/dev/ttyS1 2>&1 </dev/null
echo \\$? >{share}/exit-code
umount {share}
systemctl --force --force poweroff
END
exec switch_root . /lib/systemd/systemd
"""
_SYSTEMD_APPEND = " systemd.unit=inside.service systemd.show_status=no fstab=no"


@dataclass(frozen=True)
class SealedMachine:
    """A kernel with the root filesystem and memory it is to be booted with.

    kernel: image with its modules beside it, as fetch() leaves them. root: image as image.make()
    leaves it; the checkout is in there. systemd: it boots first, with what the image has of it, and
    runs the command as a service; the modules are in /run/modules then. shift: an instruction takes
    2 ** shift nanoseconds.
    """

    kernel: Path
    root: Path
    memory: str = "2G"
    modules: Sequence[str] = ()
    systemd: bool = False
    shift: int = NANOSECONDS_SHIFT

    def run(self, argv: Sequence[str], timeout: float, *, share: Path,
            env: Mapping[str, str] | None = None,
            progress: Callable[[str], None] | None = None,
            stop: threading.Event | None = None) -> Result:
        """Boot, run one command as root in the checkout, power off.

        timeout: seconds of wall time for all of it. share: directory that the command finds with
        its contents under the same path, and whose files are brought back, also when it ran out
        of time. progress: called with what the command prints, as it does. stop: ends it early once
        set, from another thread.
        Raises MachineMissing, GuestFailed.
        """
        check_tools()
        share = share.absolute()
        with tempfile.TemporaryDirectory(prefix="writebackd-vm-") as name:
            work = Path(name)
            settings = [f"{key}={value}" for key, value in (env or {}).items()]
            command = ["env", "-C", str(CHECKOUT), *settings, *argv]
            self._pack_initrd(work, share, f"export LC_ALL=C.UTF-8\n{shlex.join(command)}\n")
            sparse(work / "share", SHARE_BYTES)
            format_image(work / "share", "share", share)
            started = time.monotonic()
            self._boot(work, timeout, progress or (lambda text: None), stop or threading.Event())
            seconds = time.monotonic() - started
            output = (work / "output").read_text(errors="replace")
            console = (work / "console").read_text(errors="replace")
            found = work / "found"
            found.mkdir()
            _tool("debugfs", "-R", f"rdump / {found}", str(work / "share"))
            (found / "lost+found").rmdir()
            code, booted = (_take(found / each) for each in ("exit-code", "booted"))
            shutil.copytree(found, share, dirs_exist_ok=True)
        if code is None:
            why = "ran out of time" if seconds >= timeout else "ended early"
            raise GuestFailed(f"{self.kernel.name} {why} after {seconds:.0f} s of {timeout:.0f} s\n"
                              f"--- output\n{output[-4000:]}\n--- console\n{console[-4000:]}")
        return Result(int(code), output, console, seconds, float(booted or 0))

    def _pack_initrd(self, work: Path, share: Path, script: str) -> None:
        tree = work / "initrd.tree"
        for directory in ("bin", "modules", "dev", "proc", "sys", "root"):
            (tree / directory).mkdir(parents=True)
        busybox = shutil.which("busybox", path=SEARCH_PATH)
        assert busybox is not None
        shutil.copy(busybox, tree / "bin/busybox")
        for applet in _tool(busybox, "--list").split():
            if applet != "busybox":
                (tree / "bin" / applet).symlink_to("busybox")
        order = []
        for path in self._module_files():
            name, data = path.name, path.read_bytes()
            if path.suffix == ".xz":
                name, data = path.stem, lzma.decompress(data)
            (tree / "modules" / name).write_bytes(data)
            order.append(name)
        (tree / "modules/order").write_text("\n".join(order))
        (tree / "command").write_text(script)
        init = _INIT + (_SYSTEMD if self.systemd else _SCRIPT)
        (tree / "init").write_text(init.format(share=share))
        (tree / "init").chmod(0o755)
        files = "\n".join(sorted(str(path.relative_to(tree)) for path in tree.rglob("*")))
        with open(work / "initrd", "wb") as packed:
            subprocess.run([busybox, "cpio", "-o", "-H", "newc"], cwd=tree, stdout=packed,
                           stderr=subprocess.DEVNULL, input=files.encode(), check=True)

    def _module_files(self) -> list[Path]:
        """In the order they have to be loaded in."""
        root = next(top for top in self.kernel.parents if (top / "lib/modules").is_dir())
        version = next((root / "lib/modules").iterdir()).name
        found: dict[Path, None] = {}
        for module in (*STORAGE, *self.modules):
            lines = _tool("modprobe", "-d", str(root), "-S", version, "--show-depends", module)
            for line in lines.splitlines():
                how, _, path = line.partition(" ")
                if how == "insmod":
                    found[Path(path.split()[0])] = None
        return list(found)

    def _boot(self, work: Path, timeout: float, progress: Callable[[str], None],
              stop: threading.Event) -> None:
        argv = ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none",
                "-machine", "q35,nvdimm=on", "-cpu", CPU, "-smp", "1", "-no-reboot",
                "-icount", f"shift={self.shift},sleep=off", "-rtc", CLOCK, "-seed", SEED,
                "-m", f"{self.memory},slots=2,maxmem=64G",
                *_memory("root", self.root, "share=off,readonly=on", "unarmed=on"),
                *_memory("share", work / "share", "share=on"),
                "-serial", f"file:{work / 'console'}", "-serial", f"file:{work / 'output'}",
                "-kernel", str(self.kernel), "-initrd", str(work / "initrd"), "-append",
                APPEND + (_SYSTEMD_APPEND if self.systemd else "")]
        # timeout(1) is the limit and setpriv(1) the leash, as for the other machine.
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", "timeout", "--signal=KILL", f"{timeout:.0f}", *argv],
            env={**os.environ, "PATH": SEARCH_PATH}, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
        try:
            seen = 0
            while process.poll() is None and not stop.wait(0.5):
                seen += _report(work / "output", seen, progress)
            _report(work / "output", seen, progress)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
                process.wait()
        assert process.stderr is not None
        said = process.stderr.read().decode(errors="replace").strip()
        if process.returncode not in (0, 124, 137, -9):
            raise GuestFailed(f"qemu ended with {process.returncode}: {said}")


def check_tools() -> None:
    missing = {package for tool, package in TOOLS.items()
               if shutil.which(tool, path=SEARCH_PATH) is None}
    if missing:
        raise MachineMissing("no virtual machines here: apt-get install "
                             + " ".join(sorted(missing)))


def _memory(name: str, image: Path, backend: str, device: str = "") -> list[str]:
    """An image as persistent memory: the guest reads it without the host having a part in it."""
    size = image.stat().st_size
    return ["-object", f"memory-backend-file,id={name},{backend},mem-path={image},size={size}",
            "-device", ",".join(filter(None, [f"nvdimm,memdev={name}", device]))]


def _report(path: Path, seen: int, progress: Callable[[str], None]) -> int:
    """Pass on what was added since; the number of characters."""
    try:
        text = path.read_bytes()[seen:]
    except FileNotFoundError:
        return 0
    if text:
        progress(text.decode(errors="replace"))
    return len(text)


def _take(path: Path) -> str | None:
    try:
        text = path.read_text()
        path.unlink()
        return text.strip() or None
    except FileNotFoundError:
        return None


def _tool(*argv: str) -> str:
    done = subprocess.run(argv, env={**os.environ, "PATH": SEARCH_PATH, "LC_ALL": "C.UTF-8"},
                          stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise GuestFailed(f"{shlex.join(argv)}: {done.stderr.strip()}")
    return done.stdout
