# SPDX-License-Identifier: GPL-2.0-or-later
"""Fields of journal entries that are not alerts, as `extra` of a log record. Pure."""

from __future__ import annotations

from typing import Any, Dict, Optional, Sequence

from writebackd.notify.message_ids import DECISION, FOREIGN_WRITER, REVERTED
from writebackd.types.levers import Action, ForeignWrite, Intrusion

LIMITS = ("dirty_bytes", "dirty_background_bytes")


def lever(action: Action, reason: str, decision_id: Optional[str] = None) -> Dict[str, Any]:
    """A lever was set for a reason; without one it was put back.

    `decision_id` is that of the device whose need became the limit, as `why` and the history have
    it; levers beside the limits have their own reasons.
    """
    fields = {
        "MESSAGE_ID": DECISION if reason else REVERTED,
        "LEVER": action.lever,
        "OLD": action.old,
        "NEW": action.new,
    }
    if action.lever in LIMITS:
        fields.update(OLD_BYTES=action.old, NEW_BYTES=action.new)
        if decision_id is not None:
            fields["DECISION_ID"] = decision_id
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
    if write.cmdline is not None:
        fields["WRITER_CMDLINE"] = write.cmdline
    return {"journal": fields}


def foreign_limits(intrusions: Sequence[Intrusion]) -> Dict[str, Any]:
    """As `foreign`, of the first limit among them; nothing where there is none."""
    return next((foreign(each.write) for each in intrusions if each.write.is_limit), {})
