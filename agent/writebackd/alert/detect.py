# SPDX-License-Identifier: GPL-2.0-or-later
"""The detector: one tick's samples, and the alerts that stand after it.  Pure.

    detect(policy, memory, sample, estimates, decision, core) -> (alerts, memory)

A device that does nothing costs a comparison; one where all is well, its baselines; only one
where something looks wrong is summed up in a Spell, from which the cause is told.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional, Sequence, Set, Tuple

from writebackd.alert import words
from writebackd.alert.baseline import ENOUGH_S, followed, is_calm, learn, seeded, small_writes
from writebackd.alert.cause import (
    SMALL,
    THROTTLED_SHARE,
    cause_of,
    culprits_of,
    fast_share,
    is_write_through,
)
from writebackd.alert.foreign import foreign_alerts
from writebackd.alert.state import AlertMemory, Baseline, Key, Spell, Standing, Watch, size_class
from writebackd.alert.values import Alert, AlertName, Cause, Culprit, Evidence, Severity
from writebackd.model import (
    CgroupSample,
    Decision,
    Device,
    DeviceSample,
    Estimate,
    IoClass,
    Memory,
    Mode,
    Sample,
    State,
    TaskSample,
    replace,
)
from writebackd.policy.schema import Alerts, Policy

# A tick so long, and so many times the one before, is a suspend, or a host that stood still.
RESUME_S, RESUME_TIMES = 10.0, 5.0
# A spell ends when it looked well for so long; a flusher's rounds are shorter.
SPELL_ENDS_S = 3.0
# Part of a spell in which somebody waits: without waiters a low rate is no collapse.
DEMAND_SHARE = 0.8
# From so many devices on one learns in every n-th tick only.
MANY, SELDOM = 64, 8
DEGRADED_S = 6.0
# The law's time to get a flood under control: it seeks the drain rate of a disk that it does not
# know, and drains a full cache, within half a minute (docs/control.md).
LAW_ACTS_S = 30.0
FAST_AGAIN = 0.5  # share of small writes, from which on the cache is back
EXHAUSTED_S = 60.0
BLIND_S = 30.0
# What a large sync may take: its bytes at this part of the most that syncs were seen to write.
SIZE_SLACK = 3.0
SPELL_TICKS = 12
# Drivers of controllers with a write cache of their own: one battery for all their disks.
_RAID = ("megaraid_sas", "aacraid", "hpsa", "smartpqi", "arcmsr", "3w-")
_BAD = (AlertName.STALL, AlertName.COLLAPSE, AlertName.CACHE_DEGRADED)

Tasks = Mapping[Optional[str], Sequence[TaskSample]]


class _Tick:
    """What all devices of a tick share; made once."""

    def __init__(self, policy: Policy, sample: Sample, core: Memory, quiet: bool) -> None:
        self.policy, self.sample, self.core, self.quiet = policy, sample, core, quiet
        self.alerts: Alerts = policy.alerts
        self.tasks: Dict[Optional[str], List[TaskSample]] = {}
        for task in sample.tasks:
            self.tasks.setdefault(task.device, []).append(task)
        self.cgroups: Dict[Optional[str], List[CgroupSample]] = {}
        for cgroup in sample.cgroups:
            self.cgroups.setdefault(cgroup.device, []).append(cgroup)

    def held_up_s(self, device: str) -> float:
        """Seconds that those who sync slept in write(), where others dirtied most of the pages."""
        here = self.cgroups.get(device, ())
        total = sum([each.dirtied_bytes for each in here])
        victims = [
            each for each in here if each.syncs and 2 * each.dirtied_bytes < total and not each.own
        ]
        return max([each.throttled_s for each in victims], default=0.0)

    def path(self, cgroup_id: int) -> Optional[str]:
        return next((c.path for c in self.sample.cgroups if c.cgroup_id == cgroup_id), None)


def detect(
    policy: Policy,
    memory: AlertMemory,
    sample: Sample,
    estimates: Mapping[str, Estimate],
    decision: Decision,
    core: Memory,
) -> Tuple[Tuple[Alert, ...], AlertMemory]:
    """The alerts that stand after this tick, the newest last, and what to remember of it.

    `core` is the Memory that the decision left.
    """
    memory = _quieted(policy, memory, sample)
    quiet = sample.time_s < memory.quiet_until_s
    tick = _Tick(policy, sample, core, quiet)
    found: Dict[Key, Alert] = {}
    well: Set[Key] = set()
    told = {device for _, device in memory.standing}
    # An EXHAUSTED that stands says nothing of what is usual.
    frozen = {device for name, device in memory.standing if name != AlertName.EXHAUSTED.value}
    watches: Dict[str, Watch] = {}
    every = SELDOM if len(sample.devices) > MANY else 1
    states = {each.name: each.state for each in decision.devices}
    known = memory.watches
    for number, seen in enumerate(sample.devices):
        name = seen.device.name
        watch = known.get(name)
        sync = seen.sync
        if (
            not seen.inflight
            and not seen.writes
            and not seen.write_bytes
            and (watch is None or not _troubled(watch))
            and (sync is None or not (sync.inflight or sync.fsyncs or sync.fdatasyncs))
            and name not in told
        ):
            if watch is not None:
                watches[name] = watch
                if watch.sync_rate and (memory.ticks + number) % every == 0:
                    watches[name] = followed(watch, 0.0, 0.0, every * sample.dt_s)
            continue
        if seen.excluded is not None or name not in estimates:
            continue
        identity = _identity(seen.device)
        if watch is None or watch.identity != identity:
            watch = Watch(identity)
        if not watch.writes and name in core.devices:
            watch = seeded(watch, core.devices[name].earlier)
        turn = (memory.ticks + number) % every == 0
        watches[name] = _device(
            tick, watch, seen, estimates[name], states.get(name), decision,
            name in told, every * sample.dt_s if turn and name not in frozen else 0.0,
            found, well,
        )
    memory = _blind(tick, memory, estimates, found, well)
    if quiet:
        found = {key: alert for key, alert in found.items() if key in memory.standing}
    standing = _stand(tick, memory, found, well, {s.device.name: s.device for s in sample.devices})
    memory = replace(
        memory, ticks=memory.ticks + 1, dt_s=sample.dt_s, watches=watches, standing=standing
    )
    alerts = _uninhibited(standing, sample)
    return (*foreign_alerts(core, sample), *alerts), memory


def unread(standing: Sequence[Alert], since_wall_s: float, problem: str) -> Tuple[Alert, ...]:
    """The alerts when many ticks in a row could not be read: those that stood, and BLIND."""
    blind = Alert(
        AlertName.BLIND, None, Severity.CRITICAL, Cause.NO_DATA, since_wall_s, problem,
        "put the limits back as found: nothing is protected until it can be read again",
    )  # fmt: skip
    return (*(each for each in standing if each.name is not AlertName.BLIND), blind)


def _quieted(policy: Policy, memory: AlertMemory, sample: Sample) -> AlertMemory:
    """Quiet after boot (time_s counts from there), and after a gap between two ticks."""
    until = memory.quiet_until_s
    if memory.began_s is None:
        memory = replace(memory, began_s=sample.time_s)
        until = max(until, policy.alerts.quiet_s)
    elif sample.dt_s >= max(RESUME_S, RESUME_TIMES * memory.dt_s):
        until = sample.time_s + policy.alerts.quiet_s
        # What was under way is no measure of what comes.
        watches = {name: _calmed(watch) for name, watch in memory.watches.items()}
        memory = replace(memory, watches=watches)
    return memory if until == memory.quiet_until_s else replace(memory, quiet_until_s=until)


def _calmed(watch: Watch) -> Watch:
    return replace(watch, collapse=None, degraded=None, exhausted=None, stalled_s=0.0)


def _troubled(watch: Watch) -> bool:
    return (
        watch.stalled_s > 0 or watch.collapse is not None or watch.degraded is not None
        or watch.exhausted is not None
    )


def _identity(device: Device) -> Tuple[Optional[str], ...]:
    """Another disk under the same name starts anew."""
    return (device.devno, str(device.diskseq))


def _device(
    tick: _Tick,
    watch: Watch,
    seen: DeviceSample,
    estimate: Estimate,
    state: Optional[State],
    decision: Decision,
    standing: bool,
    learns_s: float,
    found: Dict[Key, Alert],
    well: Set[Key],
) -> Watch:
    """One device's tick: what is wrong goes into `found`, what is well again into `well`."""
    dt_s = tick.sample.dt_s
    watch = _stall(tick, watch, seen, estimate, found, well)
    if standing or watch.stalled_s or watch.collapse is not None or _suspicious(
        tick, watch, seen, estimate
    ):
        watch = _collapse(tick, watch, seen, estimate, decision, found, well)
    if watch.degraded is not None or standing or _slow(tick, watch, estimate):
        watch = _degraded(tick, watch, seen, estimate, decision, found, well)
    if state is State.EXHAUSTED or watch.exhausted is not None:
        watch = _exhausted(tick, watch, seen, estimate, state, decision, found)
    if standing and (AlertName.EXHAUSTED.value, seen.device.name) not in found:
        well.add((AlertName.EXHAUSTED.value, seen.device.name))
    if learns_s and not tick.quiet and not _troubled(watch):
        _, sync_bytes, _ = small_writes(seen)
        rate = estimate.sync_rate or 0.0 if is_calm(watch, estimate) else watch.sync_rate
        watch = followed(watch, rate, sync_bytes / dt_s, learns_s)
        if not estimate.flooded or (
            watch.usual(watch.syncs, watch.size, ENOUGH_S) is None and not _late(tick, estimate)
        ):
            watch = learn(watch, seen, estimate, learns_s)
    return watch


