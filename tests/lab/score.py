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
from dataclasses import replace
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from writebackd.trial import ladder

from . import catalogue, reach
from .contenders import KINDS, named
from .evaluation import Check, Contender, Evaluation, Run
from .evaluation import Scenario as Scored
from .scenario import Expectation, Scenario, Term

# Fixed limits that run in all but a few special scenarios, and what they are compared with.
ALWAYS = ("default", "static-16M", "static-4M", "agent")
CHANGED = "changed"  # the window after a change in mid-run
BEST, IDLE = "best", "idle"  # in expectations: the best static limit; the load without a flood


def score(f: Optional[float], g: Optional[float]) -> Optional[float]:
    """As the module says; None of what is needed is unknown."""
    if f is None:
        return g
    return f if g is None else ladder.score(f, g)


def evaluate(runs: Iterable[Run]) -> Evaluation:
    """Scores of all runs; raises RigError for a scenario or a contender that is gone."""
    by_scenario: Dict[str, List[Run]] = {}
    for run in runs:
        by_scenario.setdefault(run["scenario"], []).append(run)
    scored = [_evaluate(catalogue.load(name), found) for name, found in sorted(by_scenario.items())]
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
    changed: Dict[str, List[Optional[float]]] = {}
    for together in rounds.values():
        idle = idle_rates(together)
        default = next((run for run in together if run["contender"] == "default"), None)
        for run in together:
            figures.setdefault(run["contender"], []).append(
                (run, synchronous_share(run, idle), sequential_share(run, default)))
            if CHANGED in run["windows"]:
                changed.setdefault(run["contender"], []).append(score(
                    synchronous_share(run, idle, CHANGED),
                    sequential_share(run, default, CHANGED)))
    contenders = {}
    for name in sorted({run["contender"] for run in runs}, key=_place):
        contenders[name] = replace(
            _contender(name, figures.get(name, []),
                       [run for run in runs if run["contender"] == name]),
            changed=median(changed.get(name, [])))
    statics = [each for each in contenders.values() if each.kind == "static" and each.score]
    best = max(statics, key=lambda each: each.score or 0, default=None)
    after = best_changed(contenders)
    for name, each in contenders.items():
        contenders[name] = replace(
            _reach(scenario, each), changed_regret=_share(
                each.changed, contenders[after].changed if after else None),
            regret=_share(each.score, best.score if best else None))
    scored = Scored(scenario.name, scenario.summary, scenario.shows, has_sync=scenario.has_sync,
                    contenders=contenders,
                    best_static=best.name if best else None)
    scored.checks.extend(check(expectation, scored, good)
                         for expectation in scenario.expectations)
    return scored


def best_changed(contenders: Mapping[str, Contender]) -> str:
    """Name of the static limit with the best score after a change; "" for none."""
    found = {each.name: each.changed for each in contenders.values()
             if each.kind == "static" and each.changed}
    return max(found, key=lambda name: found[name] or 0, default="")


def _share(value: Optional[float], of: Optional[float]) -> Optional[float]:
    return value / of if value is not None and of else None


def _reach(scenario: Scenario, contender: Contender) -> Contender:
    """And its worst moments and its limit's, medians over its runs without an error."""
    runs = [run for run in contender.runs if run["error"] is None]
    return replace(
        contender,
        worst_s=median(reach.worst_second(scenario, run) for run in runs),
        longest_s=median(reach.longest(scenario, run) for run in runs),
        stall_s=median(reach.longest_stall(run) for run in runs),
        writes_per_min=median(reach.writes_per_minute(run) for run in runs))


def _place(name: str) -> Tuple[int, int, str]:
    """Where a contender stands in tables: by kind, static ones by size."""
    settings = named(name)
    return KINDS.index(settings.kind), settings.limit_bytes or 0, name


def _contender(name: str, figures: Sequence[Tuple[Run, Optional[float], Optional[float]]],
               runs: List[Run]) -> Contender:
    settings = named(name)
    scores = sorted(each for _, f, g in figures for each in [score(f, g)] if each is not None)
    return Contender(
        name, settings.kind, settings.limit_bytes, summary=settings.summary,
        f=median(f for _, f, _ in figures), g=median(g for _, _, g in figures),
        score=median(scores), spread=(scores[0], scores[-1]) if scores else None, runs=runs)


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


def synchronous_share(run: Run, idle: Mapping[str, float],
                      window: str = "judged") -> Optional[float]:
    """f: the geometric mean over the synchronous loads; None without any."""
    shares = []
    for load in sync_loads(run):
        value = rate(load, window)
        if value is not None and idle.get(load["name"]):
            shares.append(value / idle[load["name"]])
    return statistics.geometric_mean(shares) if shares else None


def sequential_share(run: Run, default: Optional[Run],
                     window: str = "judged") -> Optional[float]:
    """g; None without a sequential load or without a run with default limits."""
    own = sequential_rate(run, window)
    reference = sequential_rate(default, window) if default else None
    return own / reference if own is not None and reference else None


