# SPDX-License-Identifier: GPL-2.0-or-later
"""Reads /proc/diskstats once a tick for all block devices."""

from __future__ import annotations

import struct
from operator import sub
from typing import Container, Dict, NamedTuple, Optional, Tuple

from writebackd.kernel.files import KernelFiles

DISKSTATS = "/proc/diskstats"

_SECTOR_BYTES = 512  # whatever the disk's own block size is
# What every kernel prints; four fields on discards came with 4.18, two on
# flushes with 5.5.
_MIN_FIELDS = 14
_FIELDS_WITH_DISCARDS = 18
_FIELDS_WITH_FLUSHES = 20
_MS_WRAP = 1 << 32  # times are printed as unsigned int, on 64-bit kernels too
# Counts and sectors are unsigned long: at 64 bits no disk lives to see them wrap.
_LONG_WRAP = 1 << 8 * struct.calcsize("l")
_LARGEST = 1 << 64  # and what is beyond has no place in a float
# "%4d %7d %s " in diskstats_show(): where the number ends and the name begins.
_COLUMNS = 12


class DiskStats(NamedTuple):
    """Counters of one block device since it appeared, or their growth over a tick.

    `inflight` is a level and not a counter.  `None`: not counted by this kernel.
    """

    reads: int
    read_bytes: int
    read_ms: int  # summed over requests, not wall-clock time
    writes: int
    write_bytes: int
    write_ms: int
    inflight: int
    io_ms: int  # time with at least one request in flight
    weighted_ms: int  # integral of inflight over time
    flushes: Optional[int]
    flush_ms: Optional[int]
    discards: int = 0  # also where they are not counted


def _parse_line(line: str, devno: Optional[str] = None) -> Tuple[str, DiskStats]:
    """Device number, if it is not known yet, and counters of one line. Raises ValueError."""
    fields = line.split()
    if len(fields) < _MIN_FIELDS:
        raise ValueError(f"{len(fields)} fields")
    # No sign but in a name: int() would take "-1".
    if "-" in line and "-" in line.replace(fields[2], ""):
        raise ValueError("negative number")
    number = list(map(int, fields[3:]))
    if max(number) >= _LARGEST:
        raise ValueError("larger than any counter")
    flushes, flush_ms = number[15:17] if len(fields) >= _FIELDS_WITH_FLUSHES else (None, None)
    # As a tuple, which DiskStats() takes three times as long for: the order of the fields above.
    return devno or f"{int(fields[0])}:{int(fields[1])}", tuple.__new__(DiskStats, (
        number[0],
        number[2] * _SECTOR_BYTES,
        number[3],
        number[4],
        number[6] * _SECTOR_BYTES,
        number[7],
        number[8],
        number[9],
        number[10],
        flushes,
        flush_ms,
        number[11] if len(fields) >= _FIELDS_WITH_DISCARDS else 0,
    ))  # fmt: skip


class DiskStatsReader:
    """Reads /proc/diskstats; only lines that changed since the last read are parsed.

    Of 1024 disks most are idle in a given second, and parsing takes ten times
    as long as comparing.  `skipped` counts the lines of the last read that made
    no sense.
    """

    def __init__(self, files: KernelFiles) -> None:
        self._files = files
        self._known: Dict[str, Tuple[str, DiskStats]] = {}
        self._numbers: Dict[str, str] = {}  # by the columns that it is printed in
        self.skipped = 0

    def read(self, wanted: Optional[Container[str]] = None) -> Dict[str, DiskStats]:
        """Counters by "major:minor", of those `wanted` or of all. Raises OSError."""
        known: Dict[str, Tuple[str, DiskStats]] = {}
        stats: Dict[str, DiskStats] = {}
        self.skipped = 0
        lines = self._files.read(DISKSTATS).split("\n")
        if len(self._numbers) > 2 * len(lines):
            self._numbers.clear()  # of disks that came and went
        for line in lines:
            entry = self._known.get(line)
            if entry is None:
                devno = None
                if wanted is not None:
                    devno = self._number(line)
                    if devno not in wanted:
                        continue  # a partition mostly
                try:
                    entry = _parse_line(line, devno)
                except ValueError:
                    self.skipped += bool(line)
                    continue
            known[line] = entry
            stats[entry[0]] = entry[1]
        self._known = known
        return stats

    def _number(self, line: str) -> str:
        """What it begins with as "major:minor", whether that is a number or not."""
        columns = line[:_COLUMNS]
        number = self._numbers.get(columns)
        if number is None:
            number = ":".join(line.split(None, 2)[:2])
            if line[_COLUMNS : _COLUMNS + 1] == " " and len(columns.split()) == 2:
                self._numbers[columns] = number
        return number


def _grown(prev: int, cur: int, wrap: int) -> Optional[int]:
    """Growth of a counter that wraps at `wrap`; None: it went backwards."""
    grown = (cur - prev) % wrap
    # Half the range in one tick is no wrap: nothing counts that fast.
    return grown if cur >= prev or grown < wrap // 2 else None


def _grown_ms(prev: int, cur: int) -> int:
    # Times are summed over CPUs without a lock: a small step back is no news.
    return _grown(prev, cur, _MS_WRAP) or 0


def delta(prev: DiskStats, cur: DiskStats, wrap: int = _LONG_WRAP) -> Optional[DiskStats]:
    """What happened between two reads; None when another device took the number.

    A counter that went backwards belongs to a new device, unless it is one that
    wraps.  `wrap` is the range of the kernel's unsigned long.
    """
    if prev is cur:  # as DiskStatsReader returns it for a line that did not change
        none = None if cur.flushes is None else 0
        return DiskStats(0, 0, 0, 0, 0, 0, cur.inflight, 0, 0, none, none)
    if prev.flushes is not None and cur.flushes is not None:
        steps = list(map(sub, cur, prev))
        steps[6] = cur.inflight  # a level
        if min(steps) >= 0:
            return tuple.__new__(DiskStats, steps)
    reads = _grown(prev.reads, cur.reads, wrap)
    writes = _grown(prev.writes, cur.writes, wrap)
    read_bytes = _grown(prev.read_bytes, cur.read_bytes, wrap * _SECTOR_BYTES)
    write_bytes = _grown(prev.write_bytes, cur.write_bytes, wrap * _SECTOR_BYTES)
    if reads is None or writes is None or read_bytes is None or write_bytes is None:
        return None
    flushes: Optional[int] = None
    flush_ms: Optional[int] = None
    if prev.flushes is not None and cur.flushes is not None:
        flushes = _grown(prev.flushes, cur.flushes, wrap)
        flush_ms = _grown_ms(prev.flush_ms or 0, cur.flush_ms or 0)
    return DiskStats(
        reads=reads,
        read_bytes=read_bytes,
        read_ms=_grown_ms(prev.read_ms, cur.read_ms),
        writes=writes,
        write_bytes=write_bytes,
        write_ms=_grown_ms(prev.write_ms, cur.write_ms),
        inflight=cur.inflight,
        io_ms=_grown_ms(prev.io_ms, cur.io_ms),
        weighted_ms=_grown_ms(prev.weighted_ms, cur.weighted_ms),
        flushes=flushes,
        flush_ms=flush_ms,
        discards=_grown(prev.discards, cur.discards, wrap) or 0,
    )
