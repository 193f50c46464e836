# SPDX-License-Identifier: GPL-2.0-or-later
"""Fields of journal entries that are not alerts, as `extra` of a log record. Pure."""

from __future__ import annotations

from typing import Any, Dict, Sequence

from writebackd.alert.routes.ids import DECISION, FOREIGN_WRITER, REVERTED
from writebackd.model import Action, ForeignWrite, Intrusion

_BYTES = ("dirty_bytes", "dirty_background_bytes")


def lever(action: Action, reason: str) -> Dict[str, Any]:
    """A lever was set for a reason; without one it was put back."""
    fields = {
        "MESSAGE_ID": DECISION if reason else REVERTED,
        "LEVER": action.lever,
        "OLD": action.old,
        "NEW": action.new,
    }
    if action.lever in _BYTES:
        fields.update(OLD_BYTES=action.old, NEW_BYTES=action.new)
    if reason:
        fields["REASON"] = reason
    return {"journal": fields}


def foreign(write: ForeignWrite) -> Dict[str, Any]:
    """Somebody else set a lever."""
    fields = {
        "MESSAGE_ID": FOREIGN_WRITER,
        "LEVER": write.lever,
        "NEW": write.value,
        "WRITER": write.who,
    }
    if write.pid is not None:
        fields["WRITER_PID"] = str(write.pid)
    return {"journal": fields}


def foreign_limits(intrusions: Sequence[Intrusion]) -> Dict[str, Any]:
    """As `foreign`, of the first limit among them; nothing where there is none."""
    return next((foreign(each.write) for each in intrusions if each.write.is_limit), {})
