# SPDX-License-Identifier: GPL-2.0-or-later
"""The detector on simulated hosts: collapses with a known cause, and hosts that are well.

    python -m tests.sim alerts [--seeds FIRST]

prints which cause was told for which scenario, how soon, and every alert on a host that is well.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Callable, List, Mapping, Optional, Sequence, Tuple

from tests.sim.plant import GB, MB, Disk, Event, Flood, Loop, Plant, SyncLoad
from tests.sim.scenarios import FAST_RAID, NO_CACHE, NVME, RAID, SLOW_RAID, SSD, STICK
from writebackd.alerts.alert_types import Alert, AlertName, Cause
from writebackd.alerts.collapse import LAW_ACTS_S
from writebackd.alerts.detect import detect
from writebackd.alerts.detector_memory import AlertMemory
from writebackd.policy import load_policy
from writebackd.types.core_memory import Memory
from writebackd.types.decision import Mode
from writebackd.types.levers import ForeignWrite
from writebackd.types.storage import Backing

POLICY = load_policy("default")
# The detector was tuned on those from 0 on: figures for docs/research/2026-11-alerts.md need others
# as well.
SEEDS = 20
STEP_S = 0.1
WITHIN_S = 15.0
# In enforce mode a flood is no alert for half a minute, in which the law may yet hold it.
UNHELD_S = LAW_ACTS_S + WITHIN_S - POLICY.alerts.collapse_s
CACHED = (RAID, SLOW_RAID, FAST_RAID)


@dataclass
class Host:
    """A plant with the agent on it, and what the detector says."""

    plant: Plant
    mode: Mode = Mode.ENFORCE
    loop: Loop = field(init=False)
    memory: AlertMemory = field(default_factory=AlertMemory)
    raised: List[Tuple[float, Alert]] = field(default_factory=list)  # when each came first
    standing: Tuple[Alert, ...] = ()
    rates: List[Tuple[float, float]] = field(default_factory=list)  # end of a tick, syncs/s in it
    backings: Tuple[Backing, ...] = ()  # what tools say

    def __post_init__(self) -> None:
        self.loop = Loop(POLICY, self.plant, Memory(mode=self.mode))

    def run(self, until_s: float, dice: random.Random) -> None:
        """Ticks of about a second."""
        while self.plant.now_s < until_s - 1e-6:
            self.tick(min(dice.uniform(0.97, 1.03), max(0.05, until_s - self.plant.now_s)))

    def tick(self, dt_s: float) -> None:
        sample, estimates, decision = self.loop.tick(dt_s)
        syncs = sum(each.sync.count for each in sample.devices if each.sync is not None)
        self.rates.append((self.plant.now_s, syncs / sample.dt_s))
        before = {alert.key for alert in self.standing}
        sample = replace(sample, backings=self.backings)
        self.standing, self.memory = detect(
            POLICY, self.memory, sample, estimates, decision, self.loop.memory
        )
        for alert in self.standing:
            if alert.key not in before:
                self.raised.append((self.plant.now_s, alert))

    def foreign_write(self, limit: int) -> None:
        """Somebody writes vm.dirty_bytes."""
        self.plant.set_limits(limit, limit // 2)
        self.loop.foreign = (ForeignWrite(
            "dirty_bytes", str(limit), 733, "sysctl", 99, "/user.slice/session-1.scope",
            f"sysctl -w vm.dirty_bytes={limit}"),)  # fmt: skip


# ---- collapses ---------------------------------------------------------------


@dataclass(frozen=True)
class Trouble:
    """A host on which something goes wrong, what it is to be called, and by which alert."""

    name: str
    alert: AlertName
    cause: Cause
    # Dice, and when it begins: the host.
    make: Callable[[random.Random, float], Host]
    foreign: Optional[int] = None  # the limit that somebody writes then
    within_s: float = WITHIN_S


def _disk(dice: random.Random, kinds: Sequence[Disk]) -> Disk:
    disk = dice.choice(kinds)
    speed = dice.uniform(0.7, 1.4)
    return replace(disk, drain=disk.drain * speed, link=disk.link * speed,
                   baseline_s=disk.baseline_s * dice.uniform(0.8, 1.3))


def _load(dice: random.Random, most: int = 8) -> SyncLoad:
    return SyncLoad(threads=dice.choice((1, 2, 4, 8)[: most.bit_length()]),
                    think_s=dice.choice((0.0, 0.0, 2e-3, 10e-3)))


def _flood_unprotected(dice: random.Random, at_s: float) -> Host:
    disk = _disk(dice, (RAID, SLOW_RAID, FAST_RAID, SSD, NO_CACHE))
    flood = Flood(start_s=at_s, rate=max(600.0 * MB, dice.uniform(1.5, 4.0) * disk.drain),
                  writers=dice.choice((1, 4)))
    return Host(Plant((disk,), (flood,), (_load(dice),), seed=dice.randrange(10**6),
                      step_s=STEP_S), Mode.OBSERVE)


def _flood_unheld(dice: random.Random, at_s: float) -> Host:
    """With the agent on, and a disk so slow that syncs wait long behind the smallest limit."""
    disk = _disk(dice, (STICK,))
    flood = Flood(start_s=at_s, rate=max(600.0 * MB, dice.uniform(1.5, 4.0) * disk.drain),
                  writers=dice.choice((1, 4)))
    load = SyncLoad(threads=dice.choice((4, 8)))
    return Host(Plant((disk,), (flood,), (load,), seed=dice.randrange(10**6), step_s=STEP_S))


def _changed(changes: Callable[[random.Random, Disk, SyncLoad], Mapping[str, object]],
             kinds: Sequence[Disk] = CACHED, most: int = 8, floods: bool = False
             ) -> Callable[[random.Random, float], Host]:
    def make(dice: random.Random, at_s: float) -> Host:
        flood: Tuple[Flood, ...] = ()
        kinds_now = kinds
        if floods and dice.random() < 0.5:  # one that the agent holds well
            flood, kinds_now = (Flood(start_s=at_s - 60.0),), (RAID, FAST_RAID)
        disk, load = _disk(dice, kinds_now), _load(dice, most)
        event = Event(at_s, changes(dice, disk, load))
        return Host(Plant((disk,), flood, (load,), (event,), seed=dice.randrange(10**6),
                          step_s=STEP_S), dice.choice(tuple(Mode)) if not flood else Mode.ENFORCE)
    return make


def _battery(dice: random.Random, disk: Disk, load: SyncLoad) -> Mapping[str, object]:
    return {"cache": 0.0, "baseline_s": dice.uniform(4e-3, 9e-3), "drain": disk.drain * 0.6,
            "seeks": True}


def _stalled(dice: random.Random, disk: Disk, load: SyncLoad) -> Mapping[str, object]:
    return {"stalled": True}


def _capped(dice: random.Random, disk: Disk, load: SyncLoad) -> Mapping[str, object]:
    # Low enough to be felt: credits are used up, and a queue has formed.
    alone = load.threads / (disk.baseline_s + load.think_s)
    return {"operations": max(25.0, min(dice.uniform(0.02, 0.15) * alone, load.threads / 25e-3))}


def _neighbour(dice: random.Random, disk: Disk, load: SyncLoad) -> Mapping[str, object]:
    return {"neighbour": dice.uniform(0.6, 0.9),
            "neighbour_wait_s": dice.uniform(0.05, 0.15) + 8 * load.think_s}


def _failing(dice: random.Random, disk: Disk, load: SyncLoad) -> Mapping[str, object]:
    return {"failing_s": dice.uniform(0.2, 1.0)}


def _after_trickle(dice: random.Random, at_s: float) -> Host:
    """A database goes quiet, and a few slow syncs that hardly anybody waits for go on for a
    while, as during a backup; then it is back, on a disk that fails."""
    quiet_s = at_s - dice.uniform(10.0, 60.0)
    disk, load = _disk(dice, (*CACHED, SSD)), SyncLoad(threads=dice.choice((4, 8)))
    return Host(
        Plant((disk,), (),
              (replace(load, end_s=quiet_s), SyncLoad(think_s=0.35), replace(load, start_s=at_s)),
              (Event(quiet_s, {"failing_s": 0.04}),
               Event(at_s, {"failing_s": dice.uniform(0.2, 0.6)})),
              seed=dice.randrange(10**6), step_s=STEP_S), dice.choice(tuple(Mode)))


def _held_flood(dice: random.Random, at_s: float) -> Host:
    """A flood that the agent holds well, until somebody writes another limit."""
    return Host(Plant((_disk(dice, (RAID, FAST_RAID)),), (Flood(start_s=20.0),), (_load(dice),),
                      seed=dice.randrange(10**6), step_s=STEP_S))


TROUBLES: Tuple[Trouble, ...] = (
    Trouble("flood, agent off", AlertName.COLLAPSE, Cause.FLOOD, _flood_unprotected),
    Trouble("flood, not held", AlertName.COLLAPSE, Cause.FLOOD, _flood_unheld,
            within_s=UNHELD_S),
    Trouble("battery fails", AlertName.CACHE_DEGRADED, Cause.WRITE_THROUGH,
            _changed(_battery, floods=True)),
    Trouble("stalled device", AlertName.STALL, Cause.DEVICE,
            _changed(_stalled, (*CACHED, SSD, NVME, NO_CACHE), floods=True)),
    Trouble("failing device", AlertName.COLLAPSE, Cause.DEVICE,
            _changed(_failing, (*CACHED, SSD))),
    Trouble("... after a trickle", AlertName.COLLAPSE, Cause.DEVICE, _after_trickle),
    Trouble("volume cap", AlertName.COLLAPSE, Cause.CAP, _changed(_capped, (*CACHED, SSD, NVME))),
    Trouble("neighbour", AlertName.COLLAPSE, Cause.NEIGHBOUR, _changed(_neighbour, floods=True)),
    Trouble("foreign write", AlertName.FOREIGN_WRITER, Cause.FOREIGN_CHANGE, _held_flood, 2 * GB),
    Trouble("... its collapse", AlertName.COLLAPSE, Cause.FOREIGN_CHANGE, _held_flood, 2 * GB),
)


@dataclass(frozen=True)
class Found:
    """What became of one run."""

    alert: Optional[Alert]  # the first that was raised, of those that it is judged by
    after_s: Optional[float]
    slow_s: Optional[float]  # the same from the first tick with few syncs
    early: Tuple[Alert, ...]  # before anything was wrong
    all: Tuple[Alert, ...]


def hurt(trouble: Trouble, seed: int) -> Found:
    """One run of a trouble."""
    dice = random.Random(f"{trouble.name.strip('. ')}/{seed}")
    at_s = dice.uniform(90.0, 150.0)
    host = trouble.make(dice, at_s)
    host.run(at_s, dice)
    if trouble.foreign is not None:
        host.foreign_write(trouble.foreign)
    host.run(at_s + trouble.within_s + WITHIN_S, dice)
    early = tuple(alert for time_s, alert in host.raised if time_s <= at_s)
    later = [(time_s, alert) for time_s, alert in host.raised if time_s > at_s]
    judged = later
    if trouble.foreign is not None:
        judged = [each for each in later if each[1].name is trouble.alert]
    first = judged[0] if judged else None
    since_s = _slow_since(host, at_s)
    return Found(
        first[1] if first else None, first[0] - at_s if first else None,
        first[0] - since_s if first and since_s is not None else None, early,
        tuple(alert for _, alert in later),
    )


def _slow_since(host: Host, at_s: float) -> Optional[float]:
    """When syncs became few, as the plant knows it, whatever the detector took for usual."""
    before = [rate for end_s, rate in host.rates if at_s - 30.0 <= end_s <= at_s]
    few = POLICY.alerts.sync_share * sum(before) / len(before)
    ticks = zip(host.rates, host.rates[1:])
    return next((begin_s for (begin_s, _), (_, rate) in ticks if begin_s >= at_s and rate < few),
                None)


def told(found: Found) -> str:
    """The column of the matrix."""
    if found.alert is None:
        return "nothing"
    return f"{found.alert.name.value}/{found.alert.cause.value}"


def right(trouble: Trouble, found: Found) -> bool:
    return told(found) == f"{trouble.alert.value}/{trouble.cause.value}"


# ---- hosts that are well -----------------------------------------------------


def _steady(kinds: Sequence[Disk], floods: Sequence[Flood] = (), seconds: float = 300.0,
            mode: Mode = Mode.ENFORCE, **load: float) -> Callable[[random.Random], Host]:
    def run(dice: random.Random) -> Host:
        sync = replace(_load(dice), **load)  # type: ignore[arg-type]
        host = Host(Plant((_disk(dice, kinds),), floods, (sync,), seed=dice.randrange(10**6),
                          step_s=STEP_S), mode)
        host.run(seconds, dice)
        return host
    return run


# journald, chrony: a sync now and then.
QUIET_LOAD = SyncLoad(think_s=4.0)


def _backup(dice: random.Random) -> Host:
    """A database that ends its day, or is stopped for its backup; then the backup.

    Not in the same seconds: where another sync waits for long, that is what starving looks like.
    """
    ends_s = dice.uniform(150.0, 200.0)
    begins_s = ends_s + dice.choice((60.0, 90.0, 200.0))
    host = Host(
        Plant((_disk(dice, (RAID, SLOW_RAID, SSD, NO_CACHE)),),
              (Flood(start_s=begins_s, rate=dice.uniform(100.0, 1000.0) * MB),),
              (replace(_load(dice), end_s=ends_s), QUIET_LOAD),
              seed=dice.randrange(10**6), step_s=STEP_S),
        dice.choice(tuple(Mode)))
    host.run(begins_s + 400.0, dice)
    return host


def _reboot(dice: random.Random) -> Host:
    """Everything reads, writes and syncs at once; then a usual day."""
    host = Host(
        Plant((_disk(dice, CACHED),), (Flood(start_s=5.0, end_s=70.0),),
              (SyncLoad(threads=16, end_s=60.0), _load(dice)),
              (Event(20.0, {"stalled": True}), Event(28.0, {"stalled": False})),
              seed=dice.randrange(10**6), step_s=STEP_S, booted_s=dice.uniform(8.0, 30.0)),
        Mode.OBSERVE)
    host.run(300.0, dice)
    return host


def _suspend(dice: random.Random) -> Host:
    """Asleep for hours; then the disk spins up and all that was due is done."""
    wakes_s = 200.0
    host = Host(
        Plant((_disk(dice, (SSD, NO_CACHE, NVME)),),
              (Flood(start_s=wakes_s + 5.0, end_s=wakes_s + 40.0),), (_load(dice),),
              (Event(wakes_s, {"stalled": True}), Event(wakes_s + 9.0, {"stalled": False})),
              seed=dice.randrange(10**6), step_s=STEP_S), Mode.OBSERVE)
    host.run(wakes_s, dice)
    host.plant.booted_s += dice.uniform(1.0, 60.0) * 3600.0
    host.plant.since_s -= 3600.0  # a tick so long
    host.run(wakes_s + 300.0, dice)
    return host


def _hotplug(dice: random.Random) -> Host:
    """Another, far slower disk under the same name and load."""
    host = Host(Plant((_disk(dice, (NVME, SSD, RAID)),), (), (_load(dice),),
                      seed=dice.randrange(10**6), step_s=STEP_S))
    host.run(150.0, dice)
    state = host.plant.disks[0]
    state.disk = replace(_disk(dice, (NO_CACHE,)), baseline_s=30e-3)
    state.device = replace(state.device, diskseq=99)
    host.run(400.0, dice)
    return host


def _trim(dice: random.Random) -> Host:
    """fstrim, with nothing else to do."""
    host = Host(Plant((_disk(dice, (RAID, SSD, NVME)),), (),
                      (replace(_load(dice), end_s=90.0), replace(_load(dice), start_s=210.0)),
                      (Event(100.0, {"trims": dice.uniform(2.0, 500.0)}),
                       Event(200.0, {"trims": 0.0})),
                      seed=dice.randrange(10**6), step_s=STEP_S), dice.choice(tuple(Mode)))
    host.run(300.0, dice)
    return host


def _larger(dice: random.Random) -> Host:
    """From small syncs to large ones, and back."""
    size = int(dice.choice((1, 16, 64, 512)) * MB)
    host = Host(Plant((_disk(dice, (RAID, SSD, NVME)),), (),
                      (replace(_load(dice), end_s=150.0),
                       SyncLoad(start_s=150.0, end_s=350.0, bytes=size),
                       SyncLoad(start_s=350.0)),
                      seed=dice.randrange(10**6), step_s=STEP_S))
    host.run(450.0, dice)
    return host


def _fewer(dice: random.Random) -> Host:
    """The load falls to a few syncs a second; somebody copies a file meanwhile."""
    host = Host(Plant((_disk(dice, CACHED),), (Flood(start_s=200.0, end_s=230.0),),
                      (replace(_load(dice), end_s=180.0), SyncLoad(think_s=0.2)),
                      seed=dice.randrange(10**6), step_s=STEP_S))
    host.run(400.0, dice)
    return host


HEALTHY: Mapping[str, Callable[[random.Random], Host]] = {
    "idle": _steady((RAID, SSD, NO_CACHE), threads=1, think_s=4.0),
    "busy": _steady((RAID, SLOW_RAID, SSD, NVME, NO_CACHE), threads=16),
    "flood, held by the agent": _steady((RAID, FAST_RAID, SSD, NVME), (Flood(start_s=60.0),)),
    "waves, held by the agent": _steady(
        (RAID, FAST_RAID), (Flood(start_s=60.0, on_s=10.0, off_s=10.0),)),
    "slow writer, agent off": _steady(
        CACHED, (Flood(start_s=60.0, rate=20.0 * MB),), mode=Mode.OBSERVE),
    "backup at night": _backup,
    "reboot": _reboot,
    "suspend and resume": _suspend,
    "another disk": _hotplug,
    "fstrim": _trim,
    "larger syncs": _larger,
    "fewer syncs": _fewer,
    "syncs come and go": _steady((RAID, SSD, NO_CACHE), on_s=5.0, off_s=25.0),
}


def false_alarms(name: str, seed: int) -> Tuple[Alert, ...]:
    """Every alert on a host that is well."""
    return tuple(alert for _, alert in HEALTHY[name](random.Random(f"{name}/{seed}")).raised)


# ---- the table ---------------------------------------------------------------


def matrix(first: int = 0) -> str:
    """What was told of each trouble, how soon, and the false alarms; SEEDS runs of each."""
    seeds = range(first, first + SEEDS)
    runs = {trouble: [hurt(trouble, seed) for seed in seeds] for trouble in TROUBLES}
    columns = sorted({told(found) for each in runs.values() for found in each})
    width = max(len(column) for column in columns)
    lines = [f"{'scenario':20}" + "".join(f"{n:>4}" for n, _ in enumerate(columns, 1))
             + "   right  median s  latest s  of slow"]  # fmt: skip
    for trouble, each in runs.items():
        counts = [sum(told(found) == column for found in each) for column in columns]
        after = sorted(found.after_s for found in each if found.after_s is not None)
        share = sum(right(trouble, found) for found in each) / len(each)
        soon = f"{after[len(after) // 2]:10.1f}{after[-1]:10.1f}" if after else ""
        slow = [found.slow_s for found in each if found.slow_s is not None and found.slow_s > 0]
        soon += f"{max(slow):9.1f}" if slow else ""
        cells = "".join(f"{count or '.':>4}" for count in counts)
        lines.append(f"{trouble.name:20}{cells}{share:8.0%}{soon}")
    lines += ["", *(f"{n:3} {column:{width}}" for n, column in enumerate(columns, 1))]
    early = sum(len(found.early) for each in runs.values() for found in each)
    lines += ["", f"alerts before anything was wrong: {early}", "",
              f"{'hosts that are well':28}{'runs':>6}{'alerts':>8}"]  # fmt: skip
    for name in HEALTHY:
        count = sum(len(false_alarms(name, seed)) for seed in seeds)
        lines.append(f"{name:28}{SEEDS:6}{count:8}")
    return "\n".join(lines)
