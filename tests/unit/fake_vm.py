# SPDX-License-Identifier: GPL-2.0-or-later
"""A kernel's global dirty limits without a kernel.

The handlers follow mm/page-writeback.c; tests/kernel/test_vm_limits.py makes
the same writes here and on the running kernel and compares.
"""

from __future__ import annotations

import errno
import os
from typing import Callable, Dict, List, Optional, Tuple

from writebackd.kernel.files import KernelFiles
from writebackd.types.levers import VmLimits

PAGE = os.sysconf("SC_PAGE_SIZE")
SYSCTL = "/proc/sys/vm/"
DEFAULT = VmLimits(0, 20, 0, 10)
_ULONG = 1 << 64
_UINT_MAX = (1 << 32) - 1


class Crash(BaseException):
    """The process is gone: no handler of the code under test may catch it."""


class FakeVm(KernelFiles):
    """The four files and their thresholds in /proc/vmstat, plus what host_info reads.

    `errors[name]` is the errno with which reading and writing a file fails,
    `write_errors[name]` the same for writing only (`late=True`: after it took
    effect).  `crash_before` counts writes down: at 0 the process dies.
    """

    def __init__(self, limits: VmLimits = DEFAULT, available: int = 1 << 20) -> None:
        super().__init__()
        self.found = limits
        self.values: Dict[str, int] = dict(vars(limits))
        self.available = available  # dirtyable memory in pages
        self.free = 5_500_000  # nr_free_pages
        self.dirty = (21, 3)  # nr_dirty, nr_writeback in pages
        self.boot_id = "0c5d1a3e-7b1f-4c7e-9d43-1a2b3c4d5e6f"
        self.errors: Dict[str, int] = {}
        self.write_errors: Dict[str, Tuple[int, bool]] = {}
        self.crash_before: Optional[int] = None
        self.before_write: Callable[[str], None] = lambda lever: None
        self.writes: List[Tuple[str, str]] = []
        self.texts = {
            "/proc/meminfo": "MemTotal:       24689100 kB\nMemFree:         1234 kB",
            "/sys/devices/system/cpu/online": "0-63,72",
        }

    @property
    def limits(self) -> VmLimits:
        return VmLimits(**self.values)

    def read(self, name: str) -> str:
        lever = name[len(SYSCTL) :]
        if name in self.errors:
            raise OSError(self.errors[name], os.strerror(self.errors[name]), name)
        if name.startswith(SYSCTL) and lever in self.values:
            return str(self.values[lever])
        if name == "/proc/vmstat":
            return self._vmstat()
        if name == "/proc/sys/kernel/random/boot_id":
            return self.boot_id
        if name in self.texts:
            return self.texts[name]
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), name)

    def write(self, name: str, value: str) -> None:
        lever = name[len(SYSCTL) :]
        self.faulty_write(lever, name, value, lambda: self.sysctl(lever, int(value)))

    def faulty_write(self, key: str, name: str, value: str, write: Callable[[], None]) -> None:
        """`write` with the faults that are asked for under `key`, by which it is recorded."""
        self.before_write(key)
        if self.crash_before is not None:
            if self.crash_before == 0:
                raise Crash
            self.crash_before -= 1
        code, late = self.write_errors.get(key, (self.errors.get(name, 0), False))
        if code and not late:
            raise OSError(code, os.strerror(code), name)
        write()
        self.writes.append((key, value))
        if code:
            raise OSError(code, os.strerror(code), name)

    def sysctl(self, lever: str, value: int) -> None:
        """A write by somebody else: no fault and no crash of ours touches it."""
        in_bytes, pair = lever.endswith("bytes"), lever.rpartition("_")[0]
        least = 2 * PAGE if lever == "dirty_bytes" else 1
        _refuse(value < least if in_bytes else value not in range(101))
        # Only the limit's handlers look whether it is another value; the same clears nothing.
        if pair == "dirty" and value == self.values[lever]:
            return
        _refuse(in_bytes and (value + PAGE - 1) % _ULONG // PAGE > _UINT_MAX, errno.ERANGE)
        self.values[lever] = value
        self.values[f"{pair}_ratio" if in_bytes else f"{pair}_bytes"] = 0

    def thresholds(self) -> Tuple[int, int]:
        """Limit and background limit in pages: global_dirty_limits()."""
        limit = self._pages("dirty_bytes", "dirty_ratio")
        background = self._pages("dirty_background_bytes", "dirty_background_ratio")
        limit = min(limit, _UINT_MAX)
        return limit, background if background < limit else limit // 2

    def _pages(self, bytes_lever: str, ratio_lever: str) -> int:
        if self.values[bytes_lever]:
            return (self.values[bytes_lever] + PAGE - 1) % _ULONG // PAGE
        # Percent become 1/PAGE_SIZE first, and lose their fraction there.
        return self.values[ratio_lever] * PAGE // 100 * self.available // PAGE

    def _vmstat(self) -> str:
        limit, background = self.thresholds()
        counters = {
            "nr_free_pages": self.free,
            "nr_inactive_file": 400_000,
            "nr_active_file": 100_000,
            "nr_dirty": self.dirty[0],
            "nr_writeback": self.dirty[1],
            "nr_writeback_temp": 7,
            "nr_dirtied": 11,
            "nr_dirty_threshold": limit,
            "nr_dirty_background_threshold": background,
        }
        return "\n".join(f"{name} {count}" for name, count in counters.items())


def _refuse(condition: bool, code: int = errno.EINVAL) -> None:
    if condition:
        raise OSError(code, os.strerror(code))
