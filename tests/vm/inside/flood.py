# SPDX-License-Identifier: GPL-2.0-or-later
"""A flood on the guest's slow disk, a thread beside it that syncs, and what holds it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, ContextManager, Dict, Iterator

import pytest

from tests.kernel.fault_rig import limits, limits_kept, wait_for
from tests.kernel.test_daemon import Running

MIB = 1 << 20
SCRATCH = Path(os.environ.get("TMPDIR", "/tmp"))
FLOOD = "while :; do dd if=/dev/zero of=$0/flood bs=1M count=400 conv=notrunc; done"
SYNCS = """
import os, sys, time
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
while True:
    os.pwrite(file, b"x" * 4096, 0)
    (os.fsync, os.fdatasync)[int(time.monotonic()) % 2](file)
    time.sleep(0.02)
"""


# Of a device's row: what the probe alone, and the law by it, can tell.
SEEN = ("fsync_p99_s", "sync_rate", "drain_rate")
LOOKS = 40
LIMIT_MOST = 64 * MIB  # 3 s of the disk, and in the end it is a tenth of a second's
BESIDE = 16 * MIB  # what the kernel lets in beside the limit


def scratch_disk_name() -> str:
    number = SCRATCH.stat().st_dev
    return Path(os.path.realpath(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")).name


@pytest.fixture
def daemon() -> Iterator[Callable[..., Running]]:
    """Starts one; in the end it is gone, and the limits are as they were.

    Its files are where they are on a host: not on the disk that is flooded.
    """
    with limits_kept(), contextlib.ExitStack() as stack:
        own = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/run")))

        def start(*options: str) -> Running:
            running = Running(own, "--interval", "1", *options, within_s=90.0)
            stack.callback(running.end)
            return running

        yield start


@contextlib.contextmanager
def background(*argv: str, **options: Any) -> Iterator[None]:
    started = subprocess.Popen(
        argv, stderr=subprocess.DEVNULL, start_new_session=True, **options)
    try:
        yield
    finally:
        os.killpg(started.pid, 9)
        started.wait()


def flood() -> ContextManager[None]:
    """Of the scratch disk."""
    return background("sh", "-c", FLOOD, str(SCRATCH))


def dirty_bytes() -> int:
    time.sleep(0.2)
    wanted = ("nr_dirty", "nr_writeback")
    lines = (line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    return sum(int(value) for name, value in lines if name in wanted) * os.sysconf("SC_PAGE_SIZE")


def is_held() -> bool:
    limit = limits().dirty_bytes
    return limit < LIMIT_MOST and dirty_bytes() < limit + BESIDE


def hold_a_flood(running: Running) -> Dict[str, Any]:
    """A limit comes, dirty pages come down to it and stay, fsync latency is seen; the status."""
    name = scratch_disk_name()
    with flood(), background(sys.executable, "-c", SYNCS, str(SCRATCH / "synced")):
        wait_for(lambda: limits().dirty_bytes, 90.0, "for a limit")
        wait_for(lambda: running.device(name).get("fsync_p99_s"), 60.0, "for a latency")
        wait_for(lambda: running.device(name).get("drain_rate"), 90.0, "for the drain rate")
        # What was dirty before takes 20 s, and a sync behind it as long. Of these, ext4 may count
        # none as written for some seconds, until its journal has committed: 132 MiB on 6.1.
        wait_for(is_held, 90.0, "for dirty pages to come down to the limit")
        rows = []
        for _ in range(LOOKS):
            time.sleep(0.25)
            rows.append(running.device(name))
        limit = limits().dirty_bytes
        most = max(dirty_bytes() for _ in range(20))
        status = running.status()
    # In a tick in which no sync ends there is no latency to tell.
    whole = [each for each in rows if all(each[figure] for figure in SEEN)]
    slowest = max((each["fsync_p99_s"] for each in whole), default=0.0)
    print(f"\nlimit {limit / MIB:.0f} MiB, dirty at most {most / MIB:.0f} MiB; {len(whole)} of"
          f" {LOOKS} looks saw syncs end, p99 at most {slowest * 1e3:.0f} ms")  # fmt: skip
    print(rows[-1], status["probe"], status["self"], sep="\n")
    assert 0 < limit < LIMIT_MOST and most < limit + BESIDE
    assert len(whole) > LOOKS / 2, [{figure: each[figure] for figure in SEEN} for each in rows]
    return status
