# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs an admin's program for each alert event, with the event as JSON on stdin.

It runs unprivileged, with a time limit: it may hang, flood its output, or leave children behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import time
from functools import partial
from math import ceil
from pathlib import Path
from typing import List, Sequence

from writebackd.paths import others_may_choose

from .alert_events import AlertEvent, alert_event_json, line
from .route import QueuedRoute, Refused, RouteError

# Of its output that is kept for the log; the rest is read and thrown away.
_MOST_OUTPUT = 4096
# Seconds between checks for the end: it can only be polled (pidfd: Linux 5.3).
_LOOK_S = 0.05
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NOBODY = 65534
# CAP_SETGID and CAP_SETUID; of nobody's process CAP_DAC_OVERRIDE for its oom_score_adj, and
# CAP_KILL should it hang.
_CAPABILITIES = 1 << 6 | 1 << 7 | 1 << 1 | 1 << 5
# systemd-run --wait asks over the bus.
_SYSTEMD, _BUS = Path("/run/systemd/system"), Path("/run/dbus/system_bus_socket")


def hook_route(program: str, host: str, runbook: str, limit_s: float) -> QueuedRoute:
    return QueuedRoute("exec", program, partial(_send, program, host, runbook, limit_s))


def _send(program: str, host: str, runbook: str, limit_s: float, event: AlertEvent) -> None:
    text = json.dumps(alert_event_json(event, host, runbook)) + "\n"
    run_unprivileged("exec", [program], text.encode("ascii"), limit_s)


def run_unprivileged(
    name: str, argv: Sequence[str], text: bytes, limit_s: float, set_uid: bool = False
) -> None:
    """As `run_program`, with the command made by `unprivileged`."""
    try:
        run_program(unprivileged(name, argv, limit_s, set_uid), text, limit_s)
    except Refused as error:
        unit = _unit(name)
        if re.search(rf"Unit {re.escape(unit)} .*already (loaded|exists)", str(error)):
            # Not by the program, which will take it once that is over.
            raise RouteError(f"not started: its last run has not ended yet ({unit})") from None
        raise


def _unit(name: str) -> str:
    return f"writebackd-{name}.service"


def unprivileged(
    name: str, argv: Sequence[str], limit_s: float, set_uid: bool = False
) -> List[str]:
    """A command that runs `argv` without privileges; only root may change the program.

    `name` is the route's. `set_uid`: a set-uid or set-gid program that it starts gains what it is
    made to gain, as an MTA's that takes mail from every user. Raises RouteError.
    """
    try:
        why = others_may_choose(argv[0])
    except OSError as error:
        raise RouteError(f"cannot start: {error.strerror}") from None
    if why:
        raise RouteError(f"not started: {why}")
    if os.geteuid() != 0:
        return list(argv)
    if not os.stat(argv[0]).st_mode & 0o001:
        raise RouteError(f"cannot start, it runs as nobody: chmod a+rx {argv[0]}")
    if _may_change_user():
        gains = [] if set_uid else ["--no-new-privs"]
        user = [f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups", "--inh-caps=-all"]
        return ["setpriv", *user, *gains, *argv]
    cannot = "not started: this process cannot give up root for it, and"
    if not _SYSTEMD.is_dir():
        raise RouteError(
            f"{cannot} no systemd runs to start it; see docs/reference/alert-routes.md"
        )
    if not _BUS.exists():
        raise RouteError(
            f"{cannot} systemd is not on the system bus to start it: install dbus; see"
            " docs/reference/alert-routes.md"
        )
    # DynamicUser= comes with NoNewPrivileges=, a read-only system and a /tmp of its own. Of a unit
    # that lives systemd starts no second one; without TimeoutStopSec= one that ignores SIGTERM
    # would live for 90 s more.
    properties = (
        "User=nobody" if set_uid else "DynamicUser=yes", f"RuntimeMaxSec={ceil(limit_s)}",
        "TimeoutStopSec=1", "TasksMax=64", "MemoryMax=256M", "OOMScoreAdjust=500",
    )  # fmt: skip
    return [
        "systemd-run", "--quiet", "--collect", "--pipe", "--wait", f"--unit={_unit(name)}",
        "--setenv=LC_ALL=C.UTF-8", *(f"--property={setting}" for setting in properties), *argv,
    ]  # fmt: skip


def _may_change_user() -> bool:
    """Whether we may: not within the unit, with its narrow CapabilityBoundingSet=."""
    effective = re.search(r"^CapEff:\s*(\w+)", Path("/proc/self/status").read_text(), re.M)
    return effective is not None and int(effective[1], 16) & _CAPABILITIES == _CAPABILITIES


def run_program(argv: Sequence[str], text: bytes, limit_s: float) -> None:
    """Run it with `text` as its standard input.

    Raises RouteError when it cannot be started, Refused when it ends with another exit code
    than 0 or is not done in `limit_s` seconds: then its whole process group is killed.
    """
    # A file in memory: a program that does not read its input cannot hold us up.
    with open(os.memfd_create("alert", os.MFD_CLOEXEC), "w+b") as source:
        source.write(text)
        source.flush()
        source.seek(0)
        try:
            child = subprocess.Popen(
                list(argv),
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd="/",
                env={"PATH": _PATH, "LC_ALL": "C.UTF-8"},
                start_new_session=True,  # a group of its own, also out of Ctrl-C's reach
            )
        except OSError as error:
            what = error.filename or argv[0]  # setpriv, say, that is to start it
            raise RouteError(f"cannot start: {what}: {error.strerror or error}") from None
    # Not our OOMScoreAdjust=-900: the agent is the unit's largest process.
    with contextlib.suppress(OSError), open(f"/proc/{child.pid}/oom_score_adj", "w") as file:
        file.write("500")
    assert child.stdout is not None
    with child.stdout:
        os.set_blocking(child.stdout.fileno(), False)
        output = _watch(child, child.stdout.fileno(), time.monotonic() + limit_s)
        if child.returncode is None:
            # Before it is waited for, so that the number is still its own.
            os.killpg(child.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(1.0)  # one that is in the kernel cannot be killed
            raise Refused(_said(f"killed: not done within {limit_s:g} s", output))
    if child.returncode:
        how = f"exit code {child.returncode}"
        if child.returncode < 0:
            how = f"ended by signal {-child.returncode}"
        raise Refused(_said(how, output))


def _watch(child: "subprocess.Popen[bytes]", pipe: int, deadline: float) -> bytes:
    """The start of its output, when it has ended or the time is over."""
    output = b""
    open_ = True
    while True:
        ended = child.poll() is not None
        left = deadline - time.monotonic()
        if open_:
            wait_s = 0.0 if ended else max(0.0, min(left, _LOOK_S))
            ready, _, _ = select.select([pipe], [], [], wait_s)
            if ready:
                chunk = os.read(pipe, 65536)
                output += chunk[: _MOST_OUTPUT - len(output)]
                open_ = bool(chunk)
                # A child of its own may go on writing for ever.
                if left > 0 and chunk and len(output) < _MOST_OUTPUT:
                    continue
        elif not ended:
            time.sleep(max(0.0, min(left, _LOOK_S)))
        if ended or left <= 0:
            return output


def _said(how: str, output: bytes) -> str:
    text = line(" / ".join(output.decode("utf-8", "replace").split("\n")).strip(" /"))
    return f"{how}: {text}" if text else how
