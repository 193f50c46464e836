# SPDX-License-Identifier: GPL-2.0-or-later
"""The global dirty limits: /proc/sys/vm/dirty_* and the thresholds in /proc/vmstat.

Limit and background limit are a *pair* of files each, bytes and ratio: two
forms of one setting.  Writing one form zeroes the other, and the bytes files
refuse 0, so the ratio form is restored by writing the ratio (mm/page-writeback.c).
"""

from __future__ import annotations

import os
from typing import List, Mapping, NamedTuple, Optional, Tuple

from writebackd import formats
from writebackd.kernel.files import KernelFiles
from writebackd.types.levers import VmLimits
from writebackd.types.samples import HostInfo, VmState

# In the order of VmLimits.
LEVERS = ("dirty_bytes", "dirty_ratio", "dirty_background_bytes", "dirty_background_ratio")

_SYSCTL = "/proc/sys/vm/"
_VMSTAT = "/proc/vmstat"
_THRESHOLDS = ("nr_dirty_threshold", "nr_dirty_background_threshold")
_DIRTYABLE = ("nr_free_pages", "nr_inactive_file", "nr_active_file")
# NR_CPUS is 8192 at most (arch/x86/Kconfig); the limit's floor grows with them.
_MOST_CPUS = 8192

PairValue = Tuple[int, int]  # (bytes, ratio); the form not in use is 0


class Pair(NamedTuple):
    """The two files of one setting."""

    bytes_lever: str
    ratio_lever: str

    def value(self, limits: VmLimits) -> PairValue:
        """This pair's `(bytes, ratio)` in `limits`."""
        return getattr(limits, self.bytes_lever), getattr(limits, self.ratio_lever)

    def in_force(self, value: PairValue) -> Tuple[str, int]:
        """The lever of the form in use and its value; `(0, 0)` is a ratio of 0."""
        if value[0]:
            return self.bytes_lever, value[0]
        return self.ratio_lever, value[1]

    def describe(self, value: PairValue) -> str:
        """The value as sysctl(8) writes it, such as `dirty_ratio=20`."""
        return "{}={}".format(*self.in_force(value))


LIMIT = Pair("dirty_bytes", "dirty_ratio")
BACKGROUND = Pair("dirty_background_bytes", "dirty_background_ratio")
PAIRS = (LIMIT, BACKGROUND)


def in_words(limits: VmLimits) -> str:
    """Limit and background limit, as `20 % / 10 %` or `64M / 32M`."""
    values = (pair.value(limits) for pair in PAIRS)
    return " / ".join(formats.size(value[0]) if value[0] else f"{value[1]} %" for value in values)


def _natural(value: int, name: str) -> int:
    """`value`, if the kernel accepts it: an unsigned long. Raises ValueError."""
    if not 0 <= value < 1 << 64:
        raise ValueError(f"{name}: {str(value)[:20]} is impossible")
    return value


def read_limits(files: KernelFiles) -> VmLimits:
    """The four files. Raises OSError, or ValueError if one is not a number."""
    # Four files are not read at one instant: a write in between shows as a pair
    # with both forms set (which the kernel never has) or none (a rare setting).
    for _ in range(2):
        limits = VmLimits(*(_natural(files.read_int(_SYSCTL + lever), lever) for lever in LEVERS))
        if all((size == 0) != (ratio == 0) for size, ratio in (p.value(limits) for p in PAIRS)):
            break
    return limits


def write_lever(files: KernelFiles, lever: str, value: int) -> None:
    """Write one file. Raises OSError with the kernel's errno."""
    files.write(_SYSCTL + lever, str(value))


def write_pair(files: KernelFiles, pair: Pair, current: PairValue, wanted: PairValue) -> None:
    """Change `pair` from `current` to `wanted`, in the form of `wanted`.

    Raises OSError with the kernel's errno.
    """
    # dirty_ratio_handler() ignores an unchanged ratio.  In bytes form the ratio
    # is 0 already, so writing 0 would leave the bytes in force: pass through 1.
    # dirty_background_ratio_handler() makes no such test.
    if pair is LIMIT and wanted == (0, 0) and current[0]:
        write_lever(files, pair.ratio_lever, 1)
    write_lever(files, *pair.in_force(wanted))


