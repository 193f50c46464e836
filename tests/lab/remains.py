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
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any, Callable, Dict, List, Optional, Sequence

from . import host

LAB = Path("/run/writebackd-lab")
MARK = "WRITEBACKD_LAB"
CGROUPS = Path("/sys/fs/cgroup")
SUFFIXES = (".json", ".new", ".lock")  # of the files beside its directory
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
    """RigError unless the device (/dev/loop3, /dev/nbd0) is a disk that the lab made."""
    name = os.path.basename(device)
    backing = host.backing_of(name)
    client = host.nbd_client(name)
    ours = any(entry.startswith(f"{MARK}_DISK=".encode()) for entry in host.environ(client))
    if not ours and LAB not in Path(backing).parents:
        behind = backing or (f"process {client}" if client else "no file")
        raise RigError(f"{device} is not a disk of the lab (behind it: {behind}): left alone")


class Remains:
    """One rig as it is on disk: finds and removes all of it, by the run itself or later."""

    def __init__(self, name: str) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
            raise RigError(f"{name!r} is no name for a rig: letters, digits, - and _ are")
        self.name = name
        self.directory = LAB / name
        self.state_file = LAB / f"{name}.json"
        self.disk_file = self.directory / "fuse/disk"
        self.mountpoint = self.directory / "mnt"
        self.socket = self.directory / "nbd.sock"
        # A slice, since the agent paces nothing that is in none where systemd runs.
        self.cgroup = CGROUPS / f"writebackd-lab-{name}.slice"
        self.state: Dict[str, Any] = {}
        self._lock: Optional[IO[str]] = None

    def take(self) -> bool:
        """Become its owner; False while another process is.  The lock dies with its holder."""
        # 711: PostgreSQL, which never runs as root, has to get to its directory on a rig.
        LAB.mkdir(mode=0o711, parents=True, exist_ok=True)
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
        with contextlib.suppress(FileNotFoundError):
            self.state = read_state(self.state_file)
        return True

    @property
    def taken(self) -> bool:
        return self._lock is not None

    @property
    def ground(self) -> Optional[Path]:
        """The directory that it made on a disk of the host, while that is the same one."""
        path, *made = self.state.get("ground", [""])
        with contextlib.suppress(OSError):
            found = os.lstat(path)
            if stat.S_ISDIR(found.st_mode) and [found.st_dev, found.st_ino] == made:
                return Path(path)
        return None

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
        """What its processes carry in their environment; without a token only its beginning."""
        return f"{MARK}_{role}={self.name}.{self.state.get('token', '')}"

    def run(self, *argv: str) -> str:
        """A command that makes something of the rig: `remove` waits for it or ends it."""
        name, _, token = self.mark("LOAD").partition("=")
        return run(*argv, env=dict(os.environ, **{name: token}))

    def remove(self, limits: bool = True) -> None:
        """Everything, in an order in which no step waits for gigabytes of dirty pages.

        RigError tells what would not go; the state file stays then, for another try.
        limits: put them back too; False while another rig of this run needs them.
        """
        problems: List[str] = []
        host.stop(self.mark("LOAD"), signal.SIGTERM, 5)
        with contextlib.suppress(RigError):  # tried again below
            self._unmount(keep=[self.mountpoint], wait_s=1)
        # A stuck fsync ends when the dirty pages ahead of it are gone, so these go first.
        self._discard_data()
        host.stop(self.mark("LOAD"), signal.SIGKILL, 20)
        if limits and "limits" in self.state:
            self._try(problems, lambda: host.write_limits(self.state["limits"]))
        self._try(problems, self.remove_cgroups)
        self._try(problems, self._unmount)
        host.write_knobs(self.state.get("knobs", {}))
        self._try(problems, self._detach)
        self._try(problems, self._end_disk)
        if problems:
            raise RigError(f"could not remove all of {self.name}: " + "; ".join(problems))
        if self.ground is not None:
            shutil.rmtree(self.ground, ignore_errors=True)
        shutil.rmtree(self.directory, ignore_errors=True)
        for suffix in SUFFIXES:
            (LAB / f"{self.name}{suffix}").unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # another rig is up
            LAB.rmdir()

    @staticmethod
    def _try(problems: List[str], step: Callable[[], None]) -> None:
        try:
            step()
        except (RigError, OSError) as error:
            problems.append(str(error))

    def _mounts(self) -> List[Path]:
        """Where something is mounted for it, the last first; not the disk's own file."""
        found = [Path(at) for _, at in host.mounts()]
        return [at for at in reversed(found)
                if self.directory in at.parents and at != self.disk_file.parent]

    def _discard_data(self) -> None:
        """Truncate every file on the disk: its dirty pages are dropped, not written."""
        sources = [source for source, at in host.mounts() if at == str(self.mountpoint)]
        if self.ground is None:
            try:
                check_own(sources[-1])
            except (IndexError, RigError):  # not mounted, or the disk is dead
                return
        for directory, _, names in os.walk(self.ground or self.mountpoint):
            for name in names:
                path = os.path.join(directory, name)
                with contextlib.suppress(OSError):
                    if not os.path.islink(path):
                        os.truncate(path, 0)

    def remove_cgroups(self) -> None:
        """Its groups, without the processes in them, and what they changed above themselves."""
        deadline = time.monotonic() + 5
        for path, _, _ in os.walk(self.cgroup, topdown=False):
            while True:
                for pid in Path(path, "cgroup.procs").read_text().split():
                    with contextlib.suppress(OSError):  # it has ended
                        (CGROUPS / "cgroup.procs").write_text(pid)
                try:
                    os.rmdir(path)
                    break
                except OSError:  # one that has ended is on its way out
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)
        for name, value in reversed(self.state.get("cgroup", [])):
            with contextlib.suppress(OSError):
                Path(name).write_text(value)
        if "cgroup" in self.state:
            self.record(cgroup=[])

    def _unmount(self, keep: Sequence[Path] = (), wait_s: float = 20) -> None:
        deadline = time.monotonic() + wait_s
        while True:
            mounts = [at for at in self._mounts() if at not in keep]
            if not mounts:
                return
            try:
                # --force ends what waits for a FUSE server that does not answer.
                force = ["--force"] if mounts[0] != self.mountpoint else []
                run("umount", *force, str(mounts[0]))
            except RigError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def devices(self) -> List[str]:
        """Block devices that its model is behind."""
        found = host.loops_on(self.disk_file) + host.nbds_of(self.mark("DISK"))
        # Where the FUSE mount is gone already, a loop device's file has lost its path with it.
        mine = self.state.get("device", "")
        if not found and host.backing_of(mine) == f"/{self.disk_file.name}":
            found = [mine]
        return found

    def _detach(self) -> None:
        deadline = time.monotonic() + 10
        while True:
            devices = self.devices()
            if not devices:
                return
            if time.monotonic() > deadline:
                raise RigError(f"{', '.join(devices)} cannot be detached: "
                               "something holds it open")
            for device in devices:
                how = ["nbd-client", "-d"] if device.startswith("nbd") else ["losetup", "--detach"]
                with contextlib.suppress(RigError):
                    run(*how, f"/dev/{device}")
            time.sleep(0.05)

    def _end_disk(self) -> None:
        fuse = self.disk_file.parent
        if any(at == str(fuse) for _, at in host.mounts()):
            try:
                run("umount", str(fuse))
            except RigError:
                run("umount", "--lazy", str(fuse))
        left = host.stop(self.mark("DISK"), signal.SIGTERM, 3)
        left = left and host.stop(self.mark("DISK"), signal.SIGKILL, 3)
        if left:
            raise RigError(f"processes {left} do not end")


def read_state(path: Path) -> Dict[str, Any]:
    try:
        state = json.loads(path.read_text())
        if isinstance(state, dict):
            return state
    except ValueError:
        pass
    # It is written in one step, so somebody else did this.
    print(f"{path} is damaged: what vm.dirty_* and queue/* were is not known, look at them",
          file=sys.stderr)
    return {}


def names() -> List[str]:
    """Rigs that are up or of which anything was left."""
    return sorted({path.stem for path in LAB.glob("*") if path.suffix in SUFFIXES}
                  | {path.name for path in LAB.glob("*") if path.is_dir()})
