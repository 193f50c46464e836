# SPDX-License-Identifier: GPL-2.0-or-later
"""The control socket, over real sockets: answers, limits, and clients that mean no good."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import resource
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Set

import pytest

from server_loop import ServerLoop, connected, read_all
from writebackd.report import control_server as server_module
from writebackd.report.control_server import (
    DEADLINE_S,
    MAX_CLIENTS,
    MAX_CLIENTS_PER_UID,
    MAX_REQUEST,
    ControlServer,
    RequestError,
    size_argument,
    text_argument,
)


class Loop(ServerLoop):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.calls: List[Any] = []
        self.server = ControlServer(path, self.handle, clock=lambda: self.now)
        self.server.register(self.selector)

    def handle(self, verb: str, args: Dict[str, Any], uid: int) -> Dict[str, Any]:
        self.calls.append((verb, args, uid))
        if verb == "refuse":
            raise RequestError("no such device: try sda", 2)
        if verb == "crash":
            raise KeyError("a bug")
        answers: Dict[str, Dict[str, Any]] = {
            "nan": {"value": float("nan")}, "big": {"text": "x" * (8 << 20)},
        }  # fmt: skip
        return answers.get(verb, {"verb": verb})


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Loop]:
    loop = Loop(tmp_path / "control.sock")
    yield loop
    loop.server.close()
    loop.selector.close()


def connect(loop: Loop) -> socket.socket:
    return connected(str(loop.server.path))


def ask(loop: Loop, line: bytes) -> Dict[str, Any]:
    with connect(loop) as sock:
        sock.sendall(line)
        loop.settle()
        answer: Dict[str, Any] = json.loads(read_all(sock))
        return answer


def test_an_answer_is_one_line_and_ends_the_connection(loop: Loop) -> None:
    with connect(loop) as sock:
        sock.sendall(b'{"verb": "why", "args": {"device": "sda"}}\n')
        loop.settle()
        assert read_all(sock) == b'{"ok": true, "data": {"verb": "why"}}\n'
    assert loop.calls == [("why", {"device": "sda"}, os.getuid())]
    assert loop.server.clients == 0


def test_a_request_may_come_in_pieces(loop: Loop) -> None:
    with connect(loop) as sock:
        for byte in b'{"verb": "status"}\n':
            sock.sendall(bytes([byte]))
            loop.settle()
        assert json.loads(read_all(sock))["ok"]


@pytest.mark.parametrize("line", [
    b"\n",
    b"status\n",
    b"[]\n",
    b"null\n",
    b'"status"\n',
    b"{}\n",
    b'{"verb": 1}\n',
    b'{"verb": null, "args": {}}\n',
    b'{"verb": "status", "args": []}\n',
    b'{"verb": "status"\n',
    b'{"verb": "sta\xff\xfetus"}\n',
    b"[" * 4000 + b"\n",  # deeper than the parser's recursion limit
    b'{"verb": "x", "args": {"n": ' + b"9" * 4040 + b"}\n",
    b"\x00" * 100 + b"\n",
])  # fmt: skip
def test_garbage_is_refused_in_words(loop: Loop, line: bytes) -> None:
    answer = ask(loop, line)
    assert answer["ok"] is False
    assert answer["exit"] == 2
    assert "request" in answer["error"]
    assert loop.calls == []


def test_random_bytes_never_disturb_the_server(loop: Loop) -> None:
    random_bytes = random.Random(7)
    for _ in range(300):
        length = random_bytes.choice([1, 7, 100, MAX_REQUEST, MAX_REQUEST + 1, 20_000])
        with connect(loop) as sock:
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                sock.send(random_bytes.randbytes(length))
            loop.settle()
    loop.settle()
    assert loop.server.clients == 0
    assert ask(loop, b'{"verb": "status"}\n')["ok"]


@pytest.mark.parametrize("line", [
    b"x" * (MAX_REQUEST + 1),
    b'{"verb": "status", "args": {"a": "' + b"x" * MAX_REQUEST + b'"}}\n',
])  # fmt: skip
def test_an_oversized_request_is_refused(loop: Loop, line: bytes) -> None:
    answer = ask(loop, line)
    assert answer == {"ok": False, "error": "request longer than 4096 bytes", "exit": 2}


def test_the_longest_request_allowed_is_answered(loop: Loop) -> None:
    frame = b'{"verb": "status", "args": {"a": "%s"}}'
    line = frame % (b"x" * (MAX_REQUEST - len(frame) + 2))
    assert len(line) == MAX_REQUEST
    assert ask(loop, line + b"\n")["ok"]


@pytest.mark.parametrize("verb, exit_code, words", [
    ("refuse", 2, "no such device: try sda"),
    ("crash", 1, "writebackd could not answer: see its log"),
    ("nan", 1, "writebackd could not answer: see its log"),
])  # fmt: skip
def test_errors_reach_the_client_and_the_server_lives(
    loop: Loop, verb: str, exit_code: int, words: str
) -> None:
    answer = ask(loop, json.dumps({"verb": verb}).encode() + b"\n")
    assert answer == {"ok": False, "error": words, "exit": exit_code}
    assert ask(loop, b'{"verb": "status"}\n')["ok"]


@pytest.mark.parametrize("verb, refused", [
    ("mode", True), ("pin", True), ("release", True), ("forget", True), ("trial", True),
    ("drain", True), ("reset-stats", True),
    ("top", False), ("status", False), ("why", False), ("devices", False), ("verify", False),
])  # fmt: skip
def test_only_root_may_write(
    loop: Loop, monkeypatch: pytest.MonkeyPatch, verb: str, refused: bool
) -> None:
    monkeypatch.setattr(server_module, "_peer_uid", lambda sock: 1000)
    answer = ask(loop, json.dumps({"verb": verb}).encode() + b"\n")
    assert answer["ok"] is not refused
    if refused:
        assert answer["exit"] == 4 and "root" in answer["error"]
        assert loop.calls == []


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
def test_the_kernel_tells_who_asks() -> None:
    # pytest's own directories are closed to other users.
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    loop = Loop(directory / "control.sock")
    script = (
        # In the script, not by Popen: other users may not be able to run this interpreter.
        "import os,socket,sys; os.setgroups([]); os.setgid(65534); os.setuid(65534);"
        "s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
        "s.sendall(b'{\"verb\": \"'+sys.argv[2].encode()+b'\"}\\n'); print(s.recv(4096).decode())"
    )
    try:
        for verb, good in (("status", True), ("pin", False)):
            command = [sys.executable, "-c", script, str(loop.server.path), verb]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
                loop.until(lambda p=process: p.poll() is not None)  # type: ignore[misc]
                assert process.stdout is not None
                answer = json.loads(process.stdout.read())
            assert answer["ok"] is good
        assert loop.calls == [("status", {}, 65534)]
    finally:
        loop.server.close()
        shutil.rmtree(directory)


def test_a_client_that_says_nothing_is_dropped_at_its_deadline(loop: Loop) -> None:
    with connect(loop) as early, connect(loop) as late:
        early.sendall(b'{"verb":')
        loop.settle()
        loop.now += DEADLINE_S / 2
        late.close()
        with connect(loop) as third:
            loop.settle()
            # A byte now and then does not buy time.
            early.sendall(b" ")
            loop.settle()
            loop.now += DEADLINE_S / 2
            loop.server.expire(loop.now)
            assert read_all(early) == b""
            assert loop.server.clients == 1
            third.sendall(b'{"verb": "status"}\n')
            loop.settle()
            assert json.loads(read_all(third))["ok"]


def test_a_slow_reader_is_dropped_and_a_patient_one_served(loop: Loop) -> None:
    with connect(loop) as slow:
        slow.sendall(b'{"verb": "big"}\n')
        loop.settle()
        assert loop.server.clients == 1, "8 MiB cannot be in the socket's buffer"
        loop.server.expire(loop.now + DEADLINE_S)
        assert loop.server.clients == 0
        assert len(read_all(slow)) < 8 << 20
    received: List[bytes] = []
    with connect(loop) as sock:
        sock.sendall(b'{"verb": "big"}\n')
        reader = threading.Thread(target=lambda: received.append(read_all(sock)))
        reader.start()
        loop.until(lambda: not reader.is_alive())
        reader.join()
    assert len(json.loads(received[0])["data"]["text"]) == 8 << 20


def test_a_client_that_hangs_up_leaves_nothing_behind(loop: Loop) -> None:
    gc.collect()  # or numbers that an earlier test left become free and are taken meanwhile
    before = sockets()
    for text in (b"", b'{"verb"', b'{"verb": "big"}\n'):
        sock = connect(loop)
        sock.sendall(text)
        loop.turn()
        sock.close()
        loop.settle()
    assert loop.server.clients == 0
    # The thread of an earlier test may close one of its own meanwhile.
    assert sockets() <= before


def sockets() -> Set[str]:
    """This process's; the thread of an earlier test may open and close files at any time."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(f"/proc/self/fd/{name}"))
    return {each for each in found if each.startswith("socket:")}


