# SPDX-License-Identifier: GPL-2.0-or-later
"""Programs that write out for a drain: sync(1), blockdev(8), and dmsetup(8) for dm-writecache.

They run in children: syncfs(2) and the flush of a cache cannot be interrupted, and a process with a
thread in such a call does not end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from typing import Container, Dict, Iterator, List, Optional, Sequence

from writebackd.cli.status_screen import Answer
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.mounts import MOUNTINFO, parse_mountinfo

_FILES = KernelFiles()
_DEV, _BLOCK = Path("/dev"), Path("/sys/class/block")


class Child:
    """A program that writes something out; `of` names it for display."""

    def __init__(self, of: str, *argv: str) -> None:
        self._of, self._program, self._problem = of, argv[0], ""
        self._process: "Optional[subprocess.Popen[str]]" = None
        path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
        try:
            # In a session of its own: Ctrl-C is for this process.
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE, text=True, start_new_session=True,
                env={**os.environ, "PATH": path},
            )  # fmt: skip
        except OSError as error:
            self._problem = f"{of}: {self._program}: {error.strerror}"

    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def problem(self) -> str:
        """The error of a child that has ended; empty without one."""
        if self._process is not None and self._process.returncode and not self._problem:
            said = self._process.communicate()[1].strip().partition("\n")[0]
            said = said or f"{self._program} ended with {self._process.returncode}"
            self._problem = said if self._of in said else f"{self._of}: {said}"
        return self._problem

    def leave(self) -> None:
        """Stop waiting for it; it ends once the kernel lets it."""
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._process.terminate()


@contextlib.contextmanager
def interrupted_later() -> Iterator[None]:
    """Delay Ctrl-C to the end of the block, when everything started can be ended.

    No mask: children would inherit it.  Raises KeyboardInterrupt.  Where a shell has it ignored
    (`drain &` in a script), it stays so.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
    came: List[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


def is_mounted(mount: str, devno: str) -> bool:
    """Whether the path leads to this filesystem: another mount may hide it.

    Follows the path as the kernel does, from mount to mount. open(2) would do the same, but wait
    for ever if a server on the way is gone.
    """
    above = [
        (number, parent, each)
        for line in (_FILES.try_read(MOUNTINFO) or "").split("\n") for each in parse_mountinfo(line)
        if f"{mount}/".startswith(f"{each.mountpoint.rstrip('/')}/")
        for number, parent in [line.split(" ", 2)[:2]]
    ]  # fmt: skip
    numbers = {number for number, _, _ in above}
    st_dev = ""
    mounts = [each for each in above if each[1] == each[0] or each[1] not in numbers]
    while mounts:
        at, _, mounted = min(mounts, key=lambda each: len(each[2].mountpoint))
        st_dev = mounted.st_dev
        mounts = [each for each in above if each[1] == at != each[0]]
    return st_dev == devno


def sync_filesystem(mount: str) -> Child:
    return Child(mount, "sync", "-f", "--", mount)


def sync_all() -> Child:
    """Sync the host; sync(2) reports no errors."""
    return Child("all disks", "sync")


def sync_nodes(name: str) -> List[Child]:
    """Sync a disk and its partitions; does nothing if /dev lacks one of them.

    Pages of a node are apart from those of the filesystem on it. fsync(2) writes the former;
    BLKFLSBUF the latter, wherever it is mounted, but tells no errors of it since Linux 6.6.
    """
    kernel = name.replace("/", "!")
    parts = sorted(path.parent.name for path in (_BLOCK / kernel).glob("*/partition"))
    nodes = [_DEV / each.replace("!", "/") for each in (kernel, *parts)]
    if not all(map(os.path.exists, nodes)):
        return []
    return [
        Child(name, *program, *map(str, nodes))
        for program in (("blockdev", "--flushbufs"), ("sync", "--"))
    ]


def flush(rows: Sequence[Answer], begun: Container[str]) -> Dict[str, Child]:
    """By its disk the flush of each dm-writecache behind the devices of `status`, but for `begun`.

    The flush returns when the cache's content is on the disk below (process_flush_mesg()).
    """
    disks: List[str] = [
        said["disk"] for row in rows for said in row["write_cache"]["reported"]
        if said["source"] == "dm-writecache" and said.get("disk") is not None
    ]  # fmt: skip
    children = {}
    for disk in [each for each in dict.fromkeys(disks) if each not in begun]:
        with contextlib.suppress(OSError, ValueError):  # it is gone
            major, minor = (_BLOCK / disk / "dev").read_text().strip().split(":")
            children[disk] = Child(
                disk, "dmsetup", "message", "-j", major, "-m", minor, "0", "flush"
            )  # fmt: skip
    return children
