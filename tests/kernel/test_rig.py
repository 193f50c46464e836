# SPDX-License-Identifier: GPL-2.0-or-later
"""The modelled disk keeps data, behaves like its model, and leaves nothing behind."""

from __future__ import annotations

import mmap
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Dict, Iterator

import pytest

from tests.kernel.test_lab_clean import left
from tests.lab import host
from tests.lab.disks import Disk
from tests.lab.loads.own import make_file
from tests.lab.remains import MARK, RigError, check_own
from tests.lab.rig import SIGNALS, Interrupts, Rig, main

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root for loop devices")

MIB = 1 << 20
SMALL = Disk(size="2G", cache="64M", rate="50M")


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    """Signals as in a terminal: what a script starts in the background ignores SIGINT."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def limits() -> Iterator[Dict[str, int]]:
    before = host.read_limits()
    yield before
    host.write_limits(before)


@pytest.fixture
def name() -> Iterator[str]:
    name = f"test-{os.getpid()}"
    yield name
    main(["clean", name])


@pytest.mark.parametrize("fs", ["xfs", "ext4"])
def test_data_survives(fs: str, name: str) -> None:
    pattern = random.Random(1).randbytes(MIB)
    with Rig(name, fs, SMALL) as rig:
        path = rig.mountpoint / "data"
        with open(path, "wb") as file:
            for part in range(100):  # more than the cache holds
                file.write(bytes([part]) + pattern[1:] if part % 2 else bytes(MIB))
        subprocess.run(["umount", str(rig.mountpoint)], check=True)
        subprocess.run(["mount", f"/dev/{rig.device}", str(rig.mountpoint)], check=True)
        with open(path, "rb") as file:
            for part in range(100):
                assert file.read(MIB) == (bytes([part]) + pattern[1:] if part % 2 else bytes(MIB))
        assert Path(f"/sys/block/{rig.device}/queue/write_cache").read_text() == "write through\n"
    assert left(name) == []


def direct_write(path: str, offset: int, count: int) -> float:
    """Seconds that it takes to write past the page cache, in pieces of 1 MiB."""
    block = mmap.mmap(-1, MIB)  # direct IO wants an aligned buffer
    fd = os.open(path, os.O_WRONLY | os.O_DIRECT)
    try:
        started = time.monotonic()
        for done in range(0, count, MIB):
            os.pwrite(fd, block, offset + done)
        return time.monotonic() - started
    finally:
        os.close(fd)


def test_full_cache_makes_writers_wait(name: str) -> None:
    with Rig(name, "xfs", SMALL) as rig:
        path = rig.mountpoint / "data"
        make_file(path, 256 * MIB)
        time.sleep(1.5)  # the write cache drains in 64 MB / 50 MB/s = 1.3 s
        absorbed = 48 * MIB / direct_write(str(path), 0, 48 * MIB)
        direct_write(str(path), 48 * MIB, 48 * MIB)
        drained = 100 * MIB / direct_write(str(path), 96 * MIB, 100 * MIB)
    print(f"absorbed {absorbed / MIB:.0f} MB/s, drained {drained / MIB:.0f} MB/s")
    assert absorbed > 2 * 50 * MIB
    assert drained == pytest.approx(50 * MIB, rel=0.1)


@pytest.mark.parametrize("form", [
    {"dirty_bytes": 200 * MIB, "dirty_ratio": 0},
    {"dirty_bytes": 0, "dirty_ratio": 21},
    # background >= foreground is legal, and has to come back as it was
    {**host.fixed_limits(10 * MIB), "dirty_background_bytes": 20 * MIB},
])
def test_limits_come_back_in_their_form(form: Dict[str, int], limits: Dict[str, int]) -> None:
    host.write_limits(form)
    assert host.read_limits() == {**limits, **form}
    host.write_limits({"dirty_bytes": 0, "dirty_ratio": 33, "dirty_background_bytes": 0,
                       "dirty_background_ratio": 11})
    host.write_limits({**limits, **form})
    assert host.read_limits() == {**limits, **form}


def test_other_disks_are_refused() -> None:
    root = next(source for source, at in host.mounts() if at == "/")
    for device in (root, "/dev/sda", "/dev/loop-control"):
        with pytest.raises(RigError, match="not a disk of the lab"):
            check_own(device)


def test_nbd_devices_of_others_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = subprocess.Popen(["sleep", "60"], env={f"{MARK}_DISK": "a.1"})
    other = subprocess.Popen(["sleep", "60"])
    try:
        # The kernel fills in the environment a moment after exec has let Popen return.
        deadline = time.monotonic() + 5.0
        while not host.environ(ours.pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        monkeypatch.setattr(host, "nbd_client", lambda device: other.pid)
        with pytest.raises(RigError, match=f"process {other.pid}"):
            check_own("/dev/nbd0")
        monkeypatch.setattr(host, "nbd_client", lambda device: ours.pid)
        check_own("/dev/nbd0")
    finally:
        for process in (ours, other):
            process.kill()
            process.wait()


def test_nested_rigs_interrupted(name: str, limits: Dict[str, int]) -> None:
    handlers = [signal.getsignal(number) for number in SIGNALS]
    with pytest.raises(SystemExit):
        with Rig(f"{name}-outer", "xfs", SMALL), Rig(f"{name}-inner", "xfs", SMALL):
            host.write_limits({"dirty_bytes": 64 * MIB, "dirty_ratio": 0})
            signal.raise_signal(signal.SIGTERM)
    assert host.read_limits() == limits
    assert left(name) == []
    assert [signal.getsignal(number) for number in SIGNALS] == handlers


def test_a_second_signal_does_not_cut_the_unwinding_short() -> None:
    interrupts = Interrupts()
    interrupts.begin()
    interrupts.begin()
    with pytest.raises(SystemExit):
        signal.raise_signal(signal.SIGHUP)
    signal.raise_signal(signal.SIGINT)
    interrupts.hold()
    interrupts.end()
    signal.raise_signal(signal.SIGINT)  # between the two rigs
    interrupts.hold()
    interrupts.end()