def _late(tick: _Tick, estimate: Estimate) -> bool:
    """Whether syncs miss the policy's objective, which is of the 99th percentile."""
    p99_s = max(estimate.fsync_p99_s or 0.0, estimate.oldest_fsync_s)
    return p99_s > tick.policy.objective.fsync_p99_s


def _latency_s(estimate: Estimate) -> float:
    """Mean of the tick's syncs, or the age of one that is still under way."""
    mean = estimate.fsync_total_s / estimate.fsyncs if estimate.fsyncs else 0.0
    return max(mean, estimate.oldest_fsync_s)


# ---- STALL -------------------------------------------------------------------


def _stall(
    tick: _Tick, watch: Watch, seen: DeviceSample, estimate: Estimate,
    found: Dict[Key, Alert], well: Set[Key],
) -> Watch:  # fmt: skip
    name = seen.device.name
    sync, sample = seen.sync, tick.sample
    waiting = sync.inflight if sync is not None else 0
    completed = seen.writes or seen.write_bytes or seen.read_bytes or (
        sync is not None and (sync.fsyncs or sync.fdatasyncs)
    )
    if completed or not (seen.inflight or waiting):
        well.add((AlertName.STALL.value, name))
        return watch if not watch.stalled_s else replace(watch, stalled_s=0.0)
    if seen.classes and any(each.count for each in seen.classes.values()):
        return replace(watch, stalled_s=0.0) if watch.stalled_s else watch  # flushes
    stalled_s = watch.stalled_s + sample.dt_s
    watch = replace(watch, stalled_s=stalled_s, stall_inflight=seen.inflight)
    if stalled_s < tick.alerts.stall_s:
        return watch
    cause = Cause.DEVICE if seen.inflight else Cause.UNKNOWN
    found[AlertName.STALL.value, name] = Alert(
        AlertName.STALL, name, Severity.CRITICAL, cause, sample.wall_s - stalled_s,
        words.stalled(name, stalled_s, seen.inflight, waiting, estimate.oldest_fsync_s),
        "nothing, no write to queue/* while it stalls: look at the kernel's log, the controller,"
        " the path to the disk",
        evidence=Evidence(
            sample.wall_s - stalled_s, sample.wall_s,
            (("stalled_s", stalled_s), ("inflight", float(seen.inflight)),
             ("fsyncs_inflight", float(waiting)), ("oldest_fsync_s", estimate.oldest_fsync_s)),
        ),
    )  # fmt: skip
    return watch


