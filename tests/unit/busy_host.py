# SPDX-License-Identifier: GPL-2.0-or-later
"""A host of which everything is known, so that it has every series that there is."""

from __future__ import annotations

from dataclasses import replace
from typing import List, Mapping

import samples
from writebackd.report.snapshot import Snapshot
from writebackd.types.decision import Basis, DeviceDecision, DeviceState
from writebackd.types.estimate import Estimate
from writebackd.types.histogram import Histogram
from writebackd.types.samples import DeviceSample, SyncSample


def busy_host(devices: int) -> Snapshot:
    """Every device floods and syncs, and everything about it is known."""
    shown = samples.guard()
    latency = Histogram(tuple((70 + 3 * n, 1 + n % 5) for n in range(10)))
    sync = SyncSample(fsyncs=latency.total, latency=latency, inflight=1, oldest_s=1e-4)
    seen: List[DeviceSample] = []
    decisions: List[DeviceDecision] = []
    estimates: Mapping[str, Estimate] = {
        f"sd{n}": replace(
            shown.estimates["sda"], name=f"sd{n}", cache_bytes=5e8 + n,
            fill_bytes=1e8 + n / 7, fsync_total_s=latency.total_s(), commit_write_share=0.2,
        )
        for n in range(devices)
    }  # fmt: skip
    for n, name in enumerate(estimates):
        device = replace(samples.RAID, name=name, devno=f"8:{n}", diskseq=n)
        seen.append(
            DeviceSample(device, write_bytes=24 << 20, inflight=3, busy_share=0.97, sync=sync)
        )
        basis = Basis(0.02, 5_000_000)
        decisions.append(
            DeviceDecision(name, DeviceState.GUARD, 4 << 20, "because", f"{name}#{n}", basis=basis)
        )
    return replace(
        shown,
        sample=replace(shown.sample, devices=tuple(seen)),
        estimates=estimates,
        decision=replace(shown.decision, devices=tuple(decisions)),
    )


def counted(shown: Snapshot) -> Snapshot:
    totals = shown.totals.seen(shown.sample, shown.estimates, shown.decision, 1.0)
    return replace(shown, totals=totals)
