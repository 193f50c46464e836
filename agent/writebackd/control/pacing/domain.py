# SPDX-License-Identifier: GPL-2.0-or-later
"""One tick of pacing on one disk: whom to hold, at what rate, and whether it helps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Dict, List, Mapping, Optional, Sequence, Set, Tuple

from writebackd import formats
from writebackd.control import reasons
from writebackd.control.device_decision import DeviceTarget, kernel_floor_bytes
from writebackd.control.pacing.exclusions import unit_of
from writebackd.control.pacing.index import TickIndex
from writebackd.estimate.limit_shares import shared_limit
from writebackd.policy.schema import DevicePolicy, Policy
from writebackd.tuning import EVERY_S, FLOOD_RATE, USES
from writebackd.types.copying import replace
from writebackd.types.core_memory import Memory
from writebackd.types.decision import Mode, Rule
from writebackd.types.estimate import Estimate
from writebackd.types.histogram import BUCKET_EDGES_S, Histogram
from writebackd.types.levers import LeverKind
from writebackd.types.pace_memory import PaceMemory
from writebackd.types.samples import DeviceSample, HostInfo

# Seconds of a full cache after which it begins: two ticks while somebody waits.
START_S = 0.9
# Seconds of the limit alone that pacing is compared with; windows of its own in which it has to be
# better, and the time before the first, in which the cache makes room.
ALONE_S, JUDGE_S, SETTLE_S = 3.0, 10.0, 3.0
# What it has to bring: the mean of an fsync down to this share.  Where it helped it was a quarter.
BETTER = 0.6
# Seconds without it where it did not help, or could not be set.
BARRED_S = 600.0
# Seconds of the pace that may be dirty: sync(2), a freeze and commits of ext4 wait for that.
WIDE_S = 1.0
# A part that moved by less is not written, but for a cut: each takes a call of systemd.
MOVED = 0.05
# Bytes per second.  Below it a single write of the flusher, of up to 4 MB, would take seconds.
LEAST_PACE = 1 << 20
# The flood are the largest writers that make up this share of the device's background writes: one,
# or 18 of 20 equal ones.
BULK = 0.9
# Others that cannot be paced may write this share of R; more, for so many seconds, needs the limit,
# which then has so many seconds at least.
STRAY_SHARE, STRAY_LASTS_S, STRAY_BARRED_S = 0.2, 3.0, 60.0
# Seconds in which the kernel has to show a pace: the child that asks systemd may take 5
# (CHILD_LIMIT_S in actuate/child_jobs.py), and a tick reads what it did.
UNSET_S = 8.0
# Seconds without a write after which a flood is over.
QUIET_S = 60.0
# Rates of cgroups forget half in so many seconds: destage and flusher come in bursts of one.
SMOOTH_HALF_S = 2.4

MOST_NAMED = 4
# A limit is this device's own up to this multiple of what was asked for.
IN_FORCE_HIGH = 1.25


@dataclass(frozen=True)
class Domain:
    """A disk that a flood can be held on, and the devices that share it."""

    devno: str
    devices: Tuple[DeviceSample, ...]  # those whose writes the pace would hold
    group: Tuple[str, ...]  # names of all that end on the same leaf disks


class PaceTick:
    """One tick of one domain: what it was given, and the decision from it."""

    def __init__(
        self,
        policy: Policy,
        memory: Memory,
        scene: TickIndex,
        estimates: Mapping[str, Estimate],
        domain: Domain,
        wants: Mapping[str, DeviceTarget],
    ) -> None:
        self.policy, self.memory, self.scene, self.domain = policy, memory, scene, domain
        self.sample = scene.sample
        self.now_s = scene.sample.time_s
        self._all_estimates, self._all_wants = estimates, wants
        own = [estimates[seen.device.name] for seen in domain.devices]
        self.drain_rate = max((e.drain_rate or 0.0 for e in own), default=0.0)
        self.background_rate = max((e.background_rate for e in own), default=0.0)
        self.flooded = any(e.flooded for e in own)

    # What follows is of the whole group, which may be all volumes of an array: looked at
    # only for one that is flooded or paced.

    @cached_property
    def wants(self) -> List[DeviceTarget]:
        """Of the devices that anybody syncs on."""
        wants = (self._all_wants[name] for name in self.domain.group)
        return [want for want in wants if want.demand]

    @cached_property
    def demand(self) -> bool:
        estimates = (self._all_estimates[want.name] for want in self.wants)
        return bool(self.wants) and all(each.demand_known for each in estimates)

    def decide(self, memory: PaceMemory) -> Tuple[PaceMemory, str]:
        """The memory with this tick in it, and what there is to say."""
        memory = self._measure(memory)
        if memory.rate is not None:
            return self._hold(memory)
        return self._consider(memory)

    # ---- what was measured -------------------------------------------------

    def _measure(self, memory: PaceMemory) -> PaceMemory:
        used = {path: rate for path, rate in memory.used.items() if path in memory.rates}
        wrote_s = memory.wrote_s
        for path, size in self.scene.written(
            self.domain.devno, [seen.device.name for seen in self.domain.devices]
        ).items():
            rate = size / self.sample.dt_s
            used[path] = self._smooth(memory.used.get(path), rate)
            if path in memory.rates and rate >= FLOOD_RATE:
                wrote_s = self.now_s
        background_rate = self._smooth(memory.background_rate, self.background_rate)
        return replace(memory, used=used, wrote_s=wrote_s, background_rate=background_rate)

    def _smooth(self, known: Optional[float], rate: float) -> float:
        weight = 1 - 0.5 ** (self.sample.dt_s / SMOOTH_HALF_S)
        return rate if known is None else known + weight * (rate - known)

    def _latencies(self) -> Histogram:
        """fsyncs that returned, and one for each whole second that the oldest waits."""
        total = Histogram()
        for name in self.domain.group:
            sync = self.scene.devices[name].sync
            if sync is not None:
                total += sync.latency
                if int(sync.oldest_s) > int(max(0.0, sync.oldest_s - self.sample.dt_s)):
                    total += _one(sync.oldest_s)
        return total

    # ---- not paced yet -----------------------------------------------------

    def _consider(self, memory: PaceMemory) -> Tuple[PaceMemory, str]:
        if not (self.flooded and self.demand and self.drain_rate):
            return memory, ""
        memory = self._alone(memory)
        if self.now_s < memory.barred_until_s:
            return memory, f"not paced: {memory.barred_why}"
        if self._full_s() < START_S:
            return memory, ""
        flooding, refused = self._flooding(memory)
        total = sum(memory.used.get(path, 0.0) for path in flooding)
        if not flooding or memory.background_rate - total > STRAY_SHARE * self.drain_rate:
            return memory, "not paced: " + (
                _refusals(refused)
                or "the cgroup that floods is not known, unless it is many with less than "
                f"{_speed(LEAST_PACE)} each"
            )
        # The least that a flood keeps, until the cache has room.
        share = self.policy.levers.pace_share
        rate = share * self.drain_rate
        if len(flooding) * LEAST_PACE > rate:
            return memory, f"not paced: {_too_many(flooding, rate)}"
        if memory.alone_for_s < ALONE_S:
            return memory, ""
        memory = replace(
            divide(memory, rate, flooding), step_s=self.now_s, wrote_s=self.now_s,
            in_force_s=None, unset_s=0.0, stray_s=0.0, under=Histogram(),
        )
        return memory, (
            f"{_names(memory)} held at {_speed(rate)}, {formats.percent(share)} of the "
            f"{_speed(self.drain_rate)} that drain, so that the write cache keeps room"
        )

    def _alone(self, memory: PaceMemory) -> PaceMemory:
        """The memory with what syncs take behind a full cache, with the limit alone in force."""
        if self._full_s() <= 0 or not all(
            want.target_bytes is not None
            and self._limit(want.name) <= IN_FORCE_HIGH * want.target_bytes
            for want in self.wants
        ):
            return memory
        if memory.alone_for_s >= JUDGE_S or self.now_s - memory.alone_s > BARRED_S:
            memory = replace(memory, alone=Histogram(), alone_for_s=0.0)
        return replace(
            memory, alone=memory.alone + self._latencies(), alone_s=self.now_s,
            alone_for_s=memory.alone_for_s + self.sample.dt_s,
        )

    def _objective_s(self) -> float:
        return min([want.basis.objective_s for want in self.wants if want.basis], default=0.0)

    def _full_s(self) -> float:
        """For how long the write cache is full, seconds."""
        return max(self.memory.devices[want.name].drain.full_s for want in self.wants)

    def _limit(self, name: str) -> int:
        """The limit that holds there: with a cap of the device's own the global one is wide."""
        cap = self.memory.caps.get(name)
        if cap is not None and cap.in_force:
            return cap.bytes
        return shared_limit(self.memory, self.sample)

    def _flooding(self, memory: PaceMemory) -> Tuple[List[str], List[Tuple[str, str]]]:
        """The cgroups that flood and may be paced, and those that may not with the reason."""
        may: List[str] = []
        refused: List[Tuple[str, str]] = []
        bulk = self._bulk(memory)
        for path, limits in self.scene.limits.items():
            # Where the files tell nothing, what was dirtied has to.
            if path not in memory.rates and path not in bulk and limits is not None:
                continue
            why = self.scene.objection(path)
            if why is None:
                may.append(path)
            else:
                refused.append((path, why))
        return may, refused

    def _bulk(self, memory: PaceMemory) -> Set[str]:
        bulk: Set[str] = set()
        missing = BULK * memory.background_rate
        for path in sorted(memory.used, key=lambda path: -memory.used[path]):
            if missing <= 0 or memory.used[path] < FLOOD_RATE:
                break
            bulk.add(path)
            missing -= memory.used[path]
        return bulk

    # ---- paced -------------------------------------------------------------

    def _hold(self, memory: PaceMemory) -> Tuple[PaceMemory, str]:
        if not self.demand and self.now_s >= self.memory.hold_until_s:
            return _let_go(memory), "no sync demand any more: not paced"
        if self.now_s - memory.wrote_s > QUIET_S:
            return _let_go(memory), "the flood is over: not paced"
        flooding, refused = self._flooding(memory)
        if not flooding:
            why = _refusals(refused) or "the cgroups are gone"
            return _let_go(memory), f"not paced any more: {why}"
        taken = self._taken(memory)
        if taken:
            return self._bar(memory, BARRED_S, f"somebody else set io.max of {taken}")
        rate = memory.rate or 0.0
        if len(flooding) * LEAST_PACE > rate:
            return self._bar(memory, STRAY_BARRED_S, _too_many(flooding, rate))
        compared = BARRED_S if memory.alone.total else 0.0  # after a restart not yet
        for look, barred_s in (
            (self._strays, STRAY_BARRED_S), (self._in_force, BARRED_S), (self._judge, compared)
        ):
            memory, problem = look(memory, flooding)
            if problem:
                return self._bar(memory, barred_s, problem)
        if memory.in_force_s is None:
            # What is seen is still the flood as it was, and no word on the rate.
            if set(flooding) != set(memory.rates):
                memory = divide(memory, rate, flooding)
            return memory, f"{_names(memory)} shall be held at {_speed(rate)}: not in force"
        return self._step(memory, flooding)

    def _step(self, memory: PaceMemory, flooding: Sequence[str]) -> Tuple[PaceMemory, str]:
        """The rate by the law, and its parts by what each uses."""
        tightest = min(self.wants, key=lambda want: want.pace_by, default=None)
        by, rule = (1.0, Rule.OTHER) if tightest is None else (tightest.pace_by, tightest.rule)
        since_s = max(memory.step_s, memory.in_force_s or 0.0)
        new = divide(memory, by * (memory.rate or 0.0), flooding)
        joined = set(new.rates) != set(memory.rates)
        cut = by < 1.0 and rule is not Rule.ROOM
        moved = joined or cut or any(
            abs(part - memory.rates[path]) > MOVED * memory.rates[path]
            for path, part in new.rates.items()
        )
        if joined or (moved and self.now_s - since_s >= EVERY_S - 1e-6):
            memory = replace(new, step_s=self.now_s)
        why = reasons.paced(rule)
        return memory, f"{_names(memory)} held at {_speed(memory.rate or 0.0)}: {why}"

    def _taken(self, memory: PaceMemory) -> Optional[str]:
        """A paced cgroup whose pace somebody else has changed: it is his now."""
        kind, devno = LeverKind.PACE.value, self.domain.devno
        foreign = self.scene.foreign
        return next((p for p in memory.rates if f"{kind} {p} {devno}" in foreign), None)

    def _strays(self, memory: PaceMemory, flooding: Sequence[str]) -> Tuple[PaceMemory, str]:
        held = sum(memory.used.get(path, 0.0) for path in flooding)
        stray = memory.background_rate - held
        if stray <= STRAY_SHARE * (self.drain_rate or memory.rate or 0.0):
            return replace(memory, stray_s=0.0), ""
        memory = replace(memory, stray_s=memory.stray_s + self.sample.dt_s)
        if memory.stray_s < STRAY_LASTS_S:
            return memory, ""
        return memory, f"others that cannot be paced write {_speed(stray)}, which needs the limit"

    def _in_force(self, memory: PaceMemory, flooding: Sequence[str]) -> Tuple[PaceMemory, str]:
        """Whether the kernel shows the paces; not for ever without them."""
        missing = [path for path in memory.rates if not self._limited(path)]
        if not missing:
            if memory.in_force_s is not None:
                return memory, ""
            under_s = self.now_s + SETTLE_S
            return replace(memory, unset_s=0.0, in_force_s=self.now_s, under_s=under_s), ""
        unset_s = memory.unset_s + self.sample.dt_s
        memory = replace(memory, in_force_s=None, unset_s=unset_s)
        # Nothing is ever set while only observing.
        if memory.unset_s < UNSET_S or self.memory.mode is Mode.OBSERVE:
            return memory, ""
        return memory, f"io.max of {missing[0]} could not be set"

    def _limited(self, path: str) -> bool:
        limits = (self.scene.limits.get(path) or {}).get(self.domain.devno, "")
        words = dict(word.partition("=")[::2] for word in limits.split())
        return words.get("wbps", "max") != "max"

    def _judge(self, memory: PaceMemory, flooding: Sequence[str]) -> Tuple[PaceMemory, str]:
        """Whether syncs got faster, over windows of JUDGE_S; empty while there is no verdict."""
        # While the disk may have become slower, the limit alone was of another one.
        slower = any(self.memory.devices[want.name].drain.fell_s > 0 for want in self.wants)
        if memory.in_force_s is None or slower or not (self.flooded and self.demand):
            return replace(memory, under=Histogram(), under_s=self.now_s + SETTLE_S), ""
        if self.now_s < memory.under_s:
            return memory, ""
        under = memory.under + self._latencies()
        if self.now_s - memory.under_s < JUDGE_S:
            return replace(memory, under=under), ""
        memory, alone = replace(memory, under=Histogram(), under_s=self.now_s), memory.alone
        mean, before = under.mean(), alone.mean()
        p99 = under.quantile(0.99)
        if mean is None or p99 is None or p99 <= self._objective_s():
            return memory, ""  # nobody synced, or all is well
        if before is None:
            return memory, "after a restart: how long do syncs take with the limit alone?"
        if mean <= BETTER * before:
            return memory, ""
        return memory, (
            f"it did not help: a sync took {formats.milliseconds(mean)} ms on average, "
            f"{formats.milliseconds(before)} ms with the limit alone"
        )

    def _bar(self, memory: PaceMemory, seconds: float, why: str) -> Tuple[PaceMemory, str]:
        memory = replace(_let_go(memory), barred_until_s=self.now_s + seconds, barred_why=why)
        return memory, f"not paced: {why}"


