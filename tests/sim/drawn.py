# SPDX-License-Identifier: GPL-2.0-or-later
"""Hosts that nobody tuned a law for: drawn by seed, with the score that physics allows.

    PYTHONPATH=agent python -m tests.sim drawn work [HOSTS]
    PYTHONPATH=agent python -m tests.sim drawn judge [HOSTS]
    PYTHONPATH=agent python -m tests.sim drawn constants [HOSTS]

Even seeds are for work, odd ones for judging: a law is run on them once, and not changed by what
they say.  With -v each host has a line.  `constants` takes half and double of each constant.
"""

from __future__ import annotations

import contextlib
import functools
import math
import random
import statistics
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Sequence, Tuple

from tests.sim import bench
from tests.sim.bench import Run
from tests.sim.plant import (
    BESIDE_FLOOD,
    BLOCKS_MOST,
    MB,
    SWEEP_BESIDE,
    SWEEP_EVERY_S,
    SYNC_BYTES,
    Disk,
    Flood,
    Law,
    SyncLoad,
)
from tests.sim.scenarios import Scenario
from writebackd import tuning
from writebackd.control import device_decision, law
from writebackd.control.decide import decide
from writebackd.estimate import drain, estimator, sync_demand
from writebackd.policy.schema import Policy
from writebackd.trial.ladder import KEPT

STATIC_MB = (1, 2, 4, 8, 15, 32, 64, 128, 256)
BACKGROUNDS = (0.1, 0.25, 0.8)  # of the limit, beside half of it
KNEE_S = 16e-3  # `knee`: so many seconds of the drain rate as limit, half of it as background
HALVES = {"work": 0, "judge": 1}  # by the rest of the seed by two
FLOOD_S, SETTLE_S, WINDOW_S = 6.0, 15.0, 45.0
MULTIPLES = ("SEEK", "PAYS", "RISE", "IN_FORCE", "SLOW_MULTIPLE")
BELOW_ONE = ("CUT", "FELL")
LAW = (law, drain, estimator, sync_demand, device_decision)  # whose constants are looked at
LOW = 0.8  # of the best fixed limit: hosts below it are counted


def seeds(half: str, hosts: int) -> Tuple[int, ...]:
    """The first seeds of a half."""
    return tuple(2 * i + HALVES[half] for i in range(1, hosts + 1))


def half_of(chosen: Sequence[int]) -> str:
    """Which half these seeds are of; raises ValueError for some of each."""
    rests = {seed % 2 for seed in chosen}
    if len(rests) != 1:
        raise ValueError("even seeds are for work, odd ones for judging: not both in one table")
    return next(half for half, rest in HALVES.items() if rest in rests)


def host(seed: int) -> Scenario:
    """The host of a seed: a disk with its kernel, a flood, threads that sync."""
    dice = random.Random(f"host {seed}")

    def log(low: float, high: float) -> float:
        return math.exp(dice.uniform(math.log(low), math.log(high)))

    drain = log(8.0, 2000.0) * MB
    link = drain * log(1.3, 8.0)
    kind = dice.choice(("protected", "protected", "protected", "flushed", "none"))
    block_s = max(log(20e-6, 5e-3), SYNC_BYTES / drain)
    answer_s = log(50e-6, 1e-3)
    cache, flush_s = log(16.0, 4096.0) * MB, 0.0
    if kind == "flushed":
        cache, flush_s = min(cache, 0.5 * drain), dice.choice((0.0, block_s))
    elif kind == "none":
        cache = 0.0
    disk = Disk(
        drain=drain, cache=cache, link=link, scattered_s=block_s, volatile=kind == "flushed",
        flush_s=flush_s, baseline_s=answer_s + (0.0 if kind == "protected" else block_s),
        tau_s=log(4e-3, 30e-3), lag_s=dice.uniform(3.0, 4.0), breath=dice.uniform(0.15, 0.65),
        seeks=kind == "none",
    )
    threads = dice.choice((1, 2, 4, 8))
    # Alone, the syncs never ask the media for more than they can do.
    think_s, most = 0.0, dice.uniform(0.3, 0.9) / block_s
    if threads / disk.baseline_s > most:
        think_s = threads / most - disk.baseline_s
    on_s = off_s = 0.0
    window_s = WINDOW_S
    if dice.random() < 1 / 3:
        on_s = dice.choice((1.0, 2.0, 5.0, 10.0, 20.0))
        off_s = on_s * dice.choice((0.5, 1.0, 2.0))
        window_s = math.ceil(WINDOW_S / (on_s + off_s)) * (on_s + off_s)
    flood = Flood(start_s=FLOOD_S, on_s=on_s, off_s=off_s, writers=threads,
                  rate=max(drain * dice.uniform(1.5, 4.0), 300.0 * MB))
    return Scenario(
        f"{kind}-{seed}", (disk,), (flood,), (SyncLoad(threads=threads, think_s=think_s),),
        judged=FLOOD_S + SETTLE_S, end=FLOOD_S + SETTLE_S + window_s,
    )


def in_waves(scenario: Scenario) -> bool:
    return scenario.floods[0].on_s > 0.0


