# SPDX-License-Identifier: GPL-2.0-or-later
"""Recommends one fixed dirty limit for a host, from its history and what was learned.  Pure.

The knee is R x tau: a smaller limit slows writers down, a larger one only makes commits wait
longer.  Where writebackd limited floods, limit / rate shows tau.  Where it only observed, no limit
was tried: then the limit is the best one of a calibration, or what drains in the time that the
objective allows.

On 60 randomly drawn hosts the limit scores 0.96 of the best fixed one in hindsight under steady
floods, 0.85 in waves; after observe mode 0.90 and 0.56 (tests/sim/test_recommend.py prints 20).
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from writebackd import formats
from writebackd.estimate.estimator import objective_s
from writebackd.formats import latency
from writebackd.policy.schema import DevicePolicy
from writebackd.report.device_figures import Figures
from writebackd.report.effectiveness import (
    LEAST_S,
    WHOLE,
    Effectiveness,
    measure,
    outside,
    spells,
    weighted_median,
)
from writebackd.report.learned_store import Calibrated
from writebackd.tuning import MOST_S
from writebackd.types.device_memory import Learned

Spans = Sequence[Tuple[float, float]]

# Seconds.  Backups run by night: a day has seen each job of a host once.
ENOUGH_OBSERVED_S = 86_400.0
# Seconds of floods that met commits.  R and the limit are medians; a destage slows the flood every
# 9 s, and this is 30 of them.
ENOUGH_FLOOD_S = 300.0
# One copy says little of the next, unless it lasts (seconds).
ENOUGH_FLOODS, LONG_FLOOD_S = 3, 3600.0
# Of limit / R: the largest p99 of fsync seen behind a full cache (0.42 to 0.75).
P99_SHARE = 0.75
# Seconds: tau on disks with a cache.  A smaller limit lets in less than R, whatever is aimed at.
LEAST_TAU_S = 7.5e-3
# Of limit / rate over the floods, where it was lowest: the rate is limit / tau at most.
_TIGHTEST = 0.1


class Basis(Enum):
    """The source of a device's limit."""

    KNEE = "knee"  # the smallest limit of writebackd's under which floods still got R
    WAVES = "waves"  # what writebackd asked for in the middle of floods too short for a knee
    CALIBRATED = "calibrated"  # the best of those that a calibration tried
    OBJECTIVE = "objective"  # no limit was tried: what drains in the time that a commit may take


@dataclass(frozen=True)
class Host:
    """The bounds of this host's limit, bytes, and its background limit as a share."""

    floor_bytes: int
    ceiling_bytes: int
    background: float = 0.5


@dataclass(frozen=True)
class DeviceAdvice:
    """What is known about one device; None: unknown."""

    effect: Effectiveness
    objective_s: float
    floods: int  # that met commits
    flood_s: float  # their length together
    alone_s: float  # of floods that met none
    held_s: float  # of it, with a limit of writebackd in force
    drain_rate: Optional[float]  # R, bytes per second
    drain_age_s: Optional[float]  # since it was seen last
    tau_s: Optional[float]  # at most: the flood gets limit / tau below the knee
    cache_bytes: Optional[float]  # that the write cache was seen to take
    limit_bytes: Optional[int]  # as it is recommended for this device alone
    basis: Optional[Basis]  # of that limit

    @property
    def name(self) -> str:
        return self.effect.device

    @property
    def knee_bytes(self) -> Optional[float]:
        """Upper bound of the smallest limit that lets in R."""
        if self.drain_rate is None or self.tau_s is None:
            return None
        return self.drain_rate * self.tau_s

    @property
    def counts(self) -> bool:
        """Whether the device counts: its floods beside commits were observed for long enough."""
        calibrated = self.basis is Basis.CALIBRATED
        return (calibrated or self.flood_s >= LEAST_S) and self.limit_bytes is not None

    def wait_s(self, limit_bytes: float) -> Optional[float]:
        """Approximate p99 of an fsync behind a full cache under this limit."""
        return None if self.drain_rate is None else P99_SHARE * limit_bytes / self.drain_rate

    def rate(self, limit_bytes: float) -> Optional[float]:
        """The least rate of a flood under this limit; None without tau."""
        if self.drain_rate is None or self.tau_s is None:
            return None
        return min(self.drain_rate, limit_bytes / self.tau_s)