def limit_bytes(
    bounds: DevicePolicy, host: HostInfo, memory: PaceMemory
) -> Optional[int]:
    """The dirty limit under a pace: what the paced write in WIDE_S; None where none is in force."""
    if memory.rate is None or memory.in_force_s is None:
        return None
    floor = max(bounds.floor_bytes, kernel_floor_bytes(host))
    limit = int(min(bounds.drain_time_s, WIDE_S) * memory.rate)
    return max(floor, min(limit, bounds.ceiling_bytes))


def divide(memory: PaceMemory, rate: float, paths: Sequence[str]) -> PaceMemory:
    """Hand the rate out: who does not use his part leaves it to those that would."""
    modest: Dict[str, float] = {}
    for path in paths:
        # The part that he got for that counts, cut to a byte.
        used, had = memory.used.get(path), memory.rates.get(path)
        if used is not None and had is not None and used < USES * had + 1:
            modest[path] = used / USES
    rates = {}
    left, todo = rate, sorted(paths, key=lambda path: modest.get(path, float("inf")))
    for index, path in enumerate(todo):
        even = left / (len(todo) - index)
        # The last one gets what is there: nobody else could use it.
        part = even if index == len(todo) - 1 else min(even, modest.get(path, even))
        part = max(part, even / 4)
        rates[path] = max(int(part), LEAST_PACE)
        left -= part
    return replace(memory, rate=rate, rates=rates)


def _let_go(memory: PaceMemory) -> PaceMemory:
    return replace(memory, rate=None, rates={}, in_force_s=None)


def _names(memory: PaceMemory) -> str:
    return _some([unit_of(path) for path in sorted(memory.rates)], ", ")


def _refusals(refused: Sequence[Tuple[str, str]]) -> str:
    return _some([f"{path}: {why}" for path, why in refused], "; ")


def _some(texts: Sequence[str], between: str) -> str:
    """The first few: a reason with dozens of names helps nobody."""
    more = len(texts) - MOST_NAMED
    shown = [*texts[:MOST_NAMED], *([f"{more} more"] if more > 0 else [])]
    return between.join(shown)


def _too_many(paths: Sequence[str], rate: float) -> str:
    return (
        f"{len(paths)} cgroups flood, which at {_speed(LEAST_PACE)} each, the least pace, is more "
        f"than the {_speed(rate)} that they may write"
    )


def _speed(rate: float) -> str:
    return f"{formats.size(rate)}/s"


def _one(seconds: float) -> Histogram:
    """A single latency."""
    index = max(i for i, edge in enumerate(BUCKET_EDGES_S[:-1]) if edge <= seconds)
    return Histogram(((index, 1),))
