# SPDX-License-Identifier: GPL-2.0-or-later
"""Detects alerts from the samples and estimates of a tick.  Pure.

    detect(policy, memory, sample, estimates, decision, core) -> (alerts, memory)

An idle device costs one comparison, a healthy one an update of its baselines.  Only if something
looks wrong is the evidence collected in an Incident, from which the cause is found.
"""

from __future__ import annotations

from typing import Container, Dict, Mapping, Optional, Tuple

from writebackd.alerts.alert_types import Alert, AlertName
from writebackd.alerts.baseline import commits, followed, is_calm, is_slow, learn, seeded, unwanted
from writebackd.alerts.blind import blind
from writebackd.alerts.cause import BEFORE_S
from writebackd.alerts.collapse import collapse, exhausted, stall, suspicious
from writebackd.alerts.degraded import battery_tests, beside_flood, degraded, mismatch, recovering
from writebackd.alerts.detector_memory import AlertMemory, DeviceHealth, HeavyTick
from writebackd.alerts.foreign import foreign_alerts
from writebackd.alerts.lifecycle import uninhibited, update_active
from writebackd.alerts.views import DeviceView, TickView
from writebackd.policy.schema import Policy
from writebackd.types.copying import replace
from writebackd.types.core_memory import Memory
from writebackd.types.decision import Decision, DeviceState
from writebackd.types.estimate import Estimate
from writebackd.types.samples import DeviceSample, Sample

# Seconds, factor.  A tick of RESUME_S or more and RESUME_TIMES the previous one means that the host
# was suspended or stopped.
RESUME_S, RESUME_TIMES = 10.0, 5.0
# Number of devices above which each one learns only in every SELDOM-th tick.
MANY, SELDOM = 64, 8
# Bytes dirtied by a process in a tick that are remembered after it.
HEAVY_BYTES = 4 << 20


def detect(
    policy: Policy, memory: AlertMemory, sample: Sample, estimates: Mapping[str, Estimate],
    decision: Decision, core: Memory, in_force: bool = True,
) -> Tuple[Tuple[Alert, ...], AlertMemory]:
    """The active alerts after this tick, the newest last, and the new memory.

    `core` is the Memory after the decision; `in_force` is false if the decision is not applied: the
    kernel refuses it, or the kill switch is set.
    """
    memory = _remembering(_quieted(policy, memory, sample), sample)
    tick = TickView(policy, memory, sample, decision, core, in_force)
    # Learn nothing during an alert, except EXHAUSTED, which does not affect baselines.
    frozen = {device for name, device in memory.standing if name != AlertName.EXHAUSTED.value}
    at_the_bound = {one.name for one in decision.devices if one.state is DeviceState.EXHAUSTED}
    healths: Dict[str, DeviceHealth] = {}
    every = SELDOM if len(sample.devices) > MANY else 1
    for number, seen in enumerate(sample.devices):
        name = seen.device.name
        health = memory.health.get(name)
        # 0.0: it is another device's turn to learn.
        learns_s = 0.0 if (memory.ticks + number) % every else every * sample.dt_s
        if _idle(seen, health) and name not in tick.alerting:
            if health is not None:
                falls = learns_s and health.sync_rate
                healths[name] = followed(health, 0.0, 0.0, learns_s) if falls else health
        elif seen.excluded is not None or name not in estimates:
            tick.left.add(name)
        else:
            health = _begun(health, tick, seen)
            view = DeviceView(tick, seen, estimates[name], health.throttled_now_s)
            health = _judged(view, health, name in at_the_bound)
            if learns_s and name not in frozen and not tick.quiet:
                if not _troubled(health):
                    health = _learned(view, health, learns_s)
                elif not view.waited:
                    health = unwanted(health, estimates[name].sync_rate or 0.0, learns_s)
            asleep_s = seen.sync.throttled_now_s if seen.sync is not None else 0.0
            if asleep_s != health.throttled_now_s:
                health = replace(health, throttled_now_s=asleep_s)
            healths[name] = health
    _note_committers(tick, healths, estimates, frozen)
    memory = blind(tick, memory, estimates.values())
    if sample.backings or memory.standing:
        battery_tests(tick)
    standing = update_active(tick, memory.standing)
    memory = replace(
        memory, ticks=memory.ticks + 1, dt_s=sample.dt_s, health=healths, standing=standing
    )
    return (*foreign_alerts(core, sample), *uninhibited(standing, sample)), memory


