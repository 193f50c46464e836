# SPDX-License-Identifier: GPL-2.0-or-later
"""What systemd hears of the service: Type=notify and WatchdogSec= wait for it."""

from __future__ import annotations

import io
import socket
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Callable, Dict, Iterator, List

import pytest

from writebackd.cli import daemon, notify, watch


@pytest.fixture(params=["path", "abstract"])
def systemd(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[socket.socket]:
    """The socket that a service's messages come to."""
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(path if request.param == "path" else f"\0{path}")
        sock.settimeout(5.0)
        monkeypatch.setenv("NOTIFY_SOCKET", path if request.param == "path" else f"@{path}")
        yield sock


def take_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """python3-systemd, which not every host has."""
    modules: Dict[str, Any] = sys.modules
    monkeypatch.setitem(modules, "systemd", None)
    monkeypatch.delitem(sys.modules, "systemd.daemon", raising=False)


def test_without_python3_systemd_it_is_told_all_the_same(
    systemd: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_away(monkeypatch)
    send = notify.notifier()
    for state in ("READY=1", "WATCHDOG=1", "STOPPING=1"):
        send(state)
        assert systemd.recv(100) == state.encode()


def test_python3_systemd_is_used_where_it_is_there(
    systemd: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: List[str] = []

    def full(state: str) -> None:
        said.append(state)
        raise BlockingIOError

    daemon = ModuleType("systemd.daemon")
    daemon.notify = full  # type: ignore[attr-defined]
    package = ModuleType("systemd")
    package.daemon = daemon  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "systemd", package)
    monkeypatch.setitem(sys.modules, "systemd.daemon", daemon)
    notify.notifier()("WATCHDOG=1")  # the next tick tells it: no reason to stop
    assert said == ["WATCHDOG=1"]


def test_the_real_one_says_the_same(systemd: socket.socket) -> None:
    pytest.importorskip("systemd.daemon", reason="apt-get install python3-systemd")
    notify.notifier()("READY=1")
    assert systemd.recv(100) == b"READY=1"


def test_nothing_is_sent_where_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify.notifier()("READY=1")
    notify.tell("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", "/nonexistent/notify")
    notify.tell("READY=1")


def test_a_systemd_that_hangs_does_not_hold_the_loop(
    systemd: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_away(monkeypatch)
    monkeypatch.setattr(notify, "_LIMIT_S", 0.05)
    send = notify.notifier()
    start_s = time.monotonic()
    for _ in range(_queue() + 3):  # more than wait in its queue
        send("WATCHDOG=1")
    assert 0.1 <= time.monotonic() - start_s < 5.0


def _queue() -> int:
    return int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text())


def test_the_daemon_tells_when_it_is_ready_and_that_it_lives(
    systemd: socket.socket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Ticks:
        def __init__(self, options: object, load: object, on_tick: Callable[[object], None]):
            self.on_tick = on_tick

        def run(self, ready: Callable[[], None]) -> None:
            ready()
            self.on_tick(None)

    take_away(monkeypatch)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(daemon, "Daemon", Ticks)
    monkeypatch.setattr(daemon, "memory", SimpleNamespace(lock_used=str, read_in_code=str))
    monkeypatch.setattr(daemon, "_start_logging", lambda verbose, quiet: None)
    monkeypatch.setattr(daemon, "_stop_logging", lambda listener: None)
    where = ["--runtime-dir", str(tmp_path / "run"), "--state-dir", str(tmp_path / "state")]
    assert daemon.main(["--policy", "default", *where]) == 0
    heard = [systemd.recv(100) for _ in range(3)]
    assert heard == [b"READY=1", b"WATCHDOG=1", b"STOPPING=1"]


def test_the_watcher_tells_that_it_is_ready(
    systemd: socket.socket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    for name in ("stdin", "stdout"):
        monkeypatch.setattr(f"sys.{name}", io.StringIO())  # whatever pytest was started from
    monkeypatch.setattr(watch, "run", lambda runtime_dir, stay, ready: ready() or 0)
    assert watch.lease_watcher(SimpleNamespace(runtime_dir=tmp_path)) == 0  # type: ignore[arg-type]
    assert systemd.recv(100) == b"READY=1"
