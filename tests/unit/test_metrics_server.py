# SPDX-License-Identifier: GPL-2.0-or-later
"""Ways out for metrics: HTTP over both kinds of socket, and the textfile."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from fake_host import Rig
from route_cases import wait_for
from server_loop import TIMEOUT_S, ServerLoop, connected, read_all
from writebackd.event_loop import EventLoop
from writebackd.policy import PolicyError, load_policy
from writebackd.policy.keys import Metrics
from writebackd.report import metrics_server
from writebackd.report.control_server import (
    DEADLINE_S,
    MAX_CLIENTS,
    MAX_CLIENTS_PER_UID,
    MAX_REQUEST,
)
from writebackd.report.metrics import CONTENT_TYPES, OPENMETRICS, PROMETHEUS, render
from writebackd.report.metrics_server import (
    Exposition,
    MetricsServer,
    TextFile,
    open_tcp,
    open_unix,
)
from writebackd.report.snapshot import Snapshot

GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n"
# As Prometheus 2.42 sends it.
ACCEPT = (
    b"Accept: application/openmetrics-text;version=1.0.0,"
    b"application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1\r\n"
)


class Loop(ServerLoop):
    def __init__(self, path: Path, host: str = "127.0.0.1") -> None:
        super().__init__()
        self.snapshot: Optional[Snapshot] = samples.several()
        exposition = Exposition(lambda: self.snapshot)
        self.path = path
        self.server = open_unix(path, exposition)
        self.tcp = open_tcp(host, 0, exposition)
        for server in (self.server, self.tcp):
            server._clock = lambda: self.now
            server.register(self.selector)
        self.port = self.tcp._listener.getsockname()[1]

    def ask(self, request: bytes, tcp: bool = False) -> Tuple[int, Dict[str, str], bytes]:
        """Status, fields and body."""
        with self.connect(tcp) as sock:
            sock.sendall(request)
            self.settle()
            return answer_of(sock, self.settle)

    def connect(self, tcp: bool = False) -> socket.socket:
        return connected(("127.0.0.1", self.port) if tcp else str(self.path))

    def close(self) -> None:
        self.server.close()
        self.tcp.close()
        self.selector.close()


def answer_of(
    sock: socket.socket, between: Callable[[], None] = lambda: None
) -> Tuple[int, Dict[str, str], bytes]:
    received = read_all(sock, between)
    if not received:
        return 0, {}, b""
    head, _, body = received.partition(b"\r\n\r\n")
    first, *fields = head.decode().split("\r\n")
    pairs = dict(field.split(": ", 1) for field in fields)
    assert first.startswith("HTTP/1.1 ")
    return int(first.split(" ")[1]), pairs, body


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Loop]:
    loop = Loop(tmp_path / "metrics.sock")
    yield loop
    loop.close()


@pytest.mark.parametrize("tcp", [False, True], ids=["unix", "tcp"])
def test_prometheus_gets_what_it_asks_for(loop: Loop, tcp: bool) -> None:
    assert loop.snapshot is not None
    for accept, form in (
        (ACCEPT, OPENMETRICS),
        (b"Accept: */*\r\n", PROMETHEUS),
        (b"", PROMETHEUS),
    ):
        status, fields, body = loop.ask(GET + accept + b"\r\n", tcp)
        assert status == 200
        assert fields["Content-Type"] == CONTENT_TYPES[form]
        assert int(fields["Content-Length"]) == len(body)
        assert body == render(loop.snapshot, form).encode()


def test_head_has_no_body(loop: Loop) -> None:
    status, fields, body = loop.ask(GET.replace(b"GET", b"HEAD") + b"\r\n")
    assert (status, body) == (200, b"")
    assert int(fields["Content-Length"]) > 1000


@pytest.mark.parametrize(("request_line", "status"), [
    (b"GET / HTTP/1.1", 404),
    (b"GET /metrics?a=b HTTP/1.0", 200),
    (b"GET /metrics/../etc HTTP/1.1", 404),
    (b"POST /metrics HTTP/1.1", 405),
    (b"GET /metrics", 400),
    (b'{"verb": "status"}', 400),
    (b"\xff\x00 \x01", 400),
    (b"", 400),
])  # fmt: skip
def test_other_requests_are_refused(loop: Loop, request_line: bytes, status: int) -> None:
    assert loop.ask(request_line + b"\r\n\r\n")[0] == status


def test_a_request_without_end_is_cut_off(loop: Loop) -> None:
    assert loop.ask(b"GET /metrics HTTP/1.1\r\nX: " + b"x" * MAX_REQUEST)[0] == 431
    assert loop.server.clients == 0


def test_before_the_first_tick_there_is_nothing(loop: Loop) -> None:
    loop.snapshot = None
    assert loop.ask(GET + b"\r\n")[0] == 503


def test_a_tick_is_rendered_once_however_many_ask(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: List[str] = []

    def count(snapshot: Snapshot, form: str) -> str:
        made.append(form)
        return render(snapshot, form)

    monkeypatch.setattr(metrics_server, "render", count)
    for _ in range(5):
        loop.ask(GET + ACCEPT + b"\r\n")
    assert made == [OPENMETRICS]
    loop.snapshot = replace(samples.guard(), leases_lost=3)
    for accept in (ACCEPT, b""):
        assert b"writebackd_leases_lost_total 3\n" in loop.ask(GET + accept + b"\r\n")[2]
    assert made == [OPENMETRICS, OPENMETRICS, PROMETHEUS]


@pytest.mark.parametrize("tcp", [False, True], ids=["unix", "tcp"])
def test_who_dawdles_is_dropped_and_who_floods_waits(loop: Loop, tcp: bool) -> None:
    server = loop.tcp if tcp else loop.server
    idle = []
    for _ in range(MAX_CLIENTS):
        idle.append(loop.connect(tcp))
        loop.settle()
    assert server.clients == MAX_CLIENTS if os.getuid() == 0 else MAX_CLIENTS_PER_UID
    assert loop.ask(GET + b"\r\n", tcp)[0] in (0, 503)  # root takes the place of others only
    loop.now += DEADLINE_S
    server.expire(loop.now)
    assert server.clients == 0
    assert loop.ask(GET + b"\r\n", tcp)[0] == 200
    for sock in idle:
        sock.close()


# In the script, not by Popen: other users may not be able to run this interpreter.
HOLD = """
import os, socket, sys
address, user, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
os.setgroups([]); os.setgid(user); os.setuid(user)
host, _, port = address.rpartition(":")
held = []
for _ in range(count):
    held.append(socket.create_connection((host, int(port))))
    if len(sys.argv) > 4:
        held[-1].close()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_over_tcp_one_user_takes_a_half_at_most(host: str, tmp_path: Path) -> None:
    if host == "::1" and not Path("/proc/net/if_inet6").exists():
        pytest.skip("no IPv6 here")
    loop = Loop(tmp_path / "metrics.sock", host)
    where = f"{host}:{loop.port}"
    holders = []

    def hold(user: int, count: int, *closed: str) -> None:
        command = [sys.executable, "-c", HOLD, where, str(user), str(count), *closed]
        holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        holders.append(holder)
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        loop.settle()

    try:
        hold(65534, 40)
        assert loop.tcp.clients == 32
        hold(65533, 5)
        assert loop.tcp.clients == 37
        # Of a connection that was closed the kernel says 0: nobody is taken for root so.
        hold(65534, 40, "closed")
        assert {client.uid for client in loop.tcp._clients.values()} <= {65534, 65533, None}
        assert loop.tcp.clients <= 64
        with socket.create_connection(where.rsplit(":", 1)) as sock:  # type: ignore[arg-type]
            sock.sendall(GET + b"\r\n")
            loop.settle()
            assert answer_of(sock, loop.settle)[0] == 200
    finally:
        for holder in holders:
            holder.communicate()
        loop.close()


