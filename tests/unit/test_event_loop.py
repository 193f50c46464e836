# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon's loop on a host without a kernel: its ticks come first."""

from __future__ import annotations

import errno
import gc
import linecache
import logging
import queue
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Optional

import pytest

from fake_host import Rig
from writebackd.cli.daemon_main import _DroppingHandler
from writebackd.event_loop import EventLoop
from writebackd.paths import HISTORY
from writebackd.report.control_server import MAX_CLIENTS, ControlServer
from writebackd.report.history_schema import read_history
from writebackd.report.snapshot import Snapshot

INTERVAL_S = 0.05
ANSWER_S = 0.02  # as `status` of a host with a thousand disks


def test_a_crowd_of_questions_does_not_put_off_a_tick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, monkeypatch)
    daemon = rig.daemon
    ticks: List[float] = []

    def tick() -> None:
        ticks.append(time.monotonic())
        if len(ticks) == 12:
            daemon._signals.stop = "enough"

    def answer(verb: str, args: Dict[str, Any], uid: int) -> Dict[str, Any]:
        time.sleep(ANSWER_S)
        return {}

    monkeypatch.setattr(daemon, "_tick", tick)
    server = ControlServer(tmp_path / "control.sock", answer)
    loop = EventLoop(daemon._signals, [server])
    clients = []
    for _ in range(MAX_CLIENTS):
        client = socket.socket(socket.AF_UNIX)
        client.connect(str(server.path))
        client.sendall(b'{"verb": "status"}\n')
        clients.append(client)
    begun = time.monotonic()
    loop.run(INTERVAL_S, daemon._tick, daemon.reload)
    for client in clients:
        client.close()
    loop.close()
    rig.close()
    gaps = [after - before for before, after in zip([begun, *ticks], ticks)]
    # Four answers may be under way when a tick is due; all of them would take 1.3 s.
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

    rig.daemon._publisher.on_tick = on_tick
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
    rig.daemon._publisher.on_tick = lambda snapshot: seen.append(gc.isenabled())
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
