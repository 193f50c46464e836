# SPDX-License-Identifier: GPL-2.0-or-later
"""Results of writes and restores, and the log lines for them."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import Optional, Tuple

from writebackd.kernel.lever_files import Lever
from writebackd.types.levers import Action, ForeignWrite

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
