# SPDX-License-Identifier: GPL-2.0-or-later
"""What systemd hears of the service: Type=notify and WatchdogSec= wait for it."""

from __future__ import annotations

import io
import os
import queue
import select
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Callable, Iterator, List

import pytest

from writebackd.cli import daemon_main, lease_watcher, sd_notify


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
    send = sd_notify.notifier()
    for state in ("READY=1", "WATCHDOG=1", "STOPPING=1"):
        send(state)
        assert systemd.recv(100) == state.encode()


def test_python3_systemd_says_the_same(systemd: socket.socket) -> None:
    reference = pytest.importorskip("systemd.daemon", reason="apt-get install python3-systemd")
    for say in (reference.notify, lambda state: sd_notify.tell(state, 1.0)):
        say("READY=1")
        assert systemd.recv(100) == b"READY=1"


def test_nothing_is_sent_where_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    sd_notify.tell("READY=1", 1.0)
    monkeypatch.setenv("NOTIFY_SOCKET", "/nonexistent/notify")
    sd_notify.tell("READY=1", 1.0)


# In a process of its own: whatever sleeps in sendmsg(2) with Python's lock held can be waited
# for from outside only.
FULL = """
import time
from writebackd.cli import sd_notify
sd_notify.LIMIT_S = 0.2
send = sd_notify.notifier()
for state in ["WATCHDOG=1"] * 3 + ["READY=1"]:
    send(state)
time.sleep(1.0)
print("goes on", flush=True)
while True:
    time.sleep(0.1)
    send("WATCHDOG=1")
"""


def fill(systemd: socket.socket) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.connect(systemd.getsockname())
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            while True:
                other.send(b"X")


def heard(systemd: socket.socket, count: int) -> List[bytes]:
    """The next `count` states, without what others have sent."""
    states: List[bytes] = []
    while len(states) < count:
        states += [each for each in systemd.recv(100).split() if each != b"X"]
    return states


def test_a_systemd_that_does_not_read_holds_nobody_up_and_hears_of_it_later(
    systemd: socket.socket,
) -> None:
    fill(systemd)
    with subprocess.Popen([sys.executable, "-c", FULL], stdout=subprocess.PIPE) as sender:
        assert sender.stdout is not None
        try:
            said = select.poll()  # select() takes no number above 1023
            said.register(sender.stdout, select.POLLIN)
            assert said.poll(20_000), "it waits for systemd"
            assert heard(systemd, 3) == [b"WATCHDOG=1", b"READY=1", b"WATCHDOG=1"]
        finally:
            sender.kill()


FLOOD = """
import socket, sys
sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
sock.connect(sys.argv[1].replace("@", chr(0)))
print("floods", flush=True)
while True:
    sock.send(b"X")
"""


def test_nobody_who_floods_systemd_keeps_a_beat_from_it(systemd: socket.socket) -> None:
    """Any user may: each place in its queue is taken as soon as it is free."""
    send = sd_notify.notifier()
    with subprocess.Popen(
        [sys.executable, "-c", FLOOD, os.environ["NOTIFY_SOCKET"]], stdout=subprocess.PIPE
    ) as flooder:
        assert flooder.stdout is not None
        try:
            flooder.stdout.readline()
            for _ in range(20):
                send("WATCHDOG=1")
                beat = False
                for _ in range(2000):  # much more than its queue holds
                    time.sleep(0.001)  # systemd has a look at each
                    beat = systemd.recv(100) == b"WATCHDOG=1"
                    if beat:
                        break
                assert beat
        finally:
            flooder.kill()


def test_what_systemd_did_not_take_goes_with_the_next_beat_and_not_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """WATCHDOG=1 that the thread repeats would hide a loop that hangs."""
    told: "queue.Queue[str]" = queue.Queue()
    answers = [False, False, True, True]

    def tell(state: str, limit_s: float) -> bool:
        told.put(state)
        return answers.pop(0)

    monkeypatch.setattr(sd_notify, "tell", tell)
    send = sd_notify.notifier()
    for state, expected in (
        ("READY=1", "READY=1"),
        ("WATCHDOG=1", "READY=1\nWATCHDOG=1"),
        ("WATCHDOG=1", "READY=1\nWATCHDOG=1"),
        ("WATCHDOG=1", "WATCHDOG=1"),
    ):
        send(state)
        assert told.get(timeout=5.0) == expected
    assert not answers and told.empty()


def test_beats_that_came_while_one_waited_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sent one after the other they would outlive the loop."""
    told: "queue.Queue[str]" = queue.Queue()
    goes_on = threading.Event()

    def tell(state: str, limit_s: float) -> bool:
        told.put(state)
        return goes_on.wait(5.0)

    monkeypatch.setattr(sd_notify, "tell", tell)
    send = sd_notify.notifier()
    send("WATCHDOG=1")
    assert told.get(timeout=5.0) == "WATCHDOG=1"
    for _ in range(5):
        send("WATCHDOG=1")
    send("READY=1")
    goes_on.set()
    assert told.get(timeout=5.0) == "WATCHDOG=1\nREADY=1"
    send("LAST=1")
    assert told.get(timeout=5.0) == "LAST=1"


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
    monkeypatch.setattr(daemon_main, "Daemon", Ticks)
    monkeypatch.setattr(
        daemon_main, "memory_lock", SimpleNamespace(lock_used=str, read_in_code=str)
    )
    monkeypatch.setattr(daemon_main, "_start_logging", lambda verbose, quiet: None)
    monkeypatch.setattr(daemon_main, "_stop_logging", lambda listener: None)
    where = ["--runtime-dir", str(tmp_path / "run"), "--state-dir", str(tmp_path / "state")]
    assert daemon_main.main(["--policy", "default", *where]) == 0
    assert set(heard(systemd, 3)) == {b"READY=1", b"WATCHDOG=1", b"STOPPING=1"}


def test_the_watcher_tells_that_it_is_ready(
    systemd: socket.socket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As soon as systemd takes it, and watches meanwhile."""
    monkeypatch.setattr("os.geteuid", lambda: 0)
    for name in ("stdin", "stdout"):
        monkeypatch.setattr(f"sys.{name}", io.StringIO())  # whatever pytest was started from
    monkeypatch.setattr(lease_watcher, "run", lambda runtime_dir, stay, ready: ready() or 0)
    refused, tell = threading.Event(), sd_notify.tell

    def refuse(state: str, limit_s: float) -> bool:
        if refused.is_set():
            return tell(state, limit_s)
        refused.set()
        return False

    monkeypatch.setattr(lease_watcher, "tell", refuse)
    fill(systemd)
    assert lease_watcher.lease_watcher(SimpleNamespace(runtime_dir=tmp_path)) == 0  # type: ignore[arg-type]
    assert heard(systemd, 1) == [b"READY=1"] and refused.is_set()
