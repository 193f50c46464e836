# SPDX-License-Identifier: GPL-2.0-or-later
"""Locks the process in memory, so that no page fault waits for a hung disk; reads its usage."""

from __future__ import annotations

import ctypes
import errno
import gc
import logging
import os
import re
import threading
import time
from typing import Iterator, Optional, Tuple

from writebackd.kernel.files import KernelFiles
from writebackd.kernel.vm import page_size

_CURRENT, _FUTURE, _ON_FAULT = 1, 2, 4  # MCL_*
_POPULATE_READ = 22  # MADV_POPULATE_READ, since Linux 5.14
_ARENA_MAX = -8  # M_ARENA_MAX of mallopt(3)
# Of a thread: a thousand frames of Python take half of it. glibc's own is 8 MB.
_STACK_BYTES = 1 << 20
_COLLECT_AFTER = 50_000
# Address, end and file of what can be read, in /proc/self/maps.
_MAPPED = re.compile(r"^(\w+)-(\w+) r(?:[^ \n]+ +){4}(/(?!dev/|run/)[^\n]*)", re.MULTILINE)


def lock_used() -> Optional[str]:
    """Lock used pages from now on; returns an error or None. Call before the first thread.

    Without MCL_ONFAULT all that is mapped would be resident (40 MB more).  VmLck counts that
    all the same: glibc maps a heap of 64 MB and a stack of 8 MB for each thread, 695 MB of which
    30 were used.  So all share one heap (only one has the GIL), and stacks are small.
    """
    ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)
    threading.stack_size(_STACK_BYTES)
    return _lock(_CURRENT | _FUTURE | _ON_FAULT)


def lock_all() -> Optional[str]:
    """Lock all current and future mappings, used or not; returns an error or None."""
    ctypes.CDLL(None).malloc_trim(0)
    return _lock(_CURRENT | _FUTURE)


def collect_seldom() -> None:
    """Exclude existing objects from garbage collection, and run it per 50 000 new ones, about 5 MB.

    Objects of a tick have no cycles and are freed without the collector, which would scan them
    repeatedly: a seventh of a tick's time with 1 024 disks.
    """
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER)


def read_in_code() -> Optional[str]:
    """Read all code and constants into memory, also unused ones; returns an error or None.

    After `lock_used` they stay, 2.5 MB; otherwise they are loaded at first use.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    problem = None
    for start, size in _code():
        if libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), _POPULATE_READ):
            number = ctypes.get_errno()
            problem = f"madvise: {os.strerror(number)}"
            if number == errno.EINVAL:
                problem = "this kernel has no MADV_POPULATE_READ (Linux 5.14)"
    return problem


def set_name(name: str) -> None:
    """The process name in ps(1), 15 bytes."""
    ctypes.CDLL(None).prctl(15, name.encode(), 0, 0, 0)  # PR_SET_NAME


def _lock(flags: int) -> Optional[str]:
    libc = ctypes.CDLL(None, use_errno=True)
    return os.strerror(ctypes.get_errno()) if libc.mlockall(flags) else None


def _code() -> Iterator[Tuple[int, int]]:
    """Address and size of the mappings of executables and libraries."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for start, end, path in _MAPPED.findall(maps.read()):
            if "/locale/" not in path:  # what is needed of that was read at the start
                yield int(start, 16), int(end, 16) - int(start, 16)


log = logging.getLogger(__name__)


class Usage:
    """Counts from the first `read` on: loading and trying BPF programs is not the running cost."""

    def __init__(self, files: KernelFiles) -> None:
        self._files = files
        self._cpu_at_start: Optional[float] = None
        self._resident = 0

    def read(self) -> Tuple[float, int]:
        """CPU seconds since the first call, and resident bytes; the last known on error."""
        spent = time.process_time()
        if self._cpu_at_start is None:
            self._cpu_at_start = spent
        try:
            self._resident = int(self._files.read("/proc/self/statm").split()[1]) * page_size()
        except (OSError, ValueError, IndexError) as error:
            log.debug("own usage: %s", error)
        return spent - self._cpu_at_start, self._resident
