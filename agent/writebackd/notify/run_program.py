# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs a program that may hang, flood its output, or leave children behind."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from typing import Sequence

from .alert_text import line
from .route import Refused, RouteError

# Of its output that is kept for the log; the rest is read and thrown away.
_MOST_OUTPUT = 4096
# How long an end is looked for at a time: nothing tells it but asking (pidfd: Linux 5.3).
_LOOK_S = 0.05
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def run_program(argv: Sequence[str], text: bytes, limit_s: float) -> None:
    """Run it with `text` as its standard input.

    Raises RouteError when it cannot be started, Refused when it ends with another exit code
    than 0 or is not done in `limit_s` seconds: then its whole process group is killed.
    """
    # A file in memory: a program that does not read its input cannot hold us up.
    with contextlib.ExitStack() as stack:
        source = os.memfd_create("alert", os.MFD_CLOEXEC)
        stack.callback(os.close, source)
        with open(source, "wb", closefd=False) as file:
            file.write(text)
        os.lseek(source, 0, os.SEEK_SET)
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
        _let_it_be_killed_first(child.pid)
        assert child.stdout is not None
        stack.callback(child.stdout.close)
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


def _let_it_be_killed_first(pid: int) -> None:
    """It inherits OOMScoreAdjust=-900, and in the unit's MemoryMax= the agent is the largest."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "w") as file:
        file.write("500")


def _watch(child: "subprocess.Popen[bytes]", pipe: int, deadline: float) -> bytes:
    """The start of its output, once it has ended or the time is over."""
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
