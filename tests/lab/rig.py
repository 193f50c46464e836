# SPDX-License-Identifier: GPL-2.0-or-later
"""Brings a modelled RAID disk up and takes it down again, whatever happened meanwhile.

    nbdkit (raid_disk.so) -> block device (attach.py) -> filesystem

Several may be up at once in one process, as nested with-statements.

`make bench-clean` removes what a killed run left.
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
from types import FrameType
from typing import Any, Callable, ClassVar, List, Optional, Sequence, Tuple

from . import host
from .attach import Attachment, choose
from .disks import Control, Disk
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
    "nbdkit": "nbdkit", "mount": "mount", "umount": "mount", "make": "make",
    "setpriv": "util-linux",
    "mkfs.xfs": "xfsprogs", "mkfs.ext4": "e2fsprogs", "mkfs.btrfs": "btrfs-progs",
}


def check_tools(fs: str, attachment: Attachment) -> None:
    """RigError with the command that installs what is missing."""
    if fs not in MKFS:
        raise RigError(f"no filesystem {fs}: take one of {', '.join(MKFS)}")
    needed = {tool: package for tool, package in PACKAGES.items()
              if not tool.startswith("mkfs.") or tool == MKFS[fs][0]}
    needed.update(attachment.TOOLS)
    missing = {package for tool, package in needed.items()
               if shutil.which(tool, path=path_with_sbin()) is None}
    if not PLUGIN.exists():
        if not Path("/usr/include/nbdkit-plugin.h").exists():
            missing.add("nbdkit-plugin-dev")
        if not (shutil.which("cc") or shutil.which("clang")):
            missing.add("gcc")
    if missing:
        raise RigError("packages are missing: apt-get install " + " ".join(sorted(missing)))


def build_model() -> None:
    """Compile the model, if something changed."""
    run("make", "--silent", "-C", str(TOP / "tests/lab/disk"), f"BUILD={PLUGIN.parent}")


def wait_until(done: Callable[[], bool], process: subprocess.Popen[bytes], log: Path,
               wait_s: float = 10) -> None:
    """RigError with the process's log if it ends, or takes too long, before that."""
    deadline = time.monotonic() + wait_s
    while not done():
        if process.poll() is not None or time.monotonic() > deadline:
            said = log.read_text().strip() or "nothing"
            raise RigError(f"{process.args!r} did not do its part; it said: {said}")
        time.sleep(0.02)


class Interrupts:
    """What a signal does while any rig is up: it unwinds the stack, once.

    While a rig is taken down one more must not cut that short: it is kept until then.
    One that was ignored before (nohup) stays so.
    """

    def __init__(self) -> None:
        self._rigs = 0
        self._before: List[Tuple[signal.Signals, Any]] = []
        self._unwinding = False
        self._kept: Optional[int] = None

    def begin(self) -> None:
        """A rig comes up."""
        if not self._rigs:
            self._unwinding = False
            handlers = [(number, signal.getsignal(number)) for number in SIGNALS]
            self._before = [pair for pair in handlers if pair[1] is not signal.SIG_IGN]
            self._set(self._unwind)
        self._rigs += 1

    def hold(self) -> None:
        """A rig begins to be taken down."""
        self._set(self._keep)

    def end(self) -> None:
        """It is down."""
        self._rigs -= 1
        if not self._rigs:
            for number, handler in self._before:
                signal.signal(number, handler)
        elif not self._unwinding:
            self._set(self._unwind)
        kept, self._kept = self._kept, None
        if kept is not None and not self._unwinding:
            signal.raise_signal(kept)

    def _set(self, handler: Callable[[int, Optional[FrameType]], None]) -> None:
        for number, _ in self._before:
            signal.signal(number, handler)

    def _unwind(self, number: int, frame: Optional[FrameType]) -> None:
        self._unwinding = True
        self.hold()
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    def _keep(self, number: int, frame: Optional[FrameType]) -> None:
        self._kept = number


