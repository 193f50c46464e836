# SPDX-License-Identifier: GPL-2.0-or-later
"""Writes of the global limits: which are due, in which order, and their actions."""

from __future__ import annotations

from typing import Mapping, Optional, Sequence, Tuple

from writebackd.kernel.vm import BACKGROUND, LIMIT, Pair
from writebackd.types.levers import Action, VmLimits
from writebackd.types.samples import VmState


def holds(limits: VmLimits, pair: Pair, wanted: Mapping[Pair, int]) -> bool:
    return pair.value(limits) == (wanted[pair], 0)


def order(wanted: Mapping[Pair, int], state: VmState) -> Tuple[Pair, Pair]:
    """The order of writes: a lower background limit first, so that the flusher starts before
    writers are throttled; a higher limit first, to release writers."""
    if wanted[LIMIT] < state.threshold_bytes:
        return BACKGROUND, LIMIT
    return LIMIT, BACKGROUND


def action(
    pair: Pair, wanted: Mapping[Pair, int], before: Optional[VmLimits], error: Optional[str] = None
) -> Action:
    """The write of one bytes file; `old` names the ratio if that was in force."""
    old = "unknown"
    if before is not None:
        value = pair.value(before)
        old = str(value[0]) if value[0] else pair.describe(value)
    return Action(pair.bytes_lever, old, str(wanted[pair]), ok=error is None, error=error)


def failed(
    pairs: Sequence[Pair], wanted: Mapping[Pair, int], before: Optional[VmLimits], error: str
) -> Tuple[Action, ...]:
    return tuple(action(pair, wanted, before, error) for pair in pairs)
