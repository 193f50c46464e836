# SPDX-License-Identifier: GPL-2.0-or-later
"""Ticks by the clock, signals and sockets between them; clocks that jump."""

from __future__ import annotations

import errno
import gc
import linecache
import logging
import queue
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, List, Optional

import pytest

from fake_host import FakeHost, Rig
from server_loop import connected
from writebackd import daemon
from writebackd.actuate import lease, watcher
from writebackd.actuate.lease import Lease
from writebackd.actuate.lock import open_private
from writebackd.actuate.watcher import Watcher
from writebackd.cli.daemon_main import _DroppingHandler
from writebackd.event_loop import EventLoop, Signals
from writebackd.paths import HISTORY, LEASE, WATCH
from writebackd.report import metrics_server
from writebackd.report.control_server import MAX_CLIENTS, ControlServer, LoopServer
from writebackd.report.history_schema import read_history
from writebackd.report.snapshot import Snapshot

INTERVAL_S = 0.05
ANSWER_S = 0.02  # as `status` of a host with a thousand disks


def slowly(*_: Any) -> Any:
    time.sleep(ANSWER_S)
    return {}


@pytest.mark.parametrize("of", ["control", "metrics"])
def test_a_crowd_of_clients_does_not_put_off_a_tick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    rig = Rig(tmp_path, monkeypatch)
    rig.tick(2)
    daemon = rig.daemon
    ticks: List[float] = []

    def tick() -> None:
        assert daemon.state.snapshot is not None
        daemon.state.snapshot = replace(daemon.state.snapshot)  # to be rendered anew
        ticks.append(time.monotonic())
        if len(ticks) == 2:
            for client in clients[: MAX_CLIENTS // 2]:
                client.sendall(request)  # all in one round of the loop
        if len(ticks) == 12:
            daemon._signals.stop = "enough"

    monkeypatch.setattr(daemon, "_tick", tick)
    path = rig.runtime_dir / f"{of}.sock"
    server: LoopServer
    if of == "control":
        server, request = ControlServer(path, slowly), b'{"verb": "status"}\n'
    else:
        # More than a socket takes, and nobody reads it.
        monkeypatch.setattr(metrics_server, "render", lambda *_: f"{slowly()}" * (1 << 20))
        (server,), request = daemon._open_metrics(), b"GET /metrics HTTP/1.1\r\n\r\n"
    loop = EventLoop(daemon._signals, [server])
    clients = [connected(str(path)) for _ in range(MAX_CLIENTS)]
    for n, client in enumerate(clients[MAX_CLIENTS // 2 :]):
        client.sendall(request if n % 4 else request[:-1])  # some never end
    begun = time.monotonic()
    gc.disable()  # going through what thousands of tests left takes 0.3 s
    try:
        loop.run(INTERVAL_S, daemon._tick, daemon.reload)
    finally:
        gc.enable()
    for client in clients:
        client.close()
    loop.close()
    rig.close()
    gaps = [after - before for before, after in zip([begun, *ticks], ticks)]
    # Four answers may be under way when a tick is due; a half of them would take 0.5 s.
    assert max(gaps) < INTERVAL_S + 4 * ANSWER_S + 0.15, gaps


class Clock:
    """In place of time and of the selector: nobody asks, and to wait takes no time."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def select(self, timeout_s: float) -> List[Any]:
        self.now_s += timeout_s
        return []


def test_the_first_tick_comes_soon_and_the_others_by_the_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decision within a second of the start; ticks in a hurry are half as long."""
    rig, clock, ticks = Rig(tmp_path, monkeypatch), Clock(), []

    def tick() -> bool:
        ticks.append(clock.now_s - 100.0)
        if len(ticks) == 4:
            rig.daemon._signals.stop = "enough"
        return len(ticks) == 2

    loop = EventLoop(rig.daemon._signals, [])
    with monkeypatch.context() as patched:
        patched.setattr("writebackd.event_loop.time", clock)
        patched.setattr(loop, "_selector", clock)
        loop.run(1.0, tick, rig.daemon.reload)
    loop.close()
    rig.close()
    assert ticks == [0.25, 1.25, 1.75, 2.75]


@pytest.mark.parametrize("refused", [False, True])
def test_the_end_is_in_the_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    rig = Rig(tmp_path, monkeypatch)
    rig.daemon._options = replace(rig.daemon._options, interval_s=0.01)
    monkeypatch.setattr(rig.daemon._signals, "catch", lambda: None)

    def on_tick(snapshot: Optional[Snapshot]) -> None:
        rig.now += 1.0
        rig.pin(8 << 20)
        if snapshot is not None and snapshot.decision.limit_bytes == 8 << 20:
            if refused:
                rig.host.errors["/proc/sys/vm/dirty_ratio"] = errno.EROFS
            rig.daemon._signals.stop = "SIGTERM"

    rig.daemon._report.on_tick = on_tick
    rig.now += 1.0
    rig.daemon.run()
    last = read_history(tmp_path / "state" / HISTORY)[-1]
    assert last.kind == "stop" and last.text.startswith("SIGTERM, on-exit = restore")
    assert ("could not be done in full" in last.text) is refused


def test_the_collector_does_not_look_in_mid_tick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, monkeypatch)
    seen: List[bool] = []
    rig.daemon._report.on_tick = lambda snapshot: seen.append(gc.isenabled())
    rig.tick(2)
    assert seen and not any(seen) and gc.isenabled()

    def fail() -> None:
        raise RuntimeError("an error of the loop")

    monkeypatch.setattr(rig.daemon, "_run_tick", fail)
    with pytest.raises(RuntimeError):
        rig.daemon._tick()
    assert gc.isenabled()
    rig.close()


def test_a_trace_is_told_without_a_look_at_the_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """They lie on the disk that hangs, and whoever logs formats the trace: the loop."""
    looked = []

    def look(*names: object) -> List[str]:
        looked.append(names)
        return []

    for name in ("checkcache", "getlines", "updatecache"):
        monkeypatch.setattr(linecache, name, look)
    lines: "queue.Queue[logging.LogRecord]" = queue.Queue()
    log = logging.Logger("test")
    log.addHandler(_DroppingHandler(lines))
    try:
        raise ValueError("of all things")
    except ValueError:
        log.exception("a request failed")
    said = lines.get_nowait().getMessage()
    assert "a request failed" in said and "ValueError('of all things')" in said
    assert f"{__file__}:" in said and sys._getframe().f_code.co_name in said
    assert looked == []


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