def sequential_rate(run: Run, window: str = "judged") -> Optional[float]:
    """Bytes per second that floods and jobs got onto their disks in the window.

    A job's own figure includes its final sync.  A flood's is taken at the device, behind
    the page cache, less what the synchronous loads of the disk write there: as much per
    operation as in the idle window, when they were alone.
    """
    jobs = [load for load in run["loads"] if load["role"] == "job"]
    if jobs:
        rates = [load["windows"][window]["byte_rate"] for load in jobs
                 if load["windows"].get(window)]
        return sum(rates) if rates and None not in rates else None
    flooded = {load["disk"] for load in run["loads"] if load["role"] == "flood"}
    start, end = run["windows"][window]
    written = 0.0
    for disk in run["disks"]:
        if disk["name"] in flooded:
            written += max(0.0, disk["written"][window] - _synchronous_bytes(run, disk, window))
    return written / (end - start) if flooded else None


def _synchronous_bytes(run: Run, disk: Mapping[str, Any], window: str) -> float:
    loads = [load["windows"] for load in sync_loads(run) if load["disk"] == disk["name"]]
    idle = sum(windows["idle"]["ops"] or 0 for windows in loads if windows.get("idle"))
    there = sum(windows[window]["ops"] or 0 for windows in loads if windows.get(window))
    return float(disk["written"]["idle"]) / idle * there if idle else 0.0


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

    rate: per second, of the synchronous loads; byte-rate: what the floods hand to the
    kernel; device-rate: what is written to the disks they are on; p99, max: of commits, the worst
    load's; stall: the longest of a buffered writer since the contender
    came; limit: in the end, bytes; dirty: the most that was
    dirty or under writeback in the window, bytes; extents: of the flooded
    files, per byte; stripes: of the bytes that a parity
    array wrote, the share in whole ones; checkpoint:
    the longest of a database, seconds; changed: the score after a change in mid-run;
    worst, longest: of commits since the flood's first second, the p99 of a second and a single one.
    """
    if term.contender == IDLE:
        return median(_rate(run, "idle", term.load) for run in runs)
    name: Optional[str] = term.contender
    if name == BEST:
        # The limit that is best after a change may be another one than before it.
        name = best_changed(scored.contenders) if term.metric == CHANGED else scored.best_static
    contender = scored.contenders.get(name or "")
    if contender is None:
        return None
    of_contender = {"worst": "worst_s", "longest": "longest_s"}.get(term.metric, term.metric)
    if term.metric in ("f", "g", "score", "changed", "worst", "longest"):
        value: Optional[float] = getattr(contender, of_contender)
        return value
    of: Mapping[str, Callable[[Run, str], Optional[float]]] = {
        "rate": lambda run, load: _rate(run, "judged", load),
        "byte-rate": _byte_rate, "device-rate": _device_rate,
        "p99": lambda run, load: _worst(run, "p99", load),
        "max": lambda run, load: _worst(run, "max", load),
        "stall": _stall, "extents": _extents, "stripes": lambda run, _: _stripes(run),
        "limit": lambda run, _: float(run["series"]["dirty_limit"][-1]),
        "dirty": lambda run, _: _dirty(run),
        "checkpoint": lambda run, load: _worst(run, "checkpoint_s", load)}
    return median(of[term.metric](run, term.load) for run in contender.runs
                  if run["error"] is None)


def _of(run: Run, name: str, *roles: str) -> List[Mapping[str, Any]]:
    """The load of that name, else all of these roles."""
    return [load for load in run["loads"]
            if (load["name"] == name if name else load["role"] in roles)]


def _sum(values: Iterable[Optional[float]]) -> Optional[float]:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _judged(loads: Iterable[Mapping[str, Any]]) -> List[Mapping[str, Any]]:
    return [load["windows"]["judged"] for load in loads if load["windows"].get("judged")]


def _rate(run: Run, window: str, name: str) -> Optional[float]:
    return _sum(rate(load, window) for load in _of(run, name, "sync"))


def _byte_rate(run: Run, name: str) -> Optional[float]:
    return _sum(measured["byte_rate"] for measured in _judged(_of(run, name, "flood", "job")))


def _worst(run: Run, key: str, name: str) -> Optional[float]:
    values = [{**(measured.get("extra") or {}), **measured}.get(key)
              for measured in _judged(_of(run, name, "sync"))]
    return max((value for value in values if value is not None), default=None)


def _stall(run: Run, name: str) -> Optional[float]:
    return reach.longest_stall({**run, "loads": _of(run, name, "flood", "job", "bystander")})


def _extents(run: Run, name: str) -> Optional[float]:
    counted = [load["extents"] for load in _of(run, name, "flood", "job") if load.get("extents")]
    size = sum(each["bytes"] for each in counted)
    return sum(each["extents"] for each in counted) / size if size else None


def _device_rate(run: Run, name: str) -> Optional[float]:
    """What programs hand to the kernel says little of them while memory takes it."""
    start, end = run["windows"]["judged"]
    on = {load["disk"] for load in _of(run, name, "flood", "job")}
    return _sum(disk["written"]["judged"] / (end - start) for disk in run["disks"]
                if disk["name"] in on)


def _stripes(run: Run) -> Optional[float]:
    """In bytes: the small stripes of more fsyncs would look like harm."""
    arrays = [disk for disk in run["disks"] if disk.get("stripe_bytes")]
    whole = sum(disk["stripes"]["judged"]["whole"] * disk["stripe_bytes"] for disk in arrays)
    written = sum(disk["stripes"]["judged"]["bytes"] for disk in arrays)
    return whole / written if written else None


def _dirty(run: Run) -> float:
    start, end = run["windows"]["judged"]
    series = run["series"]
    return max((float(dirty + writeback) for time, dirty, writeback in zip(
        series["t"], series["dirty"], series["writeback"]) if start <= time <= end), default=0.0)
