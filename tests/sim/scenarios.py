# SPDX-License-Identifier: GPL-2.0-or-later
"""Disks and loads by name; the figures of the disks are those of tests/lab/presets.conf."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Dict, Tuple

from tests.sim.plant import GB, MB, Disk, Event, Flood, Plant, SyncLoad

RAID = Disk()
# The modelled array's flood overruns the drain fourfold, so a full cache hardly ever has room.
SLOW_RAID = Disk(drain=60.0 * MB, cache=256.0 * MB, breath=0.15)
FAST_RAID = Disk(drain=500.0 * MB, cache=1.0 * GB, link=2.0 * GB)
SSD = Disk(drain=450.0 * MB, cache=128.0 * MB, link=540.0 * MB, baseline_s=0.3e-3)
SSD_VOLATILE = Disk(drain=450.0 * MB, cache=128.0 * MB, link=540.0 * MB, baseline_s=0.4e-3,
                    volatile=True)
# What the lab's SSD let in natively, with two CPUs and a flush of some milliseconds for each sync:
# at 16 MB 350 MB/s for ten seconds, then 235, where 32 MB still gave 340.
FLUSHED_LEAPS = ((1.0 * MB, 125.0 * MB), (2.0 * MB, 168.0 * MB), (3.6 * MB, 190.0 * MB),
                 (7.0 * MB, 215.0 * MB), (10.0 * MB, 310.0 * MB), (14.0 * MB, 340.0 * MB),
                 (24.0 * MB, 380.0 * MB), (48.0 * MB, 420.0 * MB), (128.0 * MB, 540.0 * MB))
FLUSHED_LATER = (*FLUSHED_LEAPS[:4], (14.0 * MB, 235.0 * MB), (24.0 * MB, 340.0 * MB),
                 *FLUSHED_LEAPS[-2:])
SSD_FLUSHED = Disk(drain=450.0 * MB, cache=128.0 * MB, link=540.0 * MB, baseline_s=0.5e-3,
                   volatile=True, flush_s=7e-3, leaps=FLUSHED_LEAPS, leaps_full=FLUSHED_LEAPS)
# The steps that were seen natively (docs/research/2026-11-measurements.md), with room in the cache
# and after it was full: none lets in the 250 MB/s of the media.
LEAPS = Disk(
    leaps=((1.0 * MB, 130.0 * MB), (1.5 * MB, 275.0 * MB), (4.5 * MB, 390.0 * MB),
           (8.0 * MB, 500.0 * MB)),
    leaps_full=((1.0 * MB, 130.0 * MB), (2.0 * MB, 175.0 * MB), (4.5 * MB, 250.0 * MB),
                (4.8 * MB, 390.0 * MB), (8.0 * MB, 500.0 * MB)),
)
# As the lab's array natively, each time that the destage comes by the database's blocks.
SWEEPS = Disk(sweep_s=1.0)
SWEEPS_LEAPS = replace(LEAPS, sweep_s=1.0)
# Six data disks and two of parity: quick syncs take of the media what stripes in part cost.
RAID6 = replace(LEAPS, breath=0.5, stripe_s=0.45e-3)
NVME = Disk(drain=2.0 * GB, cache=1.0 * GB, link=3.0 * GB, baseline_s=0.05e-3, driver="nvme")
NO_CACHE = Disk(drain=64.0 * MB, cache=0.0, link=300.0 * MB, baseline_s=4e-3, tau_s=28e-3)
STICK = Disk(drain=12.0 * MB, cache=0.0, link=35.0 * MB, baseline_s=20e-3, tau_s=28e-3)
BATTERY_GONE = Disk(cache=0.0, baseline_s=6e-3, drain=150.0 * MB, tau_s=15e-3)
# The lab's RAID once it writes through, natively: 2 MB let in two thirds, 4 MB 0.82, 15 MB nearly
# all.
THROUGH_LEAPS = ((1.0 * MB, 105.0 * MB), (1.4 * MB, 135.0 * MB), (2.0 * MB, 165.0 * MB),
                 (2.8 * MB, 187.0 * MB), (4.0 * MB, 205.0 * MB), (5.6 * MB, 218.0 * MB),
                 (8.0 * MB, 230.0 * MB), (11.0 * MB, 240.0 * MB), (15.0 * MB, 250.0 * MB),
                 (32.0 * MB, 300.0 * MB))
WRITE_THROUGH = Disk(cache=0.0, baseline_s=1.2e-3, leaps=THROUGH_LEAPS, leaps_full=THROUGH_LEAPS)


@dataclass(frozen=True)
class Scenario:
    """What happens; times in seconds, `judged` from there to the end."""

    name: str
    disks: Tuple[Disk, ...] = (RAID,)
    floods: Tuple[Flood, ...] = (Flood(start_s=6.0),)
    syncs: Tuple[SyncLoad, ...] = (SyncLoad(),)
    events: Tuple[Event, ...] = ()
    dirty: float = 0.0
    judged: float = 14.0
    end: float = 60.0
    per_device: bool = False  # the kernel has limits for each BDI
    groups: bool = False  # the flood is in a cgroup that may be paced

    def plant(self, seed: int = 1, flooded: bool = True) -> Plant:
        """The host of this scenario; without the flood it tells what idle is."""
        return Plant(
            self.disks,
            self.floods if flooded else (),
            self.syncs,
            self.events,
            self.dirty if flooded else 0.0,
            seed=seed,
            per_device=self.per_device,
            groups=self.groups,
        )


def _swing(period_s: float, low: float, end_s: float) -> Tuple[Event, ...]:
    """The drain rate of a disk that collects garbage half of the time."""
    times = [period_s * i for i in range(1, int(end_s / period_s))]
    return tuple(
        Event(time, {"drain": 450.0 * MB * (low if i % 2 == 0 else 1.0)})
        for i, time in enumerate(times)
    )


def _waves(on_s: float, off_s: float) -> Tuple[Flood, ...]:
    return (Flood(start_s=6.0, on_s=on_s, off_s=off_s),)


SCENARIOS: Tuple[Scenario, ...] = (
    Scenario("flood"),
    Scenario("mid-flood", floods=(Flood(),), dirty=3.5 * GB, judged=25.0, end=70.0),
    Scenario("waves-1s", floods=_waves(1.0, 1.0)),
    Scenario("waves-5s", floods=_waves(5.0, 5.0), judged=16.0, end=66.0),
    Scenario("waves-10s", floods=_waves(10.0, 10.0), judged=16.0, end=76.0),
    Scenario("waves-60s", floods=_waves(60.0, 60.0), judged=16.0, end=186.0),
    Scenario("slow-flood", floods=(Flood(start_s=6.0, rate=100.0 * MB),)),
    Scenario("many-dirtiers", floods=(Flood(start_s=6.0, writers=32),)),
    Scenario("battery", events=(Event(30.0, vars(BATTERY_GONE)),), judged=36.0, end=80.0),
    Scenario("battery-early", events=(Event(11.0, vars(WRITE_THROUGH)),), judged=15.0, end=56.0),
    Scenario("battery-gone", disks=(BATTERY_GONE,)),
    Scenario("rebuild", events=(Event(30.0, {"drain": 125.0 * MB}),), judged=36.0, end=80.0),
    Scenario("rebuild-done", disks=(Disk(drain=60.0 * MB),),
             events=(Event(40.0, {"drain": 250.0 * MB}),), judged=55.0, end=100.0),
    Scenario("gc-swing-4s", disks=(SSD_VOLATILE,), events=_swing(4.0, 0.33, 90.0), end=90.0),
    Scenario("gc-swing-20s", disks=(SSD_VOLATILE,), events=_swing(20.0, 0.33, 120.0), end=120.0),
    Scenario("slow-raid", disks=(SLOW_RAID,)),
    Scenario("raid6", disks=(RAID6,), judged=12.0),
    Scenario("fast-raid", disks=(FAST_RAID,)),
    Scenario("leaps", disks=(LEAPS,), end=120.0),
    Scenario("sweeps", disks=(SWEEPS,)),
    Scenario("sweeps-leaps", disks=(SWEEPS_LEAPS,)),
    Scenario("ssd", disks=(SSD,)),
    Scenario("ssd-volatile", disks=(SSD_VOLATILE,)),
    Scenario("nvme", disks=(NVME,)),
    Scenario("no-cache", disks=(NO_CACHE,)),
    Scenario("stick", disks=(STICK,)),
    Scenario("stick-and-raid", disks=(RAID, STICK), floods=(Flood(device=1, start_s=6.0),)),
    Scenario("two-raids", disks=(RAID, SLOW_RAID),
             floods=(Flood(0, 6.0), Flood(1, 6.0)), syncs=(SyncLoad(0), SyncLoad(1))),
    Scenario("neighbour", events=(Event(30.0, {"neighbour": 0.8, "neighbour_wait_s": 0.04}),),
             judged=36.0, end=100.0),
    Scenario("failing-disk",
             events=(Event(30.0, {"drain": 80.0 * MB, "failing_s": 0.2}),), judged=36.0, end=100.0),
    Scenario("fsync-storm", floods=(), syncs=(SyncLoad(threads=16),)),
    Scenario("no-sync", syncs=()),
    Scenario("demand-after-rest", syncs=(SyncLoad(start_s=40.0),), judged=46.0, end=90.0),
    Scenario("demand-comes-and-goes", syncs=(SyncLoad(on_s=5.0, off_s=15.0),), end=90.0),
    Scenario("commits-20-a-second", syncs=(SyncLoad(think_s=0.05),)),
)
BY_NAME: Dict[str, Scenario] = {scenario.name: scenario for scenario in SCENARIOS}