@dataclass(frozen=True)
class Recommendation:
    """The limit, if there is one, and its basis."""

    observed_s: float  # from the first row to the last
    devices: Tuple[DeviceAdvice, ...]  # most at stake first
    limit_bytes: Optional[int] = None
    background_bytes: Optional[int] = None
    decider: Optional[DeviceAdvice] = None
    missing: Tuple[str, ...] = ()  # what would make the evidence enough; none: it is
    id: Optional[str] = None
    bounded: str = field(default="", compare=False)  # by what the limit was cut or raised

    @property
    def settings(self) -> Dict[str, int]:
        """Values by sysctl name; empty without a limit."""
        if self.limit_bytes is None or self.background_bytes is None:
            return {}
        return {
            "vm.dirty_bytes": self.limit_bytes,
            "vm.dirty_background_bytes": self.background_bytes,
        }


def recommend(
    rows: Sequence[Figures],
    host: Host,
    policies: Mapping[str, DevicePolicy],
    learned: Mapping[str, Learned],
    trials: Spans = (),
    orders: Spans = (),
    now_s: Optional[float] = None,
    calibrated: Optional[Mapping[str, Calibrated]] = None,
) -> Recommendation:
    """From rows oldest first, for the devices of `policies`; `learned` and `calibrated` by name.

    `orders`: when an admin set the limit, by a pin or a drain. Rows that one of these or a trial
    overlaps do not show what writebackd asks for.
    """
    rows = [row for row in rows if row.device in policies]
    by_device: Dict[str, List[Figures]] = {name: [] for name in policies}
    for row in rows:
        by_device[row.device].append(row)
    end_s = max((row.end_s for row in rows), default=0.0)
    observed_s = end_s - min((row.wall_s for row in rows), default=end_s)
    advice = [
        _advice(by_device[name], own, learned.get(name, Learned()), trials, orders,
                end_s if now_s is None else now_s, name, (calibrated or {}).get(name))
        for name, own in policies.items()
    ]  # fmt: skip
    advice.sort(key=lambda each: (-each.flood_s, -each.effect.flooded_s, each.name))
    # The others wait longer than under a limit of their own; a smaller one would halve the rate of
    # this one's writers, and more.
    decider = max(
        (each for each in advice if each.counts),
        key=lambda each: (each.limit_bytes or 0, each.name), default=None,
    )  # fmt: skip
    whole = Recommendation(
        observed_s, tuple(advice), decider=decider, missing=_missing(observed_s, advice, decider)
    )
    if decider is None or decider.limit_bytes is None:
        return whole
    wanted = decider.limit_bytes
    limit = max(min(wanted, host.ceiling_bytes), host.floor_bytes)
    bounded = "" if limit == wanted else "floor" if limit > wanted else "ceiling"
    rests_on = (limit, decider.name, decider.basis and decider.basis.value)
    digest = hashlib.sha256(ascii(rests_on).encode()).hexdigest()
    return replace(
        whole, limit_bytes=limit, background_bytes=int(limit * host.background),
        id=f"wb-{digest[:8]}", bounded=bounded,
    )  # fmt: skip


def stepped(limit_bytes: float) -> int:
    """The nearest of 1, 1.5, 2, 3, 4, 6, 8 ... MB: the estimate is not more precise.

    So noise from day to day mostly gives the same limit, and the same id.
    """
    power = 2.0 ** math.floor(math.log2(max(limit_bytes, 1.0)))
    steps = (power, 1.5 * power, 2 * power)
    return int(min(steps, key=lambda step: abs(math.log(step / max(limit_bytes, 1.0)))))


