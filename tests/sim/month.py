# SPDX-License-Identifier: GPL-2.0-or-later
"""A month of an ordinary host, tick by tick, without the cost of a plant.

What the days of a host are made of: a database with its hours and its week, checkpoints,
log rotation, cron, a backup at night when nobody works, a scrub on Sundays, a large copy with its
own fsync now and then, hiccups of a second or three, a reboot for updates.  No law runs: the
detector sees what it would in `observe`.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Dict, Iterator, List, Tuple

from tests.sim.plant import HOST, MB, RATIOS, bucket
from writebackd.alerts.alert_types import Alert
from writebackd.alerts.detect import detect
from writebackd.alerts.detector_memory import AlertMemory
from writebackd.policy.schema import Policy
from writebackd.types.copying import replace
from writebackd.types.core_memory import Memory
from writebackd.types.decision import Decision, Mode
from writebackd.types.estimate import Estimate
from writebackd.types.histogram import Histogram
from writebackd.types.samples import (
    ClassSample,
    DeviceSample,
    IoClass,
    Sample,
    SyncSample,
    TaskSample,
    VmState,
)
from writebackd.types.storage import Device

DAY_S = 86400.0
DAYS = 30
_SPREAD = (0.7, 0.8, 0.9, 1.0, 1.1, 1.3, 1.6, 2.5)
_QUIET = Estimate(
    name="sda", write_rate=0.0, background_rate=0.0, drain_rate=250.0 * MB,
    sync_rate=0.0, demand=False, demand_known=True, flooded=False,
    held_back=False, full=False, limit_share=1.0, rate=0.0, cache_bytes=None,
    fill_bytes=0.0, fsync_p50_s=None, fsync_p99_s=None, fsyncs=0, fsync_total_s=0.0,
    fsyncs_inflight=0, oldest_fsync_s=0.0, baseline_s=None, slow_share=None, inflight=0,
)  # fmt: skip


@dataclass
class Moment:
    """What the host does in one tick."""

    syncs: float = 0.0  # per second
    latency_s: float = 0.35e-3
    sync_bytes: float = 4096.0  # each
    flood: float = 0.0  # bytes per second written by the flusher
    waiting_s: float = 0.0  # the age of a sync that has not returned
    dirty: float = 2.0 * MB


class Days:
    """What happens when, drawn once for a whole month."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.base_s = dice.uniform(0.2e-3, 5e-3)  # of a sync, when nobody is in its way
        self.peak = dice.uniform(50.0, 2000.0) * min(1.0, 0.35e-3 / self.base_s * 3)
        self.backup_s = dice.uniform(0.5, 3.0) * 3600.0  # after midnight
        self.closes_s = dice.uniform(21.0, 23.5) * 3600.0
        self.opens_s = dice.uniform(5.0, 7.0) * 3600.0
        self.reboot_s = dice.uniform(10.0, 20.0) * DAY_S + 4.5 * 3600.0
        self.wave = dice.uniform(0.5, 2.0)

    def at(self, time_s: float) -> Moment:
        dice = self.dice
        day, hour_s = divmod(time_s, DAY_S)
        moment = Moment(latency_s=self.base_s * dice.uniform(0.85, 1.2))
        weekend = int(day) % 7 >= 5
        if self.opens_s <= hour_s < self.closes_s:
            share = (hour_s - self.opens_s) / (self.closes_s - self.opens_s)
            load = max(0.03, math.sin(math.pi * share)) * (0.3 if weekend else 1.0)
            load *= 1.0 + 0.3 * math.sin(time_s / 97.0 * self.wave)
            moment.syncs = self.peak * load * dice.uniform(0.5, 1.5)
            # Every five minutes a checkpoint: its pages, and longer queues.
            into_s = time_s % 300.0
            if into_s < 20.0:
                moment.flood = 60.0 * MB
                moment.latency_s *= dice.uniform(1.0, 4.0)
                moment.dirty = 300.0 * MB
            elif into_s < 23.0:
                moment.syncs *= 0.3
                moment.latency_s += 40e-3
        else:
            # journald and cron: one in four seconds.
            moment.syncs = 1.0 if dice.random() < 0.25 else 0.0
            if self.backup_s <= hour_s < self.backup_s + 3 * 3600.0:
                moment.flood = 240.0 * MB * dice.uniform(0.8, 1.0)
                moment.dirty = 4e9
                moment.latency_s = dice.uniform(0.3, 3.0)
        if int(day) % 7 == 6 and 2 * 3600.0 <= hour_s < 6 * 3600.0:
            moment.latency_s *= 3.0  # a scrub reads everything
        if hour_s % 3600.0 < 4.0:
            moment.flood += 30.0 * MB  # logs are rotated and packed
            moment.latency_s *= 2.0
        if time_s % 7211.0 < 12.0:
            # A file of some GB is copied and synced: one sync takes all of these seconds.
            moment.waiting_s = time_s % 7211.0
            moment.sync_bytes = 0.0
            moment.flood += 200.0 * MB
            moment.syncs *= 0.5
            moment.latency_s += 10e-3
        elif dice.random() < 3 / DAY_S:
            moment.latency_s += dice.uniform(0.2, 2.0)  # a hiccup
            moment.syncs *= 0.1
        return moment


