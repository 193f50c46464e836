# SPDX-License-Identifier: GPL-2.0-or-later
"""Commits, as the probe counts them, against what a program measured in write() and fsync()."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, Iterator

import pytest

from tests.kernel.fault_rig import VM, limits_kept
from tests.kernel.scratch import Scratch, run, scratch_disk
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.map_readers import Reading
from writebackd.kernel.probe import BpfProbe, object_image
from writebackd.types.samples import SyncSample

SECONDS = 6.0
# Seconds asleep in write() and spent in fdatasync(), and commits.  With "threads" another thread
# syncs.  Left out of write() is what its thread ran, and waited for a processor to run on
# (/proc/PID/schedstat): the kernel asks for a sleep, and a busy host gives more.
COMMITTER = """
import json, os, sys, threading, time
path, seconds, threads = sys.argv[1], float(sys.argv[2]), sys.argv[3] == "threads"
fd = os.open(path, os.O_RDWR)
ran = open("/proc/thread-self/schedstat")
wanted, done = threading.Semaphore(0), threading.Semaphore(0)
asleep, syncs, commits = 0.0, 0.0, 0

def awake():
    ran.seek(0)
    return sum(map(int, ran.read().split()[:2])) / 1e9

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
    before, begun = awake(), time.monotonic()
    os.pwrite(fd, b"c" * 65536, commits % 16 * 65536)
    asleep += time.monotonic() - begun - (awake() - before)
    if threads:
        wanted.release()
        done.acquire()
    else:
        sync()
    commits += 1
print(json.dumps({"asleep": asleep, "syncs": syncs, "commits": commits}))
"""


@pytest.fixture(scope="module")
def disk() -> Iterator[Scratch]:
    with scratch_disk("ext4", size_mb=2048) as scratch:
        # A write that has to change the inode waits for the journal as well.
        run("mount", "-o", "remount,lazytime", str(scratch.mountpoint))
        assert scratch.mountpoint is not None
        log = scratch.mountpoint / "log"
        log.write_bytes(bytes(1 << 20))
        run("sync", "-f", str(log))
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
        dd = f"dd if=/dev/zero of={disk.mountpoint}/flood bs=1M conv=notrunc count=1200"
        writer = subprocess.Popen(
            ["sh", "-c", f"while {dd}; do :; done"], stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            yield
        finally:
            os.killpg(writer.pid, signal.SIGKILL)
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
    assert probe.choice.sees_sleep
    with flood(disk):
        time.sleep(0.5)
        read(probe)
        measured = commit(disk, how)
        reading = read(probe)
    seen = reading.syncs[disk.devno]
    assert seen.commits is not None
    print(f"\n{how}: {measured}; probe: {seen.count} syncs, asleep {seen.throttled_s:.3f} s, "
          f"{seen.latency.total_s():.3f} s in syncs, {seen.commits.total_s():.3f} s in commits")
    assert seen.count == seen.latency.total == seen.commits.total == measured["commits"]
    assert seen.throttled_s > 0.1
    # The last write's sleep is followed by a sync, too.
    # A write waits for the journal and for memory as well: 0.97 to 1.03 were seen.
    assert 0.7 * measured["asleep"] < seen.throttled_s < 1.15 * measured["asleep"]
    assert seen.commits.total_s() == pytest.approx(
        seen.latency.total_s() + seen.throttled_s, rel=0.13
    )
    assert seen.throttled_now_s == 0.0


def test_a_writer_that_never_syncs_takes_no_place_and_is_no_commit(
    disk: Scratch, probe: BpfProbe
) -> None:
    table = probe._object.map("committers").batch_reader(64)
    with flood(disk):
        read(probe)
        time.sleep(2.0)
        reading = read(probe)
        assert not [pid for pid, _ in table.read() if comm_of(pid) == "dd"]
    slept = [task for task in reading.tasks if task.comm == "dd"]
    assert slept and slept[0].throttled_s > 0.1
    seen = reading.syncs.get(disk.devno, SyncSample())
    assert (seen.throttled_s, seen.throttled_now_s) == (0.0, 0.0)


def comm_of(pid: bytes) -> str:
    try:
        return Path(f"/proc/{int.from_bytes(pid, sys.byteorder)}/comm").read_text().strip()
    except OSError:
        return ""


# Mounts in a namespace of its own, and syncs each.
MANY_TMPFS = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
home = sys.argv[1]
for n in range(2500):
    assert not libc.mount(b"none", home.encode(), b"tmpfs", 0, b"size=64k"), ctypes.get_errno()
    fd = os.open(home, os.O_RDONLY)
    os.fsync(fd)
    libc.syncfs(fd)
    os.close(fd)
"""


def test_thousands_of_tmpfs_do_not_hide_a_disk(
    disk: Scratch, probe: BpfProbe, tmp_path: Path
) -> None:
    assert disk.mountpoint is not None
    fd = os.open(disk.mountpoint / "file", os.O_RDWR | os.O_CREAT)
    read(probe)
    others = subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", MANY_TMPFS,
         str(tmp_path)]
    )  # fmt: skip
    synced = counted = 0
    while others.poll() is None or synced < 100:
        for _ in range(25):
            os.pwrite(fd, b"x" * 4096, 0)
            os.fsync(fd)
            synced += 1
        counted += read(probe).syncs[disk.devno].fsyncs
    os.close(fd)
    assert others.returncode == 0
    assert counted == synced
    devices = [key for key, _ in probe._object.map("syncs").batch_reader(64).read()]
    assert len(devices) < 32
    assert not [text for text in probe.info().lost if text.split()[1] == "syncs:"]
