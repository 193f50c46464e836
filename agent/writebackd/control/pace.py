# SPDX-License-Identifier: GPL-2.0-or-later
"""Pacing: a flood from another cgroup held just below what the disk drains.

A dirty limit bounds what is queued ahead of a sync; it does not keep a write cache
from filling, and a full cache makes every write wait for the media.  A flood whose
inflow stays below the drain rate leaves room in the cache for good, and then wide
dirty limits do no harm.  Measured at 60 MB/s: 16 % of the idle fsync rate with the
best fixed limit, 80 % with the flood held at 55 MB/s.

It begins when syncs are slow in a flood, and does not wait until the limit has come down:
a backlog of gigabytes is drained at the pace as well.  How fast the flood may go cannot be
computed, since syncs that write the same blocks again cost the media nothing: the rate is
cut while the cache is full and raised while it never is.  A sync load that writes all it can
would take whatever is cut: so no further down than the share that the policy keeps for the
paced, unless syncs are not helped by that.

Whether the data of a paced cgroup holds up the commits of others (ext4 waits for it) is
measured as well.  A first try has to make syncs as good as the objective; if it does not,
the limit alone gets its turn, and the next try has to be better than that by far.  Else it
lets go.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from writebackd import human
from writebackd.control.guards import SYNCED_LATELY_S, objection, unit_of
from writebackd.control.law import Want, kernel_floor_bytes
from writebackd.control.ramp import DEADBAND as LIMIT_DEADBAND
from writebackd.estimate.drain import FLOOD_RATE
from writebackd.estimate.estimate import objective_s
from writebackd.model import (
    BUCKET_EDGES_S,
    CgroupSample,
    DeviceSample,
    Estimate,
    Histogram,
    IoClass,
    LeverKind,
    Memory,
    Mode,
    PaceMemory,
    Sample,
    Setting,
    State,
    replace,
)
from writebackd.policy.schema import Policy

# Ticks in a row with slow syncs before pacing begins: at first, and once a try is in
# doubt, then under the limit that the law wants, which is what it is compared with.
START_TICKS, SETTLED_TICKS = 2, 8
# Share of what the drain rate leaves beside the syncs that a flood begins with.
HOLD = 0.9
# Steps of the rate.  A cut has to undo a few raises at once, since a full cache hurts
# every sync; a raise is a small probe that fills no cache before the next cut.
CUT, RAISE = 0.9, 1.03
# Cuts below the share that the paced keep, one for each window in which it did not help.
TRIES = 3
CUT_TICKS = 2
# Between two cuts the cache must have made room: a tenth of the drain rate for 3 s.
CUT_SETTLE_S = 3.0
RAISE_EVERY_S = 10.0
# A limit is this device's own up to this multiple of what was asked for.
IN_FORCE_HIGH = 1.25
# Half of the completions waiting for room: a sync has an even chance to wait with them.
FULL_SHARE = 0.5
# While paced, a smaller part of slow writes than the law's half means a full cache: the
# inflow is below the drain rate, so a cache that made room has none left.
FULL_SHARE_PACED = 0.2
# A tick is free of slow writes below this share: journal commits made 2 % of them slow on
# ext4 while the cache had room.
CLEAR_SHARE = 0.05
# A rate at which the cache filled up is not tried again for so long.
BAD_REMEMBERED_S = 300.0
# A cgroup that writes less than this share of its pace is not limited by it.
LIMITED_SHARE = 0.85
# A cgroup takes part in a flood from this share of the device's background writes on.
PART = 0.1
# Floods that cannot be paced may be this share of the drain rate: more needs the limit.
STRAY_SHARE = 0.2
STRAY_TICKS = 5
STRAY_BARRED_S = 60.0
# The kernel's files have to show what was asked for within so many ticks.
UNSET_TICKS = 5
# Without a write for so long a flood is over.
QUIET_S = 60.0
# Latency under pace is judged over windows of this length; the first begins when the
# cache had time to make room.
JUDGE_S, SETTLE_S = 10.0, 3.0
# What pacing has to bring: the objective, or mean or 99th percentile down to this share of
# what they are under the limit alone.  Where it helped it was a quarter and less.
BETTER = 0.6
# Rates that differ by less are the same: in 4 s they are not measured more exactly.
DEADBAND = 0.05
# How long a try that did not help is remembered, and one that did.
BARRED_S, PROVED_S = 600.0, 600.0
# Weight of a tick in smoothed rates: about 4 s, destage and flusher come in bursts of one.
WEIGHT = 0.25
# No cgroup is held below this: a single write of the flusher (up to 4 MB) would take seconds.
LEAST_RATE = 1 << 20


@dataclass(frozen=True)
class Paced:
    """What pacing adds to a tick's decision."""

    wants: List[Want]
    settings: Tuple[Setting, ...]
    memory: Memory