def allowed(scenario: Scenario, idle: Run, default: Run) -> float:
    """A bound on the score of any contender on such a host: no law gets more.

    Of the media's time in the window each byte of the flood takes its part and each block of a sync
    its own, but for what the cache takes over the end of it.  Of the processors' time the flood
    takes from the syncs what the plant says.
    """
    disk, flood = scenario.disks[0], scenario.floods[0]
    window_s = scenario.end - scenario.judged
    free, whole = idle.sync_rate[0], default.device_rate
    keeps = bool(disk.cache) and not disk.volatile
    # At least so much of the time the flood writes: the faster into the cache, the less.
    busy = whole / disk.link
    if not flood.on_s:
        busy = max(busy, whole / disk.drain - disk.cache / disk.drain / window_s)
    slower = 2.5 if disk.volatile else 1.0 + BESIDE_FLOOD if disk.cache else 3.0
    think_s = scenario.syncs[0].think_s
    cost = 1.0 - (disk.baseline_s + think_s) / (slower * disk.baseline_s + think_s)
    best = 0.0
    for step in range(1, 2001):
        f = step / 2000
        rate = f * free
        over = 0.0
        if keeps:
            period_s = SWEEP_EVERY_S / max(1e-9, 1.0 - rate * disk.scattered_s)
            over = min(BLOCKS_MOST * disk.cache / SYNC_BYTES, rate * period_s)
        blocks_s = max(0.0, rate * window_s - over) * disk.scattered_s
        left_s = max(0.0, window_s - blocks_s) + disk.cache / disk.drain
        if keeps:
            left_s = max(left_s, SWEEP_BESIDE * window_s)
        # Destaging varies by less than 1 % over a window.
        g = min(1.01 * left_s * disk.drain / (whole * window_s), (1.0 - f) / (cost * busy))
        best = max(best, f * min(1.0, max(0.0, g) / KEPT) ** 4)
    return best


@dataclass(frozen=True)
class Found:
    """All contenders on one host, and what physics allows there."""

    scenario: Scenario
    runs: Mapping[str, Run]
    best: str  # fixed pair of limits, in hindsight
    allowed: float

    def share(self, name: str) -> float:
        """Of the best fixed limit's score."""
        return score(self.runs[name]) / score(self.runs[self.best])


def score(run: Run) -> float:
    assert run.score is not None
    return max(run.score, 1e-6)


def compare(
    seed: int, policy: Policy, laws: Mapping[str, Callable[[], Law]],
    backgrounds: Sequence[float] = (),
) -> Found:
    """`backgrounds`: shares of the limit that the sweep tries beside a half."""
    scenario, (idle, fixed) = host(seed), sweep(seed, tuple(backgrounds))
    default, runs = fixed["default"], {**fixed}
    best = max((name for name in runs if name != "default"), key=lambda name: score(runs[name]))
    for name, limit in (("16M/8M", 16 * MB), ("knee", int(KNEE_S * scenario.disks[0].drain))):
        runs[name] = bench.judge(bench.run(scenario, limit=limit, seed=seed), idle, default)
    for name, make in laws.items():
        runs[name] = bench.judge(
            bench.run(scenario, policy=policy, seed=seed, law=make()), idle, default)
    return Found(scenario, runs, best, allowed(scenario, idle, default))


@functools.lru_cache(maxsize=None)
def sweep(seed: int, backgrounds: Tuple[float, ...] = ()) -> Tuple[Run, Mapping[str, Run]]:
    """The host without a flood; and under the default limits and each fixed pair."""
    scenario = host(seed)
    idle = bench.run(scenario, seed=seed, flooded=False)
    default = bench.run(scenario, seed=seed)
    runs: Dict[str, Run] = {"default": bench.judge(default, idle, default)}
    for megabytes in STATIC_MB:
        runs[f"{megabytes}M"] = bench.judge(
            bench.run(scenario, limit=megabytes * MB, seed=seed), idle, default)
        for share in backgrounds:
            runs[f"{megabytes}M/{share:.0%}"] = bench.judge(
                bench.run(scenario, limit=megabytes * MB, seed=seed,
                          background=int(share * megabytes * MB)), idle, default)
    return idle, runs


def table(
    chosen: Sequence[int], policy: Policy, laws: Mapping[str, Callable[[], Law]],
    verbose: bool = False, backgrounds: Sequence[float] = (),
) -> str:
    """Each contender over steady floods and over floods in waves."""
    half = half_of(chosen)
    found = [compare(seed, policy, laws, backgrounds) for seed in chosen]
    lines = [f"{half}: {len(found)} hosts, seeds {chosen[0]} to {chosen[-1]}; geometric means",
             "score = f x min(1, g/0.95)^4, f of commits; of best: share of the best fixed pair of",
             "limits of each host; worst s: the worst second's p99 of commits, and the longest"]
    if verbose:
        lines += ["", *(line(each, laws) for each in found)]
    for title, waves in (("steady floods", False), ("floods in waves", True)):
        group = [each for each in found if in_waves(each.scenario) is waves]
        if group:
            lines += ["", *_group(title, group, [*group[0].runs])]
    return "\n".join(lines)