# ---- COLLAPSE ----------------------------------------------------------------


def _usual(watch: Watch, syncs: int, sync_bytes: int) -> Optional[Baseline]:
    """What syncs of that size usually take."""
    size = size_class(syncs, sync_bytes) if syncs else watch.size
    return watch.usual(watch.syncs, size, ENOUGH_S)


def _threshold_s(tick: _Tick, watch: Watch, syncs: int, sync_bytes: int) -> float:
    """The mean latency above which so many syncs of so many bytes are slow."""
    usual = _usual(watch, syncs, sync_bytes)
    if usual is None:
        return float("inf")
    by_size = 0.0
    if size_class(syncs, sync_bytes) > usual.size and watch.most_sync_bytes:
        # Larger than any that are known: their bytes take time as well.
        by_size = SIZE_SLACK * sync_bytes / max(1, syncs) / watch.most_sync_bytes
    return tick.alerts.latency_multiple * usual.latency_s + by_size


def _suspicious(tick: _Tick, watch: Watch, seen: DeviceSample, estimate: Estimate) -> bool:
    """Whether this tick looks like a collapse: few syncs, and those slow or held up."""
    rate = estimate.sync_rate
    if (
        rate is None
        or watch.sync_rate < tick.policy.objective.min_sync_rate
        or rate >= tick.alerts.sync_share * watch.sync_rate
    ):
        return False
    _, sync_bytes, _ = small_writes(seen)
    dt_s, syncs = tick.sample.dt_s, estimate.fsyncs
    if _larger(tick, watch, syncs, sync_bytes, dt_s):
        return False
    if _latency_s(estimate) > _threshold_s(tick, watch, syncs, sync_bytes) and _late(
        tick, estimate
    ):
        return True
    usual = _usual(watch, syncs, sync_bytes)
    return usual is not None and tick.held_up_s(seen.device.name) >= THROTTLED_SHARE * dt_s


