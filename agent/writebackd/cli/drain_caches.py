# SPDX-License-Identifier: GPL-2.0-or-later
"""What a drain writes out with, and how much the write caches below hold.

Programs run in children: syncfs(2) and the flush of a cache cannot be interrupted, and a process
with a thread in such a call does not end.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from pathlib import Path
from typing import Container, Dict, List, Mapping, Optional, Sequence, Set

from writebackd import formats
from writebackd.cli.output import Answer, clean
from writebackd.estimate.cache_size import FILL_FRESH_S
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.host_facts import read_disks
from writebackd.kernel.mounts import MOUNTINFO, parse_mountinfo
from writebackd.paths import CACHES
from writebackd.storage.backing_watch import is_stale
from writebackd.storage.report_file import read
from writebackd.storage.tool_output import ToolError
from writebackd.types.storage import CACHES_OF_THE_KERNEL

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


# The modules of those caches on dm that writebackd-caches.service reads.
_MODULES = ("dm_writecache", "dm_cache")
# A cache with no more than that in it counts as empty: a filesystem in use is never still.
_EMPTY_SHARE, _EMPTY_BYTES = 0.02, 1 << 20


def behind_controllers(rows: Sequence[Answer]) -> Set[str]:
    """Devices with a volume of a RAID controller, even if no tool reports it."""
    volumes = {disk.name for disk in read_disks(_FILES) if disk.cache == "controller"}
    return {row["name"] for row in rows if volumes.intersection(row["leaves"])}


def are_caches_unread() -> bool:
    """Whether kernel caches are in use and no report says how much they hold."""
    used = [each for each in _FILES.listdir("/sys/block") if each.startswith("bcache")]
    for module in _MODULES:
        here = f"/sys/module/{module}"
        # A dm-cache policy holds its module even without a cache.
        if int(_FILES.try_read(f"{here}/refcnt") or 0) > len(_FILES.listdir(f"{here}/holders")):
            used.append(module)
    if not used:
        return False
    try:
        report = read(_FILES.path(CACHES))
    except (OSError, ToolError):
        return True
    return is_stale(report, _FILES, time.clock_gettime(time.CLOCK_BOOTTIME), FILL_FRESH_S)


def _is_known(said: Answer) -> bool:
    """Whether the dirty data in the cache is known; a write-through cache has none."""
    return said["dirty_bytes"] is not None or said["mode"] == "write-through"


class Cache:
    """The write caches behind a device, as in `status`, and the results of flushing them."""

    def __init__(
        self, row: Answer, flushes: Mapping[str, Child], has_controller: bool, is_unread: bool
    ) -> None:
        """`flushes` have ended; by the disk of the cache.

        `is_unread`: it may be, or be on, a kernel cache that no report covers.
        """
        cache = row["write_cache"]
        self.name: str = row["name"]
        self._kind = cache["kind"] or ("controller" if has_controller else "behind it")
        said = [each for each in cache["reported"] if each["dirty_bytes"] is not None]
        # A row may be only about an array with background work.
        self._is_one_unread = any(
            (each["mode"] or each["capacity_bytes"] or each["protection"]) and not _is_known(each)
            for each in cache["reported"]
        ) or (has_controller and not any(
            _is_known(each) for each in cache["reported"]
            if each["source"] not in CACHES_OF_THE_KERNEL
        )) or is_unread  # fmt: skip
        flushed = [
            flushes[each["disk"]] for each in cache["reported"] if each.get("disk") in flushes
        ]
        self.flush_failed = any(each.problem() for each in flushed)
        # Of the oldest reading; None: no source reads it.
        self.seen_s: Optional[float] = min((each["time_s"] for each in said), default=None)
        self._capacity = cache["capacity_bytes"] or 0.0
        self.left: Optional[float] = None  # bytes; None: not known
        self._how = ""
        if said:
            self.left = float(sum(each["dirty_bytes"] for each in said))
            self._capacity = float(sum(each["capacity_bytes"] or 0 for each in said))
            if self.seen_s is not None:
                self._how = f", as of {time.strftime('%H:%M:%S', time.localtime(self.seen_s))}"
        elif cache["fill"] is not None and self._capacity:
            self.left, self._how = cache["fill"] * self._capacity, ", estimated"
        # Nothing that would hold writes back is known of.
        self.none = self.left is None and not self._is_one_unread
        self._is_read = bool(said)  # not estimated
        self.verified = self.none or (self._is_read and not self._is_one_unread)
        # What came in after it was flushed is not waited for.
        flushed_or_unknown = self.left is None or len(flushed) == len(said) > 0
        self.is_empty = (flushed_or_unknown and not self.flush_failed) or (
            self.left is not None
            and self.left <= max(_EMPTY_BYTES, _EMPTY_SHARE * self._capacity)
        )

    def words(self) -> str:
        if self.left is None:
            return f"{clean(self.name)}: write cache ({self._kind}): fill not known, not verified"
        of = f" of {formats.size(self._capacity)}" if self._capacity else ""
        another = "; another below: fill not known" if self._is_read else ""
        unverified = "" if self.verified else f"{another}, not verified"
        return (
            f"{clean(self.name)}: write cache ({self._kind}): {formats.size(self.left)}{of} left"
            f"{self._how}{unverified}"
        )
