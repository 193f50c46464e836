# SPDX-License-Identifier: GPL-2.0-or-later
"""Brings a modelled RAID disk up and takes it down again, whatever happened meanwhile.

    nbdkit (raid_disk.so) -> nbdfuse -> loop device -> filesystem

`python3 -m tests.lab.rig clean`, at the top of the tree, removes what a killed run left.
"""

from __future__ import annotations

import argparse
import atexit
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, List, Optional, Sequence, Tuple, Type

from . import host
from .disks import Disk
from .remains import Remains, RigError, check_own, names, path_with_sbin, run

TOP = Path(__file__).resolve().parents[2]
PLUGIN = TOP / "build/lab/raid_disk.so"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# The ext4 options keep the kernel from initialising tables in the background later.
MKFS = {
    "xfs": ["mkfs.xfs", "-q", "-f", "-K"],
    "ext4": ["mkfs.ext4", "-q", "-F", "-N", "65536",
             "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"],
    "btrfs": ["mkfs.btrfs", "-q", "-f", "-K"],
}
PACKAGES = {
    "nbdkit": "nbdkit", "nbdfuse": "libnbd-bin", "fusermount3": "fuse3",
    "losetup": "mount", "mount": "mount", "umount": "mount", "make": "make",
    "setpriv": "util-linux",
    "mkfs.xfs": "xfsprogs", "mkfs.ext4": "e2fsprogs", "mkfs.btrfs": "btrfs-progs",
}


def check_tools(fs: str) -> None:
    """RigError with the command that installs what is missing."""
    if os.geteuid():
        raise RigError("a disk model needs root: run this with sudo")
    if fs not in MKFS:
        raise RigError(f"no filesystem {fs}: take one of {', '.join(MKFS)}")
    tools = [tool for tool in PACKAGES if not tool.startswith("mkfs.")] + [MKFS[fs][0]]
    missing = {PACKAGES[tool] for tool in tools
               if shutil.which(tool, path=path_with_sbin()) is None}
    if not Path("/usr/include/nbdkit-plugin.h").exists():
        missing.add("nbdkit-plugin-dev")
    if not (shutil.which("cc") or shutil.which("clang")):
        missing.add("gcc")
    if missing:
        raise RigError("packages are missing: apt-get install " + " ".join(sorted(missing)))
    if not Path("/dev/fuse").exists():
        raise RigError("no /dev/fuse: modprobe fuse, or allow FUSE in this container")


def wait_for(path: Path, process: subprocess.Popen[bytes], log: Path, wait_s: float = 10) -> None:
    """Until the process has made the file; RigError with its log if it does not."""
    deadline = time.monotonic() + wait_s
    while not path.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            said = log.read_text().strip() or "nothing"
            raise RigError(f"{process.args!r} did not make {path}; it said: {said}")
        time.sleep(0.02)