def huge() -> Snapshot:
    """Whose metrics are more than a socket's buffer takes."""
    shown = samples.guard()
    device = replace(samples.RAID, filesystems=(("8:1", "ext4", "/" + "x" * (8 << 20)),))
    seen = replace(shown.sample.devices[0], device=device)
    return replace(shown, sample=replace(shown.sample, devices=(seen,)))


def test_those_who_do_not_read_hold_one_copy_together(loop: Loop) -> None:
    loop.snapshot = huge()
    with loop.connect() as one, loop.connect() as other:
        for sock in (one, other):
            sock.sendall(GET + b"\r\n")
            loop.settle()
        answers = [client.answer for client in loop.server._clients.values()]
    assert len(answers) == 2
    assert len({id(answer.obj) for answer in answers if answer is not None}) == 1


def test_a_port_that_is_taken_is_told(loop: Loop) -> None:
    with pytest.raises(OSError, match="in use") as error:
        open_tcp("127.0.0.1", loop.port, Exposition(lambda: None))
    assert error.value.filename == f"127.0.0.1:{loop.port}"


@given(st.binary(max_size=200), st.sampled_from([b"\r\n\r\n", b"\r\n", b""]))
def test_any_bytes_get_an_answer_or_are_waited_for(received: bytes, end: bytes) -> None:
    with socket.socket() as listener:
        server = MetricsServer(listener, "nowhere", Exposition(samples.guard))
        answer = server._reply(GET[:5] + received + end, None)
    if b"\r\n\r\n" in received + end:
        assert answer is not None and answer.startswith(b"HTTP/1.1 ")
    else:
        assert answer is None


