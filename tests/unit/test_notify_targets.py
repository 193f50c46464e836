# SPDX-License-Identifier: GPL-2.0-or-later
"""Routes that leave the process: HTTP, programs, mail; and far sides that are bad."""

from __future__ import annotations

import email
import email.policy
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional

import pytest

from route_cases import (
    BATTERY,
    BLIND,
    CRITICAL,
    FLOOD,
    WALL_S,
    happening,
    open_directory,
    script,
    wait_for,
)
from writebackd.alerts.alert_types import Alert
from writebackd.notify import exec_hook
from writebackd.notify.alert_events import EventKind
from writebackd.notify.alertmanager import MAX_ENDED, Alertmanager, Answer, labels_of, post
from writebackd.notify.exec_hook import hook_route, run_program, unprivileged
from writebackd.notify.mail import mail_route, message
from writebackd.notify.route import Backoff, Refused, RouteError

BOOK = "https://wiki/runbook"


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with open_directory() as directory:
        yield directory


# ---- HTTP ------------------------------------------------------------------


class Server:
    """Accepts, and does with each connection what it is told to."""

    def __init__(self, serve: Callable[[socket.socket], None]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/api"
        self._serve = serve
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                try:
                    self._serve(connection)
                except OSError:
                    pass

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[socket.socket], None]], str]]:
    servers: List[Server] = []

    def start(what: Callable[[socket.socket], None]) -> str:
        servers.append(Server(what))
        return servers[-1].url

    yield start
    for server in servers:
        server.close()


def drip(connection: socket.socket) -> None:
    """An answer of a byte every tenth of a second: no single read ever takes long."""
    connection.recv(65536)
    for _ in range(100):
        connection.sendall(b"H")
        time.sleep(0.1)


def test_a_post_is_whole(serve: Callable[..., str]) -> None:
    seen: List[bytes] = []

    def once(connection: socket.socket) -> None:
        received = b""
        while not received.endswith(b"]"):
            received += connection.recv(4096)
        seen.append(received)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\nno such thing")

    body = b"[" + b" " * 500_000 + b"]"
    assert post(serve(once), body, 5.0) == Answer(400, "no such thing")
    head, _, rest = seen[0].partition(b"\r\n\r\n")
    assert rest == body
    assert head.startswith(b"POST /api HTTP/1.0\r\nHost: 127.0.0.1:")
    assert b"Content-Length: 500002" in head and b"Content-Type: application/json" in head


