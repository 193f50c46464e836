# SPDX-License-Identifier: GPL-2.0-or-later
"""The clocks of loop, lease, watcher and samples: none can be set.

The wall clock is compared with the kernel's clocks themselves, which no test has replaced.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import List

import pytest

from fake_host import FakeHost
from writebackd import daemon
from writebackd.actuate import lease, watcher
from writebackd.actuate.lease import Lease
from writebackd.actuate.lock import open_private
from writebackd.actuate.watcher import Watcher
from writebackd.event_loop import EventLoop, Signals
from writebackd.paths import LEASE, WATCH


def monotonic() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def test_samples_are_timed_by_the_boot_clock() -> None:
    assert daemon._boottime() == pytest.approx(time.clock_gettime(time.CLOCK_BOOTTIME), abs=5.0)


def test_the_lease_is_by_the_monotonic_clock(tmp_path: Path) -> None:
    one = Lease(tmp_path, 10.0)
    assert one.take()
    line = lease.read_lease(open_private(tmp_path / LEASE))
    assert line is not None and line.until_s == pytest.approx(monotonic() + 10.0, abs=5.0)
    assert one.renew()
    line = lease.read_lease(open_private(tmp_path / LEASE))
    assert line is not None and line.until_s == pytest.approx(monotonic() + 10.0, abs=5.0)
    assert 5.0 < one.remaining_s <= 10.0
    one.permit()


def test_the_watcher_is_by_the_monotonic_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Watcher(FakeHost(tmp_path / "root"), tmp_path, stay=True)
    one.look(monotonic())
    line = lease.read_watch(open_private(tmp_path / WATCH))
    assert line is not None and line.beat_s == pytest.approx(monotonic(), abs=5.0)
    assert one._wake_s == pytest.approx(monotonic(), abs=5.0)
    looked: List[float] = []

    def look(self: Watcher, now_s: float) -> None:
        looked.append(now_s)

    monkeypatch.setattr(Watcher, "look", look)
    monkeypatch.setattr("writebackd.actuate.watcher.signal.pthread_sigmask", lambda *_: None)
    monkeypatch.setattr("writebackd.actuate.watcher.memory_lock.lock_all", lambda: None)
    monkeypatch.setattr("writebackd.actuate.watcher.memory_lock.set_name", lambda name: None)
    monkeypatch.setattr("writebackd.actuate.watcher.threading.stack_size", lambda size: 0)
    assert watcher.run(tmp_path, stay=False) == 0
    assert looked == [pytest.approx(monotonic(), abs=5.0)]


@pytest.mark.parametrize("step_s", [-3600.0, 3600.0])
def test_the_loop_ticks_on_whatever_is_set(
    monkeypatch: pytest.MonkeyPatch, step_s: float
) -> None:
    signals = Signals()
    ticks: List[float] = []
    real, begun = time.time, time.time()
    monkeypatch.setattr(
        "writebackd.event_loop.time.time", lambda: real() + step_s * (real() > begun + 0.1)
    )

    def tick() -> bool:
        ticks.append(monotonic())
        if len(ticks) == 10:
            signals.stop = "enough"
        return False

    def give_up() -> None:
        signals.stop = "late"
        signals._sender.send(b"x")

    loop = EventLoop(signals, [])
    late = threading.Timer(5.0, give_up)
    late.start()
    loop.run(0.05, tick, lambda: None)
    late.cancel()
    loop.close()
    assert len(ticks) == 10
    assert 0.3 < ticks[-1] - ticks[0] < 2.0
