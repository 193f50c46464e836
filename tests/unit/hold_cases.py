# SPDX-License-Identifier: GPL-2.0-or-later
"""A flooded device with sync demand, and one tick of control/hold.py."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Callable, List, Tuple

from samples import MIB, estimate
from writebackd.control.hold import (
    FOLLOW_S,
    FULL_LASTS_S,
    LATE_LASTS_S,
    PROBE_STEP,
    asked_for,
    regulate,
)
from writebackd.control.room import DRAIN_GRIPS, DRAIN_LEAST_S, DRAIN_SHARE
from writebackd.control.seek import SEEK_S
from writebackd.control.steps import FORWARD, JUDGE_S, PROBE_S, Bounds
from writebackd.model import Estimate, Hold, Phase, State

R, TAU = 250.0 * MIB, 10e-3
KNEE = int(FORWARD * R * TAU)
KEEP, OBJECTIVE_S = 0.9, 5e-3
BOUNDS = Bounds(
    floor=MIB // 16, ceiling=1024 * MIB, start=4 * MIB, tau_s=7.5e-3,
    objective_s=OBJECTIVE_S, keep=KEEP,
)  # fmt: skip
NOW = 10_000.0
SETTLED_S = 10.0  # since the last change
FAST_S, LATE_S = 0.2 * OBJECTIVE_S, 4 * OBJECTIVE_S
# What the tick itself adds comes on top.
FULL = {"full_s": FULL_LASTS_S}
LATE = {"late_s": LATE_LASTS_S}
DUE = {"changed_s": NOW - PROBE_S}
POOR = 0.95 * KEEP


def seen(**more: object) -> Estimate:
    """A flood at R, held back by the limit, with room in the cache and fast syncs."""
    usual = estimate(
        "sda", flooded=True, demand=True, held_back=True, rate=R, drain_rate=R, tau_s=TAU,
        fsync_p99_s=FAST_S, slow_share=0.02,
    )  # fmt: skip
    return replace(usual, **more)  # type: ignore[arg-type]


def holding(at: float = R, **more: object) -> Hold:
    """Settled at the knee, long enough at the rate `at` to judge it; nothing is due."""
    usual = Hold(
        phase=Phase.HOLD, limit_bytes=KNEE, changed_s=NOW - SETTLED_S, for_rate=R,
        carried=(at * JUDGE_S, JUDGE_S), waited=(JUDGE_S, 300.0), probe_again_s=PROBE_S,
    )  # fmt: skip
    return replace(usual, **more)  # type: ignore[arg-type]


def draining(
    at: float = DRAIN_SHARE * R, lasted: float = 1.01 * DRAIN_LEAST_S, **more: object
) -> Hold:
    usual = holding(
        phase=Phase.DRAIN, changed_s=NOW - lasted, drain_bytes=int(DRAIN_SHARE * KNEE),
        carried=(at, 1.0), fell_s=lasted if at < DRAIN_GRIPS * R else 0.0,
    )  # fmt: skip
    return replace(usual, **more)  # type: ignore[arg-type]


def late(**more: object) -> Estimate:
    return seen(**{"fsync_p99_s": LATE_S, **more})


@dataclass(frozen=True)
class Step:
    limit: int
    hold: Hold
    state: State
    why: str


def step(
    seen_: Estimate, hold: Hold, now_s: float = NOW, dt_s: float = 1.0, in_force: float = 1.0,
    bounds: Bounds = BOUNDS,
) -> Step:
    """One tick; `in_force` in times of what was asked for."""
    applied = int(in_force * asked_for(bounds, seen_, hold))
    return Step(*regulate(bounds, seen_, hold, now_s, dt_s, applied))


def run(
    hold: Hold, ticks: int, host: Callable[[int], Estimate], now_s: float = NOW
) -> List[Tuple[float, Step]]:
    """The rules in a loop with `host`, which tells what a limit brings."""
    steps: List[Tuple[float, Step]] = []
    for tick in range(ticks):
        taken = step(host(asked_for(BOUNDS, seen(), hold)), hold, now_s + tick)
        hold = taken.hold
        steps.append((now_s + tick, taken))
    return steps


def unknown(**more: object) -> Estimate:
    return seen(**{"drain_rate": None, "tau_s": None, **more})


def seeking(rate: float = 4 * R, lasted: float = SEEK_S, **more: object) -> Hold:
    found = Hold(limit_bytes=BOUNDS.start, changed_s=NOW - 10, carried=(rate * lasted, lasted))
    return replace(found, **more)  # type: ignore[arg-type]


def probing(at: float, **more: object) -> Hold:
    usual = holding(
        at, limit_bytes=int(KNEE * PROBE_STEP), probe_bytes=KNEE, probe_rate=R,
        changed_s=NOW - FOLLOW_S - JUDGE_S,
    )  # fmt: skip
    return replace(usual, **more)  # type: ignore[arg-type]
