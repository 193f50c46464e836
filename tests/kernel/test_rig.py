# SPDX-License-Identifier: GPL-2.0-or-later
"""The modelled disk keeps data, behaves like its model, and leaves nothing behind."""

from __future__ import annotations

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
from tests.lab.remains import MARK, RigError, check_own
from tests.lab.rig import SIGNALS, Rig, main

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
