# SPDX-License-Identifier: GPL-2.0-or-later
"""How bcache destages: /sys/block/bcacheN/bcache/{writeback_percent,...}.

Reads and writes take bch_register_lock, which is held while a cache is registered or stopped.
"""

from __future__ import annotations

PERCENT = "writeback_percent"  # of the cache that may be dirty; the kernel takes 40 at most
DELAY = "writeback_delay"  # seconds that it rests after each pass
RATE = "writeback_rate_minimum"  # sectors of 512 bytes a second, at least 1
NAMES = (PERCENT, DELAY, RATE)


def directory(disk: str) -> str:
    return f"/sys/block/{disk}/bcache"