def _larger(tick: _Tick, watch: Watch, syncs: int, sync_bytes: int, seconds: float) -> bool:
    """Whether syncs are fewer for being larger: they write as much as they ever did."""
    usual = _usual(watch, syncs, sync_bytes)
    # One that has not returned yet has written all of it.
    larger = usual is None or size_class(max(1, syncs), sync_bytes) > usual.size
    return larger and sync_bytes / seconds >= tick.alerts.bytes_share * watch.most_sync_bytes


def _collapse(
    tick: _Tick, watch: Watch, seen: DeviceSample, estimate: Estimate, decision: Decision,
    found: Dict[Key, Alert], well: Set[Key],
) -> Watch:  # fmt: skip
    key = (AlertName.COLLAPSE.value, seen.device.name)
    bad = _suspicious(tick, watch, seen, estimate)
    spell = watch.collapse
    if spell is None and not bad:
        if _is_well(tick, watch, seen, estimate):
            well.add(key)
        return watch
    elif not bad:
        # Once it has begun, single fast syncs among few do not end it.
        rate, sync = estimate.sync_rate or 0.0, seen.sync
        waiting = sync is not None and (sync.inflight or _waited(estimate, tick.sample.dt_s))
        bad = bool(waiting) and rate < tick.alerts.sync_share * watch.sync_rate
    spell = _grown(tick, spell, seen, estimate, bad)
    if spell.good_s >= SPELL_ENDS_S:
        return replace(watch, collapse=None)
    watch = replace(watch, collapse=spell)
    usual = _usual(watch, spell.syncs, spell.sync_bytes)
    limit_s = _threshold_s(tick, watch, spell.syncs, spell.sync_bytes)
    held_up = spell.throttled_s >= THROTTLED_SHARE * spell.seconds
    cause = cause_of(spell, watch, tick.core)
    # What the law is tightening against is no alert unless it fails.
    at_work = cause is Cause.FLOOD and tick.core.mode is Mode.ENFORCE
    if (
        spell.seconds >= (max(LAW_ACTS_S, tick.alerts.collapse_s) if at_work else
                          tick.alerts.collapse_s)
        and spell.sync_rate < tick.alerts.sync_share * watch.sync_rate
        and (spell.latency_s > limit_s or held_up)
        and not _larger(tick, watch, spell.syncs, spell.sync_bytes, spell.seconds)
        and spell.waited_s >= (DEMAND_SHARE if not held_up else 0.0) * spell.seconds
    ):
        culprits = _culprits(spell, cause)
        age_s = tick.sample.time_s - spell.began_s
        severity = Severity.CRITICAL if age_s >= tick.alerts.critical_s else Severity.WARNING
        name = seen.device.name
        if cause is Cause.WRITE_THROUGH and usual is not None:
            key = (AlertName.CACHE_DEGRADED.value, name)
            found[key] = _cache_alert(tick, name, spell, watch, usual, decision)
            return watch
        found[key] = Alert(
            AlertName.COLLAPSE, name, severity, cause, spell.began_wall_s,
            words.collapsed(name, spell, watch, usual, cause, culprits),
            words.done(name, cause, decision, tick.core),
            culprits, _evidence(tick, spell, watch),
        )  # fmt: skip
    return watch


