# SPDX-License-Identifier: GPL-2.0-or-later
"""A disk that hangs: the sync that waits for it completes nothing, and is seen."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import Iterator, List

import pytest

from tests.lab.disks import Disk
from tests.lab.rig import Rig
from writebackd.host_monitor import Reprobe
from writebackd.kernel.files import KernelFiles
from writebackd.kernel.probe import BpfProbe, object_image
from writebackd.types.samples import SyncSample
from writebackd.types.storage import Device


def model_processes(rig: Rig) -> List[int]:
    """The disk model's own process, found by the socket it listens on."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:
            continue
        if command.startswith(b"nbdkit\0") and str(rig.directory).encode() in command:
            found.append(int(path.parent.name))
    return found


@contextlib.contextmanager
def stopped(rig: Rig) -> Iterator[None]:
    """The disk answers nothing, from in here until the end."""
    (model,) = model_processes(rig)
    os.kill(model, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(model, signal.SIGCONT)


@pytest.mark.parametrize("fs", ["ext4", "xfs"])
def test_a_sync_in_flight_is_counted_and_ages(fs: str) -> None:
    with Rig("stuck", fs, Disk(size="512M", cache="32M", rate="50M")) as rig:
        probe = BpfProbe(object_image(), KernelFiles())
        devno = Path(f"/sys/block/{rig.device}/dev").read_text().strip()
        fd = os.open(rig.mountpoint / "db", os.O_RDWR | os.O_CREAT)
        os.pwrite(fd, b"x" * (1 << 20), 0)
        os.fsync(fd)
        probe.read()
        with stopped(rig):
            os.pwrite(fd, b"y" * (1 << 20), 0)
            waiter = threading.Thread(target=os.fsync, args=(fd,))
            waiter.start()
            time.sleep(1.2)
            first = probe.read()
            time.sleep(0.5)
            second = probe.read()
        waiter.join()
        last = probe.read()
        probe.close()
        os.close(fd)
    assert first is not None and second is not None and last is not None
    stuck = [reading.syncs.get(devno, SyncSample()) for reading in (first, second, last)]
    assert [sample.inflight for sample in stuck] == [1, 1, 0]
    assert stuck[0].count == stuck[1].count == 0
    assert 1.0 <= stuck[0].oldest_s < stuck[1].oldest_s
    # And once it is done its whole wait is one value of the histogram.
    assert stuck[2].count == 1
    assert (stuck[2].latency.quantile(1.0) or 0) > 1.5


def test_a_probe_opened_again_holds_nobody_up_and_knows_the_sync_that_is_stuck(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_open, may_close, closed = (threading.Event() for _ in range(3))

    def opened() -> BpfProbe:
        may_open.wait()
        return BpfProbe(object_image(), KernelFiles())

    def close() -> None:
        may_close.wait()
        really_close()
        closed.set()

    with Rig("stuck", "ext4", Disk(size="512M", cache="32M", rate="50M")) as rig:
        probe = BpfProbe(object_image(), KernelFiles())
        really_close = probe.close
        monkeypatch.setattr(probe, "covers", lambda fstypes: False)
        monkeypatch.setattr(probe, "close", close)
        devno = Path(f"/sys/block/{rig.device}/dev").read_text().strip()
        devices = (Device(rig.device, devno, devno),)
        reprobe = Reprobe(opened, ())
        fd = os.open(rig.mountpoint / "db", os.O_RDWR | os.O_CREAT)
        with stopped(rig):
            os.pwrite(fd, b"y" * (1 << 20), 0)
            waiter = threading.Thread(target=os.fsync, args=(fd,))
            waiter.start()
            time.sleep(0.5)
            assert reprobe.better(probe, devices) is probe  # it is being opened
            assert reprobe.better(probe, devices) is probe
            may_open.set()
            reprobe.join(30.0)
            assert reprobe.better(probe, devices) is probe  # this tick is still its own
            renewed = reprobe.better(probe, devices)
            assert isinstance(renewed, BpfProbe) and renewed is not probe
            may_close.set()
            assert closed.wait(30.0)
            during = renewed.read()
        waiter.join()
        after = renewed.read()
        assert reprobe.better(renewed, devices) is renewed
        renewed.close()
        os.close(fd)
    assert during is not None and after is not None
    stuck, ended = (reading.syncs.get(devno, SyncSample()) for reading in (during, after))
    assert stuck.inflight == 1 and stuck.oldest_s > 0.5
    assert (ended.inflight, ended.count) == (0, 1)
    assert (ended.latency.quantile(1.0) or 0) > 0.5