def constants(chosen: Sequence[int], policy: Policy) -> str:
    """What half and double of each constant of the law do, on hosts for work."""
    if half_of(chosen) != "work":
        raise ValueError("constants are not looked at on hosts for judging")
    found = [compare(seed, policy, {}) for seed in chosen]
    idle = [bench.run(each.scenario, seed=seed, flooded=False)
            for seed, each in zip(chosen, found)]

    def shares() -> str:
        texts = []
        for waves in (False, True):
            values = [
                score(bench.judge(bench.run(each.scenario, policy=policy, seed=seed, law=decide),
                                  alone, each.runs["default"])) / score(each.runs[each.best])
                for seed, each, alone in zip(chosen, found, idle)
                if in_waves(each.scenario) is waves]
            texts.append(f"{_geometric(values):12.3f}" if values else f"{'-':>12}")
        return "".join(texts)

    heads = ("steady", "waves", "steady x 2", "waves x 2")
    lines = [f"{'of best fixed, half':24}" + "".join(f"{head:>12}" for head in heads),
             f"{'as it is':24}{shares()}"]
    for name, value in vars(tuning).items():
        if name.isupper() and any(name in vars(module) for module in LAW):
            of = value[policy.objective.prefer] if isinstance(value, dict) else value
            line = f"{f'{name} {of:g}':24}"
            for times in (0.5, 2.0):
                with _changed(name, _scaled(name, value, times)):
                    line += shares()
            lines.append(line)
    return "\n".join(lines)


def _scaled(name: str, value: Any, times: float) -> Any:
    """Half or double of a constant, whatever the policy prefers."""
    if isinstance(value, dict):
        return {key: _scaled(name, each, times) for key, each in value.items()}
    # Of those that are multiples, what is above 1; of those that something falls to, what is below.
    from_one = name in MULTIPLES or name in BELOW_ONE
    return 1.0 + (value - 1.0) * times if from_one else value * times


@contextlib.contextmanager
def _changed(name: str, value: Any) -> Iterator[None]:
    """A constant of the law with another value, wherever it is used."""
    users = [vars(module) for module in (tuning, *LAW) if name in vars(module)]
    before = users[0][name]
    try:
        for user in users:
            user[name] = value
        yield
    finally:
        for user in users:
            user[name] = before


def _group(title: str, group: Sequence[Found], names: Sequence[str]) -> List[str]:
    lines = [f"{f'{title}, {len(group)}':24}{'f':>8}{'g':>7}{'score':>8}{'of best':>9}"
             f"{f'< {LOW}':>7}{'worst':>7}{'of allowed':>12}{'changes/min':>13}"
             f"{'worst s, ms':>13}{'longest':>9}"]
    names = [name for name in names if not name.endswith("%")]
    for name in (*names[: 1 + len(STATIC_MB)], "best fixed", *names[1 + len(STATIC_MB):]):
        runs = [each.runs[each.best if name == "best fixed" else name] for each in group]
        shares = [score(run) / score(each.runs[each.best]) for run, each in zip(runs, group)]
        low = sum(share < LOW for share in shares) / len(shares)
        changes = statistics.fmean(
            bench.steadiness(run.limits, 0.0).changes_per_minute for run in runs)
        lines.append(
            f"{name:24}{_geometric([run.f or 0.0 for run in runs]):8.3f}"
            f"{_geometric([run.g or 0.0 for run in runs]):7.3f}"
            f"{_geometric([score(run) for run in runs]):8.3f}"
            f"{_geometric(shares):9.3f}{low:7.0%}{min(shares):7.2f}"
            f"{_geometric([score(run) / each.allowed for run, each in zip(runs, group)]):12.3f}"
            f"{changes:13.1f}"
            f"{1e3 * _geometric([bench.felt(run).worst_second_s for run in runs]):13.0f}"
            f"{1e3 * _geometric([bench.felt(run).longest_s for run in runs]):9.0f}")
    return lines


def line(found: Found, laws: Iterable[str]) -> str:
    """One host: what it is, the best fixed limit, and each law's share of it."""
    disk, load = found.scenario.disks[0], found.scenario.syncs[0]
    flood, best = found.scenario.floods[0], found.runs[found.best]
    text = (f"{found.scenario.name:15}R{disk.drain / MB:5.0f} C{disk.cache / MB:5.0f} "
            f"c{disk.scattered_s * 1e3:5.2f}ms b{disk.baseline_s * 1e3:5.2f} "
            f"tau{disk.tau_s * 1e3:3.0f} x{load.threads} "
            f"{f'{flood.on_s:g}/{flood.off_s:g}' if flood.on_s else 'steady':7}"
            f"{found.best:>5} {best.f:.3f}@{best.g:.2f} of allowed "
            f"{score(best) / found.allowed:.2f}")
    for name in laws:
        run = found.runs[name]
        text += f"  {name} {run.f:.3f}@{run.g:.2f} {found.share(name):.2f}"
    return text


def _geometric(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(math.log(max(value, 1e-6)) for value in values))