def _culprits(spell: Spell, cause: Cause) -> Tuple[Culprit, ...]:
    blamed = (Cause.FLOOD, Cause.FOREIGN_CHANGE, Cause.THROTTLED_WRITER)
    return culprits_of(spell) if cause in blamed else ()


def _waited(estimate: Estimate, dt_s: float) -> bool:
    """Whether somebody waited for a sync for half of the tick."""
    return estimate.fsync_total_s >= 0.5 * dt_s


def _is_well(tick: _Tick, watch: Watch, seen: DeviceSample, estimate: Estimate) -> bool:
    rate = estimate.sync_rate or 0.0
    if rate >= tick.alerts.resolve_share * watch.sync_rate:
        return True
    _, sync_bytes, _ = small_writes(seen)
    slow = _latency_s(estimate) > _threshold_s(tick, watch, estimate.fsyncs, sync_bytes)
    return not (slow and _late(tick, estimate))


def _grown(
    tick: _Tick, spell: Optional[Spell], seen: DeviceSample, estimate: Estimate, bad: bool
) -> Spell:
    """The spell with this tick in it; a new one begins with the tick."""
    sample, dt_s = tick.sample, tick.sample.dt_s
    name = seen.device.name
    if spell is None:
        began = tick.core.devices[name].flood_began_s if name in tick.core.devices else None
        spell = Spell(
            sample.time_s - dt_s,
            sample.wall_s - dt_s,
            flood_age_s=sample.time_s - began if began is not None else float("inf"),
        )
    _, sync_bytes, latencies = small_writes(seen)
    read = (seen.classes or {}).get(IoClass.READ)
    sync = seen.sync
    operations = seen.writes + (read.count if read is not None else 0)
    waiting = bool(sync is not None and sync.inflight) or _waited(estimate, dt_s)
    backlog = (sample.vm.dirty_bytes + sample.vm.writeback_bytes) * estimate.limit_share
    dirtied = dict(spell.dirtied)
    for task in (*tick.tasks.get(name, ()), *tick.tasks.get(None, ())):
        before = dirtied.get(task.pid)
        if task.cgroup is None:
            task = replace(task, cgroup=before[1].cgroup if before else tick.path(task.cgroup_id))
        dirtied[task.pid] = (task.dirtied_bytes + (before[0] if before else 0), task)
    if len(dirtied) > 32:
        heavy = sorted(dirtied.items(), key=lambda item: -item[1][0])[:16]
        dirtied = dict(heavy)
    return replace(
        spell,
        seconds=spell.seconds + dt_s,
        good_s=0.0 if bad else spell.good_s + dt_s,
        syncs=spell.syncs + estimate.fsyncs,
        sync_s=spell.sync_s + estimate.fsync_total_s,
        sync_bytes=spell.sync_bytes + sync_bytes,
        oldest_s=max(spell.oldest_s, estimate.oldest_fsync_s),
        waited_s=spell.waited_s + (dt_s if waiting else 0.0),
        flooded_s=spell.flooded_s + (dt_s if estimate.flooded else 0.0),
        backlog_s=max(spell.backlog_s, backlog / estimate.rate if estimate.rate else 0.0),
        backlog_bytes=max(spell.backlog_bytes, backlog),
        throttled_s=spell.throttled_s + min(dt_s, tick.held_up_s(name)),
        inflight=max(spell.inflight, seen.inflight),
        writes=spell.writes + latencies,
        reads=spell.reads + read.latency if read is not None else spell.reads,
        ticks=(*spell.ticks[-SPELL_TICKS:], (dt_s, operations, seen.write_bytes)),
        dirtied=dirtied,
    )


