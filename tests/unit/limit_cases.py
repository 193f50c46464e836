# SPDX-License-Identifier: GPL-2.0-or-later
"""Limits a host may be found with; the tests on the fake and on the kernel share them."""

from __future__ import annotations

from pathlib import Path
from typing import Dict

from writebackd.actuate.ledger import Ledger, load
from writebackd.types.levers import VmLimits

MIB = 1 << 20

# dirty_bytes, dirty_ratio, dirty_background_bytes, dirty_background_ratio
ORIGINALS: Dict[str, VmLimits] = {
    "default": VmLimits(0, 20, 0, 10),
    "bytes": VmLimits(200 * MIB, 0, 100 * MIB, 0),
    "ratio limit, bytes background": VmLimits(0, 20, 64 * MIB, 0),
    "bytes limit, ratio background": VmLimits(300 * MIB, 0, 0, 1),
    "background above the limit, ratios": VmLimits(0, 10, 0, 40),
    "background equal to the limit, ratios": VmLimits(0, 20, 0, 20),
    "background above the limit, bytes": VmLimits(64 * MIB, 0, 256 * MIB, 0),
    "background ratio above a small limit": VmLimits(16 * MIB, 0, 0, 50),
    "background bytes above a ratio limit": VmLimits(0, 1, 1 << 40, 0),
    "limit ratio 0": VmLimits(0, 0, 0, 10),
    "background ratio 0": VmLimits(0, 20, 0, 0),
    "both ratios 0": VmLimits(0, 0, 0, 0),
    "ratio 1": VmLimits(0, 1, 0, 1),
    "ratio 100": VmLimits(0, 100, 0, 100),
    "not whole pages": VmLimits(123_456_789, 0, 7_654_321, 0),
    "one byte above two pages, background of one byte": VmLimits(8193, 0, 1, 0),
    "what the agent sets": VmLimits(15 * MIB, 0, 7 * MIB, 0),
    "half of what the agent sets": VmLimits(15 * MIB, 0, 0, 10),
}


def saved(path: Path) -> Ledger:
    """The ledger at `path`, which is there."""
    ledger = load(path)
    assert ledger is not None
    return ledger
