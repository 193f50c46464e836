# SPDX-License-Identifier: GPL-2.0-or-later
"""bcache, dm-writecache and dm-cache on modelled disks, and what they say.

A disk takes 20 MB/s, its cache what it is given; both keep their blocks in memory.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from pathlib import Path
from typing import Callable, Dict, Iterator, Optional

from tests.kernel.fault_rig import FILES
from tests.kernel.scratch import run
from tests.vm.inside.rig import MIB, wait_for
from writebackd.control.destage import SECTOR
from writebackd.kernel import lever_files
from writebackd.paths import CACHES
from writebackd.storage.backing_watch import look_at_caches
from writebackd.storage.linux_storage import read_bcache
from writebackd.types.storage import Backing, Device

NULLB = Path("/sys/kernel/config/nullb")
BCACHE = Path("/sys/block/bcache0/bcache")
SET = BCACHE / "cache"
R = 20 * MIB  # what a disk takes in a second
FAST_MB, SLOW_MB = 128, 512
BUCKET = 64 << 10
# dmsetup would wait for udev, of which there is none.
os.environ["DM_DISABLE_UDEV"] = "1"


@contextlib.contextmanager
def disk(name: str, size_mb: int, rate: int = 0) -> Iterator[str]:
    """A disk in memory that takes `rate` bytes a second (0: all): its node."""
    if not NULLB.exists():
        run("mount", "-t", "configfs", "configfs", "/sys/kernel/config")
    here = NULLB / name
    here.mkdir()
    (here / "memory_backed").write_text("1")
    (here / "size").write_text(str(size_mb))
    if rate:
        (here / "mbps").write_text(str(rate // MIB))
    (here / "power").write_text("1")
    try:
        yield next(each for each in (f"/dev/{name}", f"/dev/nullb{index(here)}")
                   if Path(each).exists())  # fmt: skip
    finally:
        (here / "power").write_text("0")
        here.rmdir()


def index(disk: Path) -> str:
    return (disk / "index").read_text().strip()


@contextlib.contextmanager
def bcache() -> Iterator[str]:
    with disk("fast", FAST_MB) as fast, disk("slow", SLOW_MB, R) as slow:
        run("make-bcache", "--writeback", "-b", str(BUCKET), "-C", fast, "-B", slow)
        for each in (fast, slow):
            Path("/sys/fs/bcache/register").write_text(each)
        wait_for(lambda: SET.exists(), what="for bcache0")
        # All writes into the cache, as of a database: none is taken for a copy, nor for too slow.
        (BCACHE / "sequential_cutoff").write_text("0")
        (SET / "congested_write_threshold_us").write_text("0")
        try:
            yield "bcache0"
        finally:
            home = SET.resolve()
            (BCACHE / "stop").write_text("1")
            (home / "stop").write_text("1")
            wait_for(lambda: not (BCACHE.exists() or home.exists()), what="for bcache to end")


@contextlib.contextmanager
def mapped(table: str) -> Iterator[str]:
    """A device of the mapper: its kernel name."""
    run("dmsetup", "create", "cached", "--table", f"0 {SLOW_MB * MIB // SECTOR} {table}")
    try:
        yield run("dmsetup", "info", "-c", "--noheadings", "-o", "blkdevname", "cached")
    finally:
        run("dmsetup", "remove", "--retry", "cached")


@contextlib.contextmanager
def writecache() -> Iterator[str]:
    with disk("fast", FAST_MB) as fast, disk("slow", SLOW_MB, R) as slow:
        with mapped(f"writecache s {slow} {fast} 4096 2 high_watermark 60") as name:
            yield name


@contextlib.contextmanager
def dm_cache() -> Iterator[str]:
    with disk("meta", 16) as meta, disk("fast", FAST_MB) as fast, disk("slow", SLOW_MB, R) as slow:
        with mapped(f"cache {meta} {fast} {slow} 128 1 writeback smq 0") as name:
            yield name


def write(device: str, megabytes: int, times: int = 1) -> None:
    for _ in range(times):
        run("dd", "if=/dev/zero", f"of=/dev/{device}", "bs=64k", f"count={megabytes * 16}",
            "oflag=direct", "conv=nocreat")  # fmt: skip


@contextlib.contextmanager
def followed(device: str) -> Iterator[Callable[[], Optional[Backing]]]:
    """The program that reads caches, as it is installed, and what the daemon makes of it."""
    Path(CACHES).parent.mkdir(exist_ok=True)
    follower = subprocess.Popen(["/usr/bin/writebackd-raid", "--caches", "1"])
    devno = (Path("/sys/block") / device / "dev").read_text().strip()

    def seen() -> Optional[Backing]:
        now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        found, error = look_at_caches(FILES, [Device(device, devno, devno)], now_s, 0)
        assert error is None, error
        return next(iter(found), None)

    try:
        wait_for(seen, what="for the first reading", pause_s=1.0)
        yield seen
    finally:
        follower.terminate()
        follower.wait()
        Path(CACHES).unlink(missing_ok=True)


def settings() -> Dict[str, str]:
    return {name: (BCACHE / name).read_text().strip() for name in lever_files.NAMES}


def dirty_bytes() -> int:
    (found,) = read_bcache(FILES)
    assert found.dirty_bytes is not None
    return found.dirty_bytes
