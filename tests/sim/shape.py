# SPDX-License-Identifier: GPL-2.0-or-later
"""The model beside what was measured, for fixed limits.

Measured on Linux 6.18 with the lab's modelled disks, 2 CPUs, one thread of 4 KiB write + fsync
beside one dd; one run each of some seconds, which scatter by about a factor 1.5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Mapping, Tuple

from tests.sim import bench
from tests.sim.plant import MB, Disk, Flood
from tests.sim.scenarios import NO_CACHE, RAID, SLOW_RAID, SSD, Scenario

DEFAULT = 0  # the key of the kernel's own limits


@dataclass(frozen=True)
class Measured:
    """`rows`: limit in MB -> (fsync/s as low and high of the runs, device MB/s)."""

    name: str
    disk: Disk
    idle: float
    rows: Mapping[int, Tuple[float, float, float]]


TABLES = (
    Measured("RAID 512 MB, 250 MB/s", RAID, 2650, {
        DEFAULT: (0.4, 0.9, 262), 1024: (51, 51, 253), 64: (161, 195, 228), 32: (267, 267, 232),
        15: (343, 439, 232), 8: (490, 622, 210), 4: (713, 957, 231), 2: (810, 1490, 236),
        1: (1730, 1800, 136)}),
    Measured("SSD, 450 MB/s", SSD, 3330, {
        DEFAULT: (0.7, 0.7, 471), 64: (37, 37, 472), 16: (856, 856, 471), 8: (1368, 1368, 521),
        4: (1007, 1007, 470), 2: (1641, 1641, 264), 1: (2124, 2124, 138)}),
    Measured("slow RAID 256 MB, 60 MB/s", SLOW_RAID, 2617, {
        DEFAULT: (0.1, 0.1, 70), 64: (17, 17, 63), 16: (46, 46, 63), 8: (65, 65, 62),
        4: (64, 64, 60), 2: (116, 116, 63), 1: (421, 421, 59)}),
    Measured("no write cache, 6 ms seek", NO_CACHE, 253, {
        DEFAULT: (0.1, 0.1, 65), 64: (1.7, 1.7, 64), 16: (37, 37, 51), 8: (37, 37, 53),
        4: (35, 35, 54), 2: (29, 29, 57), 1: (100, 100, 26)}),
)


@dataclass(frozen=True)
class Row:
    """One limit: f as share of idle (measured low and high, model), device bytes per second."""

    table: str
    limit_mb: int
    measured: Tuple[float, float]
    model: float
    measured_rate: float
    model_rate: float

    @property
    def off(self) -> float:
        """The factor between the model and the nearest measured value; 1 is inside."""
        low, high = self.measured
        return max(1.0, low / self.model, self.model / high)


def rows() -> List[Row]:
    found = []
    for table in TABLES:
        scenario = Scenario(table.name, disks=(table.disk,), floods=(Flood(start_s=2.0),),
                            judged=20.0, end=60.0)
        idle = bench.run(scenario, flooded=False).sync_rate[0]
        for limit_mb, (low, high, rate) in table.rows.items():
            run = bench.run(scenario, limit=limit_mb * MB or None)
            found.append(Row(table.name, limit_mb, (low / table.idle, high / table.idle),
                             run.sync_rate[0] / idle, rate * MB, run.device_rate))
    return found


def table() -> str:
    lines = [f"{'disk':28}{'limit':>8}{'f measured':>18}{'f model':>9}{'factor':>8}"
             f"{'MB/s measured':>15}{'model':>7}"]
    for row in rows():
        low, high = row.measured
        span = f"{low:.2g}" if low == high else f"{low:.2g} - {high:.2g}"
        limit = f"{row.limit_mb}M" if row.limit_mb else "default"
        lines.append(f"{row.table:28}{limit:>8}{span:>18}{row.model:9.2g}{row.off:8.1f}"
                     f"{row.measured_rate / MB:15.0f}{row.model_rate / MB:7.0f}")
    return "\n".join(lines)
