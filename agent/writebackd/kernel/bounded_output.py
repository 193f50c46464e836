# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs a program that may hang or print without end, and returns its output."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from typing import List, Mapping, Sequence, Tuple

# From the signal on; what is in the kernel then is left to systemd.
_DIES_S = 2.0


def output_of(
    argv: Sequence[str], home: str, environment: Mapping[str, str], limit_s: float, most: int
) -> Tuple[int, bytes]:
    """Exit code and output; a little more than `most` means that there was too much.

    The program and its children are killed when it is done, or over its time. Raises OSError,
    TimeoutError.
    """
    child = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        cwd=home, env=environment, start_new_session=True,
    )  # fmt: skip
    try:
        output = _read(child, time.monotonic() + limit_s, limit_s, most)
    finally:
        _end(child)
    return child.returncode or 0, output


def _read(
    child: "subprocess.Popen[bytes]", deadline: float, limit_s: float, most: int
) -> bytes:
    assert child.stdout is not None
    chunks: List[bytes] = []
    size = 0
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not selector.select(left):
                raise TimeoutError(f"not done within {limit_s:g} s")
            chunk = os.read(child.stdout.fileno(), 1 << 16)
            chunks.append(chunk)
            size += len(chunk)
            if not chunk or size > most:
                return b"".join(chunks)


def _end(child: "subprocess.Popen[bytes]") -> None:
    """Kill the program and its children; one that closed its output may be about to end."""
    assert child.stdout is not None
    child.stdout.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        if child.poll() is None:
            child.wait(0.1)
    # The group lives while anybody in it does, also when its leader is gone.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_DIES_S)
