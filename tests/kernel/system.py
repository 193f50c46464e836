# SPDX-License-Identifier: GPL-2.0-or-later
"""systemd as the first process of a container on the running kernel, with the installed units.

The root is the host's, and what is written to it stays in memory. Of /proc/sys and sysfs the
container may change what the units may: /proc/sys/vm and /sys/devices; the rest of them is
read-only for it. Not so what else is mounted below /sys (debugfs, tracefs, bpf): that is the
host's as it is, and held back by the units alone. It has no disks in /dev, no network, a subtree
of the cgroups, and of the distribution's units only those that are named here.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Iterator

import psutil

from tests.kernel.fault_rig import wait_for

SYSTEMD = Path("/lib/systemd/systemd")
CGROUP = "writebackd-test-system"
# What a service waits for, and the journal. No udevd, sysctl, modules, getty, timers of packages.
UNITS = (
    "basic.target", "sysinit.target", "local-fs.target", "swap.target", "sockets.target",
    "timers.target", "paths.target", "slices.target", "shutdown.target", "umount.target",
    "systemd-journald.service", "systemd-journald.socket", "systemd-journald-dev-log.socket",
)  # fmt: skip
TARGET = "inside.target"
_TARGET = """[Unit]
Description=What this container was started for
Requires=basic.target
Wants=systemd-journald.service
After=basic.target
"""
# A directory for the mounts, then a command. A cgroup v2 of its own that no mount of the host's
# is needed for, or changed by: where v1 is in use v2 may be mounted anywhere.
_CGROUP = f"""
set -eu
mount -t cgroup2 none "$1"
cd "$1"
if [ -d {CGROUP} ]; then find {CGROUP} -depth -type d -exec rmdir {{}} +; fi
"""
_ENTER_CGROUP = _CGROUP + f"""
mkdir {CGROUP}
echo $$ >{CGROUP}/cgroup.procs
cd /
umount "$1"
shift
exec "$@"
"""
_BOOT = f"""
set -eu
top=$1 installed=$2
mount -t tmpfs -o mode=755 none "$top"
mkdir "$top/upper" "$top/work" "$top/root" "$top/nothing" "$top/units"
# On top of the tree, not below it: two layers may not lie in one filesystem within each other.
cp -R "$installed/." "$top/upper"
mount -t overlay -o "lowerdir=/,upperdir=$top/upper,workdir=$top/work" none "$top/root"
cd "$top/root"
mount -t proc none proc
mount --bind proc/sys proc/sys
mount --bind proc/sys/vm proc/sys/vm
mount -o remount,bind,ro proc/sys
mount --rbind /sys sys
! mountpoint -q sys/fs/cgroup || umount -R sys/fs/cgroup
mount --bind sys/devices sys/devices
mount -o remount,bind,ro sys
mount -t cgroup2 none sys/fs/cgroup
for each in run tmp dev; do mount -t tmpfs -o mode=755 none $each; done
mkdir dev/shm dev/pts
mknod -m 666 dev/null c 1 3
mknod -m 666 dev/zero c 1 5
mknod -m 666 dev/full c 1 7
mknod -m 666 dev/random c 1 8
mknod -m 666 dev/urandom c 1 9
mknod -m 666 dev/tty c 5 0
# PrivateDevices= makes the same for a unit, and finds ptmx missing otherwise.
mount -t devpts -o newinstance,ptmxmode=666 none dev/pts
ln -s pts/ptmx dev/ptmx
cp usr/lib/systemd/system/writebackd* "$top/units"
sed -i /^ConditionVirtualization=/d "$top"/units/writebackd*
for each in {" ".join(UNITS)}; do cp usr/lib/systemd/system/$each "$top/units"; done
cat >"$top/units/{TARGET}"
mount --bind "$top/units" usr/lib/systemd/system
for each in etc/systemd/system etc/systemd/system.control usr/local/lib/systemd/system \\
        usr/lib/systemd/system-generators etc/systemd/system-generators \\
        usr/local/lib/systemd/system-generators usr/lib/systemd/system-preset; do
    [ ! -d $each ] || mount --bind "$top/nothing" $each