def month(seed: int, tick_s: float = 1.0, days: float = DAYS) -> Iterator[Tuple[Sample, Estimate]]:
    """Samples and estimates of a host with one busy disk and one that hardly does anything."""
    dice = random.Random(f"month/{seed}")
    plan = Days(dice)
    disks = [Device(n, d, d, (n,), (d,), diskseq=i)
             for i, (n, d) in enumerate((("sda", "8:0"), ("sdb", "8:16")))]
    idle = DeviceSample(disks[1], classes={}, sync=SyncSample())
    boot_s = 1000.0
    time_s = 0.0
    shapes: Dict[float, Histogram] = {}
    while time_s < days * DAY_S:
        dt = tick_s * dice.uniform(0.99, 1.01)
        time_s += dt
        if plan.reboot_s < time_s < plan.reboot_s + 2 * dt:
            boot_s = 20.0 - time_s
        moment = plan.at(time_s)
        count = int(moment.syncs * dt + dice.random())
        key = float(f"{moment.latency_s:.2g}")
        if key not in shapes:
            shapes[key] = _shape(key)
        latency = _scaled(shapes[key], count)
        total_s = key * count
        waiting = int(moment.waiting_s > 0)
        p99_s = key * 2.5 if count else None
        flood = int(moment.flood * dt)
        sync_bytes = int(count * (moment.sync_bytes or 4096.0))
        written = flood + sync_bytes
        flooded = moment.flood > MB
        seen = DeviceSample(
            disks[0], None, written, 0, count + flood // (512 << 10), 8 * int(flooded) + waiting,
            1.0 if flooded else min(1.0, total_s / dt),
            {
                IoClass.SYNC_WRITE: ClassSample(count, sync_bytes, latency),
                IoClass.BACKGROUND_WRITE: ClassSample(flood // (512 << 10), flood, Histogram()),
            },
            SyncSample(count, 0, latency, waiting, moment.waiting_s),
        )  # fmt: skip
        estimate = replace(
            _QUIET, write_rate=written / dt, rate=written / dt, background_rate=flood / dt,
            flooded=flooded, sync_rate=count / dt, fsyncs=count, fsync_total_s=total_s,
            fsync_p50_s=key, fsync_p99_s=p99_s, fsyncs_inflight=waiting,
            oldest_fsync_s=moment.waiting_s,
        )  # fmt: skip
        tasks = (TaskSample(4711, "rsync", 7, "sda", flood, 0.1),) if flooded else ()
        yield Sample(
            boot_s + time_s, 1.7e9 + time_s, dt, HOST,
            VmState(RATIOS, int(moment.dirty), 0, 4 << 30, 2 << 30), (seen, idle), tasks,
        ), estimate  # fmt: skip


def _shape(latency_s: float) -> Histogram:
    counts: Dict[int, int] = {}
    for multiple in _SPREAD:
        index = bucket(latency_s * multiple)
        counts[index] = counts.get(index, 0) + 1
    return Histogram(tuple(sorted(counts.items())))


def _scaled(shape: Histogram, count: int) -> Histogram:
    if not count:
        return Histogram()
    if count < len(_SPREAD):
        return Histogram(shape.buckets[len(shape.buckets) // 2 :][:1])
    return Histogram(tuple([(i, n * count // len(_SPREAD)) for i, n in shape.buckets]))


def alerts_of_a_month(
    policy: Policy, seed: int, tick_s: float = 1.0, days: float = DAYS
) -> List[Tuple[float, Alert]]:
    """Every alert that was raised, and on which day."""
    memory, core = AlertMemory(), Memory(mode=Mode.OBSERVE)
    decision = Decision(None, None, None, "")
    quiet = replace(_QUIET, name="sdb")
    raised: List[Tuple[float, Alert]] = []
    standing: Tuple[Alert, ...] = ()
    for sample, estimate in month(seed, tick_s, days):
        before = standing
        standing, memory = detect(
            policy, memory, sample, {"sda": estimate, "sdb": quiet}, decision, core
        )
        if len(standing) > len(before):
            raised.append(((sample.wall_s - 1.7e9) / DAY_S, standing[-1]))
    return raised
