# SPDX-License-Identifier: GPL-2.0-or-later
"""Laws beside each other: `python -m tests.sim laws` prints these tables."""

from __future__ import annotations

import math
import statistics
from typing import Dict, List, Sequence, Tuple

from tests.sim import bench
from tests.sim.bench import Run
from tests.sim.laws import LAWS
from tests.sim.scenarios import Scenario
from writebackd.policy.schema import Policy

SEEDS = (1, 2, 3)
STATIC = tuple(f"{megabytes}M" for megabytes in bench.STATIC_MB)
BASELINE = "15M"
NAMES = (BASELINE, *LAWS)


def tables(scenarios: Sequence[Scenario], policy: Policy) -> str:
    """Scores by scenario and law, then what each law costs; medians over SEEDS."""
    scores: Dict[str, List[float]] = {name: [] for name in NAMES}
    ratios: Dict[str, List[Tuple[float, str]]] = {name: [] for name in NAMES}
    changes: Dict[str, List[float]] = {name: [] for name in NAMES}
    blocked: Dict[str, float] = dict.fromkeys(NAMES, 0.0)
    lines = ["score = f x min(1, g/0.95)^4, median of seeds " + " ".join(map(str, SEEDS)), "",
             f"{'scenario':22}{'static':>9}" + "".join(f"{name:>14}" for name in NAMES)]
    for scenario in scenarios:
        runs = [bench.compare(scenario, policy, seed, laws=LAWS) for seed in SEEDS]
        static = max(_median(runs, name) for name in STATIC)
        line = f"{scenario.name:22}{static:9.2f}"
        for name in NAMES:
            value = _median(runs, name)
            line += f"{value:14.2f}"
            scores[name].append(value)
            ratios[name].append((value / static, scenario.name))
            changes[name].append(statistics.median(
                bench.steadiness(run[name].limits, 0.0).changes_per_minute for run in runs))
            blocked[name] = max(blocked[name], *(run[name].longest_blocked_s for run in runs))
        lines.append(line)
    lines += ["", f"{'over all scenarios':31}" + "".join(f"{name:>14}" for name in NAMES)]

    def row(title: str, values: Sequence[str]) -> None:
        lines.append(f"{title:31}" + "".join(f"{value:>14}" for value in values))

    row("geometric mean", [f"{_geometric(scores[n]):.3f}" for n in NAMES])
    row("of best static, geometric", [
        f"{_geometric([ratio for ratio, _ in ratios[n]]):.2f}" for n in NAMES])
    worst = {n: min(ratios[n]) for n in NAMES}
    row("of best static, worst", [f"{worst[n][0]:.2f}" for n in NAMES])
    row("below 0.95 of it in", [str(sum(r < 0.95 for r, _ in ratios[n])) for n in NAMES])
    row("changes/min settled, mean", [f"{statistics.fmean(changes[n]):.1f}" for n in NAMES])
    row("the same, most", [f"{max(changes[n]):.0f}" for n in NAMES])
    row("longest blocked writer, s", [f"{blocked[n]:.1f}" for n in NAMES])
    lines += ["", "worst in: " + ", ".join(f"{n} {worst[n][1]}" for n in NAMES)]
    return "\n".join(lines)


def _median(runs: Sequence[Dict[str, Run]], name: str) -> float:
    return statistics.median(run[name].score or 0.0 for run in runs)


def _geometric(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(math.log(max(value, 1e-6)) for value in values))
