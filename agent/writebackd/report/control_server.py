# SPDX-License-Identifier: GPL-2.0-or-later
"""The control socket, and the base of all servers in the event loop.

Every local user may connect, so nothing a client does, or leaves undone, may delay the loop or
grow its memory: sockets never block, requests are short, and each client has a deadline.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import selectors
import socket
import stat
import struct
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple

log = logging.getLogger(__name__)

MAX_REQUEST = 4096  # bytes; the longest honest request is a device name
MAX_CLIENTS = 64
# Of one user other than root (all that are not known are one): answers are megabytes with
# 1 000 devices, and the rest get in.
MAX_CLIENTS_PER_UID = 32
# Answers that clients have not taken yet, over all of them; one more is always given.
MAX_ANSWER_BYTES = 32 << 20
DEADLINE_S = 5.0  # from connection to the last byte of the answer
# New connections taken per call, so that a storm of them cannot delay a tick.
_ACCEPTS_PER_CALL = 4
# struct ucred of SO_PEERCRED: pid, uid, gid.
_UCRED = struct.Struct("iII")

# Exit codes sent to clients; the same as in cli/exit_codes.py.
_EXIT_BAD_NEWS, _EXIT_USAGE, _EXIT_NOT_PERMITTED = 1, 2, 4

WRITE_VERBS = frozenset({"mode", "pin", "release", "forget", "trial", "drain", "reset-stats"})

Handler = Callable[[str, Dict[str, Any], int], Mapping[str, Any]]


class RequestError(Exception):
    """A request that cannot be granted; the message tells the user what to do."""

    def __init__(self, message: str, exit_code: int = _EXIT_USAGE) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def text_argument(args: Mapping[str, Any], name: str) -> Optional[str]:
    """A string among the arguments, None when absent. Raises RequestError."""
    value = args.get(name)
    if value is None or isinstance(value, str):
        return value
    raise RequestError(f"{name}: expected text, found {json.dumps(value)[:40]}")


def size_argument(args: Mapping[str, Any], name: str, of: str = " of bytes") -> int:
    """A positive whole number among the arguments. Raises RequestError."""
    value = args.get(name)
    # 2**63: what the kernel's sysctl parser takes as an unsigned long, with room.
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 63:
        raise RequestError(f"{name}: expected a number{of} above 0")
    return value


def names_argument(args: Mapping[str, Any], name: str) -> Tuple[str, ...]:
    """Strings among the arguments, none when absent. Raises RequestError."""
    value = args.get(name, [])
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return tuple(value)
    raise RequestError(f"{name}: expected a list of names, found {json.dumps(value)[:40]}")


def seconds_argument(args: Mapping[str, Any], name: str) -> Optional[float]:
    """Seconds above 0 among the arguments, None when absent. Raises RequestError."""
    value = args.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e9:
        raise RequestError(f"{name}: expected seconds above 0")
    return float(value)


class _Client:
    __slots__ = ("answer", "deadline_s", "line", "received", "sock", "uid")

    def __init__(self, sock: socket.socket, uid: Optional[int], deadline_s: float) -> None:
        self.sock = sock
        self.uid = uid  # None: it came over TCP, and the kernel does not say
        self.deadline_s = deadline_s
        self.received = bytearray()
        self.line = b""  # the answer, in memory until its last byte is sent
        self.answer: Optional[memoryview] = None  # what is still to be sent of it


class LoopServer(ABC):
    """Takes one request per connection, answers and closes; for a loop that owns the selector.

    The loop calls `service(key, mask)` for each ready key whose `data` is this
    server, and `expire(now)` (CLOCK_MONOTONIC seconds) about once a second.
    """

    def __init__(
        self, listener: socket.socket, what: str, clock: Callable[[], float] = time.monotonic,
        remove: Optional[Tuple[Path, int]] = None,
    ) -> None:
        """`listener` does not block; close() closes it, and removes its file, of this inode.

        `what` is for the log.
        """
        self._listener, self._remove = listener, remove
        self._what = what
        self._clock = clock
        self._clients: Dict[int, _Client] = {}
        self._selector: Optional[selectors.BaseSelector] = None
        self._listening = False  # registered with the selector

    @abstractmethod
    def _reply(self, received: bytes, uid: Optional[int]) -> Optional[bytes]:
        """The answer to the bytes received so far; None if incomplete. Raises nothing."""

    @abstractmethod
    def _busy(self) -> bytes:
        """The answer to a client for which there is no room."""

    def register(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._listen(True)

    @property
    def clients(self) -> int:
        return len(self._clients)

    def service(self, key: selectors.SelectorKey, mask: int) -> None:
        """Handle one ready key. Nothing a client does can make it raise."""
        if key.fileobj is self._listener:
            self._accept()
            return
        client = self._clients.get(key.fd)
        # A client dropped earlier in the same round of select() is gone.
        if client is not None and client.sock is key.fileobj:
            self._progress(client)

    def expire(self, now: float) -> None:
        """Drop clients past their deadline; listen again after a pause."""
        self._listen(True)
        for client in [c for c in self._clients.values() if c.deadline_s <= now]:
            self._drop(client)

    def close(self) -> None:
        """Drop all clients, stop listening, and remove the socket's file if it is still ours."""
        for client in list(self._clients.values()):
            self._drop(client)
        self._listen(False)
        self._selector = None
        self._listener.close()
        if self._remove is not None:
            path, inode = self._remove
            with contextlib.suppress(OSError):
                if os.lstat(path).st_ino == inode:
                    os.unlink(path)

    def _listen(self, wanted: bool) -> None:
        if self._selector is None or self._listening == wanted:
            return
        self._listening = wanted
        if wanted:
            self._selector.register(self._listener, selectors.EVENT_READ, self)
        else:
            self._selector.unregister(self._listener)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_PER_CALL):
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # EMFILE and the like: the socket stays ready, and the loop would spin on it.
                log.warning("%s: %s", self._what, error)
                self._listen(False)
                return
            sock.setblocking(False)
            try:
                uid = self._uid_of(sock)
            except OSError:
                sock.close()
                continue
            self._admit(_Client(sock, uid, self._clock() + DEADLINE_S))

    def _uid_of(self, sock: socket.socket) -> Optional[int]:
        """The uid of the peer. Raises OSError."""
        return _peer_uid(sock)

    def _admit(self, client: _Client) -> None:
        everybody = list(self._clients.values())
        full = len(everybody) >= MAX_CLIENTS and not self._make_room(client.uid, everybody)
        same = sum(each.uid == client.uid for each in self._clients.values())
        if full or (client.uid != 0 and same >= MAX_CLIENTS_PER_UID):
            with contextlib.suppress(OSError):
                client.sock.send(self._busy())
            client.sock.close()
            return
        self._clients[client.sock.fileno()] = client
        if self._selector is not None:
            self._selector.register(client.sock, selectors.EVENT_READ, self)
        # An honest client has sent its line by now: most need no second round.
        self._progress(client)

    def _make_room(self, uid: Optional[int], among: Sequence[_Client]) -> bool:
        """Root replaces the oldest other client, so that nobody can lock it out."""
        others = [c for c in among if c.uid != 0] if uid == 0 else []
        if others:
            self._drop(min(others, key=lambda c: c.deadline_s))
        return bool(others)

    def _progress(self, client: _Client) -> None:
        try:
            if client.answer is None:
                self._read(client)
            if client.answer is not None:
                self._write(client)
        except BlockingIOError:
            pass
        except OSError:
            self._drop(client)

    def _read(self, client: _Client) -> None:
        chunk = client.sock.recv(MAX_REQUEST + 1)
        client.received += chunk
        answer = self._reply(bytes(client.received), client.uid)
        if answer is None:
            if not chunk:
                self._drop(client)
            return
        if not self._fits(answer, client.uid):
            answer = self._busy()
        client.line = answer
        client.answer = memoryview(answer)
        if self._selector is not None:
            self._selector.modify(client.sock, selectors.EVENT_WRITE, self)

    def _fits(self, answer: bytes, uid: Optional[int]) -> bool:
        """Whether there is memory for one more answer."""
        while True:
            held = [c for c in self._clients.values() if c.answer is not None]
            # What clients share is there once.
            lines = {id(c.line): len(c.line) for c in held}
            if not lines or id(answer) in lines:
                return True
            if sum(lines.values()) + len(answer) <= MAX_ANSWER_BYTES:
                return True
            if not self._make_room(uid, held):
                return False

    def _write(self, client: _Client) -> None:
        assert client.answer is not None
        client.answer = client.answer[client.sock.send(client.answer) :]
        if not client.answer:
            self._drop(client)

    def _drop(self, client: _Client) -> None:
        if self._clients.pop(client.sock.fileno(), None) is None:
            return
        if self._selector is not None:
            self._selector.unregister(client.sock)
        client.sock.close()


