# SPDX-License-Identifier: GPL-2.0-or-later
"""CACHE_DEGRADED: hardly a small write is as fast as the write cache used to take them."""

from __future__ import annotations

from writebackd.alert import words
from writebackd.alert.baseline import ENOUGH_S
from writebackd.alert.cause import SMALL, fast_share, is_write_through
from writebackd.alert.spell import evidence, grown
from writebackd.alert.state import Baseline, Spell, Watch, size_class
from writebackd.alert.tick import Look
from writebackd.alert.values import Alert, AlertName, Cause, Severity
from writebackd.model import replace

DEGRADED_S = 6.0
FAST_AGAIN = 0.5  # share of small writes, from which on the cache is back
NOT_ALL_SLOW = 0.1  # and from which on a spell is over
# Behind seconds of a flood every write waits, cache or not.
HIDING_BYTES = 64 << 20


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
    count, size_bytes, _ = look.small_writes
    size = size_class(count, size_bytes)
    if not count or size > SMALL:
        return watch  # nothing small was written: it says nothing
    usual = watch.usual(watch.writes, size, ENOUGH_S)
    hidden = look.estimate.flooded and look.backlog_bytes > HIDING_BYTES
    if usual is None or hidden:
        return _over(watch)
    spell = grown(watch.degraded, look, True, DEGRADED_S)
    share = fast_share(grown(None, look, True, DEGRADED_S), watch)
    if share is not None and share > FAST_AGAIN:
        look.well(AlertName.CACHE_DEGRADED)
    if (share is not None and share > NOT_ALL_SLOW) or (
        spell.seconds >= DEGRADED_S / 2 and not is_write_through(spell, watch)
    ):
        return _over(watch)
    if spell.seconds >= DEGRADED_S:
        look.tick.tell(cache_alert(look, watch, spell, usual))
    return replace(watch, degraded=spell)


def _over(watch: Watch) -> Watch:
    return replace(watch, degraded=None) if watch.degraded is not None else watch


def cache_alert(look: Look, watch: Watch, spell: Spell, usual: Baseline) -> Alert:
    return Alert(
        AlertName.CACHE_DEGRADED, look.name, Severity.WARNING, Cause.WRITE_THROUGH,
        spell.began_wall_s, words.degraded(look.name, spell, usual),
        words.done(look.name, Cause.WRITE_THROUGH, look.tick.decision, look.tick.core),
        evidence=evidence(spell, look, watch),
    )  # fmt: skip
