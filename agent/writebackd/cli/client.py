# SPDX-License-Identifier: GPL-2.0-or-later
"""Client of the control socket: one JSON line out, one back."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from pathlib import Path
from typing import Any, Dict, Mapping, Optional

from writebackd.cli.exit_codes import BAD_NEWS, NO_DAEMON, NOT_PERMITTED, CommandError
from writebackd.paths import LEDGER, SOCKET, runtime_dir_in_use

# The daemon answers between two ticks, at once; a loaded host may take longer.
TIMEOUT_S = 5.0
# An answer is about 1 KiB a device; more than this is not our answer.
_MAX_ANSWER = 64 << 20
_TIMEVAL = struct.Struct("ll")


class NoDaemon(CommandError):
    """No process listens on the socket."""


class NoAnswer(CommandError):
    """A process listens, but does not answer in time."""


def request(
    runtime_dir: Path,
    verb: str,
    args: Optional[Mapping[str, Any]] = None,
    timeout_s: float = TIMEOUT_S,
) -> Dict[str, Any]:
    """The daemon's data for `verb`. Raises CommandError (NoDaemon, NoAnswer)."""
    path = runtime_dir / SOCKET
    line = json.dumps({"verb": verb, "args": dict(args or {})}).encode("ascii") + b"\n"
    try:
        reply = _exchange(path, line, timeout_s)
        answer = json.loads(reply)
        good = bool(answer["ok"])
        if not good:
            raise CommandError(str(answer["error"]), int(answer["exit"]))
        data: Dict[str, Any] = answer["data"]
        return data
    except (FileNotFoundError, ConnectionRefusedError):
        raise NoDaemon(f"no daemon at {path}{_left_by_it(runtime_dir)}", NO_DAEMON) from None
    except PermissionError:
        raise CommandError(f"no access to {path}: try again with sudo", NOT_PERMITTED) from None
    except BlockingIOError:  # EAGAIN: a timed call ran out of time
        raise NoAnswer(
            f"writebackd does not answer within {timeout_s:.0f}s: see its log,"
            " `systemctl status writebackd`",
            NO_DAEMON,
        ) from None
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}", NO_DAEMON) from error
    except (ValueError, KeyError, TypeError):
        raise CommandError(
            f"no valid answer from {path}: it may be busy, try again", BAD_NEWS
        ) from None


def kernel_name(device: str) -> str:
    """The kernel's likely name for a path below /dev, if no daemon can be asked."""
    # As sysfs writes cciss/c0d0.
    return device[5:].replace("/", "!") if device.startswith("/dev/") else device


def status_of(runtime_dir: Path, timeout_s: float = 1.0) -> Optional[Dict[str, Any]]:
    """The answer to `status`; None if no daemon gives one."""
    try:
        return request(runtime_dir, "status", timeout_s=timeout_s)
    except CommandError:
        return None


def _left_by_it(runtime_dir: Path) -> str:
    """What to do; more if the daemon is gone and its limits are still set."""
    # Imported here: the start-up time is imports, and mostly there is a daemon.
    from writebackd.actuate.ledger import LedgerError
    from writebackd.actuate.ledger_restore import left_in_force
    from writebackd.actuate.lock import is_locked
    from writebackd.kernel.files import KernelFiles

    start = "`systemctl start writebackd` or `sudo writebackd`"
    try:
        # One that lives without a socket is starting, or stopping; only root may look.
        alive = is_locked(runtime_dir)
        limits = "" if alive else left_in_force(KernelFiles(), runtime_dir / LEDGER)
    except (LedgerError, OSError, ValueError) as error:
        return f", but its limits may be in force: {error}"
    if not limits:
        return f": start it with {start}"
    where = "" if runtime_dir == runtime_dir_in_use() else f" --runtime-dir {runtime_dir}"
    unless = "unless a daemon is starting or stopping, " if alive is None else ""
    return (
        f", but limits of writebackd are in force: {limits}; {unless}restore them with"
        f" `sudo writebackctl{where} restore`, or start the daemon with {start}"
    )


def _exchange(path: Path, line: bytes, timeout_s: float) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        # Not settimeout(): on a non-blocking Unix socket connect() fails at once
        # while the daemon's backlog is full; a timed one waits for room.
        timeout = _TIMEVAL.pack(int(timeout_s), int(timeout_s % 1 * 1e6))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
        sock.connect(str(path))
        # Refused before it was read? Then the reason is in the answer.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            sock.sendall(line)
        received = bytearray()
        while not received.endswith(b"\n") and len(received) < _MAX_ANSWER:
            chunk = sock.recv(1 << 16)
            if not chunk:
                break
            received += chunk
        return bytes(received)