def _advice(
    figures: Sequence[Figures], own: DevicePolicy, learned: Learned, trials: Spans, orders: Spans,
    now_s: float, name: str, calibrated: Optional[Calibrated],
) -> DeviceAdvice:
    effect = measure(figures, trials, name)
    rows = outside(figures, [*trials, *orders])
    flooded = [row for row in rows if row.flooded_s and (row.fsyncs or row.pending_s)]
    held = [row for row in flooded if row.ours_s >= WHOLE * row.span_s]
    held_s = sum(row.flooded_s for row in held)
    drain_rate, seen_s = _drain(rows, learned)
    if drain_rate is None and calibrated is not None:
        drain_rate, seen_s = calibrated.drain_rate, calibrated.wall_s
    known = [(row.baseline_s, row.span_s) for row in rows if row.baseline_s is not None]
    baseline_s = weighted_median(known)
    if baseline_s is None and learned.baseline_s is not None:
        baseline_s = learned.baseline_s.value
    objective = objective_s(own.fsync_p99_s, own.baseline_multiple, baseline_s)
    tau_s, limit, basis = _tau(held), None, None
    # Waves want more than the knee, of which a calibration knows nothing.
    if tau_s is None and calibrated is not None and not _in_waves(held):
        tau_s = calibrated.tau_s
    if held_s < ENOUGH_FLOOD_S:
        tried = None if calibrated is None or _in_waves(flooded) else calibrated.limit_bytes
        if tried is not None:
            limit, basis = tried, Basis.CALIBRATED
        elif drain_rate is not None:
            limit = drain_rate * min(max(objective / P99_SHARE, LEAST_TAU_S), MOST_S)
            basis = Basis.OBJECTIVE
    elif tau_s is not None and drain_rate is not None:
        limit, basis = drain_rate * tau_s, Basis.KNEE
    else:
        # In waves memory may take a part of each.  What the device asked for: the limit in force
        # may be what another one needs.
        limit = weighted_median(
            [(row.target_bytes, row.flooded_s) for row in held if row.target_bytes is not None]
        )
        basis = None if limit is None else Basis.WAVES
    if limit is not None:
        limit = min(max(limit, own.floor_bytes), own.ceiling_bytes)
        # One that a calibration tried is meant as it is: a step up may be above the knee.
        limit = int(limit) if basis is Basis.CALIBRATED else stepped(limit)
    return DeviceAdvice(
        effect=effect,
        objective_s=objective,
        floods=len(spells(flooded)),
        flood_s=sum(row.flooded_s for row in flooded),
        alone_s=sum(row.flooded_s for row in rows if not (row.fsyncs or row.pending_s)),
        held_s=held_s,
        drain_rate=drain_rate,
        drain_age_s=None if seen_s is None else max(0.0, now_s - seen_s),
        tau_s=tau_s,
        cache_bytes=learned.cache_bytes.value if learned.cache_bytes else None,
        limit_bytes=limit,
        basis=basis,
    )


def _drain(rows: Sequence[Figures], learned: Learned) -> Tuple[Optional[float], Optional[float]]:
    """R, and when it was last seen.

    From writebackd's own estimate, known once the cache was full; else the rate of floods, best
    under the original limit, where only the disk limited them; else the value learned earlier.
    """
    own = [row for row in rows if row.drain_rate]
    if own:
        median = weighted_median([(row.drain_rate or 0.0, row.span_s) for row in own])
        return median, own[-1].end_s
    # A disk that hangs is no slow one.
    flooded = [row for row in rows if row.flooded_s and row.write_rate]
    flooded = [row for row in flooded if row.ours_s <= (1 - WHOLE) * row.span_s] or flooded
    if flooded:
        # Of short floods hardly a row is full: what is written in one is of its flood, mostly.
        whole = [row for row in flooded if row.flooded_s >= WHOLE * row.span_s] or flooded
        rates = [(row.write_rate * row.span_s / row.flooded_s, row.flooded_s) for row in whole]
        return weighted_median(rates), whole[-1].end_s
    fact = learned.drain_rate
    return (None, None) if fact is None else (fact.value, fact.wall_s)


def _tau(held: Sequence[Figures]) -> Optional[float]:
    """None if floods come in waves, or there are none."""
    if not held or _in_waves(held):
        return None
    whole = [
        (row.limit_bytes / row.write_rate, row.span_s)
        for row in held if row.flooded_s >= WHOLE * row.span_s and row.write_rate
    ]  # fmt: skip
    return weighted_median(whole, _TIGHTEST)


def _in_waves(rows: Sequence[Figures]) -> bool:
    """Whether most rows of these floods contain a pause, so that they have no rate of their own."""
    whole_s = sum(row.span_s for row in rows if row.flooded_s >= WHOLE * row.span_s)
    return whole_s < sum(row.flooded_s for row in rows) / 2


