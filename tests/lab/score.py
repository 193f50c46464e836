# SPDX-License-Identifier: GPL-2.0-or-later
"""What runs are worth: f, g, score, the best static limit in hindsight, the totals.

With synchronous demand score = f * min(1, g / 0.95) ** 4, without it score = g:

    f  synchronous rate under load / idle synchronous rate of the same repeat
    g  sequential rate under load / with default limits in the same repeat

Idle is the median over all contenders of a repeat: without a flood they differ little.
Pairing by repeat takes out the drift of the machine; medians over repeats take out
single bad runs.
"""

from __future__ import annotations

import math
import statistics
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from . import scenario as scenarios
from .contenders import KINDS, named
from .report.evaluation import Check, Contender, Evaluation, Run
from .report.evaluation import Scenario as Scored
from .scenario import Expectation, Scenario, Term

KEPT = 0.95  # share of the sequential rate that may be lost for nothing
# Fixed limits that run in all but a few special scenarios, and what they are compared with.
ALWAYS = ("default", "static-15M", "static-4M", "agent")
BEST, IDLE = "best", "idle"  # in expectations: the best static limit; the load without a flood


def score(f: Optional[float], g: Optional[float]) -> Optional[float]:
    """As the module says; None of what is needed is unknown."""
    if f is None:
        return g
    return f if g is None else f * min(1.0, g / KEPT) ** 4


def evaluate(runs: Iterable[Run]) -> Evaluation:
    """Scores of all runs; raises RigError for a scenario or a contender that is gone."""
    by_scenario: Dict[str, List[Run]] = {}
    for run in runs:
        by_scenario.setdefault(run["scenario"], []).append(run)
    scored = [_evaluate(scenarios.load(name), found) for name, found in sorted(by_scenario.items())]
    return Evaluation(scored, totals(scored))


def totals(scored: Sequence[Scored]) -> Dict[str, Optional[float]]:
    """Geometric means over the scenarios that have a score of each of ALWAYS.

    Only of contenders that have one in all of these: a mean over other scenarios is
    another quantity.
    """
    common = [scenario.contenders for scenario in scored
              if all(_score(scenario.contenders, name) is not None for name in ALWAYS)]
    found: Dict[str, Optional[float]] = {}
    for name in sorted({name for contenders in common for name in contenders}, key=_place):
        known = [each for contenders in common for each in [_score(contenders, name)]
                 if each is not None]
        if len(known) == len(common):
            found[name] = math.exp(statistics.fmean(math.log(max(each, 1e-6)) for each in known))
    return found


def _score(contenders: Mapping[str, Contender], name: str) -> Optional[float]:
    return contenders[name].score if name in contenders else None


def _evaluate(scenario: Scenario, runs: List[Run]) -> Scored:
    good = [run for run in runs if run["error"] is None]
    rounds: Dict[int, List[Run]] = {}
    for run in good:
        rounds.setdefault(run["repeat"], []).append(run)
    figures: Dict[str, List[Tuple[Run, Optional[float], Optional[float]]]] = {}
    for together in rounds.values():
        idle = idle_rates(together)
        default = next((run for run in together if run["contender"] == "default"), None)
        for run in together:
            figures.setdefault(run["contender"], []).append(
                (run, synchronous_share(run, idle), sequential_share(run, default)))
    contenders = {}
    for name in sorted({run["contender"] for run in runs}, key=_place):
        contenders[name] = _contender(name, figures.get(name, []),
                                      [run for run in runs if run["contender"] == name])
    statics = [each for each in contenders.values() if each.kind == "static" and each.score]
    best = max(statics, key=lambda each: each.score or 0, default=None)
    scored = Scored(scenario.name, scenario.summary, scenario.shows, scenario.source,
                    has_sync=scenario.has_sync, contenders=contenders,
                    best_static=best.name if best else None)
    scored.checks.extend(check(expectation, scored, good)
                         for expectation in scenario.expectations)
    return scored


def _place(name: str) -> Tuple[int, int, str]:
    """Where a contender stands in tables: by kind, static ones by size."""
    settings = named(name)
    return KINDS.index(settings.kind), settings.limit_bytes or 0, name


