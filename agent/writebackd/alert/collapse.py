# SPDX-License-Identifier: GPL-2.0-or-later
"""COLLAPSE: few syncs where there were many, and those slow, with somebody waiting."""

from __future__ import annotations

from typing import NamedTuple, Optional

from writebackd.alert import behind, words
from writebackd.alert.baseline import ENOUGH_S, RATE_FALLS_S
from writebackd.alert.cause import (
    FLOODED_SHARE,
    QUEUED,
    THROTTLED_SHARE,
    cause_of,
    culprits_of,
)
from writebackd.alert.degraded import cache_alert
from writebackd.alert.spell import evidence, grown, is_lasting, is_over
from writebackd.alert.state import Baseline, Spell, Watch, size_class
from writebackd.alert.tick import Look
from writebackd.alert.values import Alert, AlertName, Cause, Severity
from writebackd.types.copying import replace

# Part of a spell in which somebody waits: without waiters a low rate is no collapse.
DEMAND_SHARE = 0.8
# The law's time to get a flood under control: it seeks the drain rate of a disk that it does not
# know, and drains a full cache, within half a minute (docs/explanation/how-it-decides.md).
LAW_ACTS_S = 30.0
# What is usual was learned without a flood; beside one that is held about so many syncs are left
# (f at the knee, tests/sim/plant.py).
BESIDE_HELD_FLOOD = 0.65
# Unless it followed that beside the flood for so long, and syncs wait for longer than what the
# agent lets be queued takes (the law tries larger limits, which cost some syncs again).
BESIDE_USUAL_S = 3 * RATE_FALLS_S
# What a large sync may take: its bytes at this part of the most that syncs were seen to write.
SIZE_SLACK = 3.0


class Syncs(NamedTuple):
    """Those of a tick, or of a spell."""

    done: int
    size_bytes: int
    seconds: float


def collapse(look: Look, watch: Watch) -> Watch:
    """`watch` with this tick in its spell, if there is one; tells of it when it is sure."""
    spell, bad = watch.collapse, suspicious(look, watch)
    if spell is None and not bad:
        if _is_well(look, watch):
            look.well(AlertName.COLLAPSE)
        return watch
    spell = grown(spell, look, bad or _lasts(look, watch), look.rules.collapse_s)
    if not (look.waited or look.held_up):
        look.well(AlertName.COLLAPSE)
    if is_over(spell):
        return replace(watch, collapse=None)
    watch = replace(watch, collapse=spell)
    cause = behind.cause(look, cause_of(spell, watch, look.tick.core))
    if not _is_collapse(look, watch, spell, cause):
        return watch
    usual = _usual(watch, _of_spell(spell))
    if cause is Cause.WRITE_THROUGH and usual is not None:
        look.tick.tell(cache_alert(look, watch, spell, usual))
        return watch
    culprits = culprits_of(spell, cause)
    look.tick.tell(Alert(
        AlertName.COLLAPSE, look.name,
        Severity.CRITICAL if spell.lasted_s >= look.rules.critical_s else Severity.WARNING,
        cause, spell.began_wall_s,
        words.collapsed(look.name, spell, watch, usual, cause, culprits)
        + behind.said(look, cause),
        behind.done(look, cause),
        culprits, evidence(spell, look, watch),
    ))  # fmt: skip
    return watch


def suspicious(look: Look, watch: Watch) -> bool:
    """Whether this tick looks like a collapse: few syncs, and those slow or held up."""
    rate = look.estimate.sync_rate
    if (
        rate is None
        or watch.sync_rate < look.tick.policy.objective.min_sync_rate
        or rate >= look.rules.sync_share * watch.sync_rate
    ):
        return False
    syncs = _of_tick(look)
    if _larger(look, watch, syncs):
        return False
    if look.latency_s > _threshold_s(look, watch, syncs) and look.late:
        return True
    return _usual(watch, syncs) is not None and look.held_up


def _lasts(look: Look, watch: Watch) -> bool:
    """Once a spell has begun, single fast syncs among few do not end it."""
    rate = look.estimate.sync_rate or 0.0
    few = rate < look.rules.sync_share * watch.sync_rate
    return few and look.seen.sync is not None and look.waited


def _is_collapse(look: Look, watch: Watch, spell: Spell, cause: Cause) -> bool:
    """Whether the spell's last seconds together are a collapse."""
    least_s = look.rules.collapse_s
    if cause is Cause.FLOOD and look.tick.protects:
        # What the law is tightening against is no alert unless it fails.
        least_s = max(LAW_ACTS_S, least_s)
    beside = 1.0
    held = look.tick.protects and spell.flooded_s >= FLOODED_SHARE * spell.seconds
    if held and (watch.flooded_s < BESIDE_USUAL_S or spell.judged_s <= QUEUED * spell.queued_s):
        beside = BESIDE_HELD_FLOOD
    syncs = _of_spell(spell)
    held_up = spell.throttled_s >= THROTTLED_SHARE * spell.seconds
    return (
        # Sixteen half seconds may be 7.99 s.
        spell.lasted_s >= least_s - look.dt_s / 4
        and is_lasting(spell)
        and spell.sync_rate < look.rules.sync_share * beside * watch.sync_rate
        and (held_up or spell.judged_s > _threshold_s(look, watch, syncs))
        and (held_up or spell.waited_s >= DEMAND_SHARE * spell.seconds)
        and not _larger(look, watch, syncs)
    )


def _is_well(look: Look, watch: Watch) -> bool:
    rate = look.estimate.sync_rate or 0.0
    if rate >= look.rules.resolve_share * watch.sync_rate:
        return True
    slow = look.latency_s > _threshold_s(look, watch, _of_tick(look))
    return not (slow and look.late)


def _of_tick(look: Look) -> Syncs:
    return Syncs(look.estimate.fsyncs, look.sync_bytes, look.dt_s)


def _of_spell(spell: Spell) -> Syncs:
    return Syncs(spell.syncs.total, spell.sync_bytes, spell.seconds)


def _usual(watch: Watch, syncs: Syncs) -> Optional[Baseline]:
    """What syncs of that size usually take."""
    size = size_class(syncs.done, syncs.size_bytes) if syncs.done else watch.size
    return watch.usual(watch.syncs, size, ENOUGH_S)


def _threshold_s(look: Look, watch: Watch, syncs: Syncs) -> float:
    """The mean latency above which so many syncs of so many bytes are slow."""
    usual = _usual(watch, syncs)
    if usual is None:
        return float("inf")
    by_size = 0.0
    if size_class(syncs.done, syncs.size_bytes) > usual.size and watch.most_sync_bytes:
        # Larger than any that are known: their bytes take time as well.
        by_size = SIZE_SLACK * syncs.size_bytes / max(1, syncs.done) / watch.most_sync_bytes
    return look.rules.latency_multiple * usual.latency_s + by_size


def _larger(look: Look, watch: Watch, syncs: Syncs) -> bool:
    """Whether syncs are fewer for being larger: they write as much as they ever did."""
    if syncs.size_bytes < look.rules.bytes_share * watch.most_sync_bytes * syncs.seconds:
        return False
    usual = _usual(watch, syncs)
    # One that has not returned yet has written all of it.
    return usual is None or size_class(max(1, syncs.done), syncs.size_bytes) > usual.size