def _counter(counters: Mapping[str, str], name: str) -> int:
    try:
        return _natural(int(counters[name]), name)
    except KeyError:
        raise ValueError(f"{_VMSTAT}: no {name}") from None
    except ValueError:
        raise ValueError(f"{_VMSTAT}: {name} is {counters[name][:40]!r}, not a number") from None


def read_state(files: KernelFiles) -> VmState:
    """The limits with their thresholds, and the dirty pages, in bytes.

    The kernel computes both thresholds while /proc/vmstat is read: exact in bytes form,
    in ratio form from the current memory.  A real-time reader sees a quarter of the limit
    and 1/32 of the smoothed limit more (6.18: 4921 instead of 3841 pages), so the caller
    must not be real-time.  nr_dirty may be off by 125 pages per CPU and node.
    Raises OSError, or ValueError naming the file.
    """
    limits = read_limits(files)
    page = page_size()
    lines = (line.partition(" ") for line in files.read(_VMSTAT).split("\n"))
    counters = {name: value for name, _, value in lines}
    try:
        # global_dirtyable_memory(); the reserve that it takes off is in no counter.
        dirtyable: Optional[int] = page * sum(_counter(counters, name) for name in _DIRTYABLE)
    except ValueError:
        dirtyable = None  # the limits can do without
    return VmState(
        limits=limits,
        dirty_bytes=_counter(counters, "nr_dirty") * page,
        writeback_bytes=_counter(counters, "nr_writeback") * page,
        threshold_bytes=_counter(counters, _THRESHOLDS[0]) * page,
        background_threshold_bytes=_counter(counters, _THRESHOLDS[1]) * page,
        dirtyable_bytes=dirtyable,
    )


def expected_thresholds(limit_bytes: int, background_bytes: int, page: int) -> Tuple[int, int]:
    """The kernel's thresholds for a pair in bytes form, both in pages.

    It rounds up to pages, and replaces a background limit that is not below the
    limit by half of the limit (global_dirty_limits()).
    """
    limit = -(-limit_bytes // page)
    background = -(-background_bytes // page)
    return limit, background if background < limit else limit // 2


def wrong_thresholds(
    limit_bytes: int, background_bytes: int, state: VmState
) -> List[Tuple[Pair, str, int, int]]:
    """Thresholds in force that differ from the two limits by more than a page.

    Each with its name in /proc/vmstat, what it should be and what it is, in bytes.  The sysctl
    files prove nothing: they read back what was written even if the kernel uses something else.
    """
    page = page_size()
    expected = expected_thresholds(limit_bytes, background_bytes, page)
    in_force = (state.threshold_bytes, state.background_threshold_bytes)
    return [
        (pair, name, should * page, has)
        for pair, name, should, has in zip(PAIRS, _THRESHOLDS, expected, in_force)
        if abs(has - should * page) > page
    ]


def readback_error(limit_bytes: int, background_bytes: int, state: VmState) -> Optional[str]:
    """How the thresholds in force differ from the two limits; None if they match."""
    page = page_size()
    wrong = [
        f"{name} is {has // page} pages instead of {should // page}"
        for _, name, should, has in wrong_thresholds(limit_bytes, background_bytes, state)
    ]
    return f"{_VMSTAT}: {', '.join(wrong)}" if wrong else None


def page_size() -> int:
    """The kernel's page in bytes."""
    return os.sysconf("SC_PAGE_SIZE")


def _cpus_online(files: KernelFiles) -> Optional[int]:
    """The number of CPUs in a list such as `0-3,8`; None if it cannot be read."""
    text = files.try_read("/sys/devices/system/cpu/online")
    try:
        ends = [part.split("-") for part in (text or "").split(",")]
        count = sum(int(end[-1]) - int(end[0]) + 1 for end in ends)
    except ValueError:
        return None
    return count if 0 < count <= _MOST_CPUS else None


def host_info(files: KernelFiles) -> HostInfo:
    """Page size, CPUs and memory. Raises OSError or ValueError without /proc/meminfo."""
    total = files.read("/proc/meminfo").partition("MemTotal:")[2].split()
    if not total or not total[0].isdigit():
        raise ValueError("/proc/meminfo: no MemTotal")
    memory = _natural(int(total[0]), "/proc/meminfo MemTotal")
    return HostInfo(
        page_size=page_size(),
        cpus_online=_cpus_online(files) or os.cpu_count() or 1,
        memory_bytes=memory * 1024,
    )
