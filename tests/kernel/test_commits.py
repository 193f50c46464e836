# SPDX-License-Identifier: GPL-2.0-or-later
"""Commits, as the probe counts them, against what a program measured in write() and fsync()."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, Iterator

import pytest

from tests.kernel.fault_rig import VM, limits_kept
from tests.kernel.scratch import Scratch, scratch_disk
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.map_readers import Reading
from writebackd.kernel.probe import BpfProbe, object_image
from writebackd.types.samples import SyncSample

SECONDS = 6.0
# Seconds in write() and in fsync(), and commits.  With `threads` another thread syncs.
COMMITTER = """
import json, os, sys, threading, time
path, seconds, threads = sys.argv[1], float(sys.argv[2]), sys.argv[3] == "threads"
fd = os.open(path, os.O_RDWR | os.O_CREAT)
wanted, done = threading.Semaphore(0), threading.Semaphore(0)
writes, syncs, commits = 0.0, 0.0, 0

def sync():
    global syncs
    begun = time.monotonic()
    os.fdatasync(fd)
    syncs += time.monotonic() - begun

def keep_syncing():
    while True:
        wanted.acquire()
        sync()
        done.release()

if threads:
    threading.Thread(target=keep_syncing, daemon=True).start()
end = time.monotonic() + seconds
while time.monotonic() < end:
    begun = time.monotonic()
    os.pwrite(fd, b"c" * 4096, commits % 256 * 4096)
    writes += time.monotonic() - begun
    if threads:
        wanted.release()
        done.acquire()
    else:
        sync()
    commits += 1
print(json.dumps({"writes": writes, "syncs": syncs, "commits": commits}))
"""


@pytest.fixture(scope="module")
def disk() -> Iterator[Scratch]:
    with scratch_disk("ext4", size_mb=2048) as scratch:
        yield scratch


@pytest.fixture
def probe(disk: Scratch) -> Iterator[BpfProbe]:
    with contextlib.closing(BpfProbe(object_image(), KernelFiles())) as opened:
        yield opened


@contextlib.contextmanager
def flood(disk: Scratch) -> Iterator[None]:
    """A writer beside, under a limit of 4 MB."""
    with limits_kept():
        (VM / "dirty_background_bytes").write_text(str(2 << 20))
        (VM / "dirty_bytes").write_text(str(4 << 20))
        writer = subprocess.Popen(
            ["dd", "if=/dev/zero", f"of={disk.mountpoint}/flood", "bs=1M", "conv=notrunc",
             "count=1500"], stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            yield
        finally:
            writer.kill()
            writer.wait()


def commit(disk: Scratch, how: str) -> Dict[str, Any]:
    out = subprocess.run(
        [sys.executable, "-c", COMMITTER, f"{disk.mountpoint}/log", str(SECONDS), how],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    measured: Dict[str, Any] = json.loads(out)
    return measured


def read(probe: BpfProbe) -> Reading:
    reading = probe.read()
    assert reading is not None
    return reading


@pytest.mark.parametrize("how", ["alone", "threads"])
def test_a_commit_is_the_sync_and_the_sleep_before_it(
    disk: Scratch, probe: BpfProbe, how: str
) -> None:
    if not probe.choice.sees_sleep:
        pytest.fail("the sleep in balance_dirty_pages() is not visible here")
    with flood(disk):
        time.sleep(0.5)
        read(probe)
        measured = commit(disk, how)
        seen = read(probe).syncs.get(disk.devno, SyncSample())
    assert seen.commits is not None
    low, high = (sum(n * edge for edge, n in []) for _ in range(2))
    print(f"\n{how}: {measured}; probe: {seen.count} syncs, asleep {seen.throttled_s:.3f} s")
    print(seen.latency.told(), seen.commits.told())
