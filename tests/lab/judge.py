# SPDX-License-Identifier: GPL-2.0-or-later
"""How near the estimates from a tape come to what the disk did: R, mark, fill and cache size."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Iterable, Iterator, List, Mapping, Optional, Sequence

from writebackd.cli.replay import policy_of
from writebackd.control.decide import decide
from writebackd.estimate.estimator import estimate
from writebackd.policy import Policy
from writebackd.report.recorder import Recorded, RecordedDecision, read_recording
from writebackd.types.copying import replace
from writebackd.types.core_memory import Memory
from writebackd.types.decision import Decision
from writebackd.types.device_memory import DeviceMemory
from writebackd.types.estimate import Estimate
from writebackd.types.samples import Sample

from .truth import Seen, Truth

TRUTH = "truth.json.gz"
# A disk whose rate changes has to be found out within that.
ANSWER_S = 15.0
NEAR = 0.15


@dataclass(frozen=True)
class Step:
    """One tick of a tape, estimated and decided again."""

    policy: Policy
    before: Memory
    sample: Sample
    estimates: Mapping[str, Estimate]
    decision: Decision
    after: Memory
    outcome: RecordedDecision  # of then


@dataclass(frozen=True)
class Tick:
    """What is believed of a disk, and what is so."""

    time_s: float
    estimate: Estimate
    memory: DeviceMemory
    seen: Seen

    @property
    def judged(self) -> bool:
        """A flood beside syncs."""
        return self.estimate.flooded and self.estimate.slow_share is not None


@dataclass(frozen=True)
class Verdict:
    """None: there was nothing to judge it by."""

    ticks: int  # of floods
    full: float  # share of them in which the cache was
    agree: float  # share of them in which the mark said what was so
    false_full: Optional[float]  # share of the ticks with room that were marked
    false_room: Optional[float]  # share of the full ones that were not
    learned_s: Optional[float]  # of floods until R was known
    r: Optional[float]  # median of R / the media's rate, once learned
    r_near: Optional[float]  # share of the ticks in which it is within NEAR
    cache: Optional[float]  # believed size / capacity, at the end
    fill: Optional[float]  # mean error of what is in the cache, in capacities


_policy = functools.lru_cache(maxsize=None)(policy_of)


def again(ticks: Iterable[Recorded]) -> Iterator[Step]:
    """Each tick again, from a memory that has the limits of then.

    What the samples show came of those limits, whatever the law of now would ask for.
    """
    memory = Memory()
    for tick in ticks:
        policy, before = _policy(tick.policy), tick.memory or memory
        estimates, memory = estimate(policy, before, tick.sample)
        decision, memory = decide(policy, memory, tick.sample, estimates)
        yield Step(policy, before, tick.sample, estimates, decision, memory, tick.outcome)
        memory = _under(tick.outcome, decision, estimates, memory)


def _under(outcome: RecordedDecision, decision: Decision, estimates: Mapping[str, Estimate],
           memory: Memory) -> Memory:
    now = {each.name: each.target_bytes for each in decision.devices}
    changed = {}
    for name, _, _, target in outcome.devices:
        if target is not None and target != now[name]:
            known = memory.devices[name]
            law = replace(known.law, limit_bytes=target * estimates[name].limit_share)
            changed[name] = replace(known, law=law)
    return replace(memory, devices={**memory.devices, **changed}) if changed else memory


def play(directory: Path) -> List[Tick]:
    """Of the modelled disk, which is the one that is not excluded."""
    truth = Truth.read(directory / TRUTH)
    ticks = []
    for step in again(read_recording(directory)):
        sample = step.sample
        (name,) = [each.device.name for each in sample.devices if each.excluded is None]
        ticks.append(Tick(
            sample.time_s, step.estimates[name], step.after.devices[name],
            truth.between(sample.time_s - sample.dt_s, sample.time_s)))
    return ticks


def judge(ticks: Sequence[Tick]) -> Verdict:
    floods = [tick for tick in ticks if tick.judged]
    full = [tick.estimate.full for tick in floods if tick.seen.is_full]
    room = [tick.estimate.full for tick in floods if not tick.seen.is_full]
    known = [tick for tick in floods if tick.estimate.drain_rate is not None]
    rates = _ratios(known)
    sized = [tick for tick in known if tick.seen.capacity_bytes and tick.memory.cache_bytes]
    return Verdict(
        ticks=len(floods),
        full=len(full) / len(floods),
        agree=(sum(full) + len(room) - sum(room)) / len(floods),
        false_full=mean(room) if room else None,
        false_room=1 - mean(full) if full else None,
        learned_s=known[0].time_s - floods[0].time_s if known else None,
        r=median(rates) if rates else None,
        r_near=mean([abs(rate - 1) <= NEAR for rate in rates]) if rates else None,
        cache=(sized[-1].memory.cache_bytes or 0) / sized[-1].seen.capacity_bytes
        if sized else None,
        fill=mean([abs(tick.estimate.fill_bytes - tick.seen.fill_bytes) / tick.seen.capacity_bytes
                   for tick in sized]) if sized else None)


def _ratios(ticks: Sequence[Tick]) -> List[float]:
    """R to the media's rate, but for the time that a change of it may take to be found out."""
    found, rate, changed_s = [], None, float("-inf")
    for tick in ticks:
        if rate is not None and tick.seen.media_rate != rate:
            changed_s = tick.time_s
        rate = tick.seen.media_rate
        if tick.time_s - changed_s >= ANSWER_S:
            found.append((tick.estimate.drain_rate or 0.0) / rate)
    return found


HEADS = ("tape", "ticks", "full", "agree", "false full", "false room", "R after", "R", "R near",
         "cache", "fill error")


def table(verdicts: Mapping[str, Verdict]) -> str:
    rows = [HEADS, *((name, str(v.ticks), *map(_percent, (
        v.full, v.agree, v.false_full, v.false_room)), _seconds(v.learned_s), *map(_percent, (
            v.r, v.r_near, v.cache, v.fill))) for name, v in verdicts.items())]
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(
        [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))])
        for row in rows)


def _percent(share: Optional[float]) -> str:
    return "-" if share is None else f"{share:.0%}"


def _seconds(value: Optional[float]) -> str:
    return "-" if value is None else f"{value:.0f} s"
