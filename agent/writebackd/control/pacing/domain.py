# SPDX-License-Identifier: GPL-2.0-or-later
"""One tick of pacing on one disk: which cgroups to limit, at what rate, and whether it helps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Dict, List, Mapping, Optional, Sequence, Set, Tuple

from writebackd import formats
from writebackd.control import reasons
from writebackd.control.device_decision import kernel_floor_bytes
from writebackd.control.pacing.exclusions import unit_of
from writebackd.control.pacing.index import TickIndex
from writebackd.estimate.limit_shares import shared_limit
from writebackd.policy.schema import DevicePolicy, Policy
from writebackd.tuning import EVERY_S, FLOOD_RATE, USES
from writebackd.types.copying import replace
from writebackd.types.core_memory import Memory, PaceMemory
from writebackd.types.decision import DeviceDecision, Mode, Rule
from writebackd.types.estimate import Estimate
from writebackd.types.histogram import BUCKET_EDGES_S, Histogram
from writebackd.types.levers import LeverKind
from writebackd.types.samples import DeviceSample, HostInfo

# Seconds.  Pacing begins after this time with a full cache: two ticks of 0.5 s.
START_S = 0.9
# Seconds.  fsync is measured for ALONE_S or more under the dirty limit alone, and then under the
# pace in windows of JUDGE_S.  The first begins SETTLE_S after the pace: the cache has room then.
ALONE_S, JUDGE_S, SETTLE_S = 3.0, 10.0, 3.0
# Share of the mean fsync time under the limit alone.  Pacing helps if the mean falls below it; it
# fell to a quarter where pacing helped.
BETTER = 0.6
# Seconds without pacing after it did not help or could not be set.
BARRED_S = 600.0
# Seconds.  Dirty limit under a pace, in seconds of the pace: sync(2), a filesystem freeze and ext4
# commits wait that long.
WIDE_S = 1.0
# Share.  A smaller change of a cgroup's pace is not written unless it is a cut: each change is a
# call to systemd.
MOVED = 0.05
# Bytes per second: the smallest pace.  A single write of the flusher is up to 4 MB, and would take
# too long at less.
LEAST_PACE = 1 << 20
# Share of the device's background writes.  The largest writers that together reach it are the
# flood: one cgroup, or 18 of 20 equal ones.
BULK = 0.9
# Share of R that cgroups which cannot be paced may write.  If they write more for STRAY_LASTS_S,
# the dirty limit replaces the pace for at least STRAY_BARRED_S.
STRAY_SHARE, STRAY_LASTS_S, STRAY_BARRED_S = 0.2, 3.0, 60.0
# Seconds.  A pace that io.max does not show after this time could not be set: the child that calls
# systemd may take 5 s (CHILD_LIMIT_S in actuate/lever_plan.py), and a later tick reads io.max.
UNSET_S = 8.0
# Seconds without a write after which a flood is over.
QUIET_S = 60.0
# Seconds.  Half-life of the average write rates of cgroups, since writeback comes in 1 s bursts.
SMOOTH_HALF_S = 2.4

MOST_NAMED = 4
# Factor.  The dirty limit is in force if it is at most this multiple of the requested one.
IN_FORCE_HIGH = 1.25


@dataclass(frozen=True)
class Domain:
    """A disk on which a flood can be paced, and the devices that share it."""

    devno: str
    devices: Tuple[DeviceSample, ...]  # those whose writes the pace would limit
    group: Tuple[str, ...]  # names of all devices on the same leaf disks


class PaceTick:
    """One tick of one domain: its inputs, and the decision."""

    def __init__(
        self,
        policy: Policy,
        memory: Memory,
        scene: TickIndex,
        estimates: Mapping[str, Estimate],
        domain: Domain,
        wants: Mapping[str, DeviceDecision],
    ) -> None:
        self.policy, self.memory, self.scene, self.domain = policy, memory, scene, domain
        self.sample = scene.sample
        self.now_s = scene.sample.time_s
        self._all_estimates, self._all_wants = estimates, wants
        own = [estimates[seen.device.name] for seen in domain.devices]
        self.drain_rate = max((e.drain_rate or 0.0 for e in own), default=0.0)
        self.background_rate = max((e.background_rate for e in own), default=0.0)
        self.flooded = any(e.flooded for e in own)

    # The group may be all volumes of an array, so these are computed only if needed: for a flooded
    # or paced domain.

    @cached_property
    def wants(self) -> List[DeviceDecision]:
        """The wants of the devices with sync demand."""
        wants = (self._all_wants[name] for name in self.domain.group)
        return [want for want in wants if want.demand]

    @cached_property
    def demand(self) -> bool:
        estimates = (self._all_estimates[want.name] for want in self.wants)
        return bool(self.wants) and all(estimate.demand_known for estimate in estimates)

    def decide(self, memory: PaceMemory) -> Tuple[PaceMemory, str]:
        """The updated memory, and a note for `why`; empty without anything to report."""
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
        """Commits, and one more in each second in which the oldest fsync is still pending."""
        total = Histogram()
        for name in self.domain.group:
            sync = self.scene.devices[name].sync
            if sync is not None:
                total += sync.commit_latency
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
                or "the flooding cgroup is unknown, or many write less than "
                f"{_speed(LEAST_PACE)} each"
            )
        # Begin with the smallest share that the policy leaves to a flood; it rises with room.
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
            f"drain rate {_speed(self.drain_rate)}, to keep room in the write cache"
        )

    def _alone(self, memory: PaceMemory) -> PaceMemory:
        """Measure fsync with a full cache and only the dirty limit in force."""
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

    def _full_s(self) -> float:
        """How long the write cache has been full, seconds."""
        return max(self.memory.devices[want.name].drain.full_s for want in self.wants)

    def _limit(self, name: str) -> int:
        """The dirty limit in force for a device: its own cap, or the global limit."""
        cap = self.memory.caps.get(name)
        if cap is not None and cap.in_force:
            return cap.bytes
        return shared_limit(self.memory, self.sample)

    def _flooding(self, memory: PaceMemory) -> Tuple[List[str], List[Tuple[str, str]]]:
        """The flooding cgroups that may be paced, and those that must not be with the reason."""
        may: List[str] = []
        refused: List[Tuple[str, str]] = []
        bulk = self._bulk(memory)
        for path, limits in self.scene.limits.items():
            # Without the io controller only the dirtied bytes are known, so always report it.
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
            return _let_go(memory), "no sync demand: pace released"
        if self.now_s - memory.wrote_s > QUIET_S:
            return _let_go(memory), "flood over: pace released"
        flooding, refused = self._flooding(memory)
        if not flooding:
            why = _refusals(refused) or "the cgroups are gone"
            return _let_go(memory), f"pace released: {why}"
        taken = self._taken(memory)
        if taken:
            return self._bar(memory, BARRED_S, f"another process set io.max of {taken}")
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
            # What is seen is still the flood as it was: the rate is unknown.
            if set(flooding) != set(memory.rates):
                memory = divide(memory, rate, flooding)
            return memory, f"{_names(memory)} to be held at {_speed(rate)}: not in force yet"
        return self._step(memory, flooding)

    def _step(self, memory: PaceMemory, flooding: Sequence[str]) -> Tuple[PaceMemory, str]:
        """Apply the law's factor, and divide the pace by what each cgroup uses."""
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
        """A paced cgroup whose io.max another process has changed, and now owns."""
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
        return memory, f"cgroups that cannot be paced write {_speed(stray)}: using the limit"

    def _in_force(self, memory: PaceMemory, flooding: Sequence[str]) -> Tuple[PaceMemory, str]:
        """Whether the kernel shows the paces; a problem if it does not after UNSET_S."""
        missing = [path for path in memory.rates if not self._limited(path)]
        if not missing:
            if memory.in_force_s is not None:
                return memory, ""
            under_s = self.now_s + SETTLE_S
            return replace(memory, unset_s=0.0, in_force_s=self.now_s, under_s=under_s), ""
        unset_s = memory.unset_s + self.sample.dt_s
        memory = replace(memory, in_force_s=None, unset_s=unset_s)
        # In observe mode nothing is set.
        if memory.unset_s < UNSET_S or self.memory.mode is Mode.OBSERVE:
            return memory, ""
        return memory, f"io.max of {missing[0]} could not be set"

    def _limited(self, path: str) -> bool:
        limits = (self.scene.limits.get(path) or {}).get(self.domain.devno, "")
        words = dict(word.partition("=")[::2] for word in limits.split())
        return words.get("wbps", "max") != "max"

    def _judge(self, memory: PaceMemory, flooding: Sequence[str]) -> Tuple[PaceMemory, str]:
        """Whether syncs got faster, in windows of JUDGE_S; the problem if they did not."""
        # If the disk may have become slower, the measurement under the limit alone is out of date.
        slower = any(self.memory.devices[want.name].drain.slower_s > 0 for want in self.wants)
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
        objective_s = min([want.basis.objective_s for want in self.wants if want.basis], default=0)
        if mean is None or p99 is None or p99 <= objective_s:
            return memory, ""  # no sync, or the objective is met
        if before is None:
            return memory, "restarted: fsync is first measured with the dirty limit alone"
        if mean <= BETTER * before:
            return memory, ""
        return memory, (
            f"it did not help: mean sync {formats.milliseconds(mean)} ms, "
            f"{formats.milliseconds(before)} ms with the dirty limit alone"
        )

    def _bar(self, memory: PaceMemory, seconds: float, why: str) -> Tuple[PaceMemory, str]:
        memory = replace(_let_go(memory), barred_until_s=self.now_s + seconds, barred_why=why)
        return memory, f"not paced: {why}"


