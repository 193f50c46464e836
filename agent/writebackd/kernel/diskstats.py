# SPDX-License-Identifier: GPL-2.0-or-later
"""Reads /proc/diskstats once a tick for all block devices."""

from __future__ import annotations

import struct
from operator import sub
from typing import Container, Dict, NamedTuple, Optional, Tuple

from writebackd.kernel.files import KernelFiles

DISKSTATS = "/proc/diskstats"

_SECTOR_BYTES = 512  # whatever the disk's own block size is
# What every kernel prints, with the device's number and name; four more fields, on
# discards, came with 4.18, two on flushes with 5.5.
_MIN_FIELDS = 14
_NUMBERS_WITH_DISCARDS = 17
_NUMBERS_WITH_FLUSHES = 19
_MS_WRAP = 1 << 32  # times are printed as unsigned int, on 64-bit kernels too
# Counts and sectors are unsigned long: at 64 bits no disk lives to see them wrap.
_LONG_WRAP = 1 << 8 * struct.calcsize("l")
_LARGEST = 1 << 64  # and what is beyond has no place in a float
_STILL = (0,) * 7  # all but `inflight`


class DiskStats(NamedTuple):
    """Counters of one block device since it appeared, or their growth in a tick.

    `inflight` is a level and not a counter.  What this kernel does not count is 0.
    """

    reads: int
    read_bytes: int
    writes: int
    write_bytes: int
    discards: int
    flushes: int
    io_ms: int  # time with at least one request in flight
    inflight: int


def _parse_line(line: str) -> DiskStats:
    """The counters of one line. Raises ValueError."""
    fields = line.split()
    if len(fields) < _MIN_FIELDS:
        raise ValueError(f"{len(fields)} fields")
    name = fields.pop(2)
    # No sign but in a name: int() would take "-1".
    if "-" in line and "-" in line.replace(name, ""):
        raise ValueError("negative number")
    number = list(map(int, fields))
    if max(number) >= _LARGEST:
        raise ValueError("larger than any counter")
    # As a tuple, which DiskStats() takes three times as long for: the order of the fields above.
    return tuple.__new__(DiskStats, (
        number[2],
        number[4] * _SECTOR_BYTES,
        number[6],
        number[8] * _SECTOR_BYTES,
        number[13] if len(number) >= _NUMBERS_WITH_DISCARDS else 0,
        number[17] if len(number) >= _NUMBERS_WITH_FLUSHES else 0,
        number[11],
        number[10],
    ))  # fmt: skip


class DiskStatsReader:
    """Reads /proc/diskstats; parses only lines that changed since the last read.

    Of 1024 disks most are idle in a given second, and parsing takes ten times
    as long as comparing.  `skipped` counts the lines of the last read that made
    no sense.
    """

    def __init__(self, files: KernelFiles) -> None:
        self._files = files
        self._known: Dict[str, Tuple[str, DiskStats]] = {}
        self.skipped = 0

    def read(self, wanted: Optional[Container[str]] = None) -> Dict[str, DiskStats]:
        """Counters by "major:minor", for `wanted` devices or all. Raises OSError."""
        known: Dict[str, Tuple[str, DiskStats]] = {}
        stats: Dict[str, DiskStats] = {}
        self.skipped = 0
        for line in self._files.read(DISKSTATS).split("\n"):
            entry = self._known.get(line)
            if entry is None:
                devno = ":".join(line.split(None, 2)[:2])
                if wanted is not None and devno not in wanted:
                    continue  # a partition mostly
                try:
                    entry = devno, _parse_line(line)
                except ValueError:
                    self.skipped += bool(line)
                    continue
            known[line] = entry
            stats[entry[0]] = entry[1]
        self._known = known
        return stats


def delta(prev: DiskStats, cur: DiskStats, wrap: int = _LONG_WRAP) -> DiskStats:
    """The difference of two reads; nothing if another device took the number.

    A counter that went backwards belongs to a new device, unless it is one that
    wraps.  `wrap` is the range of the kernel's unsigned long.
    """
    if prev is cur:  # as DiskStatsReader returns it for a line that did not change
        return DiskStats(*_STILL, cur.inflight)
    steps = [*map(sub, cur[:-1], prev), cur.inflight]
    if min(steps) < 0:
        size_wrap = wrap * _SECTOR_BYTES
        wraps = (wrap, size_wrap, wrap, size_wrap, wrap, wrap, _MS_WRAP)
        for place, at in enumerate(wraps):
            # Half the range in one tick is no wrap: nothing counts that fast.
            if steps[place] < 0 and steps[place] % at < at // 2:
                steps[place] %= at
        if min(steps[:4]) < 0:
            return DiskStats(*_STILL, cur.inflight)
        # Times are summed over CPUs without a lock: a small step back is no news.
        steps = [max(0, step) for step in steps]
    return tuple.__new__(DiskStats, steps)
