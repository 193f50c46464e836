# SPDX-License-Identifier: GPL-2.0-or-later
"""The model beside what was measured, for fixed limits.

Measured on Linux 6.18 with the lab's modelled disks, 2 CPUs, one thread of 4 KiB write + fsync
beside one dd; one run each of some seconds, which scatter by about a factor 1.5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Mapping, Optional, Tuple

from tests.sim import bench
from tests.sim.plant import MB, Disk, Flood, Plant, SyncLoad
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


# Arrays whose commits were measured under both limits: 520 MB/s with xfs, 250 with ext4.
SSD_LIKE = Disk(drain=520.0 * MB, cache=700.0 * MB, scattered_s=35e-6, baseline_s=1 / 2300,
                tau_s=12e-3)
ARRAY_EXT4 = Disk(scattered_s=0.25e-3, baseline_s=1 / 2170, tau_s=11.1e-3)
WARM_S, WINDOW_S = 10.0, 50.0


@dataclass(frozen=True)
class Commits:
    """One thread of write + fsync beside `dd bs=1M`; None: not measured.

    `missed` names the figures that the model does not have within a quarter.
    """

    disk: Disk
    limit_kb: int
    background_kb: int
    rate: float
    asleep: Optional[float]  # share of a commit in write()
    device_mb: float
    longest_s: Optional[float] = None  # in write()
    missed: Tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.disk.drain / MB:.0f}-{self.limit_kb}/{self.background_kb}"


def _split(
    disk: Disk, *rows: Tuple[int, int, float, Optional[float], float, Optional[float]],
) -> Tuple[Commits, ...]:
    return tuple(Commits(disk, *row, MISSED.get((disk.drain, *row[:2]), ())) for row in rows)


# The cache fills under 4000/400 of the array, and under a background limit at 82 % at times: fewer
# commits.  Why committers slept so long under 5000/4100, and no longer under 16000/15000 and
# 8000/6400 than under other bands of that width, is not known.
MISSED = {
    (SSD_LIKE.drain, 5000, 4100): ("rate", "asleep"),
    (SSD_LIKE.drain, 16000, 15000): ("asleep",),
    (SSD_LIKE.drain, 8000, 6400): ("longest_s",),
    (ARRAY_EXT4.drain, 4000, 400): ("rate",),
    (ARRAY_EXT4.drain, 2500, 2050): ("rate",),
}
# limit, background, commits/s, share in write(), device MB/s, longest in write(); 14 s each.
COMMITS = _split(
    SSD_LIKE,
    (5000, 500, 1010, 0.20, 312, 0.012), (5000, 1250, 1177, 0.21, 278, 0.015),
    (5000, 2500, 814, 0.20, 401, 0.013), (5000, 4100, 179, 0.80, 511, 0.796),
    (5000, 4800, 613, 0.72, 391, 0.587), (8000, 800, 572, 0.19, 549, 0.012),
    (8000, 2000, 630, None, 531, 0.012), (8000, 4000, 593, 0.23, 517, 0.012),
    (8000, 6400, 913, 0.38, 373, 0.012), (8000, 7600, 733, 0.69, 381, 0.704),
    (16000, 4000, 467, 0.15, 553, None), (16000, 8000, 681, 0.13, 551, None),
    (16000, 15000, 1041, 0.37, 363, None), (4000, 2000, 1178, 0.19, 275, None),
    (3000, 1500, 1033, 0.34, 275, 0.180), (2000, 1000, 858, 0.49, 206, 0.219),
    (1000, 500, 953, 0.61, 97, 0.256),
) + _split(
    ARRAY_EXT4,
    (4000, 400, 312, None, 253, None), (4000, 2000, 679, 0.26, 239, None),
    (4000, 3300, 598, 0.69, 237, 0.560), (2500, 1250, 1015, None, 177, None),
    (2500, 2050, 301, None, 253, None),
)


def modelled(row: Commits) -> Commits:
    """The model's figures for a row."""
    plant = Plant((row.disk,), (Flood(),), (SyncLoad(),))
    plant.set_limits(row.limit_kb << 10, row.background_kb << 10)
    plant.advance(WARM_S)
    plant.sample()
    state, load = plant.disks[0], plant.loads[0]
    done, written, longest_s = load.done, state.written, 0.0
    while plant.now_s < WARM_S + WINDOW_S - 1e-6:
        plant.advance(plant.step_s)
        longest_s = max(longest_s, load.asleep_s)
    return Commits(row.disk, row.limit_kb, row.background_kb, (load.done - done) / WINDOW_S,
                   state.asleep_s / WINDOW_S, (state.written - written) / WINDOW_S / MB,
                   longest_s or 0.008)


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
    lines += ["", f"{'limit/background, kB':24}{'commits/s':>14}{'in write()':>14}"
              f"{'longest, ms':>13}{'MB/s':>11}  measured, model"]
    for each in COMMITS:
        model = modelled(each)
        longest = (f"{1e3 * value:.0f}" if value else "-"
                   for value in (each.longest_s, model.longest_s))
        share = "-" if each.asleep is None else f"{each.asleep:.2f}"
        lines.append(f"{each.name:24}{each.rate:8.0f}{model.rate:6.0f}{share:>8}"
                     f"{model.asleep:6.2f}{' '.join(longest):>13}"
                     f"{each.device_mb:6.0f}{model.device_mb:5.0f}"
                     + "  missed: " * bool(each.missed) + ", ".join(each.missed))
    return "\n".join(lines)
