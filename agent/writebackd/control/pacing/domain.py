# SPDX-License-Identifier: GPL-2.0-or-later
"""One tick of pacing on one disk: which cgroups to limit, at what rate, and until when."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Dict, List, Mapping, Optional, Sequence, Set, Tuple

from writebackd import formats
from writebackd.control import reasons
from writebackd.control.device_decision import kernel_floor_bytes
from writebackd.control.pacing.exclusions import SYNCED_LATELY_S
from writebackd.control.pacing.index import TickIndex
from writebackd.estimate.drain import small_writes
from writebackd.estimate.sync_demand import held_s
from writebackd.policy.schema import DevicePolicy, Policy
from writebackd.tuning import EVERY_S, FLOOD_RATE, USES
from writebackd.types.copying import replace
from writebackd.types.core_memory import Memory, PaceMemory
from writebackd.types.decision import DeviceDecision, Rule
from writebackd.types.estimate import Estimate
from writebackd.types.levers import LeverKind
from writebackd.types.samples import DeviceSample, HostInfo, IoClass

# Seconds without pacing after commits waited for the paced, or it could not be set.
BARRED_S = 600.0
# Seconds.  Dirty limit under a pace, in seconds of the pace: sync(2), a filesystem freeze and ext4
# commits wait that long, and for the slices that io.max has let through.  It is NARROW_S once a
# commit has waited for that: on ext4 one waited 0.37 s at 0.25, none above 0.2 at 0.125.  There
# commits sleep in write(): on xfs 1.9 in place of 2.35 thousand a second.
WIDE_S, NARROW_S = 0.25, 0.125
# Seconds.  A single sync that waits for a paced cgroup's pages for longer narrows the limit; one
# that waits for twice that under the narrow one ends the pace.  On ext4 one waited 0.31 s there, in
# a sweep of the array, and without a pace commits were a third of what they are with it.
LONGEST_S = 0.3
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


Notes = Tuple[str, ...]  # for `why`; empty without anything to report


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
        self.now_s, self.dt_s = scene.sample.time_s, scene.sample.dt_s
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

    @cached_property
    def committing(self) -> bool:
        """Whether a sync ended within twice their usual gap, at least RELEASE_S."""
        for want in self.wants if self.demand else ():
            last_s, gap_s, *_ = self.memory.devices[want.name].last_demand or (self.now_s, 0.0)
            # Who syncs is forgotten after SYNCED_LATELY_S, and could be paced then.
            hold_s = min(self.policy.objective.demand_hold_s, SYNCED_LATELY_S)
            if self.now_s - last_s < held_s(hold_s, False, gap_s):
                return True
        return False

    @cached_property
    def objective_s(self) -> float:
        return min((want.basis.objective_s for want in self.wants if want.basis), default=0.0)

    def decide(self, memory: PaceMemory) -> Tuple[PaceMemory, Notes]:
        """The updated memory, and what `why` says of it."""
        memory = self._measure(memory)
        if memory.rate is None:
            return self._consider(memory)
        flooding, refused = self._flooding(memory)
        gone = "" if flooding else reasons.refusals(refused) or "the cgroups are gone"
        why = self._over(memory) or gone
        if not why:
            return self._hold(memory, flooding)
        return _let_go(memory), () if memory.in_force_s is None else (f"pace released: {why}",)

    # ---- what was measured -------------------------------------------------

    def _measure(self, memory: PaceMemory) -> PaceMemory:
        used = {path: rate for path, rate in memory.used.items() if path in memory.rates}
        wrote_s = memory.wrote_s
        for path, size in self.scene.written(
            self.domain.devno, [seen.device.name for seen in self.domain.devices]
        ).items():
            rate = size / self.dt_s
            used[path] = self._smooth(memory.used.get(path), rate)
            if path in memory.rates and rate >= FLOOD_RATE:
                wrote_s = self.now_s
        background_rate = self._smooth(memory.background_rate, self.background_rate)
        return replace(memory, used=used, wrote_s=wrote_s, background_rate=background_rate)

    def _smooth(self, known: Optional[float], rate: float) -> float:
        weight = 1 - 0.5 ** (self.dt_s / SMOOTH_HALF_S)
        return rate if known is None else known + weight * (rate - known)

    def _full_s(self) -> float:
        """How long the write cache has been full, seconds."""
        return max(self.memory.devices[want.name].drain.full_s for want in self.wants)

    def _missed(self) -> bool:
        """Whether the limit alone does not do: its floor, or commits above their objective."""
        return any(
            want.rule is Rule.FLOOR
            or (want.basis is not None
                and reasons.wait_s(self._all_estimates[want.name]) > want.basis.objective_s)
            for want in self.wants
        )

    def _flooding(self, memory: PaceMemory) -> Tuple[List[str], List[Tuple[str, str]]]:
        """The flooding cgroups that may be paced, and those that must not be with the reason."""
        may: List[str] = []
        refused: List[Tuple[str, str]] = []
        bulk: Set[str] = set()
        missing = BULK * memory.background_rate
        for path in sorted(memory.used, key=lambda path: -memory.used[path]):
            if missing <= 0 or memory.used[path] < FLOOD_RATE:
                break
            bulk.add(path)
            missing -= memory.used[path]
        for path, limits in self.scene.limits.items():
            # Without the io controller only the dirtied bytes are known, so always report it.
            if path in memory.rates or path in bulk or limits is None:
                why = self.scene.objection(path)
                if why is None:
                    may.append(path)
                else:
                    refused.append((path, why))
        return may, refused

    # ---- not paced yet -----------------------------------------------------

    def _consider(self, memory: PaceMemory) -> Tuple[PaceMemory, Notes]:
        if not (self.flooded and self.committing and self.drain_rate):
            return memory, ()
        if self.now_s < memory.barred_until_s:
            return memory, (f"not paced: {memory.barred_why}",)
        if self._full_s() <= 0:
            return memory, ()
        if self.policy.levers.pace == "auto" and not self._missed():
            return memory, ()
        flooding, refused = self._flooding(memory)
        total = sum(memory.used.get(path, 0.0) for path in flooding)
        if not flooding or memory.background_rate - total > STRAY_SHARE * self.drain_rate:
            return memory, (f"not paced: {reasons.refusals(refused) or reasons.UNKNOWN_FLOOD}",)
        # Begin with the smallest share that the policy leaves to a flood; it rises with room.
        share = self.policy.levers.pace_share
        rate = share * self.drain_rate
        if len(flooding) * LEAST_PACE > rate:
            return memory, (f"not paced: {reasons.too_many(len(flooding), LEAST_PACE, rate)}",)
        memory = replace(
            divide(memory, rate, flooding), began_s=self.now_s, step_s=self.now_s,
            wrote_s=self.now_s, in_force_s=None, unset_s=0.0, stray_s=0.0,
        )
        return memory, (
            f"{reasons.held(self.memory, memory.rates, rate)}, {formats.percent(share)} of the "
            f"drain rate {reasons.speed(self.drain_rate)}, to keep room in the write cache",
        )

    # ---- paced -------------------------------------------------------------

    def _over(self, memory: PaceMemory) -> str:
        """Why there is nothing to pace any more; empty if there is."""
        if not self.committing and self.now_s >= self.memory.hold_until_s:
            return "nobody commits"
        if self.now_s - memory.wrote_s > QUIET_S:
            return "flood over"
        return ""

    def _hold(self, memory: PaceMemory, flooding: Sequence[str]) -> Tuple[PaceMemory, Notes]:
        rate = memory.rate or 0.0
        memory = self._timed(memory, flooding)
        waited = self._waited_for(memory)
        if waited is not None and not memory.narrow:
            memory, waited = replace(memory, narrow=True), None
        problem = self._problem(memory, flooding, waited)
        if problem is not None:
            barred_s, why = problem
            memory = replace(
                _let_go(memory), barred_until_s=self.now_s + barred_s, barred_why=why
            )
            return memory, (f"not paced: {why}",)
        if memory.in_force_s is not None:
            return self._step(memory, flooding)
        # What is seen is still the flood as it was: the rate is unknown.
        if set(flooding) != set(memory.rates):
            memory = divide(memory, rate, flooding)
        return memory, (f"{reasons.held(self.memory, memory.rates, rate)}: not in force yet",)

    def _step(self, memory: PaceMemory, flooding: Sequence[str]) -> Tuple[PaceMemory, Notes]:
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
        pace, lasts_s = reasons.speed(memory.rate or 0.0), self.now_s - (memory.began_s or 0.0)
        return memory, (
            f"{reasons.units(memory.rates)} held at {pace}: {reasons.paced(rule)}",
            f"paced for {formats.duration(lasts_s)}; "
            + reasons.exempt(memory.rates, self.domain.devno),
        )

    # ---- what ends a pace --------------------------------------------------

    def _timed(self, memory: PaceMemory, flooding: Sequence[str]) -> PaceMemory:
        """For how long others have flooded, and the kernel has shown the paces, or not."""
        stray_s = memory.stray_s + self.dt_s
        if self._stray(memory, flooding) <= STRAY_SHARE * (self.drain_rate or memory.rate or 0.0):
            stray_s = 0.0
        in_force_s, unset_s = memory.in_force_s, 0.0
        if self._unset(memory):
            in_force_s, unset_s = None, memory.unset_s + self.dt_s
        elif in_force_s is None:
            in_force_s = self.now_s
        began_s = self.now_s if memory.began_s is None else memory.began_s
        return replace(
            memory, stray_s=stray_s, in_force_s=in_force_s, unset_s=unset_s, began_s=began_s
        )

    def _problem(
        self, memory: PaceMemory, flooding: Sequence[str], waited: Optional[str]
    ) -> Optional[Tuple[float, str]]:
        """Why the pace has to end, and for how many seconds none begins."""
        rate, lever = memory.rate or 0.0, LeverKind.PACE.value
        for path in memory.rates:
            if f"{lever} {path} {self.domain.devno}" in self.scene.foreign:
                return BARRED_S, f"another process set io.max of {path}"
        if len(flooding) * LEAST_PACE > rate:
            return STRAY_BARRED_S, reasons.too_many(len(flooding), LEAST_PACE, rate)
        if memory.stray_s >= STRAY_LASTS_S:
            stray = reasons.speed(self._stray(memory, flooding))
            return STRAY_BARRED_S, f"cgroups that cannot be paced write {stray}: using the limit"
        if memory.unset_s >= UNSET_S and not self.memory.dry:
            return BARRED_S, f"io.max of {self._unset(memory)[0]} could not be set"
        if waited is not None:
            return BARRED_S, f"{waited} for pages of {reasons.units(memory.rates)}"
        return None

    def _stray(self, memory: PaceMemory, flooding: Sequence[str]) -> float:
        """Bytes per second of cgroups that cannot be paced."""
        return memory.background_rate - sum(memory.used.get(path, 0.0) for path in flooding)

    def _unset(self, memory: PaceMemory) -> List[str]:
        """The cgroups whose io.max does not show a pace."""
        devno, limits = self.domain.devno, self.scene.limits
        lines = {path: (limits.get(path) or {}).get(devno, "wbps=max") for path in memory.rates}
        return [path for path, line in lines.items() if "wbps=max" in line.split()]

    def _waited_for(self, memory: PaceMemory) -> Optional[str]:
        if memory.in_force_s is None or not self.demand:
            return None
        most_s = max(2 * LONGEST_S if memory.narrow else LONGEST_S, self.objective_s)
        waits = (self._waited(name, most_s) for name in self.domain.group)
        return next(filter(None, waits), None)

    def _waited(self, name: str, most_s: float) -> Optional[str]:
        """Whether syncs wait although the disk answers at once; in words.

        They wait for pages of a paced cgroup then: ext4 in ordered mode writes the data of newly
        allocated blocks before the commit that refers to them.
        """
        seen, objective_s = self.scene.devices[name], self.objective_s
        writes = [each for each in small_writes(seen) if each.total]
        if seen.sync is None or not writes:
            return None
        latency, oldest_s = seen.sync.latency, seen.sync.oldest_s
        over_s = latency.total_s(objective_s) + (oldest_s if oldest_s > objective_s else 0.0)
        if sum(each.total_s(objective_s / 2) for each in writes) >= over_s / 2:
            return None
        longest_s, mean_s = max(latency.quantile(1.0) or 0.0, oldest_s), latency.mean() or 0.0
        # Behind a full cache they wait for a place in the device's queue, before they count there.
        queued = [each.latency.quantile(1.0) or 0.0 for name, each in (seen.classes or {}).items()
                  if name in (IoClass.BACKGROUND_WRITE, IoClass.FLUSH)]
        if max(queued, default=0.0) >= longest_s / 2:
            return None
        if longest_s > most_s:
            return f"a sync waited {formats.latency(longest_s)}"
        return f"syncs wait {formats.latency(mean_s)}" if mean_s > objective_s else None


def limit_bytes(bounds: DevicePolicy, host: HostInfo, memory: PaceMemory) -> Optional[int]:
    """The dirty limit under a pace: what they write in WIDE_S or NARROW_S; None without a pace."""
    if memory.rate is None or memory.in_force_s is None:
        return None
    floor = max(bounds.floor_bytes, kernel_floor_bytes(host))
    wide_s = NARROW_S if memory.narrow else WIDE_S
    limit = int(min(bounds.drain_time_s, wide_s) * memory.rate)
    return max(floor, min(limit, bounds.ceiling_bytes))


def divide(memory: PaceMemory, rate: float, paths: Sequence[str]) -> PaceMemory:
    """Divide the pace among cgroups; what one does not use goes to the others."""
    modest: Dict[str, float] = {}
    for path in paths:
        # Above USES, or the part that it got for its use would already look like all that it may.
        used, had = memory.used.get(path), memory.rates.get(path)
        if used is not None and had is not None and used < (1 + USES) / 2 * had:
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