@dataclass(frozen=True)
class _Domain:
    """A disk that a flood can be held on, and the devices that share it."""

    devno: str
    devices: Tuple[DeviceSample, ...]  # those whose writes the pace would hold
    group: Tuple[str, ...]  # names of all that end on the same leaf disks


def pace(
    policy: Policy,
    memory: Memory,
    sample: Sample,
    estimates: Mapping[str, Estimate],
    wants: List[Want],
) -> Paced:
    """The wants with those of paced devices replaced, the paces, and the memory.

    While a pace is in force the device wants a wide limit: what the paced cgroups write in
    drain-time, no more, or sync(2) and freezes would wait for gigabytes at that rate.
    """
    memory = _remember_syncers(memory, sample)
    if not policy.levers.pace or memory.yielded is not None or memory.pin_bytes is not None:
        return Paced(wants, (), replace(memory, paces={}))
    changed = {want.name: want for want in wants}
    settings: List[Setting] = []
    paces: Dict[str, PaceMemory] = {}
    for domain in _domains(sample):
        known = memory.paces.get(domain.devno, PaceMemory())
        now, note = _Tick(policy, memory, sample, estimates, domain, changed).decide(known)
        paces[domain.devno] = now
        settings += [
            Setting(LeverKind.PACE, path, domain.devno, rate)
            for path, rate in sorted(now.rates.items())
        ]
        for name in domain.group if note else ():
            want = changed[name]
            involved = want.demand or any(d.device.name == name for d in domain.devices)
            if want.state is State.EXCLUDED or not involved:
                continue
            want = replace(want, steps=(*want.steps, note))
            if now.rate is not None:
                want = replace(want, state=State.PACE, reason=note)
                if now.limit_bytes is not None:
                    bounds = policy.for_device(name, _devno(sample, name))
                    floor = max(bounds.floor_bytes, kernel_floor_bytes(sample.host))
                    limit = max(floor, min(now.limit_bytes, bounds.ceiling_bytes))
                    want = replace(want, target_bytes=limit)
            changed[name] = want
    return Paced(list(changed.values()), tuple(settings), replace(memory, paces=paces))


def _remember_syncers(memory: Memory, sample: Sample) -> Memory:
    """Who synced in the last minutes, also while nothing is paced."""
    syncers = {
        cgroup_id: (path, last_s)
        for cgroup_id, (path, last_s) in memory.syncers.items()
        if sample.time_s - last_s <= SYNCED_LATELY_S
    }
    for cgroup in sample.cgroups:
        if cgroup.syncs:
            known = syncers.get(cgroup.cgroup_id, (None, 0.0))[0]
            syncers[cgroup.cgroup_id] = (cgroup.path or known, sample.time_s)
    return replace(memory, syncers=syncers)


def _devno(sample: Sample, name: str) -> str:
    return next(d.device.devno for d in sample.devices if d.device.name == name)


def _domains(sample: Sample) -> List[_Domain]:
    """Every disk whose number io.max takes, with the managed devices that it would hold.

    A single leaf disk holds all volumes on it.  Over several the volume itself is held,
    whose bytes are the ones that the rates here are in; btrfs has no such number.
    """
    by_devno: Dict[str, List[DeviceSample]] = {}
    for seen in sample.devices:
        leaves = seen.device.leaf_devnos
        devno = leaves[0] if len(leaves) == 1 else seen.device.devno
        if seen.excluded is None and devno[:1].isdigit():
            by_devno.setdefault(devno, []).append(seen)
    found = []
    for devno, devices in by_devno.items():
        leaves_below = {leaf for seen in devices for leaf in seen.device.leaf_devnos}
        group = tuple(
            seen.device.name
            for seen in sample.devices
            if seen in devices or leaves_below.intersection(seen.device.leaf_devnos)
        )
        found.append(_Domain(devno, tuple(devices), group))
    return found


