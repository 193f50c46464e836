# SPDX-License-Identifier: GPL-2.0-or-later
"""Results of writes and restores, the log lines for them, and the writes of the global limits."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import Mapping, Optional, Sequence, Tuple

from writebackd.kernel.lever_files import Lever
from writebackd.kernel.vm import BACKGROUND, LIMIT, Pair
from writebackd.types.levers import Action, ForeignWrite, VmLimits
from writebackd.types.samples import VmState

_ADVICE = {
    errno.EPERM: "only uid 0 may write it",
    errno.EACCES: "only uid 0 may write it",
    errno.EROFS: "read-only: a container, or ProtectKernelTunables= in the unit",
    errno.EINVAL: "the kernel refuses the value",
    errno.ENOENT: "missing in this kernel or this view of /proc",
}


@dataclass(frozen=True)
class Change:
    """One write of a lever; `shown` is the new value for display."""

    text: str
    old: str
    shown: str
    wanted: Optional[int] = None  # None: the original

    def action(self, lever: Lever, error: Optional[str] = None) -> Action:
        return Action(str(lever), self.old, self.shown, ok=error is None, error=error)


@dataclass(frozen=True)
class RestoreOutcome:
    """The result of a restore; a lever without an action needed none."""

    actions: Tuple[Action, ...] = ()
    foreign: Tuple[ForeignWrite, ...] = ()  # left alone: neither ours nor the original

    @property
    def ok(self) -> bool:
        """True if no value of ours is left."""
        return all(action.ok for action in self.actions)


def explain(error: Exception) -> str:
    """An error of a kernel file in words that say what to do."""
    if not isinstance(error, OSError):
        return str(error)
    text = error.strerror or str(error)
    advice = _ADVICE.get(error.errno or 0)
    return f"{text} ({advice})" if advice else text


def describe_action(action: Action) -> str:
    """One line for the log: what was written, or why not."""
    if action.ok:
        return f"{action.lever}={action.new} (was {action.old})"
    return f"{action.lever}={action.new} not set (is {action.old}): {action.error}"


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