def _contender(name: str, figures: Sequence[Tuple[Run, Optional[float], Optional[float]]],
               runs: List[Run]) -> Contender:
    settings = named(name)
    scores = [(each, run) for run, f, g in figures for each in [score(f, g)] if each is not None]
    scores.sort(key=lambda pair: pair[0])
    return Contender(
        name, settings.kind, settings.limit_bytes, summary=settings.summary,
        f=median(f for _, f, _ in figures), g=median(g for _, _, g in figures),
        score=median(each for each, _ in scores),
        spread=(scores[0][0], scores[-1][0]) if scores else None,
        runs=runs, median_run=scores[len(scores) // 2][1] if scores else None)


def median(values: Iterable[Optional[float]]) -> Optional[float]:
    """Of those that are known; None of none."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def sync_loads(run: Run) -> List[Mapping[str, Any]]:
    return [load for load in run["loads"] if load["role"] == "sync"]


def rate(load: Mapping[str, Any], window: str) -> Optional[float]:
    """Operations per second; with none at all in the window, one is what it was below."""
    measured = load["windows"].get(window)
    if not measured or measured["rate"] is None:
        return None
    at_least: float = 1 / max(measured["elapsed"], measured["inflight_age"])
    return max(float(measured["rate"]), at_least)


def idle_rates(runs: Sequence[Run]) -> Dict[str, float]:
    """By load: the median of what it did before the flood, over the runs of a repeat."""
    found: Dict[str, List[float]] = {}
    for run in runs:
        for load in sync_loads(run):
            value = rate(load, "idle")
            if value is not None:
                found.setdefault(load["name"], []).append(value)
    return {name: statistics.median(values) for name, values in found.items()}


def synchronous_share(run: Run, idle: Mapping[str, float]) -> Optional[float]:
    """f: the geometric mean over the synchronous loads; None without any."""
    shares = []
    for load in sync_loads(run):
        value = rate(load, "judged")
        if value is not None and idle.get(load["name"]):
            shares.append(value / idle[load["name"]])
    return statistics.geometric_mean(shares) if shares else None


def sequential_share(run: Run, default: Optional[Run]) -> Optional[float]:
    """g; None without a sequential load or without a run with default limits."""
    own = sequential_rate(run)
    reference = sequential_rate(default) if default else None
    return own / reference if own is not None and reference else None


def sequential_rate(run: Run) -> Optional[float]:
    """Bytes per second that floods and jobs got onto their disks in the judged window.

    A job's own figure includes its final sync.  A flood's is taken at the device, behind
    the page cache, less what the synchronous loads of the disk write there: as much per
    operation as in the idle window, when they were alone.
    """
    jobs = [load for load in run["loads"] if load["role"] == "job"]
    if jobs:
        rates = [load["windows"]["judged"]["byte_rate"] for load in jobs
                 if load["windows"].get("judged")]
        return sum(rates) if rates and None not in rates else None
    flooded = {load["disk"] for load in run["loads"] if load["role"] == "flood"}
    start, end = run["windows"]["judged"]
    written = 0.0
    for disk in run["disks"]:
        if disk["name"] in flooded:
            written += max(0.0, disk["written"]["judged"] - _synchronous_bytes(run, disk))
    return written / (end - start) if flooded else None


def _synchronous_bytes(run: Run, disk: Mapping[str, Any]) -> float:
    loads = [load["windows"] for load in sync_loads(run) if load["disk"] == disk["name"]]
    idle = sum(windows["idle"]["ops"] or 0 for windows in loads if windows.get("idle"))
    judged = sum(windows["judged"]["ops"] or 0 for windows in loads if windows.get("judged"))
    return float(disk["written"]["idle"]) / idle * judged if idle else 0.0


def check(expectation: Expectation, scored: Scored, runs: Sequence[Run]) -> Check:
    """Whether it holds, of medians; undecided where a contender has not run."""
    left = value_of(expectation.left, scored, runs)
    right = value_of(expectation.right, scored, runs) if expectation.right else 1.0
    if left is None or not right:
        return Check(expectation.text, None, "not measured")
    value = left / right
    holds = (value >= expectation.number if expectation.operator == ">="
             else value <= expectation.number)
    return Check(expectation.text, holds, f"{value:.3g}")


def value_of(term: Term, scored: Scored, runs: Sequence[Run]) -> Optional[float]:
    """A metric of a contender, the median of its repeats.

    rate: synchronous operations per second; p99: of them, the worst load's; stall: the
    longest of a buffered writer; limit, fill: in the end, bytes and share of the cache.
    """
    if term.contender == IDLE:
        return median(_rate(run, "idle") for run in runs)
    name = scored.best_static if term.contender == BEST else term.contender
    contender = scored.contenders.get(name or "")
    if contender is None:
        return None
    if term.metric in ("f", "g", "score"):
        value: Optional[float] = getattr(contender, term.metric)
        return value
    of = {"rate": lambda run: _rate(run, "judged"), "p99": _p99, "stall": _stall,
          "limit": lambda run: run["series"]["dirty_limit"][-1], "fill": _fill}[term.metric]
    return median(of(run) for run in contender.runs if run["error"] is None)


def _rate(run: Run, window: str) -> Optional[float]:
    rates = [value for load in sync_loads(run) for value in [rate(load, window)]
             if value is not None]
    return sum(rates) if rates else None


def _worst(run: Run, key: str, roles: Sequence[str]) -> Optional[float]:
    values = [load["windows"]["judged"][key] for load in run["loads"]
              if load["role"] in roles and load["windows"].get("judged")]
    return max((value for value in values if value is not None), default=None)


def _p99(run: Run) -> Optional[float]:
    return _worst(run, "p99", ["sync"])


def _stall(run: Run) -> Optional[float]:
    return _worst(run, "longest_stall", ["flood", "job", "bystander"])


def _fill(run: Run) -> Optional[float]:
    shares = [run["series"]["fill"][disk["name"]][-1] / disk["cache_bytes"]
              for disk in run["disks"] if disk["cache_bytes"]]
    return max(shares, default=None)