def _evidence(tick: _Tick, spell: Spell, watch: Watch) -> Evidence:
    usual = watch.usual(watch.syncs, watch.size, ENOUGH_S)
    facts = [
        ("sync_rate", spell.sync_rate),
        ("baseline_sync_rate", watch.sync_rate),
        ("fsync_mean_s", spell.latency_s),
        ("baseline_fsync_s", usual.latency_s if usual is not None else None),
        ("oldest_fsync_s", spell.oldest_s),
        ("write_p10_s", spell.writes.quantile(0.1)),
        ("write_p90_s", spell.writes.quantile(0.9)),
        ("fast_write_share", fast_share(spell, watch)),
        ("waited_share", spell.waited_s / spell.seconds),
        ("flooded_share", spell.flooded_s / spell.seconds),
        ("backlog_bytes", spell.backlog_bytes),
        ("backlog_s", spell.backlog_s),
        ("throttled_share", spell.throttled_s / spell.seconds),
        ("write_rate", sum([size for _, _, size in spell.ticks])
         / max(1e-3, sum([dt for dt, _, _ in spell.ticks]))),
        ("inflight", float(spell.inflight)),
    ]  # fmt: skip
    return Evidence(
        spell.began_wall_s,
        tick.sample.wall_s,
        tuple((name, float(value)) for name, value in facts if value is not None),
    )


# ---- CACHE_DEGRADED ----------------------------------------------------------


def _slow(tick: _Tick, watch: Watch, estimate: Estimate) -> bool:
    """Cheap: whether it is worth looking at this device's writes at all."""
    if not estimate.fsyncs:
        return False
    usual = watch.usual(watch.syncs, watch.size, ENOUGH_S)
    mean_s = estimate.fsync_total_s / estimate.fsyncs
    return usual is not None and mean_s > tick.alerts.latency_multiple * usual.latency_s


def _degraded(
    tick: _Tick, watch: Watch, seen: DeviceSample, estimate: Estimate, decision: Decision,
    found: Dict[Key, Alert], well: Set[Key],
) -> Watch:  # fmt: skip
    key = (AlertName.CACHE_DEGRADED.value, seen.device.name)
    count, size_bytes, _ = small_writes(seen)
    size = size_class(count, size_bytes)
    if not count or size > SMALL:
        return watch  # nothing small was written: it says nothing
    usual = watch.usual(watch.writes, size, ENOUGH_S)
    # Behind seconds of a flood every write waits, cache or not.
    backlog = (tick.sample.vm.dirty_bytes + tick.sample.vm.writeback_bytes) * estimate.limit_share
    hidden = estimate.flooded and backlog > 64 << 20
    if usual is None or hidden:
        return replace(watch, degraded=None) if watch.degraded is not None else watch
    spell = _grown(tick, watch.degraded, seen, estimate, True)
    lately = _grown(tick, None, seen, estimate, True)
    share = fast_share(lately, watch)
    if share is not None and share > FAST_AGAIN:
        well.add(key)
    if (share is not None and share > 0.1) or (
        spell.seconds >= DEGRADED_S / 2 and not is_write_through(spell, watch)
    ):
        return replace(watch, degraded=None) if watch.degraded is not None else watch
    if spell.seconds >= DEGRADED_S:
        found[key] = _cache_alert(tick, seen.device.name, spell, watch, usual, decision)
    return replace(watch, degraded=spell)


def _cache_alert(
    tick: _Tick, name: str, spell: Spell, watch: Watch, usual: Baseline, decision: Decision
) -> Alert:
    return Alert(
        AlertName.CACHE_DEGRADED, name, Severity.WARNING, Cause.WRITE_THROUGH,
        spell.began_wall_s, words.degraded(name, spell, usual),
        words.done(name, Cause.WRITE_THROUGH, decision, tick.core),
        evidence=_evidence(tick, spell, watch),
    )  # fmt: skip


# ---- EXHAUSTED ---------------------------------------------------------------


