# SPDX-License-Identifier: GPL-2.0-or-later
"""EXHAUSTED: at the bound, and still slow."""

from __future__ import annotations

from writebackd.alert import behind, words
from writebackd.alert.cause import cause_of, culprits_of
from writebackd.alert.spell import SPELL_ENDS_S, evidence, grown
from writebackd.alert.state import Watch
from writebackd.alert.tick import Look
from writebackd.alert.values import Alert, AlertName, Severity
from writebackd.types.copying import replace

EXHAUSTED_S = 60.0


def exhausted(look: Look, watch: Watch, at_the_bound: bool) -> Watch:
    """`watch` with this tick in its spell; tells of it when it is long."""
    tick = look.tick
    spell = grown(watch.exhausted, look, at_the_bound, EXHAUSTED_S / 2)
    if spell.good_s >= SPELL_ENDS_S or not tick.protects:
        return replace(watch, exhausted=None)
    if spell.lasted_s >= EXHAUSTED_S:
        cause = behind.cause(look, cause_of(spell, watch, tick.core))
        tick.tell(Alert(
            AlertName.EXHAUSTED, look.name, Severity.WARNING, cause, spell.began_wall_s,
            words.exhausted(look.name, spell, look.objective_s, cause, look.floor_bytes)
            + behind.said(look, cause),
            behind.done(look, cause),
            culprits_of(spell, cause), evidence(spell, look, watch),
        ))  # fmt: skip
    return replace(watch, exhausted=spell)