def limit_bytes(
    bounds: DevicePolicy, host: HostInfo, memory: PaceMemory
) -> Optional[int]:
    """The dirty limit under a pace: what the paced cgroups write in WIDE_S; None without a pace."""
    if memory.rate is None or memory.in_force_s is None:
        return None
    floor = max(bounds.floor_bytes, kernel_floor_bytes(host))
    limit = int(min(bounds.drain_time_s, WIDE_S) * memory.rate)
    return max(floor, min(limit, bounds.ceiling_bytes))


def divide(memory: PaceMemory, rate: float, paths: Sequence[str]) -> PaceMemory:
    """Divide the pace among cgroups; what one does not use goes to the others."""
    modest: Dict[str, float] = {}
    for path in paths:
        # Compare with the part it got, which was rounded down to a byte.
        used, had = memory.used.get(path), memory.rates.get(path)
        if used is not None and had is not None and used < USES * had + 1:
            modest[path] = used / USES
    rates = {}
    left, todo = rate, sorted(paths, key=lambda path: modest.get(path, float("inf")))
    for index, path in enumerate(todo):
        even = left / (len(todo) - index)
        # The last one gets all that is left.
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
    """The first MOST_NAMED, and the number of others."""
    more = len(texts) - MOST_NAMED
    shown = [*texts[:MOST_NAMED], *([f"{more} more"] if more > 0 else [])]
    return between.join(shown)


def _too_many(paths: Sequence[str], rate: float) -> str:
    return (
        f"{len(paths)} cgroups flood: the smallest pace of {_speed(LEAST_PACE)} for each adds up "
        f"to more than the {_speed(rate)} allowed"
    )


def _speed(rate: float) -> str:
    return f"{formats.size(rate)}/s"


def _one(seconds: float) -> Histogram:
    """A single latency."""
    index = max(i for i, edge in enumerate(BUCKET_EDGES_S[:-1]) if edge <= seconds)
    return Histogram(((index, 1),))
