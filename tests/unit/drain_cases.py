# SPDX-License-Identifier: GPL-2.0-or-later
"""A disk, its syncs and what is known of it, for tests of the drain rate."""

from __future__ import annotations

from dataclasses import replace
from typing import Tuple

from plant import latencies
from writebackd.policy import load_policy
from writebackd.types.device_memory import DeviceMemory, LawMemory
from writebackd.types.histogram import Histogram
from writebackd.types.samples import SyncSample

MB = 1 << 20
R = 256.0 * MB
LIMIT = 2 * MB
THRESHOLD = 40 * MB
POLICY = load_policy("default")
IDLE_S = 0.8e-3


def syncs(*each: Tuple[float, int], **more: float) -> SyncSample:
    """`each`: seconds, and how many took so long."""
    latency = sum((latencies(*one) for one in each), Histogram())
    return replace(SyncSample(fsyncs=latency.total, latency=latency), **more)  # type: ignore[arg-type]


QUICK, SLOW = syncs((IDLE_S, 50)), syncs((20e-3, 50))
KNOWN = DeviceMemory(baseline_s=IDLE_S, drain_rate=R, law=LawMemory(LIMIT))
