# SPDX-License-Identifier: GPL-2.0-or-later
"""Locks the process in memory, so that no page fault waits for a hung disk."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
from typing import Iterator, Optional, Tuple

_CURRENT, _FUTURE, _ON_FAULT = 1, 2, 4  # MCL_*
_POPULATE_READ = 22  # MADV_POPULATE_READ, since Linux 5.14
_ARENA_MAX = -8  # M_ARENA_MAX of mallopt(3)
# Of a thread: a thousand frames of Python take half of it. glibc's own is 8 MB.
_STACK_BYTES = 1 << 20
_COLLECT_AFTER = 50_000
# What of these is needed was read at the start.
_UNUSED = ("/locale/",)


def lock_used() -> Optional[str]:
    """Lock what is used, from now on; why it could not be, or None. Before the first thread.

    MCL_ONFAULT: without it every mapped library and thread stack would be
    resident (about 40 MB more).  VmLck counts mapped address space all the same: glibc maps a heap
    of 64 MB and a stack of 8 MB for each thread, together 695 MB of which 30 were used.  So there
    is one heap for all (one thread at a time has the GIL), and stacks are small.
    """
    ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)
    threading.stack_size(_STACK_BYTES)
    return _lock(_CURRENT | _FUTURE | _ON_FAULT)


def lock_all() -> Optional[str]:
    """Lock all that is mapped or will be, used or not; why it could not be, or None."""
    ctypes.CDLL(None).malloc_trim(0)
    return _lock(_CURRENT | _FUTURE)


def collect_seldom() -> None:
    """Leave what is there alone, and look for cycles among 50 000 new objects only, about 5 MB.

    What a tick makes has no cycles and is freed without the collector, which would look
    through it again and again: a seventh of a tick's time with 1 024 disks.
    """
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER)


def read_in_code() -> Optional[str]:
    """Read in all code and constants, also those that were not used yet; None when done.

    After `lock_used` they stay: 2.5 MB.  Where the kernel is too old for it, they come when
    they are used first.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    problem = None
    for start, size in _code():
        if libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), _POPULATE_READ):
            problem = os.strerror(ctypes.get_errno())
    return problem


def set_name(name: str) -> None:
    """What ps(1) shows of this process, 15 bytes."""
    ctypes.CDLL(None).prctl(15, name.encode(), 0, 0, 0)  # PR_SET_NAME


def _lock(flags: int) -> Optional[str]:
    libc = ctypes.CDLL(None, use_errno=True)
    return os.strerror(ctypes.get_errno()) if libc.mlockall(flags) else None


def _code() -> Iterator[Tuple[int, int]]:
    """Address and size of what is mapped from executables and libraries."""
    with open("/proc/self/maps", "rb") as maps:
        for line in maps.read().decode("utf-8", "surrogateescape").split("\n"):
            words = line.split(None, 5)
            if len(words) < 6 or not words[5].startswith("/") or words[1][0] != "r":
                continue
            if not words[5].startswith(("/dev/", "/run/")) and not any(
                name in words[5] for name in _UNUSED
            ):
                start, end = (int(part, 16) for part in words[0].split("-"))
                yield start, end - start