def _remembering(memory: AlertMemory, sample: Sample) -> AlertMemory:
    """With the processes that dirtied much in this tick, without those of BEFORE_S ago."""
    heavy = tuple(task for task in sample.tasks if task.dirtied_bytes >= HEAVY_BYTES)
    if not heavy and not memory.heavy:
        return memory
    kept = [tick for tick in memory.heavy if sample.time_s - tick.time_s < BEFORE_S]
    kept += [HeavyTick(sample.time_s, sample.dt_s, heavy)] if heavy else []
    return replace(memory, heavy=tuple(kept))


def _begun(health: Optional[DeviceHealth], tick: TickView, seen: DeviceSample) -> DeviceHealth:
    """What is known of the device; a different disk under the same name starts anew."""
    name, core, now_s = seen.device.name, tick.core, tick.sample.time_s
    identity = (seen.device.devno, str(seen.device.diskseq))
    if health is None or health.identity != identity:
        health = DeviceHealth(identity)
    if health.writes or name not in core.devices:
        return health
    # No sync rate during the quiet time after boot, since it would not be updated.
    begun_s = float("-inf") if tick.quiet else tick.begun_s or now_s
    return seeded(health, core.devices[name].earlier, now_s - begun_s)


def _note_committers(
    tick: TickView, healths: Dict[str, DeviceHealth], estimates: Mapping[str, Estimate],
    frozen: Container[Optional[str]],
) -> None:
    """Add programs that synced to those that commit on their device, where nothing is wrong."""
    for task in tick.sample.tasks:
        name = task.device or ""
        if task.synced and name in healths and name in estimates and not tick.quiet:
            health, estimated = healths[name], estimates[name]
            well = is_calm(health, estimated) and not (estimated.flooded or _troubled(health))
            if well and name not in frozen:
                healths[name] = commits(health, task.comm)


def _idle(seen: DeviceSample, health: Optional[DeviceHealth]) -> bool:
    sync = seen.sync
    return (
        not seen.inflight
        and not seen.writes
        and not seen.write_bytes
        and (health is None or not _troubled(health))
        and (sync is None or not (sync.inflight or sync.count or sync.throttled_now_s))
    )


def _quieted(policy: Policy, memory: AlertMemory, sample: Sample) -> AlertMemory:
    """Start the quiet time after boot (time_s counts from boot) and after a gap between ticks."""
    until = memory.quiet_until_s
    if memory.begun_s is None:
        memory = replace(memory, begun_s=sample.time_s)
        until = max(until, policy.alerts.quiet_s)
    elif sample.dt_s >= max(RESUME_S, RESUME_TIMES * memory.dt_s):
        until = sample.time_s + policy.alerts.quiet_s
        # Evidence collected before the gap is out of date.
        healths = {
            name: replace(health, collapse=None, degraded=None, exhausted=None, stalled_s=0.0)
            for name, health in memory.health.items()
        }
        memory = replace(memory, health=healths)
    return memory if until == memory.quiet_until_s else replace(memory, quiet_until_s=until)


def _troubled(health: DeviceHealth) -> bool:
    return (
        health.stalled_s > 0 or health.collapse is not None or health.degraded is not None
        or health.exhausted is not None
    )


def _judged(view: DeviceView, health: DeviceHealth, at_the_bound: bool) -> DeviceHealth:
    """Run each detector that may apply to this device's tick."""
    health = stall(view, health)
    standing = view.standing
    if standing or health.stalled_s or health.collapse is not None or suspicious(view, health):
        health = collapse(view, health)
    if health.writes and (view.estimate.flooded or health.beside.slow_s):
        health = beside_flood(view, health)
    multiple = view.rules.latency_multiple
    if health.degraded is not None or standing or is_slow(health, view.estimate, multiple):
        health = degraded(view, health)
    if standing and (AlertName.CACHE_DEGRADED.value, view.name) in view.tick.stands:
        health = recovering(view, health)
    if view.tick.sample.backings or health.mismatch_s or standing:
        health = mismatch(view, health)
    if at_the_bound or health.exhausted is not None:
        health = exhausted(view, health, at_the_bound)
    if standing and (AlertName.EXHAUSTED.value, view.name) not in view.tick.raised:
        view.well(AlertName.EXHAUSTED)
    return health


def _learned(view: DeviceView, health: DeviceHealth, seconds: float) -> DeviceHealth:
    """Update the baselines with this tick, weighted as `seconds`."""
    estimate = view.estimate
    calm = is_calm(health, estimate) and not view.asleep_s
    rate = estimate.sync_rate or 0.0 if calm else health.sync_rate
    flooded_s = health.flooded_s + seconds * calm if estimate.flooded else 0.0
    health = followed(health, rate, view.sync_bytes / view.dt_s, seconds, flooded_s)
    unknown = health.usual(health.syncs, health.size) is None
    if not estimate.flooded or (unknown and not view.late):
        health = learn(health, view.seen, estimate, seconds)
    return health
