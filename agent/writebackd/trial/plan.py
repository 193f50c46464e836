# SPDX-License-Identifier: GPL-2.0-or-later
"""The plan of a trial: its blocks, preconditions, and the bound on the original limits."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Optional

from writebackd import formats
from writebackd.policy.schema import Policy
from writebackd.report.snapshot import Snapshot, original_bytes
from writebackd.types.decision import DeviceState

AGENT, ORIGINAL = "a", "o"
# Of a block, and 5 s at least: the limit ramps, and what the block before left in memory and in
# the write cache drains. With the default ceiling that is 1 s of the disk's work, and 2 s for
# a cache of 512 MB at 250 MB/s.
SETTLE_SHARE, SETTLE_LEAST_S = 1 / 3, 5.0
# Both parts of a block need a handful of ticks.
LEAST_BLOCK_S, MOST_BLOCK_S = 10.0, 3600.0
# As many letters as a request to the daemon has room for.
MOST_BLOCKS = 2000
# Below this the interval is so wide that it says nothing: t is 4.3 with 3 pairs, 3.2 with 4.
LEAST_PAIRS = 4
# The daemon ends a trial whose client has sent no request for so long.
LEASE_S = 5.0


@dataclass(frozen=True)
class Plan:
    """What a client asks of the daemon."""

    device: str
    arms: str  # a letter a block
    block_s: float
    settle_s: float  # of each block, left out of what is compared
    ceiling_s: float  # the limits as found are cut to what the disk drains in this time
    stop_s: Optional[float]  # a commit that takes longer ends it; None: see trial_run.py

    @property
    def duration_s(self) -> float:
        return len(self.arms) * self.block_s


def order(duration_s: float, block_s: float, seed: int) -> str:
    """The arms of all blocks: each pair has both, in random order.

    Pairs, because a host's load drifts; random order, because it may be periodic.
    Raises ValueError that names a valid value.
    """
    if not LEAST_BLOCK_S <= block_s <= MOST_BLOCK_S:
        least, most = formats.duration(LEAST_BLOCK_S), formats.duration(MOST_BLOCK_S)
        raise ValueError(f"a block takes {least} to {most}")
    pairs = math.floor(duration_s / (2 * block_s) + 1e-9)
    if pairs < 1:
        needed = formats.duration(2 * block_s)
        raise ValueError(f"a pair of blocks takes {needed}: choose a longer duration")
    if 2 * pairs > MOST_BLOCKS:
        raise ValueError(f"more than {MOST_BLOCKS} blocks: choose longer ones")
    # Not for secrets: for the same order from the same seed.
    chance = random.Random(seed)
    return "".join(chance.choice((AGENT + ORIGINAL, ORIGINAL + AGENT)) for _ in range(pairs))


def settle_s(block_s: float) -> float:
    return max(SETTLE_LEAST_S, SETTLE_SHARE * block_s)


# Syncs per second: a hundred in the 20 s of a block of 30 s that count, which a p99 needs.
LEAST_SYNC_RATE = 5.0
# No trial of minutes shows the difference of limits that differ by less than this factor.
LEAST_FACTOR = 2.0


@dataclass(frozen=True)
class Bound:
    """The limit of the original arm."""

    found_bytes: int
    limit_bytes: int
    background_bytes: int
    cut: Optional[str]  # by what, in words; None: as found


def bound(snapshot: Snapshot, policy: Policy, ceiling_s: float) -> Bound:
    """The original limits, cut to `ceiling_s` of the slowest disk with sync demand.

    An fsync may wait for all pages a flood has dirtied, and all of them drain before the agent's
    limit applies again: with 20 % of 256 GB, minutes. The policy's ceiling cuts it as well.
    """
    original, background = original_bytes(snapshot)
    excluded = {each.device.name for each in snapshot.sample.devices if each.excluded}
    rates = [
        each.drain_rate
        for each in snapshot.estimates.values()
        if each.demand and each.drain_rate is not None and each.name not in excluded
    ]
    drained = int(min(rates, default=0.0) * ceiling_s)
    limits = policy.limits
    limit = max(min(original, drained, limits.ceiling_bytes), limits.floor_bytes)
    if limit >= original:
        return Bound(original, original, background, None)
    cut = f"what the disk drains in {ceiling_s:g} s"
    if limit != drained:
        cut = "the policy's ceiling" if limit < drained else "the policy's floor"
    page = snapshot.sample.host.page_size
    return Bound(original, limit, max(page, int(limit * background / original)), cut)


def objection(snapshot: Snapshot, policy: Policy, device: str, ceiling_s: float) -> Optional[str]:
    """Why no trial may begin on `device` (its name in the snapshot); None if one may."""
    memory = snapshot.memory
    if snapshot.off is not None:
        return f"{snapshot.off} exists: remove it first"
    if memory.yielded is not None:
        return f"yielded ({memory.yielded}): `writebackctl enforce` first"
    if memory.pin_bytes is not None:
        return "the limit is pinned: `writebackctl release` first"
    if memory.draining:
        return "a drain holds the limit: wait, or `writebackctl release` first"
    if snapshot.sample.errors:
        return f"cannot read all kernel statistics: {snapshot.sample.errors[0]}"
    if snapshot.alerts:
        names = ", ".join(dict.fromkeys(each.name.value for each in snapshot.alerts))
        return f"active alert {names}: see `writebackctl alerts`"
    decision, estimate = snapshot.decisions[device], snapshot.estimates[device]
    if decision.state is DeviceState.EXCLUDED:
        return f"{device} is excluded: {decision.reason}"
    if not estimate.demand_known:
        return f"{device}: fsync is not visible, `writebackctl doctor` says why"
    rate = sync_rate(snapshot, device)
    if not estimate.demand or rate < LEAST_SYNC_RATE:
        return (
            f"{device}: {formats.count(rate)} fsyncs/s over the last 10 s, at least"
            f" {formats.count(LEAST_SYNC_RATE)} needed: start the trial under load"
        )
    if estimate.drain_rate is None:
        return (
            f"{device}: drain rate unknown, so the limit as found cannot be bounded; the first"
            " flood measures it"
        )
    limit = bound(snapshot, policy, ceiling_s).limit_bytes
    own = decision.target_bytes
    if own is not None and limit < LEAST_FACTOR * own:
        return (
            f"{device}: nothing to compare: the agent's limit is {formats.size(own)}, the one as"
            f" found {formats.size(limit)}"
        )
    return None


def sync_rate(snapshot: Snapshot, device: str) -> float:
    """Syncs per second over the last 10 s."""
    known = snapshot.memory.devices.get(device)
    window = known.recent_syncs if known is not None else ()
    span_s = sum(window[::2])
    return sum(window[1::2]) / span_s if span_s else 0.0
