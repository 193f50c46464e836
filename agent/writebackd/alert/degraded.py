# SPDX-License-Identifier: GPL-2.0-or-later
"""CACHE_DEGRADED: hardly a small write is as fast as the write cache used to take them."""

from __future__ import annotations

from writebackd.alert import behind, words
from writebackd.alert.baseline import ENOUGH_S
from writebackd.alert.cause import (
    ENOUGH_WRITES,
    FLOODED_SHARE,
    QUEUED,
    SMALL,
    SOON_SHARE,
    fast_share,
    is_write_through,
)
from writebackd.alert.spell import UNWANTED_S, evidence, grown, is_lasting
from writebackd.alert.state import Baseline, Recovery, Spell, Watch, size_class
from writebackd.alert.tick import Look
from writebackd.alert.values import Alert, AlertName, Cause, Severity
from writebackd.types.copying import replace

DEGRADED_S = 6.0
FAST_AGAIN = 0.5  # share of small writes, from which on the cache is back
# Behind seconds of a flood every write waits, cache or not.
HIDING_BYTES = 64 << 20
# Without a small write for so long it is not known to be off any more; it is told again when it is.
UNSEEN_S = 300.0


def slow(look: Look, watch: Watch) -> bool:
    """Cheap: whether it is worth looking at this device's writes at all."""
    estimate = look.estimate
    if not estimate.fsyncs:
        return False
    usual = watch.usual(watch.syncs, watch.size, ENOUGH_S)
    mean_s = estimate.fsync_total_s / estimate.fsyncs
    return usual is not None and mean_s > look.rules.latency_multiple * usual.latency_s


def degraded(look: Look, watch: Watch) -> Watch:
    """`watch` with this tick in its spell, if there is one; tells of it when it is sure."""
    count, size_bytes, latencies = look.small_writes
    size = size_class(count, size_bytes)
    if not count or size > SMALL:
        return _unseen(look, watch)
    usual = watch.usual(watch.writes, size, ENOUGH_S)
    if usual is None or _behind_much(look):
        return _over(watch)
    spell = grown(watch.degraded, look, True, DEGRADED_S)
    share = fast_share(latencies, size_bytes, watch)
    # Twice as many as those of a spell may be: a tick has few to count.
    if (share is not None and share > 2 * SOON_SHARE) or (
        spell.lasted_s >= DEGRADED_S / 2
        and (_is_queued(spell) or not is_write_through(spell, watch))
    ):
        return _over(watch)
    if spell.lasted_s >= DEGRADED_S and is_lasting(spell):
        look.tick.tell(cache_alert(look, watch, spell, usual))
    return replace(watch, degraded=spell)


def recovering(look: Look, watch: Watch) -> Watch:
    """`watch` with what this tick says of a cache that was told to be off.

    A tick of a quiet host has too few writes to tell by: they are taken together.
    """
    count, size_bytes, latencies = look.small_writes
    before = watch.recovery
    if not count or size_class(count, size_bytes) > SMALL:
        now = replace(before, unseen_s=before.unseen_s + look.dt_s)
    elif _hidden(look):
        now = replace(before, unseen_s=0.0)
    else:
        now = Recovery(
            before.count + count, before.bytes + size_bytes, before.latencies + latencies,
            fast=before.fast,
        )  # fmt: skip
        if watch.usual(watch.writes, 0, ENOUGH_S) is None:
            now = Recovery(fast=True)  # another disk: nothing was lost
        elif now.count >= ENOUGH_WRITES:
            share = fast_share(now.latencies, now.bytes, watch)
            now = Recovery(fast=share is not None and share > FAST_AGAIN)
    if now.fast or now.unseen_s >= UNSEEN_S:
        look.well(AlertName.CACHE_DEGRADED)
    return replace(watch, recovery=now)


def _behind_much(look: Look) -> bool:
    return look.estimate.flooded and look.backlog_bytes > HIDING_BYTES


def _is_queued(spell: Spell) -> bool:
    """Whether what a flood has queued explains why small writes are slow; from tick to tick that
    is a fourth or four times as much."""
    middle = spell.writes.quantile(0.5)
    return (
        spell.flooded_s >= FLOODED_SHARE * spell.seconds
        and middle is not None
        and middle <= QUEUED * spell.queued_s
    )


def _hidden(look: Look) -> bool:
    """Whether a flood may be why small writes are slow in this tick."""
    if not look.estimate.flooded:
        return False
    middle = look.small_writes[2].quantile(0.5)
    queued_s = look.backlog_bytes / max(look.estimate.rate, 1.0)
    return _behind_much(look) or (middle is not None and middle <= QUEUED * queued_s)


def _unseen(look: Look, watch: Watch) -> Watch:
    """Nothing small was written: that says nothing, and in the end what was before says no more."""
    spell = watch.degraded
    if spell is None:
        return watch
    spell = replace(spell, good_s=spell.good_s + look.dt_s)  # in a row: a slow tick sets it to 0
    return replace(watch, degraded=spell if spell.good_s < UNWANTED_S else None)


def _over(watch: Watch) -> Watch:
    return replace(watch, degraded=None) if watch.degraded is not None else watch


def cache_alert(look: Look, watch: Watch, spell: Spell, usual: Baseline) -> Alert:
    return Alert(
        AlertName.CACHE_DEGRADED, look.name, Severity.WARNING, Cause.WRITE_THROUGH,
        spell.began_wall_s, words.degraded(look.name, spell, usual)
        + behind.said(look, Cause.WRITE_THROUGH),
        look.tick.done(look.name, Cause.WRITE_THROUGH),
        evidence=evidence(spell, look, watch),
    )  # fmt: skip