class Rig:
    """A context manager; inside it `device` is a block device with `mountpoint` on it."""

    _up: ClassVar[List[Rig]] = []  # in this process, the outermost first
    _interrupts: ClassVar[Interrupts] = Interrupts()

    def __init__(self, name: str, fs: str = "xfs", disk: Optional[Disk] = None) -> None:
        self.name = name
        self.fs = fs
        self.disk = disk or Disk()
        self.device = ""
        self.remains = Remains(name)
        self.mountpoint = self.remains.mountpoint
        self.directory = self.remains.directory
        self.control = Control(self.directory / "control.sock")
        self._children: List[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Rig:
        if os.geteuid():
            raise RigError("a disk model needs root: run this with sudo")
        self._check()
        if not self.remains.take():
            raise RigError(f"a rig named {self.name} is in use by another process")
        if self.remains.state or self.directory.exists():
            self.remains.drop()
            raise RigError(f"a killed run left a rig named {self.name}: remove it with "
                           "make bench-clean")
        self._up.append(self)
        self._interrupts.begin()
        atexit.register(self.close)
        try:
            self._bring_up()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Take everything down and put the host's settings back; harmless to repeat.

        The limits come back with the last rig: those that are still up run under them.
        """
        if not self.remains.taken:
            return
        self._interrupts.hold()
        self.control.close()
        try:
            self.remains.remove(limits=len(self._up) == 1)
        finally:
            for child in self._children:
                child.poll()  # reaps it
            self.remains.drop()
            atexit.unregister(self.close)
            self._up.remove(self)
            self._interrupts.end()

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

    def _check(self) -> None:
        """RigError for what this host lacks, before anything is made."""
        check_tools(self.fs, choose())

    def _record(self, **facts: Any) -> None:
        """What `remains` needs, before it is made."""
        # All rigs of this process have the limits as the outermost found them, so that
        # `clean` may take them in any order.
        limits = self._up[0].remains.state.get("limits") or host.read_limits()
        self.remains.record(token=secrets.token_hex(8), fs=self.fs, limits=limits, **facts)

    def _bring_up(self) -> None:
        attachment = choose()
        self._record(disk=asdict(self.disk))
        build_model()
        self.mountpoint.mkdir(parents=True)
        self._start_disk(self.remains.socket.exists, "nbdkit", "--foreground", "--unix",
                         str(self.remains.socket), str(PLUGIN), *self.disk.args(self.control.path))
        self.device = attachment.attach(self.remains, self._start_disk)
        self.remains.record(device=self.device, knobs=host.knobs(self.device))
        self._tell_kernel()
        node = f"/dev/{self.device}"
        check_own(node)
        self.remains.run(*MKFS[self.fs], node)
        self.remains.run("mount", "-t", self.fs, node, str(self.mountpoint))

    def _start_disk(self, done: Callable[[], bool], *argv: str) -> None:
        log = self.directory / f"{argv[0]}.log"
        with open(log, "wb") as output:
            process = self.spawn(argv, "DISK", stdout=output, stderr=output)
        wait_until(done, process, log)

    def _tell_kernel(self) -> None:
        """What the kernel is to believe of the disk.

        Where the write cache is protected it is told of none: then the block layer
        strips flushes, as it does on a real RAID controller.
        """
        wanted = {"write_cache": "write through" if self.disk.protected else "write back",
                  "rotational": str(int(self.disk.rotational))}
        for name, value in wanted.items():
            path = Path(f"/sys/block/{self.device}/queue/{name}")
            if host.read_knob(path) != value:
                path.write_text(value)


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
    parser.add_argument("verb", choices=("clean",), help="remove what killed runs left")
    parser.add_argument("name", nargs="*", help="of a rig; all of them without it")
    arguments = parser.parse_args(argv)
    if os.geteuid():
        print("cleaning up needs root: run this with sudo", file=sys.stderr)
        return 4
    return clean(arguments.name)


if __name__ == "__main__":
    sys.exit(main())