def test_two_hundred_clients_at_once_all_get_an_answer(loop: Loop) -> None:
    answers: List[Optional[bytes]] = [None] * 200
    gate = threading.Barrier(len(answers))

    def one(index: int) -> None:
        gate.wait()
        with connect(loop) as sock:
            sock.sendall(b'{"verb": "status"}\n')
            answers[index] = read_all(sock)

    threads = [threading.Thread(target=one, args=(index,)) for index in range(len(answers))]
    for thread in threads:
        thread.start()
    loop.until(lambda: not any(thread.is_alive() for thread in threads))
    for thread in threads:
        thread.join()
    kinds = [json.loads(answer or b"null") for answer in answers]
    assert all(kind["ok"] or "busy" in kind["error"] for kind in kinds)
    assert sum(kind["ok"] for kind in kinds) >= MAX_CLIENTS_PER_UID
    assert loop.server.clients == 0


def crowd(loop: Loop, count: int) -> List[socket.socket]:
    sockets = []
    for _ in range(count):
        sockets.append(connect(loop))
        loop.settle()
    return sockets


def test_idle_clients_of_others_cannot_lock_root_out(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    uid = 1000
    monkeypatch.setattr(server_module, "_peer_uid", lambda sock: uid)
    sockets = crowd(loop, MAX_CLIENTS_PER_UID)
    uid = 1001
    sockets += crowd(loop, MAX_CLIENTS - MAX_CLIENTS_PER_UID)
    assert loop.server.clients == MAX_CLIENTS
    with connect(loop) as late:
        loop.settle()
        assert "busy" in json.loads(read_all(late))["error"]
    assert loop.server.clients == MAX_CLIENTS
    uid = 0
    assert ask(loop, b'{"verb": "pin", "args": {"bytes": 1}}\n')["ok"]
    assert loop.server.clients == MAX_CLIENTS - 1
    assert read_all(sockets[0]) == b"", "the oldest made room"
    for sock in sockets:
        sock.close()


def test_one_user_cannot_lock_the_others_out(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    uid = 1000
    monkeypatch.setattr(server_module, "_peer_uid", lambda sock: uid)
    sockets = crowd(loop, MAX_CLIENTS_PER_UID)
    with connect(loop) as late:
        loop.settle()
        assert "busy" in json.loads(read_all(late))["error"]
    uid = 1001
    assert ask(loop, b'{"verb": "status"}\n')["ok"]
    for sock in sockets:
        sock.close()


def test_answers_that_nobody_takes_have_a_bound_over_all_clients(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """32 clients of a user with 8 MB each are 256 MB, and the unit has 192."""
    monkeypatch.setattr(server_module, "_peer_uid", lambda sock: 1000)
    sockets = crowd(loop, 10)
    for sock in sockets:
        sock.sendall(b'{"verb": "big"}\n')
    loop.settle()

    def held() -> List[int]:
        clients = loop.server._clients.values()
        return [len(client.line) for client in clients if client.answer is not None]

    assert len(held()) == 3 and sum(held()) <= 32 << 20
    refused = [json.loads(read_all(sock)) for sock in sockets[3:]]
    assert all(not each["ok"] and "busy" in each["error"] for each in refused)
    # Root gets its answer all the same, in the place of the oldest.
    monkeypatch.setattr(server_module, "_peer_uid", lambda sock: 0)
    with connect(loop) as sock:
        sock.sendall(b'{"verb": "big"}\n')
        loop.settle()
        assert json.loads(read_all(sock, loop.settle))["ok"]
    assert len(held()) == 2
    for sock in sockets:
        sock.close()


def test_without_free_descriptors_it_neither_spins_nor_dies(loop: Loop) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with connect(loop) as waiting:
        waiting.sendall(b'{"verb": "status"}\n')
        resource.setrlimit(resource.RLIMIT_NOFILE, (waiting.fileno() + 1, hard))
        try:
            loop.settle()
            assert loop.server.clients == 0
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        loop.server.expire(loop.now)
        loop.settle()
        assert json.loads(read_all(waiting))["ok"]


def test_a_dead_daemons_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    loop = Loop(path)
    assert ask(loop, b'{"verb": "status"}\n')["ok"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o666
    loop.server.close()
    assert not path.exists()


def test_a_successors_socket_is_left_alone(tmp_path: Path) -> None:
    first = Loop(tmp_path / "control.sock")
    second = Loop(tmp_path / "control.sock")
    first.server.close()
    assert ask(second, b'{"verb": "status"}\n')["ok"]
    second.server.close()


def test_what_is_no_socket_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    path.write_text("mine")
    with pytest.raises(FileExistsError, match=r"control\.sock"):
        Loop(path)
    assert path.read_text() == "mine"


def test_a_path_that_is_too_long_is_named(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 120) / "control.sock"
    path.parent.mkdir()
    with pytest.raises(OSError, match="too long") as caught:
        Loop(path)
    assert caught.value.filename == str(path)


@pytest.mark.parametrize("value", [True, 0, -1, 1.5, "15M", None, [], 1 << 63])
def test_a_size_is_a_positive_whole_number(value: object) -> None:
    with pytest.raises(RequestError) as caught:
        size_argument({"bytes": value}, "bytes")
    assert caught.value.exit_code == 2


def test_arguments() -> None:
    assert size_argument({"bytes": 4096}, "bytes") == 4096
    assert text_argument({}, "device") is None
    assert text_argument({"device": "sda"}, "device") == "sda"
    with pytest.raises(RequestError):
        text_argument({"device": 8}, "device")
