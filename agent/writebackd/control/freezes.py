# SPDX-License-Identifier: GPL-2.0-or-later
"""How much may be dirty under pace, by what freezes and syncfs took.

They wait for all that is dirty, at the pace.  A smaller limit makes most of them shorter, in
proportion, and costs syncs: their own writers wait for it as well.  So it is made smaller only
once one was seen that a host notices, and only as long as that helps.
"""

from __future__ import annotations

from typing import Optional, Sequence

from writebackd.model import Freezes, Histogram, replace

# A freeze (a snapshot's) or syncfs that took longer makes the limit smaller by as much, but half
# at once, since the limit's worth need not be all that it met, and by what the ramp's deadband
# does not swallow; no further than to this share.
FREEZE_S, CUT_MOST, CUT_LEAST, LEAST = 1.0, 0.5, 0.8, 0.1
# One that took nearly as long under a limit that is smaller by as much did not wait for it.
NO_SHORTER = 0.9
# Who takes snapshots takes one a week.
REMEMBERED_S = 8 * 86400.0


def weigh(
    known: Freezes, now_s: float, limit_s: Optional[float], waits: Sequence[Histogram]
) -> Freezes:
    """What is known of freezes, with those in it that returned in this tick.

    `limit_s` is the limit in force in seconds of the pace, None where it is not the one under pace.
    """
    if known.took_s and now_s - known.at_s > REMEMBERED_S:
        known = Freezes()
    if limit_s is None:
        return replace(known, since_s=float("inf"))
    known = replace(known, since_s=min(known.since_s, now_s))
    took_s = max([each.quantile(1.0) or 0.0 for each in waits], default=0.0)
    # One that began before met another limit's worth, or a backlog.
    if known.useless or now_s - known.since_s < took_s:
        return known
    if took_s > FREEZE_S * known.share:
        known = replace(known, at_s=now_s)  # it would have been slow without the cuts
    # By the buckets' lower edges, or 0.95 s would be more than 1.
    if not any(each.count_above(FREEZE_S)[0] for each in waits):
        return known
    smaller = limit_s <= NO_SHORTER * known.limit_s
    if known.took_s and smaller and took_s >= NO_SHORTER * known.took_s:
        return replace(known, share=known.before, useless=True)
    cut = min(CUT_LEAST, max(CUT_MOST, FREEZE_S / took_s))
    return Freezes(
        share=max(LEAST, known.share * cut), before=known.share, took_s=took_s, limit_s=limit_s,
        at_s=now_s,
    )
