# SPDX-License-Identifier: GPL-2.0-or-later
"""A flood on the guest's slow disk, a thread beside it that syncs, and what holds it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List

import pytest

from tests.kernel.fault_rig import limits, limits_kept, wait_for
from tests.kernel.test_daemon import Running
from writebackd.cli.client import NoAnswer

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


def scratch_disk_name() -> str:
    number = SCRATCH.stat().st_dev
    return Path(os.path.realpath(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")).name


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Starts one; in the end it is gone, and the limits are as they were."""
    with limits_kept(), contextlib.ExitStack() as stack:

        def start(*options: str) -> Running:
            running = Running(tmp_path, "--interval", "1", *options, within_s=90.0)
            stack.callback(running.end)
            return running

        yield start


@contextlib.contextmanager
def load() -> Iterator[None]:
    """A flood on the disk, and a thread beside it that syncs."""
    programs = (["sh", "-c", FLOOD, str(SCRATCH)],
                [sys.executable, "-c", SYNCS, str(SCRATCH / "synced")])  # fmt: skip
    started = [subprocess.Popen(argv, stderr=subprocess.DEVNULL, start_new_session=True)
               for argv in programs]  # fmt: skip
    try:
        yield
    finally:
        for each in started:
            os.killpg(each.pid, 9)
            each.wait()


def dirty_bytes() -> int:
    time.sleep(0.2)
    wanted = ("nr_dirty", "nr_writeback")
    lines = (line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    return sum(int(value) for name, value in lines if name in wanted) * os.sysconf("SC_PAGE_SIZE")


def answer(running: Running) -> Dict[str, Any]:
    """Its status; where a host has much else to do an emulated daemon may need some seconds."""
    told: List[Dict[str, Any]] = []

    def ask() -> bool:
        try:
            told.append(running.status())
        except NoAnswer:
            return False
        return True

    wait_for(ask, 60.0, "for an answer")
    return told[0]


def hold_a_flood(running: Running) -> Dict[str, Any]:
    """A limit comes, dirty pages stay near it, fsync latency is seen; the last status."""
    name = scratch_disk_name()

    def device() -> Dict[str, Any]:
        return next((row for row in answer(running)["devices"] if row["name"] == name), {})

    with load():
        wait_for(lambda: limits().dirty_bytes, 90.0, "for a limit")
        wait_for(lambda: device().get("fsync_p99_s"), 60.0, "for a latency")
        wait_for(lambda: device().get("drain_rate"), 90.0, "for the drain rate")
        time.sleep(10.0)
        limit = limits().dirty_bytes
        most = max(dirty_bytes() for _ in range(20))
        row, status = device(), answer(running)
    print(f"\nlimit {limit / MIB:.0f} MiB, dirty at most {most / MIB:.0f} MiB\n{row}")
    print(status["probe"], status["self"])
    assert 0 < limit < 256 * MIB and most < 2 * limit + 32 * MIB
    figures = {name: row[name] for name in ("fsync_p99_s", "sync_rate", "drain_rate")}
    assert all(value is not None and value > 0 for value in figures.values()), figures
    return status