class Rig:
    """A context manager; inside it `device` is a block device with `mountpoint` on it."""

    def __init__(self, name: str, fs: str = "xfs", disk: Optional[Disk] = None,
                 protected: bool = True) -> None:
        """protected: the write cache is battery-backed, so the kernel is told of none.

        Then the block layer strips flushes, as it does on a real RAID controller.
        """
        self.name = name
        self.fs = fs
        self.disk = disk or Disk()
        self.protected = protected
        self.device = ""
        self.remains = Remains(name)
        self.mountpoint = self.remains.mountpoint
        self.directory = self.remains.directory
        self._handlers: List[Tuple[signal.Signals, Any]] = []
        self._children: List[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Rig:
        check_tools(self.fs)
        if not self.remains.take():
            raise RigError(f"a rig named {self.name} is in use by another process")
        if self.remains.state:
            self.remains.drop()
            raise RigError(f"a killed run left a rig named {self.name}: remove it with "
                           "python3 -m tests.lab.rig clean")
        atexit.register(self.close)
        self._catch_signals()
        try:
            self._bring_up()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()

    def close(self) -> None:
        """Take everything down and put the host's settings back; harmless to repeat."""
        if not self.remains.taken:
            return
        ignore_signals()
        try:
            self.remains.remove()
        finally:
            for child in self._children:
                child.poll()  # reaps it
            self.remains.drop()
            atexit.unregister(self.close)
            for number, handler in self._handlers:
                signal.signal(number, handler)

    def spawn(self, argv: Sequence[str], role: str = "LOAD", **options: Any
              ) -> subprocess.Popen[bytes]:
        """A process that dies with the rig, in a session of its own: Ctrl-C is not for it.

        Loads die with this process too, even if it is killed.  The disk does not, or
        what is mounted on it would be left with errors instead of being unmounted.
        """
        name, _, token = self.remains.mark(role).partition("=")
        env = dict(options.pop("env", os.environ), PATH=path_with_sbin())
        env[name] = token
        if role == "LOAD":
            argv = ["setpriv", "--pdeathsig", "TERM", "--", *argv]
        options.setdefault("stdin", subprocess.DEVNULL)
        child: subprocess.Popen[bytes] = subprocess.Popen(argv, env=env, start_new_session=True,
                                                          **options)
        self._children.append(child)
        return child

    def _catch_signals(self) -> None:
        self._handlers = [(number, signal.getsignal(number)) for number in SIGNALS]
        for number in SIGNALS:
            signal.signal(number, interrupt)

    def _bring_up(self) -> None:
        self.remains.record(token=secrets.token_hex(8), fs=self.fs, disk=asdict(self.disk),
                            limits=host.read_limits())
        run("make", "--silent", "-C", str(TOP / "tests/lab/disk"), f"BUILD={PLUGIN.parent}")
        for directory in (self.mountpoint, self.remains.disk_file.parent):
            directory.mkdir(parents=True)
        socket = self.directory / "nbd.sock"
        self._start_disk(socket, "nbdkit", "--foreground", "--unix", str(socket),
                         str(PLUGIN), *self.disk.args())
        self._start_disk(self.remains.disk_file, "nbdfuse", str(self.remains.disk_file),
                         "--unix", str(socket))
        run("losetup", "--find", "--direct-io=on", str(self.remains.disk_file))
        self.device, = host.loops_on(self.remains.disk_file)
        self.remains.record(knobs={str(path): host.read_knob(path)
                                   for path in host.knob_files(self.device)})
        if self.protected:
            Path(f"/sys/block/{self.device}/queue/write_cache").write_text("write through")
        self._make_filesystem(f"/dev/{self.device}")

    def _start_disk(self, makes: Path, *argv: str) -> None:
        log = self.directory / f"{argv[0]}.log"
        with open(log, "wb") as output:
            process = self.spawn(argv, "DISK", stdout=output, stderr=output)
        wait_for(makes, process, log)

    def _make_filesystem(self, node: str) -> None:
        check_own(node)
        name, _, token = self.remains.mark("LOAD").partition("=")
        run(*MKFS[self.fs], node, env=dict(os.environ, **{name: token}))
        run("mount", "-t", self.fs, node, str(self.mountpoint))


def ignore_signals() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def interrupt(number: int, frame: Optional[FrameType]) -> None:
    """The first signal unwinds the stack; those after it must not cut the cleanup short."""
    ignore_signals()
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)


def clean(wanted: Sequence[str]) -> int:
    """Remove what killed runs left, all of it or the rigs named; the exit code."""
    code = 0
    for name in wanted or names():
        remains = Remains(name)
        if not remains.take():
            print(f"{name}: in use, left alone")
            continue
        try:
            remains.remove()
            print(f"{name}: removed")
        except RigError as error:
            print(error, file=sys.stderr)
            code = 1
        finally:
            remains.drop()
    return code


def main(argv: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python3 -m tests.lab.rig",
                                     description=__doc__.split("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("list", help="names of the rigs that are up or were left")
    verb = verbs.add_parser("clean", help="remove what killed runs left")
    verb.add_argument("name", nargs="*", help="only these")
    arguments = parser.parse_args(argv)
    if arguments.verb == "list":
        print("\n".join(names()))
        return 0
    if os.geteuid():
        print("cleaning up needs root: run this with sudo", file=sys.stderr)
        return 4
    return clean(arguments.name)


if __name__ == "__main__":
    sys.exit(main())
