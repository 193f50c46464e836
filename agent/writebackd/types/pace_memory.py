# SPDX-License-Identifier: GPL-2.0-or-later
"""What pacing remembers of one disk between ticks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping, Optional, Tuple

from writebackd.types.histogram import Histogram


@dataclass(frozen=True)
class PaceMemory:
    """What is remembered of pacing on one disk; see control/pacing/pace.py."""

    rate: Optional[float] = None  # of all paced cgroups together; None: nobody is paced
    rates: Mapping[str, int] = field(default_factory=dict)  # by path: what was asked for
    names: Tuple[str, ...] = ()  # the devices that share the disk
    step_s: float = float("-inf")  # when the rate was last moved
    in_force_s: Optional[float] = None  # since when the kernel shows all of them
    unset_s: float = 0.0  # in a row, that it does not
    used: Mapping[str, float] = field(default_factory=dict)  # by path: written, smoothed
    background_rate: float = 0.0  # bytes per second of the flusher, smoothed
    wrote_s: float = float("-inf")  # when one of them last wrote
    stray_s: float = 0.0  # in a row, with a flood of others that cannot be paced
    # Latencies of fsync in a flood, under the limit alone and in force: how long and until when.
    alone: Histogram = Histogram()
    alone_for_s: float = 0.0
    alone_s: float = float("-inf")
    # And in the window under pace that runs now: since when.
    under: Histogram = Histogram()
    under_s: float = float("-inf")
    barred_until_s: float = float("-inf")
    barred_why: str = ""