# ---- the policy ---------------------------------------------------------


def metrics_of(tmp_path: Path, text: str) -> Metrics:
    (tmp_path / "p.conf").write_text(f"[metrics]\n{text}\n")
    return load_policy(str(tmp_path / "p.conf")).metrics


def test_addresses(tmp_path: Path) -> None:
    assert metrics_of(tmp_path, "").http is None
    assert metrics_of(tmp_path, "http = 127.0.0.1:9900").http == ("127.0.0.1", 9900)
    assert metrics_of(tmp_path, "http = 127.3.2.1:1").http == ("127.3.2.1", 1)
    assert metrics_of(tmp_path, "http = [::1]:65535").http == ("::1", 65535)


@pytest.mark.parametrize(("text", "message"), [
    ("0.0.0.0:9900", "0.0.0.0 is not a loopback address.* use 127.0.0.1"),
    ("192.168.1.7:9900", "is not a loopback address"),
    ("[::]:9900", "is not a loopback address"),
    ("[::ffff:10.0.0.1]:9900", "is not a loopback address"),
    ("9900", "write 127.0.0.1:9900"),
    (":9900", "write 127.0.0.1:9900"),
    ("localhost:9900", "write 127.0.0.1:9900"),
    ("::1:9900", "write 127.0.0.1:9900"),
    ("[127.0.0.1]:9900", "write 127.0.0.1:9900"),
    ("127.0.0.1:0", "use 1 to 65535"),
    ("127.0.0.1:65536", "use 1 to 65535"),
    ("127.0.0.1:x", "use 1 to 65535"),
    ("127.0.0.1:", "use 1 to 65535"),
])  # fmt: skip
def test_other_addresses_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(PolicyError, match=rf"p\.conf:2: http: .*{message}"):
        metrics_of(tmp_path, f"http = {text}")


@pytest.mark.parametrize("path", ["host.prom", "/run/host.txt", "/run/"])
def test_a_textfile_that_node_exporter_would_not_read_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(PolicyError, match=r"p\.conf:2: textfile: .*ends in \.prom"):
        metrics_of(tmp_path, f"textfile = {path}")


# ---- the textfile -------------------------------------------------------


def test_the_file_is_replaced_now_and_then_and_removed_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "host.prom"
    file = TextFile(path, 3600.0)
    file.offer(samples.guard())
    wait_for(path.exists)
    assert path.read_text() == render(samples.guard(), PROMETHEUS)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    file.offer(samples.idle())  # too soon
    time.sleep(0.05)
    assert path.read_text() == render(samples.guard(), PROMETHEUS)
    file._due_s = 0.0
    file.offer(samples.idle())
    wait_for(lambda: path.read_text() == render(samples.idle(), PROMETHEUS))
    assert file.close(TIMEOUT_S)
    assert os.listdir(tmp_path) == []


def test_a_disk_that_hangs_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung = threading.Event()
    began = threading.Event()

    def hang(source: Path, target: Path) -> None:
        began.set()
        hung.wait(TIMEOUT_S)

    monkeypatch.setattr(os, "replace", hang)
    file = TextFile(tmp_path / "host.prom", 0.0)
    file.offer(samples.guard())
    assert began.wait(TIMEOUT_S)
    begun = time.monotonic()
    for _ in range(100):
        file.offer(samples.guard())
    assert not file.close(0.1)
    assert time.monotonic() - begun < 1.0
    hung.set()
    file._thread.join(TIMEOUT_S)


def test_what_goes_wrong_is_told_once_and_passes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "later" / "host.prom"
    file = TextFile(path, 0.0)
    file.offer(samples.guard())
    wait_for(lambda: file.error is not None)
    for _ in range(3):
        file.offer(samples.guard())
        wait_for(file._waiting.empty)
    path.parent.mkdir()
    file.offer(samples.guard())
    wait_for(path.exists)
    assert file.close(TIMEOUT_S)
    (record,) = caplog.records
    assert "No such file or directory" in record.getMessage()