@pytest.mark.parametrize(
    "what", [lambda connection: time.sleep(5), drip], ids=["never answers", "drips"]
)
def test_the_limit_is_on_the_whole(what: Any, serve: Callable[..., str]) -> None:
    begun = time.monotonic()
    with pytest.raises(TimeoutError):
        post(serve(what), b"[]", 0.3)
    assert 0.25 < time.monotonic() - begun < 1.0


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 OK\r\n\r\n"])
def test_what_is_not_http_is_an_error(answer: bytes, serve: Callable[..., str]) -> None:
    def say(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(answer)

    with pytest.raises(ValueError, match="not HTTP"):
        post(serve(say), b"[]", 5.0)


def test_where_ipv6_is_refused_ipv4_is_tried(
    serve: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def say(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")

    url = serve(say)
    real, port = socket.socket, int(url.rpartition(":")[2].partition("/")[0])

    def refuse(family: int = -1, *rest: Any, **more: Any) -> socket.socket:
        if family == socket.AF_INET6:  # RestrictAddressFamilies=
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return real(family, *rest, **more)

    found = [
        (family, socket.SOCK_STREAM, 6, "", (address, port))
        for family, address in ((socket.AF_INET6, "::1"), (socket.AF_INET, "127.0.0.1"))
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr(socket, "socket", refuse)
    assert post(f"http://alerts:{port}/api", b"[]", 5.0).status == 200
    found.pop()
    with pytest.raises(OSError, match="family not supported"):
        post(f"http://alerts:{port}/api", b"[]", 5.0)


def test_all_addresses_together_have_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: List[float] = []

    def refuse(_: Any, timeout: float) -> socket.socket:
        limits.append(timeout)
        raise TimeoutError

    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"192.0.2.{n}", 9)) for n in range(6)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(TimeoutError):
        post("http://alerts:9/api", b"[]", 6.0)
    assert limits == [1.0]


# ---- Alertmanager, without one ---------------------------------------------


class Peer:
    """What it was sent, and what it answers."""

    def __init__(self) -> None:
        self.got: List[List[Dict[str, Any]]] = []
        self.answer: Any = Answer(200, "")
        self.tries = 0

    def post(self, url: str, body: bytes, limit_s: float) -> Answer:
        self.tries += 1
        assert url == "http://am/api/v2/alerts" and limit_s == 2.0
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer.status == 200:
            self.got.append(json.loads(body))
        answer: Answer = self.answer
        return answer


@pytest.fixture
def peer() -> Peer:
    return Peer()


def route_to(peer: Peer, resend_s: float = 60.0) -> Alertmanager:
    backoff = Backoff(0.01, 0.02)
    route = Alertmanager("http://am/", "db1", BOOK, resend_s, 2.0, peer.post, backoff)
    route.start()
    return route


def take(route: Alertmanager, *active: Alert, wall_s: float = WALL_S) -> None:
    route.take((), active, wall_s)


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def test_labels_do_not_move_with_the_numbers(peer: Peer) -> None:
    wanted = {
        "alertname": "WritebackdCollapse", "cause": "writeback-flood", "device": "sda",
        "instance": "db1", "job": "writebackd", "severity": "warning",
    }  # fmt: skip
    assert dict(labels_of(FLOOD, "db1")) == wanted
    moved = replace(FLOOD, summary="else", done="else", culprits=(), since_s=1.0, evidence=None)
    assert labels_of(moved, "db1") == labels_of(FLOOD, "db1")
    assert "device" not in dict(labels_of(BLIND, "db1"))
    route = route_to(peer)
    take(route, FLOOD)
    wait_for(lambda: peer.got)
    take(route, moved)
    time.sleep(0.05)
    assert peer.tries == 1  # it is told in time, with the next resend
    (entry,) = peer.got[0]
    assert entry["labels"] == wanted
    assert entry["annotations"]["summary"] == FLOOD.summary
    assert entry["annotations"]["culprits"].startswith("dd (pid 4242, backup.service)")
    assert entry["annotations"]["runbook_url"] == f"{BOOK}#collapse"


def test_it_burns_for_three_resends(peer: Peer) -> None:
    route = route_to(peer)
    take(route, FLOOD)
    (entry,) = wait_for(lambda: peer.got)[0]
    assert seconds(entry["startsAt"]) == pytest.approx(FLOOD.since_s, abs=0.001)
    assert seconds(entry["endsAt"]) == pytest.approx(time.time() + 180, abs=2)


def test_it_is_said_again(peer: Peer) -> None:
    route = route_to(peer, resend_s=0.1)
    take(route, FLOOD)
    wait_for(lambda: len(peer.got) >= 3)
    ends = [seconds(sent[0]["endsAt"]) for sent in peer.got]
    assert ends == sorted(set(ends))
    route.end()
    assert route.join(1.0)


@pytest.mark.parametrize("changed", [BATTERY, CRITICAL], ids=["cause", "severity"])
def test_when_the_labels_change_the_old_ones_are_resolved(peer: Peer, changed: Alert) -> None:
    route = route_to(peer)
    take(route, FLOOD)
    wait_for(lambda: peer.got)
    take(route, changed, wall_s=WALL_S + 5)
    wait_for(lambda: len(peer.got) == 2)
    by_labels = {labels: each for each in peer.got[1]
                 for labels in [tuple(sorted(each["labels"].items()))]}  # fmt: skip
    assert seconds(by_labels[labels_of(FLOOD, "db1")]["endsAt"]) == WALL_S + 5
    assert seconds(by_labels[labels_of(changed, "db1")]["endsAt"]) > time.time()


def test_an_end_is_said_until_the_last_word_has_run_out_and_then_no_more(peer: Peer) -> None:
    route = route_to(peer, resend_s=0.1)
    take(route, FLOOD)
    wait_for(lambda: peer.got)
    take(route, wall_s=WALL_S + 5)
    wait_for(lambda: len(peer.got) >= 4)
    ended = [sent for sent in peer.got if seconds(sent[0]["endsAt"]) == WALL_S + 5]
    assert len(ended) >= 3  # our clock may be ahead of Alertmanager's
    wait_for(lambda: not route._ended)
    tries = peer.tries
    time.sleep(0.3)
    assert peer.tries == tries


def test_what_burns_again_is_not_resolved(peer: Peer) -> None:
    route = route_to(peer, resend_s=0.05)
    take(route, FLOOD)
    take(route)
    take(route, FLOOD)
    wait_for(lambda: len(peer.got) >= 4)
    (entry,) = peer.got[-1]
    assert seconds(entry["endsAt"]) > time.time()
    route.end()


@pytest.mark.parametrize("bad, said", [
    (ConnectionRefusedError(111, "Connection refused"), "refused"),
    (TimeoutError("timed out"), "timed out"),
    (Answer(500, "database\nis gone"), "HTTP status 500: database?is gone"),
    (ValueError("the answer is not HTTP"), "not HTTP"),
    (RuntimeError("a bug of ours"), "RuntimeError('a bug of ours')"),
])  # fmt: skip
def test_after_a_dead_time_it_knows_all(peer: Peer, bad: Any, said: str) -> None:
    peer.answer = bad
    route = route_to(peer)
    take(route, FLOOD)
    wait_for(lambda: peer.tries >= 3)
    take(route, BLIND)  # the flood has come and gone while nobody listened
    assert said in str(route.state().error)
    assert route.state().waiting == 2
    peer.answer = Answer(200, "")
    wait_for(lambda: peer.got)
    names = {each["labels"]["alertname"]: seconds(each["endsAt"]) for each in peer.got[0]}
    assert names["WritebackdCollapse"] == WALL_S < names["WritebackdBlind"]
    assert (route.state().error, route.state().waiting, route.state().lost) == (None, 0, 0)


def test_an_address_with_other_settings_knows_what_ended(peer: Peer) -> None:
    peer.answer = OSError("dead")
    route = route_to(peer, resend_s=60.0)
    take(route, FLOOD)
    take(route)
    wait_for(lambda: peer.tries)
    peer.answer = Answer(200, "")
    assert not route.become(Alertmanager("http://am/", "db1", "https://new", 30.0, 2.0, peer.post))
    wait_for(lambda: peer.got, 0.9)
    assert [seconds(each["endsAt"]) for each in peer.got[0]] == [WALL_S]
    assert peer.got[0][0]["annotations"]["runbook_url"] == "https://new#collapse"


def test_the_bound_on_what_ended_unheard(peer: Peer) -> None:
    peer.answer = OSError("dead")
    route = route_to(peer)
    for number in range(MAX_ENDED + 10):
        take(route, replace(FLOOD, device=f"sd{number}"))
    take(route)
    assert (len(route._ended), route.state().lost) == (MAX_ENDED, 10)


def test_a_clock_set_back_makes_no_alert_that_ends_before_it_began(peer: Peer) -> None:
    route = route_to(peer)
    take(route, FLOOD)
    wait_for(lambda: peer.got)
    take(route, wall_s=FLOOD.since_s - 3600)
    wait_for(lambda: len(peer.got) == 2)
    (entry,) = peer.got[1]
    assert seconds(entry["startsAt"]) <= seconds(entry["endsAt"])


def test_the_end_of_the_daemon_resolves_nothing(peer: Peer) -> None:
    route = route_to(peer)
    take(route, FLOOD)
    route.end()
    assert route.join(1.0)
    assert [seconds(sent[0]["endsAt"]) > time.time() for sent in peer.got] == [True]


# ---- programs --------------------------------------------------------------


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def test_a_hook_gets_json_and_little_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/secret")
    out = tmp_path / "out"
    hook = script(tmp_path / "hook", f"cat >{out}; pwd >>{out}; env >>{out}; mv {out} {out}.done")
    route = hook_route(hook, "db1", BOOK, 5.0)
    route.take([happening(EventKind.CHANGE, CRITICAL, before=FLOOD)], (), WALL_S)
    route.start()
    done = Path(f"{out}.done")
    wait_for(done.exists)
    first, cwd, *environment = done.read_text().splitlines()
    said = json.loads(first)
    assert (said["what"], said["host"], said["time"]) == ("change", "db1", WALL_S)
    assert said["changed"] == "severity warning -> critical"
    assert said["alert"]["culprits"][0]["unit"] == "backup.service"
    assert said["alert"]["evidence"]["facts"]["fsync_p99_s"] == 2.1
    assert said["alert"]["runbook"] == f"{BOOK}#collapse"
    assert cwd == "/"
    assert not [each for each in environment if "NOTIFY" in each]


root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: there are rights to lose")


@root_only
@pytest.mark.parametrize("set_uid", [False, True])
def test_a_program_runs_as_nobody(tmp_path: Path, set_uid: bool) -> None:
    out = tmp_path / "out"
    program = script(tmp_path / "program", f"id -u; id -G; cat /proc/self/status >{out}; exit 7")
    with pytest.raises(Refused, match="exit code 7: 65534 / 65534$"):
        run_program(unprivileged("exec", [program], 5.0, set_uid), b"", 5.0)
    status = dict(line.split(":\t", 1) for line in out.read_text().splitlines())
    for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert int(status[name], 16) == 0, name
    assert status["NoNewPrivs"] == ("0" if set_uid else "1")


def others_file(hook: Path) -> None:
    os.chown(hook, 1234, -1)


def others_write(hook: Path) -> None:
    hook.chmod(0o775)


def others_replace(hook: Path) -> None:
    hook.parent.chmod(0o777)  # not sticky


def others_directory(hook: Path) -> None:
    os.chown(hook.parent, 1234, -1)


def others_link(hook: Path) -> None:
    hook.rename(hook.with_name("real"))
    hook.symlink_to("real")
    os.lchown(hook, 1234, -1)


def others_link_between(hook: Path) -> None:
    directory = hook.with_name("dir")
    directory.mkdir()
    (directory / "link").symlink_to("../real")
    os.lchown(directory / "link", 1234, -1)
    hook.rename(hook.with_name("real"))
    hook.symlink_to("dir/link")


# Whoever owns the directory keeps it.
MOVE = "move {0} to where root alone may write, such as /usr/local/sbin"


@root_only
@pytest.mark.parametrize("spoil, remedy", [
    (others_file, "uid 1234 owns {0}: chown -h root {0}"),
    (others_write, "others than root may write {0}: chmod go-w {0}"),
    (others_replace, "others than root may write {1}: " + MOVE),
    (others_directory, "uid 1234 owns {1}: " + MOVE),
    (others_link, "uid 1234 owns {0}: chown -h root {0}"),
    (others_link_between, "uid 1234 owns {1}/dir/link: chown -h root {1}/dir/link"),
])  # fmt: skip
def test_a_program_that_others_may_change_is_not_started(
    tmp_path: Path, spoil: Callable[[Path], None], remedy: str
) -> None:
    ran = tmp_path / "ran"
    home = tmp_path / "home"
    home.mkdir()
    hook = Path(script(home / "hook", f"touch {ran}"))
    for route in (hook_route(str(hook), "db1", BOOK, 5.0),
                  mail_route(str(hook), ("root",), "db1", BOOK, 5.0)):
        route._send(happening())
        ran.unlink()
    spoil(hook)
    for route in (hook_route(str(hook), "db1", BOOK, 5.0),
                  mail_route(str(hook), ("root",), "db1", BOOK, 5.0)):
        with pytest.raises(RouteError) as caught:
            route._send(happening())
        assert str(caught.value) == f"not started: {remedy.format(hook, home)}"
        assert not isinstance(caught.value, Refused) and not ran.exists()


@root_only
def test_where_root_cannot_be_given_up_systemd_starts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exec_hook, "_may_change_user", lambda: False)
    for name in ("_SYSTEMD", "_BUS"):
        monkeypatch.setattr(exec_hook, name, tmp_path / name)
    with pytest.raises(RouteError, match="cannot give up root .* no systemd runs"):
        unprivileged("exec", ["/bin/true"], 2.0)
    (tmp_path / "_SYSTEMD").mkdir()
    with pytest.raises(RouteError, match="cannot give up root .*: install dbus"):
        unprivileged("exec", ["/bin/true"], 2.0)
    (tmp_path / "_BUS").touch()
    argv = unprivileged("exec", ["/bin/true", "-x"], 2.5)
    assert argv[0] == "systemd-run" and argv[-2:] == ["/bin/true", "-x"]
    assert {"--property=DynamicUser=yes", "--unit=writebackd-exec.service"} < set(argv)
    # One that ignores SIGTERM, or takes memory without end, is gone soon after its time.
    for limit in ("RuntimeMaxSec=3", "TimeoutStopSec=1", "TasksMax=64", "MemoryMax=256M"):
        assert f"--property={limit}" in argv
    assert "--property=User=nobody" in unprivileged("exec", ["/bin/true"], 2.0, set_uid=True)


def systemd_run_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> Callable[[], None]:
    fake = script(tmp_path / "systemd-run", f"echo '{said}' >&2; exit 1")
    monkeypatch.setattr(exec_hook, "unprivileged", lambda *_: [fake])
    return lambda: exec_hook.run_unprivileged("exec", ["/bin/true"], b"", 5.0)


@pytest.mark.parametrize("how", ["was already loaded or has a fragment file.", "already exists."])
def test_while_the_last_run_lives_there_is_no_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    said = f"Failed to start transient service unit: Unit writebackd-exec.service {how}"
    with pytest.raises(RouteError, match="its last run has not ended yet") as caught:
        systemd_run_says(tmp_path, monkeypatch, said)()
    assert not isinstance(caught.value, Refused)  # which would cost it one of five tries
    with pytest.raises(Refused, match="exit code 1: Failed to connect"):
        systemd_run_says(tmp_path, monkeypatch, "Failed to connect to bus")()


@root_only
def test_a_program_that_nobody_may_execute_is_told(tmp_path: Path) -> None:
    hook = script(tmp_path / "hook", "exit 0")
    os.chmod(hook, 0o750)
    with pytest.raises(RouteError, match=f"runs as nobody: chmod a\\+rx {hook}"):
        unprivileged("exec", [hook], 5.0)
    with pytest.raises(RouteError, match="cannot start: No such file"):
        unprivileged("exec", ["/nonexistent/hook"], 5.0)
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(RouteError, match="cannot start: Too many levels"):
        unprivileged("exec", [str(tmp_path / "circle")], 5.0)


def test_one_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    hook = script(tmp_path / "hook", f"sleep 60 & echo $! $$ >{pids}; echo before; wait")
    begun = time.monotonic()
    with pytest.raises(Refused, match=r"killed: not done within 0\.3 s: before"):
        run_program([hook], b"", 0.3)
    assert time.monotonic() - begun < 1.5
    killed = [int(pid) for pid in pids.read_text().split()]
    assert len(killed) == 2
    wait_for(lambda: not any(map(alive, killed)), 2.0)


def test_children_of_one_that_ended_well_are_its_own_affair(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    # It keeps the pipe of our output open as well.
    hook = script(tmp_path / "hook", f"sleep 60 & echo $! >{pids}")
    begun = time.monotonic()
    run_program([hook], b"", 5.0)
    assert time.monotonic() - begun < 2.0
    pid = int(pids.read_text())
    assert alive(pid)
    os.kill(pid, signal.SIGKILL)


def test_output_is_bounded_and_told_where_it_failed(tmp_path: Path) -> None:
    hook = script(tmp_path / "hook", "yes 0123456789 | head -c 30000000; exit 3")
    with pytest.raises(Refused, match="exit code 3: 0123456789 / 0123456789") as caught:
        run_program([hook], b"", 10.0)
    assert len(str(caught.value)) < 600


def test_output_without_end_and_input_unread(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="not done within"):
        run_program([script(tmp_path / "yes", "exec yes")], b"x" * 1_000_000, 0.3)
    run_program([script(tmp_path / "deaf", "exit 0")], b"x" * 1_000_000, 5.0)
    run_program([script(tmp_path / "closed", "exec >&- 2>&-; sleep 0.2")], b"", 5.0)


@pytest.mark.parametrize("argv, said", [
    (["/nonexistent/hook"], "/nonexistent/hook: No such file"),
    (["setpriv-is-missing", "/bin/true"], "setpriv-is-missing: No such file"),
    (["/etc/passwd"], "/etc/passwd: Permission denied"),
])  # fmt: skip
def test_one_that_cannot_be_started(argv: List[str], said: str) -> None:
    with pytest.raises(RouteError, match=f"cannot start: {said}") as caught:
        run_program(argv, b"", 1.0)
    assert not isinstance(caught.value, Refused)  # it may be installed again


def test_one_that_dies_of_a_signal(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="ended by signal 6"):
        run_program([script(tmp_path / "hook", "kill -ABRT $$")], b"", 5.0)


# ---- mail ------------------------------------------------------------------


def parsed(data: bytes) -> Any:
    return email.message_from_bytes(data, policy=email.policy.default)


def mail_of(
    alert: Alert = FLOOD, what: EventKind = EventKind.BEGIN, before: Optional[Alert] = None
) -> Any:
    sent = happening(what, alert, before=before)
    return parsed(message(sent, ("root", "ops@example.org"), "db1", BOOK))


def test_a_mail_has_it_all() -> None:
    mail = mail_of()
    assert mail["To"] == "root, ops@example.org"
    assert mail["Subject"] == f"db1: COLLAPSE sda: {FLOOD.summary}"
    assert mail["Auto-Submitted"] == "auto-generated"
    text = mail.get_content()
    for said in (FLOOD.summary, FLOOD.done, "dd (pid 4242, backup.service) 296M/s",
                 f"{BOOK}#collapse", "sync_rate 12/s", "host     db1"):  # fmt: skip
        assert said in text, said


def test_begin_change_and_end_are_one_thread() -> None:
    begin, change, end = (
        mail_of(), mail_of(CRITICAL, EventKind.CHANGE, FLOOD), mail_of(FLOOD, EventKind.END),
    )  # fmt: skip
    assert change["In-Reply-To"] == end["In-Reply-To"] == begin["Message-ID"]
    assert "severity warning -> critical" in change["Subject"]


@pytest.mark.parametrize("field", ["device", "summary", "done"])
def test_headers_cannot_be_injected(field: str) -> None:
    evil = "x\nBcc: all@example.org\r\n\r\n.\r\nSubject: hello"
    changes: Any = {field: evil, "culprits": (replace(FLOOD.culprits[0], comm=evil),)}
    mail = mail_of(replace(FLOOD, **changes))
    assert mail["Bcc"] is None and len(mail.get_all("Subject")) == 1
    lines = mail.get_content().splitlines()
    assert "." not in lines and not [each for each in lines if each.startswith("Bcc")]


def test_text_beyond_ascii_arrives() -> None:
    alert = replace(FLOOD, device="größe", summary="é" * 400)
    mail = mail_of(alert)
    assert "größe" in mail["Subject"] and "é" * 400 in mail.get_content()
    assert max(map(len, message(happening(alert=alert), ("root",), "db1", BOOK).splitlines())) < 999


def test_sendmail_is_called_as_every_mta_understands(tmp_path: Path) -> None:
    out = tmp_path / "out"
    fake = script(tmp_path / "sendmail", f'echo "$@" >{out}; cat >>{out}; mv {out} {out}.done')
    route = mail_route(fake, ("root",), "db1", BOOK, 5.0)
    route.take([happening()], (), WALL_S)
    route.start()
    done = Path(f"{out}.done")
    wait_for(done.exists)
    first, rest = done.read_text().split("\n", 1)
    assert first == "-t -i"
    assert parsed(rest.encode())["To"] == "root"


def test_modules_that_few_need_are_loaded_late() -> None:
    """ssl is 3 MB, locked in memory."""
    code = (
        "import sys, writebackd.notify\n"
        "print([n for n in ('ssl', 'email.message', 'http.client') if n in sys.modules])"
    )
    argv = [sys.executable, "-c", code]
    result = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