done
rm -rf etc/writebackd var/lib/writebackd
mkdir -p etc/writebackd/policies.d/all.conf.d
pivot_root . .
umount -l .
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin setpriv \\
    --bounding-set=-sys_boot,-sys_time,-sys_module \\
    {SYSTEMD} --system --unit={TARGET} --log-target=journal
"""


class System:
    """A container that has booted."""

    def __init__(self, pid: int) -> None:
        """`pid`: of its systemd, on the host."""
        self._pid = pid
        self.root = Path(f"/proc/{pid}/root")

    def run(self, *argv: str) -> str:
        """Standard output of a command inside; AssertionError with its stderr when it fails."""
        done = subprocess.run(
            ["nsenter", "--target", str(self._pid), "--all", *argv], cwd="/",
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
            start_new_session=True,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"},
        )  # fmt: skip
        assert done.returncode == 0, f"{' '.join(argv)}: {done.stdout}{done.stderr.strip()}"
        return done.stdout.strip()

    def show(self, unit: str, name: str) -> str:
        return self.run("systemctl", "show", "--value", "--property", name, unit)

    def pid_of(self, unit: str) -> int:
        """As it is numbered inside."""
        return int(self.show(unit, "MainPID"))

    def signal(self, name: str, *pids: int) -> None:
        """`pids` as they are numbered inside; a unit that does not run has 0."""
        # For kill(1) 0 is its own process group.
        assert pids and all(pid > 0 for pid in pids), f"no process to send {name} to: {pids}"
        self.run("kill", "-s", name, *map(str, pids))

    def journal(self, *units: str) -> str:
        self.run("journalctl", "--sync")
        chosen = [word for unit in units for word in ("-u", unit)]
        return self.run("journalctl", "--no-pager", "--output", "cat", *chosen)

    def write(self, name: str, text: str) -> None:
        """A file inside, in one step; `name` is absolute."""
        path = self.root / name[1:]
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(path.name + ".new")
        new.write_text(text)
        new.rename(path)


@contextlib.contextmanager
def booted(installed: Path) -> Iterator[System]:
    """A container with a tree of `make install` in it; with all its processes gone in the end."""
    with tempfile.TemporaryDirectory(prefix="writebackd-test-") as top, \
            tempfile.TemporaryFile() as said:
        # Whatever ends this process ends the first one inside, and so all of them.
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--propagation", "private",
             "sh", "-c", _ENTER_CGROUP, "sh", top,
             "unshare", "--fork", "--kill-child", "--pid", "--mount", "--propagation", "private",
             "--uts", "--ipc", "--net", "--cgroup",
             "sh", "-c", _BOOT, "sh", top, str(installed)],
            stdin=subprocess.PIPE, stdout=said, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            assert process.stdin is not None
            process.stdin.write(_TARGET.encode())
            process.stdin.close()

            def is_up() -> bool:
                said.seek(0)
                assert process.poll() is None, said.read().decode(errors="replace")
                for child in psutil.Process(process.pid).children():
                    # The first processes of the container end while they are looked at.
                    with contextlib.suppress(AssertionError, psutil.NoSuchProcess):
                        if child.name() == "systemd":
                            System(child.pid).run("systemctl", "is-active", TARGET)
                            return True
                return False

            wait_for(is_up, 30.0, "for systemd to boot")
            (first,) = psutil.Process(process.pid).children()
            yield System(first.pid)
        except BaseException:
            _end(process)
            # What went wrong first says more than what that has left behind.
            with contextlib.suppress(AssertionError):
                _remove_cgroup(top)
            raise
        _end(process)
        _remove_cgroup(top)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()


def _remove_cgroup(directory: str) -> None:
    """As soon as the processes inside are all gone."""
    def removed() -> bool:
        done = subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", _CGROUP, "sh",
             directory], stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return done.returncode == 0

    wait_for(removed, 10.0, "for the container's processes to end")


def why_not() -> str:
    """What is missing for a container here; empty where nothing is."""
    if os.geteuid() != 0:
        return "needs root"
    if not SYSTEMD.exists():
        return "systemd is missing: apt-get install systemd"
    if "\toverlay\n" not in Path("/proc/filesystems").read_text():
        return "this kernel has no overlay filesystem"
    return ""
