# SPDX-License-Identifier: GPL-2.0-or-later
"""A rig as it is on disk: how to find and remove all of it, whoever made it.

That works without the run that made it, because each rig has a directory of its
own, because what may be changed on the host is written to a file before it is
changed, and because the processes carry the rig's mark in their environment.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import IO, Any, Callable, Dict, List, Optional

from . import host

LAB = Path("/run/writebackd-lab")
MARK = "WRITEBACKD_LAB"
SBIN = "/usr/local/sbin:/usr/sbin:/sbin"


class RigError(Exception):
    """Says what does not work and what to do about it."""


def path_with_sbin() -> str:
    return f"{os.environ.get('PATH', '/usr/bin:/bin')}:{SBIN}"


def run(*argv: str, env: Optional[Dict[str, str]] = None) -> str:
    """Standard output of a command; RigError with what it said when it fails."""
    env = dict(env or os.environ, PATH=path_with_sbin())
    done = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise RigError(f"{' '.join(argv)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout.strip()


def check_own(device: str) -> None:
    """RigError unless the device (/dev/loop3) is a disk that the lab made."""
    backing = host.backing_of(os.path.basename(device))
    if LAB not in Path(backing).parents:
        raise RigError(f"{device} is not a disk of the lab (behind it: "
                       f"{backing or 'no file'}): left alone")


class Remains:
    """One rig as it is on disk: finds and removes all of it, by the run itself or later."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.directory = LAB / name
        self.state_file = LAB / f"{name}.json"
        self.disk_file = self.directory / "fuse/disk"
        self.mountpoint = self.directory / "mnt"
        self.state: Dict[str, Any] = {}
        self._lock: Optional[IO[str]] = None

    def take(self) -> bool:
        """Become its owner; False while another process is.  The lock dies with its holder."""
        LAB.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = LAB / f"{self.name}.lock"
        lock = open(path, "w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            return False
        # The one we waited for may have removed the file that we hold the lock of.
        if not path.exists() or path.stat().st_ino != os.fstat(lock.fileno()).st_ino:
            lock.close()
            return False
        self._lock = lock
        if self.state_file.exists():
            self.state = json.loads(self.state_file.read_text())
        return True

    @property
    def taken(self) -> bool:
        return self._lock is not None

    def drop(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def record(self, **facts: Any) -> None:
        """Add to the state file, in one step and before what it tells of is done."""
        self.state.update(facts)
        new = self.state_file.with_suffix(".new")
        new.write_text(json.dumps(self.state, indent=1))
        new.rename(self.state_file)

    def mark(self, role: str) -> str:
        return f"{MARK}_{role}={self.state['token']}"

    def remove(self) -> None:
        """Everything, in an order in which no step waits for gigabytes of dirty pages.

        RigError tells what would not go; the state file stays then, for another try.
        """
        problems: List[str] = []
        if "token" in self.state:
            host.stop(self.mark("LOAD"), signal.SIGTERM, 5)
            # A stuck fsync ends when the dirty pages ahead of it are gone, so these go first.
            self._discard_data()
            host.stop(self.mark("LOAD"), signal.SIGKILL, 20)
        if "limits" in self.state:
            self._try(problems, lambda: host.write_limits(self.state["limits"]))
        self._try(problems, self._unmount)
        host.write_knobs(self.state.get("knobs", {}))
        self._try(problems, self._detach)
        self._try(problems, self._end_disk)
        if problems:
            raise RigError(f"could not remove all of {self.name}: " + "; ".join(problems))
        shutil.rmtree(self.directory, ignore_errors=True)
        self.state_file.unlink(missing_ok=True)
        (LAB / f"{self.name}.lock").unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # another rig is up
            LAB.rmdir()

    @staticmethod
    def _try(problems: List[str], step: Callable[[], None]) -> None:
        try:
            step()
        except (RigError, OSError) as error:
            problems.append(str(error))

    def _mounted(self, mountpoint: Path) -> bool:
        return any(at == str(mountpoint) for _, at in host.mounts())

    def _discard_data(self) -> None:
        """Truncate every file on the disk: its dirty pages are dropped, not written."""
        sources = [source for source, at in host.mounts() if at == str(self.mountpoint)]
        if not sources:
            return
        check_own(sources[-1])
        for directory, _, names in os.walk(self.mountpoint):
            for name in names:
                with contextlib.suppress(OSError):
                    os.truncate(os.path.join(directory, name), 0)

    def _unmount(self) -> None:
        deadline = time.monotonic() + 20
        while self._mounted(self.mountpoint):
            try:
                run("umount", str(self.mountpoint))
            except RigError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def _detach(self) -> None:
        deadline = time.monotonic() + 10
        while True:
            loops = host.loops_on(self.disk_file)
            if not loops:
                return
            if time.monotonic() > deadline:
                raise RigError(f"{', '.join(loops)} cannot be detached: something holds it open")
            for loop in loops:
                with contextlib.suppress(RigError):
                    run("losetup", "--detach", f"/dev/{loop}")
            time.sleep(0.05)

    def _end_disk(self) -> None:
        fuse = self.disk_file.parent
        if self._mounted(fuse):
            try:
                run("umount", str(fuse))
            except RigError:
                run("umount", "--lazy", str(fuse))
        if "token" in self.state:
            left = host.stop(self.mark("DISK"), signal.SIGTERM, 3)
            left = left and host.stop(self.mark("DISK"), signal.SIGKILL, 3)
            if left:
                raise RigError(f"processes {left} do not end")


def names() -> List[str]:
    return sorted(path.stem for path in LAB.glob("*.json"))