class ControlServer(LoopServer):
    """The control socket. The caller ensures that only one daemon uses the path."""

    def __init__(
        self, path: Path, handler: Handler, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Bind and listen. Raises OSError naming the path."""
        self.path = path
        self._handler = handler
        listener, inode = open_unix_listener(path)
        super().__init__(listener, "control socket", clock, (path, inode))

    def _reply(self, received: bytes, uid: Optional[int]) -> Optional[bytes]:
        line, newline, _ = received.partition(b"\n")
        if newline and len(line) <= MAX_REQUEST:
            assert uid is not None  # a Unix socket tells
            return self._answer(line, uid)
        if len(received) > MAX_REQUEST:
            return _failure(f"request longer than {MAX_REQUEST} bytes", _EXIT_USAGE)
        return None

    def _busy(self) -> bytes:
        return _failure("writebackd is busy: try again", _EXIT_BAD_NEWS)

    def _answer(self, line: bytes, uid: int) -> bytes:
        try:
            verb, args = _parse(line)
            if verb in WRITE_VERBS and uid != 0:
                raise RequestError("this needs root: try again with sudo", _EXIT_NOT_PERMITTED)
            return _success(self._handler(verb, args, uid))
        except RequestError as error:
            return _failure(str(error), error.exit_code)
        except Exception:
            log.exception("control socket: request failed")
            return _failure("writebackd could not answer: see its log", _EXIT_BAD_NEWS)


def open_unix_listener(path: Path) -> Tuple[socket.socket, int]:
    """A socket that everybody may connect to, and its inode. Raises OSError naming the path.

    An existing socket file is assumed to be stale and replaced.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        try:
            if not stat.S_ISSOCK(os.lstat(path).st_mode):
                raise FileExistsError(errno.EEXIST, "not a socket: move it away", str(path))
            os.unlink(path)
        except FileNotFoundError:
            pass
        try:
            listener.bind(str(path))
        except OSError as error:
            # "AF_UNIX path too long" comes without errno and without the path.
            raise OSError(error.errno or errno.ENAMETOOLONG, str(error), str(path)) from None
        # Everybody may ask; who may change something is decided per verb.
        os.chmod(path, 0o666)
        listener.listen(MAX_CLIENTS)
        return listener, os.lstat(path).st_ino
    except BaseException:
        listener.close()
        raise


def _peer_uid(sock: socket.socket) -> int:
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return int(_UCRED.unpack(credentials)[1])


def _parse(line: bytes) -> Tuple[str, Dict[str, Any]]:
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        raise RequestError("request is not a line of JSON") from None
    if not isinstance(request, dict):
        raise RequestError("request is not a JSON object")
    verb, args = request.get("verb"), request.get("args", {})
    if not isinstance(verb, str) or not isinstance(args, dict):
        raise RequestError('request needs "verb" (text) and may have "args" (object)')
    return verb, args


def _success(data: Mapping[str, Any]) -> bytes:
    # allow_nan: NaN is no JSON; a client must not be sent any.
    return json.dumps({"ok": True, "data": data}, allow_nan=False).encode("ascii") + b"\n"


def _failure(message: str, exit_code: int) -> bytes:
    answer = {"ok": False, "error": message, "exit": exit_code}
    return json.dumps(answer).encode("ascii") + b"\n"