def _missing(
    observed_s: float, advice: Sequence[DeviceAdvice], decider: Optional[DeviceAdvice]
) -> Tuple[str, ...]:
    if decider is not None and decider.basis is Basis.CALIBRATED:
        return ()
    missing = []
    if observed_s < ENOUGH_OBSERVED_S:
        missing.append(
            f"{formats.duration(ENOUGH_OBSERVED_S)} of history, to include each nightly job:"
            f" {formats.duration(observed_s)} so far"
        )
    most = decider or max(advice, key=lambda each: each.flood_s, default=None)
    if most is None or not most.flood_s:
        return (*missing, "a flood with commits on one device: none so far")
    if most.flood_s < ENOUGH_FLOOD_S:
        missing.append(
            f"{formats.duration(ENOUGH_FLOOD_S)} of floods with commits on {most.name}:"
            f" {formats.duration(most.flood_s)} so far"
        )
    if most.floods < ENOUGH_FLOODS and most.flood_s < LONG_FLOOD_S:
        missing.append(
            f"{ENOUGH_FLOODS} floods on {most.name}, or one of"
            f" {formats.duration(LONG_FLOOD_S)}: {most.floods} so far"
        )
    if most.drain_rate is None:
        missing.append(f"the drain rate of {most.name}: needs a flood of 10 s or more")
    elif decider is None and most.flood_s >= ENOUGH_FLOOD_S:
        missing.append(
            f"a limit for {most.name}: needs a flood of 10 s or more without a pause, or figures"
            " with the limit that writebackd set"
        )
    return tuple(missing)


# ---- in words ----------------------------------------------------------------


def reason(advice: Recommendation) -> List[str]:
    """Why this limit was chosen, one point each."""
    decider = advice.decider
    if decider is None or advice.limit_bytes is None:
        return []
    held = f"{formats.duration(decider.held_s)} of floods with commits that writebackd limited"
    drains = f"{decider.name} drains {formats.size(decider.drain_rate)}/s."
    size = formats.size(decider.limit_bytes)
    why: Mapping[Optional[Basis], str] = {
        Basis.KNEE: f"{drains} In {held}, writers still reached that at"
        f" {formats.size(decider.knee_bytes)}; a smaller limit would slow them, a larger one only"
        " makes commits wait longer.",
        Basis.WAVES: f"Floods on {decider.name} come in bursts, which memory may partly absorb:"
        f" {size} is the median limit of writebackd in {held}.",
        Basis.CALIBRATED: f"{drains} Of the limits that `calibrate` tried, {size} was the best for"
        " commits during a flood.",
        Basis.OBJECTIVE: f"{decider.name} drains {formats.size(decider.drain_rate)}/s, so {size}"
        f" keeps commit p99 at about {latency(decider.objective_s)}, the objective. No limit was"
        " tried: `calibrate`, or a day of `enforce`, finds a better one.",
    }
    lines = [why[decider.basis]]
    others = [
        f"{each.name} alone would need {formats.size(each.limit_bytes)}"
        for each in advice.devices
        if each.counts and each is not decider and each.limit_bytes != decider.limit_bytes
    ]  # fmt: skip
    if others:
        lines.append(f"One value cannot suit all: {', '.join(others)}.")
    if advice.bounded:
        size = formats.size(advice.limit_bytes)
        lines.append(f"The {advice.bounded} of policy and kernel is {size}.")
    return lines


def price(advice: Recommendation) -> List[str]:
    """What the fixed limit costs compared with writebackd, by this host's own figures."""
    limit, lines = advice.limit_bytes, []
    if limit is None:
        return []
    for each in advice.devices:
        if not each.counts:
            continue
        text = f"{each.name}: fsync p99 about {latency(each.wait_s(limit))} behind a full cache"
        rate = each.rate(limit)
        if rate is not None and each.drain_rate:
            text += f", writers {formats.size(rate)}/s of {formats.size(each.drain_rate)}/s"
        held = each.effect.held
        if held.span_s and held.p99_s is not None:
            text += (
                f"; writebackd had {latency(held.p99_s)} and"
                f" {formats.size(held.written_bytes / held.span_s)}/s"
            )
        lines.append(f"{text}.")
    alone_s = sum(each.alone_s for each in advice.devices)
    if alone_s >= LEAST_S:
        lines.append(
            f"{formats.duration(alone_s)} of floods had no commits: a fixed limit throttles these"
            " too, writebackd does not."
        )
    lines.append(
        "A fixed limit does not adapt to a rebuild, a lost battery or another disk."
    )
    return lines