class _Tick:
    """One tick of one domain: what it was given, and the decision from it."""

    def __init__(
        self,
        policy: Policy,
        memory: Memory,
        sample: Sample,
        estimates: Mapping[str, Estimate],
        domain: _Domain,
        wants: Mapping[str, Want],
    ) -> None:
        self.policy, self.memory, self.sample, self.domain = policy, memory, sample, domain
        self.now_s = sample.time_s
        self.estimates = [
            estimates[name] for name in domain.group if wants[name].state is not State.EXCLUDED
        ]
        self.wants = [wants[estimate.name] for estimate in self.estimates]
        mine = {seen.device.name for seen in domain.devices}
        own = [estimate for estimate in self.estimates if estimate.name in mine]
        self.drain_rate = max((e.drain_rate or 0.0 for e in own), default=0.0)
        self.background_rate = max((e.background_rate for e in own), default=0.0)
        self.flooded = any(e.flooded for e in own)
        self.slow_share = max((e.slow_share or 0.0 for e in own), default=0.0)
        self.demand = any(want.demand for want in self.wants) and all(
            estimate.demand_known for estimate in self.estimates
        )

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
        for cgroup in self._controlled():
            path = cgroup.path or ""
            rate = self._written(cgroup)
            if rate is None:
                continue
            used[path] = _smooth(memory.used.get(path), rate)
            if path in memory.rates and rate >= FLOOD_RATE:
                wrote_s = self.now_s
        return replace(
            memory,
            used=used,
            wrote_s=wrote_s,
            sync_rate=_smooth(memory.sync_rate, self._sync_bytes()),
            background_rate=_smooth(memory.background_rate, self.background_rate),
        )

    def _controlled(self) -> List[CgroupSample]:
        """The cgroups whose files were read, each once."""
        once = {c.path: c for c in self.sample.cgroups if c.control is not None}
        return list(once.values())

    def _written(self, cgroup: CgroupSample) -> Optional[float]:
        written = dict(cgroup.control.written) if cgroup.control is not None else {}
        size = written.get(self.domain.devno)
        return None if size is None else size / self.sample.dt_s

    def _sync_bytes(self) -> float:
        """What syncs and journals write, as the BDI counts: below a raid10 it is twice."""
        classes = self.domain.devices[0].classes or {}
        sizes = {io_class: classes[io_class].bytes for io_class in classes}
        background = sizes.get(IoClass.BACKGROUND_WRITE, 0)
        sync = sizes.get(IoClass.SYNC_WRITE, 0) + sizes.get(IoClass.JOURNAL, 0)
        if background:
            return self.background_rate * sync / background
        return sync / self.sample.dt_s

    def _latencies(self) -> Histogram:
        """fsyncs that returned, and one for each tick that the oldest waits on."""
        total = Histogram()
        for seen in self.sample.devices:
            if seen.device.name in self.domain.group and seen.sync is not None:
                total += seen.sync.latency
                if seen.sync.oldest_s >= self.sample.dt_s:
                    total += _one(seen.sync.oldest_s)
        return total

    # ---- not paced yet -----------------------------------------------------

    def _consider(self, memory: PaceMemory) -> Tuple[PaceMemory, str]:
        proved = self.now_s - memory.proved_s <= PROVED_S
        doubted = self.now_s - memory.doubted_s <= BARRED_S
        anew = replace(
            memory, slow_ticks=0, before=memory.before if proved else Histogram()
        )
        if not (self.flooded and self.demand and self.drain_rate):
            return anew, ""
        if self.now_s < memory.barred_until_s:
            return anew, f"not paced: {memory.barred_why}"
        if not proved:
            settled = self._limit_in_force()
            if not self._slow() or (doubted and not settled):
                return anew, ""
            memory = replace(
                memory,
                slow_ticks=memory.slow_ticks + 1,
                before=memory.before + self._latencies() if doubted else Histogram(),
            )
        flooding, refused = self._flooding(memory)
        total = sum(memory.used[path] for path in flooding)
        if not flooding or memory.background_rate - total > STRAY_SHARE * self.drain_rate:
            return memory, "not paced: " + (
                "; ".join(f"{path}: {why}" for path, why in refused)
                or "the cgroup that floods is not known"
            )
        if not proved and memory.slow_ticks < (SETTLED_TICKS if doubted else START_TICKS):
            return memory, ""
        # While the cache is full syncs hardly write: the disk drains the rest for the flood.
        room = min(self.drain_rate, memory.room if proved and memory.room else self.drain_rate)
        rate = HOLD * room
        memory = replace(
            memory,
            began_s=self.now_s,
            wrote_s=self.now_s,
            step_s=self.now_s,
            room=room,
            slow_ticks=0,
            unset_ticks=0,
            stray_ticks=0,
            bad_rate=float("inf"),
            under=Histogram(),
            under_s=self.now_s + SETTLE_S,
        )
        memory = self._divide(memory, rate, flooding)
        return memory, (
            f"{_names(memory)} held at {_speed(rate)}, {100 * HOLD:.0f} % of the "
            f"{_speed(room)} that drain, so that the write cache keeps room"
        )

    def _slow(self) -> bool:
        for estimate, want in zip(self.estimates, self.wants):
            wait = max(estimate.fsync_p99_s or 0.0, estimate.oldest_fsync_s)
            if want.demand and (
                wait > self._objective_s(estimate) or (estimate.slow_share or 0.0) > FULL_SHARE
            ):
                return True
        return False

    def _objective_s(self, estimate: Estimate) -> float:
        bounds = self.policy.for_device(estimate.name, _devno(self.sample, estimate.name))
        return objective_s(bounds.fsync_p99_s, bounds.baseline_multiple, estimate.baseline_s)

    def _limit_in_force(self) -> bool:
        """The first lever has done its part: the limit is down where the law wants it."""
        targets = [w.target_bytes for w in self.wants if w.demand and w.target_bytes is not None]
        return bool(targets) and (
            self.sample.vm.threshold_bytes <= IN_FORCE_HIGH * min(targets)
        )

    def _flooding(self, memory: PaceMemory) -> Tuple[List[str], List[Tuple[str, str]]]:
        """The cgroups that flood and may be paced, and those that may not with the reason."""
        may: List[str] = []
        refused: List[Tuple[str, str]] = []
        for cgroup in self._controlled():
            path = cgroup.path or ""
            floods = memory.used.get(path, 0.0) >= max(PART * memory.background_rate, FLOOD_RATE)
            # Where the files tell nothing, what was dirtied has to.
            blind = cgroup.control is not None and cgroup.control.io_max is None
            if path not in memory.rates and not floods and not blind:
                continue
            ours = [devno for devno, m in self.memory.paces.items() if path in m.rates]
            why = objection(
                cgroup, ours, self.memory.syncers, self.policy.protect, self.now_s
            )
            if why is None:
                may.append(path)
            else:
                refused.append((path, why))
        return may, refused

    def _least(self, memory: PaceMemory) -> float:
        """What the paced keep even where it does not help: the policy's share of what syncs
        leave, and not much less than the share of all, or the tries would take minutes."""
        share, room = self.policy.levers.pace_share, memory.room or 0.0
        return max(share * (room - memory.sync_rate), share * room * CUT**TRIES, LEAST_RATE)

    def _divide(self, memory: PaceMemory, rate: float, paths: Sequence[str]) -> PaceMemory:
        """Hand the rate out: who does not use his part leaves it to those that would."""
        modest = {
            path: memory.used[path] / LIMITED_SHARE
            for path in paths
            if path in memory.rates
            and memory.used.get(path, 0.0) < LIMITED_SHARE * memory.rates[path]
        }
        rates = {}
        left, todo = rate, sorted(paths, key=lambda path: modest.get(path, float("inf")))
        for index, path in enumerate(todo):
            even = left / (len(todo) - index)
            # The last one gets what is there: nobody else could use it.
            part = even if index == len(todo) - 1 else min(even, modest.get(path, even))
            part = max(part, even / 4)
            rates[path] = max(int(part), LEAST_RATE)
            left -= part
        return replace(memory, rate=rate, rates=rates)

    # ---- paced -------------------------------------------------------------

    def _hold(self, memory: PaceMemory) -> Tuple[PaceMemory, str]:
        if not self.demand:
            return _let_go(memory), "no sync demand any more: not paced"
        if self.now_s - memory.wrote_s > QUIET_S:
            return _let_go(memory), "the flood is over: not paced"
        flooding, refused = self._flooding(memory)
        if not flooding:
            why = "; ".join(f"{path}: {why}" for path, why in refused) or "the cgroups are gone"
            return _let_go(memory), f"not paced any more: {why}"
        taken = self._taken(memory)
        if taken:
            return self._bar(memory, BARRED_S, f"somebody else set io.max of {taken}")
        memory, strays = self._strays(memory, flooding)
        if strays:
            return self._bar(memory, STRAY_BARRED_S, strays)
        memory, problem = self._in_force(memory)
        if problem:
            return self._bar(memory, BARRED_S, problem)
        memory, verdict = self._judge(memory)
        if verdict and (memory.rate or 0.0) <= self._least(memory):
            first = memory.before.total == 0
            return self._bar(
                replace(memory, doubted_s=self.now_s), 0.0 if first else BARRED_S, verdict
            )
        memory, why = self._step(memory, flooding, helps=not verdict)
        names = _names(memory)
        if memory.limit_bytes is None:
            return memory, f"{names} shall be held at {_speed(memory.rate or 0)}: {why}"
        return memory, f"{names} held at {_speed(memory.rate or 0)}: {why}"

    def _taken(self, memory: PaceMemory) -> Optional[str]:
        """A paced cgroup whose pace somebody else has changed: it is his now."""
        kind, devno = LeverKind.PACE.value, self.domain.devno
        foreign = {write.lever for write in self.sample.foreign}
        return next((p for p in memory.rates if f"{kind} {p} {devno}" in foreign), None)

    def _strays(self, memory: PaceMemory, flooding: Sequence[str]) -> Tuple[PaceMemory, str]:
        held = sum(memory.used.get(path, 0.0) for path in flooding)
        stray = memory.background_rate - held
        if stray <= STRAY_SHARE * self.drain_rate:
            return replace(memory, stray_ticks=0), ""
        memory = replace(memory, stray_ticks=memory.stray_ticks + 1)
        if memory.stray_ticks < STRAY_TICKS:
            return memory, ""
        return memory, f"others that cannot be paced write {_speed(stray)}, which needs the limit"

    def _in_force(self, memory: PaceMemory) -> Tuple[PaceMemory, str]:
        """Widen the limit only when the kernel shows the paces; not for ever without them."""
        shown = {
            cgroup.path: dict(cgroup.control.io_max or ()).get(self.domain.devno, "")
            for cgroup in self._controlled()
            if cgroup.control is not None
        }
        missing = [path for path in memory.rates if not _limited(shown.get(path, ""))]
        if missing:
            memory = replace(memory, limit_bytes=None, unset_ticks=memory.unset_ticks + 1)
            # Nothing is ever set while only observing.
            if memory.unset_ticks < UNSET_TICKS or self.memory.mode is Mode.OBSERVE:
                return memory, ""
            return memory, f"io.max of {missing[0]} could not be set"
        drain_time = min(
            self.policy.for_device(e.name, _devno(self.sample, e.name)).drain_time_s
            for e in self.estimates
        )
        # The arbitration keeps a goal that was up to its deadband larger.
        limit = int((1 - LIMIT_DEADBAND) * drain_time * (memory.rate or 0.0))
        return replace(memory, unset_ticks=0, limit_bytes=limit), ""

    def _judge(self, memory: PaceMemory) -> Tuple[PaceMemory, str]:
        """Whether syncs got faster, over windows of JUDGE_S; empty while there is no verdict."""
        if memory.limit_bytes is None or not self.flooded:
            return replace(memory, under=Histogram(), under_s=self.now_s + SETTLE_S), ""
        if self.now_s < memory.under_s:
            return memory, ""
        under = memory.under + self._latencies()
        if self.now_s - memory.under_s < JUDGE_S:
            return replace(memory, under=under), ""
        memory = replace(memory, under=Histogram(), under_s=self.now_s)
        mean, p99 = under.mean(), under.quantile(0.99)
        wanted = {want.name for want in self.wants if want.demand}
        objective = min(self._objective_s(e) for e in self.estimates if e.name in wanted)
        if mean is None or p99 is None or p99 <= objective:
            return replace(memory, proved_s=self.now_s), ""
        before, before_p99 = memory.before.mean(), memory.before.quantile(0.99)
        if before is None or before_p99 is None:
            return memory, (
                f"with the flood held, p99 of fsync was {human.milliseconds(p99)} ms, above the "
                f"objective {human.milliseconds(objective)} ms: how is it with the limit alone?"
            )
        if mean <= BETTER * before or p99 <= BETTER * before_p99:
            return replace(memory, proved_s=self.now_s), ""
        return memory, (
            f"it did not help: a sync took {human.milliseconds(mean)} ms on average, "
            f"{human.milliseconds(before)} ms with the limit alone"
        )

    def _step(
        self, memory: PaceMemory, flooding: Sequence[str], helps: bool
    ) -> Tuple[PaceMemory, str]:
        """Cut while the cache is full, raise while it never is; then hand it out.

        `helps`: nothing is known to the contrary.
        """
        rate = memory.rate or 0.0
        full = self.slow_share > FULL_SHARE_PACED
        used = sum(memory.used.get(path, 0.0) for path in memory.rates)
        room = memory.room or 0.0
        settled = self.now_s - memory.began_s >= JUDGE_S
        if full and settled and used < (1 - DEADBAND) * rate:
            # The disk does not even take the pace (rebuild).  Where it does, syncs fill the
            # cache, and what drains beside them must not become the measure: a pace that
            # follows it makes them more, and so on down.
            room = min(room, self.drain_rate)
        kept = max(self.policy.levers.pace_share * room, LEAST_RATE)
        memory = replace(
            memory,
            room=room,
            slow_ticks=memory.slow_ticks + 1 if full else 0,
            unclear_s=self.now_s if self.slow_share > CLEAR_SHARE else memory.unclear_s,
        )
        uneven = False  # somebody has more than he uses while another one is held
        new, why = rate, f"{100 * self.slow_share:.0f} % of writes wait for room in the cache"
        if not helps:
            new, why = max(self._least(memory), CUT * rate), "it does not help yet: slower"
        elif memory.slow_ticks >= CUT_TICKS:
            if rate <= kept:
                why += ", and it is down to the share that it keeps"
            elif self.now_s - memory.step_s < CUT_SETTLE_S:
                why += ": waiting for the last step to settle"
            else:
                new, why = max(kept, CUT * rate), why + ": slower"
                memory = replace(memory, bad_rate=rate, bad_s=self.now_s)
        elif full:
            why += ": does it last?"
        elif self.now_s - max(memory.step_s, memory.unclear_s) >= RAISE_EVERY_S:
            known_bad = self.now_s - memory.bad_s < BAD_REMEMBERED_S
            if used < LIMITED_SHARE * rate:
                uneven = any(
                    memory.used.get(path, 0.0) >= LIMITED_SHARE * part
                    for path, part in memory.rates.items()
                )
                why += ", and it is not used up"
            elif not known_bad or RAISE * rate <= memory.bad_rate:
                new, why = RAISE * rate, "no write waits: trying a little more"
        if new > room and new > rate:
            memory = replace(memory, room=rate)  # it was drained without a wait
        elif rate > (1 + DEADBAND) * room:
            new, why = HOLD * room, f"the disk drains {_speed(room)} now: slower"
        stepped = new != rate or uneven
        if stepped or set(flooding) != set(memory.rates):
            memory = replace(memory, step_s=self.now_s if stepped else memory.step_s)
            memory = self._divide(memory, new, flooding)
        return memory, why

    def _bar(self, memory: PaceMemory, seconds: float, why: str) -> Tuple[PaceMemory, str]:
        memory = replace(
            _let_go(memory), barred_until_s=self.now_s + seconds, barred_why=why,
            proved_s=float("-inf"),
        )
        return memory, f"not paced: {why}"


def _let_go(memory: PaceMemory) -> PaceMemory:
    return replace(
        memory, rate=None, rates={}, limit_bytes=None, slow_ticks=0,
        before=memory.before if memory.proved_s > float("-inf") else Histogram(),
    )


def _limited(limits: str) -> bool:
    words = dict(word.partition("=")[::2] for word in limits.split())
    return words.get("wbps", "max") != "max"


def _names(memory: PaceMemory) -> str:
    return ", ".join(unit_of(path) for path in sorted(memory.rates))


def _speed(rate: float) -> str:
    return f"{human.size(rate)}/s"


def _smooth(known: Optional[float], rate: float) -> float:
    return rate if known is None else known + WEIGHT * (rate - known)


def _one(seconds: float) -> Histogram:
    """A single latency."""
    index = max(i for i, edge in enumerate(BUCKET_EDGES_S[:-1]) if edge <= seconds)
    return Histogram(((index, 1),))
