# SPDX-License-Identifier: GPL-2.0-or-later
"""The detector: one tick's samples, and the alerts that stand after it.  Pure.

    detect(policy, memory, sample, estimates, decision, core) -> (alerts, memory)

A device that does nothing costs a comparison; one where all is well, its baselines; only one
where something looks wrong is summed up in a Spell, from which the cause is told.
"""

from __future__ import annotations

from typing import Dict, Mapping, Optional, Tuple

from writebackd.alert.baseline import ENOUGH_S, followed, is_calm, learn, seeded, unwanted
from writebackd.alert.blind import blind
from writebackd.alert.collapse import collapse, suspicious
from writebackd.alert.degraded import degraded, recovering, slow
from writebackd.alert.exhausted import exhausted
from writebackd.alert.foreign import foreign_alerts
from writebackd.alert.stall import stall
from writebackd.alert.standing import stand, uninhibited
from writebackd.alert.state import AlertMemory, Watch
from writebackd.alert.tick import Look, Tick
from writebackd.alert.values import Alert, AlertName
from writebackd.policy.schema import Policy
from writebackd.types.copying import replace
from writebackd.types.core_memory import Memory
from writebackd.types.decision import Decision, State
from writebackd.types.estimate import Estimate
from writebackd.types.samples import DeviceSample, Sample

# A tick so long, and so many times the one before, is a suspend, or a host that stood still.
RESUME_S, RESUME_TIMES = 10.0, 5.0
# From so many devices on one learns in every n-th tick only.
MANY, SELDOM = 64, 8


def detect(
    policy: Policy,
    memory: AlertMemory,
    sample: Sample,
    estimates: Mapping[str, Estimate],
    decision: Decision,
    core: Memory,
    in_force: bool = True,
) -> Tuple[Tuple[Alert, ...], AlertMemory]:
    """The alerts that stand after this tick, the newest last, and what to remember of it.

    `core` is the Memory that the decision left; `in_force` is false where what it wants is not
    set: a kernel refuses it, or somebody switched the agent off.
    """
    memory = _quieted(policy, memory, sample)
    tick = Tick(policy, memory, sample, decision, core, in_force)
    # An EXHAUSTED that stands says nothing of what is usual.
    frozen = {device for name, device in memory.standing if name != AlertName.EXHAUSTED.value}
    at_the_bound = {each.name for each in decision.devices if each.state is State.EXHAUSTED}
    watches: Dict[str, Watch] = {}
    every = SELDOM if len(sample.devices) > MANY else 1
    learns_s = every * sample.dt_s
    known = memory.watches
    for number, seen in enumerate(sample.devices):
        name = seen.device.name
        watch = known.get(name)
        turn = (memory.ticks + number) % every == 0
        if _idle(seen, watch) and name not in tick.told:
            if watch is not None:
                falls = turn and watch.sync_rate
                watches[name] = followed(watch, 0.0, 0.0, learns_s) if falls else watch
            continue
        if seen.excluded is not None or name not in estimates:
            tick.left.add(name)
            continue
        # Another disk under the same name starts anew.
        identity = (seen.device.devno, str(seen.device.diskseq))
        if watch is None or watch.identity != identity:
            watch = Watch(identity)
        if not watch.writes and name in core.devices:
            # In the quiet after boot no rate is followed, so none is begun with.
            begun_s = float("-inf") if tick.quiet else memory.begun_s or sample.time_s
            age_s = sample.time_s - begun_s
            watch = seeded(watch, core.devices[name].earlier, age_s)
        look = Look(tick, seen, estimates[name])
        watch = _judged(look, watch, name in at_the_bound)
        if turn and name not in frozen and not tick.quiet:
            if not _troubled(watch):
                watch = _learned(look, watch, learns_s)
            elif not look.waited:
                watch = unwanted(watch, estimates[name].sync_rate or 0.0, learns_s)
        watches[name] = watch
    memory = blind(tick, memory, estimates.values())
    standing = stand(tick, memory.standing)
    memory = replace(
        memory, ticks=memory.ticks + 1, dt_s=sample.dt_s, watches=watches, standing=standing
    )
    return (*foreign_alerts(core, sample), *uninhibited(standing, sample)), memory


def _idle(seen: DeviceSample, watch: Optional[Watch]) -> bool:
    """Whether there is nothing to look at."""
    sync = seen.sync
    return (
        not seen.inflight
        and not seen.writes
        and not seen.write_bytes
        and (watch is None or not _troubled(watch))
        and (sync is None or not (sync.inflight or sync.fsyncs or sync.fdatasyncs))
    )


def _quieted(policy: Policy, memory: AlertMemory, sample: Sample) -> AlertMemory:
    """Quiet after boot (time_s counts from there), and after a gap between two ticks."""
    until = memory.quiet_until_s
    if memory.begun_s is None:
        memory = replace(memory, begun_s=sample.time_s)
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


def _judged(look: Look, watch: Watch, at_the_bound: bool) -> Watch:
    """One device's tick, by each of the alerts; only what may have something to say is asked."""
    watch = stall(look, watch)
    standing = look.standing
    if standing or watch.stalled_s or watch.collapse is not None or suspicious(look, watch):
        watch = collapse(look, watch)
    if watch.degraded is not None or standing or slow(look, watch):
        watch = degraded(look, watch)
    if standing and (AlertName.CACHE_DEGRADED.value, look.name) in look.tick.stands:
        watch = recovering(look, watch)
    if at_the_bound or watch.exhausted is not None:
        watch = exhausted(look, watch, at_the_bound)
    if standing and (AlertName.EXHAUSTED.value, look.name) not in look.tick.found:
        look.well(AlertName.EXHAUSTED)
    return watch


def _learned(look: Look, watch: Watch, seconds: float) -> Watch:
    """`watch` with this tick in what is usual, which stands for `seconds`."""
    estimate = look.estimate
    calm = is_calm(watch, estimate)
    rate = estimate.sync_rate or 0.0 if calm else watch.sync_rate
    flooded_s = watch.flooded_s + seconds * calm if estimate.flooded else 0.0
    watch = followed(watch, rate, look.sync_bytes / look.dt_s, seconds, flooded_s)
    unknown = watch.usual(watch.syncs, watch.size, ENOUGH_S) is None
    if not estimate.flooded or (unknown and not look.late):
        watch = learn(watch, look.seen, estimate, seconds)
    return watch