def _exhausted(
    tick: _Tick, watch: Watch, seen: DeviceSample, estimate: Estimate, state: Optional[State],
    decision: Decision, found: Dict[Key, Alert],
) -> Watch:  # fmt: skip
    spell = _grown(tick, watch.exhausted, seen, estimate, state is State.EXHAUSTED)
    if spell.good_s >= SPELL_ENDS_S or tick.core.mode is Mode.OBSERVE:
        return replace(watch, exhausted=None)
    if spell.seconds >= EXHAUSTED_S:
        name = seen.device.name
        cause = cause_of(spell, watch, tick.core)
        objective_s = tick.policy.for_device(name, seen.device.devno).fsync_p99_s
        found[AlertName.EXHAUSTED.value, name] = Alert(
            AlertName.EXHAUSTED, name, Severity.WARNING, cause, spell.began_wall_s,
            words.exhausted(name, spell, objective_s, cause),
            words.done(name, cause, decision, tick.core),
            _culprits(spell, cause), _evidence(tick, spell, watch),
        )  # fmt: skip
    return replace(watch, exhausted=spell)


# ---- BLIND -------------------------------------------------------------------


def _blind(
    tick: _Tick, memory: AlertMemory, estimates: Mapping[str, Estimate],
    found: Dict[Key, Alert], well: Set[Key],
) -> AlertMemory:  # fmt: skip
    key = (AlertName.BLIND.value, None)
    blind = (
        memory.sighted
        and bool(estimates)
        and not any(each.demand_known for each in estimates.values())
    )
    if not blind:
        well.add(key)
        return memory if not memory.blind_s else replace(memory, blind_s=0.0)
    blind_s = memory.blind_s + tick.sample.dt_s
    if blind_s >= BLIND_S:
        found[key] = Alert(
            AlertName.BLIND, None, Severity.WARNING, Cause.NO_DATA,
            tick.sample.wall_s - blind_s,
            "fsync cannot be seen: no collapse would be noticed, and limits are only cautious",
            "keeps cautious limits: `writebackctl doctor` tells what is in the way",
        )  # fmt: skip
    return replace(memory, blind_s=blind_s)


# ---- how long an alert stands ------------------------------------------------


def _stand(
    tick: _Tick, memory: AlertMemory, found: Mapping[Key, Alert], well: Set[Key],
    devices: Mapping[str, Device],
) -> Dict[Key, Standing]:  # fmt: skip
    """Hysteresis: raised at once, gone when it was well for long and has stood for long."""
    if not found and not memory.standing:
        return {}
    now_s, rules = tick.sample.time_s, tick.alerts
    standing: Dict[Key, Standing] = {}
    for key, before in memory.standing.items():
        alert = found.get(key)
        if alert is not None:
            # Its identity stays: a cause that flickers would be an alert a tick.
            if before.alert.cause is not Cause.UNKNOWN:
                alert = replace(alert, cause=before.alert.cause)
            if alert.cause is not found[key].cause:
                alert = replace(before.alert, severity=alert.severity)
            standing[key] = Standing(replace(alert, since_s=before.alert.since_s), before.raised_s)
            continue
        gone = key[1] is not None and key[1] not in devices
        good_s = before.good_s + tick.sample.dt_s if key in well or gone else 0.0
        if good_s < rules.resolve_after_s or now_s - before.raised_s < rules.hold_s:
            standing[key] = replace(before, good_s=good_s)
    for key, alert in found.items():
        if key not in standing:
            standing[key] = Standing(alert, now_s)
    return standing


def _uninhibited(standing: Mapping[Key, Standing], sample: Sample) -> Tuple[Alert, ...]:
    """Without those that another one explains."""
    if not standing:
        return ()
    devices = {seen.device.name: seen.device for seen in sample.devices}
    by_name: Dict[str, List[Optional[Device]]] = {}
    for name, on in standing:
        by_name.setdefault(name, []).append(devices.get(on or ""))
    alerts = []
    for (name, on), each in standing.items():
        device = devices.get(on or "")
        worse: List[AlertName] = []
        if name == AlertName.COLLAPSE.value:
            worse = [AlertName.STALL, AlertName.CACHE_DEGRADED]
        elif name == AlertName.EXHAUSTED.value:
            worse = list(_BAD)
        if not any(
            _related(device, other) for kind in worse for other in by_name.get(kind.value, ())
        ):
            alerts.append(each.alert)
    return tuple(alerts)


def _related(one: Optional[Device], other: Optional[Device]) -> bool:
    """Whether two devices share a disk, or a RAID controller's driver."""
    if one is None or other is None:
        return False
    if one.name == other.name or set(one.leaf_devnos) & set(other.leaf_devnos):
        return True
    return one.driver is not None and one.driver == other.driver and one.driver.startswith(_RAID)