# ---- in the daemon ------------------------------------------------------


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def test_without_a_thread_it_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    path = tmp_path / "host.prom"
    with monkeypatch.context() as without:
        without.setattr(threading.Thread, "start", refuse)
        textfile, never = TextFile(path, 0.0), TextFile(tmp_path / "never.prom", 0.0)
        textfile.offer(samples.guard())
        assert not never.close(0.1)
    assert textfile.error == "can't start new thread"
    assert caplog.text.count("host.prom cannot be written: can't start new thread") == 1
    textfile.offer(samples.guard())
    wait_for(path.exists)
    wait_for(lambda: textfile.error is None)
    assert textfile.close(TIMEOUT_S) and not path.exists()


def test_the_daemon_has_all_ways_out_and_closes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, monkeypatch)
    port, file = free_port(), tmp_path / "host.prom"
    first = rig.daemon.policies.first
    metrics = Metrics(("127.0.0.1", port), str(file), 1.0)
    rig.daemon.policies.first = replace(first, metrics=metrics)
    rig.daemon._options = replace(rig.daemon._options, interval_s=0.05)
    monkeypatch.setattr(rig.daemon._watch, "wait", lambda seconds: True, raising=False)
    monkeypatch.setattr(rig.daemon._signals, "catch", lambda: None)
    found: List[Tuple[int, bytes]] = []
    seen: List[str] = []
    answers = threading.Event()

    def ask() -> None:
        addresses: List[Tuple[int, Any]] = [
            (socket.AF_UNIX, str(rig.runtime_dir / "metrics.sock")),
            (socket.AF_INET, ("127.0.0.1", port)),
        ]
        for family, address in addresses:
            end = time.monotonic() + TIMEOUT_S
            status = 503
            while status == 503 and time.monotonic() < end:
                with socket.socket(family) as sock, contextlib.suppress(OSError):
                    sock.settimeout(TIMEOUT_S)
                    sock.connect(address)
                    sock.sendall(GET + b"\r\n")
                    status, _, body = answer_of(sock)
                    found.append((status, body))
        wait_for(file.exists)
        seen.append(file.read_text())
        answers.set()

    def on_tick(snapshot: Optional[Snapshot]) -> None:
        rig.now += 1.0
        if answers.is_set():
            rig.daemon._signals.stop = "enough"

    rig.daemon._report.on_tick = on_tick
    asker = threading.Thread(target=ask)
    asker.start()
    rig.now += 1.0
    rig.daemon.run()
    asker.join(TIMEOUT_S)
    good = [body for status, body in found if status == 200]
    assert len(good) == 2
    for text in (*good, seen[0].encode()):
        assert b"\nwritebackd_build_info{version=" in text
    assert not file.exists() and not (rig.runtime_dir / "metrics.sock").exists()
    # Not by connecting: that port may be another process's by now.
    ours = [each for each in psutil.net_connections("tcp4") if each.pid == os.getpid()]
    assert not [each for each in ours if each.laddr.port == port and each.status == "LISTEN"]


def test_the_loop_drops_who_dawdles_on_any_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, monkeypatch)
    daemon = rig.daemon
    (server,) = rig.daemon._open_metrics()
    left: List[int] = []

    def tick() -> None:
        left.append(server.clients)
        if (1 in left and not left[-1]) or len(left) > 100:
            rig.daemon._signals.stop = "enough"

    monkeypatch.setattr(rig.daemon, "_tick", tick)
    monkeypatch.setattr(server, "_clock", lambda: time.monotonic() - DEADLINE_S + 0.5)
    loop = EventLoop(daemon._signals, [server])
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(rig.runtime_dir / "metrics.sock"))
        loop.run(0.05, daemon._tick, daemon.reload)
        assert 1 in left and not left[-1]
        loop.close()
    rig.end()


def test_a_port_that_is_taken_does_not_stop_the_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, monkeypatch)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        metrics = Metrics(("127.0.0.1", port), None, 1.0)
        rig.daemon.policies.first = replace(rig.daemon.policies.first, metrics=metrics)
        servers = rig.daemon._open_metrics()
    rig.tick(2)
    assert len(servers) == 1
    assert any(f"127.0.0.1:{port}" in line for line in rig.status()["warnings"])
    for server in servers:
        server.close()
    rig.end()
