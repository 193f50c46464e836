# SPDX-License-Identifier: GPL-2.0-or-later
"""Queue settings of a disk: /sys/block/X/queue/{nr_requests,max_sectors_kb}.

A write freezes the queue, which waits for every request in flight: it is for a
child (child_process.py), never for the loop. A read may wait for a foreign write.
"""

from __future__ import annotations

NAMES = ("nr_requests", "max_sectors_kb")
# BLKDEV_MIN_RQ: the kernel makes 4 of anything below it.
LEAST_REQUESTS = 4


def directory(disk: str) -> str:
    return f"/sys/block/{disk}/queue"
