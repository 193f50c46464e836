# SPDX-License-Identifier: GPL-2.0-or-later
"""Published figures that the lab's stand beside, each with the machine it is from.

None of it was measured here.  They are other machines, most of them many years
older: ratios between the lines of one table compare, absolute figures do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple

Row = Tuple[str, ...]
MIB = 1 << 20


@dataclass(frozen=True)
class Case:
    title: str
    rig: str
    head: Row
    rows: Tuple[Row, ...]


@dataclass(frozen=True)
class Line:
    """A line of the hand-tuned host's tables, and the contender here that is like it."""

    name: str
    told: Row = ()  # requests per second, avg, 95 %, max, as published
    like: str = ""  # "idle", "default", "agent", or "" for a static limit:
    limit_bytes: int = 0


@dataclass(frozen=True)
class Tuned:
    """One sysbench fileio table of the hand-tuned host; `scenario` is how the lab runs it."""

    scenario: str
    load: str
    lines: Tuple[Line, ...]


HAND_TUNED_RIG = (
    "Adaptec 5405Z with 512 MB of protected write cache, 12 Seagate disks of 1 TB, ten of them "
    "in software RAID 10, 6 GB of RAM, kernel 2.6.32, XFS, Debian; sysbench 0.4.12 fileio, "
    "random write with an fsync after each, beside dd as the flood")


def _lines(idle: Line, high: Line, tuned: Line) -> Tuple[Line, ...]:
    return (idle, Line("flood, default limits", like="default"), high, tuned,
            Line("flood, the agent", like="agent"))


HAND_TUNED = (
    Tuned("seed-table", "4 KiB, one thread", _lines(
        Line("no flood", ("1460", "0.68 ms", "3.28 ms", "276 ms"), "idle"),
        Line("flood, 1 GB", ("0.98", "1015 ms", "1591 ms", "1592 ms"),
             limit_bytes=1024 * MIB),
        Line("flood, 15 MB by hand", ("450.75", "2.22 ms", "12.35 ms", "146 ms"),
             limit_bytes=15 * MIB))),
    Tuned("seed-table-16k", "16 KiB, one thread", _lines(
        Line("no flood", like="idle"),
        Line("flood, 1 GB", ("8",), limit_bytes=1024 * MIB),
        Line("flood, 15 MB by hand", ("400",), limit_bytes=15 * MIB))),
    Tuned("seed-table-10-threads", "16 KiB, ten threads", _lines(
        Line("no flood", ("1500",), like="idle"),
        Line("flood, 1 GB", ("33",), limit_bytes=1024 * MIB),
        Line("flood, 15 MB by hand", ("700",), limit_bytes=15 * MIB))),
)
HAND_TUNED_SEQUENTIAL = (251e6, 216e6)  # before and after, without load: bytes per second

VCACHE = Case(
    "Steadiness over time: vCache and FlashCache",
    "Percona: MySQL, sysbench OLTP with 32 tables of 10 M rows and 32 threads, 78 GB of data "
    "behind a pool of 4 GB, two hours of which the second counts, averages of 10 s",
    ("flash write cache", "reads/s", "writes/s"),
    (("vCache, flushed by time", "about 27 000", "below 8 000"),
     ("vCache, flushed by threshold", "about 12 500", "6 000"),
     ("FlashCache (about 600 transactions/s)", "7 500", "2 500")))

FLASHCACHE = Case(
    "Flash in front of a disk: FlashCache",
    "sysbench fileio, SSD and disk together against the disk alone",
    ("requests/s", "with FlashCache", "disk alone"),
    (("random read and write", "7 354", "746"), ("random write", "5 323", "302"),
     ("random read", "3 010", "205"), ("sequential write", "7 832", "4 421"),
     ("sequential read", "8 161", "4 813")))

SCALEFLUX = Case(
    "A drain rate that moves: ScaleFlux CSD 2000 and Intel P4610",
    "sysbench on Percona Server 8.0",
    ("", "CSD 2000", "P4610"),
    (("write rate on compressible data", "about 2", "1"), ("iowait", "11.5 %", "31.5 %"),
     ("latency over time", "steady", "swings as it fills and collects garbage")))

STORAGEREVIEW = Case(
    "Transactions, mean and 99 % together: StorageReview",
    "MySQL, sysbench OLTP with 100 tables of 10 M rows (260 GB), pool of 24 GB, 32 threads, "
    "one database for each drive; slowest and fastest row",
    ("drive", "transactions/s", "99 %"),
    (("slowest", "669", "462 ms"), ("fastest", "2 735", "20 ms")))

DATABASES = ("mysql-oltp", "pgbench", "tpcc")  # kinds of load that are compared with OLTP figures
MOVING = "evidence 4"  # source of the scenarios whose drain rate moves, as SCALEFLUX's does
