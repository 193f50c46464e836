# SPDX-License-Identifier: GPL-2.0-or-later
"""What systemd hears of the service: Type=notify and WatchdogSec= wait for it."""

from __future__ import annotations

import io
import select
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Callable, Iterator

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


def test_systemd_hears_each_state(systemd: socket.socket) -> None:
    send = notify.notifier()
    for state in ("READY=1", "WATCHDOG=1", "STOPPING=1"):
        send(state)
        assert systemd.recv(100) == state.encode()


def test_python3_systemd_says_the_same(systemd: socket.socket) -> None:
    reference = pytest.importorskip("systemd.daemon", reason="apt-get install python3-systemd")
    for say in (reference.notify, notify.tell):
        say("READY=1")
        assert systemd.recv(100) == b"READY=1"


def test_nothing_is_sent_where_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify.notifier()("READY=1")
    notify.tell("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", "/nonexistent/notify")
    notify.tell("READY=1")


# In a process of its own: whatever sleeps in sendmsg(2) with Python's lock held can be waited
# for from outside only.
FULL = """
from writebackd.cli.notify import notifier
send = notifier()
for state in ["WATCHDOG=1"] * {count} + ["READY=1"]:
    send(state)
print("goes on", flush=True)
input()
send("WATCHDOG=1")
"""


def test_a_systemd_that_does_not_read_holds_nobody_up_and_hears_of_it_later(
    systemd: socket.socket,
) -> None:
    queue = int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text())
    program = FULL.format(count=queue + 3)  # more than wait in its queue
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as sender:
        assert sender.stdin is not None and sender.stdout is not None
        try:
            ready, _, _ = select.select([sender.stdout], [], [], 20.0)
            assert ready, "it waits for systemd"
            while select.select([systemd], [], [], 0.0)[0]:
                assert systemd.recv(100) == b"WATCHDOG=1"
            sender.stdin.write("\n")
            sender.stdin.flush()
            assert set(systemd.recv(100).split()) == {b"READY=1", b"WATCHDOG=1"}
        finally:
            sender.kill()


def test_the_daemon_tells_when_it_is_ready_and_that_it_lives(
    systemd: socket.socket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Ticks:
        def __init__(self, options: object, load: object, on_tick: Callable[[object], None]):
            self.on_tick = on_tick

        def run(self, ready: Callable[[], None]) -> None:
            ready()
            self.on_tick(None)

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
