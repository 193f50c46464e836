# SPDX-License-Identifier: GPL-2.0-or-later
"""A spell of trouble, tick by tick, and what it shows."""

from __future__ import annotations

from typing import Optional

from writebackd.alert.baseline import ENOUGH_S
from writebackd.alert.cause import fast_share
from writebackd.alert.state import Dirtied, Spell, Watch
from writebackd.alert.tick import Look
from writebackd.alert.values import Evidence
from writebackd.types.copying import replace
from writebackd.types.samples import IoClass

# A spell ends when it looked well for so long; a flusher's rounds are shorter.
SPELL_ENDS_S = 3.0
# Or when nobody waited for so long: then few syncs are few for want of a load.
UNWANTED_S = 10.0
SPELL_TICKS = 12
# Programs that are remembered for what they dirtied, and how many are left of more.
MANY_PROGRAMS, HEAVIEST = 32, 16


def grown(spell: Optional[Spell], look: Look, bad: bool, window_s: float) -> Spell:
    """The spell with this tick in it; a new one begins with the tick.

    Its sums are of the last `window_s` to twice as many seconds, or of all but the first tick while
    it is younger.
    """
    begun = _begun(look)
    if spell is None:
        spell = begun
    elif len(spell.ticks) == 1:
        # Part of the first tick was before the trouble: its fast writes are no evidence.
        spell = replace(
            begun, began_s=spell.began_s, began_wall_s=spell.began_wall_s,
            flood_age_s=spell.flood_age_s, lasted_s=spell.lasted_s, good_s=spell.good_s,
            unwanted_s=spell.unwanted_s, ticks=spell.ticks,
        )  # fmt: skip
    whole, newer = _added(spell, look), _added(spell.newer or begun, look)
    if newer.seconds >= window_s:
        whole = replace(
            newer, began_s=spell.began_s, began_wall_s=spell.began_wall_s,
            flood_age_s=spell.flood_age_s, ticks=whole.ticks, newer=None,
        )  # fmt: skip
    else:
        whole = replace(whole, newer=newer)
    wanted = look.waited or look.held_up
    return replace(
        whole,
        lasted_s=spell.lasted_s + look.dt_s,
        good_s=0.0 if bad else spell.good_s + look.dt_s,
        unwanted_s=0.0 if wanted else spell.unwanted_s + look.dt_s,
    )


def _begun(look: Look) -> Spell:
    sample, devices = look.tick.sample, look.tick.core.devices
    flood_s = devices[look.name].flood_began_s if look.name in devices else None
    return Spell(
        sample.time_s - look.dt_s,
        sample.wall_s - look.dt_s,
        flood_age_s=sample.time_s - flood_s if flood_s is not None else float("inf"),
    )


def _added(spell: Spell, look: Look) -> Spell:
    """`spell` with this tick in its sums."""
    tick, seen, estimate, dt_s = look.tick, look.seen, look.estimate, look.dt_s
    name = look.name
    _, sync_bytes, latencies = look.small_writes
    read = (seen.classes or {}).get(IoClass.READ)
    operations = seen.writes + (read.count if read is not None else 0)
    backlog = look.backlog_bytes
    backlog_s = backlog / estimate.rate if estimate.rate else 0.0
    dirtied = dict(spell.dirtied)
    tasks = sorted(
        (*tick.tasks.get(name, ()), *tick.tasks.get(None, ())), key=lambda task: task.dirtied_bytes
    )
    for task in tasks:  # the heaviest last
        program = (task.comm, task.cgroup_id)
        before = dirtied.get(program)
        if before is None:
            path = task.cgroup or tick.path(task.cgroup_id)
            dirtied[program] = Dirtied(task.dirtied_bytes, replace(task, cgroup=path))
            continue
        dirtied[program] = Dirtied(
            before.count + task.dirtied_bytes,
            replace(task, cgroup=task.cgroup or before.task.cgroup),
            before.several or task.pid != before.task.pid,
        )
    if len(dirtied) > MANY_PROGRAMS:
        heavy = sorted(dirtied.items(), key=lambda item: -item[1].count)[:HEAVIEST]
        dirtied = dict(heavy)
    return replace(
        spell,
        seconds=spell.seconds + dt_s,
        syncs=spell.syncs + seen.sync.latency if seen.sync is not None else spell.syncs,
        sync_bytes=spell.sync_bytes + sync_bytes,
        oldest_s=max(spell.oldest_s, estimate.oldest_fsync_s),
        waited_s=spell.waited_s + (dt_s if look.waited else 0.0),
        flooded_s=spell.flooded_s + (dt_s if estimate.flooded else 0.0),
        backlog_s=max(spell.backlog_s, backlog_s),
        queued_s2=spell.queued_s2 + backlog_s * dt_s,
        backlog_bytes=max(spell.backlog_bytes, backlog),
        throttled_s=spell.throttled_s + min(dt_s, look.held_up_s),
        inflight=max(spell.inflight, seen.inflight),
        writes=spell.writes + latencies,
        written_bytes=spell.written_bytes + seen.write_bytes,
        ticks=(*spell.ticks[-SPELL_TICKS:], (dt_s, operations, seen.write_bytes)),
        dirtied=dirtied,
    )


def is_over(spell: Spell) -> bool:
    return spell.good_s >= SPELL_ENDS_S or spell.unwanted_s >= UNWANTED_S


def is_lasting(spell: Spell) -> bool:
    """Whether it is more than one long tick: what stood still in that may be the whole host."""
    return len(spell.ticks) > 1


def evidence(spell: Spell, look: Look, watch: Watch) -> Evidence:
    """The numbers that the cause rests on."""
    usual = watch.usual(watch.syncs, watch.size, ENOUGH_S)
    facts = [
        ("sync_rate", spell.sync_rate),
        ("baseline_sync_rate", watch.sync_rate),
        ("fsync_mean_s", spell.syncs.mean()),
        ("fsync_p99_s", spell.syncs.quantile(0.99)),
        ("baseline_fsync_s", usual.latency_s if usual is not None else None),
        ("oldest_fsync_s", spell.oldest_s),
        ("write_p10_s", spell.writes.quantile(0.1)),
        ("write_p90_s", spell.writes.quantile(0.9)),
        ("fast_write_share", fast_share(spell.writes, spell.sync_bytes, watch)),
        ("waited_share", spell.waited_s / spell.seconds),
        ("flooded_share", spell.flooded_s / spell.seconds),
        ("backlog_bytes", spell.backlog_bytes),
        ("backlog_s", spell.backlog_s),
        ("throttled_share", spell.throttled_s / spell.seconds),
        ("write_rate", spell.written_bytes / spell.seconds),
        ("inflight", float(spell.inflight)),
    ]  # fmt: skip
    return Evidence(
        look.tick.sample.wall_s - spell.seconds,
        look.tick.sample.wall_s,
        tuple((name, float(value)) for name, value in facts if value is not None),
    )
