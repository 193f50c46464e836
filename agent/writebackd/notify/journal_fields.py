# SPDX-License-Identifier: GPL-2.0-or-later
"""Message ids in the journal, and fields of entries that are not alerts. Pure."""

from __future__ import annotations

from typing import Any, Dict, Optional, Sequence

from writebackd.types.levers import Action, ForeignWrite, Intrusion

# systemd/writebackd.catalog explains each. They never change: `journalctl MESSAGE_ID=...` and
# people's filters rest on them.
ALERT_BEGIN = "e31a69081d114ab1a200a8a08c7eb49f"
ALERT_CHANGE = "47a84b331cf349c4839d631e6d3e045c"
ALERT_END = "8cc2633afc6e457fa400b7e848424166"
DECISION = "222133b5caff4a47a7c631a5a7c95502"
FOREIGN_WRITER = "0a211a0b8de8412096dd1f4f376df7d9"
REVERTED = "8202022c3ffd4a7db80330320a70286b"

LIMITS = ("dirty_bytes", "dirty_background_bytes")


def lever(action: Action, reason: str, decision_id: Optional[str] = None) -> Dict[str, Any]:
    """Fields for a lever that was set for a reason, or restored without one.

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
    """Fields for a lever that another process set."""
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
    """As `foreign`, for the first limit among them; empty without any."""
    return next((foreign(each.write) for each in intrusions if each.write.is_limit), {})
