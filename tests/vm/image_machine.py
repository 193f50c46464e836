# SPDX-License-Identifier: GPL-2.0-or-later
"""Run a command under a kernel, on a root filesystem that is an image, in an emulated machine.

There are two kinds: one in virtual time (sealed.py), one of another architecture (arm64.py). The
directory for results is an image as well: made before the run and read back after it.
"""

from __future__ import annotations

import lzma
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from .fetch_kernel import CHECKOUT, SEARCH_PATH
from .image import format_image, sparse
from .machine import GuestFailed, MachineMissing, Result

TOOLS = {"busybox": "busybox-static", "modprobe": "kmod", "mkfs.ext4": "e2fsprogs",
         "debugfs": "e2fsprogs", "setpriv": "util-linux"}
SHARE_BYTES = 256 << 20

_INIT = """\
#!/bin/busybox sh
export PATH=/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
for module in $(cat /modules/order); do insmod /modules/$module; done
until {disks}; do sleep 0.1; done
{root}
share=$(findfs LABEL=share)
for at in {fresh}; do mount -t tmpfs $at /root/$at; done
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
_AS_IT_IS = "mount -t ext4 -o {options} $(findfs LABEL=root) /root"
_WRITABLE = """\
mkdir /lower /written
mount -t ext4 -o ro $(findfs LABEL=root) /lower
mount -t tmpfs written /written
mkdir /written/upper /written/work
mount -t overlay -o lowerdir=/lower,upperdir=/written/upper,workdir=/written/work root /root"""
# The script alone.
_SCRIPT = """\
mount -t cgroup2 cgroup2 sys/fs/cgroup
chroot . /bin/sh /run/command >dev/{output} 2>&1 <dev/null
echo $? >.{share}/exit-code
umount .{share}
poweroff -f
"""
# The script as a service, when systemd has booted.  The units of this host's admin and its
# filesystems are none of the guest's.
_SYSTEMD = """\
{units}
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
/bin/sh /run/command >/dev/{output} 2>&1 </dev/null
echo \\$? >{share}/exit-code
umount {share}
systemctl --force --force poweroff
END
exec switch_root . /lib/systemd/systemd
"""
SYSTEMD_APPEND = " systemd.unit=inside.service systemd.show_status=no fstab=no"


@dataclass(frozen=True)
class ImageMachine:
    """A kernel with the root filesystem and memory it is to be booted with.

    kernel: image with its modules beside it, as fetch() leaves them. root: image as image.py makes
    it; the checkout is in there. systemd: it boots first, with what the image has of it, and runs
    the command as a service; the modules are in /run/modules then. writable: a root of its own,
    with units and /var as they are, whose changes are in the guest's memory; needs the module
    overlay.
    """

    kernel: Path
    root: Path
    memory: str = "2G"
    modules: Sequence[str] = ()
    systemd: bool = False
    writable: bool = False

    QEMU: ClassVar[str]
    PACKAGE: ClassVar[str]  # Debian's, with QEMU
    STORAGE: ClassVar[Sequence[str]]  # modules by which the images are found
    DISKS: ClassVar[Sequence[str]]  # their devices
    OUTPUT: ClassVar[str]  # device for what the command prints
    ROOT_OPTIONS: ClassVar[str] = "ro"

    def hardware(self, work: Path) -> list[str]:
        """QEMU's options: images `root` and `work`/share, logs `work`/console and `work`/output."""
        raise NotImplementedError

    def busybox(self) -> Path:
        """What the guest's first program is."""
        return Path(which("busybox"))

    @classmethod
    def check_tools(cls) -> None:
        """Raise MachineMissing, naming the packages, when no such machine can be started here."""
        tools = {**TOOLS, cls.QEMU: cls.PACKAGE}
        missing = {package for tool, package in tools.items()
                   if shutil.which(tool, path=SEARCH_PATH) is None}
        if missing:
            raise MachineMissing("no virtual machines here: apt-get install "
                                 + " ".join(sorted(missing)))

    def run(self, argv: Sequence[str], timeout: float, *, share: Path,
            env: Mapping[str, str] | None = None,
            progress: Callable[[str], None] | None = None) -> Result:
        """Boot, run one command as root in the checkout, power off.

        timeout: seconds of wall time for all of it. share: directory that the command finds with
        its contents under the same path, and whose files are brought back, also when it ran out
        of time. progress: called with what the command prints, as it does.
        Raises MachineMissing, GuestFailed.
        """
        self.check_tools()
        share = share.absolute()
        with tempfile.TemporaryDirectory(prefix="writebackd-vm-") as name:
            work = Path(name)
            settings = [f"{key}={value}" for key, value in (env or {}).items()]
            command = ["env", "-C", str(CHECKOUT), *settings, *argv]
            self._pack_initrd(work, share, f"export LC_ALL=C.UTF-8\n{shlex.join(command)}\n")
            sparse(work / "share", SHARE_BYTES)
            format_image(work / "share", "share", share)
            started = time.monotonic()
            self._boot(work, timeout, progress or (lambda text: None))
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
        shutil.copy(self.busybox(), tree / "bin/busybox")
        host_busybox = which("busybox")
        for applet in _tool(host_busybox, "--list").split():
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
        disks = " && ".join(f"[ -b /dev/{name} ]" for name in self.DISKS)
        mounted = _AS_IT_IS.format(options=self.ROOT_OPTIONS)
        fresh, units = "run tmp var", "mount -t tmpfs units etc/systemd/system"
        if self.writable:
            mounted, fresh, units = _WRITABLE, "run tmp", ""
        (tree / "init").write_text(init.format(
            share=share, disks=disks, root=mounted, fresh=fresh, units=units, output=self.OUTPUT))
        (tree / "init").chmod(0o755)
        files = "\n".join(sorted(str(path.relative_to(tree)) for path in tree.rglob("*")))
        with open(work / "initrd", "wb") as packed:
            subprocess.run([host_busybox, "cpio", "-o", "-H", "newc"], cwd=tree, stdout=packed,
                           stderr=subprocess.DEVNULL, input=files.encode(), check=True)

    def _module_files(self) -> list[Path]:
        """In the order they have to be loaded in."""
        root = next(top for top in self.kernel.parents if (top / "lib/modules").is_dir())
        version = next((root / "lib/modules").iterdir()).name
        found: dict[Path, None] = {}
        for module in (*self.STORAGE, *self.modules):
            lines = _tool("modprobe", "-d", str(root), "-S", version, "--show-depends", module)
            for line in lines.splitlines():
                how, _, path = line.partition(" ")
                if how == "insmod":
                    found[Path(path.split()[0])] = None
        return list(found)

    def _boot(self, work: Path, timeout: float, progress: Callable[[str], None]) -> None:
        argv = [self.QEMU, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
                "-kernel", str(self.kernel), "-initrd", str(work / "initrd"),
                *self.hardware(work)]
        # timeout(1) is the limit and setpriv(1) the leash, as in machine.py.
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", "timeout", "--signal=KILL", f"{timeout:.0f}", *argv],
            env={**os.environ, "PATH": SEARCH_PATH}, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
        try:
            seen = 0
            while process.poll() is None:
                time.sleep(0.5)
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


def which(tool: str) -> str:
    found = shutil.which(tool, path=SEARCH_PATH)
    assert found is not None, tool
    return found


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
